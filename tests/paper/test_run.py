import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from igr.paper import checkpoint, records
from igr.paper.assess import Budget, assess
from igr.paper.data import DataError, load_sample
from igr.paper.ensemble import Ensemble
from igr.paper.run import Options, run_cell
from igr.paper.specs import SPECS, Vae

CPU = torch.device("cpu")
CELLS = [spec for spec in SPECS.values() if isinstance(spec, Vae)]
VARYING = ("seconds", "seconds_evaluation", "date", "tree", "dirty")  # what may differ between two runs of the same


def options(folder: Path, **changes) -> Options:
    return replace(Options(folder / "out", folder / "checkpoints", CPU), **changes)


def run(cell, folder, stop=lambda: False, **changes):
    told = []
    return run_cell(cell, options(folder, **changes), stop, told.append), told


def lasting(found):
    return [{name: value for name, value in record.items() if name not in VARYING} for record in found]


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.id)
def test_every_cell_runs(cell, tmp_path):
    found, _ = run(cell.shortened(), tmp_path, smoke_images=100)
    assert len(found) == len(cell.shortened().members())
    for record in found:
        assert (record["spec"], record["protocol"], record["smoke"]) == (cell.id, "honest", True)
        assert record["status"] == "finished"
        assert record["synthetic"] == (cell.dataset == "omniglot")
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
    assert not (tmp_path / "checkpoints" / cell.id / "honest-smoke").exists()


@pytest.mark.parametrize("id", ["mnist/linear/igr-sb", "omniglot/nonlinear/gs", "fmnist/linear/gs+sl"])
def test_published_protocol_chooses_on_the_test_split(id, tmp_path):
    cell = SPECS[f"table1/{id}"].with_protocol("published").shortened()
    found, _ = run(cell, tmp_path)
    assert len(found) == 4  # one prior temperature for GS
    assert all(r["metrics"].keys() == {"train", "test"} and r["images"]["validation"] == 0 for r in found)
    assert {r["prior_temperature"] for r in found} == ({0.5} if "gs" in id else {None})
    assert any("log_likelihood_published_20" in r["metrics"]["test"] for r in found)


def test_stops_and_goes_on_bit_for_bit(tmp_path):
    cell = replace(SPECS["table1/mnist/linear/igr-i"].shortened(), epochs=3)
    whole, told = run(cell, tmp_path / "whole")
    assert [at.phase for at in told] == ["training"] * 4 + ["train", "validation", "test", "done"]
    assert [at.epoch for at in told[:4]] == [0, 1, 2, 3]
    calls, answers, states = 0, [], []

    def every_fifth() -> bool:
        nonlocal calls
        calls += 1
        return calls % 5 == 0

    while not answers or answers[-1] is None:
        answers.append(run(cell, tmp_path / "parts", every_fifth)[0])
        if (state := checkpoint.load(tmp_path / "parts" / "checkpoints" / cell.id / "honest-smoke")) is not None:
            states.append((state[1]["epoch"], state[1]["step"]))
    assert len(answers) > 2
    assert any(step > 0 for _, step in states)  # in the middle of an epoch
    assert lasting(answers[-1]) == lasting(whole)


def test_records_that_are_there_are_not_made_again(tmp_path):
    cell = SPECS["table1/mnist/linear/gs"].shortened()
    first, _ = run(cell, tmp_path)
    again, told = run(cell, tmp_path)
    assert again == first
    assert told == []
    fresh, told = run(cell, tmp_path, fresh=True)
    assert told
    assert lasting(fresh) == lasting(first)
    assert len(records.read(tmp_path / "out" / cell.id / "records.jsonl")) == len(first)


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    cell = SPECS["table1/mnist/linear/igr-i"].shortened()
    assert run(cell, tmp_path, lambda: True)[0] is None
    with pytest.raises(checkpoint.CheckpointError, match=r"other settings.*--fresh"):
        run(replace(cell, learning_rate=0.1), tmp_path)
    with pytest.raises(checkpoint.CheckpointError, match="other settings"):
        run(cell, tmp_path, dtype=torch.float64)
    assert run(replace(cell, learning_rate=0.1), tmp_path, fresh=True)[0]


