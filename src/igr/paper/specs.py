"""Every cell of a table and every figure as a spec: what is trained, under which id, beside which number of the paper.

Nothing here is computed and nothing needs torch. Learning rate and length are the same for all VAEs: of the paper's
rates {1e-4, 3e-4} and 300 to 500 epochs, 3e-4 and 300.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

from igr.paper.methods import METHODS
from igr.paper.published import DATASETS, PUBLISHED, Published
from igr.paper.targets import TARGETS

__all__ = [
    "ESTIMATED",
    "ESTIMATORS",
    "SEEDS",
    "SPECS",
    "TEMPERATURES",
    "UNUSED",
    "Approximation",
    "Derived",
    "Member",
    "Spec",
    "SpecError",
    "Times",
    "Vae",
    "find",
]

SEEDS = (5328, 5945, 8965, 49, 9337)  # as published
TEMPERATURES = (0.01, 0.03, 0.07, 0.1, 0.25, 0.4, 0.5, 0.67, 0.85, 1.0)  # the paper's grid
SMOKE_TEMPERATURES = (0.25, 0.67)
ARCHITECTURES = ("linear", "nonlinear")
RELAXATIONS = ("igr-i", "igr-planar", "igr-sb", "gs")
PROTOCOLS = ("honest", "published")
IMPORTANCE_SAMPLES = 5  # m of the rows that train the importance-weighted bound
GUMBEL_SIZES = (20, 40, 100, 200)  # K of GS where the target has none; the last is not the paper's

# What estimates of time are made of: the milliseconds that a step of 50 members takes on one H200, and the images.
STEP_MILLISECONDS = {"igr-i": 0.93, "igr-planar": 1.76, "igr-sb": 2.12, "gs": 0.68}  # linear
NONLINEAR_MILLISECONDS = 1.2  # more
DISCRETE_MILLISECONDS = {"igr-i": 8.3, "gs": 0.1}  # more, where the KL is the discrete one: Proposition 2 in every step
ESTIMATOR_MILLISECONDS = {  # more, by the estimator, with the discrete KL
    "reinmax": {"igr-i": 13.0, "gs": 0.4},
    "gapst": {"igr-i": 9.0, "gs": 0.2},
    "rao": {"igr-i": 18.0, "gs": 1.0},
    "rloo": {"igr-i": 6.0, "gs": 0.2},
    "relax": {"igr-i": 100.0, "gs": 3.7},  # the conditional path of IGR-I in every step
    "uspg": {"igr-i": 8.8, "gs": 4.8},
}
FLOW_MILLISECONDS = 1.2  # more, where the prior has a flow to invert
TRAIN_IMAGES = {
    "honest": {"mnist": 50_000, "fmnist": 50_000, "omniglot": 21_910},
    "published": {"mnist": 60_000, "fmnist": 60_000, "omniglot": 24_345},
}
FIT_MINUTES = {"igr-i": 0.05, "igr-sb": 0.4, "gs": 0.1}  # of an approximation, on one core

ESTIMATORS = {"reinmax": "ReinMax", "gapst": "GapST", "rao": "Rao", "rloo": "RLOO", "relax": "RELAX", "uspg": "USPGBL"}
UNUSED = (1.0,)  # the temperature of estimators that have none
REINMAX_TEMPERATURES = (1.0, 1.1, 1.2, 1.3, 1.5, 2.0)
RELAX_TEMPERATURES = (0.1, 0.5, 1.0)  # where it starts: it is learned
ESTIMATOR_SAMPLES = 4  # S of what needs more than one, as in the paper's table of USPGBL

CHOICES = {
    "dataset": DATASETS,
    "architecture": ARCHITECTURES,
    "method": RELAXATIONS,
    "objective": ("continuous", "discrete"),
    "forward": ("soft", "hard"),
    "bound": ("elbo", "iwae"),
    "estimator": ("reparameterized", *ESTIMATORS),
    "prior": ("output", "flow"),
    "protocol": PROTOCOLS,
}


class SpecError(ValueError):
    """A spec that does not exist or cannot be."""


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
class Member:
    """One of the models of a cell."""

    tau: float
    prior_temperature: float | None
    """Of GS with a continuous objective; None for all others."""
    seed: int


@dataclass(frozen=True)
class Vae:
    """A cell that is trained: one model for each τ, each prior temperature of GS, and each seed.

    Raises:
        SpecError: a field has a value, or several fields have a combination, that cannot be trained.

    Example:
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
    prior: str = "output"
    """IGR-Planar: IGR-I's prior on the flow's output, as published, or a prior with a fitted flow of its own."""
    temperatures: tuple[float, ...] = TEMPERATURES
    prior_temperatures: tuple[float | Times, ...] = ()
    seeds: tuple[int, ...] = SEEDS
    epochs: int = 300
    batch_size: int = 100
    learning_rate: float = 3e-4
    protocol: str = "honest"
    smoke: bool = False

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise SpecError(f"{self.id}: {name} is {value!r}, expected one of {', '.join(choices)}")
        for name in ("num_samples", "epochs", "batch_size"):
            if type(value := getattr(self, name)) is not int or value < 1:
                raise SpecError(f"{self.id}: {name} is {value!r}, expected a positive integer")
        if not _is_positive(self.learning_rate):
            raise SpecError(f"{self.id}: learning_rate is {self.learning_rate!r}, expected a positive number")
        if not self.temperatures or not all(map(_is_positive, self.temperatures)):
            raise SpecError(f"{self.id}: temperatures are {self.temperatures!r}, expected positive numbers")
        if not all(_is_positive(t.factor if isinstance(t, Times) else t) for t in self.prior_temperatures):
            raise SpecError(f"{self.id}: prior_temperatures are {self.prior_temperatures!r}, expected positive numbers")
        different = len(set(self.seeds)) == len(self.seeds) > 0
        if not different or not all(type(seed) is int and seed >= 0 for seed in self.seeds):
            raise SpecError(f"{self.id}: seeds are {self.seeds!r}, expected different integers, none negative")
        for wrong, reason in _conflicts(self):
            if wrong:
                raise SpecError(f"{self.id}: {reason}")

    @property
    def label(self) -> str:
        """What tables call it."""
        words = [METHODS[self.method].label]
        words += ["SL"] if self.landing else []
        if self.estimator != "reparameterized":
            rao = "Gumbel-Rao" if self.method == "gs" else "IGR-Rao"
            return " + ".join([*words, rao if self.estimator == "rao" else ESTIMATORS[self.estimator]])
        words += ["discrete KL"] if self.objective == "discrete" else []
        words += ["hard"] if self.forward == "hard" else []
        words += [f"IWAE-{self.num_samples}"] if self.bound == "iwae" else []
        words += ["flow prior"] if self.prior == "flow" else []
        return " + ".join(words)

    @property
    def description(self) -> str:
        """One line on what is trained."""
        jang = (self.method, self.objective, self.forward) == ("gs", "discrete", "soft")
        words = [f"{self.architecture} VAE, {self.dataset}: {METHODS[self.method].label}, {self.objective} KL"]
        words[0] += " (eq. 8, Jang et al.)" if jang else ""
        words += ["sticking the landing"] if self.landing else []
        if self.estimator != "reparameterized":
            return ", ".join(
                [*words, f"{self.label.rpartition(' + ')[2]} of {_count(self.num_samples, 'hard sample')}"]
            )
        words += ["hard samples, straight through"] if self.forward == "hard" else []
        words += [f"importance-weighted bound of {self.num_samples} samples"] if self.bound == "iwae" else []
        words += ["prior with a flow of its own"] if self.prior == "flow" else []
        words += [_count(self.num_samples, "sample")] if self.bound == "elbo" and self.num_samples > 1 else []
        return ", ".join(words)

    @property
    def paper(self) -> Published | None:
        """The paper's number, if it has one."""
        return PUBLISHED.get(self.id)

    @property
    def minutes(self) -> float:
        """How long training may take on one H200: an estimate by the number of steps, members and samples."""
        steps = self.epochs * math.ceil(TRAIN_IMAGES[self.protocol][self.dataset] / self.batch_size)
        share = len(self.members()) * self.batch_size * self.num_samples / (50 * 100)
        step = STEP_MILLISECONDS[self.method]
        step += NONLINEAR_MILLISECONDS if self.architecture == "nonlinear" else 0
        if self.estimator != "reparameterized":
            step += ESTIMATOR_MILLISECONDS[self.estimator][self.method]
        elif self.objective == "discrete":
            step += DISCRETE_MILLISECONDS[self.method]
        step += FLOW_MILLISECONDS if self.prior == "flow" else 0
        return steps * step * share / 60_000

    def members(self) -> tuple[Member, ...]:
        """All seeds of the first (τ, prior temperature), all of the second, ..., each configuration once."""
        configurations = dict.fromkeys((tau, prior) for tau in self.temperatures for prior in self._priors(tau))
        return tuple(Member(tau, prior, seed) for tau, prior in configurations for seed in self.seeds)

    def _priors(self, tau: float) -> list[float | None]:
        if not self.prior_temperatures:
            return [None]
        return [round(t.factor * tau, 10) if isinstance(t, Times) else t for t in self.prior_temperatures]

    def shortened(self) -> Vae:
        """The same, cut short, to see that all works."""
        some = tuple(tau for tau in SMOKE_TEMPERATURES if tau in self.temperatures) or self.temperatures[:2]
        return replace(self, temperatures=some, seeds=self.seeds[:2], epochs=min(2, self.epochs), smoke=True)

    def with_protocol(self, protocol: str) -> Vae:
        """The same under ``honest`` or ``published``, with the prior temperatures that go with it."""
        grid = PRIOR_TEMPERATURES.get(protocol, ()) if self.prior_temperatures else ()
        return self if protocol == self.protocol else replace(self, protocol=protocol, prior_temperatures=grid)

    def replicate(self, number: int) -> Vae:
        """The same with other seeds, as many: the first digits of sha256("<seed>/replicate/<number>"); 0 is itself."""
        if number == 0:
            return self
        digests = [hashlib.sha256(f"{seed}/replicate/{number}".encode()).digest() for seed in self.seeds]
        return replace(self, seeds=tuple(int.from_bytes(digest[:4], "big") for digest in digests))

    def settings(self) -> dict[str, Any]:
        """What identifies the training beside a member, the protocol and whether it is cut short."""
        others = {"id", "temperatures", "prior_temperatures", "seeds", "protocol", "smoke"}
        if self.estimator == "reparameterized":  # nothing, as in records from before there were others
            others.add("estimator")
        return {name: value for name, value in asdict(self).items() if name not in others}


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and 0 < value < math.inf


