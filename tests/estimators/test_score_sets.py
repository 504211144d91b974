"""Sets of states drawn without replacement, and the estimator that is made of them, against all sets and orders."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import mpmath
import numpy as np
import pytest
import scipy.stats
import torch
from exact import expectation, states
from score_cases import DOUBLE, Problem, assert_equal
from torch import Tensor
from torch.autograd import grad
from torch.distributions import Categorical

from igr import GumbelSoftmax
from igr.estimators._core import Latent
from igr.estimators._without_replacement import Sampled, log_set_probs, sample_without_replacement
from igr.estimators.uspg import _from_set, _weights, uspg

pytestmark = pytest.mark.usefixtures("one_thread")

CATEGORICAL = ("categorical", "gumbel", "igr-i", "igr-sb")


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


def test_uspg_of_no_variables_is_f():
    logits, weight = torch.zeros(3, 0, 4, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    value, surrogate = uspg(GumbelSoftmax(0.5, logits), lambda z: z.sum((-2, -1)) + 5 * weight)
    assert torch.equal(value, torch.full((3,), 10.0))
    gradients = grad(surrogate.sum(), (logits, weight), allow_unused=True)
    assert gradients == (None, 15.0)


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


def test_sets_of_states_under_vmap():
    """One estimate for each row of logits, as without: with as many samples as states there is no noise."""
    logits = torch.randn(6, 2, 3, dtype=torch.float64)

    def total(logits):
        q = Categorical(logits=logits, validate_args=False)
        return uspg(q, lambda z: (z * torch.arange(3.0)).sum((-2, -1)).square(), num_samples=9).surrogate.sum()

    found = torch.func.vmap(torch.func.grad(total), randomness="different")(logits)
    expected = torch.stack([torch.func.grad(total)(each) for each in logits])
    torch.testing.assert_close(found, expected)
