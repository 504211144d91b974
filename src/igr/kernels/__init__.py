"""Fused kernels for CUDA devices, and the switch that decides about their use.

Functions of the library choose a kernel on their own where one serves: CUDA tensors of float32, bfloat16 or float16,
outside of ``torch.func`` transforms and forward-mode differentiation. Everywhere else they are written in PyTorch, with
the same meaning. ``igr.kernels.set_enabled(False)`` takes that path on CUDA as well, to look for a fault. Nothing but
this switch is imported until a kernel is asked for.

Rows of more than 16,384 categories are shared among several programs of a launch, which wait for each other on the
device. That ends as long as at most four such launches run on a device at the same time: more, on as many streams, may
fill it with programs that wait for others which find no room. ``igr.kernels.set_waiting(False)`` makes two launches of
each instead, which depend on nothing and read the parameters twice.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import Lock

import torch
from torch import Tensor

from igr._checks import transformed

__all__ = ["enabled", "set_enabled", "disabled", "waiting", "set_waiting", "usable", "usable_on_rows"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# kernels are written for NVIDIA's devices, in Triton, which comes with torch for these
INSTALLED = torch.version.cuda is not None and importlib.util.find_spec("triton") is not None

MOST_COLUMNS = 512
"""The largest K - 1 for which kernels that hold a row in one program are used."""

_enabled = True  # as was asked for, and no block of disabled() is open
_traced = False  # a compiler is reading such a block
_wanted = True
_pauses = 0
_lock = Lock()
_waiting = True
_capable: dict[int, bool] = {}


def enabled() -> bool:
    """Whether kernels are used where they can be."""
    return _enabled and not _traced


def set_enabled(mode: bool) -> None:
    """Switches the kernels on or off, for the whole process; where blocks of :func:`disabled` are open, for later."""
    _switch(bool(mode), 0)


def _switch(mode: bool | None, pauses: int) -> None:
    """Any number of threads may be in a block of :func:`disabled`, and leave it in any order."""
    global _enabled, _wanted, _pauses
    with nullcontext() if torch.compiler.is_compiling() else _lock:  # which compilers cannot enter
        _wanted = _wanted if mode is None else mode
        _pauses += pauses
        _enabled = _wanted and _pauses == 0


def waiting() -> bool:
    """Whether programs that share a row may wait for each other on the device."""
    return _waiting


def set_waiting(mode: bool) -> None:
    """Lets programs wait for each other, or makes two launches instead, for the whole process."""
    global _waiting
    _waiting = bool(mode)


@contextmanager
def disabled() -> Iterator[None]:
    """The PyTorch path inside of this block, in all threads.

    Example:
        >>> with disabled():
        ...     enabled()
        False
    """
    global _traced
    if torch.compiler.is_compiling():  # a compiled program writes back what was there, and so changes nothing
        before, _traced = _traced, True
        try:
            yield
        finally:
            _traced = before
        return
    _switch(None, 1)
    try:
        yield
    finally:
        _switch(None, -1)


def usable(*tensors: Tensor) -> bool:
    """Whether a kernel may be used on these tensors, here and now."""
    if not enabled() or not all(t.device.type == "cuda" and t.dtype in DTYPES for t in tensors):
        return False
    if not INSTALLED or not all(t.device == tensors[0].device and _modern(t.device.index) for t in tensors):
        return False
    return not transformed()


def usable_on_rows(*tensors: Tensor) -> bool:
    """Whether a kernel that holds rows of (*, K-1) in one program may be used."""
    return usable(*tensors) and tensors[0].shape[-1] <= MOST_COLUMNS


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _modern(device: int) -> bool:
    """Whether it has what kernels ask for: bfloat16, among others, which came with compute capability 8.0."""
    if device not in _capable:
        _capable[device] = torch.cuda.get_device_capability(device) >= (8, 0)
    return _capable[device]
