"""``igr report``: every table and figure, from records alone."""

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from igr._commands.common import USUAL, needs, progress, show, until_interrupted, usual_records, writing

if TYPE_CHECKING:
    import typer


def add(app: "typer.Typer") -> None:
    """Registers the command."""
    import typer

    @app.command()
    def report(
        records: Annotated[
            list[Path] | None,
            typer.Option(
                help="Folder with records, at any depth; may be repeated.",
                show_default=USUAL,
                metavar="DIR",
            ),
        ] = None,
        out: Annotated[Path, typer.Option(help="Folder for the report.", file_okay=False)] = Path("runs/report"),
        page: Annotated[
            Path | None,
            typer.Option(
                help="Write the page of the reproduction there, such as docs/reproduction.md, with claims.md beside it "
                "and figures below images/, and not the report.",
                dir_okay=False,
                metavar="FILE",
            ),
        ] = None,
    ) -> None:
        """Make tables and figures of all records: one HTML page, and the same as Markdown.

        Nothing is computed anew, and torch is not needed. Smoke records are not mixed with real ones.
        """
        folders = records or [usual_records()]
        with until_interrupted(), progress() as tell:
            try:
                from igr.paper.report import ReportError, collect, publish, terminal_table, write_pages

                tell("reading records", 0)
                found = collect(folders)
                announce = functools.partial(tell, steps=0)
                if page is not None:
                    with writing(page.parent, "--page"):
                        pages = write_pages(found, page, announce)
                else:
                    with writing(out):
                        made = publish(found, out, announce)
            except ModuleNotFoundError as error:
                needs("igr report", error)
            except ReportError as error:
                print(f"igr: {error}", file=sys.stderr)
                sys.exit(1)
        if page is not None:
            typer.echo(f"The pages are {pages.page} and {pages.claims}")
            return
        if found.cells:
            show(terminal_table(found.all))
        typer.echo(f"The report is in {made.html}")
