"""Omniglot at 28x28 from the archives of its repository, whose drawings are 105x105 PNG files of one bit a pixel.

The rule is exact, in integers. A pixel of 28x28 covers 105 / 28 = 15 / 4 pixels each way, so that cutting every pixel
of 105x105 into 4x4 parts puts 15x15 = 225 whole parts into each of 28x28; the inked ones are counted. A pixel is ink
where the count reaches a threshold, the one out of 1 to 225 which over all drawings brings the share of ink nearest to
8.0511 %, that of the file of 28x28 drawings (the smaller of two that are equally near).
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from igr.paper.files import write_whole
from igr.paper.sources import SOURCES, DataError, content_digest

__all__ = ["choose_threshold", "convert", "count_parts", "decode_png", "write"]

SIDE, SMALL, PARTS = 105, 28, 225
INK = 0.080510707  # share of ink pixels in omniglot-28x28.npz
MEMBER = re.compile(r"^[^/]+/(?P<alphabet>[^/]+)/character(?P<character>\d+)/\d+_(?P<drawer>\d+)\.png$")
SIGNATURE = b"\x89PNG\r\n\x1a\n"

Bytes = NDArray[np.uint8]
Report = Callable[[str, int, int], None]


def write(archives: Sequence[Path], path: Path, report: Report = lambda words, done, total: None) -> None:
    """Converts the archives into one file, which is replaced whole or not at all."""
    arrays = convert(archives, report)
    with write_whole(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def convert(
    archives: Sequence[Path], report: Report = lambda words, done, total: None
) -> dict[str, NDArray[np.generic]]:
    """The arrays of the 28x28 file, and with them the threshold and a checksum.

    Arguments:
        archives: the two zip files.
        report: told how far it has come: words, bytes read, bytes in all.

    Raises:
        DataError: an archive is no zip file, or they do not hold twenty drawings of each of 1,623 characters.
    """
    keys, counts = _read(archives, report)
    threshold = choose_threshold(np.bincount(counts.ravel(), minlength=PARTS + 1))
    names = sorted({alphabet for alphabet, _, _ in keys})
    arrays: dict[str, NDArray[np.generic]] = {
        "images": np.where(counts >= threshold, 0, 255).astype(np.uint8),
        "alphabet": np.array([names.index(alphabet) for alphabet, _, _ in keys], np.uint8),
        "character": np.array([character for _, character, _ in keys], np.uint8),
        "alphabets": np.array(names),
    }
    digest = content_digest(*arrays.values())  # type: ignore[arg-type]
    return {**arrays, "threshold": np.array(threshold), "sha256": np.array(digest)}


def _read(archives: Sequence[Path], report: Report) -> tuple[list[tuple[str, int, int]], Bytes]:
    """The (alphabet, character, drawer) of every drawing, sorted, and its counts of inked parts, (n, 28, 28)."""
    counts: dict[tuple[str, int, int], Bytes] = {}
    total, done = sum(path.stat().st_size for path in archives), 0
    for path in archives:
        try:
            with zipfile.ZipFile(path) as archive:
                members = [(match, info) for info in archive.infolist() if (match := MEMBER.match(info.filename))]
                for match, info in members:
                    key = match["alphabet"], int(match["character"]), int(match["drawer"])
                    counts[key] = count_parts(decode_png(archive.read(info)) == 0)
                    report("converting to 28x28", done + info.header_offset, total)
        except (zipfile.BadZipFile, ValueError, zlib.error) as error:
            raise DataError(f"{path} is damaged ({error}); remove it and run `igr data fetch omniglot`") from error
        done += path.stat().st_size
    expected = SOURCES["omniglot"].files[0].shape[0]
    if len(counts) != expected:
        where = " and ".join(map(str, archives))
        raise DataError(f"{where} hold {len(counts):,} drawings, where {expected:,} were expected")
    keys = sorted(counts)
    return keys, np.stack([counts[key] for key in keys])


def choose_threshold(histogram: NDArray[np.intp]) -> int:
    """The count from which on a pixel is ink, given how many pixels have each count from 0 to 225."""
    share = histogram[::-1].cumsum()[::-1] / histogram.sum()  # with the threshold at 0, 1, ..., 225
    return 1 + int(np.abs(share[1:] - INK).argmin())


def count_parts(ink: NDArray[np.bool_]) -> Bytes:
    """How many of the 15x15 parts of each of 28x28 pixels are inked, for a drawing (105, 105)."""
    if ink.shape != (SIDE, SIDE):
        raise ValueError(f"a drawing is {ink.shape} pixels, where {(SIDE, SIDE)} were expected")
    counts = _OVERLAP @ ink @ _OVERLAP.T
    return counts.astype(np.uint8)


def _overlap() -> NDArray[np.float32]:
    """How many of its 15 parts along an axis each of 28 pixels has in common with each of 105; (28, 105)."""
    start, fine = 15 * np.arange(SMALL)[:, None], 4 * np.arange(SIDE)
    common = np.minimum(start + 15, fine + 4) - np.maximum(start, fine)
    return np.asarray(np.maximum(common, 0), np.float32)  # small integers, so that products and sums are exact


_OVERLAP = _overlap()


def decode_png(data: bytes) -> Bytes:
    """The pixels of a grey PNG file of 1 or 8 bits, not interlaced.

    Raises:
        ValueError: it is no such file.
    """
    if data[:8] != SIGNATURE:
        raise ValueError("no PNG file")
    chunks, at = {b"IDAT": b""}, 8
    while at < len(data) and b"IEND" not in chunks:
        size, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + size]
        if zlib.crc32(kind + body) != int.from_bytes(data[at + 8 + size : at + 12 + size], "big"):
            raise ValueError("a PNG file is damaged: a checksum does not fit")
        chunks[kind] = chunks[kind] + body if kind == b"IDAT" else body
        at += 12 + size
    header = chunks.get(b"IHDR", b"").ljust(13, b"\xff")
    width, height = int.from_bytes(header[:4], "big"), int.from_bytes(header[4:8], "big")
    depth, colour, interlace = header[8], header[9], header[12]
    if depth not in (1, 8) or colour != 0 or interlace != 0:
        raise ValueError(
            f"a PNG file of depth {depth}, colour type {colour} and interlace {interlace} is not read here"
        )
    raw = zlib.decompress(chunks[b"IDAT"])
    rows = _unfilter(np.frombuffer(raw, np.uint8).reshape(height, 1 + (width * depth + 7) // 8))
    return np.unpackbits(rows, axis=1)[:, :width] if depth == 1 else rows


def _unfilter(rows: Bytes) -> Bytes:
    """Undoes the filters of PNG, whose type is the first byte of each row, for pixels of at most a byte."""
    kinds, out = rows[:, 0], rows[:, 1:].copy()
    above = np.zeros_like(out[0])
    for kind, row in zip(kinds, out, strict=True):
        if kind == 1:
            row[:] = np.cumsum(row, dtype=np.uint8)
        elif kind == 2:
            row += above
        elif kind in (3, 4):
            _unfilter_row(row, above, average=kind == 3)
        elif kind != 0:
            raise ValueError(f"a PNG file has a row with filter {kind}")
        above = row
    return out


def _unfilter_row(row: Bytes, above: Bytes, *, average: bool) -> None:
    left = corner = 0
    for i, up in enumerate(above.tolist()):
        near = left + up - corner
        distances = abs(near - left), abs(near - up), abs(near - corner)
        guess = (left + up) // 2 if average else (left, up, corner)[distances.index(min(distances))]
        left, corner = (int(row[i]) + guess) % 256, up
        row[i] = left
