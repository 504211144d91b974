"""The explorer's figures, as plain dictionaries for the browser: plotly's own classes take longer than the maths."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from igr.explorer.quantities import View
from igr.paper.demo import CORNERS, HIGH, LOW
from igr.paper.methods import METHODS
from igr.paper.report.figures import limits_of
from igr.paper.report.panels import Curve
from igr.paper.style import INK

__all__ = ["Band", "bands", "losses", "masses", "picture"]

Figure = dict[str, Any]

SHOWN = 500  # samples that are drawn
LINE = "#d9d9e0"
DASHES = {"igr-i": "solid", "igr-sb": "dash", "igr-planar": "dot", "gs": "dashdot", "igr-sb-mm": "dash"}  # without hues
FRAME: Figure = {
    "paper_bgcolor": "white",
    "plot_bgcolor": "white",
    "font": {"family": "system-ui, sans-serif", "size": 12, "color": INK},
    "dragmode": False,
}


def picture(view: View) -> Figure:
    """A relaxation for ``picture.js``: log10 densities of pixels, samples in the plane, and shares of distances."""
    log10 = (view.log_density / math.log(10)).clip(LOW, HIGH + 1)  # minus infinity is painted as the lowest
    return {
        "name": view.name,
        "rgb": METHODS[view.name].rgb,
        "shape": log10.shape,
        "density": _packed(log10),
        "points": _packed(view.samples[:SHOWN] @ CORNERS),
        "histogram": _packed(view.histogram),
    }


def _packed(values: NDArray[Any]) -> Figure:
    """An array in the form that plotly.js reads without parsing numbers."""
    array = np.ascontiguousarray(values, dtype=np.float32)
    packed: Figure = {"dtype": "f4", "bdata": base64.b64encode(array.tobytes()).decode()}
    return packed | ({"shape": ", ".join(map(str, array.shape))} if array.ndim > 1 else {})


def masses(truth: NDArray[Any], fitted: NDArray[Any] | None, method: str) -> Figure:
    """The target, as dots, and what has been fitted to it, as bars."""
    size = max(len(truth), 0 if fitted is None else len(fitted))
    dots = {"mode": "markers" if size <= 60 else "lines", "marker": {"size": 7, "color": "black"}, "name": "target"}
    data: list[Figure] = [
        {
            "type": "scatter",
            "x": _packed(np.arange(len(truth))),
            "y": _packed(truth),
            "line": {"color": "black"},
            **dots,
        }
    ]
    if fitted is not None:
        bars = {"type": "bar", "x": _packed(np.arange(len(fitted))), "y": _packed(fitted)}
        named = {"name": METHODS[method].label, "marker": {"color": METHODS[method].colour}}
        data.insert(0, bars | named)
    layout = _lines_layout("category", "probability") | {"bargap": 0.25 if size <= 60 else 0}
    layout["yaxis"] |= {"rangemode": "tozero"}
    return {"data": data, "layout": layout}


def losses(values: Sequence[float], steps: int, method: str, floor: float | None = None) -> Figure:
    """The objective at each step, on a logarithmic scale, above the line that the noise of perfect samples leaves."""
    positive = np.array([value if value > 0 else math.nan for value in values])
    line = {"type": "scatter", "mode": "lines", "line": {"color": METHODS[method].colour, "width": 1}}
    layout = _lines_layout("step", "‖E z̃ − p₀‖², estimated")
    layout["xaxis"] |= {"range": [0, steps]}
    layout["yaxis"] |= {"type": "log", "exponentformat": "power", "dtick": 1}
    every = max(1, len(values) // 1000)  # more than the screen has pixels
    points = np.arange(1, len(values) + 1)[::every]
    data = [line | {"x": _packed(points), "y": _packed(positive[::every])}] if len(values) else []
    dotted = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": floor, "y1": floor}
    layout["shapes"] = [dotted | {"line": {"color": INK, "width": 1, "dash": "dot"}}] if floor else []
    return {"data": data, "layout": layout | {"showlegend": False}}


class Band(NamedTuple):
    """A curve over seeds: mean ± standard deviation, and whose it is."""

    label: str
    method: str
    curve: Curve


def bands(drawn: Sequence[Band], title: str) -> Figure:
    """Curves against epochs, each with its band."""
    layout = _lines_layout("epoch", title)
    if drawn:
        layout["yaxis"] |= {"range": limits_of([each.curve for each in drawn])}
    return {"data": [trace for each in drawn for trace in _band(each)], "layout": layout}


def _band(of: Band) -> list[Figure]:
    """The band and the line in front of it; methods have dashes of their own, so that hue is not needed."""
    (red, green, blue), (x, mean, sd) = METHODS[of.method].rgb, of.curve
    edge = {"x": _packed(np.concatenate([x, x[::-1]])), "y": _packed(np.concatenate([mean + sd, (mean - sd)[::-1]]))}
    fill = {"fill": "toself", "fillcolor": f"rgba({red},{green},{blue},0.18)", "line": {"width": 0}}
    around = {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "showlegend": False, **edge, **fill}
    width = 1.2 if "SL" in of.label else 2
    style = {"color": METHODS[of.method].colour, "width": width, "dash": DASHES.get(of.method, "solid")}
    words = f"{of.label}: %{{y:.2f}} after %{{x}} epochs<extra></extra>"
    line = {"x": _packed(x), "y": _packed(mean), "line": style, "name": of.label, "hovertemplate": words}
    return [around, {"type": "scatter", "mode": "lines", **line}]


def _lines_layout(x: str, y: str) -> Figure:
    axis = {"gridcolor": LINE, "zeroline": False, "linecolor": LINE, "fixedrange": True}
    return FRAME | {
        "margin": {"l": 62, "r": 12, "t": 30, "b": 42},
        "xaxis": axis | {"title": {"text": x, "standoff": 6}, "showgrid": False},
        "yaxis": axis | {"title": {"text": y, "standoff": 6}},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "hovermode": "closest",
    }
