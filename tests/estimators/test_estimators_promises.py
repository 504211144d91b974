"""What some estimators promise: baselines that are trained, constants without a gradient, samples that are averaged."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from estimator_cases import CASES, MAIN, Supply, generator, gradients
from exact import igr_i, setting
from torch import Tensor

import igr
from igr import estimators

pytestmark = pytest.mark.usefixtures("one_thread")


def test_running_mean_is_of_the_calls_before():
    """What a call sees is the mean as it was, whatever its own samples are."""
    s, running = setting("gs", "network", (5,), 3), estimators.RunningMean(momentum=0.5)
    expected, means = torch.tensor(0.0), []
    for call in range(4):
        found = gradients(CASES["score_function"], s, seed=call, keywords={"baseline": running})
        given = gradients(CASES["score_function"], s, seed=call, keywords={"baseline": expected})
        for leaf in s.leaves:
            torch.testing.assert_close(found[leaf], given[leaf], rtol=1e-5, atol=1e-6)
        means.append(CASES["score_function"](s, num_samples=4, generator=generator(call)).value.mean())
        weights = 0.5 ** torch.arange(len(means) - 1, -1, -1.0)
        expected = (weights * torch.stack(means)).sum() / weights.sum()
    torch.testing.assert_close(running().double(), expected.double(), rtol=1e-5, atol=1e-6)


def test_a_baseline_of_every_example_is_trained():
    """By the squared error, which leaves the estimate as it is."""
    s, case = setting("gs", "network", (5,), 3), CASES["score_function"]
    plain = torch.linspace(-1, 1, 5, dtype=torch.float64)
    fixed = gradients(case, s, keywords={"baseline": plain})
    baseline = plain.clone().requires_grad_()
    value, surrogate = case(s, {"baseline": baseline}, num_samples=4, generator=generator(5))
    found = torch.autograd.grad(surrogate.sum(), [*s.leaves.values(), baseline])
    torch.testing.assert_close(found[-1], 2 * (plain - value))
    for leaf, gradient in zip(s.leaves, found, strict=False):
        torch.testing.assert_close(gradient, fixed[leaf])


@pytest.mark.parametrize("family", ["gs", "igr"])
@pytest.mark.parametrize("name", ["rloo", "vimco", "uspg", "disarm"])
def test_a_constant_has_no_gradient(name, family):
    """Samples that are each other's baseline, or antithetic: nothing is left of the noise."""
    s = setting(family, "network", (5,), 3, 2)
    s.problem = replace(s.problem, f=lambda D, w: D.new_full(D.shape[:-2], 1.7))
    surrogate = CASES[name](s, num_samples=4, generator=generator()).surrogate
    for gradient in torch.autograd.grad(surrogate.sum(), [*s.q_parameters.values()]):
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_samples", [9, 12], ids=["all", "more than there are"])
@pytest.mark.parametrize("family", ["gs", "igr"])
def test_uspg_of_all_states_is_exact(family, num_samples):
    case, s = CASES["uspg"], setting(family, "network", (5,), 2, 3)
    truth = torch.autograd.grad(case.target(s, num_samples).sum(), [*s.leaves.values()])
    for exact, gradient in zip(truth, gradients(case, s, num_samples=num_samples).values(), strict=True):
        torch.testing.assert_close(gradient, exact, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("coupled", [True, False], ids=["coupled", "independent"])
@pytest.mark.parametrize("family", ["gs", "igr"])
@pytest.mark.parametrize("name", ["rebar", "relax"])
def test_control_variates_are_trained_by_the_squared_norm(name, family, coupled):
    """The gradient of |g|², summed over examples, against differences; the estimate itself is not touched."""
    s = setting(family, "network", (5,), 3)

    def run(phi: Tensor) -> tuple[Tensor, list[Tensor]]:
        weight, shift, tau = phi
        options = {"scale": weight}
        if name == "relax":
            options = {"control_variate": lambda z: torch.tanh(weight * z.square()[..., 0] + shift).sum(-1) + s.f(z)}
        build = {"gs": lambda p: igr.GumbelSoftmax(tau, p["logits"]), "igr": lambda p: igr_i(p, tau)}[family]
        made = replace(s, family=replace(s.family, build=build))
        case = replace(CASES[name], keywords=lambda _: {**options, "coupled": coupled})
        surrogate = case(made, num_samples=1, generator=generator(2)).surrogate.sum()
        return surrogate, [*torch.autograd.grad(surrogate, [*s.leaves.values()], retain_graph=True)]

    def norm(phi: Tensor) -> float:
        return sum(g.square().sum().item() for g in run(phi)[1][: len(s.q_parameters)])

    at = torch.tensor([0.8, -0.3, 0.6], dtype=torch.float64)
    phi = at.clone().requires_grad_()
    surrogate, found = run(phi)
    for trained, fixed in zip(found, run(at)[1], strict=True):
        torch.testing.assert_close(trained, fixed)
    (gradient,) = torch.autograd.grad(surrogate, phi)
    slopes = [(norm(at + 1e-4 * step) - norm(at - 1e-4 * step)) / 2e-4 for step in torch.eye(3, dtype=torch.float64)]
    torch.testing.assert_close(gradient, torch.tensor(slopes, dtype=torch.float64), rtol=1e-5, atol=1e-6)
    assert gradient[0] != 0


OTHERWISE = ("rloo", "vimco", "uspg", "gumbel_rao", "igr_rao", "score_function, running")


@pytest.mark.parametrize(
    ("name", "family"), [(n, family) for n, family in MAIN if n not in OTHERWISE and not n.endswith("independent")]
)
def test_samples_are_averaged(name, family):
    """Four samples are the mean of four estimates from one of them each, for all parameters."""
    case, s = CASES[name], setting(family, "network", (5,), 3, 2 if name == "disarm" else 3)
    keywords = case.keywords(s)
    leaves = [*s.leaves.values(), *getattr(keywords.get("control_variate"), "parameters", list)()]

    def run(num_samples: int, part: slice) -> list[Tensor]:
        value, surrogate = case(s, keywords, num_samples=num_samples, generator=Supply(part=part, of=4))
        return [value, *torch.autograd.grad(surrogate.sum(), leaves)]

    whole, parts = run(4, slice(None)), [run(1, slice(i, i + 1)) for i in range(4)]
    for together, *each in zip(whole, *parts, strict=True):
        torch.testing.assert_close(together, torch.stack(each).mean(0))
