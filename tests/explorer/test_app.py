import base64
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("dash", reason="needs dash: pip install -e '.[explorer]'")

from dash import no_update

from igr.explorer import fit, relaxations, reproduction
from igr.explorer.app import create
from igr.explorer.fitting import Fits, Problem, Progress
from igr.explorer.library import Library
from igr.explorer.quantities import NAMES, Controls, view
from igr.explorer.relaxations import START

RESULTS = Path(__file__).parents[2] / "results" / "ours"
P0 = np.array([0.5, 0.3, 0.2])


@pytest.fixture
def fits() -> Iterator[Fits]:
    made = Fits()
    yield made
    made.close()


def unpack(packed):
    return np.frombuffer(base64.b64decode(packed["bdata"]), np.float32)


def words(component) -> list[str]:
    if component is None:
        return []
    if isinstance(component, list | tuple):
        return [word for each in component for word in words(each)]
    if isinstance(component, str | int | float):
        return [str(component)]
    return words(getattr(component, "children", None))


def ids(component) -> list[str]:
    if component is None or isinstance(component, str | int | float):
        return []
    if isinstance(component, list | tuple):
        return [id for each in component for id in ids(each)]
    own = [component.id] if getattr(component, "id", None) else []
    return own + ids(getattr(component, "children", None))


def test_page_asks_for_nothing_from_elsewhere(fits):
    client = create(RESULTS, fits).server.test_client()
    page = client.get("/").get_data(as_text=True)
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert len(sources) > 5
    assert all(each.startswith("/") for each in sources), sources
    for each in sources:
        with client.get(each) as answer:
            assert answer.status_code == 200, each
    own = {each.rpartition("/")[2].partition("?")[0] for each in sources if "/assets/" in each}
    assert own == {"latest.js", "picture.js", "style.css"}


@pytest.mark.parametrize("results", [RESULTS, Path("nowhere")], ids=["records", "none"])
def test_layout_has_what_callbacks_need(results, fits):
    app = create(results, fits)
    client = app.server.test_client()
    found = ids(app.layout())
    assert len(set(found)) == len(found)
    assert client.get("/_dash-layout").status_code == 200
    for callback in client.get("/_dash-dependencies").get_json():
        for each in [*callback["inputs"], *callback["state"]]:
            assert each["id"] in found, each
        for id in re.findall(r"([\w-]+)\.\w+", callback["output"]):
            assert id in found, callback["output"]


def test_every_page_has_a_name_of_its_own(fits):
    app = create(RESULTS, fits)
    names = [next(each.data for each in app.layout().children if getattr(each, "id", "") == "page") for _ in range(2)]
    assert names[0] != names[1]


def test_sliders_start_where_quantities_do():
    for found, expected in zip(relaxations.controls([], START), Controls(), strict=True):
        assert found == pytest.approx(expected)
    assert relaxations.reset(1) == [*START, []]
    own = relaxations.controls(["own"], START)
    assert own.logits == (0.0, 0.0, 0.0)


def test_look_answers_with_all_four():
    pictures, *facts, number, spent = relaxations.look([7, [], *START])
    assert number == 7
    assert re.fullmatch(r"computed in \d+ ms", spent)
    assert [each["name"] for each in pictures] == list(NAMES)
    for picture, fact, name in zip(pictures, facts, NAMES, strict=True):
        expected = view(name, relaxations.controls([], START))
        density = unpack(picture["density"]).reshape(picture["shape"])
        assert density == pytest.approx((expected.log_density / np.log(10)).clip(-2, 3), abs=1e-5)
        assert unpack(picture["histogram"]) == pytest.approx(expected.histogram)
        points = unpack(picture["points"]).reshape(-1, 2)
        z = expected.samples[: len(points)]
        assert len(points) == 500
        assert points[:, 0] == pytest.approx(z[:, 1] + z[:, 2] / 2, abs=1e-6)
        assert points[:, 1] == pytest.approx(np.sqrt(3) / 2 * z[:, 2], abs=1e-6)
        shown = words(fact)
        assert [f"{p:.4f}" for p in expected.probs] == [word for word in shown if re.fullmatch(r"\d\.\d{4}", word)]
        assert f"{expected.distance.mean:.4f} ± {expected.distance.error:.4f}" in shown
        assert ("exact" in shown) == (name != "igr-planar")


def test_look_changes_with_a_slider():
    first, second = (relaxations.look([i, [], tau, *START[1:]]) for i, tau in enumerate((-0.3, -1.0)))
    assert first[0][0]["density"] != second[0][0]["density"]
    assert words(first[1]) != words(second[1])


def test_vanished_gradients_stand_out():
    shown = words(relaxations.facts(view("gs", Controls(tau=0.01))))
    assert re.fullmatch(r"\d+ %", shown[-1])
    assert float(shown[-1].split()[0]) > 20


def test_answers_are_json(fits):
    client = create(RESULTS, fits).server.test_client()
    callback = next(each for each in client.get("/_dash-dependencies").get_json() if "pictures.data" in each["output"])
    outputs = [{"id": id, "property": prop} for id, prop in re.findall(r"([\w-]+)\.(\w+)", callback["output"])]
    extreme = [-2.0, 2.0, 5.0, -5.0, np.log10(0.05), np.log10(5.0), *[5.0] * 3, *[3.0] * 5]
    body = {
        "output": callback["output"],
        "outputs": outputs,
        "inputs": [{"id": "wanted", "property": "data", "value": [1, [], *extreme]}],
        "changedPropIds": ["wanted.data"],
    }
    answer = client.post("/_dash-update-component", json=body)
    assert answer.status_code == 200
    assert "NaN" not in answer.get_data(as_text=True)


