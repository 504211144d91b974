"""``igr lab`` from the command line."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from typer.testing import CliRunner

from igr.cli import build_app
from igr.lab.registry import ESTIMATORS

SHORT = ("lab", "--smoke", "--problem", "rebar", "--temperature", "0.5")
FEW = (*SHORT, "--estimator", "st_relaxed", "--estimator", "rloo", "--parameterization", "gs")


def invoke(*args):
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).invoke(build_app(), args)


def python(source, *args):
    """The command in a process of its own, after a preamble that prepares the trouble."""
    program = textwrap.dedent(source) + "\nfrom igr.cli import main\nmain()\n"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def test_help_needs_no_torch_and_lists_everything():
    guard = "import sys; sys.modules['torch'] = sys.modules['matplotlib'] = None"
    result = python(guard, "lab", "--help")
    assert result.returncode == 0, result.stderr
    options = ("problem", "parameterization", "estimator", "temperature", "draws", "repetitions", "samples", "seed")
    more = ("device", "dtype", "out", "parquet", "max-minutes", "smoke", "fresh")
    for words in (
        *(f"--{name}" for name in (*options, *more)),
        *ESTIMATORS,
        "module:function",
        "milliseconds",
        "runs/lab, or",
        "runs/smoke/lab",
    ):
        assert words in result.stdout
    assert "lab" in python(guard, "--help").stdout


def test_tables_a_figure_and_records(tmp_path):
    threads, out = torch.get_num_threads(), tmp_path / "a" / "b"
    first = invoke(*SHORT, "--out", str(out))
    assert first.exit_code == 0, first.output
    assert first.stderr == ""  # no progress bar where there is no terminal
    lines = first.stdout.splitlines()
    assert [line.split(",")[1] for line in lines if line.startswith("rebar, ")] == [" GS", " IGR-I"]
    assert sum(line.startswith("DisARM") for line in lines) == 2
    assert lines[-2:] == [f"The picture is in {out / 'lab.png'}", f"The records are in {out / 'records.jsonl'}"]
    assert {file.name for file in out.iterdir()} == {"lab.png", "records.jsonl"}
    picture = (out / "lab.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert 30_000 < len(picture) < 600_000
    kept = (out / "records.jsonl").read_bytes()
    made = [json.loads(line) for line in kept.splitlines()]
    assert len(made) == 13 + 13
    assert all(record["smoke"] and record["settings"]["draws"] == 100 for record in made)
    again = invoke(*SHORT, "--out", str(out))
    assert again.stdout == first.stdout  # the times as well, since nothing is measured again
    assert (out / "records.jsonl").read_bytes() == kept
    assert torch.get_num_threads() == threads


def test_smoke_measurements_have_a_folder_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert invoke(*FEW).exit_code == 0
    assert [file.name for file in (tmp_path / "runs").iterdir()] == ["smoke"]
    assert {file.name for file in (tmp_path / "runs" / "smoke" / "lab").iterdir()} == {"lab.png", "records.jsonl"}
    result = invoke("report", "--records", "runs/smoke")
    assert result.exit_code == 0, result.output


def test_smoke_measurements_are_not_added_to_real_ones(tmp_path):
    assert invoke(*FEW, "--out", str(tmp_path)).exit_code == 0
    path = tmp_path / "records.jsonl"
    for smoke in (True, False):
        real = [json.loads(line) | {"smoke": smoke} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(record) + "\n" for record in real))
        before = path.read_bytes()
        result = invoke(*(FEW[:1] + FEW[2:] if smoke else FEW), "--out", str(tmp_path))
        assert result.exit_code == 2
        assert f"holds records of {'smoke' if smoke else 'real'} runs" in " ".join(result.output.split())
        assert path.read_bytes() == before


def test_own_problem(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_losses.py").write_text("def loss(z):\n    return z.cumsum(-1).square().sum((-1, -2))\n")
    problem = "my_losses:loss,num_categories=3,num_variables=2"
    result = invoke(*FEW[:2], *FEW[4:], "--problem", problem, "--out", "out")
    assert result.exit_code == 0, result.output
    assert f"{problem}, GS, gradient of logits: K = 3, N = 2" in result.stdout
    assert [file.name for file in (tmp_path / "out").iterdir()]


def test_no_time_is_no_measurement_and_the_same_command_goes_on(tmp_path):
    result = invoke(*FEW, "--out", str(tmp_path), "--max-minutes", "0")
    assert result.exit_code == 0
    assert result.stderr == "igr: stopped before the end; the same command goes on from here\n"
    assert list(tmp_path.iterdir()) == []
    assert invoke(*FEW, "--out", str(tmp_path)).stdout.count("\nST relaxed") == 1


INTERRUPTED = """
    import os, signal
    from igr.lab import run

    real, calls = run.measure, []

    def measure(*args, **options):
        calls.append(args)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return real(*args, **options)

    run.measure = measure
    signal.signal(signal.SIGINT, signal.default_int_handler)
