"""The log-likelihood of binary images as a Triton kernel, and of pixels, binary or grey, for others to add up."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from igr.kernels._random import exp, log, reciprocal

__all__ = ["bernoulli_pixels", "bernoulli_rows", "gaussian_pixels"]

_HALF_LOG_TAU = tl.constexpr(0.5 * math.log(2 * math.pi))


@triton.jit
def _softplus(x):
    return tl.maximum(x, 0.0) + log(1.0 + exp(-tl.abs(x)))


@triton.jit
def _elu(x):
    return tl.where(x > 0, x, exp(tl.minimum(x, 0.0)) - 1.0)


@triton.jit
def bernoulli_pixels(x, logits):
    """log p(x) of each pixel."""
    return x * logits - _softplus(logits)


@triton.jit
def gaussian_pixels(x, mean, scale, ELU: tl.constexpr, FLOOR: tl.constexpr):
    """log p(x) of each pixel, from what is said of its mean and scale."""
    if ELU:
        mean, scale = _elu(mean), _elu(scale)
    scale = FLOOR + _softplus(scale)
    error = (x - reciprocal(1.0 + exp(-mean))) * reciprocal(scale)
    return -0.5 * error * error - log(scale) - _HALF_LOG_TAU


@triton.jit
def _bernoulli_kernel(
    x, logits, out, n1, n2, x0, x1, x2, l0, l1, l2, D: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """One row of logits with the image that belongs to it; both have three axes before the pixels."""
    row = tl.program_id(0).to(tl.int64)
    i, j, k = row // (n1 * n2), row // n2 % n1, row % n2
    d = tl.arange(0, BLOCK)
    at = tl.load(logits + i * l0 + j * l1 + k * l2 + d, mask=d < D, other=0.0)
    ink = tl.load(x + i * x0 + j * x1 + k * x2 + d, mask=d < D, other=0.0)
    tl.store(out + row, tl.sum(tl.where(d < D, bernoulli_pixels(ink, at), 0.0), 0))


def bernoulli_rows(x: Tensor, logits: Tensor) -> Tensor:
    """The sum over pixels of log p(x | logits), of up to four axes and float32; x broadcasts with the logits."""
    shape, D = logits.shape, logits.shape[-1]
    x, logits = (t.expand(shape)[(None,) * (4 - len(shape))] for t in (x, logits))
    x, logits = (t if t.stride(-1) == 1 else t.contiguous() for t in (x, logits))
    out = torch.empty(shape[:-1], dtype=torch.float32, device=logits.device)
    sizes = (*logits.shape[1:3], *x.stride()[:3], *logits.stride()[:3])
    with torch.cuda.device_of(logits):  # launches go to the current one
        _bernoulli_kernel[(out.numel(),)](x, logits, out, *sizes, D, triton.next_power_of_2(D), num_warps=4)
    return out
