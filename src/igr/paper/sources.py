"""The files of the datasets: where they are looked for, and how they are read and checked. Needs no torch."""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import os
import sys
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "SOURCES",
    "DataError",
    "File",
    "Found",
    "Omniglot",
    "Source",
    "content_digest",
    "find_source",
    "locate",
    "places",
    "read_idx",
    "read_omniglot",
    "user_cache",
]

Images = NDArray[np.uint8]

CONVERTED = "omniglot-28x28-converted.npz"


class DataError(ValueError):
    """A dataset that is not there or not what it should be: which file, what is wrong, what to do.

    ``reason`` is what is wrong, without the rest.
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or message


class File(NamedTuple):
    """A file under any of its names, the first that is there being read; its checksum is that of what is not gzip."""

    names: tuple[str, ...]
    sha256: str
    shape: tuple[int, ...]
    needed: bool = True  # nothing here reads labels


class Source(NamedTuple):
    """A dataset as it was published. ``megabytes`` is what a download comes to."""

    title: str
    folder: str
    files: tuple[File, ...]
    validation: int  # images of those published for training
    test: int
    binary: bool
    licence: str
    megabytes: int


class Found(NamedTuple):
    """The folder that holds a dataset, and what is there of its files; labels may be missing."""

    folder: Path
    files: tuple[tuple[File, Path], ...]


class Omniglot(NamedTuple):
    """All drawings, ink = 1 (n, 784), sorted by alphabet, character and drawer, and the alphabet of each."""

    ink: Images
    alphabet: NDArray[np.str_]
    threshold: int | None  # of the conversion from the archives; None for the file of 28x28 drawings


def _idx(train_images: str, train_labels: str, test_images: str, test_labels: str) -> tuple[File, ...]:
    def file(name: str, sha256: str, shape: tuple[int, ...]) -> File:
        return File((name, f"{name}.gz"), sha256, shape, needed=len(shape) == 3)

    return (
        file("train-images-idx3-ubyte", train_images, (60_000, 28, 28)),
        file("t10k-images-idx3-ubyte", test_images, (10_000, 28, 28)),
        file("train-labels-idx1-ubyte", train_labels, (60_000,)),
        file("t10k-labels-idx1-ubyte", test_labels, (10_000,)),
    )


SOURCES: dict[str, Source] = {
    "mnist": Source(
        "MNIST",
        "mnist",
        _idx(
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        validation=10_000,
        test=10_000,
        binary=True,
        licence="CC BY-SA 3.0 (LeCun, Cortes, Burges)",
        megabytes=12,
    ),
    "fmnist": Source(
        "Fashion-MNIST",
        "fashion-mnist",
        _idx(
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        validation=10_000,
        test=10_000,
        binary=False,
        licence="MIT (Zalando SE)",
        megabytes=31,
    ),
    "omniglot": Source(
        "Omniglot",
        "omniglot",
        (
            File(
                ("omniglot-28x28.npz", CONVERTED),
                "8bf52524ddc806ebe668c33b0082ef23181ef4b933afde754aaa091007165a63",
                (32_460, 28, 28),
            ),
        ),
        validation=2_435,
        test=8_115,
        binary=True,
        licence="MIT (Brenden Lake)",
        megabytes=16,
    ),
}


def find_source(name: str) -> Source:
    """The dataset of that name.

    Raises:
        DataError: there is none.
    """
    if name not in SOURCES:
        raise DataError(f"no dataset is called {name!r}; expected one of {', '.join(SOURCES)}")
    return SOURCES[name]


def user_cache() -> Path:
    """The folder for downloads, the one that :func:`pooch.os_cache` names, whether pooch is installed or not."""
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "").strip()
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "igr" / "igr" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "igr"
    xdg = os.environ.get("XDG_CACHE_HOME", "").strip()
    return (Path(xdg) if xdg else Path.home() / ".cache") / "igr"


def places(data_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """Where datasets are looked for: in the given folder alone, or else in ``IGR_DATA_DIR`` and in the user cache."""
    if data_dir is not None:
        return [Path(data_dir).expanduser()]
    named = os.environ.get("IGR_DATA_DIR", "").strip()
    return [*([Path(named).expanduser()] if named else []), user_cache()]


def locate(name: str, data_dir: str | os.PathLike[str] | None = None) -> Found:
    """The first place that has all files of a dataset which are needed. Their content is not looked at.

    Raises:
        DataError: there is none.
    """
    source, missing = find_source(name), []
    for place in places(data_dir):
        folder = place / source.folder
        there = [(file, path) for file in source.files if (path := _first(folder, file.names))]
        lacks = [file.names[0] for file in source.files if file.needed and file not in [other for other, _ in there]]
        if not lacks:
            return Found(folder, tuple(there))
        missing.append(f"{folder} has no {' and no '.join(lacks)}")
    reason = f"{source.title} was not found: {'; '.join(missing)}"
    raise DataError(
        f"{reason}. `igr data fetch {name}` downloads it ({source.megabytes} MB), and --data-dir or IGR_DATA_DIR says "
        "where else to look",
        reason,
    )


def _first(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _wrong(name: str, path: Path, what: str) -> DataError:
    return DataError(
        f"{path} {what}. Remove it and run `igr data fetch {name}`, or say with --data-dir or IGR_DATA_DIR where a "
        "good copy is",
        f"it {what}",
    )


def read_idx(name: str, file: File, path: Path) -> Images:
    """The array in an idx file, gzip or not, once its content is what was published.

    Raises:
        DataError: the file cannot be read, is truncated, has another shape, or another content.
    """
    data = _content(name, path)
    axes, expected = len(file.shape), 4 + 4 * len(file.shape)
    if len(data) < expected or data[:4] != bytes([0, 0, 8, axes]):
        raise _wrong(name, path, f"is no idx file of bytes with {axes} axes")
    shape = tuple(int.from_bytes(data[i : i + 4], "big") for i in range(4, expected, 4))
    if shape != file.shape:
        raise _wrong(name, path, f"says that its shape is {shape}, where {file.shape} was expected")
    if len(data) != expected + math.prod(shape):
        kind = "is truncated" if len(data) < expected + math.prod(shape) else "is too long"
        raise _wrong(name, path, f"{kind}: {len(data):,} bytes, where {expected + math.prod(shape):,} were expected")
    _check_digest(name, path, hashlib.sha256(data).hexdigest(), file.sha256)
    return np.frombuffer(data, np.uint8, offset=expected).reshape(shape).copy()  # frombuffer's cannot be written to


def _content(name: str, path: Path) -> bytes:
    """The bytes of a file, decompressed where they are gzip, whatever the file is called."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except EOFError as error:
        raise _wrong(name, path, f"is truncated after {path.stat().st_size:,} bytes") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise _wrong(name, path, f"is damaged ({error})") from error
    except OSError as error:
        raise _wrong(name, path, f"cannot be read ({error.strerror or error})") from error


