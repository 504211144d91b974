"""Curves from cells: the continuous ELBO against epochs, and what the temperature does. Needs matplotlib, no torch."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from igr.paper.methods import METHODS
from igr.paper.report.cells import CHOSEN_BY, Cell, summarize
from igr.paper.select import CRITERIA, Configuration
from igr.paper.specs import SPECS, Times, Vae
from igr.paper.style import INK, STYLE

__all__ = ["continuous_elbo", "has_curves", "svg", "temperatures"]

Array = NDArray[np.float64]

LINES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
TICKS = (0.01, 0.03, 0.1, 0.25, 0.5, 1.0, 2.0)


def svg(figure: Figure) -> bytes:
    """The figure as a file that is the same for the same figure: no date, no random names."""
    stream = io.StringIO()
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": "igr", "svg.fonttype": "path"}):
        figure.savefig(stream, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return stream.getvalue().encode()


class Curve(NamedTuple):
    """A mean over seeds, and a standard deviation that is zero where there is one seed."""

    x: Array
    mean: Array
    sd: Array


def continuous_elbo(cells: Sequence[Cell]) -> Figure:
    """The continuous ELBO against epochs at the τ that the discrete ELBO has chosen: a panel for each variant."""
    with matplotlib.rc_context(STYLE):
        variants = list(dict.fromkeys(cell.variant for cell in cells))
        keys = [*_keys(cells), _key("test", marker="D", color=INK)]
        figure, panels = _panels(len(variants), rows=1, keys=keys)
        drawn: list[Curve] = []
        for variant, axes in zip(variants, panels[0], strict=True):
            for cell in cells:
                if cell.variant == variant and (curve := _curve(cell)) is not None:
                    drawn += _draw_curve(axes, cell, curve)
            _name(axes, variant, variants)
            axes.set_xlabel("epoch", size=10, labelpad=2)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True, steps=[1, 2, 5, 10]))
        panels[0][0].set_ylim(_limits(drawn))
        panels[0][0].set_ylabel("continuous ELBO (nats)", size=10)
        return figure


def has_curves(cell: Cell) -> bool:
    """Whether there is something to draw against epochs."""
    return _curve(cell) is not None


def _curve(cell: Cell) -> Curve | None:
    """Over the seeds of the chosen configuration, at the epochs that all of them have."""
    chosen = cell.chosen(CRITERIA[0])
    pairs = []
    for record in cell.finished(chosen) if chosen is not None else ():
        curves = record.get("curves", {})
        if "elbo_continuous" in curves:  # a model without a relaxed prior has none
            points = zip(curves["epoch"], curves["elbo_continuous"], strict=True)
            pairs.append({epoch: value for epoch, value in points if value is not None})
    epochs = sorted(set.intersection(*map(set, pairs))) if pairs else []
    return _over_seeds(epochs, [[pair[epoch] for pair in pairs] for epoch in epochs]) if epochs else None


def _over_seeds(x: Sequence[float], values: Sequence[Sequence[float]]) -> Curve:
    summaries = [summarize(each) for each in values]
    found = [(each.mean, each.sd or 0.0) if each else (math.nan, math.nan) for each in summaries]
    mean, sd = np.array(found).T
    return Curve(np.array(x, dtype=float), mean, sd)


def _draw_curve(axes: Axes, cell: Cell, curve: Curve) -> list[Curve]:
    """Draws the curve and the test value beyond its end, and returns both."""
    colour = METHODS[cell.method].colour
    axes.fill_between(curve.x, curve.mean - curve.sd, curve.mean + curve.sd, color=colour, alpha=0.2, linewidth=0)
    axes.plot(curve.x, curve.mean, color=colour, linewidth=1.2)
    test = cell.summary(cell.chosen(CRITERIA[0]), "test", "elbo_continuous")
    if test is None:
        return [curve]
    end = Curve(curve.x[-1:] * 1.03, np.array([test.mean]), np.array([test.sd or 0.0]))
    axes.errorbar(*end, fmt="D", color=colour, markersize=4, markeredgewidth=0, elinewidth=0.8, zorder=4)
    return [curve, end]


def _limits(curves: Sequence[Curve]) -> tuple[float, float]:
    """The frame without the first twentieth of the epochs, which lie far below."""
    late = [curve.x >= min(0.05 * curve.x[-1], curve.x[-1]) for curve in curves]
    low = min((curve.mean - curve.sd)[some].min() for curve, some in zip(curves, late, strict=True))
    high = max((curve.mean + curve.sd)[some].max() for curve, some in zip(curves, late, strict=True))
    margin = 0.06 * (high - low) or 1.0
    return low - margin, high + margin


def temperatures(cells: Sequence[Cell]) -> Figure:
    """Discrete ELBO and bound against τ, on the split that τ is chosen on: a column for each variant."""
    with matplotlib.rc_context(STYLE):
        variants = list(dict.fromkeys(cell.variant for cell in cells))
        ring = _key("chosen", marker="o", color=INK, markerfacecolor="none", markersize=8, markeredgewidth=1.1)
        figure, panels = _panels(len(variants), rows=len(CRITERIA), keys=[*_keys(cells, rules=True), ring])
        for criterion, row in zip(CRITERIA, panels, strict=True):
            for variant, axes in zip(variants, row, strict=True):
                for cell in cells:
                    if cell.variant == variant:
                        _draw_temperatures(axes, cell, criterion)
                _scale_temperatures(axes, cells)
                if criterion == CRITERIA[0]:
                    _name(axes, variant, variants)
                else:
                    axes.set_xlabel("$\\tau$", size=11, labelpad=1)
            row[0].set_ylabel(f"{CHOSEN_BY[criterion]} (nats)", size=10)
            row[0].set_ylim(bottom=max(row[0].get_ylim()[0], _floor(cells, criterion)))
        return figure


def _floor(cells: Sequence[Cell], criterion: str) -> float:
    """As far below the worst of the chosen as that is below the best, or a quarter of all if that is more.

    What lies lower is cut off, so that differences between what may be chosen can be seen.
    """
    means = [
        [each.mean for one in cell.configurations() if (each := cell.summary(one, cell.split, criterion)) is not None]
        for cell in cells
    ]
    tops, bottom = [max(each) for each in means if each], min((min(each) for each in means if each), default=0.0)
    if not tops:
        return -math.inf
    return min(tops) - 1.15 * max(max(tops) - min(tops), (max(tops) - bottom) / 4)


def _rules(cell: Cell) -> list[tuple[str, list[Configuration]]]:
    """Configurations by what ties the prior temperature to τ; a method without one has a single rule."""
    spec, found = SPECS.get(cell.spec), cell.configurations()
    if all(each.prior_temperature is None for each in found):
        return [("", found)]
    rules = spec.with_protocol(cell.protocol).prior_temperatures if isinstance(spec, Vae) else ()
    named: list[tuple[str, list[Configuration]]] = []
    for rule in rules:
        some = [each for each in found if _follows(each, rule)]
        named.append((f"prior {rule}", some))
    rest = [each for each in found if not any(each in some for _, some in named)]
    return [(name, some) for name, some in [*named, ("prior other", rest)] if some]


def _follows(configuration: Configuration, rule: float | Times) -> bool:
    wanted = rule.factor * configuration.tau if isinstance(rule, Times) else rule
    return configuration.prior_temperature is not None and math.isclose(configuration.prior_temperature, wanted)


def _draw_temperatures(axes: Axes, cell: Cell, criterion: str) -> None:
    colour, chosen = METHODS[cell.method].colour, cell.chosen(criterion)
    for (_, configurations), style in zip(_rules(cell), LINES * 9, strict=False):
        known = [(each, cell.summary(each, cell.split, criterion)) for each in configurations]
        points = [(each, found) for each, found in known if found is not None]
        x, mean = [each.tau for each, _ in points], [found.mean for _, found in points]
        sd = [found.sd or 0.0 for _, found in points]
        axes.errorbar(x, mean, sd, color=colour, linewidth=1.1, linestyle=style, elinewidth=0.7, capsize=0)
        whole = [found.n == len(cell.members(each)) for each, found in points]
        faces = [colour if each else "none" for each in whole]
        axes.scatter(x, mean, 13, faces, edgecolors=colour, linewidths=0.8, zorder=3)
    best = cell.summary(chosen, cell.split, criterion)
    if chosen is not None and best is not None:
        axes.scatter([chosen.tau], [best.mean], 64, "none", edgecolors=colour, linewidths=1.2, zorder=4)


def _scale_temperatures(axes: Axes, cells: Sequence[Cell]) -> None:
    found = {each.tau for cell in cells for each in cell.configurations()}
    ticks = [tick for tick in TICKS if min(found) <= tick <= max(found)] if len(found) > len(TICKS) else sorted(found)
    axes.set_xscale("log")
    axes.set_xlim(min(found) / 1.25, max(found) * 1.25)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tau, _: f"{tau:g}"))


def _panels(count: int, rows: int, keys: Sequence[Line2D]) -> tuple[Figure, list[list[Axes]]]:
    """Panels below a legend, one column for each of ``count``; those of a row share their scale."""
    width = {1: 6.0, 2: 8.0}.get(count, 2.9 * count + 0.8)
    per_line = max(2, int(width / 1.5))
    legend = 0.2 * math.ceil(len(keys) / per_line) + 0.1
    height = 2.6 * rows + legend + 0.8
    figure = Figure(figsize=(width, height), facecolor="white")
    figure.legend(handles=list(keys), loc="upper center", ncols=min(len(keys), per_line), frameon=False, borderpad=0.2)
    edges: Any = {"left": 0.62 / width, "right": 1 - 0.2 / width, "top": 1 - (legend + 0.32) / height}
    grid = figure.add_gridspec(rows, count, **edges, bottom=0.45 / height, wspace=0.07, hspace=0.14)
    panels: list[list[Axes]] = []
    for i in range(rows):
        row: list[Axes] = []
        for j in range(count):
            axes = figure.add_subplot(grid[i, j], sharey=row[0] if row else None, facecolor="none")
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=9, length=2.5, pad=2, labelleft=j == 0, labelbottom=i == rows - 1)
            axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.5)
            axes.set_axisbelow(True)
            row.append(axes)
        panels.append(row)
    return figure, panels


def _name(axes: Axes, variant: str, variants: Sequence[str]) -> None:
    """What the panel shows, where there are several."""
    title = variant or ("without SL" if "+ SL" in variants else "plain")
    if variant or len(variants) > 1:
        axes.set_title(title, size=11, pad=4)


def _keys(cells: Sequence[Cell], *, rules: bool = False) -> list[Line2D]:
    """A line of the legend for each method, and for each rule of its prior temperature."""
    keys: dict[str, Line2D] = {}
    for cell in cells:
        method = METHODS[cell.method]
        for (rule, _), style in zip(_rules(cell) if rules else [("", [])], LINES * 9, strict=False):
            label = f"{method.label}, {rule.replace('τ', '$τ$')}" if rule else method.label
            keys.setdefault(label, _key(label, color=method.colour, linestyle=style, linewidth=1.4))
    return list(keys.values())


def _key(label: str, **style: Any) -> Line2D:
    plain: dict[str, Any] = {"markersize": 4, "linestyle": "none" if "marker" in style else "-"}
    return Line2D([], [], label=label, **plain | style)
