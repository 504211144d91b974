"""The noise of training, drawn beforehand in blocks of steps, so that a step only reads it and can be replayed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from igr import kernels
from igr._draws import NoiseSource, gaussian_noise, gumbel_noise
from igr.paper.compiled import fast
from igr.paper.streams import generator_of

__all__ = ["BLOCK", "BlockNoise", "SharedNoise", "draw"]

BLOCK = 50  # steps whose noise is drawn at once; part of what the numbers of a seed are


def draw(kind: str, shape: Sequence[int], like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard ``gaussian`` or ``gumbel`` noise with the dtype and device of ``like``."""
    if kind == "gaussian":
        return gaussian_noise(shape, like, generator)
    return gumbel_noise(like.new_empty(tuple(shape)), generator)


class SharedNoise(NoiseSource):
    """Noise ``(..., E, B, N, k)`` of which members with the same owner have the same.

    Arguments:
        generators: what R owners draw from, one after the other.
        owner: which of them each of the E members has, ``(E,)``.
    """

    def __init__(self, generators: Sequence[torch.Generator], owner: Tensor) -> None:
        self._generators, self._owner = generators, owner

    def gaussian(self, shape: Sequence[int], like: Tensor) -> Tensor:
        return self._draw("gaussian", shape, like)

    def gumbel(self, like: Tensor) -> Tensor:
        return self._draw("gumbel", like.shape, like)

    def _draw(self, kind: str, shape: Sequence[int], like: Tensor) -> Tensor:
        *lead, _, B, N, k = shape
        drawn = torch.stack([draw(kind, (*lead, B, N, k), like, each) for each in self._generators], -4)
        return drawn.index_select(-4, self._owner)


class _Request(NamedTuple):
    """What a step has asked for: its n-th noise is of this kind, shape and dtype."""

    kind: str
    shape: tuple[int, ...]
    like: Tensor


class BlockNoise(NoiseSource):
    """Noise for all members of an ensemble, where each seed has a stream of its own.

    A step may ask for any number of tensors of shape ``(..., E, B, N, k)``, the same in every step. The first is from
    the stream ``noise/<epoch>/<block>`` of a seed, the n-th after it from ``noise/<epoch>/<block>/<n>``. Members with
    the same seed are given the same numbers.

    Arguments:
        seeds: R different ones.
        owner: which of them each of the E members has, ``(E,)``.
        at: the step, ``(1,)``, which is read where a graph can read it.
        steps: how many an epoch has: a block is no longer.
    """

    def __init__(self, seeds: Sequence[int], owner: Tensor, at: Tensor, steps: int = BLOCK) -> None:
        self._seeds, self._owner, self._at, self._length = seeds, owner, at, min(BLOCK, steps)
        self._requests: list[_Request] = []
        self._buffers: list[Tensor] = []  # (length, ..., R, B, N, k) each
        self._place = (0, -1)
        self._next = 0

    def seek(self, epoch: int, block: int) -> None:
        """Draws all that the steps of a block will ask for, as far as that is known from earlier steps."""
        self._place = (epoch, block)
        for n in range(len(self._buffers)):
            self._fill(n)

    def begin_step(self) -> None:
        """What is asked for next is the first of a step."""
        self._next = 0

    def gaussian(self, shape: Sequence[int], like: Tensor) -> Tensor:
        return self._read(_Request("gaussian", tuple(shape), like.detach()))

    def gumbel(self, like: Tensor) -> Tensor:
        return self._read(_Request("gumbel", tuple(like.shape), like.detach()))

    def _read(self, request: _Request) -> Tensor:
        n, self._next = self._next, self._next + 1
        if n == len(self._buffers):
            self._add(request)
        if self._requests[n][:2] != request[:2]:
            raise RuntimeError(f"a step asks for {request[:2]}, where earlier steps asked for {self._requests[n][:2]}")
        return fast(_of_step, self._buffers[n])(self._buffers[n], self._at, self._owner)

    def _add(self, request: _Request) -> None:
        *lead, _, B, N, k = request.shape
        small = request.like.new_zeros(())  # not the tensor itself, which would be kept alive
        self._requests.append(request._replace(like=small))
        self._buffers.append(small.new_zeros((self._length, *lead, len(self._seeds), B, N, k)))
        self._fill(len(self._buffers) - 1)

    @torch.no_grad()
    def _fill(self, n: int) -> None:
        buffer, kind = self._buffers[n], self._requests[n].kind
        for r, seed in enumerate(self._seeds):
            generator = generator_of(seed, "noise", *self._place, *([n] if n else []), device=buffer.device)
            part = buffer.select(-4, r)
            with kernels.disabled():  # torch's own: what a seed gives does not depend on whether kernels are used
                part.copy_(draw(kind, part.shape, buffer, generator))


def _of_step(block: Tensor, at: Tensor, owner: Tensor) -> Tensor:
    """The noise of a step, for each member, out of a block's, ``(length, ..., R, B, N, k)``."""
    now = block.index_select(0, at % BLOCK).squeeze(0)
    return now.index_select(-4, owner) if now.shape[-4] < len(owner) else now
