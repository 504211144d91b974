"""Trained members, measured on a split: every metric of the tables, with one set of samples for all of them.

Images are taken in batches, each with noise of its own stream, and what is done of a split can be put aside and gone on
with later. A member whose parameters are not finite for some image has metrics that are NaN, and disturbs no other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from igr.paper.ais import log_likelihood_ais
from igr.paper.ensemble import ROWS, Ensemble
from igr.paper.evaluate import (
    elbo_continuous,
    elbo_discrete,
    frequency_table,
    log_likelihood,
    log_likelihood_published,
    sample_categories,
    score,
)
from igr.paper.models import EnsembleVae
from igr.paper.objectives import gaussian_log_probs, posterior, relaxed_terms
from igr.paper.streams import generator_of
from igr.recovery import recovered_log_probs_stick_breaking

__all__ = ["Budget", "Stopped", "assess", "pictures"]

Images = NDArray[np.uint8]
Pictures = dict[str, NDArray[np.float64]]
Metrics = dict[str, Tensor]  # (E, B) each

AIS_IMAGES = 10  # at once
TABLE_VARIABLES = 2  # of each image whose frequency tables are compared with the exact recursion, which is slow


class Stopped(Exception):
    """Asked to stop before it was done."""


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

    def pixels(self, images: Images) -> Tensor:
        """The same images for all of them, ``(E, B, D)``."""
        bytes_there = torch.from_numpy(images).to(self.ensemble.device)
        return self.ensemble.pixels(bytes_there).expand(len(self.rows), -1, -1)

    @property
    def draws(self) -> int:
        """Of a frequency table."""
        return self.budget.train_table if self.split == "train" else self.budget.table


def assess(
    ensemble: Ensemble,
    images: Images,
    split: str,
    rows: Sequence[int],
    budget: Budget,
    *,
    full: bool = False,
    stop: Callable[[], bool] = lambda: False,
    partial: dict[str, Any] | None = None,
    report: Callable[[float], None] = lambda part: None,
) -> list[dict[str, float]]:
    """The metrics of some members on a split, means over its images; NaN where they are not finite.

    Arguments:
        ensemble: all members.
        images: of the split, ``(n, D)`` bytes.
        split: its name; on ``train`` there are no importance-weighted bounds.
        rows: which members.
        budget: how much to spend.
        full: whether to add the published formula, the error of frequency tables of IGR-SB, and, for linear decoders,
            annealed importance sampling and the bound on the same images.
        stop: asked after every batch.
        partial: empty, or what an earlier call that was stopped has left in it; JSON can hold it.
        report: told which part of the work is done.

    Raises:
        Stopped: ``stop`` said so; ``partial`` has what is done.
    """
    members = _Members(ensemble, rows, ensemble.vae.subset(rows), ensemble.tau[list(rows)], split, budget)
    images = images[: budget.images]
    partial = {} if partial is None else partial
    size = max(1, ROWS[ensemble.device.type] // len(rows))
    jobs: list[tuple[str, Images, int, Callable[..., Metrics]]] = [("metrics", images, size, _metrics)]
    if full and ensemble.cell.architecture == "linear":
        jobs.append(("ais", images[: budget.ais_images], AIS_IMAGES, _ground_truth))
    if full and ensemble.cell.method == "igr-sb":
        jobs.append(("table", images[: budget.table_images], 1, _table_deviation))
    whole, before = sum(len(job[1]) for job in jobs), 0
    means: dict[str, list[float]] = {}
    for name, some, batch, job in jobs:
        state = partial.setdefault(name, {"start": 0, "sums": {}})
        while state["start"] < len(some):
            start = state["start"]
            generator = generator_of(0, "assess", split, name, start, device=ensemble.device)
            with torch.no_grad():
                found = job(members, members.pixels(some[start : start + batch]), generator, full)
            _add(state["sums"], found)
            state["start"] = min(len(some), start + batch)
            report((before + state["start"]) / whole)
            if state["start"] < len(some) and stop():
                raise Stopped
        before += len(some)
        means |= {key: [_number(each) / len(some) for each in total] for key, total in state["sums"].items()}
    return [{key: values[i] for key, values in means.items()} for i in range(len(rows))]


def _add(sums: dict[str, list[float | None]], found: Metrics) -> None:
    """Adds the sums over images, as JSON can hold them: what is not finite is nothing, for good."""
    for name, values in found.items():
        new = values.double().sum(-1).tolist()
        total = [_number(a) + b for a, b in zip(sums.get(name, [0.0] * len(new)), new, strict=True)]
        sums[name] = [each if math.isfinite(each) else None for each in total]


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _metrics(members: _Members, x: Tensor, generator: torch.Generator, full: bool) -> Metrics:
    vae, budget, train = members.vae, members.budget, members.split == "train"
    log_q = recovered(vae, x, members.tau, members.draws, generator)
    num_samples = budget.train_samples if train else budget.m
    scores = score(log_q, uniform(log_q), lambda z: vae.log_px(x, z), num_samples, generator=generator)
    found = {"elbo_discrete": elbo_discrete(scores)}
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


def _ground_truth(members: _Members, x: Tensor, generator: torch.Generator, full: bool) -> Metrics:
    """Annealed importance sampling and, on the same images, the bound to compare it with."""
    vae, budget = members.vae, members.budget
    log_q = recovered(vae, x, members.tau, members.draws, generator)

    def log_px(z: Tensor) -> Tensor:
        return vae.log_px(x, z)

    bound = log_likelihood(score(log_q, uniform(log_q), log_px, budget.m, generator=generator))
    sizes = budget.ais_chains, budget.ais_temperatures
    truth = log_likelihood_ais(log_q, uniform(log_q), log_px, *sizes, generator=generator)
    return {"log_likelihood_ais": truth, "log_likelihood_subset": bound}


def _table_deviation(members: _Members, x: Tensor, generator: torch.Generator, full: bool) -> Metrics:
    """How far the frequency tables of IGR-SB are from the exact recursion: the largest error of an image's."""
    table = recovered(members.vae, x, members.tau, members.draws, generator)[..., :TABLE_VARIABLES, :]
    mu, sigma = (part[..., :TABLE_VARIABLES, :].double().cpu() for part in members.vae.encode(x))
    sigma = sigma.exp()
    fine = (mu.isfinite() & (sigma > 0) & sigma.isfinite()).all(-1, keepdim=True)
    leftover = members.vae.cell.protocol == "honest"
    mu, sigma = torch.where(fine, mu, 0.0), torch.where(fine, sigma, 1.0)
    exact = recovered_log_probs_stick_breaking(mu, sigma, leftover)
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
    x = members.pixels(images[:10])
    N, K = members.vae.shape

    def decoded(log_p: Tensor) -> Tensor:
        index = sample_categories(log_p, (1,), generator=generator)  # (1, 1, B, N)
        return members.vae.mean_image(F.one_hot(index, K).to(ensemble.dtype))[0, 0]

    shown = decoded(recovered(members.vae, x, members.tau, members.draws, generator))
    dreamt = decoded(torch.zeros(1, 40, N, K, dtype=ensemble.dtype, device=ensemble.device))
    return {"reconstructions": _grid(torch.cat([x[0], shown]), len(shown)), "samples": _grid(dreamt, 10)}


def _grid(images: Tensor, columns: int) -> NDArray[np.float64]:
    """Square images in rows of so many, ink dark on white."""
    side = round(images.shape[-1] ** 0.5)
    rows = images.view(-1, columns, side, side).transpose(1, 2).reshape(-1, columns * side)
    return 1 - rows.double().cpu().numpy()
