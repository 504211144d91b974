"""The report's rows of other estimators: RELAX, four samples, and those beyond the paper."""

import numpy as np
from matplotlib.image import imsave
from report_cases import (
    ELBO,
    FOUR,
    IGR_I,
    LINEAR,
    PUBLISHED,
    RELAX,
    S1000,
    TEST_BOUND,
    TEST_ELBO,
    Page,
    cell,
    estimated_cell,
    failed,
    made,
    mean_sd,
    measured_twice,
    printed,
    write,
)

from igr.paper.report import build, terminal_table
from igr.paper.specs import SPECS

DIGITS = "digit for digit, those of Table 1 for linear models with SL, though the caption says non-linear"
WRONG_SIGN = "a loss whose KL has the wrong sign"
ONE_SAMPLE = "a one-sample value without importance weights"


def test_relax_stands_beside_the_rows_of_table_1(tmp_path):
    rows = cell("table1/mnist/nonlinear/igr-i") + estimated_cell(RELAX + "gs+relax") + cell(IGR_I)
    page = Page(made(tmp_path, rows).html)
    found = page.rows("RELAX: MNIST, non-linear")
    papers = {"IGR-I": "−94.18 ± 0.37", "GS": "−103.80 ± 0.73", "IGR-I + RELAX": "−82.03 ± 2.18"}
    names = ["IGR-I", "IGR-I", "GS no records yet", "IGR-I + RELAX no records yet", "GS + RELAX", "GS + RELAX"]
    assert [row["method"] for row in found] == names
    assert {row["method"].removesuffix(" no records yet"): row["paper"] for row in found} == papers | {
        "GS + RELAX": "−83.41 ± 1.11"
    }
    plain, _, _, _, first, second = found
    columns = [name for name in plain if name != "discrete ELBO train"]
    assert columns == [name for name in page.rows(LINEAR)[0] if name != "Δ to the paper"]  # those of Table 1
    assert plain["bound m = 1000"] == first["bound m = 1000"] == mean_sd(TEST_BOUND[0.1])
    assert (first["τ"], second["τ"]) == ("0.1", "0.5")
    assert second[S1000] == mean_sd(PUBLISHED[0.5])
    for reason in (DIGITS, WRONG_SIGN, ONE_SAMPLE):
        assert page.text.count(reason) == 1
    assert "GS + RELAX: τ is where the temperature starts, which is learned." in page.text
    assert "No records yet: 2 of 4 cells" in page.text
    assert "Four samples" not in page.titles()


def test_papers_rows_without_relax_are_those_of_linear_models():
    for method in ("igr-i", "gs"):
        assert SPECS[RELAX + method].paper[:2] == SPECS[f"table1/mnist/linear/{method}+sl"].paper[:2]


def test_four_samples_compare_test_elbos(tmp_path):
    plain = cell(FOUR + "gs")
    estimated = [row for name in ("igr-i+relax", "gs+relax", "gs+uspg") for row in estimated_cell(FOUR + name)]
    page = Page(made(tmp_path, plain + estimated).html)
    found = page.rows("Four samples: MNIST, non-linear")
    assert [row["method"] for row in found] == [
        "IGR-I no records yet",
        *["GS"] * 2,
        *["IGR-I + RELAX"] * 2,
        *["GS + RELAX"] * 2,
        "GS + USPGBL",
    ]
    papers = ["−118.45 ± 3.02", "−126.84 ± 2.20", "−100.58 ± 3.38", "−112.76 ± 1.72", "−106.89 ± 1.37"]
    assert list(dict.fromkeys(row["paper"] for row in found)) == papers
    _, gs, _, igr_relax, _, gs_relax, _, uspg = found
    for row, paper in ((gs, -126.84), (gs_relax, -112.76), (uspg, -106.89)):
        assert row["discrete ELBO test"] == mean_sd(TEST_ELBO[0.1])
        assert row["Δ to the paper"] == f"{np.mean(TEST_ELBO[0.1]) - paper:+.2f}".replace("-", "−")
    assert igr_relax["discrete ELBO test"] == mean_sd(TEST_ELBO[0.1])
    assert igr_relax["Δ to the paper"] == "—"
    assert gs["continuous ELBO test"] == mean_sd(np.array(TEST_ELBO[0.1]) - 7)
    assert {row["continuous ELBO test"] for row in found[3:]} == {"—"}
    assert WRONG_SIGN in page.text
    assert DIGITS not in page.text
    assert "hence a test ELBO" in page.text
    assert "batches of 200, a learning rate of 1e-3, 1,000 epochs and LeakyReLU" in page.text
    assert "No records yet: 1 of 5 cells" in page.text


