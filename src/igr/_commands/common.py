"""What the commands share: progress, interruptions, devices, and what to say where something is missing."""

import codecs
import errno
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import torch
    from rich.console import RenderableType
    from rich.table import Table

__all__ = [
    "INTERRUPTED",
    "RESULTS",
    "USUAL",
    "again",
    "device",
    "needs",
    "printing",
    "progress",
    "replace_letters",
    "show",
    "unmixed",
    "until_interrupted",
    "usual_records",
    "writing",
]

RESULTS = Path("results/ours")
USUAL = "results/ours, else runs/records"  # what usual_records says, for help
INTERRUPTED = 130  # what shells report for a process that Ctrl-C ended
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # what writing ends in, where files are not named
PLAIN = {
    "−": "-",
    "–": "-",
    "—": "-",
    "±": "+-",
    "…": "...",
    "τ": "tau",
    "μ": "mu",
    "σ": "sigma",
    "ρ": "rho",
    "α": "alpha",
    "δ": "delta",
    "Δ": "Delta",
    "µ": "u",  # micro, not the letter mu
    "²": "^2",
}
PIPED, WIDEST, WORD = 120, 10_000, 12  # columns of text that no terminal shows, more than a table has, and of a word


@contextmanager
def writing(out: Path, option: str = "--out", *, make: bool = True) -> Iterator[None]:
    """The folder is made, and what cannot be written there, or somewhere that is not said, is the option's fault.

    Folders that were made for nothing are removed.
    """
    import typer

    made: list[Path] = []
    try:
        if make:
            made = [folder for folder in (out, *out.parents) if not folder.exists()]
            out.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.filename is not None:
            at, own = Path(os.fsdecode(error.filename)).absolute(), out.absolute()
            if not at.is_relative_to(own) and not own.is_relative_to(at):
                raise  # that of another option
        raise typer.BadParameter(
            f"cannot write {error.filename or out}: {error.strerror or error}", param_hint=option
        ) from error
    finally:
        for folder in made:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


@contextmanager
def again(fresh: bool, folder: Path, files: Mapping[str, Path], *what: Any) -> Iterator[Mapping[str, int]]:
    """What --fresh is to pass over in files of records, as it was when an earlier call has begun it; else nothing.

    The folder, which must be there, holds the note of that until all is done, which is what it means to leave this
    without an exit; or nothing at all was done.
    """
    if not fresh:
        yield {}
        return
    from igr.paper.again import begin, note
    from igr.paper.records import RecordError, count

    file = note(folder, *what)
    if file.exists():
        print(f"igr: going on with what --fresh has begun; to begin again, remove {file}", file=sys.stderr)
    try:
        since = begin(file, files)
    except RecordError as error:
        print(f"igr: {error}", file=sys.stderr)
        sys.exit(1)
    done = False
    try:
        yield since
        done = True
    finally:
        if done or all(count(each) <= since.get(name, 0) for name, each in files.items()):
            file.unlink(missing_ok=True)


def unmixed(file: Path, smoke: bool) -> None:
    """Refuses to add records that are cut short to real ones, or the other way round: no report is made of both."""
    import typer

    from igr.paper.records import RecordError, read

    try:
        mixed = any(record["smoke"] is not smoke for record in read(file))
    except RecordError as error:
        print(f"igr: {error}", file=sys.stderr)
        sys.exit(1)
    if mixed:
        there, ours = ("real", "smoke") if smoke else ("smoke", "real")
        words = (
            f"{file} holds records of {there} runs, with which those of {ours} ones are not mixed; name another folder"
        )
        raise typer.BadParameter(words, param_hint="--out")


def usual_records() -> Path:
    """The folder that records are looked for in unless one is named: those of a clone, else those of ``igr run``."""
    return RESULTS if RESULTS.is_dir() else Path("runs/records")


def show(*parts: "RenderableType") -> None:
    """Prints text within the terminal, and tables as wide as they must be: half a number is of no use."""
    from rich.console import Console, Group
    from rich.table import Table

    for part in parts:
        if isinstance(part, Group):
            show(*part.renderables)
            continue
        needed = _least_width(part) if isinstance(part, Table) else 0
        width = max(needed, Console().width if sys.stdout.isatty() else PIPED)
        Console(width=width, highlight=False).print(part)


def _least_width(table: "Table") -> int:
    """What a table takes if only those columns are made narrower that may be wrapped, and not below a word or so."""
    from rich.console import Console

    narrow = deepcopy(table)
    for column in narrow.columns:
        column.max_width = None if column.no_wrap else WORD
    return Console(width=WIDEST).measure(narrow).maximum


def replace_letters() -> None:
    """Has letters replaced that the terminal lacks, where they would be errors; with UTF-8 there are none."""
    for stream in (sys.stdout, sys.stderr):
        if (
            isinstance(stream, io.TextIOWrapper)
            and stream.errors in ("strict", "surrogateescape")
            and codecs.lookup(stream.encoding).name != "utf-8"
        ):
            codecs.register_error("igr.plain", _plain)
            stream.reconfigure(errors="igr.plain")


def _plain(error: UnicodeError) -> tuple[str, int]:
    """What stands for letters that are lacking."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


@contextmanager
def printing() -> Iterator[None]:
    """Output that cannot be written ends the command with one line, and where a reader has had enough, with none.

    ``main`` does this for all commands; within :func:`writing` it is needed as well, or the option would be blamed.
    """
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:  # as where it was closed
                sys.stdout.flush()
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.EPIPE, *NO_ROOM):
            raise  # of something else
        with suppress(AttributeError, OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes in the end
        if error.errno != errno.EPIPE:
            with suppress(OSError):
                print(f"igr: cannot write the output: {error.strerror}", file=sys.stderr)
        sys.exit(1)


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Ctrl-C ends the command with one line and status 130."""
    try:
        yield
    except KeyboardInterrupt:
        print("igr: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


@contextmanager
def progress() -> Iterator[Callable[..., None]]:
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


def device(name: str) -> "torch.device":
    """The device of that name, once it has been seen to work."""
    import torch
    import typer

    try:
        device = torch.device(name)
        torch.zeros(1, dtype=torch.float64, device=device).item()
    except (AssertionError, RuntimeError, TypeError) as error:
        known = "device type at start" not in str(error)  # where torch lists two dozen of them
        reason = str(error).partition("\n")[0] if known else "no kind of device is called that"
        raise typer.BadParameter(f"{name!r} does not work here ({reason}); try cpu", param_hint="--device") from error
    return device


def needs(what: str, error: ModuleNotFoundError, extra: str = "paper") -> NoReturn:
    """Ends the program with the line that says which package is missing and how to get it."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "igr"):
        raise error  # not a package that could be installed, but a fault in this one
    advice = f"pip install 'igr[{extra}]', or in a clone of the repository: pip install -e '.[{extra}]'"
    print(f"igr: {what} needs {package}, which is not installed: {advice}", file=sys.stderr)
    sys.exit(1)