def _conflicts(spec: Vae) -> list[tuple[bool, str]]:
    """Combinations that cannot be trained, and why."""
    discrete, weighted = spec.objective == "discrete", spec.bound == "iwae"
    needs_prior = spec.method == "gs" and not discrete
    estimated, several = spec.estimator != "reparameterized", spec.estimator in ("rloo", "uspg")
    return [
        (estimated and not discrete, f"estimator {spec.estimator} is of hard samples: objective discrete"),
        (estimated and spec.forward != "hard", f"estimator {spec.estimator} is of hard samples: forward hard"),
        (
            several and spec.num_samples == 1,
            f"estimator {spec.estimator} compares samples; give num_samples of 2 or more",
        ),
        (discrete and spec.landing, "the discrete KL is in closed form: there is no landing to stick"),
        (discrete and spec.method not in ("igr-i", "gs"), "the discrete KL needs igr-i or gs; others are too slow"),
        (discrete and weighted, "importance weights need the density of a relaxed sample: objective continuous"),
        (weighted and spec.landing, "sticking the landing would bias the gradient of the importance-weighted bound"),
        (weighted and spec.num_samples == 1, "bound iwae of one sample is the ELBO; give num_samples of 2 or more"),
        (spec.prior == "flow" and spec.method != "igr-planar", "prior flow is for igr-planar alone"),
        (needs_prior and not spec.prior_temperatures, "gs with a continuous KL needs prior_temperatures"),
        (bool(spec.prior_temperatures) and not needs_prior, "prior_temperatures are for gs with a continuous KL alone"),
    ]


