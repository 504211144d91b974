"""One figure: densities and samples of four relaxations of the same discrete distribution, as the temperature falls.

The data (:func:`panel`, :func:`limit`) know nothing of the drawing (:func:`draw`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Polygon
from numpy.typing import NDArray
from torch import Tensor

from igr import GumbelSoftmax, InvertibleGaussian, Planar, StickBreaking
from igr.distributions import Relaxation
from igr.paper.methods import METHODS
from igr.paper.style import INK, STYLE, save
from igr.paper.threads import one_thread

__all__ = [
    "NAMES",
    "P0",
    "STEPS",
    "TEMPERATURES",
    "Limit",
    "Panel",
    "create",
    "draw",
    "limit",
    "panel",
    "relaxation",
    "simplex_grid",
]

Array = NDArray[np.float64]

P0 = (0.5, 0.3, 0.2)  # the discrete distribution that all four relax
NAMES = ("igr-i", "igr-sb", "igr-planar", "gs")
TEMPERATURES = (1.0, 0.5, 0.25, 0.1)
STEPS = len(NAMES) * (len(TEMPERATURES) + 1) + 1  # how often create reports

CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(3) / 2]])  # where e1, e2 and e3 are drawn


@dataclass(frozen=True)
class Panel:
    """One method at one temperature: the log-density on :func:`simplex_grid`, and samples ``(S, 3)``."""

    name: str
    tau: float
    log_density: Array
    samples: Array

    @property
    def near_vertex(self) -> float:
        """The share of samples with a coordinate above 0.95."""
        return float((self.samples.max(-1) > 0.95).mean())


@dataclass(frozen=True)
class Limit:
    """The discrete distribution that a method relaxes, from hard samples: probabilities ``(3,)``."""

    name: str
    probs: Array


def relaxation(name: str, tau: float, device: torch.device | str = "cpu") -> Relaxation:
    """The relaxation that the figure shows; its parameters are chosen so that h(y) has probabilities :data:`P0`."""

    def vector(*values: float) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)

    match name:
        case "gs":
            return GumbelSoftmax(tau, vector(*P0).log())
        case "igr-i":
            return InvertibleGaussian(vector(0.3200, -0.0854), 1.0, tau)
        case "igr-sb":
            return InvertibleGaussian(vector(-0.3207, 0.3551), 1.5, tau, flow=StickBreaking())
        case "igr-planar":
            flow = [
                Planar(vector(0.7, -0.8), vector(2.0, -2.0)),
                Planar(vector(-0.25, 0.7), vector(0.3, 3.0), 0.3),
            ]
            return InvertibleGaussian(vector(-0.3351, -0.4950), 0.5, tau, flow=flow)
    raise ValueError(f"no relaxation called {name!r}; expected one of {', '.join(NAMES)}")


def simplex_grid(n: int) -> tuple[Array, NDArray[np.bool_]]:
    """Barycentric coordinates ``(H, n, 3)`` of the pixels of a picture of the triangle, and which centres lie in it.

    Pixels outside get the coordinates of a point just inside, so that a picture clipped to the triangle has no gaps.
    """
    height = round(n * CORNERS[2, 1])
    x = (np.arange(n) + 0.5) / n
    y = (np.arange(height) + 0.5) / height * CORNERS[2, 1]
    z3 = np.broadcast_to(y[:, None] / CORNERS[2, 1], (height, n))
    z2 = x - z3 / 2
    z = np.stack([1 - z2 - z3, z2, z3], -1)  # (H, n, 3)
    inside = np.all(z > 0, axis=-1)
    z = np.where(inside[..., None], z, z.clip(0.25 / n))
    return z / z.sum(-1, keepdims=True), inside


def panel(
    name: str,
    tau: float,
    seed: int = 0,
    device: torch.device | str = "cpu",
    *,
    resolution: int = 256,
    num_samples: int = 400,
) -> Panel:
    """The data of one panel; all methods see the same seed."""
    z, _ = simplex_grid(resolution)
    q = relaxation(name, tau, device)
    log_density = q.log_prob_from_log(torch.as_tensor(z, device=device).log())
    samples = q.sample((num_samples,), generator=torch.Generator(device).manual_seed(seed))
    return Panel(name, tau, log_density.cpu().numpy(), samples.cpu().numpy())


def limit(name: str, seed: int = 0, device: torch.device | str = "cpu", *, num_samples: int = 1_000_000) -> Limit:
    """How often each vertex is the hard sample; the temperature plays no part in that."""
    with torch.no_grad():
        generator = torch.Generator(device).manual_seed(seed)
        hard = relaxation(name, TEMPERATURES[-1], device).hard_rsample((num_samples,), generator=generator)
    return Limit(name, hard.mean(0).cpu().numpy())


LOW, HIGH = -2.0, 2.0  # the range of log10 densities that colours tell apart
CAPTION = """\
Four relaxations of one discrete distribution, $p_0 = (0.5, 0.3, 0.2)$, and the hard samples that they tend to.
Densities are with respect to Lebesgue measure on the first $K - 1$ coordinates; white is below the scale, or
zero: IGR-SB does not reach the whole simplex. Dots are samples, near a vertex if a coordinate exceeds 0.95."""
CENTRED: dict[str, Any] = {"ha": "center", "va": "center"}


def draw(data: Sequence[Panel], ends: Sequence[Limit]) -> Figure:
    """Draws the figure: one row per method, one column per temperature, and one for the limit."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 7.8), facecolor="white")
        shape = (len(NAMES), len(TEMPERATURES) + 1)
        grid = figure.add_gridspec(*shape, left=0.05, right=0.99, top=0.95, bottom=0.135, wspace=0.08, hspace=0.06)
        axes = np.array([[figure.add_subplot(grid[i, j]) for j in range(shape[1])] for i in range(shape[0])])
        for each in data:
            _draw_panel(axes[NAMES.index(each.name), TEMPERATURES.index(each.tau)], each)
        for end in ends:
            _draw_limit(axes[NAMES.index(end.name), -1], end)
        for name, first in zip(NAMES, axes[:, 0], strict=True):
            label, colour = METHODS[name].label, METHODS[name].colour
            first.text(-0.24, 0.43, label, color=colour, size=14, weight="bold", rotation=90, **CENTRED)
        titles = [f"$\\tau = {tau:g}$" for tau in TEMPERATURES] + ["$\\tau \\to 0$"]
        for title, top in zip(titles, axes[0], strict=True):
            top.set_title(title, size=14, pad=11)
        _draw_key(figure)
        figure.text(0.30, 0.066, CAPTION, size=10, va="center", linespacing=1.4)
        return figure


