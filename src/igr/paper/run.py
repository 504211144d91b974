"""One cell from data to records: train all members, choose temperatures on held-out images, then look at the test.

Everything that takes long can be stopped and goes on at the next call: training from its checkpoint, metrics from the
last split that was finished. Records are written once, when the whole cell is done.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch

from igr import __version__
from igr.paper import checkpoint, data, records
from igr.paper.assess import Budget, Stopped, assess, pictures
from igr.paper.data import Dataset
from igr.paper.ensemble import Ensemble
from igr.paper.files import write_whole
from igr.paper.records import Record
from igr.paper.select import CRITERIA, SPLITS, Configuration, SelectionError, choose
from igr.paper.specs import Member, Vae

__all__ = ["Options", "Progress", "run_cell"]

CURVE_POINTS = 30


@dataclass(frozen=True)
class Options:
    """Where and how a cell is run; none of it changes what is computed, but for device and dtype."""

    out: Path
    checkpoints: Path
    device: torch.device
    dtype: torch.dtype = torch.float32
    checkpoint_minutes: float = 5.0
    data_dir: Path | None = None
    fresh: bool = False
    commit: str | None = None
    """The commit that the code is of, where the code cannot ask git itself."""
    smoke_images: int | None = 300
    """How many of the images that come with the package a cell that is cut short trains on; all if None."""
    budget: Budget | None = None
    """What to spend on metrics; by default what the cell asks for."""


class Progress(NamedTuple):
    """How far a cell is."""

    spec: str
    phase: str
    """``training``, or the split that is being measured, or ``done``."""
    epoch: int
    epochs: int
    alive: int
    members: int
    best: float | None
    """The best objective of a member, in nats per image, over the last epoch."""
    seconds: float


def run_cell(
    cell: Vae, options: Options, stop: Callable[[], bool], report: Callable[[Progress], None]
) -> list[Record] | None:
    """The records of all members: those that are there, or new ones.

    Arguments:
        cell: what to train; its protocol and whether it is cut short are its own.
        options: where and how.
        stop: asked after every step; once it says yes, the state is saved and the function returns.
        report: told about progress.

    Returns:
        The records, or nothing if it was stopped.

    Raises:
        DataError: the images are not there, or not right.
        CheckpointError: a checkpoint is there that cannot be used.
        RecordError: a file of records is there that does not hold records.
    """
    budget = options.budget or (Budget().shortened() if cell.smoke else Budget())
    dataset = _images(cell, options)
    settings = cell.settings() | {
        "dtype": str(options.dtype).removeprefix("torch."),
        "data": dataset.source,
        "train_images": len(dataset.train),
        "evaluation": budget.settings(),
    }
    identities = [_identity(cell, member, settings, options.device) for member in cell.members()]
    path = options.out / cell.id / "records.jsonl"
    known = records.read(path)
    found = [record for wanted in identities if (record := records.find(known, wanted))]
    if len(found) == len(identities) and not options.fresh:
        return found
    work = _Work(cell, dataset, options, budget, settings, stop, report)
    try:
        work.train()
        work.measure()
    except Stopped:
        return None
    new = work.records(identities)
    path.parent.mkdir(parents=True, exist_ok=True)
    work.draw(path.parent)
    records.append(path, new, replace=options.fresh or bool(found))
    checkpoint.remove(work.folder)
    work.tell("done")
    return new


class _Work:
    """A cell in progress."""

    def __init__(
        self,
        cell: Vae,
        dataset: Dataset,
        options: Options,
        budget: Budget,
        settings: dict[str, Any],
        stop: Callable[[], bool],
        report: Callable[[Progress], None],
    ) -> None:
        self.cell, self.dataset, self.options, self.budget = cell, dataset, options, budget
        self.stop, self.report, self.settings = stop, report, settings
        self.folder = options.checkpoints / cell.id / (cell.protocol + ("-smoke" if cell.smoke else ""))
        self.ensemble = Ensemble(cell, dataset.train, options.device, options.dtype)
        self.seconds = {"training": 0.0, "evaluation": 0.0}
        self.curves: dict[str, list[Any]] = {"epoch": [], "train_loss": [], "elbo_continuous": []}
        self.metrics: dict[str, dict[str, dict[str, float]]] = {}  # split -> member -> name -> value
        self.best: float | None = None
        if options.fresh:
            checkpoint.remove(self.folder)
        if (state := checkpoint.load(self.folder)) is not None:
            self._restore(*state)

    def _identity(self) -> dict[str, Any]:
        """What a checkpoint must have been made for."""
        members = [[member.tau, member.prior_temperature, member.seed] for member in self.cell.members()]
        return {"settings": self.settings, "members": members, "device": self.options.device.type}

    def _restore(self, tensors: dict[str, torch.Tensor], numbers: dict[str, Any]) -> None:
        if numbers["identity"] != self._identity():
            raise checkpoint.CheckpointError(
                f"the checkpoint in {self.folder} is of other settings; remove the folder, or start over with --fresh"
            )
        self.ensemble.load(tensors, numbers)
        self.seconds, self.curves, self.metrics = numbers["seconds"], numbers["curves"], numbers["metrics"]

    def _save(self) -> None:
        tensors, numbers = self.ensemble.state()
        more = {"identity": self._identity(), "seconds": self.seconds, "curves": self.curves, "metrics": self.metrics}
        checkpoint.save(self.folder, tensors, numbers | more)

    def tell(self, phase: str) -> None:
        """Reports how far the work is."""
        ensemble = self.ensemble
        done, all_epochs = ensemble.epoch, self.cell.epochs
        counts = (done, all_epochs, len(ensemble.alive), len(ensemble.members))
        self.report(Progress(self.cell.id, phase, *counts, self.best, sum(self.seconds.values())))

    def train(self) -> None:
        """Trains to the end, or until asked to stop."""
        ensemble, saved = self.ensemble, time.monotonic()
        held = torch.from_numpy(getattr(self.dataset, SPLITS[self.cell.protocol])).to(self.options.device)
        every = max(1, self.cell.epochs // CURVE_POINTS)
        self.tell("training")
        while not self._trained:
            start = time.perf_counter()
            losses = ensemble.run_epoch(self.stop)
            if losses is not None:
                self.best = max((-losses[i].item() for i in ensemble.alive), default=None)
                if ensemble.epoch % every == 0 or ensemble.epoch in (1, self.cell.epochs):
                    self._note(losses, ensemble.held_out(held))
            self.seconds["training"] += time.perf_counter() - start
            self.tell("training")
            asked = losses is None or self.stop()
            due = time.monotonic() - saved > 60 * self.options.checkpoint_minutes
            if asked or due or self._trained:
                self._save()
                saved = time.monotonic()
            if asked:
                raise Stopped

    @property
    def _trained(self) -> bool:
        return self.ensemble.done or not self.ensemble.alive

    def _note(self, losses: torch.Tensor, bounds: torch.Tensor | None) -> None:
        """A point of the curves."""
        self.curves["epoch"].append(self.ensemble.epoch)
        self.curves["train_loss"].append(_plain(losses))
        if bounds is not None:
            self.curves["elbo_continuous"].append(_plain(bounds))

    def measure(self) -> None:
        """Metrics of all members on the splits that choices may look at, then of the chosen ones on the test split."""
        first = SPLITS[self.cell.protocol]
        alive = self.ensemble.alive
        if not alive:
            return
        self._measure("train", "train", alive)
        self._measure(first, first, alive)
        self._measure("test", "test-full", self.chosen_rows(), full=True)

    def _measure(self, split: str, name: str, rows: Sequence[int], full: bool = False) -> None:
        if name in self.metrics or not rows:
            return
        self.tell(split)
        start = time.perf_counter()
        images = getattr(self.dataset, split)
        found = assess(self.ensemble, images, split, rows, self.budget, full=full, stop=self.stop)
        self.seconds["evaluation"] += time.perf_counter() - start
        self.metrics[name] = {str(row): values for row, values in zip(rows, found, strict=True)}
        checkpoint.update(self.folder, {"metrics": self.metrics, "seconds": self.seconds})

    def choices(self) -> dict[str, Configuration]:
        """What each criterion chooses; nothing where all members failed."""
        rows = [self._row(i) for i in range(len(self.ensemble.members))]
        try:
            return {criterion: choose(rows, criterion) for criterion in CRITERIA}
        except SelectionError:
            if self.ensemble.alive:
                raise
            return {}

    def chosen_rows(self) -> list[int]:
        """The members with a temperature that some criterion chooses."""
        chosen = set(self.choices().values())
        return [i for i in self.ensemble.alive if _configuration(self.ensemble.members[i]) in chosen]

    def _row(self, i: int) -> Record:
        """What there is to say about a member."""
        member = self.ensemble.members[i]
        metrics: dict[str, dict[str, float]] = {}
        for name, values in self.metrics.items():
            if str(i) in values:
                split = name.removesuffix("-full")
                metrics[split] = metrics.get(split, {}) | values[str(i)]
        finite = all(math.isfinite(v) for values in metrics.values() for v in values.values())
        row: Record = {
            "protocol": self.cell.protocol,
            "seed": member.seed,
            "tau": member.tau,
            "prior_temperature": member.prior_temperature,
            "status": "failed" if i in self.ensemble.failed or not finite else "finished",
            "metrics": metrics if finite else {},
        }
        return (
            row | {"failed_epoch": self.ensemble.failed.get(i, self.cell.epochs)} if row["status"] == "failed" else row
        )

    def records(self, identities: Sequence[Record]) -> list[Record]:
        """One record for each member."""
        choices, source = self.choices(), records.source()
        if self.options.commit is not None:
            source = records.Source(self.options.commit, None)
        common = {
            "synthetic": self.dataset.synthetic,
            "images": {split: len(getattr(self.dataset, split)) for split in ("train", "validation", "test")},
            "members": len(self.ensemble.members),
            "seconds": round(self.seconds["training"], 3),
            "seconds_evaluation": round(self.seconds["evaluation"], 3),
            "commit": source.commit,
            "dirty": source.dirty,
            "tree": records.tree(),
            "version": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "host_cpus": os.cpu_count(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        result = []
        for i, (member, identity) in enumerate(zip(self.ensemble.members, identities, strict=True)):
            selected = [name for name, choice in choices.items() if choice == _configuration(member)]
            curves = {
                name: [point[i] if isinstance(point, list) else point for point in points]
                for name, points in self.curves.items()
                if points
            }
            result.append(identity | self._row(i) | {"selected": selected, "curves": curves} | common)
        return result

    def draw(self, folder: Path) -> None:
        """Pictures of what the chosen configurations make, by the first seed that did not fail."""
        import matplotlib.image

        for criterion, choice in self.choices().items():
            rows = [i for i in self.ensemble.alive if _configuration(self.ensemble.members[i]) == choice]
            drawn = pictures(self.ensemble, self.dataset.test, rows[0], self.budget)
            for name, picture in drawn.items():
                suffix = criterion if self.cell.protocol == "honest" else f"{criterion}-{self.cell.protocol}"
                with write_whole(folder / f"{name}-{suffix}.png") as temporary:
                    matplotlib.image.imsave(temporary, picture, cmap="gray", vmin=0, vmax=1, format="png")


def _images(cell: Vae, options: Options) -> Dataset:
    if not cell.smoke:
        return data.load(cell.dataset, options.data_dir, cell.protocol)
    sample = data.load_sample(cell.dataset, cell.protocol)
    return replace(sample, train=sample.train[: options.smoke_images])


def _configuration(member: Member) -> Configuration:
    return Configuration(member.tau, member.prior_temperature)


def _plain(values: torch.Tensor) -> list[float | None]:
    """As JSON has it: what is not finite is nothing."""
    return [round(value, 4) if math.isfinite(value) else None for value in values.tolist()]


def _identity(cell: Vae, member: Member, settings: dict[str, Any], device: torch.device) -> Record:
    """What makes a record the one of this member; see ``records.IDENTITY``."""
    return {
        "spec": cell.id,
        "protocol": cell.protocol,
        "seed": member.seed,
        "tau": member.tau,
        "prior_temperature": member.prior_temperature,
        "smoke": cell.smoke,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "settings": settings,
    }
