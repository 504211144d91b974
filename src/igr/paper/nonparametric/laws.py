r"""The two posteriors of sticks: logit-normal, as of IGR-SB, and Kumaraswamy, as of DLDPMM.

Noise comes from outside. A stick v is known by its log-odds, :math:`\log v` and :math:`\log(1 - v)`, so that none is
ever rounded to zero or one, and nothing is clipped. The prior of all sticks is :math:`\mathrm{Beta}(1, \alpha)`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from igr.kumaraswamy import Kumaraswamy, log_from_gumbel

__all__ = ["LAWS", "KumaraswamySticks", "LogitNormalSticks", "StickDraw", "Sticks", "expected_softplus", "log_prior"]

NODES, KOLMOGOROV_RANGE = 20, (0.22, 3.8)  # of the rule for E softplus: less than 1e-9 of the mass is outside


class StickDraw(NamedTuple):
    """v of some sticks."""

    y: Tensor
    """The log-odds, log v - log(1 - v)."""
    log_v: Tensor
    log1m_v: Tensor
    """log(1 - v)."""


class LogitNormalSticks(NamedTuple):
    r""":math:`v = \mathrm{sigmoid}(y), y \sim N(\mu, \sigma^2)`."""

    mu: Tensor
    xi: Tensor
    r""":math:`\log \sigma`."""

    def draw(self, eps: Tensor) -> StickDraw:
        """v, from standard normal noise."""
        y = torch.addcmul(self.mu, self.xi.exp(), eps)
        return StickDraw(y, F.logsigmoid(y), F.logsigmoid(-y))

    def log_q(self, at: StickDraw) -> Tensor:
        """The log-density of v, as a function of v and of the parameters."""
        eps = (at.y - self.mu) * (-self.xi).exp()
        return -0.5 * (eps.square() + math.log(2 * math.pi)) - self.xi - at.log_v - at.log1m_v

    def kl(self, alpha: float) -> Tensor:
        r"""The divergence from :math:`\mathrm{Beta}(1, \alpha)`.

        .. math:: (1 + \alpha)\, E \log(1 + e^y) - \mu - \tfrac12 \log(2 \pi e \sigma^2) - \log \alpha
        """
        entropy = 0.5 * math.log(2 * math.pi * math.e) + self.xi
        return (1 + alpha) * expected_softplus(self.mu, self.xi.exp()) - self.mu - entropy - math.log(alpha)


class KumaraswamySticks(NamedTuple):
    r""":math:`v = (1 - u^{1/b})^{1/a}`, of a uniform u."""

    log_a: Tensor
    log_b: Tensor

    def draw(self, gumbel: Tensor) -> StickDraw:
        r"""v, from standard Gumbel noise, :math:`-\log(-\log u)`."""
        log_v, log1m_v = log_from_gumbel(self.log_a, self.log_b, gumbel)
        return StickDraw(log_v - log1m_v, log_v, log1m_v)

    def log_q(self, at: StickDraw) -> Tensor:
        """The log-density of v, as a function of v and of the parameters."""
        return self._distribution.log_prob_from_log(at.log_v, at.log1m_v)

    def kl(self, alpha: float) -> Tensor:
        r"""The divergence from :math:`\mathrm{Beta}(1, \alpha)`, in closed form at :math:`\alpha = 1`."""
        return self._distribution.kl_to_beta(1.0, alpha)

    @property
    def _distribution(self) -> Kumaraswamy:
        return Kumaraswamy.from_logs(self.log_a, self.log_b, validate_args=False)


Sticks = LogitNormalSticks | KumaraswamySticks
LAWS: dict[str, type[LogitNormalSticks] | type[KumaraswamySticks]] = {
    "igr-sb-mm": LogitNormalSticks,
    "dldpmm": KumaraswamySticks,
}


def log_prior(at: StickDraw, alpha: float) -> Tensor:
    r"""The log-density of :math:`\mathrm{Beta}(1, \alpha)`: :math:`\log \alpha + (\alpha - 1) \log(1 - v)`."""
    return math.log(alpha) + (alpha - 1) * at.log1m_v


def expected_softplus(mu: Tensor, sigma: Tensor) -> Tensor:
    r""":math:`E \log(1 + e^y)` for :math:`y \sim N(\mu, \sigma^2)`.

    It is :math:`E \max(0, y + l)` for a logistic variable l, which is a normal one whose standard deviation is twice a
    variable T of Kolmogorov's law. Given T, the mean is in closed form:

    .. math:: E\, r\bigl(\mu, \sqrt{\sigma^2 + 4 T^2}\bigr), \qquad
        r(\mu, s) = \mu\, \Phi(\mu / s) + s\, \varphi(\mu / s),

    and what is left is a trapezoidal rule with 20 nodes in log T, the same for all :math:`\mu` and :math:`\sigma`.

    Note:
        The error of the rule is below 1e-12, for any :math:`\mu` and :math:`\sigma`.

    References:
        Andrews and Mallows (1974), Scale mixtures of normal distributions.

    Example:
        >>> expected_softplus(torch.tensor([0.0, 0.0]), torch.tensor([0.001, 2.0]))
        tensor([0.6931, 1.0677])
    """
    scales, weights = _logistic_mixture(mu.dtype, mu.device)
    mu = mu.unsqueeze(-1)
    s = torch.hypot(sigma.unsqueeze(-1), scales)  # (*, nodes)
    x = mu / s
    ramp: Tensor = mu * torch.special.ndtr(x) + s * (-0.5 * x.square()).exp() / math.sqrt(2 * math.pi)
    value: Tensor = (ramp * weights).sum(-1)
    return value


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator] # a compiler need not look into numpy
def _logistic_mixture(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    return _kept_mixture(dtype, device)


@lru_cache(maxsize=8)
def _kept_mixture(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Scales and weights of normals that make up a logistic variable.

    Kept, since nothing can be copied to a device while a graph is captured there.
    """
    T = np.geomspace(*KOLMOGOROV_RANGE, NODES)
    j = np.arange(1, 60)[:, None]
    density = 8 * T * ((-1.0) ** (j - 1) * j**2 * np.exp(-2 * (j * T) ** 2)).sum(0)
    weights = density * T / (density * T).sum()  # in log T
    with torch.inference_mode(False):
        scales = torch.tensor(2 * T, dtype=dtype, device=device)
        return scales, torch.tensor(weights, dtype=dtype, device=device)
