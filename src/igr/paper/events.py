"""Curves as event files, which TensorBoard shows: a run for each member. Needs no torch.

Every point is in a file once. What a file of an earlier call holds is written anew, from the curves that a checkpoint
or a record has kept; from then on it grows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from igr.paper.records import Record
from igr.paper.specs import Trained

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

__all__ = ["Events"]

FILE = "events.out.tfevents.0000000000.igr"
VERSION = "brain.Event:2"  # what the first event of a file has to say
NAMES = {"tau": "tau", "prior_temperature": "prior", "num_components": "K"}


class Events:
    """A folder of event files, ``<folder>/<id>/<protocol>/tau-<τ>/seed-<seed>``.

    Arguments:
        folder: the one that ``tensorboard --logdir`` is given.
    """

    def __init__(self, folder: Path) -> None:
        import tensorboard  # noqa: F401 (asked for here, so that a missing one is reported before anything is trained)

        self._folder = folder
        self._epochs: dict[Path, list[int]] = {}  # those in each file

    def follow(self, cell: Trained, curves: Iterable[Mapping[str, Sequence[Any]]]) -> None:
        """Brings the files of a cell in training up to date with the curves of its members."""
        common = {"spec": cell.id, "protocol": cell.protocol, "smoke": cell.smoke}
        members = zip(cell.members(), curves, strict=True)
        self.write(common | member._asdict() | {"curves": each} for member, each in members)

    def write(self, records: Iterable[Record]) -> None:
        """Brings the files of some members up to date with the curves in their records."""
        from tensorboard.summary.writer.record_writer import RecordWriter

        for record in records:
            path, curves = self._folder / _run(record) / FILE, record["curves"]
            before, epochs = self._epochs.get(path, []), list(curves.get("epoch", ()))
            start = len(before) if epochs[: len(before)] == before else 0  # where training went back, from the start
            if len(epochs) == len(before) and start:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab" if start else "wb") as file:
                writer = RecordWriter(file)
                for event in _events(curves, start):
                    writer.write(event.SerializeToString())
            self._epochs[path] = epochs


def _run(record: Record) -> Path:
    """What TensorBoard calls the run of a member."""
    protocol = record["protocol"] + ("-smoke" if record["smoke"] else "")
    values = [f"{name}-{record[key]}" for key, name in NAMES.items() if record.get(key) is not None]
    return Path(record["spec"], protocol, "-".join(values), f"seed-{record['seed']}")


def _events(curves: Mapping[str, Sequence[Any]], start: int) -> Iterator[Event]:
    """The points from one on, an epoch being a step; a value that was not finite is left out."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    now = time.time()
    if start == 0:
        yield Event(wall_time=now, file_version=VERSION)
    for i in range(start, len(curves.get("epoch", ()))):
        points = {name: values[i] for name, values in curves.items() if name != "epoch"}
        found = [Summary.Value(tag=name, simple_value=value) for name, value in points.items() if value is not None]
        yield Event(wall_time=now, step=curves["epoch"][i], summary=Summary(value=found))
