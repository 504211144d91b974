"""The curves that the report draws, and the pictures beside its records."""

import base64
import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib.image import imsave
from report_cases import (
    BOUND,
    ELBO,
    FOUR,
    IGR_I,
    SEEDS,
    TEST_ELBO,
    Page,
    cell,
    estimated_cell,
    gumbel_cell,
    lines_of,
    made,
    record,
    write,
)

from igr.paper.methods import METHODS
from igr.paper.report import ReportError, build, collect
from igr.paper.report.figures import CONTINUOUS, DISCRETE, TAU, against, over_epochs


def test_every_figure_is_written_as_a_picture(tmp_path):
    report = made(tmp_path, cell() + gumbel_cell() + cell(protocol="published"))
    assert {path.name for path in report.figures} == {
        f"{figure}-table1-mnist-linear-{protocol}.svg"
        for figure in ("continuous-elbo", "temperature")
        for protocol in ("honest", "published")
    }
    for path in report.figures:
        drawing = ElementTree.fromstring(path.read_text(encoding="utf-8"))
        assert drawing.tag.endswith("svg")
        assert len(list(drawing.iter("{http://www.w3.org/2000/svg}path"))) > 30
        assert METHODS["igr-i"].colour in path.read_text(encoding="utf-8")
    page = Page(report.html)
    assert "on the validation split" in page.text
    assert "on the test split" in page.text


def test_continuous_elbo_is_the_mean_over_seeds_at_the_chosen_temperature(tmp_path):
    cells = collect([write(tmp_path, cell())]).cells
    [axes] = over_epochs(cells, CONTINUOUS).axes
    [(colour, data)] = lines_of(axes)
    epochs = np.array([1, 10, 100, 200, 300])
    assert colour == METHODS["igr-i"].colour
    np.testing.assert_allclose(data, np.stack([epochs, np.mean(ELBO[0.1]) - 7 - 100 / epochs], -1))
    band = axes.collections[0].get_paths()[0].vertices
    at_end = band[np.isclose(band[:, 0], 300), 1]
    wanted = np.mean(ELBO[0.1]) - 7 - 100 / 300 + np.std(ELBO[0.1], ddof=1) * np.array([-1, 1])
    np.testing.assert_allclose([at_end.min(), at_end.max()], wanted)
    [test] = [line.get_xydata()[0] for line in axes.lines if line.get_marker() == "D"]
    assert test[1] == pytest.approx(np.mean(TEST_ELBO[0.1]) - 7)
    low, high = axes.get_ylim()
    assert low < test[1] < high


def test_temperature_curves_follow_the_rules_of_the_prior_temperature(tmp_path):
    cells = collect([write(tmp_path, gumbel_cell())]).cells
    elbo, bound = against(cells, TAU).axes
    squares = np.mean(np.array(SEEDS) ** 2)
    low, high = -155 + squares, -150 + squares
    for (_, data), end in zip(lines_of(elbo), (high, high, high + 8), strict=True):  # rules τ, 0.5 and 0.75 τ
        np.testing.assert_allclose(data, [[0.5, low], [1.0, end]])
    assert len(lines_of(bound)) == 3
    ring = elbo.collections[-1]
    np.testing.assert_allclose(ring.get_offsets(), [[1.0, high + 8]])
    np.testing.assert_allclose(bound.collections[-1].get_offsets(), [[0.5, -110.5 + 2]])
    assert elbo.get_xscale() == "log"
    assert not math.isinf(elbo.get_ylim()[0])


def test_temperatures_at_which_models_collapse_do_not_flatten_the_others(tmp_path):
    collapsed = [record(IGR_I, 2.0, seed, elbo=-12_000.0, bound=-9_000.0) for seed in SEEDS]
    cells = collect([write(tmp_path, cell() + collapsed)]).cells
    for axes, best in zip(against(cells, TAU).axes, (-120, -97), strict=True):
        low, high = axes.get_ylim()
        assert 2 * best < low < 1.3 * best
        assert best < high < 0.8 * best


def test_variants_are_panels(tmp_path):
    cells = collect([write(tmp_path, cell() + cell(IGR_I + "+sl"))]).cells
    assert [axes.get_title() for axes in over_epochs(cells, CONTINUOUS).axes] == ["without SL", "+ SL"]
    assert len(against(cells, TAU).axes) == 4


def test_one_temperature_is_one_point(tmp_path):
    cells = collect([write(tmp_path, estimated_cell(FOUR + "gs+uspg"))]).cells
    for axes, wanted in zip(against(cells, TAU).axes, (ELBO, BOUND), strict=True):
        points = np.concatenate([each.get_offsets() for each in axes.collections if len(each.get_offsets())])
        np.testing.assert_allclose(points[-2:], [[1.0, np.mean(wanted[0.1])]] * 2)  # and its ring
        low, high = axes.get_xlim()
        assert 0 < low < 1 < high
        assert lines_of(axes) == []


