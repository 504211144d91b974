"""The paper's numbers are transcribed, and each has a spec."""

import re
from pathlib import Path

import pytest

from igr.paper.methods import METHODS
from igr.paper.published import DATASETS, PUBLISHED, Published
from igr.paper.specs import SPECS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tex():
    path = ROOT.parent / "shared" / "paper" / "igr.tex"
    if not path.exists():
        pytest.skip(f"the paper's source is not at {path}")
    return path.read_text(encoding="utf-8")


def table_of(tex, label):
    """(name of the row, its three cells) of the tabular before a label, with \\multirow in front where it is there."""
    before = tex[: tex.index(rf"\label{{{label}}}")]
    body = before[before.rindex(r"\begin{tabular}") : before.rindex(r"\end{tabular}")]
    cell = re.compile(r"(\\textbf\{)?(-\d+\.\d+)\s*\$\\pm\$\s*(\d+\.\d+)")
    for row in re.split(r"(?=\\multirow|\\textcolor)", body):
        if heading := re.match(r"\\multirow\{4\}\{\*\}\{([\w-]+)\}", row):
            yield heading[1], None
        if name := re.match(r"\\textcolor\{\w+\}\{\\textbf\{([\w+ -]+)\}\}", row):
            yield name[1], [Published(float(value), float(sd), bool(bold)) for bold, value, sd in cell.findall(row)]


def row_id(name):
    method, *options = name.split(" + ")
    return "+".join([{each.label: key for key, each in METHODS.items()}[method], *map(str.lower, options)])


def test_table_1_is_transcribed(tex):
    found, architecture = {}, None
    for name, cells in table_of(tex, "rest_cat"):
        if cells is None:
            architecture = name.lower().replace("-", "")
            continue
        for dataset, cell in zip(DATASETS, cells, strict=True):
            found[f"table1/{dataset}/{architecture}/{row_id(name)}"] = cell
    assert len(found) == 48
    assert found == {id: cell for id, cell in PUBLISHED.items() if id.startswith("table1/")}


def test_table_of_train_elbos_is_transcribed(tex):
    found = {
        f"train-elbo/{dataset}/{row_id(name)}": cell
        for name, cells in table_of(tex, "ta:vae_tr")
        for dataset, cell in zip(DATASETS, cells, strict=True)
    }
    assert len(found) == 24
    assert found == {id: cell for id, cell in PUBLISHED.items() if id.startswith("train-elbo/")}


@pytest.mark.parametrize(
    ("label", "kind", "count"), [("ap:table_relax", "relax", 4), ("ap:wo", "s4", 5)], ids=["relax", "s4"]
)
def test_tables_of_other_estimators_are_transcribed(tex, label, kind, count):
    found = {
        f"{kind}/mnist/nonlinear/{'gs+uspg' if name == 'USPGBL' else row_id(name)}": cell
        for name, (cell,) in table_of(tex, label)
    }
    assert len(found) == count
    assert found == {id: cell for id, cell in PUBLISHED.items() if id.startswith(f"{kind}/")}


def test_every_published_number_has_a_spec():
    assert {id for id, spec in SPECS.items() if spec.paper is not None} == PUBLISHED.keys()
    assert all(SPECS[id].paper is cell for id, cell in PUBLISHED.items())
    assert str(SPECS["table1/mnist/linear/igr-i+sl"].paper) == "-94.18 ± 0.37"
