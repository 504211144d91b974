"""Which configuration of a cell is reported: that with the best mean over seeds. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

__all__ = ["CRITERIA", "SPLITS", "Candidate", "Configuration", "SelectionError", "candidates", "choose", "choose_all"]

CRITERIA = ("elbo_discrete", "log_likelihood")  # the paper's rule, and the bound
SPLITS = {"honest": "validation", "published": "test"}  # what the choice looks at; the published code has no third one


class SelectionError(ValueError):
    """Members among which nothing can be chosen."""


class Configuration(NamedTuple):
    """What is chosen."""

    tau: float | None
    prior_temperature: float | None
    num_components: int | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Configuration:
        """That of a record."""
        return cls(row["tau"], row["prior_temperature"], row.get("num_components"))

    @property
    def order(self) -> tuple[float, float, int]:
        """What to sort by."""
        return self.tau or 0.0, self.prior_temperature or 0.0, self.num_components or 0


class Candidate(NamedTuple):
    """A configuration: the mean over its seeds, NaN if there is none, and how many seeds are not part of it."""

    configuration: Configuration
    mean: float
    missing: int


def choose(rows: Sequence[Mapping[str, Any]], criterion: str) -> Configuration:
    """The configuration with the best mean, of those in which the fewest members failed or are not there.

    So where some configuration is complete, those that are not are not eligible. A tie goes to the lower temperature,
    then to the lower prior temperature, then to fewer components, whatever the order of the rows.

    Arguments:
        rows: the records of all members of one cell.
        criterion: one of ``CRITERIA``, on the validation split (on the test split under the protocol ``published``).

    Raises:
        SelectionError: the rows are not those of one cell, a finished one lacks the criterion, or all failed.

    Example:
        >>> def row(tau, seed, value):
        ...     metrics = {"validation": {"elbo_discrete": value}}
        ...     config = {"tau": tau, "prior_temperature": None, "seed": seed}
        ...     return {"protocol": "honest", "status": "finished", "metrics": metrics} | config
        >>> choose([row(0.1, 1, -124.0), row(0.1, 2, -125.0), row(0.5, 1, -123.0), row(0.5, 2, -130.0)], CRITERIA[0])
        Configuration(tau=0.1, prior_temperature=None, num_components=None)
    """
    found = candidates(rows, criterion)
    fewest = min(each.missing for each in found)
    best = max((each for each in found if each.missing == fewest), key=lambda each: each.mean)  # the first of several
    if math.isnan(best.mean):
        raise SelectionError(f"all members failed ({len(rows)}): there is nothing to choose from")
    return best.configuration


def choose_all(rows: Sequence[Mapping[str, Any]], criteria: Sequence[str] = CRITERIA) -> dict[str, Configuration]:
    """What each of the criteria chooses."""
    return {criterion: choose(rows, criterion) for criterion in criteria}


def candidates(rows: Sequence[Mapping[str, Any]], criterion: str) -> list[Candidate]:
    """All configurations of a cell, by temperature, prior temperature and number of components.

    A member counts as failed if its record says so, or if its value is not finite.

    Raises:
        SelectionError: the rows are not those of one cell, or a finished one lacks the criterion.
    """
    split = _split(rows, criterion)
    values: dict[Configuration, dict[int, float]] = {}
    for row in rows:
        seeds = values.setdefault(Configuration.of(row), {})
        if row["seed"] in seeds:
            raise SelectionError(f"two rows are of {_name(row)}; expected one")
        seeds[row["seed"]] = _value(row, split, criterion)
    num_seeds = len(set().union(*values.values()))
    found = []
    for configuration in sorted(values, key=lambda each: each.order):
        finite = [value for value in values[configuration].values() if math.isfinite(value)]
        found.append(Candidate(configuration, fmean(finite) if finite else math.nan, num_seeds - len(finite)))
    return found


def _split(rows: Sequence[Mapping[str, Any]], criterion: str) -> str:
    """Where to look, once it is clear that the rows belong together."""
    if criterion not in CRITERIA:
        raise SelectionError(f"no criterion is called {criterion!r}; expected one of {', '.join(CRITERIA)}")
    if not rows:
        raise SelectionError("there are no members to choose from")
    for name in ("spec", "protocol", "smoke", "settings"):
        if any(row.get(name) != rows[0].get(name) for row in rows):
            raise SelectionError(f"members with different {name} are given; expected those of one cell")
    protocol = rows[0]["protocol"]
    if protocol not in SPLITS:
        raise SelectionError(f"the protocol is {protocol!r}; expected one of {', '.join(SPLITS)}")
    return SPLITS[protocol]


def _value(row: Mapping[str, Any], split: str, criterion: str) -> float:
    """What the member is judged by, NaN if it failed."""
    if row["status"] == "failed":
        return math.nan
    value = row["metrics"].get(split, {}).get(criterion)
    if value is None:
        raise SelectionError(f"{_name(row)} has no {criterion} on the {split} split; evaluate it first")
    return float(value)


def _name(row: Mapping[str, Any]) -> str:
    """What an error calls it."""
    names = ("tau", "prior_temperature", "num_components", "seed")
    return "the member with " + ", ".join(f"{name} {row[name]}" for name in names if name in row)
