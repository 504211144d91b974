"""What becomes of a mixture's components, in figures. Needs matplotlib, no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from igr.paper.methods import METHODS
from igr.paper.report.cells import Cell
from igr.paper.report.panels import Curve, key, keys_of, over_seeds, panels, title, variants_of
from igr.paper.report.words import place
from igr.paper.style import INK, STYLE

__all__ = ["HISTOGRAM", "MASS", "effective", "has", "masses"]

HISTOGRAM, MASS = "components_histogram", "component_mass"  # metrics
SEEN = 1e-3  # a bar that is lower on average is not drawn as far as the frame goes
FLOOR = 1e-4  # below it a mass is cut off


def effective(cells: Sequence[Cell]) -> Figure | None:
    """Histograms of the effective number of components, if any of the cells has one: a panel for each data set."""

    def draw(axes: Axes, drawn: Sequence[tuple[Cell, Curve]]) -> None:
        width = 0.84 / len(drawn)
        for i, (cell, curve) in enumerate(drawn):
            at = curve.x + (i - (len(drawn) - 1) / 2) * width
            colour, whiskers = METHODS[cell.method].colour, {"elinewidth": 0.7, "ecolor": INK}
            axes.bar(at, curve.mean, 0.94 * width, yerr=curve.sd, color=colour, error_kw=whiskers, linewidth=0)
        seen = np.concatenate([curve.x[curve.mean >= SEEN] for _, curve in drawn])
        if len(seen):
            axes.set_xlim(seen.min() - 0.7, seen.max() + 0.7)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("effective number of components", size=10, labelpad=2)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}"))

    return _figure(cells, _histogram, draw, "images (%)")


def masses(cells: Sequence[Cell]) -> Figure | None:
    """Masses of components over all images, sorted, if any of the cells has them: a panel for each data set."""

    def draw(axes: Axes, drawn: Sequence[tuple[Cell, Curve]]) -> None:
        axes.set_yscale("log")
        axes.axhline(0.01, color=INK, linewidth=0.7, linestyle=(0, (4, 3)), alpha=0.6)
        for below, (cell, curve) in zip(reversed(range(len(drawn))), drawn, strict=True):
            there = curve.mean >= FLOOR  # components beyond a fixed K have none
            colour, (x, mean, sd) = METHODS[cell.method].colour, (each[there] for each in curve)
            axes.fill_between(x, np.maximum(mean - sd, FLOOR), mean + sd, color=colour, alpha=0.2, linewidth=0)
            size, width = 3.5 + 3.5 * below, 1.1 + 1.9 * below  # so that one shows below another that covers it
            axes.plot(x, mean, "o-", color=colour, markersize=size, linewidth=width, markeredgewidth=0)
        axes.set_ylim(FLOOR, 1)
        axes.yaxis.set_major_locator(LogLocator(10))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}"))
        axes.set_xlabel("component, by mass", size=10, labelpad=2)

    return _figure(cells, _sorted, draw, "mass (%)")


Draw = Callable[[Axes, Sequence[tuple[Cell, Curve]]], None]


def _figure(cells: Sequence[Cell], values: Callable[[Cell], Curve | None], draw: Draw, label: str) -> Figure | None:
    """A panel for each data set and variant, with what all methods have there."""
    groups: dict[str, list[tuple[Cell, Curve]]] = {}
    variants = variants_of(cells)
    for cell in cells:
        if (curve := values(cell)) is not None:
            name = ", ".join(filter(None, [place(cell.group[1]), title(cell.variant, variants)]))
            groups.setdefault(name, []).append((cell, curve))
    if not groups:
        return None
    with matplotlib.rc_context(STYLE):
        figure, [row] = panels(len(groups), rows=1, keys=_keys([cell for cell in cells if values(cell) is not None]))
        for (name, drawn), axes in zip(groups.items(), row, strict=True):
            draw(axes, drawn)
            axes.set_title(name, size=11, pad=4)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
        row[0].set_ylabel(label, size=10)
        return figure


def _keys(cells: Sequence[Cell]) -> list[Line2D]:
    return [key(str(each.get_label()), marker="s", color=each.get_color(), markersize=6) for each in keys_of(cells)]


def _histogram(cell: Cell) -> Curve | None:
    return _over_components(_vectors(cell, HISTOGRAM))


def _sorted(cell: Cell) -> Curve | None:
    """Which component has which number differs between seeds, so they are compared by rank."""
    return _over_components([sorted(each, reverse=True) for each in _vectors(cell, MASS)])


def has(cells: Sequence[Cell], metric: str) -> bool:
    """Whether there is something to draw."""
    return any(_vectors(cell, metric) for cell in cells)


def _vectors(cell: Cell, metric: str) -> list[list[float]]:
    return cell.vectors(cell.chosen("log_likelihood"), "test", metric)


def _over_components(vectors: Sequence[Sequence[float]]) -> Curve | None:
    """Means over seeds, numbered from one; vectors may be of different lengths."""
    if not vectors:
        return None
    longest = max(map(len, vectors))
    values = [[each[k] if k < len(each) else 0.0 for each in vectors] for k in range(longest)]
    return over_seeds(range(1, longest + 1), values)
