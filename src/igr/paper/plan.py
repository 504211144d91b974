"""What there is to do for a cell, before it is done: its images, its members' records, and where checkpoints go."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from igr.paper import data
from igr.paper.data import Dataset
from igr.paper.ensemble import Ensemble
from igr.paper.measure import Budget
from igr.paper.models import SCALE_FLOOR
from igr.paper.nonparametric.ensemble import MixtureEnsemble
from igr.paper.records import Record
from igr.paper.sop.ensemble import CompletionEnsemble
from igr.paper.specs import Completion, Member, Mixture, Trained, Vae

__all__ = ["TRAINERS", "Options", "Plan", "described", "plan"]

TRAINERS: dict[type[Trained], Any] = {Vae: Ensemble, Completion: CompletionEnsemble, Mixture: MixtureEnsemble}


@dataclass(frozen=True)
class Options:
    """Where and how a cell is run."""

    out: Path
    """Folder of the records; see :class:`igr.paper.store.Folder`."""
    checkpoints: Path
    device: torch.device
    dtype: torch.dtype = torch.float32
    checkpoint_minutes: float = 5.0
    data_dir: Path | None = None
    fresh: bool = False
    """Whether to do again what is in the records, or half done."""
    since: Mapping[str, int] = field(default_factory=dict)
    """How many lines the records of a spec had when that was begun; later ones count. See :mod:`igr.paper.again`."""
    commit: str | None = None
    """The commit that the code is of, where the code cannot ask git itself."""
    smoke_images: int | None = 300
    """How many of the images that come with the package a cell that is cut short trains on; all if None."""
    sharing: int = 1
    """How many runs share the device, as far as the one who starts them knows."""
    budget: Budget | None = None
    """What to spend on metrics; by default what the cell asks for."""


class Plan(NamedTuple):
    """What running a cell comes down to."""

    dataset: Dataset
    budget: Budget
    """What to spend on metrics."""
    identities: list[Record]
    """What makes a record the one of a member; see ``records.IDENTITY``."""
    folder: Path
    """Of the checkpoints."""


def plan(cell: Trained, options: Options) -> Plan:
    """Images, budget, records and checkpoints of a cell.

    Raises:
        DataError: the images are not there, or not right.
    """
    budget = options.budget or TRAINERS[type(cell)].budget()
    budget = budget.shortened() if cell.smoke and options.budget is None else budget
    dataset = _images(cell, options)
    settings = cell.settings() | {
        "dtype": str(options.dtype).removeprefix("torch."),
        "data": dataset.source,
        "train_images": len(dataset.train),
        "evaluation": budget.settings(cell.method),
    }
    if cell.dataset == "fmnist" and cell.protocol == "honest":
        settings["scale_floor"] = SCALE_FLOOR
    identities = [_identity(cell, member, settings, options.device) for member in cell.members()]
    return Plan(dataset, budget, identities, options.checkpoints / cell.id / _name(cell, identities, options.fresh))


def _images(cell: Trained, options: Options) -> Dataset:
    if not cell.smoke:
        return data.load(cell.dataset, options.data_dir, cell.protocol)
    sample = data.load_sample(cell.dataset, cell.protocol)
    return replace(sample, train=sample.train[: options.smoke_images])


def _name(cell: Trained, identities: Sequence[Record], fresh: bool) -> str:
    """What the folder of a checkpoint is called: other members, settings or devices have another one, and so has what
    is done again."""
    content = hashlib.sha256(json.dumps(identities, sort_keys=True).encode()).hexdigest()
    return f"{cell.protocol}{'-smoke' if cell.smoke else ''}{'-fresh' if fresh else ''}-{content[:12]}"


def _identity(cell: Trained, member: Member, settings: dict[str, Any], device: torch.device) -> Record:
    """What makes a record the one of this member; see ``records.IDENTITY``."""
    return {
        "spec": cell.id,
        "protocol": cell.protocol,
        **described(member),
        "smoke": cell.smoke,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "settings": settings,
    }


def described(member: Member) -> Record:
    """What a record calls it; the number of components is that of mixtures alone."""
    found = member._asdict()
    if member.tau is not None:
        del found["num_components"]
    return found
