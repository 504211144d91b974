"""``igr list``: what it shows of specs and of records, and what it cannot read."""

import json
import os
import re
import subprocess
import sys

import pytest
import typer
from test_specs import IGR
from typer.testing import CliRunner

from igr._commands.list import add
from igr.paper import records
from igr.paper.specs import SEEDS, SPECS


def invoke(*args):
    app = typer.Typer()
    app.callback()(lambda: None)
    add(app)
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).invoke(app, ["list", *map(str, args)])


def record(spec, seed, **changes):
    metrics = {"train": {"elbo_discrete": -120.0 - seed}, "test": {"log_likelihood": -98.0 - seed}}
    return {
        "spec": spec,
        "protocol": "honest",
        "seed": seed,
        "tau": 0.1,
        "prior_temperature": None,
        "smoke": False,
        "device": "cpu",
        "settings": {"method": "igr-i"},
        "status": "finished",
        "metrics": metrics,
        "selected": ["elbo_discrete", "log_likelihood"],
    } | changes


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results" / "ours"
    folder.mkdir(parents=True)
    return folder


def lines(result):
    assert result.exit_code == 0, result.output
    return {cells[0]: cells[1:] for line in result.stdout.splitlines() for cells in [line.split("\t")]}


def test_records_are_looked_for_where_runs_leave_them(tmp_path, monkeypatch):
    """But those of a clone of the repository come first, as in reports."""
    monkeypatch.chdir(tmp_path)
    assert lines(invoke(IGR.id))[IGR.id][2] == ""
    for count, folder in ((2, tmp_path / "runs" / "records"), (3, tmp_path / "results" / "ours")):
        folder.mkdir(parents=True)
        records.append(folder / "records.jsonl", [record(IGR.id, seed) for seed in range(count)])
        assert lines(invoke(IGR.id))[IGR.id][2] == str(count)


