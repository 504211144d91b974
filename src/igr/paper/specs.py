"""Every cell of a table and every figure as a spec: what is trained, under which id, beside which number of the paper.

Nothing here is computed and nothing needs torch. Learning rate and length are the same for all VAEs: of the paper's
rates {1e-4, 3e-4} and 300 to 500 epochs, 3e-4 and 300.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

from igr.paper.methods import METHODS
from igr.paper.nonparametric.spec import COMPONENTS, Mixture
from igr.paper.published import DATASETS, PUBLISHED, Published
from igr.paper.sop.spec import Completion
from igr.paper.targets import TARGETS
from igr.paper.trained import SEEDS, TEMPERATURES, UNUSED, Member, SpecError, Trained
from igr.paper.vae import ARCHITECTURES, ESTIMATORS, PRIOR_TEMPERATURES, RELAXATIONS, Times, Vae

__all__ = [
    "ESTIMATED",
    "ESTIMATORS",
    "SEEDS",
    "SPECS",
    "TEMPERATURES",
    "TIMES",
    "UNUSED",
    "Approximation",
    "Completion",
    "Derived",
    "Member",
    "Mixture",
    "Spec",
    "SpecError",
    "Times",
    "Trained",
    "Vae",
    "find",
    "nearest",
]

IMPORTANCE_SAMPLES = 5  # m of the rows that train the importance-weighted bound
GUMBEL_SIZES = (20, 40, 100, 200)  # K of GS where the target has none; the last is not the paper's
FIT_MINUTES = {"igr-i": 0.05, "igr-sb": 0.4, "gs": 0.1}  # of an approximation, on one core
REINMAX_TEMPERATURES = (1.0, 1.1, 1.2, 1.3, 1.5, 2.0)
RELAX_TEMPERATURES = (0.1, 0.5, 1.0)  # where it starts: RELAX learns it, REBAR keeps it
TIMES = "execution-time/mnist/{}"  # ids of records that are no spec's: architecture and method, or method
TIMES_MADE = (
    "execution times are measured, in a clone of the repository, by "
    "python benchmarks/execution_time.py --json results/ours/execution-time/records.jsonl"
)
ESTIMATOR_SAMPLES = 4  # S of what needs more than one, as in the paper's table of USPGBL


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


Spec = Trained | Derived | Approximation


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
FASTER = 1e-3  # a learning rate, at which linear models are nearly done in half the epochs
FASTER_ROWS = ("igr-i", "gs", "igr-i+discrete+hard", "gs+discrete+hard", "gs+reinmax", "gs+rloo")
SLOWER = 1e-4  # that of the published script; the paper names it beside 3e-4, and not which of its rows has which
SCRIPT_TEMPERATURES = {"igr-i": 0.15, "igr-planar": 0.15, "gs": 0.67}  # in the published scripts and their comments
FREE_ROW = "igr-i+rloo"  # what bounds of μ and log σ do
VERTEX_ROW = "igr-sb+vertex"  # what the paper found to be worse than the softmax++
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
    for architecture in ARCHITECTURES:
        yield _vae(f"beyond/mnist/{architecture}/{VERTEX_ROW}", "igr-sb", onto="vertex")
    for row in FASTER_ROWS:
        yield replace(_row(row), id=f"beyond/mnist/linear/{row}+rate", learning_rate=FASTER)
    for method in RELAXATIONS:
        yield replace(_row(method), id=f"beyond/mnist/linear/{method}+slow", learning_rate=SLOWER)
    for method, tau in SCRIPT_TEMPERATURES.items():
        single = replace(_row(method), id=f"beyond/mnist/linear/{method}+tau", temperatures=(tau,))
        yield replace(single, id=f"beyond/mnist/linear/{method}+script", learning_rate=SLOWER)
        if tau not in TEMPERATURES:
            yield single
    yield replace(_row(FREE_ROW), id=f"beyond/mnist/linear/{FREE_ROW}+free", parameters="free")


def _row(row: str) -> Vae:
    """A linear row of MNIST."""
    method, _, estimator = row.partition("+")
    id = f"beyond/mnist/linear/{row}"
    return _estimated(id) if estimator in ESTIMATED else _vae(id, method, **BEYOND.get(row, {}))


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
    discrete = options.get("objective") == "discrete"
    grid = PRIOR_TEMPERATURES["honest"] if method == "gs" and not discrete else ()
    bounded = "bounded" if method == "igr-i" and discrete else "free"
    return Vae(id, dataset, architecture, method, prior_temperatures=grid, parameters=bounded, **options)


SOP: Mapping[str, dict[str, Any]] = MappingProxyType(  # what follows the method, in the order of the table
    {
        "st": {"estimator": "st_relaxed"},
        "st-probs": {"estimator": "straight_through", "temperatures": UNUSED},
        "gapst": {"estimator": "gapst"},
        "rao": {"estimator": "rao"},
        "reinmax": {"estimator": "reinmax", "temperatures": REINMAX_TEMPERATURES},
        "rloo": {"estimator": "rloo", "temperatures": UNUSED, "num_samples": ESTIMATOR_SAMPLES},
        "disarm": {"estimator": "disarm", "temperatures": UNUSED, "num_samples": ESTIMATOR_SAMPLES // 2},
        "rebar": {"estimator": "rebar", "temperatures": RELAX_TEMPERATURES},
        "vimco+s5": {"estimator": "vimco", "temperatures": UNUSED, "num_samples": 5},
        "vimco+s50": {"estimator": "vimco", "temperatures": UNUSED, "num_samples": 50},
    }
)


def _completions() -> Iterator[Completion]:
    """The paper's table, and the same with more samples, noise of scale one, linear networks and other estimators."""
    for num_samples in (1, 5, 50):
        for method in RELAXATIONS:
            row = method if num_samples == 1 else f"{method}+s{num_samples}"
            yield Completion(f"sop/mnist/{row}", method, num_samples=num_samples)
    for method in RELAXATIONS[:-1]:  # GS has no scale
        yield Completion(f"sop/mnist/{method}+unit", method, scale="one")
        yield Completion(f"sop/mnist/{method}+unit+s5", method, scale="one", num_samples=5)
    yield Completion("sop/mnist/igr-i+unit+linear", "igr-i", scale="one", network="linear")
    yield Completion("sop/mnist/gs+linear", "gs", network="linear")
    for row, options in SOP.items():
        for method in RELAXATIONS if row == "st" else ("igr-i", "gs"):
            yield Completion(f"sop/mnist/{method}+{row}", method, **options)


