"""The spec of a VAE: what is trained, with which options. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Self

from igr.paper.methods import METHODS
from igr.paper.published import DATASETS
from igr.paper.select import CRITERIA, Configuration
from igr.paper.trained import SEEDS, TEMPERATURES, UNUSED, Trained, check_temperatures, count, smoke_temperatures

__all__ = ["ARCHITECTURES", "ESTIMATORS", "PRIOR_TEMPERATURES", "RELAXATIONS", "Times", "Vae"]

LEARNING_RATE = 3e-4
ARCHITECTURES = ("linear", "nonlinear")
RELAXATIONS = ("igr-i", "igr-planar", "igr-sb", "gs")
PROTOCOLS = ("honest", "published")
ESTIMATORS = {"reinmax": "ReinMax", "gapst": "GapST", "rao": "Rao", "rloo": "RLOO", "relax": "RELAX", "uspg": "USPGBL"}

# What estimates of time are made of, in milliseconds of a step on one H200: that of any, and what 50 members add to it,
# once for their weights and once for each of their samples.
FIXED_MILLISECONDS = 0.1
WEIGHTS_MILLISECONDS = {"linear": 0.13, "nonlinear": 0.45}
SAMPLE_MILLISECONDS = {"igr-i": 0.11, "igr-planar": 0.19, "igr-sb": 0.14, "gs": 0.09}
NONLINEAR_MILLISECONDS = 0.12  # more, for a sample
GREY_MILLISECONDS = {"linear": 0.18, "nonlinear": 0.28}  # more, for scales beside means; the second is a guess
DISCRETE_MILLISECONDS = {"igr-i": 0.3, "gs": 0.0}  # more, where the KL is the discrete one: Proposition 2 in every step
ESTIMATOR_MILLISECONDS = {  # more, of any step and for a sample, by the estimator, with the discrete KL
    "reinmax": {"igr-i": (0.25, 0.43), "gs": (0.25, 0.0)},
    "gapst": {"igr-i": (0.25, 0.35), "gs": (0.25, 0.05)},
    "rao": {"igr-i": (0.25, 1.1), "gs": (0.25, 0.8)},
    "rloo": {"igr-i": (0.2, 0.13), "gs": (0.15, 0.0)},
    "relax": {"igr-i": (1.15, 1.4), "gs": (0.85, 0.6)},  # the conditional path in every step
    "uspg": {"igr-i": (0.35, 4.9), "gs": (0.35, 4.9)},
}
FLOW_MILLISECONDS = 0.22  # more, where the prior has a flow to invert


@dataclass(frozen=True)
class Times:
    """A prior temperature that is so many times τ."""

    factor: float

    def __str__(self) -> str:
        return "τ" if self.factor == 1 else f"{self.factor:g} τ"


PRIOR_TEMPERATURES: Mapping[str, tuple[float | Times, ...]] = MappingProxyType(
    {"honest": (Times(1.0), 0.5, Times(0.75)), "published": (0.5,)}
)


@dataclass(frozen=True)
class Vae(Trained):
    """A cell that is trained: one model for each τ, each prior temperature of GS, and each seed.

    Raises:
        SpecError: a field has a value, or several fields have a combination, that cannot be trained.

    Example:
        >>> from igr.paper.specs import SPECS
        >>> cell = SPECS["table1/mnist/linear/gs+sl"]
        >>> cell.label, cell.paper.value, len(cell.members()), len(cell.with_protocol("published").members())
        ('GS + SL', -103.8, 145, 50)
    """

    id: str
    dataset: str
    architecture: str
    method: str
    landing: bool = False
    """Whether to stick the landing: + SL."""
    objective: str = "continuous"
    """The divergence in training: of the relaxation, or of the recovered categorical (for GS the paper's eq. 8)."""
    forward: str = "soft"
    """What the decoder is given: the relaxed sample, or the hard one with the relaxed one's gradient."""
    bound: str = "elbo"
    estimator: str = "reparameterized"
    """Of the gradient of the expected log-likelihood: through relaxed samples, or another of hard samples."""
    num_samples: int = 1
    """S; m where the bound is ``iwae``."""
    parameters: str = "free"
    """IGR-I: μ and log σ as the encoder says them, or bounded (:func:`igr.paper.models.parameters_of`)."""
    prior: str = "output"
    """IGR-Planar: IGR-I's prior on the flow's output, as published, or a prior with a fitted flow of its own."""
    onto: str = "softmax++"
    """IGR-SB: how sticks get a temperature, by a softmax++ (eq. 18) or by the way to the nearest vertex (eq. 17)."""
    temperatures: tuple[float, ...] = TEMPERATURES
    prior_temperatures: tuple[float | Times, ...] = ()
    seeds: tuple[int, ...] = SEEDS
    epochs: int = 300
    batch_size: int = 100
    learning_rate: float = LEARNING_RATE
    protocol: str = "honest"
    smoke: bool = False

    criteria: ClassVar[tuple[str, ...]] = CRITERIA
    choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "dataset": DATASETS,
        "architecture": ARCHITECTURES,
        "method": RELAXATIONS,
        "objective": ("continuous", "discrete"),
        "forward": ("soft", "hard"),
        "bound": ("elbo", "iwae"),
        "estimator": ("reparameterized", *ESTIMATORS),
        "parameters": ("free", "bounded"),
        "prior": ("output", "flow"),
        "onto": ("softmax++", "vertex"),
        "protocol": PROTOCOLS,
    }
    whole: ClassVar[tuple[str, ...]] = ("num_samples", *Trained.whole)
    identified_elsewhere: ClassVar[frozenset[str]] = Trained.identified_elsewhere | {
        "temperatures",
        "prior_temperatures",
    }

    def __post_init__(self) -> None:
        check_temperatures(self, "temperatures", self.temperatures, some=True)
        priors = (each.factor if isinstance(each, Times) else each for each in self.prior_temperatures)
        check_temperatures(self, "prior_temperatures", priors, some=False)
        super().__post_init__()

    @property
    def label(self) -> str:
        """What tables call it."""
        words = [*self._words(), "free μ and log σ"] if self._drifts else self._words()
        words += [self._alone] if self._alone else []
        rate = [] if self.learning_rate == LEARNING_RATE else [f"rate {self.learning_rate:g}"]
        return " + ".join([*words, *rate])

    @property
    def _alone(self) -> str:
        """The only temperature, where there is no choice."""
        single = len(self.temperatures) == 1 and self.temperatures != UNUSED
        return f"τ {self.temperatures[0]:g}" if single else ""

    @property
    def _drifts(self) -> bool:
        """Whether nothing holds the scales of IGR-I: the discrete KL does not see a common factor of μ and σ."""
        return (self.method, self.objective, self.parameters) == ("igr-i", "discrete", "free")

    def _words(self) -> list[str]:
        """What is trained, but for the learning rate."""
        words = [METHODS[self.method].label]
        words += ["SL"] if self.landing else []
        if self.estimator != "reparameterized":
            rao = "Gumbel-Rao" if self.method == "gs" else "IGR-Rao"
            return [*words, rao if self.estimator == "rao" else ESTIMATORS[self.estimator]]
        words += ["discrete KL"] if self.objective == "discrete" else []
        words += ["hard"] if self.forward == "hard" else []
        words += [f"IWAE-{self.num_samples}"] if self.bound == "iwae" else []
        words += ["vertex"] if self.onto == "vertex" else []
        return [*words, "flow prior"] if self.prior == "flow" else words

    @property
    def description(self) -> str:
        """One line on what is trained."""
        jang = (self.method, self.objective, self.forward) == ("gs", "discrete", "soft")
        words = [f"{self.architecture} VAE, {self.dataset}: {METHODS[self.method].label}, {self.objective} KL"]
        words[0] += " (eq. 8, Jang et al.)" if jang else ""
        words += ["sticking the landing"] if self.landing else []
        estimated = self.estimator != "reparameterized"
        words += [f"{self._words()[-1]} of {count(self.num_samples, 'hard sample')}"] if estimated else []
        words += ["hard samples, straight through"] if self.forward == "hard" and not estimated else []
        words += [f"importance-weighted bound of {self.num_samples} samples"] if self.bound == "iwae" else []
        words += ["prior with a flow of its own"] if self.prior == "flow" else []
        words += ["interpolated to the nearest vertex (eq. 17)"] if self.onto == "vertex" else []
        several = self.bound == "elbo" and self.num_samples > 1 and not estimated
        words += [count(self.num_samples, "sample")] if several else []
        words += ["bounded μ and log σ"] if self.parameters == "bounded" else []
        words += ["free μ and log σ"] if self._drifts else []
        words += [self._alone] if self._alone else []
        words += [f"learning rate {self.learning_rate:g}"] if self.learning_rate != LEARNING_RATE else []
        return ", ".join(words)

    @property
    def leftover(self) -> bool:
        """IGR-SB: whether the stick that is left over is the last category, which the published code never reaches."""
        return self.protocol == "honest" or self.onto == "vertex"

    def _milliseconds(self) -> float:
        fixed, sample = FIXED_MILLISECONDS, SAMPLE_MILLISECONDS[self.method]
        sample += NONLINEAR_MILLISECONDS if self.architecture == "nonlinear" else 0
        if self.estimator != "reparameterized":
            any_step, more = ESTIMATOR_MILLISECONDS[self.estimator][self.method]
            fixed, sample = fixed + any_step, sample + more
        elif self.objective == "discrete":
            sample += DISCRETE_MILLISECONDS[self.method]
        sample += FLOW_MILLISECONDS if self.prior == "flow" else 0
        sample += GREY_MILLISECONDS[self.architecture] if self.dataset == "fmnist" else 0
        samples = self.num_samples * self.batch_size / 100
        return fixed + len(self.members()) / 50 * (WEIGHTS_MILLISECONDS[self.architecture] + samples * sample)

    def configurations(self) -> Iterator[Configuration]:
        """Every τ with every prior temperature."""
        return (Configuration(tau, prior) for tau in self.temperatures for prior in self._priors(tau))

    def _priors(self, tau: float) -> list[float | None]:
        if not self.prior_temperatures:
            return [None]
        return [round(t.factor * tau, 10) if isinstance(t, Times) else t for t in self.prior_temperatures]

    def _cuts(self) -> Iterator[tuple[str, Any]]:
        yield "temperatures", smoke_temperatures(self.temperatures)

    def with_protocol(self, protocol: str) -> Self:
        """The same under ``honest`` or ``published``, with the prior temperatures that go with it."""
        grid = PRIOR_TEMPERATURES.get(protocol, ()) if self.prior_temperatures else ()
        return self if protocol == self.protocol else self._with(protocol=protocol, prior_temperatures=grid)

    def settings(self) -> dict[str, Any]:
        """What identifies the training beside a member, the protocol and whether it is cut short."""
        # nothing, as before there were others
        usual = {"estimator": "reparameterized", "parameters": "free", "onto": "softmax++"}
        return {name: value for name, value in super().settings().items() if (name, value) not in usual.items()}

    def _conflicts(self) -> list[tuple[bool, str]]:
        discrete, weighted = self.objective == "discrete", self.bound == "iwae"
        needs_prior = self.method == "gs" and not discrete
        estimated, several = self.estimator != "reparameterized", self.estimator in ("rloo", "uspg")
        return [
            (estimated and not discrete, f"estimator {self.estimator} is of hard samples: objective discrete"),
            (estimated and self.forward != "hard", f"estimator {self.estimator} is of hard samples: forward hard"),
            (
                several and self.num_samples == 1,
                f"estimator {self.estimator} compares samples; give num_samples of 2 or more",
            ),
            (discrete and self.landing, "the discrete KL is in closed form: there is no landing to stick"),
            (discrete and self.method not in ("igr-i", "gs"), "the discrete KL needs igr-i or gs; others are too slow"),
            (discrete and weighted, "importance weights need the density of a relaxed sample: objective continuous"),
            (
                weighted and self.landing,
                "sticking the landing would bias the gradient of the importance-weighted bound",
            ),
            (weighted and self.num_samples == 1, "bound iwae of one sample is the ELBO; give num_samples of 2 or more"),
            (self.parameters == "bounded" and self.method != "igr-i", "bounded parameters are for igr-i alone"),
            (self.prior == "flow" and self.method != "igr-planar", "prior flow is for igr-planar alone"),
            (self.onto == "vertex" and self.method != "igr-sb", "onto vertex is for igr-sb alone"),
            (self.onto == "vertex" and max(self.temperatures) > 1, "onto vertex needs temperatures of at most one"),
            (needs_prior and not self.prior_temperatures, "gs with a continuous KL needs prior_temperatures"),
            (
                bool(self.prior_temperatures) and not needs_prior,
                "prior_temperatures are for gs with a continuous KL alone",
            ),
        ]
