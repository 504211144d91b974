"""Columns of tables, and tables of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from igr.paper.methods import METHODS
from igr.paper.report.cells import Cell, Summary
from igr.paper.report.document import ABSENT, Entry, Table, heading
from igr.paper.report.lines import Line, lines, number, sources
from igr.paper.report.notes import REMARKS, disagreements, incomparable, notes
from igr.paper.report.provenance import seconds, sharing
from igr.paper.report.words import CHOSEN_BY, place
from igr.paper.specs import SPECS, Trained

__all__ = [
    "Column",
    "chosen_by",
    "count",
    "difference",
    "failed",
    "grouped",
    "method",
    "metric",
    "minutes",
    "over_members",
    "paper",
    "prior_temperature",
    "rows_of",
    "sizes",
    "table",
    "tau",
]


class Column(NamedTuple):
    """A heading, with what is printed small after a bar, and how to fill it."""

    head: str
    entry: Callable[[Line], Entry]
    optional: bool = False
    """Whether to leave it out where it is empty."""


def grouped(
    kind: str, title: str, cells: Sequence[Cell], columns: Callable[[Sequence[Cell]], Sequence[Column]], words: int = 2
) -> list[Table]:
    """Tables of a kind of :data:`~igr.paper.report.words.KINDS`: one for each dataset and architecture with records.

    Arguments:
        kind: how ids of its rows begin.
        title: what its tables are called, before the place.
        cells: where its rows are read from.
        columns: those of a table of some of the cells.
        words: how many columns hold words.
    """
    every, tables = sources(kind), []
    groups = [id.rpartition("/")[0] for id in every.values()]
    groups += ["/".join(cell.group) for cell in cells if cell.kind == kind]
    for group in dict.fromkeys(groups):
        ids = {source: id for source, id in every.items() if id.rpartition("/")[0] == group}
        some = [cell for cell in cells if cell.spec in ids or "/".join(cell.group) == group]
        if some:
            rows = rows_of(ids, some)
            below = [*incomparable(rows), *REMARKS.get(kind, ()), *notes(some), *disagreements(rows)]
            tables.append(table(f"{title}: {place(*group.split('/')[1:])}", columns(some), rows, below, words))
    return tables


def rows_of(ids: dict[str, str], cells: Sequence[Cell]) -> list[Line]:
    """The rows of a table, whose ids come from those of cells; those without records only where the paper has them."""
    rows: list[Line] = []
    for source in dict.fromkeys([*ids, *(cell.spec for cell in cells)]):
        found = [cell for cell in cells if cell.spec == source]
        rows.extend(line for cell in found for line in lines(cell, ids.get(source)))
        if not found and SPECS[ids[source]].paper is not None and isinstance(spec := SPECS[source], Trained):
            rows.append(Line(ids[source], spec.label, spec.method, None))
    return rows


def table(title: str, columns: Sequence[Column], rows: Sequence[Line], below: Sequence[str], words: int = 2) -> Table:
    """The table of these columns, without those that may be left out and are empty."""
    filled = [(column, [column.entry(line) for line in rows]) for column in columns]
    kept = [each for each in filled if not each[0].optional or any(entry.text != ABSENT for entry in each[1])]
    head = tuple(heading(column.head) for column, _ in kept)
    return Table(title, head, tuple(zip(*(entries for _, entries in kept), strict=True)), words, tuple(below))


def sizes(cells: Sequence[Cell]) -> str:
    """The number of samples that likelihoods are of, in words: cells may have several."""
    return " or ".join(map(str, sorted({cell.settings.get("evaluation", {}).get("m", 1000) for cell in cells})))


def method(line: Line) -> Entry:
    """What is trained, behind its colour."""
    return Entry(line.label, METHODS[line.method].colour, "no records yet" if line.cell is None else "")


def chosen_by(line: Line) -> Entry:
    """The criterion."""
    return Entry(CHOSEN_BY.get(line.criterion, ABSENT))


def tau(line: Line) -> Entry:
    """The temperature that was chosen."""
    if line.cell is None or line.configuration is None or not line.cell.tempered:
        return Entry(ABSENT)
    return Entry(f"{line.configuration.tau:g}")


def prior_temperature(line: Line) -> Entry:
    """That of the prior, if it has one."""
    prior = None if line.configuration is None else line.configuration.prior_temperature
    return Entry(ABSENT if prior is None else f"{prior:g}")


def count(line: Line) -> Entry:
    """How many seeds there are."""
    if line.cell is None or line.configuration is None:
        return Entry(ABSENT)
    n, all = len(line.cell.finished(line.configuration)), len(line.cell.members(line.configuration))
    return Entry(f"{n}" if n == all else f"{n} of {all}")


def failed(line: Line) -> Entry:
    """How many members diverged, of any configuration."""
    return Entry(ABSENT if line.cell is None else f"{line.cell.failed} of {len(line.cell.records)}")


def minutes(line: Line) -> Entry:
    """How long it took to train all members, and to evaluate them."""
    if line.cell is None or None in (spent := seconds(line.cell)):
        return Entry(ABSENT)
    beside = f", shared by {n} runs" if (n := sharing(line.cell)) > 1 else ""
    return Entry(f"{sum(filter(None, spent)) / 60:.1f}{beside}")


def paper(line: Line) -> Entry:
    """The paper's number."""
    if line.paper is None:
        return Entry(ABSENT)
    return Entry(f"{number(line.paper.value)} ± {line.paper.sd:.2f}", bold=line.paper.bold)


def metric(split: str, name: str) -> Callable[[Line], Entry]:
    """Mean and deviation of a metric."""
    return over_members(lambda line: line.summary(split, name))


def over_members(summary: Callable[[Line], Summary | None]) -> Callable[[Line], Entry]:
    """Mean and deviation of anything, and of how many, if not of all."""

    def entry(line: Line) -> Entry:
        found = summary(line)
        if found is None or line.cell is None or line.configuration is None:
            return Entry(ABSENT)
        text = number(found.mean) + ("" if found.sd is None else f" ± {found.sd:.2f}")
        every = found.n == len(line.cell.finished(line.configuration))
        return Entry(text, end="" if every else f"n\u00a0=\u00a0{found.n}")

    return entry


def difference(split: str, name: str) -> Callable[[Line], Entry]:
    """A metric's mean minus the paper's number, where they are comparable."""

    def entry(line: Line) -> Entry:
        found = line.summary(split, name)
        if found is None or line.paper is None or line.incomparable:
            return Entry(ABSENT)
        return Entry(number(found.mean - line.paper.value, sign=True))

    return entry
