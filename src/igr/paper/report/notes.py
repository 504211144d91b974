"""What has to be said below a table: failures, gaps, settings that are not those of the spec, and what contradicts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from typing import Any, NamedTuple

from igr.paper.report.cells import UNTEMPERED, Cell, Summary
from igr.paper.report.lines import Line, number, sources
from igr.paper.report.words import called, listed
from igr.paper.select import Configuration
from igr.paper.specs import SPECS, Trained
from igr.paper.trained import TRAIN_IMAGES

__all__ = ["REMARKS", "differences", "disagreements", "incomparable", "missing", "notes", "superseded"]

UNSPECIFIED = ("dtype", "data", "evaluation", "scale_floor")  # what records have beside the settings of specs

REMARKS = {
    "relax": (
        "In the published code RELAX has networks of its own, of 200 or 360 units a layer. The paper says non-linear, "
        "and ours are the non-linear ones of all other rows.",
    ),
    "s4": (
        "The paper's numbers are test ELBOs: Δ is our discrete ELBO minus the paper's. Whether its IGR-I and GS are "
        "the discrete or the relaxed models, it does not say, and its code logs the ELBO of the relaxed ones: that is "
        "here as well, as continuous ELBO.",
        "The paper's GS + RELAX is, as far as the published code tells, a value of hard samples without importance "
        "weights, hence a test ELBO.",
        "USPGBL is not in the published code. That of its authors has batches of 200, a learning rate of 1e-3, 1,000 "
        "epochs and LeakyReLU; ours has what all rows have.",
    ),
}

SUPERSEDED = {  # by spec and commit: records whose code trained otherwise than it does now
    (
        "nonparametric/mnist/igr-sb-mm+sl",
        "8d12eb2242a4f2e23589e988c35b08e0c8ff2e33",
    ): "trained before the gradient counted what one more stick costs",
}


def missing(kind: str, cells: Sequence[Cell]) -> str | None:
    """How many cells of a table have no records, if any has none."""
    wanted, found = sources(kind), {cell.spec for cell in cells}
    absent = len(wanted.keys() - found)
    return f"No records yet: {absent} of {len(wanted)} cells; igr list names them." if absent else None


def notes(cells: Sequence[Cell]) -> list[str]:
    """The notes of a table of these cells, each once, behind the names of those that it is about."""
    about: dict[str, list[str]] = {}
    for facts in (_facts, _evaluation):
        for cell in cells:
            for fact in facts(cell):
                about.setdefault(fact, []).append(cell.label)
    return [f"{_names(labels, len(cells))}: {fact}." for fact, labels in about.items()]


def incomparable(rows: Sequence[Line]) -> list[str]:
    """Why there is no difference to the paper, in a table where it is left out."""
    reasons = dict.fromkeys(line.incomparable for line in rows)
    return [f"Δ is left out: {reason}." for reason in reasons if reason is not None]


class _Measured(NamedTuple):
    """A row that has been measured in both ways on the same images."""

    name: str
    images: int | None
    ais: Summary
    bound: Summary


def disagreements(rows: Sequence[Line]) -> list[str]:
    """Pairs of rows that AIS orders by more than twice their combined deviation, and so the bound the other way."""
    found = []
    for high, low in permutations(_measured(rows), 2):
        lead, sd = _lead(high.ais, low.ais)
        behind, spread = _lead(low.bound, high.bound)
        if high.images == low.images and lead > 2 * sd and behind > 2 * spread:
            found.append(
                f"{high.name} is above {low.name} by {number(lead)} ± {sd:.2f} according to AIS, which is to be "
                f"believed, and below it by {number(behind)} ± {spread:.2f} according to the bound on the same images."
            )
    return found


def _lead(high: Summary, low: Summary) -> tuple[float, float]:
    """How far one is above another, and the combined deviation."""
    return high.mean - low.mean, math.hypot(high.sd or 0.0, low.sd or 0.0)


def _measured(rows: Sequence[Line]) -> list[_Measured]:
    """Each model once, though both criteria may have chosen it; not what is cut short.

    One seed has no deviation to compare with.
    """
    found: dict[str, _Measured] = {}
    for line in rows:
        ais, bound = (line.summary("test", f"log_likelihood_{name}") for name in ("ais", "subset"))
        if line.cell is None or line.configuration is None or any(each["smoke"] for each in line.cell.records):
            continue
        if ais is not None and ais.sd is not None and bound is not None:
            name = line.label + (f" at {called(line.configuration)}" if line.cell.tempered else "")
            images = line.cell.settings.get("evaluation", {}).get("ais_images")
            found[name] = _Measured(name, images, ais, bound)
    return list(found.values())


def _names(labels: Sequence[str], everyone: int) -> str:
    return "All" if len(labels) == everyone > 1 else listed(labels)


def _facts(cell: Cell) -> list[str]:
    found = []
    if cell.failed:
        where = f" ({_failures(cell)})" if cell.choice else ""
        found.append(f"{cell.failed} of {len(cell.records)} failed{where}")
    members = max(record.get("members", 0) for record in cell.records)
    if len(cell.records) < members:
        found.append(f"{len(cell.records)} of {members} members have records")
    found.extend(differences(cell))
    found.extend(superseded(cell))
    if cell.estimator == "relax":
        found.append("τ is where the temperature starts, which is learned")
    if cell.estimator in UNTEMPERED:
        found.append("there is no temperature, and so nothing to choose")
    if cell.synthetic:
        found.append("the images are synthetic, strokes drawn by a program")
    found.extend(cell.doubts())
    return found


def _failures(cell: Cell) -> str:
    """Where members failed: ``τ = 0.01: 2``."""
    failed = [each for each in cell.records if each["status"] != "finished"]  # in order
    where = Counter(Configuration.of(each) for each in failed)
    return "; ".join(f"{called(configuration)}: {count}" for configuration, count in where.items())


def differences(cell: Cell) -> list[str]:
    """Settings that are not the spec's, what only one of the two has included: usual values are left out of both."""
    spec = SPECS.get(cell.spec)
    if not isinstance(spec, Trained):
        return []
    wanted, given = spec.settings(), {name: value for name, value in cell.settings.items() if name not in UNSPECIFIED}
    if "train_images" in given:
        wanted["train_images"] = TRAIN_IMAGES[cell.protocol][spec.dataset]
    return [
        f"{name.replace('_', ' ')} {_said(given.get(name))}, where the spec says {_said(wanted.get(name))}"
        for name in dict.fromkeys((*wanted, *given))
        if wanted.get(name) != given.get(name)
    ]


def superseded(cell: Cell) -> list[str]:
    """How records were trained otherwise than the code that stands now would."""
    found = dict.fromkeys(SUPERSEDED.get((cell.spec, record.get("commit", ""))) for record in cell.records)
    return [words for words in found if words is not None]


def _said(value: Any) -> str:
    return "what is usual" if value is None else str(value)


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
        train = f", of {settings['train_table']:,} on the training split" if "train_table" in settings else ""
        words.append(f"q(z|x) is a table of {settings['table']:,} draws{train}, mixed with a little of the uniform")
    if deviations := _tested(cell, "table_deviation"):
        words.append(f"largest error of a frequency table, checked on a few images: {max(deviations):.2g}")
    if _tested(cell, "log_likelihood_ais") and "ais_images" in settings:
        chains, steps = settings.get("ais_chains"), settings.get("ais_temperatures")
        words.append(f"AIS on {settings['ais_images']} test images with {chains} chains and {steps} temperatures")
    return words


def _tested(cell: Cell, metric: str) -> list[float]:
    """A metric of all members that have it on the test split."""
    found = (each["metrics"].get("test", {}).get(metric) for each in cell.records)
    return [value for value in found if value is not None]
