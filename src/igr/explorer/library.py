"""The reproduction's tables and curves, as the explorer asks for them; all of it is read by :mod:`igr.paper.report`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from igr.explorer.figures import Band
from igr.paper.report import Records, ReportError, collect, mixtures, sop, tables
from igr.paper.report.cells import Cell
from igr.paper.report.content import compose
from igr.paper.report.document import Table
from igr.paper.report.figures import Course, curve_of
from igr.paper.report.lines import sources
from igr.paper.report.words import DATASETS, place

__all__ = ["COURSES", "Library", "Shown"]

COURSES = {  # what curves of records are called, those first that are shown first
    "elbo_continuous": "continuous ELBO (nats)",
    "elbo_discrete": "discrete ELBO (nats)",
    "log_likelihood_10": "log-likelihood by 10 discrete samples (nats)",
    "elbo": "joint bound (nats)",
    "train_loss": "training objective (nats; less is better)",
}
KIND_OF = {title: kind for kind, title in tables.TITLES.items()} | {
    sop.TITLE: sop.KIND,
    mixtures.TITLE: mixtures.KIND,
    "Discretized train ELBO": "train-elbo",
}
PROTOCOL = "Protocol "  # how sections of another protocol than honest begin


@dataclass(frozen=True)
class Shown:
    """A table of the report, with the title of its section."""

    section: str
    table: Table

    @property
    def places(self) -> tuple[str, str]:
        """Data set and architecture, or nothing: ``("MNIST", "linear")``, ``("MNIST", "")``, ``("", "")``."""
        dataset, _, architecture = self.table.title.partition(": ")[2].partition(", ")
        return (dataset, architecture) if dataset in DATASETS.values() else ("", "")

    @property
    def name(self) -> str:
        """What is common to tables of several places."""
        title = self.table.title.partition(": ")[0] if self.places[0] else self.table.title
        return f"{title}, protocol {self.protocol}" if self.protocol != "honest" else title

    @property
    def protocol(self) -> str:
        """Under which its models were trained."""
        if self.section.startswith(PROTOCOL):
            return self.section.removeprefix(PROTOCOL)
        return self.section.partition(", protocol ")[2] or "honest"


@dataclass(frozen=True)
class Library:
    """The records of a folder, read once they are asked for."""

    folder: Path

    @cached_property
    def found(self) -> Records | str:
        """The records, or why there are none."""
        try:
            return collect([self.folder])
        except ReportError as error:
            return str(error).replace("--records", "--results")  # the option here

    @cached_property
    def tables(self) -> tuple[Shown, ...]:
        """Every table of the report."""
        if isinstance(self.found, str):
            return ()
        sections = compose(self.found).sections
        return tuple(Shown(each.title, block) for each in sections for block in each.blocks if isinstance(block, Table))

    def table(self, name: str, dataset: str, architecture: str) -> Shown | None:
        """The table of that name and place, if there is one."""
        wanted = (name, (dataset, architecture))
        return next((each for each in self.tables if (each.name, each.places) == wanted), None)

    def cells(self, shown: Shown) -> list[Cell]:
        """The cells that a table's rows are read from, if it is of trained models."""
        kind = KIND_OF.get(shown.table.title.partition(": ")[0])
        if isinstance(self.found, str) or kind is None:
            return []
        ids, where = sources(kind), ", ".join(filter(None, shown.places))
        return [
            cell
            for cell in self.found.cells
            if cell.spec in ids
            and cell.protocol == shown.protocol
            and (kind == "train-elbo" or place(*ids[cell.spec].split("/")[1:-1]) == where)
        ]

    def curves(self, shown: Shown) -> list[str]:
        """The names of curves, of :data:`COURSES`, that some of a table's cells have."""
        return [name for name in COURSES if self.bands(shown, name)]

    def bands(self, shown: Shown, name: str) -> list[Band]:
        """A curve of every cell that has it: over the seeds of the configuration that its first criterion chose."""
        made = []
        for cell in self.cells(shown):
            curve = curve_of(cell, Course(name, COURSES[name], cell.criteria[0]), name)
            if curve is not None:
                made.append(Band(cell.label, cell.method, curve))
        return made
