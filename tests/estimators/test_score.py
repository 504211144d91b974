"""Estimators by the score function, against enumeration: of tuples of samples, of sets, of all noise that matters.

Noise is chosen so that the rows of a batch see every possible tuple of samples; the mean over rows, by their exact
probabilities, is then the expectation of an estimate, to rounding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import mpmath
import numpy as np
import pytest
import scipy.stats
import torch
from exact import expectation, states
from torch import Tensor, nn
from torch.autograd import grad
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical

from igr import BinaryConcrete, GumbelSoftmax, InvertibleGaussian
from igr.estimators._core import Estimate, Latent
from igr.estimators._without_replacement import Sampled, log_set_probs, sample_without_replacement
from igr.estimators.disarm import disarm
from igr.estimators.rloo import rloo
from igr.estimators.score_function import RunningMean, score_function
from igr.estimators.uspg import _from_set, _weights, uspg
from igr.estimators.vimco import vimco
from igr.functional import NoiseSource, gaussian_noise, gumbel_noise
from igr.transforms import Planar, StickBreaking

pytestmark = pytest.mark.usefixtures("one_thread")

DOUBLE = torch.float64
Function = Callable[[Tensor], Tensor]


# -- q and f -----------------------------------------------------------------------------------------------------------


class Family(NamedTuple):
    """A kind of q: its parameters of one example of N variables, what is made of them, and their probabilities."""

    parameters: Callable[[int, int], tuple[Tensor, ...]]  # N, K: each (N, ...)
    build: Callable[..., Distribution]
    probs: Callable[..., Tensor]
    binary: bool = False


def logits(N: int, K: int) -> tuple[Tensor, ...]:
    return (torch.randn(N, K, dtype=DOUBLE),)


def log_odds(N: int, K: int) -> tuple[Tensor, ...]:
    return (torch.randn(N, dtype=DOUBLE),)


def location_scale(N: int, K: int) -> tuple[Tensor, ...]:
    return 0.5 * torch.randn(N, K - 1, dtype=DOUBLE), torch.rand(N, K - 1, dtype=DOUBLE) + 0.5


def two(alpha: Tensor) -> Tensor:
    return torch.stack([alpha.sigmoid(), (-alpha).sigmoid()], -1)


def identity(loc: Tensor, scale: Tensor) -> InvertibleGaussian:
    return InvertibleGaussian(loc, scale, 0.5)


def sticks(loc: Tensor, scale: Tensor) -> InvertibleGaussian:
    return InvertibleGaussian(loc, scale, 0.5, flow=StickBreaking())


def longer_stick(loc: Tensor, scale: Tensor) -> Tensor:
    """Of two sticks, which are sigmoid(y) and the rest."""
    return torch.cat([torch.special.ndtr(loc / scale), torch.special.ndtr(-loc / scale)], -1)


# the probabilities that IGR-I recovers have tests of their own; of IGR-SB there are two categories where they matter
FAMILIES = {
    "categorical": Family(logits, lambda x: Categorical(logits=x), partial(torch.softmax, dim=-1)),
    "independent": Family(
        logits, lambda x: Independent(OneHotCategorical(logits=x), 1), partial(torch.softmax, dim=-1)
    ),
    "gumbel": Family(logits, lambda x: GumbelSoftmax(0.5, x), partial(torch.softmax, dim=-1)),
    "bernoulli": Family(log_odds, lambda x: Bernoulli(logits=x), two, binary=True),
    "concrete": Family(log_odds, lambda x: BinaryConcrete(0.5, x), two, binary=True),
    "igr-i": Family(location_scale, identity, lambda m, s: identity(m, s).recovered().probs),
    "igr-sb": Family(location_scale, sticks, longer_stick),
}
CATEGORICAL = ("categorical", "gumbel", "igr-i", "igr-sb")


class Problem:
    """One example of N variables: parameters of q, and an f that depends on them, on weights and not on much else."""

    def __init__(self, family: str, N: int, K: int) -> None:
        torch.manual_seed(N + 10 * K)
        self.family = FAMILIES[family]
        self.K = 2 if self.family.binary or family == "igr-sb" else K
        self.parameters = tuple(x.requires_grad_() for x in self.family.parameters(N, self.K))
        self.weights = torch.randn(N, self.K, dtype=DOUBLE, requires_grad=True)
        self.leaves = (*self.parameters, self.weights)

    @property
    def probs(self) -> Tensor:
        return self.family.probs(*self.parameters)

    def q(self, rows: int) -> Distribution:
        return self.family.build(*(x.expand(rows, *x.shape) for x in self.parameters))

    def of_one_hot(self, z: Tensor) -> Tensor:
        direct = (z * self.probs.log()).sum((-2, -1))  # what a bound has, and what a wrong estimator forgets
        return 2 * torch.tanh((z * self.weights).sum((-2, -1))) + z[..., 0, 0] * z[..., -1, -1] + 0.5 * direct

    def f(self, z: Tensor) -> Tensor:
        return self.of_one_hot(torch.stack([z, 1 - z], -1) if self.family.binary else z)

    def mean_of(self, estimate: Estimate, weights: Tensor) -> tuple[Tensor, ...]:
        """Value and gradients of the weighted sum over rows."""
        assert estimate.value.shape == estimate.surrogate.shape == weights.shape
        assert not estimate.value.requires_grad
        torch.testing.assert_close(estimate.surrogate.detach(), estimate.value)
        return (weights @ estimate.value, *grad(weights @ estimate.surrogate, self.leaves))

    def differentiate(self, value: Tensor) -> tuple[Tensor, ...]:
        return value.detach(), *grad(value, self.leaves)


def assert_equal(found: Sequence[Tensor], truth: Sequence[Tensor], tolerance: float = 1e-10) -> None:
    for a, b in zip(found, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


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


# -- baselines ---------------------------------------------------------------------------------------------------------


def draws_of(problem: Problem, baseline: Tensor | RunningMean | None, seed: int, S: int = 3) -> Estimate:
    return score_function(
        problem.q(5), problem.f, num_samples=S, baseline=baseline, generator=torch.Generator().manual_seed(seed)
    )


@pytest.mark.parametrize("shape", [(), (1,), (5,)], ids=str)
def test_baselines_that_require_a_gradient_are_trained_by_the_squared_error(shape):
    problem = Problem("categorical", N=2, K=3)
    b = torch.randn(shape, dtype=DOUBLE, requires_grad=True)
    trained, given = (draws_of(problem, x, seed=1) for x in (b, b.detach()))
    torch.testing.assert_close(trained.surrogate, given.surrogate)
    rows = torch.arange(1.0, 6.0, dtype=DOUBLE)
    (slope,) = grad(rows @ trained.surrogate, b, retain_graph=True)
    assert_equal(problem.mean_of(trained, rows), problem.mean_of(given, rows), 1e-14)
    # the same samples again, by the mean of (f - b)² over them
    total = (rows * 2 * (b - given.value)).detach()
    torch.testing.assert_close(slope, total if shape == (5,) else total.sum().reshape(shape))


def test_the_training_of_a_baseline_leaves_what_makes_q_alone():
    logits = torch.randn(5, 2, 3, dtype=DOUBLE, requires_grad=True)
    weight = torch.tensor(0.3, dtype=DOUBLE, requires_grad=True)
    f = partial(torch.sum, dim=(-2, -1))
    features = logits[..., 0].sum(-1)

    def surrogate(baseline: Tensor) -> Tensor:
        q = Categorical(logits=logits)
        return score_function(q, f, baseline=baseline, generator=torch.Generator().manual_seed(1)).surrogate.sum()

    ours, slope = grad(surrogate(weight * features), (logits, weight))
    torch.testing.assert_close(ours, grad(surrogate((weight * features).detach()), logits)[0])
    torch.testing.assert_close(slope, (2 * (weight * features - 2) * features).sum().detach())  # f is two everywhere


def test_a_baseline_multiplies_the_score_and_nothing_else():
    problem = Problem("categorical", N=2, K=3)
    rows = torch.ones(5, dtype=DOUBLE)
    one, other, none = (
        problem.mean_of(draws_of(problem, b, seed=1), rows) for b in (*torch.tensor([1.0, 3.0]).unbind(), None)
    )
    assert_equal([a - 1.5 * b for a, b in zip(none, one, strict=True)], [-0.5 * x for x in other])
    assert (one[1] - other[1]).abs().max() > 0.1
    torch.testing.assert_close(one[2], other[2])


def test_running_mean_is_that_of_earlier_calls():
    problem, rows = Problem("categorical", N=2, K=3), torch.ones(5, dtype=DOUBLE)
    baseline = RunningMean(0.8).double()
    seen: list[float] = []
    for call in range(4):
        decay = [0.8 ** (call - 1 - i) for i in range(call)]
        expected = sum(d * x for d, x in zip(decay, seen, strict=True)) / sum(decay) if call else 0.0
        assert baseline().item() == pytest.approx(expected, rel=1e-12)
        result = draws_of(problem, baseline, seed=call)
        given = draws_of(problem, torch.tensor(expected, dtype=DOUBLE), seed=call)
        assert_equal(problem.mean_of(result, rows), problem.mean_of(given, rows), 1e-12)
        seen.append(result.value.mean().item())


def test_running_mean_is_kept_with_a_model():
    baseline, copy = RunningMean(), RunningMean()
    baseline.update(torch.tensor([1.0, 5.0]))
    baseline.update(torch.zeros(0))  # nothing to learn from
    copy.load_state_dict(baseline.state_dict())
    assert copy().item() == 3.0
    assert not copy().requires_grad
    assert repr(baseline) == "RunningMean(momentum=0.9)"


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


# -- sets without replacement ------------------------------------------------------------------------------------------


def by_orders(rates: Sequence[float], rest: float) -> mpmath.mpf:
    """The probability that these come before all that remain, summed over orders."""
    total, rates = mpmath.mpf(0), [mpmath.mpf(x) for x in rates]
    for order in itertools.permutations(rates):
        left, p = mpmath.mpf(rest) + sum(rates), mpmath.mpf(1)
        for rate in order:
            p, left = p * rate / left, left - rate
        total += p
    return total


def normalised(rates: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Log-probabilities (S, 1) of states with these rates, and of all others (1), whose rate is one."""
    log_p = torch.tensor([*rates, 1.0], dtype=DOUBLE).log().log_softmax(0).unsqueeze(-1)
    return log_p[:-1], log_p[-1]


