r"""Metrics of discrete VAEs as Triton kernels: categories are drawn and decoded where they are, not as one-hot vectors.

A thousand samples for each of ten thousand images and fifty members are 5e8 times 20 categories. They are kept as
bytes; the first layer of the decoder makes its one-hot tiles out of them in registers, and the last one adds up
log p(x | z) without writing logits. Products run on tensor cores in pieces of bfloat16: a weight in three, which hold
all its 24 bits, against the exact zeros and ones of a one-hot vector; and later layers in three of the four products of
two pieces each, which leaves an error of about :math:`2^{-16}`.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from igr.kernels._random import _HARDWARE, philox
from igr.paper.likelihood import BINARY, Pixels
from igr.paper.likelihood_kernels import bernoulli_pixels, gaussian_pixels

__all__ = ["draw", "log_likelihoods"]

Pieces = tuple[Tensor, Tensor, Tensor]

UNIFORM = tl.constexpr(7)  # a kind of noise that no sampler has

# rows, outputs and inputs of a tile, warps and stages of the pipeline; grey pixels have two tiles at once
TILES = {"layer": (128, 128, 32, 8, 3), "binary": (128, 128, 32, 8, 3), "grey": (128, 64, 32, 8, 3)}
HIDDEN_NUMBERS = 2**30  # of hidden layers that are held at once


@triton.jit
def _draw_kernel(
    cdf, log_q, log_p, seed, index, log_qz, log_pz, S, B, EB, stream,
    N: tl.constexpr, K: tl.constexpr, BS: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Some samples of all variables of one image, and their log-probabilities, by the inverse of the cdf in float64."""
    row = tl.program_id(0).to(tl.int64)
    s = tl.program_id(1).to(tl.int64) * BS + tl.arange(0, BS)
    n = tl.arange(0, BN)
    a, b, _, _ = philox(tl.load(seed), (s * EB + row)[:, None], n[None, :], stream, UNIFORM)
    # 53 random bits, as a number in [0, 1)
    u = ((a >> 5).to(tl.float64) * 67108864.0 + (b >> 6).to(tl.float64)) * 1.1102230246251565e-16
    drawn = tl.zeros((BS, BN), dtype=tl.int32)
    for k in tl.static_range(K - 1):
        below = tl.load(cdf + (row * N + n) * (K - 1) + k, mask=n < N, other=2.0)
        drawn += (u >= below[None, :]).to(tl.int32)
    inside = (s[:, None] < S) & (n[None, :] < N)
    at = (row * N + n)[None, :] * K + drawn
    tl.store(log_qz + s * EB + row, tl.sum(tl.load(log_q + at, mask=inside, other=0.0), 1), mask=s < S)
    tl.store(log_pz + s * EB + row, tl.sum(tl.load(log_p + at, mask=inside, other=0.0), 1), mask=s < S)
    to = ((row // B * S + s) * B + row % B)[:, None] * N + n[None, :]
    tl.store(index + to, drawn.to(tl.uint8), mask=inside)


@triton.jit
def _dot(a, b, acc):
    """acc + a b of bfloat16 numbers, which the interpreter cannot multiply as such."""
    if _HARDWARE:
        return tl.dot(a, b, acc)
    else:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc)


@triton.jit
def _product(
    h, w0, w1, w2, r, rows, o,
    NI: tl.constexpr, NO: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A tile of h W: h are categories of K each, or numbers if K is 0; W is the sum of its pieces."""
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, NI, BK):
        i = start + tl.arange(0, BK)
        at, inside = i[:, None] * NO + o[None, :], (i[:, None] < NI) & (o[None, :] < NO)
        c0 = tl.load(w0 + at, mask=inside, other=0.0)
        c1 = tl.load(w1 + at, mask=inside, other=0.0)
        given = (r[:, None] < rows) & (i[None, :] < NI)
        if K > 0:
            drawn = tl.load(h + r[:, None] * (NI // K) + (i // K)[None, :], mask=given, other=255)
            a = tl.where(drawn.to(tl.int32) == (i % K)[None, :], 1.0, 0.0).to(tl.bfloat16)
            d, c2 = a, tl.load(w2 + at, mask=inside, other=0.0)
        else:
            x = tl.load(h + r[:, None] * NI + i[None, :], mask=given, other=0.0)
            a = x.to(tl.bfloat16)
            d, c2 = (x - a.to(tl.float32)).to(tl.bfloat16), c0
        acc = _dot(a, c0, acc)
        acc = _dot(a, c1, acc)
        acc = _dot(d, c2, acc)
    return acc


@triton.jit
def _layer_kernel(
    h, w0, w1, w2, b, y, rows,
    NI: tl.constexpr, NO: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A tile of relu(h W + b)."""
    o = tl.program_id(0) * BN + tl.arange(0, BN)
    r = tl.program_id(1) * BM + tl.arange(0, BM)
    e = tl.program_id(2).to(tl.int64)
    width = NI if K == 0 else NI // K
    weights = e * (NI * NO)
    acc = _product(
        h + e * rows * width, w0 + weights, w1 + weights, w2 + weights, r, rows, o, NI, NO, K, BM, BN, BK
    )  # fmt: skip
    acc += tl.load(b + e * NO + o, mask=o < NO, other=0.0)[None, :]
    acc = tl.where(acc <= 0, 0.0, acc)  # a maximum would lose NaN
    inside = (r[:, None] < rows) & (o[None, :] < NO)
    tl.store(y + e * rows * NO + r[:, None] * NO + o[None, :], acc, mask=inside)


@triton.jit
def _last_kernel(
    h, w0, w1, w2, b, x, out, rows, B, sxe,
    NI: tl.constexpr, NO: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    D: tl.constexpr, GREY: tl.constexpr, ELU: tl.constexpr, FLOOR: tl.constexpr,
):  # fmt: skip
    """The log-likelihood of images of D pixels given some rows of h, by what h W + b says of them."""
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    e = tl.program_id(1).to(tl.int64)
    h += e * rows * (NI if K == 0 else NI // K)
    w0, w1, w2, b = w0 + e * (NI * NO), w1 + e * (NI * NO), w2 + e * (NI * NO), b + e * NO
    total = tl.zeros((BM,), dtype=tl.float32)
    for first in range(0, D, BN):
        o = first + tl.arange(0, BN)
        said = _product(h, w0, w1, w2, r, rows, o, NI, NO, K, BM, BN, BK)
        said += tl.load(b + o, mask=o < NO, other=0.0)[None, :]
        inside = (r[:, None] < rows) & (o[None, :] < D)
        pixel = tl.load(x + e * sxe + (r % B)[:, None] * D + o[None, :], mask=inside, other=0.0)
        if GREY:
            scale = _product(h, w0, w1, w2, r, rows, o + D, NI, NO, K, BM, BN, BK)
            scale += tl.load(b + D + o, mask=D + o < NO, other=0.0)[None, :]
            fit = gaussian_pixels(pixel, said, scale, ELU, FLOOR)
        else:
            fit = bernoulli_pixels(pixel, said)
        total += tl.sum(tl.where(inside, fit, 0.0), 1)
    tl.store(out + e * rows + r, total, mask=r < rows)


class Drawn(NamedTuple):
    """Samples of the categories of all variables, and their log-probabilities."""

    categories: Tensor
    """``(E, S, B, N)`` bytes."""
    log_qz: Tensor
    """``(S, E, B)``, float64."""
    log_pz: Tensor
    """``(S, E, B)``, float64."""


def draw(cdf: Tensor, log_q: Tensor, log_p: Tensor, num_samples: int, generator: torch.Generator | None) -> Drawn:
    """Samples from distribution functions ``(E, B, N, K - 1)``, with log-probabilities by two tables, all float64."""
    E, B, N, K = log_q.shape
    device = log_q.device
    seed = torch.randint(2**63 - 1, (1,), generator=generator, device=device)
    index = torch.empty(E, num_samples, B, N, dtype=torch.uint8, device=device)
    log_qz, log_pz = (torch.empty(num_samples, E, B, dtype=torch.float64, device=device) for _ in range(2))
    BS, BN = 8, triton.next_power_of_2(N)
    tables = (each.contiguous() for each in (cdf, log_q, log_p))
    with torch.cuda.device_of(log_q):  # launches go to the current one
        _draw_kernel[(E * B, triton.cdiv(num_samples, BS))](
            *tables, seed, index, log_qz, log_pz, num_samples, B, E * B, device.index or 0, N, K, BS, BN, num_warps=2
        )
    return Drawn(index, log_qz, log_pz)


def log_likelihoods(
    x: Tensor, index: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], K: int, kind: Pixels = BINARY
) -> Tensor:
    """log p(x | z), ``(S, E, B)``, of images ``(E, B, D)`` by a decoder with ReLU between its layers.

    Arguments:
        x: the images, float32.
        index: the categories, ``(E, S, B, N)`` bytes.
        weights: of the decoder, ``(E, in, out)`` each, the first with N K inputs.
        biases: ``(E, 1, out)`` each.
        K: how many categories there are.
        kind: what their pixels are.
    """
    E, S, B, _ = index.shape
    pieces, hidden = [_pieces(w) for w in weights], sum(w.shape[2] for w in weights[:-1])
    x = x if x.stride()[1:] == (x.shape[-1], 1) else x.contiguous()
    size = S if not hidden else max(1, HIDDEN_NUMBERS // (E * B * hidden))
    with torch.cuda.device_of(x):  # launches go to the current one
        parts = [_decoded(x, index[:, start : start + size], pieces, biases, K, kind) for start in range(0, S, size)]
    return torch.cat(parts)


def _decoded(
    x: Tensor, index: Tensor, pieces: Sequence[Pieces], biases: Sequence[Tensor], K: int, kind: Pixels
) -> Tensor:
    E, S, B = index.shape[:3]
    rows, h = S * B, index.contiguous()
    for i, (w, b) in enumerate(zip(pieces, biases, strict=True)):
        (NI, NO), categories = w[0].shape[1:], 0 if i else K
        if i + 1 < len(pieces):
            BM, BN, BK, warps, stages = TILES["layer"]
            y = torch.empty(E, rows, NO, device=x.device)
            grid = (triton.cdiv(NO, BN), triton.cdiv(rows, BM), E)
            _layer_kernel[grid](
                h, *w, b, y, rows, NI, NO, categories, BM, BN, BK, num_warps=warps, num_stages=stages
            )  # fmt: skip
            h = y
    BM, BN, BK, warps, stages = TILES["grey" if kind.grey else "binary"]
    out = torch.empty(E, rows, device=x.device)
    _last_kernel[(triton.cdiv(rows, BM), E)](
        h, *w, b, x, out, rows, B, x.stride(0), NI, NO, categories, BM, BN, BK, x.shape[-1], *kind,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out.view(E, S, B).transpose(0, 1)


def _pieces(weight: Tensor) -> Pieces:
    """Three tensors of bfloat16 whose sum is the weight, all its bits."""
    first = weight.bfloat16()
    second = (weight - first.float()).bfloat16()
    return first, second, (weight - first.float() - second.float()).bfloat16()
