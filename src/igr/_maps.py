"""How transforms are read as a sequence of maps of which the last goes onto the simplex."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributions import ComposeTransform, Transform, constraints

from igr._checks import describe
from igr._simplex import one_hot_argmax
from igr.transforms import SimplexTransform, simplex


class _Foreign(SimplexTransform):
    """A map onto the simplex that only knows probabilities, such as torch's own."""

    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self.transform = transform
        self.codomain = transform.codomain

    def forward_shape(self, shape: Sequence[int]) -> torch.Size:
        return torch.Size(self.transform.forward_shape(shape))

    def inverse_shape(self, shape: Sequence[int]) -> torch.Size:
        return torch.Size(self.transform.inverse_shape(shape))

    def _call(self, y: Tensor) -> Tensor:
        z: Tensor = self.transform(y)
        return z

    def _inverse(self, z: Tensor) -> Tensor:
        y: Tensor = self.transform.inv(z)
        return y

    def log_call(self, y: Tensor) -> Tensor:
        return self._call(y).log()

    def log_inverse(self, log_z: Tensor) -> Tensor:
        return self._inverse(log_z.exp())

    def ladj(self, y: Tensor, log_z: Tensor) -> Tensor:
        ladj: Tensor = self.transform.log_abs_det_jacobian(y, log_z.exp())
        return ladj

    def harden(self, y: Tensor) -> Tensor:
        return one_hot_argmax(self._call(y))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Foreign) and self.transform == other.transform

    __hash__ = None

    def __repr__(self) -> str:
        return repr(self.transform)


def parts_of(transform: Transform | Sequence[Transform]) -> list[Transform]:
    """The maps that a transform, a composition or a sequence of them applies, in order."""
    if isinstance(transform, ComposeTransform):
        return parts_of(transform.parts)
    if isinstance(transform, (list, tuple)):
        return [part for item in transform for part in parts_of(item)]
    if not isinstance(transform, Transform):
        advice = "; call it for the transform that it holds" if isinstance(transform, nn.Module) else ""
        raise TypeError(
            f"expected a torch.distributions.Transform or a sequence of them, got {describe(transform)}{advice}"
        )
    return [transform]


def maps_onto_simplex(transform: Transform | Sequence[Transform]) -> tuple[Transform, ...]:
    parts = parts_of(transform)
    if not parts or not all(part.bijective for part in parts):
        raise ValueError(f"transform must be a bijection onto the simplex, got {transform}")
    *flow, last = parts
    if not isinstance(last, SimplexTransform):
        if last.codomain not in (constraints.simplex, simplex):
            raise ValueError(f"transform must end on the simplex, got {transform}; append SoftmaxPlusPlus(temperature)")
        last = _Foreign(last)
    return (*flow, last)
