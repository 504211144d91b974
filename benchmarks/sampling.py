"""How long does a differentiable sample take? This library beside ``torch.nn.functional.gumbel_softmax``.

The measurement is that of `igr bench`, in float32 at τ = 0.5; :mod:`igr.lab.speed` says how. Two rows have a target on
the CPU. A ratio below one there is the noise's doing: torch draws normals faster than exponentials. Where other
programs share the cores, the quartiles are far apart and threads wait for one another: use --threads 1, and repeat.

    python benchmarks/sampling.py [--device cuda] [--seed 0] [--rounds 30] [--threads 1] [--quick] [--profile]
"""

import argparse
import random
from collections.abc import Iterable

import torch
from torch.profiler import ProfilerActivity, profile

from igr.lab.speed import SHAPES, TAU, Step, Timing, measure, passes

TARGETS = {"IGR-I rsample": 1.3, "IGR-I rsample_and_log_prob": 2.0}


def table(shape: tuple[int, int], times: list[Timing], targets: dict[str, float]) -> Iterable[str]:
    yield f"shape {shape}"
    yield f"  {'forward and backward':<30}{'ms':>9}{'quartiles':>19}{'ratio':>8}  target"
    for name, ms, low, high, ratio in times:
        target = targets.get(name)
        verdict = f"  <= {target}: {'met' if ratio <= target else 'not met'}" if target else ""
        yield f"  {name:<30}{ms:>9.2f}{f'{low:.2f} .. {high:.2f}':>19}{ratio:>8.2f}{verdict}"
    yield ""


def show_profile(name: str, step: Step, device: str, repeats: int) -> None:
    cuda = device.startswith("cuda")
    with profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda) as profiler:
        for _ in range(repeats):
            step()
    print(f"  {name}, {repeats} passes")
    order = "self_cuda_time_total" if cuda else "self_cpu_time_total"
    print(profiler.key_averages().table(sort_by=order, row_limit=14, max_name_column_width=40))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, help="of torch on the CPU; its default otherwise, 1 for --quick")
    parser.add_argument("--quick", action="store_true", help="small shapes and few rounds: a check of the script")
    parser.add_argument("--profile", action="store_true", help="print where the time of the IGR-I paths goes")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    if args.threads or args.quick:
        torch.set_num_threads(args.threads or 1)
    rounds, warm_up = (3, 1) if args.quick else (args.rounds, 5)
    gpu = f" ({torch.cuda.get_device_name(args.device)})" if args.device.startswith("cuda") else ""
    print(f"torch {torch.__version__}, device {args.device}{gpu}, threads {torch.get_num_threads()}")
    print(f"float32, τ = {TAU}, {rounds} rounds after {warm_up} of warm-up")
    if args.quick:
        print("QUICK RUN: small shapes and few rounds; the times mean nothing")
    print()
    device = torch.device(args.device)
    for n, K in [(max(n // 1000, 1), K) for n, K in SHAPES] if args.quick else SHAPES:
        steps = passes(n, K, device)
        times = measure(steps, device, rounds, warm_up)
        print(*table((n, K), times, TARGETS if args.device == "cpu" else {}), sep="\n", flush=True)
        for name in TARGETS if args.profile else ():
            show_profile(name, steps[name], args.device, rounds)


if __name__ == "__main__":
    main()
