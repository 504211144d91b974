r"""Formulas of the Kumaraswamy distribution as functions of its concentrations and of their logarithms.

With :math:`x = e^{-t}` samples are two turns of one map, :math:`w \mapsto -\log(1 - e^{-w})`, its own inverse:
:math:`t` is that of :math:`E / b`, over :math:`a`, where :math:`E` is exponential noise, and :math:`-\log(1 - x)` is
that of :math:`t`. On logarithms of both sides neither end of (0, 1) is ever rounded to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.distributions.utils import euler_constant

NODES, FIRST, LAST = 160, -3.3, 5.0  # of the trapezoidal rule in ξ, see expectation
BY_MOMENTS = 5.0, 30.0  # where a or a b is below: see variance
ZETA = (1.6449340668482264, 1.2020569031595942, 1.0823232337111382, 1.0369277551433699, 1.0173430619844491)  # ζ(2) on


class Concentrations(NamedTuple):
    """Both of them, with their logarithms.

    Formulas take 1 / a from the logarithm: where that is what is trained, its gradient is as large as the value, while
    the one with respect to a is larger by 1 / a, and may be infinite.
    """

    a: Tensor
    b: Tensor
    log_a: Tensor
    log_b: Tensor

    @classmethod
    def of(cls, a: Tensor, b: Tensor) -> Self:
        return cls(a, b, a.log(), b.log())

    @classmethod
    def of_logs(cls, log_a: Tensor, log_b: Tensor) -> Self:
        return cls(log_a.exp(), log_b.exp(), log_a, log_b)


def log_samples(log_a: Tensor, log_b: Tensor, gumbel: Tensor) -> tuple[Tensor, Tensor]:
    r"""log x and log(1 - x), from standard Gumbel noise, :math:`-\log E`."""
    log_t = dual(-gumbel - log_b) - log_a
    return -log_t.exp(), log1mexp(log_t)


def log_density(p: Concentrations, log_x: Tensor, log1m_x: Tensor) -> Tensor:
    """At x in [0, 1]; the ends are taken out first, since the formula has no value there but a limit."""
    zero = log_x.isneginf()
    ends = zero | log1m_x.isneginf()
    log_x, log1m_x = (torch.where(ends, -math.log(2), x) for x in (log_x, log1m_x))
    powers = (p.a - 1) * log_x + (p.b - 1) * log1mexp(log_neg_log(log_x, log1m_x) + p.log_a)
    exponent = torch.where(zero, p.a, p.b) - 1
    limit = torch.where(exponent == 0, 0.0, torch.full_like(exponent, math.inf).copysign(-exponent))
    return p.log_a + p.log_b + torch.where(ends, limit, powers)


def log_moment(p: Concentrations, order: int) -> Tensor:
    r""":math:`\log E[x^n] = \log(b\, B(1 + n / a, b))`, in float64."""
    power, b = order / p.a.double(), p.b.double()
    return torch.lgamma(1 + power) + torch.lgamma(1 + b) - torch.lgamma(1 + power + b)


def variance(p: Concentrations) -> Tensor:
    r""":math:`E[x^2] (1 - E[x]^2 / E[x^2])`, in logarithms, or by quadrature around the mean; both in float64.

    The first loses digits where x is almost constant, with both a and a b large. The quadrature loses them elsewhere:
    where a is small few nodes, or none, see what makes the moments.
    """
    a, b = p.a.double(), p.b.double()
    log_mean, log_square = log_moment(p, 1), log_moment(p, 2)
    by_moments = -torch.expm1(2 * log_mean - log_square) * log_square.exp()
    taken = (a < BY_MOMENTS[0]) | (a * b < BY_MOMENTS[1])
    # stand-ins, since the quadrature may overflow where it is not taken
    a, b, log_mean = torch.where(taken, 1.0, a), torch.where(taken, 1.0, b), torch.where(taken, 0.0, log_mean)
    squares = expectation(a.log(), b.log(), lambda ell: torch.expm1(-ell.exp() - log_mean.unsqueeze(-1)).square())
    return torch.where(taken, by_moments, squares * (2 * log_mean).exp()).to(p.a.dtype)


def divergence(p: Concentrations, ratio: Tensor, log_r: Tensor | float, beta: Tensor | None) -> Tensor:
    r""":math:`E[\log q(x) - (\alpha - 1) \log x - (\beta - 1) \log(1 - x^r)]`, of :math:`\alpha / a`.

    None stands for :math:`\beta = 1`.
    """
    closed = p.log_a + p.log_b - 1 + (-p.log_b).exp() + (ratio - 1) * harmonic(p.b)
    return closed if beta is None else closed + (beta - 1) * mean_neg_log1m(p.log_a - log_r, p.log_b)


def mean_neg_log1m(log_a: Tensor, log_b: Tensor) -> Tensor:
    r""":math:`-E[\log(1 - x)] = \int_0^1 (1 - x^a)^b / (1 - x)\, dx`."""
    return -expectation(log_a, log_b, log1mexp)


def expectation(log_a: Tensor, log_b: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    r"""Expectation of a function of :math:`\log(-\log x)`, which maps ``(*, n)`` to ``(*, n)``.

    The trapezoidal rule over the real line in :math:`\xi`, where :math:`\log E = \xi - e^{-\xi}`: the density of E then
    falls doubly exponentially at both ends. What is cut off below is at most :math:`e^{-30}` of the whole where the
    function is positive and increases with E, and above :math:`E = 147` there is :math:`e^{-147}` of the mass.
    """
    dtype = torch.promote_types(log_a.dtype, log_b.dtype)
    xi = torch.linspace(FIRST, LAST, NODES, dtype=dtype, device=log_a.device)
    y = xi - (-xi).exp()
    weights = (1 + (-xi).exp()) * (y - y.exp()).exp() * ((LAST - FIRST) / (NODES - 1))
    log_t = dual(y - log_b.unsqueeze(-1)) - log_a.unsqueeze(-1)  # (*, n)
    return (weights * function(log_t)).sum(-1)


def log1mexp(ell: Tensor) -> Tensor:
    r""":math:`\log(1 - \exp(-e^\ell))`, for any :math:`\ell`."""
    small, low, w = branches(ell)
    return torch.where(small, low, torch.log1p(-torch.exp(-w)))


def dual(ell: Tensor) -> Tensor:
    r""":math:`\log(-\log(1 - \exp(-e^\ell)))`, for any :math:`\ell`: decreasing, and its own inverse."""
    small, low, w = branches(ell)
    rest = torch.exp(-w)  # in [0, 1/2]
    tiny = rest < torch.finfo(ell.dtype).eps
    safe = torch.where(tiny, 0.5, rest)
    # log(-log(1 - e^-w)) = -w + log(-log(1 - e^-w) / e^-w), which needs no logarithm of what has underflowed
    correction = torch.where(tiny, 0.0, torch.log(-torch.log1p(-safe) / safe))
    return torch.where(small, torch.log(-low), correction - w)


def branches(ell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Where :math:`w = e^\ell` is below log 2, :math:`\log(1 - e^{-w})` there, and w elsewhere.

    Stand-ins fill the other places, so that neither branch has a gradient that is not finite where it is not taken.
    """
    small = ell < math.log(math.log(2))
    log_w = torch.where(small, ell, -1.0)
    w = log_w.exp()
    near = w < 0.02  # the series, whose gradient is no difference of two of size 1 / w
    v, safe = torch.where(near, w, 0.0), torch.where(near, 0.5, w)
    series = v * (v * (1 / 24 - v * v / 2880) - 1 / 2)
    low = log_w + torch.where(near, series, torch.log(-torch.expm1(-safe) / safe))
    return small, low, torch.where(small, 0.0, ell).exp()


