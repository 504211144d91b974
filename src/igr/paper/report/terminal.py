"""The short tables that a command ends with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Group
from rich.table import Table
from rich.text import Text

from igr.paper.methods import METHODS
from igr.paper.records import Record
from igr.paper.report import mixtures, sop, tables
from igr.paper.report.cells import Cell
from igr.paper.report.collect import split
from igr.paper.report.columns import Column
from igr.paper.report.document import SMOKE
from igr.paper.report.lines import lines

__all__ = ["terminal_table"]

CAPTION = "Test split, nats: mean ± standard deviation over n seeds. * The published formula is not a bound."


def terminal_table(records: Sequence[Record]) -> Group:
    """A line for each cell among the records and each way to choose: a table of VAEs, and of each other kind.

    Raises:
        ReportError: shortened records are mixed with real ones, or two of the same member differ.
    """
    found = split([(record, Path("records")) for record in records])
    kinds = [(kind.KIND, kind.SHORT, kind.CAPTION) for kind in (sop, mixtures)]
    others = {name for name, _, _ in kinds}
    made = [_table([cell for cell in found.cells if cell.kind not in others], tables.SHORT, CAPTION, words=2)]
    for name, columns, caption in kinds:
        made.append(_table([cell for cell in found.cells if cell.kind == name], columns, caption, words=1))
    shown = [table for table in made if table.row_count]
    if found.smoke and shown:
        shown[0].title = SMOKE
    return Group(*shown)


def _table(cells: Sequence[Cell], columns: Sequence[Column], caption: str, words: int) -> Table:
    table = Table(caption=caption, box=None, header_style="bold", pad_edge=False)
    table.title_justify = table.caption_justify = "left"
    for i, column in enumerate(columns):
        table.add_column(column.head, justify="left" if i < words else "right", no_wrap=True)
    for where in dict.fromkeys(cell.where for cell in cells):
        short = where.removesuffix(", protocol honest").replace("protocol ", "").replace("beyond the paper", "beyond")
        table.add_row(Text(short, style="bold"))
        for line in (line for cell in cells if cell.where == where for line in lines(cell)):
            first, *rest = (str(column.entry(line)) for column in columns)
            table.add_row(Text(f"  {first}", style=METHODS[line.method].colour), *rest)
    return table
