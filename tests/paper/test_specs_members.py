"""The members of a spec, its variants and settings, and specs that cannot be."""

import json
import re
from dataclasses import FrozenInstanceError, replace

import pytest
from test_specs import GS, IGR, VAES

from igr.paper.published import PUBLISHED
from igr.paper.specs import SEEDS, SPECS, TEMPERATURES, Member, SpecError, Times

RLOO = SPECS["beyond/mnist/linear/gs+rloo"]


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


def test_settings_are_json_and_with_members_tell_specs_apart():
    settings = [(json.dumps(spec.settings(), sort_keys=True), spec.members()) for spec in VAES]
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
