"""The pages of the reproduction: those in docs/ are what the command writes, and they say all that there is to say."""

import re
from pathlib import Path

import numpy as np
import pytest
from report_cases import IGR_I, PUBLISHED, SEEDS, cell, chosen, invoke, record, write
from test_execution_time import timed
from test_report_sop import TEST, completion

from igr.paper.report import ReportError, collect, gaps, write_pages
from igr.paper.report.discrepancies import OPEN, discrepancies
from igr.paper.report.page import folder_of, pages
from igr.paper.specs import SPECS, Approximation, Trained

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def section(text, title):
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_the_pages_of_the_site_are_those_of_the_committed_records():
    """If this fails: make report. Figures are not compared, since they differ between versions of matplotlib."""
    made = pages(collect([ROOT / "results" / "ours"]))
    assert (DOCS / "reproduction.md").read_text(encoding="utf-8") == made.reproduction
    assert (DOCS / "claims.md").read_text(encoding="utf-8") == made.claims
    shown = re.findall(r"\]\((images/reproduction/[^)]+)\)", made.reproduction)
    assert len(shown) == len(set(shown)) == len(made.document.images())
    folder = DOCS / folder_of("reproduction.md")
    assert {DOCS / name for name in shown} == set(folder.iterdir())


def test_nothing_is_drawn_for_the_text(tmp_path):
    made = pages(collect([write(tmp_path, cell())]))
    assert made.document.images()
    assert not any("data" in vars(image) for image in made.document.images())


def test_command(tmp_path):
    records = write(tmp_path / "records", cell())
    page, out = tmp_path / "site" / "numbers.md", tmp_path / "out"
    stale = tmp_path / "site" / "images" / "numbers" / "stale.svg"
    stale.parent.mkdir(parents=True)
    stale.write_text("<svg/>")
    result = invoke("--records", records, "--page", page, "--out", out)
    assert result.exit_code == 0, result.output
    assert "claims.md" in result.output
    assert not out.exists()
    assert not stale.exists()
    text = page.read_text(encoding="utf-8")
    figures = sorted(stale.parent.iterdir())
    assert figures
    assert all(f"images/numbers/{figure.name}" in text for figure in figures)
    assert all(figure.read_bytes().startswith(b"<?xml") for figure in figures)
    assert "[the page of the reproduction](numbers.md)" in page.with_name("claims.md").read_text(encoding="utf-8")
    assert write_pages(collect([records]), page).figures == tuple(
        page.parent / folder_of(page.name) / image.name for image in pages(collect([records])).document.images()
    )


def test_smoke_records_are_no_reproduction(tmp_path):
    records = write(tmp_path / "records", [row | {"smoke": True} for row in cell()])
    with pytest.raises(ReportError, match="no reproduction"):
        pages(collect([records]))
    result = invoke("--records", records, "--page", tmp_path / "page.md")
    assert result.exit_code == 1
    assert not (tmp_path / "page.md").exists()


def test_every_cell_without_records_is_named(tmp_path):
    part = [row for row in cell() if row["tau"] == 0.1]
    text = section(pages(collect([write(tmp_path, part)])).reproduction, "Not run yet")
    rows = [re.split(r" \| ", line.strip("| ")) for line in text.splitlines() if line.startswith("| ")][1:]
    named = {f"{place}/{name}" for place, names, _ in rows for name in names.split(", ")}
    wanted = {id for id, spec in SPECS.items() if isinstance(spec, Trained | Approximation)} - {IGR_I}
    linear = [id.removeprefix("table1/mnist/linear/") for id in SPECS if id.startswith("table1/mnist/linear/")]
    bridge = {f"table1/mnist/linear, protocol published/{name}" for name in linear}
    assert len(bridge) == 8
    assert named == wanted | bridge | {"execution-time/all of it"}
    assert [rows[0][0], len(rows[0][1].split(", ")), rows[0][2]] == ["table1/mnist/linear", 7, "7 of 8"]
    assert f"{IGR_I}, protocol honest: 3 of 50" in text


