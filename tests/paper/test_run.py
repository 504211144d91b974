import errno
import json
import math
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
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from igr._commands.run import _display
from igr.cli import build_app
from igr.paper import checkpoint, records
from igr.paper.data import DataError
from igr.paper.ensemble import Ensemble
from igr.paper.report import collect
from igr.paper.run import Options, Progress, _Work, run_cell
from igr.paper.select import Configuration
from igr.paper.specs import SPECS, Vae
from igr.paper.store import Folder

CPU = torch.device("cpu")
CELLS = [spec for spec in SPECS.values() if isinstance(spec, Vae)]
VARYING = (
    "seconds",
    "seconds_evaluation",
    "date",
    "tree",
    "trees",
    "dirty",
)  # what may differ between two runs of the same


def options(folder: Path, **changes) -> Options:
    return replace(Options(folder / "out", folder / "checkpoints", CPU), **changes)


def checkpoints(folder: Path, id: str) -> list[Path]:
    return list((folder / "checkpoints" / id).glob("*/state.json"))


def run(cell, folder, stop=lambda: False, **changes):
    told = []
    return run_cell(cell, options(folder, **changes), stop, told.append), told


def lasting(found):
    return [{name: value for name, value in record.items() if name not in VARYING} for record in found]


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


def test_stops_and_goes_on_bit_for_bit(tmp_path):
    cell = replace(SPECS["table1/mnist/linear/igr-i"].shortened(), epochs=3)
    whole, told = run(cell, tmp_path / "whole")
    assert list(dict.fromkeys(at.phase for at in told)) == ["training", "train", "validation", "test", "done"]
    assert [at.epoch for at in told[:4]] == [0, 1, 2, 3]
    calls, answers, states = 0, [], []

    def every_fifth() -> bool:
        nonlocal calls
        calls += 1
        return calls % 5 == 0

    while not answers or answers[-1] is None:
        answers.append(run(cell, tmp_path / "parts", every_fifth)[0])
        for file in checkpoints(tmp_path / "parts", cell.id):
            state = checkpoint.load(file.parent)[1]
            states.append((state["epoch"], state["step"]))
    assert len(answers) > 2
    assert any(step > 0 for _, step in states)  # in the middle of an epoch
    assert lasting(answers[-1]) == lasting(whole)


def test_records_of_which_some_are_lost_are_made_again_as_a_whole(tmp_path):
    cell = SPECS["table1/mnist/linear/igr-i"].shortened()
    first, _ = run(cell, tmp_path)
    path = tmp_path / "out" / cell.id / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-200])  # the last line is torn
    assert len(records.read(path)) == len(first) - 1
    again, _ = run(cell, tmp_path)
    assert lasting(again) == lasting(first)
    assert records.read(path) == again
    with pytest.raises(records.DuplicateError, match="another run wrote it"):
        Folder(tmp_path / "out", replace=False).add(cell.id, again, {})


def test_the_command_hands_on_how_many_share_the_device(tmp_path):
    subprocess.run(command(tmp_path, "--sharing", "2"), check=True, env=environment(), capture_output=True)
    assert {record["sharing"] for record in finished(tmp_path)} == {2}


def test_records_say_that_a_device_was_shared_at_some_time(tmp_path):
    cell = SPECS["table1/mnist/linear/igr-i"].shortened()
    assert run(cell, tmp_path, lambda: True, sharing=3)[0] is None
    found, _ = run(cell, tmp_path)
    assert {record["sharing"] for record in found} == {3}
    alone, _ = run(cell, tmp_path / "alone")
    assert {record["sharing"] for record in alone} == {1}


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


def test_other_settings_have_another_checkpoint(tmp_path):
    cell = SPECS["table1/mnist/linear/igr-i"].shortened()
    others = [(cell, {}), (cell.replicate(1), {}), (cell, {"dtype": torch.float64})]
    for number, (each, changes) in enumerate(others, 1):
        assert run(each, tmp_path, lambda: True, **changes)[0] is None
        assert len(checkpoints(tmp_path, cell.id)) == number
    for number, (each, changes) in enumerate(others, 1):
        assert run(each, tmp_path, **changes)[0]
        assert len(checkpoints(tmp_path, cell.id)) == len(others) - number
    assert len(records.read(tmp_path / "out" / cell.id / "records.jsonl")) == 12


