"""The paper's tables beside ours, from cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from igr.paper.methods import METHODS
from igr.paper.report.cells import CHOSEN_BY, Cell, place, sources
from igr.paper.report.document import ABSENT, Entry, Table, heading
from igr.paper.report.lines import Line, lines, number
from igr.paper.report.notes import REMARKS, disagreements, incomparable, notes
from igr.paper.specs import SPECS, Vae

__all__ = ["SHORT_COLUMNS", "TITLES", "tested", "train_elbos"]

TITLES = {"table1": "Table 1", "relax": "RELAX", "s4": "Four samples", "beyond": "Beyond the paper"}


class Column(NamedTuple):
    """A heading, with what is printed small after a bar, and how to fill it."""

    head: str
    entry: Callable[[Line], Entry]
    optional: bool = False
    """Whether to leave it out where it is empty."""


def tested(kind: str, cells: Sequence[Cell]) -> list[Table]:
    """Numbers on the test split of a kind of :data:`TITLES`: a table for each dataset and architecture with records."""
    every, tables = sources(kind), []
    groups = [id.rpartition("/")[0] for id in every.values()]
    groups += ["/".join(cell.group) for cell in cells if cell.group[0] == kind]
    for group in dict.fromkeys(groups):
        ids = {source: id for source, id in every.items() if id.rpartition("/")[0] == group}
        some = [cell for cell in cells if cell.spec in ids or "/".join(cell.group) == group]
        if some:
            rows = _rows(ids, some, absent=kind != "beyond")
            title = f"{TITLES[kind]}: {place(*group.split('/')[1:])}"
            below = [*incomparable(rows), *REMARKS.get(kind, ()), *notes(some), *disagreements(rows)]
            columns = _elbo_columns(some) if kind == "s4" else _likelihood_columns(some, kind)
            tables.append(_table(title, columns, rows, below))
    return tables


def train_elbos(cells: Sequence[Cell]) -> list[Table]:
    """The table of discretized train ELBOs, a part for each dataset with records."""
    every, tables = sources("train-elbo"), []
    for dataset in dict.fromkeys(id.split("/")[1] for id in every.values()):
        ids = {source: id for source, id in every.items() if id.split("/")[1] == dataset}
        some = [cell for cell in cells if cell.spec in ids]
        if some:
            title = f"Discretized train ELBO: {place(dataset, 'linear')}"
            rows = _rows(ids, some, absent=True)
            tables.append(_table(title, TRAIN_COLUMNS, rows, incomparable(rows)))
    return tables


def _rows(ids: dict[str, str], cells: Sequence[Cell], *, absent: bool) -> list[Line]:
    """The rows of a table, whose ids come from those of cells; cells without records only if ``absent``."""
    rows: list[Line] = []
    for source in dict.fromkeys([*ids, *(cell.spec for cell in cells)]):
        found = [cell for cell in cells if cell.spec == source]
        rows.extend(line for cell in found for line in lines(cell, ids.get(source)))
        if not found and absent and isinstance(spec := SPECS[source], Vae):
            rows.append(Line(ids[source], spec.label, spec.method, None))
    return rows


def _table(title: str, columns: Sequence[Column], rows: Sequence[Line], below: Sequence[str]) -> Table:
    filled = [(column, [column.entry(line) for line in rows]) for column in columns]
    kept = [each for each in filled if not each[0].optional or any(entry.text != ABSENT for entry in each[1])]
    head = tuple(heading(column.head) for column, _ in kept)
    return Table(title, head, tuple(zip(*(entries for _, entries in kept), strict=True)), 2, tuple(below))


def _method(line: Line) -> Entry:
    return Entry(line.label, METHODS[line.method].colour, "no records yet" if line.cell is None else "")


def _chosen_by(line: Line) -> Entry:
    return Entry(CHOSEN_BY.get(line.criterion, ABSENT))


def _tau(line: Line) -> Entry:
    if line.cell is None or line.configuration is None or not line.cell.tempered:
        return Entry(ABSENT)
    return Entry(f"{line.configuration.tau:g}")


def _prior_temperature(line: Line) -> Entry:
    prior = None if line.configuration is None else line.configuration.prior_temperature
    return Entry(ABSENT if prior is None else f"{prior:g}")


def _count(line: Line) -> Entry:
    if line.cell is None or line.configuration is None:
        return Entry(ABSENT)
    n, all = len(line.cell.finished(line.configuration)), len(line.cell.members(line.configuration))
    return Entry(f"{n}" if n == all else f"{n} of {all}")


def _failed(line: Line) -> Entry:
    return Entry(ABSENT if line.cell is None else f"{line.cell.failed} of {len(line.cell.records)}")


def _paper(line: Line) -> Entry:
    if line.paper is None:
        return Entry(ABSENT)
    return Entry(f"{number(line.paper.value)} ± {line.paper.sd:.2f}", bold=line.paper.bold)


def _metric(split: str, metric: str) -> Callable[[Line], Entry]:
    def entry(line: Line) -> Entry:
        found = line.summary(split, metric)
        if found is None or line.cell is None or line.configuration is None:
            return Entry(ABSENT)
        text = number(found.mean) + ("" if found.sd is None else f" ± {found.sd:.2f}")
        every = found.n == len(line.cell.finished(line.configuration))
        return Entry(text, end="" if every else f"n\u00a0=\u00a0{found.n}")

    return entry


def _sizes(cell: Cell) -> tuple[int, int]:
    """The smaller and the larger S of the published formula."""
    evaluation = cell.settings.get("evaluation", {})
    small, large = evaluation.get("published", 100), evaluation.get("m", 1000)
    return min(small, large), large


def _published(which: int, entry: Callable[[str, str], Callable[[Line], Entry]]) -> Callable[[Line], Entry]:
    """A column of the published formula, whose number of samples is in its metric's name."""

    def filled(line: Line) -> Entry:
        if line.cell is None:
            return Entry(ABSENT)
        return entry("test", f"log_likelihood_published_{_sizes(line.cell)[which]}")(line)

    return filled


