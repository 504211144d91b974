"""The second tab: a relaxation is fitted to a discrete distribution while one watches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update

from igr.explorer.figures import losses, masses
from igr.explorer.fitting import LARGEST, MOST_SAMPLES, MOST_STEPS, Fits, Problem, Progress, reach, target_of
from igr.explorer.quantities import NAMES
from igr.explorer.widgets import Knob, field, fold, graph, shown_id, slider
from igr.paper.distances import Array
from igr.paper.methods import METHODS
from igr.paper.targets import TARGETS

__all__ = ["layout", "outside", "register"]

TAU = Knob("fit-tau", "τ, temperature", 0.01, 2.0, 0.1, log=True)
RATE = Knob("fit-rate", "learning rate of Adam", 0.001, 0.2, 0.01, log=True)
DRAWN = 0.999  # of the target's mass, where it has no last category
ABOUT = (
    "The objective is ‖E z̃ − p₀‖², as in igr approximate: the squared distance between the mean of samples and the "
    "target's probabilities, by Adam. What is drawn is the recovered discrete distribution, not a histogram: it is "
    "exact, but for IGR-Planar, where 10,000 hard samples are counted.",
    "The dotted line is what the noise of perfect samples leaves of the objective: (1 − Σ p₀²) / S for S samples.",
    "TV is total variation, half the sum of all absolute differences. KL(p₀‖q) is infinite where q lacks a category of "
    "p₀, as with any K on all integers, and KL(q‖p₀) where p₀ lacks one of q.",
    "At a high temperature samples lie far from the vertices, and the objective no longer speaks of the discrete "
    "distribution: it falls, and TV does not.",
)


def layout() -> Any:
    """The tab."""
    targets = [{"label": each.title, "value": name} for name, each in TARGETS.items()]
    targets.append({"label": "your own weights", "value": "own"})
    methods = [{"label": METHODS[name].label, "value": name} for name in NAMES]
    form = [
        field("target", dcc.Dropdown(id="fit-target", options=targets, value="binomial", clearable=False)),
        html.Div(
            field("weights", dcc.Input(id="fit-own", value="5, 3, 2, 1", debounce=0.4, className="wide")),
            id="fit-own-field",
            hidden=True,
        ),
        field("relaxation", dcc.Dropdown(id="fit-method", options=methods, value="igr-i", clearable=False)),
        field("K, categories", dcc.Input(id="fit-size", type="number", min=2, max=LARGEST, step=1, value=13)),
        slider(TAU),
        slider(RATE),
        field("steps", dcc.Input(id="fit-steps", type="number", min=1, max=MOST_STEPS, step=1, value=2_000)),
        field(
            "samples a step", dcc.Input(id="fit-samples", type="number", min=1, max=MOST_SAMPLES, step=1, value=1_000)
        ),
        html.Div(
            [
                html.Button("Start", id="fit-start", n_clicks=0),
                html.Button("Stop", id="fit-stop", n_clicks=0, className="quiet", disabled=True),
            ],
            className="buttons",
        ),
        html.P(id="fit-message", className="warn", role="alert"),
        fold("What is shown", *(html.P(words) for words in ABOUT)),
    ]
    shown = [
        html.Div(id="fit-facts", className="facts-row", role="status"),
        graph("fit-masses", "probabilities of the target and of what is fitted", "380px"),
        graph("fit-losses", "the objective at each step", "280px"),
    ]
    return html.Div([html.Div(form, className="card form"), html.Div(shown, className="card grow")], className="split")


def outside(page: str) -> list[Any]:
    """What has to go on while another tab is open: the page's name, and the clock that asks for progress."""
    return [dcc.Store(id="page", data=page), dcc.Interval(id="fit-clock", interval=300, disabled=True)]


