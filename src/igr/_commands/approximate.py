"""``igr approximate``: the paper's first experiment."""

import math
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from igr._commands.common import again, needs, progress, show, unmixed, until_interrupted, writing
from igr._commands.common import device as device_of
from igr._commands.run import not_into_results

if TYPE_CHECKING:
    import torch
    import typer
    from rich.table import Table

    from igr.paper.approximate import Settings


def add(app: "typer.Typer") -> None:
    import typer

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
        out: Annotated[
            Path | None,
            typer.Option(help="Folder for the results: runs/approximate, or runs/smoke/approximate.", file_okay=False),
        ] = None,
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
        out = Path("runs/smoke/approximate" if smoke else "runs/approximate") if out is None else out
        if smoke:
            not_into_results(out)
        with until_interrupted(), progress() as report:
            with writing(out, make=False):
                unmixed(out / "records.jsonl", smoke)
            report("importing torch", 0)
            try:
                from igr.paper.approximate import Settings, ticks
            except ModuleNotFoundError as error:
                needs("igr approximate", error)
            settings, where = Settings(steps, samples, tau, learning_rate, seed), device_of(device)
            settings, total = settings.shortened() if smoke else settings, ticks(name, exact)
            report("starting", total)
            what = (sorted(name), settings, where, exact)
            with writing(out, make=fresh), again(fresh, out, {"fits": out / "records.jsonl"}, *what) as since:
                told, before = lambda words, n: report(words, total, n), since.get("fits")
                tables = fit(name, settings, where, out, told, exact=exact, fresh=fresh, since=before)
        for each, rows in zip(name, tables, strict=True):
            show(rows)
            typer.echo(f"The picture is in {out / each}.png\n")
        typer.echo(f"The records are in {out / 'records.jsonl'}")


def fit(
    names: Sequence[str],
    settings: "Settings",
    device: "torch.device",
    out: Path,
    report: Callable[[str, int], None],
    *,
    exact: bool,
    fresh: bool = False,
    since: int | None = None,
    only: Collection[str] | None = None,
) -> "list[Table]":
    """Fits what the records in the folder do not hold yet, draws a picture for each name, and returns its table."""
    try:
        from igr.paper.approximate import FitError, approximate
        from igr.paper.approximate_figure import draw
        from igr.paper.approximate_table import table
        from igr.paper.records import RecordError
        from igr.paper.style import save
    except ModuleNotFoundError as error:
        needs("igr approximate", error)
    tables, path = [], out / "records.jsonl"
    for name in names:
        try:
            with writing(out):
                found = approximate(
                    name, settings, device, path, report, exact=exact, fresh=fresh, since=since, only=only
                )
                records = list(found)
                save(draw(records), out / f"{name}.png")
        except (FitError, RecordError) as error:
            print(f"igr: {error}", file=sys.stderr)
            sys.exit(1)
        tables.append(table(records))
    return tables
