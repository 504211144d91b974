import ast
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import igr
from igr._commands.common import PLAIN, show
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


LISTED = ("list", "table1/mnist/linear/igr-i", "--records")  # and a folder: the paper's −94.65 ± 0.14


def test_help_lists_commands():
    result = invoke("--help")
    assert result.exit_code == 0
    for words in ("demo", "list", "run", "report", "data", "approximate", "lab", "bench", "explore", "--version"):
        assert words in result.output


@pytest.mark.parametrize("columns", [40, 200])
def test_tables_are_as_wide_as_they_are(monkeypatch, capsys, columns):
    from rich.table import Table

    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    table = Table("words that may be wrapped", box=None)
    for i in range(9):
        table.add_column(f"column {i}", no_wrap=True)
    table.add_row("one", *(f"−123.4{i} ± 0.12" for i in range(9)))
    show(table, "words " * 20)
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if "−123.40" in line)
    numbers = [word.strip() for word in lines[at].split("  ") if word.strip()]
    assert numbers == ["one", *(f"−123.4{i} ± 0.12" for i in range(9))]
    assert (at == 1) == (columns == 200)  # the head of the first column is wrapped only where it has to be
    assert max(len(line) for line in lines[at + 1 :]) <= columns


def test_demo_help_lists_options():
    result = invoke("demo", "--help")
    assert result.exit_code == 0
    for option in ("--out", "--seed", "--device", "--smoke", "runs/demo"):
        assert option in result.output


def test_approximate_help_lists_options_and_names():
    result = invoke("approximate", "--help")
    assert result.exit_code == 0
    options = ("--out", "--seed", "--device", "--steps", "--samples", "--tau", "--learning-rate", "--exact", "--smoke")
    folders = ("runs/approximate, or runs/smoke/approximate",)
    for words in (*options, *folders, "--fresh", "poisson, binomial, discrete, negative-binomial, geometric"):
        assert words in result.output


def test_help_wraps_paragraphs_where_the_terminal_ends():
    lines = [line.strip() for line in invoke("run", "--help").output.splitlines()]
    assert any(
        line.startswith("All configurations") and "nothing but minutes: the same command" in line for line in lines
    )


def test_report_help_says_where_records_are_looked_for():
    assert "[default: (results/ours, else runs/records)]" in invoke("report", "--help").output


def test_version():
    result = invoke("--version")
    assert (result.exit_code, result.output.strip()) == (0, f"igr {igr.__version__}")


def test_module_is_the_command():
    result = subprocess.run([sys.executable, "-m", "igr", "--version"], capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout.strip()) == (0, f"igr {igr.__version__}")


def check_picture(path, least=100_000):
    picture = path.read_bytes()
    assert picture.startswith(PNG)
    assert least < len(picture) < 600_000  # a blank one would be a few thousand
    width, height = (int.from_bytes(picture[i : i + 4], "big") for i in (16, 20))
    assert 900 < width < 1600
    assert 400 < height < 1600


def test_demo_writes_pictures_and_a_report_and_says_where(tmp_path):
    threads = torch.get_num_threads()
    out = tmp_path / "a" / "b"
    result = invoke("demo", "--out", str(out), "--seed", "1", "--smoke")
    assert result.exit_code == 0, result.output
    pictures = [out / "simplex.png", out / "poisson.png"]
    *table, first, second, last = result.stdout.splitlines()
    assert [first, second] == [f"The picture is in {picture}" for picture in pictures]
    assert last == f"The report is in {out / 'report.html'}"
    assert [line.split()[0] for line in table if line.startswith("  ")][::2] == ["IGR-I", "IGR-Planar", "IGR-SB", "GS"]
    assert all(line.startswith("igr: ") for line in result.stderr.splitlines())  # no bar where there is no terminal
    expected = {"simplex.png", "poisson.png", "records.jsonl", "report.html", "report.md", "figures", "table1"}
    assert {file.name for file in out.iterdir()} - {"checkpoints"} == expected
    for picture in pictures:
        check_picture(picture, least=50_000)
    records = [json.loads(line) for file in out.rglob("*.jsonl") for line in file.read_text().splitlines()]
    assert len({record["spec"] for record in records}) == 5 + 4
    assert all(record["smoke"] for record in records)
    assert torch.get_num_threads() == threads


