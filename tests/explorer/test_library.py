"""The tables and curves that the explorer shows are those of the records that come with the repository."""

import json
from pathlib import Path

import numpy as np
import pytest

from igr.explorer.library import COURSES, Library

RESULTS = Path(__file__).parents[2] / "results" / "ours"


@pytest.fixture(scope="module")
def library():
    return Library(RESULTS)


def test_every_table_can_be_asked_for(library):
    keys = [(each.name, *each.places) for each in library.tables]
    assert len(set(keys)) == len(keys)
    assert ("Table 1", "MNIST", "linear") in keys
    assert ("Structured output prediction", "MNIST", "") in keys
    assert ("Total variation from the target", "", "") in keys
    for shown, key in zip(library.tables, keys, strict=True):
        assert library.table(*key) is shown
    assert library.table("Table 7", "", "") is None


def test_cells_are_those_of_the_rows(library):
    shown = library.table("Table 1", "MNIST", "linear")
    assert {cell.label for cell in library.cells(shown)} == {row[0].text for row in shown.table.rows}
    assert all(cell.spec.startswith("table1/mnist/linear/") for cell in library.cells(shown))
    assert library.cells(library.table("Total variation from the target", "", "")) == []


def test_rows_of_another_table_are_found_there(library):
    shown = library.table("RELAX", "MNIST", "non-linear")
    found = {cell.spec for cell in library.cells(shown)}
    assert "table1/mnist/nonlinear/igr-i" in found
    assert "relax/mnist/nonlinear/gs+relax" in found


def test_bands_are_means_over_the_seeds_that_were_chosen(library):
    shown = library.table("Table 1", "MNIST", "linear")
    band = next(each for each in library.bands(shown, "elbo_continuous") if each.label == "IGR-I")
    lines = (RESULTS / "table1/mnist/linear/igr-i/records.jsonl").read_text().splitlines()
    honest = [each for each in map(json.loads, lines) if each["protocol"] == "honest"]
    chosen = [each for each in honest if "elbo_discrete" in each["selected"]]
    values = np.array([each["curves"]["elbo_continuous"] for each in chosen])
    assert len(values) > 1
    assert band.curve.x == pytest.approx(chosen[0]["curves"]["epoch"])
    assert band.curve.mean == pytest.approx(values.mean(0))
    assert band.curve.sd == pytest.approx(values.std(0, ddof=1))
    assert band.method == "igr-i"


def test_every_table_of_trained_models_has_curves(library):
    for shown in library.tables:
        names = library.curves(shown)
        assert names == [name for name in COURSES if name in names]
        assert bool(names) == bool(library.cells(shown))
        for name in names:
            assert library.bands(shown, name)


def test_models_that_nothing_relaxed_trains_have_no_curve_of_a_relaxed_bound(library):
    for shown in library.tables:
        bands = library.bands(shown, "elbo_continuous")
        assert not any("discrete KL" in band.label for band in bands)


@pytest.mark.parametrize("made", [True, False], ids=["empty", "missing"])
def test_no_records(made, tmp_path):
    folder = tmp_path / "results"
    if made:
        folder.mkdir()
    library = Library(folder)
    assert "records" in library.found
    assert "igr run" in library.found
    assert library.tables == ()
