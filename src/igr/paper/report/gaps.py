"""What has not been run: every cell without records, by its id."""

from __future__ import annotations

from collections.abc import Iterator

from igr.paper.report import times
from igr.paper.report.collect import Records
from igr.paper.report.document import Block, Entry, Table, Text
from igr.paper.specs import SPECS, Approximation, Trained

__all__ = ["blocks"]

BRIDGE = "table1/mnist/linear"  # what is run under protocol published as well


def blocks(found: Records) -> Iterator[Block]:
    """The list of what is missing, and of cells of which only some members have records."""
    rows, parts = tuple(_row(*gap) for gap in _gaps(found)), list(_parts(found))
    if not rows and not parts:
        yield Text.of("Everything has been run.")
    if rows:
        head = (Entry("table"), Entry("rows without records"), Entry("cells"))
        yield Table("Not run yet", head, rows, 2)
    if parts:
        yield Text.of(f"Only some members have records: {'; '.join(parts)}.")


def _row(group: str, names: list[str], all: int) -> tuple[Entry, ...]:
    return Entry(group), Entry(", ".join(names)), Entry(f"{len(names)} of {all}")


def _gaps(found: Records) -> Iterator[tuple[str, list[str], int]]:
    real = [cell for cell in found.cells if not cell.synthetic]
    honest = {cell.spec for cell in real if cell.protocol == "honest"}
    fitted = {record["spec"] for record in found.approximations}
    groups: dict[str, list[str]] = {}
    for id, spec in SPECS.items():
        if isinstance(spec, Trained | Approximation):
            groups.setdefault(id.rpartition("/")[0], []).append(id)
    published = {cell.spec for cell in real if cell.protocol == "published"}
    alone = published.difference(groups.get(BRIDGE, ()))  # what need not have both
    wanted = {group: (ids, honest | fitted | alone) for group, ids in groups.items()}
    wanted[f"{BRIDGE}, protocol published"] = (groups[BRIDGE], published)
    for group, (ids, there) in wanted.items():
        if absent := [id.rpartition("/")[2] for id in ids if id not in there]:
            yield group, absent, len(ids)
    if not found.times:
        yield times.KIND, ["all of it"], 1


def _parts(found: Records) -> Iterator[str]:
    for cell in found.cells:
        spec = SPECS.get(cell.spec)
        if isinstance(spec, Trained):
            all = len(spec.with_protocol(cell.protocol).members())
            if len(cell.records) < all:
                yield f"{cell.spec}, protocol {cell.protocol}: {len(cell.records)} of {all}"