def test_a_second_process_is_kept_off(tmp_path):
    cell, seen = SPECS["table1/mnist/linear/igr-i"].shortened(), []

    def meanwhile() -> bool:
        if not seen:
            with pytest.raises(checkpoint.CheckpointError, match="another process is at work"):
                run(cell, tmp_path)
            seen.append(True)
        return False

    assert run(cell, tmp_path, meanwhile)[0]
    assert seen


def test_starting_over_can_be_stopped_too(tmp_path):
    cell = SPECS["table1/mnist/linear/igr-i"].shortened()
    first, _ = run(cell, tmp_path)
    answer, calls = None, 0
    while answer is None:
        answer, _ = run(cell, tmp_path, lambda: True, fresh=True)
        calls += 1
        assert calls < 30
    assert calls > 5
    assert lasting(answer) == lasting(first)


def test_what_is_done_again_is_left_alone_by_those_who_find_records(tmp_path):
    cell, seen = SPECS["table1/mnist/linear/igr-i"].shortened(), []
    first, _ = run(cell, tmp_path)
    assert run(cell, tmp_path, lambda: True, fresh=True)[0] is None
    half_done = checkpoints(tmp_path, cell.id)
    assert run(cell, tmp_path) == (first, [])
    assert checkpoints(tmp_path, cell.id) == half_done != []

    def meanwhile() -> bool:
        seen.append(run(cell, tmp_path)[0])
        return False

    assert lasting(run(cell, tmp_path, meanwhile, fresh=True)[0]) == lasting(first)
    assert seen[0] == first
    assert checkpoints(tmp_path, cell.id) == []


def test_a_checkpoint_that_another_process_has_is_left_to_it(tmp_path):
    cell = SPECS["table1/mnist/linear/igr-i"].shortened()
    assert run(cell, tmp_path, lambda: True)[0] is None
    (file,) = checkpoints(tmp_path, cell.id)
    first, _ = run(cell, tmp_path, checkpoints=tmp_path / "others")
    with checkpoint.claim(file.parent):
        assert run(cell, tmp_path) == (first, [])
        assert file.exists()
    assert run(cell, tmp_path) == (first, [])
    assert not file.exists()


def cut_short(folder):
    (tensors,) = folder.glob("*.safetensors")
    tensors.write_bytes(tensors.read_bytes()[:1000])


def without_notes(folder):
    content = json.loads((folder / "state.json").read_text())
    del content["notes"]
    (folder / "state.json").write_text(json.dumps(content))


def of_other_shapes(folder):
    (file,) = folder.glob("*.safetensors")
    save_file({name: value.flatten()[:2].contiguous() for name, value in load_file(file).items()}, file)


@pytest.mark.parametrize("damage", [cut_short, without_notes, of_other_shapes])
def test_a_broken_checkpoint_is_refused(tmp_path, damage):
    cell = SPECS["table1/mnist/linear/igr-i"].shortened()
    run(cell, tmp_path, lambda: True)
    (file,) = checkpoints(tmp_path, cell.id)
    damage(file.parent)
    with pytest.raises(
        checkpoint.CheckpointError, match=r"cannot be used \(.*Error: .*remove the folder to start over"
    ):
        run(cell, tmp_path)
    assert run(cell, tmp_path, fresh=True)[0]  # which begins again beside it


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


def test_without_data_it_says_how_to_get_them(tmp_path):
    with pytest.raises(DataError, match="igr data fetch mnist"):
        run(SPECS["table1/mnist/linear/igr-i"], tmp_path, data_dir=tmp_path)


COMMAND = ["run", "table1/mnist/linear/igr-planar", "--smoke", "--checkpoint-every", "0"]


def command(folder: Path, *more: str) -> list[str]:
    folders = ["--out", str(folder / "out"), "--checkpoints", str(folder / "checkpoints")]
    return [sys.executable, "-m", "igr", *COMMAND, *folders, *more]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def finished(folder: Path):
    return records.read(folder / "out" / COMMAND[1] / "records.jsonl")


