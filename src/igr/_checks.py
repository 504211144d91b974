"""Checks of arguments, shared by functions, transforms and distributions.

Types and shapes are always checked. Values are checked in eager mode only: under ``torch.compile``, ``torch.func.vmap``
and CUDA-graph capture a tensor's values cannot be looked at, so the same constructors work there unchecked.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral, Real
from typing import Any, TypeGuard

import torch
from torch import Tensor


def values_checkable(*values: object) -> bool:
    """Whether the entries of these tensors may be looked at here."""
    if torch.compiler.is_compiling() or under_vmap():
        return False
    tensors = [v for v in values if isinstance(v, Tensor)]
    if any(t.is_meta for t in tensors):
        return False
    return not (any(t.is_cuda for t in tensors) and torch.cuda.is_current_stream_capturing())


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Where autocast casts nothing, matrix products above all; on the meta device it has nothing to cast."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def interpreters() -> list[str]:
    """The transforms of ``torch.func`` around this call, the innermost last, by torch's names: Vmap, Grad, Jvp."""
    return [level.key().name for level in torch._C._functorch.get_interpreter_stack() or ()]


def under_vmap() -> bool:
    """Whether some level of ``torch.func`` around this call is a vmap; a compiler sees through it."""
    return not torch.compiler.is_compiling() and "Vmap" in interpreters()


def transformed() -> bool:
    """Whether a transform of ``torch.func`` or forward-mode differentiation is around; a compiler sees through both."""
    if torch.compiler.is_compiling():
        return False
    return bool(interpreters()) or torch.autograd.forward_ad._current_level >= 0


def differentiated(x: object) -> bool:
    """Whether there may be a derivative with respect to x, backwards or forwards, at any level of ``torch.func``.

    What a transform inside of a forward one hides counts as if there were, as does all that a compiler asks about: it
    does not say what is differentiated forwards.
    """
    if not isinstance(x, Tensor) or torch.compiler.is_compiling():
        return isinstance(x, Tensor)
    around, forwards = interpreters(), torch.autograd.forward_ad._current_level >= 0
    if "Jvp" in around[:-1] or (forwards and around[-1:] not in ([], ["Jvp"])):
        return True
    if forwards and torch.autograd.forward_ad.unpack_dual(x).tangent is not None:
        return True
    while not x.requires_grad and torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x.requires_grad


def validation(validate_args: bool | None) -> bool:
    """Values are checked unless the caller, or ``python -O``, says not to.

    torch's global default is not asked: other packages switch it off when they are imported.
    """
    return __debug__ if validate_args is None else validate_args


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Half precisions are computed in float32; everything else as it is."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def widen(x: Tensor) -> Tensor:
    """In the dtype that it is computed in."""
    return x.to(wide_dtype(x.dtype))


def expand(x: Tensor, shape: torch.Size) -> Tensor:
    """``x`` itself where it has that shape already: a leaf stays a leaf."""
    return x if x.shape == shape else x.expand(shape)


def is_number(value: object) -> TypeGuard[float]:
    """A real number of python's or numpy's; a boolean is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_integer(value: object) -> TypeGuard[int]:
    """One of python's or numpy's; a boolean is none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def log(x: float | Tensor) -> float | Tensor:
    """log of a number or of a tensor."""
    return widen(x).log() if isinstance(x, Tensor) else math.log(x)


def describe(value: object) -> str:
    """What an error message says was given."""
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    return f"{value!r}" if isinstance(value, (Real, str)) else f"a {type(value).__name__}"


