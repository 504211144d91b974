import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from typer.testing import CliRunner

pytest.importorskip("dash", reason="needs dash: pip install -e '.[explorer]'")

from flask import Flask

from igr.cli import build_app
from igr.explorer import serving


@pytest.fixture
def busy():
    """A port that is taken."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


@pytest.fixture
def served(monkeypatch):
    """What would be served, and which addresses would be opened in a browser."""
    calls, opened = [], []
    monkeypatch.setattr(serving, "serve", lambda *args: calls.append(args))
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("threading.Thread.start", lambda thread: thread.run())  # at once
    return calls, opened


def invoke(*args):
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).invoke(build_app(), ["explore", *args])


def test_a_busy_port_makes_way_for_the_next(busy, served):
    result = invoke("--port", str(busy), "--no-browser")
    found = int(re.search(r"http://127\.0\.0\.1:(\d+); Ctrl-C", result.stdout)[1])
    assert result.exit_code == 0
    assert busy < found < busy + serving.TRIES
    assert result.stderr == f"igr: port {busy} is taken, so this is port {found}\n"
    ((_, host, results),), opened = served
    assert (host, results.as_posix(), opened) == ("127.0.0.1", "results/ours", [])


def test_records_are_those_of_a_run_where_there_is_no_clone(served, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert invoke("--no-browser").exit_code == 0
    assert served[0][0][2].as_posix() == "runs/records"


def test_ports_that_are_all_taken_are_refused(busy, served, monkeypatch):
    monkeypatch.setattr(serving, "TRIES", 1)
    result = invoke("--port", str(busy), "--no-browser")
    assert result.exit_code == 2
    assert "are all taken" in result.output
    assert "Traceback" not in result.output


def test_an_address_of_another_machine_is_refused(served):
    result = invoke("--host", "192.0.2.1", "--no-browser")  # of no machine: it is for documentation
    assert result.exit_code == 2
    assert "cannot listen on 192.0.2.1:8050" in result.output


def test_the_network_is_warned_of_and_a_browser_opened(busy, served, tmp_path):
    result = invoke("--host", "0.0.0.0", "--port", str(busy), "--results", str(tmp_path))
    assert "igr: --host 0.0.0.0 lets anyone on the network reach this page\n" in result.stderr
    ((listening, _, results),), opened = served
    assert results == tmp_path
    assert opened == [re.search(r"http://\S+(?=;)", result.stdout)[0]]
    assert listening.fileno() == -1  # closed at the end


@pytest.mark.parametrize(
    ("host", "url"), [("127.0.0.1", "127.0.0.1:80"), ("::1", "[::1]:80"), ("LOCALHOST", "localhost")]
)
def test_only_names_of_this_machine_are_answered_on_loopback(host, url):
    page = Flask("page")
    page.route("/")(lambda: "here")
    serving.guard(page, host)
    with page.test_client() as browser:
        assert browser.get("/", headers={"Host": url}).status_code == 200
        for other in ("elsewhere.example", "127.0.0.1.elsewhere.example", "[", "[::2]:80"):
            assert browser.get("/", headers={"Host": other}).status_code == 400, other


def test_every_name_is_answered_elsewhere():
    page = Flask("page")
    page.route("/")(lambda: "here")
    serving.guard(page, "0.0.0.0")
    with page.test_client() as browser:
        assert browser.get("/", headers={"Host": "this-machine.example"}).status_code == 200


def test_it_runs_until_it_is_interrupted(busy, tmp_path):
    command = [sys.executable, "-m", "igr", "explore", "--no-browser", "--port", str(busy)]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        url = re.search(r"http://\S+(?=;)", process.stdout.readline())[0]
        with urllib.request.urlopen(url, timeout=20) as answer:
            assert "igr explore" in answer.read().decode()
        elsewhere = urllib.request.Request(url, headers={"Host": "elsewhere.example"})
        with pytest.raises(urllib.error.HTTPError, match="400") as refused:
            urllib.request.urlopen(elsewhere, timeout=20)
        refused.value.close()
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "")
    assert re.fullmatch(r"igr: port \d+ is taken, so this is port \d+\n", errors)
    assert not any(tmp_path.iterdir())
