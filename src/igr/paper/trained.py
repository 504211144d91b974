"""What all cells that are trained have in common: members, seeds, a length, and a short version. Needs no torch."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any, ClassVar, NamedTuple, Self

from igr.paper.published import PUBLISHED, Published
from igr.paper.select import Configuration

__all__ = ["SEEDS", "TEMPERATURES", "Member", "SpecError", "Trained", "count", "is_positive"]

SEEDS = (5328, 5945, 8965, 49, 9337)  # as published
TEMPERATURES = (0.01, 0.03, 0.07, 0.1, 0.25, 0.4, 0.5, 0.67, 0.85, 1.0)  # the paper's grid
SMOKE_TEMPERATURES = (0.25, 0.67)
UNUSED = (1.0,)  # the temperature of estimators that have none
DIFFERENTIATED_TWICE = ("relax", "rebar")  # estimators that take gradients of gradients
TRAIN_IMAGES = {
    "honest": {"mnist": 50_000, "fmnist": 50_000, "omniglot": 21_910},
    "published": {"mnist": 60_000, "fmnist": 60_000, "omniglot": 24_345},
}


class SpecError(ValueError):
    """A spec that does not exist or cannot be."""


class Member(NamedTuple):
    """One of the models of a cell."""

    tau: float | None
    """None where nothing is relaxed."""
    prior_temperature: float | None
    """Of GS with a continuous objective; None for all others."""
    seed: int
    num_components: int | None = None
    """K of a mixture with a fixed number of components; None for all others."""

    @property
    def configuration(self) -> Configuration:
        """What it shares with the members of other seeds."""
        return Configuration(self.tau, self.prior_temperature, self.num_components)


class Trained:
    """A cell that is trained: one model for each configuration and each seed. A dataclass, with these fields.

    Raises:
        SpecError: a field has a value, or several fields have a combination, that cannot be trained.
    """

    id: str
    dataset: str
    method: str
    seeds: tuple[int, ...]
    epochs: int
    batch_size: int
    learning_rate: float
    protocol: str
    smoke: bool

    criteria: ClassVar[tuple[str, ...]] = ("log_likelihood",)
    """What configurations are chosen by."""
    choices: ClassVar[dict[str, tuple[str, ...]]] = {}
    """What fields may be."""
    whole: ClassVar[tuple[str, ...]] = ("epochs", "batch_size")
    """Fields that are positive integers."""
    identified_elsewhere: ClassVar[frozenset[str]] = frozenset({"id", "seeds", "protocol", "smoke"})
    """Fields that are no settings: records have them, or what members are made of them, by other names."""

    def __post_init__(self) -> None:
        for name, choices in self.choices.items():
            if (value := getattr(self, name)) not in choices:
                raise SpecError(f"{self.id}: {name} is {value!r}, expected one of {', '.join(choices)}")
        for name in self.whole:
            if type(value := getattr(self, name)) is not int or value < 1:
                raise SpecError(f"{self.id}: {name} is {value!r}, expected a positive integer")
        if not is_positive(self.learning_rate):
            raise SpecError(f"{self.id}: learning_rate is {self.learning_rate!r}, expected a positive number")
        different = len(set(self.seeds)) == len(self.seeds) > 0
        if not different or not all(type(seed) is int and seed >= 0 for seed in self.seeds):
            raise SpecError(f"{self.id}: seeds are {self.seeds!r}, expected different integers, none negative")
        for wrong, reason in self._conflicts():
            if wrong:
                raise SpecError(f"{self.id}: {reason}")

    def _conflicts(self) -> list[tuple[bool, str]]:
        """Combinations that cannot be trained, and why."""
        return []

    def configurations(self) -> Iterable[Configuration]:
        """What members differ in beside their seeds, in order."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """What tables call it."""
        raise NotImplementedError

    @property
    def description(self) -> str:
        """One line on what is trained."""
        raise NotImplementedError

    @property
    def minutes(self) -> float:
        """How long training may take on one H200: an estimate by the number of steps, members and samples."""
        return self.epochs * self.steps * self._milliseconds() / 60_000

    def _milliseconds(self) -> float:
        """An estimate of what one step of all members takes on one H200."""
        raise NotImplementedError

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return TRAIN_IMAGES[self.protocol][self.dataset] // self.batch_size

    @property
    def paper(self) -> Published | None:
        """The paper's number, if it has one."""
        return PUBLISHED.get(self.id)

    def learning_rate_at(self, step: int) -> float:
        """What Adam's step after so many others is taken with."""
        return self.learning_rate

    def members(self) -> tuple[Member, ...]:
        """All seeds of the first configuration, all of the second, ..., each configuration once."""
        return tuple(
            Member(each.tau, each.prior_temperature, seed, each.num_components)
            for each in dict.fromkeys(self.configurations())
            for seed in self.seeds
        )

    def shortened(self) -> Self:
        """The same, cut short, to see that all works."""
        return self._with(**dict(self._cuts()), seeds=self.seeds[:2], epochs=min(2, self.epochs), smoke=True)

    def _cuts(self) -> Iterator[tuple[str, Any]]:
        """What else is cut short."""
        yield from ()

    def with_protocol(self, protocol: str) -> Self:
        """The same under ``honest`` or ``published``.

        Raises:
            SpecError: there is no such protocol for it.
        """
        return self if protocol == self.protocol else self._with(protocol=protocol)

    def replicate(self, number: int) -> Self:
        """The same with other seeds, as many: the first digits of sha256("<seed>/replicate/<number>"); 0 is itself."""
        if number == 0:
            return self
        digests = [hashlib.sha256(f"{seed}/replicate/{number}".encode()).digest() for seed in self.seeds]
        return self._with(seeds=tuple(int.from_bytes(digest[:4], "big") for digest in digests))

    def settings(self) -> dict[str, Any]:
        """What identifies the training beside a member, the protocol and whether it is cut short."""
        every = asdict(self)  # type: ignore[call-overload]
        return {name: value for name, value in every.items() if name not in self.identified_elsewhere}

    def _with(self, **changes: Any) -> Self:
        return replace(self, **changes)  # type: ignore[type-var]


def smoke_temperatures(temperatures: tuple[float, ...]) -> tuple[float, ...]:
    """Two of them."""
    return tuple(tau for tau in SMOKE_TEMPERATURES if tau in temperatures) or temperatures[:2]


def check_temperatures(cell: Trained, name: str, values: Iterable[float], *, some: bool) -> None:
    """Raises a :class:`SpecError` if there are none where ``some`` are needed, or one is not positive."""
    given = tuple(values)
    if (some and not given) or not all(map(is_positive, given)):
        raise SpecError(f"{cell.id}: {name} are {getattr(cell, name)!r}, expected positive numbers")


def count(number: int, word: str) -> str:
    """The number before the word in its plural, if there are several.

    Example:
        >>> count(1, "sample"), count(4, "hard sample")
        ('1 sample', '4 hard samples')
    """
    return f"{number} {word}{'' if number == 1 else 's'}"


def is_positive(value: object) -> bool:
    """Whether it is a number above zero, and finite."""
    return isinstance(value, int | float) and 0 < value < math.inf
