r"""From sticks to components: how many are broken, and what is then left.

Sticks are known by their log-odds y, ``(*, C - 1)``; components are C, the last axis of what is returned. The mask says
which sticks are broken, the first M of each sample. Component M + 1 has all that is left after them.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from igr.functional import log_stick_breaking

__all__ = ["broken", "chances", "log_components", "log_unbroken"]


@torch.no_grad()
def broken(y: Tensor, limit: Tensor, precision: float | None = None) -> Tensor:
    r"""Which sticks of each sample are broken: the first M.

    For IGR-SB-MM, M is the first number with :math:`\sum_{k \le M} \pi_k > \rho`; the stick that crosses is one of
    them. Whether stick k is broken depends on those before it alone.

    References:
        Equation 19.

    Arguments:
        y: log-odds of the sticks, ``(*, C - 1)``.
        limit: how many there are at most, broadcastable with y: C - 1, or K - 1 for members with K components.
        precision: :math:`\rho`; without it M is the limit.

    Example:
        >>> broken(torch.tensor([[2.0, 2.0, 2.0], [-1.0, -1.0, 3.0]]), torch.tensor(3), precision=0.95)
        tensor([[ True,  True, False],
                [ True,  True,  True]])
    """
    mask = torch.arange(y.shape[-1], device=y.device) < limit
    if precision is None:
        return mask.expand(y.shape)
    before = F.pad(F.logsigmoid(-y[..., :-1]).cumsum(-1), (1, 0))  # what is left before each stick
    return mask & (before >= math.log1p(-precision))


def chances(mu: Tensor, xi: Tensor, log1m_v: Tensor, mask: Tensor, precision: float) -> Tensor:
    r"""The probability that a logit-normal stick is broken, given those before the last one before it.

    .. math:: P(k + 1 \le M | v_{<k}) = 1[k \le M]\, \Phi\left(\frac{\log(e^t - 1) - \mu_k}{\sigma_k}\right), \quad
        t = \sum_{i<k} \log(1 - v_i) - \log(1 - \rho),

    since stick k + 1 is broken if :math:`-\log(1 - v_k) \le t`. On average it is the mask; but it has no jumps, so that
    its gradient says what the mask's does not: how the number of sticks moves with the parameters.

    Arguments:
        mu: of the sticks' log-odds, ``(*, C - 1)``.
        xi: the logarithms of their scales.
        log1m_v: :math:`\log(1 - v)`.
        mask: what :func:`broken` says.
        precision: :math:`\rho`.

    Example:
        >>> mu = torch.tensor([0.0, 0.0, 0.0])
        >>> y = torch.tensor([1.0, 3.0, 0.0])
        >>> mask = broken(y, torch.tensor(3), 0.95)
        >>> mask, chances(mu, torch.zeros(3), F.logsigmoid(-y), mask, 0.95)
        (tensor([ True,  True, False]), tensor([1.0000, 0.9984, 0.9301]))
    """
    t = F.pad(log1m_v[..., :-2].cumsum(-1), (1, 0)) - math.log1p(-precision)  # of all but the last stick
    possible = mask[..., :-1] & (t > torch.finfo(t.dtype).tiny)
    t = torch.where(possible, t, 1.0)
    edge = t + (-torch.expm1(-t)).log()
    next_one = torch.special.ndtr((edge - mu[..., :-1]) * (-xi[..., :-1]).exp())
    return F.pad(torch.where(possible, next_one, 0.0), (1, 0), value=1.0)


def log_components(y: Tensor, mask: Tensor) -> Tensor:
    r""":math:`\log q(c | v)`: the sticks that are broken, and what they leave on one more; -inf beyond.

    Arguments:
        y: log-odds of the sticks, ``(*, C - 1)``.
        mask: the first M of each sample.

    Returns:
        Shape ``(*, C)``, with gradients that are those at this M.

    Example:
        >>> y = torch.zeros(3)
        >>> log_components(y, torch.tensor([True, True, False])).exp()
        tensor([0.5000, 0.2500, 0.2500, 0.0000])
    """
    return log_stick_breaking(y.masked_fill(~mask, math.inf))  # the first that is not broken takes all that is left


def log_unbroken(mask: Tensor, max_components: int, alpha: float, like: Tensor) -> Tensor:
    r""":math:`\log p(c | v) - \log q(c | v)` at :math:`c = M + 1`; it is zero for :math:`c \le M`.

    The stick that is not broken is the prior's. Of what is left, component M + 1 has
    :math:`E\, v_{M+1} = 1 / (1 + \alpha)`, and those after it the rest, which q leaves out. Only the last component of
    all, which stands for every one that would follow, has everything.

    Arguments:
        mask: the first M sticks of each sample, ``(*, C - 1)``.
        max_components: the number of that last component.
        alpha: :math:`\alpha`.
        like: a tensor whose dtype the result has.

    Returns:
        Shape ``(*)``.

    Example:
        >>> mask = torch.tensor([[True, True, False], [True, True, True]])
        >>> log_unbroken(mask, 4, 1.0, torch.zeros(()))
        tensor([-0.6931, 0.0000])
    """
    everything = mask.sum(-1) == max_components - 1
    return (everything.to(like.dtype) - 1) * math.log1p(alpha)
