"""Records of finished work: one JSON object a line, with what it took to get the numbers. Needs no torch.

A file of records only grows, under a lock that several processes wait for (``flock``; where there is none, as on
Windows, one process at a time may write). A line that a killed process left unfinished does not count, and the next
one that is written takes its place.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

try:
    import fcntl
except ModuleNotFoundError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

__all__ = ["DuplicateError", "Record", "RecordError", "Source", "append", "count", "find", "read", "source", "tree"]

Record = dict[str, Any]

PACKAGE = Path(__file__).resolve().parents[1]
IDENTITY = ("spec", "protocol", "seed", "tau", "prior_temperature", "smoke", "device", "settings")
OPTIONAL = ("num_components",)  # part of the identity of records that have it


class RecordError(ValueError):
    """A file that should hold records, and does not; or what should be a record, and is not."""


class DuplicateError(RecordError):
    """A second record of the same work with the same settings."""


class Source(NamedTuple):
    """The commit that the running code is from, if that is known, and whether it has been changed since."""

    commit: str | None
    dirty: bool | None


@cache
def source() -> Source:
    """Asks git about this package, once; an installed copy has no commit."""

    def git(*args: str) -> str | None:
        try:
            answer = subprocess.run(["git", "-C", PACKAGE, *args], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return answer.stdout.strip() if answer.returncode == 0 else None

    if not git("ls-files", "--error-unmatch", "__init__.py"):  # a repository around the package, but not its own
        return Source(None, None)
    changes = git("status", "--porcelain", "--", ".")
    return Source(git("rev-parse", "HEAD"), None if changes is None else bool(changes))


@cache
def tree(folder: Path = PACKAGE) -> str:
    """The name that git gives to the content of a folder, by default this package: ``git rev-parse COMMIT:src/igr``.

    It is computed from the files, so it can tell which commit a copy without its history is of.
    """

    def object_name(kind: str, content: bytes) -> bytes:
        return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content, usedforsecurity=False).digest()

    def name(path: Path) -> bytes:
        if path.is_file():
            return object_name("blob", path.read_bytes())
        lines = {
            each.name + "/" * each.is_dir(): (b"40000 " if each.is_dir() else b"100644 ") + each.name.encode()
            for each in path.iterdir()
            if each.name != "__pycache__" and not each.name.startswith(".")
        }
        return object_name("tree", b"".join(lines[key] + b"\0" + name(path / key) for key in sorted(lines)))

    return name(folder).hex()


def read(path: Path, since: int = 0) -> list[Record]:
    """The records in a file, none if there is no file; of several of the same work, the last.

    Arguments:
        path: the file.
        since: how many lines to pass over, as :func:`count` has counted them.

    Raises:
        RecordError: a line is not a record, and not the beginning of one at the very end either.
    """
    return list(_parse(_content(path), path, since)[0].values())


def count(path: Path) -> int:
    """How many lines a file has, those included in whose place there is a later one; whatever is added is behind."""
    return len(_lines(_content(path))[0])


def find(records: Sequence[Record], wanted: Mapping[str, Any]) -> Record | None:
    """The record of the same work with the same settings."""
    key = _key(wanted)
    return next((record for record in records if _key(record) == key), None)


def append(path: Path, records: Iterable[Record], *, replace: bool = False) -> None:
    """Adds records, all of them or none, and returns once they are on the disk.

    Arguments:
        path: the file, in a folder that exists.
        records: what to add.
        replace: whether a record of the same work may be there already: then the new one counts.

    Raises:
        DuplicateError: a record of the same work is there already, or given twice.
        RecordError: one of them is not a record, or the file is there but does not hold records.
    """
    added: dict[Hashable, bytes] = {}
    for record in records:
        line = _line(record)
        if (key := _key(record)) in added:
            raise DuplicateError(f"two records of {_name(record)} are given; expected one")
        added[key] = line
    if not added:
        return
    with path.open("ab+", buffering=0) as file, _locked(file, exclusive=True):
        file.seek(0)
        content = file.read()
        known, torn = _parse(content, path)
        if not replace and (twice := known.keys() & added.keys()):
            raise DuplicateError(f"{path} has a record of {_name(known[twice.pop()])} already; another run wrote it?")
        kept = content[: len(content) - torn]
        _extend(file, len(kept), (b"" if kept.endswith(b"\n") or not kept else b"\n") + b"".join(added.values()))


def _extend(file: IO[bytes], size: int, data: bytes) -> None:
    """Cuts the file to a size and adds to it, or leaves it cut if that fails: a full disk may take a part."""
    file.truncate(size)
    try:
        while data:
            data = data[file.write(data) :]
        os.fsync(file.fileno())
    except BaseException:
        file.truncate(size)
        raise


@contextmanager
def _locked(file: IO[bytes], exclusive: bool) -> Iterator[None]:
    """Waits until no other process writes, or uses, the file; closing it, or the end of the process, frees it."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
    yield


def _content(path: Path) -> bytes:
    if not path.exists():
        return b""
    with path.open("rb") as file, _locked(file, exclusive=False):
        return file.read()


def _line(record: Record) -> bytes:
    if missing := [name for name in IDENTITY if name not in record]:
        raise RecordError(f"a record lacks {', '.join(missing)}")
    try:
        return json.dumps(record, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise RecordError(f"the record of {_name(record)} cannot be written as JSON: {error}") from error


def _lines(content: bytes) -> tuple[list[bytes], int]:
    """The lines, and how many bytes at the end are one that was never finished."""
    *lines, tail = content.split(b"\n")
    torn = tail.startswith(b"{") and _loads(tail) is None
    if tail and not torn:
        lines.append(tail)
    return lines, len(tail) if torn else 0


def _parse(content: bytes, path: Path, since: int = 0) -> tuple[dict[Hashable, Record], int]:
    """The records by their identity, and how many bytes at the end are a line that was never finished."""
    lines, torn = _lines(content)
    found = {}
    for number, line in enumerate(lines, 1):
        record = _loads(line)
        if not isinstance(record, dict) or not record.keys() >= set(IDENTITY):
            raise RecordError(f"line {number} of {path} is not a record; mend it, or remove the file")
        if number > since:
            found[_key(record)] = record
    return found, torn


def _loads(line: bytes) -> Any:
    try:
        return json.loads(line.decode())
    except ValueError:
        return None


def _key(record: Mapping[str, Any]) -> Hashable:
    return _frozen([*(record[name] for name in IDENTITY), *(record.get(name) for name in OPTIONAL)])


def _frozen(value: Any) -> Hashable:
    """The same as something that can be the key of a dictionary."""
    if isinstance(value, Mapping):
        return frozenset((name, _frozen(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return tuple(_frozen(each) for each in value)
    return value  # type: ignore[no-any-return]


def _name(record: Mapping[str, Any]) -> str:
    """What an error calls it."""
    names = ("protocol", "seed", "tau", "prior_temperature", *OPTIONAL)
    return f"{record['spec']} ({', '.join(f'{name} {record[name]}' for name in names if name in record)})"
