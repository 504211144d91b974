"""How fast are VAEs trained? One model and an ensemble, beside the published TensorFlow code and what bounds them.

A step is a batch of 100 images of 784 pixels: forward, backward, Adam, and the noise and the order of the images. An
"epoch" is 600 steps, as of the published code, so that "model-epochs/s" is models times steps per second over 600. The
images are random bits; nothing depends on what they show.

    eager         a single model (one temperature, one seed), each operation by itself, as PyTorch has them; on a CPU
                  that is what "one" is
    one           a single model, on CUDA one graph with the kernels of this library, whose products are in TF32
    ensemble      several temperatures and five seeds at once; its ms are per model, total time divided by models
    floor         on a CPU, the matrix products of one model's step alone, with the same shapes and threads: what is
                  left if all else were free. Forward, weights and inputs, but for the input of the first layer: 5 or
                  17 products. On CUDA, the memory that an ensemble's step has to move, per model: weights once forwards
                  and, but for those of the first layer, once backwards, and they and both means of Adam read and
                  written, at the rate of a large copy
    published     the paper's TensorFlow code on two cores of the same kind (AMD EPYC with AVX-512), best of what was
                  measured; "times" is how many times as fast this library's single model is. The machine was quiet but
                  for linear IGR-SB and IGR-Planar, whose times are up to a third too long (as IGR-I's were then)

How to read the times. Everything runs once in a round, in a random order; ms are medians over rounds. A round is 50
steps, on CUDA a whole epoch of 600, but for the single models without a graph: what the end of an epoch costs is in it.
Two threads on cores that others use can be many times slower than one: use --threads 1 there, or wait.

    python benchmarks/training.py [--device cuda] [--rounds 7] [--steps 50] [--temperatures 2] [--threads 2]
                                  [--json FILE] [--quick]
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from igr import kernels
from igr.paper.ensemble import Ensemble
from igr.paper.memory import keep_memory
from igr.paper.products import fast_products
from igr.paper.specs import SPECS, Vae

# Seconds per epoch of 600 steps: the published code under TensorFlow 2.21, CPU, with its default threads. The fastest
# runs there are; those of linear IGR-SB and IGR-Planar had only about one core to themselves.
PUBLISHED = {
    ("linear", "igr-i"): 3.9,
    ("linear", "gs"): 3.4,
    ("linear", "igr-sb"): 7.7,
    ("linear", "igr-planar"): 5.9,
    ("nonlinear", "igr-i"): 7.4,
    ("nonlinear", "gs"): 6.5,
    ("nonlinear", "igr-planar"): 6.5,
}
STEPS_PER_EPOCH = 600
EAGER_STEPS = 50  # of a round, for what takes milliseconds each
SEEDS = (5328, 5945, 8965, 49, 9337)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the training of VAEs; see the top of this file.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, help="steps in a round; 50, or 600 on CUDA")
    parser.add_argument("--temperatures", type=int, help="in the ensemble, times five seeds; 2, or all 10 on CUDA")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there as well")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.steps, args.temperatures = 2, 2, 1
        print("QUICK RUN: these times mean nothing")
    if args.threads:
        torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    args.temperatures = args.temperatures or (10 if device.type == "cuda" else 2)
    args.steps = args.steps or (STEPS_PER_EPOCH if device.type == "cuda" else EAGER_STEPS)
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads, {args.rounds} rounds\n")
    head = f"{'architecture':13}{'method':12}{'eager':>9}{'one':>9}{'ensemble':>10}{'floor':>8}"
    print(f"{head}{'published':>11}{'times':>7}{'model-epochs/s, eager and ensemble':>38}")
    print(f"{'':25}{'ms/step':>9}{'ms/step':>9}{'ms/model':>10}{'ms':>8}{'ms/step':>11}")
    found = []
    for architecture in ("linear",) if args.quick else ("linear", "nonlinear"):
        for method in ("igr-i", "gs") if args.quick else ("igr-i", "igr-planar", "igr-sb", "gs"):
            found.append(row(architecture, method, device, args))
    if args.json:
        name = (
            torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
        )
        about = {"device": name, "torch": torch.__version__, "quick": args.quick}
        args.json.write_text(json.dumps({**about, "rows": found}, indent=1) + "\n", encoding="utf-8")


def row(architecture: str, method: str, device: torch.device, args: argparse.Namespace) -> dict[str, object]:
    """Prints a row of the table, and returns it."""
    cell = SPECS[f"table1/mnist/{architecture}/{method}"]
    assert isinstance(cell, Vae)
    priors = cell.prior_temperatures[:1]
    images = np.random.default_rng(0).integers(0, 2, (100 * args.steps, 784), dtype=np.uint8)

    def trainer(
        num_temperatures: int, num_seeds: int, kind: type[Ensemble] = Ensemble, steps: int = args.steps
    ) -> Ensemble:
        first = min(4, len(cell.temperatures) - num_temperatures)
        taus = cell.temperatures[first : first + num_temperatures]
        changed = replace(cell, temperatures=taus, seeds=SEEDS[:num_seeds], prior_temperatures=priors)
        return kind(changed, images[: 100 * steps], device)

    one, several = trainer(1, 1), trainer(args.temperatures, len(SEEDS))
    work: dict[str, Callable[[], object]] = {"one": one.run_epoch, "ensemble": several.run_epoch}
    if device.type == "cuda":
        eager = trainer(1, 1, Eager, min(args.steps, EAGER_STEPS))
        work |= {"eager": eager.run_epoch, "floor": memory(several, args.steps)}
        steps = {"eager": eager.steps}
    else:
        work["floor"], steps = products(one, args.steps), {}
    medians = measure(work, args.rounds, device)
    times = {name: 1e3 * value / steps.get(name, args.steps) for name, value in medians.items()}
    alone, by_itself = times["one"], times.get("eager", times["one"])
    shared = times["ensemble"] / len(several.members)
    floor = times["floor"] / (len(several.members) if device.type == "cuda" else 1)
    line = f"{architecture:13}{method:12}{by_itself:9.2f}{alone:9.2f}{shared:10.4f}{floor:8.4f}"
    published = PUBLISHED.get((architecture, method))
    peer = 1e3 * published / STEPS_PER_EPOCH if published else None
    if peer is None or device.type != "cpu":
        line += f"{'-':>11}{'-':>7}"
    else:
        line += f"{peer:11.2f}{peer / alone:7.2f}"
    rates = [1e3 / ms / STEPS_PER_EPOCH for ms in (by_itself, alone, shared)]
    print(f"{line}{f'{rates[0]:.2f} and {rates[2]:.2f}':>38}", flush=True)
    return {
        "architecture": architecture, "method": method, "models": len(several.members),
        "eager_ms": by_itself, "one_ms": alone, "ensemble_ms": times["ensemble"], "floor_ms": times["floor"],
        "model_epochs_per_second": dict(zip(("eager", "one", "ensemble"), rates, strict=True)),
    }  # fmt: skip


class Eager(Ensemble):
    """A trainer without graphs and kernels."""

    def _fuses(self) -> bool:
        return False

    def _take_step(self) -> None:
        with kernels.disabled():
            self._step()


def memory(model: Ensemble, steps: int) -> Callable[[], None]:
    """Copies that move as much as the weights of so many steps, half of it read and half written.

    That is eight times all of them, but for those of the first layer, which nothing reads backwards.
    """
    size = (8 * sum(p.numel() for p in model.vae.parameters()) - model.vae.weights[0].numel()) // 2
    source = torch.zeros(size, device=model.device)
    target = torch.empty_like(source)

    def run() -> None:
        for _ in range(steps):
            torch.neg(source, out=target)  # faster than the copy engine

    return run


def products(model: Ensemble, steps: int) -> Callable[[], None]:
    """The matrix products of so many steps of one model."""
    jobs: list[tuple[Tensor, Tensor]] = []
    first = model.vae.weights[0]
    for weight in model.vae.weights:
        w = weight.detach()
        x, g = (torch.randn(1, 100, size, device=w.device) for size in w.shape[1:])
        jobs += [(x, w), (x.transpose(1, 2), g)]
        jobs += [] if weight is first else [(g, w.transpose(1, 2))]

    def run() -> None:
        for _ in range(steps):
            for a, b in jobs:
                torch.bmm(a, b)

    return run


def measure(work: dict[str, Callable[[], object]], number: int, device: torch.device) -> dict[str, float]:
    """Medians in seconds over so many rounds."""
    return {name: statistics.median(values) for name, values in rounds(work, number, device).items()}


def rounds(work: dict[str, Callable[[], object]], number: int, device: torch.device) -> dict[str, list[float]]:
    """Seconds of each round, after one to warm up."""
    times: dict[str, list[float]] = {name: [] for name in work}
    keep_memory()
    with fast_products(device):  # as igr run has it
        for i in range(number + 1):
            for name in random.sample(list(work), len(work)):
                start = time.perf_counter()
                work[name]()
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                if i:
                    times[name].append(time.perf_counter() - start)
    return times


if __name__ == "__main__":
    main()
