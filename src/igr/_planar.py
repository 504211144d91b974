"""The equation that inverts the planar flow, and a function that its constraint needs."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def expm1_remainder(s: Tensor) -> Tensor:
    r""":math:`(e^s - 1 - s) / s^2` for :math:`s \le 0`."""
    near, far = s.clamp(min=-1.0), s.clamp(max=-1.0)
    series = torch.zeros_like(near)
    for k in range(18, 1, -1):  # Σ s^(k-2) / k!
        series = series * near + 1 / math.factorial(k)
    return torch.where(s > -1, series, (torch.expm1(far) - far) / far.square())


def solve(r: Tensor, c: Tensor) -> Tensor:
    r"""The root t of :math:`t + c \tanh t = r`, for any :math:`c > -1`, differentiable in r and c.

    On :math:`t \ge 0` (the equation is odd) the left side is concave for c > 0 and convex for c < 0, so Newton's steps
    from a lower, respectively an upper, bound of the root are monotone; the bounds are close enough for eight of them.
    """
    with torch.no_grad():
        size = r.abs()
        linear, saturated = size / (1 + c), size - c  # from tanh t <= t and tanh t <= 1
        # c > 0: q = t - (r - c) solves q (e^{2t} + 1) = 2c, so q has an upper bound and t a lower one
        twice = 2 * c.clamp(min=1.0)
        q = torch.maximum(1 + saturated.neg().clamp(min=0.0), twice.log() / 2 - saturated)
        lower = torch.maximum(torch.maximum(linear, saturated), (twice / q - 1).clamp(min=1.0).log() / 2)
        # c < 0: t - tanh t >= t³ / 5 on [0, 1]
        cubic = (5 * size / c.clamp(max=-0.1).neg()).pow(1 / 3)
        upper = torch.minimum(linear, saturated)
        upper = torch.where((c < -0.1) & (cubic <= 1), torch.minimum(upper, cubic), upper)
        t = torch.where(c > 0, torch.where(c > 1, lower, linear.maximum(saturated)), upper)
        for _ in range(8):
            t = _newton_step(t, size, c)
        t = t.copysign(r)
    # a Newton step from the root is the root again, with the first derivative of the implicit function; two steps
    # have the second as well
    return _newton_step(_newton_step(t, r, c), r, c)


def _newton_step(t: Tensor, r: Tensor, c: Tensor) -> Tensor:
    tanh = t.tanh()
    return t - (t + c * tanh - r) / (1 + c * (1 - tanh) * (1 + tanh))
