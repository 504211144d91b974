"""The table of execution times, from records of ``benchmarks/execution_time.py``."""

from __future__ import annotations

from collections.abc import Sequence

from igr.paper.methods import METHODS
from igr.paper.records import Record
from igr.paper.report.document import ABSENT, Block, Entry, Table, Text, heading
from igr.paper.report.words import place
from igr.paper.specs import TIMES

__all__ = ["KIND", "blocks", "is_timed", "ratio", "trained"]

KIND = TIMES.partition("/")[0]
PAPER = {
    "igr-i": "almost identical to GS",
    "igr-sb": "almost identical to GS",
    "igr-planar": "about 30 % slower",
    "igr-sb-mm": "the same as DLDPMM",
}
MEASURED = ("seconds_epoch", "seconds_epoch_min", "seconds_epoch_max")
BASELINE = {"igr-sb-mm": "dldpmm", "dldpmm": "dldpmm"}  # of all others it is GS
WORDS = (
    "Seconds to train one model for one epoch, on random images of MNIST's shape, measured in one run in which all "
    "methods take turns; medians over rounds, with the fastest and the slowest. Trained alone: one model, as in the "
    "paper. Together: the time of an ensemble of all temperatures and seeds of the spec, with one temperature of "
    "GS's prior, divided by its models."
)
PUBLISHED = (  # measured with that code, not read from records
    "The published code, measured on two cores of a CPU that had other work as well: linear IGR-I takes 1.1 times GS, "
    "IGR-SB 1.7 times, IGR-Planar 1.3 times; non-linear IGR-I 1.0 times, IGR-Planar 1.1 times; and IGR-SB-MM 7 times "
    "DLDPMM."
)


def is_timed(record: Record) -> bool:
    """Whether it has what the table takes for granted."""
    settings, metrics = record["settings"], record.get("metrics")
    if not isinstance(settings, dict) or not isinstance(metrics, dict):
        return False
    model = "architecture" in settings or "num_components" in settings
    known = settings.get("method") in METHODS and isinstance(settings.get("models"), int) and model
    return known and all(isinstance(metrics.get(name), float | int) and metrics[name] > 0 for name in MEASURED)


def trained(record: Record) -> str:
    """Alone, or together with others."""
    return "alone" if record["settings"]["models"] == 1 else "together"


def ratio(records: Sequence[Record], id: str, other: str) -> float | None:
    """How many times as long one takes as another, in the last run that has both."""
    pairs = [(a, b) for a in records for b in records if (a["spec"], b["spec"]) == (id, other) and _together(a, b)]
    if not pairs:
        return None
    a, b = max(pairs, key=lambda pair: str(pair[0].get("date")))
    return float(a["metrics"]["seconds_epoch"] / b["metrics"]["seconds_epoch"])


def _together(a: Record, b: Record) -> bool:
    """Whether they are of one run, and can be compared."""
    same = all(a.get(name) == b.get(name) for name in ("device", "date"))
    return same and trained(a) == trained(b)


def blocks(records: Sequence[Record]) -> list[Block]:
    """Everything in the section, nothing if there are no records."""
    if not records:
        return []
    words = ("model", "method", "trained")
    numbers = ("models", "seconds an epoch", "from – to", "times|GS or DLDPMM", "the paper")
    found: list[Block] = [Text.of(WORDS)]
    for device in sorted({str(each["device"]) for each in records}):
        some = [each for each in records if each["device"] == device]
        rows = tuple(_row(each, some) for each in sorted(some, key=_order))
        title = f"Execution time: {device}{_threads(some)}"
        notes = (PUBLISHED,) if device == "cpu" else ()  # it was measured on no other device
        found.append(Table(title, tuple(map(heading, words + numbers)), rows, len(words), notes))
    return found


def _threads(records: Sequence[Record]) -> str:
    counts = sorted({each["settings"]["threads"] for each in records if each["settings"].get("threads")})
    return f", {' or '.join(map(str, counts))} thread{'' if counts == [1] else 's'}" if counts else ""


def _order(record: Record) -> tuple[bool, bool, str, int, str]:
    """Alone before together, linear before non-linear, as methods are always listed."""
    settings = record["settings"]
    method = list(METHODS).index(settings["method"])
    return settings["models"] > 1, "mixture" in _model(record), _model(record), method, str(record.get("date"))


def _model(record: Record) -> str:
    architecture = record["settings"].get("architecture")
    if architecture is None:
        return f"mixture, K = {record['settings']['num_components']}"
    return place("mnist", architecture).partition(", ")[2] + " VAE"


def _row(record: Record, others: Sequence[Record]) -> tuple[Entry, ...]:
    metrics, method = record["metrics"], record["settings"]["method"]
    baseline = record["spec"].removesuffix(method) + BASELINE.get(method, "gs")
    times = ratio([record, *(each for each in others if _together(each, record))], record["spec"], baseline)
    return (
        Entry(_model(record)),
        Entry(METHODS[method].label, METHODS[method].colour),
        Entry(trained(record)),
        Entry(str(record["settings"]["models"])),
        Entry(f"{metrics['seconds_epoch']:.3g}"),
        Entry(f"{metrics['seconds_epoch_min']:.3g} – {metrics['seconds_epoch_max']:.3g}"),
        Entry(ABSENT if times is None else f"{times:.2f}"),
        Entry(PAPER.get(method, ABSENT)),
    )
