"""Finding and reading the records that a report is made of."""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from igr.paper.methods import METHODS
from igr.paper.records import Record, RecordError, read
from igr.paper.report import times
from igr.paper.report.cells import Cell, ReportError, cells
from igr.paper.report.words import KINDS, depth

__all__ = ["Records", "collect", "split"]

VECTORS = ("component_mass", "components_histogram")  # a number for each component of a mixture


@dataclass(frozen=True)
class Records:
    """Everything that was found."""

    all: tuple[Record, ...]
    cells: tuple[Cell, ...]
    approximations: tuple[Record, ...]
    times: tuple[Record, ...]
    """Of :mod:`~igr.paper.report.times`."""
    others: tuple[Record, ...]
    """Of specs that no table here is made of."""

    @property
    def smoke(self) -> bool:
        """Whether all of it is cut short; nothing is mixed."""
        return any(record["smoke"] for record in self.all)


def collect(folders: Sequence[Path]) -> Records:
    """Reads every ``*.jsonl`` below the folders, but no ``*.log.jsonl``, which holds the progress of a run.

    Raises:
        ReportError: there is nothing, or a file is not readable, or real records and shortened ones are mixed.
    """
    for folder in folders:
        if not folder.is_dir():
            raise ReportError(
                f"there is no folder {folder}: make records with igr run, or name a folder that has some with --records"
            )
    files = (path for folder in folders for path in sorted(folder.rglob("*.jsonl")) if path.is_file())
    paths = {path.resolve(): path for path in files if not path.name.endswith(".log.jsonl")}
    found: list[tuple[Record, Path]] = []
    broken = []
    for path in paths.values():
        try:
            found.extend((record, path) for record in read(path))
        except (OSError, UnicodeDecodeError, RecordError) as error:
            broken.append(str(error) if isinstance(error, RecordError) else f"{path} cannot be read: {error}")
    if broken:
        raise ReportError("\n".join([*broken, "or name folders without such files with --records"]))
    if not found:
        names = ", ".join(map(str, folders))
        raise ReportError(f"no records in {names}: make some with igr run, or name another folder with --records")
    return split(found)


def split(found: Sequence[tuple[Record, Path]]) -> Records:
    """Sorts records, each with its file, by what is made of them.

    Raises:
        ReportError: real records and shortened ones are mixed, or two of the same member differ.
    """
    _check_unmixed(found)
    every = [record for record, _ in found]
    trained = [(record, path) for record, path in found if _is_trained(record)]
    for record, path in trained:
        _check_trained(record, path)
    rest = [record for record in every if not _is_trained(record)]
    approximations: list[Record] = []
    for record in rest:
        if str(record["spec"]).startswith("approximate/") and record not in approximations:  # a copy is no second one
            approximations.append(record)
    kinds = ("approximate", times.KIND)
    for record, path in found:
        if str(record["spec"]).startswith(f"{times.KIND}/") and not times.is_timed(record):
            raise ReportError(f"a record of {record['spec']} in {path} is not one of an execution time; remove it")
    clocked = [record for record in rest if str(record["spec"]).startswith(f"{times.KIND}/")]
    others = [record for record in rest if not str(record["spec"]).startswith(tuple(f"{kind}/" for kind in kinds))]
    return Records(tuple(every), tuple(cells(trained)), tuple(approximations), tuple(clocked), tuple(others))


def _is_trained(record: Record) -> bool:
    parts = str(record["spec"]).split("/")
    return parts[0] in KINDS and len(parts) == depth(parts[0])


def _check_trained(record: Record, path: Path) -> None:
    """Everything that the tables take for granted."""
    metrics, curves = record.get("metrics"), record.get("curves", {})
    mixture = str(record["spec"]).startswith("nonparametric/")
    wrong = {
        "seed": not isinstance(record["seed"], int),
        "tau": not isinstance(record["tau"], types.NoneType if mixture else int | float),
        "prior_temperature": not isinstance(record["prior_temperature"], int | float | None),
        "num_components": not _has_size(record, mixture),
        "status": record.get("status") not in ("finished", "failed"),
        "metrics": not isinstance(metrics, dict) or not all(map(_has_values, metrics.values())),
        "curves": not _has_points(curves),
        "settings": not isinstance(record["settings"], dict) or record["settings"].get("method") not in METHODS,
    }
    if names := [name for name, bad in wrong.items() if bad]:
        raise ReportError(
            f"a record of {record['spec']} in {path} is not one of a trained model: {', '.join(names)} missing or of "
            "another form; remove it, or leave the file out with --records"
        )


def _has_size(record: Record, mixture: bool) -> bool:
    """Whether it has a number of components if its posterior has one, and none otherwise."""
    size = record.get("num_components")
    if mixture and record["settings"].get("method") == "dldpmm":
        return type(size) is int and size > 1
    return size is None and ("num_components" in record) == mixture


def _has_values(metrics: object) -> bool:
    """Whether it is metrics by their names: numbers, but for some that are several."""
    if not isinstance(metrics, dict):
        return False
    several = [each for name, each in metrics.items() if name in VECTORS]
    single = [each for name, each in metrics.items() if name not in VECTORS]
    return all(each is None or _is_number(each) for each in single) and all(
        isinstance(each, list) and each and all(map(_is_number, each)) for each in several
    )


def _has_points(curves: object) -> bool:
    """Whether it is curves by their names, each with a number or nothing for every epoch."""
    if not isinstance(curves, dict) or not all(isinstance(each, list) for each in curves.values()):
        return False
    numbers = all(x is None or _is_number(x) for each in curves.values() for x in each)
    return numbers and len(set(map(len, curves.values()))) <= 1 and ("epoch" in curves or not curves)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _check_unmixed(found: Sequence[tuple[Record, Path]]) -> None:
    short = next((each for each in found if each[0]["smoke"]), None)
    real = next((each for each in found if not each[0]["smoke"]), None)
    if short is not None and real is not None:
        raise ReportError(
            f"smoke records, which are shortened, are not mixed with real ones: {short[0]['spec']} in {short[1]} is a "
            f"smoke record, {real[0]['spec']} in {real[1]} is not; name the folders of one kind with --records"
        )
