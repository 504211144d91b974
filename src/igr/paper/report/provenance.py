"""Where the numbers are from: run times, and the environment of the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from igr.paper.methods import METHODS
from igr.paper.records import Record
from igr.paper.report.cells import Cell
from igr.paper.report.document import ABSENT, Entry, Table, heading

__all__ = ["changed", "environment", "run_times", "seconds", "sharing"]


def run_times(cells: Sequence[Cell]) -> Table:
    """What training took: all members of a run learn at once, so a member's time is a share of it."""
    names = ("cell", "protocol", "device", "products")
    numbers = ("members", "epochs", "training|seconds", "per member and epoch|milliseconds", "evaluation|seconds")
    head = tuple(map(heading, (*names, *numbers, "runs sharing the device")))
    several = len({each.get("commit") for cell in cells for each in cell.records}) > 1
    notes = ["Times are of the code of their day: what is newer is faster for that."] if several else []
    if any(sharing(cell) > 1 for cell in cells):
        words = "Where several runs shared a device, each took longer than alone: these times are not to be compared."
        notes.append(words)
    return Table("Wall-clock time of each cell", head, tuple(map(_times, cells)), len(names), tuple(notes))


def sharing(cell: Cell) -> int:
    """How many runs shared the device, at most."""
    return max((each.get("sharing", 1) for each in cell.records), default=1)


def _runs(cell: Cell) -> list[Record]:
    """One record of each run that members are of."""
    names = ("seconds", "seconds_evaluation", "members")
    return list({tuple(each.get(name) for name in names): each for each in cell.records}.values())


def seconds(cell: Cell) -> tuple[float | None, float | None]:
    """What training and evaluation of all members took, where records say it."""
    runs = _runs(cell)
    return _total([each.get("seconds") for each in runs]), _total([each.get("seconds_evaluation") for each in runs])


def _times(cell: Cell) -> tuple[Entry, ...]:
    epochs = cell.settings.get("epochs")
    members = _total([each.get("members") for each in _runs(cell)])
    training, evaluation = seconds(cell)
    work = members * epochs if members and epochs else None
    return (
        Entry(cell.spec, METHODS[cell.method].colour),
        Entry(cell.protocol),
        Entry(cell.device),
        Entry(", ".join(sorted({_precision(each) or ABSENT for each in cell.records}))),
        Entry(ABSENT if members is None else f"{members:,.0f}"),
        Entry(ABSENT if epochs is None else f"{epochs:,}"),
        Entry(ABSENT if training is None else f"{training:,.1f}"),
        Entry(ABSENT if training is None or work is None else f"{1e3 * training / work:.3g}"),
        Entry(ABSENT if evaluation is None else f"{evaluation:,.1f}"),
        Entry(f"{sharing(cell)}"),
    )


def _total(values: Sequence[float | None]) -> float | None:
    """The sum over runs, if all of them say it."""
    there = [value for value in values if value is not None]
    return sum(there) if len(there) == len(values) else None


def changed(records: Sequence[Record]) -> str | None:
    """The line that says so if code was not as committed, or not known to be."""
    dirty = sum(record.get("dirty") is True for record in records)
    unknown = sum(record.get("dirty") is None and not record.get("tree") for record in records)  # a tree tells it
    words = [f"{dirty:,} come from code with uncommitted changes"] if dirty else []
    words += [f"{unknown:,} do not say which commit they come from"] if unknown else []
    several = sum(len(_trees(record)) > 1 for record in records)
    words += [f"{several:,} are of models whose training was continued under changed code"] if several else []
    return f"Of {len(records):,} records {' and '.join(words)}." if words else None


def _precision(record: Record) -> str | None:
    """Of products: before records said it, what everything was computed in."""
    found: str | None = record.get("products", record["settings"].get("dtype"))
    return found


def _trees(record: Record) -> list[str]:
    """The names that git has for the code that ran, one after another if it was changed on the way."""
    return record.get("trees") or [name for name in [record.get("tree")] if name]


def _tree(record: Record) -> str | None:
    names = ", then ".join(_trees(record))
    return f"{names} of {record['commit'][:7]}" if names and record.get("commit") else names or None


def _given(records: Sequence[Record]) -> list[str]:
    """What to say of commits that no git was asked about."""
    given = sum(each.get("dirty") is None and bool(each.get("commit") and _trees(each)) for each in records)
    words = (
        f"The commit of {given:,} records was given, since their code ran without its history. The tree is computed "
        "from the files that ran, and lets anyone check the commit: git rev-parse COMMIT:src/igr prints the same."
    )
    return [words] if given else []


def environment(records: Sequence[Record]) -> Table:
    """What the records say of machines and versions, and how many say it."""
    fields: dict[str, Callable[[Record], Any]] = {
        "commit": lambda each: each.get("commit") and each["commit"] + (" + changes" if each.get("dirty") else ""),
        "tree": _tree,
        "igr": lambda each: each.get("version", each.get("igr")),
        "torch": lambda each: each.get("torch"),
        "python": lambda each: each.get("python"),
        "device": lambda each: each.get("device"),
        "CPUs": lambda each: each.get("host_cpus"),
        "precision": _precision,
        "data": lambda each: each["settings"].get("data"),
    }
    rows: list[tuple[Entry, ...]] = []
    for name, get in fields.items():
        counts = Counter(str(get(each)) for each in records if get(each) is not None)
        rows.extend((Entry(name), Entry(text), Entry(f"{count:,}")) for text, count in sorted(counts.items()))
    dates = sorted(str(each["date"]) for each in records if each.get("date"))
    if dates:
        rows.append((Entry("date"), Entry(f"{dates[0]} to {dates[-1]}"), Entry(f"{len(dates):,}")))
    head = (Entry("what"), Entry("value"), Entry("records"))
    return Table("What the records say of code and machines", head, tuple(rows), 2, tuple(_given(records)))
