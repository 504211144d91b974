"""Fused kernels for CUDA devices, and the switch that decides about their use.

Functions of the library choose a kernel on their own where one serves: CUDA tensors of float32, bfloat16 or float16,
outside of ``torch.func`` transforms and forward-mode differentiation. Everywhere else they are written in PyTorch, with
the same meaning. ``igr.kernels.set_enabled(False)`` takes that path on CUDA as well, to look for a fault. Nothing but
this switch is imported until a kernel is asked for.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["enabled", "set_enabled", "disabled", "usable"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# kernels are written for NVIDIA's devices, in Triton, which comes with torch for these
INSTALLED = torch.version.cuda is not None and importlib.util.find_spec("triton") is not None

_enabled = True


def enabled() -> bool:
    """Whether kernels are used where they can be."""
    return _enabled


def set_enabled(mode: bool) -> None:
    """Switches the kernels on or off, for the whole process."""
    global _enabled
    _enabled = bool(mode)


@contextmanager
def disabled() -> Iterator[None]:
    """The PyTorch path inside of this block.

    Example:
        >>> with disabled():
        ...     enabled()
        False
    """
    before = enabled()
    set_enabled(False)
    try:
        yield
    finally:
        set_enabled(before)


def usable(*tensors: Tensor) -> bool:
    """Whether a kernel may be used on these tensors, here and now."""
    if not _enabled or not all(t.is_cuda and t.dtype in DTYPES for t in tensors):
        return False
    return all(t.device == tensors[0].device for t in tensors) and INSTALLED and not _transformed()


def _transformed() -> bool:
    """Whether a transform of ``torch.func`` or forward-mode differentiation is around; a compiler sees through both."""
    if torch.compiler.is_compiling():
        return False
    return bool(torch._C._functorch.get_interpreter_stack()) or torch.autograd.forward_ad._current_level >= 0
