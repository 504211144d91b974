"""What has to be said below a table: failures, gaps, and settings that are not those of the spec."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from igr.paper.report.cells import Cell, expected
from igr.paper.specs import SPECS, Vae

__all__ = ["missing", "notes"]


def missing(kind: str, cells: Sequence[Cell]) -> str | None:
    """How many cells of a table have no records, if any has none."""
    specs, found = expected(kind), {cell.spec for cell in cells}
    absent = sum(spec.id not in found for spec in specs)
    return f"No records yet: {absent} of {len(specs)} cells; igr list names them." if absent else None


def notes(cells: Sequence[Cell]) -> list[str]:
    """The notes of a table of these cells, each once, behind the names of those that it is about."""
    about: dict[str, list[str]] = {}
    for facts in (_facts, _evaluation):
        for cell in cells:
            for fact in facts(cell):
                about.setdefault(fact, []).append(cell.label)
    return [f"{_names(labels, len(cells))}: {fact}." for fact, labels in about.items()]


def _names(labels: Sequence[str], everyone: int) -> str:
    return "All" if len(labels) == everyone > 1 else ", ".join(labels)


def _facts(cell: Cell) -> list[str]:
    found = []
    if cell.failed:
        found.append(f"{cell.failed} of {len(cell.records)} failed ({_failures(cell)})")
    members = max(record.get("members", 0) for record in cell.records)
    if len(cell.records) < members:
        found.append(f"{len(cell.records)} of {members} members have records")
    found.extend(_differences(cell))
    if cell.synthetic:
        found.append("the images are synthetic, strokes drawn by a program")
    found.extend(cell.doubts())
    return found


def _failures(cell: Cell) -> str:
    """Where members failed: ``τ = 0.01: 2``."""
    where = Counter(
        (each["tau"], each["prior_temperature"] or 0.0) for each in cell.records if each["status"] != "finished"
    )
    words = [
        f"τ = {tau:g}" + (f", prior τ = {prior:g}" if prior else "") + f": {count}"
        for (tau, prior), count in sorted(where.items())
    ]
    return "; ".join(words)


def _differences(cell: Cell) -> list[str]:
    """Settings that are not the spec's."""
    spec = SPECS.get(cell.spec)
    return [
        f"{name.replace('_', ' ')} {cell.settings[name]}, where the spec says {value}"
        for name, value in (spec.settings() if isinstance(spec, Vae) else {}).items()
        if name in cell.settings and cell.settings[name] != value
    ]


def _evaluation(cell: Cell) -> list[str]:
    """How the numbers were measured, in the words that the settings allow."""
    settings = dict(cell.settings.get("evaluation", {}))
    if not settings:
        return []
    images = "all images" if settings.get("images") is None else f"at most {settings['images']:,} images"
    words = [f"measured on {images} of a split"]
    if "m" in settings:
        words[0] += f" with {settings['m']:,} samples each"
    if "train_samples" in settings:
        words[0] += f", on the training split with {settings['train_samples']:,}"
    if cell.method in ("igr-sb", "igr-planar") and "table" in settings:
        words.append(f"q(z|x) is a table of {settings['table']:,} draws, mixed with a little of the uniform")
    measured = any("log_likelihood_ais" in each["metrics"].get("test", {}) for each in cell.records)
    if measured and "ais_images" in settings:
        chains, steps = settings.get("ais_chains"), settings.get("ais_temperatures")
        words.append(f"AIS on {settings['ais_images']} test images with {chains} chains and {steps} temperatures")
    return words
