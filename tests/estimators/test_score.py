"""Estimators by the score function, against enumeration: of tuples of samples, and of all noise that matters.

Noise is chosen so that the rows of a batch see every possible tuple of samples; the mean over rows, by their exact
probabilities, is then the expectation of an estimate, to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from exact import expectation, states
from score_cases import DOUBLE, FAMILIES, Problem, assert_equal
from torch import Tensor
from torch.autograd import grad
from torch.distributions import Bernoulli, Categorical

from igr import InvertibleGaussian
from igr._draws import NoiseSource, gaussian_noise, gumbel_noise
from igr.estimators._core import Estimate
from igr.estimators.disarm import disarm
from igr.estimators.rloo import rloo
from igr.estimators.score_function import score_function
from igr.estimators.uspg import uspg
from igr.estimators.vimco import vimco
from igr.transforms import Planar

pytestmark = pytest.mark.usefixtures("one_thread")


class Chosen(NoiseSource):
    """Noise by which hard samples are the given ones, (S, *, N, K)."""

    def __init__(self, one_hot: Tensor) -> None:
        super().__init__()
        self.one_hot = one_hot

    def gumbel(self, like: Tensor) -> Tensor:
        assert like.shape == self.one_hot.shape
        return 1e3 * self.one_hot

    def gaussian(self, shape: Sequence[int], like: Tensor) -> Tensor:
        assert tuple(shape) == (*self.one_hot.shape[:-1], self.one_hot.shape[-1] - 1)
        return 2e3 * self.one_hot[..., :-1] - 1e3


class Given(NoiseSource):
    """Gumbel noise as it is."""

    def __init__(self, noise: Tensor) -> None:
        super().__init__()
        self.noise = noise

    def gumbel(self, like: Tensor) -> Tensor:
        assert like.shape == self.noise.shape
        return self.noise.to(like.dtype)


def all_tuples(probs: Tensor, S: int) -> tuple[Tensor, Tensor]:
    """One-hot samples (S, T, N, K) and their probabilities (T), over all T = (K^N)^S tuples."""
    every = states(*probs.shape[-2:])
    index = torch.cartesian_prod(*[torch.arange(len(every))] * S).reshape(-1, S)
    p = (every * probs).sum(-1).prod(-1)
    return every[index].movedim(1, 0), p[index].prod(-1)


def expected_bound(problem: Problem, S: int) -> Tensor:
    one_hot, p = all_tuples(problem.probs, S)
    return p @ problem.of_one_hot(one_hot).exp().mean(0).log()


# -- expectations over all tuples of samples ---------------------------------------------------------------------------


ESTIMATORS = {
    "score_function-1": (partial(score_function, num_samples=1), 1),
    "score_function-2": (partial(score_function, num_samples=2), 2),
    "score_function-baseline": (partial(score_function, baseline=torch.tensor(0.7, dtype=DOUBLE)), 1),
    "rloo-2": (rloo, 2),
    "rloo-3": (partial(rloo, num_samples=3), 3),
    "vimco-2": (vimco, 2),
    "vimco-3": (partial(vimco, num_samples=3), 3),
}


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("family", FAMILIES)
def test_expectation_over_all_tuples(family, name):
    estimator, S = ESTIMATORS[name]
    problem = Problem(family, N=2, K=3 if S < 3 else 2)
    one_hot, p = all_tuples(problem.probs.detach(), S)
    result = estimator(problem.q(len(p)), problem.f, generator=Chosen(one_hot))
    exact = expected_bound(problem, S) if "vimco" in name else expectation(problem.probs, problem.of_one_hot)
    assert_equal(problem.mean_of(result, p), problem.differentiate(exact))


# -- vimco -------------------------------------------------------------------------------------------------------------


def test_vimco_allows_weights_of_zero():
    """With log-weights (-inf, 1, 2): the advantage of each sample by hand, and the direct gradient."""
    one_hot = torch.eye(3, dtype=DOUBLE).reshape(3, 1, 1, 3)
    x = torch.zeros(1, 1, 3, dtype=DOUBLE, requires_grad=True)
    shift = torch.zeros((), dtype=DOUBLE, requires_grad=True)
    log_w = torch.tensor([-math.inf, 1.0, 2.0], dtype=DOUBLE)

    def f(z: Tensor) -> Tensor:
        return torch.where(z[..., 0, 0] > 0, -math.inf, shift * z[..., 0, 2] + 2 * z[..., 0, 2] + z[..., 0, 1])

    value, surrogate = vimco(Categorical(logits=x), f, num_samples=3, generator=Chosen(one_hot))
    whole = log_w.exp().sum().log()
    without = torch.tensor([math.log(math.e + math.e**2 + math.exp(1.5)), 2.0, 1.0], dtype=DOUBLE)
    by_x, by_shift = grad(surrogate.sum(), [x, shift])
    assert_equal([value], [(whole - math.log(3)).reshape(1)], 1e-12)
    advantage = whole - without
    assert_equal([by_x.flatten(), by_shift], [advantage - advantage.mean(), torch.exp(2 - whole)], 1e-12)


def test_vimco_where_all_other_weights_are_zero():
    one_hot = torch.eye(2, dtype=DOUBLE).reshape(2, 1, 1, 2)
    x = torch.zeros(1, 1, 2, dtype=DOUBLE, requires_grad=True)
    f = lambda z: torch.where(z[..., 0, 0] > 0, -math.inf, 5 * z[..., 0, 1])  # noqa: E731
    _, surrogate = vimco(Categorical(logits=x), f, generator=Chosen(one_hot))
    L = 5 - math.log(2)  # of the sample with weight the baseline is zero, of the other it is 5
    expected = torch.tensor([L - 5, L], dtype=DOUBLE)
    assert_equal([grad(surrogate.sum(), x)[0].flatten()], [expected - expected.mean()], 1e-12)


# -- disarm ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("N", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_disarm_over_all_noise(family, N):
    """A pair of bits depends on the noise ε through its place among ±α: three cases a bit, of known probability."""
    problem = Problem(family, N, K=2)
    p = problem.probs.detach()
    alpha = (p[..., 0] / p[..., 1]).log()  # (N,)
    eps = torch.stack([-alpha.abs() - 1, torch.zeros_like(alpha), alpha.abs() + 1])  # (3, N)
    mass = torch.stack([p.amin(-1), p.amax(-1) - p.amin(-1), p.amin(-1)])
    cases = torch.cartesian_prod(*[torch.arange(3)] * N).reshape(-1, N)
    noise = torch.stack([eps.gather(0, cases), torch.zeros(cases.shape, dtype=DOUBLE)], -1)
    result = disarm(problem.q(len(cases)), problem.f, generator=Given(noise.unsqueeze(0)))
    truth = problem.differentiate(expectation(problem.probs, problem.of_one_hot))
    assert_equal(problem.mean_of(result, mass.gather(0, cases).prod(-1)), truth)


def test_disarm_is_the_average_over_pairs():
    problem, rows = Problem("bernoulli", 3, 2), torch.ones(4, dtype=DOUBLE)
    noise = gumbel_noise(torch.zeros(5, 4, 3, 2, dtype=DOUBLE))
    together = problem.mean_of(disarm(problem.q(4), problem.f, num_samples=5, generator=Given(noise)), rows)
    apart = [problem.mean_of(disarm(problem.q(4), problem.f, generator=Given(x)), rows) for x in noise.split(1)]
    assert_equal(together, [torch.stack(x).mean(0) for x in zip(*apart, strict=True)], 1e-12)


# -- rows of a batch ---------------------------------------------------------------------------------------------------


class Recorded(NoiseSource):
    """Keeps the noise of a batch, and gives it again to one of its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[Tensor] = []
        self.replay: list[Tensor] = []

    def of_row(self, row: int) -> Recorded:
        again = Recorded()
        again.replay = [x[:, row] for x in self.drawn]
        return again

    def next(self, shape: Sequence[int], fresh: Callable[[], Tensor]) -> Tensor:
        if self.replay:
            assert self.replay[0].shape == tuple(shape)
            return self.replay.pop(0)
        self.drawn.append(fresh())
        return self.drawn[-1]

    def gumbel(self, like: Tensor) -> Tensor:
        return self.next(like.shape, lambda: gumbel_noise(like))

    def gaussian(self, shape: Sequence[int], like: Tensor) -> Tensor:
        return self.next(shape, lambda: gaussian_noise(shape, like))


