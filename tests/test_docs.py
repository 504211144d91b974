"""Every Python block of the README and of the site runs, in order, the blocks of one file sharing their names."""

import re
import textwrap
import traceback
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^(?P<indent> *)```python\n(?P<source>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[int, str]]:
    """The (line, source) of each Python block."""
    return [
        (text.count("\n", 0, match.start("source")) + 1, textwrap.dedent(match["source"]))
        for match in FENCE.finditer(text)
    ]


def run(name: str, text: str) -> None:
    namespace = {"__name__": "__main__"}
    for line, source in blocks(text):
        try:
            exec(compile("\n" * (line - 1) + source, name, "exec"), namespace)
        except Exception as error:
            frames = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
            where = error.lineno if isinstance(error, SyntaxError) else frames[-1]
            raise AssertionError(f"{name}:{where}: {type(error).__name__}: {error}") from error


FILES = [file for file in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))) if blocks(file.read_text("utf-8"))]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_python_blocks(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(file.relative_to(ROOT).as_posix(), file.read_text("utf-8"))


def test_failure_names_file_and_line():
    text = "Prose.\n\n```python\nx = 1\n```\n\n- item\n\n  ```python\n  x += 1\n  x / 0\n  ```\n"
    assert blocks(text) == [(4, "x = 1\n"), (10, "x += 1\nx / 0\n")]
    with pytest.raises(AssertionError, match=r"^page\.md:11: ZeroDivisionError"):
        run("page.md", text)