def test_temperatures_of_estimators_share_a_panel(tmp_path):
    names = ("gs+rao", "igr-i+rao", "gs+reinmax", "gs+rloo")
    rows = [row for name in names for row in estimated_cell(f"beyond/mnist/linear/{name}")]
    figure = against(collect([write(tmp_path, rows)]).cells, TAU)
    assert [axes.get_title() for axes in figure.axes[:3]] == ["+ ReinMax", "+ Rao", "+ RLOO"]
    assert len(figure.axes) == 6


def test_records_without_a_curve_are_named(tmp_path):
    rows = cell("beyond/mnist/linear/gs+iwae")
    for row in rows:
        del row["curves"]["elbo_continuous"]
    report = made(tmp_path, rows + cell("beyond/mnist/linear/igr-i+iwae"))
    assert "Without a curve: GS + IWAE-5." in Page(report.html).text
    assert len(report.figures) == 2


def test_pictures_beside_the_records_are_shown(tmp_path):
    folder = write(tmp_path / "records" / IGR_I, cell())
    for name in ("reconstructions-elbo_discrete", "samples-log_likelihood", "samples-elbo_discrete-published", "other"):
        imsave(folder / f"{name}.png", np.random.default_rng(len(name)).random((28, 28)), cmap="gray")
    report = build([tmp_path / "records"], tmp_path / "out")
    page = Page(report.html)
    shown = [base64.b64decode(source.partition(",")[2]) for source in page.sources]
    names = ("reconstructions-elbo_discrete.png", "samples-log_likelihood.png")
    assert shown == [(folder / name).read_bytes() for name in names]
    assert "IGR-I: samples from the prior, τ = 0.5 chosen by the bound." in page.text
    copies = [path for path in report.figures if path.suffix == ".png"]
    assert [path.name for path in copies] == [f"table1-mnist-linear-igr-i-{name}" for name in names]
    assert [path.read_bytes() for path in copies] == shown


def test_pictures_of_two_runs_do_not_overwrite_each_other(tmp_path):
    for i, device in enumerate(("cpu", "cuda")):
        folder = write(tmp_path / "records" / device, cell(device=device))
        imsave(folder / "samples-elbo_discrete.png", np.random.default_rng(i).random((28, 28)), cmap="gray")
    report = build([tmp_path / "records"], tmp_path / "out")
    copies = [path.read_bytes() for path in report.figures if path.suffix == ".png"]
    assert copies == [path.read_bytes() for path in sorted((tmp_path / "records").rglob("*.png"))]


def test_a_picture_that_is_none_is_named(tmp_path):
    folder = write(tmp_path / "records", cell())
    (folder / "samples-elbo_discrete.png").write_bytes(b"GIF89a")
    with pytest.raises(ReportError, match=r"samples-elbo_discrete\.png is not a PNG picture"):
        build([folder], tmp_path / "out")


def test_models_trained_on_the_discrete_bound_have_no_figure_of_the_continuous_one(tmp_path):
    assert "Continuous ELBO" in Page(made(tmp_path / "relaxed", cell()).html).text
    rows = [each | {"settings": each["settings"] | {"objective": "discrete"}} for each in cell()]
    assert "Continuous ELBO" not in Page(made(tmp_path / "discrete", rows).html).text


def discrete_cell():
    """Trained on the discrete bound, with its curves."""
    epochs = [1, 10, 100, 200, 300]
    for row in cell("beyond/mnist/linear/igr-i+discrete"):
        elbo = row["metrics"]["validation"]["elbo_discrete"]
        bound, loss = ([sign * elbo - more / each for each in epochs] for sign, more in ((1, 90), (-1, -200)))
        yield row | {"curves": {"epoch": epochs, "elbo_discrete": bound, "train_loss": loss}}


def test_models_trained_on_the_discrete_bound_have_curves_of_it_beside_the_training_objective(tmp_path):
    report = made(tmp_path, rows := list(discrete_cell()))
    assert {path.name for path in report.figures} == {
        f"{name}-beyond-mnist-linear-honest.svg" for name in ("discrete-elbo", "temperature")
    }
    page = Page(report.html)
    assert "Discrete ELBO in training" in page.text
    assert "protocol honest: discrete ELBO, one sample for each image, on the validation split" in page.text
    [axes] = over_epochs(collect([write(tmp_path / "again", rows)]).cells, DISCRETE).axes
    (_, held_out), (_, trained) = lines_of(axes)
    epochs, best = np.array([1, 10, 100, 200, 300]), np.mean(ELBO[0.1])
    np.testing.assert_allclose(held_out, np.stack([epochs, best - 90 / epochs], -1))
    np.testing.assert_allclose(trained, np.stack([epochs, best - 200 / epochs], -1))
    [test] = [line.get_xydata()[0, 1] for line in axes.lines if line.get_marker() == "D"]
    assert test == pytest.approx(np.mean(TEST_ELBO[0.1]))
