r"""Points of the simplex that two IGR-SB at different temperatures share, as logarithms of sticks.

Sticks w become :math:`a_k = w_k - \lambda w_K`, with :math:`\lambda = 1` if the leftover stick competes and 0 if not,
and then :math:`z = \mathrm{softmax}_{++}(a, \tau)`. Other ends reach the same z from :math:`a' = r a + c` with
:math:`r = \tau' / \tau` and :math:`c = \tau' \log(\delta' / \delta)`, and that from other sticks, which are sums of
w and constants.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from igr._checks import differentiated, log, widen
from igr._scalars import log_row


class StickEnd(NamedTuple):
    """Stick-breaking and a softmax++, the last maps of a relaxation."""

    leftover: bool
    tau: float | Tensor
    delta: float | Tensor

    def ladj(self, log_w: Tensor) -> Tensor:
        r"""The log-determinant from y to z, but for :math:`\sum_k \log z_k`, shape ``(*)``."""
        K = log_w.shape[-1]
        sticks = log_w.sum(-1) + (math.log(K) if self.leftover else 0.0)
        return sticks - (K - 1) * log_row(self.tau, log_w)

    def sticks_of(self, log_w: Tensor, other: StickEnd) -> Tensor:
        r"""The log-sticks of the point that has sticks w by another end, ``(*, K)``; -inf where it is out of reach.

        .. math:: w'_K = \frac{1 - r - n c + r (1 + n \lambda) w_K}{1 + n \lambda'}, \qquad
            w'_k = r (w_k - \lambda w_K) + c + \lambda' w'_K, \quad n = K - 1.
        """
        n = log_w.shape[-1] - 1
        tau, tau_other = (widen(t) if isinstance(t, Tensor) else t for t in (self.tau, other.tau))
        r, c = tau / tau_other, tau * (log(self.delta) - log(other.delta))
        parts = 1 + n * self.leftover
        rest, share = (1 - r - n * c) / parts, r * (1 + n * other.leftover) / parts
        first, last = log_w[..., :-1], log_w[..., -1:]
        own = _log_sum([(r, first), (share * self.leftover - r * other.leftover, last)], c + rest * self.leftover)
        return torch.cat([own, _log_sum([(share, last)], rest)], -1)


def _log_sum(terms: list[tuple[float | Tensor, Tensor]], constant: float | Tensor) -> Tensor:
    """log(Σ factor e^x + constant), exact as sums of one sign are; -inf where that is not positive."""
    like = terms[0][1]
    never = torch.finfo(like.dtype).min / 4  # a logarithm of nothing, with a gradient of nothing
    signed = [(torch.as_tensor(f, dtype=like.dtype, device=like.device), x) for f, x in terms]
    signed.append((torch.as_tensor(constant, dtype=like.dtype, device=like.device), torch.zeros_like(like)))
    sums = []
    for sign in (1, -1):
        logs = [torch.where(sign * f > 0, (f.abs() + (f == 0).to(f.dtype)).log() + x, never) for f, x in signed]
        sums.append(torch.stack(torch.broadcast_tensors(*logs)).logsumexp(0))
    plus, minus = sums
    reached = minus < plus
    lack = torch.where(reached, minus - plus, -1.0)
    found = torch.where(reached, plus + torch.log(-torch.expm1(lack)), -math.inf)
    # where a factor is zero it has no logarithm, but derivatives: those of log(e^found + f e^x)
    zeros = [torch.where(f == 0, f * (x - found).clamp(max=80.0).exp(), 0.0) for f, x in signed if differentiated(f)]
    return found + torch.stack(torch.broadcast_tensors(*zeros)).sum(0).log1p() if zeros else found