def test_targets_choose_their_number_of_categories():
    assert fit.choose("binomial", None) == [13, True]
    assert fit.choose("own", "1 2 3") == [3, False]
    assert fit.choose("own", "what?") == [no_update, False]


def test_a_fit_begins_or_says_why_not(fits):
    given = ["own", "5 3 2", "igr-i", 3, -1.0, -1.5, 10, 50]
    assert fit.begin(fits, "page", *given) == ["", False]
    fits._running["page"].thread.join(20)
    progress = fits.progress("page")
    assert progress.status == "finished"
    assert (progress.problem.tau, progress.problem.learning_rate) == pytest.approx((0.1, 10**-1.5))
    assert np.exp(progress.problem.log_p0) == pytest.approx(P0)
    assert fit.begin(fits, "page", *given[:3], None, *given[4:])[0].startswith("K must be")
    assert fit.begin(fits, "page", "own", "1", *given[2:])[0] == "expected 2 to 200 weights, got 1"


def test_progress_is_shown():
    problem = Problem(np.log(P0), "igr-sb", 3, steps=9)
    running = Progress(problem, "running", (0.1, 0.01), np.array([0.4, 0.4, 0.2]), 0.0, 0.1, np.inf, 0.2, 1.0)
    masses, losses, facts, quiet, start, stop, message = fit.show(running)
    bars, dots = masses["data"]
    assert (bars["name"], dots["name"]) == ("IGR-SB", "target")
    assert unpack(bars["y"]) == pytest.approx([0.4, 0.4, 0.2])
    assert unpack(dots["y"]) == pytest.approx(P0)
    assert unpack(losses["data"][0]["y"]) == pytest.approx([0.1, 0.01])
    assert losses["layout"]["xaxis"]["range"] == [0, 9]
    assert losses["layout"]["shapes"][0]["y0"] == pytest.approx((1 - 0.38) / 1_000)
    assert {"running", "2", "0.1000", "∞", "0.2000"} <= set(words(facts))
    assert (quiet, start, stop, message) == (False, True, False, "")
    failed = fit.show(running._replace(status="failed", message="lower the learning rate"))
    assert [each["name"] for each in failed[0]["data"]] == ["target"]
    assert failed[3:] == [True, False, True, "lower the learning rate"]
    assert fit.show(None) == [no_update] * 7


def test_targets_are_shown_before_a_fit_and_not_during_one():
    masses, losses, words_ = fit.preview(None, "poisson", None, "gs", 100)
    (dots,) = masses["data"]
    assert 0.998 < unpack(dots["y"]).sum() < 1
    assert losses["data"] == []
    assert "Start" in words_
    running = Progress(Problem(np.log(P0), "gs", 3), "running", (), P0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert fit.preview(running, "poisson", None, "gs", 100) == [no_update] * 3
    assert fit.preview(None, "own", "x", "gs", 100)[2].startswith("expected numbers")


def test_tables_and_curves_are_shown():
    library = Library(RESULTS)
    options, value, disabled, *second = reproduction.places(library, "Table 1", None, None)
    assert (options[0]["value"], value, disabled) == ("MNIST", "MNIST", len(options) == 1)
    assert [each["value"] for each in second[0]] == ["linear", "non-linear"]
    at = ("Table 1", "MNIST", "linear")
    table, curves, curve, hidden = reproduction.show(library, *at)
    shown = words(table)
    assert {"Table 1: MNIST, linear", "paper", "IGR-I", "−94.65 ± 0.14"} <= set(shown)
    assert (curves[0]["value"], curve, hidden) == ("elbo_continuous", "elbo_continuous", False)
    labels, chosen = reproduction.drawable(library, *at, curve)
    assert labels == chosen
    assert {"IGR-I", "GS", "IGR-SB + SL"} <= set(labels)
    figure = reproduction.draw(library, *at, curve, ["GS", "IGR-I"])
    assert {each["name"] for each in figure["data"] if "name" in each} == {"GS", "IGR-I"}
    assert figure["layout"]["yaxis"]["title"]["text"] == "continuous ELBO (nats)"


def test_choices_that_do_not_fit_together_yet_show_nothing():
    library = Library(RESULTS)
    assert reproduction.show(library, "Total variation from the target", "MNIST", "linear") == ["", [], None, True]
    assert reproduction.drawable(library, "Table 1", None, None, None) == [[], []]
    assert reproduction.draw(library, "Table 1", None, None, None, None)["data"] == []
    table, _, _, hidden = reproduction.show(library, "Total variation from the target", "", "")
    assert hidden
    assert "Poisson(50)" in words(table)


def test_without_records_the_page_says_how_to_get_them(tmp_path, fits):
    app = create(tmp_path, fits)
    shown = " ".join(words(app.layout()))
    assert "no records in" in shown
    assert "--results" in shown
    assert app.server.test_client().get("/").status_code == 200
