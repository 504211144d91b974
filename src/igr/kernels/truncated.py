r"""Normal coordinates below a threshold, in one pass: :func:`igr.conditional._truncated`.

From the threshold m down to y, :math:`\log \Phi` falls by an exponential number. If m is not farther than one scale
below :math:`\mu`, what is left is inverted, :math:`\log \Phi(u) = c` with :math:`u \le 0`, on whichever side of
:math:`\mu` that is; farther below it is the distance from m that is found, which z itself would lose. Newton's steps
cannot overshoot, since :math:`\log \Phi` is concave.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from igr.kernels._normal import expm1, scaled_tail, tail
from igr.kernels._random import exp, log

BLOCK = 1024
LOG_2 = tl.constexpr(math.log(2))
LOWEST = tl.constexpr(-104.0)  # the logarithm of what float32 has no number for


def truncated(mu: Tensor, sigma: Tensor, m: Tensor, exponential: Tensor) -> Tensor:
    """y below m, shape (*, K-1), of ``exponential``, with which the others broadcast; all float32, m (*, 1)."""
    mu, sigma = torch.broadcast_tensors(mu, sigma)
    shape = exponential.shape
    mu, sigma = (_last_axes(x, shape, shape[-1]) for x in (mu, sigma))
    y: Tensor = truncated_normal(mu, sigma, _last_axes(m, shape, 1), exponential)
    return y


def _last_axes(x: Tensor, shape: torch.Size, last: int) -> Tensor:
    """x as it is if it has the last of these axes, the very last being of this size, and otherwise with all of them."""
    whole = torch.Size((*shape[:-1], last))
    return x if x.shape == whole[len(whole) - x.dim() :] else x.expand(whole)


@torch.library.custom_op("igr::truncated_normal", mutates_args=())
def truncated_normal(mu: Tensor, sigma: Tensor, m: Tensor, exponential: Tensor) -> Tensor:
    """y below m, shape (*, K-1), of ``exponential``.

    Arguments:
        mu: float32, the last axes of that shape.
        sigma: likewise.
        m: likewise, but (*, 1).
        exponential: positive.
    """
    y, columns = torch.empty_like(exponential, memory_format=torch.contiguous_format), exponential.shape[-1]
    if y.numel():
        inputs = mu.contiguous(), sigma.contiguous(), m.contiguous(), exponential.contiguous()
        sizes = y.numel(), columns, mu.numel(), m.numel()
        with torch.cuda.device_of(mu):  # launches go to the current one
            _truncated[(triton.cdiv(y.numel(), BLOCK),)](*inputs, y, *sizes, WIDE=y.numel() >= 2**31, BLOCK=BLOCK)
    return y


@truncated_normal.register_fake
def _(mu: Tensor, sigma: Tensor, m: Tensor, exponential: Tensor) -> Tensor:
    return exponential.new_empty(exponential.shape)


@triton.jit
def _inverse(c):
    """u <= 0 where log Φ(u) is c <= -log 2, from the left: Φ(u) is at most exp(-u² / 2) / 2."""
    u = -tl.sqrt(tl.maximum(-2.0 * c - 2.0 * LOG_2, 0.0))
    for _ in range(5):
        q, e = tail(u)
        u = tl.minimum(u - (q - 0.5 * u * u - c) / (e - u), 0.0)
    return u


@triton.jit
def _quantile(a, exponential):
    """z below a >= -1: by the mass above it where that is the smaller."""
    x = scaled_tail(tl.abs(a)) * exp(-0.5 * a * a)  # Φ(-|a|)
    above = tl.where(a < 0, 1.0 - x * exp(-exponential), x - (1.0 - x) * expm1(-exponential))
    c = tl.where(above < 0.5, tl.maximum(log(above), LOWEST), log(tl.where(a < 0, x, 1.0 - x)) - exponential)
    u = _inverse(tl.minimum(c, -LOG_2))
    return tl.where(above < 0.5, -u, u)


@triton.jit
def _distance(a, exponential):
    """z - a, negative, below a <= -1."""
    q_start, _e = tail(a)
    step = -2.0 * exponential / (tl.sqrt(a * a + 2.0 * exponential) - a)
    for _ in range(5):
        q, e = tail(a + step)
        fall = q_start - q + 0.5 * step * (2.0 * a + step)
        step += (fall - exponential) / (e - a - step)
    return step


@triton.jit(do_not_specialize=["size", "size_mu", "size_m"])
def _truncated(
    mu_ptr, sigma_ptr, m_ptr, exponential_ptr, y_ptr, size, columns, size_mu, size_m,
    WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64 if WIDE else tl.int32) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    mu = tl.load(mu_ptr + at % size_mu, mask=inside, other=0.0)
    sigma = tl.load(sigma_ptr + at % size_mu, mask=inside, other=1.0)
    m = tl.load(m_ptr + at // columns % size_m, mask=inside, other=0.0)
    exponential = tl.load(exponential_ptr + at, mask=inside, other=1.0)
    a = (m - mu) / sigma
    near = mu + sigma * _quantile(tl.maximum(a, -1.0), exponential)
    far = m + sigma * _distance(tl.minimum(a, -1.0), exponential)
    y = tl.where(a == a, tl.where(a < -1.0, far, near), a)  # a maximum would lose NaN
    tl.store(y_ptr + at, y, mask=inside)