def test_a_broken_checkpoint_is_refused(tmp_path):
    cell = SPECS["table1/mnist/linear/igr-i"].shortened()
    run(cell, tmp_path, lambda: True)
    folder = tmp_path / "checkpoints" / cell.id / "honest-smoke"
    (tensors,) = folder.glob("*.safetensors")
    tensors.write_bytes(tensors.read_bytes()[:1000])
    with pytest.raises(checkpoint.CheckpointError, match=r"cannot be read.*--fresh"):
        run(cell, tmp_path)


def test_members_that_fail_are_recorded_as_failed(tmp_path, monkeypatch):
    cell = SPECS["table1/mnist/linear/igr-i"].shortened()
    original = Ensemble.__init__

    def broken(self, *args, **kwargs):
        original(self, *args, **kwargs)
        with torch.no_grad():
            self.vae.weights[0][2, 0, 0] = torch.nan

    monkeypatch.setattr(Ensemble, "__init__", broken)
    found, told = run(cell, tmp_path)
    assert [r["status"] for r in found] == ["finished", "finished", "failed", "finished"]
    assert found[2]["failed_epoch"] == 1
    assert found[2]["metrics"] == {}
    assert found[2]["curves"]["train_loss"] == [None, None]
    assert {r["tau"] for r in found if r["selected"]} == {0.25}  # that of the configuration without a failure
    assert told[-1].alive == 3


def test_where_all_fail_there_are_records_but_no_choice(tmp_path, monkeypatch):
    cell = SPECS["table1/mnist/linear/igr-i"].shortened()
    original = Ensemble.__init__

    def broken(self, *args, **kwargs):
        original(self, *args, **kwargs)
        with torch.no_grad():
            self.vae.weights[0].fill_(torch.nan)

    monkeypatch.setattr(Ensemble, "__init__", broken)
    found, _ = run(cell, tmp_path)
    assert all(r["status"] == "failed" and not r["selected"] and r["metrics"] == {} for r in found)


def test_without_data_it_says_how_to_get_them(tmp_path):
    with pytest.raises(DataError, match="igr data fetch mnist"):
        run(SPECS["table1/mnist/linear/igr-i"], tmp_path, data_dir=tmp_path)


def test_metrics_are_means_over_images_of_each_member():
    """Another way round: every member and every image alone; only the noise differs."""
    cell = replace(SPECS["table1/mnist/linear/gs"].shortened(), prior_temperatures=(0.5,), learning_rate=0.01)
    images = load_sample("mnist").train[:500]
    trained = Ensemble(cell, images, CPU)
    for _ in range(4):
        trained.run_epoch()
    with torch.no_grad():  # so that members, and images, are told apart by many nats
        trained.vae.biases[1] += 0.6 * torch.arange(4.0).view(4, 1, 1)
    budget = replace(Budget(), m=3_000)
    together = assess(trained, images[:3], "validation", range(4), budget)
    assert [set(each) for each in together] == [{"elbo_discrete", "elbo_continuous", "log_likelihood"}] * 4
    alone = [[assess(trained, images[n : n + 1], "validation", [i], budget)[0] for n in range(3)] for i in range(4)]
    for name, tolerance in (("elbo_discrete", 2.0), ("log_likelihood", 2.0)):
        expected = [np.mean([image[name] for image in member]) for member in alone]
        np.testing.assert_allclose([each[name] for each in together], expected, atol=tolerance)  # nats
    assert np.diff(sorted(each["elbo_discrete"] for each in together)).min() > 8
    assert np.diff(sorted(image["elbo_discrete"] for image in alone[0])).min() > 4


COMMAND = ["run", "table1/mnist/linear/igr-planar", "--smoke", "--checkpoint-every", "0"]


def command(folder: Path, *more: str) -> list[str]:
    folders = ["--out", str(folder / "out"), "--checkpoints", str(folder / "checkpoints")]
    return [sys.executable, "-m", "igr", *COMMAND, *folders, *more]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def finished(folder: Path):
    return records.read(folder / "out" / COMMAND[1] / "records.jsonl")


