import errno
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from igr.paper import records
from igr.paper.records import DuplicateError, RecordError, append, count, find, read


def record(seed=0, **changes):
    return {
        "spec": "table1/mnist/linear/igr-i",
        "protocol": "honest",
        "seed": seed,
        "tau": 0.1,
        "prior_temperature": None,
        "smoke": False,
        "device": "cpu",
        "settings": {"epochs": 300, "evaluation": {"m": 1000}, "sizes": [1, 2]},
        "metrics": {"test": {"elbo_discrete": -125.25}},
    } | changes


@pytest.fixture
def path(tmp_path):
    return tmp_path / "records.jsonl"


# ----------------------------------------------------------------------------------------------------- read and append


def test_no_file_is_no_records(path):
    assert read(path) == []
    append(path, [])
    assert not path.exists()


def test_records_come_back_in_order(path):
    given = [record(seed) for seed in (3, 1, 2)]
    append(path, given[:1])
    append(path, iter(given[1:]))
    assert read(path) == given
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # no lock, no temporary file


def test_lines_are_json_with_the_same_keys(path):
    append(path, [record(seed, device="é\u2028\n") for seed in range(3)])
    lines = path.read_text(encoding="ascii").split("\n")
    assert lines.pop() == ""
    assert [json.loads(line) for line in lines] == read(path)
    assert len({tuple(json.loads(line)) for line in lines}) == 1


def test_a_file_only_grows(path):
    append(path, [record(1)])
    before = path.read_bytes()
    append(path, [record(2), record(1, metrics={})], replace=True)
    assert path.read_bytes().startswith(before)
    assert len(path.read_bytes().splitlines()) == 3


def test_a_record_is_written_once(path):
    append(path, [record(1)])
    before = path.read_bytes()
    with pytest.raises(DuplicateError, match=r"records\.jsonl has a record of table1/mnist/linear/igr-i \(.*seed 1"):
        append(path, [record(2), record(1, metrics={})])
    assert path.read_bytes() == before  # not the other one either
    with pytest.raises(DuplicateError, match=r"two records of .* are given; expected one"):
        append(path, [record(3), record(3, metrics={})], replace=True)
    assert path.read_bytes() == before


def test_the_last_of_the_same_work_counts(path):
    append(path, [record(1), record(2)])
    append(path, [record(1, metrics={"new": 1.0})], replace=True)
    assert read(path) == [record(1, metrics={"new": 1.0}), record(2)]


@pytest.mark.parametrize(
    "changes",
    [
        {"spec": "table1/mnist/linear/gs"},
        {"protocol": "published"},
        {"seed": 1},
        {"tau": 0.25},
        {"prior_temperature": 0.5},
        {"smoke": True},
        {"device": "NVIDIA H200"},
        {"settings": {"epochs": 2}},
        {"settings": {"epochs": 300, "evaluation": {"m": 10}, "sizes": [1, 2]}},
    ],
    ids=str,
)
def test_other_work_is_not_the_same(changes, path):
    append(path, [record()])
    append(path, [record(**changes)])
    assert len(read(path)) == 2
    assert find(read(path), record(**changes)) == record(**changes)
    assert find(read(path)[:1], record(**changes)) is None


def test_same_work_whatever_the_order_of_its_settings(path):
    append(path, [record(tau=1.0)])
    settings = dict(reversed(record()["settings"].items()))
    with pytest.raises(DuplicateError):
        append(path, [record(tau=1, settings=settings)])


@pytest.mark.parametrize(
    ("bad", "advice"),
    [
        ({"spec": "a"}, "a record lacks protocol, seed, tau, prior_temperature, smoke, device, settings"),
        (record(2, metrics={"elbo": float("nan")}), r"igr-i \(.*seed 2.*\) cannot be written as JSON"),
        (record(2, metrics={"elbo": {1, 2}}), "cannot be written as JSON"),
    ],
    ids=["keys", "nan", "type"],
)
def test_what_is_no_record_is_not_written(bad, advice, path):
    with pytest.raises(RecordError, match=advice):
        append(path, [record(1), bad])
    assert not path.exists()


# --------------------------------------------------------------------------------------------------------- broken files


@pytest.mark.parametrize("size", [1, 20, -30, -2])
def test_a_torn_line_is_ignored_and_then_removed(size, path):
    append(path, [record(1), record(2)])
    whole = path.read_bytes()
    torn = whole.splitlines()[1][:size]
    path.write_bytes(whole + torn)
    assert read(path) == [record(1), record(2)]
    assert path.read_bytes() == whole + torn  # reading changes nothing
    append(path, [record(3)])
    assert path.read_bytes() == whole + json.dumps(record(3)).encode() + b"\n"


def test_a_torn_line_alone(path):
    path.write_text('{"spec": "table1/mn')
    assert read(path) == []
    append(path, [record(1)])
    assert read(path) == [record(1)]


