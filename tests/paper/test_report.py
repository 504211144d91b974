"""The report as a page, what it says beside its tables and figures, and the records that it refuses."""

from pathlib import Path

import pytest
from report_cases import (
    EVALUATION,
    GS,
    IGR_I,
    LINEAR,
    TEST_ELBO,
    Page,
    cell,
    gumbel_cell,
    made,
    mean_sd,
    printed,
    record,
    write,
)

from igr.paper import approximate_table
from igr.paper.records import read
from igr.paper.report import ReportError, build, collect, terminal_table

APPROXIMATIONS = Path(__file__).parents[2] / "results" / "ours" / "approximate"


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
    assert "Fits of other than 1,000 steps, which are not in a table: 1." in Page(made(tmp_path, [short]).html).text


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
