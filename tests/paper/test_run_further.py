"""Cells of structured output prediction and of mixtures, from data to records."""

from dataclasses import replace

import numpy as np
import pytest
from run_cases import checkpoints, lasting, run

from igr.paper import checkpoint, records
from igr.paper.specs import SPECS, Completion, Mixture

COMPLETIONS = [spec for spec in SPECS.values() if isinstance(spec, Completion)]
MIXTURES = [spec for spec in SPECS.values() if isinstance(spec, Mixture)]
MASSES = {"components_kept", "components_effective", "component_mass", "components_histogram"}

pytestmark = pytest.mark.usefixtures("one_thread")


def finite(record) -> bool:
    return all(np.isfinite(value).all() for split in record["metrics"].values() for value in split.values())


def check(cell, found, folder) -> list:
    """What all cells have in common; the records that were chosen."""
    short = cell.shortened()
    assert [(r["seed"], r["tau"], r.get("num_components")) for r in found] == [
        (m.seed, m.tau, m.num_components) for m in short.members()
    ]
    for record in found:
        assert (record["spec"], record["protocol"], record["smoke"]) == (cell.id, "honest", True)
        assert record["status"] == "finished"
        assert record["settings"].items() >= short.settings().items()
        assert finite(record)
        assert ("test" in record["metrics"]) == bool(record["selected"])
        assert record["curves"]["epoch"] == [1, 2]
    assert records.read(folder / "out" / cell.id / "records.jsonl") == found
    assert not checkpoints(folder, cell.id)
    return [record for record in found if record["selected"] == ["log_likelihood"]]


@pytest.mark.parametrize("cell", COMPLETIONS, ids=lambda cell: cell.id)
def test_every_completion_runs(cell, tmp_path):
    found, _ = run(cell.shortened(), tmp_path, smoke_images=100)
    chosen = check(cell, found, tmp_path)
    assert len(chosen) == 2
    wanted = {"log_likelihood"} | ({"log_likelihood_relaxed"} if cell.estimator == "reparameterized" else set())
    assert all(record["metrics"]["test"].keys() == wanted for record in chosen)
    assert all(record["curves"].keys() == {"epoch", "train_loss", "log_likelihood_10"} for record in found)
    pictures = (tmp_path / "out" / cell.id).glob("*.png")
    assert {file.name for file in pictures} == {"completions-log_likelihood.png"}


@pytest.mark.parametrize("cell", MIXTURES, ids=lambda cell: cell.id)
def test_every_mixture_runs(cell, tmp_path):
    found, _ = run(cell.shortened(), tmp_path, smoke_images=100)
    chosen = check(cell, found, tmp_path)
    assert len(chosen) == 2
    for record in chosen:
        test = record["metrics"]["test"]
        assert test.keys() == {"elbo", "log_likelihood", "objective_published"} | MASSES
        assert test["elbo"] < test["log_likelihood"]
        for name in ("component_mass", "components_histogram"):
            assert len(test[name]) == 20
            assert sum(test[name]) == pytest.approx(1, abs=1e-5)
    assert all(record["metrics"]["train"].keys() == {"elbo"} | MASSES for record in found)
    assert len({record["prior_means"] for record in found}) == 1
    pictures = (tmp_path / "out" / cell.id).glob("*.png")
    assert {file.name for file in pictures} == {"components-log_likelihood.png", "reconstructions-log_likelihood.png"}


@pytest.mark.parametrize("id", ["sop/mnist/igr-planar+s5", "sop/mnist/gs+rebar", "nonparametric/mnist/dldpmm+sl"])
def test_stops_and_goes_on_bit_for_bit(id, tmp_path):
    """Also in the middle of an epoch, with the learning rate of that step."""
    cell = replace(SPECS[id].shortened(), seeds=SPECS[id].seeds[:1], epochs=3)
    whole, _ = run(cell, tmp_path / "whole")
    calls, answers, steps = 0, [], set()

    def every_fifth() -> bool:
        nonlocal calls
        calls += 1
        return calls % 5 == 0

    while not answers or answers[-1] is None:
        answers.append(run(cell, tmp_path / "parts", every_fifth)[0])
        steps |= {checkpoint.load(file.parent)[1]["step"] for file in checkpoints(tmp_path / "parts", id)}
    assert len(answers) > 2
    assert max(steps) > 0
    assert lasting(answers[-1]) == lasting(whole)


def test_members_of_a_mixture_are_told_apart_by_their_components(tmp_path):
    cell = SPECS["nonparametric/mnist/dldpmm"].shortened()
    found, _ = run(cell, tmp_path, smoke_images=100)
    path = tmp_path / "out" / cell.id / "records.jsonl"
    assert [record["num_components"] for record in records.read(path)] == [7, 7, 9, 9]
    assert run(cell, tmp_path, smoke_images=100)[0] == found  # none is made again
    with pytest.raises(records.DuplicateError, match="num_components 9"):
        records.append(path, [found[3]])
    records.append(path, [found[3] | {"num_components": 11}])
    assert len(records.read(path)) == 5
