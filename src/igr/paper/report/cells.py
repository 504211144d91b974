"""Records, put together again to the cells that they belong to."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from igr.paper.methods import METHODS
from igr.paper.records import Record
from igr.paper.report.words import CHOSEN_BY, KINDS, called, place
from igr.paper.select import CRITERIA, SPLITS, Configuration, SelectionError, choose
from igr.paper.specs import SPECS, UNUSED, Completion, Trained, Vae

__all__ = ["UNTEMPERED", "Cell", "ReportError", "Summary", "cells", "summarize"]

UNTEMPERED = frozenset(
    spec.estimator for spec in SPECS.values() if isinstance(spec, Vae | Completion) and spec.temperatures == UNUSED
)


class ReportError(ValueError):
    """Records of which no report can be made."""


class Summary(NamedTuple):
    """Mean and sample standard deviation over n seeds; one seed has no deviation."""

    mean: float
    sd: float | None
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if self.sd is None else f" ± {self.sd:.2f}")


def summarize(values: Iterable[float | None]) -> Summary | None:
    """The summary of the values that are there.

    Example:
        >>> summarize([1.0, 2.0, None, 3.0])
        Summary(mean=2.0, sd=1.0, n=3)
    """
    there = [float(value) for value in values if value is not None]
    if not there:
        return None
    return Summary(statistics.fmean(there), statistics.stdev(there) if len(there) > 1 else None, len(there))


@dataclass(frozen=True)
class Cell:
    """All members of one spec under one protocol, with the same settings on the same kind of device."""

    spec: str
    protocol: str
    device: str
    settings: Mapping[str, Any]
    records: tuple[Record, ...]
    folders: tuple[Path, ...]
    mark: str = ""
    """What tells it from other cells of the same spec, if there are any."""

    @property
    def kind(self) -> str:
        """The key of :data:`KINDS`."""
        return self.spec.partition("/")[0]

    @property
    def group(self) -> tuple[str, ...]:
        """The table that it stands in: ``("table1", "mnist", "linear")``, ``("sop", "mnist")``."""
        return tuple(self.spec.split("/")[:-1])

    @property
    def where(self) -> str:
        """The figure that it stands in: ``MNIST, linear, protocol honest``."""
        part = f", {self.part}" if self.part else ""
        return f"{place(*self.group[1:])}{KINDS[self.kind]}{part}, protocol {self.protocol}"

    @property
    def part(self) -> str:
        """What splits cells that are too many for one figure."""
        return "estimators" if self.kind in ("beyond", "sop") and self.estimator != "reparameterized" else ""

    @property
    def estimator(self) -> str:
        """Of the gradient; records of relaxed samples do not name it."""
        return str(self.settings.get("estimator", "reparameterized"))

    @property
    def tempered(self) -> bool:
        """Whether it has a temperature; where the estimator has none, records say 1."""
        return self.estimator not in UNTEMPERED and self.records[0]["tau"] is not None

    @property
    def choice(self) -> str:
        """What is chosen: τ, or K, or nothing."""
        if self.tempered:
            return "τ"
        return "K" if any(record.get("num_components") is not None for record in self.records) else ""

    @property
    def criteria(self) -> tuple[str, ...]:
        """What it is chosen by: as the spec says, or else what the records have."""
        spec = SPECS.get(self.spec)
        if isinstance(spec, Trained):
            return spec.criteria
        named = {name for each in self.records for name in each.get("selected", ())}
        named |= {name for each in self.records for name in each["metrics"].get(self.split, ())}
        return tuple(name for name in CRITERIA if name in named) or CRITERIA

    def chosen_by(self, criterion: str) -> str:
        """What tables and figures call a criterion."""
        return "log-likelihood" if self.kind == "sop" else CHOSEN_BY[criterion]

    @property
    def method(self) -> str:
        """The key of :data:`~igr.paper.methods.METHODS`."""
        return str(self.settings["method"])

    @property
    def name(self) -> str:
        """What tables call it: ``IGR-I + SL``; where it was trained with fewer samples, ``IGR-I, S = 50 (here 5)``."""
        spec = SPECS.get(self.spec)
        if not isinstance(spec, Trained):
            return self.spec.rpartition("/")[2]
        wanted, ours = getattr(spec, "num_samples", None), self.settings.get("num_samples")
        size = f"S = {wanted}"
        return spec.label if ours in (None, wanted) else spec.label.replace(size, f"{size} (here {ours})")

    @property
    def label(self) -> str:
        """The same, marked where several are called so."""
        return f"{self.name} ({self.mark})" if self.mark else self.name

    @property
    def variant(self) -> str:
        """What the label adds to the method: ``"+ SL"``, or nothing; the same for what only the method tells apart."""
        added = self.label.removeprefix(METHODS[self.method].label).strip(", ")
        return added.replace("Gumbel-Rao", "Rao").replace("IGR-Rao", "Rao")

    @property
    def split(self) -> str:
        """What configurations are chosen on, and curves are of."""
        return SPLITS.get(self.protocol, "test")

    @property
    def failed(self) -> int:
        """How many members diverged."""
        return sum(record["status"] != "finished" for record in self.records)

    @property
    def synthetic(self) -> bool:
        """Whether images were drawn by a program in place of the data."""
        return any(record.get("synthetic", False) for record in self.records)

    def configurations(self) -> list[Configuration]:
        """What members differ in beside their seeds, in order."""
        return sorted({Configuration.of(record) for record in self.records}, key=lambda each: each.order)

    def members(self, configuration: Configuration) -> list[Record]:
        """The members of a configuration, a seed each."""
        return [each for each in self.records if Configuration.of(each) == configuration]

    def finished(self, configuration: Configuration) -> list[Record]:
        """Those of them that did not diverge."""
        return [record for record in self.members(configuration) if record["status"] == "finished"]

    def chosen(self, criterion: str) -> Configuration | None:
        """The configuration that the run has marked, or else the best by these records; None if that is not known."""
        marked = self._marked(criterion)
        if len(marked) == 1:
            return marked.pop()
        try:
            return choose(self.records, criterion)
        except SelectionError:
            return None

    def doubts(self) -> list[str]:
        """What is to be said about choices that could not be made, or are not the run's."""
        found: dict[str, None] = {}
        for criterion in self.criteria:
            try:
                best = choose(self.records, criterion)
            except SelectionError as error:
                found[f"nothing is chosen by these records: {error}"] = None
                continue
            if self._marked(criterion) not in (set(), {best}):
                found[f"by these records {criterion} chooses {called(best)}, which is not what the run marked"] = None
        return list(found)

    def _marked(self, criterion: str) -> set[Configuration]:
        chosen = [record for record in self.records if criterion in record.get("selected", ())]
        return {Configuration.of(record) for record in chosen}

    def summary(self, configuration: Configuration | None, split: str, metric: str) -> Summary | None:
        """A metric over the seeds of a configuration."""
        if configuration is None:
            return None
        return summarize(_value(record, split, metric) for record in self.finished(configuration))

    def vectors(self, configuration: Configuration | None, split: str, metric: str) -> list[list[float]]:
        """A metric of several numbers, for each seed of a configuration that has it."""
        members = [] if configuration is None else self.finished(configuration)
        found = (record["metrics"].get(split, {}).get(metric) for record in members)
        return [each for each in found if each is not None]

    def with_own_seeds(self) -> Cell | None:
        """The members with the seeds of the spec, if there are any; a run with others makes choices of its own."""
        spec = SPECS.get(self.spec)
        own = [record for record in self.records if isinstance(spec, Trained) and record["seed"] in spec.seeds]
        return replace(self, records=tuple(own)) if own else None


