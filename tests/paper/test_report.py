import base64
import io
import json
import math
import os
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import typer
from matplotlib.colors import to_hex
from matplotlib.image import imsave
from rich.console import Console
from typer.testing import CliRunner

from igr._commands import report as command
from igr.paper import approximate_table
from igr.paper.methods import METHODS
from igr.paper.records import read
from igr.paper.report import ReportError, build, collect, terminal_table
from igr.paper.report.figures import CONTINUOUS, DISCRETE, TAU, against, over_epochs
from igr.paper.specs import SPECS

APPROXIMATIONS = Path(__file__).parents[2] / "results" / "ours" / "approximate"
IGR_I, GS = "table1/mnist/linear/igr-i", "table1/mnist/linear/gs"
LINEAR = "Table 1: MNIST, linear"
RELAX, FOUR = "relax/mnist/nonlinear/", "s4/mnist/nonlinear/"
EVALUATION = {"m": 1000, "published": 100, "table": 20000, "images": None}
VOID = {"meta", "img", "br", "link"}

# ------------------------------------------------------------------------------------------------- records made by hand


def record(spec=IGR_I, tau=0.1, seed=1, elbo=-120.0, bound=-100.0, *, prior=None, protocol="honest", **more):
    """A finished member with its numbers on the split that choices look at."""
    settings = SPECS[spec].settings() if spec in SPECS else SPECS[IGR_I].settings()
    numbers = {"elbo_discrete": elbo, "elbo_continuous": elbo - 7, "log_likelihood": bound}
    epochs = [1, 10, 100, 200, 300]
    return {
        "spec": spec,
        "protocol": protocol,
        "seed": seed,
        "tau": tau,
        "prior_temperature": prior,
        "smoke": False,
        "device": "NVIDIA H200",
        "settings": settings | {"dtype": "float32", "data": "files", "evaluation": EVALUATION},
        "status": "finished",
        "metrics": {
            "train": {"elbo_discrete": elbo + 1, "elbo_continuous": elbo - 6},
            "validation" if protocol == "honest" else "test": numbers,
        },
        "selected": [],
        "curves": {"epoch": epochs, "elbo_continuous": [elbo - 7 - 100 / epoch for epoch in epochs]},
        "synthetic": False,
        "commit": "0123abc",
        "dirty": False,
        "version": "0.1.0",
        "python": "3.12.1",
        "torch": "2.11.0",
        "host_cpus": 16,
        "seconds": 120.0,
        "seconds_evaluation": 12.5,
        "members": 6,
        "date": "2026-11-15T15:00:00+00:00",
    } | more


def chosen(row, *criteria, **numbers):
    """The same, marked as chosen, with its numbers on the test split."""
    test = row["metrics"].get("test", {}) | numbers
    return row | {"selected": list(criteria), "metrics": row["metrics"] | {"test": test}}


def failed(row):
    curves = {"epoch": [1, 10], "elbo_continuous": [-500.0, None]}
    return row | {"status": "failed", "failed_epoch": 3, "metrics": {}, "curves": curves}


SEEDS = (1, 2, 3)
ELBO = {0.1: (-120.0, -121.0, -125.0), 0.5: (-130.0, -131.0, -129.0)}  # validation
BOUND = {0.1: (-101.0, -102.5, -103.0), 0.5: (-98.0, -97.0, -99.5)}
TEST_ELBO = {0.1: (-119.5, -120.25, -124.0), 0.5: (-129.0, -130.5, -128.0)}
TEST_BOUND = {0.1: (-100.0, -102.0, -103.0), 0.5: (-97.5, -96.75, -99.0)}
PUBLISHED = {0.1: (-96.0, -98.5, -97.25), 0.5: (-94.0, -93.5, -92.0)}


def cell(spec=IGR_I, **more):
    """Two temperatures and three seeds: the discrete ELBO chooses 0.1, the bound chooses 0.5."""
    rows = []
    for tau, criterion in [(0.1, "elbo_discrete"), (0.5, "log_likelihood")]:
        for i, seed in enumerate(SEEDS):
            numbers = {
                "elbo_discrete": TEST_ELBO[tau][i],
                "elbo_continuous": TEST_ELBO[tau][i] - 7,
                "log_likelihood": TEST_BOUND[tau][i],
                "log_likelihood_published_100": PUBLISHED[tau][i] - 3,
                "log_likelihood_published_1000": PUBLISHED[tau][i],
            }
            row = record(spec, tau, seed, ELBO[tau][i], BOUND[tau][i], **more)
            rows.append(chosen(row, criterion, **numbers))
    return rows


