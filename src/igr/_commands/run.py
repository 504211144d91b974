"""``igr run``: the experiments of the paper."""

import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

from igr._commands.common import INTERRUPTED, RESULTS, again, needs, until_interrupted, writing
from igr._commands.common import device as device_of

if TYPE_CHECKING:
    import typer

    from igr.paper.events import Events
    from igr.paper.run import Options, Progress
    from igr.paper.specs import Approximation, Spec, Trained

Stop = Callable[[], bool]
Engine = Callable[[Any, "Options", Stop, Callable[[int, "Progress"], None]], bool]
FITS = "approximate"  # the folder of their records
LINE_SECONDS = 60.0  # between lines of progress, where there is no terminal


def add(app: "typer.Typer") -> None:
    """Registers the command."""
    import typer

    @app.command()
    def run(
        spec: Annotated[
            list[str],
            typer.Argument(metavar="SPEC", help="Ids of igr list, or 'table1/mnist/linear/*', in the order wanted."),
        ],
        out: Annotated[
            Path | None, typer.Option(help="Folder for the records: runs/records, or runs/smoke.", file_okay=False)
        ] = None,
        protocol: Annotated[
            Literal["honest", "published"], typer.Option(help="Ours, or that of the published code.")
        ] = "honest",
        smoke: Annotated[
            bool, typer.Option("--smoke", help="Cut short, on images that come with igr, to see that all works.")
        ] = False,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done.")] = False,
        device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, ...")] = "cpu",
        dtype: Annotated[Literal["float32", "float64"], typer.Option(help="What to compute in.")] = "float32",
        seed: Annotated[
            int, typer.Option(help="0: the spec's seeds; others: as many new ones, for another replicate.", min=0)
        ] = 0,
        max_minutes: Annotated[
            float | None, typer.Option(help="Save and stop after so long; the same command goes on.", min=0)
        ] = None,
        checkpoint_every: Annotated[float, typer.Option(help="Minutes between checkpoints.", min=0)] = 5.0,
        checkpoints: Annotated[Path, typer.Option(help="Folder for them.", file_okay=False)] = Path("runs/checkpoints"),
        data_dir: Annotated[Path | None, typer.Option(help="Where the data sets are; see igr data.")] = None,
        log_json: Annotated[
            Path | None, typer.Option(help="Also write progress to this file, one JSON object a line.", dir_okay=False)
        ] = None,
        engine: Annotated[
            Literal["local", "ray"], typer.Option(help="One cell after another here, or each a task of Ray.")
        ] = "local",
        address: Annotated[
            str | None, typer.Option(help="Ray's: HOST:PORT, or auto; without it, Ray is started on this machine.")
        ] = None,
        tensorboard: Annotated[
            Path | None, typer.Option(metavar="DIR", help="Also write curves there, for TensorBoard.", file_okay=False)
        ] = None,
        commit: Annotated[
            str | None, typer.Option(help="The commit to record, where igr runs from a copy without its history.")
        ] = None,
        sharing: Annotated[
            int, typer.Option(help="How many runs share the device, to be recorded beside what this one takes.", min=1)
        ] = 1,
        fresh: Annotated[bool, typer.Option("--fresh", help="Do again what is in the records.")] = False,
    ) -> None:
        """Train the cells of the paper's tables; choose, evaluate and record.

        All configurations and seeds of a cell are trained together. Ctrl-C, --max-minutes or a crash lose nothing but
        minutes: the same command goes on. What the records hold already is not done again.

        With --engine ray, cells are tasks on the machines of a Ray cluster, each with a GPU (--device cuda) or a CPU of
        its own; those of machines that die go on elsewhere. Only this process writes to --out and --tensorboard.
        """
        from igr.paper.specs import SpecError, find

        try:
            specs = find(spec)
        except SpecError as error:
            raise typer.BadParameter(str(error), param_hint="SPEC") from error
        _check_engine(engine, address, device)
        out = Path("runs", "smoke" if smoke else "records") if out is None else out
        if smoke:
            not_into_results(out)
        wanted = specs if fresh else _not_there(specs, [out, RESULTS], protocol, smoke, seed)
        try:
            cells, fits = _work(wanted, protocol, smoke, seed)
        except SpecError as error:
            words = f"{error}; only VAEs have another protocol, so name specs of VAEs alone"
            raise typer.BadParameter(words, param_hint="--protocol") from error
        if dry_run:
            _describe(cells, fits)
            return
        with until_interrupted(), ExitStack() as stack:
            try:
                import torch

                from igr.paper.memory import keep_memory
                from igr.paper.run import Options
            except ModuleNotFoundError as error:
                needs("igr run", error)
            away = engine == "ray" and not fits  # then nothing is computed here
            where = torch.device("cuda") if away and device == "cuda" else device_of(device)
            keep_memory()
            folders = {"out": out, "checkpoints": checkpoints, "data_dir": data_dir}
            options = Options(
                **folders,  # type: ignore[arg-type]
                device=where,
                dtype=getattr(torch, dtype),
                checkpoint_minutes=checkpoint_every,
                fresh=fresh,
                commit=commit,
                sharing=sharing,
            )
            events = _events(tensorboard) if tensorboard else None
            run_all = stack.enter_context(_on_ray(address, device)) if engine == "ray" else None
            stack.enter_context(writing(checkpoints, "--checkpoints", make=fresh))  # else the first cell makes it
            stack.enter_context(writing(out))
            stop = stack.enter_context(stopping(max_minutes))  # after Ray, which has handlers of its own
            log = None
            if log_json is not None:
                with writing(log_json.parent, "--log-json"):
                    log = stack.enter_context(log_json.open("a", encoding="utf-8"))
            since = stack.enter_context(_again(cells, fits, options, protocol, smoke, seed))
            options = replace(options, since=since)
            finished = train(cells, options, stop, log, run_all, events)
            finished = finished and _approximate(fits, options, stop, seed, smoke)
            if not finished:
                say_stopped(stop)
        typer.echo(f"The records are in {out}; make a report of them with: igr report --records {out}")


