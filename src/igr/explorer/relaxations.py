"""The first tab: four relaxations side by side, wherever the sliders are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, dcc, html

from igr.explorer.figures import picture
from igr.explorer.quantities import COUNTED, NAMES, SAMPLES, Controls, Estimate, View, view
from igr.explorer.widgets import Knob, fold, shown_id, slider
from igr.paper.methods import METHODS

__all__ = ["KNOBS", "START", "controls", "facts", "layout", "look", "register"]

FIRST = Controls()
MAIN = (
    Knob("tau", "τ, temperature", 0.01, 5.0, FIRST.tau, log=True, hint="of all four"),
    Knob(
        "delta",
        "δ of the softmax++",
        0.01,
        100.0,
        FIRST.delta,
        log=True,
        hint="the weight of category 3 in all three IGR",
    ),
    Knob("mu-1", "μ₁", -5.0, 5.0, FIRST.loc[0], hint="first location of the Gaussian"),
    Knob("mu-2", "μ₂", -5.0, 5.0, FIRST.loc[1], hint="second location of the Gaussian"),
    Knob("sigma-1", "σ₁", 0.05, 5.0, FIRST.scale[0], log=True, hint="first scale of the Gaussian"),
    Knob("sigma-2", "σ₂", 0.05, 5.0, FIRST.scale[1], log=True, hint="second scale of the Gaussian"),
)
LOGITS = tuple(Knob(f"logit-{k}", f"log α{'₁₂₃'[k - 1]}", -5.0, 5.0, 0.0) for k in (1, 2, 3))
FLOW = (
    Knob("u-1", "u₁", -3.0, 3.0, FIRST.u[0]),
    Knob("u-2", "u₂", -3.0, 3.0, FIRST.u[1]),
    Knob("w-1", "w₁", -3.0, 3.0, FIRST.w[0]),
    Knob("w-2", "w₂", -3.0, 3.0, FIRST.w[1]),
    Knob("b", "b", -3.0, 3.0, FIRST.b),
)
KNOBS = (*MAIN, *LOGITS, *FLOW)
START = tuple(knob.position for knob in KNOBS)
ABOUT = (
    "All four have the temperature τ. The three IGR push the same Gaussian, y = μ + σε, onto the simplex: IGR-I by the "
    "softmax++ alone, IGR-SB by stick-breaking and the softmax++, IGR-Planar by one planar flow, "
    "y + û tanh(wᵀy + b), and the softmax++. δ is the weight of the third category in the softmax++.",
    "GS, the Gumbel-Softmax, has no Gaussian. Unless it is given logits of its own, its logits are the logarithms of "
    "the probabilities that IGR-I recovers (Proposition 2), so that both relax the same discrete distribution.",
    "Colours are log₁₀ of the density, from white (0.01 or less, or zero: IGR-SB does not reach the whole simplex) to "
    "dark (100 or more), with respect to Lebesgue measure on the first two coordinates; dots are 500 samples. Noise "
    "is the same at every place of the sliders.",
    "Recovered probabilities are those of the hard sample h(y), the limit of samples as τ → 0; they depend on neither "
    "τ nor δ. Those of IGR-I, IGR-SB and GS are exact. Of IGR-Planar only samples know: "
    f"{COUNTED:,} are counted.",
    f"Distance is 1 − max z, zero at a vertex and 2/3 in the centre: mean over {SAMPLES:,} samples ± its standard "
    "error. The gradient is that of vᵀz, v being standard normal, with respect to a sample's own locations μ (GS: "
    "logits), in single precision; its size is the mean of its norm. It has vanished where none of its entries exceeds "
    "the smallest normal number, 1.2e-38: so igr.suggest_temperature counts.",
)


def layout() -> Any:
    """The tab."""
    return html.Div(
        [
            html.Div(
                [html.Div([slider(knob) for knob in MAIN], className="knobs six"), _folds()], className="controls"
            ),
            html.Div([_card(name) for name in NAMES], className="cards"),
            dcc.Store(id="wanted"),
            dcc.Store(id="pictures"),
            dcc.Store(id="shown"),
        ]
    )


def _folds() -> Any:
    switch = dcc.Checklist(id="own-logits", options=[{"label": "give GS logits of its own", "value": "own"}], value=[])
    return html.Div(
        [
            fold("Logits of GS", switch, html.Div([slider(knob) for knob in LOGITS], className="knobs")),
            fold("Planar flow of IGR-Planar", html.Div([slider(knob) for knob in FLOW], className="knobs five")),
            fold("What is shown", *(html.P(words) for words in ABOUT)),
            html.Button("Reset", id="reset", n_clicks=0, className="quiet"),
            html.Span(id="spent", className="soft"),
        ],
        className="folds",
    )


def _card(name: str) -> Any:
    label, colour = METHODS[name].label, METHODS[name].colour
    head = html.H2([html.Span(className="dot", style={"background": colour}), label, _key(name)])
    words = f"density, samples and distances of {label}"
    drawn = html.Canvas(id=f"picture-{name}", className="picture", role="img", **{"aria-label": words})
    return html.Section([head, drawn, html.Div(id=f"facts-{name}")], className="card")


def _key(name: str) -> Any:
    """What the colours mean; the ramp is that of ``picture.js``."""
    dark = ",".join(f"{0.35 * each:.0f}" for each in METHODS[name].rgb)
    ramp = {"background": f"linear-gradient(to right, white, {METHODS[name].colour} 75%, rgb({dark}))"}
    shown = ["0.01", html.Span(className="ramp", style=ramp), "100"]
    return html.Span(shown, className="key", title="density, on a logarithmic scale")


def register(app: Dash) -> None:
    """Its callbacks: while an answer is under way, the browser keeps the newest place of the sliders only."""
    places = [Input(knob.id, "value") for knob in KNOBS]
    app.clientside_callback(
        ClientsideFunction("igr", "ask"), Output("wanted", "data"), [Input("own-logits", "value"), *places]
    )
    app.clientside_callback(ClientsideFunction("igr", "answered"), Input("shown", "data"))
    for some, function in ((True, "power"), (False, "plain")):
        chosen = [knob for knob in KNOBS if knob.log is some]
        values = [Input(knob.id, "value") for knob in chosen]
        app.clientside_callback(
            ClientsideFunction("igr", function), [Output(shown_id(knob), "children") for knob in chosen], values
        )
    app.clientside_callback(ClientsideFunction("igr", "paint"), Input("pictures", "data"))
    facts_of = [Output(f"facts-{name}", "children") for name in NAMES]
    app.callback(
        [Output("pictures", "data"), *facts_of, Output("shown", "data"), Output("spent", "children")],
        Input("wanted", "data"),
        prevent_initial_call=True,
    )(look)
    back = [Output(knob.id, "value") for knob in KNOBS] + [Output("own-logits", "value")]
    app.callback(back, Input("reset", "n_clicks"), prevent_initial_call=True)(reset)


def reset(_: int) -> list[Any]:
    """Where the sliders start."""
    return [*START, []]


def controls(own: Sequence[str], places: Sequence[float]) -> Controls:
    """What the places of the sliders mean, in the order of :data:`KNOBS`; GS may have logits of its ``own``."""
    tau, delta, mu1, mu2, sigma1, sigma2, *rest = (knob.value(x) for knob, x in zip(KNOBS, places, strict=True))
    a1, a2, a3, u1, u2, w1, w2, b = rest
    logits = (a1, a2, a3) if own else None
    return Controls(tau, delta, (mu1, mu2), (sigma1, sigma2), logits, (u1, u2), (w1, w2), b)


def look(wanted: Sequence[Any]) -> list[Any]:
    """Pictures of all four, a list of facts for each, which question was answered, and how long it took."""
    start = time.perf_counter()
    number, own, *places = wanted
    at = controls(own, places)
    views = [view(name, at) for name in NAMES]
    answer = [[picture(each) for each in views], *(facts(each) for each in views)]
    return [*answer, number, f"computed in {1e3 * (time.perf_counter() - start):.0f} ms"]


def facts(of: View) -> list[Any]:
    """The numbers below a panel."""
    colour = METHODS[of.name].colour
    exact = "exact" if of.errors is None else f"± {of.errors.max():.3f}"
    bars = [_bar(k, float(p), colour) for k, p in enumerate(of.probs, 1)]
    vanished = f"{100 * of.vanished:.2g} %" if of.vanished else "none"
    return [
        html.Div(["recovered probabilities ", html.Span(exact, className="soft")], className="fact-head"),
        *bars,
        html.Dl(
            [
                html.Dt("mean distance"),
                html.Dd(_number(of.distance)),
                html.Dt("gradient, mean norm"),
                html.Dd(_number(of.gradient)),
                html.Dt("gradients vanished"),
                html.Dd(vanished, className="warn" if of.vanished else ""),
            ]
        ),
    ]


def _bar(k: int, p: float, colour: str) -> Any:
    fill = html.Div(className="fill", style={"width": f"{100 * p:.2f}%", "background": colour})
    return html.Div(
        [html.Span(f"P({k})"), html.Div(fill, className="track"), html.Span(f"{p:.4f}", className="value")],
        className="bar",
    )


def _number(of: Estimate) -> str:
    """Three digits and the error in the same unit."""
    if of.mean != 0 and not 1e-3 <= abs(of.mean) < 1e4:
        return f"{of.mean:.2e} ± {of.error:.0e}"
    return f"{of.mean:.4f} ± {of.error:.4f}" if of.mean < 10 else f"{of.mean:.2f} ± {of.error:.2f}"