def test_rows_beyond_table_1_need_records_under_one_protocol(tmp_path):
    """The bridge from Table 1 asks for both; a row with settings of the published script may have either."""
    script = "beyond/mnist/linear/igr-i+script"
    rows = [row | {"spec": id, "protocol": "published"} for id in (script, IGR_I) for row in cell()]
    text = section(pages(collect([write(tmp_path, rows)])).reproduction, "Not run yet")
    absent = dict(re.findall(r"^\| (\S+mnist/linear(?:, protocol published)?) \| (.*?) \|", text, re.MULTILINE))
    assert "igr-i+script" not in absent["beyond/mnist/linear"].split(", ")
    assert "igr-planar+script" in absent["beyond/mnist/linear"].split(", ")
    assert "igr-i" in absent["table1/mnist/linear"].split(", ")
    assert "igr-i" not in absent["table1/mnist/linear, protocol published"].split(", ")


def test_members_without_records_are_named_even_if_every_cell_has_some(tmp_path, monkeypatch):
    monkeypatch.setattr(gaps, "SPECS", {IGR_I: SPECS[IGR_I]})
    both = [row | {"protocol": protocol} for row in cell() for protocol in ("honest", "published")]
    found = collect([write(tmp_path / "some", both + timed())])
    [words] = gaps.blocks(found)
    [line] = words.lines
    told = "; ".join(f"{IGR_I}, protocol {protocol}: 6 of 50" for protocol in ("honest", "published"))
    assert line == f"Only some members have records: {told}."
    monkeypatch.setattr(gaps, "_parts", lambda found: iter(()))
    [words] = gaps.blocks(found)
    assert words.lines == ("Everything has been run.",)


def test_what_is_no_record_of_ours_has_a_source(tmp_path):
    text = pages(collect([write(tmp_path, cell() + timed() + timed(device="NVIDIA H200"))])).reproduction
    assert "Every number on this page" not in text
    assert "Every number of ours is read from records of finished runs." in text
    assert "was measured with that code, and is in no record; more of it is on the page of experiments." in text
    assert "for every method, but for rows that name another rate" in text
    cpu, cuda = (text.partition(f"**Execution time: {device}")[2].partition("**")[2] for device in ("cpu", "NVIDIA"))
    assert "measured on two cores of a CPU" in cpu.partition("\n## ")[0].partition("**")[0]
    assert "measured on two cores of a CPU" not in cuda.partition("\n## ")[0].partition("**")[0]


def test_synthetic_images_do_not_count(tmp_path):
    rows = [row | {"synthetic": True} for row in cell("table1/omniglot/linear/igr-i")]
    text = section(pages(collect([write(tmp_path, rows)])).reproduction, "Not run yet")
    assert re.search(r"table1/omniglot/linear \| igr-i, igr-planar, .* \| 8 of 8", text)


def test_protocol_published_stands_beside_honest(tmp_path):
    """The bridge: the same cell under both protocols, with its numbers and those of the paper."""
    numbers = {"elbo_discrete": -110.0, "log_likelihood": -99.0, "log_likelihood_published_1000": -95.0}
    rows = [
        chosen(record(IGR_I, 0.1, seed, protocol="published"), "elbo_discrete", "log_likelihood", **numbers)
        for seed in SEEDS
    ]
    text = section(pages(collect([write(tmp_path, rows + cell())])).reproduction, "Protocol published")
    bridge = text.partition("**The bridge")[2].partition("\n\n**")[0]
    first, second = (line.strip("| ").split(" | ") for line in bridge.splitlines() if line.startswith("| IGR-I"))
    mean = f"{np.mean(PUBLISHED[0.1]):.2f}".replace("-", "−")
    assert first[:3] == ["IGR-I", "discrete ELBO", "**−94.65 ± 0.14**"]
    assert first[3:7] == ["0.1", "−95.00 ± 0.00", "−0.35", "−99.00 ± 0.00"]
    assert first[7:9] == ["0.1", f"{mean} ± {np.std(PUBLISHED[0.1], ddof=1):.2f}"]
    assert (second[1], second[7]) == ("bound", "0.5")
    alone = pages(collect([write(tmp_path / "alone", rows)])).reproduction
    assert section(alone, "Protocol published").count("| — | — | — | — |") >= 2


