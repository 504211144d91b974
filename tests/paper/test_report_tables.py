"""The tables of the report, from records made by hand: what is chosen, compared, marked, or absent."""

import numpy as np
import pytest
from report_cases import (
    ELBO,
    EVALUATION,
    GS,
    IGR_I,
    LINEAR,
    PUBLISHED,
    S100,
    S1000,
    SEEDS,
    TEST_BOUND,
    TEST_ELBO,
    Page,
    cell,
    failed,
    gumbel_cell,
    made,
    mean_sd,
    measured_twice,
    record,
    write,
)

from igr.paper.report import build
from igr.paper.specs import SPECS


def test_means_deviations_and_both_choices(tmp_path):
    first, second, *rest = Page(made(tmp_path, cell()).html).rows(LINEAR)
    for row, tau, by in ((first, 0.1, "discrete ELBO"), (second, 0.5, "bound")):
        difference = np.mean(PUBLISHED[tau]) - -94.65
        assert row == {
            "method": "IGR-I",
            "τ chosen by": by,
            "τ": f"{tau:g}",
            "n": "3",
            "paper": "−94.65 ± 0.14",
            S100: mean_sd(np.array(PUBLISHED[tau]) - 3),
            S1000: mean_sd(PUBLISHED[tau]),
            "Δ to the paper": f"{difference:+.2f}".replace("-", "−"),
            "bound m = 1000": mean_sd(TEST_BOUND[tau]),
            "discrete ELBO test": mean_sd(TEST_ELBO[tau]),
            "failed of all members": "0 of 6",
            "minutes of all members": "2.2",  # 132.5 seconds
        }
    assert first["bound m = 1000"] == "−101.67 ± 1.53"  # by hand
    assert second["Δ to the paper"] == "+1.48"
    assert len(rest) == 7  # the other cells of this table, without records


def test_train_elbo_has_the_papers_own_number(tmp_path):
    first, second, *_ = Page(made(tmp_path, cell()).html).rows("Discretized train ELBO: MNIST, linear")
    assert first["paper"] == second["paper"] == "−131.34 ± 0.15"
    assert first["discrete ELBO train"] == mean_sd(np.array(ELBO[0.1]) + 1)
    assert second["discrete ELBO train"] == mean_sd(np.array(ELBO[0.5]) + 1)
    assert first["Δ to the paper"] == f"+{np.mean(ELBO[0.1]) + 1 + 131.34:.2f}"


def test_absent_is_absent(tmp_path):
    report = made(tmp_path, cell())
    page = Page(report.html)
    for row in page.rows(LINEAR)[2:]:
        assert row["method"].endswith(" no records yet")
        assert row["paper"].startswith("−")  # the paper's number is there
        assert {value for name, value in row.items() if name not in ("method", "paper")} == {"—"}
    assert page.titles()[:2] == [LINEAR, "Discretized train ELBO: MNIST, linear"]  # no table without records
    assert "No records yet: 47 of 48 cells" in page.text
    for text in (page.text, report.markdown.read_text()):
        assert "nan" not in text.lower().split()
        assert "None" not in text
    assert "AIS on" not in page.text


def test_without_marks_the_records_choose_and_without_test_numbers_there_are_none(tmp_path):
    pairs = [(tau, seed) for tau in (0.1, 0.5) for seed in SEEDS]
    rows = [record(tau=tau, seed=seed, elbo=-100 - abs(tau - 0.5), bound=-90 - tau) for tau, seed in pairs]
    first, second, *_ = Page(made(tmp_path, rows).html).rows(LINEAR)
    assert (first["τ"], second["τ"]) == ("0.5", "0.1")
    assert {first[name] for name in (S100, S1000, "Δ to the paper", "bound m = 1000", "discrete ELBO test")} == {"—"}


