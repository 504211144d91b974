"""The ``igr`` command.

Nothing heavy is imported before a command needs it: ``igr --help`` loads neither torch nor matplotlib.
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from igr import __version__

if TYPE_CHECKING:
    import torch
    import typer
    from rich.table import Table

    from igr.paper.approximate import Settings

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
    _add_approximate(app)
    return app


def _add_demo(app: "typer.Typer") -> None:
    import typer

    @app.command()
    def demo(
        out: Annotated[Path, typer.Option(help="Folder for the pictures.", file_okay=False)] = Path("runs/demo"),
        seed: Annotated[int, typer.Option(help="Seed of the samples.", min=0, max=2**63 - 1)] = 0,
        device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, ...")] = "cpu",
        smoke: Annotated[bool, typer.Option("--smoke", help="Cut the fits short, to see that all works.")] = False,
    ) -> None:
        """Draw four relaxations on the simplex, and two of them fitted to a Poisson distribution."""
        with _until_interrupted(), _progress() as report:
            report("importing torch", 0)
            try:
                from igr.paper import demo as figure
                from igr.paper.approximate import Settings, ticks
            except ModuleNotFoundError as error:
                _needs("igr demo", error)
            where, settings = _device(device), Settings(seed=seed)
            settings = settings.shortened() if smoke else settings
            total = figure.STEPS + ticks(["poisson"], exact=not smoke)
            with _writing(out):
                figure.create(out / "simplex.png", seed, where, lambda words: report(words, total))
            _fit(["poisson"], settings, where, out, lambda words, n: report(words, total, n), exact=not smoke)
        for name in ("simplex", "poisson"):
            typer.echo(f"The picture is in {out / name}.png")


def _add_approximate(app: "typer.Typer") -> None:
    import typer
    from rich.console import Console

    from igr.paper.targets import TARGETS

    choices = ", ".join([*TARGETS, "all"])

    def known(names: list[str]) -> list[str]:
        for name in names:
            if name not in TARGETS and name != "all":
                raise typer.BadParameter(f"no distribution is called {name!r}; expected one of {choices}")
        return list(TARGETS) if "all" in names else list(dict.fromkeys(names))

    def positive(value: float) -> float:
        if not 0 < value < math.inf:
            raise typer.BadParameter(f"{value} is not a positive number")
        return value

    @app.command()
    def approximate(
        name: Annotated[list[str], typer.Argument(metavar="NAME", help=f"One or more of {choices}.", callback=known)],
        out: Annotated[Path, typer.Option(help="Folder for the results.", file_okay=False)] = Path("runs/approximate"),
        seed: Annotated[int, typer.Option(help="Seed of the samples.", min=0, max=2**63 - 1)] = 0,
        device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, ...")] = "cpu",
        steps: Annotated[int, typer.Option(help="Steps of Adam, for every model.", min=1)] = 1_000,
        samples: Annotated[int, typer.Option(help="Samples a step, for every model.", min=1)] = 1_000,
        tau: Annotated[float, typer.Option(help="Temperature, for every model.", callback=positive)] = 0.01,
        learning_rate: Annotated[float, typer.Option(help="Learning rate, for every model.", callback=positive)] = 0.01,
        exact: Annotated[bool, typer.Option("--exact", help="Add the exact fits.")] = False,
        smoke: Annotated[bool, typer.Option("--smoke", help="Cut the fits short, to see that all works.")] = False,
        fresh: Annotated[bool, typer.Option("--fresh", help="Fit anew what is in the records.")] = False,
    ) -> None:
        """Fit IGR and GS to a discrete distribution; draw, print and record how close they come.

        What the folder's records hold already, with the same settings, is not fitted again.
        """
        with _until_interrupted(), _progress() as report:
            report("importing torch", 0)
            try:
                from igr.paper.approximate import Settings, ticks
            except ModuleNotFoundError as error:
                _needs("igr approximate", error)
            settings, where = Settings(steps, samples, tau, learning_rate, seed), _device(device)
            settings, total = settings.shortened() if smoke else settings, ticks(name, exact)
            report("starting", total)
            tables = _fit(
                name, settings, where, out, lambda words, n: report(words, total, n), exact=exact, fresh=fresh
            )
        console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
        for each, rows in zip(name, tables, strict=True):
            console.print(rows)
            typer.echo(f"The picture is in {out / each}.png\n")
        typer.echo(f"The records are in {out / 'records.jsonl'}")


def _fit(
    names: Sequence[str],
    settings: "Settings",
    device: "torch.device",
    out: Path,
    report: Callable[[str, int], None],
    *,
    exact: bool,
    fresh: bool = False,
) -> "list[Table]":
    """Fits what the records in the folder do not hold yet, draws a picture for each name, and returns its table."""
    try:
        from igr.paper.approximate import FitError, approximate
        from igr.paper.approximate_figure import draw
        from igr.paper.approximate_table import table
        from igr.paper.records import RecordError
        from igr.paper.style import save
    except ModuleNotFoundError as error:
        _needs("igr approximate", error)
    tables, path = [], out / "records.jsonl"
    for name in names:
        try:
            with _writing(out):
                records = list(approximate(name, settings, device, path, report, exact=exact, fresh=fresh))
                save(draw(records), out / f"{name}.png")
        except (FitError, RecordError) as error:
            print(f"igr: {error}", file=sys.stderr)
            sys.exit(1)
        tables.append(table(records))
    return tables


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    """The folder is made, and what cannot be written there is the fault of --out."""
    import typer

    try:
        out.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise typer.BadParameter(
            f"cannot write {error.filename or out}: {error.strerror or error}", param_hint="--out"
        ) from error


@contextmanager
def _until_interrupted() -> Iterator[None]:
    """Ctrl-C ends the command with one line and status 130."""
    try:
        yield
    except KeyboardInterrupt:
        print("igr: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


@contextmanager
def _progress() -> Iterator[Callable[..., None]]:
    """A progress bar on a terminal, nothing elsewhere; the function it gives starts the next of so many steps."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = BarColumn(), TaskProgressColumn(), TextColumn("{task.description}")
    quiet = not sys.stderr.isatty()  # rich's own answer is another one where colours are forced on
    with Progress(*columns, console=Console(stderr=True), disable=quiet, transient=True) as progress:
        task = progress.add_task("", total=None)

        def report(words: str, steps: int, advance: int = 1) -> None:
            started = progress.tasks[0].total is not None
            progress.update(task, description=words, total=steps or None, advance=advance if started else 0)

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
