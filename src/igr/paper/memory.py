"""Memory of CPUs: what large tensors have freed is taken again."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_memory"]

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # what mallopt calls them


def keep_memory() -> bool:
    """Lets this process keep the memory that it frees, for what it allocates next; whether it does.

    By default glibc hands large tensors back to the system at once, which then clears every page of the next one: a
    fifth of a step of 50 linear models. Other allocators are left as they are.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    largest = 2**31 - 1
    return mallopt is not None and bool(mallopt(MMAP_THRESHOLD, largest) and mallopt(TRIM_THRESHOLD, largest))