def test_approximate_prints_a_table_and_goes_on_from_its_records(tmp_path):
    args = ("approximate", "uniform", "--smoke", "--exact", "--tau", "0.3", "--out", str(tmp_path / "new"))
    first = invoke(*args)
    assert first.exit_code == 0, first.output
    assert first.stderr == ""
    lines = first.stdout.splitlines()
    assert lines[0].strip() == "Uniform on 10 categories: mean 4.5, variance 8.25"
    assert [line.split()[0] for line in lines[2:11]] == ["IGR-I"] * 3 + ["IGR-SB"] * 3 + ["GS"] * 3
    assert [" ".join(line.split()[:2]) for line in lines[11:13]] == ["IGR-I exact", "IGR-SB exact"]
    assert lines[13] == f"The picture is in {tmp_path / 'new' / 'uniform.png'}"
    assert lines[-1] == f"The records are in {tmp_path / 'new' / 'records.jsonl'}"
    check_picture(tmp_path / "new" / "uniform.png", least=50_000)
    before = (tmp_path / "new" / "records.jsonl").read_bytes()
    assert all(json.loads(line)["tau"] == 0.3 for line in before.splitlines())
    again = invoke(*args)
    assert again.stdout == first.stdout  # the seconds as well, since nothing is fitted again
    assert (tmp_path / "new" / "records.jsonl").read_bytes() == before


def test_smoke_fits_have_a_folder_of_their_own_of_which_a_report_can_be_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke("approximate", "uniform", "--smoke")
    assert result.exit_code == 0, result.output
    assert [file.name for file in (tmp_path / "runs").iterdir()] == ["smoke"]
    assert {file.name for file in (tmp_path / "runs/smoke/approximate").iterdir()} == {"records.jsonl", "uniform.png"}
    before = (tmp_path / "runs/smoke/approximate/records.jsonl").read_bytes()
    assert invoke("run", "approximate/uniform/*", "--smoke").exit_code == 0  # it finds them there
    assert (tmp_path / "runs/smoke/approximate/records.jsonl").read_bytes() == before
    result = invoke("report", "--records", "runs/smoke")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("smoke", [True, False], ids=["smoke", "real"])
def test_smoke_fits_and_real_ones_are_not_kept_in_one_file(tmp_path, smoke):
    args = ("approximate", "uniform", "--steps", "1", "--samples", "2", "--out", str(tmp_path))
    kinds = [("--smoke",), ()] if smoke else [(), ("--smoke",)]
    assert invoke(*args, *kinds[0]).exit_code == 0
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    result = invoke(*args, *kinds[1])
    assert result.exit_code == 2
    assert f"records of {'smoke' if smoke else 'real'} runs" in result.output
    assert "--out" in result.output
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_run_says_what_it_does_not_do_again(tmp_path):
    args = ("run", "--smoke", "--out", str(tmp_path / "out"), "--checkpoints", str(tmp_path / "checkpoints"))
    first = invoke(*args, "sop/mnist/gs+linear")
    assert first.exit_code == 0, first.output
    assert "recorded already" not in first.stderr
    again = invoke(*args, "sop/mnist/gs+linear", "sop/mnist/gs")
    assert "recorded already, so not done again: sop/mnist/gs+linear\n" in again.stderr


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
        (["run"], "Missing argument"),
        (["run", "table1/mnist/linear/igr"], "the nearest: table1/mnist/linear/igr-i"),
        (["run", "table1/mnist/linear/igr-i", "--smoke", "--device", "abacus"], "'abacus' does not work here"),
        (["run", "table1/mnist/linear/igr-i", "--dtype", "float16"], "--dtype"),
        (["run", "table1/mnist/linear/igr-i", "--max-minutes", "-1"], "--max-minutes"),
        (["run", "table1/mnist/linear/igr-i", "--smoke", "--out", "results/ours"], "do not belong into results/ours"),
        (["run", "table1/mnist/linear/igr-i", "--smoke", "--out", "file/folder"], "cannot write"),
        (["run", "table1/mnist/linear/igr-i", "--address", "auto"], "add --engine ray"),
        (["run", "table1/mnist/linear/igr-i", "--engine", "ray", "--device", "cuda:1"], "Ray chooses which GPU"),
        (["list", "frobnicate"], "no spec is called 'frobnicate'"),
        (["list", "execution-time/*"], "python benchmarks/execution_time.py --json"),
        (["run", "execution-time/mnist/linear/gs"], "python benchmarks/execution_time.py --json"),
        (["approximate"], "Missing argument"),
        (["approximate", "frobnicate"], "no distribution is called 'frobnicate'; expected one of poisson, binomial"),
        (["approximate", "uniform", "--tau", "0"], "0.0 is not a positive number"),
        (["approximate", "uniform", "--tau", "nan"], "nan is not a positive number"),
        (["approximate", "uniform", "--learning-rate", "-1"], "-1.0 is not a positive number"),
        (["approximate", "uniform", "--steps", "0"], "--steps"),
        (["approximate", "uniform", "--samples", "many"], "--samples"),
        (["approximate", "uniform", "--device", "abacus"], "'abacus' does not work here"),
        (["approximate", "uniform", "--smoke", "--out", "file"], "is a file"),
        (["approximate", "uniform", "--smoke", "--out", "file/folder"], "cannot write"),
        (["approximate", "uniform", "--smoke", "--out", "results/ours"], "do not belong into results/ours"),
        (["explore", "--port", "0"], "--port"),
        (["explore", "--results", "nowhere"], "--results"),
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


