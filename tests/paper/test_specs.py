"""The registry of specs: what each trains, is called, reads and takes, and how it is found."""

import re
from pathlib import Path

import pytest

from igr.paper import approximate, records
from igr.paper.specs import (
    ESTIMATORS,
    FASTER_ROWS,
    GUMBEL_SIZES,
    SEEDS,
    SPECS,
    TEMPERATURES,
    TIMES,
    Approximation,
    Derived,
    SpecError,
    Vae,
    find,
)
from igr.paper.targets import TARGETS

ROOT = Path(__file__).parents[2]
VAES = [spec for spec in SPECS.values() if isinstance(spec, Vae)]
IGR, GS = SPECS["table1/mnist/linear/igr-i"], SPECS["table1/mnist/linear/gs"]


# ------------------------------------------------------------------------------------------------------------- registry


def test_registry_is_complete():
    kinds = [id.partition("/")[0] for id in SPECS]
    counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    assert counts == {
        "table1": 48,
        "train-elbo": 24,
        "figure": 1,
        "sop": 42,
        "nonparametric": 8,
        "relax": 4,
        "s4": 5,
        "approximate": 24,
        "beyond": 78,
    }
    assert all(spec.id == id for id, spec in SPECS.items())


@pytest.mark.parametrize("spec", VAES, ids=lambda spec: spec.id)
def test_ids_say_what_is_trained(spec):
    kind, dataset, architecture, row = spec.id.split("/")
    method, *options = row.split("+")
    estimators = [option for option in options if option in ESTIMATORS]
    assert (spec.dataset, spec.architecture, spec.method) == (dataset, architecture, method)
    assert spec.landing == ("sl" in options)
    assert [spec.estimator] == (estimators or ["reparameterized"])
    assert (spec.objective == "discrete") == ("discrete" in options or bool(estimators))
    assert (spec.forward == "hard") == ("hard" in options or bool(estimators))
    assert (spec.bound == "iwae") == ("iwae" in options)
    several = kind == "s4" or bool({"rloo", "uspg"} & set(options))
    assert spec.num_samples == (5 if "iwae" in options else 4 if several else 1)
    assert (spec.prior == "flow") == ("flow-prior" in options)
    assert (spec.onto == "vertex") == ("vertex" in options)
    discrete = (method, spec.objective) == ("igr-i", "discrete")
    assert (spec.parameters == "bounded") == (discrete and "free" not in options)
    slow = {"slow", "script"} & set(options)
    assert spec.learning_rate == (1e-3 if "rate" in options else 1e-4 if slow else 3e-4)
    assert ("τ" in spec.label) == bool({"script", "tau"} & set(options))
    known = {"sl", "discrete", "hard", "iwae", "flow-prior", "vertex", "free", "rate", "slow", "script", "tau"}
    assert set(options) <= known | {*ESTIMATORS}


def test_no_method_is_trained_more_than_another():
    same = {(s.epochs, s.batch_size, s.seeds, s.protocol, s.smoke) for s in VAES}
    assert same == {(300, 100, SEEDS, "honest", False)}
    others = {s.id for s in VAES if s.learning_rate != 3e-4}
    slower = {f"{row}+slow" for row in ("igr-i", "igr-planar", "igr-sb", "gs")}
    script = {f"{row}+script" for row in ("igr-i", "igr-planar", "gs")}
    assert others == {f"beyond/mnist/linear/{row}" for row in slower | script | {f"{row}+rate" for row in FASTER_ROWS}}
    assert {row.partition("+")[0] for row in FASTER_ROWS} == {"igr-i", "gs"}  # what one gains by it, the other may


def test_no_method_has_more_temperatures_than_the_papers():
    """Another grid only where the temperature is another thing, and the same for logits and for IGR."""
    grids = {}
    script = {f"beyond/mnist/linear/{row}": (0.15,) for row in ("igr-i", "igr-planar")}
    for spec in VAES:
        method, _, option = spec.id.partition("+")
        if option in ("script", "tau"):  # the one of the published script
            assert spec.temperatures == script.get(method, (0.67,))
        else:
            grids.setdefault(spec.estimator, set()).add(spec.temperatures)
    assert {estimator: grid for estimator, grid in grids.items() if grid != {TEMPERATURES}} == {
        "reinmax": {(1.0, 1.1, 1.2, 1.3, 1.5, 2.0)},  # of a distribution that is smoothed: 1 is none
        "relax": {(0.1, 0.5, 1.0)},  # where it starts
        "rloo": {(1.0,)},  # has none
        "uspg": {(1.0,)},
    }
    assert all(len(grid) <= len(TEMPERATURES) == 10 for each in grids.values() for grid in each)
    assert grids.keys() == {"reparameterized", *ESTIMATORS}