def _mixtures() -> Iterator[Mixture]:
    for dataset in ("mnist", "omniglot"):
        for landing in (True, False):  # the paper has only those that stick the landing
            for method, sizes in (("igr-sb-mm", ()), ("dldpmm", COMPONENTS)):
                id = f"nonparametric/{dataset}/{method}{'+sl' if landing else ''}"
                yield Mixture(id, dataset, method, landing, sizes)


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
    first: list[Spec] = [*table1, *_derived(table1), *_completions(), *_mixtures()]
    specs: list[Spec] = [*first, *_other_estimators(), *_approximations(), *_beyond()]
    return {spec.id: spec for spec in specs}


SPECS: Mapping[str, Spec] = MappingProxyType(_registry())


def find(patterns: str | Iterable[str]) -> list[Spec]:
    """The specs of those ids, each once, in the order in which they are asked for; of a pattern, in the registry's.

    Arguments:
        patterns: ids, or patterns of the shell (``*``, ``?``, ``[...]``), where ``*`` crosses slashes.

    Raises:
        SpecError: a pattern matches nothing; the nearest that do are named, or what else makes such records.

    Example:
        >>> [spec.id for spec in find(["table1/mnist/linear/igr-*+sl"])][:2]
        ['table1/mnist/linear/igr-i+sl', 'table1/mnist/linear/igr-planar+sl']
    """
    wanted: dict[str, Spec] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        found = {id: spec for id, spec in SPECS.items() if id == pattern or fnmatchcase(id, pattern)}
        if not found and pattern.startswith(TIMES.partition("/")[0]):
            raise SpecError(f"{pattern!r} is no spec: {TIMES_MADE}")
        if not found:
            raise SpecError(f"no spec is called {pattern!r}; the nearest: {', '.join(_nearest(pattern))}")
        wanted |= found
    return list(wanted.values())


def _nearest(pattern: str) -> list[str]:
    """Ids and patterns of whole groups that are closest to one that matches nothing."""
    groups = {f"{id.rsplit('/', depth)[0]}/*" for id in SPECS for depth in range(1, id.count("/") + 1)}
    if (group := pattern.rstrip("/*") + "/*") in groups:
        return [group]
    return nearest(pattern, [*SPECS, *sorted(groups)], cutoff=0.0)


def nearest(name: str, known: Sequence[str], cutoff: float = 0.6) -> list[str]:
    """Up to three known names that are closest to one that is not known, and at least so alike.

    Example:
        >>> nearest("IGR-1", ["gs", "igr-i", "igr-sb"])
        ['igr-i', 'igr-sb']
    """
    return get_close_matches(name.lower(), known, n=3, cutoff=cutoff)
