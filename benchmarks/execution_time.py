"""How long does an epoch take? IGR-I, IGR-SB, IGR-Planar and GS beside each other, and IGR-SB-MM beside DLDPMM.

The paper says that IGR-I and IGR-SB take as long as GS, IGR-Planar 30 % longer, and IGR-SB-MM as long as DLDPMM. An
epoch is that of the spec: 50,000 images in batches of 100, forward, backward, Adam, noise and order. The images are
random bits; nothing depends on what they show.

    alone         one model (one temperature, one seed), as the paper trains
    together      the ensemble of the spec, all temperatures and seeds; seconds are divided by models. GS has one
                  temperature of its prior, so that it has as many models as the others. Only on CUDA, unless it is
                  asked for. Mixtures have 20 components, both of them, and five seeds
    times         over GS, or over DLDPMM

How to read the times. All methods of a group (linear, non-linear, mixtures; alone or together) run once in a round, in
a random order; seconds are medians over rounds, with the fastest and the slowest. A round has --steps steps, and
seconds are those of an epoch at that rate. Two threads on cores that others use can be many times slower than one:
wait until the machine is quiet.

    python benchmarks/execution_time.py [--device cuda] [--rounds 7] [--steps 100] [--together] [--json FILE]
                                        [--commit COMMIT] [--threads 2] [--quick]

--json adds a record for each row to a file, of which igr report makes a table:
results/ours/execution-time/records.jsonl. --commit says which code it is where there is no git.
"""

import argparse
import os
import platform
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from training import rounds

from igr import __version__
from igr.paper import records
from igr.paper.ensemble import Ensemble
from igr.paper.nonparametric.ensemble import MixtureEnsemble
from igr.paper.specs import SPECS, TIMES, Mixture, Vae
from igr.paper.trained import TRAIN_IMAGES
from igr.paper.trainer import Trainer

COMPONENTS = 20
METHODS = ("gs", "igr-i", "igr-sb", "igr-planar")  # the first is what others are compared with
MIXTURES = ("dldpmm", "igr-sb-mm")


class Group(NamedTuple):
    """Models that take turns, and what a record says of them."""

    name: str
    trainers: dict[str, Trainer]
    ids: dict[str, str]
    settings: dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description="Time epochs of training; see the top of this file.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, help="steps in a round; by default an epoch on CUDA, else 100")
    parser.add_argument("--together", action="store_true", help="ensembles as well, also where there is no CUDA")
    parser.add_argument("--json", type=Path, help="file to add records to")
    parser.add_argument("--commit", help="the commit that this is a copy of")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    device = torch.device(args.device)
    args.steps = args.steps or (TRAIN_IMAGES["honest"]["mnist"] // 100 if device.type == "cuda" else 100)
    if args.quick:
        args.rounds, args.steps = 2, 2
        print("QUICK RUN: these times mean nothing")
    if args.threads:
        torch.set_num_threads(args.threads)
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads, {args.rounds} rounds{load}\n")
    print(f"{'':13}{'method':12}{'models':>7}{'s/epoch':>10}{'fastest':>10}{'slowest':>10}{'times':>7}")
    date = datetime.now(UTC).isoformat(timespec="seconds")
    for group in groups(device, args):
        found = measured(group, device, args)
        show(group, found)
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            records.append(args.json, [record(group, m, found[m], device, date, args) for m in found], replace=True)


def groups(device: torch.device, args: argparse.Namespace) -> Iterator[Group]:
    """One after another, so that one is gone before the next is made."""
    hows = ["alone"] + (["together"] if args.together or device.type == "cuda" else [])
    images = np.random.default_rng(0).integers(0, 2, (100 * args.steps, 784), dtype=np.uint8)
    for how in hows:
        for architecture in ("linear",) if args.quick else ("linear", "nonlinear"):
            trainers = {m: vae(architecture, m, how, images, device, args) for m in METHODS}
            ids = {m: TIMES.format(f"{architecture}/{m}") for m in METHODS}
            yield Group(architecture, trainers, ids, {"architecture": architecture})
        trainers = {m: mixture(m, how, images, device, args) for m in MIXTURES}
        yield Group("mixture", trainers, {m: TIMES.format(m) for m in MIXTURES}, {"num_components": COMPONENTS})


def vae(
    architecture: str, method: str, how: str, images: np.ndarray, device: torch.device, args: argparse.Namespace
) -> Trainer:
    cell = members(architecture, method, how)
    return Ensemble(cell.shortened() if args.quick and how == "together" else cell, images, device)


def members(architecture: str, method: str, how: str) -> Vae:
    """The spec with those that are timed, as many for every method."""
    cell = SPECS[f"table1/mnist/{architecture}/{method}"]
    assert isinstance(cell, Vae)
    cell = replace(cell, prior_temperatures=cell.prior_temperatures[:1])
    return replace(cell, temperatures=(0.25,), seeds=cell.seeds[:1]) if how == "alone" else cell


def mixture(method: str, how: str, images: np.ndarray, device: torch.device, args: argparse.Namespace) -> Trainer:
    cell = SPECS[f"nonparametric/mnist/{method}+sl"]
    assert isinstance(cell, Mixture)
    fixed = (COMPONENTS,) if method == "dldpmm" else ()
    seeds = cell.seeds[: 1 if how == "alone" or args.quick else None]
    return MixtureEnsemble(replace(cell, num_components=fixed, max_components=COMPONENTS, seeds=seeds), images, device)


def measured(group: Group, device: torch.device, args: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds per model and epoch, of each round."""
    work: dict[str, Callable[[], object]] = {method: each.run_epoch for method, each in group.trainers.items()}
    found = rounds(work, args.rounds, device)
    scale = {method: each.cell.steps / args.steps / len(each.members) for method, each in group.trainers.items()}
    return {method: [scale[method] * seconds for seconds in values] for method, values in found.items()}


def show(group: Group, found: dict[str, list[float]]) -> None:
    first = statistics.median(next(iter(found.values())))
    for method, seconds in found.items():
        middle, models = statistics.median(seconds), len(group.trainers[method].members)
        line = f"{group.name:13}{method:12}{models:7}{middle:10.3g}{min(seconds):10.3g}{max(seconds):10.3g}"
        print(f"{line}{middle / first:7.2f}", flush=True)


def record(
    group: Group, method: str, seconds: list[float], device: torch.device, date: str, args: argparse.Namespace
) -> records.Record:
    cuda, trainer, source = device.type == "cuda", group.trainers[method], records.source()
    return {
        "spec": group.ids[method],
        "protocol": "benchmark",
        "seed": trainer.cell.seeds[0],
        "tau": None,
        "prior_temperature": None,
        "smoke": args.quick,
        "device": torch.cuda.get_device_name(device) if cuda else device.type,
        "settings": {
            "method": method,
            **group.settings,
            "models": len(trainer.members),
            "batch_size": trainer.cell.batch_size,
            "train_images": TRAIN_IMAGES["honest"]["mnist"],
            "dtype": "float32",
            "threads": None if cuda else torch.get_num_threads(),
        },
        "metrics": {
            "seconds_epoch": statistics.median(seconds),
            "seconds_epoch_min": min(seconds),
            "seconds_epoch_max": max(seconds),
        },
        "rounds": args.rounds,
        "steps": args.steps,
        "commit": args.commit or source.commit,
        "dirty": None if args.commit else source.dirty,
        "tree": records.tree(),
        "version": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "host_cpus": os.cpu_count(),
        "date": date,
    }


if __name__ == "__main__":
    main()