@pytest.mark.parametrize(
    ("id", "label", "words"),
    [
        ("table1/mnist/linear/igr-i+sl", "IGR-I + SL", "sticking the landing"),
        ("table1/omniglot/nonlinear/igr-planar", "IGR-Planar", "nonlinear VAE, omniglot: IGR-Planar, continuous KL"),
        ("beyond/mnist/linear/gs+discrete", "GS + discrete KL", "eq. 8, Jang et al."),
        ("beyond/mnist/linear/gs+discrete+hard", "GS + discrete KL + hard", "straight through"),
        ("beyond/fmnist/linear/igr-i+iwae", "IGR-I + IWAE-5", "importance-weighted bound of 5 samples"),
        ("beyond/mnist/linear/igr-planar+flow-prior", "IGR-Planar + flow prior", "a flow of its own"),
        ("beyond/mnist/nonlinear/igr-sb+vertex", "IGR-SB + vertex", "interpolated to the nearest vertex (eq. 17)"),
        ("beyond/mnist/linear/igr-planar+tau", "IGR-Planar + τ 0.15", "continuous KL, τ 0.15"),
        ("beyond/mnist/linear/gs+script", "GS + τ 0.67 + rate 0.0001", "continuous KL, τ 0.67, learning rate 0.0001"),
        ("beyond/mnist/linear/gs+reinmax", "GS + ReinMax", "GS, discrete KL, ReinMax of 1 hard sample"),
        ("beyond/mnist/linear/igr-i+gapst", "IGR-I + GapST", "IGR-I, discrete KL, GapST of 1 hard sample"),
        ("beyond/mnist/linear/gs+rao", "GS + Gumbel-Rao", "Gumbel-Rao of 1 hard sample"),
        ("beyond/mnist/nonlinear/igr-i+rao", "IGR-I + IGR-Rao", "IGR-Rao of 1 hard sample"),
        ("beyond/mnist/nonlinear/igr-i+rloo", "IGR-I + RLOO", "RLOO of 4 hard samples, bounded μ and log σ"),
        (
            "beyond/mnist/linear/igr-i+rloo+free",
            "IGR-I + RLOO + free μ and log σ",
            "of 4 hard samples, free μ and log σ",
        ),
        ("relax/mnist/nonlinear/igr-i", "IGR-I", "IGR-I without RELAX, from table1/mnist/nonlinear/igr-i"),
        ("relax/mnist/nonlinear/igr-i+relax", "IGR-I + RELAX", "nonlinear VAE, mnist: IGR-I, discrete KL, RELAX of 1"),
        ("s4/mnist/nonlinear/gs", "GS", "nonlinear VAE, mnist: GS, continuous KL, 4 samples"),
        ("s4/mnist/nonlinear/gs+relax", "GS + RELAX", "RELAX of 4 hard samples"),
        ("s4/mnist/nonlinear/gs+uspg", "GS + USPGBL", "USPGBL of 4 hard samples"),
        ("train-elbo/mnist/gs", "GS", "train ELBO"),
        ("approximate/poisson/gs-40", "GS, K = 40", "Poisson(50)"),
        ("approximate/uniform/gs", "GS", "Uniform on 10 categories"),
    ],
)
def test_labels_and_descriptions(id, label, words):
    assert SPECS[id].label == label
    assert words in SPECS[id].description
    assert "\n" not in SPECS[id].description


def test_derived_specs_read_what_exists():
    derived = [spec for spec in SPECS.values() if isinstance(spec, Derived)]
    assert {source for spec in derived for source in spec.sources} <= SPECS.keys()
    assert SPECS["train-elbo/omniglot/igr-sb+sl"].sources == ("table1/omniglot/linear/igr-sb+sl",)
    for method in ("igr-i", "gs"):
        row = SPECS[f"relax/mnist/nonlinear/{method}"]
        assert row.sources == (f"table1/mnist/nonlinear/{method}",)
        assert row.reads == "metrics.test.log_likelihood"
        assert row.minutes == 0
    figure = SPECS["figure/continuous-elbo"]
    assert len(figure.sources) == 8
    assert all(re.fullmatch(r"table1/mnist/(non)?linear/[\w-]+", source) for source in figure.sources)
    assert figure.reads == "curves.elbo_continuous"


def test_approximations_are_those_that_are_fitted():
    assert GUMBEL_SIZES == approximate.GUMBEL_SIZES
    fitted = {
        f"approximate/{target.name}/{model.name}": (model.method, model.num_categories, model.label)
        for target in TARGETS.values()
        for model in approximate.models(target)
    }
    ours = [spec for spec in SPECS.values() if isinstance(spec, Approximation)]
    assert {spec.id: (spec.method, spec.num_categories, spec.label) for spec in ours} == fitted


def test_committed_records_belong_to_specs():
    files = sorted((ROOT / "results" / "ours").rglob("records.jsonl"))
    assert files
    rows = [f"{a}/{m}" for a in ("linear", "nonlinear") for m in ("igr-i", "igr-planar", "igr-sb", "gs")]
    times = {TIMES.format(row) for row in (*rows, "igr-sb-mm", "dldpmm")}  # of a benchmark
    assert {record["spec"] for file in files for record in records.read(file)} <= SPECS.keys() | times