# Ctrl-C arrives while a module is looked for.
INTERRUPTED_IMPORT = """
    import os, signal, sys

    class Finder:
        def find_spec(name, path=None, target=None):
            if name == {name!r}:
                os.kill(os.getpid(), signal.SIGINT)

    sys.meta_path.insert(0, Finder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
"""


@pytest.mark.parametrize("name", ["igr._commands", "igr._commands.run", "typer", "igr.paper.targets"])
def test_interruption_of_an_import_is_one_line(name):
    result = python(INTERRUPTED_IMPORT.format(name=name), "demo", "--help")
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "igr: interrupted\n")


# The second fit is interrupted.
INTERRUPTED_FIT = """
    import os, signal
    from igr.paper import approximate

    real, calls = approximate.match_moments, []

    def match_moments(*args, **options):
        calls.append(args)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return real(*args, **options)

    approximate.match_moments = match_moments
    signal.signal(signal.SIGINT, signal.default_int_handler)
"""


def test_interruption_keeps_finished_fits(tmp_path):
    result = python(INTERRUPTED_FIT, "approximate", "uniform", "--smoke", "--out", str(tmp_path))
    assert (result.returncode, result.stderr, result.stdout) == (130, "igr: interrupted\n", "")
    assert [file.name for file in tmp_path.iterdir()] == ["records.jsonl"]
    kept = (tmp_path / "records.jsonl").read_text()
    assert [json.loads(line)["spec"] for line in kept.splitlines()] == ["approximate/uniform/igr-i"]


def test_fits_that_are_made_again_go_on_where_they_were_interrupted(tmp_path):
    args = ("approximate", "uniform", "--smoke", "--out", str(tmp_path), "--fresh")

    def lines() -> int:
        return len((tmp_path / "records.jsonl").read_text().splitlines())

    assert invoke(*args).exit_code == 0
    assert lines() == 3
    assert python(INTERRUPTED_FIT, *args).returncode == 130
    assert lines() == 3 + 1
    again = invoke(*args)
    assert again.stderr.startswith("igr: going on with what --fresh has begun; to begin again, remove ")
    assert lines() == 3 + 3
    assert invoke(*args).stderr == ""
    assert lines() == 3 + 3 + 3


@pytest.mark.parametrize(
    ("args", "content", "line"),
    [
        (["--learning-rate", "1e30"], "", "igr: IGR-I"),
        ([], "no record", "igr: line 1 of records.jsonl is not a record; mend it, or remove the file"),
    ],
    ids=["learning rate", "records"],
)
def test_what_goes_wrong_is_one_line(args, content, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "records.jsonl").write_text(content)
    result = invoke("approximate", "uniform", "--smoke", "--out", ".", *args)
    assert result.exit_code == 1
    assert result.stderr.startswith(line)
    assert len(result.stderr.splitlines()) == 1
    assert (tmp_path / "records.jsonl").read_text() == content


@pytest.mark.parametrize(
    ("missing", "args", "what", "extra"),
    [
        ("typer", [], "the igr command", "paper"),
        ("typer", ["--help"], "the igr command", "paper"),
        ("rich", [], "the igr command", "paper"),
        ("matplotlib", ["demo"], "igr demo", "paper"),
        ("matplotlib", ["approximate", "uniform", "--smoke"], "igr approximate", "paper"),
        ("ray", ["run", "table1/mnist/linear/gs", "--smoke", "--engine", "ray"], "--engine ray", "ray"),
        ("tensorboard", ["run", "table1/mnist/linear/gs", "--tensorboard", "runs"], "--tensorboard", "tensorboard"),
        ("dash", ["explore", "--no-browser"], "igr explore", "explorer"),
    ],
    ids=["typer", "help", "rich", "demo", "approximate", "ray", "tensorboard", "dash"],
)
def test_missing_package_is_named(missing, args, what, extra, tmp_path):
    result = python(f"import os, sys; os.chdir({str(tmp_path)!r}); sys.modules[{missing!r}] = None", *args)
    assert result.returncode == 1
    advice = f"pip install 'igr[{extra}]', or in a clone of the repository: pip install -e '.[{extra}]'"
    assert result.stderr == f"igr: {what} needs {missing}, which is not installed: {advice}\n"
    assert not any(tmp_path.iterdir())


