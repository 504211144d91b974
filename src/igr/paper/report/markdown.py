"""A document as Markdown, with its pictures in files beside it."""

from __future__ import annotations

import re

from igr.paper.report.document import Block, Document, Entry, Gallery, Image, Table, Text

__all__ = ["render"]


def render(document: Document, folder: str) -> str:
    """The text; ``folder`` is where the pictures are, as seen from it."""
    parts = [f"# {_escape(document.title)}"]
    if document.banner:
        parts.append(f"> **{_escape(document.banner)}**")
    parts.extend(_block(block, folder) for block in document.lead)
    for section in document.sections:
        parts.append(f"## {_escape(section.title)}")
        parts.extend(_block(block, folder) for block in section.blocks)
    return "\n\n".join(parts) + "\n"


def _block(block: Block, folder: str) -> str:
    match block:
        case Text():
            return _text(block)
        case Table():
            return _table(block)
        case Gallery():
            return "\n\n".join([f"### {_escape(block.title)}", *(_image(image, folder) for image in block.images)])
        case Image():
            return _image(block, folder)


def _text(text: Text) -> str:
    quote = "> " if text.warning else ""
    if len(text.lines) == 1:
        return quote + (f"**{_escape(text.lines[0])}**" if text.warning else _escape(text.lines[0]))
    return "\n".join(f"{quote}- {_escape(line)}" for line in text.lines)


def _table(table: Table) -> str:
    rule = ["---" if i < table.words else "---:" for i in range(len(table.head))]
    lines = [f"**{_escape(table.title)}**", "", _row(table.head), "|" + "|".join(rule) + "|"]
    lines.extend(_row(cells) for cells in table.rows)
    for note in table.notes:
        lines.extend(["", _escape(note)])
    return "\n".join(lines)


def _row(cells: tuple[Entry, ...]) -> str:
    texts = [f"**{_escape(str(cell))}**" if cell.bold else _escape(str(cell)) for cell in cells]
    return "| " + " | ".join(texts) + " |"


def _image(image: Image, folder: str) -> str:
    return f"![{_escape(image.caption)}]({folder}/{image.name})\n\n{_escape(image.caption)}"


def _escape(text: str) -> str:
    """The text with a backslash where Markdown would read a sign of its own, on one line."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(text.split()))
