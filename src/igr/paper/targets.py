"""The discrete distributions that are approximated; torch is imported only once one is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from igr.paper.distances import Array

__all__ = ["TARGETS", "Target"]

ENOUGH = 2048  # categories of an unbounded target, beyond which double precision holds no probability of it


@dataclass(frozen=True)
class Target:
    """A discrete distribution: its name, what it is called in print, and itself, as a distribution or a vector."""

    name: str
    title: str
    num_categories: int | None
    """K, or None where all integers have a probability."""
    exact: Callable[[], torch.distributions.Distribution | torch.Tensor]
    """What :func:`igr.fit_prior` is asked for, in double precision."""

    def log_probs(self) -> Array:
        """The logarithms of the probabilities of 0, 1, 2, ..., at most :data:`ENOUGH` of them."""
        import torch

        p0 = self.exact()
        if isinstance(p0, torch.Tensor):
            log_p = p0.log()
        else:
            log_p = p0.log_prob(torch.arange(self.num_categories or ENOUGH, dtype=torch.float64))
        values: Array = log_p.numpy()
        return values


def _double(*values: float) -> torch.Tensor:
    import torch

    return torch.tensor(values if len(values) > 1 else values[0], dtype=torch.float64)


def _poisson() -> torch.distributions.Distribution:
    from torch.distributions import Poisson

    return Poisson(_double(50.0))


def _binomial() -> torch.distributions.Distribution:
    from torch.distributions import Binomial

    return Binomial(12, _double(0.3))


def _negative_binomial() -> torch.distributions.Distribution:
    """Failures before the 50th success, of probability 0.6: the mean is 50 (1 - 0.6) / 0.6."""
    from torch.distributions import NegativeBinomial

    return NegativeBinomial(50, _double(1 - 0.6))  # which counts successes before the 50th failure


def _geometric() -> torch.distributions.Distribution:
    from torch.distributions import Geometric

    return Geometric(_double(0.4))


TARGETS = {
    target.name: target
    for target in (
        Target("poisson", "Poisson(50)", None, _poisson),
        Target("binomial", "Binomial(12, 0.3)", 13, _binomial),
        Target(
            "discrete",
            "Discrete(10, 1, 5, 1, 10, 10, 1, 6, 1, 1)/46",
            10,
            lambda: _double(10, 1, 5, 1, 10, 10, 1, 6, 1, 1) / 46,
        ),
        Target("negative-binomial", "NegativeBinomial(50, 0.6)", None, _negative_binomial),
        Target("geometric", "Geometric(0.4)", None, _geometric),
        Target("uniform", "Uniform on 10 categories", 10, lambda: _double(*[0.1] * 10)),
    )
}
