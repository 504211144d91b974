"""What importing costs, looked at from a fresh interpreter."""

import subprocess
import sys

import pytest

HEAVY = {"torch", "matplotlib"}


def python(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, timeout=120)


def imported_packages(importtime: str) -> set[str]:
    """The top-level packages in the report of `python -X importtime`, whose lines end in `| module`."""
    lines = [line for line in importtime.splitlines() if line.startswith("import time:")]
    return {line.rsplit("|", 1)[1].strip().split(".")[0] for line in lines}


@pytest.mark.parametrize(
    "args",
    [
        ("-c", "import igr"),
        ("-m", "igr", "--help"),
        *(
            ("-m", "igr", command, "--help")
            for command in ("approximate", "bench", "data", "demo", "explore", "lab", "list", "report", "run")
        ),
        ("-m", "igr", "list"),
        ("-m", "igr", "data", "status"),
        ("-m", "igr", "run", "table1/*", "sop/*", "nonparametric/*", "--dry-run"),
    ],
    ids=" ".join,
)
def test_stays_light(args):
    result = python("-X", "importtime", *args)
    assert result.returncode == 0, result.stderr
    packages = imported_packages(result.stderr)
    assert "igr" in packages
    assert not packages & HEAVY, f"python {' '.join(args)} imports {sorted(packages & HEAVY)}"


def test_submodules_are_attributes():
    result = python("-c", "import igr; igr.functional.softmaxpp")
    assert result.returncode == 0, result.stderr


def test_every_public_name_resolves():
    result = python("-c", "import igr; assert igr.__all__; [getattr(igr, name) for name in igr.__all__]")
    assert result.returncode == 0, result.stderr


def test_unknown_attribute():
    result = python("-c", "import igr; igr.no_such_name")
    assert result.returncode == 1
    assert "AttributeError" in result.stderr.splitlines()[-1]
    assert "no_such_name" in result.stderr.splitlines()[-1]
