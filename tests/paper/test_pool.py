"""Several cells at once on one device: the same records as one after another, whoever ends early."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from test_run import checkpoints, environment, lasting, options

from igr.paper import pool, records
from igr.paper.data import DataError
from igr.paper.run import run_cells
from igr.paper.specs import SPECS

IDS = ("table1/mnist/linear/igr-i", "sop/mnist/gs", "table1/mnist/linear/gs")
CELLS = [SPECS[id].shortened() for id in IDS]
pytestmark = pytest.mark.usefixtures("one_thread")


def written(folder: Path, id: str) -> list[records.Record]:
    return records.read(folder / "out" / id / "records.jsonl")


def never() -> bool:
    return False


def test_records_are_those_of_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of the other processes
    assert run_cells(CELLS, options(tmp_path / "one"), never, lambda number, at: None)
    told = []
    some = options(tmp_path / "two", jobs=2)
    assert pool.run_cells(CELLS, some, never, lambda *at: told.append(at))
    for number, id in enumerate(IDS, 1):
        expected, found = (written(tmp_path / name, id) for name in ("one", "two"))
        assert [record.pop("jobs") for record in expected] == [1] * len(expected)
        assert [record.pop("jobs") for record in found] == [2] * len(expected)
        assert lasting(found) == lasting(expected)
        phases = list(dict.fromkeys(at.phase for i, at in told if i == number))
        assert phases == ["training", "train", "validation", "test", "done"]
        assert {at.spec for i, at in told if i == number} == {id}
        assert not checkpoints(tmp_path / "two", id)
    first = [next(i for i, (number, _) in enumerate(told) if number == n) for n in (1, 2, 3)]
    assert max(first[:2]) < first[2]  # in the order given, two at once
    assert first[2] > next(i for i, (_, at) in enumerate(told) if at.phase == "done")
    told.clear()
    assert pool.run_cells(CELLS, some, never, lambda *at: told.append(at))
    assert told == []  # nothing is done again


def test_an_error_of_one_cell_stops_the_others(tmp_path: Path):
    cells = [SPECS[IDS[0]], replace(CELLS[0], id="table1/mnist/linear/long", epochs=100_000)]
    with pytest.raises(DataError, match="igr data fetch mnist"):
        pool.run_cells(cells, options(tmp_path, data_dir=tmp_path, jobs=2), never, lambda *at: None)
    assert not list(tmp_path.rglob("*.jsonl"))


def test_a_process_that_dies_is_an_error_and_the_other_is_saved(tmp_path: Path):
    cells = [replace(CELLS[0], id=f"table1/mnist/linear/long-{i}", epochs=100_000) for i in range(2)]
    seen: set[int] = set()

    def report(number: int, at: object) -> None:
        seen.add(number)
        if seen == {1, 2}:
            for child in multiprocessing.active_children()[:1]:
                child.kill()
            seen.clear()

    with pytest.raises(pool.EngineError, match=r"a process died at table1/mnist/linear/long-\d, with exit code -9"):
        pool.run_cells(cells, options(tmp_path, jobs=2), never, report)
    assert len([file for cell in cells for file in checkpoints(tmp_path, cell.id)]) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill"])
def test_the_same_command_goes_on(tmp_path: Path, number: int):
    """After Ctrl-C, as a terminal sends it to the whole group of processes, or the death of the first alone."""
    command = [sys.executable, "-m", "igr", "run", *IDS, "--smoke", "--jobs", "2"]
    command += ["--out", "out", "--checkpoints", "checkpoints", "--log-json", "log.jsonl"]
    arguments = {"env": environment(), "cwd": tmp_path, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, start_new_session=True, **arguments)
    log = tmp_path / "log.jsonl"
    while not log.exists() or "training" not in log.read_text():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.kill()
    _, stderr = process.communicate(timeout=60)  # until the last of them has closed it
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "the same command goes on from here" in stderr
    assert "Traceback" not in stderr
    assert not all(written(tmp_path, id) for id in IDS)
    again = subprocess.run(command, timeout=120, **arguments)
    assert (again.returncode, again.stderr) == (0, "")
    assert [len(written(tmp_path, id)) for id in IDS] == [len(cell.members()) for cell in CELLS]


def test_ray_decides_by_itself(tmp_path: Path):
    command = [sys.executable, "-m", "igr", "run", IDS[0], "--smoke", "--engine", "ray", "--jobs", "2"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "Ray itself decides how many cells run at once" in done.stderr
