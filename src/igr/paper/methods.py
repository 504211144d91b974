"""The one map from a method's name to the label and the colour it has in every table and figure."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["METHODS", "Method"]


class Method(NamedTuple):
    """How a method is printed and drawn."""

    label: str
    rgb: tuple[int, int, int]

    @property
    def colour(self) -> str:
        """The colour as a hexadecimal string, ``#rrggbb``."""
        return "#{:02x}{:02x}{:02x}".format(*self.rgb)


METHODS = {
    "igr-i": Method("IGR-I", (77, 175, 74)),
    "igr-planar": Method("IGR-Planar", (228, 26, 28)),
    "igr-sb": Method("IGR-SB", (55, 126, 184)),
    "gs": Method("GS", (152, 78, 163)),
    "igr-sb-mm": Method("IGR-SB-MM", (55, 126, 184)),
    "dldpmm": Method("DLDPMM", (255, 140, 0)),
}
