import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy import stats

from igr.paper import approximate as module
from igr.paper import records
from igr.paper.approximate import FitError, Settings, State, approximate, evaluate, exact_models, models, ticks
from igr.paper.approximate_figure import draw
from igr.paper.approximate_table import markdown, table
from igr.paper.distances import kl_divergence, moments, total_variation
from igr.paper.methods import METHODS
from igr.paper.targets import TARGETS

SCIPY = {
    "poisson": stats.poisson(50),
    "binomial": stats.binom(12, 0.3),
    "negative-binomial": stats.nbinom(50, 0.6),
    "geometric": stats.geom(0.4, loc=-1),
    "uniform": stats.randint(0, 10),
    "discrete": stats.rv_discrete(values=(range(10), np.array([10, 1, 5, 1, 10, 10, 1, 6, 1, 1]) / 46)),
}
UNBOUNDED = ("poisson", "negative-binomial", "geometric")
SHORT = Settings().shortened()


def run(name, path, settings=SHORT, **options):
    """All records, and what was reported on the way."""
    heard = []
    results = list(approximate(name, settings, "cpu", path, lambda *words: heard.append(words), **options))
    return results, heard


# ----------------------------------------------------------------------------------------------- targets and distances


@pytest.mark.parametrize("name", TARGETS)
def test_targets_are_what_they_are_called(name):
    log_p, truth = TARGETS[name].log_probs(), SCIPY[name]
    k = np.arange(len(log_p))
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(np.exp(log_p), truth.pmf(k), rtol=1e-9, atol=1e-300)
    assert np.exp(log_p).sum() == pytest.approx(1.0, abs=1e-12)
    assert np.isfinite(log_p).all()
    assert moments(np.exp(log_p)) == pytest.approx((truth.mean(), truth.var()))
    assert (TARGETS[name].num_categories is None) == (name in UNBOUNDED)
    assert TARGETS[name].num_categories in (None, len(log_p))


def test_distances_of_a_hand_made_example():
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.75])
    assert total_variation(p, q) == total_variation(q, p) == pytest.approx(0.5)
    assert kl_divergence(np.log(p), np.log(q)) == math.inf  # q lacks the last category
    assert kl_divergence(np.log(p), np.log(q), reverse=True) == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(3))
    assert moments(p) == pytest.approx((0.75, 0.6875))


def test_distances_match_scipy():
    rng = np.random.default_rng(0)
    for size in (2, 10, 100):
        p, q = rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size))
        assert total_variation(p, q) == pytest.approx(max(p[p > q].sum() - q[p > q].sum(), 0))
        assert kl_divergence(np.log(p), np.log(q)) == pytest.approx(stats.entropy(p, q), rel=1e-12)
        assert kl_divergence(np.log(p), np.log(q), reverse=True) == pytest.approx(stats.entropy(q, p), rel=1e-12)
        drawn = stats.rv_discrete(values=(range(size), p))
        assert moments(p) == pytest.approx((drawn.mean(), drawn.var()))


def test_kl_of_what_is_almost_the_same_does_not_cancel():
    p = np.array([0.3, 0.7])
    for step in (1e-5, 1e-10):
        q = p + np.array([step, -step])
        assert 0 < kl_divergence(np.log(p), np.log(q)) < step**2 * 10 + 1e-32
    assert kl_divergence(np.log(p), np.log(p)) == 0.0


def test_tail_bounds_total_variation_and_kl():
    """A geometric distribution cut after four categories, and the whole of another one."""
    whole, other = SCIPY["geometric"].pmf(np.arange(200)), stats.geom(0.3, loc=-1).pmf(np.arange(200))
    probs, tail = other[:4], other[4:].sum()
    exact = total_variation(whole, other)
    assert exact <= total_variation(whole, probs, tail) <= exact + tail
    lower = kl_divergence(np.log(whole), np.log(probs), np.log(tail))
    assert 0.5 * stats.entropy(whole, other) < lower < stats.entropy(whole, other)
    lower = kl_divergence(np.log(whole), np.log(probs), np.log(tail), reverse=True)
    assert 0 < lower < stats.entropy(other, whole)
    assert moments(probs, tail)[0] == pytest.approx((probs * np.arange(4)).sum() + 4 * tail)