@dataclass(frozen=True)
class Derived:
    """A table or a figure that is read from members of other specs, without training."""

    id: str
    label: str
    description: str
    sources: tuple[str, ...]
    """The ids of the specs."""
    reads: str
    """Where in their records: ``metrics.train.elbo_discrete``."""

    minutes = 0.0

    @property
    def paper(self) -> Published | None:
        """The paper's number, if it has one."""
        return PUBLISHED.get(self.id)


@dataclass(frozen=True)
class Approximation:
    """A discrete distribution, approximated by a relaxation: see ``igr approximate``."""

    id: str
    target: str
    method: str
    num_categories: int | None
    """K, or None for the sticks, which need none."""

    paper = None  # only drawn

    @property
    def label(self) -> str:
        """What tables call it."""
        known = TARGETS[self.target].num_categories is not None or self.num_categories is None
        return METHODS[self.method].label + ("" if known else f", K = {self.num_categories}")

    @property
    def description(self) -> str:
        """One line on what is fitted."""
        return f"{METHODS[self.method].label} fitted to {TARGETS[self.target].title}"

    @property
    def minutes(self) -> float:
        """How long the fit may take on one core: an estimate."""
        return FIT_MINUTES[self.method]


Spec = Vae | Derived | Approximation


def _table1() -> Iterator[Vae]:
    for dataset in DATASETS:
        for architecture in ARCHITECTURES:
            for landing in (False, True):
                for method in RELAXATIONS:
                    row = method + ("+sl" if landing else "")
                    yield _vae(f"table1/{dataset}/{architecture}/{row}", method, landing=landing)