BASELINE = torch.tensor([0.1, 0.2, -0.3, 0.4, 0.0], dtype=DOUBLE)
ROWWISE = {"score_function": score_function, "rloo": rloo, "vimco": vimco, "uspg": uspg, "disarm": disarm}


@pytest.mark.parametrize("name", ROWWISE)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_row_is_estimated_by_itself(name, family):
    N, S, of = 3, 4, FAMILIES[family]
    K = 2 if of.binary or name == "disarm" else 3
    parameters = [torch.stack(x) for x in zip(*(of.parameters(N, K) for _ in range(5)), strict=True)]
    weights, shared = torch.randn(5, N, K, dtype=DOUBLE), torch.randn(N, K, dtype=DOUBLE)

    def run(rows: slice | int, noise: Recorded) -> tuple[Estimate, tuple[Tensor, ...]]:
        leaves = [x[rows].clone().requires_grad_() for x in (*parameters, weights)]
        common = shared.clone().requires_grad_()

        def f(z: Tensor) -> Tensor:
            z = torch.stack([z, 1 - z], -1) if of.binary else z
            return torch.tanh((z * leaves[-1]).sum((-2, -1))) * (z * common).sum((-2, -1)).exp()

        options = {"baseline": BASELINE[rows]} if name == "score_function" else {}
        result = ROWWISE[name](of.build(*leaves[:-1]), f, num_samples=S, generator=noise, **options)
        return result, grad(result.surrogate.sum(), [*leaves, common])

    noise = Recorded()
    batch, slopes = run(slice(None), noise)
    alone = [run(row, noise.of_row(row)) for row in range(5)]
    assert_equal([batch.value], [torch.stack([result.value for result, _ in alone])], 1e-12)
    stacked = [torch.stack(x) for x in zip(*(g for _, g in alone), strict=True)]
    assert_equal(slopes, [*stacked[:-1], stacked[-1].sum(0)], 1e-12)
    assert all((x.abs().flatten(1).amax(1) > 1e-6).all() for x in stacked)


