r"""Densities and divergences of samples, as functions of the noise that made them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from igr._checks import log
from igr._scalars import row


def gaussian_log_prob(eps: Tensor, log_scale: Tensor) -> Tensor:
    """Log-density of the y that a normal makes of this noise; ``log_scale`` is half its log-determinant."""
    return -0.5 * (eps.square().sum(-1) + eps.shape[-1] * math.log(2 * math.pi)) - log_scale


def gaussian_kl(mu: Tensor, sigma: Tensor, mu0: Tensor, sigma0: Tensor) -> Tensor:
    r"""Equation 13: :math:`KL(N(\mu, \sigma^2) \| N(\mu_0, \sigma_0^2))`, summed over the last axis."""
    d = sigma.log() - sigma0.log()
    # r² - 1 - 2 log r as expm1(2d) - 2d: never negative, and zero where the scales agree
    return 0.5 * (torch.expm1(2 * d) - 2 * d + ((mu - mu0) / sigma0).square()).sum(-1)


def gumbel_log_prob(eps: Tensor, log_z: Tensor, tau: float | Tensor) -> Tensor:
    """Equation 6 at the sample that this noise makes."""
    return gumbel_normaliser(log_z.shape[-1], tau) - gumbel_energy(-eps) - log_z.sum(-1)


def gumbel_normaliser(K: int, tau: float | Tensor) -> float | Tensor:
    r""":math:`\log (K-1)! + (K-1) \log \tau`."""
    log_tau = log(tau)
    return math.lgamma(K) + (K - 1) * (row(log_tau) if isinstance(log_tau, Tensor) else log_tau)


def gumbel_energy(x: Tensor) -> Tensor:
    r""":math:`K \log \sum_k e^{x_k} - \sum_k x_k`."""
    return x.shape[-1] * x.logsumexp(-1) - x.sum(-1)


def logistic_log_prob(x: Tensor) -> Tensor:
    """Log-density of the standard logistic distribution."""
    return F.logsigmoid(x) + F.logsigmoid(-x)


def categorical_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Equation 8, of normalised log-probabilities."""
    possible = log_p > -torch.inf  # 0 log 0 = 0, with a gradient of zero
    ratio = torch.where(possible, log_p, 0.0) - torch.where(possible, log_q, 0.0)
    return (log_p.exp() * ratio).sum(-1)


def exact_differences(a: Tensor, b: Tensor) -> Tensor:
    """a + b less its largest entry, correctly rounded: near-ties of large sums keep their relative accuracy."""
    total = a + b
    top = total.detach().amax(-1, keepdim=True)
    with torch.no_grad():  # the rounding error of the sum, exactly (Knuth)
        part = total - a
        error = (a - (total - part)) + (b - part)
        error = torch.where(total.isneginf(), 0.0, error)  # what is forbidden stays so
    return (total - top) + error
