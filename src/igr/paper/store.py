"""Where finished cells go: their records, and pictures beside them. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from igr.paper import records
from igr.paper.files import write_whole
from igr.paper.records import Record

if TYPE_CHECKING:
    from igr.paper.measure import Pictures

__all__ = ["Folder", "Store"]


class Store(Protocol):
    """What a cell needs to know of the place where records are kept."""

    def read(self, id: str) -> list[Record]:
        """The records of a spec that are there."""

    def add(self, id: str, new: Sequence[Record], pictures: Pictures) -> None:
        """Keeps records and pictures, by the names of their files; returns once they are on the disk."""


class Folder:
    """A folder: the records of a spec go to ``<folder>/<id>/records.jsonl``, with pictures beside them.

    Arguments:
        path: of the folder.
        fresh: whether new records take the place of those that are there, which do not count.
        since: for specs of which some count after all, how many lines to pass over.
    """

    def __init__(self, path: Path, fresh: bool, since: Mapping[str, int] | None = None) -> None:
        self._path, self._fresh, self._since = path, fresh, since or {}

    def read(self, id: str) -> list[Record]:
        """The records of a spec that are there, and count."""
        if self._fresh and id not in self._since:
            return []
        return records.read(self._path / id / "records.jsonl", self._since.get(id, 0))

    def add(self, id: str, new: Sequence[Record], pictures: Pictures) -> None:
        """Writes pictures, then records.

        Where a file has lost some of them, say its last line, the new ones take the place of all: they are of one run.

        Raises:
            DuplicateError: there are such records already, all of them, and they are not to be replaced.
        """
        import matplotlib.image

        folder = self._path / id
        folder.mkdir(parents=True, exist_ok=True)
        for name, picture in pictures.items():
            with write_whole(folder / name) as temporary:
                matplotlib.image.imsave(temporary, picture, cmap="gray", vmin=0, vmax=1, format="png")
        known = self.read(id)
        there = sum(records.find(known, each) is not None for each in new)
        records.append(folder / "records.jsonl", new, replace=self._fresh or 0 < there < len(new))
