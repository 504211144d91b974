"""The benchmarks run, in their shortened form, and print what their readers look for."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from igr.paper.ensemble import Ensemble
from igr.paper.specs import SPECS

ROOT = Path(__file__).parents[1]
METHODS = ("IGR-I", "IGR-SB", "IGR-Planar", "GS", "torch RelaxedOneHot", "F.gumbel_softmax")


def quick(name: str) -> list[str]:
    """The lines that a shortened run prints."""
    command = [sys.executable, f"benchmarks/{name}", "--quick"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert any(line.startswith("QUICK RUN") for line in lines)
    return lines


def test_stability():
    lines = quick("stability.py")
    assert lines[-1] == "This library: zero nonfinite values."
    tables = [f"{dtype}, τ = {tau}" for dtype in ("float32", "bfloat16", "float64") for tau in ("1", "0.01")]
    assert [line for line in lines if line in tables] == tables
    for method in METHODS:
        assert sum(line.startswith(f"  {method} ") for line in lines) == len(tables), method
    # it can tell: torch's distribution fails on its own samples
    start = lines.index("float32, τ = 0.01")
    peer = next(line for line in lines[start:] if line.startswith("  torch RelaxedOneHot"))
    assert re.search(r"\d+\.\d / \d+\.\d", peer)


def test_sampling():
    lines = quick("sampling.py")
    shapes = [line for line in lines if line.startswith("shape (")]
    assert len(shapes) == 3
    references = [line.split() for line in lines if line.startswith("  F.gumbel_softmax ")]
    assert [fields[-1] for fields in references] == ["1.00"] * 3
    for name, target in (("IGR-I rsample ", "1.3"), ("IGR-I rsample_and_log_prob ", "2.0")):
        rows = [line for line in lines if line.startswith(f"  {name}")]
        assert len(rows) == 3, name
        assert all(re.search(rf"<= {target}: (met|not met)$", row) for row in rows)


def test_gpu_sampling():
    lines = quick("gpu_sampling.py")
    if not torch.cuda.is_available():
        assert lines[-1].startswith("There is no CUDA device here")
        return
    assert len([line for line in lines if line.startswith("shape (")]) == 4
    for name in ("gumbel_softmax ", "gaussian_softmax "):
        rows = [line for line in lines if line.startswith(f"  {name}")]
        assert len(rows) == 4, name
        assert all(re.search(r"\d+%  >= 70%: (not )?met", row) for row in rows)


def test_recovery():
    lines = quick("recovery.py")
    ours = [f"recovered_log_probs, {nodes} nodes" for nodes in (192, 128, 64)]
    peers = ["15-point rule", "as in the published code"]

    def rows(name: str) -> list[str]:
        """What follows the name, wherever it is followed by a number."""
        found = (re.fullmatch(rf"  {re.escape(name)} +(\d.*)", line) for line in lines)
        return [match[1] for match in found if match]

    def errors(name: str, dtype: str) -> list[list[float]]:
        """Largest and median error, for each kind of parameters."""
        table = lines[lines.index(f"error of a probability, K = 10, {dtype}") :]
        line = next(line for line in table if re.match(rf"  {re.escape(name)} +\d", line))
        return [[float(x) for x in pair] for pair in re.findall(r"(\S+) / (\S+)", line)]

    for name in ours + peers:  # in each dtype an error, a forward pass, and a forward and backward pass
        assert len(rows(name)) == 6, name
    assert [row.split()[-1] for row in rows("15-point rule") if "/" not in row] == ["1.00"] * 4
    for dtype, tolerance in (("float32", 1e-5), ("float64", 1e-6)):
        assert max(largest for largest, _ in errors(ours[0], dtype)) < tolerance
        benign, *others = errors("15-point rule", dtype)
        assert benign[1] < 1e-5  # it can tell: the rule is right, for a small range of parameters
        assert min(largest for largest, _ in others) > 1e-2
        assert min(largest for largest, _ in errors("as in the published code", dtype)) > 1e-2
    sticks = [line for line in lines if line.startswith("recovered_log_probs_stick_breaking, shape ")]
    assert len(sticks) == 4
    assert all(float(row.split()[0]) < 1e-3 for row in rows("residual"))


def test_training():
    lines = quick("training.py")
    rows = [line.split() for line in lines if line.startswith("linear")]
    assert [fields[1] for fields in rows] == ["igr-i", "gs"]
    for fields in rows:
        one, ensemble, floor = (float(field) for field in fields[3:6])
        assert one > 0
        assert ensemble > 0
        assert 0 < floor < one  # a step is more than its matrix products


def test_estimator_training():
    lines = [line for line in quick("estimator_training.py") if line.startswith("beyond/")]
    assert [line.split()[0].rpartition("+")[2] for line in lines] == ["reinmax", "rao", "rloo", "relax"]
    for line in lines:
        assert re.search(r"\d+ members +[\d.]+ ms +[\d.]+ steps/s  failed 0  ", line)
        first, second = re.findall(r"([\d.]+) to [\d.]+", line)
        assert float(second) < float(first)  # one step of learning


def test_step_profile(monkeypatch):
    if not torch.cuda.is_available():
        assert quick("step_profile.py")[-1] == "There is no CUDA device here: nothing to profile."
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import step_profile

    images = np.zeros((100, 784), dtype=np.uint8)
    cell = replace(SPECS["table1/mnist/linear/igr-i"], temperatures=(0.5,), seeds=(1, 2))
    moved = step_profile.bytes_moved(Ensemble(cell, images, torch.device("cpu")))
    numbers = {"w": (784 * 360, 200 * 784), "x": (100 * 784, 100 * 200), "y": (100 * 360, 100 * 784)}
    forward = sum(map(sum, numbers.values()))
    assert moved == {
        "products forward": 2 * 4 * forward,
        "input gradients": 2 * 4 * sum(sizes[1] for sizes in numbers.values()),
        "Adam": 2 * 4 * (forward + 5 * sum(numbers["w"])),
    }


def test_layer_tiles():
    lines = quick("layer_tiles.py")
    if not torch.cuda.is_available():
        assert lines[-1] == "There is no CUDA device here: nothing to measure."
        return
    assert sum(line.endswith("in use") for line in lines) == 3


def test_the_page_on_speed_has_the_numbers_of_results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import performance_page

    page = performance_page.PAGE.read_text(encoding="utf-8")
    assert performance_page.written(page) == page
    with pytest.raises(ValueError, match="one place for the table"):
        performance_page.written("nothing here")


def test_mixture_training():
    lines = [line for line in quick("mixture_training.py") if "ms/model" in line]
    assert lines
    assert all(re.search(r"\b(not )?met$", line.strip()) for line in lines)
