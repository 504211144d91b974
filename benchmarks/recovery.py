"""How fast and how exact are the recovered probabilities? ``igr.recovered_log_probs`` beside the paper's 15-point rule.

What is compared. Proposition 2 asks for K-1 integrals over t > 0 and a product:

    recovered_log_probs        this library's, with 192 (the default), 128 and 64 nodes, one rule for all the integrals
    15-point rule              the paper's: t = √2 σ_k x turns the k-th integral into one over x > 0 with the weight
                               exp(-x²), for which there is a Gauss rule (Steen, Byrne and Gelbard, 1969); as every k
                               has its own nodes, it takes 15 (K-1)(K-2) cdfs a row
    15-point rule, normalised  the same, divided by its sum
    as in the published code   the same, but each cdf Φ((t - μ_j) / σ_j) at the t of its own j: 15 (K-1) cdfs a row,
                               and right for equal scales alone

The nodes of the half-range rule are computed here (discretised Stieltjes procedure, then Golub-Welsch) and have to
integrate the thirty powers for which the rule is exact, to 1e-12. The rule is in log space, differentiated by autograd,
and gets its rows in chunks of a size that suits it, each followed by its own backward pass. This library gets all the
rows at once, and divides them itself. On one core all of it takes half an hour or more.

How to read the times. In a round every candidate runs once, in a random order. "ms" is the median over rounds,
"quartiles" are the first and third; "ratio" is the median over rounds of the time divided by the 15-point rule's in the
same round. The parameters are of the benign kind. Where other programs share the cores: use --threads 1, and repeat.

How to read the errors. A row's error is the largest absolute error of its K probabilities; a cell is "largest / median"
over the rows. The truth is from Gauss-Legendre panels in float64 that end wherever some integrand bends. The kinds:

    benign    μ ~ N(0, 1), σ from 0.5 to 1.5
    clamped   μ from -5 to 5, σ from 0.5 to 2.5: what the paper's RELAX confines them to, for the sake of the rule
    wide      μ from -50 to 50, σ from 1e-3 to 1e3, uniform in its logarithm
    near-tie  μ ~ 1 + 1e-3 N(0, 1), σ as in wide

On a CUDA device float32 has kernels of its own, which all tables show. One more has them beside the PyTorch path: a
pass by events around twenty of them in one CUDA graph, so that launches do not count.

The stick-breaking's probabilities have no peer. "residual" is their own error estimate, "largest / median" over rows.

    python benchmarks/recovery.py [--device cuda] [--seed 0] [--rounds 5] [--threads 1] [--quick]
"""

import argparse
import functools
import math
import random
from collections.abc import Callable, Iterable

import numpy as np
import scipy.linalg
import scipy.special
import torch
from torch import Tensor

import igr
import igr.kernels
from igr.lab.speed import Timing, measure

SHAPE = (100_000, 10)
STICKS = ((256, 10), (16, 100))
NODES = (192, 128, 64)
REFERENCE = "15-point rule"
KINDS = ("benign", "clamped", "wide", "near-tie")
WIDTH = 32

Rule = Callable[[Tensor, Tensor], Tensor]
Steps = dict[str, Callable[[], None]]
Timer = Callable[..., list[Timing]]
Sample = tuple[np.ndarray, np.ndarray, np.ndarray]  # μ, σ and the true probabilities