def test_marks_that_the_records_contradict_are_pointed_out(tmp_path):
    rows = cell()
    for row in rows:  # the marks of the two temperatures, exchanged
        row["selected"] = [{"elbo_discrete": "log_likelihood", "log_likelihood": "elbo_discrete"}[row["selected"][0]]]
    page = Page(made(tmp_path, rows).html)
    assert [row["τ"] for row in page.rows(LINEAR)[:2]] == ["0.5", "0.1"]  # test numbers belong to what was marked
    assert "by these records elbo_discrete chooses τ = 0.1, which is not what the run marked" in page.text


def test_an_unfinished_cell_says_so(tmp_path):
    rows = [row | {"selected": []} for row in cell()][:-1]
    page = Page(made(tmp_path, rows).html)
    assert [row["τ"] for row in page.rows(LINEAR)[:2]] == ["0.1", "0.1"]  # the only temperature with all its seeds
    assert "IGR-I: 5 of 6 members have records." in page.text


def test_without_numbers_nothing_is_chosen(tmp_path):
    page = Page(made(tmp_path, [row | {"selected": [], "metrics": {}} for row in cell()]).html)
    assert {row["τ"] for row in page.rows(LINEAR)} == {"—"}
    assert "IGR-I: nothing is chosen by these records" in page.text


def test_failed_members_show(tmp_path):
    rows = cell()
    rows[1] = failed(rows[1])
    page = Page(made(tmp_path, rows).html)
    first, second, *_ = page.rows(LINEAR)
    assert first["failed of all members"] == second["failed of all members"] == "1 of 6"
    assert (first["n"], second["n"]) == ("2 of 3", "3")
    assert first["discrete ELBO test"] == mean_sd([TEST_ELBO[0.1][0], TEST_ELBO[0.1][2]])
    assert "IGR-I: 1 of 6 failed (τ = 0.1: 1)." in page.text


def test_a_cell_in_which_all_failed(tmp_path):
    page = Page(made(tmp_path, [failed(row | {"selected": []}) for row in cell()]).html)
    first, *_ = page.rows(LINEAR)
    assert (first["τ"], first["failed of all members"]) == ("—", "6 of 6")
    assert "IGR-I: nothing is chosen by these records" in page.text


def test_prior_temperature_of_gumbel_softmax_shows(tmp_path):
    rows = Page(made(tmp_path, cell() + gumbel_cell()).html).rows(LINEAR)
    by_label = {(row["method"], row["τ chosen by"]): row for row in rows}
    best = by_label["GS", "discrete ELBO"]
    assert (best["τ"], best["prior τ GS"]) == ("1", "0.75")
    assert by_label["IGR-I", "discrete ELBO"]["prior τ GS"] == "—"


def test_annealed_importance_sampling_stands_beside_the_bound_on_the_same_images(tmp_path):
    rows = cell()
    for i, row in enumerate(rows):
        row["metrics"]["test"] |= {"log_likelihood_ais": -95.0 - i, "log_likelihood_subset": -97.0 - i}
        row["settings"] |= {"evaluation": EVALUATION | {"ais_images": 50, "ais_chains": 8, "ais_temperatures": 200}}
    first, second, *_ = (page := Page(made(tmp_path, rows).html)).rows(LINEAR)
    assert first["AIS 50 images"] == mean_sd([-95, -96, -97])
    assert second["bound same images"] == mean_sd([-100, -101, -102])
    assert "AIS on 50 test images with 8 chains and 200 temperatures" in page.text


BELIEVED = "is to be believed, and below it"


def test_annealing_that_contradicts_the_bound_is_pointed_out(tmp_path):
    rows = measured_twice(IGR_I, 0.25, (-91.0, -92.0, -93.0), (-94.0, -95.0, -96.0))
    rows += measured_twice(IGR_I + "+sl", 0.5, (-88.0, -89.0, -87.0), (-98.0, -98.5, -99.0))
    sd = np.hypot(np.std([-91, -92, -93], ddof=1), np.std([-88, -89, -87], ddof=1))
    spread = np.hypot(np.std([-94, -95, -96], ddof=1), np.std([-98, -98.5, -99], ddof=1))
    text = Page(made(tmp_path, rows).html).text
    assert text.count(BELIEVED) == 1  # though both criteria have chosen the same
    assert (
        f"IGR-I + SL at τ = 0.5 is above IGR-I at τ = 0.25 by 4.00 ± {sd:.2f} according to AIS, which is to be "
        f"believed, and below it by 3.50 ± {spread:.2f} according to the bound on the same images."
    ) in text
    short = Page(made(tmp_path / "short", [row | {"smoke": True} for row in rows]).html)
    assert BELIEVED not in short.text  # nor is it compared with the paper
    assert "Differences to the paper" in text
    assert "Differences to the paper" not in short.text