def log_neg_log(log_x: Tensor, log1m_x: Tensor) -> Tensor:
    """log(-log x), from whichever of the two logarithms determines it."""
    upper = log_x > -math.log(2)
    from_above = dual(torch.where(upper, -log1m_x, 1.0).log())
    return torch.where(upper, from_above, torch.where(upper, 1.0, -log_x).log())


def harmonic(b: Tensor) -> Tensor:
    r"""The harmonic number :math:`H_b = \psi(b + 1) + \gamma`: in float64, and where b is small by its series.

    .. math:: H_b = \zeta(2)\, b - \zeta(3)\, b^2 + \zeta(4)\, b^3 - \dots
    """
    wide = b.double()
    near = wide < 1e-3
    small = torch.where(near, wide, 0.0)
    series = torch.zeros_like(small)
    for zeta in reversed(ZETA):
        series = small * (zeta - series)
    return torch.where(near, series, torch.digamma(wide + 1) + euler_constant).to(b.dtype)


def log_beta(p: Tensor, q: Tensor) -> Tensor:
    r""":math:`\log B(p, q)`: in float64, since it is a small difference of large numbers."""
    p, q, dtype = p.double(), q.double(), (p + q).dtype
    return (torch.lgamma(p) + torch.lgamma(q) - torch.lgamma(p + q)).to(dtype)
