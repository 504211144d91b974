"""The report and the list of nonparametric mixtures, from records made by hand."""

import subprocess
import sys

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.image import imsave
from report_cases import Page, cell, failed, made, mean_sd, printed, record, write
from test_report_sop import completion
from test_specs_list import invoke as list_specs

from igr.paper.methods import METHODS
from igr.paper.report import ReportError, build, collect, terminal_table
from igr.paper.report.component_figures import effective, masses
from igr.paper.report.figures import SIZE, against
from igr.paper.specs import SPECS

TABLE = "Nonparametric mixtures: MNIST"
OURS, DLDPMM = "nonparametric/mnist/igr-sb-mm+sl", "nonparametric/mnist/dldpmm+sl"
BOUND, OBJECTIVE = (
    "bound importance sampling, m = 1000",
    "published objective one sample, mixed term: not a log-likelihood",
)
DIFFERENCE = "Δ to the paper, by that objective"
SEEDS = (1, 2, 3)
SPREAD = np.array([0.0, -0.5, 0.75])
EPOCHS = np.array([1, 10, 100, 300])
MASS = [0.5, 0.3, 0.1, 0.08, 0.0099, 0.01, 0.0001] + 13 * [0.0]  # five of at least 1 %
HISTOGRAM = [0.0, 0.25, 0.5, 0.25] + 16 * [0.0]


def mixture(id=OURS, sizes=(None,), best=None, level=-90.0, **more):
    """Three seeds of each K, as a run records them: tested at the best, where all is better by one than before."""
    rows = []
    for size in sizes:
        chosen = size == best
        for i, seed in enumerate(SEEDS):
            bound = level - 1 + SPREAD[i] - (0 if chosen else abs(size - best))
            numbers = {
                "log_likelihood": bound,
                "elbo": bound - 5,
                "objective_published": bound - 9,
                "components_kept": 5.0 + i,
                "components_effective": 2.0 + SPREAD[i],
            }
            vectors = {
                "component_mass": MASS[i:] + MASS[:i],  # the same masses, of other components
                "components_histogram": HISTOGRAM if i else [0.0, *HISTOGRAM[:-1]],
            }
            test = {"test": {name: value + 1 for name, value in numbers.items()} | vectors} if chosen else {}
            numbers |= {name: 20 * [0.05] for name in vectors}
            curves = {
                "epoch": EPOCHS.tolist(),
                "train_loss": (-bound + 2 + 60 / EPOCHS).tolist(),
                "elbo": (bound - 5 - 90 / EPOCHS).tolist(),
            }
            settings = SPECS[id].settings() | {"dtype": "float32", "evaluation": {"m": 1000, "images": None}}
            own = {"settings": settings, "metrics": {"validation": numbers} | test, "curves": curves}
            own |= {"tau": None, "num_components": size, "selected": ["log_likelihood"] * chosen}
            rows.append(record(id, seed=seed) | own | more)
    return rows


def fixed(id=DLDPMM, best=9, **more):
    """DLDPMM, for which a K is chosen."""
    return mixture(id, (7, 9, 11), best, **more)


def test_numbers_stand_beside_the_papers(tmp_path):
    page = Page(made(tmp_path, mixture() + fixed(level=-92.0)).html)
    ours, theirs = page.rows(TABLE)
    bounds = -90 + SPREAD
    assert ours == {
        "method": "IGR-SB-MM + SL",
        "K chosen on validation": "as needed",
        "n": "3",
        "paper": "−81.79 ± 0.35",
        BOUND: mean_sd(bounds),
        "ELBO joint bound": mean_sd(bounds - 5),
        OBJECTIVE: mean_sd(bounds - 9),
        DIFFERENCE: f"{np.mean(bounds) - 9 + 81.79:+.2f}".replace("-", "−"),
        "components kept by the truncation": mean_sd([6, 7, 8]),
        "effective number of an image": mean_sd(3 + SPREAD),
        "components in use at least 1 % of all mass": "5.00 ± 0.00",
        "failed of all members": "0 of 3",
        "minutes of all members": "2.2",
    }
    assert (theirs["method"], theirs["K chosen on validation"], theirs["n"]) == ("DLDPMM + SL", "9", "3")
    assert theirs["failed of all members"] == "0 of 9"
    assert (theirs["paper"], theirs[BOUND]) == ("−81.90 ± 0.30", mean_sd(bounds - 2))


def test_only_the_papers_rows_are_there_without_records(tmp_path):
    page = Page(made(tmp_path, mixture("nonparametric/mnist/igr-sb-mm")).html)
    rows = page.rows(TABLE)
    assert [row["method"] for row in rows] == [
        "IGR-SB-MM + SL no records yet",
        "DLDPMM + SL no records yet",
        "IGR-SB-MM",
    ]
    assert {value for name, value in rows[0].items() if name not in ("method", "paper")} == {"—"}
    assert (rows[2]["paper"], rows[2][DIFFERENCE]) == ("—", "—")
    assert "Nonparametric mixtures: Omniglot" not in page.titles()
    assert "No records yet: 7 of 8 cells" in page.text