def test_missing_support_counts():
    log_p0 = TARGETS["poisson"].log_probs()
    state = State(0, 0.0, np.full(20, 0.05), 0.0, np.full(20, 50), np.full(1000, 20.0))
    metrics = evaluate(log_p0, state)
    truth = SCIPY["poisson"]
    missing = truth.sf(19)
    assert metrics["tv"] == pytest.approx(0.5 * (missing + np.abs(truth.pmf(np.arange(20)) - 0.05).sum()))
    assert metrics["tv"] == metrics["tv_histogram"] > 0.999
    assert metrics["kl_truth_model"] == math.inf
    kl = stats.entropy(np.full(20, 0.05), truth.pmf(np.arange(20))) - np.log(truth.cdf(19))  # scipy normalises
    assert metrics["kl_model_truth"] == pytest.approx(kl)
    assert (metrics["mean"], metrics["variance"]) == pytest.approx((9.5, 33.25))
    assert (metrics["categories_mean"], metrics["categories_max"], metrics["tail"]) == (20, 20, 0)


# ---------------------------------------------------------------------------------------------------------------- fits


def test_models():
    assert [m.label for m in models(TARGETS["poisson"])] == ["IGR-SB", *(f"GS, K = {K}" for K in (20, 40, 100, 200))]
    assert [(m.label, m.num_categories) for m in models(TARGETS["binomial"])] == [
        ("IGR-I", 13),
        ("IGR-SB", None),  # which is never told
        ("GS", 13),
    ]
    assert [m.label for m in exact_models(TARGETS["poisson"])] == ["IGR-SB exact"]
    assert [m.label for m in exact_models(TARGETS["uniform"])] == ["IGR-I exact", "IGR-SB exact"]


def test_sticks_start_as_published_and_end_softly():
    loc = module._first_locations(torch.arange(400))
    assert loc[:200].numpy() == pytest.approx(-5.288, abs=5e-4)
    assert bool((loc[200:].diff() > 0).all())
    probs, tail = module._first_sticks(True)
    assert probs[:200].sum() > 0.99
    assert tail < 1e-3


def test_settings_keep_the_published_number_of_steps():
    assert Settings().kept == (0, 200, 1000)
    assert Settings(steps=500).kept == (0, 200, 500)
    assert Settings(steps=50).kept == (0, 10, 50)
    assert Settings(steps=1).kept == (0, 1)
    assert (Settings(tau=0.3).shortened().tau, Settings().shortened().smoke) == (0.3, True)


FIELDS = {"spec", "protocol", "seed", "tau", "prior_temperature", "metrics", "commit", "device", "seconds", "smoke"}


@pytest.mark.parametrize("name", TARGETS)
def test_every_target(name, tmp_path):
    path = tmp_path / "records.jsonl"
    results, heard = run(name, path)
    assert [json.loads(line) for line in path.read_text().splitlines()] == results
    assert sum(amount for _, amount in heard) == ticks([name], exact=False)
    truth = SCIPY[name]
    for record in results:
        assert record.keys() >= FIELDS | {"dirty", "torch", "settings", "states", "loss", "target", "model"}
        assert record["spec"].startswith(f"approximate/{name}/")
        assert (record["seed"], record["prior_temperature"], record["smoke"], record["device"]) == (
            0,
            None,
            True,
            "cpu",
        )
        assert (record["target"]["mean"], record["target"]["variance"]) == pytest.approx((truth.mean(), truth.var()))
        assert [state["step"] for state in record["states"]] == [0, 4, 20]
        assert record["metrics"] == record["states"][-1]["metrics"]
        assert len(record["loss"]["means"]) == 20
        for state in record["states"]:
            check_state(state)
    assert len({(record["spec"], record["protocol"]) for record in results}) == len(results)


def check_state(state):
    """The probabilities belong to the samples: five standard errors apart at most, and so in the mean."""
    probs, counts = np.array(state["probs"]), np.array(state["counts"])
    tail = state["metrics"]["tail"]
    assert probs.sum() + tail == pytest.approx(1.0, abs=1e-5)
    assert counts.sum() == 1000
    size = max(len(probs), len(counts))
    probs, counts = np.pad(probs, (0, size - len(probs))), np.pad(counts, (0, size - len(counts)))
    assert (np.abs(counts / 1000 - probs) < 5 * np.sqrt((probs + tail + 1e-3) / 1000)).all()
    mean, deviation = state["metrics"]["mean"], math.sqrt(state["metrics"]["variance"])
    assert abs((counts * np.arange(size)).sum() / 1000 - mean) < 5 * deviation / math.sqrt(1000) + tail * size


