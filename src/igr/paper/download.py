"""Downloads of the datasets, from several mirrors in turn, resumed where they were interrupted. Needs pooch."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from igr.paper.files import write_whole
from igr.paper.sources import CONVERTED, SOURCES, DataError, File, find_source, read_idx, read_omniglot, user_cache

if TYPE_CHECKING:
    import requests

__all__ = ["ARCHIVES", "MIRRORS", "DownloadError", "fetch"]

# A file's address is that of a mirror with its name added. What arrives is checked, so that plain http will do.
MIRRORS: dict[str, tuple[str, ...]] = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "https://raw.githubusercontent.com/fgnt/mnist/master/",
    ),
    "fmnist": (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
    ),
    "omniglot": (
        "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/",
        "https://github.com/brendenlake/omniglot/raw/master/python/",
    ),
}
ARCHIVES = {  # md5, the checksum that is known of them
    "images_background.zip": "68d2efa1b9178cc56df9314c21c6e718",
    "images_evaluation.zip": "6b91aef0f799c5bb55b94e3f2daec811",
}

ATTEMPTS = 5  # at one mirror, as long as more arrives
CHUNK = 1 << 16
TIMEOUT = (10, 60)  # seconds until a mirror answers, and then between two of its bytes

Check = Callable[[Path], object]
Report = Callable[[str, int, int | None], None]


class DownloadError(DataError):
    """A file that no mirror had: the message says what was tried, and why that failed."""


class Unavailable(Exception):
    """A mirror that does not have a file, or does not hand it over whole."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def fetch(name: str, cache: Path | None = None, report: Report = lambda words, done, total: None) -> list[Path]:
    """Downloads what is missing of a dataset, or is not what it should be, and checks the content of it.

    Note:
        A download goes into a file whose name ends in ``.part`` until it is complete; what an interruption leaves of it
        the next call goes on with. Content that is wrong is thrown away, and the next mirror tried.

    Arguments:
        name: "mnist", "fmnist" or "omniglot".
        cache: The folder to fill, laid out as :func:`igr.paper.data.load` reads it; without it, the user cache.
        report: told of what there is to wait for: words, bytes done, bytes in all where that is known.

    Returns:
        The files that are new; none, if all were there.

    Raises:
        DownloadError: no mirror had a file.
        ModuleNotFoundError: pooch is not installed.
    """
    folder = (user_cache() if cache is None else Path(cache)) / find_source(name).folder
    if name == "omniglot":
        return _fetch_omniglot(folder, report)
    return [path for file in SOURCES[name].files if (path := _fetch_idx(name, file, folder, report))]


def _fetch_idx(name: str, file: File, folder: Path, report: Report) -> Path | None:
    def check(path: Path) -> object:
        return read_idx(name, file, path)

    there = [folder / each for each in file.names if (folder / each).exists()]
    if there and _passes(check, there[0]):
        return None
    path = folder / file.names[-1]
    _download([mirror + path.name for mirror in MIRRORS[name]], path, check, report)
    for other in there:
        if other != path:
            other.unlink()  # it is read first, and is not what it should be
    return path


def _fetch_omniglot(folder: Path, report: Report) -> list[Path]:
    from igr.paper import omniglot

    there = [folder / each for each in SOURCES["omniglot"].files[0].names if (folder / each).exists()]
    if there and _passes(read_omniglot, there[0]):
        return []
    archives = [folder / each for each in ARCHIVES]
    for path in archives:
        if not (path.exists() and _passes(_check_md5(path.name), path)):
            _download([mirror + path.name for mirror in MIRRORS["omniglot"]], path, _check_md5(path.name), report)
    omniglot.write(archives, folder / CONVERTED, report)
    for path in [*archives, *(other for other in there if other.name != CONVERTED)]:
        path.unlink()
    return [folder / CONVERTED]


def _check_md5(name: str) -> Check:
    def check(path: Path) -> None:
        found = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
        if found != ARCHIVES[name]:
            what = f"md5 is {found}, not {ARCHIVES[name]}"
            raise DataError(f"{path} has been altered: its {what}", f"its {what}")

    return check