def test_list_without_records(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke()
    found = lines(result)
    assert list(found) == list(SPECS)
    assert all(len(cells) == 6 for cells in found.values())
    spec = SPECS["table1/mnist/linear/gs"]
    assert found[spec.id] == ["GS", "-106.17 ± 1.00", "", "", f"{spec.minutes:.2f}", spec.description]
    assert found["beyond/omniglot/nonlinear/igr-planar+flow-prior"][1] == ""
    assert result.stderr == ""


def test_list_shows_what_exists(results):
    id = "table1/mnist/linear/igr-i"
    (results / id).mkdir(parents=True)
    records.append(results / id / "records.jsonl", [record(id, seed) for seed in (1, 2, 3)])
    others = [
        record(id, 1, smoke=True),
        record(id, 4, selected=[], tau=0.5),
        record(id, 5, status="failed", metrics={}),
    ]
    other = results.parent / "other"
    other.mkdir()
    records.append(other / "records.jsonl", others)
    found = lines(invoke("table1/mnist/linear/*", "train-elbo/mnist/*"))
    assert found[id][2:4] == ["3", "-100.00 ± 1.00"]
    assert found["train-elbo/mnist/igr-i"][2:4] == ["3", "-122.00 ± 1.00"]
    assert found["table1/mnist/linear/gs"][2:4] == ["", ""]
    found = lines(invoke(id, "figure/*", "--records", results, "--records", results.parent))  # no file counts twice
    assert found[id][2:4] == ["5", "-100.00 ± 1.00"]
    assert found["figure/continuous-elbo"][2:4] == ["5", ""]


def test_list_shows_the_tables_of_other_estimators(results):
    """The bound at the τ that it chooses; of four samples the discrete ELBO at the τ that that chooses."""
    table1, relax, four = (f"{kind}/mnist/nonlinear/igr-i" for kind in ("table1", "relax", "s4"))
    for id in (table1, relax + "+relax", four):
        rows = []
        for tau, criterion in ((0.1, "elbo_discrete"), (0.5, "log_likelihood")):
            numbers = {"elbo_discrete": -108.0 - 20 * tau, "log_likelihood": -94.0 + 8 * tau}
            rows += [record(id, seed, tau=tau, metrics={"test": numbers}, selected=[criterion]) for seed in (1, 2)]
        (results / id).mkdir(parents=True)
        records.append(results / id / "records.jsonl", rows)
    found = lines(invoke("relax/*", "s4/*", table1))
    assert found[table1][1:4] == ["-91.98 ± 1.29", "4", "-90.00 ± 0.00"]
    assert found[relax][1:4] == ["-94.18 ± 0.37", "4", "-90.00 ± 0.00"]  # from table1
    assert found[relax + "+relax"][1:4] == ["-82.03 ± 2.18", "4", "-90.00 ± 0.00"]
    assert found[four][1:4] == ["-118.45 ± 3.02", "4", "-110.00 ± 0.00"]
    assert found["s4/mnist/nonlinear/gs+uspg"][:4] == ["GS + USPGBL", "-106.89 ± 1.37", "", ""]


def test_list_prefers_the_honest_run_and_then_the_best(results):
    id = "table1/mnist/linear/igr-i"
    runs = [
        record(id, 1, settings={"method": "igr-i", "epochs": 1}),
        record(id, 2, settings={"method": "igr-i", "epochs": 2}),
        record(id, 3, protocol="published", metrics={"test": {"log_likelihood": -1.0}}),
    ]
    records.append(results / "records.jsonl", runs)
    assert lines(invoke(id))[id][2:4] == ["3", "-99.00"]


def test_list_does_not_pool_runs_with_other_seeds(results):
    """They may have chosen another τ; and where they have not, theirs are not the spec's own."""
    id = "table1/mnist/linear/igr-i"

    def run(seeds, tau, value, **more):
        numbers = {"test": {"log_likelihood": value}, "validation": {"log_likelihood": value}}
        unchosen = {"selected": [], "metrics": {"validation": {"log_likelihood": value - 9}}}
        rows = [record(id, seed, tau=tau, metrics=numbers, **more) for seed in seeds]
        return rows + [record(id, seed, tau=0.7 - tau, **more) | unchosen for seed in seeds]

    own, others = run(SEEDS, 0.1, -98.0), run([seed + 1 for seed in SEEDS], 0.6, -90.0)
    records.append(results / "records.jsonl", own + others)
    assert lines(invoke(id))[id][2:4] == ["20", "-98.00 ± 0.00"]
    records.append(results / "records.jsonl", run([1, 2], 0.1, -80.0, device="cuda"))  # a better one, of other seeds
    assert lines(invoke(id))[id][2:4] == ["24", "-98.00 ± 0.00"]
    (results / "records.jsonl").unlink()
    records.append(results / "records.jsonl", others + run([1, 2], 0.1, -98.0))  # seven seeds that the spec has not
    assert lines(invoke(id))[id][2:4] == ["14", "-90.00 ± 0.00"]


def test_list_leaves_out_what_contradicts_itself(results):
    id, other = "table1/mnist/linear/igr-i", "table1/mnist/linear/gs"
    for name, value in (("a", -98.0), ("b", -97.0)):
        (results / name).mkdir()
        rows = [record(id, 1, metrics={"test": {"log_likelihood": value}}), record(other, 1)]
        records.append(results / name / "records.jsonl", rows)
    result = invoke(id, other, "train-elbo/mnist/igr-i")
    assert lines(result)[id][2:4] == ["2", ""]
    assert lines(result)[other][3] == "-99.00"
    [error] = result.stderr.splitlines()
    assert re.match(r"igr: left out: two records of table1/mnist/linear/igr-i with τ = 0\.1 and seed 1 differ: ", error)


def test_list_shows_approximations(results):
    id = "approximate/uniform/igr-i"
    runs = [
        record(id, seed, protocol=protocol, metrics={"tv": tv})
        for seed, protocol, tv in ((0, "paper", 0.02), (1, "paper", 0.013), (2, "exact", 1e-9))
    ]
    records.append(results / "records.jsonl", [*runs, record(id, 3, protocol="paper", metrics=None)])
    assert lines(invoke(id))[id][2:4] == ["4", "TV 0.013"]


def test_list_reports_what_it_cannot_read(results):
    id = "table1/mnist/linear/igr-i"
    for name, content in (("a", "nonsense\n"), ("b", json.dumps(record(id, 1)) + "\n")):
        (results / name).mkdir()
        (results / name / "records.jsonl").write_text(content)
    (results / "c" / "records.jsonl").mkdir(parents=True)
    result = invoke(id)
    assert lines(result)[id][2] == "1"
    errors = result.stderr.splitlines()
    assert len(errors) == 2
    assert re.fullmatch(r"igr: left out: line 1 of .*records\.jsonl is not a record; mend it, .*", errors[0])
    assert "Is a directory" in errors[1]


def test_list_refuses_bad_input(results):
    result = invoke("table1/minst/*")
    assert result.exit_code == 2
    assert "no spec is called 'table1/minst/*'; the nearest: table1/mnist/*" in result.output
    result = invoke("--records", "nowhere")
    assert result.exit_code == 2
    assert "does not exist" in result.output


PROGRAM = """
import sys, typer
from igr._commands.list import add
app = typer.Typer()
app.callback()(lambda: None)
add(app)
app(standalone_mode=False)
assert not {"torch", "numpy", "matplotlib"} & sys.modules.keys(), "heavy"
"""


def test_list_on_a_terminal_and_without_torch(results):
    """Tables as wide as the terminal, if they fit by wrapping labels; no id is cut short."""
    ours, theirs = pytest.importorskip("pty").openpty()
    env = os.environ | {"COLUMNS": "90", "NO_COLOR": "1", "TERM": "xterm"}
    command = [sys.executable, "-c", PROGRAM, "list"]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=env) as process:
        os.close(theirs)
        output = b""
        while chunk := _read(ours):
            output += chunk
        assert process.stderr.read() == b""
    os.close(ours)
    assert process.returncode == 0
    text = re.sub(r"\x1b\[[\d;]*m", "", output.decode()).replace("\r\n", "\n")
    assert all(id in text for id in SPECS)
    assert all(len(line) <= 90 for line in text.splitlines())
    assert "train-elbo: discretized train ELBO, read from table1" in text
    assert "relax: test log-likelihood with RELAX (ours: bound of the selected τ)" in text
    assert "s4: test ELBO, four samples (ours: discrete ELBO of the selected τ)" in text
    assert re.search(r"table1/mnist/linear/gs +GS +-106\.17 ± 1\.00 +2 min", text)
    assert "Times are estimates" in text
    assert "Not listed: execution times are measured" in text


def test_list_reads_records_without_torch(results):
    records.append(results / "records.jsonl", [record(IGR.id, seed) for seed in (1, 2, 3)])
    command = [sys.executable, "-c", PROGRAM, "list", IGR.id]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split("\t")[3:5] == ["3", "-100.00 ± 1.00"]


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux says that the other side is closed
        return b""
