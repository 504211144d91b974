"""One cell from data to records: train all members, choose what to report on held-out images, then look at the test.

Everything that takes long can be stopped and goes on at the next call: training after the last step, metrics after the
last batch of images. Records are written once, when the whole cell is done.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from igr import __version__
from igr.paper import checkpoint, records
from igr.paper.measure import Pictures, Stopped, assess
from igr.paper.plan import TRAINERS, Options, Plan, described, plan
from igr.paper.products import fast_products
from igr.paper.records import Record
from igr.paper.select import SPLITS, Configuration, choose_all
from igr.paper.specs import Trained
from igr.paper.store import Folder, Store
from igr.paper.trainer import Trainer

__all__ = ["Options", "Progress", "run_cell", "run_cells"]

CURVE_POINTS = 30


class Progress(NamedTuple):
    """How far a cell is."""

    spec: str
    phase: str
    """``training``, or the split that is being measured, or ``done``."""
    part: float
    """How much of the phase is done, from 0 to 1."""
    epoch: int
    epochs: int
    alive: int
    members: int
    best: float | None
    """The best objective of a member, in nats per image, over the last epoch."""
    seconds: float
    curves: list[dict[str, list[float | None]]] | None = None
    """Those of all members, from the first epoch on, where they have become longer."""


def run_cells(
    cells: Sequence[Trained], options: Options, stop: Callable[[], bool], report: Callable[[int, Progress], None]
) -> bool:
    """Runs one cell after another, the progress of each reported with its number from one on; whether all are done."""
    return all(run_cell(cell, options, stop, partial(report, i)) is not None for i, cell in enumerate(cells, 1))


def run_cell(
    cell: Trained,
    options: Options,
    stop: Callable[[], bool],
    report: Callable[[Progress], None],
    store: Store | None = None,
) -> list[Record] | None:
    """The records of all members: those that are there, or new ones.

    Arguments:
        cell: what to train; its protocol and whether it is cut short are its own.
        options: where and how.
        stop: asked after every step and every batch; once it says yes, the state is saved and the function returns.
        report: told about progress.
        store: where records are looked for and go to; by default the folder that the options name.

    Returns:
        The records, or nothing if it was stopped.

    Raises:
        DataError: the images are not there, or not right.
        CheckpointError: a checkpoint is there that cannot be used, or another process uses it.
        RecordError: a file of records is there that does not hold records.
    """
    planned = plan(cell, options)
    identities, folder = planned.identities, planned.folder
    store = Folder(options.out, options.fresh, options.since) if store is None else store
    known = store.read(cell.id)
    found = [record for wanted in identities if (record := records.find(known, wanted))]
    if len(found) == len(identities):
        _clean(folder)
        return found
    with checkpoint.claim(folder), fast_products(options.device):
        work = _Work(cell, planned, options, stop, report)
        try:
            work.train()
            work.measure()
        except Stopped:
            return None
        new = work.records()
        store.add(cell.id, new, work.pictures())
        checkpoint.remove(folder)
    work.tell("done", 1.0)
    return new


def clean_cell(cell: Trained, options: Options) -> None:
    """Removes what is left of a process that died after its records were written."""
    _clean(plan(cell, options).folder)


def _clean(folder: Path) -> None:
    if folder.exists():
        with suppress(checkpoint.CheckpointError), checkpoint.claim(folder):  # or another process is at work there
            checkpoint.remove(folder)


class _Work:
    """A cell in progress."""

    def __init__(
        self,
        cell: Trained,
        planned: Plan,
        options: Options,
        stop: Callable[[], bool],
        report: Callable[[Progress], None],
    ) -> None:
        self.cell, self.options, self.stop, self.report = cell, options, stop, report
        self.dataset, self.budget, self.identities, self.folder = planned
        self.ensemble: Trainer = TRAINERS[type(cell)](cell, self.dataset.train, options.device, options.dtype)
        self.best: float | None = None
        self.told = 0  # points of the curves
        self.notes: dict[str, Any] = {
            "trees": [],
            "seconds": {"training": 0.0, "evaluation": 0.0},
            "curves": {"epoch": [], "train_loss": []},
            "metrics": {},  # pass -> member -> name -> value
            "partial": {},  # pass -> what is done of it
            "chosen": None,  # criterion -> configuration
        }
        if (state := checkpoint.load(self.folder)) is not None:
            with checkpoint.reading(self.folder):
                self.ensemble.load(*state)
                self.notes = state[1]["notes"]
        self.notes["sharing"] = max(options.sharing, self.notes.get("sharing", 1))
        if (tree := records.tree()) not in self.notes["trees"]:
            self.notes["trees"].append(tree)

    def _save(self) -> None:
        tensors, numbers = self.ensemble.state()
        checkpoint.save(self.folder, tensors, numbers | {"notes": self.notes})

    def tell(self, phase: str, part: float) -> None:
        """Reports how far the work is."""
        ensemble, seconds = self.ensemble, sum(self.notes["seconds"].values())
        counts = (ensemble.epoch, self.cell.epochs, len(ensemble.alive), len(ensemble.members))
        points = len(self.notes["curves"]["epoch"])
        curves = self._curves() if points > self.told else None
        self.told = points
        self.report(Progress(self.cell.id, phase, part, *counts, self.best, seconds, curves))

    def _curves(self) -> list[dict[str, list[float | None]]]:
        """Of each member."""
        return [
            {
                name: [point[i] if isinstance(point, list) else point for point in points]
                for name, points in self.notes["curves"].items()
                if points
            }
            for i in range(len(self.ensemble.members))
        ]

    @property
    def _trained(self) -> bool:
        return self.ensemble.done or not self.ensemble.alive

    def train(self) -> None:
        """Trains to the end, or until asked to stop."""
        ensemble, saved = self.ensemble, time.monotonic()
        held = torch.from_numpy(getattr(self.dataset, SPLITS[self.cell.protocol])).to(self.options.device)

        def due() -> bool:
            return time.monotonic() - saved > 60 * self.options.checkpoint_minutes

        self.tell("training", ensemble.epoch / self.cell.epochs)
        while not self._trained:
            start, asked = time.perf_counter(), False

            def pause() -> bool:
                nonlocal asked
                asked = asked or self.stop()
                return asked or due()

            losses = ensemble.run_epoch(pause)
            if losses is not None:
                self._note(losses, held)
            self.notes["seconds"]["training"] += time.perf_counter() - start
            self.tell("training", ensemble.epoch / self.cell.epochs)
            if losses is None or pause() or self._trained:
                self._save()
                saved = time.monotonic()
            if asked:
                raise Stopped

    def _note(self, losses: torch.Tensor, held: torch.Tensor) -> None:
        """The best objective, and now and then a point of the curves."""
        ensemble, curves = self.ensemble, self.notes["curves"]
        self.best = max((-losses[i].item() for i in ensemble.alive), default=None)
        every = max(1, self.cell.epochs // CURVE_POINTS)
        if ensemble.epoch % every and ensemble.epoch not in (1, self.cell.epochs):
            return
        curves["epoch"].append(ensemble.epoch)
        curves["train_loss"].append(_plain(losses))
        for name, values in ensemble.held_out(held).items():
            values[list(ensemble.failed)] = math.nan  # they are where their last epoch began
            before = [[None] * len(values) for _ in curves["epoch"][1:]]  # of a checkpoint that knew nothing of it
            curves.setdefault(name, before).append(_plain(values))

    def measure(self) -> None:
        """Metrics of all members on the splits that choices may look at, then of the chosen ones on the test split.

        A sole configuration is chosen whatever it has, so that its test images are looked at once under any protocol.
        """
        first, alive = SPLITS[self.cell.protocol], self.ensemble.alive
        sole = len({member.configuration for member in self.ensemble.members}) == 1
        self._measure("train", "train", alive)
        if sole and first == "test":
            self._measure("test", "chosen", alive, full=True)
        else:
            self._measure(first, first, alive)
        if self.notes["chosen"] is None:  # once and for all: what is measured later has no say in it
            self.notes["chosen"] = self._choose()
            checkpoint.update(self.folder, {"notes": self.notes})
        self._measure("test", "chosen", [i for i in alive if any(self._is_chosen(i).values())], full=True)

    def _measure(self, split: str, name: str, rows: Sequence[int], full: bool = False) -> None:
        notes = self.notes
        if name in notes["metrics"] or not rows:
            return
        start, saved, before = time.perf_counter(), time.monotonic(), notes["seconds"]["evaluation"]
        partial = notes["partial"].setdefault(name, {})

        def save() -> None:
            notes["seconds"]["evaluation"] = before + time.perf_counter() - start
            checkpoint.update(self.folder, {"notes": notes})

        def report(part: float) -> None:
            nonlocal saved
            if time.monotonic() - saved > 60 * self.options.checkpoint_minutes:
                save()
                saved = time.monotonic()
            self.tell(split, part)

        self.tell(split, 0.0)
        what = (self.ensemble, getattr(self.dataset, split), split, rows, self.budget)
        try:
            found = assess(*what, full=full, stop=self.stop, partial=partial, report=report)
        except Stopped:
            save()
            raise
        del notes["partial"][name]
        finite = [{key: value for key, value in values.items() if np.isfinite(value).all()} for values in found]
        notes["metrics"][name] = {str(row): values for row, values in zip(rows, finite, strict=True)}
        save()
        if self.stop():
            raise Stopped

    def _choose(self) -> dict[str, Configuration]:
        """What each criterion chooses; nothing where all members failed."""
        rows = [self._row(i) for i in range(len(self.ensemble.members))]
        finished = any(row["status"] == "finished" for row in rows)
        return choose_all(rows, self.cell.criteria) if finished else {}

    def _is_chosen(self, i: int) -> dict[str, bool]:
        """By which criteria the configuration of a member was chosen."""
        own = self.ensemble.members[i].configuration
        return {criterion: Configuration(*choice) == own for criterion, choice in self.notes["chosen"].items()}

    def _row(self, i: int) -> Record:
        """What there is to say about a member. It failed if training diverged or what it is judged by is not finite."""
        member, first = self.ensemble.members[i], SPLITS[self.cell.protocol]
        metrics: dict[str, dict[str, float]] = {}
        for name in ("chosen", "train", first):  # where two passes have the same metric, that which was chosen by
            if values := self.notes["metrics"].get(name, {}).get(str(i)):
                split = "test" if name == "chosen" else name
                metrics[split] = metrics.get(split, {}) | values
        failed = i in self.ensemble.failed or not metrics.get(first, {}).keys() >= set(self.cell.criteria)
        return {
            "protocol": self.cell.protocol,
            **described(member),
            "status": "failed" if failed else "finished",
            "failed_epoch": self.ensemble.failed.get(i, self.cell.epochs) if failed else None,
            "metrics": {} if failed else metrics,
        }

    def records(self) -> list[Record]:
        """One record for each member."""
        source, seconds, trees = records.source(), self.notes["seconds"], self.notes["trees"]
        if self.options.commit is not None:
            source = records.Source(self.options.commit, None)
        common = {
            "synthetic": self.dataset.synthetic,
            "images": {split: len(getattr(self.dataset, split)) for split in ("train", "validation", "test")},
            "members": len(self.ensemble.members),
            "seconds": round(seconds["training"], 3),
            "seconds_evaluation": round(seconds["evaluation"], 3),
            "sharing": self.notes["sharing"],
            "products": self.ensemble.products,
            "commit": source.commit,
            "dirty": source.dirty,
            "tree": trees[-1],
            "trees": trees,
            "version": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "host_cpus": os.cpu_count(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        result = []
        for i, (identity, curves) in enumerate(zip(self.identities, self._curves(), strict=True)):
            selected = [name for name, chosen in self._is_chosen(i).items() if chosen]
            learned = self.ensemble.learned(i)
            result.append(identity | self._row(i) | {"selected": selected, "curves": curves} | learned | common)
        return result

    def pictures(self) -> Pictures:
        """What the chosen configurations make, by the first seed that did not fail; by the names of the files."""
        found = {}
        for criterion in self.notes["chosen"]:
            rows = [i for i in self.ensemble.alive if self._is_chosen(i)[criterion] and self._row(i)["metrics"]]
            suffix = criterion if self.cell.protocol == "honest" else f"{criterion}-{self.cell.protocol}"
            for name, picture in self.ensemble.pictures(self.dataset.test, rows[0], self.budget).items():
                found[f"{name}-{suffix}.png"] = picture
        return found


def _plain(values: torch.Tensor) -> list[float | None]:
    """As JSON has it: what is not finite is nothing."""
    return [round(value, 4) if math.isfinite(value) else None for value in values.tolist()]
