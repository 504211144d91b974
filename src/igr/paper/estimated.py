r"""What is trained where the gradient is not that of a relaxed sample: the discrete bound, by an estimator.

.. math:: -E_{q(D | x)}[\log p(x | D)] + KL(q(D | x) \| p(D)),

with hard samples D of the discrete distribution q, that of logits or that which Proposition 2 recovers from
:math:`(\mu, \sigma)`. The divergence is exact, and its gradient with it; the first term is an estimator's.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from igr import estimators
from igr._draws import NoiseSource
from igr.conditional import conditional_path
from igr.distributions import GumbelSoftmax, InvertibleGaussian
from igr.estimators import Estimate
from igr.kl import categorical_kl
from igr.paper.gradients import estimate
from igr.paper.models import EnsembleVae
from igr.paper.objectives import NODES
from igr.recovery import recovered_log_probs

__all__ = ["estimated_loss"]

PATH_NODES = 48  # of the conditional path of RELAX in training, at every step

Posterior = GumbelSoftmax | InvertibleGaussian
Loss = Callable[[Tensor], Tensor]


class _TrainedGaussian(InvertibleGaussian):
    """IGR-I with as many nodes as training needs; its probabilities are computed once."""

    def __init__(self, loc: Tensor, scale: Tensor, temperature: Tensor) -> None:
        super().__init__(loc, scale, temperature, validate_args=False)
        self._known = self.base, recovered_log_probs(loc, scale, num_nodes=NODES)

    def _recovered_log_probs(self) -> Tensor:
        base, log_p = self._known  # a copy at other parameters has another base
        return log_p if base is self.base else recovered_log_probs(self.loc, self.scale, num_nodes=NODES)

    def _conditional_path(self, scores: Tensor) -> Tensor:
        return conditional_path(self.loc, self.scale, scores, num_nodes=PATH_NODES)


def estimated_loss(vae: EnsembleVae, x: Tensor, tau: Tensor, noise: NoiseSource) -> Tensor:
    """The loss of each image, ``(E, B)``, with the estimator's gradient; NaN for members that are not finite.

    Arguments:
        vae: the members.
        x: images in [0, 1], ``(E, B, D)``.
        tau: temperatures, ``(E, 1, 1, 1)``.
        noise: what the estimator draws from.
    """
    temperature = vae.temperature(tau) if vae.cell.estimator == "relax" else tau
    sane = (temperature > 0) & temperature.isfinite()
    q, log_p, fine = _posterior(vae, x, torch.where(sane, temperature, 1.0))

    def loss(z: Tensor) -> Tensor:
        return -vae.log_px(x, z)

    found = _estimate(vae, q, loss, tau, noise)
    kl = categorical_kl(log_p, torch.zeros_like(log_p)).sum(-1)
    return torch.where((fine & sane.squeeze(-1)).all(-1), found.surrogate + kl, math.nan)


def _posterior(vae: EnsembleVae, x: Tensor, temperature: Tensor) -> tuple[Posterior, Tensor, Tensor]:
    """q(z | x), batch shape ``(E, B, N)``, the logits of its categories, and which rows are what the encoder says.

    Others, of members that diverge, are made harmless: they may stop nobody else's step.
    """
    if vae.cell.method == "gs":
        (logits,) = vae.encode(x)
        fine = logits.isfinite().all(-1)
        logits = torch.where(fine.unsqueeze(-1), logits, 0.0)
        return GumbelSoftmax(temperature, logits, validate_args=False), logits, fine
    mu, xi = vae.encode(x)
    sigma = xi.exp()
    fine = (mu.isfinite() & (sigma > 0) & sigma.isfinite()).all(-1)
    mu, sigma = torch.where(fine.unsqueeze(-1), mu, 0.0), torch.where(fine.unsqueeze(-1), sigma, 1.0)
    q = _TrainedGaussian(mu, sigma, temperature)
    return q, q._recovered_log_probs(), fine


def _estimate(vae: EnsembleVae, q: Posterior, f: Loss, tau: Tensor, noise: NoiseSource) -> Estimate:
    name, S = vae.cell.estimator, vae.cell.num_samples
    if name != "relax":
        return estimate(name, q, f, num_samples=S, temperature=tau, generator=noise)

    def control_variate(z: Tensor) -> Tensor:
        return f(z) + vae.control(z)

    return estimators.relax(q, f, num_samples=S, control_variate=control_variate, generator=noise)
