"""Trained members, measured on a split: the loop over images that all experiments share.

Images are taken in batches, each with noise of its own stream, and what is done of a split can be put aside and gone on
with later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from igr.paper.streams import generator_of

if TYPE_CHECKING:
    from igr.paper.trainer import Trainer

__all__ = ["Budget", "Job", "Metrics", "Pictures", "Stopped", "assess", "grid"]

Images = NDArray[np.uint8]
Pictures = dict[str, NDArray[np.float64]]
Metrics = dict[str, Tensor]  # (E, B), or (E, B, C) for C numbers of each image
Sums = list[Any]  # of numbers, or of lists of them; None where one is not finite


class Stopped(Exception):
    """Asked to stop before it was done."""


class Budget(Protocol):
    """How much is spent on metrics; part of a record's settings."""

    @property
    def images(self) -> int | None:
        """How many images of each split, the first ones; all if None."""

    def shortened(self) -> Self:
        """Next to nothing, to see that all works."""

    def settings(self, method: str) -> dict[str, Any]:
        """What a record says about it."""


class Job(NamedTuple):
    """Something to measure."""

    name: str
    images: Images
    batch: int
    """How many images are taken at once."""
    measure: Callable[[Tensor, torch.Generator], Metrics]
    """Of images ``(E, B, D)``, the same for all members."""


def assess(
    ensemble: Trainer,
    images: Images,
    split: str,
    rows: Sequence[int],
    budget: Budget,
    *,
    full: bool = False,
    stop: Callable[[], bool] = lambda: False,
    partial: dict[str, Any] | None = None,
    report: Callable[[float], None] = lambda part: None,
) -> list[dict[str, Any]]:
    """The metrics of some members on a split, means over its images; NaN where they are not finite.

    Arguments:
        ensemble: all members.
        images: of the split, ``(n, D)`` bytes.
        split: its name; on ``train`` there are no importance-weighted bounds.
        rows: which members.
        budget: how much to spend.
        full: whether to add what is measured once, of what was chosen.
        stop: asked after every batch.
        partial: empty, or what an earlier call that was stopped has left in it; JSON can hold it.
        report: told which part of the work is done.

    Raises:
        Stopped: ``stop`` said so; ``partial`` has what is done.
    """
    partial = {} if partial is None else partial
    jobs = ensemble.jobs(rows, images[: budget.images], split, budget, full)
    whole, before = sum(len(job.images) for job in jobs), 0
    means: dict[str, Sums] = {}
    for job in jobs:
        state = partial.setdefault(job.name, {"start": 0, "sums": {}})
        while state["start"] < len(job.images):
            start = state["start"]
            generator = generator_of(0, "assess", split, job.name, start, device=ensemble.device)
            some = torch.from_numpy(job.images[start : start + job.batch]).to(ensemble.device)
            with torch.no_grad():
                found = job.measure(ensemble.pixels(some).expand(len(rows), -1, -1), generator)
            _add(state["sums"], found)
            state["start"] = min(len(job.images), start + job.batch)
            report((before + state["start"]) / whole)
            if state["start"] < len(job.images) and stop():
                raise Stopped
        before += len(job.images)
        means |= {key: (_array(total) / len(job.images)).tolist() for key, total in state["sums"].items()}
    return [{key: values[i] for key, values in means.items()} for i in range(len(rows))]


def _add(sums: dict[str, Sums], found: Metrics) -> None:
    """Adds the sums over images, as JSON can hold them: what is not finite is nothing, for good."""
    for name, values in found.items():
        new = values.double().sum(1).cpu().numpy()
        sums[name] = _plain((_array(sums[name]) + new if name in sums else new).tolist())


def _array(sums: Sums) -> NDArray[np.float64]:
    return np.array(sums, dtype=float)  # None is NaN


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value if math.isfinite(value) else None


def grid(images: Tensor, columns: int) -> NDArray[np.float64]:
    """Square images ``(n, D)`` in rows of so many, ink dark on white."""
    side = round(images.shape[-1] ** 0.5)
    rows = images.reshape(-1, columns, side, side).transpose(1, 2).reshape(-1, columns * side)
    return 1 - rows.double().cpu().numpy()
