"""Specs of structured output prediction and of mixtures."""

import math
import re
from dataclasses import replace

import pytest
from test_specs_published import row_id, table_of, tex  # noqa: F401
from typer.testing import CliRunner

from igr.cli import build_app
from igr.paper.published import PUBLISHED
from igr.paper.select import Configuration
from igr.paper.sop.spec import ESTIMATORS
from igr.paper.specs import SEEDS, SPECS, TEMPERATURES, UNUSED, Completion, Mixture, SpecError, Vae

COMPLETIONS = [spec for spec in SPECS.values() if isinstance(spec, Completion)]
MIXTURES = [spec for spec in SPECS.values() if isinstance(spec, Mixture)]
COMPLETION, FIXED = SPECS["sop/mnist/igr-i"], SPECS["nonparametric/mnist/dldpmm+sl"]


def test_structured_output_prediction_is_transcribed(tex):  # noqa: F811
    found = {f"sop/mnist/{row_id(name)}": cell for name, (cell,) in table_of(tex, "ap:sop")}
    assert len(found) == 4
    assert found == {id: cell for id, cell in PUBLISHED.items() if id.startswith("sop/")}


def test_mixtures_are_transcribed(tex):  # noqa: F811
    found = {}
    for name, cells in table_of(tex, "np"):
        for dataset, cell in zip(("mnist", "omniglot"), cells, strict=True):
            found[f"nonparametric/{dataset}/{row_id(name)}"] = cell
    assert len(found) == 4
    assert found == {id: cell for id, cell in PUBLISHED.items() if id.startswith("nonparametric/")}


@pytest.mark.parametrize("spec", COMPLETIONS, ids=lambda spec: spec.id)
def test_completions_say_what_is_trained(spec):
    _, dataset, row = spec.id.split("/")
    method, *options = row.split("+")
    assert (spec.dataset, spec.method) == (dataset, method) == ("mnist", spec.method)
    samples = [int(option[1:]) for option in options if re.fullmatch(r"s\d+", option)]
    names = {"st": "st_relaxed", "st-probs": "straight_through"}
    estimators = [names.get(each, each) for each in options if not re.fullmatch(r"s\d+|unit|linear", each)]
    assert spec.scale == ("one" if "unit" in options else "learned")
    assert spec.network == ("linear" if "linear" in options else "tanh")
    assert ("linear network" in spec.label, "one linear layer" in spec.description) == ("linear" in options,) * 2
    assert ("network" in spec.settings()) == ("linear" in options)
    assert [spec.estimator] == (estimators or ["reparameterized"])
    if samples or not estimators:
        assert [spec.num_samples] == (samples or [1])
    assert (spec.epochs, spec.batch_size, spec.learning_rate, spec.seeds) == (100, 100, 1e-3, SEEDS)
    assert all(ESTIMATORS.get(each, "Rao") in spec.label or "Rao" in spec.label for each in estimators)


def test_completions_are_those_of_the_table_and_their_further_rows():
    assert {spec.num_samples for spec in COMPLETIONS if spec.estimator == "reparameterized"} == {1, 5, 50}
    assert {spec.estimator for spec in COMPLETIONS} == {"reparameterized", *ESTIMATORS}
    assert all(spec.temperatures == TEMPERATURES for spec in COMPLETIONS if spec.estimator == "reparameterized")
    assert all(len(spec.members()) == len(spec.temperatures) * 5 for spec in COMPLETIONS)
    assert SPECS["sop/mnist/gs+rloo"].temperatures == UNUSED


def test_the_learning_rate_falls_with_the_inverse_of_time():
    rates = [COMPLETION.learning_rate_at(step) for step in (0, 1_000, 8_999, 9_000, 60_000)]
    assert rates == pytest.approx([1e-3, 5e-4, 1e-3 / 9.999, 1e-4, 1e-4], rel=1e-12)
    assert FIXED.learning_rate_at(123_456) == 3e-4


@pytest.mark.parametrize("spec", MIXTURES, ids=lambda spec: spec.id)
def test_mixtures_say_what_is_trained(spec):
    _, dataset, row = spec.id.split("/")
    method, *options = row.split("+")
    assert (spec.dataset, spec.method, spec.landing) == (dataset, method, options == ["sl"])
    sizes = (7, 9, 11, 13, 15, 17) if method == "dldpmm" else (None,)
    assert [member.configuration for member in spec.members()] == [
        Configuration(None, None, K) for K in sizes for _ in range(5)
    ]
    assert (spec.epochs, spec.batch_size, spec.learning_rate, spec.seeds) == (300, 100, 3e-4, SEEDS)
    assert (spec.concentration, spec.precision, spec.max_components, spec.latent_dim) == (1.0, 0.9999, 20, 50)