def test_omniglot_has_no_difference(tmp_path):
    id = OURS.replace("mnist", "omniglot")
    page = Page(made(tmp_path, mixture(id) + mixture()).html)
    ours, _ = page.rows("Nonparametric mixtures: Omniglot")
    assert (ours["paper"], ours[DIFFERENCE]) == ("−129.06 ± 0.30", "—")
    assert "another split than the published code, and ink" in page.text
    assert page.rows(TABLE)[0][DIFFERENCE] != "—"


def test_what_makes_numbers_differ_is_said(tmp_path):
    other = [row | {"settings": row["settings"] | {"concentration": 2.5}} for row in fixed()]
    older = [row | {"commit": "8d12eb2242a4f2e23589e988c35b08e0c8ff2e33"} for row in mixture()]
    text = Page(made(tmp_path, older + other).html).text
    for words in (
        "the training objective with one sample, and no log-likelihood",
        "drawn anew for every place in a batch",
        "+ SL is applied to DLDPMM alone",
        "two hidden layers of 200 units",
        "more than ρ = 0.9999",
        "The prior of sticks is Beta(1, α), with α = 1 or 2.5;",
        "DLDPMM + SL: concentration 2.5, where the spec says 1.0.",
        "IGR-SB-MM + SL: trained before the gradient counted what one more stick costs.",
    ):
        assert words in text


def test_failed_members_show(tmp_path):
    rows = fixed()
    rows[0] = failed(rows[0]) | {"curves": {}}
    ours = [failed(row) | {"curves": {}, "selected": []} for row in mixture()]
    page = Page(made(tmp_path, rows + ours).html)
    first, second = page.rows(TABLE)
    assert (first["K chosen on validation"], first["failed of all members"], first[BOUND]) == ("—", "3 of 3", "—")
    assert (second["K chosen on validation"], second["failed of all members"]) == ("9", "1 of 9")
    assert "DLDPMM + SL: 1 of 9 failed (K = 7: 1)." in page.text
    assert "IGR-SB-MM + SL: 3 of 3 failed." in page.text


def test_figures_and_pictures(tmp_path):
    folder = write(tmp_path / "records", mixture() + fixed())
    for kind in ("components", "reconstructions"):
        imsave(folder / f"{kind}-log_likelihood.png", np.random.default_rng(len(kind)).random((28, 28)), cmap="gray")
    report = build([folder], tmp_path / "out")
    assert {path.name for path in report.figures if path.suffix == ".svg"} == {
        "effective-components-nonparametric-honest.svg",
        "component-mass-nonparametric-honest.svg",
        "size-nonparametric-mnist-honest.svg",
        "elbo-nonparametric-mnist-honest.svg",
    }
    page = Page(report.html)
    assert "bound on the validation split against K" in page.text
    assert "Without a K, and so a line: IGR-SB-MM." in page.text
    assert (
        "IGR-SB-MM + SL: samples from components of the prior, a row each, those with the most mass first." in page.text
    )
    assert "Without a τ" not in page.text
    assert "no temperature" not in page.text


def test_alone_neither_needs_the_other(tmp_path):
    for name, rows in (("ours", mixture()), ("theirs", fixed())):
        (tmp_path / name).mkdir()
        report = made(tmp_path / name, rows)
        assert ("size-nonparametric-mnist-honest.svg" in {path.name for path in report.figures}) == (name == "theirs")


def test_bound_against_the_number_of_components(tmp_path):
    [axes] = against(collect([write(tmp_path, mixture(level=-91.0) + fixed())]).cells, SIZE).axes
    mean = np.mean(SPREAD)
    lines = {
        to_hex(line.get_color()): np.asarray(line.get_xydata()) for line in axes.lines if len(line.get_xydata()) > 1
    }
    np.testing.assert_allclose(lines[METHODS["dldpmm"].colour], [[7, -93 + mean], [9, -91 + mean], [11, -93 + mean]])
    np.testing.assert_allclose(lines[METHODS["igr-sb-mm"].colour][:, 1], -92 + mean)
    np.testing.assert_allclose(axes.collections[-1].get_offsets(), [[9, -91 + mean]])  # the ring
    assert list(axes.get_xticks()) == [7, 9, 11]
    assert axes.get_xscale() == "linear"
    low, high = axes.get_ylim()
    assert low < -93.5 + mean < high