def not_into_results(out: Path) -> None:
    """Records of runs that are cut short stay out of the folder of the real ones."""
    import typer

    parts = out.resolve().parts
    if any(parts[i : i + 2] == RESULTS.parts for i in range(len(parts))):
        raise typer.BadParameter("records of smoke runs do not belong into results/ours", param_hint="--out")


def _work(
    specs: "Sequence[Spec]", protocol: str, smoke: bool, seed: int
) -> "tuple[list[Trained], list[Approximation]]":
    """What there is to train and to fit; what is read from other specs becomes these."""
    from igr.paper.specs import SPECS, Approximation, Derived, SpecError, Trained

    ids = dict.fromkeys(id for spec in specs for id in (spec.sources if isinstance(spec, Derived) else (spec.id,)))
    found = [SPECS[id] for id in ids]
    cells = [spec.with_protocol(protocol) for spec in found if isinstance(spec, Trained)]
    cells = [cell.replicate(seed) for cell in cells]
    fits = [spec for spec in found if isinstance(spec, Approximation)]
    if fits and protocol != "honest":
        raise SpecError(f"{fits[0].id} has no protocol {protocol}")
    return [cell.shortened() if smoke else cell for cell in cells], fits


def _not_there(specs: "Sequence[Spec]", folders: Sequence[Path], protocol: str, smoke: bool, seed: int) -> "list[Spec]":
    """All but those that are read from other specs whose records are there, of which it says so."""
    from igr.paper.records import RecordError, read
    from igr.paper.specs import SPECS, Derived, Trained

    def has_records(id: str) -> bool:
        source = SPECS[id]
        if not isinstance(source, Trained):
            return False
        cell = source.with_protocol(protocol).replicate(seed)
        members = (cell.shortened() if smoke else cell).members()
        wanted = {(protocol, smoke, each.seed, each.tau, each.prior_temperature) for each in members}
        names = ("protocol", "smoke", "seed", "tau", "prior_temperature")
        found = (record for folder in folders for record in read(folder / id / "records.jsonl"))
        return wanted <= {tuple(record[name] for name in names) for record in found}

    left = []
    for spec in specs:
        try:
            there = [has_records(id) for id in (spec.sources if isinstance(spec, Derived) else ())]
        except RecordError as error:
            print(f"igr: {error}", file=sys.stderr)
            sys.exit(1)
        if there and all(there):
            print(f"{spec.id} is read from records that are there: igr report shows it")
        else:
            left.append(spec)
    return left