RATES = {
    "two": [0.5, 2.0],
    "alike": [1.0] * 5,
    "unlikely": [1e-12, 2e-12, 3e-12, 1e-12, 4e-12],
    "likely": [1e12, 3e12, 1e11, 2e12],
    "all sizes": [1e-12, 1e12, 1.0, 1e-5, 1e6],
    "all but one unlikely": [1e12, 1e-12, 1e-12, 1e-12, 1e-12],
}


@pytest.mark.parametrize("name", RATES)
def test_probabilities_of_sets_against_the_sum_over_orders(name):
    rates = RATES[name]
    with mpmath.workdps(60):
        less = [[x for i, x in enumerate(rates) if i not in out] for out in ((), *((i,) for i in range(len(rates))))]
        truth = [float(mpmath.log(by_orders(x, 1.0))) for x in less]
        pairs = {
            (i, j): float(mpmath.log(by_orders([x for k, x in enumerate(rates) if k not in (i, j)], 1.0)))
            for i, j in itertools.combinations(range(len(rates)), 2)
        }
    found = log_set_probs(*normalised(rates))
    assert found.whole.item() == pytest.approx(truth[0], rel=1e-13, abs=1e-13)
    np.testing.assert_allclose(found.less_one.squeeze(-1), truth[1:], rtol=1e-13, atol=1e-13)
    for (i, j), value in pairs.items():
        np.testing.assert_allclose(found.less_two[[i, j], [j, i], 0], value, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("S", [2, 7, 16, 40, 100])
@pytest.mark.parametrize("rate", [1e-12, 0.02, 0.4, 1.0, 9.0, 1e12])
def test_probabilities_of_large_sets(S, rate):
    """Of equal states, by the beta function."""
    with mpmath.workdps(60):
        x = 1 / mpmath.mpf(rate)
        truth = [float(mpmath.log(x * mpmath.beta(n + 1, x))) for n in (S, S - 1, S - 2)]
    whole, less_one, less_two = log_set_probs(*normalised([rate] * S))
    found = [whole.item(), less_one[0].item(), less_two[0, 1].item()]
    np.testing.assert_allclose(found, truth, rtol=1e-14, atol=1e-14 * S)


def joint(logits: Tensor) -> Tensor:
    """Probabilities of all joint states, (K^N,)."""
    return (states(*logits.shape) * logits.softmax(-1)).sum(-1).prod(-1)


def chi_square(counts: np.ndarray, probs: np.ndarray) -> float:
    """The p-value, of cells with at least five expected counts each and one for all others."""
    expected = probs * counts.sum()
    fine = expected >= 5
    cells = [np.append(x[fine], x[~fine].sum()) if (~fine).any() else x for x in (counts, expected)]
    return scipy.stats.chisquare(*cells).pvalue


@pytest.mark.parametrize("S", [2, 3, 4])
def test_samples_without_replacement_against_all_sets_and_orders(S):
    logits = torch.tensor([[0.3, -0.9, 0.5], [1.0, 0.0, -0.4]], dtype=DOUBLE)
    p, draws = joint(logits).tolist(), 40_000
    drawn = sample_without_replacement(logits.expand(draws, 2, 3), S, None)
    state = drawn.categories[..., 0] * 3 + drawn.categories[..., 1]  # (S, draws)
    np.testing.assert_allclose(drawn.log_p, torch.tensor(p, dtype=DOUBLE).log()[state], rtol=1e-12)
    np.testing.assert_allclose(drawn.log_rest, torch.log1p(-drawn.log_p.exp().sum(0)), rtol=1e-12)
    orders = list(itertools.permutations(range(9), S))
    probs = {o: math.prod(p[x] / (1 - sum(p[y] for y in o[:i])) for i, x in enumerate(o)) for o in orders}
    counts = dict.fromkeys(orders, 0)
    for order in zip(*state.tolist(), strict=True):
        counts[order] += 1
    assert chi_square(np.array([counts[o] for o in orders]), np.array([probs[o] for o in orders])) > 1e-5
    sets = list(itertools.combinations(range(9), S))
    of_set = [[table[o] for s in sets for o in itertools.permutations(s)] for table in (counts, probs)]
    assert chi_square(*(np.array(x).reshape(len(sets), -1).sum(1) for x in of_set)) > 1e-5


def test_the_remaining_mass_is_accurate_however_small():
    logits = torch.tensor([[80.0, 0.0, 1.0], [50.0, 2.0, 0.0], [300.0, 0.0, 0.0]], dtype=DOUBLE)
    drawn = sample_without_replacement(logits.expand(200, 3, 3), 3, None)
    with mpmath.workdps(400):
        log_q = [[mpmath.log(mpmath.exp(x) / sum(map(mpmath.exp, row))) for x in row] for row in logits.tolist()]
        for b in range(200):
            chosen = drawn.categories[:, b].tolist()
            mass = [mpmath.exp(sum(row[c] for row, c in zip(log_q, state, strict=True))) for state in chosen]
            assert drawn.log_rest[b].item() == pytest.approx(float(mpmath.log(1 - sum(mass))), rel=1e-14)


@pytest.mark.parametrize("family", [*CATEGORICAL, "bernoulli"])
@pytest.mark.parametrize("S", [2, 3, 4])
def test_uspg_expectation_over_all_sets(family, S):
    problem = Problem(family, N=3 if family in ("bernoulli", "igr-sb") else 2, K=3)
    probs = problem.probs.detach()
    p = (states(*probs.shape) * probs).sum(-1).prod(-1)
    sets = torch.combinations(torch.arange(len(p)), S)  # (T, S)
    left_out = torch.ones(len(sets), len(p), dtype=torch.bool).scatter(1, sets, False)
    log_rest = (left_out * p).sum(-1).log()
    categories = states(*probs.shape).argmax(-1)[sets].movedim(1, 0)
    orders = torch.tensor(list(itertools.permutations(range(S))))
    drawn = p[sets][:, orders]  # (T, S!, S)
    of_sets = (drawn / (1 - drawn.cumsum(-1) + drawn)).prod(-1).sum(-1)
    assert of_sets.sum().item() == pytest.approx(1, abs=1e-12)
    sampled = Sampled(categories, p[sets].T.log(), log_rest)
    result = _from_set(Latent(problem.q(len(sets)), problem.f), sampled)
    truth = problem.differentiate(expectation(problem.probs, problem.of_one_hot))
    assert_equal(problem.mean_of(result, of_sets), truth)


@pytest.mark.parametrize("S", [9, 20])
@pytest.mark.parametrize("family", CATEGORICAL)
def test_uspg_is_exact_with_all_states(family, S):
    problem, rows = Problem(family, N=2, K=3), torch.tensor([1.0, 2.0, 3.0], dtype=DOUBLE)
    shapes = []

    def f(z: Tensor) -> Tensor:
        shapes.append(z.shape)
        return problem.f(z)

    result = uspg(problem.q(3), f, num_samples=S)
    truth = problem.differentiate(6 * expectation(problem.probs, problem.of_one_hot))
    assert_equal(problem.mean_of(result, rows), truth)
    assert shapes == [(problem.K**2, 3, 2, problem.K)]


@pytest.mark.parametrize("S", [4, 8])
def test_uspg_shows_no_impossible_states(S):
    """Three variables, of which one is certain and two have an impossible category: four states."""
    x = torch.tensor([[0.0, 1.0, -math.inf], [-math.inf, 0.5, 0.0], [0.0, -math.inf, -math.inf]], dtype=DOUBLE)
    x.requires_grad_()
    table = torch.randn(3, 3, dtype=DOUBLE).where(x > -math.inf, math.nan)

    def f(z: Tensor) -> Tensor:
        return torch.where(z > 0, table, 0.0).sum((-2, -1)).square()

    value, surrogate = uspg(Categorical(logits=x.expand(6, 3, 3)), f, num_samples=S)
    p = joint(x)
    possible = p > 0
    truth = p[possible] @ f(states(3, 3)[possible])
    assert_equal([value, *grad(surrogate.mean(), x)], [truth.detach().expand(6), *grad(truth, x)], 1e-12)


@pytest.mark.parametrize("spread", [0.1, 3.0, 40.0, 1e4])
@pytest.mark.parametrize("S", [2, 4, 16])
def test_uspg_weights_add_up_to_one(S, spread):
    """Some state of the set comes first, and then some other: twenty variables, hardly to nearly certain, float32."""
    logits = spread * torch.randn(20, 10)
    weights, baseline_weights = _weights(sample_without_replacement(logits.expand(300, 20, 10), S, None))
    for total in (weights.sum(0), baseline_weights.sum(1)):
        torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-12, atol=0)


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


