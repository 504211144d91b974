import json
import os
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from igr._commands.list import add
from igr.paper import approximate, records
from igr.paper.methods import METHODS
from igr.paper.published import DATASETS, PUBLISHED, Published
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
    Member,
    SpecError,
    Times,
    Vae,
    find,
)
from igr.paper.targets import TARGETS

ROOT = Path(__file__).parents[2]
VAES = [spec for spec in SPECS.values() if isinstance(spec, Vae)]
IGR, GS = SPECS["table1/mnist/linear/igr-i"], SPECS["table1/mnist/linear/gs"]
RLOO = SPECS["beyond/mnist/linear/gs+rloo"]


# ------------------------------------------------------------------------------------------------ the paper's numbers


@pytest.fixture(scope="module")
def tex():
    path = ROOT.parent / "shared" / "paper" / "igr.tex"
    if not path.exists():
        pytest.skip(f"the paper's source is not at {path}")
    return path.read_text(encoding="utf-8")


def table_of(tex, label):
    """(name of the row, its three cells) of the tabular before a label, with \\multirow in front where it is there."""
    before = tex[: tex.index(rf"\label{{{label}}}")]
    body = before[before.rindex(r"\begin{tabular}") : before.rindex(r"\end{tabular}")]
    cell = re.compile(r"(\\textbf\{)?(-\d+\.\d+)\s*\$\\pm\$\s*(\d+\.\d+)")
    for row in re.split(r"(?=\\multirow|\\textcolor)", body):
        if heading := re.match(r"\\multirow\{4\}\{\*\}\{([\w-]+)\}", row):
            yield heading[1], None
        if name := re.match(r"\\textcolor\{\w+\}\{\\textbf\{([\w+ -]+)\}\}", row):
            yield name[1], [Published(float(value), float(sd), bool(bold)) for bold, value, sd in cell.findall(row)]


def row_id(name):
    method, *options = name.split(" + ")
    return "+".join([{each.label: key for key, each in METHODS.items()}[method], *map(str.lower, options)])


def test_table_1_is_transcribed(tex):
    found, architecture = {}, None
    for name, cells in table_of(tex, "rest_cat"):
        if cells is None:
            architecture = name.lower().replace("-", "")
            continue
        for dataset, cell in zip(DATASETS, cells, strict=True):
            found[f"table1/{dataset}/{architecture}/{row_id(name)}"] = cell
    assert len(found) == 48
    assert found == {id: cell for id, cell in PUBLISHED.items() if id.startswith("table1/")}


def test_table_of_train_elbos_is_transcribed(tex):
    found = {
        f"train-elbo/{dataset}/{row_id(name)}": cell
        for name, cells in table_of(tex, "ta:vae_tr")
        for dataset, cell in zip(DATASETS, cells, strict=True)
    }
    assert len(found) == 24
    assert found == {id: cell for id, cell in PUBLISHED.items() if id.startswith("train-elbo/")}


@pytest.mark.parametrize(
    ("label", "kind", "count"), [("ap:table_relax", "relax", 4), ("ap:wo", "s4", 5)], ids=["relax", "s4"]
)
def test_tables_of_other_estimators_are_transcribed(tex, label, kind, count):
    found = {
        f"{kind}/mnist/nonlinear/{'gs+uspg' if name == 'USPGBL' else row_id(name)}": cell
        for name, (cell,) in table_of(tex, label)
    }
    assert len(found) == count
    assert found == {id: cell for id, cell in PUBLISHED.items() if id.startswith(f"{kind}/")}


def test_every_published_number_has_a_spec():
    assert {id for id, spec in SPECS.items() if spec.paper is not None} == PUBLISHED.keys()
    assert all(SPECS[id].paper is cell for id, cell in PUBLISHED.items())
    assert str(SPECS["table1/mnist/linear/igr-i+sl"].paper) == "-94.18 ± 0.37"


