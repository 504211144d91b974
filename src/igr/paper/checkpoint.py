"""Checkpoints: tensors as safetensors, everything else as JSON, replaced whole or not at all.

A folder holds ``state.json`` and the tensor file that it names. A new tensor file is written first, then the JSON file
replaces the old one, then older tensor files are removed: whenever the process dies, the JSON names a whole file.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from igr.paper.files import write_whole

try:
    import fcntl
except ModuleNotFoundError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

__all__ = ["CheckpointError", "claim", "load", "reading", "remove", "save", "update"]

NAME = "state.json"


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used, with what to do about it."""


def save(folder: Path, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    """Puts a state into the folder, in place of the one that is there."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    count = 1 + max(
        (int(file.stem.removeprefix("tensors-")) for file in folder.glob("tensors-*.safetensors")), default=0
    )
    file = folder / f"tensors-{count}.safetensors"
    cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with write_whole(file) as temporary:
        try:
            save_file(cpu, temporary)
        except SafetensorError as error:  # what a full disk is called there
            raise CheckpointError(f"cannot write {file}: {error}") from error
        _flush(temporary)
    _write(folder, {"tensors": file.name, **numbers})
    for other in folder.glob("tensors-*.safetensors"):
        if other != file:
            other.unlink()


@contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Keeps other processes off the folder, until the end or the death of this one.

    Raises:
        CheckpointError: another process is there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("ab") as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(f"another process is at work in {folder}; wait for it, or stop it") from error
        yield


def update(folder: Path, numbers: dict[str, Any]) -> None:
    """Changes some of what the JSON file holds; the tensors stay."""
    before = json.loads((folder / NAME).read_text(encoding="utf-8"))
    _write(folder, before | numbers)


def load(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The state in the folder, or nothing if there is none.

    Raises:
        CheckpointError: what is there cannot be read.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not (folder / NAME).exists():
        return None
    with reading(folder):
        try:
            numbers = json.loads((folder / NAME).read_text(encoding="utf-8"))
            return load_file(folder / numbers.pop("tensors")), numbers
        except SafetensorError as error:
            raise ValueError(error) from error


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """What goes wrong with the content of a checkpoint, a damaged or a foreign one, is told as such.

    Raises:
        CheckpointError: whatever it was.
    """
    try:
        yield
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        words = f"the checkpoint in {folder} cannot be used ({type(error).__name__}: {error})"
        raise CheckpointError(f"{words}; try again, or remove the folder to start over") from error


def remove(folder: Path) -> None:
    """Takes the checkpoint away."""
    if folder.exists():
        shutil.rmtree(folder)


def _write(folder: Path, content: dict[str, Any]) -> None:
    with write_whole(folder / NAME) as temporary:
        temporary.write_text(json.dumps(content, allow_nan=False), encoding="utf-8")
        _flush(temporary)


def _flush(path: Path) -> None:
    """Onto the disk, so that the new name never means an old or an empty file."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