@pytest.mark.parametrize(
    ("ais", "subset", "images"),
    [
        ((-88.0, -89.0, -87.0), (-92.0, -93.0, -94.0), 50),
        ((-89.4, -90.4, -88.4), (-98.0, -99.0, -100.0), 50),  # 2.6 apart, 1.41 is the deviation
        ((-88.0, -89.0, -87.0), (-96.6, -97.6, -98.6), 50),
        ((-88.0, -89.0, -87.0), (-98.0, -99.0, -100.0), 40),
        ((-88.0, None, None), (-98.0, -99.0, -100.0), 50),
    ],
    ids=["same order", "within error", "bounds within error", "other images", "one seed"],
)
def test_annealing_that_does_not_contradict_the_bound_is_not(tmp_path, ais, subset, images):
    rows = measured_twice(IGR_I, 0.25, (-91.0, -92.0, -93.0), (-94.0, -95.0, -96.0))
    rows += measured_twice(IGR_I + "+sl", 0.5, ais, subset, images)
    assert BELIEVED not in Page(made(tmp_path, rows).html).text


def test_a_value_that_is_not_there_is_left_out_of_the_mean(tmp_path):
    rows = cell()
    del rows[1]["metrics"]["test"]["log_likelihood"]
    for row in rows[3:]:
        del row["metrics"]["test"]["log_likelihood_published_1000"]
    report = made(tmp_path, rows)
    first, second, *_ = Page(report.html).rows(LINEAR)
    assert first["bound m = 1000"] == mean_sd([TEST_BOUND[0.1][0], TEST_BOUND[0.1][2]]) + " n = 2"
    assert (first["n"], first["discrete ELBO test"]) == ("3", mean_sd(TEST_ELBO[0.1]))
    assert (second[S1000], second["Δ to the paper"]) == ("—", "—")
    assert f"{mean_sd([TEST_BOUND[0.1][0], TEST_BOUND[0.1][2]])} (n = 2)" in report.markdown.read_text()


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        ("fmnist", "no ELU, and its scale is at least 0.1"),
        ("omniglot", "another split than the published code, and ink"),
    ],
    ids=["fmnist", "omniglot"],
)
def test_what_is_not_comparable_has_no_difference(tmp_path, dataset, reason):
    spec = IGR_I.replace("mnist", dataset)
    honest, published = (
        Page(build([write(tmp_path / name, cell(spec, protocol=name))], tmp_path / f"out-{name}").html)
        for name in ("honest", "published")
    )
    tables = [name for name in honest.titles() if name.startswith(("Table 1: ", "Discretized train ELBO: "))]
    assert len(tables) == 2
    for name in tables:
        assert {row["Δ to the paper"] for row in honest.rows(name)} == {"—"}
        assert all(row["Δ to the paper"][0] in "+−" for row in published.rows(name)[:2])
    assert honest.text.count("Δ is left out: ") == honest.text.count(reason) == 2
    assert "Δ is left out" not in published.text


def test_what_the_paper_prints_bold_is_bold(tmp_path):
    report = made(tmp_path, cell())
    assert SPECS[IGR_I].paper.bold
    assert not SPECS[GS].paper.bold
    text, page = report.markdown.read_text(encoding="utf-8"), report.html.read_text(encoding="utf-8")
    assert "| **−94.65 ± 0.14** |" in text
    assert "| −106.17 ± 1.00 |" in text
    assert "<td><strong>−94.65 ± 0.14</strong></td>" in page
    assert "<td>−106.17 ± 1.00</td>" in page


