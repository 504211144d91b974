r"""The normal distribution function inside a kernel, in float32, from exponentials and one polynomial.

Everything is made of :math:`H(u) = e^{u^2 / 2} \Phi(-u)` for :math:`u \ge 0`, which falls from 1/2 to
:math:`1 / (\sqrt{2 \pi} u)` and never underflows: :math:`\Phi(z)` is :math:`e^{-z^2 / 2} H(-z)` for negative z and
:math:`1 - e^{-z^2 / 2} H(z)` for others.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import math

import triton
import triton.language as tl

from igr.kernels._random import exp, reciprocal

ROOT = tl.constexpr(1 / math.sqrt(2 * math.pi))  # φ(0)

# H(u) = t P(t) at t = 1 / (1 + u / 4). The coefficients of P are those of the polynomial of degree 9 whose largest
# relative error over t in (0, 1] is least: least squares in the Chebyshev basis at 600 Chebyshev points, against values
# to 40 digits, with weights that are multiplied by the error found (Lawson) until it is level. It is 3.4e-8 then, and
# 3e-7 with roundings.
P0 = tl.constexpr(0.0997355654835701)
P1 = tl.constexpr(0.09973642975091934)
P2 = tl.constexpr(0.09346635639667511)
P3 = tl.constexpr(0.08160310238599777)
P4 = tl.constexpr(0.058975204825401306)
P5 = tl.constexpr(0.06369894742965698)
P6 = tl.constexpr(-0.03171722590923309)
P7 = tl.constexpr(0.0955967828631401)
P8 = tl.constexpr(-0.0808771401643753)
P9 = tl.constexpr(0.019781969487667084)


@triton.jit
def scaled_tail(u):
    """H(u), for u >= 0."""
    t = reciprocal(1.0 + 0.25 * u)
    p = t * P9 + P8
    p = p * t + P7
    p = p * t + P6
    p = p * t + P5
    p = p * t + P4
    p = p * t + P3
    p = p * t + P2
    p = p * t + P1
    p = p * t + P0
    return p * t


@triton.jit
def factors(z):
    """c and e: Φ(z) is c exp(-min(z, 0)² / 2), and φ(z) / Φ(z) is φ(0) e / c, with e = exp(-max(z, 0)² / 2)."""
    positive = tl.maximum(z, 0.0)
    e = exp(-0.5 * positive * positive)
    h = scaled_tail(tl.abs(z))
    return tl.where(z < 0, h, 1.0 - h * e), e


@triton.jit
def log_ndtr(z):
    """log Φ(z), to the absolute accuracy of float32 where it is near zero."""
    c, _ = factors(z)
    negative = tl.minimum(z, 0.0)
    return tl.log(c) - 0.5 * negative * negative


@triton.jit
def log1p(x):
    """log(1 + x), x >= 0: what the sum loses is added to its logarithm."""
    total = 1.0 + x
    return tl.log(total) + (x - (total - 1.0)) / total


@triton.jit
def expm1(x):
    """exp(x) - 1, x >= 0: by its series below a half, where the difference would cancel."""
    y = tl.minimum(x, 0.5)
    p = y * (1 / 40320) + (1 / 5040)
    p = p * y + (1 / 720)
    p = p * y + (1 / 120)
    p = p * y + (1 / 24)
    p = p * y + (1 / 6)
    p = p * y + 0.5
    p = p * y + 1.0
    return tl.where(x < 0.5, p * y, exp(x) - 1.0)
