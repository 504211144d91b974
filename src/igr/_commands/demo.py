"""``igr demo``: pictures, four small VAEs and a report, in a few minutes."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from igr._commands.approximate import fit
from igr._commands.common import device as device_of
from igr._commands.common import needs, progress, show, until_interrupted, writing
from igr._commands.run import not_into_results, say_stopped, stopping, train

if TYPE_CHECKING:
    import torch
    import typer

    from igr.paper.specs import Vae

ROWS = ("igr-i", "igr-planar", "igr-sb", "gs")


def add(app: "typer.Typer") -> None:
    """Registers the command."""
    import typer

    @app.command()
    def demo(
        out: Annotated[Path, typer.Option(help="Folder for the results.", file_okay=False)] = Path("runs/demo"),
        seed: Annotated[int, typer.Option(help="Seed of the samples.", min=0, max=2**31)] = 0,
        device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, ...")] = "cpu",
        smoke: Annotated[bool, typer.Option("--smoke", help="Cut all short, to see that it works.")] = False,
    ) -> None:
        """Draw four relaxations, fit two of them to a Poisson distribution, train VAEs with all four, and report.

        The images are a sample of MNIST that comes with igr. It takes a few minutes on two cores; after Ctrl-C the same
        command goes on.
        """
        not_into_results(out)
        with until_interrupted():
            try:
                import matplotlib  # noqa: F401 (asked for before anything is computed)
                import torch  # noqa: F401
            except ModuleNotFoundError as error:
                needs("igr demo", error)
            where = device_of(device)
            _draw(out, seed, where, smoke)
            _train(out, seed, where, smoke)
            from igr.paper.report import ReportError, build, terminal_table

            try:
                with writing(out):
                    made = build([out], out)
            except ReportError as error:
                print(f"igr: {error}", file=sys.stderr)
                sys.exit(1)
        show(terminal_table(made.records.all))
        for name in ("simplex", "poisson"):
            typer.echo(f"The picture is in {out / name}.png")
        typer.echo(f"The report is in {made.html}")


def _draw(out: Path, seed: int, device: "torch.device", smoke: bool) -> None:
    """The pictures of the simplex and of the Poisson distribution."""
    from igr.paper import demo as figure
    from igr.paper.approximate import Settings, ticks

    settings = replace(Settings(seed=seed), smoke=True)
    settings = settings.shortened() if smoke else settings
    with progress() as report:
        total = figure.STEPS + ticks(["poisson"], exact=not smoke)
        with writing(out):
            figure.create(out / "simplex.png", seed, device, lambda words: report(words, total))
        fit(["poisson"], settings, device, out, lambda words, n: report(words, total, n), exact=not smoke)


def _train(out: Path, seed: int, device: "torch.device", smoke: bool) -> None:
    """The VAEs, each family with the same temperatures, seeds, epochs and learning rate."""
    from igr.paper.assess import Budget
    from igr.paper.run import Options

    budget = Budget(m=100, published=10, table=2_000, train_table=500, images=200, ais_images=5, ais_temperatures=20)
    options = Options(out, out / "checkpoints", device, smoke_images=None, budget=budget)
    cells = [_cell(row, seed) for row in ROWS]
    if smoke:
        options = replace(options, smoke_images=300, budget=budget.shortened())
        cells = [replace(cell.shortened(), seeds=cell.seeds[:1]) for cell in cells]
    with writing(out), stopping(None) as stop:
        done = train(cells, options, stop, None)
    if not done:
        say_stopped(stop)


def _cell(row: str, seed: int) -> "Vae":
    """A cell of Table 1, cut short: fewer temperatures and seeds, fewer epochs, and so a higher learning rate."""
    from igr.paper.specs import SPECS, Vae

    cell = SPECS[f"table1/mnist/linear/{row}"]
    assert isinstance(cell, Vae)
    cell = replace(cell, temperatures=(0.1, 0.25, 0.5), seeds=cell.seeds[:2], epochs=30, learning_rate=1e-3, smoke=True)
    return cell.replicate(seed)
