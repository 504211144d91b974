"""Doing again what is in the records, in as many calls as it takes. Needs no torch.

Files of records only grow. So a command that does all again first notes how many lines they have: what stands behind
those is its own, whichever of its calls wrote it. The note is kept until all is done, and removed then.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from igr.paper import records
from igr.paper.files import write_whole
from igr.paper.records import RecordError

__all__ = ["begin", "note"]


def note(folder: Path, *what: Any) -> Path:
    """The file that belongs to some work: other work, say of other specs, has another one."""
    content = hashlib.sha256(json.dumps(what, default=str).encode()).hexdigest()
    return folder / f"fresh-{content[:12]}.json"


def begin(note: Path, files: Mapping[str, Path]) -> dict[str, int]:
    """How many lines files of records had when the work was begun, which is now if there is no note of it.

    Raises:
        RecordError: a note is there that cannot be used.
    """
    if note.exists():
        try:
            found = {name: int(lines) for name, lines in json.loads(note.read_text(encoding="utf-8")).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise RecordError(f"{note} is no note of what --fresh has begun; remove it to begin again") from error
        return found
    found = {name: records.count(file) for name, file in files.items()}
    with write_whole(note) as temporary:
        temporary.write_text(json.dumps(found), encoding="utf-8")
    return found