def panels(ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of a 40-point Gauss-Legendre rule on each interval between two ends."""
    x, w = np.polynomial.legendre.leggauss(40)
    half = np.diff(ends)[:, None] / 2
    return (half * x + half + ends[:-1, None]).ravel(), (half * w).ravel()


def half_range_hermite(n: int) -> tuple[np.ndarray, np.ndarray, float]:
    """The Gauss rule for exp(-x²) on x > 0: nodes, weights, and the largest relative error of its 2n moments."""
    t, w = panels(np.linspace(0, 10, 41))
    w = w * np.exp(-np.square(t))
    total = w.sum()
    a, b = np.zeros(n), np.zeros(n)  # p_{k+1} b_{k+1} = (t - a_k) p_k - b_k p_{k-1}
    before, p = np.zeros_like(t), np.full_like(t, total**-0.5)
    for k in range(n):
        a[k] = (w * t * p**2).sum()
        after = (t - a[k]) * p - b[k] * before
        if k + 1 < n:
            b[k + 1] = np.sqrt((w * after**2).sum())
            before, p = p, after / b[k + 1]
    x = scipy.linalg.eigh_tridiagonal(a, b[1:], eigvals_only=True)
    before, p = np.zeros(n), np.full(n, total**-0.5)
    squares = p**2  # weights from the polynomials: those from eigenvectors are exact in the absolute sense alone
    for k in range(n - 1):
        before, p = p, ((x - a[k]) * p - b[k] * before) / b[k + 1]
        squares = squares + p**2
    powers = np.arange(2 * n)
    moments = (x ** powers[:, None] / squares).sum(-1)
    error = np.abs(moments / (scipy.special.gamma((powers + 1) / 2) / 2) - 1).max()
    if not error < 1e-12:
        raise ArithmeticError(f"the {n}-point rule's moments are off by {error:.0e}, expected 1e-12 at most")
    return x, 1 / squares, error


def hermite(loc: Tensor, scale: Tensor, x: Tensor, log_w: Tensor, same_t: bool) -> Tensor:
    """Log-probabilities by the half-range rule: every cdf at the same t, or each at its own, as was published."""
    d = loc.shape[-1]
    ratio = (loc / scale).unsqueeze(-1)
    log_pdf = math.sqrt(2) * ratio * x - 0.5 * ratio.square()  # (B, K-1, Q), less exp(-x²), which the weights contain
    if same_t:
        t = math.sqrt(2) * scale.unsqueeze(-1) * x
        others = torch.arange(d - 1, device=loc.device).expand(d, -1)
        others = others + (others >= torch.arange(d, device=loc.device).unsqueeze(-1))  # row k: all j but k
        z = (t.unsqueeze(-2) - loc[:, others].unsqueeze(-1)) / scale[:, others].unsqueeze(-1)  # (B, K-1, K-2, Q)
        log_cdf = torch.special.log_ndtr(z).sum(-2)
    else:
        own = torch.special.log_ndtr(math.sqrt(2) * x - ratio)
        log_cdf = own.sum(-2, keepdim=True) - own
    first = (log_w + log_pdf + log_cdf).logsumexp(-1)
    return torch.cat([first, torch.special.log_ndtr(-loc / scale).sum(-1, keepdim=True)], -1)


def rules(x: np.ndarray, w: np.ndarray, like: Tensor) -> dict[str, Rule]:
    """The candidates, for parameters like the given tensor."""
    found: dict[str, Rule] = {
        f"recovered_log_probs, {n} nodes": functools.partial(igr.recovered_log_probs, num_nodes=n) for n in NODES
    }
    nodes = {"x": like.new_tensor(x), "log_w": like.new_tensor(np.log(w) - 0.5 * math.log(math.pi))}
    reference = functools.partial(hermite, **nodes, same_t=True)
    return found | {
        REFERENCE: reference,
        f"{REFERENCE}, normalised": lambda loc, scale: reference(loc, scale).log_softmax(-1),
        "as in the published code": functools.partial(hermite, **nodes, same_t=False),
    }


def parameters(kind: str, n: int, K: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """μ and σ, (n, K-1), which float32 can represent."""
    shape = (n, K - 1)
    scales = 10 ** generator.uniform(-3, 3, shape)
    mu, sigma = {
        "benign": (generator.normal(size=shape), generator.uniform(0.5, 1.5, shape)),
        "clamped": (generator.uniform(-5, 5, shape), generator.uniform(0.5, 2.5, shape)),
        "wide": (generator.uniform(-50, 50, shape), scales),
        "near-tie": (1 + 1e-3 * generator.normal(size=shape), scales),
    }[kind]
    return mu.astype(np.float32), sigma.astype(np.float32)


def probabilities(mu: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """The truth for one row, which has to sum to one."""
    bends = mu[:, None] + sigma[:, None] * np.array([-8, -4, -2, -1, 0, 1, 2, 4, 8, 12])
    t, w = panels(np.unique(np.append(bends.clip(min=0.0), 0.0)))
    z = (t - mu[:, None]) / sigma[:, None]
    log_cdf = scipy.special.log_ndtr(z)
    first = (w * np.exp(log_cdf.sum(0) - log_cdf - 0.5 * z**2)).sum(-1) / (sigma * math.sqrt(2 * math.pi))
    p = np.append(first, np.exp(scipy.special.log_ndtr(-mu / sigma).sum()))
    if not abs(p.sum() - 1) < 1e-9:
        raise ArithmeticError(f"the truth sums to 1 + {p.sum() - 1:.0e} for mu = {mu}, sigma = {sigma}")
    return p


def sample(kind: str, n: int, K: int, generator: np.random.Generator) -> Sample:
    mu, sigma = parameters(kind, n, K, generator)
    rows = zip(mu.astype(np.float64), sigma.astype(np.float64), strict=True)
    return mu, sigma, np.stack([probabilities(*row) for row in rows])


def passes(rule: Rule, loc: Tensor, scale: Tensor, rows: int) -> Steps:
    """One forward pass, and one forward and backward pass from given random gradients, in chunks of rows."""
    chunks = [
        [x.clone().requires_grad_() for x in pair] for pair in zip(loc.split(rows), scale.split(rows), strict=True)
    ]
    seeds = torch.randn_like(torch.cat([loc, loc[:, :1]], -1)).split(rows)

    def forward() -> None:
        with torch.no_grad():
            for chunk in chunks:
                rule(*chunk)

    def forward_and_backward() -> None:
        for chunk, seed in zip(chunks, seeds, strict=True):
            torch.autograd.grad(rule(*chunk), chunk, seed)

    return {"forward": forward, "forward and backward": forward_and_backward}


def spread(of: Timing, rows: int = 1) -> str:
    """Two columns: the median and the quartiles, of all rows or of each."""
    return f"{of.ms / rows:>10.2f}{f'{of.low / rows:.2f} .. {of.high / rows:.2f}':>22}"


def largest_and_median(errors: np.ndarray) -> str:
    return f"{errors.max():.0e} / {np.median(errors):.0e}"


def times(candidates: dict[str, Rule], loc: Tensor, scale: Tensor, chunk: int, timer: Timer) -> Iterable[str]:
    steps = {
        name: passes(rule, loc, scale, len(loc) if name.startswith("recovered") else chunk)
        for name, rule in candidates.items()
    }
    for kind in ("forward", "forward and backward"):
        found = timer({name: both[kind] for name, both in steps.items()}, reference=REFERENCE)
        yield f"time, shape {(len(loc), loc.shape[-1] + 1)}, {dtype_name(loc)}"
        yield f"  {kind:<{WIDTH}}{'ms':>10}{'quartiles':>22}{'ratio':>8}"
        for each in found:
            yield f"  {each.name:<{WIDTH}}{spread(each)}{each.ratio:>8.2f}"
        yield ""


def errors(candidates: dict[str, Rule], samples: dict[str, Sample], like: Tensor) -> Iterable[str]:
    yield f"error of a probability, K = {SHAPE[1]}, {dtype_name(like)}"
    yield f"  {'largest / median over rows':<{WIDTH}}" + "".join(f"{kind:>18}" for kind in samples)
    for name, rule in candidates.items():
        cells = []
        for mu, sigma, truth in samples.values():
            p = rule(*(torch.from_numpy(x).to(like) for x in (mu, sigma))).exp().double().cpu().numpy()
            cells.append(largest_and_median(np.abs(p - truth).max(-1)))
        yield f"  {name:<{WIDTH}}" + "".join(f"{text:>18}" for text in cells)
    yield ""


def replayed(step: Callable[[], None], repeats: int) -> float:
    """Milliseconds of one step, of many in one CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph, start, end = torch.cuda.CUDAGraph(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(True)
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            step()
    graph.replay()
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / repeats


def kernels(loc: Tensor, scale: Tensor, rounds: int, repeats: int) -> Iterable[str]:
    """The PyTorch path and the kernels, side by side: median milliseconds of a pass."""
    yield f"kernels, shape {(len(loc), loc.shape[-1] + 1)}, {dtype_name(loc)}"
    yield f"  {'':<{WIDTH}}{'PyTorch ms':>12}{'kernel ms':>12}{'ratio':>8}"
    for num_nodes in (64, 192):
        rule = functools.partial(igr.recovered_log_probs, num_nodes=num_nodes)
        for kind, step in passes(rule, loc, scale, len(loc)).items():
            found = []
            for on in (False, True):
                igr.kernels.set_enabled(on)
                found.append(float(np.median([replayed(step, repeats) for _ in range(rounds)])))
            pytorch, kernel = found
            yield f"  {f'{num_nodes} nodes, {kind}':<{WIDTH}}{pytorch:>12.3f}{kernel:>12.3f}{kernel / pytorch:>8.3f}"
    yield ""


def sticks(shape: tuple[int, int], like: Tensor, generator: np.random.Generator, timer: Timer) -> Iterable[str]:
    loc, scale = (torch.from_numpy(x).to(like) for x in parameters("benign", *shape, generator))
    found = timer(passes(igr.recovered_log_probs_stick_breaking, loc, scale, len(loc)))
    _, error = igr.recovered_log_probs_stick_breaking(loc, scale, return_error=True)
    yield f"recovered_log_probs_stick_breaking, shape {shape}, {dtype_name(like)}"
    yield f"  {'':<{WIDTH}}{'ms a row':>10}{'quartiles':>22}"
    for each in found:
        yield f"  {each.name:<{WIDTH}}{spread(each, len(loc))}"
    yield f"  {'residual':<{WIDTH}}{largest_and_median(error.residual.double().cpu().numpy())}"
    yield ""


def dtype_name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="of torch on the CPU; its default otherwise, 1 for --quick")
    parser.add_argument("--quick", action="store_true", help="few rows and rounds: a check of the script")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    generator = np.random.default_rng(args.seed)
    if args.threads or args.quick:
        torch.set_num_threads(args.threads or 1)
    cuda = args.device.startswith("cuda")
    rounds, rows, n = (2, 20, 100) if args.quick else (args.rounds, 1000, SHAPE[0])
    timer = functools.partial(measure, device=torch.device(args.device), rounds=rounds, warm_up=1)
    gpu = f" ({torch.cuda.get_device_name(args.device)})" if cuda else ""
    print(f"torch {torch.__version__}, device {args.device}{gpu}, threads {torch.get_num_threads()}, seed {args.seed}")
    print(f"{rounds} rounds after 1 of warm-up; errors over {rows} rows of each kind")
    if args.quick:
        print("QUICK RUN: few rows and rounds; the times mean nothing, the errors are rough")
    x, w, moments = half_range_hermite(15)
    print(f"the moments of the 15-point rule are right to {moments:.0e}\n", flush=True)

    samples = {kind: sample(kind, rows, SHAPE[1], generator) for kind in KINDS}
    benign = parameters("benign", n, SHAPE[1], generator)
    for dtype in (torch.float32, torch.float64):
        loc, scale = (torch.tensor(value, dtype=dtype, device=args.device) for value in benign)
        candidates = rules(x, w, loc)
        print(*errors(candidates, samples, loc), sep="\n")
        del candidates[f"{REFERENCE}, normalised"]
        for line in times(candidates, loc, scale, 10_000 if cuda else 1000, timer):
            print(line, flush=True)
        if cuda and dtype == torch.float32:
            print(*kernels(loc, scale, rounds, 2 if args.quick else 20), sep="\n", flush=True)
        for shape in ((2, 10), (1, 20)) if args.quick else STICKS:
            print(*sticks(shape, loc, generator, timer), sep="\n", flush=True)


if __name__ == "__main__":
    main()
