"""How long does a differentiable sample take? This library beside ``torch.nn.functional.gumbel_softmax``.

What is measured. The time of one forward and backward pass in float32 at τ = 0.5, with distributions constructed
inside the timed region, as in a training step. The backward pass starts from given random gradients of everything that
the call returns (z; log q; KL) and ends at every parameter: logits for the Gumbel-Softmax, loc and scale for the
Gaussians, which thus read and write two tensors where the reference has one.

How. After a warm-up, each round times every candidate once, in a random order, so that drift of the machine hits all
alike. On CUDA the time is between two events on the stream, waits of the device for the host included.

How to read it. "ms" is the median over rounds, "quartiles" are the first and third; "ratio" is the median over rounds
of the candidate's time divided by the reference's in the same round. On the CPU two rows have a target, and a ratio
below one is the noise's doing: there torch draws normals faster than exponentials. Where other programs share the
cores, the quartiles are far apart and threads wait for one another: use --threads 1, and repeat.

    python benchmarks/sampling.py [--device cuda] [--seed 0] [--rounds 30] [--threads 1] [--quick] [--profile]
"""

import argparse
import random
import time
from collections.abc import Callable, Iterable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from igr import GumbelSoftmax, InvertibleGaussian, StickBreaking, functional

SHAPES = ((100_000, 10), (10_000, 512), (100, 50_000))
STICKS = 512  # the largest K for stick-breaking
TAU = 0.5
REFERENCE = "F.gumbel_softmax"
TARGETS = {"IGR-I rsample": 1.3, "IGR-I rsample_and_log_prob": 2.0}

Candidate = tuple[Callable[[], Tensor | tuple[Tensor, ...]], list[Tensor]]  # the call, and what it is differentiated by


def candidates(n: int, K: int, device: str) -> dict[str, Candidate]:
    logits, mu = torch.randn(n, K, device=device), torch.randn(n, K - 1, device=device)
    sigma = torch.rand(n, K - 1, device=device) + 0.5
    gumbel, gauss = [x.requires_grad_() for x in (logits,)], [x.requires_grad_() for x in (mu, sigma)]
    prior = InvertibleGaussian(torch.zeros(K - 1, device=device), 1.0, TAU)
    other = InvertibleGaussian(torch.zeros(K - 1, device=device), 1.0, 2 * TAU)

    def igr(**options) -> InvertibleGaussian:
        return InvertibleGaussian(mu, sigma, TAU, **options)

    found: dict[str, Candidate] = {
        REFERENCE: (lambda: F.gumbel_softmax(logits, TAU), gumbel),
        "functional.gumbel_softmax": (lambda: functional.gumbel_softmax(logits, TAU), gumbel),
        "functional.gaussian_softmax": (lambda: functional.gaussian_softmax(mu, sigma, TAU), gauss),
        "IGR-I rsample": (lambda: igr().rsample(), gauss),
        "IGR-I rsample, unvalidated": (lambda: igr(validate_args=False).rsample(), gauss),
        "IGR-I rsample_and_log_prob": (lambda: igr().rsample_and_log_prob(), gauss),
        "IGR-I kl, same g": (lambda: igr().kl(prior), gauss),
        "IGR-I kl, across τ": (lambda: igr().kl(other), gauss),
        "GS rsample": (lambda: GumbelSoftmax(TAU, logits).rsample(), gumbel),
        "GS rsample_and_log_prob": (lambda: GumbelSoftmax(TAU, logits).rsample_and_log_prob(), gumbel),
    }
    if K <= STICKS:
        found["IGR-SB rsample"] = (lambda: igr(flow=StickBreaking()).rsample(), gauss)
    return found


def forward_and_backward(candidate: Candidate) -> Callable[[], None]:
    """One pass of the candidate, with the gradients it starts from drawn beforehand."""
    call, parameters = candidate

    def outputs() -> tuple[Tensor, ...]:
        value = call()
        return value if isinstance(value, tuple) else (value,)

    seeds = [torch.randn_like(x) for x in outputs()]
    return lambda: torch.autograd.grad(outputs(), parameters, seeds) and None


def milliseconds(step: Callable[[], None], device: str) -> float:
    if not device.startswith("cuda"):
        start = time.perf_counter()
        step()
        return 1e3 * (time.perf_counter() - start)
    torch.cuda.synchronize(device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    step()
    end.record()
    torch.cuda.synchronize(device)
    return start.elapsed_time(end)


def measure(steps: dict[str, Callable[[], None]], device: str, rounds: int, warmup: int) -> dict[str, np.ndarray]:
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(warmup + rounds):
        for name in random.sample(list(steps), len(steps)):
            times[name].append(milliseconds(steps[name], device))
    return {name: np.array(values[warmup:]) for name, values in times.items()}


def table(shape: tuple[int, int], times: dict[str, np.ndarray], targets: dict[str, float]) -> Iterable[str]:
    yield f"shape {shape}"
    yield f"  {'forward and backward':<30}{'ms':>9}{'quartiles':>19}{'ratio':>8}  target"
    for name, values in times.items():
        low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
        ratio, target = np.median(values / times[REFERENCE]), targets.get(name)
        verdict = f"  <= {target}: {'met' if ratio <= target else 'not met'}" if target else ""
        yield f"  {name:<30}{median:>9.2f}{f'{low:.2f} .. {high:.2f}':>19}{ratio:>8.2f}{verdict}"
    yield ""


def show_profile(name: str, step: Callable[[], None], device: str, repeats: int) -> None:
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
    rounds, warmup = (3, 1) if args.quick else (args.rounds, 5)
    gpu = f" ({torch.cuda.get_device_name(args.device)})" if args.device.startswith("cuda") else ""
    print(f"torch {torch.__version__}, device {args.device}{gpu}, threads {torch.get_num_threads()}")
    print(f"float32, τ = {TAU}, {rounds} rounds after {warmup} of warm-up")
    if args.quick:
        print("QUICK RUN: small shapes and few rounds; the times mean nothing")
    print()
    for n, K in [(max(n // 1000, 1), K) for n, K in SHAPES] if args.quick else SHAPES:
        steps = {name: forward_and_backward(c) for name, c in candidates(n, K, args.device).items()}
        times = measure(steps, args.device, rounds, warmup)
        print(*table((n, K), times, TARGETS if args.device == "cpu" else {}), sep="\n", flush=True)
        for name in TARGETS if args.profile else ():
            show_profile(name, steps[name], args.device, rounds)


if __name__ == "__main__":
    main()
