"""Every Python block of the README and of the site runs, in order, the blocks of one file sharing their names.

Tutorials are notebooks: their cells, and the expressions in their text, are run as well. The table of equations is
complete, and what it names is there; links between files lead somewhere.
"""

import re
import textwrap
import traceback
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest

import igr.lab.exact  # which `igr` does not import by itself

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("docs/tutorials/*.md")])
BLOCK = re.compile(
    r"^(?P<indent> *)```(?:python|\{code-cell\}(?:\n *:[^\n]*)*)\n(?P<source>.*?)^(?P=indent)```$"
    r"|\{eval\}`(?P<expression>[^`]+)`",
    re.MULTILINE | re.DOTALL,
)
# a quarter of a minute each; `make docs` runs them as well
SLOW = ("docs/tutorials/discrete_vae.md", "docs/tutorials/estimators.md")


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def blocks(text: str) -> list[tuple[int, str]]:
    """The (line, source) of each Python block, cell and expression."""
    return [
        (text.count("\n", 0, match.start(match.lastgroup)) + 1, textwrap.dedent(match[match.lastgroup]))
        for match in BLOCK.finditer(text)
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


@pytest.fixture
def figures() -> Iterator[None]:
    """Figures are drawn without a screen, and nothing of them is left to other tests."""
    matplotlib.use("agg")
    with matplotlib.rc_context():
        yield
    plt.close("all")


FILES = [
    pytest.param(file, id=name_of(file), marks=[pytest.mark.slow] if name_of(file) in SLOW else [])
    for file in (ROOT / "README.md", *PAGES)
    if blocks(file.read_text("utf-8"))
]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.usefixtures("figures", "one_thread")
def test_python_blocks(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(name_of(file), file.read_text("utf-8"))


def test_failure_names_file_and_line():
    text = "Prose.\n\n```python\nx = 1\n```\n\n- item\n\n  ```python\n  x += 1\n  x / 0\n  ```\n"
    assert blocks(text) == [(4, "x = 1\n"), (10, "x += 1\nx / 0\n")]
    with pytest.raises(AssertionError, match=r"^page\.md:11: ZeroDivisionError"):
        run("page.md", text)


def test_cells_and_expressions_are_blocks():
    text = "```{code-cell}\nx = 1\n```\n\nIt is {eval}`f'{x}'`.\n\n"
    text += "```{code-cell}\n:tags: [remove-cell]\n\nassert x == 2\n```\n"
    assert blocks(text) == [(2, "x = 1\n"), (5, "f'{x}'"), (9, "\nassert x == 2\n")]
    with pytest.raises(AssertionError, match=r"^page\.md:10: AssertionError"):
        run("page.md", text)
    with pytest.raises(AssertionError, match=r"^page\.md:1: NameError"):
        run("page.md", "It is {eval}`y`.")


# ------------------------------------------------------------------------------------------------------------ the table


def equations() -> list[tuple[str, str]]:
    """The first and the last cell of each row of the table in maths.md."""
    text = (ROOT / "docs" / "maths.md").read_text("utf-8")
    return re.findall(r"^\| ((?:eq\.|section) [^|]+) \|.*\| ([^|]+) \|$", text, re.MULTILINE)


def numbers(cell: str) -> list[int]:
    """The equations of a cell such as `eq. 2, 3` or `eq. 22 to 26 (appendix A)`."""
    words = re.match(r"eq\. ([\d, ]+)(to \d+)?|", cell)[0]
    found = [int(number) for number in re.findall(r"\d+", words)]
    return [*range(found[0], found[1] + 1)] if " to " in words else found


def test_every_equation_of_the_paper_is_in_the_table():
    assert numbers("eq. 2, 3") == [2, 3]
    assert numbers("eq. 22 to 24 (appendix A)") == [22, 23, 24]
    assert not numbers("section 4")
    listed = [number for first, _ in equations() for number in numbers(first)]
    assert listed == [*range(1, 40)]  # the paper numbers 39


def test_what_the_table_names_is_there():
    names = {name for _, code in equations() for name in re.findall(r"`igr\.([\w.]+)", code)}
    assert len(names) > 20
    for name in sorted(names):
        assert attrgetter(name)(igr) is not None


# ---------------------------------------------------------------------------------------------------------------- links


def links(text: str) -> list[str]:
    """The targets of links and images within the repository, without their anchors."""
    text = re.sub(r"^ *```.*?^ *```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    return [target.partition("#")[0] for target in targets if not re.match(r"\w+:|#", target)]


@pytest.mark.parametrize("file", [*sorted(ROOT.glob("*.md")), *PAGES], ids=name_of)
def test_links_lead_somewhere(file):
    missing = [target for target in links(file.read_text("utf-8")) if not (file.parent / target).exists()]
    assert not missing


def test_a_missing_link_is_found():
    assert links("[a](b.md#c), ![d](e.png), [f](https://g.org), [h](#i) and `[j](k.md)`") == ["b.md", "e.png"]
