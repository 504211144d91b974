r"""What is trained where the gradient is not that of relaxed units: the discrete network itself, by an estimator.

.. math:: -E_{q(D_1 | \text{upper})} E_{q(D_2 | D_1)} [\log p(\text{lower} | D_2)],

with one-hot samples :math:`D` of both layers. The estimator of the first layer is given a function whose value and
gradient are themselves estimates, those of the second. An estimator that is unbiased and linear in the values of f
stays so when nested, since the noise of the second layer is independent of the first. VIMCO is not linear: it is
written for joint samples of both layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from igr._draws import NoiseSource
from igr._normal import log_ndtr
from igr.distributions import GumbelSoftmax, InvertibleGaussian
from igr.estimators._core import Latent
from igr.estimators.vimco import from_weights
from igr.paper.gradients import estimate
from igr.paper.sop.model import EnsembleCompletion
from igr.paper.sop.objectives import flow

__all__ = ["estimated_loss"]

Layer = GumbelSoftmax | InvertibleGaussian
Loss = Callable[[Tensor], Tensor]


class _GaussianBit(InvertibleGaussian):
    """IGR-I with two categories, for which the path of a sample held to its category is a closed form."""

    def _conditional_path(self, scores: Tensor) -> Tensor:
        r"""Holds :math:`\Phi(\mp a) / \Phi(\pm r)` fixed, with :math:`r = \mu / \sigma`, :math:`a = y / \sigma - r`.

        The sign is that of y. So :math:`dy = d\mu + a\, d\sigma + \sigma\, da` with :math:`da = -\rho\, dr`, where
        :math:`\rho \in (0, 1)` is the ratio of :math:`\phi / \Phi` at :math:`\pm r` and :math:`\mp a`.
        """
        mu, sigma, y = self.loc, self.scale, scores.detach()
        with torch.no_grad():
            sign = torch.where(y >= 0, 1.0, -1.0).to(y.dtype)
            a, r = (y - mu) / sigma, mu / sigma
            rho = ((a.square() - r.square()) / 2 + log_ndtr(-sign * a) - log_ndtr(sign * r)).exp()
        held = mu + a * sigma - rho * sigma.detach() * (mu / sigma)
        return y + (held - held.detach())


def estimated_loss(model: EnsembleCompletion, x: Tensor, tau: Tensor, noise: NoiseSource) -> Tensor:
    """The loss of each image, ``(E, B)``, with the estimator's gradient; NaN for members that are not finite.

    Arguments:
        model: the members.
        x: images, ``(E, B, D)``.
        tau: temperatures, ``(E, 1, 1, 1)``.
        noise: what the estimators draw from.
    """
    upper, lower = model.halves(x)

    def loss(z: Tensor) -> Tensor:
        return -model.log_px(lower, _units(z))

    if model.cell.estimator == "vimco":
        return _joint_vimco(model, upper, loss, tau, noise)

    def expected_loss(z: Tensor) -> Tensor:
        return _nested(model, 1, _units(z), loss, tau, noise)

    return _nested(model, 0, upper, expected_loss, tau, noise)


def _nested(model: EnsembleCompletion, layer: int, h: Tensor, f: Loss, tau: Tensor, noise: NoiseSource) -> Tensor:
    """The estimate of E[f] over one layer, ``(*, E, B)`` for h of shape ``(*, E, B, in)``."""
    q, fine = _layer(model, layer, h, tau)
    cell = model.cell
    found = estimate(cell.estimator, q, f, num_samples=cell.num_samples, temperature=tau, generator=noise)
    return torch.where(fine, found.surrogate, math.nan)


def _joint_vimco(model: EnsembleCompletion, upper: Tensor, loss: Loss, tau: Tensor, noise: NoiseSource) -> Tensor:
    r"""VIMCO of :math:`\log \frac1S \sum_s p(\text{lower} | D_{2,s})`, where :math:`\log q` is that of both layers.

    References:
        Mnih & Rezende (2016), "Variational inference for Monte Carlo objectives", who complete images by it.
    """
    q1, fine1 = _layer(model, 0, upper, tau)
    first = Latent(q1, loss)
    D1 = first.draw(model.cell.num_samples, noise)  # (S, E, B, N, 2)
    q2, fine2 = _layer(model, 1, _units(D1), tau)
    second = Latent(q2, loss)
    D2 = second.draw(1, noise)  # (1, S, E, B, N, 2)
    log_q = first.log_prob(D1) + second.log_prob(D2).squeeze(0)  # (S, E, B)
    found = from_weights(-second.call(D2).squeeze(0), log_q)
    return torch.where(fine1 & fine2.all(0), -found.surrogate, math.nan)


def _layer(model: EnsembleCompletion, layer: int, h: Tensor, tau: Tensor) -> tuple[Layer, Tensor]:
    """The units of a layer, batch shape ``(*, E, B, N)``, and which examples are what the network says, ``(*, E, B)``.

    Others, of members that diverge, are made harmless: they may stop nobody else's step.
    """
    if model.cell.method == "gs":
        (a,) = model.encode(layer, h)
        fine = a.isfinite()
        logits = torch.cat([torch.where(fine, a, 0.0), torch.zeros_like(a)], -1)
        return GumbelSoftmax(tau, logits, validate_args=False), fine.all(-1).all(-1)
    mu, xi = model.encode(layer, h)
    sigma = xi.exp()
    fine = mu.isfinite() & (sigma > 0) & sigma.isfinite()
    mu, sigma = torch.where(fine, mu, 0.0), torch.where(fine, sigma, 1.0)
    parts = flow(model, layer)
    if parts:
        q = InvertibleGaussian(mu, sigma, tau, flow=parts, validate_args=False)
    else:
        q = _GaussianBit(mu, sigma, tau, validate_args=False)
    return q, fine.all(-1).all(-1)


def _units(z: Tensor) -> Tensor:
    """Units in [-1, 1], ``(*, N)``, of points of the simplex with two categories."""
    return z[..., 0] - z[..., 1]