BEYOND: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "igr-i+discrete": {"objective": "discrete"},
        "igr-i+discrete+hard": {"objective": "discrete", "forward": "hard"},
        "gs+discrete": {"objective": "discrete"},
        "gs+discrete+hard": {"objective": "discrete", "forward": "hard"},
        "igr-i+iwae": {"bound": "iwae", "num_samples": IMPORTANCE_SAMPLES},
        "gs+iwae": {"bound": "iwae", "num_samples": IMPORTANCE_SAMPLES},
        "igr-planar+flow-prior": {"prior": "flow"},
    }
)


ESTIMATED: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "reinmax": {"temperatures": REINMAX_TEMPERATURES},
        "gapst": {},
        "rao": {},
        "rloo": {"temperatures": UNUSED, "num_samples": ESTIMATOR_SAMPLES},
        "relax": {"temperatures": RELAX_TEMPERATURES},
        "uspg": {"temperatures": UNUSED, "num_samples": ESTIMATOR_SAMPLES},
    }
)
RELAX, FOUR = "relax/mnist/nonlinear/", "s4/mnist/nonlinear/"


def _beyond() -> Iterator[Vae]:
    """What the paper does not have. RELAX on non-linear models is a table of the paper's: ``relax/``."""
    for dataset in DATASETS:
        for architecture in ARCHITECTURES:
            for row, options in BEYOND.items():
                yield _vae(f"beyond/{dataset}/{architecture}/{row}", row.partition("+")[0], **options)
            for estimator in ("reinmax", "gapst", "rao", "rloo", "relax") if dataset == "mnist" else ():
                if (architecture, estimator) != ("nonlinear", "relax"):
                    for method in ("gs", "igr-i"):
                        yield _estimated(f"beyond/{dataset}/{architecture}/{method}+{estimator}")