def gumbel_cell():
    """The rules τ, 0.5 and 0.75 τ at τ = 0.5, where two of them are one, and at τ = 1, where the last is best."""
    pairs = [(0.5, 0.5), (0.5, 0.375), (1.0, 1.0), (1.0, 0.5), (1.0, 0.75)]
    rows = []
    for tau, prior in pairs:
        elbo, bound = -160 + 10 * tau + 8 * (prior == 0.75), -110 - tau
        rows += [record(GS, tau, seed, elbo + seed**2, bound + seed, prior=prior, members=15) for seed in SEEDS]
    return rows


def write(folder, rows, name="records.jsonl"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def made(tmp_path, rows):
    return build([write(tmp_path / "records", rows)], tmp_path / "out")


def mean_sd(values):
    """As the tables print it, by numpy."""
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}".replace("-", "−")


# ------------------------------------------------------------------------------------------------ reading what was made


class Page(HTMLParser):
    """Reads a page, and minds that every element is closed in its turn."""

    def __init__(self, path):
        super().__init__()
        self.open, self.tags, self.ids, self.links, self.sources = [], set(), [], [], []
        self.text, self.caption, self.tables = "", "", []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, found in (("id", self.ids), ("href", self.links), ("src", self.sources)):
            found.extend(value for key, value in attrs if key == name)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "figcaption":
            self.caption = ""
        elif tag == "table":
            self.tables.append((self.caption, []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][1][-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if {"td", "th"} & set(self.open):
            self.tables[-1][1][-1][-1] += data.replace("\u00a0", " ")
        elif "figcaption" in self.open:
            self.caption += data

    def titles(self):
        return [title for title, _ in self.tables]

    def rows(self, title):
        """The only table of that caption, a dictionary for each row."""
        [(head, *rows)] = [table for name, table in self.tables if name == title]
        return [dict(zip(head, row, strict=True)) for row in rows]


S100, S1000 = "published formula, S = 100 not a bound", "published formula, S = 1000 not a bound"


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


def measured_twice(spec, tau, ais, subset, images=50):
    """A temperature and three seeds, by annealing and by the bound on the same images."""
    rows = []
    for seed, here, there in zip(SEEDS, ais, subset, strict=True):
        row = chosen(record(spec, tau, seed), "elbo_discrete", log_likelihood_ais=here, log_likelihood_subset=there)
        row["settings"] |= {"evaluation": EVALUATION | {"ais_images": images}}
        rows.append(row)
    return rows


BELIEVED = "is to be believed, and below it"


def test_annealing_that_contradicts_the_bound_is_pointed_out(tmp_path):
    rows = measured_twice(IGR_I, 0.25, (-91.0, -92.0, -93.0), (-94.0, -95.0, -96.0))
    rows += measured_twice(IGR_I + "+sl", 0.5, (-88.0, -89.0, -87.0), (-96.0, -96.5, -97.0))
    sd = np.hypot(np.std([-91, -92, -93], ddof=1), np.std([-88, -89, -87], ddof=1))
    text = Page(made(tmp_path, rows).html).text
    assert text.count(BELIEVED) == 1  # though both criteria have chosen the same
    assert (
        f"IGR-I + SL at τ = 0.5 is above IGR-I at τ = 0.25 by 4.00 ± {sd:.2f} according to AIS, which is to be "
        "believed, and below it by 1.50 according to the bound on the same images."
    ) in text
    short = Page(made(tmp_path / "short", [row | {"smoke": True} for row in rows]).html)
    assert BELIEVED not in short.text  # nor is it compared with the paper
    assert "Differences to the paper" in text
    assert "Differences to the paper" not in short.text


@pytest.mark.parametrize(
    ("ais", "subset", "images"),
    [
        ((-88.0, -89.0, -87.0), (-92.0, -93.0, -94.0), 50),
        ((-89.4, -90.4, -88.4), (-96.0, -97.0, -98.0), 50),  # 2.6 apart, 1.41 is the deviation
        ((-88.0, -89.0, -87.0), (-96.0, -97.0, -98.0), 40),
        ((-88.0, None, None), (-96.0, -97.0, -98.0), 50),
    ],
    ids=["same order", "within error", "other images", "one seed"],
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
    assert "No records yet: 68 of 69 cells" in page.text


def test_settings_that_are_not_the_specs_are_named(tmp_path):
    rows = [row | {"settings": row["settings"] | {"epochs": 20}} for row in cell()]
    assert "IGR-I: epochs 20, where the spec says 300." in Page(made(tmp_path, rows).html).text


def test_same_cell_on_two_devices_is_two_rows_and_a_copy_is_none(tmp_path):
    other = [row | {"device": "cpu"} for row in cell()]
    write(tmp_path / "records" / "copy", cell())
    rows = Page(made(tmp_path, cell() + other).html).rows(LINEAR)
    assert [row["method"] for row in rows[:4]] == [*["IGR-I (NVIDIA H200)"] * 2, *["IGR-I (cpu)"] * 2]
    assert {row["n"] for row in rows[:4]} == {"3"}


# ----------------------------------------------------------------------------------------------------- other estimators


def estimated_cell(spec, **more):
    """A cell that was trained by an estimator: without a relaxed model, some without a temperature that is used."""
    rows = cell(spec, **more)
    for row in rows:
        for numbers in [*row["metrics"].values(), row["curves"]]:
            numbers.pop("elbo_continuous", None)
    if SPECS[spec].temperatures != (1.0,):
        return rows
    return [row | {"tau": 1.0, "selected": ["elbo_discrete", "log_likelihood"]} for row in rows if row["tau"] == 0.1]


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
    rows = measured_twice("beyond/mnist/linear/gs+rloo", 1.0, (-88.0, -89.0, -87.0), (-96.0, -97.0, -98.0))
    rows += measured_twice("beyond/mnist/linear/gs+relax", 0.5, (-91.0, -92.0, -93.0), (-94.0, -95.0, -96.0))
    assert "GS + RLOO is above GS + RELAX at τ = 0.5 by 4.00" in Page(made(tmp_path, rows).html).text


# ----------------------------------------------------------------------------------------------------- the page as such


def test_page_needs_nothing_else_and_is_well_formed(tmp_path):
    report = made(tmp_path, cell() + gumbel_cell() + cell("beyond/mnist/linear/igr-i+discrete"))
    page, text = Page(report.html), report.html.read_text(encoding="utf-8")
    assert "http" not in text
    assert "@import" not in text
    assert "url(" not in text.replace("url(#", "")
    assert not page.tags & {"script", "link", "iframe", "object"}
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert len(page.ids) == len(set(page.ids))
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    assert all(link.startswith("#") for link in page.links)
    assert '<meta name="viewport" content="width=device-width' in text
    assert "prefers-color-scheme: dark" in text
    assert page.text.count("published formula") > 1
    assert "not a bound" in page.text
    assert "learning rate at 3e-4 and the length at 300 epochs" in page.text


def test_markdown_has_the_same_tables(tmp_path):
    report = made(tmp_path, cell() + gumbel_cell())
    lines = report.markdown.read_text(encoding="utf-8").splitlines()
    tables = [table for _, table in Page(report.html).tables]
    assert sum(line.startswith("|---") for line in lines) == len(tables)
    first = [line for line in lines if line.startswith("| IGR-I | discrete ELBO | 0.1 |")]
    assert mean_sd(TEST_ELBO[0.1]) in first[0]
    for line in lines:
        if line.startswith("!["):
            assert (report.markdown.parent / line.rpartition("(")[2].rstrip(")")).is_file()


def test_everything_is_escaped(tmp_path):
    nasty = '<b>&"|`x'
    rows = cell(f"table1/mnist/linear/{nasty}", device=nasty, commit=nasty, torch=nasty)
    report = made(tmp_path, [*rows, record(f"sop/{nasty}")])
    page = Page(report.html)
    assert "b" not in page.tags
    assert page.rows(LINEAR)[-1]["method"] == nasty
    text = report.markdown.read_text(encoding="utf-8")
    assert "<b>" not in text
    assert '\\<b\\>&"\\|\\`x' in text


def test_same_records_give_the_same_report(tmp_path):
    rows = cell() + gumbel_cell()
    first = build([write(tmp_path / "a", rows)], tmp_path / "out-a")
    half = write(tmp_path / "b" / "deep", rows[::-1][:9], "x.jsonl"), write(tmp_path / "b", rows[::-1][9:], "y.jsonl")
    second = build([half[1]], tmp_path / "out-b")
    files = [sorted(each.html.parent.rglob("*")) for each in (first, second)]
    assert [path.relative_to(tmp_path / "out-a") for path in files[0]] == [
        path.relative_to(tmp_path / "out-b") for path in files[1]
    ]
    assert not any(path.name.startswith(".") for path in files[0])  # nothing temporary is left
    for one, other in zip(*files, strict=True):
        assert one.is_dir() or one.read_bytes() == other.read_bytes()


# -------------------------------------------------------------------------------------------------------------- figures


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


def lines_of(axes):
    """Colour and data of the lines that have any."""
    found = [(to_hex(line.get_color()), np.asarray(line.get_xydata(), dtype=float)) for line in axes.lines]
    return [(colour, data) for colour, data in found if len(data) > 1]


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


# -------------------------------------------------------------------------------------------- other parts of the report


def test_approximations_are_the_table_that_is_there(tmp_path):
    report = build([APPROXIMATIONS], tmp_path)
    records = read(APPROXIMATIONS / "records.jsonl")
    rows = Page(report.html).rows("Total variation from the target")
    wanted = approximate_table.markdown(records).splitlines()[2:]
    assert ["| " + " | ".join(row.values()) + " |" for row in rows] == wanted
    assert "48 of 48 cells" in Page(report.html).text


def test_fits_cut_short_are_counted(tmp_path):
    first = next(each for each in read(APPROXIMATIONS / "records.jsonl") if each["protocol"] == "paper")
    short = first | {"states": first["states"][:1], "smoke": True}
    assert "1 fits were stopped before 1,000 steps" in Page(made(tmp_path, [short]).html).text


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


def test_tables_of_estimators_have_training_images_beside_test_images(tmp_path):
    rows = estimated_cell("beyond/mnist/linear/igr-i+rloo")
    [row] = Page(made(tmp_path, rows).html).rows("Beyond the paper: MNIST, linear")
    assert row["discrete ELBO train"] == mean_sd([elbo + 1 for elbo in ELBO[0.1]])
    assert row["discrete ELBO train"] != row["discrete ELBO test"]


def test_run_times_and_environment(tmp_path):
    rows = cell()
    rows[0] |= {"dirty": True}
    page = Page(made(tmp_path, rows).html)
    [times] = page.rows("Wall-clock time of each cell")
    assert times["members"] == "6"
    assert times["training seconds"] == "120.0"
    assert times["per member and epoch milliseconds"] == f"{1e3 * 120 / (6 * 300):.3g}"
    assert (times["device"], times["runs sharing the device"]) == ("NVIDIA H200", "1")
    assert "shared a device" not in page.text
    said = [tuple(row.values()) for row in page.rows("What the records say of code and machines")]
    assert ("commit", "0123abc + changes", "1") in said
    assert ("commit", "0123abc", "5") in said
    assert ("torch", "2.11.0", "6") in said
    assert "Of 6 records 1 come from code with uncommitted changes." in page.text


def test_times_of_cells_that_shared_a_device_say_so(tmp_path):
    rows = [each | {"sharing": 3} for each in cell()]
    page = Page(made(tmp_path, rows).html)
    assert page.rows("Wall-clock time of each cell")[0]["runs sharing the device"] == "3"
    assert "each took longer than alone: these times are not to be compared" in page.text
    assert f"{(rows[0]['seconds'] + rows[0]['seconds_evaluation']) / 60:.1f}, shared by 3 runs" in page.text


def test_commits_that_were_given_can_be_checked(tmp_path):
    rows = [row | {"dirty": None, "tree": "b" * 40, "trees": ["b" * 40]} for row in cell()]
    rows[0] |= {"trees": ["a" * 40, "b" * 40]}
    page = Page(made(tmp_path, rows).html)
    said = [tuple(row.values()) for row in page.rows("What the records say of code and machines")]
    assert ("tree", "b" * 40 + " of 0123abc", "5") in said
    assert ("tree", "a" * 40 + ", then " + "b" * 40 + " of 0123abc", "1") in said
    assert "The commit of 6 records was given" in page.text
    assert "git rev-parse COMMIT:src/igr" in page.text
    assert "Of 6 records 1 are of models whose training was continued under changed code." in page.text


def test_commits_that_git_was_asked_about_need_no_check(tmp_path):
    text = Page(made(tmp_path, [row | {"tree": "b" * 40} for row in cell()]).html).text
    assert "was given" not in text
    assert "changed code" not in text


def test_records_without_a_table_are_named(tmp_path):
    assert "sop/mnist/linear/gs" in Page(made(tmp_path, [*cell(), record("sop/mnist/linear/gs")]).html).text


def test_smoke_records_are_marked_everywhere(tmp_path):
    evaluation = {"evaluation": EVALUATION | {"m": 20, "published": 10}}
    rows = [row | {"smoke": True, "synthetic": True, "settings": row["settings"] | evaluation} for row in cell()]
    for row in rows:
        row["metrics"]["test"] |= {"log_likelihood_published_10": -200.0, "log_likelihood_published_20": -300.0}
    report = made(tmp_path, rows)
    page = Page(report.html)
    for text in (page.text, report.markdown.read_text(), printed(terminal_table(rows))):
        assert "Smoke run: shortened, not results." in text
    assert "Omniglot is synthetic here" in page.text
    first, *_ = page.rows(LINEAR)
    assert first["published formula, S = 10 not a bound"] == "−200.00 ± 0.00"
    assert first["published formula, S = 20 not a bound"] == "−300.00 ± 0.00"
    assert "bound m = 20" in first


def test_smoke_records_are_not_mixed_with_real_ones(tmp_path):
    real, smoke = write(tmp_path / "real", cell()), write(tmp_path / "smoke", [record(GS, smoke=True)])
    with pytest.raises(ReportError) as error:
        build([tmp_path], tmp_path / "out")
    for words in (IGR_I, GS, str(real / "records.jsonl"), str(smoke / "records.jsonl"), "--records"):
        assert words in str(error.value)
    assert not (tmp_path / "out").exists()
    build([real], tmp_path / "out")


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"status": "done"}, "status"),
        ({"metrics": None}, "metrics"),
        ({"tau": "0.1"}, "tau"),
        ({"seed": None}, "seed"),
        ({"settings": {"method": "unheard-of"}}, "settings"),
        ({"curves": {"epoch": [1], "elbo_continuous": []}}, "curves"),
    ],
    ids=["status", "metrics", "tau", "seed", "settings", "curves"],
)
def test_records_of_another_form_are_refused(tmp_path, change, names):
    with pytest.raises(ReportError, match=rf"records\.jsonl is not one of a trained model: {names} missing"):
        made(tmp_path, [record() | change])


