"""Which tiles suit the kernels of affine layers, for how many rows?

`igr.paper.layer_kernels` has three kernels: products forward, gradients of inputs, and Adam in the pass that makes the
gradient of a weight. Each cuts its result into tiles, whose best sizes depend on the rows: 100 images for each model,
or S times as many behind S samples. Here every candidate runs on the layers of the non-linear networks.

    ms      medians of graph replays, in which all candidates take turns, summed over the layers
    floor   the time in which the bytes that must move could be copied at the rate of a large copy
    tile    rows or inputs, outputs, what is summed over at once, warps, stages of the pipeline

The one in use is marked. Candidates that the device has no room for are left out.

    python benchmarks/layer_tiles.py [--models 50] [--rows 100 400] [--kernels affine input adam] [--best 3] [--quick]
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
from gpu_sampling import captured, copy_rate, medians

LAYERS = ((784, 512), (256, 512), (512, 784))  # inputs and outputs
KERNELS = ("affine", "input", "adam")
SIZES = {  # of tiles, and what is summed over at once
    "affine": ((64, 64, 32), (64, 128, 16), (64, 128, 32), (128, 64, 32), (128, 128, 16), (128, 128, 32)),
    "input": ((64, 64, 32), (64, 128, 32), (128, 64, 16), (128, 64, 32), (128, 128, 16), (128, 128, 32)),
    "adam": ((32, 64, 32), (64, 64, 16), (64, 64, 32), (32, 128, 32), (64, 128, 16), (64, 128, 32), (128, 64, 32)),
}
PIPELINES = ((4, 3), (4, 4), (8, 3))  # warps and stages

Tile = tuple[int, ...]


def candidates(kernel: str, used: Tile) -> list[Tile]:
    """All tiles that are tried, that in use first."""
    every = [(*size, *pipeline) for size, pipeline in product(SIZES[kernel], PIPELINES)]
    return [used, *(tile for tile in every if tile != used)]


def calls(kernel: str, models: int, rows: int) -> Iterator[tuple[Callable[[], object], int]]:
    """The kernel on each layer, and the bytes that it has to move."""
    from igr.paper import layer_kernels as layers

    sizes = torch.ones(2, device="cuda")
    for inputs, outputs in LAYERS:
        shapes = (rows, inputs), (rows, outputs), (inputs, outputs)
        x, dy, w = (torch.randn(models, *shape, device="cuda") for shape in shapes)
        weight, bias = (tuple(torch.zeros(models, n, outputs, device="cuda") for _ in range(3)) for n in (inputs, 1))
        inputs_moved = (2 if kernel == "input" else 1) * x.numel()  # written, and read where it says what a ReLU let by
        moved = 4 * (inputs_moved + dy.numel() + w.numel() * (6 if kernel == "adam" else 1))
        if kernel == "affine":
            yield partial(layers.affine, x, w, bias[0], True, "tf32"), moved
        elif kernel == "input":
            yield partial(layers.affine_input_gradient, dy, w, "tf32", relu=x), moved
        else:
            yield partial(layers.adam_product, x, dy, weight, bias, sizes, (0.9, 0.999), 1e-7, "tf32"), moved


def table(kernel: str, models: int, rows: int, rate: float, best: int, rounds: int) -> None:
    """Prints the fastest candidates, and the one in use."""
    from triton.runtime.errors import OutOfResources

    from igr.paper import layer_kernels

    used, work = layer_kernels.TILES[kernel], list(calls(kernel, models, rows))
    ways: dict[str, torch.cuda.CUDAGraph] = {}
    try:
        for tile in candidates(kernel, used):
            layer_kernels.TILES[kernel] = tile
            try:
                ways[str(tile)] = captured(lambda: [call() for call, _ in work])
            except OutOfResources:
                continue
    finally:
        layer_kernels.TILES[kernel] = used
    floor = sum(moved for _, moved in work) / rate
    found = sorted(medians(ways, rounds, 3).items(), key=lambda item: item[1])
    print(f"{kernel}, {models} models of {rows} rows, floor {floor:.3f} ms")
    for place, (name, ms) in enumerate(found):
        if place < best or name == str(used):
            print(f"  {name:<24}{ms:>8.3f}{floor / ms:>7.0%}{'  in use' if name == str(used) else ''}")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--rows", type=int, nargs="+", default=[100, 400], metavar="N")
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=KERNELS)
    parser.add_argument("--best", type=int, default=3, help="how many to print, beside the one in use")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="few models and rounds: a check of the script")
    args = parser.parse_args()
    if args.quick:
        args.models, args.rows, args.rounds = 2, args.rows[:1], 1
        print("QUICK RUN: few models and rounds; the times mean nothing")
    if not torch.cuda.is_available():
        print("There is no CUDA device here: nothing to measure.")
        return
    rate = copy_rate(20, 3)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, copies at {rate / 1e9:.2f} TB/s\n")
    for rows, kernel in product(args.rows, args.kernels):
        table(kernel, args.models, rows, rate, args.best, args.rounds)


if __name__ == "__main__":
    main()
