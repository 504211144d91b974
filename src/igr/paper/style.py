"""How every figure looks, and how it gets onto the disk. Needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from igr.paper.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["INK", "STYLE", "save"]

INK = "#222222"
STYLE: Any = {
    "font.family": "STIXGeneral",
    "mathtext.fontset": "stix",
    "font.size": 10.0,
    "text.color": INK,
    "axes.linewidth": 0.5,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.major.width": 0.5,
    "xtick.color": INK,
    "ytick.major.width": 0.5,
    "ytick.color": INK,
}


def save(figure: Figure, path: Path) -> None:
    """Writes the figure, whole or not at all."""
    with write_whole(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120, pil_kwargs={"optimize": True})
