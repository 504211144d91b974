"""The mixtures of a cell in training: what the trainer needs to know of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from igr.paper.measure import Job, Pictures
from igr.paper.nonparametric import assess
from igr.paper.nonparametric.bounds import Noise, draw_noise, joint_bound
from igr.paper.nonparametric.model import EnsembleMixture, prior_means
from igr.paper.nonparametric.spec import Mixture
from igr.paper.streams import generator_of
from igr.paper.trainer import ROWS, Trainer

__all__ = ["MixtureEnsemble"]

Images = NDArray[np.uint8]


class MixtureEnsemble(Trainer):
    """VAEs with a Dirichlet process mixture as prior, in training.

    Attributes:
        mixture: the parameters.

    Arguments:
        cell: what to train.
        images: the training images, ``(n, D)`` bytes, 0 and 1.
        device: where.
        dtype: of parameters and arithmetic.
        sizes: of the model, where they are not the paper's.
    """

    cell: Mixture

    def __init__(
        self, cell: Mixture, images: Images, device: torch.device, dtype: torch.dtype = torch.float32, **sizes: int
    ) -> None:
        self.mixture = EnsembleMixture(cell, cell.members(), num_pixels=images.shape[1], dtype=dtype, **sizes)
        super().__init__(cell, self.mixture, images, device, dtype)

    @classmethod
    def budget(cls) -> assess.Budget:
        return assess.Budget()

    @torch.no_grad()
    def held_out(self, images: Tensor) -> dict[str, Tensor]:
        """The evidence lower bound of every member, with one draw for each image and exact divergences."""
        total = torch.zeros(len(self.members), dtype=torch.float64, device=self.device)
        size = max(1, ROWS[self.device.type] // len(self.members) // self.mixture.shape[0])
        generators = [generator_of(seed, "held-out", self.epoch, device=self.device) for seed in self.cell.seeds]
        for start in range(0, len(images), size):
            x = self.pixels(images[start : start + size]).expand(len(self.members), -1, -1)
            drawn = [draw_noise(self.mixture, (1, x.shape[1]), each) for each in generators]
            noise = Noise(*(torch.cat(each).index_select(0, self._owner) for each in zip(*drawn, strict=True)))
            total += joint_bound(self.mixture, x, noise).double().sum(-1)
        return {"elbo": (total / len(images)).cpu()}

    def jobs(self, rows: Sequence[int], images: Images, split: str, budget: Any, full: bool) -> list[Job]:
        return assess.jobs(self, rows, images, split, budget, full)

    def pictures(self, images: Images, row: int, budget: Any) -> Pictures:
        return assess.pictures(self, images, row, budget)

    def learned(self, i: int) -> dict[str, Any]:
        """What the prior's means are, by the sha256 of their signs as bytes: they are drawn, once and for all."""
        signs = prior_means(self.cell).sign().to(torch.int8).numpy()
        return {"prior_means": hashlib.sha256(signs.tobytes()).hexdigest()[:16]}

    def _losses(self, x: Tensor) -> Tensor:
        noise = draw_noise(self.mixture, (x.shape[0], x.shape[1]), self._noise)
        return -joint_bound(self.mixture, x, noise, landing=self.cell.landing)
