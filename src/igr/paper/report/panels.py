"""What figures of cells have in common: panels, legends, means over seeds. Needs matplotlib, no torch."""

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
from numpy.typing import NDArray

from igr.paper.methods import METHODS
from igr.paper.report.cells import Cell, summarize
from igr.paper.select import Configuration
from igr.paper.specs import SPECS, Times, Vae
from igr.paper.style import INK, STYLE

__all__ = ["LINES", "Curve", "key", "keys_of", "over_seeds", "panels", "rules", "svg", "title", "variants_of"]

Array = NDArray[np.float64]

PLAIN = {"+ SL": "without SL", "σ = ": "σ learned", "linear network": "tanh network"}  # by what others have
LINES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))


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


def over_seeds(x: Sequence[float], values: Sequence[Sequence[float]]) -> Curve:
    """The curve through x of values, those of all seeds at each."""
    summaries = [summarize(each) for each in values]
    found = [(each.mean, each.sd or 0.0) if each else (math.nan, math.nan) for each in summaries]
    mean, sd = np.array(found).T
    return Curve(np.array(x, dtype=float), mean, sd)


def panels(count: int, rows: int, keys: Sequence[Line2D], *, titled: bool = False) -> tuple[Figure, list[list[Axes]]]:
    """Panels below a legend, one column for each of ``count``; those of a row share their scale.

    Where all rows are ``titled``, not only the first, there is room for it.
    """
    width = {1: 6.0, 2: 8.0}.get(count, 2.9 * count + 0.8)
    per_line = max(2, int(width / 1.5))
    legend = 0.2 * math.ceil(len(keys) / per_line) + 0.1
    height = 2.6 * rows + legend + 0.8
    figure = Figure(figsize=(width, height), facecolor="white")
    figure.legend(handles=list(keys), loc="upper center", ncols=min(len(keys), per_line), frameon=False, borderpad=0.2)
    edges: Any = {"left": 0.62 / width, "right": 1 - 0.2 / width, "top": 1 - (legend + 0.32) / height}
    grid = figure.add_gridspec(rows, count, **edges, bottom=0.45 / height, wspace=0.07, hspace=0.3 if titled else 0.14)
    found: list[list[Axes]] = []
    for i in range(rows):
        row: list[Axes] = []
        for j in range(count):
            axes = figure.add_subplot(grid[i, j], sharey=row[0] if row else None, facecolor="none")
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=9, length=2.5, pad=2, labelleft=j == 0, labelbottom=i == rows - 1)
            axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.5)
            axes.set_axisbelow(True)
            row.append(axes)
        found.append(row)
    return figure, found


def variants_of(cells: Sequence[Cell]) -> list[str]:
    """What cells differ in beside their methods: a panel each."""
    return list(dict.fromkeys(cell.variant for cell in cells))


def title(variant: str, variants: Sequence[str]) -> str:
    """What the panel of a variant shows; nothing where it is the only one, and plain.

    Where others are of several samples, one is said too, unless an estimator is named, which has its own; and what the
    plain one has, where others have something else.

    Example:
        >>> title("", ["", "+ SL"]), title("+ SL", ["", "+ SL"]), title("", ["", "S = 5"]), title("", [""])
        ('without SL', '+ SL', 'S = 1', '')
        >>> title("", ["", "σ = 1", "S = 5"]), title("σ = 1", ["", "σ = 1", "S = 5"])
        ('σ learned, S = 1', 'σ = 1, S = 1')
    """
    if variant.startswith("+"):
        return variant
    words = (
        [variant] if variant else [plain for start, plain in PLAIN.items() if any(start in each for each in variants)]
    )
    if "S = " not in variant and any("S = " in each for each in variants if not each.startswith("+")):
        words.append("S = 1")
    return ", ".join(words) or ("" if len(variants) == 1 else "plain")


def rules(cell: Cell) -> list[tuple[str, list[Configuration]]]:
    """Configurations by what ties the prior temperature to τ; a method without one has a single rule."""
    spec, found = SPECS.get(cell.spec), cell.configurations()
    if all(each.prior_temperature is None for each in found):
        return [("", found)]
    tied = spec.with_protocol(cell.protocol).prior_temperatures if isinstance(spec, Vae) else ()
    named: list[tuple[str, list[Configuration]]] = []
    for rule in tied:
        some = [each for each in found if _follows(each, rule)]
        named.append((f"prior {rule}", some))
    rest = [each for each in found if not any(each in some for _, some in named)]
    return [(name, some) for name, some in [*named, ("prior other", rest)] if some]


def _follows(configuration: Configuration, rule: float | Times) -> bool:
    if configuration.tau is None or configuration.prior_temperature is None:
        return False
    wanted = rule.factor * configuration.tau if isinstance(rule, Times) else rule
    return math.isclose(configuration.prior_temperature, wanted)


def keys_of(cells: Sequence[Cell], *, ruled: bool = False) -> list[Line2D]:
    """A line of the legend for each method, and for each rule of its prior temperature."""
    keys: dict[str, Line2D] = {}
    for cell in cells:
        method = METHODS[cell.method]
        for (rule, _), style in zip(rules(cell) if ruled else [("", [])], LINES * 9, strict=False):
            label = f"{method.label}, {rule.replace('τ', '$τ$')}" if rule else method.label
            keys.setdefault(label, key(label, color=method.colour, linestyle=style, linewidth=1.4))
    return list(keys.values())


def key(label: str, **style: Any) -> Line2D:
    """A line of the legend."""
    plain: dict[str, Any] = {"markersize": 4, "linestyle": "none" if "marker" in style else "-"}
    return Line2D([], [], label=label, **plain | style)