@pytest.mark.parametrize(
    "moment", ["training", "validation", *(pytest.param(each, marks=pytest.mark.slow) for each in ("train", "test"))]
)
def test_killed_at_any_moment_it_goes_on_bit_for_bit(tmp_path, moment):
    """kill -9 as soon as the log tells of that phase; the same command then ends where an undisturbed one does."""
    log = tmp_path / "log.jsonl"
    process = subprocess.Popen(command(tmp_path, "--log-json", str(log)), env=environment(), stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        lines = log.read_text().splitlines(True) if log.exists() else []
        told = [json.loads(line) for line in lines if line.endswith("\n")]
        if any(at["phase"] == moment for at in told) and checkpoints(tmp_path, COMMAND[1]):
            break
        assert process.poll() is None, process.stderr.read().decode()
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()
    assert finished(tmp_path) == []
    assert checkpoints(tmp_path, COMMAND[1])
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
    assert checkpoints(tmp_path, COMMAND[1])


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
    lines = result.stderr.splitlines()  # of the cell alone: a fit has a bar where there is a terminal
    assert all(line.startswith("igr: 1/1 table1/mnist/linear/igr-i, epoch ") for line in lines)
    assert [line.split(": ")[2].split(",")[0] for line in lines] == [
        "training",
        *(f"{split} images 0 %" for split in ("train", "validation", "test")),
        "done",
    ]
    found = {record["spec"] for file in out.rglob("*.jsonl") for record in records.read(file)}
    assert found == {"table1/mnist/linear/igr-i", "approximate/uniform/gs"}


@pytest.mark.parametrize("asked", ["interrupt", "time"])
def test_approximations_stop_when_asked_to(tmp_path, asked):
    arguments = ["approximate/uniform/igr-i", "approximate/poisson/igr-sb", "--out", str(tmp_path)]
    arguments += ["--max-minutes", "0.05"] if asked == "time" else []
    process = subprocess.Popen(
        [sys.executable, "-m", "igr", "run", *arguments], env=environment(), stderr=subprocess.PIPE, text=True
    )
    if asked == "interrupt":
        while not (tmp_path / "approximate" / "records.jsonl").exists():  # of the first fit
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == (130 if asked == "interrupt" else 0)
    assert "the same command goes on from here" in stderr
    found = {record["spec"] for record in records.read(tmp_path / "approximate" / "records.jsonl")}
    assert found <= {"approximate/uniform/igr-i"}


def test_the_fault_of_one_option_is_not_that_of_another(tmp_path, monkeypatch):
    from igr.paper.store import Folder

    def full(path: Path | None):
        def add(self, id, new, pictures):
            raise OSError(errno.ENOSPC, "No space left on device", *([] if path is None else [str(path)]))

        return add

    monkeypatch.chdir(tmp_path)
    arguments = [*COMMAND, "--out", "out", "--checkpoints", "parts", "--log-json", "log.jsonl"]
    for path in (tmp_path / "out" / "x", None):  # the records, or nobody knows
        monkeypatch.setattr(Folder, "add", full(path))
        result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).invoke(build_app(), arguments)
        assert result.exit_code == 2
        assert "Invalid value for --out: cannot write" in result.output
    monkeypatch.setattr(Folder, "add", full(tmp_path / "parts" / "x"))
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).invoke(build_app(), arguments)
    assert "Invalid value for --checkpoints: cannot write" in result.output


