"""Every estimator that claims to be unbiased is, and the instrument sees what is not.

Unbiasedness is asked of the mean of 1e5 draws against the exact gradient by enumeration, |z| < 5 in every coordinate of
q's parameters, of f's own and of the value. Parameters are expanded to one copy for every row of the batch, so that the
gradient of the sum of all rows holds one estimate per row. Rows times samples count as draws. `pytest -s` prints the
largest z-scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from estimator_cases import CASES, MAIN, UNBIASED, generator
from exact import TAU, Setting, Tensors, expectation, gaussian_winner_probs, igr_i, setting, z_scores
from scipy import integrate, stats
from torch import Tensor
from torch.distributions import Distribution

import igr
from igr import estimators

pytestmark = pytest.mark.usefixtures("one_thread")


def measure(
    estimator: Callable[..., Any], s: Setting, keywords: dict[str, Any], rows: int, num_samples: int, calls: int = 20
) -> Tensors:
    """Values and gradients of many estimates, one for each row, made in a few calls."""
    noise, found = generator(11), []
    for _ in range(calls):
        wide = s.expand(-(-rows // calls))
        estimate = estimator(wide.q, wide.f, num_samples=num_samples, generator=noise, **keywords)
        gradients = torch.autograd.grad(estimate.surrogate.sum(), [*wide.leaves.values()])
        found.append([estimate.value, *gradients])
    return {name: torch.cat(parts) for name, parts in zip(["value", *s.leaves], zip(*found, strict=True), strict=True)}


def examine(label: str, estimates: Tensors, s: Setting, target: Tensor) -> float:
    """The largest |z| of all coordinates, printed."""
    truth = [target, *torch.autograd.grad(target.sum(), [*s.leaves.values()])]
    largest = {
        name: z_scores(estimates[name], exact.detach()).abs().max().item()
        for name, exact in zip(estimates, truth, strict=True)
    }
    print(f"\nmax |z| {label}: " + ", ".join(f"{name} {z:.2f}" for name, z in largest.items()), end="")
    return max(largest.values())


def largest_z(name: str, s: Setting, label: str, rows: int, num_samples: int) -> float:
    case = CASES[name]
    estimates = measure(getattr(estimators, case.name), s, case.keywords(s), rows, num_samples)
    return examine(f"{name}, {label}, {rows} x {num_samples}", estimates, s, case.target(s, num_samples))


SIZES = {"quadratic": 1, "network": 2, "product": 3}  # N
DRAWS = 100_000


@pytest.mark.parametrize("problem", SIZES)
@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased_for_logits(name, problem):
    s, least = setting("gs", problem, N=SIZES[problem], K=2 if name == "disarm" else 3), CASES[name].least
    assert largest_z(name, s, f"gs, {problem}", DRAWS // least, least) < 5


# Here probabilities cost by the row and conditional samples by the sample. For vimco all tuples are enumerated; uspg is
# exact with as many samples as there are states.
IGR_SAMPLES = {"vimco": {1: 4, 2: 4}, "uspg": {1: 2, 2: 4, 3: 5}}


def _igr_plan():
    """All problems, the costliest with fewer variables; those that repeat what others have shown are slow."""
    shown = {
        "score_function, given": ("network",),
        "score_function, running": ("network",),
        "rebar, independent": ("quadratic",),
        "relax": ("quadratic", "product"),
        "relax, network": ("network",),
        "relax, independent": (),
    }
    for name in UNBIASED:
        small = CASES[name].name in ("rebar", "relax", "vimco")
        for problem, N in ({"quadratic": 1, "network": 1, "product": 2} if small else SIZES).items():
            slow = problem not in shown.get(name, SIZES)
            yield pytest.param(name, problem, N, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize(("name", "problem", "N"), [*_igr_plan()])
def test_unbiased_for_igr(name, problem, N):
    num_samples = IGR_SAMPLES.get(name, {}).get(N, 10)
    s = setting("igr", problem, N=N, K=2 if name == "disarm" else 3)
    assert largest_z(name, s, f"igr, {problem}", -(-DRAWS // num_samples), num_samples) < 5


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in UNBIASED if CASES[name].name in ("rebar", "relax")])
def test_unbiased_for_igr_of_three_variables_and_four_categories(name):
    s = setting("igr", "product", N=3, K=4)
    s.family = replace(s.family, build=lambda p: igr_i(p, delta=0.4))
    assert largest_z(name, s, "igr, delta", DRAWS // 10, 10) < 5


@pytest.mark.parametrize("family", ["bernoulli", "independent"])
@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased_for_distributions_of_torch(name, family):
    s, least = setting(family, "product", N=3, K=2), CASES[name].least
    assert largest_z(name, s, family, DRAWS // least, least) < 5


@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased_where_f_depends_on_q(name):
    """As in an ELBO, where log q(D) is a part of f: its direct gradient belongs to the estimate."""
    s = setting("gs", "network", N=2, K=2 if name == "disarm" else 3, with_log_q=True)
    assert largest_z(name, s, "gs, with log q", 50_000, CASES[name].least) < 5


@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased_row_by_row(name):
    """Five examples, each with its own q and its own f, of four samples each."""
    s = setting("gs", "network", batch=(5,), N=3, K=2)
    assert largest_z(name, s, "gs, five examples", 5_000, 4) < 5


@pytest.mark.parametrize(
    ("name", "family"), [(n, family) for n, family in MAIN if CASES[n].hard and not CASES[n].unbiased]
)
def test_values_of_hard_samples_are_unbiased(name, family):
    case, s = CASES[name], setting(family, "network")
    value = case(s.expand(5_000), num_samples=4, generator=generator()).value
    assert z_scores(value, case.target(s, 4).detach()).abs() < 5


# -- that the instrument sees what is wrong ----------------------------------------------------------------------------


def _one_hot(x: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(x.detach().argmax(-1), x.shape[-1]).to(x.dtype)


def _gumbel(q: Distribution, num_samples: int, noise: torch.Generator) -> Tensor:
    x = torch.empty(num_samples, *q.logits.shape, dtype=q.logits.dtype).exponential_(generator=noise)
    return q.logits - x.log()


def _log_prob(q: Distribution, D: Tensor) -> Tensor:
    return (D * q.logits.log_softmax(-1)).sum((-2, -1))


def _estimate(values: Tensor, surrogate: Tensor) -> Any:
    return estimators.Estimate(values.detach().mean(0), surrogate.mean(0))


def own_sample_in_baseline(q, f, *, num_samples, generator):
    D = _one_hot(_gumbel(q, num_samples, generator))
    values = f(D)
    return _estimate(values, (values - values.mean(0)).detach() * _log_prob(q, D) + values)


def no_direct_gradient(q, f, *, num_samples, generator):
    D = _one_hot(_gumbel(q, num_samples, generator))
    values = f(D).detach()
    return _estimate(values, values * _log_prob(q, D) + 0 * f(D))


def independent_sample_as_conditional(q, f, *, num_samples, generator):
    x, other = _gumbel(q, num_samples, generator), _gumbel(q, num_samples, generator)
    D, z = _one_hot(x), ((x, other)[0] / TAU).softmax(-1)
    values, c, c_other = f(D), f(z), f((other / TAU).softmax(-1))
    return _estimate(values, (values - c_other).detach() * _log_prob(q, D) + values + c - c_other.detach())


def same_sample_as_conditional(q, f, *, num_samples, generator):
    x = _gumbel(q, num_samples, generator)
    D, c = _one_hot(x), f((x / TAU).softmax(-1))
    values = f(D)
    return _estimate(values, (values - c).detach() * _log_prob(q, D) + values)


def standardized_before_the_race(q, f, *, num_samples, generator):
    """Takes the probabilities of h(y / σ) for those of h(y)."""
    noise = torch.randn(num_samples, *q.loc.shape, dtype=q.loc.dtype, generator=generator)
    D = _one_hot(torch.nn.functional.pad(q.loc + q.scale * noise, (0, 1)))
    log_p = igr.recovered_log_probs(q.loc / q.scale, torch.ones_like(q.scale))
    values = f(D)
    return _estimate(values, values.detach() * (D * log_p).sum((-2, -1)) + values)


@pytest.mark.parametrize(
    ("broken", "family", "num_samples"),
    [
        (own_sample_in_baseline, "gs", 4),
        (no_direct_gradient, "gs", 1),
        (independent_sample_as_conditional, "gs", 1),
        (same_sample_as_conditional, "gs", 1),
        (standardized_before_the_race, "igr", 10),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_broken_estimators_are_seen(broken, family, num_samples):
    s, rows = setting(family, "network"), -(-100_000 // num_samples)
    estimates = measure(broken, s, {}, rows, num_samples)
    target = expectation(s.family.probs(s.q_parameters), s.f_one_hot)
    assert examine(f"{broken.__name__}, {family}", estimates, s, target) > 10


def test_reference_probabilities_match_scipy():
    """Simpson's rule and its gradient, against adaptive quadrature and central differences of it."""

    def reference(loc, scale):
        density, mass = stats.norm(loc, scale).pdf, stats.norm(loc, scale).cdf

        def integrand(t, k):
            return density(t)[k] * np.delete(mass(t), k).prod()

        first = [integrate.quad(integrand, 0, 12, (k,), epsabs=1e-12, limit=200)[0] for k in range(len(loc))]
        return np.array([*first, mass(0.0).prod()])

    s = setting("igr", "network", N=1, K=4)
    loc, scale = s.q_parameters.values()
    probs = gaussian_winner_probs(loc, scale)[0]
    at = [x.detach()[0].numpy() for x in (loc, scale)]
    np.testing.assert_allclose(probs.detach(), reference(*at), atol=1e-9)
    weights = np.array([0.3, -1.2, 2.0, 0.7])
    gradients = torch.autograd.grad(probs @ torch.tensor(weights), [loc, scale])
    for i, gradient in enumerate(gradients):
        for j in range(3):
            step = np.zeros((2, 3))
            step[i, j] = 1e-4
            slope = (reference(*at + step) - reference(*at - step)) @ weights / 2e-4
            np.testing.assert_allclose(gradient[0, j], slope, atol=1e-7)