def register(app: Dash, fits: Fits) -> None:
    """Its callbacks."""
    told = [Output(shown_id(knob), "children") for knob in (TAU, RATE)]
    app.clientside_callback(ClientsideFunction("igr", "power"), told, [Input(knob.id, "value") for knob in (TAU, RATE)])
    app.callback(
        [Output("fit-size", "value"), Output("fit-own-field", "hidden")],
        [Input("fit-target", "value"), Input("fit-own", "value")],
    )(choose)
    settings = ("fit-target", "fit-own", "fit-method", "fit-size", TAU.id, RATE.id, "fit-steps", "fit-samples")
    values = [State(id, "value") for id in settings]
    app.callback(
        [Output("fit-message", "children"), Output("fit-clock", "disabled")],
        [Input("fit-start", "n_clicks")],
        [State("page", "data"), *values],
        prevent_initial_call=True,
    )(lambda _, page, *given: begin(fits, page, *given))
    app.callback(Input("fit-stop", "n_clicks"), State("page", "data"), prevent_initial_call=True)(
        lambda _, page: fits.stop(page)
    )
    drawn = ("fit-masses", "figure"), ("fit-losses", "figure"), ("fit-facts", "children")
    app.callback(
        [Output(*each) for each in drawn],
        [Input("fit-target", "value"), Input("fit-own", "value"), Input("fit-method", "value")],
        [State("page", "data"), State("fit-steps", "value")],
    )(lambda name, text, method, page, steps: preview(fits.progress(page), name, text, method, steps))
    app.callback(
        [
            *(Output(*each, allow_duplicate=True) for each in drawn),
            Output("fit-clock", "disabled", allow_duplicate=True),
            Output("fit-start", "disabled"),
            Output("fit-stop", "disabled"),
            Output("fit-message", "children", allow_duplicate=True),
        ],
        Input("fit-clock", "n_intervals"),
        State("page", "data"),
        prevent_initial_call=True,
    )(lambda _, page: show(fits.progress(page)))


def choose(name: str, text: str | None) -> list[Any]:
    """How many categories the target asks for, and whether to hide the field of weights."""
    try:
        return [reach(target_of(name, text or "")), name != "own"]
    except ValueError:  # told once it is to be fitted
        return [no_update, name != "own"]


def begin(fits: Fits, page: str, *given: Any) -> list[Any]:
    """Starts a fit, or says what is wrong."""
    name, text, method, size, tau, rate, steps, samples = given
    try:
        if not all(isinstance(each, int) for each in (size, steps, samples)):  # as of an empty field
            most = f"K must be from 2 to {LARGEST}, steps from 1 to {MOST_STEPS:,}, samples from 1 to {MOST_SAMPLES:,}"
            raise ValueError(most)
        target = target_of(name, text or "")
        fits.start(page, Problem(target.log_probs(), method, size, TAU.value(tau), RATE.value(rate), steps, samples))
    except (RuntimeError, ValueError) as error:
        return [str(error), no_update]
    return ["", False]


def preview(progress: Progress | None, name: str, text: str | None, method: str, steps: int | None) -> list[Any]:
    """The target before anything is fitted to it; while a fit runs, that is what is shown."""
    if progress is not None and progress.status == "running":
        return [no_update] * 3
    try:
        log_p0 = target_of(name, text or "").log_probs()
    except ValueError as error:
        return [no_update, no_update, str(error)]
    return [masses(_drawn(log_p0), None, method), losses((), steps or 1, method), "nothing fitted yet: press Start"]


def show(progress: Progress | None) -> list[Any]:
    """The figures, the facts, whether to stop asking, which buttons are of no use now, and what went wrong."""
    if progress is None:  # it is about to start
        return [no_update] * 7
    of, running = progress.problem, progress.status == "running"
    fitted = None if progress.status == "failed" else progress.probs
    figures = [masses(_drawn(of.log_p0), fitted, of.method), losses(progress.losses, of.steps, of.method, of.floor)]
    return [*figures, facts(progress), not running, running, not running, progress.message]


def _drawn(log_p0: Array) -> Array:
    """The probabilities of a target, where there is no last one without the far tail."""
    probs: Array = np.exp(log_p0)
    return probs[: int((probs.cumsum() < DRAWN).sum()) + 1] if len(probs) > LARGEST else probs


def facts(of: Progress) -> list[Any]:
    """What a fit has come to."""
    error = f" ± {of.error:.3f}" if of.error else ""
    told = {
        "": of.status,
        "step": f"{len(of.losses):,}",
        "TV": f"{of.tv:.4f}{error}",
        "KL(p₀‖q)": _divergence(of.kl),
        "KL(q‖p₀)": _divergence(of.kl_reverse),
        "objective": f"{of.losses[-1]:.2e}" if of.losses else "—",
        "seconds": f"{of.seconds:.1f}",
    }
    return [html.Span([html.Span(f"{name} ", className="soft"), html.B(value)]) for name, value in told.items()]


def _divergence(value: float) -> str:
    return "∞" if value == math.inf else f"{value:.4f}"