@pytest.mark.parametrize("moment", ["training", "train", "validation", "test"])
def test_killed_at_any_moment_it_goes_on_bit_for_bit(tmp_path, moment):
    """kill -9 as soon as the log tells of that phase; the same command then ends where an undisturbed one does."""
    log, state = tmp_path / "log.jsonl", tmp_path / "checkpoints" / COMMAND[1] / "honest-smoke" / "state.json"
    process = subprocess.Popen(command(tmp_path, "--log-json", str(log)), env=environment(), stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        lines = log.read_text().splitlines(True) if log.exists() else []
        told = [json.loads(line) for line in lines if line.endswith("\n")]
        if any(at["phase"] == moment for at in told) and state.exists():
            break
        assert process.poll() is None, process.stderr.read().decode()
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()
    assert finished(tmp_path) == []
    assert state.exists()
    subprocess.run(command(tmp_path), check=True, env=environment(), capture_output=True)
    cell = SPECS[COMMAND[1]].shortened()
    whole, _ = run(cell, tmp_path / "whole")
    assert lasting(finished(tmp_path)) == lasting(whole)


def test_ctrl_c_saves_and_says_so(tmp_path):
    log = tmp_path / "log.jsonl"
    more = ("--log-json", str(log), "--checkpoint-every", "60")
    process = subprocess.Popen(command(tmp_path, *more), env=environment(), stderr=subprocess.PIPE, text=True)
    while not log.exists() or '"epoch": 1' not in log.read_text():
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on from here" in stderr
    assert "Traceback" not in stderr
    assert (tmp_path / "checkpoints" / COMMAND[1] / "honest-smoke" / "state.json").exists()


def test_derived_specs_run_what_they_are_read_from_and_approximations_are_fitted(tmp_path):
    out = tmp_path / "out"
    folders = ["--out", str(out), "--checkpoints", str(tmp_path / "checkpoints")]
    specs = ["train-elbo/mnist/igr-i", "approximate/uniform/gs"]
    result = subprocess.run(
        [sys.executable, "-m", "igr", "run", *specs, "--smoke", *folders],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    found = {record["spec"] for file in out.rglob("*.jsonl") for record in records.read(file)}
    assert found == {"table1/mnist/linear/igr-i", "approximate/uniform/gs"}


def test_time_that_is_up_saves_and_ends_well(tmp_path):
    result = subprocess.run(command(tmp_path, "--max-minutes", "0"), env=environment(), capture_output=True, text=True)
    assert result.returncode == 0
    assert "the same command goes on from here" in result.stderr
    assert finished(tmp_path) == []
    assert (tmp_path / "checkpoints" / COMMAND[1] / "honest-smoke" / "state.json").exists()


ROOT = Path(__file__).parents[2]
OURS = sorted((ROOT / "results" / "ours").glob("table1/**/records.jsonl"))


@pytest.mark.parametrize("file", OURS, ids=lambda file: file.parent.relative_to(ROOT / "results" / "ours").as_posix())
def test_committed_records_are_complete_and_of_committed_code(file):
    found = records.read(file)
    cell = SPECS[file.parent.relative_to(ROOT / "results" / "ours").as_posix()]
    expected = {(m.tau, m.prior_temperature, m.seed) for m in cell.members()}
    assert {(r["tau"], r["prior_temperature"], r["seed"]) for r in found} == expected
    for r in found:
        assert (r["smoke"], r["synthetic"], r["settings"]["data"]) == (False, False, "files")
        assert {name: r["settings"][name] for name in cell.settings()} == cell.settings()
        assert (r["settings"]["evaluation"]["m"], r["settings"]["evaluation"]["images"]) == (1000, None)
    for commit, tree in {(r["commit"], r["tree"]) for r in found}:
        asked = ["git", "-C", str(ROOT), "rev-parse", f"{commit}:src/igr"]
        answer = subprocess.run(asked, capture_output=True, text=True)
        if answer.returncode:
            pytest.skip("needs the history of the repository")
        assert answer.stdout.strip() == tree


def test_numbers_of_the_docs_are_those_of_the_records(tmp_path):
    from igr.paper.report import build

    made = build([ROOT / "results" / "ours" / "table1"], tmp_path)
    lines = made.markdown.read_text(encoding="utf-8").splitlines()
    text = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    quoted = [line for line in text.splitlines() if line.startswith(("| IGR", "| GS"))]
    assert len(quoted) == 2 * len(OURS)
    assert all(line in lines for line in quoted)