def test_histograms_are_means_over_seeds_of_the_chosen(tmp_path):
    rows = mixture() + fixed() + mixture(OURS.replace("mnist", "omniglot"))
    for row in rows:
        if row["num_components"] == 7:  # not chosen, and so not drawn
            row["metrics"]["test"] = {"components_histogram": [1.0] + 19 * [0.0]}
    figure = effective(collect([write(tmp_path, rows)]).cells)
    mnist, omniglot = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["MNIST, + SL", "Omniglot, + SL"]
    wanted = (2 * np.array(HISTOGRAM) + np.roll(HISTOGRAM, 1)) / 3
    for container in mnist.containers[1::2]:
        np.testing.assert_allclose([bar.get_height() for bar in container], wanted)
    colours = [to_hex(container[0].get_facecolor()) for container in mnist.containers[1::2]]
    assert colours == [METHODS["igr-sb-mm"].colour, METHODS["dldpmm"].colour]
    assert len(omniglot.containers[1::2]) == 1
    left, right = (container[2] for container in mnist.containers[1::2])  # those of number three, side by side
    assert left.get_x() + left.get_width() <= right.get_x()
    assert (left.get_x() + right.get_x() + right.get_width()) / 2 == pytest.approx(3)


def test_masses_are_compared_by_rank(tmp_path):
    [axes] = masses(collect([write(tmp_path, mixture())]).cells).axes
    drawn = [line.get_xydata() for line in axes.lines if to_hex(line.get_color()) == METHODS["igr-sb-mm"].colour]
    ranked = np.sort(MASS)[::-1]
    np.testing.assert_allclose(drawn[0], np.stack([np.arange(1, 8), ranked[:7]], -1))  # without what has none
    assert axes.get_yscale() == "log"


def test_without_vectors_there_are_no_such_figures(tmp_path):
    rows = mixture()
    for row in rows:
        for name in ("component_mass", "components_histogram"):
            del row["metrics"]["test"][name]
    cells = collect([write(tmp_path, rows)]).cells
    assert effective(cells) is masses(cells) is None


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"tau": 0.5}, "tau"),
        ({"num_components": "9"}, "num_components"),
        ({"num_components": True}, "num_components"),
        ({"num_components": None}, "num_components"),
        ({"metrics": {"test": {"log_likelihood": "-80"}}}, "metrics"),
        ({"metrics": {"test": {"component_mass": []}}}, "metrics"),
        ({"curves": {"elbo": [1.0]}}, "curves"),
        ({"curves": {"epoch": [1], "elbo": ["x"]}}, "curves"),
        ({"metrics": {"test": {"component_mass": 0.5}}}, "metrics"),
        ({"metrics": {"test": {"components_histogram": ["0.5"]}}}, "metrics"),
    ],
    ids=["tau", "word", "truth", "none", "text", "empty", "no epochs", "no numbers", "mass", "histogram"],
)
def test_records_of_another_form_are_refused(tmp_path, change, names):
    with pytest.raises(ReportError, match=rf"is not one of a trained model: {names} missing"):
        made(tmp_path, [row | change for row in fixed()])


@pytest.mark.parametrize(
    ("make", "member"), [(mixture, "seed 1"), (fixed, "K = 7 and seed 1")], ids=["sticks", "sizes"]
)
def test_records_that_contradict_each_other_are_refused(tmp_path, make, member):
    write(tmp_path / "records" / "again", [make()[0] | {"metrics": {}}])
    with pytest.raises(ReportError, match=rf"with {member} differ: "):
        made(tmp_path, make())


def test_terminal_tables_are_apart():
    found = [" ".join(line.split()) for line in printed(terminal_table(fixed() + mixture() + cell())).splitlines()]
    bounds = -90 + SPREAD
    numbers = " ".join([mean_sd(bounds), mean_sd(bounds - 5), mean_sd(bounds - 9), mean_sd(3 + SPREAD)])
    assert f"IGR-SB-MM + SL as needed 3 {numbers} −81.79 ± 0.35" in found
    assert f"DLDPMM + SL 9 3 {numbers} −81.90 ± 0.30" in found
    assert found.index("MNIST, linear") < found.index("MNIST, mixtures")
    assert " ".join(found).endswith("mixed term: not a log-likelihood.")


def test_list_has_the_bound_of_the_chosen(tmp_path):
    result = list_specs("nonparametric/*", "--records", write(tmp_path / "records", mixture() + fixed(level=-92.0)))
    found = {cells[0]: cells[1:] for line in result.stdout.splitlines() for cells in [line.split("\t")]}
    assert found[OURS][:4] == ["IGR-SB-MM + SL", "-81.79 ± 0.35", "3", mean_sd(-90 + SPREAD).replace("−", "-")]
    assert found[DLDPMM][:4] == ["DLDPMM + SL", "-81.90 ± 0.30", "9", mean_sd(-92 + SPREAD).replace("−", "-")]
    assert found["nonparametric/omniglot/dldpmm"][1:4] == ["", "", ""]


def test_report_needs_no_torch(tmp_path):
    folder, out = write(tmp_path / "records", mixture() + fixed() + completion() + cell()), tmp_path / "out"
    program = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from igr.paper.report import build, terminal_table\n"
        "terminal_table(build([Path(sys.argv[1])], Path(sys.argv[2])).records.all)"
    )
    result = subprocess.run([sys.executable, "-c", program, folder, out], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    page = Page(out / "report.html")
    assert len(page.ids) == len(set(page.ids))
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    assert "http" not in (out / "report.html").read_text(encoding="utf-8")
