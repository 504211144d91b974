"""Where does the time of a training step go on a GPU, and how near is each part to the memory's speed?

A step of an ensemble as `igr run` has it: 100 images for each of 50 models (10 temperatures, 5 seeds), or 145 for GS,
one replayed CUDA graph. torch's profiler says how long each kernel runs; "between" is what a step takes beyond the sum
of its kernels, as timed without the profiler: less than nothing where kernels of Adam run beside others.

    products forward    x W + b of all layers
    input gradients     dy Wᵀ of all layers but the first
    Adam                xᵀ dy, and what Adam makes of it, in one kernel: the gradient of W is never in memory
    the rest            the batch, noise, samples, divergences, likelihoods, and the gradients of these

"floor" is the time in which the bytes that must move could be copied at the rate of a large copy, measured in the same
run: W, x and y once forwards; W, dy and dx for input gradients; W and the two means of Adam read and written, x and dy.
"of floor" is the floor over the time.

    python benchmarks/step_profile.py [--steps 200] [--kernels] [--json FILE] [--quick] [SPEC ...]

--kernels also lists the kernels of the rest, the longest first.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from gpu_sampling import copy_rate
from torch.profiler import ProfilerActivity, profile

from igr.paper.ensemble import Ensemble
from igr.paper.specs import SPECS, Vae

CELLS = tuple(f"table1/mnist/{kind}" for kind in ("linear/igr-i", "linear/igr-planar", "linear/gs", "nonlinear/igr-i"))
PARTS = {"_affine_kernel": "products forward", "_input_gradient_kernel": "input gradients", "_adam_kernel": "Adam"}
REST = "the rest"


def kernel_times(model: Ensemble, steps: int) -> dict[str, float]:
    """Milliseconds of a step by kernels, the longest first."""
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        run(model, steps)
    times = {event.key: event.device_time_total / 1e3 / steps for event in found.key_averages()}
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def by_parts(kernels: dict[str, float]) -> dict[str, float]:
    times = dict.fromkeys((*PARTS.values(), REST), 0.0)
    for name, ms in kernels.items():
        times[PARTS.get(name, REST)] += ms
    return times


def run(model: Ensemble, steps: int) -> None:
    taken = 0

    def enough() -> bool:
        nonlocal taken
        taken += 1
        return taken == steps

    while taken < steps:
        model.run_epoch(enough)
    torch.cuda.synchronize()


def bytes_moved(model: Ensemble) -> dict[str, int]:
    """What the parts of a step have to read and to write, where that is known."""
    moved = dict.fromkeys(PARTS.values(), 0)
    for i, weight in enumerate(model.vae.weights):
        E, inputs, outputs = weight.shape
        x, y = (4 * E * model.cell.batch_size * size for size in (inputs, outputs))
        w = 4 * weight.numel()
        moved["products forward"] += w + x + y
        masked = bool(i % model.vae.depth)  # behind a ReLU, the input is read again
        moved["input gradients"] += w + (1 + masked) * x + y if i else 0
        moved["Adam"] += 6 * w + x + y
    return moved


def table(spec: str, steps: int, rate: float, *, kernels: bool = False) -> dict[str, object]:
    """Prints the parts of a step, and returns them."""
    cell = SPECS[spec]
    assert isinstance(cell, Vae)
    images = np.random.default_rng(0).integers(0, 2, (100 * (2 * steps + 20), 784), dtype=np.uint8)
    model = Ensemble(cell, images, torch.device("cuda"))
    run(model, 10)
    start = time.perf_counter()
    run(model, steps)
    whole = 1e3 * (time.perf_counter() - start) / steps
    each = kernel_times(model, steps)
    times, moved = by_parts(each), bytes_moved(model)
    print(f"{spec}, {len(model.members)} models: {whole:.3f} ms a step")
    print(f"  {'':<20}{'ms':>8}{'floor':>8}{'of floor':>10}")
    for part, ms in times.items():
        floor = moved[part] / rate if part in moved else None
        print(f"  {part:<20}{ms:>8.3f}" + (f"{floor:>8.3f}{floor / ms:>10.0%}" if floor and ms else ""))
    print(f"  {'between':<20}{whole - sum(times.values()):>8.3f}\n", flush=True)
    if kernels:
        print("\n".join(f"  {ms:8.4f}  {name[:100]}" for name, ms in each.items() if name not in PARTS) + "\n")
    floors = {part: size / rate for part, size in moved.items()}
    return {"spec": spec, "models": len(model.members), "ms": whole, "parts_ms": times, "floors_ms": floors}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("specs", nargs="*", default=CELLS, metavar="SPEC")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--kernels", action="store_true", help="list the kernels of the rest")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there as well")
    parser.add_argument("--quick", action="store_true", help="one spec and few steps: a check of the script")
    args = parser.parse_args()
    if args.quick:
        args.specs, args.steps = args.specs[:1], 5
        print("QUICK RUN: few steps; the times mean nothing")
    if not torch.cuda.is_available():
        print("There is no CUDA device here: nothing to profile.")
        return
    rate = copy_rate(20, 3)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, copies at {rate / 1e9:.2f} TB/s\n")
    found = [table(spec, args.steps, rate, kernels=args.kernels) for spec in args.specs]
    if args.json:
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "copy_tb_per_s": rate / 1e9}
        args.json.write_text(json.dumps({**about, "steps": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