# ------------------------------------------------------------------------------------------------------------ registry


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
        "beyond": 69,
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
    assert spec.learning_rate == (1e-3 if "rate" in options else 3e-4)
    assert set(options) <= {"sl", "discrete", "hard", "iwae", "flow-prior", "vertex", "rate", "free", *ESTIMATORS}


def test_no_method_is_trained_more_than_another():
    same = {(s.epochs, s.batch_size, s.seeds, s.protocol, s.smoke) for s in VAES}
    assert same == {(300, 100, SEEDS, "honest", False)}
    faster = {s.id for s in VAES if s.learning_rate != 3e-4}
    assert faster == {f"beyond/mnist/linear/{row}+rate" for row in FASTER_ROWS}
    assert {row.partition("+")[0] for row in FASTER_ROWS} == {"igr-i", "gs"}  # what one gains by it, the other may


def test_no_method_has_more_temperatures_than_the_papers():
    """Another grid only where the temperature is another thing, and the same for logits and for IGR."""
    grids = {}
    for spec in VAES:
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


# ------------------------------------------------------------------------------------------------- members and variants


def test_members_are_seeds_within_configurations():
    members = IGR.members()
    assert len(members) == len(set(members)) == 50
    assert members[7] == Member(TEMPERATURES[1], None, SEEDS[2])
    assert [m.seed for m in members[:5]] == list(SEEDS)


def test_members_of_gs_have_a_prior_temperature():
    members = GS.members()
    assert len(members) == len(set(members)) == 145  # 0.5 comes twice where it is τ
    priors = {tau: [m.prior_temperature for m in members if m.tau == tau][::5] for tau in TEMPERATURES}
    assert priors[0.67] == [0.67, 0.5, 0.5025]
    assert priors[0.5] == [0.5, 0.375]
    assert priors[0.1] == [0.1, 0.5, 0.075]
    for start in range(0, 145, 5):
        block = members[start : start + 5]
        assert len({(m.tau, m.prior_temperature) for m in block}) == 1
        assert tuple(m.seed for m in block) == SEEDS
    published = GS.with_protocol("published")
    assert {m.prior_temperature for m in published.members()} == {0.5}
    assert len(published.members()) == 50
    assert published.with_protocol("honest") == GS


@pytest.mark.parametrize("id", [f"beyond/mnist/linear/gs+{row}" for row in ("discrete", "discrete+hard", "relax")])
def test_discrete_objective_has_no_prior_temperature(id):
    for spec in (SPECS[id], SPECS[id].with_protocol("published")):
        assert {m.prior_temperature for m in spec.members()} == {None}


@pytest.mark.parametrize("spec", VAES, ids=lambda spec: spec.id)
def test_shortened(spec):
    short = spec.shortened()
    assert (short.id, short.smoke, short.epochs) == (spec.id, True, 2)
    assert short.temperatures == ((0.25, 0.67) if spec.temperatures == TEMPERATURES else spec.temperatures[:2])
    assert short.seeds == SEEDS[:2]
    rules = 3 if spec.prior_temperatures else 1
    assert len(short.members()) == 2 * len(short.temperatures) * rules
    assert set(short.members()) <= set(spec.members())
    assert short.settings() == spec.settings() | {"epochs": 2}


def test_shortened_keeps_to_the_temperatures_given():
    assert replace(IGR, temperatures=(0.1, 0.2, 0.3)).shortened().temperatures == (0.1, 0.2)


def test_settings_are_json_and_tell_specs_apart():
    settings = [json.dumps(spec.settings(), sort_keys=True) for spec in VAES]
    assert len(set(settings)) == len(VAES)
    assert IGR.settings() == {
        "dataset": "mnist",
        "architecture": "linear",
        "method": "igr-i",
        "landing": False,
        "objective": "continuous",
        "forward": "soft",
        "bound": "elbo",
        "num_samples": 1,
        "prior": "output",
        "epochs": 300,
        "batch_size": 100,
        "learning_rate": 3e-4,
    }