@pytest.mark.parametrize("name", ["rloo", "uspg", "disarm"])
def test_a_constant_added_to_f_adds_no_noise(name):
    """Built-in baselines: it is in the value and in no gradient."""
    problem, rows = Problem("bernoulli", N=3, K=2), torch.ones(6, dtype=DOUBLE)

    def run(constant: float) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(3)
        result = ROWWISE[name](problem.q(6), lambda b: problem.f(b) + constant, num_samples=3, generator=generator)
        return problem.mean_of(result, rows)

    value, *slopes = run(0.0)
    assert_equal(run(100.0), [value + 600, *slopes], 1e-11)


@pytest.mark.parametrize("name", ["score_function", "rloo", "uspg", "disarm"])
def test_the_gradient_of_what_f_depends_on_is_that_of_the_value(name):
    """Linear in its weights w, f is w times its gradient, sample by sample."""
    w = torch.randn(6, 3, dtype=DOUBLE, requires_grad=True)
    q = Bernoulli(logits=torch.randn(6, 3, dtype=DOUBLE))
    value, surrogate = ROWWISE[name](q, lambda b: (b * w).sum(-1), num_samples=3)
    assert_equal([(w * grad(surrogate.sum(), w)[0]).sum(-1)], [value], 1e-12)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [rloo, vimco, uspg])
@pytest.mark.parametrize("S", [1, 0, True, 2.0])
def test_two_samples_are_needed(estimator, S):
    with pytest.raises(ValueError, match="num_samples must be an integer of at least 2"):
        estimator(Bernoulli(logits=torch.zeros(3)), lambda b: b.sum(-1), num_samples=S)


@pytest.mark.parametrize("estimator", [score_function, rloo, vimco, uspg, disarm])
def test_probabilities_must_be_known(estimator):
    flow = Planar(u=torch.tensor([0.5]), w=torch.tensor([0.3]))
    with pytest.raises(NotImplementedError, match="known through samples only"):
        estimator(InvertibleGaussian(torch.zeros(3, 1), 1.0, 0.5, flow=flow), lambda z: z.sum((-2, -1)))


def test_disarm_is_for_two_categories():
    with pytest.raises(NotImplementedError, match=r"two categories, got .* with 3; use rloo"):
        disarm(Categorical(logits=torch.zeros(4, 3)), lambda z: z.sum((-2, -1)))


@pytest.mark.parametrize("estimator", [rloo, partial(score_function, num_samples=2)], ids=["rloo", "score_function"])
def test_what_is_certain_has_a_gradient_of_zero(estimator):
    logits = torch.tensor([math.inf, 0.0, -math.inf], requires_grad=True)
    found = estimator(Bernoulli(logits=logits), lambda x: (x - 0.3).square().sum(-1))
    (gradient,) = grad(found.surrogate.sum(), logits)
    assert gradient.isfinite().all()
    assert gradient[[0, 2]].tolist() == [0.0, 0.0]
