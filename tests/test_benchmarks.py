"""The benchmarks run, in their shortened form, and print what their readers look for."""

import re
import subprocess
import sys
from pathlib import Path

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
