"""The tables of approximated distributions, from records alone."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from igr.paper.records import Record

__all__ = ["markdown", "table"]

DISTANCES = ("tv", "tv_histogram", "kl_truth_model", "kl_model_truth")
COLUMNS = ("steps", "TV", "histogram", "KL(p0||q)", "KL(q||p0)", "mean", "variance", "K", "seconds")


def table(records: Sequence[Record]) -> Table:
    """One line for each state of each model; K is how many categories samples need.

    Moments are marked with a tilde where 1e-4 or more of the mass lies somewhere among categories not computed.
    """
    target = records[0]["target"]
    title = f"{target['title']}: mean {target['mean']:.4g}, variance {target['variance']:.4g}"
    result = Table(title=title, title_justify="left", box=None, header_style="bold")
    result.add_column("model", no_wrap=True)
    for heading in COLUMNS:
        result.add_column(heading, justify="right", no_wrap=True)
    for record in records:
        for state in record["states"]:
            result.add_row(record["model"]["label"], *_cells(state))
    return result


def markdown(records: Sequence[Record]) -> str:
    """Total variations of models after 0, 200 and 1,000 steps, and of exact fits: a line for each model and setting."""
    head = "| target | model | τ | learning rate | initial | 200 steps | 1,000 steps | exact |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    exact = {r["spec"]: r["metrics"]["tv"] for r in records if r["protocol"] == "exact"}
    for record in records:
        if record["protocol"] == "exact":
            continue
        found = {state["step"]: _number(float(state["metrics"]["tv"])) for state in record["states"]}
        target, model = record["target"]["title"], record["model"]["label"]
        published = record["tau"] == 0.01 and record["settings"]["learning_rate"] == 0.01
        best = _number(exact[record["spec"]]) if published and record["spec"] in exact else ""
        given = f"{record['tau']:g} | {record['settings']['learning_rate']:g}"
        lines.append(f"| {target} | {model} | {given} | {found[0]} | {found[200]} | {found[1000]} | {best} |")
    return "\n".join(lines)


def _cells(state: Record) -> list[str]:
    metrics = {name: float(value) for name, value in state["metrics"].items()}
    mean, most = metrics["categories_mean"], metrics["categories_max"]
    about = "~" if metrics["tail"] >= 1e-4 else ""
    return [
        "" if state["step"] is None else f"{state['step']:,}",
        *(_number(metrics[name]) for name in DISTANCES),
        f"{about}{metrics['mean']:.2f}",
        f"{about}{metrics['variance']:.2f}",
        f"{most:.0f}" if mean == most else f"{mean:.0f} (max {most:.0f})",
        f"{state['seconds']:.1f}",
    ]


def _number(value: float) -> str:
    """Four decimals, or a power of ten where they would be zeros."""
    return f"{value:.4f}" if value == 0 or abs(value) >= 5e-5 else f"{value:.0e}"