def _passes(check: Check, path: Path) -> bool:
    try:
        check(path)
    except DataError:
        return False
    return True


def _download(urls: Sequence[str], path: Path, check: Check, report: Report) -> None:
    """Brings the file from the first mirror that has it, beginning with one of which a part is here."""
    pooch, failures = _pooch(), []
    path.parent.mkdir(parents=True, exist_ok=True)
    for url in sorted(urls, key=lambda url: not _part(path, url).exists()):
        try:
            downloader = _resuming(_part(path, url), check, lambda *done: report(path.name, *done))
            with _quiet(pooch), write_whole(path) as new:  # pooch keeps what has the name already, good or bad
                pooch.retrieve(url, known_hash=None, fname=new.name, path=path.parent, downloader=downloader)
        except (Unavailable, DataError) as error:
            failures.append(f"  {url}: {error.reason}")
            continue
        for part in path.parent.glob(f"{path.name}.*.part"):
            part.unlink()
        return
    tried = "\n".join(failures)
    advice = f"Try again later, or put the file into {path.parent} by hand"
    raise DownloadError(f"{path.name} could not be downloaded. These were tried:\n{tried}\n{advice}")


def _pooch() -> Any:
    try:
        import pooch  # type: ignore[import-untyped, unused-ignore]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("downloads need pooch: pip install pooch", name=error.name) from error
    return pooch


@contextmanager
def _quiet(pooch: Any) -> Iterator[None]:
    """Without what pooch says of a file whose checksum it was not given, for it is checked here."""
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _part(path: Path, url: str) -> Path:
    """A part of the file from one mirror: others may have compressed it differently."""
    return path.with_name(f"{path.name}.{hashlib.sha256(url.encode()).hexdigest()[:8]}.part")


def _resuming(part: Path, check: Check, report: Callable[[int, int | None], None]) -> Callable[[str, str, Any], None]:
    """A downloader for pooch, which goes on with a part, and hands over what has been checked."""

    def download(url: str, output_file: str, pooch: Any) -> None:
        for fresh in [True] if not part.exists() else [False, True]:  # the part may be of something else
            _receive(url, part, report)
            try:
                check(part)
            except DataError:
                part.unlink()
                if fresh:
                    raise
            else:
                break
        os.replace(part, output_file)

    return download


def _receive(url: str, part: Path, report: Callable[[int, int | None], None]) -> None:
    """Brings the whole of a file, going on after a broken connection as long as more arrives."""
    for attempt in range(1, ATTEMPTS + 1):
        before = _size(part)
        try:
            return _stream(url, part, report)
        except Unavailable:
            if attempt == ATTEMPTS or _size(part) <= before:
                raise


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _stream(url: str, part: Path, report: Callable[[int, int | None], None]) -> None:
    """One request for what is missing of a file, or for all of it where the mirror gives nothing less."""
    import requests
    import urllib3

    have = _size(part)
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            if response.status_code == requests.codes.requested_range_not_satisfiable:
                if response.headers.get("Content-Range") == f"bytes */{have}":
                    return  # all of it was here
                part.unlink()
                return _stream(url, part, report)
            if not response.ok:
                raise Unavailable(f"it answered {response.status_code} {response.reason}")
            have = have if _continues(response, have) else 0
            length = response.headers.get("Content-Length")
            total = None if length is None else have + int(length)
            report(have, total)
            with part.open("ab" if have else "wb", buffering=0) as file:
                for chunk in response.raw.stream(CHUNK, decode_content=False):  # a .gz file stays one
                    file.write(chunk)
                    have += len(chunk)
                    report(have, total)
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise Unavailable(_reason(error)) from error
    if total is not None and have != total:  # old versions of urllib3 do not say so
        raise Unavailable(f"it ended after {have:,} of {total:,} bytes")


def _continues(response: requests.Response, have: int) -> bool:
    partial = response.status_code == 206
    return partial and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")


def _reason(error: Exception) -> str:
    """What is at the bottom of the errors that a library has wrapped around it, in a line."""
    bottom: BaseException = error
    while (inner := bottom.__cause__ or bottom.__context__) is not None:
        bottom = inner
    return str(bottom).partition("\n")[0] or type(bottom).__name__
