"""The ``igr`` command.

Nothing heavy is imported before a command needs it: ``igr --help`` loads neither torch nor matplotlib.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from igr import __version__

if TYPE_CHECKING:
    import torch
    import typer

__all__ = ["build_app", "main"]

INTERRUPTED = 130  # what shells report for a process that Ctrl-C ended


def main() -> None:
    """Runs the command line; the entry point of ``igr`` and of ``python -m igr``."""
    try:
        app = build_app()
    except ModuleNotFoundError as error:
        _needs("the igr command", error)
    app(prog_name="igr")


def build_app() -> "typer.Typer":
    """The command line as a typer application."""
    import rich  # noqa: F401 (asked for here, so that a missing one is reported as a missing typer is)
    import typer

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

    _add_demo(app)
    return app


def _add_demo(app: "typer.Typer") -> None:
    import typer

    @app.command()
    def demo(
        out: Annotated[Path, typer.Option(help="Folder for the picture.", file_okay=False)] = Path("runs/demo"),
        seed: Annotated[int, typer.Option(help="Seed of the samples.", min=0, max=2**63 - 1)] = 0,
        device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, ...")] = "cpu",
    ) -> None:
        """Draw densities and samples of four relaxations on the simplex, in a few seconds."""
        with _until_interrupted(), _progress() as report:
            report("importing torch", 0)
            try:
                from igr.paper import demo as figure
            except ModuleNotFoundError as error:
                _needs("igr demo", error)
            where = _device(device)
            path = out / "simplex.png"
            try:
                out.mkdir(parents=True, exist_ok=True)
                figure.create(path, seed, where, lambda words: report(words, figure.STEPS))
            except OSError as error:
                raise typer.BadParameter(
                    f"cannot write {path}: {error.strerror or error}", param_hint="--out"
                ) from error
        typer.echo(f"The picture is in {path}")


@contextmanager
def _until_interrupted() -> Iterator[None]:
    """Ctrl-C ends the command with one line and status 130."""
    try:
        yield
    except KeyboardInterrupt:
        print("igr: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


@contextmanager
def _progress() -> Iterator[Callable[[str, int], None]]:
    """A progress bar on a terminal, nothing elsewhere; the function it gives starts the next of so many steps."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = BarColumn(), TaskProgressColumn(), TextColumn("{task.description}")
    quiet = not sys.stderr.isatty()  # rich's own answer is another one where colours are forced on
    with Progress(*columns, console=Console(stderr=True), disable=quiet, transient=True) as progress:
        task = progress.add_task("", total=None)

        def report(words: str, steps: int) -> None:
            started = progress.tasks[0].total is not None
            progress.update(task, description=words, total=steps or None, advance=1 if started else 0)

        yield report


def _device(name: str) -> "torch.device":
    """The device of that name, once it has been seen to work."""
    import torch
    import typer

    try:
        device = torch.device(name)
        torch.zeros(1, dtype=torch.float64, device=device).item()
    except (AssertionError, RuntimeError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise typer.BadParameter(f"{name!r} does not work here ({reason}); try cpu", param_hint="--device") from error
    return device


def _needs(what: str, error: ModuleNotFoundError) -> NoReturn:
    """Ends the program with the line that says which package is missing and how to get it."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "igr"):
        raise error  # not a package that could be installed, but a fault in this one
    print(f"igr: {what} needs {package}, which is not installed: pip install 'igr[paper]'", file=sys.stderr)
    sys.exit(1)
