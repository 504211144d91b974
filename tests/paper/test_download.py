"""Downloads from servers on this machine, some of them bad, and the commands of ``igr data``."""

import gzip
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import requests
import typer
from test_data import TEST, TRAIN, archives, idx  # noqa: F401
from typer.testing import CliRunner

from igr._commands import data as command
from igr.paper import download
from igr.paper.data import DataError, load
from igr.paper.download import ARCHIVES, MIRRORS, DownloadError, fetch
from igr.paper.sources import CONVERTED, SOURCES, File

FEW = 10_000  # bytes that a server which cuts gives at a time


class Handler(BaseHTTPRequestHandler):
    """Serves what ``server.files`` holds; the first folder of a path says how."""

    def do_GET(self) -> None:
        how, name = self.path.strip("/").split("/")
        asked = self.headers.get("Range")
        self.server.requests.append((how, name, asked))
        content = self.server.files.get(name)
        if content is None or how == "absent":
            self.send_error(404)
            return
        content = {"altered": content[:-1] + bytes([content[-1] ^ 1]), "page": b"<html>log in</html>"}.get(how, content)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and how not in ("whole", "stuck") else 0
        if start and start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : start + FEW] if how in ("cut", "stuck", "slow") else content[start:])
        if how == "slow":
            self.wfile.flush()
            self.server.released.wait(60)

    def log_message(self, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.files, server.requests, server.released = {}, [], threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def mirrors(server, monkeypatch):
    """MNIST has 60 and 20 images, and the mirrors of it are named; the function it gives names them."""
    rng = np.random.default_rng(0)
    content = {name: idx(rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)) for name, n in ((TRAIN, 60), (TEST, 20))}
    shapes = {TRAIN: (60, 28, 28), TEST: (20, 28, 28)}
    files = tuple(File((n, f"{n}.gz"), hashlib.sha256(c).hexdigest(), shapes[n]) for n, c in content.items())
    monkeypatch.setitem(SOURCES, "mnist", SOURCES["mnist"]._replace(files=files, validation=10, test=20))
    server.files.update({f"{name}.gz": gzip.compress(c) for name, c in content.items()})

    def name_them(*kinds: str, dataset: str = "mnist") -> list[str]:
        urls = [address(server, kind) for kind in kinds]
        monkeypatch.setitem(MIRRORS, dataset, tuple(urls))
        return urls

    return name_them


def address(server, kind: str) -> str:
    if kind != "down":
        return f"http://127.0.0.1:{server.server_port}/{kind}/"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/down/"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_fetches_checks_and_is_then_content(server, mirrors, tmp_path):
    mirrors("good")
    seen = []
    new = fetch("mnist", tmp_path, lambda *args: seen.append(args))
    assert new == [tmp_path / "mnist" / f"{name}.gz" for name in (TRAIN, TEST)]
    assert names(tmp_path / "mnist") == [f"{TEST}.gz", f"{TRAIN}.gz"]
    assert len(load("mnist", tmp_path).train) == 50
    size = len(server.files[f"{TRAIN}.gz"])
    assert seen[0] == (f"{TRAIN}.gz", 0, size)
    assert (f"{TRAIN}.gz", size, size) in seen
    before = len(server.requests)
    assert fetch("mnist", tmp_path) == []
    assert len(server.requests) == before


@pytest.mark.parametrize("bad", ["down", "absent", "altered", "page", "stuck"])
def test_next_mirror_is_tried(bad, server, mirrors, tmp_path):
    mirrors(bad, "good")
    fetch("mnist", tmp_path)
    assert len(load("mnist", tmp_path).test) == 20
    assert [how for how, _, _ in server.requests if how == "good"] == ["good"] * 2
    assert names(tmp_path / "mnist") == [f"{TEST}.gz", f"{TRAIN}.gz"]  # and nothing of the bad one


def test_all_failures_are_listed(server, mirrors, tmp_path):
    urls = mirrors("down", "absent", "altered", "page", "stuck")
    with pytest.raises(DownloadError) as refusal:
        fetch("mnist", tmp_path)
    lines = str(refusal.value).splitlines()
    assert lines[0] == f"{TRAIN}.gz could not be downloaded. These were tried:"
    reasons = ["refused", "answered 404", "it is damaged|it has been altered", "it is no idx file", "more expected"]
    for line, url, reason in zip(lines[1:-1], urls, reasons, strict=True):
        assert line.startswith(f"  {url}{TRAIN}.gz: ")
        assert any(word in line for word in reason.split("|")), line
    assert lines[-1] == f"Try again later, or put the file into {tmp_path / 'mnist'} by hand"
    assert all(name.endswith(".part") for name in names(tmp_path / "mnist"))