def vae(id, by_elbo, by_bound, prior=None, protocol="honest", train=None):
    """Three seeds of two temperatures; the published formula has these numbers, with a deviation of 0.1."""
    rows = []
    for tau, level, criterion in [(0.1, by_elbo, "elbo_discrete"), (0.5, by_bound, "log_likelihood")]:
        for seed, spread in zip(SEEDS, (-0.1, 0.0, 0.1), strict=True):
            row = record(id, tau, seed, prior=prior, protocol=protocol)
            numbers = {"elbo_discrete": -120.0, "log_likelihood": -100.0}
            rows.append(chosen(row, criterion, log_likelihood_published_1000=level + spread, **numbers))
            if train is not None:
                rows[-1]["metrics"]["train"] = {"elbo_discrete": train + spread}
    return rows


def differences(tmp_path, rows):
    table = discrepancies(collect([write(tmp_path, rows)]).cells)
    kept = [] if table is None else [row for row in table.rows if not row[0].text.startswith("train-elbo/")]
    return [(row[0].text, row[1].text.partition(":")[0], row[3].text, row[-2].text) for row in kept]


def test_differences_beyond_noise_are_explained_or_open(tmp_path):
    """The paper has −96.21 ± 0.14 for IGR-Planar: with ours, twice the combined deviation is 0.34."""
    planar, gs = "table1/mnist/linear/igr-planar", "table1/mnist/linear/gs"
    assert differences(tmp_path / "none", vae(planar, -96.5, -95.9)) == []
    [one] = differences(tmp_path / "one", vae(planar, -99.21, -96.3, train=-132.7))
    assert one == (planar, "selection", "discrete ELBO", "−3.00")
    [one] = differences(tmp_path / "apart", vae(planar, -99.21, -96.3, train=-130.74))
    assert one == (planar, OPEN, "discrete ELBO", "−3.00")
    both = differences(tmp_path / "both", vae(planar, -99.21, -90.21))
    assert [each[1:] for each in both] == [(OPEN, "discrete ELBO", "−3.00"), (OPEN, "bound", "+6.00")]
    same = differences(tmp_path / "open", vae(planar, -91.21, -90.21))
    assert [each[1:] for each in same] == [(OPEN, "discrete ELBO", "+5.00"), (OPEN, "bound", "+6.00")]
    prior = differences(tmp_path / "gs", vae(gs, -120.0, -119.0, prior=0.25))
    assert [each[1] for each in prior] == 2 * ["perhaps in part"]
    same = differences(tmp_path / "same", vae(gs, -120.0, -119.0, prior=0.5))  # that of the published code
    assert [each[1] for each in same] == 2 * [OPEN]
    bridge = differences(tmp_path / "bridge", vae(gs, -120.0, -119.0, 0.5, "published"))
    assert [each[1] for each in bridge] == 2 * [OPEN]


def test_a_temperature_explains_a_number_only_with_the_others_of_its_models(tmp_path):
    """The paper has −96.21 ± 0.14 for IGR-Planar, and a train ELBO of −132.74 ± 0.20."""

    def why(name, *levels, train):
        rows = vae("table1/mnist/linear/igr-planar", *levels, train=train)
        return [row[1].text for row in discrepancies(collect([write(tmp_path / name, rows)]).cells).rows]

    selected = (
        "selection: with the τ that the bound chooses, 0.5, it is within noise; the paper chooses τ by the loss of the "
        "discrete model, and does not say which τ that was"
    )
    assert why("fits", -99.21, -96.3, train=-132.7) == [selected]
    open_one, *elbos = why("apart", -99.21, -96.3, train=-130.74)
    assert open_one == (
        "open: with the τ that the bound chooses, 0.5, it is within noise, but the train ELBO of the same models is "
        "off by +2.00"
    )
    assert elbos == 2 * [OPEN]  # the same at both temperatures
    words = "open: with the τ that the {}, it is off to the other side, by {}".format
    assert why("between", -99.21, -90.21, train=-132.7) == [
        words("bound chooses, 0.5", "+6.00"),
        words("discrete ELBO chooses, 0.1", "−3.00"),
    ]


