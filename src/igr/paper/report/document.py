"""What a report is made of, in no particular format: sections of paragraphs, tables and pictures.

All text is plain; :mod:`igr.paper.report.html` and :mod:`igr.paper.report.markdown` escape what they find.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

__all__ = [
    "ABSENT",
    "SMOKE",
    "Block",
    "Document",
    "Entry",
    "Gallery",
    "Image",
    "Section",
    "Table",
    "Text",
    "file_name",
    "heading",
]

ABSENT = "—"
SMOKE = "Smoke run: shortened, not results."


@dataclass(frozen=True)
class Text:
    """A paragraph, a list if there are several lines; a warning stands out."""

    lines: tuple[str, ...]
    warning: bool = False

    @classmethod
    def of(cls, *lines: str, warning: bool = False) -> Text:
        """A paragraph or list of these lines."""
        return cls(lines, warning)


@dataclass(frozen=True)
class Entry:
    """An entry of a table. A colour puts a dot of it in front; the end is printed small behind the text."""

    text: str
    colour: str | None = None
    end: str = ""
    bold: bool = False

    def __str__(self) -> str:
        return f"{self.text} ({self.end})" if self.end else self.text


@dataclass(frozen=True)
class Table:
    """A table with its caption; the first ``words`` columns hold words, the others numbers."""

    title: str
    head: tuple[Entry, ...]
    rows: tuple[tuple[Entry, ...], ...]
    words: int = 1
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Image:
    """A picture, SVG or PNG by the end of its name, under which it is kept as a file as well; drawn once asked for."""

    name: str
    draw: Callable[[], bytes]
    caption: str

    @cached_property
    def data(self) -> bytes:
        """What is in the file."""
        return self.draw()


@dataclass(frozen=True)
class Gallery:
    """Small pictures side by side, which a page may fold away under their title."""

    title: str
    images: tuple[Image, ...]


Block = Text | Table | Image | Gallery


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    """The whole report; the banner, if there is one, is what nobody must miss."""

    title: str
    banner: str | None
    lead: tuple[Block, ...]
    sections: tuple[Section, ...]

    def images(self) -> list[Image]:
        """Every picture, in the order of the page."""
        blocks = [*self.lead, *(block for section in self.sections for block in section.blocks)]
        found: list[Image] = []
        for block in blocks:
            if isinstance(block, Image):
                found.append(block)
            elif isinstance(block, Gallery):
                found.extend(block.images)
        return found


def heading(words: str) -> Entry:
    """The head of a column, where what follows a bar is printed small: ``bound|m = 1000``."""
    text, _, end = words.partition("|")
    return Entry(text, end=end)


def file_name(*parts: str) -> str:
    """The parts as the name of a file, which needs no quoting anywhere."""
    return re.sub(r"[^\w.+-]", "_", "-".join(parts))
