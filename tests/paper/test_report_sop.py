"""The report and the list of structured output prediction, from records made by hand."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.image import imsave
from report_cases import EVALUATION, Page, cell, failed, lines_of, made, mean_sd, printed, record, write
from test_specs_list import invoke as list_specs

from igr.paper.methods import METHODS
from igr.paper.report import ReportError, build, collect, terminal_table
from igr.paper.report.figures import TAU, Course, against, over_epochs
from igr.paper.specs import SPECS

TABLE = "Structured output prediction: MNIST"
LIKELIHOOD, RELAXED = "log-likelihood 1000 discrete samples", "relaxed not the discrete model"
COURSE = Course("log_likelihood_10", "log-likelihood", "log_likelihood", training=True)
SEEDS = (1, 2, 3)
VALIDATION = {0.1: (-61.0, -62.0, -61.5), 0.5: (-58.0, -58.5, -59.0)}  # chooses 0.5
TEST = (-57.0, -57.5, -58.25)
EPOCHS = np.array([1, 10, 50, 100])


def completion(row="igr-i", temperatures=(0.1, 0.5), shift=0.0, **more):
    """Two temperatures and three seeds of a row, as a run records them: tested where the validation chooses."""
    id, rows = f"sop/mnist/{row}", []
    for tau in temperatures:
        best = tau == temperatures[-1]
        for i, seed in enumerate(SEEDS):
            value = VALIDATION[0.5 if best else 0.1][i] + shift
            metrics = {"train": {}, "validation": {"log_likelihood": value}}
            if best:
                metrics["test"] = {"log_likelihood": TEST[i] + shift}
                if SPECS[id].estimator == "reparameterized":
                    metrics["test"]["log_likelihood_relaxed"] = TEST[i] + shift + 10
            curves = {
                "epoch": EPOCHS.tolist(),
                "train_loss": (-value - 4 + 60 / EPOCHS).tolist(),
                "log_likelihood_10": (value - 3 - 90 / EPOCHS).tolist(),
            }
            settings = SPECS[id].settings() | {"dtype": "float32", "evaluation": {"m": 1000, "images": None}}
            own = {"settings": settings, "metrics": metrics, "curves": curves}
            rows.append(record(id, tau, seed) | own | {"selected": ["log_likelihood"] * best} | more)
    return rows


def estimated(row, **more):
    """The same of an estimator, at its own temperatures."""
    return completion(row, SPECS[f"sop/mnist/{row}"].temperatures[-2:], **more)


def test_numbers_stand_beside_the_papers(tmp_path):
    page = Page(made(tmp_path, completion()).html)
    first, *rest = page.rows(TABLE)
    assert first == {
        "method": "IGR-I",
        "τ chosen on validation": "0.5",
        "n": "3",
        "paper": "−57.28 ± 0.07",
        LIKELIHOOD: mean_sd(TEST),
        "Δ to the paper": f"{np.mean(TEST) + 57.28:+.2f}".replace("-", "−"),
        RELAXED: mean_sd(np.array(TEST) + 10),
        "failed of all members": "0 of 6",
        "minutes of all members": "2.2",
    }
    assert [row["method"] for row in rest] == [f"{name} no records yet" for name in ("IGR-Planar", "IGR-SB", "GS")]
    assert [row["paper"] for row in rest] == ["−56.61 ± 0.13", "−45.12 ± 1.61", "−59.31 ± 0.21"]
    assert {value for row in rest for name, value in row.items() if name not in ("method", "paper")} == {"—"}
    total = sum(id.startswith("sop/") for id in SPECS)
    assert f"No records yet: {total - 1} of {total} cells" in page.text


def test_what_makes_numbers_differ_is_said(tmp_path):
    page = Page(made(tmp_path, completion()).html)
    for words in (
        "not the log-likelihood of a discrete network that sees the upper half",
        "σ of the IGR is fixed at 1 and τ is not applied",
        "a decay of the learning rate in its code",
        "not of the discrete model",
        "measured on all images of a split with 1,000 samples each",
    ):
        assert words in page.text
    for words in ("There are no records of trained models", "Table 1: ", "importance-weighted", "Specs of VAEs"):
        assert words not in page.text


@pytest.mark.parametrize("row", ["igr-planar", "igr-sb", "gs"])
def test_only_the_papers_igr_sb_has_no_difference(tmp_path, row):
    spec = SPECS[f"sop/mnist/{row}"]
    [found] = [each for each in Page(made(tmp_path, completion(row)).html).rows(TABLE) if each["method"] == spec.label]
    wanted = f"{np.mean(TEST) - spec.paper.value:+.2f}".replace("-", "−")
    assert found["Δ to the paper"] == ("—" if row == "igr-sb" else wanted)


def test_further_rows_stand_there_only_with_records(tmp_path):
    rows = completion("gs+s5") + estimated("igr-i+rao") + estimated("gs+rloo") + estimated("gs+vimco+s50")
    report = made(tmp_path, rows)
    found = {row["method"]: row for row in Page(report.html).rows(TABLE)}
    absent = [f"{METHODS[name].label} no records yet" for name in ("igr-i", "igr-planar", "igr-sb", "gs")]
    assert list(found) == [*absent, "GS, S = 5", "IGR-I + IGR-Rao", "GS + RLOO", "GS + VIMCO, S = 50"]
    assert found["GS, S = 5"][RELAXED] == mean_sd(np.array(TEST) + 10)
    assert found["IGR-I + IGR-Rao"][RELAXED] == "—"
    assert (found["GS + RLOO"]["τ chosen on validation"], found["GS + RLOO"][LIKELIHOOD]) == ("—", mean_sd(TEST))
    assert found["GS + RLOO"]["paper"] == found["GS + RLOO"]["Δ to the paper"] == "—"
    text = Page(report.html).text
    assert "GS + RLOO; GS + VIMCO, S = 50: there is no temperature, and so nothing to choose." in text
    assert "Without a τ, and so not drawn: GS + RLOO; GS + VIMCO, S = 50." in text


def test_failed_members_show(tmp_path):
    rows = completion()
    rows[4] = failed(rows[4]) | {"curves": {}}
    page = Page(made(tmp_path, rows).html)
    first, *_ = page.rows(TABLE)
    assert (first["n"], first["failed of all members"]) == ("2 of 3", "1 of 6")
    assert first[LIKELIHOOD] == mean_sd([TEST[0], TEST[2]])
    assert "IGR-I: 1 of 6 failed (τ = 0.5: 1)." in page.text


def test_figures(tmp_path):
    rows = (
        completion() + completion("gs", shift=-2) + completion("gs+s5") + estimated("gs+gapst") + estimated("gs+rloo")
    )
    report = made(tmp_path, rows)
    assert {path.name for path in report.figures} == {
        f"{name}-sop-mnist-{part}honest.svg"
        for name in ("temperature", "log-likelihood")
        for part in ("", "estimators-")
    }
    text = Page(report.html).text
    assert (
        "MNIST, completions, protocol honest: log-likelihood by 1000 discrete samples on the validation split" in text
    )
    assert "by 10 discrete samples on the validation split, at the chosen τ" in text


def test_temperatures_of_one_criterion(tmp_path):
    cells = collect([write(tmp_path, completion() + completion("gs+s5"))]).cells
    plain, five = against(cells, TAU).axes
    assert [axes.get_title() for axes in (plain, five)] == ["S = 1", "S = 5"]
    assert plain.get_ylabel() == "log-likelihood (nats)"
    assert plain.get_xlabel() == "$\\tau$"
    [(colour, data)] = lines_of(plain)
    assert colour == METHODS["igr-i"].colour
    np.testing.assert_allclose(data, [[tau, np.mean(values)] for tau, values in VALIDATION.items()])
    np.testing.assert_allclose(plain.collections[-1].get_offsets(), [[0.5, np.mean(VALIDATION[0.5])]])  # the ring


def test_panels_say_what_they_have_where_others_differ(tmp_path):
    rows = ("igr-i", "igr-i+s5", "igr-i+unit", "igr-i+unit+s5", "gs+linear")
    cells = collect([write(tmp_path, [each for row in rows for each in completion(row)])]).cells
    assert [axes.get_title() for axes in against(cells, TAU).axes if axes.get_title()] == [
        "σ learned, tanh network, S = 1",
        "S = 5",
        "σ = 1, S = 1",
        "σ = 1, S = 5",
        "linear network, S = 1",
    ]
    cells = collect([write(tmp_path / "estimators", estimated("gs+st") + estimated("gs+vimco+s5"))]).cells
    assert {axes.get_title() for axes in over_epochs(cells, COURSE).axes} == {"+ ST", "+ VIMCO, S = 5"}


def test_fewer_samples_than_the_spec_has_are_named(tmp_path):
    rows = completion("igr-i+s50", smoke=True)
    for row in rows:
        row["settings"]["num_samples"] = 5
    folder = write(tmp_path, rows + completion("igr-i+s5", smoke=True))
    page = Page(build([folder], tmp_path / "report").html)
    names = [row["method"] for row in page.rows(TABLE)]
    assert names[-2:] == ["IGR-I, S = 5", "IGR-I, S = 50 (here 5)"]
    assert "IGR-I, S = 50 (here 5)" in printed(terminal_table(collect([folder]).all))


def test_temperatures_of_estimators_have_their_own_scale(tmp_path):
    rows = estimated("gs+gapst") + estimated("gs+reinmax")
    gapst, reinmax = against(collect([write(tmp_path, rows)]).cells, TAU, apart=True).axes
    assert gapst.get_xlim()[1] < 1.3 < reinmax.get_xlim()[1]
    assert [list(axes.get_xticks()) for axes in (gapst, reinmax)] == [[0.85, 1.0], [1.5, 2.0]]


def test_curves_are_of_held_out_images_beside_the_training_objective(tmp_path):
    [axes] = over_epochs(collect([write(tmp_path, completion())]).cells, COURSE).axes
    held, training = (data for _, data in lines_of(axes))
    best = np.mean(VALIDATION[0.5])
    np.testing.assert_allclose(held, np.stack([EPOCHS, best - 3 - 90 / EPOCHS], -1))
    np.testing.assert_allclose(training, np.stack([EPOCHS, best + 4 - 60 / EPOCHS], -1))  # a loss, turned over
    assert {to_hex(line.get_color()) for line in axes.lines} == {METHODS["igr-i"].colour}
    low, high = axes.get_ylim()
    assert low < held[-1, 1] < training[-1, 1] < high < training[-1, 1] + 20


def test_many_variants_are_wrapped(tmp_path):
    names = ("st", "st-probs", "gapst", "rao", "reinmax", "rloo", "disarm", "rebar")
    cells = collect([write(tmp_path, [row for name in names for row in estimated(f"gs+{name}")])]).cells
    figure = over_epochs(cells, COURSE)
    assert len(figure.axes) == len(names)
    assert figure.get_figwidth() < 16
    named = [bool(axes.get_xlabel()) for axes in figure.axes]
    assert named == [False] * 4 + [True] * 4
    figure = over_epochs(cells[:7], COURSE)
    assert [bool(axes.get_xlabel()) for axes in figure.axes] == [False] * 3 + [True] * 4  # above a gap, too


def test_completions_are_shown_in_the_section(tmp_path):
    folder = write(tmp_path / "records", completion())
    imsave(folder / "completions-log_likelihood.png", np.random.default_rng(1).random((28, 28)), cmap="gray")
    report = build([folder], tmp_path / "out")
    page = Page(report.html)
    assert len(page.sources) == 1
    assert "lower halves that samples of the units expect, τ = 0.5 chosen by the log-likelihood." in page.text
    assert "sop-mnist-igr-i-completions-log_likelihood.png" in {path.name for path in report.figures}
    assert "Reconstructions and samples" not in page.text


def test_sections_of_vaes_know_nothing_of_completions(tmp_path):
    page = Page(made(tmp_path, cell() + completion()).html)
    assert [row["method"] for row in page.rows("Table 1: MNIST, linear")[:3]] == ["IGR-I"] * 2 + [
        "IGR-Planar no records yet"
    ]
    assert len(page.rows(TABLE)) == 4
    ids = [row["cell"] for row in page.rows("Wall-clock time of each cell")]
    assert ids == ["table1/mnist/linear/igr-i", "sop/mnist/igr-i"]
    assert "Specs of VAEs fix the learning rate" in page.text
    assert "Here: 3e-4, 300 epochs." in page.text


def test_marks_that_the_records_contradict_are_pointed_out(tmp_path):
    rows = completion()
    for row in rows:
        row["selected"] = ["log_likelihood"] if row["tau"] == 0.1 else []
    page = Page(made(tmp_path, rows).html)
    assert page.rows(TABLE)[0]["τ chosen on validation"] == "0.1"
    assert "IGR-I: by these records log_likelihood chooses τ = 0.5, which is not what the run marked." in page.text


def test_a_row_that_has_no_spec_is_chosen_by_what_its_records_have(tmp_path):
    rows = [row | {"spec": "sop/mnist/igr-i+else"} for row in completion()]
    page = Page(made(tmp_path, rows).html)
    assert [row["method"] for row in page.rows(TABLE)][4:] == ["igr-i+else"]
    assert page.rows(TABLE)[4]["τ chosen on validation"] == "0.5"


def test_smoke_records_name_their_samples(tmp_path):
    evaluation = {"evaluation": EVALUATION | {"m": 20}}
    rows = [row | {"smoke": True, "settings": row["settings"] | evaluation} for row in completion()]
    page = Page(made(tmp_path, rows).html)
    assert page.rows(TABLE)[0]["log-likelihood 20 discrete samples"] == mean_sd(TEST)
    assert "Smoke run: shortened, not results." in printed(terminal_table(rows))


def test_protocols_are_not_mixed(tmp_path):
    other = completion(shift=-9, protocol="published")
    for row in other:
        row["metrics"].setdefault("test", row["metrics"]["validation"])
    page = Page(made(tmp_path, completion() + other).html)
    ours, theirs = (table[1] for title, table in page.tables if title == TABLE)
    assert mean_sd(TEST) in ours
    assert mean_sd(np.array(TEST) - 9) in theirs
    assert "Structured output prediction, protocol published" in page.text


def test_records_without_a_temperature_are_refused(tmp_path):
    with pytest.raises(ReportError, match=r"is not one of a trained model: tau missing"):
        made(tmp_path, [row | {"tau": None} for row in completion()])


def test_terminal_tables_are_apart():
    text = printed(terminal_table(completion() + cell())).splitlines()
    found = [" ".join(line.split()) for line in text]
    assert f"IGR-I 0.5 3 {mean_sd(TEST)} {mean_sd(np.array(TEST) + 10)} −57.28 ± 0.07" in found
    assert "MNIST, completions" in found
    assert found.index("MNIST, linear") < found.index("MNIST, completions")
    assert sum("not the discrete model" in line for line in found) == sum("not a bound" in line for line in found) == 1
    assert not any("published*" in line for line in printed(terminal_table(completion())).splitlines())


def test_list_has_the_log_likelihood_of_the_chosen(tmp_path):
    folder = write(tmp_path / "records", completion() + estimated("gs+rloo"))
    result = list_specs("sop/*", "--records", folder)
    found = {cells[0]: cells[1:] for line in result.stdout.splitlines() for cells in [line.split("\t")]}
    ours = mean_sd(TEST).replace("−", "-")
    assert found["sop/mnist/igr-i"][:4] == ["IGR-I", "-57.28 ± 0.07", "6", ours]
    assert found["sop/mnist/gs+rloo"][:4] == ["GS + RLOO", "", "3", ours]
    assert found["sop/mnist/igr-sb"][:4] == ["IGR-SB", "-45.12 ± 1.61", "", ""]
    assert all(float(cells[4]) > 0 for cells in found.values())
