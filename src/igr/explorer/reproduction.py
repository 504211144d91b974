"""The third tab: the reproduction's tables and curves, from records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import Dash, Input, Output, dcc, html

from igr.explorer.figures import bands
from igr.explorer.library import COURSES, Library, Shown
from igr.explorer.widgets import field, fold, graph
from igr.paper.report.document import Entry, Table

__all__ = ["layout", "places", "register", "show"]

HELP = (
    "Records are made by igr run and igr approximate: start igr explore in the same folder. A clone of the repository "
    "has ours in results/ours: start it there, or name a folder that has records with --results."
)
ABOUT = (
    "Numbers are means over seeds ± their sample standard deviation, in nats unless the head of a column says "
    "otherwise; higher is better. The paper's numbers are bold where the paper has them bold. Curves are means over "
    "the seeds of the configuration that was chosen, with a band of one standard deviation."
)


def layout(library: Library) -> Any:
    """The tab, or how to get records."""
    if isinstance(library.found, str):
        return html.Div([html.P(library.found, className="warn"), html.P(HELP)], className="card", id="no-records")
    names = list(dict.fromkeys(each.name for each in library.tables))
    return html.Div(
        [
            html.Div(
                [
                    field("table", dcc.Dropdown(id="table", options=names, value=names[0], clearable=False)),
                    field("data set", dcc.Dropdown(id="dataset", clearable=False)),
                    field("architecture", dcc.Dropdown(id="architecture", clearable=False)),
                ],
                className="card row",
            ),
            html.Div([html.Div(id="table-shown"), html.P(ABOUT, className="soft")], className="card"),
            html.Div(
                [
                    html.Div(
                        [
                            field("curve", dcc.Dropdown(id="curve", clearable=False)),
                            field("of", dcc.Dropdown(id="curve-cells", multi=True, className="many")),
                        ],
                        className="row",
                    ),
                    graph("curves", "curves against epochs", "420px"),
                ],
                className="card",
                id="curves-card",
            ),
        ],
        className="stack",
    )


def register(app: Dash, library: Library) -> None:
    """Its callbacks, if there are records."""
    if isinstance(library.found, str):
        return
    at = [Input("table", "value"), Input("dataset", "value"), Input("architecture", "value")]
    app.callback(
        [Output(id, prop) for id in ("dataset", "architecture") for prop in ("options", "value", "disabled")], at
    )(lambda *given: places(library, *given))
    app.callback(
        [
            Output("table-shown", "children"),
            Output("curve", "options"),
            Output("curve", "value"),
            Output("curves-card", "hidden"),
        ],
        at,
    )(lambda *given: show(library, *given))
    app.callback([Output("curve-cells", "options"), Output("curve-cells", "value")], [*at, Input("curve", "value")])(
        lambda *given: drawable(library, *given)
    )
    app.callback(Output("curves", "figure"), [*at, Input("curve", "value"), Input("curve-cells", "value")])(
        lambda *given: draw(library, *given)
    )


def places(library: Library, name: str, dataset: str | None, architecture: str | None) -> list[Any]:
    """For data set and architecture: what there is to choose, what is chosen, and whether there is no choice."""
    there = [each.places for each in library.tables if each.name == name]
    datasets = list(dict.fromkeys(place for place, _ in there))
    first = dataset if dataset in datasets else datasets[0]
    architectures = list(dict.fromkeys(second for place, second in there if place == first))
    second = architecture if architecture in architectures else architectures[0]
    return [*_choice(datasets, first), *_choice(architectures, second)]


def _choice(options: Sequence[str], value: str) -> list[Any]:
    return [[{"label": each or "—", "value": each} for each in options], value, len(options) < 2]


def show(library: Library, *at: str) -> list[Any]:
    """The table, which curves there are, which is shown first, and whether there are none."""
    shown = _found(library, at)
    if shown is None:
        return ["", [], None, True]
    names = library.curves(shown)
    options = [{"label": COURSES[each], "value": each} for each in names]
    return [_table(shown.table), options, names[0] if names else None, not names]


def drawable(library: Library, *given: str) -> list[Any]:
    """The cells that have a curve, all of which are drawn at first."""
    *at, curve = given
    shown = _found(library, at)
    labels = [] if shown is None or not curve else [each.label for each in library.bands(shown, curve)]
    return [labels, labels]


def draw(library: Library, *given: Any) -> dict[str, Any]:
    """The curves of the chosen cells."""
    *at, curve, labels = given
    shown = _found(library, at)
    if shown is None or not curve:
        return bands([], "")
    chosen = [each for each in library.bands(shown, curve) if each.label in (labels or ())]
    return bands(chosen, COURSES[curve])


def _found(library: Library, at: Sequence[str | None]) -> Shown | None:
    """The table, unless the choices do not fit together yet."""
    name, dataset, architecture = at
    return library.table(name or "", dataset or "", architecture or "")


def _table(table: Table) -> Any:
    head = [html.Th(_entry(each), scope="col") for each in table.head]
    words = [{"className": "w"} if i < table.words else {} for i in range(len(table.head))]
    rows = [
        html.Tr([html.Td(_entry(each), **style) for each, style in zip(row, words, strict=True)]) for row in table.rows
    ]
    grid = html.Table([html.Caption(table.title), html.Thead(html.Tr(head)), html.Tbody(rows)])
    notes = html.Ul([html.Li(each) for each in table.notes])
    return [html.Div(grid, className="scroll"), *([fold("Notes", notes)] if table.notes else [])]


def _entry(entry: Entry) -> list[Any]:
    """The text behind the dot of its colour, with what is printed small behind it."""
    dot = [html.Span(className="dot small", style={"background": entry.colour})] if entry.colour else []
    text = html.B(entry.text) if entry.bold else entry.text
    return [*dot, text, *([html.Small(f" {entry.end}")] if entry.end else [])]