def _check_digest(name: str, path: Path, found: str, expected: str) -> None:
    if found != expected:
        raise _wrong(name, path, f"has been altered: the sha256 of its content is {found}, not {expected}")


def read_omniglot(path: Path) -> Omniglot:
    """The drawings of Omniglot at 28x28, from the published file or from one that was converted from the archives.

    Note:
        A converted file is checked against the checksum that the conversion wrote into it: it comes from archives whose
        own checksums are known, but its bytes have no published ones.

    Raises:
        DataError: the file cannot be read, is truncated or damaged, has another shape, or another content.
    """
    (file,) = SOURCES["omniglot"].files
    data = _content("omniglot", path)
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        images, alphabet, character, names = (arrays[k] for k in ("images", "alphabet", "character", "alphabets"))
    except KeyError as error:
        raise _wrong("omniglot", path, f"holds no array called {error}") from error
    except (EOFError, OSError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise _wrong("omniglot", path, f"is truncated or damaged ({error})") from error
    if images.shape != file.shape or images.dtype != np.uint8:
        got = f"{images.dtype} {images.shape}"
        raise _wrong("omniglot", path, f"holds images of {got}, where uint8 {file.shape} were expected")
    if "threshold" in arrays:
        digest = content_digest(images, alphabet, character, names)
        _check_digest("omniglot", path, digest, str(arrays.get("sha256")))
    else:
        _check_digest("omniglot", path, hashlib.sha256(data).hexdigest(), file.sha256)
    ink = (images == 0).astype(np.uint8).reshape(len(images), -1)
    return Omniglot(ink, names[alphabet], int(arrays["threshold"]) if "threshold" in arrays else None)


def content_digest(*arrays: NDArray[np.uint8] | NDArray[np.str_]) -> str:
    """The sha256 of arrays, of their types and shapes and bytes."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
