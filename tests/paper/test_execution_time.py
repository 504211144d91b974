"""The table of execution times, from records made by hand, and by the benchmark."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from report_cases import Page, cell, made, record, write
from test_specs_list import invoke as list_specs

from igr.paper.report import ReportError, collect
from igr.paper.report.page import pages
from igr.paper.specs import TIMES

ROOT = Path(__file__).parents[2]


def timed(device="cpu", models=1, date="2026-11-15T23:00:00+00:00", mixture=1.0, **ratios):
    """Records of one run: seconds of GS are 2, of DLDPMM 20, and of others so many times that."""
    rows = []
    settings = {"models": models, "batch_size": 100, "train_images": 50_000, "threads": 2 if device == "cpu" else None}
    for method, ratio in {"gs": 1.0, **ratios}.items():
        name = method.replace("_", "-")
        for architecture in ("linear", "nonlinear"):
            own = {"method": name, "architecture": architecture}
            rows.append(clocked(f"{architecture}/{name}", 2 * ratio, settings | own, device, date))
    for name, ratio in {"dldpmm": 1.0, "igr-sb-mm": mixture}.items():
        rows.append(clocked(name, 20 * ratio, settings | {"method": name, "num_components": 20}, device, date))
    return rows


def clocked(name, seconds, settings, device, date):
    metrics = {"seconds_epoch": seconds, "seconds_epoch_min": 0.9 * seconds, "seconds_epoch_max": 1.5 * seconds}
    row = record(TIMES.format(name), None, 5328, protocol="benchmark")
    return row | {"settings": settings, "metrics": metrics, "device": device, "date": date}


def test_the_table_has_ratios_within_a_run(tmp_path):
    old = timed(igr_i=9.0, date="2026-11-14T23:00:00+00:00", models=50)
    page = Page(made(tmp_path, [*timed(igr_i=1.25, igr_planar=1.5), *old, *timed(device="NVIDIA H200")]).html)
    rows = page.rows("Execution time: cpu, 2 threads")
    first = rows[0]
    assert first == {
        "model": "linear VAE",
        "method": "IGR-I",
        "trained": "alone",
        "models": "1",
        "seconds an epoch": "2.5",
        "from – to": "2.25 – 3.75",
        "times GS or DLDPMM": "1.25",
        "the paper": "almost identical to GS",
    }
    told = [(row["model"], row["method"], row["trained"], row["times GS or DLDPMM"]) for row in rows]
    assert told == [
        ("linear VAE", "IGR-I", "alone", "1.25"),
        ("linear VAE", "IGR-Planar", "alone", "1.50"),
        ("linear VAE", "GS", "alone", "1.00"),
        ("non-linear VAE", "IGR-I", "alone", "1.25"),
        ("non-linear VAE", "IGR-Planar", "alone", "1.50"),
        ("non-linear VAE", "GS", "alone", "1.00"),
        ("mixture, K = 20", "IGR-SB-MM", "alone", "1.00"),
        ("mixture, K = 20", "DLDPMM", "alone", "1.00"),
        ("linear VAE", "IGR-I", "together", "9.00"),
        ("linear VAE", "GS", "together", "1.00"),
        ("non-linear VAE", "IGR-I", "together", "9.00"),
        ("non-linear VAE", "GS", "together", "1.00"),
        ("mixture, K = 20", "IGR-SB-MM", "together", "1.00"),
        ("mixture, K = 20", "DLDPMM", "together", "1.00"),
    ]
    assert len(page.rows("Execution time: NVIDIA H200")) == 4


def test_a_ratio_needs_both_in_one_run(tmp_path):
    later = [row | {"date": "2026-11-16T00:00:00+00:00"} for row in timed(igr_i=1.0) if row["spec"].endswith("igr-i")]
    rows = Page(made(tmp_path, later + timed()).html).rows("Execution time: cpu, 2 threads")
    assert {row["times GS or DLDPMM"] for row in rows if row["method"] == "IGR-I"} == {"—"}


def test_times_disturb_no_other_table(tmp_path):
    rows = cell()
    both = collect([write(tmp_path / "both", rows + timed())])
    alone = collect([write(tmp_path / "one", rows)])
    assert [each.records for each in both.cells] == [each.records for each in alone.cells]
    assert both.others == ()
    assert len(both.times) == 4
    assert "execution-time" not in pages(both).reproduction.partition("## Not run yet")[2].partition("\n## ")[0]
    listed = list_specs("--records", str(tmp_path / "both"))
    assert (listed.exit_code, listed.stderr) == (0, "")
    assert listed.stdout == list_specs("--records", str(tmp_path / "one")).stdout


@pytest.mark.parametrize("change", [{"metrics": {}}, {"settings": {"method": "igr-i"}}, {"settings": {"method": "x"}}])
def test_a_record_of_another_form_is_refused(tmp_path, change):
    with pytest.raises(ReportError, match="is not one of an execution time"):
        collect([write(tmp_path, [timed()[0] | change])])


@pytest.mark.parametrize(("how", "number"), [("alone", 1), ("together", 50)])
def test_the_benchmark_has_as_many_models_of_every_method(monkeypatch, how, number):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    benchmark = importlib.import_module("execution_time")
    for architecture in ("linear", "nonlinear"):
        counts = [len(benchmark.members(architecture, method, how).members()) for method in benchmark.METHODS]
        assert counts == 4 * [number]


def test_the_benchmark_writes_such_records(tmp_path):
    file = tmp_path / "times" / "records.jsonl"
    command = [sys.executable, "benchmarks/execution_time.py", "--quick", "--json", str(file), "--commit", "abc"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    names = ["gs", "igr-i", "igr-sb", "igr-planar"]
    assert [row["spec"] for row in rows] == [TIMES.format(f"linear/{name}") for name in names] + [
        TIMES.format("dldpmm"),
        TIMES.format("igr-sb-mm"),
    ]
    for row in rows:
        assert (row["smoke"], row["tau"], row["device"], row["commit"]) == (True, None, "cpu", "abc")
        low, middle, high = (row["metrics"][f"seconds_epoch{end}"] for end in ("_min", "", "_max"))
        assert 0 < low <= middle <= high
    found = collect([file.parent])
    assert len(found.times) == len(rows)
    with pytest.raises(ReportError, match="no reproduction"):
        pages(found)
    lines = [line.split() for line in result.stdout.splitlines() if line.startswith(("linear", "mixture"))]
    assert [line[1] for line in lines] == [*names, "dldpmm", "igr-sb-mm"]
    assert [line[-1] for line in lines if line[1] in ("gs", "dldpmm")] == ["1.00", "1.00"]
