"""``igr data``: the datasets, where they are, whether they are good, and how to get them."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from igr._commands.common import needs, show, until_interrupted

if TYPE_CHECKING:
    import typer

    from igr.paper.sources import Found


def add(app: "typer.Typer") -> None:
    import typer

    from igr.paper.sources import SOURCES

    choices = ", ".join([*SOURCES, "all"])

    def known(names: list[str] | None) -> list[str]:
        for name in names or []:
            if name not in SOURCES and name != "all":
                raise typer.BadParameter(f"no dataset is called {name!r}; expected one of {choices}")
        return list(SOURCES) if names and "all" in names else list(dict.fromkeys(names or []))

    names = typer.Argument(metavar="NAME", help=f"One or more of {choices}.", callback=known, show_default=False)
    folder = typer.Option(help="Folder of the datasets, in place of IGR_DATA_DIR and the user cache.", file_okay=False)
    data = typer.Typer(no_args_is_help=True, help="See, check and download the datasets.")
    app.add_typer(data, name="data")

    @data.command()
    def status(
        name: Annotated[list[str] | None, names] = None, data_dir: Annotated[Path | None, folder] = None
    ) -> None:
        """Say of each dataset where it is, how large, how it is split, and under which licence. Reads none."""
        with until_interrupted():
            _show([_status(each, data_dir) for each in name or SOURCES])

    @data.command()
    def verify(
        name: Annotated[list[str] | None, names] = None, data_dir: Annotated[Path | None, folder] = None
    ) -> None:
        """Check the content of every file. Without a NAME, datasets of which nothing is there are passed over.

        Status 1 if a file is missing or not what it should be, or if a dataset that was named is not there.
        """
        with until_interrupted():
            sys.exit(_verify(name or [], data_dir))

    @data.command()
    def fetch(
        name: Annotated[list[str], typer.Argument(metavar="NAME", help=f"One or more of {choices}.", callback=known)],
        data_dir: Annotated[
            Path | None, typer.Option(help="Folder to fill, in place of the user cache.", file_okay=False)
        ] = None,
    ) -> None:
        """Download datasets, from several mirrors in turn, and check them. After Ctrl-C a second call goes on."""
        with until_interrupted():
            _fetch(name, data_dir)


class Status(NamedTuple):
    """A line of ``igr data status``."""

    name: str
    where: str
    size: str
    splits: str
    licence: str


def _status(name: str, data_dir: Path | None) -> Status:
    from igr.paper.data import split_sizes
    from igr.paper.sources import SOURCES, DataError, locate

    splits = " + ".join(f"{size:,}" for size in split_sizes(name))
    try:
        found = locate(name, data_dir)
    except DataError:
        where, size = f"not found; igr data fetch {name}", f"{SOURCES[name].megabytes} MB to download"
    else:
        where, size = str(found.folder), _megabytes(sum(path.stat().st_size for _, path in found.files))
    return Status(name, where, size, splits, SOURCES[name].licence)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _show(rows: Sequence[Status]) -> None:
    """A table on a terminal; elsewhere a line for each dataset, its fields between tabs."""
    if not sys.stdout.isatty():
        for row in rows:
            print(*row, sep="\t")
        return
    from rich.table import Table

    table = Table("dataset", "where", "size", "train + validation + test", "licence", box=None, pad_edge=False)
    table.columns[1].overflow = "fold"  # a path is of use as a whole
    for row in rows:
        table.add_row(*row)
    show(table)


def _verify(names: Sequence[str], data_dir: Path | None) -> int:
    """Prints a line for each dataset, what is wrong to stderr, and returns the status to leave with."""
    from igr.paper.sources import SOURCES, DataError, locate, places

    looked, wrong = places(data_dir), False
    for name in names or SOURCES:
        if not names and not any(any((place / SOURCES[name].folder).glob("*")) for place in looked):
            print(f"{name}: not in {' or '.join(map(str, looked))}; to download it: igr data fetch {name}")
            continue
        try:
            print(f"{name}: {_check(name, locate(name, data_dir))}")
        except DataError as error:
            wrong = True
            print(f"igr: {error}", file=sys.stderr)
    return int(wrong)


def _check(name: str, found: "Found") -> str:
    """What there is to say of a dataset whose files are good."""
    from igr.paper.sources import SOURCES, read_idx, read_omniglot

    if name == "omniglot":
        drawings = read_omniglot(found.files[0][1])
        if drawings.threshold is not None:
            return (
                f"good, but converted from the archives (ink from {drawings.threshold} of 225 parts on, "
                f"{drawings.ink.mean():.2%} of all pixels), in {found.folder}"
            )
        return f"good, in {found.folder}"
    for file, path in found.files:
        read_idx(name, file, path)
    labels = "" if len(found.files) == len(SOURCES[name].files) else " (without labels, which nothing here reads)"
    return f"good, in {found.folder}{labels}"


def _fetch(names: Sequence[str], data_dir: Path | None) -> None:
    from igr.paper.download import fetch
    from igr.paper.sources import SOURCES, DataError, user_cache

    place = data_dir or user_cache()
    for name in names:
        try:
            with _bar() as report:
                new = fetch(name, place, report)
        except ModuleNotFoundError as error:
            needs("igr data fetch", error)
        except DataError as error:
            print(f"igr: {error}", file=sys.stderr)
            sys.exit(1)
        except OSError as error:
            print(f"igr: cannot write {error.filename or place}: {error.strerror or error}", file=sys.stderr)
            sys.exit(1)
        print(f"{name}: {'downloaded and checked' if new else 'already good'}, in {place / SOURCES[name].folder}")


@contextmanager
def _bar() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar that counts bytes on a terminal, nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    quiet = not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), disable=quiet, transient=True) as progress:
        task = progress.add_task("", total=None)

        def report(words: str, done: int, total: int | None) -> None:
            if progress.tasks[0].description != words:
                progress.reset(task, description=words, total=total)
            progress.update(task, completed=done, total=total)

        yield report