def test_settings_name_estimators_and_bounds_only_where_there_are_some():
    """Records of relaxed samples, of which some are older than the fields, keep their identity."""
    for spec in VAES:
        assert spec.settings().get("parameters", "free") == spec.parameters
        assert ("parameters" in spec.settings()) == (spec.parameters != "free")
        assert spec.settings().get("estimator", "reparameterized") == spec.estimator
        assert ("estimator" in spec.settings()) == (spec.estimator != "reparameterized")
    four = SPECS["s4/mnist/nonlinear/igr-i"]
    assert four.settings() == SPECS["table1/mnist/nonlinear/igr-i"].settings() | {"num_samples": 4}
    relax = SPECS["relax/mnist/nonlinear/gs+relax"].settings()
    assert relax == SPECS["beyond/mnist/nonlinear/gs+discrete+hard"].settings() | {"estimator": "relax"}


def test_specs_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        IGR.epochs = 1
    with pytest.raises(TypeError):
        SPECS["new"] = IGR
    with pytest.raises(TypeError):
        PUBLISHED["new"] = IGR.paper


@pytest.mark.parametrize(
    ("spec", "changes", "advice"),
    [
        (IGR, {"dataset": "cifar"}, "dataset is 'cifar', expected one of mnist, fmnist, omniglot"),
        (IGR, {"architecture": "deep"}, "architecture is 'deep', expected one of linear, nonlinear"),
        (IGR, {"method": "dldpmm"}, "method is 'dldpmm', expected one of igr-i, igr-planar, igr-sb, gs"),
        (IGR, {"objective": "jang"}, "objective is 'jang'"),
        (IGR, {"forward": "medium"}, "forward is 'medium'"),
        (IGR, {"bound": "vimco"}, "bound is 'vimco'"),
        (IGR, {"protocol": "paper"}, "protocol is 'paper', expected one of honest, published"),
        (IGR, {"epochs": 0}, "epochs is 0, expected a positive integer"),
        (IGR, {"batch_size": 10.0}, "batch_size is 10.0, expected a positive integer"),
        (IGR, {"num_samples": True}, "num_samples is True, expected a positive integer"),
        (IGR, {"learning_rate": float("nan")}, "learning_rate is nan, expected a positive number"),
        (IGR, {"temperatures": ()}, r"temperatures are \(\), expected positive numbers"),
        (IGR, {"temperatures": (0.1, 0.0)}, r"temperatures are \(0.1, 0.0\), expected positive numbers"),
        (IGR, {"temperatures": ("cold",)}, r"temperatures are \('cold',\), expected positive numbers"),
        (GS, {"prior_temperatures": (Times(-1.0),)}, "prior_temperatures are .* expected positive numbers"),
        (IGR, {"seeds": ()}, "seeds are"),
        (IGR, {"seeds": (1, 1)}, "seeds are"),
        (IGR, {"seeds": (-1,)}, "seeds are"),
        (IGR, {"prior_temperatures": (0.5,)}, "prior_temperatures are for gs with a continuous KL alone"),
        (GS, {"prior_temperatures": ()}, "gs with a continuous KL needs prior_temperatures"),
        (GS, {"objective": "discrete"}, "prior_temperatures are for gs with a continuous KL alone"),
        (IGR, {"objective": "discrete", "landing": True}, "no landing to stick"),
        (IGR, {"method": "igr-planar", "objective": "discrete"}, "the discrete KL needs igr-i or gs"),
        (IGR, {"method": "igr-sb", "objective": "discrete"}, "the discrete KL needs igr-i or gs"),
        (IGR, {"bound": "iwae"}, "give num_samples of 2 or more"),
        (IGR, {"bound": "iwae", "num_samples": 5, "objective": "discrete"}, "objective continuous"),
        (IGR, {"bound": "iwae", "num_samples": 5, "landing": True}, "would bias the gradient"),
        (IGR, {"prior": "flow"}, "prior flow is for igr-planar alone"),
        (IGR, {"onto": "vertex"}, "onto vertex is for igr-sb alone"),
        (
            SPECS["beyond/mnist/linear/igr-sb+vertex"],
            {"temperatures": (0.5, 1.5)},
            "onto vertex needs temperatures of at most one",
        ),
        (IGR, {"estimator": "vimco"}, "estimator is 'vimco', expected one of reparameterized, reinmax, gapst"),
        (IGR, {"estimator": "relax", "forward": "hard"}, "estimator relax is of hard samples: objective discrete"),
        (IGR, {"estimator": "rao", "objective": "discrete"}, "estimator rao is of hard samples: forward hard"),
        (RLOO, {"num_samples": 1}, "estimator rloo compares samples; give num_samples of 2 or more"),
        (SPECS["s4/mnist/nonlinear/gs+uspg"], {"num_samples": 1}, "estimator uspg compares samples"),
        (RLOO, {"method": "igr-sb"}, "the discrete KL needs igr-i or gs"),
        (RLOO, {"landing": True}, "no landing to stick"),
        (RLOO, {"bound": "iwae"}, "objective continuous"),
        (RLOO, {"prior_temperatures": (0.5,)}, "prior_temperatures are for gs with a continuous KL alone"),
    ],
    ids=lambda value: ",".join(f"{name}={each}" for name, each in value.items()) if isinstance(value, dict) else "",
)
def test_what_cannot_be_is_refused(spec, changes, advice):
    with pytest.raises(SpecError, match=advice):
        replace(spec, **changes)
    with pytest.raises(ValueError, match=re.escape(spec.id)):
        replace(spec, **changes)


