"""Writes the tables of docs/performance.md from the numbers in results/speed, which other benchmarks have left there.

    python benchmarks/gpu_sampling.py --json results/speed/gpu_sampling-float32.json
    python benchmarks/gpu_sampling.py --dtype bfloat16 --json results/speed/gpu_sampling-bfloat16.json
    python benchmarks/step_profile.py --json results/speed/step_profile.json
    python benchmarks/training.py --device cuda --json results/speed/training.json
    python benchmarks/performance_page.py

A table stands between `<!-- table: NAME -->` and `<!-- end of NAME -->`; nothing else of the page is touched.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
SPEED = ROOT / "results" / "speed"


def rows(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose first column is of words and whose others are of numbers."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def sampling(found: dict[str, Any]) -> str:
    """Milliseconds of each way at each shape, and how much of that the floor is."""
    shapes = list(dict.fromkeys(tuple(each["shape"]) for each in found["times"]))
    names = list(dict.fromkeys(each["name"] for each in found["times"]))
    cells = {(each["name"], tuple(each["shape"])): each for each in found["times"]}
    body = []
    for name in names:
        each = [cells[name, shape] for shape in shapes]
        body.append([f"`{name}`", *(f"{x['ms']:.3f} ({x['floor_ms'] / x['ms']:.0%})" for x in each)])
    return rows([f"ms, {found['dtype']}", *(f"({a:,}, {b:,})" for a, b in shapes)], body)


def parts(found: dict[str, Any]) -> str:
    """Milliseconds of each part of a step, and how much of that the floor is."""
    steps = found["steps"]
    body = [["whole step", *(f"{each['ms']:.3f}" for each in steps)]]
    for part in steps[0]["parts_ms"]:
        line = [part]
        for each in steps:
            ms, floor = each["parts_ms"][part], each["floors_ms"].get(part)
            line.append(f"{ms:.3f} ({floor / ms:.0%})" if floor else f"{ms:.3f}")
        body.append(line)
    body.append(["between kernels", *(f"{each['ms'] - sum(each['parts_ms'].values()):.3f}" for each in steps)])
    head = [f"{each['spec'].removeprefix('table1/mnist/')}, {each['models']} models" for each in steps]
    return rows(["ms a step", *head], body)


def training(found: dict[str, Any]) -> str:
    """Steps and epochs of one model and of an ensemble."""
    body = []
    for each in found["rows"]:
        rates = each["model_epochs_per_second"]
        body.append(
            [
                f"{each['architecture']}, {each['method']}",
                *(f"{each[name]:.3f}" for name in ("eager_ms", "one_ms", "ensemble_ms", "floor_ms")),
                *(f"{rates[name]:.2f}" for name in ("eager", "one", "ensemble")),
            ]
        )
    models = max(each["models"] for each in found["rows"])
    head = ["", "one, eager", "one", f"{models} models", "floor", "epochs/s, eager", "one", f"{models} models"]
    return rows(head, body)


TABLES = {
    "gpu_sampling-float32": sampling,
    "gpu_sampling-bfloat16": sampling,
    "step_profile": parts,
    "training": training,
}


def written(page: str) -> str:
    """The page with all tables as the numbers have them now."""
    for name, table in TABLES.items():
        file = SPEED / f"{name}.json"
        text = table(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else "Not measured yet."
        begin, end = f"<!-- table: {name} -->", f"<!-- end of {name} -->"
        page, count = re.subn(f"{begin}.*{end}", lambda _, t=f"{begin}\n{text}\n{end}": t, page, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"{PAGE.name} must have one place for the table {name}, and has {count}")
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"The tables of {PAGE.relative_to(ROOT)} are as results/speed has them")
