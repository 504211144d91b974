"""The small pictures that a run leaves beside its records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path

from igr.paper.report.cells import Cell, ReportError
from igr.paper.report.document import Gallery, Image, file_name
from igr.paper.report.words import called

__all__ = ["galleries"]

KINDS = {
    "reconstructions": "test images above their reconstructions",
    "samples": "samples from the prior",
    "completions": "test images, and below each its upper half with lower halves that samples of the units expect",
    "components": "samples from components of the prior, a row each, those with the most mass first",
}
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def galleries(cells: Sequence[Cell]) -> list[Gallery]:
    """``<kind>-<criterion>.png`` of every folder of these cells, for every kind of :data:`KINDS`.

    Under another protocol than ``honest`` its name follows the criterion.

    Raises:
        ReportError: a file of that name is not such a picture.
    """
    found: dict[str, list[Image]] = {}
    taken: Counter[str] = Counter()
    for (path, kind, criterion), owners in _paths(cells).items():
        name, data = file_name(*owners[0].spec.split("/"), path.name), _read(path)
        images = found.setdefault(owners[0].where, [])
        if not any(image.name.endswith(name) and image.data == data for image in images):  # a copy is no second one
            different = f"{taken[name]}-" if taken[name] else ""
            images.append(Image(different + name, partial(bytes, data), _caption(owners, kind, criterion)))
            taken[name] += 1
    return [Gallery(title, tuple(images)) for title, images in found.items() if images]


def _paths(cells: Sequence[Cell]) -> dict[tuple[Path, str, str], list[Cell]]:
    """The pictures that there are, and whose they may be: runs on several devices share a folder."""
    found: dict[tuple[Path, str, str], list[Cell]] = {}
    for cell in cells:
        suffix = "" if cell.protocol == "honest" else f"-{cell.protocol}"
        criteria = cell.criteria if cell.choice else cell.criteria[:1]  # where nothing is chosen, both are the same
        for folder, criterion, kind in product(cell.folders, criteria, KINDS):
            path = folder / f"{kind}-{criterion}{suffix}.png"
            if path.is_file():
                found.setdefault((path, kind, criterion), []).append(cell)
    return found


def _caption(owners: Sequence[Cell], kind: str, criterion: str) -> str:
    first = owners[0]
    if not first.choice:
        return f"{first.name}: {KINDS[kind]}."
    chosen = first.chosen(criterion)
    which = first.choice if len(owners) > 1 or chosen is None else called(chosen)
    return f"{first.name}: {KINDS[kind]}, {which} chosen by the {first.chosen_by(criterion)}."


def _read(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}") from error
    if not data.startswith(SIGNATURE):
        raise ReportError(f"{path} is not a PNG picture; remove it, or run the cell again")
    return data