# ---------------------------------------------------------------------------------------------------------------- find


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


# ------------------------------------------------------------------------------------------------------------ igr list


def invoke(*args):
    app = typer.Typer()
    app.callback()(lambda: None)
    add(app)
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).invoke(app, ["list", *map(str, args)])


def record(spec, seed, **changes):
    metrics = {"train": {"elbo_discrete": -120.0 - seed}, "test": {"log_likelihood": -98.0 - seed}}
    return {
        "spec": spec,
        "protocol": "honest",
        "seed": seed,
        "tau": 0.1,
        "prior_temperature": None,
        "smoke": False,
        "device": "cpu",
        "settings": {"method": "igr-i"},
        "status": "finished",
        "metrics": metrics,
        "selected": ["elbo_discrete", "log_likelihood"],
    } | changes


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results" / "ours"
    folder.mkdir(parents=True)
    return folder


def lines(result):
    assert result.exit_code == 0, result.output
    return {cells[0]: cells[1:] for line in result.stdout.splitlines() for cells in [line.split("\t")]}


def test_list_without_records(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke()
    found = lines(result)
    assert list(found) == list(SPECS)
    assert all(len(cells) == 6 for cells in found.values())
    spec = SPECS["table1/mnist/linear/gs"]
    assert found[spec.id] == ["GS", "-106.17 ± 1.00", "", "", f"{spec.minutes:.2f}", spec.description]
    assert found["beyond/omniglot/nonlinear/igr-planar+flow-prior"][1] == ""
    assert result.stderr == ""


def test_list_shows_what_exists(results):
    id = "table1/mnist/linear/igr-i"
    (results / id).mkdir(parents=True)
    records.append(results / id / "records.jsonl", [record(id, seed) for seed in (1, 2, 3)])
    others = [
        record(id, 1, smoke=True),
        record(id, 4, selected=[], tau=0.5),
        record(id, 5, status="failed", metrics={}),
    ]
    other = results.parent / "other"
    other.mkdir()
    records.append(other / "records.jsonl", others)
    found = lines(invoke("table1/mnist/linear/*", "train-elbo/mnist/*"))
    assert found[id][2:4] == ["3", "-100.00 ± 1.00"]
    assert found["train-elbo/mnist/igr-i"][2:4] == ["3", "-122.00 ± 1.00"]
    assert found["table1/mnist/linear/gs"][2:4] == ["", ""]
    found = lines(invoke(id, "figure/*", "--records", results, "--records", results.parent))  # no file counts twice
    assert found[id][2:4] == ["5", "-100.00 ± 1.00"]
    assert found["figure/continuous-elbo"][2:4] == ["5", ""]


def test_list_shows_the_tables_of_other_estimators(results):
    """The bound at the τ that it chooses; of four samples the discrete ELBO at the τ that that chooses."""
    table1, relax, four = (f"{kind}/mnist/nonlinear/igr-i" for kind in ("table1", "relax", "s4"))
    for id in (table1, relax + "+relax", four):
        rows = []
        for tau, criterion in ((0.1, "elbo_discrete"), (0.5, "log_likelihood")):
            numbers = {"elbo_discrete": -108.0 - 20 * tau, "log_likelihood": -94.0 + 8 * tau}
            rows += [record(id, seed, tau=tau, metrics={"test": numbers}, selected=[criterion]) for seed in (1, 2)]
        (results / id).mkdir(parents=True)
        records.append(results / id / "records.jsonl", rows)
    found = lines(invoke("relax/*", "s4/*", table1))
    assert found[table1][1:4] == ["-91.98 ± 1.29", "4", "-90.00 ± 0.00"]
    assert found[relax][1:4] == ["-94.18 ± 0.37", "4", "-90.00 ± 0.00"]  # from table1
    assert found[relax + "+relax"][1:4] == ["-82.03 ± 2.18", "4", "-90.00 ± 0.00"]
    assert found[four][1:4] == ["-118.45 ± 3.02", "4", "-110.00 ± 0.00"]
    assert found["s4/mnist/nonlinear/gs+uspg"][:4] == ["GS + USPGBL", "-106.89 ± 1.37", "", ""]


def test_list_prefers_the_honest_run_and_then_the_best(results):
    id = "table1/mnist/linear/igr-i"
    runs = [
        record(id, 1, settings={"method": "igr-i", "epochs": 1}),
        record(id, 2, settings={"method": "igr-i", "epochs": 2}),
        record(id, 3, protocol="published", metrics={"test": {"log_likelihood": -1.0}}),
    ]
    records.append(results / "records.jsonl", runs)
    assert lines(invoke(id))[id][2:4] == ["3", "-99.00"]


def test_list_does_not_pool_runs_with_other_seeds(results):
    """They may have chosen another τ; and where they have not, theirs are not the spec's own."""
    id = "table1/mnist/linear/igr-i"

    def run(seeds, tau, value, **more):
        numbers = {"test": {"log_likelihood": value}, "validation": {"log_likelihood": value}}
        unchosen = {"selected": [], "metrics": {"validation": {"log_likelihood": value - 9}}}
        rows = [record(id, seed, tau=tau, metrics=numbers, **more) for seed in seeds]
        return rows + [record(id, seed, tau=0.7 - tau, **more) | unchosen for seed in seeds]

    own, others = run(SEEDS, 0.1, -98.0), run([seed + 1 for seed in SEEDS], 0.6, -90.0)
    records.append(results / "records.jsonl", own + others)
    assert lines(invoke(id))[id][2:4] == ["20", "-98.00 ± 0.00"]
    records.append(results / "records.jsonl", run([1, 2], 0.1, -80.0, device="cuda"))  # a better one, of other seeds
    assert lines(invoke(id))[id][2:4] == ["24", "-98.00 ± 0.00"]
    (results / "records.jsonl").unlink()
    records.append(results / "records.jsonl", others + run([1, 2], 0.1, -98.0))  # seven seeds that the spec has not
    assert lines(invoke(id))[id][2:4] == ["14", "-90.00 ± 0.00"]


def test_list_leaves_out_what_contradicts_itself(results):
    id, other = "table1/mnist/linear/igr-i", "table1/mnist/linear/gs"
    for name, value in (("a", -98.0), ("b", -97.0)):
        (results / name).mkdir()
        rows = [record(id, 1, metrics={"test": {"log_likelihood": value}}), record(other, 1)]
        records.append(results / name / "records.jsonl", rows)
    result = invoke(id, other, "train-elbo/mnist/igr-i")
    assert lines(result)[id][2:4] == ["2", ""]
    assert lines(result)[other][3] == "-99.00"
    [error] = result.stderr.splitlines()
    assert re.match(r"igr: left out: two records of table1/mnist/linear/igr-i with τ = 0\.1 and seed 1 differ: ", error)


def test_list_shows_approximations(results):
    id = "approximate/uniform/igr-i"
    runs = [
        record(id, seed, protocol=protocol, metrics={"tv": tv})
        for seed, protocol, tv in ((0, "paper", 0.02), (1, "paper", 0.013), (2, "exact", 1e-9))
    ]
    records.append(results / "records.jsonl", [*runs, record(id, 3, protocol="paper", metrics=None)])
    assert lines(invoke(id))[id][2:4] == ["4", "TV 0.013"]


def test_list_reports_what_it_cannot_read(results):
    id = "table1/mnist/linear/igr-i"
    for name, content in (("a", "nonsense\n"), ("b", json.dumps(record(id, 1)) + "\n")):
        (results / name).mkdir()
        (results / name / "records.jsonl").write_text(content)
    (results / "c" / "records.jsonl").mkdir(parents=True)
    result = invoke(id)
    assert lines(result)[id][2] == "1"
    errors = result.stderr.splitlines()
    assert len(errors) == 2
    assert re.fullmatch(r"igr: left out: line 1 of .*records\.jsonl is not a record; mend it, .*", errors[0])
    assert "Is a directory" in errors[1]


def test_list_refuses_bad_input(results):
    result = invoke("table1/minst/*")
    assert result.exit_code == 2
    assert "no spec is called 'table1/minst/*'; the nearest: table1/mnist/*" in result.output
    result = invoke("--records", "nowhere")
    assert result.exit_code == 2
    assert "does not exist" in result.output


PROGRAM = """
import sys, typer
from igr._commands.list import add
app = typer.Typer()
app.callback()(lambda: None)
add(app)
app(standalone_mode=False)
assert not {"torch", "numpy", "matplotlib"} & sys.modules.keys(), "heavy"
"""


def test_list_on_a_terminal_and_without_torch(results):
    """Tables as wide as the terminal, if they fit by wrapping labels; no id is cut short."""
    ours, theirs = pytest.importorskip("pty").openpty()
    env = os.environ | {"COLUMNS": "90", "NO_COLOR": "1", "TERM": "xterm"}
    command = [sys.executable, "-c", PROGRAM, "list"]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=env) as process:
        os.close(theirs)
        output = b""
        while chunk := _read(ours):
            output += chunk
        assert process.stderr.read() == b""
    os.close(ours)
    assert process.returncode == 0
    text = re.sub(r"\x1b\[[\d;]*m", "", output.decode()).replace("\r\n", "\n")
    assert all(id in text for id in SPECS)
    assert all(len(line) <= 90 for line in text.splitlines())
    assert "train-elbo: discretized train ELBO, read from table1" in text
    assert "relax: test log-likelihood with RELAX (ours: bound of the selected τ)" in text
    assert "s4: test ELBO, four samples (ours: discrete ELBO of the selected τ)" in text
    assert re.search(r"table1/mnist/linear/gs +GS +-106\.17 ± 1\.00 +2 min", text)
    assert "Times are estimates" in text


def test_list_reads_records_without_torch(results):
    records.append(results / "records.jsonl", [record(IGR.id, seed) for seed in (1, 2, 3)])
    command = [sys.executable, "-c", PROGRAM, "list", IGR.id]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split("\t")[3:5] == ["3", "-100.00 ± 1.00"]


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux says that the other side is closed
        return b""
