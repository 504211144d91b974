"""Memory of CPUs: what large tensors have freed is taken again."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_memory"]

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # what mallopt calls them
LARGEST = 2**31 - 1  # bytes, as an int of C


def keep_memory() -> bool:
    """Lets this process keep the memory that it frees, for what it allocates next; whether it does.

    By default glibc hands large tensors back to the system at once, which then clears every page of the next one: a
    fifth of a step of 50 linear models. Other allocators are left as they are, and so is glibc where it
    refuses thresholds of that size.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(MMAP_THRESHOLD, LARGEST) and mallopt(TRIM_THRESHOLD, LARGEST))
