"""The spec of a network that completes images: how its binary units are relaxed and trained. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from igr.paper.methods import METHODS
from igr.paper.select import Configuration
from igr.paper.trained import SEEDS, TEMPERATURES, Trained, check_temperatures, count, smoke_temperatures
from igr.paper.vae import RELAXATIONS

__all__ = ["ESTIMATORS", "Completion"]

ESTIMATORS = {
    "st_relaxed": "ST",
    "straight_through": "ST, probabilities",
    "gapst": "GapST",
    "rao": "Rao",
    "reinmax": "ReinMax",
    "rloo": "RLOO",
    "disarm": "DisARM",
    "rebar": "REBAR",
    "vimco": "VIMCO",
}
SEVERAL = ("rloo", "vimco")  # estimators that compare samples
DECAY, SMALLEST = 1e-3, 0.1  # of the learning rate: per step, and the part of it that stays
SMOKE_SAMPLES = 5
# Milliseconds of a step of all members on one H200, from which times are estimated: where units are relaxed, what 50
# members take whatever S is, and more for each sample; by estimators, all members of a row with its S.
STEP_MILLISECONDS = {"igr-i": (0.13, 0.35), "igr-planar": (0.75, 0.55), "igr-sb": (0.1, 0.53), "gs": (0.1, 0.3)}
ESTIMATOR_MILLISECONDS = {
    "st_relaxed": {"igr-i": 1.5, "igr-planar": 3.0, "igr-sb": 2.0, "gs": 1.2},
    "straight_through": {"igr-i": 1.0, "gs": 0.5},
    "gapst": {"igr-i": 4.7, "gs": 1.4},
    "rao": {"igr-i": 24.0, "gs": 6.0},
    "reinmax": {"igr-i": 2.8, "gs": 1.2},
    "rloo": {"igr-i": 1.9, "gs": 0.9},
    "disarm": {"igr-i": 1.9, "gs": 0.9},
    "rebar": {"igr-i": 3.7, "gs": 1.3},
    "vimco": {"igr-i": 2.2, "gs": 0.7},  # of five samples
}


@dataclass(frozen=True)
class Completion(Trained):
    """A cell of structured output prediction: one network for each τ and each seed.

    Raises:
        SpecError: a field has a value, or several fields have a combination, that cannot be trained.

    Example:
        >>> cell = Completion("sop/mnist/igr-i+s5", "igr-i", num_samples=5)
        >>> cell.label, len(cell.members()), cell.learning_rate_at(0), cell.learning_rate_at(9_000)
        ('IGR-I, S = 5', 50, 0.001, 0.0001)
    """

    id: str
    method: str
    estimator: str = "reparameterized"
    """Of the gradient: through relaxed units, or another of hard units."""
    scale: str = "learned"
    """Of IGR's noise: what the network says for each unit, or ``one``, as in the published code."""
    network: str = "tanh"
    """What says the parameters of units: a layer with tanh and a linear one, or ``linear``, as in its script."""
    num_samples: int = 1
    """S: of the bound, log-mean-exp over relaxed samples, or of the estimator."""
    temperatures: tuple[float, ...] = TEMPERATURES
    seeds: tuple[int, ...] = SEEDS
    dataset: str = "mnist"
    epochs: int = 100
    batch_size: int = 100
    learning_rate: float = 1e-3
    protocol: str = "honest"
    smoke: bool = False

    choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "dataset": ("mnist",),
        "method": RELAXATIONS,
        "estimator": ("reparameterized", *ESTIMATORS),
        "scale": ("learned", "one"),
        "network": ("tanh", "linear"),
        "protocol": ("honest",),
    }
    whole: ClassVar[tuple[str, ...]] = ("num_samples", *Trained.whole)
    identified_elsewhere: ClassVar[frozenset[str]] = Trained.identified_elsewhere | {"temperatures"}

    def __post_init__(self) -> None:
        check_temperatures(self, "temperatures", self.temperatures, some=True)
        super().__post_init__()

    def _conflicts(self) -> list[tuple[bool, str]]:
        known, several = self.estimator not in ("reparameterized", "st_relaxed"), self.estimator in SEVERAL
        words = f"estimator {self.estimator}"
        return [
            (known and self.method not in ("igr-i", "gs"), f"{words} needs igr-i or gs: it needs their probabilities"),
            (self.scale == "one" and self.method == "gs", "gs has no scale"),
            (several and self.num_samples == 1, f"{words} compares samples; give num_samples of 2 or more"),
        ]

    @property
    def label(self) -> str:
        """What tables call it."""
        name = METHODS[self.method].label + ("" if self.scale == "learned" else ", σ = 1")
        name += "" if self.network == "tanh" else ", linear network"
        if self.estimator == "reparameterized":
            return name + ("" if self.num_samples == 1 else f", S = {self.num_samples}")
        return f"{name} + {self._estimator}" + (f", S = {self.num_samples}" if self.estimator == "vimco" else "")

    @property
    def _estimator(self) -> str:
        rao = "Gumbel-Rao" if self.method == "gs" else "IGR-Rao"
        return rao if self.estimator == "rao" else ESTIMATORS[self.estimator]

    @property
    def description(self) -> str:
        """One line on what is trained."""
        words = f"lower halves of {self.dataset} from upper ones: {METHODS[self.method].label}"
        words += "" if self.scale == "learned" else " with σ = 1"
        words += "" if self.network == "tanh" else ", one linear layer in place of each pair"
        if self.estimator == "vimco":
            return f"{words}, log-mean-exp over {count(self.num_samples, 'hard sample')}, {self._estimator}"
        if self.estimator != "reparameterized":
            each = "pair" if self.estimator == "disarm" else "hard sample"
            last = " of hard samples" if self.estimator == "disarm" else ""
            return f"{words}, {self._estimator} of {count(self.num_samples, each)}{last}"
        return f"{words}, log-mean-exp over {count(self.num_samples, 'relaxed sample')}"

    def settings(self) -> dict[str, Any]:
        """What identifies the training beside a member and whether it is cut short."""
        found = super().settings()
        for field, usual in (("scale", "learned"), ("network", "tanh")):
            if found[field] == usual:  # nothing, as in records from before there was another
                del found[field]
        return found

    def learning_rate_at(self, step: int) -> float:
        """It falls with the inverse of time, to a tenth; the paper calls this weight decay."""
        return max(SMALLEST * self.learning_rate, self.learning_rate / (1 + DECAY * step))

    def configurations(self) -> Iterator[Configuration]:
        """Every τ."""
        return (Configuration(tau, None) for tau in self.temperatures)

    def _cuts(self) -> Iterator[tuple[str, Any]]:
        yield "temperatures", smoke_temperatures(self.temperatures)
        yield "num_samples", min(SMOKE_SAMPLES, self.num_samples)

    def _milliseconds(self) -> float:
        if self.estimator == "reparameterized":
            fixed, sample = STEP_MILLISECONDS[self.method]
            return (fixed + sample * self.num_samples) * len(self.members()) * self.batch_size / (50 * 100)
        samples = self.num_samples / 5 if self.estimator == "vimco" else 1
        return ESTIMATOR_MILLISECONDS[self.estimator][self.method] * samples * len(self.seeds) / len(SEEDS)
