"""Timing by hand-made steps on a clock of our own, and every candidate for what it is differentiated by."""

import json

import pytest
import torch
from typer.testing import CliRunner

from igr.cli import build_app
from igr.lab import speed
from igr.lab.speed import REFERENCE, measure, passes

CPU = torch.device("cpu")


def test_medians_quartiles_and_ratios(monkeypatch):
    now = 0.0
    monkeypatch.setattr(speed.time, "perf_counter", lambda: now)

    def step(milliseconds):
        taken = iter(milliseconds)

        def run():
            nonlocal now
            now += next(taken) / 1e3

        return run

    # the first round is the warm-up; in each of the others b takes 2, 3 or 10 times as long as a
    steps = {"a": step([99, 1, 2, 4, 1, 2]), "b": step([1, 2, 6, 40, 3, 20])}
    a, b = measure(steps, CPU, rounds=5, warm_up=1)
    assert (a.name, b.name) == ("a", "b")
    assert (a.ms, a.low, a.high) == pytest.approx((2, 1, 2))
    assert (b.ms, b.low, b.high) == pytest.approx((6, 3, 20))
    assert (a.ratio, b.ratio) == pytest.approx((1, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("K", [3, 600])
def test_every_candidate_runs_and_the_reference_is_first(K, dtype, monkeypatch):
    calls = []
    grad = torch.autograd.grad
    monkeypatch.setattr(
        torch.autograd, "grad", lambda *args, **options: calls.append(grad(*args, **options)) or calls[-1]
    )
    steps = passes(4, K, CPU, dtype)
    assert next(iter(steps)) == REFERENCE
    assert ("IGR-SB rsample" in steps) == (K == 3)
    for name, step in steps.items():
        calls.clear()
        step()
        shapes = [(4, K - 1)] * 2 if name.startswith(("IGR", "functional.gaussian")) else [(4, K)]
        assert [tuple(each.shape) for each in calls[-1]] == shapes, name
        assert all(each.dtype == dtype and each.isfinite().all() and each.any() for each in calls[-1]), name


def invoke(*args):
    return CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1", "TERM": "dumb"}).invoke(build_app(), ["bench", *args])


def test_command(tmp_path):
    out = tmp_path / "new" / "times.json"
    result = invoke("--shape", "7x3", "--shape", "2X600", "--rounds", "2", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "7 rows of 3 categories" in result.output
    found = json.loads(out.read_text(encoding="utf-8"))
    assert [tuple(each["shape"]) for each in found["times"] if each["name"] == REFERENCE] == [(7, 3), (2, 600)]
    assert all(each["low"] <= each["ms"] <= each["high"] for each in found["times"])


@pytest.mark.parametrize("shape", ["7", "7x1", "0x3", "7x3x2", "sevenx3"])
def test_shapes_that_are_none(shape):
    result = invoke("--shape", shape)
    assert result.exit_code == 2
    assert "--shape" in result.output


@pytest.mark.parametrize("shape", ["10000000x10000000", "9999999999x9999999999", "99999999999999999999x10"])
def test_shapes_that_no_memory_holds_are_one_line(shape):
    result = invoke("--shape", shape)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    rows, K = map(int, shape.split("x"))
    assert line.startswith(f"igr: {rows:,} rows of {K:,} categories in float32 do not fit into the memory of cpu")
    assert "--shape" in line
    assert isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 37.25 GiB."), True),
        (MemoryError(), True),
        (RuntimeError("an error of another kind"), False),
    ],
    ids=["CUDA", "Python", "other"],
)
def test_only_what_lacks_memory_is_said_to(error, shown, monkeypatch):
    def passes(*args):
        raise error

    monkeypatch.setattr(speed, "passes", passes)
    result = invoke("--shape", "100x20", "--dtype", "float64")
    assert result.exit_code == 1
    words = "100 rows of 20 categories in float64 do not fit into the memory of cpu"
    assert (words in result.stderr) == shown
    assert (result.exception is error) == (not shown)