def test_a_single_seed_has_no_deviation(tmp_path):
    rows = [row for row in vae("table1/mnist/linear/igr-planar", -99.21, -99.21) if row["seed"] == SEEDS[0]]
    assert differences(tmp_path, rows) == []


def test_a_reason_may_ask_for_the_sign(tmp_path):
    """The category that the published IGR-SB lacks can only explain why ours is better."""
    sb = "table1/mnist/linear/igr-sb"
    assert [each[1] for each in differences(tmp_path / "below", vae(sb, -99.0, -99.0))] == 2 * [OPEN]
    assert [each[1] for each in differences(tmp_path / "above", vae(sb, -93.0, -93.0))] == 2 * ["in part"]


@pytest.mark.parametrize(("estimator", "words"), [("relax", "networks of its own"), ("uspg", "settings of all rows")])
def test_estimators_of_four_samples_have_settings_that_the_paper_does_not_say(tmp_path, estimator, words):
    id = f"s4/mnist/nonlinear/gs+{estimator}"
    rows = [chosen(record(id, 0.5, seed), "elbo_discrete", elbo_discrete=-95.0 + seed % 2) for seed in SEEDS]
    table = discrepancies(collect([write(tmp_path, rows)]).cells)
    assert {(row[0].text, words in row[1].text) for row in table.rows} == {(id, True)}


def test_what_is_not_comparable_is_named_apart(tmp_path):
    rows = completion("igr-sb", shift=20.0) + completion("gs", shift=20.0)
    table = discrepancies(collect([write(tmp_path, rows)]).cells)
    assert [(row[0].text, row[1].text, row[3].text) for row in table.rows] == [("sop/mnist/gs", OPEN, "log-likelihood")]
    assert table.notes == ("Not comparable, for the reasons below their tables, and so left out: sop/mnist/igr-sb.",)


def test_rows_that_are_nearer_to_the_published_code_tell(tmp_path):
    """The paper has −57.28 ± 0.07 for IGR-I; these rows have TEST moved by a shift."""

    def why(name, *further):
        rows = [*completion("igr-i", shift=20.0), *(each for some in further for each in some)]
        table = discrepancies(collect([write(tmp_path / name, rows)]).cells)
        [text] = [row[1].text for row in table.rows if row[0].text == "sop/mnist/igr-i"]
        return text

    mean, sd = np.mean(TEST), np.std(TEST, ddof=1)
    unit = completion("igr-i+unit", shift=-60.0 - mean)
    assert why("alone").startswith("perhaps: the published code fixes σ at 1")
    assert why("unit", unit) == (
        f"perhaps the scale: with σ = 1, as in the published code, it has −60.00 ± {sd:.2f} at τ = 0.5, off by −2.72"
    )
    linear = completion("igr-i+unit+linear", shift=-57.3 - mean)
    assert why("nearest", unit, linear) == (
        "perhaps scale and network: with σ = 1 and one linear layer in place of each pair, as in the published script, "
        f"it has −57.30 ± {sd:.2f} at τ = 0.5, within noise"
    )


