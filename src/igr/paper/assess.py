"""Trained members, measured on a split: every metric of the tables, with one set of samples for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
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
    score,
)
from igr.paper.models import EnsembleVae
from igr.paper.objectives import posterior, relaxed_terms
from igr.paper.streams import generator_of

__all__ = ["Budget", "Stopped", "assess", "pictures"]

Images = NDArray[np.uint8]
Pictures = dict[str, NDArray[np.float64]]


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

    def shortened(self) -> Budget:
        """The same, cut short."""
        return Budget(20, 10, 200, 2, 100, 50, 2, 2, 5)

    def settings(self) -> dict[str, Any]:
        """What a record says about it."""
        return asdict(self)


@torch.no_grad()
def assess(
    ensemble: Ensemble,
    images: Images,
    split: str,
    rows: Sequence[int],
    budget: Budget,
    *,
    full: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> list[dict[str, float]]:
    """The metrics of some members on a split, means over its images.

    Arguments:
        ensemble: all members.
        images: of the split, ``(n, D)`` bytes.
        split: its name; on ``train`` there are no importance-weighted bounds.
        rows: which members.
        budget: how much to spend.
        full: whether to add the published formula and, for linear decoders, annealed importance sampling.
        stop: asked between batches.

    Raises:
        Stopped: ``stop`` said so.
    """
    vae, tau = ensemble.vae.subset(rows), ensemble.tau[list(rows)]
    images = images[: budget.images]
    generator = generator_of(0, "assess", split, device=ensemble.device)
    sums: dict[str, Tensor] = {}
    size = max(1, ROWS[ensemble.device.type] // len(rows))
    for start in range(0, len(images), size):
        if stop():
            raise Stopped
        chunk = torch.from_numpy(images[start : start + size]).to(ensemble.device)
        x = ensemble.pixels(chunk).expand(len(rows), -1, -1)
        for name, value in _batch(ensemble, vae, tau, x, split, rows, budget, full, generator).items():
            sums[name] = sums.get(name, 0.0) + value.double().sum(-1)
    means = {name: (total / len(images)).tolist() for name, total in sums.items()}
    if full and ensemble.cell.architecture == "linear":
        means |= _ground_truth(ensemble, vae, tau, images[: budget.ais_images], budget, generator, stop)
    return [{name: values[i] for name, values in means.items()} for i in range(len(rows))]


def _batch(
    ensemble: Ensemble,
    vae: EnsembleVae,
    tau: Tensor,
    x: Tensor,
    split: str,
    rows: Sequence[int],
    budget: Budget,
    full: bool,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """The metrics of each member and image, ``(E, B)``."""
    train = split == "train"
    log_q = recovered(vae, x, tau, budget.train_table if train else budget.table, generator)
    scores = score(
        log_q,
        uniform(log_q),
        lambda z: vae.log_px(x, z),
        budget.train_samples if train else budget.m,
        generator=generator,
    )
    found = {"elbo_discrete": elbo_discrete(scores)}
    if ensemble.cell.method != "gs" or ensemble.prior.temperature is not None:
        prior = ensemble.prior.of_members(rows)
        noise = ensemble.draw_noise((1, *x.shape[:2], *vae.noise_shape), generator)
        found["elbo_continuous"] = elbo_continuous(*relaxed_terms(vae, x, tau, prior, noise))
    if not train:
        found["log_likelihood"] = log_likelihood(scores)
    if full:
        for m in sorted({min(budget.published, budget.m), budget.m}):
            found[f"log_likelihood_published_{m}"] = log_likelihood_published(scores, m)
    return found


def recovered(vae: EnsembleVae, x: Tensor, tau: Tensor, num_draws: int, generator: torch.Generator) -> Tensor:
    """log q(z | x) of the discrete model, ``(E, B, N, K)``: exact for IGR-I and GS, a table of draws for the others."""
    q = posterior(vae, x, tau)
    if vae.cell.method in ("igr-i", "gs"):
        return q.recovered().logits
    return frequency_table(q, num_draws, generator=generator)


def uniform(log_q: Tensor) -> Tensor:
    """The prior of the discrete model."""
    K = log_q.shape[-1]
    return torch.full((K,), 1 / K, dtype=log_q.dtype, device=log_q.device).log()


def _ground_truth(
    ensemble: Ensemble,
    vae: EnsembleVae,
    tau: Tensor,
    images: Images,
    budget: Budget,
    generator: torch.Generator,
    stop: Callable[[], bool],
) -> dict[str, list[float]]:
    """Annealed importance sampling and, on the same images, the bound to compare it with."""
    if stop():
        raise Stopped
    x = ensemble.pixels(torch.from_numpy(images).to(ensemble.device)).expand(vae.num_members, -1, -1)
    log_q = recovered(vae, x, tau, budget.table, generator)

    def log_px(z: Tensor) -> Tensor:
        return vae.log_px(x, z)

    bound = log_likelihood(score(log_q, uniform(log_q), log_px, budget.m, generator=generator))
    truth = log_likelihood_ais(
        log_q, uniform(log_q), log_px, budget.ais_chains, budget.ais_temperatures, generator=generator
    )
    return {"log_likelihood_ais": truth.mean(-1).tolist(), "log_likelihood_subset": bound.mean(-1).tolist()}


@torch.no_grad()
def pictures(ensemble: Ensemble, images: Images, row: int, budget: Budget) -> Pictures:
    """What one member draws, as greys in [0, 1]: ten images above their reconstructions, and samples of the prior."""
    vae, tau = ensemble.vae.subset([row]), ensemble.tau[[row]]
    generator = generator_of(0, "pictures", device=ensemble.device)
    x = ensemble.pixels(torch.from_numpy(images[:10]).to(ensemble.device)).unsqueeze(0)
    N, K = vae.shape

    def decoded(log_p: Tensor) -> Tensor:
        index = torch.multinomial(log_p.exp().reshape(-1, K), 1, generator=generator)
        z = torch.nn.functional.one_hot(index.view(log_p.shape[:-1]), K).to(ensemble.dtype)
        return vae.mean_image(z.unsqueeze(0))[0, 0]

    shown = decoded(recovered(vae, x, tau, budget.table, generator))
    dreamt = decoded(torch.zeros(1, 40, N, K, dtype=ensemble.dtype, device=ensemble.device))
    return {"reconstructions": _grid(torch.cat([x[0], shown]), len(shown)), "samples": _grid(dreamt, 10)}


def _grid(images: Tensor, columns: int) -> NDArray[np.float64]:
    """Square images in rows of so many, ink dark on white."""
    side = round(images.shape[-1] ** 0.5)
    rows = images.view(-1, columns, side, side).transpose(1, 2).reshape(-1, columns * side)
    return 1 - rows.double().cpu().numpy()
