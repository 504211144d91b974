"""Trained networks that complete images, measured on a split, and their completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from igr.paper.measure import Job, Metrics, Pictures, grid
from igr.paper.noise import SharedNoise
from igr.paper.sop.model import EnsembleCompletion
from igr.paper.sop.objectives import draw_noise, log_likelihoods, sample_units
from igr.paper.streams import generator_of
from igr.paper.trainer import ROWS

if TYPE_CHECKING:
    from igr.paper.sop.ensemble import CompletionEnsemble

__all__ = ["Budget", "jobs", "pictures"]

Images = NDArray[np.uint8]

COLUMNS, COMPLETIONS = 8, 6  # of a picture: images, and samples of each


@dataclass(frozen=True)
class Budget:
    """How much is spent on metrics; part of a record's settings."""

    m: int = 1_000
    """Samples of the log-likelihood."""
    images: int | None = None
    """How many images of each split, the first ones; all by default."""

    def shortened(self) -> Budget:
        """Next to nothing, to see that all works."""
        return Budget(m=20, images=20)

    def settings(self, method: str) -> dict[str, Any]:
        """What a record says about it: the same for all methods."""
        return asdict(self)


def jobs(
    ensemble: CompletionEnsemble, rows: Sequence[int], images: Images, split: str, budget: Budget, full: bool
) -> list[Job]:
    """The log-likelihood of the discrete network, and of the relaxed one, if that was trained, with the same noise.

    Members share it too if they have the same seed, as in training. Nothing on ``train``: the loss of the last epoch
    is there already.
    """
    if split == "train":
        return []
    model, tau = ensemble.model.subset(rows), ensemble.tau[list(rows)]
    size = max(1, ROWS[ensemble.device.type] // len(rows))
    seeds = torch.tensor([ensemble.members[row].seed for row in rows], device=ensemble.device)
    different, owner = seeds.unique(return_inverse=True)
    taus: dict[str, Tensor | None] = {"log_likelihood": None}
    if ensemble.cell.estimator == "reparameterized":  # another model, whose units are not -1 or 1
        taus["log_likelihood_relaxed"] = tau
    return [Job("metrics", images, size, partial(_metrics, model, taus, owner, len(different), budget.m))]


def _metrics(
    model: EnsembleCompletion,
    taus: dict[str, Tensor | None],
    owner: Tensor,
    owners: int,
    m: int,
    x: Tensor,
    generator: torch.Generator,
) -> Metrics:
    noise = SharedNoise([generator] * owners, owner)
    return dict(zip(taus, log_likelihoods(model, x, m, noise, list(taus.values())), strict=True))


@torch.no_grad()
def pictures(ensemble: CompletionEnsemble, images: Images, row: int) -> Pictures:
    """Completions by one member, as greys in [0, 1].

    Images are columns: the original, and below it its upper half with lower halves, each the expected pixels given one
    discrete sample of the units.
    """
    model = ensemble.model.subset([row])
    generator = generator_of(0, "pictures", device=ensemble.device)
    x = ensemble.pixels(torch.from_numpy(images[:COLUMNS]).to(ensemble.device)).unsqueeze(0)  # (1, B, D)
    upper, _ = model.halves(x)
    noise = draw_noise(model, (COMPLETIONS, *x.shape[:2]), x, generator)
    lower = model.decode(sample_units(model, model.say(0, upper), None, noise)).sigmoid()  # (S, 1, B, D / 2)
    completed = torch.cat([upper.expand_as(lower), lower], -1)
    return {"completions": grid(torch.cat([x.unsqueeze(0), completed]).flatten(0, 2), x.shape[1])}
