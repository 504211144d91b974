"""The figure of the laboratory, drawn from records alone: bias against standard deviation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from igr.lab.registry import ESTIMATORS
from igr.lab.table import biased, groups, parts
from igr.paper.methods import METHODS as NAMES
from igr.paper.records import Record
from igr.paper.style import INK, STYLE

__all__ = ["draw"]

LEAST = 1e-3  # what is smaller is drawn there
CAPTION = (
    "Bias and standard deviation of an estimate, relative to the norm of the exact gradient; dotted: equal RMSE. A "
    "colour is a temperature; its line\nconnects the estimators than which none is both less biased and less noisy. "
    "Hollow: no bias was found, and the marker is at three standard errors."
)


def draw(records: Sequence[Record]) -> Figure:
    """Draws what :func:`igr.lab.run.laboratory` has found: columns are problems, rows are parameterizations."""
    found = dict(groups(records))
    problems, methods = ([*dict.fromkeys(key[i] for key in found)] for i in (0, 1))
    temperatures = sorted({record["tau"] for record in records if record["tau"] is not None})
    colours = dict(zip(temperatures, _palette(len(temperatures)), strict=True))
    width, height = max(8.4, 1.2 + 2.9 * len(problems)), 2.9 * len(methods) + 1.5
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), facecolor="white")
        edges = {"left": 0.85 / width, "right": 1 - 0.15 / width, "top": 1 - 0.35 / height, "bottom": 1.5 / height}
        grid = figure.add_gridspec(len(methods), len(problems), **edges, wspace=0.16, hspace=0.2)
        for (problem, method), its in found.items():
            i, j = methods.index(method), problems.index(problem)
            axes = figure.add_subplot(grid[i, j])
            _draw_panel(axes, its, colours)
            if i == 0:
                axes.set_title(problem, size=12, pad=6)
            if i == len(methods) - 1:
                axes.set_xlabel("standard deviation", size=9, labelpad=2)
            if j == 0:
                axes.set_ylabel("bias", size=9, labelpad=2)
                place = axes.get_position()
                words: Any = {"size": 12, "weight": "bold", "rotation": 90, "ha": "center", "va": "center"}
                name = NAMES[method]
                figure.text(0.2 / width, (place.y0 + place.y1) / 2, name.label, color=name.colour, **words)
        _draw_legend(figure, records, colours, height)
        figure.text(0.85 / width, 0.27 / height, CAPTION, size=9, va="center", linespacing=1.4)
        return figure


def _palette(size: int) -> list[Any]:
    """From cold to hot, as many as there are temperatures."""
    return [matplotlib.colormaps["plasma"](x) for x in np.linspace(0.05, 0.85, size)]


def _draw_panel(axes: Axes, records: Sequence[Record], colours: dict[float, Any]) -> None:
    points = [(record, *_place(record["metrics"])) for record in records]
    for tau, colour in colours.items():
        front = np.array(_front([(x, y) for record, x, y in points if record["tau"] == tau])).reshape(-1, 2)
        axes.plot(front[:, 0], front[:, 1], color=colour, linewidth=0.8, alpha=0.7, zorder=1)
    for record, x, y in points:
        colour = INK if record["tau"] is None else colours[record["tau"]]
        face = colour if biased(record["metrics"]) else "white"
        marker = ESTIMATORS[parts(record)[3]].marker
        style: Any = {"markersize": 6.5, "markeredgewidth": 0.9, "linestyle": "none", "zorder": 3, "clip_on": False}
        axes.plot(x, y, marker=marker, markeredgecolor=colour, markerfacecolor=face, **style)
    xs, ys = (np.array([point[i] for point in points]) for i in (1, 2))
    axes.set(xscale="log", yscale="log", xlim=_limits(xs), ylim=_limits(ys))
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        axis.set_major_locator(LogLocator(subs=(1.0, 3.0) if high < 300 * low else (1.0,), numticks=20))
        axis.set_major_formatter("{x:g}")
    _draw_rmse(axes)
    axes.tick_params(labelsize=8, length=2.5, pad=2)
    axes.tick_params(which="minor", length=1.5, width=0.4, labelbottom=False, labelleft=False)
    axes.spines[["top", "right"]].set_visible(False)


def _front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those than which none is both less biased and less noisy."""
    front: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if not front or y < front[-1][1]:
            front.append((x, y))
    return front


def _place(metrics: Record) -> tuple[float, float]:
    """Where a point is drawn: its bias, or the most that it could be, and never beyond the edge."""
    bias = metrics["bias"] if biased(metrics) else metrics["bias_limit"]
    return max(LEAST, metrics["std"]), max(LEAST, bias)


def _limits(values: Any) -> tuple[float, float]:
    low, high = values.min() / 1.5, values.max() * 1.5
    if high < 10 * low:  # at least a decade, so that there is a tick
        middle = math.sqrt(low * high)
        low, high = min(low, middle / math.sqrt(10)), max(high, middle * math.sqrt(10))
    return max(LEAST, low), high


def _draw_rmse(axes: Axes) -> None:
    """Where the RMSE is a power of ten, or three times one."""
    angle = np.geomspace(1e-4, math.pi / 4, 100)
    angle = np.concatenate([angle, math.pi / 2 - angle[::-1]])
    for rmse in (mantissa * 10.0**power for power in range(-3, 3) for mantissa in (1, 3)):
        axes.plot(rmse * np.cos(angle), rmse * np.sin(angle), color=INK, linewidth=0.4, linestyle=":", zorder=0)


def _draw_legend(figure: Figure, records: Sequence[Record], colours: dict[float, Any], height: float) -> None:
    names = {parts(record)[3] for record in records}
    style: Any = {"linestyle": "none", "markersize": 6.5, "markeredgecolor": INK, "markerfacecolor": INK}
    handles = [
        Line2D([], [], marker=entry.marker, label=entry.label, **style)
        for name, entry in ESTIMATORS.items()
        if name in names
    ]
    handles += [
        Line2D([], [], color=colour, linewidth=2.0, label=f"$\\tau$ = {tau:g}") for tau, colour in colours.items()
    ]
    columns = min(len(handles), max(4, int(figure.get_figwidth() / 1.4)))
    place = (0.5, 0.52 / height)
    figure.legend(handles=handles, loc="lower center", bbox_to_anchor=place, ncols=columns, frameon=False, fontsize=8.5)