def test_the_learning_rate_of_the_published_script_tells(tmp_path):
    """The paper has −106.17 ± 1.00 for GS: within 2.01 of that is noise. Here published, −100 with either τ."""

    def why(name, further=(), table="table1/mnist/linear"):
        rows = [*trained("table1/mnist/linear/gs", -100.0, -99.0), *further]
        rows_of_it = discrepancies(collect([write(tmp_path / name, rows)]).cells).rows
        return {row[3].text: row[1].text for row in rows_of_it if row[0].text == f"{table}/gs"}

    def trained(id, by_elbo, by_bound, protocol="published"):
        rows = vae(id, by_elbo, by_bound, 0.5, protocol)
        for row in rows:  # the ELBO on training images is 40 less than the formula on test images
            row["metrics"]["train"] = {"elbo_discrete": row["metrics"]["test"]["log_likelihood_published_1000"] - 40.0}
        return rows

    def slow(*levels):
        return trained("beyond/mnist/linear/gs+slow", *levels)

    words = "perhaps the learning rate: at 1e-4, as in the published script, it has {} ± 0.10 at τ = {}, {}".format
    assert why("alone") == {"discrete ELBO": OPEN, "bound": OPEN}
    assert why("honest", slow(-106.0, -104.0, "honest")) == {"discrete ELBO": OPEN, "bound": OPEN}
    assert why("nearer", slow(-106.0, -104.0)) == {
        "discrete ELBO": words("−106.00", 0.1, "within noise, but the train ELBO of the same models is off by +8.01"),
        "bound": words("−104.00", 0.5, "off by +2.17"),
    }
    assert why("further", slow(-90.0, -90.0)) == {"discrete ELBO": OPEN, "bound": OPEN}
    assert why("train", slow(-113.9, -104.0), table="train-elbo/mnist") == {  # −154.01 ± 0.53 there
        "discrete ELBO": words(
            "−153.90", 0.1, "within noise, but the log-likelihood of the same models is off by −7.73"
        ),
        "bound": words("−144.00", 0.5, "off by +10.01"),
    }


def of_both(id, level, train, protocol="published", deviation=0.1, prior=None):
    """Three seeds with the same numbers at both temperatures: by the published formula, and the train ELBO."""
    rows = vae(id, level, level, prior, protocol, train)
    for each, spread in zip(rows, 2 * (-deviation, 0.0, deviation), strict=True):
        each["settings"] |= {"architecture": "linear"}
        each["metrics"]["test"]["log_likelihood_published_1000"] = level + spread
    return rows


def reasons(folder, *rows, criterion="bound"):
    """Why each number differs that is chosen by one criterion, by cell and protocol."""
    table = discrepancies(collect([write(folder, [each for some in rows for each in some])]).cells)
    return {(row[0].text, row[2].text): row[1].text for row in table.rows if row[3].text == criterion}


def test_a_row_as_in_the_script_tells_if_it_has_all_numbers_else_the_nearest(tmp_path):
    """The paper has −96.21 ± 0.14 for IGR-Planar, and a train ELBO of −132.74 ± 0.20."""
    planar, elbo = (f"{table}/igr-planar" for table in ("table1/mnist/linear", "train-elbo/mnist"))
    tau, script = (f"beyond/mnist/linear/igr-planar+{row}" for row in ("tau", "script"))

    def why(name, *further):
        found = reasons(tmp_path / name, of_both(planar, -98.0, -123.0), *further)
        return found[planar, "published"], found[elbo, "published"]

    words = (
        "perhaps the temperature: with one that the published script names, and the paper's grid does not have, it has "
        "{} ± 0.10 at τ = 0.5, {}"
    ).format
    both = "perhaps temperature and learning rate: with those that the published script names, it has {}".format
    assert why("alone") == (OPEN, OPEN)
    assert why("further", of_both(tau, -94.0, -120.0)) == (OPEN, OPEN)
    assert why("noisier", of_both(tau, -94.0, -120.0, deviation=3.0)) == (OPEN, OPEN)  # though by fewer SDs
    nearer = of_both(tau, -96.2, -130.0)
    assert why("one number", nearer) == (
        words("−96.20", "within noise, but the train ELBO of the same models is off by +2.74"),
        words("−130.00", "off by +2.74"),
    )
    whole = of_both(script, -96.3, -132.6)  # is further from the log-likelihood, but has both
    assert why("both numbers", nearer, whole) == (
        both("−96.30 ± 0.10 at τ = 0.5, within noise"),
        both("−132.60 ± 0.10 at τ = 0.5, within noise"),
    )


