"""The VAEs of a cell in training: what the trainer needs to know of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from igr.paper import assess
from igr.paper.estimated import estimated_loss
from igr.paper.evaluate import elbo_continuous, elbo_discrete
from igr.paper.measure import Job, Pictures
from igr.paper.models import EnsembleVae
from igr.paper.noise import draw
from igr.paper.objectives import discrete_terms, objective, relaxed_terms
from igr.paper.priors import prior_of
from igr.paper.streams import generator_of
from igr.paper.trainer import ROWS, Trainer
from igr.paper.vae import Vae

__all__ = ["Ensemble"]

Images = NDArray[np.uint8]


class Ensemble(Trainer):
    """VAEs in training.

    Attributes:
        vae: the parameters.
        tau: temperatures, ``(E, 1, 1, 1)``.
        prior: the prior.

    Arguments:
        cell: what to train.
        images: the training images, ``(n, D)`` bytes.
        device: where.
        dtype: of parameters and arithmetic.
        sizes: of the VAE, where they are not the paper's.
    """

    cell: Vae

    def __init__(
        self, cell: Vae, images: Images, device: torch.device, dtype: torch.dtype = torch.float32, **sizes: int
    ) -> None:
        members = cell.members()
        self.vae = EnsembleVae(cell, [m.seed for m in members], num_pixels=images.shape[1], dtype=dtype, **sizes)
        self.grey = self.vae.pixels.grey
        super().__init__(cell, self.vae, images, device, dtype)
        self.tau = torch.tensor([m.tau for m in members], dtype=dtype, device=device).view(-1, 1, 1, 1)
        self.prior = prior_of(cell, [m.prior_temperature for m in members], self.vae.shape[1], dtype, device)

    @classmethod
    def budget(cls) -> assess.Budget:
        return assess.Budget()

    @property
    def has_relaxed_bound(self) -> bool:
        """Whether it is a relaxed model with a continuous bound that is trained."""
        return self.cell.estimator == "reparameterized" and self.cell.objective == "continuous"

    @torch.no_grad()
    def held_out(self, images: Tensor) -> dict[str, Tensor]:
        """The evidence bound of every member, continuous or discrete as its KL is, with one sample for each image."""
        total = torch.zeros(len(self.members), dtype=torch.float64, device=self.device)
        size = max(1, ROWS[self.device.type] // len(self.members))
        generators = [generator_of(seed, "held-out", self.epoch, device=self.device) for seed in self.cell.seeds]
        for start in range(0, len(images), size):
            x = self.pixels(images[start : start + size]).expand(len(self.members), -1, -1)
            shape = (1, x.shape[1], *self.vae.noise_shape)
            noise = torch.stack([self.draw_noise(shape, each) for each in generators], 1)  # (1, R, B, N, K)
            total += self._bound(x, noise.index_select(1, self._owner)).sum(-1)
        return {"elbo_continuous" if self.has_relaxed_bound else "elbo_discrete": (total / len(images)).cpu()}

    def _bound(self, x: Tensor, noise: Tensor) -> Tensor:
        if self.has_relaxed_bound:
            return elbo_continuous(*relaxed_terms(self.vae, x, self.tau, self.prior, noise))
        return elbo_discrete(*discrete_terms(self.vae, x, self.tau, noise))

    def jobs(self, rows: Sequence[int], images: Images, split: str, budget: Any, full: bool) -> list[Job]:
        return assess.jobs(self, rows, images, split, budget, full)

    def pictures(self, images: Images, row: int, budget: Any) -> Pictures:
        return assess.pictures(self, images, row, budget)

    def learned(self, i: int) -> dict[str, Any]:
        """The temperatures that RELAX has learned, one for each variable."""
        if self.cell.estimator != "relax":
            return {}
        learned = self.vae.temperature(self.tau)[i].detach()
        found = {"mean": learned.mean(), "smallest": learned.min(), "largest": learned.max()}
        return {"learned_temperature": {name: round(value.item(), 4) for name, value in found.items()}}

    def draw_noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Standard normal noise, or standard Gumbel noise for GS."""
        return draw(self.vae.noise_kind, shape, self.total, generator)

    def _losses(self, x: Tensor) -> Tensor:
        if self.cell.estimator != "reparameterized":
            return estimated_loss(self.vae, x, self.tau, self._noise)
        shape = (self.cell.num_samples, *x.shape[:2], *self.vae.noise_shape)
        noise = draw(self.vae.noise_kind, shape, x, self._noise)
        return -objective(self.vae, x, self.tau, self.prior, noise)
