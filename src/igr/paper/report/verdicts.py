"""Verdicts on claims: what parts of a claim say in each reading of the records, and what all of that comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = [
    "FAILS",
    "HOLDS",
    "MISSING",
    "UNDECIDED",
    "UNTRIED",
    "Judged",
    "Outcome",
    "Part",
    "Reading",
    "Rule",
    "all_but",
    "every",
    "judge",
    "most",
    "readings",
]

HOLDS, FAILS, UNDECIDED, MISSING = "holds", "fails", "undecided", "not run yet"
UNTRIED = "no experiment here"


@dataclass(frozen=True)
class Reading:
    """One way to read the records: the value of everything that is free, such as the selection and the formula."""

    axes: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        chosen = [f"τ by {value}: " for axis, value in self.axes if axis == "selection"]
        words = {"formula": "", "images": ""}
        others = [words.get(axis, f"{axis} ") + value for axis, value in self.axes if axis != "selection"]
        return "".join(chosen) + ", ".join(others)

    def get(self, axis: str) -> str:
        """The value on an axis, nothing if it has none."""
        return dict(self.axes).get(axis, "")

    def without(self, axis: str) -> Reading:
        """What else it says."""
        return Reading(tuple(each for each in self.axes if each[0] != axis))


def readings(**axes: Iterable[str]) -> tuple[Reading, ...]:
    """Every combination.

    Example:
        >>> [str(each) for each in readings(formula=["bound"], τ=["0.1", "1"])]
        ['bound, τ 0.1', 'bound, τ 1']
    """
    found: list[tuple[tuple[str, str], ...]] = [()]
    for axis, values in axes.items():
        found = [(*each, (axis, value)) for each in found for value in values]
    return tuple(map(Reading, found))


class Judged(NamedTuple):
    """What one reading says of a part of a claim, and the numbers."""

    verdict: str
    words: str
    whole: bool = True
    """Whether all records are there that it is about."""


class Part(NamedTuple):
    """What can be judged by itself, such as that one row is above another."""

    label: str
    ids: tuple[str, ...]
    """Of what its records are of."""
    judge: Callable[[Reading], Judged | None]
    """The verdict in a reading, or None if there are no records to tell from."""


Rule = Callable[[Sequence[str], int], str]
"""What parts with records say together, given their verdicts and the number of all parts."""


def all_but(exceptions: int) -> Rule:
    """All parts but so many hold; more that fail are enough for the contrary.

    An exception is one only beside parts that hold, and once all parts are there: of those that are missing, one may
    be an exception as well.

    Example:
        >>> all_but(1)([HOLDS, FAILS], 2), all_but(1)([HOLDS, FAILS], 3), all_but(0)([UNDECIDED, FAILS], 3)
        ('holds', 'undecided', 'fails')
    """

    def rule(verdicts: Sequence[str], number: int) -> str:
        if verdicts.count(FAILS) > exceptions:
            return FAILS
        complete = len(verdicts) == number and number > exceptions
        needed = len(verdicts) - (exceptions if complete else 0)
        return HOLDS if verdicts.count(HOLDS) >= needed else UNDECIDED

    return rule


every = all_but(0)


def most(verdicts: Sequence[str], number: int) -> str:
    """More than half of the parts with records hold, however many there are; or more than half fail."""
    half = len(verdicts) / 2
    return HOLDS if verdicts.count(HOLDS) > half else FAILS if verdicts.count(FAILS) > half else UNDECIDED


@dataclass(frozen=True)
class Outcome:
    """What the records say of a claim."""

    verdict: str
    readings: Mapping[Reading, str]
    """What each reading says, of which some may not be run yet; nothing if none has records."""
    judged: Mapping[tuple[str, Reading], Judged]
    """What it says of each part, by its label."""
    missing: tuple[str, ...]
    """Ids that parts need and that have no records."""


def judge(parts: Sequence[Part], over: Sequence[Reading], rule: Rule, recorded: Callable[[str], bool]) -> Outcome:
    """The verdict: what all readings say, or what it depends on.

    It has ``so far`` if an id has no records, or a part lacks some in some reading, and says in how many readings it
    has any, if not in all.

    Arguments:
        parts: what the claim is made of.
        over: the readings.
        rule: what parts say together.
        recorded: whether an id has records.
    """
    judged: dict[tuple[str, Reading], Judged] = {}
    said: dict[Reading, str] = {}
    for reading in over:
        found = {part.label: part.judge(reading) for part in parts}
        there = {label: each for label, each in found.items() if each is not None}
        judged |= {(label, reading): each for label, each in there.items()}
        said[reading] = rule([each.verdict for each in there.values()], len(parts)) if there else MISSING
    missing = tuple(dict.fromkeys(id for part in parts for id in part.ids if not recorded(id)))
    run = {reading: each for reading, each in said.items() if each != MISSING}
    if not run:
        return Outcome(MISSING if parts else UNTRIED, {}, {}, missing)
    some = f", in {len(run)} of {len(over)} readings" if len(run) < len(over) else ""
    whole = not missing and sum(each.whole for each in judged.values()) == len(parts) * len(over)
    return Outcome(f"{'' if whole else 'so far '}{_together(run)}{some}", said, judged, missing)


def _together(said: Mapping[Reading, str]) -> str:
    """What all readings say, or on what it depends: every axis that flips it while all else is the same.

    Readings that are undecided contradict no others.
    """
    verdicts = list(dict.fromkeys(said.values()))
    if len(verdicts) == 1:
        return verdicts[0]
    if not {HOLDS, FAILS} <= set(verdicts):
        return " or ".join(sorted(verdicts, key=lambda each: each == UNDECIDED))
    axes = [axis for axis, _ in next(iter(said)).axes]
    return f"depends on the {' and the '.join([axis for axis in axes if _flips(said, axis)] or axes)}"


def _flips(said: Mapping[Reading, str], axis: str) -> bool:
    """Whether two readings that differ on this axis alone contradict each other."""
    groups: dict[Reading, set[str]] = {}
    for reading, verdict in said.items():
        groups.setdefault(reading.without(axis), set()).add(verdict)
    return any({HOLDS, FAILS} <= each for each in groups.values())
