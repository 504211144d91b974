"""The report: every table and figure, rebuilt from records alone. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from igr.paper.files import write_whole
from igr.paper.report.cells import ReportError
from igr.paper.report.collect import Records, collect
from igr.paper.report.terminal import terminal_table

__all__ = ["Records", "Report", "ReportError", "build", "collect", "publish", "terminal_table"]


class Report(NamedTuple):
    """The files that were written, and the records that they were made of."""

    html: Path
    markdown: Path
    figures: tuple[Path, ...]
    records: Records


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

    document = compose(found, announce)
    announce("writing")
    images = out / "figures"
    images.mkdir(parents=True, exist_ok=True)
    drawn = {images / image.name: image.data for image in document.images()}
    page, text = out / "report.html", out / "report.md"
    written = {page: html.render(document).encode(), text: markdown.render(document, images.name).encode()}
    for path, content in (drawn | written).items():
        with write_whole(path) as temporary:
            temporary.write_bytes(content)
    return Report(page, text, tuple(drawn), found)
