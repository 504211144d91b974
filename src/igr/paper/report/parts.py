"""The parts that claims are made of: comparisons of rows, of approximations and of times, each with its rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from igr.paper.records import Record
from igr.paper.report import times
from igr.paper.report.cells import Cell, Summary
from igr.paper.report.collect import Records
from igr.paper.report.lines import number
from igr.paper.report.notes import differences
from igr.paper.report.tables import published
from igr.paper.report.verdicts import FAILS, HOLDS, UNDECIDED, Judged, Part, Reading, readings
from igr.paper.report.words import ARCHITECTURES, CHOSEN_BY, called
from igr.paper.specs import SPECS, Derived, Trained

__all__ = [
    "BESIDE",
    "COMPLETIONS",
    "CONTINUOUS",
    "ELBOS",
    "LIKELIHOODS",
    "MIXTURES",
    "MUCH",
    "NOISE",
    "RELAXED",
    "SEEN",
    "TAIL",
    "TRAIN",
    "Book",
    "noise",
    "told",
]

NOISE = 2.0  # how many combined standard deviations a difference must exceed
SEEN = 0.02  # of total variation: what a difference between two fits must exceed
TAIL, MUCH = 0.01, 2.0  # of a distribution: what is called its tail, and how many times as much of it is much more
FORMULAS = {  # what a formula is called, and what records call it; the name of the published one ends with its S
    "bound": "log_likelihood",
    "discrete ELBO": "elbo_discrete",
    "continuous ELBO": "elbo_continuous",
    "log-likelihood": "log_likelihood",
    "published objective": "objective_published",
    "AIS": "log_likelihood_ais",
}
TESTED, SEEN_IN_TRAINING = "test images", "training images"


def noise(*deviations: float) -> float:
    """What a difference of means must exceed."""
    return NOISE * math.hypot(*deviations)


@dataclass(frozen=True)
class Book:
    """Records, to be asked: under one protocol, of real images, with the settings and seeds of the spec."""

    records: Records
    protocol: str = "honest"

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """By their specs, the largest of several."""
        found: dict[str, Cell] = {}
        for cell in self.records.cells:
            own = cell.with_own_seeds()
            if own is None or cell.protocol != self.protocol or cell.synthetic or differences(cell):
                continue
            if cell.spec not in found or len(own.records) > len(found[cell.spec].records):
                found[cell.spec] = own
        return found

    def cell(self, id: str) -> Cell | None:
        """That of a spec; of a row that is read from another, the other's."""
        spec = SPECS[id]
        return self.cells.get(spec.sources[0] if isinstance(spec, Derived) else id)

    def recorded(self, id: str) -> bool:
        """Whether there is a record."""
        if isinstance(SPECS.get(id), Trained | Derived):
            return self.cell(id) is not None
        return any(each["spec"] == id for each in (*self.records.approximations, *self.records.times))

    def value(self, id: str, reading: Reading) -> tuple[Summary, str] | None:
        """Mean and deviation over seeds, and what was chosen."""
        if (cell := self.cell(id)) is None:
            return None
        selection = {name: criterion for criterion, name in CHOSEN_BY.items()}.get(reading.get("selection"))
        chosen = cell.chosen(selection or cell.criteria[-1])
        split = "train" if reading.get("images") == SEEN_IN_TRAINING else "test"
        metric = FORMULAS.get(reading.get("formula")) or published(cell)
        found = cell.summary(chosen, split, metric)
        named = called(chosen) if chosen is not None and cell.choice else ""
        return None if found is None else (found, named)

    def above(self, high: Sequence[str], low: Sequence[str], *, weak: bool = False) -> Part:
        """That the best of some rows is above the best of others by more than noise; ``weak``: not below by more."""

        def judge(reading: Reading) -> Judged | None:
            values = {id: found for id in (*high, *low) if (found := self.value(id, reading)) is not None}
            a, b = (max((values[id] for id in ids if id in values), key=_mean, default=None) for ids in (high, low))
            if a is None or b is None:
                return None
            words = f"{told(*a)}, {told(*b)}: {number(a[0].mean - b[0].mean, sign=True)}"
            return Judged(_verdict(a[0], b[0], weak), words, whole=values.keys() == {*high, *low})

        return Part(f"{_names(high)} {'not below' if weak else 'above'} {_names(low)}", (*high, *low), judge)

    # ------------------------------------------------------------------------------------------------ approximations

    def fits(self) -> tuple[Reading, ...]:
        """Every temperature and learning rate that distributions were fitted with as in the paper."""
        fitted = [each for each in self.records.approximations if each["protocol"] == "paper"]
        found = dict.fromkeys((f"{each['tau']:g}", f"{each['settings']['learning_rate']:g}") for each in fitted)
        return tuple(Reading((("temperature", tau), ("learning rate", rate))) for tau, rate in found)

    def closer(self, near: str, far: str, *, weak: bool = False) -> Part:
        """That one fit's total variation is below another's by more than can be seen; ``weak``: not above by more."""

        def judge(reading: Reading) -> Judged | None:
            a, b = (self._distance(id, reading) for id in (near, far))
            if a is None or b is None:
                return None
            lost = a - b > SEEN
            verdict = (FAILS if lost else HOLDS) if weak else HOLDS if b - a > SEEN else FAILS if lost else UNDECIDED
            return Judged(verdict, f"{a:.3f}, {b:.3f}")

        return Part(f"{near} {'not further than' if weak else 'closer than'} {far}", (near, far), judge)

    def close(self, id: str, enough: float, *, contrary: bool = False) -> Part:
        """That the total variation of a fit is small, or the ``contrary``."""

        def judge(reading: Reading) -> Judged | None:
            found = self._distance(id, reading)
            return None if found is None else Judged(_told_by((found <= enough) != contrary), f"{found:.3f}")

        return Part(f"{id} {'not ' if contrary else ''}within {enough:g}", (id,), judge)

    def starts_left(self, id: str) -> Part:
        """That most of a fit's mass, before its first step, is left of all but the first per cent of its target's."""

        def judge(reading: Reading) -> Judged | None:
            if (found := self._fit(id, reading, step=0)) is None:
                return None
            record, state = found
            target = record["target"]["probs"]
            first = next(k for k in range(len(target)) if sum(target[: k + 1]) > TAIL)
            mass = sum(state["probs"][:first])
            return Judged(_told_by(mass > 0.5), f"{mass:.3f} below {first}")

        return Part(f"{id} begins left of its target", (id,), judge)

    def tail(self, id: str, *, heavy: bool) -> Part:
        """That a fit has much more mass than its target beyond the target's last per cent, or much less."""

        def judge(reading: Reading) -> Judged | None:
            if (found := self._fit(id, reading)) is None:
                return None
            record, state = found
            target = record["target"]["probs"]
            first = next(k for k in range(len(target)) if sum(target[k:]) <= TAIL)
            truth, mass = sum(target[first:]), sum(state["probs"][first:])
            holds = mass > MUCH * truth if heavy else mass < truth / MUCH
            return Judged(_told_by(holds), f"{mass:.3f} from {first} on, {truth:.3f}")

        return Part(f"the tail of {id} {'above' if heavy else 'below'} its target's", (id,), judge)

    def _distance(self, id: str, reading: Reading) -> float | None:
        """Total variation after 1,000 steps."""
        found = self._fit(id, reading)
        return None if found is None else float(found[1]["metrics"]["tv"])

    def _fit(self, id: str, reading: Reading, step: int = 1000) -> tuple[Record, Mapping[str, Any]] | None:
        """The record of a fit, and what it is after some steps."""
        for each in self.records.approximations:
            if each["spec"] == id and each["protocol"] == "paper" and _is_of(each, reading):
                found = [state for state in each["states"] if state["step"] == step]
                return (each, found[0]) if found else None
        return None

    # --------------------------------------------------------------------------------------------------------- times

    def clocks(self) -> tuple[Reading, ...]:
        """Every device, and whether models are trained alone or together."""
        found = dict.fromkeys((str(each["device"]), times.trained(each)) for each in self.records.times)
        return tuple(Reading((("device", device), ("training", how))) for device, how in found)

    def takes(self, id: str, other: str, least: float, most: float) -> Part:
        """That the time of an epoch is between so many times another's; ``*`` in ids is a reading's architecture."""
        every = ARCHITECTURES if "*" in id else ("",)

        def judge(reading: Reading) -> Judged | None:
            some = [
                each
                for each in self.records.times
                if (each["device"], times.trained(each)) == (reading.get("device"), reading.get("training"))
            ]
            ratio = times.ratio(some, *(each.replace("*", reading.get("architecture")) for each in (id, other)))
            return None if ratio is None else Judged(_told_by(least <= ratio <= most), f"{ratio:.2f} times")

        ids = tuple(each.replace("*", architecture) for architecture in every for each in (id, other))
        return Part(f"{id} takes {least:g} to {most:g} times {other}", ids, judge)


