"""The report: every table and figure, rebuilt from records alone. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from igr.paper.files import write_whole
from igr.paper.report.cells import ReportError
from igr.paper.report.collect import Records, collect
from igr.paper.report.document import Document
from igr.paper.report.terminal import terminal_table

__all__ = [
    "Records",
    "Report",
    "ReportError",
    "build",
    "collect",
    "publish",
    "terminal_table",
    "write_pages",
    "Written",
]


class Report(NamedTuple):
    """The files that were written, and the records that they were made of."""

    html: Path
    markdown: Path
    figures: tuple[Path, ...]
    records: Records


class Written(NamedTuple):
    """The pages that were written, and their figures."""

    page: Path
    claims: Path
    figures: tuple[Path, ...]


def build(folders: Sequence[Path], out: Path, announce: Callable[[str], None] = lambda words: None) -> Report:
    """Writes ``report.html``, ``report.md`` and ``figures/`` into a folder, the same for the same records.

    Arguments:
        folders: where to look for records, at any depth.
        out: the folder, which is made if it is missing.
        announce: is called with a few words before each step.

    Raises:
        ReportError: there is nothing, a file cannot be read, or shortened records are mixed with real ones.
    """
    return publish(collect(folders), out, announce)


def publish(found: Records, out: Path, announce: Callable[[str], None] = lambda words: None) -> Report:
    """The same, of records that are read already."""
    from igr.paper.report import html, markdown
    from igr.paper.report.content import compose  # draws, and so needs matplotlib

    document = compose(found)
    images, page, text = out / "figures", out / "report.html", out / "report.md"
    drawn = _draw(document, images, announce)
    announce("writing")
    _write({page: html.render(document), text: markdown.render(document, images.name)})
    return Report(page, text, drawn, found)


def write_pages(found: Records, page: Path, announce: Callable[[str], None] = lambda words: None) -> Written:
    """Writes the page of the reproduction, ``claims.md`` beside it, and its figures below ``images/``.

    Figures there that are not among them are removed.

    Raises:
        ReportError: the records are shortened ones.
    """
    from igr.paper.report.page import CLAIMS, folder_of, pages

    images, claims = page.parent / folder_of(page.name), page.with_name(CLAIMS)
    made = pages(found, page.name)
    drawn = _draw(made.document, images, announce)
    for path in set(images.glob("*.svg")) - set(drawn):
        path.unlink()
    _write({page: made.reproduction, claims: made.claims})
    return Written(page, claims, drawn)


def _draw(document: Document, folder: Path, announce: Callable[[str], None]) -> tuple[Path, ...]:
    """Writes every picture into a folder, which is made if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for image in document.images():
        announce(f"drawing {image.name}")
        _write({folder / image.name: image.data})
    return tuple(folder / image.name for image in document.images())


def _write(files: Mapping[Path, str | bytes]) -> None:
    for path, content in files.items():
        with write_whole(path) as temporary:
            temporary.write_bytes(content if isinstance(content, bytes) else content.encode())