def test_records_that_contradict_each_other_are_refused(tmp_path):
    write(tmp_path / "records" / "again", [record(elbo=-1.0)])
    with pytest.raises(ReportError, match=r"τ = 0\.1 and seed 1 differ: .*records\.jsonl and .*records\.jsonl"):
        made(tmp_path, [record()])


def test_all_unreadable_files_are_named(tmp_path):
    folder = write(tmp_path / "records", cell())
    (folder / "a.jsonl").write_text("not json\n")
    (folder / "b.jsonl").write_bytes(b"\xff\xfe\n")
    (folder / "c.jsonl").write_text('{"spec": "table1/x"}\n')
    with pytest.raises(ReportError) as error:
        build([folder], tmp_path / "out")
    for name in ("a.jsonl", "b.jsonl", "c.jsonl", "--records"):
        assert name in str(error.value)


def test_logs_are_no_records(tmp_path):
    folder = write(tmp_path / "records", cell())
    (folder / "progress.log.jsonl").write_text('{"phase": "training", "epoch": 1}\n')
    assert len(collect([folder]).all) == 6


# ---------------------------------------------------------------------------------------------------------- the command


def printed(table, width=120):
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(table)
    return stream.getvalue()


def test_terminal_table():
    lines = printed(terminal_table(cell() + gumbel_cell())).splitlines()
    first = next(line for line in lines if line.split()[:2] == ["IGR-I", "ELBO"])
    numbers = (mean_sd(TEST_ELBO[0.1]), mean_sd(TEST_BOUND[0.1]), mean_sd(PUBLISHED[0.1]), "−94.65 ± 0.14")
    assert " ".join(first.split()).endswith(" ".join(["0.1 — 3", *numbers]))
    assert any(line.split()[:4] == ["GS", "ELBO", "1", "0.75"] for line in lines)
    assert "not a bound" in lines[-1]


