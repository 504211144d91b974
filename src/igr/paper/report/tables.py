"""The paper's tables beside ours, from cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from igr.paper.report.cells import Cell
from igr.paper.report.columns import (
    Column,
    chosen_by,
    count,
    difference,
    failed,
    grouped,
    method,
    metric,
    minutes,
    paper,
    prior_temperature,
    rows_of,
    sizes,
    table,
    tau,
)
from igr.paper.report.document import ABSENT, Entry, Table, heading
from igr.paper.report.lines import Line, lines, sources
from igr.paper.report.notes import incomparable
from igr.paper.report.words import place

__all__ = ["SHORT", "TITLES", "bridge", "published", "tested", "train_elbos"]

TITLES = {"table1": "Table 1", "relax": "RELAX", "s4": "Four samples", "beyond": "Beyond the paper"}


def tested(kind: str, cells: Sequence[Cell]) -> list[Table]:
    """Numbers on the test split of a kind of :data:`TITLES`: a table for each dataset and architecture with records."""

    def columns(some: Sequence[Cell]) -> list[Column]:
        return _elbo_columns(some) if kind == "s4" else _likelihood_columns(some, kind)

    return grouped(kind, TITLES[kind], cells, columns)


def train_elbos(cells: Sequence[Cell]) -> list[Table]:
    """The table of discretized train ELBOs, a part for each dataset with records."""
    every, tables = sources("train-elbo"), []
    for dataset in dict.fromkeys(id.split("/")[1] for id in every.values()):
        ids = {source: id for source, id in every.items() if id.split("/")[1] == dataset}
        some = [cell for cell in cells if cell.spec in ids]
        if some:
            title = f"Discretized train ELBO: {place(dataset, 'linear')}"
            rows = rows_of(ids, some)
            tables.append(table(title, TRAIN_COLUMNS, rows, incomparable(rows)))
    return tables


def _sizes(cell: Cell) -> tuple[int, int]:
    """The smaller and the larger S of the published formula."""
    evaluation = cell.settings.get("evaluation", {})
    small, large = evaluation.get("published", 100), evaluation.get("m", 1000)
    return min(small, large), large


def bridge(cells: Sequence[Cell]) -> Table | None:
    """Cells under protocol published beside the same under protocol honest, for each way to choose τ, if there are."""
    numbers = ("{} τ", "{} formula|not a bound", "{} Δ", "{} bound")
    head = ("method", "τ chosen by", "paper", *(each.format("published") for each in numbers))
    head += tuple(each.format("honest") for each in numbers)
    entries = (tau, _published(1, metric), _published(1, difference), metric("test", "log_likelihood"))
    rows: list[tuple[Entry, ...]] = []
    for cell in (cell for cell in cells if cell.protocol == "published"):
        twins = [twin for twin in cells if (twin.spec, twin.protocol) == (cell.spec, "honest")]
        for line in lines(cell):
            other = next((each for twin in twins for each in lines(twin) if each.criterion == line.criterion), None)
            beside = [Entry(ABSENT) if other is None else entry(other) for entry in entries]
            ours = [entry(line) for entry in entries]
            rows.append((method(line), chosen_by(line), paper(line), *ours, *beside))
    title = "The bridge: from the paper to protocol published to protocol honest, by the published formula"
    return Table(title, tuple(map(heading, head)), tuple(rows), 2) if rows else None


def published(cell: Cell, which: int = 1) -> str:
    """The metric of the published formula, with the larger S if nothing else is said."""
    return f"log_likelihood_published_{_sizes(cell)[which]}"


def _published(which: int, entry: Callable[[str, str], Callable[[Line], Entry]]) -> Callable[[Line], Entry]:
    """A column of the published formula, whose number of samples is in its metric's name."""

    def filled(line: Line) -> Entry:
        if line.cell is None:
            return Entry(ABSENT)
        return entry("test", published(line.cell, which))(line)

    return filled


FIRST = (
    Column("method", method),
    Column("τ chosen by", chosen_by),
    Column("τ", tau),
    Column("prior τ|GS", prior_temperature, optional=True),
    Column("n", count),
)
TRAIN_COLUMNS = (
    *FIRST,
    Column("paper", paper),
    Column("discrete ELBO|train", metric("train", "elbo_discrete")),
    Column("Δ|to the paper", difference("train", "elbo_discrete")),
)
SHORT = (
    Column("method", method),
    Column("τ by", lambda line: Entry(chosen_by(line).text.removeprefix("discrete "))),
    Column("τ", tau),
    Column("prior τ", prior_temperature),
    Column("n", count),
    Column("discrete ELBO", metric("test", "elbo_discrete")),
    Column("bound", metric("test", "log_likelihood")),
    Column("published*", _published(1, metric)),
    Column("paper", paper),
)


def _elbo_columns(cells: Sequence[Cell]) -> list[Column]:
    return [
        *FIRST,
        Column("paper", paper),
        Column("discrete ELBO|test", metric("test", "elbo_discrete")),
        Column("Δ|to the paper", difference("test", "elbo_discrete")),
        Column("discrete ELBO|train", metric("train", "elbo_discrete")),
        Column("continuous ELBO|test", metric("test", "elbo_continuous"), optional=True),
        Column(f"bound|m = {sizes(cells)}", metric("test", "log_likelihood")),
        Column("failed|of all members", failed),
        Column("minutes|of all members", minutes),
    ]


def _likelihood_columns(cells: Sequence[Cell], kind: str) -> list[Column]:
    small, large = " or ".join(map(str, sorted({_sizes(cell)[0] for cell in cells}))), sizes(cells)
    evaluations = [cell.settings.get("evaluation", {}) for cell in cells]
    subsets = sorted({each["ais_images"] for each in evaluations if "ais_images" in each})
    subset = f"{' or '.join(map(str, subsets))} images" if subsets else "on a subset"
    return [
        *FIRST,
        Column("paper", paper, optional=kind in ("relax", "beyond")),
        Column(f"published formula, S\u00a0=\u00a0{small}|not a bound", _published(0, metric)),
        Column(f"published formula, S\u00a0=\u00a0{large}|not a bound", _published(1, metric)),
        Column("Δ|to the paper", _published(1, difference), optional=kind in ("relax", "beyond")),
        Column(f"bound|m = {large}", metric("test", "log_likelihood")),
        Column("discrete ELBO|test", metric("test", "elbo_discrete")),
        *([] if kind == "table1" else [Column("discrete ELBO|train", metric("train", "elbo_discrete"))]),
        Column(f"AIS|{subset}", metric("test", "log_likelihood_ais"), optional=True),
        Column("bound|same images", metric("test", "log_likelihood_subset"), optional=True),
        Column("failed|of all members", failed),
        Column("minutes|of all members", minutes),
    ]
