"""Trained VAEs, measured on a split: every metric of the tables, with one set of samples for all of them.

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

from igr import kernels
from igr.kl import categorical_kl
from igr.paper.ais import Conditional, log_likelihood_ais
from igr.paper.evaluate import (
    Scores,
    distribution_function,
    elbo_continuous,
    elbo_discrete,
    frequency_table,
    log_likelihood,
    log_likelihood_published,
    sample_categories,
    score,
    tables,
)
from igr.paper.measure import Job, Metrics, Pictures, grid
from igr.paper.models import EnsembleVae
from igr.paper.objectives import gaussian_log_probs, posterior, relaxed_terms
from igr.paper.streams import generator_of
from igr.paper.trainer import ROWS
from igr.recovery import recovered_log_probs_stick_breaking

if TYPE_CHECKING:
    from igr.paper.ensemble import Ensemble

__all__ = ["Budget", "jobs", "pictures"]

Images = NDArray[np.uint8]

AIS_IMAGES = {"cpu": 10, "cuda": 50}  # at once
TABLE_VARIABLES = 2  # of each image whose frequency tables are compared with the exact recursion, which is slow


@dataclass(frozen=True)
class Budget:
    """How much is spent on metrics; part of a record's settings."""

    m: int = 1_000
    """Importance samples of the bound."""
    published: int = 100
    """The smaller number of samples of the published formula."""
    table: int = 20_000
    """Draws of the frequency tables that stand in for the recovered distribution of IGR-SB and IGR-Planar."""
    train_samples: int = 10
    train_table: int = 2_000
    images: int | None = None
    """How many images of each split, the first ones; all by default."""
    ais_images: int = 50
    ais_chains: int = 8
    ais_temperatures: int = 200
    table_images: int = 5
    """Images on which frequency tables of IGR-SB are compared with the exact recursion."""

    def shortened(self) -> Budget:
        """Next to nothing, to see that all works."""
        few = {"m": 20, "published": 10, "table": 200, "train_samples": 2, "train_table": 100, "images": 20}
        return Budget(**few, table_images=1, ais_images=2, ais_chains=2, ais_temperatures=5)

    def settings(self, method: str) -> dict[str, Any]:
        """What a record says about it: what a method does not need is left out."""
        return {name: value for name, value in asdict(self).items() if name != "table_images" or method == "igr-sb"}


@dataclass(frozen=True)
class _Members:
    """Some members of an ensemble, on a split."""

    ensemble: Ensemble
    rows: Sequence[int]
    vae: EnsembleVae
    tau: Tensor
    split: str
    budget: Budget

    @property
    def draws(self) -> int:
        """Of a frequency table."""
        return self.budget.train_table if self.split == "train" else self.budget.table


