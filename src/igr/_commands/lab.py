"""``igr lab``: bias, variance and cost of gradient estimators."""

import functools
import math
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from igr._commands.common import again, needs, printing, progress, show, unmixed, until_interrupted, writing
from igr._commands.common import device as device_of
from igr._commands.run import Stop, not_into_results, say_stopped, stopping

if TYPE_CHECKING:
    import torch
    import typer

    from igr.lab.run import Row, Settings
    from igr.paper.records import Record


FILE = "records.jsonl"


def add(app: "typer.Typer") -> None:
    """Registers the command."""
    import typer

    from igr.lab.registry import ESTIMATORS, METHODS, PROBLEMS, TEMPERATURES

    def chosen(names: list[str] | None, known: Sequence[str], what: str) -> list[str]:
        for name in names or ():
            if name not in known:
                from igr.paper.specs import nearest

                words = f"no {what} is called {name!r}; expected one of {', '.join(known)}"
                close = ", ".join(nearest(name, known))
                raise typer.BadParameter(f"{words}; the nearest: {close}" if close else words)
        return list(dict.fromkeys(names or known))

    def positive(values: list[float]) -> list[float]:
        for value in values:
            if not 0 < value < math.inf:
                raise typer.BadParameter(f"{value} is not a positive number")
        return list(dict.fromkeys(values))

    @app.command()
    def lab(
        problem: Annotated[
            list[str] | None,
            typer.Option(
                metavar="NAME",
                help=f"{', '.join(PROBLEMS)}, with settings as in 'tanh,num_variables=2'; or your own, "
                "module:function. Repeat it for several.",
                show_default="all four",
            ),
        ] = None,
        parameterization: Annotated[
            list[str],
            typer.Option(
                metavar="NAME",
                help=f"What gradients are with respect to: {', '.join(METHODS)}. An example of "
                "igr-sb takes tens of milliseconds.",
                callback=lambda names: chosen(names, list(METHODS), "parameterization"),
            ),
        ] = ["gs", "igr-i"],  # noqa: B006 (typer copies it)
        estimator: Annotated[
            list[str] | None,
            typer.Option(
                metavar="NAME",
                help=f"{', '.join(ESTIMATORS)}.",
                callback=lambda names: chosen(names, list(ESTIMATORS), "estimator"),
                show_default="all",
            ),
        ] = None,
        temperature: Annotated[
            list[float], typer.Option(help="Of the relaxations, for estimators that have one.", callback=positive)
        ] = list(TEMPERATURES),  # noqa: B006
        draws: Annotated[
            int | None,
            typer.Option(
                help="Estimates of each gradient.", min=4, show_default="10000, of slow estimators on (μ, σ) 2500"
            ),
        ] = None,
        repetitions: Annotated[int, typer.Option(help="Parts they are split into, for standard errors.", min=2)] = 10,
        samples: Annotated[int, typer.Option(help="Samples S of each estimate.", min=1)] = 4,
        seed: Annotated[int, typer.Option(help="Seed of all noise.", min=0, max=2**31)] = 0,
        device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, ...")] = "cpu",
        dtype: Annotated[Literal["float32", "float64"], typer.Option(help="What to compute in.")] = "float32",
        out: Annotated[
            Path | None,
            typer.Option(help="Folder for the results: runs/lab, or runs/smoke/lab.", file_okay=False),
        ] = None,
        parquet: Annotated[
            Path | None, typer.Option(help="Also write the table to this Parquet file.", dir_okay=False)
        ] = None,
        max_minutes: Annotated[
            float | None, typer.Option(help="Stop after so long; the same command goes on.", min=0)
        ] = None,
        smoke: Annotated[bool, typer.Option("--smoke", help="Cut all short, to see that it works.")] = False,
        fresh: Annotated[bool, typer.Option("--fresh", help="Measure anew what is in the records.")] = False,
    ) -> None:
        """Measure gradient estimators against the exact gradient: bias, variance, zeros, time and memory.

        Every estimator on every problem, in every parameterization, at every temperature: the gradient of an
        expectation by a sum over all states, and many estimates of it. Prints tables, draws bias against standard
        deviation, and records each measurement as soon as it is made: after Ctrl-C the same command goes on.
        """
        out = Path("runs/smoke/lab" if smoke else "runs/lab") if out is None else out
        if smoke:
            not_into_results(out)
        _check_draws(draws, repetitions)
        _check_parquet(parquet)
        with until_interrupted(), progress() as report:
            with writing(out, make=False):
                unmixed(out / FILE, smoke)
            report("importing torch", 0)
            try:
                import matplotlib  # noqa: F401 (asked for before anything is computed)

                from igr.lab.run import Settings
            except ModuleNotFoundError as error:
                needs("igr lab", error)
            settings, where = Settings(draws, repetitions, samples, seed=seed, dtype=dtype), device_of(device)
            settings = settings.shortened() if smoke else settings
            named = problem or list(PROBLEMS), parameterization, estimator or [], temperature
            work = _rows(*named, where, settings)
            what = (named, settings, where)
            with writing(out), stopping(max_minutes) as stop, again(fresh, out, {"rows": out / FILE}, *what) as since:
                told = functools.partial(report, steps=len(work))
                found = _measure(work, settings, where, out, told, stop, fresh, since.get("rows"))
                _show(found, out, parquet)
                if len(found) < len(work):
                    say_stopped(stop)


