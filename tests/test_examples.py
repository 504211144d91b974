"""The examples run, in their shortened form, without a warning, and what they print is what they promise."""

import ast
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def quick(name: str, package: str = "torch") -> str:
    """What a shortened run prints, with the images that come with igr."""
    if find_spec(package) is None:
        pytest.skip(f"needs {package}: `make examples` installs it")
    env = {key: value for key, value in os.environ.items() if key != "IGR_DATA_DIR"} | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, f"examples/{name}.py", "--quick"]
    result = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, encoding="utf-8", timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert not result.stderr
    return result.stdout


def numbers(pattern: str, text: str) -> list[float]:
    """Every number that the group of a pattern finds, at least one."""
    found = [float(number) for number in re.findall(pattern, text, re.MULTILINE)]
    assert found, f"no {pattern!r} in:\n{text}"
    return found


def test_every_example_has_a_test_and_is_in_the_docs():
    names = {file.stem for file in EXAMPLES.glob("*.py")}
    assert names == {name for name in names if f"test_{name}" in globals()}
    for page in (ROOT / "README.md", ROOT / "docs" / "examples.md"):
        listed = set(re.findall(r"examples/(\w+)\.py", page.read_text("utf-8")))
        assert listed == names, page.name


def test_discrete_vae():
    out = quick("discrete_vae")
    before, *after = numbers(r"test bound (\S+) nats", out)
    assert before == pytest.approx(543.4, abs=2)  # 784 log 2, and next to no divergence
    assert after[-1] < 0.45 * before
    assert numbers(r"tau (\S+),", out)[-1] == 0.3


@pytest.mark.parametrize(
    ("name", "package"), [("discrete_vae", "torch"), ("from_gumbel_softmax", "torch"), ("lightning_vae", "lightning")]
)
def test_images_that_are_not_there_are_an_error_of_the_option(name, package, tmp_path):
    if find_spec(package) is None:
        pytest.skip(f"needs {package}: `make examples` installs it")
    command = [sys.executable, f"examples/{name}.py", "--quick", "--data-dir", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", timeout=300)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith(f"{name}.py: error: MNIST was not found: ")


def test_the_discrete_vae_is_sixty_lines():
    tree = ast.parse((EXAMPLES / "discrete_vae.py").read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            del node.body[0]
    lines = {
        line
        for top in tree.body
        for node in ast.walk(top)
        if hasattr(node, "lineno")
        for line in (node.lineno, node.end_lineno)
    }
    assert len(lines) <= 60


def test_lightning_vae():
    out = quick("lightning_vae", "lightning")
    before, whole, resumed = numbers(r"test bound (\S+) nats", out)
    assert max(whole, resumed) < 0.45 * before
    start, end, half, again = numbers(r"tau (\S+)$", out)
    assert (start, end, again) == (1.0, 0.3, 0.3)
    assert half == pytest.approx(0.3**0.5, abs=1e-6)
    assert "same temperature: yes, after 80 and 80 steps" in out


def test_pyro_mixture():
    out = quick("pyro_mixture", "pyro")
    before, after, scored = *numbers(r"-ELBO (\S+) nats", out), *numbers(r"(\S+) by scoring", out)
    assert after < 0.5 * before
    assert scored == pytest.approx(after, abs=2)
    assert numbers(r"(\S+) clusters", out) == [5]
    assert numbers(r"(\S+)% of the points are among", out)[0] > 99
    assert numbers(r"(\S+) nats per point after", out)[0] < 0.6 * numbers(r"-ELBO (\S+) before", out)[0]


def test_zuko_flow():
    out = quick("zuko_flow", "zuko")
    (least,) = numbers(r"distance at least (\S+)", out)
    plain, flow = numbers(r"after (\S+)$", out)
    assert least == pytest.approx(1 / 12, abs=1e-4)
    assert plain >= least - 0.005  # both are counted from samples
    assert flow < least / 4
    assert out.endswith("finite 100%\n")


def test_mixture_of_experts():
    out = quick("mixture_of_experts")
    (variance,) = numbers(r"variance of the values (\S+),", out)
    for router in ("igr-i", "gs", "soft"):
        (own,) = numbers(rf"^{router} +median +(\S+)", out)
        assert own < variance / 2, router
        loads = numbers(r"(\d\.\d\d)\b", re.search(rf"^{router} +0 .*  (\S+ \S+ \S+ \S+)$", out, re.MULTILINE)[1])
        assert sum(loads) == pytest.approx(1, abs=0.03)
        assert sorted(loads)[-2] > 0.1, f"{router} has put all on one expert"


def test_from_gumbel_softmax():
    rows = {
        line[:10].strip(): [float(x) for x in line[10:].split()]
        for line in quick("from_gumbel_softmax").splitlines()[2:]
    }
    assert list(rows) == ["before", "renamed", "one line", "two lines"]
    assert rows["renamed"] == rows["before"]  # the same noise after the same seed
    for losses in rows.values():
        assert max(losses) < 0.45 * 543.4  # of 784 coins