def test_own_faults_are_not_taken_for_missing_packages(tmp_path):
    result = python("import sys; sys.modules['igr.transforms'] = None", "demo", "--out", str(tmp_path))
    assert result.returncode == 1
    assert "not installed" not in result.stderr
    assert "igr.transforms" in result.stderr


@pytest.mark.parametrize(
    ("encoding", "sign"),
    [("ascii", "+-"), ("utf-8", "±"), ("ascii:backslashreplace", r"\xb1")],
)
def test_letters_that_the_terminal_lacks_are_replaced(encoding, sign, tmp_path):
    result = python("", *LISTED, str(tmp_path), PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert (result.returncode, result.stderr) == (0, "")
    assert f"-94.65 {sign} 0.14" in result.stdout


def test_letters_that_a_locale_lacks_are_replaced(tmp_path):
    guard = "import sys; assert sys.stdout.errors == 'surrogateescape'"
    result = python(guard, *LISTED, str(tmp_path), LC_ALL="C", PYTHONUTF8="0", PYTHONIOENCODING="")
    assert (result.returncode, result.stderr) == (0, "")
    assert "-94.65 +- 0.14" in result.stdout


def test_help_and_errors_print_letters_that_the_terminal_lacks():
    strict = """
        import atexit, sys
        sys.stderr.reconfigure(errors="strict")
        atexit.register(lambda: print("igr: \N{GREEK SMALL LETTER TAU}", file=sys.stderr))
    """
    result = python(strict, "lab", "--help", PYTHONIOENCODING="latin-1", PYTHONUTF8="0", COLUMNS="200")
    assert (result.returncode, result.stderr) == (0, "igr: tau\n")
    assert "(mu, sigma)" in result.stdout


def test_every_letter_of_commands_and_their_tables_has_another():
    """Each literal of the packages whose words go to the terminal, docstrings, which are help, included."""
    for folder in ("_commands", "lab"):
        for file in sorted((Path(igr.__file__).parent / folder).glob("*.py")):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            literals = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
            letters = {letter for text in literals if isinstance(text, str) for letter in text if not letter.isascii()}
            assert letters <= PLAIN.keys(), file


def test_a_list_without_an_output_is_no_fault():
    result = python("import sys; sys.stdout = None", "list", "table1/mnist/linear/gs")
    assert (result.returncode, result.stderr) == (0, "")


def test_streams_that_have_all_letters_or_none_are_left_as_they_are():
    told = "import atexit, sys; atexit.register(lambda: print(sys.stdout.errors, file=sys.stderr))"
    assert python(told, "--version", PYTHONIOENCODING="utf-8").stderr == "strict\n"
    other = "import io, sys; sys.stdout = io.StringIO()"  # which cannot be reconfigured
    assert python(other, "--version").returncode == 0


FULL = "/dev/full"
needs_full = pytest.mark.skipif(not os.path.exists(FULL), reason=f"there is no {FULL}")


@needs_full
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "args",
    [
        ("--version",),
        ("--help",),
        ("list",),
        ("data", "status"),
        ("run", "table1/mnist/linear/igr-i", "--dry-run"),
        ("approximate", "uniform", "--smoke"),
        ("lab", "--smoke", "--problem", "rebar", "--estimator", "rloo", "--parameterization", "gs"),
        ("bench", "--shape", "2x3", "--rounds", "2"),
    ],
    ids=lambda args: args[0],
)
def test_output_that_cannot_be_written_is_one_line(args, unbuffered, tmp_path):
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "OMP_NUM_THREADS": "1"}
    with open(FULL, "w") as full:
        command = [sys.executable, "-m", "igr", *args]
        result = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, cwd=tmp_path, env=environment
        )
    assert (result.returncode, result.stderr) == (1, "igr: cannot write the output: No space left on device\n")


@needs_full
def test_errors_that_cannot_be_written_still_end_the_command():
    with open(FULL, "w") as full:
        command = [sys.executable, "-m", "igr", "list", "frobnicate"]
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, text=True, timeout=120)
    assert (result.returncode, result.stdout) == (1, "")


@pytest.mark.parametrize("args", [("list",), ("data", "status")], ids=["much", "little"])
def test_a_reader_that_has_had_enough_is_no_error(args):
    command = [sys.executable, "-m", "igr", *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()  # before anything is written
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_other_faults_of_files_keep_their_traceback():
    fault = "import igr._commands.list as it; it.usual_records = lambda: open('/nowhere/at/all')"
    result = python(fault, "list")
    assert result.returncode == 1
    assert "FileNotFoundError" in result.stderr.splitlines()[-1]
