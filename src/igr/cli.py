"""The ``igr`` command.

Nothing heavy is imported before a command needs it: ``igr --help`` loads neither torch nor matplotlib.
"""

import sys
from typing import TYPE_CHECKING, Annotated

from igr import __version__

if TYPE_CHECKING:
    import typer

__all__ = ["build_app", "main"]


def main() -> None:
    """Runs the command line; the entry point of ``igr`` and of ``python -m igr``.

    Note:
        This file imports next to nothing before, so that Ctrl-C is one line in the first moments too.
    """
    try:
        from igr._commands.common import needs, printing, replace_letters

        try:
            app = build_app()
        except ModuleNotFoundError as error:
            needs("the igr command", error)
        replace_letters()
        with printing():
            app(prog_name="igr")
    except KeyboardInterrupt:
        print("igr: interrupted", file=sys.stderr)
        sys.exit(130)  # as until_interrupted has it, which may not be there yet


def build_app() -> "typer.Typer":
    """The command line as a typer application."""
    import rich  # noqa: F401 (asked for here, so that a missing one is reported as a missing typer is)
    import typer

    from igr._commands import approximate, bench, data, demo, explore, lab, run
    from igr._commands import list as list_
    from igr._commands import report as report_

    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

    def show_version(asked: bool) -> None:
        if asked:
            typer.echo(f"igr {__version__}")
            raise typer.Exit

    @app.callback()
    def igr(
        version: Annotated[
            bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and exit.")
        ] = False,
    ) -> None:
        """Continuous relaxations of discrete distributions."""

    for command in (demo, list_, run, report_, data, approximate, lab, bench, explore):
        command.add(app)
    _fill(app)
    return app


def _fill(app: "typer.Typer") -> None:
    """Lets help wrap paragraphs as the terminal wants it; typer keeps the line breaks of docstrings."""
    import inspect

    for command in app.registered_commands:
        paragraphs = inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(" ".join(each.split()) for each in paragraphs.split("\n\n"))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _fill(group.typer_instance)
