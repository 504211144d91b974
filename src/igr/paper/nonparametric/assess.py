"""Trained mixtures, measured on a split: bounds, what was published, and how many components are used.

A member whose parameters are not finite for some image has metrics that are NaN, and disturbs no other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from igr.paper.measure import Job, Metrics, Pictures, grid
from igr.paper.nonparametric.bounds import draw_noise, published_objective, weigh
from igr.paper.nonparametric.model import EnsembleMixture
from igr.paper.streams import generator_of
from igr.paper.trainer import ROWS

if TYPE_CHECKING:
    from igr.paper.nonparametric.ensemble import MixtureEnsemble

__all__ = ["Budget", "component_metrics", "jobs", "pictures"]

Images = NDArray[np.uint8]

SHOWN, COLUMNS = 10, 10  # components in the picture, and samples of each


@dataclass(frozen=True)
class Budget:
    """How much is spent on metrics; part of a record's settings."""

    m: int = 1_000
    """Importance samples of the bound."""
    published: int = 5
    """Draws of the published objective, whose mean does not depend on how many there are."""
    train_samples: int = 10
    images: int | None = None
    """How many images of each split, the first ones; all by default."""

    def shortened(self) -> Budget:
        """Next to nothing, to see that all works."""
        return Budget(m=20, published=2, train_samples=2, images=20)

    def settings(self, method: str) -> dict[str, Any]:
        """What a record says about it."""
        return asdict(self)


def jobs(
    ensemble: MixtureEnsemble, rows: Sequence[int], images: Images, split: str, budget: Budget, full: bool
) -> list[Job]:
    """What to measure of some members on a split: on ``train`` the evidence lower bound and the components alone."""
    mixture = ensemble.mixture.subset(rows)
    size = max(1, ROWS[ensemble.device.type] // len(rows) // mixture.shape[0])
    return [Job("metrics", images, size, partial(_metrics, mixture, budget, split == "train"))]


def _metrics(mixture: EnsembleMixture, budget: Budget, train: bool, x: Tensor, generator: torch.Generator) -> Metrics:
    num_draws = budget.train_samples if train else budget.m
    weights = weigh(mixture, x, num_draws, generator)
    found = {"elbo": weights.log_w.mean(-1)}
    if not train:
        found["log_likelihood"] = weights.log_w.logsumexp(-1) - math.log(num_draws)
        shape = (x.shape[0], x.shape[1])
        draws = (draw_noise(mixture, shape, generator) for _ in range(budget.published))
        each = [published_objective(mixture, x, noise).double() for noise in draws]
        found["objective_published"] = torch.stack(each).mean(0)
    return found | component_metrics(weights.mass, weights.kept, mixture.cell.max_components)


def component_metrics(mass: Tensor, kept: Tensor, max_components: int) -> Metrics:
    r"""How many components an image has.

    Arguments:
        mass: :math:`E\, q(c | v)`, ``(E, B, C)``.
        kept: how many components draws of v have, on average, ``(E, B)``.
        max_components: what vectors are filled up to.

    Returns:
        ``components_kept``; ``components_effective``, the exponential of the entropy of the mass; and vectors:
        ``component_mass``, whose mean over images is the aggregate, and ``components_histogram``, one at the effective
        number, rounded, of which the first place is number one.

    Example:
        >>> found = component_metrics(torch.tensor([[[0.5, 0.5, 0.0]]]), torch.tensor([[2.3]]), 4)
        >>> found["components_effective"], found["components_histogram"]
        (tensor([[2.]]), tensor([[[0., 1., 0., 0.]]]))
    """
    effective = torch.special.entr(mass).sum(-1).exp()
    room = torch.arange(1, max_components + 1, device=mass.device)
    return {
        "components_kept": kept,
        "components_effective": effective,
        "component_mass": F.pad(mass, (0, max_components - mass.shape[-1])),
        "components_histogram": (effective.round().unsqueeze(-1) == room).to(mass.dtype),
    }


@torch.no_grad()
def pictures(ensemble: MixtureEnsemble, images: Images, row: int, budget: Budget) -> Pictures:
    """What one member draws, as greys in [0, 1].

    ``reconstructions`` has ten images above their reconstructions; ``components`` samples of the prior, a row for each
    of the components that have the most mass over the images, from most to least.
    """
    mixture = ensemble.mixture.subset([row])
    generator = generator_of(0, "pictures", device=ensemble.device)
    x = ensemble.pixels(torch.from_numpy(images[: ROWS["cpu"]]).to(ensemble.device)).unsqueeze(0)
    mass = weigh(mixture, x, budget.train_samples, generator).mass[0].mean(0)
    order = mass.argsort(descending=True)[: min(SHOWN, int(mixture.limit) + 1)]
    means = mixture.means[order].unsqueeze(1)  # (components, 1, L)
    eps = torch.randn(
        (len(order), COLUMNS, means.shape[-1]), dtype=means.dtype, device=means.device, generator=generator
    )
    dreamt = mixture.decode((means + eps).unsqueeze(0)).sigmoid()[0].flatten(0, 1)
    few = x[:, :COLUMNS]
    _, components = mixture.encode(few)
    likely = weigh(mixture, few, budget.train_samples, generator).mass.argmax(-1)  # (1, B)
    z = components.mean[0, torch.arange(few.shape[1], device=likely.device), likely[0]]
    shown = mixture.decode(z.unsqueeze(0).unsqueeze(2)).sigmoid()[0, :, 0]
    return {"components": grid(dreamt, COLUMNS), "reconstructions": grid(torch.cat([few[0], shown]), len(shown))}