def test_broken_connections_are_taken_up(server, mirrors, tmp_path, monkeypatch):
    mirrors("cut")
    size = len(server.files[f"{TRAIN}.gz"])
    monkeypatch.setattr(download, "ATTEMPTS", 2)
    with pytest.raises(DownloadError, match="more expected"):
        fetch("mnist", tmp_path)
    monkeypatch.setattr(download, "ATTEMPTS", 5)
    (part,) = (tmp_path / "mnist").iterdir()
    assert part.stat().st_size == 2 * FEW
    fetch("mnist", tmp_path)
    asked = [asked for _, name, asked in server.requests if name == f"{TRAIN}.gz"]
    assert asked == [None, *(f"bytes={n}-" for n in range(FEW, size, FEW))]
    assert load("mnist", tmp_path).train.shape == (50, 784)


def test_short_answers_are_noticed_here_too(server, mirrors, tmp_path, monkeypatch):
    get = requests.get

    def careless(*args, **options):
        response = get(*args, **options)
        response.raw.enforce_content_length = False  # as in old versions of urllib3
        return response

    monkeypatch.setattr(requests, "get", careless)
    mirrors("stuck")
    with pytest.raises(DownloadError, match=f"it ended after {FEW:,} of {len(server.files[f'{TRAIN}.gz']):,} bytes"):
        fetch("mnist", tmp_path)


class Stop(Exception):
    """What ends a download here."""


@pytest.mark.parametrize("stop", [KeyboardInterrupt, Stop], ids=["ctrl-c", "error"])
@pytest.mark.parametrize("kind", ["good", "whole"])
def test_interruption_leaves_a_part(stop, kind, server, mirrors, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "CHUNK", 1_000)
    mirrors("absent", kind)

    def interrupt(words: str, done: int, total: int | None) -> None:
        if done >= 9_000:
            raise stop

    with pytest.raises(stop):
        fetch("mnist", tmp_path, interrupt)
    (part,) = (tmp_path / "mnist").iterdir()
    assert part.name.startswith(f"{TRAIN}.gz.")
    assert part.suffix == ".part"
    assert part.stat().st_size == 9_000
    server.requests.clear()
    seen = []
    fetch("mnist", tmp_path, lambda *args: seen.append(args))
    assert server.requests[0] == (kind, f"{TRAIN}.gz", "bytes=9000-")  # the mirror of the part comes first
    assert seen[0][1] == (9_000 if kind == "good" else 0)  # one that knows no ranges begins again
    assert names(tmp_path / "mnist") == [f"{TEST}.gz", f"{TRAIN}.gz"]


@pytest.mark.parametrize("size", [500, 100_000], ids=["short", "long"])
def test_part_of_something_else_is_thrown_away(size, server, mirrors, tmp_path):
    (url,) = mirrors("good")
    part = download._part(tmp_path / "mnist" / f"{TRAIN}.gz", f"{url}{TRAIN}.gz")
    part.parent.mkdir()
    part.write_bytes(bytes(size))
    fetch("mnist", tmp_path)
    assert len(load("mnist", tmp_path).train) == 50
    assert names(tmp_path / "mnist") == [f"{TEST}.gz", f"{TRAIN}.gz"]


def test_complete_part_is_used(server, mirrors, tmp_path):
    (url,) = mirrors("good")
    part = download._part(tmp_path / "mnist" / f"{TRAIN}.gz", f"{url}{TRAIN}.gz")
    part.parent.mkdir()
    part.write_bytes(server.files[f"{TRAIN}.gz"])
    fetch("mnist", tmp_path)
    assert [asked for _, name, asked in server.requests if name == f"{TRAIN}.gz"] == [f"bytes={part_size(server)}-"]
    assert len(load("mnist", tmp_path).train) == 50


def part_size(server) -> int:
    return len(server.files[f"{TRAIN}.gz"])


@pytest.mark.parametrize("suffix", ["", ".gz"], ids=["plain", "gzip"])
def test_bad_file_is_replaced_once_there_is_a_good_one(suffix, server, mirrors, tmp_path):
    bad = tmp_path / "mnist" / f"{TRAIN}{suffix}"
    bad.parent.mkdir()
    bad.write_bytes(b"bad")
    mirrors("down")
    with pytest.raises(DownloadError):
        fetch("mnist", tmp_path)
    assert bad.read_bytes() == b"bad"
    mirrors("good")
    fetch("mnist", tmp_path)
    assert names(bad.parent) == [f"{TEST}.gz", f"{TRAIN}.gz"]
    assert len(load("mnist", tmp_path).train) == 50