def test_progress_of_cells_that_run_at_once_is_a_line_for_each_phase(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with _display(2) as show:
        for epoch in range(50):
            for number in (1, 2):
                show(number, Progress(f"spec-{number}", "training", epoch / 50, epoch, 50, 4, 4, None, 0.0))
            now[0] += 3.0
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == 3 * ["igr: 1/2 spec-1", "igr: 2/2 spec-2"]  # after 0, 63, 126 s


def test_a_curve_that_a_checkpoint_knew_nothing_of_begins_where_it_was_resumed(tmp_path, monkeypatch):
    cell = replace(SPECS["beyond/mnist/linear/gs+rloo"].shortened(), epochs=4)
    enough = iter([False] * 6 + [True])
    with monkeypatch.context() as before:
        before.setattr(Ensemble, "held_out", lambda self, images: {})
        assert run(cell, tmp_path, lambda: next(enough))[0] is None
    found, _ = run(cell, tmp_path)
    assert {len(values) for record in found for values in record["curves"].values()} == {4}
    assert all(record["curves"]["elbo_discrete"][0] is None for record in found)
    assert all(record["curves"]["elbo_discrete"][-1] is not None for record in found)
    assert collect([tmp_path / "out"]).cells


@pytest.mark.parametrize(
    ("option", "value"), [("--out", "out"), ("--checkpoints", "checkpoints"), ("--log-json", "log.jsonl")]
)
def test_what_cannot_be_written_is_the_fault_of_its_option(tmp_path, monkeypatch, option, value):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).invoke(
        build_app(), [*COMMAND, option, f"file/{value}"]
    )
    assert result.exit_code == 2
    assert f"Invalid value for {option}: cannot write file" in result.output


def test_derived_specs_are_there_with_these_seeds_only(tmp_path, monkeypatch, capsys):
    from igr.cli import main

    monkeypatch.chdir(tmp_path)
    source = ROOT / "results" / "ours" / "table1" / "mnist" / "nonlinear" / "igr-i" / "records.jsonl"
    there = tmp_path / "results" / "ours" / "table1" / "mnist" / "nonlinear" / "igr-i" / "records.jsonl"
    there.parent.mkdir(parents=True)
    there.write_bytes(source.read_bytes())
    said = {}
    for more in ((), ("--seed", "1"), ("--fresh",)):
        monkeypatch.setattr(sys, "argv", ["igr", "run", "relax/mnist/nonlinear/igr-i", "--dry-run", *more])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        said[more] = capsys.readouterr().out
    assert "records that are there" in said[()]
    assert "50 members" not in said[()]
    for more in (("--seed", "1"), ("--fresh",)):
        assert "records that are there" not in said[more]
        assert "table1/mnist/nonlinear/igr-i\t" in said[more]


def test_derived_specs_are_there_if_all_members_are(tmp_path, monkeypatch, capsys):
    from igr.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["igr", "run", "relax/mnist/nonlinear/igr-i", "--dry-run"])
    source = ROOT / "results" / "ours" / "table1" / "mnist" / "nonlinear" / "igr-i" / "records.jsonl"
    there = tmp_path / "results" / "ours" / "table1" / "mnist" / "nonlinear" / "igr-i" / "records.jsonl"
    there.parent.mkdir(parents=True)
    lines = source.read_text().splitlines(keepends=True)
    there.write_text("".join(lines[1:]))
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert "records that are there" not in capsys.readouterr().out
    there.write_text("".join([lines[0], "{\n", *lines[1:]]))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("igr: ")


def test_time_that_is_up_saves_and_ends_well(tmp_path):
    result = subprocess.run(command(tmp_path, "--max-minutes", "0"), env=environment(), capture_output=True, text=True)
    assert result.returncode == 0
    assert "the same command goes on from here" in result.stderr
    assert finished(tmp_path) == []
    assert checkpoints(tmp_path, COMMAND[1])


ROOT = Path(__file__).parents[2]
OURS = sorted(
    file
    for kind in ("table1", "relax", "s4", "beyond", "sop", "nonparametric")
    for file in (ROOT / "results" / "ours" / kind).rglob("records.jsonl")
)


@pytest.mark.parametrize("file", OURS, ids=lambda file: file.parent.relative_to(ROOT / "results" / "ours").as_posix())
def test_committed_records_are_complete_and_of_committed_code(file):
    found = records.read(file)
    cell = SPECS[file.parent.relative_to(ROOT / "results" / "ours").as_posix()]
    for protocol in {r["protocol"] for r in found}:
        some = [r for r in found if r["protocol"] == protocol]
        members = cell.with_protocol(protocol).members()
        assert {(Configuration.of(r), r["seed"]) for r in some} == {(m.configuration, m.seed) for m in members}
        assert len(some) == len(members)
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
