"""A document as one HTML page that asks for nothing else: styles, figures and pictures are inside it."""

from __future__ import annotations

import base64
import re
from html import escape

from igr.paper.report.document import Block, Document, Entry, Gallery, Image, Section, Table, Text
from igr.paper.style import INK

__all__ = ["render"]

STYLE = """
:root { color-scheme: light dark; --ink: #222; --soft: #667; --paper: #fff; --line: #d8d8de; --tint: #f5f5f8;
  --warn: #8a3b00; --warn-tint: #fff3e4; --link: #2a5db0; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e4ea; --soft: #a0a0b0; --paper: #16171b; --line: #3a3b44;
  --tint: #202127; --warn: #ffb877; --warn-tint: #33230f; --link: #8db4f5; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 76rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 1rem; }
h2 { font-size: 1.25rem; margin: 2.75rem 0 .75rem; padding-top: .75rem; border-top: 1px solid var(--line); }
p, ul { max-width: 46rem; margin: .75rem 0; }
ul { padding-left: 1.2rem; }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1rem; font-size: .9rem; margin: 1rem 0; }
a { color: var(--link); }
.banner, .warning { max-width: none; padding: .7rem 1rem; border-left: .3rem solid var(--warn); color: var(--warn);
  background: var(--warn-tint); border-radius: .2rem; }
.banner { font-size: 1.15rem; font-weight: 700; }
figure { margin: 1.5rem 0; }
figcaption { font-size: .875rem; color: var(--soft); margin: .4rem 0; max-width: 46rem; }
.table > figcaption { font-size: 1rem; font-weight: 600; color: var(--ink); }
.scroll { overflow-x: auto; width: fit-content; max-width: 100%; border: 1px solid var(--line); border-radius: .3rem; }
table { border-collapse: collapse; font-size: .8125rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .55rem; text-align: right; white-space: nowrap; border-top: 1px solid var(--line); }
th { font-weight: 600; }
thead th { white-space: normal; vertical-align: bottom; background: var(--tint); line-height: 1.3; border-top: 0; }
.again > * { border-top: 0; }
.again > th { color: var(--soft); font-weight: 400; }
th.w, td.w { text-align: left; }
tr > :first-child { position: sticky; left: 0; background: var(--paper); }
thead tr > :first-child { background: var(--tint); }
small { color: var(--soft); font-weight: 400; font-size: .8125em; }
thead small { display: block; }
.dot { display: inline-block; width: .65em; height: .65em; border-radius: 50%; margin-right: .45em; }
.notes { font-size: .8125rem; color: var(--soft); margin: .4rem 0; }
svg { display: block; width: 100%; height: auto; max-width: var(--most); }
summary { font-weight: 600; padding: .5rem 0; cursor: pointer; }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 15rem), 1fr)); gap: 1rem; }
.gallery figure { margin: 0; }
img { display: block; width: 100%; height: auto; image-rendering: pixelated; border: 1px solid var(--line); }
@media (max-width: 40rem) { body { padding: 1rem .75rem 3rem; } .plot { overflow-x: auto; }
  .plot svg { min-width: var(--least); } th, td { padding: .35rem .45rem; } }
"""


def render(document: Document) -> str:
    """The page."""
    banner = f'<p class="banner" role="alert">{escape(document.banner)}</p>\n' if document.banner else ""
    links = [f'<a href="#{_anchor(section)}">{escape(section.title)}</a>' for section in document.sections]
    body = "\n".join(
        [
            f"<h1>{escape(document.title)}</h1>",
            *map(_block, document.lead),
            "<nav>" + "\n".join(links) + "</nav>",
            *map(_section, document.sections),
        ]
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(document.title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{banner}{body}\n</body>\n</html>\n"
    )


def _anchor(section: Section) -> str:
    return re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-")


def _section(section: Section) -> str:
    blocks = "\n".join(map(_block, section.blocks))
    return f'<section id="{_anchor(section)}">\n<h2>{escape(section.title)}</h2>\n{blocks}\n</section>'


def _block(block: Block) -> str:
    match block:
        case Text():
            return _text(block)
        case Table():
            return _table(block)
        case Gallery():
            return _gallery(block)
        case Image():
            return _image(block)


def _text(text: Text) -> str:
    mark = ' class="warning"' if text.warning else ""
    if len(text.lines) == 1:
        return f"<p{mark}>{escape(text.lines[0])}</p>"
    return f"<ul{mark}>" + "".join(f"<li>{escape(line)}</li>" for line in text.lines) + "</ul>"


def _table(table: Table) -> str:
    head = "".join(_entry(cell, "th", i < table.words, ' scope="col"') for i, cell in enumerate(table.head))
    before = [None, *(cells[0].text for cells in table.rows)]
    rows = "\n".join(
        ('<tr class="again">' if cells[0].text == above else "<tr>")
        + _entry(cells[0], "th", True, ' scope="row"')
        + "".join(_entry(cell, "td", i < table.words) for i, cell in enumerate(cells[1:], 1))
        + "</tr>"
        for cells, above in zip(table.rows, before, strict=False)
    )
    notes = "".join(f'<p class="notes">{escape(note)}</p>' for note in table.notes)
    return (
        f'<figure class="table">\n<figcaption>{escape(table.title)}</figcaption>\n'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">\n'
        f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n</div>\n{notes}\n</figure>"
    )


def _gallery(gallery: Gallery) -> str:
    images = "\n".join(map(_image, gallery.images))
    return f'<details>\n<summary>{escape(gallery.title)}</summary>\n<div class="gallery">\n{images}\n</div>\n</details>'


def _entry(cell: Entry, tag: str, words: bool, attributes: str = "") -> str:
    dot = f'<span class="dot" style="background:{escape(cell.colour)}"></span>' if cell.colour else ""
    end = f" <small>{escape(cell.end)}</small>" if cell.end else ""
    mark = ' class="w"' if words else ""
    text = f"<strong>{escape(cell.text)}</strong>" if cell.bold else escape(cell.text)
    return f"<{tag}{mark}{attributes}>{dot}{text}{end}</{tag}>"


def _image(image: Image) -> str:
    caption, alternative = f"<figcaption>{escape(image.caption)}</figcaption>", escape(image.caption)
    if image.name.endswith(".svg"):
        drawing = inline(image.data.decode("utf-8"), image.name.removesuffix(".svg"), image.caption)
        return f'<figure>\n<div class="plot" tabindex="0">\n{drawing}\n</div>\n{caption}\n</figure>'
    data = base64.b64encode(image.data).decode("ascii")
    return f'<figure>\n<img alt="{alternative}" src="data:image/png;base64,{data}">\n{caption}\n</figure>'


def inline(svg: str, name: str, label: str) -> str:
    """A figure of matplotlib as an element of the page, in the page's own ink and on its own ground.

    Without the namespaces, which HTML knows; with ids that are the figure's own, since several share the page.
    """
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href").replace(INK, "currentColor")
    svg = svg.replace("fill: #ffffff", "fill: none")
    svg = re.sub(r'(\bid="|\bhref="#|\burl\(#)', lambda match: f"{match[1]}{name}-", svg)
    inches = float(svg.partition('width="')[2].partition("pt")[0]) / 72
    size = f"--least:{4.25 * inches:.4g}rem;--most:{7.5 * inches:.4g}rem"  # where its letters are legible
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}" style="{size}"', 1)
