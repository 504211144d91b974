"""The datasets of the paper: MNIST, Fashion-MNIST and Omniglot, with fixed splits. Needs no torch.

Which images belong to which split follows from the checked content of the files alone, without a random number:

- **MNIST, Fashion-MNIST**: the first 50,000 images of the training file train, its last 10,000 validate, and the test
  file tests.
- **Omniglot**: the 32,460 drawings, numbered as the file has them (by alphabet, character and drawer), are put into the
  order of the sha256 of ``"omniglot/<number>"``; the first 21,910 train, the next 2,435 validate (a tenth of 24,345,
  rounded up), and the last 8,115 test.

Protocol "published" follows the published code: nothing validates, and Omniglot is paper = 1, ink = 0.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from igr.paper import strokes
from igr.paper.sources import SOURCES, DataError, Found, find_source, locate, read_idx, read_omniglot

__all__ = [
    "NAMES",
    "DataError",
    "Dataset",
    "binarize",
    "load",
    "load_sample",
    "split_sizes",
]

Images = NDArray[np.uint8]

NAMES = tuple(SOURCES)
PROTOCOLS = ("honest", "published")

# The alphabets of images_evaluation.zip; the other thirty are those of images_background.zip.
EVALUATION = (
    "Angelic", "Atemayar_Qelisayer", "Atlantean", "Aurek-Besh", "Avesta", "Ge_ez", "Glagolitic", "Gurmukhi", "Kannada",
    "Keble", "Malayalam", "Manipuri", "Mongolian", "Old_Church_Slavonic_(Cyrillic)", "Oriya", "Sylheti",
    "Syriac_(Serto)", "Tengwar", "Tibetan", "ULOG",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images in three splits, each uint8 (n, 784): 0 and 1 where ``binary``, greys from 0 to 255 otherwise.

    ``source`` is "files", "files, converted" (Omniglot from its archives), "bundled sample" or "strokes"; ``synthetic``
    says that the images were drawn by a program and stand in for the dataset.
    """

    name: str
    train: Images
    validation: Images
    test: Images
    binary: bool
    synthetic: bool
    source: str


def load(name: str, data_dir: str | os.PathLike[str] | None = None, protocol: str = "honest") -> Dataset:
    """A whole dataset, from files whose content has been checked.

    Note:
        MNIST is binarized by a threshold, pixel / 255 >= 0.5, as in the published code; the file of Larochelle and
        Murray, sampled once from the greys, is another dataset. With protocol "published" the test images of Omniglot
        are of the twenty alphabets of its evaluation archive alone, and all of the background archive train, with 5,065
        others; the order of a download decided which, where here the order of the sha256 does. The published code
        scales Omniglot down without a threshold, so that the edges of its strokes are grey: such targets cannot be had
        from the 28x28 file, whose drawings are binary.

    Arguments:
        name: "mnist", "fmnist" or "omniglot".
        data_dir: The folder to look in; without it, ``IGR_DATA_DIR`` and then the user cache.
        protocol: "honest", or "published" for the splits of the published code.

    Raises:
        DataError: the dataset is not there, or a file of it is truncated, altered or another one.
    """
    sizes, found = split_sizes(name, protocol), locate(name, data_dir)
    if name == "omniglot":
        return _omniglot(found, protocol)
    train, test = (read_idx(name, file, path) for file, path in found.files if file.needed)
    binary = SOURCES[name].binary
    train, test = ((binarize(x) if binary else x).reshape(len(x), -1) for x in (train, test))
    return Dataset(name, train[: sizes[0]], train[sizes[0] :], test, binary, synthetic=False, source="files")


def load_sample(name: str, protocol: str = "honest") -> Dataset:
    """The small part of a dataset that comes with the package; for Omniglot, drawn strokes in its place.

    Note:
        Each split holds the first images of the same split of the whole dataset. With protocol "published" those that
        validate train as well, and ink is 0.

    Example:
        >>> sample = load_sample("mnist")
        >>> sample.train.shape, sample.validation.shape, sample.test.shape
        ((2000, 784), (500, 784), (500, 784))
        >>> load_sample("omniglot").synthetic
        True
    """
    _check(protocol)
    binary, synthetic = find_source(name).binary, name == "omniglot"
    train, validation, test = _strokes() if synthetic else _bundled(name)
    if protocol == "published":
        train, validation = np.concatenate([train, validation]), validation[:0]
        train, test = (1 - train, 1 - test) if synthetic else (train, test)
    return Dataset(name, train, validation, test, binary, synthetic, "strokes" if synthetic else "bundled sample")


def split_sizes(name: str, protocol: str = "honest") -> tuple[int, int, int]:
    """How many images train, validate and test, without reading any.

    Example:
        >>> split_sizes("omniglot")
        (21910, 2435, 8115)
    """
    _check(protocol)
    source = find_source(name)
    images = sum(file.shape[0] for file in source.files if file.needed)
    validation = source.validation if protocol == "honest" else 0
    return images - validation - source.test, validation, source.test


def binarize(grey: Images) -> Images:
    """1 where pixel / 255 >= 0.5, that is from 128 on, and 0 elsewhere."""
    return (grey >= 128).astype(np.uint8)


def hash_order(count: int) -> NDArray[np.intp]:
    """The numbers below ``count`` in the order of the sha256 of "omniglot/<number>"."""
    digests = [hashlib.sha256(f"omniglot/{i}".encode()).digest() for i in range(count)]
    return np.array(sorted(range(count), key=digests.__getitem__), dtype=np.intp)


def omniglot_splits(alphabet: NDArray[np.str_], protocol: str) -> tuple[NDArray[np.intp], ...]:
    """Which drawings train, validate and test, given the alphabet of each."""
    order = hash_order(len(alphabet))
    if protocol == "published":  # the background archive first, so that the test set is of the evaluation archive
        order = order[np.argsort(np.isin(alphabet[order], EVALUATION), kind="stable")]
    train, validation, _ = split_sizes("omniglot", protocol)
    return order[:train], order[train : train + validation], order[train + validation :]


def _check(protocol: str) -> None:
    if protocol not in PROTOCOLS:
        raise DataError(f"no protocol is called {protocol!r}; expected one of {', '.join(PROTOCOLS)}")


def _omniglot(found: Found, protocol: str) -> Dataset:
    drawings = read_omniglot(found.files[0][1])
    pixels = drawings.ink if protocol == "honest" else 1 - drawings.ink
    train, validation, test = (pixels[rows] for rows in omniglot_splits(drawings.alphabet, protocol))
    source = "files" if drawings.threshold is None else "files, converted"
    return Dataset("omniglot", train, validation, test, binary=True, synthetic=False, source=source)


def _bundled(name: str) -> list[Images]:
    with resources.files("igr.paper.samples").joinpath(f"{name}.npz").open("rb") as file, np.load(file) as arrays:
        parts = [arrays[part] for part in ("train", "validation", "test")]
    return [np.unpackbits(part, axis=1) for part in parts] if SOURCES[name].binary else parts


def _strokes() -> list[Images]:
    """70 characters by 20 drawers, of whom 14 train, 3 validate and 3 test: all characters are in each split."""
    images = strokes.draw(characters=70, drawers=20, seed=0).swapaxes(0, 1)  # (20, 70, 784): first all of one drawer
    return [part.reshape(-1, 784) for part in np.split(images, (14, 17))]
