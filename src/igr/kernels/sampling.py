"""Launchers of the sampling kernels, on rows: parameters (P, n), samples (rows, K), with rows a multiple of P.

Kernels are compiled once for every number of categories, kind of noise and set of terms, when the first call comes.
A call's noise is a function of its key, a 64-bit integer in a tensor, and of nothing else that is not a number here.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from igr.kernels import waiting
from igr.kernels._backward import backward_rows
from igr.kernels._forward import forward_rows
from igr.kernels._parts import FIELDS, FIRST, SECOND, WHOLE, backward_parts, forward_parts
from igr.kernels._random import INTERPRETED, write_noise

LONGEST = 16384  # columns of a row that one program has


class Tiling(NamedTuple):
    """How a kernel cuts the work: rows and columns of a program's tile, and its warps."""

    rows: int
    block: int
    num_warps: int


def tiling(K: int) -> Tiling:
    """The table of tiles, by the number of categories, forward and backward: measured, not derived."""
    if K > LONGEST:
        return Tiling(1, 4096, 8)
    block = max(4, triton.next_power_of_2(K))
    if block <= 64:
        return Tiling(2048 // block, block, 4)
    if block <= 1024:
        return Tiling(1024 // block, block, 4)
    if block <= 4096:
        return Tiling(1, block, 8)
    return Tiling(1, block, 16 if block <= 8192 else 32)


class Scalars(NamedTuple):
    """τ and δ: numbers, or tensors (rows,) that are used in their place."""

    tau: float
    delta: float
    tau_rows: Tensor | None
    delta_rows: Tensor | None


class Sample(NamedTuple):
    """What the forward kernel makes; None for what was not asked for."""

    z: Tensor
    soft: Tensor | None
    log_prob: Tensor | None
    kl: Tensor | None
    stats: Tensor | None


def forward(
    loc: Tensor,
    scale: Tensor | None,
    seed: Tensor,
    scalars: Scalars,
    mask: Tensor | None,
    prior: tuple[Tensor | None, Tensor | None],
    rows: int,
    *,
    hard: bool,
    keep: bool,
    log_prob: bool,
    kl: bool,
) -> Sample:
    """Samples of every row; ``scale`` is None for Gumbel noise, whose ``prior`` is one of logits or None.

    With ``hard`` the relaxed points are written as well if they are to be kept for a backward pass. To make them anew
    there from parameters and noise would move as much memory (for IGR-I; less by one tensor for GS) and need a second
    softmax of every row.
    """
    n, K = loc.shape[1], loc.shape[1] + (scale is not None)
    loc, scale, mask, mu0, sigma0 = (_plain(x) for x in (loc, scale, mask, *prior))  # type: ignore[assignment]
    row = loc.new_empty(rows, dtype=torch.float32)
    out = Sample(
        loc.new_empty(rows, K),
        loc.new_empty(rows, K) if hard and keep else None,
        row if log_prob else None,
        torch.empty_like(row) if kl else None,
        row.new_empty(rows, 2) if kl and keep and scale is None else None,
    )
    constant = math.lgamma(K) if scale is None else -0.5 * n * math.log(2 * math.pi)
    arguments = [
        *out, loc, scale, seed, scalars.tau_rows, scalars.delta_rows, _bytes(mask), mu0, sigma0,
        *_strides(loc, scale, mu0, sigma0, mask), scalars.tau, math.log(scalars.delta), constant,
        rows, loc.shape[0], _stream(loc), n, K, rows != loc.shape[0], hard,
    ]  # fmt: skip
    if K > LONGEST:
        _launch_parts(forward_parts, tiling(K), rows, K, loc, arguments, FIELDS)
    else:
        _launch(forward_rows, tiling(K), rows, loc, arguments)
    return out


def backward(
    p: Tensor,
    g: Tensor,
    loc: Tensor | None,
    scale: Tensor | None,
    seed: Tensor,
    scalars: Scalars,
    prior: tuple[Tensor | None, Tensor | None],
    stats: Tensor | None,
    g_log_prob: Tensor | None,
    g_kl: Tensor | None,
    *,
    gumbel: bool,
    need_loc: bool,
    need_scale: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients (rows, n) of what is needed; ``loc`` and ``scale`` are read for the terms alone."""
    rows, K = p.shape
    g, loc, scale, mu0, sigma0 = (_plain(x) for x in (g, loc, scale, *prior))  # type: ignore[assignment]
    n = K - (not gumbel)
    d_loc = p.new_empty(rows, n) if need_loc else None
    d_scale = p.new_empty(rows, n) if need_scale else None
    period = rows if loc is None else loc.shape[0]
    arguments = [
        d_loc, d_scale, p, g, loc, scale, seed, scalars.tau_rows, mu0, sigma0, stats, g_log_prob, g_kl,
        *_strides(g, loc, scale, mu0, sigma0), scalars.tau, rows, period, _stream(p), n, K, rows != period,
    ]  # fmt: skip
    if K > LONGEST:
        _launch_parts(backward_parts, tiling(K), rows, K, p, arguments, 2)
    else:
        _launch(backward_rows, tiling(K), rows, p, arguments)
    return d_loc, d_scale


def noise(seed: Tensor, rows: int, columns: int, *, gumbel: bool, stream: int | None = None) -> Tensor:
    """The noise of a call with this key, float32, (rows, columns)."""
    eps = torch.empty(rows, columns, dtype=torch.float32, device=seed.device)
    block = min(1024, max(4, triton.next_power_of_2(columns)))
    tile = Tiling(4096 // block, block, 4)
    if eps.numel():
        grid = (triton.cdiv(rows, tile.rows) * triton.cdiv(columns, block),)
        stream = _stream(seed) if stream is None else stream
        with _on(seed):
            write_noise[grid](eps, seed, rows, columns, stream, int(gumbel), tile.rows, block, num_warps=tile.num_warps)
    return eps


def _launch(kernel: Any, tile: Tiling, rows: int, like: Tensor, arguments: list[Any]) -> None:
    """Programs of whole rows."""
    if rows == 0:
        return
    sizes = rows % tile.rows == 0, tile.rows, tile.block
    with _on(like):
        kernel[(triton.cdiv(rows, tile.rows),)](*arguments, *sizes, num_warps=tile.num_warps)


def _launch_parts(
    kernel: Any, tile: Tiling, rows: int, K: int, like: Tensor, arguments: list[Any], fields: int
) -> None:
    """Programs of parts of rows, which meet where they can."""
    if rows == 0:
        return
    parts = triton.cdiv(K, tile.block)
    board = like.new_empty(fields, rows, parts, dtype=torch.float32)
    meet = _all_run(parts, like)
    arrived = like.new_zeros(rows + 1, dtype=torch.int32) if meet else None  # of each row, and all that have started
    sizes = parts, triton.next_power_of_2(parts), tile.block
    with _on(like):
        for half in (WHOLE,) if meet else (FIRST, SECOND):
            kernel[(rows * parts,)](*arguments, board, arrived, half, *sizes, num_warps=tile.num_warps)


def _all_run(parts: int, like: Tensor) -> bool:
    """Whether programs may wait, and all of a row have room at the same time, even if four launches have some waiting.

    A launch has fewer than ``parts`` programs that wait for one that has not started.
    """
    if INTERPRETED or not waiting():
        return False
    return 4 * parts <= torch.cuda.get_device_properties(like.device).multi_processor_count


def _on(like: Tensor) -> contextlib.AbstractContextManager[Any]:
    return torch.cuda.device(like.device) if like.is_cuda else contextlib.nullcontext()


def _stream(like: Tensor) -> int:
    """What tells the noise of devices apart."""
    return like.device.index or 0


def _strides(*tensors: Tensor | None) -> list[int]:
    """Row and column strides."""
    strides = [(0, 0) if t is None else t.stride() for t in tensors]
    return [step for pair in strides for step in pair]


def _plain(x: Tensor | None) -> Tensor | None:
    """Contiguous or expanded: kernels are compiled for their strides, of which there are few kinds then."""
    if x is None or (x.stride(1) in (0, 1) and x.stride(0) in (0, x.shape[1])):
        return x
    return x.contiguous()


def _bytes(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask.view(torch.uint8)
