"""How long does a differentiable sample take? This library beside ``torch.nn.functional.gumbel_softmax``.

One forward and backward pass, with distributions constructed inside the timed region, as in a training step. The
backward pass starts from given gradients of everything that a call returns (z; log q; KL) and ends at every parameter:
logits for the Gumbel-Softmax, loc and scale for the Gaussians, which thus have two tensors where the reference has one.
Each round times every candidate once, in a random order, so that drift of the machine hits all alike.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from igr import GumbelSoftmax, InvertibleGaussian, StickBreaking, functional

__all__ = ["REFERENCE", "SHAPES", "TAU", "Step", "Timing", "measure", "passes"]

SHAPES = ((100_000, 10), (10_000, 512), (100, 50_000))
REFERENCE = "F.gumbel_softmax"
TAU = 0.5
STICKS = 512  # the largest K for stick-breaking
WARM_UP = 5  # rounds that do not count

Call = Callable[[], Tensor | tuple[Tensor, ...]]
Step = Callable[[], None]


class Timing(NamedTuple):
    """What one candidate took at one shape."""

    name: str
    ms: float
    """The median over rounds."""
    low: float
    """The first quartile."""
    high: float
    """The third."""
    ratio: float
    """The median over rounds of its time over the reference's in the same round."""


def passes(rows: int, K: int, device: torch.device, dtype: torch.dtype = torch.float32) -> dict[str, Step]:
    """A forward and backward pass of each candidate for rows of K categories, the reference first."""

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, device=device).to(dtype)

    logits, mu = some(rows, K).requires_grad_(), some(rows, K - 1).requires_grad_()
    sigma = (torch.rand(rows, K - 1, device=device) + 0.5).to(dtype).requires_grad_()
    prior, other = (InvertibleGaussian(torch.zeros_like(mu[0]), 1.0, tau) for tau in (TAU, 2 * TAU))

    def igr(**options: object) -> InvertibleGaussian:
        return InvertibleGaussian(mu, sigma, TAU, **options)  # type: ignore[arg-type]

    gumbel: dict[str, Call] = {
        REFERENCE: lambda: F.gumbel_softmax(logits, TAU),
        "functional.gumbel_softmax": lambda: functional.gumbel_softmax(logits, TAU),
        "GS rsample": lambda: GumbelSoftmax(TAU, logits).rsample(),
        "GS rsample_and_log_prob": lambda: GumbelSoftmax(TAU, logits).rsample_and_log_prob(),
    }
    gaussian: dict[str, Call] = {
        "functional.gaussian_softmax": lambda: functional.gaussian_softmax(mu, sigma, TAU),
        "IGR-I rsample": lambda: igr().rsample(),
        "IGR-I rsample, unvalidated": lambda: igr(validate_args=False).rsample(),
        "IGR-I rsample_and_log_prob": lambda: igr().rsample_and_log_prob(),
        "IGR-I kl, same g": lambda: igr().kl(prior),
        "IGR-I kl, across τ": lambda: igr().kl(other),
    }
    if K <= STICKS:
        gaussian["IGR-SB rsample"] = lambda: igr(flow=StickBreaking()).rsample()
    found = {name: _forward_and_backward(call, [logits]) for name, call in gumbel.items()}
    return found | {name: _forward_and_backward(call, [mu, sigma]) for name, call in gaussian.items()}


def measure(
    steps: dict[str, Step], device: torch.device, rounds: int, warm_up: int = WARM_UP, reference: str | None = None
) -> list[Timing]:
    """Times every step once in each of at least two rounds, beside a reference, by default the first.

    Example:
        >>> [first, *_] = measure(passes(100, 10, torch.device("cpu")), torch.device("cpu"), rounds=2)
        >>> first.name, first.ratio
        ('F.gumbel_softmax', 1.0)
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(warm_up + rounds):
        for name in random.sample(list(steps), len(steps)):
            times[name].append(_milliseconds(steps[name], device))
    kept = {name: values[warm_up:] for name, values in times.items()}
    other = kept[next(iter(kept)) if reference is None else reference]
    return [Timing(name, *_quartiles(values), _ratio(values, other)) for name, values in kept.items()]


def _forward_and_backward(call: Call, parameters: list[Tensor]) -> Step:
    """One pass, with the gradients that it starts from drawn beforehand."""

    def outputs() -> tuple[Tensor, ...]:
        value = call()
        return value if isinstance(value, tuple) else (value,)

    seeds = [torch.randn_like(x) for x in outputs()]

    def step() -> None:
        torch.autograd.grad(outputs(), parameters, seeds)

    return step


def _milliseconds(step: Step, device: torch.device) -> float:
    """On CUDA between two events on the stream, waits of the device for the host included."""
    if device.type != "cuda":
        start = time.perf_counter()
        step()
        return 1e3 * (time.perf_counter() - start)
    torch.cuda.synchronize(device)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.current_stream(device)
    begin.record(stream)
    step()
    end.record(stream)
    torch.cuda.synchronize(device)
    return float(begin.elapsed_time(end))


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The median, the first and the third."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return median, low, high


def _ratio(values: Sequence[float], reference: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(values, reference, strict=True))
