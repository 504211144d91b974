"""Cells of VAEs, from data to records."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from run_cases import checkpoints, options, run

from igr.paper import products, records
from igr.paper.data import DataError
from igr.paper.ensemble import Ensemble
from igr.paper.measure import assess
from igr.paper.run import _Work, run_cell
from igr.paper.specs import SPECS, Vae

CELLS = [spec for spec in SPECS.values() if isinstance(spec, Vae)]

pytestmark = pytest.mark.usefixtures("one_thread")


def marked(cell):
    """Cells of Omniglot, which are binary images too, differ from those of MNIST in nothing that a short run sees."""
    return pytest.param(cell, id=cell.id, marks=[pytest.mark.slow] if cell.dataset == "omniglot" else [])


@pytest.mark.parametrize("cell", [marked(cell) for cell in CELLS])
def test_every_cell_runs(cell, tmp_path):
    found, _ = run(cell.shortened(), tmp_path, smoke_images=100)
    assert len(found) == len(cell.shortened().members())
    for record in found:
        assert (record["spec"], record["protocol"], record["smoke"]) == (cell.id, "honest", True)
        assert record["status"] == "finished"
        assert record["synthetic"] == (cell.dataset == "omniglot")
        learned = record.get("learned_temperature")
        assert (learned is None) == (cell.estimator != "relax")
        assert learned is None or 0 < learned["smallest"] <= learned["mean"] <= learned["largest"]
        assert np.isfinite([v for split in record["metrics"].values() for v in split.values()]).all()
        assert record["metrics"].keys() >= {"train", "validation"}
        assert ("test" in record["metrics"]) == bool(record["selected"])
    chosen = [r for r in found if r["selected"]]
    assert {name for r in chosen for name in r["selected"]} == {"elbo_discrete", "log_likelihood"}
    wanted = {"elbo_discrete", "log_likelihood", "log_likelihood_published_10", "log_likelihood_published_20"}
    wanted |= {"log_likelihood_ais", "log_likelihood_subset"} if cell.architecture == "linear" else set()
    assert all(r["metrics"]["test"].keys() >= wanted for r in chosen)
    folder = tmp_path / "out" / cell.id
    assert records.read(folder / "records.jsonl") == found
    assert len(list(folder.glob("*.png"))) == 4
    assert not checkpoints(tmp_path, cell.id)


@pytest.mark.parametrize("id", ["mnist/linear/igr-sb", "omniglot/nonlinear/gs", "fmnist/linear/gs+sl"])
def test_published_protocol_chooses_on_the_test_split(id, tmp_path):
    cell = SPECS[f"table1/{id}"].with_protocol("published").shortened()
    found, _ = run(cell, tmp_path)
    assert len(found) == 4  # one prior temperature for GS
    assert all(r["metrics"].keys() == {"train", "test"} and r["images"]["validation"] == 0 for r in found)
    assert {r["prior_temperature"] for r in found} == ({0.5} if "gs" in id else {None})
    assert any("log_likelihood_published_20" in r["metrics"]["test"] for r in found)


@pytest.mark.parametrize(
    ("id", "protocol", "splits"),
    [
        ("beyond/mnist/linear/igr-i+script", "published", ["train", "test"]),
        ("beyond/mnist/linear/igr-i+script", "honest", ["train", "validation", "test"]),
        ("table1/mnist/linear/igr-i", "published", ["train", "test", "test"]),
    ],
)
def test_a_sole_configuration_is_measured_once_on_each_split(id, protocol, splits, tmp_path, monkeypatch):
    asked = []

    def recording(*arguments, **options):
        asked.append(arguments[2])
        return assess(*arguments, **options)

    monkeypatch.setattr("igr.paper.run.assess", recording)
    found, _ = run(SPECS[id].with_protocol(protocol).shortened(), tmp_path, smoke_images=100)
    assert asked == splits
    wanted = {"elbo_discrete", "log_likelihood", "log_likelihood_published_20", "log_likelihood_ais"}
    chosen = [record for record in found if record["selected"]]
    assert len(chosen) in (2, 4)
    assert all(record["metrics"]["test"].keys() >= wanted for record in chosen)


def broken_at(monkeypatch, epoch, member, **values):
    """Sets the first weights, or biases, of a member to a value once so many epochs are done."""
    original = Ensemble.run_epoch

    def run_epoch(self, *args):
        losses = original(self, *args) if self.epoch < epoch else None
        with torch.no_grad():
            for name, value in values.items():
                getattr(self.vae, name)[0][member] = value
        return original(self, *args) if losses is None else losses

    monkeypatch.setattr(Ensemble, "run_epoch", run_epoch)


def test_members_that_fail_are_recorded_as_failed(tmp_path, monkeypatch):
    broken_at(monkeypatch, 0, 2, weights=torch.nan)
    found, told = run(SPECS["table1/mnist/linear/igr-i"].shortened(), tmp_path)
    assert [r["status"] for r in found] == ["finished", "finished", "failed", "finished"]
    assert found[2]["failed_epoch"] == 1
    assert found[2]["metrics"] == {}
    assert {tuple(curve) for name, curve in found[2]["curves"].items() if name != "epoch"} == {(None, None)}
    assert {r["tau"] for r in found if r["selected"]} == {0.25}  # that of the configuration without a failure
    assert told[-1].alive == 3


@pytest.mark.parametrize("method", ["igr-i", "igr-sb", "igr-planar", "gs"])
@pytest.mark.parametrize("value", [math.nan, 200.0], ids=["nan", "overflow"])
def test_members_that_break_after_training_stop_nobody(tmp_path, monkeypatch, method, value):
    """Parameters that are not finite, or that make scales so, found out by the metrics alone."""
    cell = SPECS[f"table1/mnist/linear/{method}"].shortened()
    cell = replace(cell, prior_temperatures=cell.prior_temperatures[:1])
    original = _Work.measure

    def measure(self):
        with torch.no_grad():
            self.ensemble.vae.biases[0][1] = value
        original(self)

    monkeypatch.setattr(_Work, "measure", measure)
    found, _ = run(cell, tmp_path)
    failed = math.isnan(value) or method in ("igr-i", "igr-planar")  # infinite sticks and large logits do no harm
    assert [r["status"] == "failed" for r in found] == [False, failed, False, False]
    assert all(r["metrics"]["validation"].keys() >= {"elbo_discrete", "log_likelihood"} for r in found if r["metrics"])


def test_where_all_fail_there_are_records_but_no_choice(tmp_path, monkeypatch):
    broken_at(monkeypatch, 0, slice(None), weights=torch.nan)
    found, _ = run(SPECS["table1/mnist/linear/igr-i"].shortened(), tmp_path)
    assert all(r["status"] == "failed" and not r["selected"] and r["metrics"] == {} for r in found)


def test_products_of_cpus_are_fast_from_the_first_step_to_the_last_metric(tmp_path, monkeypatch):
    monkeypatch.setattr(products, "_exact_by_onednn", lambda: True)
    found, phases = set(), set()

    def report(progress):
        if progress.phase != "done":
            phases.add(progress.phase)
            found.add(torch.get_float32_matmul_precision())

    run_cell(SPECS["table1/mnist/linear/gs"].shortened(), options(tmp_path), lambda: False, report)
    assert {"training", "test"} <= phases
    assert found == {"medium"}
    assert torch.get_float32_matmul_precision() == "highest"


def test_without_data_it_says_how_to_get_them(tmp_path):
    with pytest.raises(DataError, match="igr data fetch mnist"):
        run(SPECS["table1/mnist/linear/igr-i"], tmp_path, data_dir=tmp_path)
