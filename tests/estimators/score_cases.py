"""Kinds of q with their probabilities, and one example of each with an f that depends on all its parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import grad
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical

from igr import BinaryConcrete, GumbelSoftmax, InvertibleGaussian
from igr.estimators._core import Estimate
from igr.transforms import StickBreaking

DOUBLE = torch.float64


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