def test_draws_of_frequency_tables_and_their_error_are_told(tmp_path):
    evaluation = {"evaluation": EVALUATION | {"train_table": 2000}}
    rows = [*cell(), *cell("table1/mnist/linear/igr-planar"), *cell("table1/mnist/linear/igr-sb")]
    for i, row in enumerate(rows):
        row["settings"] |= evaluation
        if row["settings"]["method"] == "igr-sb":
            row["metrics"]["test"]["table_deviation"] = 0.001 * i
    text = Page(made(tmp_path, rows).html).text
    draws = "q(z|x) is a table of 20,000 draws, of 2,000 on the training split, mixed with a little of the uniform."
    assert f"IGR-Planar, IGR-SB: {draws}" in text
    assert text.count(draws) == 1
    assert "IGR-SB: largest error of a frequency table, checked on a few images: 0.017." in text


def test_one_seed_has_no_deviation(tmp_path):
    first, *_ = Page(made(tmp_path, [row for row in cell() if row["seed"] == 1]).html).rows(LINEAR)
    assert (first["discrete ELBO test"], first["n"]) == ("−119.50", "1")


def test_protocols_are_not_mixed(tmp_path):
    published = cell(protocol="published")
    for row in published:
        row["metrics"]["test"] = {name: value - 50 for name, value in row["metrics"]["test"].items()}
    page = Page(made(tmp_path, [*cell(), *published]).html)
    assert page.titles().count(LINEAR) == 2
    ours, theirs = ([row for row in table[1:] if row[0] == "IGR-I"] for title, table in page.tables if title == LINEAR)
    assert mean_sd(TEST_ELBO[0.1]) in ours[0]
    assert mean_sd(np.array(TEST_ELBO[0.1]) - 50) in theirs[0]
    assert "τ is chosen on the test split" in page.text


def test_rows_beyond_the_paper_have_a_table_of_their_own(tmp_path):
    page = Page(made(tmp_path, cell() + cell("beyond/mnist/linear/igr-i+discrete+hard")).html)
    first, second = page.rows("Beyond the paper: MNIST, linear")
    assert first["method"] == "IGR-I + discrete KL + hard"
    assert first["bound m = 1000"] == mean_sd(TEST_BOUND[0.1])
    assert second["bound m = 1000"] == mean_sd(TEST_BOUND[0.5])
    assert "paper" not in first
    cells = sum(spec.startswith("beyond/") for spec in SPECS)
    assert f"No records yet: {cells - 1} of {cells} cells" in page.text


def test_settings_that_are_not_the_specs_are_named(tmp_path):
    rows = [row | {"settings": row["settings"] | {"epochs": 20}} for row in cell()]
    assert "IGR-I: epochs 20, where the spec says 300." in Page(made(tmp_path, rows).html).text


def test_settings_that_only_the_spec_or_the_records_have_are_named(tmp_path):
    """Usual values are in neither: what is there alone is another."""
    rows = [row | {"settings": row["settings"] | {"onto": "vertex", "train_images": 300}} for row in cell()]
    text = Page(made(tmp_path / "more", rows).html).text
    assert "IGR-I: train images 300, where the spec says 50000." in text
    assert "IGR-I: onto vertex, where the spec says what is usual." in text
    rows = cell("beyond/mnist/linear/igr-i+discrete")
    for row in rows:
        del row["settings"]["parameters"]
    assert "parameters what is usual, where the spec says bounded." in Page(made(tmp_path / "less", rows).html).text


def test_same_cell_on_two_devices_is_two_rows_and_a_copy_is_none(tmp_path):
    other = [row | {"device": "cpu"} for row in cell()]
    write(tmp_path / "records" / "copy", cell())
    rows = Page(made(tmp_path, cell() + other).html).rows(LINEAR)
    assert [row["method"] for row in rows[:4]] == [*["IGR-I (NVIDIA H200)"] * 2, *["IGR-I (cpu)"] * 2]
    assert {row["n"] for row in rows[:4]} == {"3"}
