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

from igr.kernels._random import exp, log, reciprocal

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

# E(u) = φ(u) / Φ(-u) - u = t R(t), which falls from 2 φ(0) to 1 / u: R in the same way. Its largest relative error is
# 6e-7, and 7e-7 with roundings.
R0 = tl.constexpr(0.24999986845378108)
R1 = tl.constexpr(0.24999136577063946)
R2 = tl.constexpr(0.21952024895538977)
R3 = tl.constexpr(0.1412561145801212)
R4 = tl.constexpr(0.20172675543881588)
R5 = tl.constexpr(-0.6119876317975579)
R6 = tl.constexpr(1.5067599625375587)
R7 = tl.constexpr(-2.483418352501379)
R8 = tl.constexpr(1.7771929653314085)
R9 = tl.constexpr(-0.4531572403619647)


@triton.jit
def _polynomial(
    t,
    c0: tl.constexpr, c1: tl.constexpr, c2: tl.constexpr, c3: tl.constexpr, c4: tl.constexpr,
    c5: tl.constexpr, c6: tl.constexpr, c7: tl.constexpr, c8: tl.constexpr, c9: tl.constexpr,
):  # fmt: skip
    """c0 + c1 t + ... + c9 t^9, by Horner's rule."""
    p = t * c9 + c8
    p = p * t + c7
    p = p * t + c6
    p = p * t + c5
    p = p * t + c4
    p = p * t + c3
    p = p * t + c2
    p = p * t + c1
    return p * t + c0


@triton.jit
def scaled_tail(u):
    """H(u), for u >= 0."""
    t = reciprocal(1.0 + 0.25 * u)
    return t * _polynomial(t, P0, P1, P2, P3, P4, P5, P6, P7, P8, P9)


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
def tail(z):
    """q(z) = log Φ(z) + min(z, 0)² / 2 and q'(z): :func:`igr._normal.tail`, with a relative error of 1e-6."""
    u = tl.abs(z)
    t = reciprocal(1.0 + 0.25 * u)
    left = t * _polynomial(t, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9)  # φ(u) / Φ(-u) - u
    h = ROOT * reciprocal(u + left)
    density = exp(-0.5 * u * u)
    c = tl.where(z < 0, h, 1.0 - h * density)
    return log(c), tl.where(z < 0, left, ROOT * density * reciprocal(c))


@triton.jit
def log1p(x):
    """log(1 + x), x >= 0: what the sum loses is added to its logarithm."""
    total = 1.0 + x
    return tl.log(total) + (x - (total - 1.0)) / total


@triton.jit
def expm1(x):
    """exp(x) - 1: by its series within a half of zero, where the difference would cancel."""
    y = tl.minimum(tl.maximum(x, -0.5), 0.5)
    p = y * (1 / 40320) + (1 / 5040)
    p = p * y + (1 / 720)
    p = p * y + (1 / 120)
    p = p * y + (1 / 24)
    p = p * y + (1 / 6)
    p = p * y + 0.5
    p = p * y + 1.0
    return tl.where(tl.abs(x) < 0.5, p * y, exp(x) - 1.0)