def _colours(name: str) -> LinearSegmentedColormap:
    """From white over the method's colour to a dark shade of it."""
    colour = np.array(METHODS[name].rgb) / 255
    return LinearSegmentedColormap.from_list(name, [(0.0, "white"), (0.75, tuple(colour)), (1.0, tuple(0.35 * colour))])


def _draw_triangle(axes: Axes, margins: Sequence[float] | Array) -> Polygon:
    """The simplex with its vertices labelled, each label at its own distance from the centre."""
    axes.set(xlim=(-0.19, 1.17), ylim=(-0.15, 1.01), aspect="equal")
    axes.set_axis_off()
    outwards = CORNERS - CORNERS.mean(0)
    outwards /= np.linalg.norm(outwards, axis=-1, keepdims=True)
    for k, (corner, margin) in enumerate(zip(CORNERS, margins, strict=True)):
        x, y = corner + margin * outwards[k]
        axes.text(x, y, f"$e_{k + 1}$", size=10, **CENTRED)
    triangle = Polygon(CORNERS, closed=True, fill=False, linewidth=0.7, edgecolor=INK, joinstyle="round", zorder=2)
    axes.add_patch(triangle)
    return triangle


def _draw_panel(axes: Axes, panel: Panel) -> None:
    triangle = _draw_triangle(axes, margins=(0.07, 0.07, 0.07))
    density = (panel.log_density / math.log(10)).clip(LOW, HIGH)  # -inf, off the support, is drawn as the lowest
    extent, colours = (0.0, 1.0, 0.0, CORNERS[2, 1]), _colours(panel.name)
    picture = axes.imshow(
        density, extent=extent, origin="lower", interpolation="bilinear", cmap=colours, vmin=LOW, vmax=HIGH
    )
    picture.set_clip_path(triangle)
    levels = np.arange(LOW, HIGH, 0.5)[1:]
    lines = axes.contour(density, levels, extent=extent, origin="lower", colors=[colours(1.0)], linewidths=0.35)
    lines.set(clip_path=triangle, linestyle="solid")
    x, y = (panel.samples @ CORNERS).T
    axes.scatter(x, y, s=1.4, c="black", alpha=0.4, linewidths=0, zorder=3, clip_on=False)
    axes.text(0.5, -0.085, f"{100 * panel.near_vertex:.0f} % near a vertex", size=9, **CENTRED)


def _draw_limit(axes: Axes, end: Limit) -> None:
    """A disc at each vertex, its area in proportion to the probability there."""
    radii = 0.22 * np.sqrt(end.probs)
    _draw_triangle(axes, margins=radii + 0.055)
    for (x, y), radius, prob in zip(CORNERS, radii, end.probs, strict=True):
        disc = Circle((x, y), radius, color=METHODS[end.name].colour, linewidth=0, zorder=3, clip_on=False)
        axes.add_patch(disc)
        axes.text(x, y, f"{prob:.2f}", color="white", size=8.5, zorder=4, **CENTRED)


def _draw_key(figure: Figure) -> None:
    """One scale for all panels: a strip of colour per method above a common axis."""
    axes = figure.add_axes((0.05, 0.062, 0.2, 0.045))
    ramp = np.linspace(LOW, HIGH, 256)[None]
    for i, name in enumerate(reversed(NAMES)):
        axes.imshow(ramp, extent=(LOW, HIGH, i, i + 1), cmap=_colours(name), aspect="auto")
    axes.set(xlim=(LOW, HIGH), ylim=(0, len(NAMES)), yticks=[], xticks=np.arange(LOW, HIGH + 1))
    axes.set_xlabel("$\\log_{10}$ density", size=10, labelpad=1)
    axes.tick_params(labelsize=9, length=2.5, pad=2)


def create(path: Path, seed: int, device: torch.device | str, report: Callable[[str], None]) -> None:
    """Computes, draws and saves the figure, and calls ``report`` with a few words before each step."""
    data, ends = [], []
    with one_thread():
        for name in NAMES:
            for tau in TEMPERATURES:
                report(f"{METHODS[name].label} at {tau:g}")
                data.append(panel(name, tau, seed, device))
            report(f"{METHODS[name].label} in the limit")
            ends.append(limit(name, seed, device))
    report("drawing")
    save(draw(data, ends), path)
