r"""The affine layers of all members as Triton kernels, and Adam in the pass that makes the gradient of a weight.

A layer of member e is :math:`y_e = x_e W_e + b_e`, with x of shape ``(E, rows, in)`` and W ``(E, in, out)``. With a
hundred rows every product is bound by the memory that weights move through, so what counts is how often they do: once
in each direction, and once for the update. The gradient of W, the product of the transpose of x with that of y, is as
large as W; it is made tile by tile where Adam needs it, and never stored.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["adam_product", "adam_sizes", "affine", "affine_input_gradient"]

# sizes of tiles, warps and stages of the pipeline, as measured on an H200
TILES = {
    "affine": (64, 128, 16, 2, 4),
    "input": (128, 64, 32, 4, 4),
    "adam": (32, 64, 32, 4, 3),
}


@triton.jit
def _affine_kernel(
    x, w, b, y, rows, sxe,
    SXR: tl.constexpr, NI: tl.constexpr, NO: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    RELU: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of x W + b."""
    o = tl.program_id(0) * BN + tl.arange(0, BN)
    r = tl.program_id(1) * BM + tl.arange(0, BM)
    e = tl.program_id(2).to(tl.int64)
    k = tl.arange(0, BK)
    fits = o[None, :] < NO
    xs = x + e * sxe + r[:, None] * SXR
    ws = w + e * (NI * NO) + o[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, NI, BK):
        i = start + k
        a = tl.load(xs + i[None, :], mask=(r[:, None] < rows) & (i[None, :] < NI), other=0.0)
        c = tl.load(ws + i[:, None] * NO, mask=(i[:, None] < NI) & fits, other=0.0)
        acc = tl.dot(a, c, acc, input_precision=PRECISION)
    acc += tl.load(b + e * NO + o, mask=o < NO, other=0.0)[None, :]
    if RELU:
        acc = tl.where(acc <= 0, 0.0, acc)  # a maximum would lose NaN
    tl.store(y + e * rows * NO + r[:, None] * NO + o[None, :], acc, mask=(r[:, None] < rows) & fits)