def test_a_number_over_fewer_seeds_says_so():
    """As where a second run, with other seeds, has chosen another τ, and so has not looked at the test split there."""
    again = [record(tau=tau, seed=seed + 10, elbo=-120 - tau) for tau in (0.1, 0.5) for seed in SEEDS]
    for row in again:
        row["selected"] = ["elbo_discrete"] if row["tau"] == 0.5 else []
    table = printed(terminal_table(cell() + again), width=140).replace("\u00a0", " ")
    line = next(line for line in table.splitlines() if line.split()[1:2] == ["ELBO"])
    assert line.split()[:5] == ["IGR-I", "ELBO", "0.1", "—", "6"]
    assert f"{mean_sd(TEST_ELBO[0.1])} (n = 3)" in line


def test_terminal_table_does_not_mix():
    with pytest.raises(ReportError, match="not mixed"):
        terminal_table([record(), record(GS, smoke=True)])


def invoke(*args, cwd=None):
    app = typer.Typer(pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    command.add(app)
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).invoke(app, ["report", *map(str, args)])


def test_command_prints_the_table_and_the_path(tmp_path):
    folder, out = write(tmp_path / "records", cell()), tmp_path / "a" / "b"
    result = invoke("--records", folder, "--out", out)
    assert result.exit_code == 0, result.output
    assert mean_sd(TEST_ELBO[0.1]) in result.stdout
    assert result.stdout.splitlines()[-1] == f"The report is in {out / 'report.html'}"
    assert {path.name for path in out.iterdir()} == {"report.html", "report.md", "figures"}


