"""``igr run`` as a process: killed, interrupted, out of time, and told what it cannot do."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from run_cases import COMMAND, checkpoints, command, environment, finished, lasting, run
from typer.testing import CliRunner

from igr._commands import run as run_command
from igr._commands.run import _display
from igr.cli import build_app
from igr.paper import again, memory, records
from igr.paper.run import Progress
from igr.paper.specs import SPECS
from igr.paper.store import Folder

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_command_hands_on_how_many_share_the_device(tmp_path):
    subprocess.run(command(tmp_path, "--sharing", "2"), check=True, env=environment(), capture_output=True)
    assert {record["sharing"] for record in finished(tmp_path)} == {2}


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


def test_time_that_is_up_saves_and_ends_well(tmp_path):
    result = subprocess.run(command(tmp_path, "--max-minutes", "0"), env=environment(), capture_output=True, text=True)
    assert result.returncode == 0
    assert "the same command goes on from here" in result.stderr
    assert finished(tmp_path) == []
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


@pytest.mark.parametrize("stopped", [1, 2], ids=["cell", "fit"])
def test_starting_over_goes_on_where_it_was_stopped(tmp_path, monkeypatch, stopped):
    """What --fresh did before it was stopped is not done once more, and once all is done it starts over again."""
    ids = ("sop/mnist/gs+linear", "nonparametric/mnist/dldpmm", "approximate/uniform/gs")
    files = [tmp_path / "out" / name / "records.jsonl" for name in (*ids[:2], "approximate")]
    folders = ["--out", str(tmp_path / "out"), "--checkpoints", str(tmp_path / "checkpoints")]

    def lines() -> list[int]:
        return [records.count(file) for file in files]

    def invoke(stop=lambda: False):
        monkeypatch.setattr(run_command, "stopping", lambda max_minutes: nullcontext(stop))
        result = CliRunner().invoke(build_app(), ["run", *ids, "--smoke", *folders, "--fresh"])
        assert result.exit_code == 0, result.output
        return result.stderr

    invoke()
    assert lines() == [4, 4, 1]
    said = invoke(lambda: lines()[stopped - 1] > [4, 4, 1][stopped - 1])
    assert "the same command goes on from here" in said
    done = [8, 4, 1] if stopped == 1 else [8, 8, 1]
    assert lines() == done
    said = invoke()
    assert "going on with what --fresh has begun" in said
    assert f"recorded already, so not done again: {', '.join(ids[:stopped])}\n" in said
    assert lines() == [8, 8, 2]
    assert not list((tmp_path / "checkpoints").glob("*.json"))
    assert "recorded already" not in invoke()
    assert lines() == [12, 12, 3]


def test_a_note_of_what_is_done_again_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    note = tmp_path / "fresh.json"
    note.write_text("[")
    monkeypatch.setattr(again, "note", lambda *what: note)
    folders = ["--out", str(tmp_path / "out"), "--checkpoints", str(tmp_path)]
    result = CliRunner().invoke(build_app(), ["run", "approximate/uniform/gs", "--smoke", *folders, "--fresh"])
    assert result.exit_code == 1
    assert f"igr: {note} is no note of what --fresh has begun; remove it to begin again" in result.stderr


def test_the_fault_of_one_option_is_not_that_of_another(tmp_path, monkeypatch):
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


@pytest.mark.parametrize(
    ("more", "status"),
    [
        (("--data-dir", "nowhere"), 1),
        (("--data-dir", "nowhere", "--fresh"), 1),
        (("--smoke", "--checkpoints", "file/parts"), 2),
        (("--smoke", "--log-json", "file/log.jsonl"), 2),
    ],
    ids=["data", "data of what is done again", "checkpoints", "log"],
)
def test_what_fails_at_once_leaves_no_folders(tmp_path, monkeypatch, more, status):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert CliRunner().invoke(build_app(), ["run", COMMAND[1], *more]).exit_code == status
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_dry_run_says_how_long_it_takes_unless_it_is_cut_short():
    ids = ["table1/mnist/linear/igr-i", "sop/mnist/igr-i", "nonparametric/mnist/igr-sb-mm+sl"]
    for more, words in (((), "minutes on one H200"), (("--smoke",), "cut short: seconds to a minute on any machine")):
        result = CliRunner().invoke(build_app(), ["run", *ids, "--dry-run", *more])
        assert result.exit_code == 0
        lines = result.stdout.splitlines()
        assert len(lines) == len(ids)
        assert all(line.split("\t")[-1].endswith(words) for line in lines)
        assert "0.0 minutes" not in result.stdout


def test_the_command_keeps_memory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = []
    monkeypatch.setattr(memory, "keep_memory", lambda: kept.append(True))
    CliRunner().invoke(build_app(), ["run", COMMAND[1], "--data-dir", "nowhere"])
    assert kept == [True]


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
