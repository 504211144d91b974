"""``igr bench``: how fast samples are on this machine."""

import json
import random
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from igr._commands.common import device as device_of
from igr._commands.common import needs, progress, show, until_interrupted, writing

if TYPE_CHECKING:
    import torch
    import typer

    from igr.lab.speed import Timing

SHAPE = re.compile(r"([1-9]\d*)[x,]([1-9]\d*)")


def add(app: "typer.Typer") -> None:
    """Registers the command."""
    import typer

    @app.command()
    def bench(
        shape: Annotated[
            list[str] | None,
            typer.Option(
                metavar="ROWSxK",
                help="Rows and categories, as in 100000x10; repeat it for several.",
                show_default="100000x10, 10000x512, 100x50000",
            ),
        ] = None,
        device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, ...")] = "cpu",
        dtype: Annotated[
            Literal["float32", "float64", "bfloat16", "float16"], typer.Option(help="Of the parameters.")
        ] = "float32",
        rounds: Annotated[int, typer.Option(help="In each, everything is timed once.", min=2)] = 30,
        threads: Annotated[int | None, typer.Option(help="Of torch on the CPU.", min=1)] = None,
        seed: Annotated[int, typer.Option(help="Of parameters and of the order.", min=0)] = 0,
        out: Annotated[Path | None, typer.Option(help="Also write the times to this file.", dir_okay=False)] = None,
    ) -> None:
        """Time differentiable samples, log-densities and divergences on this machine, beside F.gumbel_softmax.

        One forward and backward pass at τ = 0.5, median over rounds in which all take turns; the ratio is to
        F.gumbel_softmax in the same round. About half a minute on two cores.
        """
        shapes = [_shape(text) for text in shape or ()]
        with until_interrupted(), progress() as report:
            report("importing torch", 0)
            try:
                import torch

                from igr.lab.speed import SHAPES, measure, passes
            except ModuleNotFoundError as error:
                needs("igr bench", error)
            where, shapes = device_of(device), shapes or list(SHAPES)
            if threads:
                torch.set_num_threads(threads)
            random.seed(seed)
            torch.manual_seed(seed)
            typer.echo(_about(where, dtype))
            found: list[dict[str, Any]] = []
            for rows, K in shapes:
                report(f"{rows:,} rows of {K:,} categories", len(shapes))
                with _enough_memory(rows, K, where, dtype):
                    times = measure(passes(rows, K, where, getattr(torch, dtype)), where, rounds)
                _show((rows, K), times)
                found += [{"shape": [rows, K]} | each._asdict() for each in times]
                if out is not None:
                    _write(out, {"about": _about(where, dtype), "rounds": rounds, "seed": seed, "times": found})
        if out is not None:
            typer.echo(f"The times are in {out}")


@contextmanager
def _enough_memory(rows: int, K: int, device: "torch.device", dtype: str) -> Iterator[None]:
    """What does not fit into memory is one line."""
    import torch

    size = rows * K * getattr(torch, dtype).itemsize
    try:
        if size > sys.maxsize:
            raise MemoryError  # where torch speaks of overflows
        yield
    except (MemoryError, RuntimeError) as error:
        known = isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
        if not known:
            raise
        words = f"{rows:,} rows of {K:,} categories in {dtype} do not fit into the memory of {device}"
        advice = f"a tensor of them is {size / 1e9:,.1f} GB, and a pass takes several; ask for fewer with --shape"
        print(f"igr: {words}: {advice}", file=sys.stderr)
        sys.exit(1)


def _write(out: Path, found: dict[str, Any]) -> None:
    with writing(out.parent):
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _shape(text: str) -> tuple[int, int]:
    import typer

    found = SHAPE.fullmatch(text.strip().lower())
    if found is None or int(found[2]) < 2:
        raise typer.BadParameter(
            f"{text!r} is not a number of rows and one of at least 2 categories, as in 100000x10", param_hint="--shape"
        )
    return int(found[1]), int(found[2])


def _about(device: "torch.device", dtype: str) -> str:
    import torch

    name = (
        f", {torch.cuda.get_device_name(device)}" if device.type == "cuda" else f", {torch.get_num_threads()} threads"
    )
    return f"torch {torch.__version__}, {device}{name}, {dtype}"


def _show(shape: tuple[int, int], times: "Sequence[Timing]") -> None:
    from rich.table import Table

    table = Table("forward and backward", title=f"{shape[0]:,} rows of {shape[1]:,} categories", title_justify="left")
    for head in ("ms", "quartiles", "ratio"):
        table.add_column(head, justify="right", no_wrap=True)
    for name, ms, low, high, ratio in times:
        table.add_row(name, f"{ms:.3g}", f"{low:.3g} to {high:.3g}", f"{ratio:.2f}")
    show(table)
