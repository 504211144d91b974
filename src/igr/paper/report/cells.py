"""Records, put together again to the cells that they belong to."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from igr.paper.methods import METHODS
from igr.paper.records import Record
from igr.paper.select import CRITERIA, SPLITS, Configuration, SelectionError, choose
from igr.paper.specs import ESTIMATED, SPECS, UNUSED, Approximation, Derived, Vae

__all__ = [
    "CHOSEN_BY",
    "KINDS",
    "Cell",
    "ReportError",
    "Summary",
    "cells",
    "place",
    "sources",
    "summarize",
    "temperatures",
]

DATASETS = {"mnist": "MNIST", "fmnist": "Fashion-MNIST", "omniglot": "Omniglot"}
ARCHITECTURES = {"linear": "linear", "nonlinear": "non-linear"}
CHOSEN_BY = {"elbo_discrete": "discrete ELBO", "log_likelihood": "bound"}
KINDS = {  # of trained cells, by how their ids begin: what it adds to the place of a figure
    "table1": "",
    "relax": ", RELAX",
    "s4": ", four samples",
    "beyond": ", beyond the paper",
}
UNTEMPERED = tuple(name for name, options in ESTIMATED.items() if options.get("temperatures") == UNUSED)


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
    def group(self) -> tuple[str, str, str]:
        """The table that it stands in: ``("table1", "mnist", "linear")``."""
        kind, dataset, architecture, _ = self.spec.split("/")
        return kind, dataset, architecture

    @property
    def where(self) -> str:
        """The figure that it stands in: ``MNIST, linear, protocol honest``."""
        kind, dataset, architecture = self.group
        part = f", {self.part}" if self.part else ""
        return f"{place(dataset, architecture)}{KINDS[kind]}{part}, protocol {self.protocol}"

    @property
    def part(self) -> str:
        """What splits the cells beyond the paper, which are too many for one figure."""
        return "estimators" if self.group[0] == "beyond" and self.estimator != "reparameterized" else ""

    @property
    def estimator(self) -> str:
        """Of the gradient; records of relaxed samples do not name it."""
        return str(self.settings.get("estimator", "reparameterized"))

    @property
    def tempered(self) -> bool:
        """Whether it has a temperature; where the estimator has none, records say 1."""
        return self.estimator not in UNTEMPERED

    @property
    def method(self) -> str:
        """The key of :data:`~igr.paper.methods.METHODS`."""
        return str(self.settings["method"])

    @property
    def name(self) -> str:
        """What tables call it: ``IGR-I + SL``."""
        spec = SPECS.get(self.spec)
        return spec.label if isinstance(spec, Vae) else self.spec.rpartition("/")[2]

    @property
    def label(self) -> str:
        """The same, marked where several are called so."""
        return f"{self.name} ({self.mark})" if self.mark else self.name

    @property
    def variant(self) -> str:
        """What the label adds to the method: ``"+ SL"``, or nothing; the same for what only the method tells apart."""
        added = self.label.removeprefix(METHODS[self.method].label).strip()
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
        """Every τ and prior temperature, in order."""
        found = {Configuration(record["tau"], record["prior_temperature"]) for record in self.records}
        return sorted(found, key=lambda each: (each.tau, each.prior_temperature or 0.0))

    def members(self, configuration: Configuration) -> list[Record]:
        """The members of a configuration, a seed each."""
        return [each for each in self.records if (each["tau"], each["prior_temperature"]) == configuration]

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
        for criterion in CRITERIA:
            try:
                best = choose(self.records, criterion)
            except SelectionError as error:
                found[f"nothing is chosen by these records: {error}"] = None
                continue
            if self._marked(criterion) not in (set(), {best}):
                found[f"by these records {criterion} chooses τ = {best.tau:g}, which is not what the run marked"] = None
        return list(found)

    def _marked(self, criterion: str) -> set[Configuration]:
        chosen = [record for record in self.records if criterion in record.get("selected", ())]
        return {Configuration(record["tau"], record["prior_temperature"]) for record in chosen}

    def summary(self, configuration: Configuration | None, split: str, metric: str) -> Summary | None:
        """A metric over the seeds of a configuration."""
        if configuration is None:
            return None
        return summarize(_value(record, split, metric) for record in self.finished(configuration))

    def with_own_seeds(self) -> Cell | None:
        """The members with the seeds of the spec, if there are any; a run with others makes choices of its own."""
        spec = SPECS.get(self.spec)
        own = [record for record in self.records if isinstance(spec, Vae) and record["seed"] in spec.seeds]
        return replace(self, records=tuple(own)) if own else None


def temperatures(configuration: Configuration) -> str:
    """What a configuration is called.

    Example:
        >>> temperatures(Configuration(0.5, None)), temperatures(Configuration(0.5, 0.375))
        ('τ = 0.5', 'τ = 0.5, prior τ = 0.375')
    """
    tau, prior = configuration
    return f"τ = {tau:g}" + ("" if prior is None else f", prior τ = {prior:g}")


def place(dataset: str, architecture: str) -> str:
    """What a table is called: ``MNIST, linear``."""
    return f"{DATASETS.get(dataset, dataset)}, {ARCHITECTURES.get(architecture, architecture)}"


def _value(record: Record, split: str, metric: str) -> float | None:
    """A number of a record, if it has it."""
    found = record["metrics"].get(split, {}).get(metric)
    return None if found is None else float(found)


def sources(kind: str) -> dict[str, str]:
    """The ids of a table's rows, in its order, by the spec that their records are of.

    Example:
        >>> list(sources("relax").items())[1:3]  # doctest: +NORMALIZE_WHITESPACE
        [('table1/mnist/nonlinear/gs', 'relax/mnist/nonlinear/gs'),
         ('relax/mnist/nonlinear/igr-i+relax', 'relax/mnist/nonlinear/igr-i+relax')]
    """
    specs = [spec for spec in SPECS.values() if spec.id.startswith(f"{kind}/") and not isinstance(spec, Approximation)]
    return {spec.sources[0] if isinstance(spec, Derived) else spec.id: spec.id for spec in specs}


def cells(found: Sequence[tuple[Record, Path]]) -> list[Cell]:
    """The cells, in the order of the registry.

    Arguments:
        found: records of VAEs, each with the file that it is from.

    Raises:
        ReportError: two records of the same member are not the same.
    """
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


def _distinct(members: Sequence[tuple[Record, Path]]) -> tuple[Record, ...]:
    """Every member once, in order; a copy of a record is no second one."""
    kept: dict[tuple[float, float, int], tuple[Record, Path]] = {}
    for record, path in members:
        key = (record["tau"], record["prior_temperature"] or 0.0, record["seed"])
        other, place = kept.setdefault(key, (record, path))
        if other != record:
            raise ReportError(
                f"two records of {record['spec']} with τ = {record['tau']:g} and seed {record['seed']} differ: {place} "
                f"and {path}; remove one, or name the folder of the other with --records"
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