def test_published_numbers_that_are_wrong_have_no_difference_under_any_protocol(tmp_path):
    rows = cell("table1/mnist/nonlinear/gs", protocol="published")
    rows += estimated_cell(FOUR + "igr-i+relax", protocol="published")
    page = Page(made(tmp_path, rows).html)
    assert all("Δ to the paper" not in row for row in page.rows("RELAX: MNIST, non-linear"))
    assert {row["Δ to the paper"] for row in page.rows("Four samples: MNIST, non-linear")} == {"—"}
    assert page.rows("Table 1: MNIST, non-linear")[3]["Δ to the paper"][0] in "+−"


def test_without_a_temperature_there_is_one_row_and_a_dash(tmp_path):
    rows = estimated_cell("beyond/mnist/linear/igr-i+rloo")
    rows[0] = failed(rows[0])
    report = made(tmp_path, rows)
    [row] = (page := Page(report.html)).rows("Beyond the paper: MNIST, linear")
    assert (row["method"], row["τ chosen by"], row["τ"], row["n"]) == ("IGR-I + RLOO", "—", "—", "2 of 3")
    assert row["discrete ELBO test"] == mean_sd(TEST_ELBO[0.1][1:])
    assert "IGR-I + RLOO: 1 of 3 failed." in page.text
    assert "IGR-I + RLOO: there is no temperature, and so nothing to choose." in page.text
    assert "Without a τ, drawn at 1: IGR-I + RLOO." in page.text
    line = next(line for line in printed(terminal_table(rows)).splitlines() if "IGR-I + RLOO" in line)
    assert line.split()[3:7] == ["—", "—", "—", "2"]


def test_all_estimators_beyond_the_paper_have_rows(tmp_path):
    ids = [id for id, spec in SPECS.items() if id.startswith("beyond/mnist/linear/") and "estimator" in spec.settings()]
    rows = [row for id in ids for row in estimated_cell(id)]
    report = made(tmp_path, rows + cell("beyond/mnist/linear/igr-i+iwae"))
    page = Page(report.html)
    names = ["ReinMax", "GapST", "Gumbel-Rao", "RLOO", "RELAX"]
    faster = {f"GS + {name} + rate 0.001" for name in ("ReinMax", "RLOO")}
    found = {row["method"] for row in page.rows("Beyond the paper: MNIST, linear")}
    assert found == {
        "IGR-I + IWAE-5",
        *(f"GS + {name}" for name in names),
        *(f"IGR-I + {name.replace('Gumbel', 'IGR')}" for name in names),
        *faster,
        "IGR-I + RLOO + free μ and log σ",
    }
    assert {path.name for path in report.figures} == {  # no relaxed model, no continuous ELBO
        "continuous-elbo-beyond-mnist-linear-honest.svg",
        "temperature-beyond-mnist-linear-honest.svg",
        "temperature-beyond-mnist-linear-estimators-honest.svg",
    }


def test_picture_without_a_temperature_is_shown_once(tmp_path):
    folder = write(tmp_path / "records", estimated_cell(FOUR + "gs+uspg"))
    for criterion in ("elbo_discrete", "log_likelihood"):
        imsave(folder / f"samples-{criterion}.png", np.random.default_rng(1).random((28, 28)), cmap="gray")
    page = Page(build([folder], tmp_path / "out").html)
    assert len(page.sources) == 1
    assert "GS + USPGBL: samples from the prior." in page.text


def test_annealing_that_contradicts_the_bound_needs_no_temperature(tmp_path):
    rows = measured_twice("beyond/mnist/linear/gs+rloo", 1.0, (-88.0, -89.0, -87.0), (-98.0, -99.0, -100.0))
    rows += measured_twice("beyond/mnist/linear/gs+relax", 0.5, (-91.0, -92.0, -93.0), (-94.0, -95.0, -96.0))
    assert "GS + RLOO is above GS + RELAX at τ = 0.5 by 4.00" in Page(made(tmp_path, rows).html).text


def test_tables_of_estimators_have_training_images_beside_test_images(tmp_path):
    rows = estimated_cell("beyond/mnist/linear/igr-i+rloo")
    [row] = Page(made(tmp_path, rows).html).rows("Beyond the paper: MNIST, linear")
    assert row["discrete ELBO train"] == mean_sd([elbo + 1 for elbo in ELBO[0.1]])
    assert row["discrete ELBO train"] != row["discrete ELBO test"]
