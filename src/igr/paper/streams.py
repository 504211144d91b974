"""Random streams that know where they are: a number is a function of a seed and of what it is for.

Nothing has to be remembered to go on after an interruption, and in training no member depends on how many others there
are. Metrics are taken of all members of a cell in one stream: there, others change a member's noise.
"""

from __future__ import annotations

import hashlib

import torch

__all__ = ["generator_of", "stream"]


def stream(seed: int, *purpose: object) -> int:
    """A seed of 63 bits for one purpose, such as ``stream(5328, "noise", epoch, block)``.

    It is the beginning of the sha256 of the words, joined by slashes.

    Example:
        >>> stream(5328, "order", 1) == stream(5328, "order", 1), stream(5328, "order", 1) == stream(5328, "order", 2)
        (True, False)
    """
    words = "/".join(str(word) for word in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big") >> 1


def generator_of(seed: int, *purpose: object, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator at the beginning of that stream. The same stream gives other numbers on another kind of device."""
    return torch.Generator(device).manual_seed(stream(seed, *purpose))