def jobs(ensemble: Ensemble, rows: Sequence[int], images: Images, split: str, budget: Budget, full: bool) -> list[Job]:
    """What to measure of some members on a split.

    On ``train`` there are no importance-weighted bounds. If ``full``, the published formula is added, the error of
    frequency tables of IGR-SB, and, for linear decoders, annealed importance sampling and the bound on the same images.
    """
    members = _Members(ensemble, rows, ensemble.vae.subset(rows), ensemble.tau[list(rows)], split, budget)
    size = max(1, ROWS[ensemble.device.type] // len(rows))
    found = [Job("metrics", images, size, partial(_metrics, members, full))]
    if full and ensemble.cell.architecture == "linear":
        found.append(
            Job("ais", images[: budget.ais_images], AIS_IMAGES[ensemble.device.type], partial(_ground_truth, members))
        )
    if full and ensemble.cell.method == "igr-sb":
        found.append(Job("table", images[: budget.table_images], 1, partial(_table_deviation, members)))
    return found


def _metrics(members: _Members, full: bool, x: Tensor, generator: torch.Generator) -> Metrics:
    vae, budget, train = members.vae, members.budget, members.split == "train"
    log_q = recovered(vae, x, members.tau, members.draws, generator)
    num_samples = budget.train_samples if train else budget.m
    scores = _scores(vae, x, log_q, num_samples, generator)
    found = {"elbo_discrete": elbo_discrete(scores.log_px, scores.kl)}
    if members.ensemble.has_relaxed_bound:
        prior = members.ensemble.prior.of_members(members.rows)
        noise = members.ensemble.draw_noise((1, *x.shape[:2], *vae.noise_shape), generator)
        found["elbo_continuous"] = elbo_continuous(*relaxed_terms(vae, x, members.tau, prior, noise))
    if not train:
        found["log_likelihood"] = log_likelihood(scores)
    if full:
        for m in sorted({min(budget.published, budget.m), budget.m}):
            found[f"log_likelihood_published_{m}"] = log_likelihood_published(scores, m)
    return found


def _scores(vae: EnsembleVae, x: Tensor, log_q: Tensor, num_samples: int, generator: torch.Generator) -> Scores:
    """What the metrics are made of; by kernels on CUDA, where it is most of the work."""
    if not kernels.usable(x, log_q):
        return score(log_q, uniform(log_q), lambda z: vae.log_px(x, z), num_samples, generator=generator)
    from igr.paper.discrete_kernels import draw, log_likelihoods

    table, prior = tables(log_q, uniform(log_q))
    drawn = draw(distribution_function(table), table, prior, num_samples, generator)
    decoder = list(vae.weights[vae.depth :]), list(vae.biases[vae.depth :])
    log_px = log_likelihoods(x, drawn.categories, *decoder, log_q.shape[-1], vae.pixels)
    return Scores(log_px.double(), drawn.log_pz, drawn.log_qz, categorical_kl(table, prior).sum(-1))


def _ground_truth(members: _Members, x: Tensor, generator: torch.Generator) -> Metrics:
    """Annealed importance sampling and, on the same images, the bound to compare it with."""
    vae, budget = members.vae, members.budget
    log_q = recovered(vae, x, members.tau, members.draws, generator)

    def log_px(z: Tensor) -> Tensor:
        return vae.log_px(x, z)

    bound = log_likelihood(score(log_q, uniform(log_q), log_px, budget.m, generator=generator))
    sizes = budget.ais_chains, budget.ais_temperatures
    conditional = _conditional(vae, x)
    truth = log_likelihood_ais(log_q, uniform(log_q), log_px, *sizes, generator=generator, conditional=conditional)
    return {"log_likelihood_ais": truth, "log_likelihood_subset": bound}


def _conditional(vae: EnsembleVae, x: Tensor) -> Conditional | None:
    """A faster way through the sweeps of annealing, where there is one."""
    if not kernels.usable(x):
        return None
    from igr.paper.ais_kernels import conditional_of

    return conditional_of(vae, x)


def _table_deviation(members: _Members, x: Tensor, generator: torch.Generator) -> Metrics:
    """How far the frequency tables of IGR-SB are from the exact recursion: the largest error of an image's."""
    table = recovered(members.vae, x, members.tau, members.draws, generator)[..., :TABLE_VARIABLES, :]
    mu, sigma = (part[..., :TABLE_VARIABLES, :].double().cpu() for part in members.vae.encode(x))
    sigma = sigma.exp()
    fine = (mu.isfinite() & (sigma > 0) & sigma.isfinite()).all(-1, keepdim=True)
    mu, sigma = torch.where(fine, mu, 0.0), torch.where(fine, sigma, 1.0)
    exact = recovered_log_probs_stick_breaking(mu, sigma, members.vae.cell.leftover)
    error = (table.double().cpu().exp() - torch.where(fine, exact, math.nan).exp()).abs()
    return {"table_deviation": error.amax((-2, -1))}


def recovered(vae: EnsembleVae, x: Tensor, tau: Tensor, num_draws: int, generator: torch.Generator) -> Tensor:
    """log q(z | x) of the discrete model, ``(E, B, N, K)``: exact for IGR-I and GS, a table of draws for the others."""
    parameters = vae.encode(x)
    if vae.cell.method == "gs":
        return parameters[0].log_softmax(-1)
    if vae.cell.method == "igr-i":
        mu, xi = parameters
        return gaussian_log_probs(mu, xi)
    return frequency_table(posterior(vae, x, tau), num_draws, generator=generator)


def uniform(log_q: Tensor) -> Tensor:
    """The prior of the discrete model."""
    K = log_q.shape[-1]
    return torch.full((K,), 1 / K, dtype=log_q.dtype, device=log_q.device).log()


@torch.no_grad()
def pictures(ensemble: Ensemble, images: Images, row: int, budget: Budget) -> Pictures:
    """What one member draws, as greys in [0, 1]: ten images above their reconstructions, and samples of the prior."""
    members = _Members(ensemble, [row], ensemble.vae.subset([row]), ensemble.tau[[row]], "test", budget)
    generator = generator_of(0, "pictures", device=ensemble.device)
    x = ensemble.pixels(torch.from_numpy(images[:10]).to(ensemble.device)).unsqueeze(0)
    N, K = members.vae.shape

    def decoded(log_p: Tensor) -> Tensor:
        index = sample_categories(log_p, (1,), generator=generator)  # (1, 1, B, N)
        return members.vae.mean_image(F.one_hot(index, K).to(ensemble.dtype))[0, 0]

    shown = decoded(recovered(members.vae, x, members.tau, members.draws, generator))
    dreamt = decoded(torch.zeros(1, 40, N, K, dtype=ensemble.dtype, device=ensemble.device))
    return {"reconstructions": grid(torch.cat([x[0], shown]), len(shown)), "samples": grid(dreamt, 10)}