@pytest.mark.parametrize("folder", ["results/ours", "runs/records"])
def test_command_finds_records_by_itself(tmp_path, monkeypatch, folder):
    """Next to those of smoke runs and of the demo, with which they are not mixed."""
    for other in ("smoke", "demo"):
        write(tmp_path / "runs" / other, [row | {"smoke": True} for row in cell()])
    write(tmp_path / "runs" / "records", [record(GS, prior=0.5)])
    write(tmp_path / folder, cell())
    monkeypatch.chdir(tmp_path)
    result = invoke()
    assert result.exit_code == 0, result.output
    assert "IGR-I" in result.stdout
    assert "GS" not in result.stdout
    assert (tmp_path / "runs" / "report" / "report.html").is_file()


def test_command_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke()
    assert result.exit_code == 1
    assert "there is no folder runs/records: make records with igr run" in result.stderr


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda folder: None, "there is no folder"),
        (lambda folder: folder.mkdir(), "no records in"),
        (lambda folder: write(folder, ["no record"]), "line 1 of"),
        (lambda folder: write(folder, [record(), record(GS, smoke=True)]), "--records"),
    ],
    ids=["missing", "empty", "broken", "mixed"],
)
def test_command_says_what_is_wrong(tmp_path, prepare, words):
    prepare(tmp_path / "records")
    result = invoke("--records", tmp_path / "records", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr.startswith("igr: ")
    assert words in result.stderr
    assert not (tmp_path / "out").exists()


def test_command_says_that_it_cannot_write(tmp_path):
    (tmp_path / "file").write_text("")
    result = invoke("--records", write(tmp_path / "records", cell()), "--out", tmp_path / "file" / "out")
    assert result.exit_code == 2
    assert "--out" in result.stderr


def test_command_runs_where_there_is_no_torch(tmp_path):
    program = """
        import sys

        class Without:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "torch":
                    raise ModuleNotFoundError("No module named 'torch'", name="torch")

        sys.meta_path.insert(0, Without())
        import typer
        from igr._commands import report

        app = typer.Typer(pretty_exceptions_enable=False)
        app.callback()(lambda: None)
        report.add(app)
        app()
    """
    folder, out = write(tmp_path / "records", cell() + gumbel_cell()), tmp_path / "out"
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), "report", "--records", folder, "--out", out],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "120"},
    )
    assert result.returncode == 0, result.stderr
    assert (out / "report.html").is_file()
