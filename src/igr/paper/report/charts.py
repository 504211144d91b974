"""Figures with their captions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from igr.paper.report.cells import Cell
from igr.paper.report.document import Image, file_name
from igr.paper.report.words import listed

if TYPE_CHECKING:
    from igr.paper.report.figures import Course

__all__ = ["by_place", "choices", "course", "file_of"]

CUT = " What lies far below is cut off."


def by_place(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The cells that share a figure."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.where, []).append(cell)
    return list(groups.values())


def course(cells: Sequence[Cell], course: Course, words: str, last: str) -> Iterator[Image]:
    """The figure of what is drawn against epochs, if any of the cells has it.

    Arguments:
        cells: those of one place.
        course: what is drawn.
        words: how the caption begins, after the place.
        last: how it goes on, after the split.
    """
    from igr.paper.report import figures, panels

    curved = [cell for cell in cells if figures.has_course(cell, course)]
    rest = listed([cell.label for cell in cells if not figures.has_course(cell, course)])
    if curved:
        caption = f"{cells[0].where}: {words} on the {cells[0].split} split, {last}"
        caption += f" Without a curve: {rest}." if rest else ""
        name = file_of(course.label.lower().replace(" ", "-"), cells[0])
        yield Image(name, lambda: panels.svg(figures.over_epochs(curved, course)), caption)


def choices(cells: Sequence[Cell], choice: str, words: str, last: str = "", *, apart: bool = False) -> Image:
    """The figure of what each criterion says on the split that choices look at, against τ or K.

    Arguments:
        cells: those of one place, one of which has something to choose.
        choice: τ or K.
        words: what is drawn.
        last: how the caption ends.
        apart: whether variants have scales of their own.
    """
    from igr.paper.report import figures, panels

    name, axis, cut = {"τ": ("temperature", figures.TAU, CUT), "K": ("size", figures.SIZE, "")}[choice]
    by = " by each" if len(cells[0].criteria) > 1 else ""
    caption = (
        f"{cells[0].where}: {words} on the {cells[0].split} split against {choice}, mean ± standard deviation over "
        f"seeds. Rings: what is chosen{by}. Hollow points: a member failed.{cut}{last}"
    )
    return Image(file_of(name, cells[0]), lambda: panels.svg(figures.against(cells, axis, apart=apart)), caption)


def file_of(figure: str, cell: Cell) -> str:
    """The name of a figure's file."""
    return file_name(figure, *cell.group, *filter(None, [cell.part]), cell.protocol) + ".svg"
