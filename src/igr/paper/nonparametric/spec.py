"""The spec of a VAE with a Dirichlet process mixture as its prior. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from igr.paper.methods import METHODS
from igr.paper.select import Configuration
from igr.paper.trained import SEEDS, Trained, is_positive

__all__ = ["COMPONENTS", "Mixture", "num_used"]

COMPONENTS = (7, 9, 11, 13, 15, 17)  # K of DLDPMM, as in the paper
NEGLIGIBLE = 0.01  # of the mass over all images: what a component must have to count as used
STEP_MILLISECONDS = (0.37, 0.23)  # on one H200: of any step, and more for 5 members with 20 components


@dataclass(frozen=True)
class Mixture(Trained):
    """A cell of the table of mixtures: one model for each seed, and for DLDPMM each number of components.

    Raises:
        SpecError: a field has a value, or several fields have a combination, that cannot be trained.

    Example:
        >>> cell = Mixture("nonparametric/mnist/dldpmm+sl", "mnist", "dldpmm", landing=True, num_components=COMPONENTS)
        >>> cell.label, len(cell.members()), cell.members()[0].num_components
        ('DLDPMM + SL', 30, 7)
    """

    id: str
    dataset: str
    method: str
    landing: bool = False
    """Whether to stick the landing: + SL."""
    num_components: tuple[int, ...] = ()
    """K of DLDPMM, one of which is chosen; IGR-SB-MM needs none."""
    concentration: float = 1.0
    """α of the Dirichlet process: sticks are Beta(1, α)."""
    precision: float = 0.9999
    """ρ: IGR-SB-MM breaks no further stick once those of a sample make up more than this."""
    max_components: int = 20
    """From this one on, components share their mean, and so are one: sticks are never broken further."""
    latent_dim: int = 50
    seeds: tuple[int, ...] = SEEDS
    epochs: int = 300
    batch_size: int = 100
    learning_rate: float = 3e-4
    protocol: str = "honest"
    smoke: bool = False

    choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "dataset": ("mnist", "omniglot"),
        "method": ("igr-sb-mm", "dldpmm"),
        "protocol": ("honest",),
    }
    whole: ClassVar[tuple[str, ...]] = ("max_components", "latent_dim", *Trained.whole)
    identified_elsewhere: ClassVar[frozenset[str]] = Trained.identified_elsewhere | {"num_components"}

    def _conflicts(self) -> list[tuple[bool, str]]:
        fixed = self.method == "dldpmm"
        sizes = all(type(K) is int and 2 <= K <= self.max_components for K in self.num_components)
        given = f"num_components are {self.num_components!r}"
        return [
            (self.max_components < 2, f"max_components is {self.max_components}, expected 2 or more"),
            (not is_positive(self.concentration), f"concentration is {self.concentration!r}, expected above 0"),
            (not 0 < self.precision < 1, f"precision is {self.precision!r}, expected between 0 and 1"),
            (fixed and not self.num_components, "dldpmm needs num_components"),
            (not fixed and bool(self.num_components), "num_components are for dldpmm alone"),
            (not sizes, f"{given}, expected integers from 2 to max_components = {self.max_components}"),
        ]

    @property
    def label(self) -> str:
        """What tables call it."""
        return METHODS[self.method].label + (" + SL" if self.landing else "")

    @property
    def description(self) -> str:
        """One line on what is trained."""
        sticks = "logit-normal sticks, as many as it takes" if self.method == "igr-sb-mm" else "Kumaraswamy sticks"
        words = f"VAE with a Dirichlet process mixture as prior, {self.dataset}: {METHODS[self.method].label}, {sticks}"
        return words + (", sticking the landing" if self.landing else "")

    def configurations(self) -> Iterator[Configuration]:
        """Every K, or the one without."""
        return (Configuration(None, None, K) for K in self.num_components or (None,))

    def _cuts(self) -> Iterator[tuple[str, Any]]:
        yield "num_components", self.num_components[:2]

    def _milliseconds(self) -> float:
        components = max(self.num_components, default=self.max_components)
        fixed, more = STEP_MILLISECONDS
        return fixed + more * len(self.members()) * self.batch_size * components / (5 * 100 * 20)


def num_used(component_mass: Sequence[float]) -> int:
    """How many components have at least a hundredth of the mass over all images.

    Example:
        >>> num_used([0.7, 0.295, 0.005])
        2
    """
    return sum(mass >= NEGLIGIBLE for mass in component_mass)