@pytest.mark.parametrize("end", [b"\n", b"", b'\n{"spec": "ta'], ids=["whole", "without newline", "torn"])
def test_what_is_added_after_a_count_stands_behind_it(path, end):
    assert count(path) == 0
    append(path, [record(1), record(2)])
    path.write_bytes(path.read_bytes().rstrip(b"\n") + end)
    lines = count(path)
    assert lines == 2
    assert read(path, lines) == []
    append(path, [record(2), record(3)], replace=True)
    assert read(path, lines) == [record(2), record(3)]
    assert count(path) == 4


def test_a_whole_record_without_newline_counts(path):
    append(path, [record(1)])
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert read(path) == [record(1)]
    with pytest.raises(DuplicateError):
        append(path, [record(1)])
    append(path, [record(2)])
    assert read(path) == [record(1), record(2)]


@pytest.mark.parametrize(
    "content",
    [b"no record", b"{\n", b"[1]\n", b"\n", b'{"spec": "a"}', b'{"spec": "a"}\n', b'{"spec": \xff}\n'],
    ids=["words", "torn within", "list", "empty line", "keys", "keys of a line", "encoding"],
)
@pytest.mark.parametrize("number", [1, 2])
def test_what_is_no_record_is_refused(content, number, path):
    before = json.dumps(record(1)).encode() + b"\n" if number == 2 else b""
    path.write_bytes(before + content)
    advice = rf"line {number} of .*records\.jsonl is not a record; mend it, or remove the file"
    with pytest.raises(RecordError, match=advice):
        read(path)
    with pytest.raises(RecordError, match=advice):
        append(path, [record(9)], replace=True)
    assert path.read_bytes() == before + content


def test_torn_lines_within_a_file_are_refused(path):
    path.write_text('{"spec": "a\n' + json.dumps(record(1)) + "\n")
    with pytest.raises(RecordError, match="line 1 of"):
        read(path)


class FullDisk:
    """A file that takes ten bytes and then no more."""

    def __init__(self, file):
        self.file, self.left = file, 10

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        if not self.left:
            raise OSError(errno.ENOSPC, "No space left on device")
        size = self.file.write(data[: self.left])
        self.left -= size
        return size


def test_a_full_disk_leaves_what_was_there(path):
    append(path, [record(1)])
    before = path.read_bytes()
    with path.open("ab+", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        records._extend(FullDisk(file), len(before), b"x" * 100)
    assert path.read_bytes() == before


def test_without_locks(path, monkeypatch):
    monkeypatch.setattr(records, "fcntl", None)
    append(path, [record(1)])
    append(path, [record(2)])
    assert read(path) == [record(1), record(2)]


# ---------------------------------------------------------------------------------------------------- several processes

# Without torch, so that a process starts quickly.
APPEND = """
import sys
from pathlib import Path
from igr.paper.records import append, read

path, first, count, example = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), eval(sys.argv[4])
for seed in range(first, first + count, 2):
    append(path, [example | {"seed": seed, "padding": "x" * 5000}, example | {"seed": seed + 1}])
    assert len(read(path)) >= 2
"""


def start(*args):
    command = [sys.executable, "-c", APPEND, *map(str, args), repr(record())]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_several_processes_at_once(path):
    pytest.importorskip("fcntl")
    count = 40
    processes = [start(path, first, count) for first in range(0, 4 * count, count)]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
    found = [each["seed"] for each in read(path)]
    assert sorted(found) == list(range(4 * count))
    assert len(path.read_bytes().splitlines()) == 4 * count
    assert all(found[i + 1] == found[i] + 1 for i in range(0, len(found), 2))  # what was written at once stays together


def test_one_of_several_writers_of_the_same_work_wins(path):
    pytest.importorskip("fcntl")
    processes = [start(path, 0, 2) for _ in range(3)]
    errors = [process.communicate(timeout=60)[1].decode() for process in processes]
    assert sorted(process.returncode for process in processes) == [0, 1, 1]
    assert sum("DuplicateError" in error for error in errors) == 2
    assert len(path.read_bytes().splitlines()) == 2


def test_kill_loses_at_most_what_was_being_written(path):
    process = start(path, 0, 10**6)
    while process.poll() is None and (not path.exists() or path.stat().st_size < 100_000):
        time.sleep(0.001)
    process.kill()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, errors.decode()
    seeds = [each["seed"] for each in read(path)]
    assert len(seeds) > 10
    assert seeds == list(range(len(seeds)))
    append(path, [record(-1)])  # the lock went with the process
    assert len(read(path)) == len(seeds) + 1


def test_records_need_no_torch():
    program = "import sys, igr.paper.records, igr.paper.select; assert not {'torch', 'numpy'} & sys.modules.keys()"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_committed_records_are_readable():
    for file in (Path(__file__).parents[2] / "results" / "ours").rglob("records.jsonl"):
        lines = file.read_text(encoding="utf-8").splitlines()
        assert len(read(file)) == len(lines)  # each work once
        assert not any(json.loads(line)["smoke"] for line in lines)
