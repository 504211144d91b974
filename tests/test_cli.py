import os
import subprocess
import sys
import textwrap

import pytest
import torch
from typer.testing import CliRunner

import igr
from igr.cli import build_app

PNG = b"\x89PNG\r\n\x1a\n"


def invoke(*args: str):
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).invoke(build_app(), args)


def python(source: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, after a preamble that prepares the trouble."""
    program = textwrap.dedent(source) + "\nfrom igr.cli import main\nmain()\n"
    return subprocess.run(
        [sys.executable, "-c", program, *args], capture_output=True, text=True, timeout=120, env={**os.environ, **env}
    )


def test_help_lists_commands():
    result = invoke("--help")
    assert result.exit_code == 0
    assert "demo" in result.output
    assert "--version" in result.output


def test_demo_help_lists_options():
    result = invoke("demo", "--help")
    assert result.exit_code == 0
    for option in ("--out", "--seed", "--device", "runs/demo"):
        assert option in result.output


def test_version():
    result = invoke("--version")
    assert (result.exit_code, result.output.strip()) == (0, f"igr {igr.__version__}")


def test_module_is_the_command():
    result = subprocess.run([sys.executable, "-m", "igr", "--version"], capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout.strip()) == (0, f"igr {igr.__version__}")


def test_demo_writes_a_picture_and_says_where(tmp_path):
    threads = torch.get_num_threads()
    out = tmp_path / "a" / "b"
    result = invoke("demo", "--out", str(out), "--seed", "1")
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == f"The picture is in {out / 'simplex.png'}"
    assert result.stderr == ""  # no progress bar where there is no terminal
    assert [file.name for file in out.iterdir()] == ["simplex.png"]
    picture = (out / "simplex.png").read_bytes()
    assert picture.startswith(PNG)
    assert 100_000 < len(picture) < 600_000
    width, height = (int.from_bytes(picture[i : i + 4], "big") for i in (16, 20))
    assert 900 < width < 1600
    assert 700 < height < 1600
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("args", "advice"),
    [
        (["frobnicate"], "No such command"),
        (["demo", "--frobnicate"], "No such option"),
        (["demo", "--seed", "-1"], "--seed"),
        (["demo", "--seed", "one"], "--seed"),
        (["demo", "--seed", str(2**63)], "--seed"),
        (["demo", "--device", "abacus"], "'abacus' does not work here"),
        (["demo", "--device", "meta"], "'meta' does not work here"),
        (["demo", "--out", "file"], "is a file"),
        (["demo", "--out", "file/folder"], "cannot write"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_refused(args, advice, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("in the way")
    result = invoke(*args)
    assert result.exit_code == 2
    assert advice in result.output
    assert "Traceback" not in result.output
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


# Half of a picture is written, then Ctrl-C arrives.
INTERRUPTED = """
    import os, signal
    from matplotlib.figure import Figure
    from igr.paper import demo

    def savefig(self, path, **options):
        with open(path, "wb") as file:
            file.write(b"half")
            os.kill(os.getpid(), signal.SIGINT)

    Figure.savefig = savefig
    signal.signal(signal.SIGINT, signal.default_int_handler)
"""


@pytest.mark.parametrize("before", [None, b"an earlier picture"], ids=["new", "again"])
def test_interruption_leaves_no_partial_file(before, tmp_path):
    picture = tmp_path / "simplex.png"
    if before is not None:
        picture.write_bytes(before)
    result = python(INTERRUPTED, "demo", "--out", str(tmp_path))
    assert result.returncode == 130
    assert result.stderr == "igr: interrupted\n"
    assert result.stdout == ""
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == ({picture: before} if before else {})


@pytest.mark.parametrize(
    ("missing", "args", "what"),
    [
        ("typer", [], "the igr command"),
        ("rich", [], "the igr command"),
        ("matplotlib", ["demo"], "igr demo"),
    ],
    ids=["typer", "rich", "matplotlib"],
)
def test_missing_package_is_named(missing, args, what, tmp_path):
    result = python(f"import os, sys; os.chdir({str(tmp_path)!r}); sys.modules[{missing!r}] = None", *args)
    assert result.returncode == 1
    assert result.stderr == f"igr: {what} needs {missing}, which is not installed: pip install 'igr[paper]'\n"
    assert not any(tmp_path.iterdir())


def test_own_faults_are_not_taken_for_missing_packages(tmp_path):
    result = python("import sys; sys.modules['igr.transforms'] = None", "demo", "--out", str(tmp_path))
    assert result.returncode == 1
    assert "not installed" not in result.stderr
    assert "igr.transforms" in result.stderr
