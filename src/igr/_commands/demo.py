"""``igr demo``: pictures, in a few minutes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from igr._commands.approximate import fit
from igr._commands.common import device as device_of
from igr._commands.common import needs, progress, until_interrupted, writing

if TYPE_CHECKING:
    import typer


def add(app: "typer.Typer") -> None:
    import typer

    @app.command()
    def demo(
        out: Annotated[Path, typer.Option(help="Folder for the pictures.", file_okay=False)] = Path("runs/demo"),
        seed: Annotated[int, typer.Option(help="Seed of the samples.", min=0, max=2**63 - 1)] = 0,
        device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, ...")] = "cpu",
        smoke: Annotated[bool, typer.Option("--smoke", help="Cut the fits short, to see that all works.")] = False,
    ) -> None:
        """Draw four relaxations on the simplex, and two of them fitted to a Poisson distribution."""
        with until_interrupted(), progress() as report:
            report("importing torch", 0)
            try:
                from igr.paper import demo as figure
                from igr.paper.approximate import Settings, ticks
            except ModuleNotFoundError as error:
                needs("igr demo", error)
            where, settings = device_of(device), Settings(seed=seed)
            settings = settings.shortened() if smoke else settings
            total = figure.STEPS + ticks(["poisson"], exact=not smoke)
            with writing(out):
                figure.create(out / "simplex.png", seed, where, lambda words: report(words, total))
            fit(["poisson"], settings, where, out, lambda words, n: report(words, total, n), exact=not smoke)
        for name in ("simplex", "poisson"):
            typer.echo(f"The picture is in {out / name}.png")