def _again(
    cells: "Sequence[Trained]", fits: "Sequence[Approximation]", options: "Options", *how: Any
) -> AbstractContextManager[Mapping[str, int]]:
    """How many lines of records --fresh is to pass over, by specs, and for all fits."""
    ids = sorted([*(cell.id for cell in cells), *(fit.id for fit in fits)])
    files = {name: options.out / name / "records.jsonl" for name in [*(cell.id for cell in cells), FITS]}
    what = (ids, options.out.absolute(), options.device, options.dtype, *how)
    return again(options.fresh, options.checkpoints, files, *what)


def _describe(cells: "Sequence[Trained]", fits: "Sequence[Approximation]") -> None:
    for cell in cells:
        members = f"{len(cell.members())} members, {cell.epochs} epochs, {cell.protocol}"
        full = f"about {cell.minutes:.1f} minutes on one H200"
        time = "cut short: seconds to a minute on any machine" if cell.smoke else full
        print(f"{cell.id}\t{cell.description}\t{members}\t{time}")
    for fit in fits:
        print(f"{fit.id}\t{fit.description}")


def train(
    cells: "Sequence[Trained]",
    options: "Options",
    stop: Stop,
    log: IO[str] | None,
    run_all: Engine | None = None,
    events: "Events | None" = None,
) -> bool:
    """Runs cells, by default one after another; whether all are done."""
    from igr.paper.checkpoint import CheckpointError
    from igr.paper.data import DataError
    from igr.paper.ray_engine import EngineError
    from igr.paper.records import RecordError, read
    from igr.paper.run import run_cells

    begun: set[int] = set()
    with _display(len(cells)) as show:

        def report(number: int, progress: "Progress") -> None:
            begun.add(number)
            show(number, progress)
            if log is not None:
                told = {name: value for name, value in progress._asdict().items() if name != "curves"}
                print(json.dumps(told, allow_nan=False), file=log, flush=True)
            if events is not None and progress.curves is not None:
                events.follow(cells[number - 1], progress.curves)

        try:
            done = (run_all or run_cells)(cells, options, stop, report)
        except (CheckpointError, DataError, EngineError, RecordError) as error:
            print(f"igr: {error}", file=sys.stderr)
            sys.exit(1)
    before = [cell.id for number, cell in enumerate(cells, 1) if number not in begun]
    if done and before:
        print(f"igr: recorded already, so not done again: {', '.join(before)}", file=sys.stderr)
    if events is not None:
        for cell in cells:  # also those that were done before
            wanted = {(cell.protocol, cell.smoke, seed) for seed in cell.seeds}
            found = read(options.out / cell.id / "records.jsonl")
            events.write(record for record in found if (record["protocol"], record["smoke"], record["seed"]) in wanted)
    return done


def _check_engine(engine: str, address: str | None, device: str) -> None:
    import typer

    if engine == "local" and address is not None:
        words = f"{address!r} is given, but nothing is run on Ray; add --engine ray"
        raise typer.BadParameter(words, param_hint="--address")
    if engine == "ray" and device not in ("cpu", "cuda"):
        words = f"{device!r} is given, but Ray chooses which GPU a task gets; expected cpu or cuda"
        raise typer.BadParameter(words, param_hint="--device")


@contextmanager
def _on_ray(address: str | None, device: str) -> "Iterator[Engine]":
    """Runs cells on a Ray cluster, in place of one after another."""
    from igr.paper.ray_engine import EngineError, cluster, run_cells

    with ExitStack() as stack:
        try:
            gpus = stack.enter_context(cluster(address))
        except ModuleNotFoundError as error:
            needs("--engine ray", error, "ray")
        except EngineError as error:
            print(f"igr: {error}", file=sys.stderr)
            sys.exit(1)
        if device == "cuda" and not gpus:
            print("igr: no machine of the cluster has a GPU; waiting for one", file=sys.stderr)
        yield run_cells


