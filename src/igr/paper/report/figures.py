"""Curves from cells: against epochs, and against what is chosen, τ or K. Needs matplotlib, no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from igr.paper.methods import METHODS
from igr.paper.report.cells import Cell
from igr.paper.report.panels import LINES, Curve, key, keys_of, over_seeds, panels, rules, title, variants_of
from igr.paper.select import CRITERIA, Configuration
from igr.paper.style import INK, STYLE

__all__ = [
    "CONTINUOUS",
    "DISCRETE",
    "SIZE",
    "TAU",
    "Axis",
    "Course",
    "against",
    "curve_of",
    "has_course",
    "limits_of",
    "over_epochs",
]

TICKS = (0.01, 0.03, 0.1, 0.25, 0.5, 1.0, 2.0)
COLUMNS = 5  # of panels, at most, where they need not be in one row


class Course(NamedTuple):
    """What is drawn against epochs."""

    name: str
    """Of the curve, in records."""
    label: str
    criterion: str
    """What has chosen the configuration that it is of."""
    test: str | None = None
    """The same on the test split after training, if there is the same."""
    training: bool = False
    """Whether the training objective is drawn as well."""


CONTINUOUS = Course("elbo_continuous", "continuous ELBO", "elbo_discrete", "elbo_continuous")
DISCRETE = Course("elbo_discrete", "discrete ELBO", "elbo_discrete", "elbo_discrete", training=True)


def over_epochs(cells: Sequence[Cell], course: Course) -> Figure:
    """A curve against epochs at the chosen configuration: a panel for each variant."""
    with matplotlib.rc_context(STYLE):
        variants = variants_of(cells)
        keys = keys_of(cells)
        keys += [key("test", marker="D", color=INK)] if course.test else []
        keys += [key("training objective", color=INK, linestyle=LINES[2])] if course.training else []
        figure, places = _wrapped(len(variants), keys)
        drawn: list[Curve] = []
        for variant, axes in zip(variants, places, strict=True):
            for cell in cells:
                if cell.variant == variant and (curve := curve_of(cell, course, course.name)) is not None:
                    drawn += _draw_course(axes, cell, course, curve)
            axes.set_title(title(variant, variants), size=11, pad=4)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True, steps=[1, 2, 5, 10]))
        for axes in places:
            if axes.get_subplotspec().is_first_col():  # type: ignore[union-attr]
                axes.set_ylim(limits_of(drawn))
                axes.set_ylabel(f"{course.label} (nats)", size=10)
        return figure


def _wrapped(count: int, keys: Sequence[matplotlib.lines.Line2D]) -> tuple[Figure, list[Axes]]:
    """So many panels, in as few rows as it takes; the last of each column has epochs below it."""
    rows = math.ceil(count / COLUMNS)
    columns = math.ceil(count / rows)
    figure, grid = panels(columns, rows, keys, titled=rows > 1)
    places = [axes for row in grid for axes in row]
    for i, axes in enumerate(places):
        if i >= count:
            axes.remove()
        elif i + columns >= count:
            axes.tick_params(labelbottom=True)
            axes.set_xlabel("epoch", size=10, labelpad=2)
    return figure, places[:count]


def has_course(cell: Cell, course: Course) -> bool:
    """Whether there is something to draw against epochs."""
    return curve_of(cell, course, course.name) is not None


def curve_of(cell: Cell, course: Course, name: str) -> Curve | None:
    """Over the seeds of the chosen configuration, at the epochs that all of them have."""
    if name == CONTINUOUS.name and cell.settings.get("objective") == "discrete":  # what was measured, nothing trained
        return None
    chosen = cell.chosen(course.criterion)
    pairs = []
    for record in cell.finished(chosen) if chosen is not None else ():
        curves = record.get("curves", {})
        if name in curves:
            points = zip(curves["epoch"], curves[name], strict=True)
            pairs.append({epoch: value for epoch, value in points if value is not None})
    epochs = sorted(set.intersection(*map(set, pairs))) if pairs else []
    return over_seeds(epochs, [[pair[epoch] for pair in pairs] for epoch in epochs]) if epochs else None


def _draw_course(axes: Axes, cell: Cell, course: Course, curve: Curve) -> list[Curve]:
    """Draws the curve, what is beside it, and the test value beyond its end, and returns all."""
    colour, drawn = METHODS[cell.method].colour, [curve]
    axes.fill_between(curve.x, curve.mean - curve.sd, curve.mean + curve.sd, color=colour, alpha=0.2, linewidth=0)
    axes.plot(curve.x, curve.mean, color=colour, linewidth=1.2)
    if course.training and (loss := curve_of(cell, course, "train_loss")) is not None:
        drawn.append(Curve(loss.x, -loss.mean, loss.sd))
        axes.plot(loss.x, -loss.mean, color=colour, linewidth=1.2, linestyle=LINES[2])
    test = cell.summary(cell.chosen(course.criterion), "test", course.test) if course.test else None
    if test is not None:
        end = Curve(curve.x[-1:] * 1.03, np.array([test.mean]), np.array([test.sd or 0.0]))
        axes.errorbar(*end, fmt="D", color=colour, markersize=4, markeredgewidth=0, elinewidth=0.8, zorder=4)
        drawn.append(end)
    return drawn


def limits_of(curves: Sequence[Curve]) -> tuple[float, float]:
    """The frame without the first twentieth of the epochs, which lie far below."""
    late = [curve.x >= min(0.05 * curve.x[-1], curve.x[-1]) for curve in curves]
    low = min((curve.mean - curve.sd)[some].min() for curve, some in zip(curves, late, strict=True))
    high = max((curve.mean + curve.sd)[some].max() for curve, some in zip(curves, late, strict=True))
    margin = 0.06 * (high - low) or 1.0
    return low - margin, high + margin


class Axis(NamedTuple):
    """What configurations are drawn against."""

    label: str
    value: Callable[[Configuration], float | None]
    log: bool


TAU = Axis("$\\tau$", lambda each: each.tau, log=True)
SIZE = Axis("$K$", lambda each: each.num_components, log=False)


def against(cells: Sequence[Cell], axis: Axis, *, apart: bool = False) -> Figure:
    """Each criterion against what is chosen, on the split that it is chosen on: a column for each variant.

    A cell that has nothing on the axis is a horizontal line. Variants have the same scale, unless they are ``apart``.
    """
    with matplotlib.rc_context(STYLE):
        variants = variants_of(cells)
        criteria = [name for name in CRITERIA if any(name in cell.criteria for cell in cells)]
        ring = key("chosen", marker="o", color=INK, markerfacecolor="none", markersize=8, markeredgewidth=1.1)
        figure, grid = panels(len(variants), rows=len(criteria), keys=[*keys_of(cells, ruled=True), ring])
        for criterion, row in zip(criteria, grid, strict=True):
            for variant, axes in zip(variants, row, strict=True):
                own = [cell for cell in cells if cell.variant == variant]
                for cell in own:
                    _draw_choice(axes, cell, criterion, axis)
                _scale(axes, own if apart else cells, axis)
                if criterion == criteria[0]:
                    axes.set_title(title(variant, variants), size=11, pad=4)
                if criterion == criteria[-1]:
                    axes.set_xlabel(axis.label, size=11, labelpad=1)
            row[0].set_ylabel(f"{cells[0].chosen_by(criterion)} (nats)", size=10)
            if axis.log:
                _cut_off(row, _floor(cells, criterion))
        return figure


def _cut_off(row: Sequence[Axes], floor: float) -> None:
    """What lies below the floor, in panels of one scale; the margin above is a part of what is left."""
    if any(axes.dataLim.y0 < floor for axes in row):
        highest = max(axes.dataLim.y1 for axes in row)
        row[0].set_ylim(floor, highest + 0.05 * (highest - floor))


def _floor(cells: Sequence[Cell], criterion: str) -> float:
    """As far below the worst of the chosen as that is below the best, or a quarter of all if that is more.

    Of a range that is larger than twice the best value itself, since something has collapsed, no more than that counts.
    What lies lower is cut off, so that differences between what may be chosen can be seen.
    """
    means = [
        [each.mean for one in cell.configurations() if (each := cell.summary(one, cell.split, criterion)) is not None]
        for cell in cells
    ]
    tops, bottom = [max(each) for each in means if each], min((min(each) for each in means if each), default=0.0)
    if not tops:
        return -math.inf
    spread, whole = max(tops) - min(tops), min(max(tops) - bottom, 2 * abs(max(tops)))
    return min(tops) - 1.15 * max(spread, whole / 4)


def _draw_choice(axes: Axes, cell: Cell, criterion: str, axis: Axis) -> None:
    colour, chosen = METHODS[cell.method].colour, cell.chosen(criterion)
    best = cell.summary(chosen, cell.split, criterion)
    place = None if chosen is None else axis.value(chosen)
    if best is not None and place is None:
        axes.axhline(best.mean, color=colour, linewidth=1.1)
        axes.axhspan(best.mean - (best.sd or 0.0), best.mean + (best.sd or 0.0), color=colour, alpha=0.15, linewidth=0)
        return
    for (_, configurations), style in zip(rules(cell), LINES * 9, strict=False):
        known = [(axis.value(each), each, cell.summary(each, cell.split, criterion)) for each in configurations]
        points = [(at, each, found) for at, each, found in known if at is not None and found is not None]
        x, mean = [at for at, _, _ in points], [found.mean for _, _, found in points]
        sd = [found.sd or 0.0 for _, _, found in points]
        axes.errorbar(x, mean, sd, color=colour, linewidth=1.1, linestyle=style, elinewidth=0.7, capsize=0)
        whole = [found.n == len(cell.members(each)) for _, each, found in points]
        faces = [colour if each else "none" for each in whole]
        axes.scatter(x, mean, 13, faces, edgecolors=colour, linewidths=0.8, zorder=3)
    if place is not None and best is not None:
        axes.scatter([place], [best.mean], 64, "none", edgecolors=colour, linewidths=1.2, zorder=4)


def _scale(axes: Axes, cells: Sequence[Cell], axis: Axis) -> None:
    every = (axis.value(each) for cell in cells for each in cell.configurations())
    found = sorted({value for value in every if value is not None})
    shown = found if len(found) <= len(TICKS) else [tick for tick in TICKS if found[0] <= tick <= found[-1]]
    if axis.log:
        axes.set_xscale("log")
        axes.set_xlim(found[0] / 1.25, found[-1] * 1.25)
    else:
        axes.set_xlim(found[0] - 1, found[-1] + 1)
    axes.xaxis.set_major_locator(FixedLocator(shown if axis.log else found))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