"""


def test_an_interruption_keeps_what_is_measured(tmp_path):
    args = (*FEW, "--estimator", "reinmax", "--out", str(tmp_path))
    result = python(INTERRUPTED, *args)
    assert result.returncode == 130, result.stderr
    assert result.stderr.startswith("igr: saving; press Ctrl-C again to leave at once\nigr: stopped before the end")
    before = (tmp_path / "records.jsonl").read_bytes()
    assert len(before.splitlines()) == 2
    assert invoke(*args).exit_code == 0
    after = (tmp_path / "records.jsonl").read_bytes()
    assert after.startswith(before)
    assert len(after.splitlines()) == 3


def test_what_is_measured_again_goes_on_where_it_was_interrupted(tmp_path):
    args = (*FEW, "--estimator", "reinmax", "--out", str(tmp_path), "--fresh")
    for start, lines in ((None, 3), (INTERRUPTED, 3 + 2), (None, 3 + 3), (None, 3 + 3 + 3)):
        result = invoke(*args) if start is None else python(start, *args)
        assert result.exit_code == 0 if start is None else result.returncode == 130
        assert len((tmp_path / "records.jsonl").read_text().splitlines()) == lines


@pytest.mark.parametrize(
    ("args", "advice"),
    [
        (
            ["--problem", "frobnicate"],
            "no problem is called 'frobnicate'; expected one of rebar, polynomial,",
        ),
        (["--problem", "nowhere:f"], "the module cannot be imported"),
        (["--problem", "tanh,width=3"], "tanh cannot be made with {'width': 3}"),
        (["--estimator", "reinforce"], "no estimator is called 'reinforce'; expected one of reparameterized"),
        (["--estimator", "straight-through"], "the nearest: straight_through, gapped_straight_through"),
        (["--estimator", "disarm", "--problem", "tanh"], "disarm cannot be tried on gs, igr-i of tanh"),
        (["--parameterization", "gumbel"], "no parameterization is called 'gumbel'; expected one of gs, igr-i, igr-sb"),
        (["--temperature", "0"], "0.0 is not a positive number"),
        (["--temperature", "inf"], "inf is not a positive number"),
        (["--draws", "1"], "--draws"),
        (["--draws", "10"], "10 draws are less than two for each of 10 repetitions: ask for at least 20"),
        (["--problem", "tanh,num_categories=1"], "num_categories must be an integer of at least 2, got 1"),
        (["--problem", "rebar,num_variables=0"], "num_variables must be an integer of at least 1, got 0"),
        (["--problem", "tanh,num_variables=0"], "num_variables must be an integer of at least 1, got 0"),
        (["--repetitions", "1"], "--repetitions"),
        (["--samples", "0"], "--samples"),
        (["--dtype", "float16"], "--dtype"),
        (["--device", "abacus"], "'abacus' does not work here"),
        (["--max-minutes", "-1"], "--max-minutes"),
        (["--out", "file"], "is a file"),
        (["--smoke", "--out", "file/folder"], "cannot write"),
        (["--smoke", "--out", "results/ours"], "do not belong into results/ours"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_refused(args, advice, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("in the way")
    result = invoke("lab", *args)
    assert result.exit_code == 2, result.output
    assert advice in result.output
    assert "Traceback" not in result.output
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = invoke(*FEW, "--out", str(tmp_path), "--parquet", str(tmp_path / "lab.parquet"))
    assert result.exit_code == 2
    assert "needs pyarrow, which is not installed: pip install pyarrow" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "content", "line"),
    [
        (["--problem", "tanh,num_variables=9"], "", "igr: tanh,num_variables=9 has 10^9 states"),
        (
            ["--problem", "rebar,target=0.5,num_variables=1"],
            "",
            "igr: rebar,target=0.5,num_variables=1, gs: the exact gradient is zero up to rounding, |g| = ",
        ),
        (["--problem", "rebar"], "no record", "igr: line 1 of records.jsonl is not a record"),
        (["--problem", "rebar", "--repetitions", "6000"], "", "igr: ST relaxed on rebar, gs at τ"),
    ],
    ids=["states", "no gradient", "records", "draws"],
)
def test_what_goes_wrong_is_one_line(args, content, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "records.jsonl").write_text(content)
    result = invoke("lab", *FEW[4:], *args, "--out", ".")
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith(line)
    assert len(result.stderr.splitlines()) == 1
    assert (tmp_path / "records.jsonl").read_text() == content


BROKEN = {
    "syntax": ("def f(z:", "the module cannot be imported: SyntaxError: "),
    "name": ("frobnicate", "the module cannot be imported: NameError: name 'frobnicate' is not defined"),
    "key": ("def f(z):\n    return {}['weight']", "failed on torch.float32 samples of shape"),
    "assertion": ("def f(z):\n    assert False, 'two\\nlines'", "(S, *, N, K): AssertionError: two lines"),
    "factory": ("def f():\n    return {}['weight']", "cannot be made with its defaults: KeyError: 'weight'"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_own_code_that_is_broken_is_one_line(kind, tmp_path, monkeypatch):
    content, advice = BROKEN[kind]
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"broken_{kind}.py").write_text(content)
    result = invoke("lab", *FEW[4:], "--problem", f"broken_{kind}:f", "--out", "out")
    assert result.exit_code == 2, result.output
    assert advice in " ".join(result.stderr.replace("│", " ").split())
    assert isinstance(result.exception, SystemExit)


def test_own_function_that_fails_on_several_samples_is_one_line(tmp_path, monkeypatch):
    """It is tried with one sample of each before."""
    monkeypatch.chdir(tmp_path)
    content = "def {}(z):\n    return z[..., 0].sum(-1){} if len(z) == 1 else {}\n"
    program = content.format("f", "", "{}[len(z)]") + content.format("g", "", "z.sum()")
    (tmp_path / "single.py").write_text(program)
    for name, words in (("f", "single:f failed on torch.float32 samples"), ("g", "RLOO on single:g, gs: ")):
        result = invoke("lab", "--estimator", "rloo", "--parameterization", "gs", "--problem", f"single:{name}")
        assert result.exit_code == 1, result.output
        assert result.stderr.startswith(f"igr: {words}")
        assert len(result.stderr.splitlines()) == 1


def test_a_missing_package_is_named(tmp_path):
    result = python("import sys; sys.modules['matplotlib'] = None", *FEW, "--out", str(tmp_path / "out"))
    assert result.returncode == 1
    assert result.stderr.startswith("igr: igr lab needs matplotlib, which is not installed: pip install 'igr[paper]'")
    assert not any(tmp_path.iterdir())