def _told_by(holds: bool) -> str:
    return HOLDS if holds else FAILS


def _verdict(a: Summary, b: Summary, weak: bool) -> str:
    if a.sd is None or b.sd is None:
        return UNDECIDED  # one seed has no deviation
    difference, limit = a.mean - b.mean, noise(a.sd, b.sd)
    if weak:
        return FAILS if difference < -limit else HOLDS
    return HOLDS if difference > limit else FAILS if difference < -limit else UNDECIDED


def _mean(found: tuple[Summary, str]) -> float:
    return found[0].mean


def told(found: Summary, chosen: str) -> str:
    """Mean and deviation, and what was chosen."""
    text = number(found.mean) + ("" if found.sd is None else f" ± {found.sd:.2f}")
    return f"{text} ({chosen})" if chosen else text


def _names(ids: Sequence[str]) -> str:
    """Ids, of those of one table only what differs: ``table1/mnist/linear/igr-i, igr-sb``."""
    place = ids[0].rpartition("/")[0]
    return ", ".join([ids[0], *(id.removeprefix(f"{place}/") for id in ids[1:])])


def _is_of(record: Record, reading: Reading) -> bool:
    given = f"{record['tau']:g}", f"{record['settings']['learning_rate']:g}"
    return given == (reading.get("temperature"), reading.get("learning rate"))


SELECTIONS = tuple(CHOSEN_BY.values())
LIKELIHOODS = readings(selection=SELECTIONS, formula=("published formula", "bound"))
ELBOS = readings(selection=SELECTIONS, formula=("discrete ELBO",), images=(TESTED,))
TRAIN = readings(selection=SELECTIONS, formula=("discrete ELBO",), images=(SEEN_IN_TRAINING,))
RELAXED = (*readings(selection=SELECTIONS, formula=("published formula", "bound"), images=(TESTED,)), *ELBOS)
CONTINUOUS = readings(selection=SELECTIONS, formula=("continuous ELBO",))
AIS = readings(selection=SELECTIONS, formula=("AIS",))
COMPLETIONS = readings(formula=("log-likelihood",))
MIXTURES = readings(formula=("published objective", "bound"))
BESIDE = {LIKELIHOODS: AIS, RELAXED: TRAIN}  # what stands beside them, but is not counted
