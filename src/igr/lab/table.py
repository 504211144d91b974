"""The tables of the laboratory, from records alone. Needs no torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from igr.lab.registry import ESTIMATORS, METHODS
from igr.paper.files import write_whole
from igr.paper.methods import METHODS as NAMES
from igr.paper.records import Record

__all__ = ["biased", "flat", "groups", "legend", "markdown", "parts", "table", "write_parquet"]

COLUMNS = ("τ", "bias", "std", "RMSE", "cosine", "of one", "zero", "max z", "f", "µs", "kB", "draws")
LEGEND = (
    "Bias, standard deviation and RMSE of an estimate are relative to |g|, so that those of a zero are 1, 0 and 1; * "
    "marks the lowest RMSE. A bias below three standard errors is given as a limit. Cosine: with g, of the mean "
    "estimate, and the mean of one estimate's. Zero: the share of estimates that are exactly zero. Max z: of the "
    "entries of the mean. f, µs, kB: evaluations of f, time on one thread and peak memory of one of {batch} estimates "
    "made at once."
)


def groups(records: Sequence[Record]) -> Iterator[tuple[tuple[str, str], list[Record]]]:
    """The records of each problem and parameterization, in the order in which these first appear."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        _, problem, method, _ = parts(record)
        found.setdefault((problem, method), []).append(record)
    yield from found.items()


def parts(record: Record) -> tuple[str, str, str, str]:
    """``lab``, the problem, the parameterization and the estimator."""
    head, *problem, method, estimator = str(record["spec"]).split("/")
    return head, "/".join(problem), method, estimator


def biased(metrics: Mapping[str, float]) -> bool:
    """Whether the bias is at least three standard errors of its square away from none."""
    return 2 * metrics["bias"] ** 2 > metrics["bias_limit"] ** 2


def table(records: Sequence[Record]) -> Table:
    """One line for each estimator and temperature, on one problem in one parameterization.

    The title has the S of most of them, and a line its own where that is another.
    """
    _, problem, method, _ = parts(records[0])
    given, usual = records[0]["settings"], _usual_samples(records)
    norm, value = (given["exact"][name] for name in ("norm", "value"))
    title = (
        f"{problem}, {NAMES[method].label}, gradient of {METHODS[method]}: K = {given['num_categories']}, "
        f"N = {given['num_variables']}, S = {usual}; |g| = {norm:.4g}, E[f] = {value:.4g}"
    )
    style: Any = {"title_justify": "left", "box": None, "header_style": "bold", "padding": (0, 1, 0, 0)}
    result = Table(title=Text(title), min_width=min(len(title), 120), **style)
    result.add_column("estimator", no_wrap=True)
    for heading in COLUMNS:
        result.add_column(heading, justify="right", no_wrap=True)
    best = min(records, key=lambda record: float(record["metrics"]["rmse"]))
    for record in records:
        cells = _label(record["label"], [record], usual), *_cells(record, record is best)
        result.add_row(*cells, style="bold" if record is best else None)
    return result


def _usual_samples(records: Sequence[Record]) -> int:
    """The number of samples that most estimates are made of."""
    (usual, _), *_ = Counter(int(record["settings"]["samples"]) for record in records).most_common(1)
    return usual


def _label(label: str, records: Sequence[Record], usual: int) -> str:
    """With the number of samples where it is not the usual one, as of an estimator that needs more."""
    counts = sorted({int(record["settings"]["samples"]) for record in records})
    return label if counts == [usual] else f"{label}, S = {' or '.join(map(str, counts))}"


def legend(records: Sequence[Record]) -> Text:
    """What the columns are."""
    return Text(LEGEND.format(batch=records[0]["timed_batch"]), style="dim")