def test_omniglot_is_converted(server, mirrors, archives, tmp_path, monkeypatch):  # noqa: F811
    mirrors("down", "good", dataset="omniglot")
    for path in archives[0]:
        server.files[path.name] = path.read_bytes()
        monkeypatch.setitem(ARCHIVES, path.name, hashlib.md5(path.read_bytes()).hexdigest())
    words = []
    assert fetch("omniglot", tmp_path / "cache", lambda *args: words.append(args[0])) == [
        tmp_path / "cache" / "omniglot" / CONVERTED
    ]
    assert names(tmp_path / "cache" / "omniglot") == [CONVERTED]
    assert list(dict.fromkeys(words)) == [*ARCHIVES, "converting to 28x28"]
    assert load("omniglot", tmp_path / "cache").source == "files, converted"
    assert fetch("omniglot", tmp_path / "cache") == []
    result = invoke("verify", "omniglot", "--data-dir", str(tmp_path / "cache"))
    assert result.exit_code == 0
    assert result.stdout.startswith("omniglot: good, but converted from the archives (ink from ")


def test_archive_with_another_checksum_is_refused(server, mirrors, archives, tmp_path):  # noqa: F811
    mirrors("good", dataset="omniglot")
    server.files.update({path.name: path.read_bytes() for path in archives[0]})
    with pytest.raises(DownloadError, match=r"images_background\.zip: its md5 is [0-9a-f]{32}, not 68d2efa1b9178cc5"):
        fetch("omniglot", tmp_path / "cache")
    assert names(tmp_path / "cache" / "omniglot") == []


def test_unknown_dataset(tmp_path):
    with pytest.raises(DataError, match="no dataset is called 'cifar'"):
        fetch("cifar", tmp_path)


def test_mirrors_are_several_for_each():
    assert set(MIRRORS) == set(SOURCES)
    for urls in MIRRORS.values():
        assert len(set(urls)) == len(urls) >= 2
        assert all(
            url.startswith(("https://", "http://fashion-mnist.s3-website.")) and url.endswith("/") for url in urls
        )


# Commands


def invoke(*args: str):
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    command.add(app)
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).invoke(app, ["data", *args])


def test_help():
    result = invoke("--help")
    assert result.exit_code == 0
    for words in ("status", "verify", "fetch"):
        assert words in result.output


def test_status_is_a_line_for_each(mirrors, tmp_path, monkeypatch):
    monkeypatch.setenv("IGR_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mirrors("good")
    fetch("mnist", tmp_path)
    (tmp_path / "mnist" / f"{TEST}.gz").write_bytes(bytes(1_000_000))  # its content is not looked at
    result = invoke("status")
    assert (result.exit_code, result.stderr) == (0, "")
    fields = [line.split("\t") for line in result.stdout.splitlines()]
    assert [line[0] for line in fields] == ["mnist", "fmnist", "omniglot"]
    assert fields[0][1:3] == [str(tmp_path / "mnist"), "1.0 MB"]
    assert fields[0][3:] == ["50 + 10 + 20", "CC BY-SA 3.0 (LeCun, Cortes, Burges)"]
    assert fields[1][1:3] == ["not found; igr data fetch fmnist", "31 MB to download"]
    assert invoke("status", "omniglot").stdout == result.stdout.splitlines()[2] + "\n"


def test_status_is_a_table_on_a_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    command._show([command._status(name, tmp_path) for name in SOURCES])
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert re.split("  +", lines[0].strip()) == ["dataset", "where", "size", "train + validation + test", "licence"]
    assert "21,910 + 2,435 + 8,115" in lines[3]


def test_fetch_and_verify(mirrors, tmp_path, monkeypatch):
    monkeypatch.delenv("IGR_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    mirrors("absent", "good")
    folder = tmp_path / "igr" / "mnist"
    for words in ("downloaded and checked", "already good"):
        result = invoke("fetch", "mnist")
        assert (result.exit_code, result.stdout, result.stderr) == (0, f"mnist: {words}, in {folder}\n", "")
    result = invoke("verify", "mnist")
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"mnist: good, in {folder}\n", "")
    result = invoke("verify")  # the others are not there, and were not named
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0] == f"mnist: good, in {folder}"
    absent = result.stdout.splitlines()[1:]
    assert absent == [f"{n}: not in {tmp_path / 'igr'}; to download it: igr data fetch {n}" for n in SOURCES][1:]
    (folder / f"{TEST}.gz").write_bytes(gzip.compress(b"altered"))
    for args, passed_over in ([], absent), (["mnist"], []), (["all"], []):
        result = invoke("verify", *args)
        assert (result.exit_code, result.stdout.splitlines()) == (1, passed_over)
        assert f"igr: {folder / TEST}.gz is no idx file of bytes with 3 axes. Remove it and run" in result.stderr


