"""How near to the memory's speed is a differentiable sample on a GPU? The fused kernels beside what torch offers.

What is measured. One forward and backward pass at τ = 0.5, from a given gradient of the sample to those of all
parameters: logits (rows, K) for the Gumbel-Softmax, loc and scale (rows, K-1) for IGR-I.

How. Every candidate is captured in a CUDA graph, so that neither Python nor launches are in the time; after a warm-up,
each round replays all graphs once, in a random order, with events around a few replays of each.

How to read it. "ms" is the median over rounds of one pass. "floor" is the time in which the bytes that must move could
be copied at the rate of a large copy, measured in the same run: IGR-I has to read loc and scale and write z, then to
read z and its gradient and to write two gradients, seven tensors; the Gumbel-Softmax five. "of floor" is the floor over
the time; the target is 70 %, and for IGR-I, with its twice as many parameters, to be faster than F.gumbel_softmax.

    python benchmarks/gpu_sampling.py [--rounds 20] [--dtype bfloat16] [--seed 0] [--json FILE] [--quick]
"""

import argparse
import json
import random
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from igr import functional, kernels

SHAPES = ((2_000_000, 10), (100_000, 512), (8192, 8192), (1024, 50_304))
TAU = 0.5
TARGET = 0.7
EAGER, COMPILED = "F.gumbel_softmax, eager", "F.gumbel_softmax, compiled"
PLAIN = "gaussian_softmax, without kernels"
GS, IGR = "gumbel_softmax", "gaussian_softmax"

Step = Callable[[], object]


def candidates(rows: int, K: int, dtype: torch.dtype) -> dict[str, Step]:
    """One pass of each."""
    logits = torch.randn(rows, K, device="cuda").to(dtype).requires_grad_()
    loc = torch.randn(rows, K - 1, device="cuda").to(dtype).requires_grad_()
    scale = (torch.rand(rows, K - 1, device="cuda") + 0.5).to(dtype).requires_grad_()
    g = torch.randn(rows, K, device="cuda").to(dtype)
    compiled = torch.compile(lambda x: F.gumbel_softmax(x, TAU), dynamic=False)

    def without_kernels() -> object:
        with kernels.disabled():
            z = functional.gaussian_softmax(loc, scale, TAU)
        return torch.autograd.grad(z, (loc, scale), g)

    return {
        EAGER: lambda: torch.autograd.grad(F.gumbel_softmax(logits, TAU), logits, g),
        COMPILED: lambda: torch.autograd.grad(compiled(logits), logits, g),
        GS: lambda: torch.autograd.grad(functional.gumbel_softmax(logits, TAU), logits, g),
        PLAIN: without_kernels,
        IGR: lambda: torch.autograd.grad(functional.gaussian_softmax(loc, scale, TAU), (loc, scale), g),
    }


def captured(step: Step) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def milliseconds(graph: torch.cuda.CUDAGraph, replays: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / replays


def medians(graphs: dict[str, torch.cuda.CUDAGraph], rounds: int, replays: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(2 + rounds):
        for name in random.sample(list(graphs), len(graphs)):
            times[name].append(milliseconds(graphs[name], replays))
    return {name: statistics.median(values[2:]) for name, values in times.items()}


def copy_rate(rounds: int, replays: int) -> float:
    """Bytes per millisecond, read and written, of the fastest copy there is of what no cache holds."""
    source = torch.randn(2**28, device="cuda")
    target = torch.empty_like(source)
    ways = {
        "copy": captured(lambda: target.copy_(source)),
        "kernel": captured(lambda: torch.neg(source, out=target)),  # faster than the copy engine
    }
    return 2 * source.numel() * source.element_size() / min(medians(ways, rounds, replays).values())


def bytes_moved(name: str, rows: int, K: int, dtype: torch.dtype) -> int:
    columns = 4 * (K - 1) + 3 * K if name in (IGR, PLAIN) else 5 * K
    return rows * columns * torch.empty((), dtype=dtype).element_size()


def table(shape: tuple[int, int], times: dict[str, float], dtype: torch.dtype, rate: float) -> list[dict[str, object]]:
    """Prints the rows, and returns them."""
    found = []
    print(f"shape {shape}")
    print(f"  {'forward and backward':<36}{'ms':>9}{'floor':>9}{'of floor':>10}")
    for name, time in times.items():
        floor = bytes_moved(name, *shape, dtype) / rate
        notes = []
        if name in (GS, IGR):
            notes.append(f">= {TARGET:.0%}: {'met' if floor / time >= TARGET else 'not met'}")
        if name == IGR:
            notes.append(f"< eager: {'met' if time < times[EAGER] else 'not met'}")
        print(f"  {name:<36}{time:>9.3f}{floor:>9.3f}{floor / time:>10.0%}  {', '.join(notes)}".rstrip(), flush=True)
        found.append({"shape": list(shape), "name": name, "ms": time, "floor_ms": floor})
    print()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there as well")
    parser.add_argument("--quick", action="store_true", help="small shapes and few rounds: a check of the script")
    args = parser.parse_args()
    if args.quick:
        print("QUICK RUN: small shapes and few rounds; the times mean nothing")
    if not torch.cuda.is_available():
        print("There is no CUDA device here, and the kernels are for such: nothing to measure.")
        return
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    dtype = getattr(torch, args.dtype)
    rounds, replays = (3, 2) if args.quick else (args.rounds, 10)
    rate = copy_rate(rounds, replays)
    device = torch.cuda.get_device_name()
    print(f"torch {torch.__version__}, {device}, {args.dtype}, τ = {TAU}, {rounds} rounds of {replays} replays")
    print(f"copy rate {rate / 1e9:.2f} TB/s\n")
    records = []
    for rows, K in [(max(1, n // 1000), K) for n, K in SHAPES] if args.quick else SHAPES:
        torch._dynamo.reset()
        graphs = {name: captured(step) for name, step in candidates(rows, K, dtype).items()}
        records += table((rows, K), medians(graphs, rounds, replays), dtype, rate)
        del graphs
        torch.cuda.empty_cache()
    if args.json:
        about = {"device": device, "torch": torch.__version__, "dtype": args.dtype, "bytes_per_ms": rate}
        args.json.write_text(json.dumps({**about, "times": records}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
