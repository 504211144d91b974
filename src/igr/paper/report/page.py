"""The pages of the reproduction: what the site says of the paper's numbers and claims, from committed records."""

from __future__ import annotations

from typing import NamedTuple

from igr.paper.report import claims_page, gaps, markdown
from igr.paper.report.cells import ReportError
from igr.paper.report.collect import Records
from igr.paper.report.content import compose
from igr.paper.report.document import Block, Document, Gallery, Image, Section

__all__ = ["CLAIMS", "Pages", "folder_of", "pages"]

TITLE = "The reproduction"
CLAIMS = "claims.md"
WRITTEN = "Written by `make report` from the records in `results/ours`; not to be edited."
BESIDE = f"What the paper's sentences claim, and whether it holds, is on [the page of claims]({CLAIMS})."
BEHIND = "Tables and figures of the same records are on [the page of the reproduction]({})."
DRAWN = ("temperature-table1-", "temperature-sop-mnist-honest")  # of figures against τ, so that the page stays small
LAST = ("Other records", "Run times", "Environment")


class Pages(NamedTuple):
    """The texts of both pages, and what the first was made of."""

    reproduction: str
    claims: str
    document: Document


def pages(found: Records, name: str = "reproduction.md") -> Pages:
    """Both pages of these records, nothing being drawn.

    Arguments:
        found: the records.
        name: of the file of the first page, beside which figures are in ``images/``, in a folder called the same.

    Raises:
        ReportError: the records are shortened ones.
    """
    if found.smoke:
        raise ReportError("these are smoke records, which are shortened and no reproduction; name real ones: --records")
    whole, missing = compose(found), Section("Not run yet", tuple(gaps.blocks(found)))
    sections = [section for section in map(_shortened, whole.sections) if section.blocks]
    last = [section for section in sections if section.title in LAST]
    first = [section for section in sections if section not in last]
    document = Document(TITLE, None, whole.lead, (*first, missing, *last))
    verdicts = Document(claims_page.TITLE, None, claims_page.lead(), tuple(claims_page.sections(found)))
    folder = folder_of(name)
    return Pages(
        _noted(markdown.render(document, folder), WRITTEN, BESIDE),
        _noted(markdown.render(verdicts, folder), WRITTEN, BEHIND.format(name)),
        document,
    )


def folder_of(name: str) -> str:
    """Where the figures of a page are, as seen from it."""
    return f"images/{name.removesuffix('.md')}"


def _noted(text: str, *notes: str) -> str:
    """The text with these lines below its title."""
    title, _, rest = text.partition("\n\n")
    return "\n\n".join([title, *notes, rest])


def _shortened(section: Section) -> Section:
    return Section(section.title, tuple(filter(_is_shown, section.blocks)))


def _is_shown(block: Block) -> bool:
    """Whether it is no gallery, nor a figure of many like it."""
    if isinstance(block, Image) and block.name.startswith("temperature-"):
        return block.name.startswith(DRAWN)
    return not isinstance(block, Gallery)
