"""The sets that the maps reach, as torch constraints."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import SoftmaxTransform, StickBreakingTransform, biject_to, constraints, transform_to

from igr import functional
from igr._checks import widen
from igr._scalars import show
from igr._simplex import log_vertex_interpolation_inverse


def holds(constraint: constraints.Constraint, x: Tensor) -> Tensor:
    """Which points are in a set, of none as well, which torch's sets of vectors cannot be asked about."""
    if x.numel():
        return constraint.check(x)  # type: ignore[no-any-return]
    return x.new_ones(x.shape[: x.dim() - constraint.event_dim], dtype=torch.bool)


class _Simplex(constraints.Constraint):
    """Non-negative vectors that sum to one, within what the dtype and the number of categories allow."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        wide = widen(value)  # entries were rounded in one dtype, and are summed in the other
        tolerance = 8 * torch.finfo(value.dtype).eps + value.shape[-1] * torch.finfo(wide.dtype).eps / 8
        return (value >= 0).all(-1) & ((wide.sum(-1) - 1).abs() <= tolerance)


simplex = _Simplex()
biject_to.register(simplex, lambda _: StickBreakingTransform())  # as for torch's own simplex
transform_to.register(simplex, lambda _: SoftmaxTransform())


class Sticks(constraints.Constraint):
    """The image of :class:`igr.transforms.StickBreaking`: the vectors whose K sticks are all positive."""

    event_dim = 1

    def __init__(self, leftover: bool) -> None:
        self.leftover = leftover

    def check(self, value: Tensor) -> Tensor:
        return (sticks(value, self.leftover) > 0).all(-1)

    def __repr__(self) -> str:
        return f"Sticks(leftover={self.leftover})"


class NearVertices(constraints.Constraint):
    """The image of :class:`igr.transforms.VertexInterpolation`: K disjoint pieces of the simplex."""

    event_dim = 1

    def __init__(self, tau: float | Tensor) -> None:
        self.tau = tau

    def check(self, value: Tensor) -> Tensor:
        w = functional.vertex_interpolation_inverse(widen(value), self.tau)
        return simplex.check(value) & (w > 0).all(-1) & (w.argmax(-1) == value.argmax(-1))

    def check_log(self, log_value: Tensor) -> Tensor:
        """The same of logarithms, which may be of numbers that underflow."""
        log_w = log_vertex_interpolation_inverse(log_value, self.tau)
        nearest = log_w.argmax(-1) == log_value.argmax(-1)
        return simplex.check(log_value.exp()) & (log_w > -torch.inf).all(-1) & nearest  # NaN is not

    def __repr__(self) -> str:
        return f"NearVertices(tau={show(self.tau)})"


def sticks(a: Tensor, leftover: bool) -> Tensor:
    """The K sticks w from the K-1 coordinates a, the inverse of the linear part of stick-breaking."""
    rest = 1 - a.sum(-1, keepdim=True)
    last = rest / (a.shape[-1] + 1) if leftover else rest
    return torch.cat([a + last if leftover else a, last], -1)