def check_tensor(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a floating-point tensor, got {describe(value)}; use torch.as_tensor(...)")
    if not value.dtype.is_floating_point:
        raise TypeError(f"{name} must be a floating-point tensor, got {describe(value)}; use {name}.float()")
    return value


def check_generator(generator: object, device: torch.device) -> None:
    """A generator or none; a seed is neither."""
    if generator is not None and not isinstance(generator, torch.Generator):
        seed = generator if is_integer(generator) else 0
        raise TypeError(
            f"generator must be a torch.Generator, got {describe(generator)}; use "
            f"torch.Generator({device.type!r}).manual_seed({seed})"
        )


def check_parameter(name: str, value: object, categories: str = "K - 1") -> Tensor:
    """A floating tensor of shape (*, K) or (*, K - 1), as ``categories`` says, with K at least 2."""
    tensor = check_tensor(name, value)
    least = 2 if categories == "K" else 1
    if tensor.dim() == 0 or tensor.shape[-1] < least:
        raise ValueError(
            f"{name} must have shape (*, {categories}) with K >= 2 categories on its last axis, "
            f"got shape {tuple(tensor.shape)}"
        )
    return tensor


def broadcast(**named: object) -> torch.Size:
    """The common shape of the tensors and shapes among the named values, or an error that names them."""
    shapes = {name: getattr(v, "shape", v) for name, v in named.items() if isinstance(v, (Tensor, torch.Size))}
    if not torch.compiler.is_compiling():
        first = next(iter(shapes.values()), torch.Size())
        if all(shape == first for shape in shapes.values()):
            return torch.Size(first)  # what follows takes a quarter of the time of a small sample
    try:
        return torch.Size(torch.broadcast_shapes(*shapes.values()))
    except RuntimeError:
        given = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise ValueError(f"shapes that do not broadcast together: {given}; the category axis is last") from None


def check_row_scalar(
    name: str, value: object, like: Tensor | None = None, *, at_most: float = math.inf
) -> float | Tensor:
    """A positive number, a 0-d tensor, or a tensor with last axis 1 (one value per row).

    With ``like``, where it is about to be used: in the dtype that this is computed in, and without a look at values
    that are not on the CPU, which would wait for the device at every call. Distributions and transforms look when they
    are built.
    """
    if isinstance(value, Tensor):
        check_tensor(name, value)
        if value.dim() > 0 and value.shape[-1] != 1:
            raise ValueError(
                f"{name} must be a number, a 0-d tensor or a tensor of shape (*, 1) holding one value per row, got "
                f"shape {tuple(value.shape)}, which would mean one value per category; use {name}.unsqueeze(-1)"
            )
    elif not is_number(value):
        raise TypeError(f"{name} must be a number or a floating-point tensor, got {describe(value)}")
    scalar = value if isinstance(value, Tensor) else float(value)
    if like is None or not isinstance(scalar, Tensor):
        check_range(name, scalar, at_most=at_most)
        return scalar
    if scalar.device.type == "cpu":
        check_range(name, scalar, at_most=at_most)
    broadcast(**{name: scalar, "rows": torch.Size((*like.shape[:-1], 1))})
    return scalar.to(wide_dtype(like.dtype))


def check_range(name: str, value: float | Tensor, *, at_most: float = math.inf) -> None:
    """0 < value < inf, or 0 < value <= at_most."""
    if not values_checkable(value):
        return
    low, high = _extremes(value)
    if not (low > 0 and high < math.inf and high <= at_most):
        rule = "positive and finite" if at_most == math.inf else f"in (0, {at_most:g}]"
        found = (
            f"a value of {value}"
            if not isinstance(value, Tensor)
            else f"{describe(value)} with values in [{low:g}, {high:g}]"
        )
        raise ValueError(f"{name} must be {rule}, got {found}")


def check_finite(name: str, value: float | Tensor, advice: str = "look for the step that produced them") -> None:
    if not values_checkable(value):
        return
    low, high = _extremes(value)
    if not (low > -math.inf and high < math.inf):
        raise ValueError(f"{name} must be finite, got {describe(value)} with NaN or infinite entries; {advice}")


def check_count(name: str, value: int, at_least: int = 1, why: str = "") -> int:
    """An integer of at least so many, as one of python's."""
    if not is_integer(value) or value < at_least:
        raise ValueError(f"{name} must be an integer of at least {at_least}{why}, got {value!r}")
    return int(value)


def _extremes(value: float | Tensor) -> tuple[float, float]:
    """Smallest and largest entry in one pass; both NaN if any entry is."""
    if not isinstance(value, Tensor):
        return float(value), float(value)
    if value.numel() == 0:
        return 1.0, 1.0
    low, high = torch.aminmax(value.detach())
    return low.item(), high.item()
