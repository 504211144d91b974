"""The source is read, not imported: every import statement counts, at the top of a file or inside a function."""

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "igr"

# A module may import from its own layer and from those above it in this table; within a layer, as long as there is no
# cycle. "__init__" stands for the package's own face: whoever writes `import igr` depends on all that it re-exports.
LAYERS = (
    ("_checks",),
    ("_scalars", "_terms"),
    ("_simplex", "_draws", "_sample_terms", "_top_k", "functional", "quadrature", "kernels"),
    ("_suggest", "schedules"),
    ("_normal", "_stick_recovery", "_stick_jacobian", "recovery", "_locations", "_winner", "conditional"),
    ("_constraints", "_planar", "transforms"),
    (
        "_bases",
        "_maps",
        "_kl_forms",
        "_others",
        "_stick_ends",
        "_relaxation",
        "_gumbel",
        "distributions",
        "countable",
        "_kumaraswamy_forms",
        "kumaraswamy",
    ),
    ("kl",),
    ("prior", "estimators"),
    (
        "_planar_flow",
        "_bottleneck_parts",
        "_bottleneck",
        "nn",
        "_transform_properties",
        "_distribution_properties",
        "testing",
    ),
    ("__init__",),
    ("lab", "paper"),
    ("explorer", "_commands", "cli", "__main__"),
)
RANK = {module: rank for rank, layer in enumerate(LAYERS) for module in layer}
FILES = sorted(PACKAGE.rglob("*.py"))


def label(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def top_level(file: Path) -> str:
    """The first step below `igr`: "kl" for kl.py, "paper" for paper/report/tables.py."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


PLACED = [file for file in FILES if top_level(file) in RANK and label(file) != "__init__.py"]
LIBRARY = [file for file in PLACED if RANK[top_level(file)] < RANK["__init__"]]


def imports(tree: ast.AST, file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields (line, dotted name in parts) for everything that is imported, relative names made absolute."""
    package = ["igr", *file.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else []
            source = start + (node.module.split(".") if node.module else [])
            yield from ((node.lineno, [*source, alias.name]) for alias in node.names)


def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


def imported_modules(tree: ast.AST, file: Path) -> Iterator[tuple[int, str]]:
    """Yields (line, module of igr); a name that is no module, as in `from igr import GumbelSoftmax`, is "__init__"."""
    for line, parts in imports(tree, file):
        if parts[0] == "igr" and parts[1:] != ["__version__"]:
            yield line, parts[1] if len(parts) > 1 and parts[1] in RANK else "__init__"


def test_every_module_has_a_place():
    missing = {top_level(file) for file in FILES} - RANK.keys()
    assert not missing, f"no layer for {sorted(missing)}: give each a place in LAYERS of {Path(__file__).name}"


@pytest.mark.parametrize("file", PLACED, ids=label)
def test_imports_point_one_way(file):
    module = top_level(file)
    wrong = [
        f"{label(file)}:{line} imports {name!r}, which is in a later layer than {module!r}"
        for line, name in imported_modules(parse(file), file)
        if RANK[name] > RANK[module]
    ]
    assert not wrong, "\n".join([*wrong, "move the code, pass the value in, or import from the module that defines it"])


def test_no_cycles():
    graph: dict[str, set[str]] = {}
    for file in PLACED:
        names = {name for _, name in imported_modules(parse(file), file)}
        graph.setdefault(top_level(file), set()).update(names - {top_level(file)})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other in a circle: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("file", LIBRARY, ids=label)
def test_library_needs_torch_and_numpy_only(file):
    allowed = {"igr", "torch", "numpy", *sys.stdlib_module_names}
    if top_level(file) == "kernels":
        allowed.add("triton")  # comes with torch, where there is a GPU for it
    wrong = [
        f"{label(file)}:{line} imports {'.'.join(parts)!r}"
        for line, parts in imports(parse(file), file)
        if parts[0] not in allowed
    ]
    assert not wrong, "\n".join([*wrong, "the library part may use torch, numpy and the standard library only"])


def test_package_face_is_lazy():
    file = PACKAGE / "__init__.py"
    wrong = [
        f"{label(file)}:{line} imports {'.'.join(parts)!r}"
        for statement in parse(file).body
        if not isinstance(statement, ast.FunctionDef)
        if not (isinstance(statement, ast.If) and ast.unparse(statement.test).endswith("TYPE_CHECKING"))
        for line, parts in imports(statement, file)
        if parts[0] not in sys.stdlib_module_names
    ]
    assert not wrong, "\n".join([*wrong, "re-export it through __getattr__, so that `import igr` stays free of torch"])


@pytest.mark.parametrize(
    ("source", "file", "expected"),
    [
        ("from igr.kl import monte_carlo_kl", "nn.py", ["kl"]),
        ("import igr.paper.report as report", "cli.py", ["paper"]),
        ("from igr import functional, GumbelSoftmax", "nn.py", ["functional", "__init__"]),
        ("import igr", "nn.py", ["__init__"]),
        ("from igr import __version__", "cli.py", []),
        ("from . import nn", "kl.py", ["nn"]),
        ("from .nn import Linear", "kl.py", ["nn"]),
        ("from ..nn import Linear", "estimators/relax.py", ["nn"]),
        ("from .data import load", "paper/models.py", ["paper"]),
        ("from ...functional import harden", "paper/report/tables.py", ["functional"]),
        ("def f():\n    from . import paper", "kl.py", ["paper"]),
        ("import torch, math", "kl.py", []),
    ],
)
def test_import_statements_are_understood(source, file, expected):
    assert [name for _, name in imported_modules(ast.parse(source), PACKAGE / file)] == expected
