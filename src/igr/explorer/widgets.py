"""What the tabs are laid out with: sliders with their values beside them, fold-outs, and graphs that stay still."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from dash import dcc, html

__all__ = ["Knob", "field", "fold", "graph", "shown_id", "slider"]

GRAPH = {"displayModeBar": False, "displaylogo": False, "scrollZoom": False, "doubleClick": False}


class Knob(NamedTuple):
    """A slider: its id, what it is called, its ends and its start; a logarithmic one moves in powers of ten."""

    id: str
    label: str
    low: float
    high: float
    start: float
    log: bool = False
    hint: str = ""

    @property
    def position(self) -> float:
        """Where the slider starts, on its own scale."""
        return math.log10(self.start) if self.log else self.start

    def value(self, position: float) -> float:
        """What a place of the slider means."""
        return 10.0**position if self.log else float(position)


def shown_id(knob: Knob) -> str:
    """The id of what shows the value."""
    return f"{knob.id}-shown"


def slider(knob: Knob) -> Any:
    """A slider that tells its value while it is dragged; arrow keys move it."""
    low, high = (math.log10(end) if knob.log else end for end in (knob.low, knob.high))
    marks = {low: f"{knob.low:g}", high: f"{knob.high:g}"}
    if low < 0 < high:
        marks[0] = "1" if knob.log else "0"
    return html.Div(
        [
            html.Div(
                [html.Label(knob.label, title=knob.hint), html.Output(id=shown_id(knob), className="value")],
                className="knob-head",
            ),
            dcc.Slider(
                id=knob.id,
                min=low,
                max=high,
                step=0.01 if knob.log else 0.05,
                value=knob.position,
                marks=marks,
                updatemode="drag",
                included=False,
                allow_direct_input=False,
            ),
        ],
        className="knob",
    )


def field(label: str, control: Any) -> Any:
    """A control under its label."""
    return html.Label([html.Span(label), control], className="field")


def fold(title: str, *children: Any) -> Any:
    """What is shown once its title is pressed."""
    return html.Details([html.Summary(title), html.Div(list(children), className="folded")])


def graph(id: str, label: str, height: str) -> Any:
    """A figure without buttons, which nothing but its callback changes."""
    plot = dcc.Graph(id=id, config=GRAPH, responsive=True, style={"height": height})
    return html.Div(plot, role="img", **{"aria-label": label})