@pytest.mark.parametrize("spec", [*COMPLETIONS, *MIXTURES], ids=lambda spec: spec.id)
def test_all_can_be_cut_short_and_repeated(spec):
    short = spec.shortened()
    assert (short.id, short.smoke, short.epochs, len(short.seeds)) == (spec.id, True, 2, 2)
    assert len(short.members()) <= 4
    again = spec.replicate(1)
    assert len(again.seeds) == 5
    assert not set(again.seeds) & set(spec.seeds)
    assert again.settings() == spec.settings()
    assert 0 < spec.minutes < math.inf
    assert spec.description
    assert spec.label


def test_settings_tell_cells_apart():
    keys = [(spec.id.split("/")[0], repr(spec.settings()), repr(spec.members())) for spec in [*COMPLETIONS, *MIXTURES]]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("spec", "changes", "message"),
    [
        (COMPLETION, {"method": "dldpmm"}, "method is 'dldpmm', expected one of igr-i, igr-planar, igr-sb, gs"),
        (COMPLETION, {"dataset": "omniglot"}, "dataset is 'omniglot', expected one of mnist"),
        (COMPLETION, {"temperatures": ()}, r"temperatures are \(\), expected positive numbers"),
        (COMPLETION, {"num_samples": 0}, "num_samples is 0, expected a positive integer"),
        (COMPLETION, {"estimator": "rloo"}, "estimator rloo compares samples; give num_samples of 2 or more"),
        (COMPLETION, {"estimator": "rao", "method": "igr-sb"}, "estimator rao needs igr-i or gs"),
        (COMPLETION, {"scale": "one", "method": "gs"}, "gs has no scale"),
        (COMPLETION, {"seeds": (1, 1)}, "seeds are"),
        (FIXED, {"num_components": ()}, "dldpmm needs num_components"),
        (FIXED, {"num_components": (1,)}, "expected integers from 2 to max_components = 20"),
        (FIXED, {"num_components": (21,)}, "expected integers from 2 to max_components = 20"),
        (FIXED, {"method": "igr-sb-mm"}, "num_components are for dldpmm alone"),
        (FIXED, {"concentration": 0.0}, "concentration is 0.0, expected above 0"),
        (FIXED, {"precision": 1.0}, "precision is 1.0, expected between 0 and 1"),
        (FIXED, {"max_components": 1, "num_components": (2,)}, "max_components is 1, expected 2 or more"),
        (FIXED, {"dataset": "fmnist"}, "dataset is 'fmnist', expected one of mnist, omniglot"),
        (FIXED, {"learning_rate": math.nan}, "learning_rate is nan, expected a positive number"),
    ],
)
def test_what_cannot_be_trained_is_refused(spec, changes, message):
    with pytest.raises(SpecError, match=f"^{spec.id.replace('+', '.')}: .*{message}"):
        replace(spec, **changes)


@pytest.mark.parametrize("spec", [COMPLETION, FIXED], ids=lambda spec: spec.id)
def test_there_is_no_published_protocol(spec):
    with pytest.raises(SpecError, match="protocol is 'published', expected one of honest"):
        spec.with_protocol("published")


@pytest.mark.parametrize("spec", [COMPLETION, FIXED, SPECS["approximate/uniform/gs"]], ids=lambda spec: spec.id)
def test_another_protocol_is_refused_where_there_is_none(spec):
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).invoke(
        build_app(), ["run", spec.id, "--protocol", "published", "--dry-run"]
    )
    assert result.exit_code == 2
    assert re.search("protocol (is 'published'|published)", " ".join(result.output.split()))
    assert "name specs of VAEs alone" in " ".join(result.output.split())


def test_pairs_are_called_pairs():
    assert SPECS["sop/mnist/gs+disarm"].description.endswith("DisARM of 2 pairs of hard samples")
    assert SPECS["sop/mnist/gs+rloo"].description.endswith("RLOO of 4 hard samples")


def test_vaes_are_none_of_these():
    assert not any(isinstance(spec, Vae) for spec in [*COMPLETIONS, *MIXTURES])