@pytest.mark.parametrize("args", [["fmnist"], ["all"]], ids=["one", "all"])
def test_what_is_named_has_to_be_there(args, tmp_path):
    result = invoke("verify", *args, "--data-dir", str(tmp_path))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Fashion-MNIST was not found" in result.stderr


def test_without_a_name_nothing_has_to_be_there(tmp_path):
    (tmp_path / "mnist").mkdir()  # as a download that failed leaves it
    result = invoke("verify", "--data-dir", str(tmp_path))
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == list(SOURCES)


def test_half_a_dataset_is_not_passed_over(mirrors, tmp_path):
    mirrors("good")
    fetch("mnist", tmp_path)
    for file in (tmp_path / "mnist").glob(f"{TEST}*"):
        file.unlink()
    result = invoke("verify", "--data-dir", str(tmp_path))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"igr: MNIST was not found: {tmp_path / 'mnist'} has no {TEST}")
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == list(SOURCES)[1:]


def test_whole_datasets_verify(data_dir, tmp_path):
    result = invoke("verify", "all", "--data-dir", str(data_dir))
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.partition(",")[0] for line in result.stdout.splitlines()] == [f"{name}: good" for name in SOURCES]
    (tmp_path / "mnist").mkdir()
    for name in (TRAIN, TEST):
        shutil.copy(data_dir / "mnist" / f"{name}.gz", tmp_path / "mnist")
    result = invoke("verify", "mnist", "--data-dir", str(tmp_path))
    assert result.stdout.endswith("(without labels, which nothing here reads)\n")


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (["fetch"], 2, "Missing argument"),
        (["fetch", "cifar"], 2, "no dataset is called 'cifar'; expected one of mnist, fmnist, omniglot, all"),
        (["status", "cifar"], 2, "no dataset is called 'cifar'"),
        (["verify", "--data-dir", "file"], 2, "is a file"),
        (["fetch", "mnist", "--data-dir", "file/folder"], 1, "igr: cannot write"),
        (["fetch", "mnist"], 1, "These were tried:"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input(args, status, words, mirrors, tmp_path, monkeypatch):
    mirrors("down")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("file").write_text("in the way")
    result = invoke(*args)
    assert result.exit_code == status
    assert words in result.output
    assert "Traceback" not in result.output


APP = """
    import typer
    from igr._commands import data
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    data.add(app)
    app(prog_name="igr")
"""


def python(source: str, *args: str, **env: str) -> subprocess.Popen[str]:
    program = textwrap.dedent(source) + textwrap.dedent(APP)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", program, *args], text=True, env={**os.environ, **env}, **pipes)


ADVICE = "pip install 'igr[paper]', or in a clone of the repository: pip install -e '.[paper]'"


def test_missing_pooch_is_named(tmp_path):
    process = python("import sys; sys.modules['pooch'] = None", "data", "fetch", "mnist", XDG_CACHE_HOME=str(tmp_path))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert err == f"igr: igr data fetch needs pooch, which is not installed: {ADVICE}\n"
    assert not any(tmp_path.iterdir())


def test_no_torch():
    process = python("import sys; sys.modules['torch'] = sys.modules['matplotlib'] = None", "data", "status")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err, len(out.splitlines())) == (0, "", 3)


def test_ctrl_c_and_again(server, mirrors, tmp_path):
    (url,) = mirrors("slow")
    preamble = f"""
        import signal
        from igr.paper import download
        download.MIRRORS["mnist"], download.CHUNK = ({url!r},), 1_000
        signal.signal(signal.SIGINT, signal.default_int_handler)
    """
    part = download._part(tmp_path / "mnist" / f"{TRAIN}.gz", f"{url}{TRAIN}.gz")
    with python(preamble, "data", "fetch", "mnist", "--data-dir", str(tmp_path)) as process:
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline and download._size(part) < FEW:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "igr: interrupted\n")
    assert names(tmp_path / "mnist") == [part.name]
    server.released.set()
    server.requests.clear()
    fetch("mnist", tmp_path)
    assert server.requests[0] == ("slow", f"{TRAIN}.gz", f"bytes={FEW}-")