def _other_estimators() -> Iterator[Vae | Derived]:
    """The two tables of appendix D."""
    for method in ("igr-i", "gs"):
        source = f"table1/mnist/nonlinear/{method}"
        words = f"{METHODS[method].label} without RELAX, from {source}"
        yield Derived(RELAX + method, METHODS[method].label, words, (source,), "metrics.test.log_likelihood")
    yield from (_estimated(f"{RELAX}{method}+relax") for method in ("igr-i", "gs"))
    yield from (_vae(FOUR + method, method, num_samples=ESTIMATOR_SAMPLES) for method in ("igr-i", "gs"))
    yield from (_estimated(f"{FOUR}{method}+relax", num_samples=ESTIMATOR_SAMPLES) for method in ("igr-i", "gs"))
    yield _estimated(f"{FOUR}gs+uspg")


def _estimated(id: str, **options: Any) -> Vae:
    method, _, estimator = id.rpartition("/")[2].partition("+")
    options = ESTIMATED[estimator] | options
    return _vae(id, method, objective="discrete", forward="hard", estimator=estimator, **options)


def _vae(id: str, method: str, **options: Any) -> Vae:
    _, dataset, architecture, _ = id.split("/")
    needs_prior = method == "gs" and options.get("objective") != "discrete"
    grid = PRIOR_TEMPERATURES["honest"] if needs_prior else ()
    return Vae(id, dataset, architecture, method, prior_temperatures=grid, **options)


def _derived(table1: list[Vae]) -> Iterator[Derived]:
    for cell in table1:
        if cell.architecture == "linear":
            words = f"discretized train ELBO of {cell.label}, linear VAE, {cell.dataset}"
            id = f"train-elbo/{cell.dataset}/{cell.id.rpartition('/')[2]}"
            yield Derived(id, cell.label, words, (cell.id,), "metrics.train.elbo_discrete")
    sources = tuple(cell.id for cell in table1 if cell.dataset == "mnist" and not cell.landing)
    words = "ELBO of the relaxed models on mnist; the paper does not say which architecture: both"
    yield Derived("figure/continuous-elbo", "continuous ELBO", words, sources, "curves.elbo_continuous")


def _approximations() -> Iterator[Approximation]:
    for target in TARGETS.values():
        K = target.num_categories
        if K is not None:
            yield Approximation(f"approximate/{target.name}/igr-i", target.name, "igr-i", K)
        yield Approximation(f"approximate/{target.name}/igr-sb", target.name, "igr-sb", None)
        for size in GUMBEL_SIZES if K is None else (K,):
            name = f"gs-{size}" if K is None else "gs"
            yield Approximation(f"approximate/{target.name}/{name}", target.name, "gs", size)


def _registry() -> dict[str, Spec]:
    table1 = list(_table1())
    specs: list[Spec] = [*table1, *_derived(table1), *_other_estimators(), *_approximations(), *_beyond()]
    return {spec.id: spec for spec in specs}


SPECS: Mapping[str, Spec] = MappingProxyType(_registry())


def find(patterns: str | Iterable[str]) -> list[Spec]:
    """The specs of those ids, each once, in the order of the registry.

    Arguments:
        patterns: ids, or patterns of the shell (``*``, ``?``, ``[...]``), where ``*`` crosses slashes.

    Raises:
        SpecError: a pattern matches nothing; the nearest that do are named.

    Example:
        >>> [spec.id for spec in find(["table1/mnist/linear/igr-*+sl"])][:2]
        ['table1/mnist/linear/igr-i+sl', 'table1/mnist/linear/igr-planar+sl']
    """
    wanted: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        found = {id for id in SPECS if id == pattern or fnmatchcase(id, pattern)}
        if not found:
            raise SpecError(f"no spec is called {pattern!r}; the nearest: {', '.join(_nearest(pattern))}")
        wanted |= found
    return [spec for id, spec in SPECS.items() if id in wanted]


def _nearest(pattern: str) -> list[str]:
    """Ids and patterns of whole groups that are closest to one that matches nothing."""
    groups = {f"{id.rsplit('/', depth)[0]}/*" for id in SPECS for depth in range(1, id.count("/") + 1)}
    if (group := pattern.rstrip("/*") + "/*") in groups:
        return [group]
    return get_close_matches(pattern.lower(), [*SPECS, *sorted(groups)], n=3, cutoff=0.0)
