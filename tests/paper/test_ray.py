"""Cells as tasks of a Ray cluster, on this machine: the same records as one after another, whoever dies in between."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from run_cases import checkpoints, environment, lasting, options

from igr.paper import ray_engine
from igr.paper.data import DataError
from igr.paper.run import run_cells
from igr.paper.specs import SPECS, find
from igr.paper.store import Folder

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'igr[ray]', or make ray")
pytest.importorskip("tensorboard", reason="needs TensorBoard: pip install 'igr[tensorboard]', or make ray")

IDS = ("table1/mnist/linear/igr-i", "sop/mnist/gs", "nonparametric/mnist/dldpmm")
CELLS = [SPECS[id].shortened() for id in IDS]
LONG = replace(CELLS[0], epochs=60)
pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(scope="module", autouse=True)
def address() -> Iterator[str]:
    """Of a cluster with two CPUs, which this process has joined."""
    ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The records of cells that are run one after another."""
    folder = tmp_path_factory.mktemp("local")
    assert run_cells([*CELLS], options(folder), lambda: False, lambda number, progress: None)
    return [written(folder, cell) for cell in CELLS]


@pytest.fixture(scope="module")
def expected_long(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    assert run_cells([LONG], options(folder), lambda: False, lambda number, progress: None)
    return written(folder, LONG)


def written(folder: Path, cell) -> list:
    """All lines of the file: a record that is there twice counts twice."""
    path = folder / "out" / cell.id / "records.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def worker(cell) -> int | None:
    """The process that is at work on a cell."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if file.read_bytes().startswith(f"ray::{cell.id}".encode()):
                return int(file.parent.name)
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            continue
    return None


def kill(cell) -> None:
    pid = worker(cell)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def test_records_are_those_of_the_local_engine(tmp_path, expected):
    told = []
    assert ray_engine.run_cells(CELLS, options(tmp_path), lambda: False, lambda *at: told.append(at))
    for number, (cell, wanted) in enumerate(zip(CELLS, expected, strict=True), 1):
        assert lasting(written(tmp_path, cell)) == lasting(wanted)
        phases = list(dict.fromkeys(at.phase for i, at in told if i == number))
        assert phases == ["training", "train", "validation", "test", "done"]
        assert {at.spec for i, at in told if i == number} == {cell.id}
        assert list((tmp_path / "out" / cell.id).glob("*.png"))
        assert not checkpoints(tmp_path, cell.id)
    told.clear()
    assert ray_engine.run_cells(CELLS, options(tmp_path), lambda: False, lambda *at: told.append(at))
    assert told == []  # nothing is done again
    assert [len(written(tmp_path, cell)) for cell in CELLS] == [len(wanted) for wanted in expected]


def test_a_worker_killed_in_training_is_replaced(tmp_path, expected_long, expected):
    """Another goes on from the checkpoint; the other cell is not disturbed."""
    killed, resumed = [], []

    def report(number, at):
        if number == 1 and at.phase == "training" and not killed and at.epoch >= 3:
            kill(LONG)
            killed.append(at.epoch)
        elif number == 1 and killed and at.best is None:  # of the last epoch nothing is known to another worker yet
            resumed.append(at.epoch)

    some = options(tmp_path, checkpoint_minutes=0.0)
    assert ray_engine.run_cells([LONG, CELLS[1]], some, lambda: False, report)
    assert killed
    assert resumed[0] >= killed[0] - 1
    assert lasting(written(tmp_path, LONG)) == lasting(expected_long)
    assert lasting(written(tmp_path, CELLS[1])) == lasting(expected[1])


@pytest.mark.parametrize(("moment", "fresh"), [("before", False), ("after", True)], ids=["before", "after"])
def test_a_worker_killed_while_it_delivers_delivers_once(tmp_path, expected, monkeypatch, moment, fresh):
    """Its records are on their way, or on the disk; whoever takes over delivers again, or has nothing to do."""
    original, calls, boxes, late = Folder.add, [], [], []
    begin = ray_engine._Driver.__init__

    def init(self, *args):
        begin(self, *args)
        boxes.append(self._mailbox)

    def add(self, *content):
        calls.append(content)
        if moment == "after":
            original(self, *content)
        dead = worker(CELLS[0])
        os.kill(dead, signal.SIGKILL)
        while worker(CELLS[0]) in (dead, None):
            time.sleep(0.05)
        if moment == "before":
            while not (again := [mail for mail in ray.get(boxes[0].take.remote()) if mail.kind == "finished"]):
                time.sleep(0.05)
            boxes[0].finish.remote(1, *again[0].content)  # back into the box
            original(self, *content)

    monkeypatch.setattr(Folder, "add", add)
    monkeypatch.setattr(ray_engine._Driver, "__init__", init)
    some = options(tmp_path, fresh=fresh)
    assert ray_engine.run_cells(CELLS[:1], some, lambda: False, lambda _, at: late.append(at) if calls else None)
    assert len(calls) == 1
    assert [at.phase for at in late] == (["done"] if moment == "before" else [])
    assert lasting(written(tmp_path, CELLS[0])) == lasting(expected[0])
    assert not checkpoints(tmp_path, CELLS[0].id)


def test_asked_to_stop_all_workers_save(tmp_path):
    endless, begun = [replace(LONG, epochs=10_000, seeds=(seed,)) for seed in LONG.seeds], set()

    def report(number, at):
        if at.epoch >= 1:
            begun.add(number)

    assert not ray_engine.run_cells(endless, options(tmp_path), lambda: len(begun) == 2, report)
    states = [json.loads(file.read_text()) for file in checkpoints(tmp_path, LONG.id)]
    assert len(states) == 2
    assert all(0 < state["epoch"] < 10_000 for state in states)
    assert not list((tmp_path / "out").rglob("*.jsonl"))


def test_a_second_call_goes_on(tmp_path, expected_long):
    told = []
    some = options(tmp_path)
    assert not ray_engine.run_cells([LONG], some, lambda: any(at.epoch for _, at in told), lambda *at: told.append(at))
    assert checkpoints(tmp_path, LONG.id)
    told.clear()
    assert ray_engine.run_cells([LONG], some, lambda: False, lambda *at: told.append(at))
    assert told[0][1].epoch >= 1
    assert lasting(written(tmp_path, LONG)) == lasting(expected_long)


def test_tasks_that_wait_for_a_gpu_are_cancelled(tmp_path):
    start = time.monotonic()
    some = options(tmp_path, device=torch.device("cuda"))
    assert not ray_engine.run_cells(CELLS, some, lambda: time.monotonic() - start > 1, lambda *at: None)
    assert not list(tmp_path.rglob("*.*"))


def test_what_is_wrong_on_a_worker_is_said_here(tmp_path):
    """And the other cell is not trained to its end."""
    cells = [SPECS[IDS[0]], replace(CELLS[0], id="table1/mnist/linear/long", epochs=2000)]
    with pytest.raises(DataError, match="igr data fetch mnist"):
        ray_engine.run_cells(cells, options(tmp_path, data_dir=tmp_path), lambda: False, lambda *at: None)
    assert not list(tmp_path.rglob("*.jsonl"))


SPEC = "table1/mnist/linear/igr-*+sl"
SMOKE = [spec.shortened() for spec in find(SPEC)]


def command(address: str, *more: str) -> list[str]:
    folders = ["--out", "out", "--checkpoints", "checkpoints", "--log-json", "log.jsonl", "--tensorboard", "events"]
    where = ["--engine", "ray", "--address", address]
    return [sys.executable, "-m", "igr", "run", SPEC, "--smoke", *folders, *where, *more]


def call(folder: Path, address: str, *more: str) -> subprocess.CompletedProcess[str]:
    arguments = {"env": environment(), "cwd": folder, "capture_output": True, "text": True}
    return subprocess.run(command(address, *more), timeout=120, **arguments)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill"])
def test_a_driver_that_ends_early_is_followed_by_another(tmp_path, address, number):
    """Ctrl-C, as a terminal sends it to the whole group of processes, or the death of the driver alone."""
    from test_events import check as check_events

    arguments = {"env": environment(), "cwd": tmp_path, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command(address), start_new_session=True, **arguments)
    log = tmp_path / "log.jsonl"
    while not log.exists() or "training" not in log.read_text():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.kill()
    _, stderr = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "the same command goes on from here" in stderr
    assert "Traceback" not in stderr
    assert not all(written(tmp_path, cell) for cell in SMOKE)
    again = call(tmp_path, address)
    assert again.returncode == 0
    assert all(line.startswith("igr: ") for line in again.stderr.splitlines())  # how far it is
    assert [len(written(tmp_path, cell)) for cell in SMOKE] == [len(cell.members()) for cell in SMOKE]
    check_events(tmp_path, [record for cell in SMOKE for record in written(tmp_path, cell)])


def test_time_that_is_up_ends_well(tmp_path, address):
    result = call(tmp_path, address, "--max-minutes", "0")
    assert result.returncode == 0
    assert "the same command goes on from here" in result.stderr
    assert not list(tmp_path.rglob("records.jsonl"))


def test_no_cluster_is_an_error():
    with (
        pytest.raises(ray_engine.EngineError, match=r"cannot use Ray at 127\.0\.0\.1:1"),
        ray_engine.cluster("127.0.0.1:1"),
    ):
        pass
