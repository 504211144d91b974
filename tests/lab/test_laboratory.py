"""The laboratory at work: rows, records, tables and the figure."""

import io
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy import stats

from igr.lab import run as module
from igr.lab.figure import draw
from igr.lab.find import find
from igr.lab.measure import MeasureError
from igr.lab.problems import Problem, ProblemError
from igr.lab.registry import ESTIMATORS, METHODS
from igr.lab.run import Settings, laboratory, rows
from igr.lab.table import biased, flat, groups, legend, markdown, parts, table, write_parquet
from igr.paper import records

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).parents[2]
TINY = Settings(draws=40, repetitions=4, control_steps=2, smoke=True)
FEW = ("st_relaxed", "straight_through", "rloo")


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(module, "BATCH", 5)


def work(path, work, settings=TINY, **options):
    """All records, and what was reported on the way."""
    heard = []
    return list(laboratory(work, settings, "cpu", path, heard.append, **options)), heard


def few(names=FEW, problem="rebar", methods=("gs",), temperatures=(0.5, 1.0)):
    return rows([find(problem)], methods, names, temperatures)


def test_without_a_file_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept, _ = work(tmp_path / "kept.jsonl", few())
    found = list(laboratory(few(), TINY))
    assert [each["metrics"]["bias"] for each in found] == [each["metrics"]["bias"] for each in kept]
    assert [path.name for path in tmp_path.iterdir()] == ["kept.jsonl"]


# ---------------------------------------------------------------------------------------------------------------- rows


def test_rows_are_what_has_a_meaning():
    names = list(ESTIMATORS)
    both = [(r.method, r.estimator, r.tau) for r in few(names, "tanh", ("gs", "igr-i", "igr-sb"))]
    assert len(set(both)) == len(both)
    assert ("gs", "gumbel_rao", 0.5) in both
    assert ("igr-i", "igr_rao", 1.0) in both
    assert ("igr-i", "reinmax", None) in both
    assert {r[1] for r in both if r[0] == "igr-i"} == set(names) - {"gumbel_rao", "disarm"}
    assert {r[1] for r in both if r[0] == "igr-sb"} == set(names) - {
        "gumbel_rao",
        "igr_rao",
        "disarm",
        "rebar",
        "relax",
    }
    assert {r.estimator for r in few(names, "rebar")} == set(names) - {"igr_rao"}


def test_labels_and_markers_tell_estimators_apart():
    for method in METHODS:
        entries = [entry for entry in ESTIMATORS.values() if entry.fits(method, 2)]
        assert len({entry.marker for entry in entries}) == len({entry.label for entry in entries}) == len(entries)


def test_what_has_no_gradient_is_left_to_the_score(tmp_path):
    """With a control variate that is a network alone."""
    problem = Problem("steps", lambda z: z.argmax(-1).sum(-1).to(z.dtype), torch.zeros(2, 3))
    made = rows([problem], ["gs", "igr-i"], list(ESTIMATORS), [0.5])
    names = {"score_function", "score_function_mean", "rloo", "uspg", "relax"}
    assert {row.estimator for row in made} == names
    found, _ = work(tmp_path / "records.jsonl", made, replace(TINY, draws=200, control_steps=20))
    for record in found:
        assert record["metrics"]["z"] < 5
        assert not biased(record["metrics"])