def test_what_the_published_divergence_has_too_much_is_taken_off(tmp_path):
    """The paper has −94.65 ± 0.14 for IGR-I, and a train ELBO of −131.34 ± 0.15."""
    wrong = "in part: the published code's KL of IGR-I is that of h(y/σ), not of h(y), 1.65 nats too large"
    elbo = "train-elbo/mnist/igr-i"

    def why(name, *further):
        return reasons(tmp_path / name, of_both(IGR_I, -96.5, -123.5), *further)

    assert why("alone") == {(IGR_I, "published"): OPEN, (elbo, "published"): wrong}
    words = "at τ = 0.5, off by {}; less the 1.65 nats by which the published KL is too large it is {}".format
    tau, script = (f"beyond/mnist/linear/igr-i+{row}" for row in ("tau", "script"))
    found = why("raw", of_both(tau, -94.6, -131.4))
    assert found[IGR_I, "published"].endswith(
        "it has −94.60 ± 0.10 at τ = 0.5, within noise; less the 1.65 nats by which the published KL is too large it "
        "is off by −1.60"
    )
    found = why("both", of_both(tau, -94.1, -128.0), of_both(script, -93.0, -129.7))
    assert found[IGR_I, "published"].endswith(words("+1.65", "within noise"))
    assert found[elbo, "published"].endswith(words("+1.64", "within noise"))
    found = why("apart", of_both(script, -93.0, -128.0))
    left = ", but the train ELBO of the same models is off by +1.69"
    assert found[IGR_I, "published"].endswith(words("+1.65", "within noise") + left)
    assert not any(wrong in each for each in found.values())  # once is enough


def test_the_selection_comes_before_rows_as_in_the_script(tmp_path):
    """The other τ explains both numbers; of IGR-I only with what the published KL has too much."""

    def why(name, method, level, train):
        id = f"table1/mnist/linear/{method}"
        same = vae(id, -98.5, level, protocol="published", train=train)
        for row in same:
            row["settings"] |= {"architecture": "linear"}
        nearer = of_both(f"beyond/mnist/linear/{method}+tau", level, train)
        return reasons(tmp_path / name, same, nearer, criterion="discrete ELBO")[id, "published"]

    assert why("planar", "igr-planar", -96.2, -132.7).startswith(
        "selection: with the τ that the bound chooses, 0.5, it is"
    )
    less = "less the 1.65 nats by which the published KL is too large"
    found = why("igr-i", "igr-i", -94.65 + 1.65, -131.34 + 1.65)
    assert found.startswith(f"selection: with the τ that the bound chooses, 0.5, {less} it is within noise; ")
    assert not why("as measured", "igr-i", -94.6, -131.4).startswith("selection")


def test_what_protocol_published_has_stands_beside_a_difference(tmp_path):
    """The paper has −106.17 ± 1.00 for GS: within 2.01 of that is noise."""
    gs = "table1/mnist/linear/gs"
    honest = of_both(gs, -112.0, -154.0, "honest", prior=0.25)
    prior = reasons(tmp_path / "alone", honest)[gs, "honest"]
    assert prior.startswith("perhaps in part: the temperature of GS's prior")
    assert "under protocol published" not in prior
    found = reasons(tmp_path / "both", honest, of_both(gs, -102.0, -154.0, prior=0.5))
    assert found[gs, "honest"] == f"{prior}; under protocol published it has −102.00 ± 0.10 at τ = 0.5, off by +4.17"
    assert found[gs, "published"] == OPEN
    near = reasons(tmp_path / "near", honest, of_both(gs, -106.0, -150.0, prior=0.5))
    assert near[gs, "honest"].endswith(
        "it has −106.00 ± 0.10 at τ = 0.5, within noise, but the train ELBO of the same models is off by +4.01"
    )
