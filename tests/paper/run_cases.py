"""Cells run in a folder, by a call or by the command, and what of their records two runs have in common."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

from igr.paper import records
from igr.paper.run import Options, run_cell

CPU = torch.device("cpu")
VARYING = (
    "seconds",
    "seconds_evaluation",
    "date",
    "tree",
    "trees",
    "dirty",
)  # what may differ between two runs of the same
COMMAND = ["run", "table1/mnist/linear/igr-planar", "--smoke", "--checkpoint-every", "0"]


def options(folder: Path, **changes) -> Options:
    return replace(Options(folder / "out", folder / "checkpoints", CPU), **changes)


def checkpoints(folder: Path, id: str) -> list[Path]:
    return list((folder / "checkpoints" / id).glob("*/state.json"))


def run(cell, folder, stop=lambda: False, **changes):
    told = []
    return run_cell(cell, options(folder, **changes), stop, told.append), told


def lasting(found):
    return [{name: value for name, value in record.items() if name not in VARYING} for record in found]


def command(folder: Path, *more: str) -> list[str]:
    folders = ["--out", str(folder / "out"), "--checkpoints", str(folder / "checkpoints")]
    return [sys.executable, "-m", "igr", *COMMAND, *folders, *more]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def finished(folder: Path):
    return records.read(folder / "out" / COMMAND[1] / "records.jsonl")
