"""Temperatures and their like: python numbers, 0-d tensors, or tensors with one value per row."""

from __future__ import annotations

from torch import Tensor, equal

from igr._checks import differentiated, log, values_checkable


def same_value(a: float | Tensor, b: float | Tensor) -> bool:
    """Equality of numbers and tensors by value; of tensors whose values cannot be looked at, by identity."""
    if a is b:
        return True
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        return a == b
    if not values_checkable(a, b):
        return False
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and equal(a, b)
    return bool((a == b).all())  # type: ignore[union-attr]


def trained_apart(a: object, b: object) -> bool:
    """Whether a derivative may move one without the other: of two tensors that are not the same part of one."""
    if a is b or not any(map(differentiated, (a, b))):
        return False
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)) or a._base is None or a._base is not b._base:
        return True
    return any(of(a) != of(b) for of in (Tensor.storage_offset, Tensor.size, Tensor.stride))


def row(value: Tensor) -> Tensor:
    """A per-row scalar without its last axis, to be combined with reductions over that axis."""
    return value.squeeze(-1) if value.dim() else value


def log_row(value: float | Tensor, like: Tensor) -> float | Tensor:
    """The logarithm of a per-row scalar, without its last axis."""
    logarithm = log(value)
    return row(logarithm).to(like.dtype) if isinstance(logarithm, Tensor) else logarithm


def show(value: float | Tensor) -> str:
    if isinstance(value, Tensor):
        return f"{value.item():g}" if value.numel() == 1 and values_checkable(value) else f"tensor{tuple(value.shape)}"
    return f"{value:g}"
