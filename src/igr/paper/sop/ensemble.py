"""The networks of a cell that complete images, in training: what the trainer needs to know of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from igr.paper.measure import Job, Pictures
from igr.paper.noise import SharedNoise
from igr.paper.sop import assess
from igr.paper.sop.estimated import estimated_loss
from igr.paper.sop.model import EnsembleCompletion
from igr.paper.sop.objectives import bound, draw_noise, log_px
from igr.paper.sop.spec import Completion
from igr.paper.streams import generator_of
from igr.paper.trainer import ROWS, Trainer

__all__ = ["HELD_OUT_SAMPLES", "CompletionEnsemble"]

HELD_OUT_SAMPLES = 10  # of each image, for the curves

Images = NDArray[np.uint8]


class CompletionEnsemble(Trainer):
    """Networks that complete images, in training.

    Attributes:
        model: the parameters.
        tau: temperatures, ``(E, 1, 1, 1)``.

    Arguments:
        cell: what to train.
        images: the training images, ``(n, D)`` bytes, binary.
        device: where.
        dtype: of parameters and arithmetic.
        sizes: of the network, where they are not the paper's.
    """

    cell: Completion
    model: EnsembleCompletion

    def __init__(
        self, cell: Completion, images: Images, device: torch.device, dtype: torch.dtype = torch.float32, **sizes: int
    ) -> None:
        members = cell.members()
        seeds = [member.seed for member in members]
        model = EnsembleCompletion(cell, seeds, num_pixels=images.shape[1], dtype=dtype, **sizes)
        super().__init__(cell, model, images, device, dtype)
        self.tau = torch.tensor([member.tau for member in members], dtype=dtype, device=device).view(-1, 1, 1, 1)

    @classmethod
    def budget(cls) -> assess.Budget:
        return assess.Budget()

    @torch.no_grad()
    def held_out(self, images: Tensor) -> dict[str, Tensor]:
        """The log-likelihood of the discrete networks by few samples, which seeds draw for themselves."""
        S, E = HELD_OUT_SAMPLES, len(self.members)
        total = torch.zeros(E, dtype=torch.float64, device=self.device)
        size = max(1, ROWS[self.device.type] // E)
        generators = [generator_of(seed, "held-out", self.epoch, device=self.device) for seed in self.cell.seeds]
        shared = SharedNoise(generators, self._owner)
        for start in range(0, len(images), size):
            x = self.pixels(images[start : start + size]).expand(E, -1, -1)
            noise = draw_noise(self.model, (S, *x.shape[:2]), x, shared)
            total += (log_px(self.model, x, None, noise).double().logsumexp(0) - math.log(S)).sum(-1)
        return {f"log_likelihood_{S}": (total / len(images)).cpu()}

    def jobs(self, rows: Sequence[int], images: Images, split: str, budget: Any, full: bool) -> list[Job]:
        return assess.jobs(self, rows, images, split, budget, full)

    def pictures(self, images: Images, row: int, budget: Any) -> Pictures:
        return assess.pictures(self, images, row)

    def _losses(self, x: Tensor) -> Tensor:
        if self.cell.estimator != "reparameterized":
            return estimated_loss(self.model, x, self.tau, self._noise)
        noise = draw_noise(self.model, (self.cell.num_samples, *x.shape[:2]), x, self._noise)
        return -bound(self.model, x, self.tau, noise)
