"""Records of finished work: one JSON object a line, with what it took to get the numbers. Needs no torch."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Record", "RecordError", "Source", "find", "read", "source", "write"]

Record = dict[str, Any]

IDENTITY = ("spec", "protocol", "seed", "tau", "prior_temperature", "smoke", "device", "settings")


class RecordError(ValueError):
    """A file that should hold records, and does not."""


class Source(NamedTuple):
    """The commit that the running code is from, if that is known, and whether it has been changed since."""

    commit: str | None
    dirty: bool | None


@cache
def source() -> Source:
    """Asks git about this package, once; an installed copy has no commit."""
    package = Path(__file__).resolve().parents[1]

    def git(*args: str) -> str | None:
        try:
            answer = subprocess.run(["git", "-C", package, *args], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return answer.stdout.strip() if answer.returncode == 0 else None

    if not git("ls-files", "--error-unmatch", "__init__.py"):  # a repository around the package, but not its own
        return Source(None, None)
    changes = git("status", "--porcelain", "--", ".")
    return Source(git("rev-parse", "HEAD"), None if changes is None else bool(changes))


def read(path: Path) -> list[Record]:
    """The records in a file, none if there is no file.

    Raises:
        RecordError: a line is not a record.
    """
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or not record.keys() >= set(IDENTITY):
            raise RecordError(f"line {number} of {path} is not a record; mend it, or remove the file")
        records.append(record)
    return records


def find(records: Sequence[Record], wanted: Mapping[str, Any]) -> Record | None:
    """The record of the same work with the same settings."""
    return next((record for record in records if _same(record, wanted)), None)


def write(path: Path, record: Record) -> None:
    """Adds a record, in place of an earlier one of the same work. The file is replaced whole or not at all."""
    kept = [other for other in read(path) if not _same(other, record)]
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        lines = [json.dumps(each, allow_nan=False) + "\n" for each in [*kept, record]]
        temporary.write_text("".join(lines), encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return all(a[name] == b[name] for name in IDENTITY)