def test_few_steps_bring_the_geometric_distribution_closer(tmp_path):
    settings = Settings(steps=100, samples=200, learning_rate=0.1, smoke=True)
    results, _ = run("geometric", tmp_path / "records.jsonl", settings)
    for record in results:
        start, between, end = (state["metrics"]["tv"] for state in record["states"])
        assert end < between < start
        assert end < 0.6 * start
        assert record["loss"]["means"][-1] < 0.5 * record["loss"]["means"][0]
    assert results[0]["metrics"]["tv"] < 0.15  # IGR-SB


def test_exact_fits_are_exact(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "models", lambda target: [])
    results, _ = run("discrete", tmp_path / "records.jsonl", exact=True)
    assert [record["model"]["label"] for record in results] == ["IGR-I exact", "IGR-SB exact"]
    truth = SCIPY["discrete"]
    for record in results:
        assert (record["protocol"], record["device"], record["settings"]) == ("exact", "cpu", {"histogram": 1000})
        assert record["metrics"]["tv"] < 1e-6
        assert (record["metrics"]["mean"], record["metrics"]["variance"]) == pytest.approx(
            (truth.mean(), truth.var()), rel=1e-5
        )
        check_state(record["states"][-1])


@pytest.fixture
def few(monkeypatch):
    """Without the sticks, whose mass function takes the most time."""
    monkeypatch.setattr(module, "models", lambda target: [m for m in models(target) if m.method != "igr-sb"])