def _events(folder: Path) -> "Events":
    """Event files in a folder that can be written."""
    from igr.paper.events import Events

    try:
        events = Events(folder)
    except ModuleNotFoundError as error:
        needs("--tensorboard", error, "tensorboard")
    with writing(folder, "--tensorboard"):
        return events


def _approximate(fits: "Sequence[Approximation]", options: "Options", stop: Stop, seed: int, smoke: bool) -> bool:
    """Fits the approximations among the specs, into one file of records; whether all are done."""
    from igr._commands.approximate import fit
    from igr._commands.common import progress
    from igr.paper.approximate import TICKS, Settings

    settings = Settings(seed=seed).shortened() if smoke else Settings(seed=seed)
    for target in dict.fromkeys(spec.target for spec in fits):
        only = [spec.id for spec in fits if spec.target == target]
        with progress() as bar:
            total, folder = TICKS * len(only), options.out / FITS

            def report(words: str, n: int, bar: Callable[..., None] = bar, total: int = total) -> None:
                if stop():
                    raise _StoppedFit
                bar(words, total, n)

            try:
                fresh, since = options.fresh, options.since.get(FITS)
                fit(
                    [target], settings, options.device, folder, report, exact=False, fresh=fresh, since=since, only=only
                )
            except _StoppedFit:
                return False
    return True


class _StoppedFit(Exception):
    """A fit was asked to stop; those before it are in the records."""


@contextmanager
def stopping(max_minutes: float | None) -> Iterator[Stop]:
    """A function that says whether to stop: after so long, or once asked to by Ctrl-C or a polite kill.

    A second Ctrl-C does not wait.
    """
    start = time.monotonic()
    asked: list[int] = []

    def ask(number: int, _: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        print("igr: saving; press Ctrl-C again to leave at once", file=sys.stderr)

    def stop() -> bool:
        stop.interrupted = bool(asked)  # type: ignore[attr-defined]
        return bool(asked) or (max_minutes is not None and time.monotonic() - start > 60 * max_minutes)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def say_stopped(stop: Stop) -> None:
    print("igr: stopped before the end; the same command goes on from here", file=sys.stderr)
    sys.exit(INTERRUPTED if getattr(stop, "interrupted", False) else 0)


@contextmanager
def _display(cells: int) -> Iterator[Callable[[int, "Progress"], None]]:
    """Which cell, how many epochs, members alive, the best objective, and on a terminal the time left.

    Elsewhere that is a line for each phase, and for each minute.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars
    from rich.table import Column

    columns = (
        TextColumn("{task.fields[cell]}", table_column=Column(overflow="fold")),  # wrapped where there is no room
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.description}", table_column=Column()),
        TimeRemainingColumn(),
    )
    shown = sys.stderr.isatty()
    with Bars(*columns, console=Console(stderr=True), disable=not shown) as bars:
        tasks: dict[int, Any] = {}
        told: dict[int, tuple[str, float]] = {}  # the phase of a cell, and when, where there are lines and no bars

        def show(number: int, at: "Progress") -> None:
            if number not in tasks:
                tasks[number] = bars.add_task("", cell=f"{number}/{cells} {at.spec}", total=at.epochs)
            best = "" if at.best is None else f", best {at.best:.2f}"
            phase = at.phase if at.phase in ("training", "done") else f"{at.phase} images {100 * at.part:.0f} %"
            words = f"{phase}, {at.alive} of {at.members} alive{best}"
            bars.update(tasks[number], description=words, completed=at.epoch)
            now, (phase_before, before) = time.monotonic(), told.get(number, ("", -math.inf))
            if not shown and (phase_before != at.phase or now - before > LINE_SECONDS):
                told[number] = at.phase, now
                where = f"{number}/{cells} {at.spec}, epoch {at.epoch} of {at.epochs}"
                print(f"igr: {where}: {words}", file=sys.stderr, flush=True)

        yield show
