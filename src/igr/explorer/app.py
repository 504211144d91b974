"""The explorer as a Dash application; all that the browser asks for is served from here, and nothing from elsewhere."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from dash import ClientsideFunction, Dash, Input, dcc, html

from igr import __version__
from igr.explorer import fit, relaxations, reproduction
from igr.explorer.fitting import Fits
from igr.explorer.library import Library

__all__ = ["create"]


def create(results: Path, fits: Fits) -> Dash:
    """The application.

    Arguments:
        results: a folder with records, for the third tab.
        fits: those of the second, to be closed at the end.
    """
    app = Dash(__package__, title="igr explore", update_title=None, serve_locally=True)
    library = Library(results)
    app.layout = lambda: _layout(library)  # each page has a name of its own
    relaxations.register(app)
    fit.register(app, fits)
    reproduction.register(app, library)
    app.clientside_callback(ClientsideFunction("igr", "opened"), Input("tabs", "value"))
    return app


def _layout(library: Library) -> Any:
    tabs = {
        "Relaxations": relaxations.layout(),
        "Fit": fit.layout(),
        "Reproduction": reproduction.layout(library),
    }
    head = html.Header(
        [
            html.H1("igr explore"),
            html.Span(f"relaxations of discrete distributions, igr {__version__}", className="soft"),
        ]
    )
    shown = [dcc.Tab(content, label=name, value=name.lower(), className="tab") for name, content in tabs.items()]
    page = uuid.uuid4().hex
    return html.Main([head, dcc.Tabs(shown, id="tabs", value="relaxations"), *fit.outside(page)], className="page")