def test_estimated_times():
    """Beside what cells took on an H200, in milliseconds a step; compiling is in some of these, metrics in none."""
    measured = {
        "table1/mnist/linear/igr-i": 0.342,
        "table1/mnist/linear/igr-planar": 0.425,
        "table1/mnist/linear/gs": 0.756,  # 145 members
        "table1/fmnist/linear/igr-i": 0.524,
        "table1/fmnist/linear/igr-planar": 0.600,
        "table1/fmnist/linear/igr-sb": 0.546,
        "table1/mnist/nonlinear/igr-i": 0.780,
        "table1/mnist/nonlinear/gs": 2.09,
        "s4/mnist/nonlinear/igr-i": 1.50,  # 4 samples
        "s4/mnist/nonlinear/gs": 3.64,
        "s4/mnist/nonlinear/gs+uspg": 2.32,  # 5 members
        "s4/mnist/nonlinear/igr-i+relax": 3.78,  # 15 members
        "relax/mnist/nonlinear/igr-i+relax": 1.86,
        "relax/mnist/nonlinear/gs+relax": 1.32,
        "beyond/mnist/linear/igr-i+discrete+hard": 0.633,
        "beyond/mnist/linear/gs+discrete+hard": 0.298,
        "beyond/mnist/linear/igr-planar+flow-prior": 0.65,
        "beyond/mnist/linear/igr-i+iwae": 0.83,
        "beyond/mnist/linear/gs+iwae": 1.84,
        "beyond/mnist/linear/igr-i+reinmax": 0.75,  # 30 members
        "beyond/mnist/linear/igr-i+gapst": 0.89,
        "beyond/mnist/linear/igr-i+rloo": 0.41,
        "beyond/mnist/linear/igr-i+rao": 1.67,
        "beyond/mnist/linear/gs+reinmax": 0.47,
        "beyond/mnist/linear/gs+gapst": 0.62,
        "beyond/mnist/linear/gs+rao": 1.36,
        "beyond/mnist/linear/gs+rloo": 0.30,
        "nonparametric/mnist/igr-sb-mm+sl": 0.60,
        "nonparametric/mnist/dldpmm+sl": 1.54,  # 30 members
    }
    for name, ms in measured.items():
        assert SPECS[name].minutes * 60_000 / 150_000 == pytest.approx(ms, rel=0.15), name
    assert IGR.with_protocol("published").minutes == pytest.approx(IGR.minutes * 60 / 50)
    assert all(spec.minutes > 0 or isinstance(spec, Derived) for spec in SPECS.values())


# ----------------------------------------------------------------------------------------------------------------- find


def ids(patterns):
    return [spec.id for spec in find(patterns)]


def test_find():
    assert ids("table1/mnist/linear/igr-i") == ids(["table1/mnist/linear/igr-i"]) == ["table1/mnist/linear/igr-i"]
    assert len(ids("table1/*")) == 48
    assert len(ids("table1/mnist/linear/*")) == 8
    assert ids("table1/mnist/linear/*+sl")[0] == "table1/mnist/linear/igr-i+sl"
    assert ids("*/[fm]nist/linear/igr-?") == ["table1/mnist/linear/igr-i"]
    assert ids("*") == list(SPECS)
    assert ids([]) == []


def test_find_gives_each_once_in_the_order_asked_for():
    patterns = ["beyond/*", "table1/mnist/linear/gs", "table1/mnist/linear/*", "table1/mnist/linear/gs"]
    beyond, linear = ([id for id in SPECS if id.startswith(p)] for p in ("beyond/", "table1/mnist/linear/"))
    gs = "table1/mnist/linear/gs"
    assert ids(patterns) == [*beyond, gs, *(id for id in linear if id != gs)]


@pytest.mark.parametrize(
    ("pattern", "nearest"),
    [
        ("table1/mnist/linear/igr", "table1/mnist/linear/igr-i"),
        ("table1/minst/linear/igr-i+sl", "table1/mnist/linear/igr-i+sl"),
        ("Table1/MNIST/linear/GS", "table1/mnist/linear/gs"),
        ("table1/minst/*", "table1/mnist/*"),
        ("table1/mnist", "table1/mnist/*"),
        ("table1/mnist/linear/", "table1/mnist/linear/*"),
        ("approximate/poison/igr-sb", "approximate/poisson/igr-sb"),
        ("", "the nearest: "),
    ],
)
def test_unknown_specs_are_answered_with_the_nearest(pattern, nearest):
    with pytest.raises(SpecError, match=rf"no spec is called '{re.escape(pattern)}'") as caught:
        find(["table1/*", pattern])
    assert nearest in str(caught.value)
    suggested = str(caught.value).partition("the nearest: ")[2].split(", ")
    assert all(ids(suggestion) for suggestion in suggested)