def _difference(split: str, metric: str) -> Callable[[Line], Entry]:
    def entry(line: Line) -> Entry:
        found = line.summary(split, metric)
        if found is None or line.paper is None or line.incomparable:
            return Entry(ABSENT)
        return Entry(number(found.mean - line.paper.value, sign=True))

    return entry


FIRST = (
    Column("method", _method),
    Column("τ chosen by", _chosen_by),
    Column("τ", _tau),
    Column("prior τ|GS", _prior_temperature, optional=True),
    Column("n", _count),
)
TRAIN_COLUMNS = (
    *FIRST,
    Column("paper", _paper),
    Column("discrete ELBO|train", _metric("train", "elbo_discrete")),
    Column("Δ|to the paper", _difference("train", "elbo_discrete")),
)
SHORT_COLUMNS = (
    Column("method", _method),
    Column("τ by", lambda line: Entry(_chosen_by(line).text.removeprefix("discrete "))),
    Column("τ", _tau),
    Column("prior τ", _prior_temperature),
    Column("n", _count),
    Column("discrete ELBO", _metric("test", "elbo_discrete")),
    Column("bound", _metric("test", "log_likelihood")),
    Column("published*", _published(1, _metric)),
    Column("paper", _paper),
)


def _all_sizes(cells: Sequence[Cell]) -> tuple[str, str]:
    """The numbers of samples in words, where cells may have several."""
    small, large = (" or ".join(map(str, sorted(set(each)))) for each in zip(*map(_sizes, cells), strict=True))
    return small, large


def _elbo_columns(cells: Sequence[Cell]) -> list[Column]:
    return [
        *FIRST,
        Column("paper", _paper),
        Column("discrete ELBO|test", _metric("test", "elbo_discrete")),
        Column("Δ|to the paper", _difference("test", "elbo_discrete")),
        Column("continuous ELBO|test", _metric("test", "elbo_continuous"), optional=True),
        Column(f"bound|m = {_all_sizes(cells)[1]}", _metric("test", "log_likelihood")),
        Column("failed|of all members", _failed),
    ]


def _likelihood_columns(cells: Sequence[Cell], kind: str) -> list[Column]:
    small, large = _all_sizes(cells)
    evaluations = [cell.settings.get("evaluation", {}) for cell in cells]
    subsets = sorted({each["ais_images"] for each in evaluations if "ais_images" in each})
    subset = f"{' or '.join(map(str, subsets))} images" if subsets else "on a subset"
    return [
        *FIRST,
        Column("paper", _paper, optional=kind in ("relax", "beyond")),
        Column(f"published formula, S\u00a0=\u00a0{small}|not a bound", _published(0, _metric)),
        Column(f"published formula, S\u00a0=\u00a0{large}|not a bound", _published(1, _metric)),
        Column("Δ|to the paper", _published(1, _difference), optional=kind in ("relax", "beyond")),
        Column(f"bound|m = {large}", _metric("test", "log_likelihood")),
        Column("discrete ELBO|test", _metric("test", "elbo_discrete")),
        Column(f"AIS|{subset}", _metric("test", "log_likelihood_ais"), optional=True),
        Column("bound|same images", _metric("test", "log_likelihood_subset"), optional=True),
        Column("failed|of all members", _failed),
    ]