@triton.jit
def _input_gradient_kernel(
    dy, w, x, dx, rows, sde,
    SDR: tl.constexpr, NI: tl.constexpr, NO: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    RELU: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of the gradient of x, that of y times the transpose of W, or of what a ReLU made x of."""
    i = tl.program_id(0) * BN + tl.arange(0, BN)
    r = tl.program_id(1) * BM + tl.arange(0, BM)
    e = tl.program_id(2).to(tl.int64)
    k = tl.arange(0, BK)
    fits = i[None, :] < NI
    ds = dy + e * sde + r[:, None] * SDR
    ws = w + e * (NI * NO) + i[None, :] * NO
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, NO, BK):
        o = start + k
        a = tl.load(ds + o[None, :], mask=(r[:, None] < rows) & (o[None, :] < NO), other=0.0)
        c = tl.load(ws + o[:, None], mask=(o[:, None] < NO) & fits, other=0.0)
        acc = tl.dot(a, c, acc, input_precision=PRECISION)
    tile = e * rows * NI + r[:, None] * NI + i[None, :]
    inside = (r[:, None] < rows) & fits
    if RELU:
        acc = tl.where(tl.load(x + tile, mask=inside, other=0.0) > 0, acc, 0.0)
    tl.store(dx + tile, acc, mask=inside)


@triton.jit
def _adam(p, m, v, gradient, size, inverse_root, BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr):
    """What Adam makes of some numbers and their running means."""
    m = BETA1 * m + (1 - BETA1) * gradient
    v = BETA2 * v + (1 - BETA2) * gradient * gradient
    return p - size * m / (tl.sqrt(v) * inverse_root + EPS), m, v


@triton.jit
def _sizes_kernel(step, rate, sizes, LOG1: tl.constexpr, LOG2: tl.constexpr):
    """Counts a step, and what the bias corrections make of its rate: η / (1 - β1^t), and 1 / sqrt(1 - β2^t)."""
    count = tl.load(step) + 1
    tl.store(step, count)
    t = count.to(tl.float64)  # as 1 - β^t cancels at first
    tl.store(sizes, (tl.load(rate).to(tl.float64) / (1 - tl.exp(t * LOG1))).to(tl.float32))
    tl.store(sizes + 1, (1 / tl.sqrt(1 - tl.exp(t * LOG2))).to(tl.float32))


@triton.jit
def _adam_kernel(
    x, dy, w, wm, wv, b, bm, bv, sizes, sxe, sde,
    SXR: tl.constexpr, SDR: tl.constexpr, rows: tl.constexpr,  # the interpreter knows no other loops
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr,
    NI: tl.constexpr, NO: tl.constexpr, BI: tl.constexpr, BO: tl.constexpr, BR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of the gradient of W, and what Adam makes of it; the first tile of a column sees to the bias.

    Adam sees the tile as a row of numbers, which makes the compiler lay them out as memory has them: otherwise they,
    and not the product, would change places between threads.
    """
    o = tl.program_id(0) * BO + tl.arange(0, BO)
    i = tl.program_id(1) * BI + tl.arange(0, BI)
    e = tl.program_id(2).to(tl.int64)
    k = tl.arange(0, BR)
    xs = x + e * sxe + i[:, None]
    ds = dy + e * sde + o[None, :]
    acc = tl.zeros((BI, BO), dtype=tl.float32)
    for start in range(0, rows, BR):
        r = start + k
        a = tl.load(xs + r[None, :] * SXR, mask=(i[:, None] < NI) & (r[None, :] < rows), other=0.0)
        c = tl.load(ds + r[:, None] * SDR, mask=(r[:, None] < rows) & (o[None, :] < NO), other=0.0)
        acc = tl.dot(a, c, acc, input_precision=PRECISION)
    gradient = tl.reshape(acc, (BI * BO,))
    flat = tl.arange(0, BI * BO)
    row, column = tl.program_id(1) * BI + flat // BO, tl.program_id(0) * BO + flat % BO
    tile, inside = e * (NI * NO) + row * NO + column, (row < NI) & (column < NO)
    p = tl.load(w + tile, mask=inside, other=0.0)
    m = tl.load(wm + tile, mask=inside, other=0.0)
    v = tl.load(wv + tile, mask=inside, other=0.0)
    size, inverse_root = tl.load(sizes), tl.load(sizes + 1)
    p, m, v = _adam(p, m, v, gradient, size, inverse_root, BETA1, BETA2, EPS)
    tl.store(w + tile, p, mask=inside)
    tl.store(wm + tile, m, mask=inside)
    tl.store(wv + tile, v, mask=inside)
    if tl.program_id(1) == 0:
        total = tl.zeros((BO,), dtype=tl.float32)
        for start in range(0, rows, BR):
            r = start + k
            total += tl.sum(tl.load(ds + r[:, None] * SDR, mask=(r[:, None] < rows) & (o[None, :] < NO), other=0.0), 0)
        at, fits = e * NO + o, o < NO
        q = tl.load(b + at, mask=fits, other=0.0)
        n = tl.load(bm + at, mask=fits, other=0.0)
        u = tl.load(bv + at, mask=fits, other=0.0)
        q, n, u = _adam(q, n, u, total, size, inverse_root, BETA1, BETA2, EPS)
        tl.store(b + at, q, mask=fits)
        tl.store(bm + at, n, mask=fits)
        tl.store(bv + at, u, mask=fits)


def affine(x: Tensor, weight: Tensor, bias: Tensor, relu: bool, precision: str) -> Tensor:
    """x W + b, ``(E, rows, out)``, or what a ReLU leaves of it."""
    E, rows, NI, NO = *x.shape[:2], *weight.shape[1:]
    x = _rowwise(x)
    y = x.new_empty(E, rows, NO)
    BM, BN, BK, warps, stages = TILES["affine"]
    grid = (triton.cdiv(NO, BN), triton.cdiv(rows, BM), E)
    with torch.cuda.device_of(x):  # launches go to the current one
        _affine_kernel[grid](
            x, weight, bias, y, rows, *x.stride()[:2], NI, NO, BM, BN, BK, relu, precision,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip
    return y


def affine_input_gradient(dy: Tensor, weight: Tensor, precision: str, relu: Tensor | None = None) -> Tensor:
    """The gradient of x, ``(E, rows, in)``, from that of y; of what x was before a ReLU, if x is given for that."""
    E, rows, NI, NO = *dy.shape[:2], *weight.shape[1:]
    dy = _rowwise(dy)
    dx = dy.new_empty(E, rows, NI)
    BM, BN, BK, warps, stages = TILES["input"]
    grid = (triton.cdiv(NI, BN), triton.cdiv(rows, BM), E)
    with torch.cuda.device_of(dy):  # launches go to the current one
        _input_gradient_kernel[grid](
            dy, weight, dy if relu is None else relu, dx, rows, *dy.stride()[:2], NI, NO, BM, BN, BK,
            relu is not None, precision, num_warps=warps, num_stages=stages,
        )  # fmt: skip
    return dx


def adam_sizes(step: Tensor, rate: Tensor, betas: tuple[float, float]) -> Tensor:
    """The two numbers that the next step of Adam needs beside its gradients; ``step`` counts it, in place."""
    sizes = torch.empty(2, dtype=torch.float32, device=step.device)
    with torch.cuda.device_of(step):  # launches go to the current one
        _sizes_kernel[(1,)](step, rate, sizes, *(math.log(beta) for beta in betas))
    return sizes


def adam_product(
    x: Tensor,
    dy: Tensor,
    weight: Sequence[Tensor],
    bias: Sequence[Tensor],
    sizes: Tensor,
    betas: tuple[float, float],
    eps: float,
    precision: str,
) -> None:
    """One step of Adam, in place, for a layer whose gradients are x^T dy and the sum of dy over the rows.

    Arguments:
        x: what the layer was given, ``(E, rows, in)``.
        dy: the gradient of what it gave, ``(E, rows, out)``.
        weight: W and the running means of its gradient and of its square, ``(E, in, out)`` each.
        bias: the same of b, ``(E, 1, out)`` each.
        sizes: what :func:`adam_sizes` says of the step.
        betas: of the running means.
        eps: of the denominator.
        precision: of the product, as Triton names it.
    """
    E, rows, NI, NO = *x.shape[:2], *weight[0].shape[1:]
    x, dy = _rowwise(x), _rowwise(dy)
    BI, BO, BR, warps, stages = TILES["adam"]
    grid = (triton.cdiv(NO, BO), triton.cdiv(NI, BI), E)
    strides = (x.stride(0), dy.stride(0), x.stride(1), dy.stride(1))  # of rows as constants, whose factors are known
    with torch.cuda.device_of(x):  # launches go to the current one
        _adam_kernel[grid](
            x, dy, *weight, *bias, sizes, *strides, rows, *betas, eps, NI, NO, BI, BO, BR, precision,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip


def _rowwise(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