# -------------------------------------------------------------------------------------------------------- measurements


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Every estimator on both kinds of problem."""
    path = tmp_path_factory.mktemp("found") / "records.jsonl"
    problems = [find("rebar"), find("tanh,num_categories=3,num_variables=2")]
    made = rows(problems, ["gs", "igr-i"], list(ESTIMATORS), [0.3, 1.0])
    made = [r for r in made if r.problem is problems[0] or r.method == "gs" or not r.entry.costly]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SMOKE_BATCH", 20)
        return work(path, made, Settings(draws=200, repetitions=10, control_steps=10, smoke=True))[0]


FIELDS = {"spec", "protocol", "seed", "tau", "prior_temperature", "metrics", "commit", "device", "seconds", "smoke"}
METRICS = {
    *("bias", "bias_se", "bias_limit", "floor", "raw", "std", "std_se", "rmse", "rmse_se", "cosine", "cosine_se"),
    *("cosine_single", "cosine_single_se", "zero", "zero_se", "z", "evaluations", "microseconds", "kilobytes"),
}


def test_every_record_says_what_was_measured(found):
    for record in found:
        assert record.keys() >= FIELDS | {"dirty", "tree", "version", "torch", "label", "unbiased", "threads", "date"}
        assert set(record["metrics"]) == METRICS
        assert all(math.isfinite(value) for value in record["metrics"].values())
        assert record["settings"]["draws"] == 200
        assert record["settings"]["samples"] == 4
        assert record["metrics"]["microseconds"] > 0
        assert record["metrics"]["kilobytes"] > 0
        m = record["metrics"]
        assert m["rmse"] == pytest.approx(math.hypot(m["raw"], m["std"] * math.sqrt(1 - 1 / 200)), rel=1e-4)
    assert len({(record["spec"], record["tau"]) for record in found}) == len(found)


def test_unbiased_estimators_are_and_others_are_not(found):
    for record in found:
        name, metrics = parts(record)[3], record["metrics"]
        if ESTIMATORS[name].unbiased:
            assert metrics["z"] < 5, record["spec"]
            assert not biased(metrics), record["spec"]
    at_one = [r for r in found if r["tau"] == 1 and parts(r)[3] in ("reparameterized", "st_relaxed")]
    assert len(at_one) == 8
    assert all(biased(record["metrics"]) for record in at_one)


def test_evaluations_are_counted(found):
    counts = {(parts(r)[1].split(",")[0], parts(r)[3]): r["metrics"]["evaluations"] for r in found}
    for (_, name), count in counts.items():
        assert count == (8 if name in ("rebar", "relax") else 4), name


def test_zeros_are_those_of_equal_samples(tmp_path):
    """RLOO has no gradient where all samples of the only variable are the same, DisARM where those of all pairs are."""
    problem = replace(find("rebar,num_variables=1"), logits=torch.tensor([[0.7, 0.0]]))
    settings = replace(TINY, draws=4_000, repetitions=20)
    found, _ = work(tmp_path / "records.jsonl", rows([problem], ["gs"], ["rloo", "disarm"], []), settings)
    p = 1 / (1 + math.exp(-0.7))
    same = 1 - 2 * (1 - p)  # u above 1 - p and below p
    for record, share in zip(found, (p**4 + (1 - p) ** 4, same**2), strict=True):
        zeros = round(record["metrics"]["zero"] * 4_000)
        assert stats.binomtest(zeros, 4_000, share).pvalue > 1e-5


def test_reinmax_is_exact_for_a_quadratic_and_straight_through_is_not(tmp_path):
    made = few(["straight_through", "reinmax"], "polynomial,degree=2,num_categories=4", ("gs", "igr-i"))
    found, _ = work(tmp_path / "records.jsonl", made, replace(TINY, draws=2_000))
    assert [biased(record["metrics"]) for record in found] == [True, False] * 2
    assert all(record["metrics"]["z"] < 5 for record in found[1::2])


def test_a_trained_control_variate_lowers_the_variance(found):
    plain, trained = (
        np.array([r["metrics"]["std"] for r in found if parts(r)[1] == "rebar" and parts(r)[3] == name])
        for name in ("rebar", "relax")
    )
    assert plain.shape == (4,)
    assert np.all(trained < 0.9 * plain)


def test_seed_decides_and_samples_average(tmp_path):
    made = few(["score_function"])
    one, again, other = (
        work(tmp_path / file, made, replace(TINY, seed=seed))[0][0]["metrics"]["raw"]
        for file, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert one == again != other
    settings = replace(TINY, draws=2_000)
    std = [work(tmp_path / "d", made, replace(settings, samples=S))[0][0]["metrics"]["std"] for S in (1, 16)]
    assert std[0] == pytest.approx(4 * std[1], rel=0.15)


def test_slow_estimators_have_fewer_draws_unless_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "DRAWS", 40)
    made = few(["rloo", "rebar"], methods=("gs", "igr-i"), temperatures=(0.5,))
    for draws, expected in ((None, [40, 40, 40, 10]), (60, [60] * 4)):
        settings = replace(TINY, draws=draws, repetitions=2)
        found, _ = work(tmp_path / "records.jsonl", made, settings)
        assert [record["settings"]["draws"] for record in found] == expected


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (lambda z: 0 * z.sum((-1, -2)), "float32"),
        (lambda z: 5 * z.sum((-1, -2)), "float64"),
        (lambda z: (z - 0.3).square().sum((-1, -2)), "float32"),  # of ten categories, each state rounds differently
    ],
    ids=["zero", "constant", "rounding"],
)
def test_a_gradient_that_is_rounding_is_refused(function, dtype, method, tmp_path):
    logits = torch.linspace(-1, 1, 10).expand(2, 10).double()
    made = rows([Problem("flat", function, logits)], [method], ["rloo"], [])
    with pytest.raises(ProblemError, match=rf"flat, {method}: the exact gradient is zero up to rounding.*; choose"):
        work(tmp_path / "records.jsonl", made, replace(TINY, dtype=dtype))
    assert not (tmp_path / "records.jsonl").exists()


def test_a_small_gradient_is_measured(tmp_path):
    problem = Problem("small", lambda z: 1 + 1e-9 * z[..., 0].sum(-1), torch.zeros(1, 3))
    settings = replace(TINY, draws=1_000, dtype="float64")
    (record,), _ = work(tmp_path / "records.jsonl", rows([problem], ["gs"], ["rloo"], []), settings)
    assert record["metrics"]["z"] < 5


def test_smoke_times_little(tmp_path, monkeypatch):
    sizes = []
    real = module._Setup._leaves
    monkeypatch.setattr(module, "BATCH", 50)
    monkeypatch.setattr(module._Setup, "_leaves", lambda self, size: sizes.append(size) or real(self, size))
    for settings, batch, count in ((TINY, 2, 4), (replace(TINY, smoke=False), 50, 8)):
        sizes.clear()
        (record,), _ = work(tmp_path / "records.jsonl", few(["rloo"]), settings)
        assert record["timed_batch"] == batch
        assert sizes[4:] == [batch] * count  # after the four repetitions


def test_estimates_that_are_not_finite_are_named(tmp_path):
    problem = Problem("cliff", lambda z: torch.where(z > 0.5, z, z.sqrt())[..., :2].sum((-1, -2)), torch.zeros(1, 3))
    made = rows([problem], ["gs"], ["straight_through"], [])
    with pytest.raises(MeasureError, match="ST on cliff, gs: 10 of 10 estimates are not finite"):
        work(tmp_path / "records.jsonl", made)


# ------------------------------------------------------------------------------------------------------------- records


def test_what_is_recorded_is_not_measured_again(tmp_path, monkeypatch):
    path, made = tmp_path / "records.jsonl", few()
    first, heard = work(path, made)
    assert [json.loads(line) for line in path.read_text().splitlines()] == first
    assert heard[0] == "rebar, gs: ST relaxed, τ = 0.5"
    assert len(heard) == len(first) == 4

    def refuse(*args, **options):
        raise AssertionError("measured again")

    with monkeypatch.context() as patch:
        patch.setattr(module, "measure", refuse)
        assert work(path, made)[0] == first
        changed = few(problem="rebar,target=0.4")
        for again in (
            lambda: work(path, made, replace(TINY, draws=50)),
            lambda: work(path, made, fresh=True),
            lambda: work(path, changed),
        ):
            with pytest.raises(AssertionError, match="measured again"):
                again()
    work(path, made, fresh=True)
    assert len(records.read(path)) == len(first)  # in place of the earlier ones


def test_a_problem_that_has_changed_is_measured_again(tmp_path):
    path = tmp_path / "records.jsonl"
    for power, count in ((2, 1), (3, 2), (2, 2)):
        problem = Problem("mine", lambda z, power=power: z[..., 0].sum(-1).pow(power), torch.zeros(2, 3))
        work(path, rows([problem], ["gs"], ["rloo"], []))
        assert len(records.read(path)) == count


def test_an_interruption_loses_nothing(tmp_path, monkeypatch):
    path, made, calls = tmp_path / "records.jsonl", few(), []
    real = module.measure

    def interrupted(*args, **options):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(module, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        work(path, made)
    assert [record["tau"] for record in records.read(path)] == [0.5, 1.0]
    again, _ = work(path, made)
    assert (len(again), len(calls)) == (4, 5)
    assert [file.name for file in tmp_path.iterdir()] == ["records.jsonl"]


def test_it_stops_when_asked_and_goes_on(tmp_path):
    path, made, asked = tmp_path / "records.jsonl", few(), []

    def stop():
        asked.append(None)
        return len(asked) > 2

    assert len(work(path, made, stop=stop)[0]) == 2
    assert len(work(path, made, stop=lambda: len(records.read(path)) > 2)[0]) == 3
    assert len(work(path, made)[0]) == 4


# ---------------------------------------------------------------------------------------------------- table and figure


def printed(*things):
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(*things)
    return console.export_text().splitlines()


def test_tables(found):
    made = [(key, its) for key, its in groups(found)]
    assert [key for key, _ in made] == [
        (problem, method)
        for problem in ("rebar", "tanh,num_categories=3,num_variables=2")
        for method in ("gs", "igr-i")
    ]
    for (problem, _), its in made:
        title, head, *lines = printed(table(its))
        assert title.startswith(f"{problem}, ")
        assert "S = 4; |g| = " in title
        assert "E[f] = " in title
        assert head.split()[:5] == ["estimator", "τ", "bias", "std", "RMSE"]
        assert len(lines) == len(its)
        best = min(its, key=lambda record: record["metrics"]["rmse"])
        assert [line for line in lines if "*" in line] == [lines[its.index(best)]]
        for line, record in zip(lines, its, strict=True):
            assert line.startswith(record["label"])
            assert ("<" in line) is not biased(record["metrics"])
            assert "…" not in line
    assert "one of 20 estimates" in " ".join(printed(legend(found)))


def test_rows_with_another_number_of_samples_say_so(found):
    its = [record | {"settings": record["settings"] | {"samples": 1}} for record in found]
    its = [each for each in its if parts(each)[1:3] == ("rebar", "gs")]
    raised = next(i for i, each in enumerate(its) if parts(each)[3] == "rloo")
    its[raised]["settings"]["samples"] = 2
    its = [its[raised], *its[:raised], *its[raised + 1 :]]
    title, _, *lines = printed(table(its))
    assert "S = 1; |g| = " in title
    assert [line.split("  ")[0] for line in lines if "S = " in line] == ["RLOO, S = 2"]
    assert [line.split(" | ")[0] for line in markdown(its, "gs").splitlines() if "S = " in line] == ["| RLOO, S = 2"]


def test_summary_for_a_page(found):
    head, _, *lines = markdown(found, "gs").splitlines()
    assert head == "| estimator | rebar | tanh,num_categories=3,num_variables=2 | µs |"
    assert len(lines) == len([name for name, entry in ESTIMATORS.items() if entry.fits("gs", 2)])
    assert sum(line.count("**") for line in lines) == 4
    by_name = {line.split(" | ")[0].removeprefix("| "): line for line in lines}
    rmse = [r for r in found if r["spec"] == "lab/rebar/gs/st_relaxed"]
    best = min(rmse, key=lambda record: record["metrics"]["rmse"])
    assert f"τ {best['tau']:g})" in by_name["ST relaxed"].split(" | ")[1]
    assert by_name["DisARM"].split(" | ")[2] == ""


def test_figure(found):
    figure = draw(found)
    assert len(figure.axes) == 4
    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == [
        "rebar",
        "tanh,num_categories=3,num_variables=2",
    ]
    for axes, (_, its) in zip(figure.axes, groups(found), strict=True):
        points = [line for line in axes.lines if line.get_marker() not in ("None", None, "")]
        assert len(points) == len(its)
        for line, record in zip(points, its, strict=True):
            m = record["metrics"]
            assert line.get_marker() == ESTIMATORS[parts(record)[3]].marker
            assert line.get_xdata()[0] == max(1e-3, m["std"])
            assert line.get_ydata()[0] == max(1e-3, m["bias"] if biased(m) else m["bias_limit"])
            assert (line.get_markerfacecolor() == "white") is not biased(m)
            low, high = axes.get_xlim()
            assert low <= line.get_xdata()[0] <= high
        assert sum(line.get_linestyle() == "-" for line in axes.lines) == 2  # a curve for each temperature
    figure.draw_without_rendering()
    for text in [*figure.texts, *figure.legends[0].get_texts()]:
        box = text.get_window_extent()
        assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1, text
        assert figure.bbox.y0 <= box.y0 <= box.y1 <= figure.bbox.y1, text
    legend, caption = figure.legends[0].get_window_extent(), figure.texts[-1].get_window_extent()
    assert not legend.overlaps(caption)
    assert not any(legend.overlaps(axes.get_window_extent()) for axes in figure.axes)


def test_a_front_is_what_nothing_beats(found):
    for axes, (_, its) in zip(draw(found).axes, groups(found), strict=True):
        for tau in (0.3, 1.0):
            points = []
            for m in (record["metrics"] for record in its if record["tau"] == tau):
                points.append((max(1e-3, m["std"]), max(1e-3, m["bias"] if biased(m) else m["bias_limit"])))
            beaten = {p for p in points if any(q[0] < p[0] and q[1] < p[1] for q in points)}
            curves = [set(zip(*line.get_data(), strict=True)) for line in axes.lines if line.get_linestyle() == "-"]
            assert set(points) - beaten in curves


def test_lines_of_numbers_and_words(found, tmp_path, monkeypatch):
    line = flat(next(record for record in found if parts(record)[3] == "relax"))
    assert (line["problem"], line["parameterization"], line["estimator"]) == ("rebar", "gs", "relax")
    assert {"bias", "rmse", "draws", "samples", "exact_norm", "control_steps", "commit", "tau"} <= line.keys()
    assert all(value is None or isinstance(value, str | int | float) for value in line.values())

    written = {}
    arrow, parquet = ModuleType("pyarrow"), ModuleType("pyarrow.parquet")
    arrow.table = dict
    parquet.write_table = lambda content, path: (written.update(content), path.write_bytes(b"parquet"))
    monkeypatch.setitem(sys.modules, "pyarrow", arrow)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)
    write_parquet(found, tmp_path / "lab.parquet")
    assert [file.name for file in tmp_path.iterdir()] == ["lab.parquet"]
    assert {len(column) for column in written.values()} == {len(found)}
    assert written["control_steps"][0] is None


def test_parquet_can_be_read_back(found, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    write_parquet(found, tmp_path / "lab.parquet")
    back = parquet.read_table(tmp_path / "lab.parquet").to_pylist()
    assert [line["rmse"] for line in back] == [record["metrics"]["rmse"] for record in found]