def test_seed_decides(tmp_path, few):
    one, again, other = (
        run("uniform", tmp_path / file, Settings(steps=3, samples=10, seed=seed, smoke=True))[0][-1]
        for file, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert one["states"][-1]["probs"] == again["states"][-1]["probs"] != other["states"][-1]["probs"]


def test_a_fit_that_breaks_down_says_so(tmp_path):
    with pytest.raises(FitError, match=r"IGR-I.*lower learning rate"):
        run("uniform", tmp_path / "records.jsonl", Settings(steps=5, samples=10, learning_rate=1e30, smoke=True))


# ------------------------------------------------------------------------------------------------------------- records


TINY = Settings(steps=2, samples=5, smoke=True)


def test_what_is_recorded_is_not_fitted_again(tmp_path, monkeypatch, few):
    path = tmp_path / "records.jsonl"
    first, _ = run("uniform", path, TINY)

    def refuse(*args, **options):
        raise AssertionError("fitted again")

    with monkeypatch.context() as patch:
        patch.setattr(module, "match_moments", refuse)
        again, heard = run("uniform", path, TINY)
        assert again == first
        assert sum(amount for _, amount in heard) == ticks(["uniform"], exact=False) > 0
        for other in (Settings(steps=2, samples=6, smoke=True), Settings(steps=2, samples=5)):
            with pytest.raises(AssertionError, match="fitted again"):
                run("uniform", path, other)
        with pytest.raises(AssertionError, match="fitted again"):
            run("uniform", path, TINY, fresh=True)
    run("uniform", path, TINY, fresh=True)
    assert len(records.read(path)) == len(first)  # in place of the earlier ones


def test_an_interruption_loses_nothing(tmp_path, monkeypatch, few):
    path, calls = tmp_path / "records.jsonl", []
    real = module.match_moments

    def interrupted(*args, **options):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(module, "match_moments", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run("uniform", path, TINY)
    assert [record["model"]["label"] for record in records.read(path)] == ["IGR-I"]
    results, _ = run("uniform", path, TINY)
    assert (len(results), len(calls)) == (2, 3)
    assert [file.name for file in tmp_path.iterdir()] == ["records.jsonl"]


def test_records_without_git(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "PACKAGE", tmp_path / "igr")
    (tmp_path / "igr").mkdir()
    assert records.source.__wrapped__() == (None, None)
    monkeypatch.setenv("PATH", str(tmp_path))  # no git at all
    assert records.source.__wrapped__() == (None, None)


def test_records_name_their_commit():
    commit, dirty = records.source()
    assert commit is None or (len(commit) == 40 and isinstance(dirty, bool))


@pytest.mark.parametrize("content", ["{", "[1]", '{"spec": "approximate/uniform/gs"}'])
def test_broken_records_are_refused(content, tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text(content + "\n")
    with pytest.raises(records.RecordError, match=r"line 1 of .*records\.jsonl is not a record"):
        records.read(path)
    with pytest.raises(records.RecordError):
        run("uniform", path, TINY)
    assert path.read_text() == content + "\n"


# ------------------------------------------------------------------------------------------------- figure and table


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A target with K and one without, with and without exact fits."""
    path = tmp_path_factory.mktemp("found") / "records.jsonl"
    cases = [(name, exact) for name in ("uniform", "geometric") for exact in (0, 1)]
    return {(name, exact): run(name, path, TINY, exact=bool(exact))[0] for name, exact in cases}


@pytest.mark.parametrize("exact", [0, 1], ids=["paper", "exact"])
@pytest.mark.parametrize("name", ["uniform", "geometric"])
def test_figure(name, exact, found):
    figure = draw(found[name, exact])
    methods = ["igr-sb", "gs"] if name == "geometric" else ["igr-i", "igr-sb", "gs"]
    assert len(figure.axes) == 2 * len(methods) + exact * (len(methods) - 1) + 1
    labels = {text.get_text(): text.get_color() for text in figure.texts}
    for method in methods:
        assert labels[METHODS[method].label] == METHODS[method].colour
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == ["initial", "after 2 steps", "exact fit" if exact else "loss"]
    truth = SCIPY[name].pmf
    for axes in figure.axes[:-1]:
        k, drawn = axes.lines[0].get_data()
        np.testing.assert_allclose(drawn, truth(k), rtol=1e-5)  # six digits are recorded
    assert len(figure.axes[-1].lines) == len([r for r in found[name, exact] if r["protocol"] == "paper"]) + 1


@pytest.mark.parametrize("exact", [0, 1], ids=["paper", "exact"])
@pytest.mark.parametrize("name", ["uniform", "geometric"])
def test_nothing_overlaps_or_is_blank(name, exact, found):
    figure = draw(found[name, exact])
    figure.draw_without_rendering()
    texts = [text for axes in figure.axes for text in [*axes.texts, axes.title]] + figure.texts
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]
    for i, (words, box) in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1, words
        assert figure.bbox.y0 <= box.y0 <= box.y1 <= figure.bbox.y1, words
        assert [other for other, its in boxes[:i] if box.overlaps(its)] == [], words
    for axes in figure.axes[:-1]:
        heights = [patch.get_height() for patch in axes.patches if hasattr(patch, "get_height")]
        heights += [patch.get_data().values.max() for patch in axes.patches if hasattr(patch, "get_data")]
        assert max(heights) > 0.001


def test_exact_fits_beat_all(found):
    for name in ("uniform", "geometric"):
        *_, last = found[name, 1]
        assert last["metrics"]["tv"] < 1e-5
        check_state(last["states"][-1])


def test_table(found):
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table(found["geometric", 1]))
    lines = console.export_text().splitlines()
    assert "Geometric(0.4): mean 1.5, variance 3.75" in lines[0]
    assert lines[1].split() == [
        *("model", "steps", "TV", "histogram", "KL(p0||q)", "KL(q||p0)", "mean", "variance", "K", "seconds")
    ]
    assert len(lines) == 2 + 5 * 2 + 1
    assert lines[2].split()[:2] == ["IGR-SB", "0"]
    assert "inf" in lines[4]
    assert lines[-1].startswith(" IGR-SB exact")


def test_the_page_says_what_the_records_say():
    root = Path(__file__).parents[2]
    kept = records.read(root / "results" / "ours" / "approximate" / "records.jsonl")
    assert {record["target"]["name"] for record in kept} == set(TARGETS)
    for record in kept:
        assert record["commit"]
        assert record["dirty"] is False
        assert record["smoke"] is False
        assert record["protocol"] == "exact" or record["settings"]["steps"] == 1_000
    assert markdown(kept) in (root / "docs" / "approximations.md").read_text(encoding="utf-8")


def test_divergence_of_tiny_probabilities():
    n, tail = 1024, 1e-6
    log_p = stats.poisson(50).logpmf(np.arange(2048))
    log_q = np.full(n, np.log((1 - tail) / n))
    p, q = np.exp(np.append(log_p[:n], np.logaddexp.reduce(log_p[n:]))), np.append(np.exp(log_q), tail)
    expected = np.sum(p[p > 0] * (np.log(p[p > 0]) - np.log(q[p > 0])))
    assert kl_divergence(log_p, log_q, np.log(tail)) == pytest.approx(expected, rel=1e-10)
