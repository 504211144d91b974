"""Baselines of the score function: given, trained by the squared error, or the mean of earlier calls."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from score_cases import DOUBLE, Problem, assert_equal
from torch import Tensor, nn
from torch.autograd import grad
from torch.distributions import Bernoulli, Categorical

from igr.estimators._core import Estimate
from igr.estimators.score_function import RunningMean, score_function

pytestmark = pytest.mark.usefixtures("one_thread")


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
    baseline.update(torch.tensor([2.0, math.nan]))
    baseline.update(torch.tensor([math.inf]))
    copy.load_state_dict(baseline.state_dict())
    assert copy().item() == 3.0
    assert not copy().requires_grad
    assert repr(baseline) == "RunningMean(momentum=0.9)"


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
