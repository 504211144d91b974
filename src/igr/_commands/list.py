"""``igr list``: every table cell and figure, what the paper has for it, and what the records have."""

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from igr._commands.common import USUAL, show, until_interrupted, usual_records

if TYPE_CHECKING:
    import typer
    from rich.table import Table

    from igr.paper.records import Record
    from igr.paper.report.cells import Cell
    from igr.paper.specs import Spec

    Found = dict[str, list[tuple[Record, Path]]]

TITLES = {
    "table1": "table1: test log-likelihood (ours: bound of the selected τ)",
    "train-elbo": "train-elbo: discretized train ELBO, read from table1",
    "figure": "figure: read from table1",
    "sop": "sop: lower halves of images from upper ones, test log-likelihood (ours: of the selected τ)",
    "nonparametric": "nonparametric: mixtures (ours: bound, of the selected K; the paper: one-sample objective)",
    "relax": "relax: test log-likelihood with RELAX (ours: bound of the selected τ)",
    "s4": "s4: test ELBO, four samples (ours: discrete ELBO of the selected τ)",
    "approximate": "approximate: discrete distributions (ours: lowest total variation after training)",
    "beyond": "beyond: rows that the paper does not have (ours: bound of the selected τ)",
}
NOTE = "Times are estimates: training on one H200, approximations on one core. Run one with: igr run ID"


def add(app: "typer.Typer") -> None:
    """Registers the command."""
    import typer

    @app.command(name="list")
    def list_(
        pattern: Annotated[
            list[str] | None, typer.Argument(metavar="PATTERN", help="Ids, or patterns: 'table1/mnist/*'.")
        ] = None,
        records: Annotated[
            list[Path] | None,
            typer.Option(
                help="Folder with records; may be repeated.",
                exists=True,
                file_okay=False,
                metavar="DIR",
                show_default=USUAL,
            ),
        ] = None,
    ) -> None:
        """List every table cell and figure: its id, the paper's number, what is recorded, and about how long it takes.

        Piped, it prints one a line, separated by tabs: id, label, the paper's number, how many records there are, what
        they say, minutes, description.
        """
        from igr.paper.specs import SPECS, SpecError, find

        with until_interrupted():
            try:
                specs = find(pattern) if pattern else list(SPECS.values())
            except SpecError as error:
                raise typer.BadParameter(str(error), param_hint="PATTERN") from error
            folders = records or [usual_records()]
            rows = list(_rows(specs, _read(folders)))
            if sys.stdout is not None and sys.stdout.isatty():
                _print(rows)
            else:
                print("\n".join("\t".join(row.cells()) for row in rows))


class Row(NamedTuple):
    """A spec, how many records it has, and what they say."""

    spec: "Spec"
    records: int
    ours: str

    def cells(self) -> list[str]:
        """All there is to say, as text; nothing where there is nothing."""
        spec = self.spec
        paper = "" if spec.paper is None else str(spec.paper)
        records = str(self.records) if self.records else ""
        return [spec.id, spec.label, paper, records, self.ours, f"{spec.minutes:.2f}", spec.description]


def _read(folders: Sequence[Path]) -> "Found":
    """The records of real runs by spec, each with its file; one that cannot be read is reported and left out."""
    from igr.paper.records import RecordError, read

    found: Found = {}
    files = (file.resolve() for folder in folders for file in sorted(folder.rglob("records.jsonl")))
    for file in dict.fromkeys(files):
        try:
            for record in read(file):
                if record["smoke"] is False:
                    found.setdefault(record["spec"], []).append((record, file))
        except (OSError, RecordError) as error:
            print(f"igr: left out: {error}", file=sys.stderr)
    return found


def _rows(specs: "Sequence[Spec]", records: "Found") -> Iterator[Row]:
    from igr.paper.specs import Approximation, Derived

    cells = {id: _cells(found) for id, found in records.items()}
    for spec in specs:
        sources = getattr(spec, "sources", (spec.id,))
        found = [record for id in sources for record, _ in records.get(id, ())]
        if isinstance(spec, Derived):
            where, *name = spec.reads.split(".")
            ours = _mean(cells.get(sources[0], ()), *name) if where == "metrics" else ""
        elif isinstance(spec, Approximation):
            fits = [record.get("metrics") or {} for record in found if record["protocol"] == "paper"]
            ours = f"TV {min(there):.2g}" if (there := [fit["tv"] for fit in fits if "tv" in fit]) else ""
        else:
            metric = "elbo_discrete" if spec.id.startswith("s4/") else "log_likelihood"
            ours = _mean(cells.get(spec.id, ()), "test", metric)
        yield Row(spec, len(found), ours)


def _cells(found: "Sequence[tuple[Record, Path]]") -> "Sequence[Cell]":
    """The records of a spec, by settings, protocol and device; what contradicts itself is reported and left out."""
    from igr.paper.report import ReportError
    from igr.paper.report.collect import split

    try:
        return split(found).cells
    except ReportError as error:
        print(f"igr: left out: {error}", file=sys.stderr)
        return ()


def _mean(cells: "Sequence[Cell]", split: str, metric: str) -> str:
    """Mean and deviation over seeds, at the τ or K that the metric has chosen.

    Of several cells an honest one, rather one with the spec's own seeds, and of these the best.
    """
    found: list[tuple[bool, bool, float, str]] = []
    for cell in cells:
        own = cell.with_own_seeds()
        some = own or cell
        if (ours := some.summary(some.chosen(metric), split, metric)) is not None:
            found.append((cell.protocol == "honest", own is not None, ours.mean, str(ours)))
    return max(found)[-1] if found else ""


def _print(rows: Sequence[Row]) -> None:
    """A table for each kind, in sections."""
    from igr.paper.specs import SPECS, TIMES_MADE

    for kind, group in groupby(rows, key=lambda row: row.spec.id.partition("/")[0]):
        show(_table(TITLES.get(kind, kind), list(group)), "")
    show(NOTE)
    if len(rows) == len(SPECS):
        show(f"Not listed: {TIMES_MADE}")


def _table(title: str, rows: Sequence[Row]) -> "Table":
    """In sections, and without columns that would be empty."""
    from rich.table import Table

    headings = ("id", "label", "paper", "records", "ours", "time")
    cells = [[*row.cells()[:5], _time(row.spec.minutes)] for row in rows]
    used = [column for column in range(len(headings)) if any(row[column] for row in cells)]
    table = Table(title=title, title_justify="left", title_style="bold", box=None, header_style="dim", pad_edge=False)
    for column in used:
        name = headings[column]
        table.add_column(name, justify="left" if column < 2 else "right", overflow="fold", no_wrap=name != "label")
    sections = [row.spec.id.rpartition("/")[0] for row in rows]
    for row, section, before in zip(cells, sections, [sections[0], *sections], strict=False):
        if section != before:
            table.add_row()
        table.add_row(*(row[column] for column in used))
    return table


def _time(minutes: float) -> str:
    """In words, roughly."""
    if minutes == 0:
        return "none"
    return f"{60 * minutes:.0f} s" if minutes < 1 else f"{minutes:.0f} min"
