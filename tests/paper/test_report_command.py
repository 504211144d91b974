"""``igr report``: the table in the terminal, the files that are written, and what is said where they cannot be."""

import json
import math
import os
import subprocess
import sys
import textwrap

import pytest
from report_cases import (
    GS,
    IGR_I,
    PUBLISHED,
    SEEDS,
    TEST_BOUND,
    TEST_ELBO,
    cell,
    gumbel_cell,
    invoke,
    mean_sd,
    printed,
    record,
    write,
)

from igr.paper.report import ReportError, terminal_table


def test_terminal_table():
    lines = printed(terminal_table(cell() + gumbel_cell())).splitlines()
    first = next(line for line in lines if line.split()[:2] == ["IGR-I", "ELBO"])
    numbers = (mean_sd(TEST_ELBO[0.1]), mean_sd(TEST_BOUND[0.1]), mean_sd(PUBLISHED[0.1]), "−94.65 ± 0.14")
    assert " ".join(first.split()).endswith(" ".join(["0.1 — 3", *numbers]))
    assert any(line.split()[:4] == ["GS", "ELBO", "1", "0.75"] for line in lines)
    assert "not a bound" in lines[-1]


def test_a_number_over_fewer_seeds_says_so():
    """As where a second run, with other seeds, has chosen another τ, and so has not looked at the test split there."""
    again = [record(tau=tau, seed=seed + 10, elbo=-120 - tau) for tau in (0.1, 0.5) for seed in SEEDS]
    for row in again:
        row["selected"] = ["elbo_discrete"] if row["tau"] == 0.5 else []
    table = printed(terminal_table(cell() + again), width=140).replace("\u00a0", " ")
    line = next(line for line in table.splitlines() if line.split()[1:2] == ["ELBO"])
    assert line.split()[:5] == ["IGR-I", "ELBO", "0.1", "—", "6"]
    assert f"{mean_sd(TEST_ELBO[0.1])} (n = 3)" in line


def test_terminal_table_does_not_mix():
    with pytest.raises(ReportError, match="not mixed"):
        terminal_table([record(), record(GS, smoke=True)])


def test_command_prints_the_table_and_the_path(tmp_path):
    folder, out = write(tmp_path / "records", cell()), tmp_path / "a" / "b"
    result = invoke("--records", folder, "--out", out)
    assert result.exit_code == 0, result.output
    assert mean_sd(TEST_ELBO[0.1]) in result.stdout
    assert result.stdout.splitlines()[-1] == f"The report is in {out / 'report.html'}"
    assert {path.name for path in out.iterdir()} == {"report.html", "report.md", "figures"}


@pytest.mark.parametrize("folder", ["results/ours", "runs/records"])
def test_command_finds_records_by_itself(tmp_path, monkeypatch, folder):
    """Next to those of smoke runs and of the demo, with which they are not mixed."""
    for other in ("smoke", "demo"):
        write(tmp_path / "runs" / other, [row | {"smoke": True} for row in cell()])
    write(tmp_path / "runs" / "records", [record(GS, prior=0.5)])
    write(tmp_path / folder, cell())
    monkeypatch.chdir(tmp_path)
    result = invoke()
    assert result.exit_code == 0, result.output
    assert "IGR-I" in result.stdout
    assert "GS" not in result.stdout
    assert (tmp_path / "runs" / "report" / "report.html").is_file()


def test_command_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke()
    assert result.exit_code == 1
    assert "there is no folder runs/records: make records with igr run" in result.stderr


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda folder: None, "there is no folder"),
        (lambda folder: folder.mkdir(), "no records in"),
        (lambda folder: write(folder, ["no record"]), "line 1 of"),
        (lambda folder: write(folder, [record(), record(GS, smoke=True)]), "--records"),
    ],
    ids=["missing", "empty", "broken", "mixed"],
)
def test_command_says_what_is_wrong(tmp_path, prepare, words):
    prepare(tmp_path / "records")
    result = invoke("--records", tmp_path / "records", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr.startswith("igr: ")
    assert words in result.stderr
    assert not (tmp_path / "out").exists()


def edited(change):
    rows = json.loads(json.dumps(cell()))
    change(rows[0]["metrics"])
    return rows


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("split", ["validation", "test"])
def test_command_names_the_record_with_a_number_that_is_none(tmp_path, split, value):
    """Which no record has that igr wrote."""
    rows = edited(lambda metrics: metrics[split].update(log_likelihood=value))
    folder = write(tmp_path / "records", rows)
    result = invoke("--records", folder, "--out", tmp_path / "out")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"igr: a record of {IGR_I} in {folder}")
    assert f"has log_likelihood {value} on the {split} split" in line
    assert "--records" in line
    assert not (tmp_path / "out").exists()


def test_command_takes_a_number_that_is_null_for_one_that_is_not_there(tmp_path):
    """As in a record that was not evaluated."""
    for name, change in (
        ("null", lambda metrics: metrics["test"].update(log_likelihood=None)),
        ("without", lambda metrics: metrics["test"].pop("log_likelihood")),
    ):
        result = invoke("--records", write(tmp_path / name, edited(change)), "--out", tmp_path / f"{name} report")
        assert result.exit_code == 0, result.output
    tables = [(tmp_path / f"{name} report" / "report.md").read_text() for name in ("null", "without")]
    assert tables[0].replace("/null", "/without") == tables[1]


def test_command_says_that_it_cannot_write(tmp_path):
    (tmp_path / "file").write_text("")
    result = invoke("--records", write(tmp_path / "records", cell()), "--out", tmp_path / "file" / "out")
    assert result.exit_code == 2
    assert "--out" in result.stderr


def test_command_runs_where_there_is_no_torch(tmp_path):
    program = """
        import sys

        class Without:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "torch":
                    raise ModuleNotFoundError("No module named 'torch'", name="torch")

        sys.meta_path.insert(0, Without())
        import typer
        from igr._commands import report

        app = typer.Typer(pretty_exceptions_enable=False)
        app.callback()(lambda: None)
        report.add(app)
        app()
    """
    folder, out = write(tmp_path / "records", cell() + gumbel_cell()), tmp_path / "out"
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), "report", "--records", folder, "--out", out],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "120"},
    )
    assert result.returncode == 0, result.stderr
    assert (out / "report.html").is_file()