def _check_draws(draws: int | None, repetitions: int) -> None:
    import typer

    if draws is not None and draws < 2 * repetitions:
        raise typer.BadParameter(
            f"{draws} draws are less than two for each of {repetitions} repetitions: ask for at least "
            f"{2 * repetitions}, or for fewer --repetitions",
            param_hint="--draws",
        )


def _check_parquet(path: Path | None) -> None:
    import typer

    if path is None:
        return
    try:
        import_module("pyarrow")
    except ModuleNotFoundError as error:
        raise typer.BadParameter(
            "needs pyarrow, which is not installed: pip install pyarrow; records.jsonl holds the same numbers",
            param_hint="--parquet",
        ) from error


def _rows(
    problems: Sequence[str],
    methods: Sequence[str],
    names: Sequence[str],
    temperatures: Sequence[float],
    device: "torch.device",
    settings: "Settings",
) -> "list[Row]":
    """What is to be measured."""
    import typer

    from igr.lab.find import find
    from igr.lab.problems import ProblemError
    from igr.lab.run import rows

    try:
        found = [find(text) for text in dict.fromkeys(problems)]
        work = rows(found, methods, names, temperatures, device=device, dtype=settings.dtype)
    except ProblemError as error:
        raise typer.BadParameter(str(error), param_hint="--problem") from error
    if not work:
        words = f"{', '.join(names)} cannot be tried on {', '.join(methods)} of {', '.join(problems)}"
        raise typer.BadParameter(words, param_hint="--estimator")
    return work


def _measure(
    work: "Sequence[Row]",
    settings: "Settings",
    device: "torch.device",
    out: Path,
    report: Callable[[str], None],
    stop: Stop,
    fresh: bool,
    since: int | None,
) -> "list[Record]":
    """Everything, or what there is when it is stopped; what goes wrong is one line."""
    from igr.lab.measure import MeasureError
    from igr.lab.problems import ProblemError
    from igr.lab.run import laboratory
    from igr.paper.records import RecordError

    try:
        rows = laboratory(work, settings, device, out / FILE, report, fresh=fresh, since=since, stop=stop)
        return list(rows)
    except (MeasureError, ProblemError, RecordError) as error:
        print(f"igr: {error}", file=sys.stderr)
        sys.exit(1)


def _show(found: "Sequence[Record]", out: Path, parquet: Path | None) -> None:
    """Tables, the figure, and where they are."""
    import typer

    from igr.lab.figure import draw
    from igr.lab.table import groups, legend, table, write_parquet
    from igr.paper.style import save

    if not found:
        return
    save(draw(found), out / "lab.png")
    with printing():  # or it would be the fault of --out
        for _, its in groups(found):
            show(table(its), "")
        show(legend(found))
        typer.echo(f"\nThe picture is in {out / 'lab.png'}\nThe records are in {out / FILE}")
    if parquet is not None:
        with writing(parquet.parent, "--parquet"):
            write_parquet(found, parquet)
        typer.echo(f"The table is in {parquet}")
