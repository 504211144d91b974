"""The figure of an approximated distribution, drawn from records alone: one row per family, IGR above, GS below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from igr.paper.methods import METHODS
from igr.paper.records import Record
from igr.paper.style import INK, STYLE

__all__ = ["draw"]

ROWS = ("igr-i", "igr-sb", "gs")
MANY = 30  # categories from which on bars touch and the truth has no dots
CAPTION = (
    "{title}: bars are histograms of {histogram:,} hard samples, black is the truth; TV is the total variation of the "
    "recovered\ndistribution, not of its histogram, from it. The loss $\\|\\mathrm{{E}}\\,\\tilde{{z}} - p_0\\|^2$ is "
    "estimated with {samples:,} samples a step at $\\tau = {tau:g}$\nand learning rate {learning_rate:g} for every "
    "family; the dotted line is what the noise of perfect samples would leave of it."
)


def draw(records: Sequence[Record]) -> Figure:
    """Draws what :func:`igr.paper.approximate.approximate` has found for one target.

    Columns are the states that were kept, and last the exact fits, if there are any, and the loss.
    """
    trained = [record for record in records if record["protocol"] == "paper"]
    exact = {record["model"]["method"]: record for record in records if record["protocol"] == "exact"}
    rows = [method for method in ROWS if any(record["model"]["method"] == method for record in trained)]
    steps = [state["step"] for state in trained[0]["states"]]
    with matplotlib.rc_context(STYLE):
        height = 1.75 * len(rows) + 1.05
        figure = Figure(figsize=(10.0, height), facecolor="white")
        edges = {"left": 0.085, "right": 0.955, "top": 1 - 0.3 / height, "bottom": 0.98 / height}
        grid = figure.add_gridspec(len(rows), len(steps) + 1, **edges, wspace=0.08, hspace=0.12)
        for i, method in enumerate(rows):
            family = [record for record in trained if record["model"]["method"] == method]
            panels = [[(record, record["states"][j]) for record in family] for j in range(len(steps))]
            if method in exact:
                panels.append([(exact[method], exact[method]["states"][-1])])
            for j, panel in enumerate(panels):
                axes = figure.add_subplot(grid[i, j])
                _draw_panel(axes, panel)
                axes.tick_params(labelbottom=i == len(rows) - 1 or j == len(steps), labelleft=j == 0)
                if i == 0:
                    axes.set_title(_title(steps, j), size=12, pad=6)
                if j == 0:
                    place = axes.get_position()
                    middle = (place.y0 + place.y1) / 2
                    words: Any = {"size": 14, "weight": "bold", "rotation": 90, "ha": "center", "va": "center"}
                    figure.text(0.022, middle, METHODS[method].label, color=METHODS[method].colour, **words)
        _draw_loss(figure.add_subplot(grid[len(exact) :, -1]), trained, titled=not exact)
        caption = CAPTION.format(**trained[0]["settings"], tau=trained[0]["tau"], title=trained[0]["target"]["title"])
        figure.text(0.085, 0.35 / height, caption, size=10, va="center", linespacing=1.4)
        return figure


def _title(steps: Sequence[int], j: int) -> str:
    if j == len(steps):
        return "exact fit"
    return f"after {steps[j]:,} steps" if steps[j] else "initial"


def _colour(record: Record) -> tuple[float, float, float]:
    """The method's colour; the more categories a Gumbel-Softmax has on an unbounded target, the darker."""
    red, green, blue = (x / 255 for x in METHODS[record["model"]["method"]].rgb)
    K = record["model"]["num_categories"]
    if K is None or record["target"]["num_categories"] is not None:
        return red, green, blue
    shade = {20: 0.45, 40: 0.15, 100: -0.2, 200: -0.55}.get(K, 0.0)  # towards white, or towards black
    target = 1.0 if shade > 0 else 0.0
    red, green, blue = (x + abs(shade) * (target - x) for x in (red, green, blue))
    return red, green, blue


def _frame(target: Record) -> int:
    """How many categories are drawn: all that there are, or those with the mass and a third more."""
    probs = np.array(target["probs"])
    if target["num_categories"] is not None:
        return int(target["num_categories"])
    return round(4 / 3 * int((probs[::-1].cumsum()[::-1] > 1e-4).sum()))


def _draw_panel(axes: Axes, panel: Sequence[tuple[Record, Record]]) -> None:
    """Histograms of one family in one state, and the truth in front of them."""
    target = panel[0][0]["target"]
    size, truth = _frame(target), np.array(target["probs"])
    for i, (record, state) in enumerate(panel):
        shares = np.array(state["counts"][:size]) / sum(state["counts"])
        colour, words = _colour(record), f"TV {_number(state['metrics']['tv'])}"
        if len(panel) > 1:
            words = f"$K$ = {record['model']['num_categories']}: {words}"
            axes.stairs(shares, np.arange(len(shares) + 1) - 0.5, fill=True, color=(*colour, 0.25))
            axes.stairs(shares, np.arange(len(shares) + 1) - 0.5, color=colour, linewidth=0.8)
        else:
            axes.bar(np.arange(len(shares)), shares, 1.0 if size > MANY else 0.8, color=colour, linewidth=0)
        axes.text(0.98, 0.97 - 0.095 * i, words, size=8.5, color=colour, ha="right", va="top", transform=axes.transAxes)
    truth = np.pad(truth, (0, max(0, size - len(truth))))[:size]
    style: Any = {"linewidth": 1.1} if size > MANY else {"marker": "o", "markersize": 3.5, "linewidth": 0.6}
    if target["num_categories"] is not None:
        style["linestyle"] = "none"
    axes.plot(np.arange(size), truth, color="black", zorder=3, **style)
    axes.set(xlim=(-0.6, size - 0.4), ylim=(0, 1.75 * truth.max()))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.tick_params(labelsize=8, length=2.5, pad=2)
    axes.spines[["top", "right"]].set_visible(False)


def _number(value: float) -> str:
    """Three decimals, or a power of ten where they would be zeros."""
    if value >= 5e-4:
        return f"{value:.3f}"
    mantissa, _, exponent = f"{value:.0e}".partition("e")
    return f"${mantissa} \\cdot 10^{{{int(exponent)}}}$"


def _draw_loss(axes: Axes, trained: Sequence[Record], *, titled: bool) -> None:
    for record in trained:
        every, means = record["loss"]["every"], np.array(record["loss"]["means"])
        steps = every * (np.arange(len(means)) + 0.5)
        axes.plot(steps, means, color=_colour(record), linewidth=0.8)
    samples, probs = trained[0]["settings"]["samples"], np.array(trained[0]["target"]["probs"])
    axes.axhline((1 - np.square(probs).sum()) / samples, color=INK, linewidth=0.8, linestyle=":")
    axes.set_yscale("log")
    axes.set_ylim(top=4 * max(max(record["loss"]["means"]) for record in trained))
    axes.set_xlim(0, trained[0]["settings"]["steps"])
    axes.yaxis.tick_right()
    axes.tick_params(labelsize=8, length=2.5, pad=2)
    axes.tick_params(which="minor", length=1.5, width=0.4)
    axes.spines[["top", "left"]].set_visible(False)
    if titled:
        axes.set_title("loss", size=12, pad=6)
    else:
        axes.text(0.98, 0.97, "loss", size=9, ha="right", va="top", transform=axes.transAxes)