@pytest.mark.parametrize(
    ("baseline", "error", "message"),
    [
        (torch.zeros(3), ValueError, r"do not broadcast together: baseline \(3,\)"),
        (torch.zeros(2, 5), ValueError, r"broadcastable to the shape \(5,\) of examples, got .* \(2, 5\)"),
        (torch.zeros(5, dtype=torch.long), TypeError, "baseline must be a floating-point tensor"),
        (nn.Linear(2, 1), TypeError, "a tensor or a RunningMean, got a Linear; give what it returns"),
    ],
    ids=["axis", "larger", "integers", "module"],
)
def test_baselines_that_do_not_fit(baseline, error, message):
    with pytest.raises(error, match=message):
        score_function(Bernoulli(logits=torch.zeros(5, 3)), lambda b: b.sum(-1), baseline=baseline)


@pytest.mark.parametrize("momentum", [-0.1, 1.0, math.nan])
def test_momentum_below_one(momentum):
    with pytest.raises(ValueError, match="momentum must be at least 0 and below 1"):
        RunningMean(momentum)


@pytest.mark.parametrize("estimator", [rloo, partial(score_function, num_samples=2)], ids=["rloo", "score_function"])
def test_what_is_certain_has_a_gradient_of_zero(estimator):
    logits = torch.tensor([math.inf, 0.0, -math.inf], requires_grad=True)
    found = estimator(Bernoulli(logits=logits), lambda x: (x - 0.3).square().sum(-1))
    (gradient,) = grad(found.surrogate.sum(), logits)
    assert gradient.isfinite().all()
    assert gradient[[0, 2]].tolist() == [0.0, 0.0]


def test_sets_of_states_under_vmap():
    """One estimate for each row of logits, as without: with as many samples as states there is no noise."""
    logits = torch.randn(6, 2, 3, dtype=torch.float64)

    def total(logits):
        q = Categorical(logits=logits, validate_args=False)
        return uspg(q, lambda z: (z * torch.arange(3.0)).sum((-2, -1)).square(), num_samples=9).surrogate.sum()

    found = torch.func.vmap(torch.func.grad(total), randomness="different")(logits)
    expected = torch.stack([torch.func.grad(total)(each) for each in logits])
    torch.testing.assert_close(found, expected)