def _value(record: Record, split: str, metric: str) -> float | None:
    """A number of a record, if it has it."""
    found = record["metrics"].get(split, {}).get(metric)
    return None if found is None else float(found)


def cells(found: Sequence[tuple[Record, Path]]) -> list[Cell]:
    """The cells, in the order of the registry.

    Arguments:
        found: records of trained models, each with the file that it is from.

    Raises:
        ReportError: two records of the same member are not the same, or one has a number that is not finite.
    """
    for record, path in found:
        _check_finite(record, path)
    groups: dict[tuple[str, ...], list[tuple[Record, Path]]] = {}
    for record, path in found:
        settings = json.dumps(record["settings"], sort_keys=True)
        groups.setdefault((record["spec"], record["protocol"], str(record["device"]), settings), []).append(
            (record, path)
        )
    made = []
    for (spec, protocol, device, settings), members in sorted(groups.items()):
        folders = tuple(sorted({path.parent for _, path in members}))
        made.append(Cell(spec, protocol, device, json.loads(settings), _distinct(members), folders))
    places = {id: i for i, id in enumerate(SPECS)}
    made.sort(key=lambda cell: places.get(cell.spec, len(places)))  # and otherwise as they are
    return [replace(cell, mark=_mark(cell, made)) for cell in made]


def _check_finite(record: Record, path: Path) -> None:
    """Refuses a number that is none, which JSON does not have, but Python reads; one that is not there is null."""
    for split, metrics in record["metrics"].items():
        for name, values in metrics.items():
            for value in values if isinstance(values, list) else [values]:
                if value is not None and not math.isfinite(value):
                    raise ReportError(
                        f"a record of {record['spec']} in {path} has {name} {value} on the {split} split, where a "
                        "finite number was expected, or null; mend or remove it, or leave the file out with --records"
                    )


def _distinct(members: Sequence[tuple[Record, Path]]) -> tuple[Record, ...]:
    """Every member once, in order; a copy of a record is no second one."""
    kept: dict[tuple[float, ...], tuple[Record, Path]] = {}
    for record, path in members:
        configuration = Configuration.of(record)
        other, place = kept.setdefault((*configuration.order, record["seed"]), (record, path))
        if other != record:
            member = " and ".join(filter(None, [called(configuration), f"seed {record['seed']}"]))
            raise ReportError(
                f"two records of {record['spec']} with {member} differ: {place} and {path}; remove one, or name the "
                "folder of the other with --records"
            )
    return tuple(kept[key][0] for key in sorted(kept))


def _mark(cell: Cell, others: Sequence[Cell]) -> str:
    """In what a cell differs from those that are called the same."""
    twins = [other for other in others if (other.spec, other.protocol) == (cell.spec, cell.protocol)]
    words = [cell.device] if len({twin.device for twin in twins}) > 1 else []
    for name in sorted({name for twin in twins for name in twin.settings}):
        if len({json.dumps(twin.settings.get(name), sort_keys=True) for twin in twins}) > 1:
            words.append(f"{name} {cell.settings.get(name)}")
    return ", ".join(words)
