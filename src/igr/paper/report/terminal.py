"""The short table that a command ends with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from igr.paper.methods import METHODS
from igr.paper.records import Record
from igr.paper.report.collect import split
from igr.paper.report.document import SMOKE
from igr.paper.report.lines import lines
from igr.paper.report.tables import SHORT_COLUMNS

__all__ = ["terminal_table"]

CAPTION = "Test split, nats: mean ± standard deviation over n seeds. * The published formula is not a bound."


def terminal_table(records: Sequence[Record]) -> Table:
    """Two lines for each cell among the records, one for each way to choose τ.

    Raises:
        ReportError: shortened records are mixed with real ones, or two of the same member differ.
    """
    found = split([(record, Path("records")) for record in records])
    table = Table(title=SMOKE if found.smoke else None, caption=CAPTION, box=None, header_style="bold", pad_edge=False)
    table.title_justify = table.caption_justify = "left"
    for i, column in enumerate(SHORT_COLUMNS):
        table.add_column(column.head, justify="left" if i < 2 else "right", no_wrap=i == 0)
    for where in dict.fromkeys(cell.where for cell in found.cells):
        short = where.removesuffix(", protocol honest").replace("protocol ", "").replace("beyond the paper", "beyond")
        table.add_row(Text(short, style="bold"))
        for line in (line for cell in found.cells if cell.where == where for line in lines(cell)):
            first, *rest = (str(column.entry(line)) for column in SHORT_COLUMNS)
            table.add_row(Text(f"  {first}", style=METHODS[line.method].colour), *rest)
    return table