def _cells(record: Record, best: bool) -> list[str]:
    m = record["metrics"]
    return [
        "" if record["tau"] is None else f"{record['tau']:g}",
        _bias(m),
        _with_error(m["std"], m["std_se"]),
        _with_error(m["rmse"], m["rmse_se"]) + ("*" if best else " "),
        f"{m['cosine']:.3f}",
        f"{m['cosine_single']:.3f}",
        f"{100 * m['zero']:.1f}%" if m["zero"] else "0",
        f"{m['z']:.1f}" if m["z"] < 1000 else "> 999",
        f"{m['evaluations']:g}",
        _short(m["microseconds"]),
        _short(m["kilobytes"]),
        f"{record['settings']['draws']:,}",
    ]


def _bias(m: Mapping[str, float]) -> str:
    return _with_error(m["bias"], m["bias_se"]) if biased(m) else f"< {_short(m['bias_limit'])}"


def _with_error(value: float, error: float) -> str:
    """To the first digit of the error."""
    decimals = 3 if error <= 0 else min(4, max(0, -math.floor(math.log10(error))))
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"


def _short(value: float) -> str:
    """Two digits, or all before the point; what is a rounding error is a power of ten."""
    if value < 1e-3:
        return "0" if value == 0 else f"{value:.0e}"
    decimals = max(0, 1 - math.floor(math.log10(value)))
    return f"{value:.{decimals}f}"


def markdown(records: Sequence[Record], method: str) -> str:
    """Each estimator of a parameterization on each problem, at the temperature with the lowest RMSE there.

    A cell is RMSE, bias and, where there is one, temperature; the lowest RMSE of a problem is bold. An estimator with
    another S than most has it beside its name.
    """
    found: dict[str, dict[str, Record]] = {}
    for record in records:
        _, problem, parameterization, estimator = parts(record)
        if parameterization != method:
            continue
        best = found.setdefault(problem, {})
        if estimator not in best or record["metrics"]["rmse"] < best[estimator]["metrics"]["rmse"]:
            best[estimator] = record
    usual = _usual_samples([record for best in found.values() for record in best.values()]) if found else 0
    lines = [f"| estimator | {' | '.join(found)} | µs |", "|---" * (len(found) + 2) + "|"]
    least = {problem: min(r["metrics"]["rmse"] for r in best.values()) for problem, best in found.items()}
    for name, entry in ESTIMATORS.items():
        its = [best.get(name) for best in found.values()]
        there = [record for record in its if record is not None]
        if not there:
            continue
        cells = [_summary(r, least[problem]) for problem, r in zip(found, its, strict=True)]
        times = [r["metrics"]["microseconds"] for r in there]
        lines.append(f"| {_label(entry.label, there, usual)} | {' | '.join(cells)} | {_short(max(times))} |")
    return "\n".join(lines)


def _summary(record: Record | None, least: float) -> str:
    if record is None:
        return ""
    m, tau = record["metrics"], record["tau"]
    rmse = f"**{_short(m['rmse'])}**" if m["rmse"] == least else _short(m["rmse"])
    bias = _short(m["bias"]) if biased(m) else f"< {_short(m['bias_limit'])}"
    return f"{rmse} ({bias}{'' if tau is None else f'; τ {tau:g}'})"


def flat(record: Record) -> dict[str, Any]:
    """The record as one line of a table: numbers and words, none of them inside another."""
    _, problem, method, estimator = parts(record)
    line: dict[str, Any] = {"problem": problem, "parameterization": method, "estimator": estimator}
    for name, value in record.items():
        if isinstance(value, Mapping):
            line |= _inside(value, "" if name in ("metrics", "settings") else f"{name}_")
        elif name not in ("prior_temperature", "protocol"):
            line[name] = value
    return line


def _inside(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    line: dict[str, Any] = {}
    for name, value in values.items():
        line |= _inside(value, f"{prefix}{name}_") if isinstance(value, Mapping) else {prefix + name: value}
    return line


def write_parquet(records: Sequence[Record], path: Path) -> None:
    """A line for each record; needs pyarrow."""
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    lines = [flat(record) for record in records]
    columns = dict.fromkeys(name for line in lines for name in line)
    content = arrow.table({name: [line.get(name) for line in lines] for name in columns})
    with write_whole(path) as temporary:
        parquet.write_table(content, temporary)
