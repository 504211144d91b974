"""Where do relaxations stop being finite? Shares of rows with a NaN or an infinity, this library beside torch's own.

What is measured. Every combination of K categories, temperature τ, locations μ ~ m N(0, 1), scale σ and dtype is drawn
afresh, hundreds of rows each; a row counts as nonfinite if any of its entries is. The columns:

    sample       rsample
    log-sample   log_rsample
    log-density  of its own samples: rsample_and_log_prob; for torch, log_prob(rsample())
    KL           closed forms: to a prior with the same g, loc 0 and scale 1; for IGR-I also across τ and δ
    gradient     of a random projection of all of the above, with respect to every parameter: loc, scale, temperature,
                 delta and the flow's u, w, b for IGR; logits and temperature for GS; logits alone for torch's
    zero: z      rows whose gradient through a sample, with respect to loc or logits, is exactly zero; σ = 1 alone
    zero: log z  the same through a log-sample

For GS and torch's relaxations μ plays the logits and there is no σ. Temperature and delta are tensors with one value
per row; torch's distribution gets a 0-d tensor, since it fails on a number and broadcasts rows against rows. Its checks
of arguments are off: in bfloat16 they would refuse its own probabilities, which do not sum to one within 1e-6.

How to read it. One table per dtype and τ. A cell is "worst / mean" over all K, m and σ, in percent of the rows; "." is
exactly none, n/a means that there is no such thing. Zero gradients are no error: a saturated softmax has lost them to
rounding, whatever the library, while the log-sample keeps its own. IGR-SB, whose sticks saturate before its softmax
does, can lose both. The last line is the verdict on this library; the exit status is 1 if it had any nonfinite value.

    python benchmarks/stability.py [--device cuda] [--seed 0] [--quick]
"""

import argparse
import itertools
import sys
from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import RelaxedOneHotCategorical

from igr import GumbelSoftmax, InvertibleGaussian, Planar, StickBreaking

METHODS = ("IGR-I", "IGR-SB", "IGR-Planar", "GS", "torch RelaxedOneHot", "F.gumbel_softmax")
OURS = METHODS[:4]
COLUMNS = ("sample", "log-sample", "log-density", "KL", "gradient", "zero: z", "zero: log z")
ERRORS = COLUMNS[:5]
MAGNITUDES, SIGMAS = (1.0, 10.0, 100.0), (1e-3, 1.0, 1e3)

Outputs = dict[str, list[Tensor]]


def gaussian(method: str, mu: Tensor, sigma: float, tau: float) -> tuple[Outputs, list[Tensor]]:
    """What an IGR method computes, by column, and the parameters it computes it from, loc first."""
    n, size = mu.shape
    parameters = [mu, torch.full_like(mu, sigma), mu.new_full((n, 1), tau), mu.new_full((n, 1), 1.0)]
    if method == "IGR-Planar":  # two layers of u, w and b
        parameters += [torch.randn_like(x) for x in (mu, mu, mu[:, 0]) * 2]
    loc, scale, temperature, delta, *planar = (x.requires_grad_() for x in parameters)
    flow = [Planar(*planar[i : i + 3]) for i in range(0, len(planar), 3)]
    flow = [StickBreaking()] if method == "IGR-SB" else flow or None
    q = InvertibleGaussian(loc, scale, temperature, flow=flow, delta=delta)
    priors = [InvertibleGaussian(mu.new_zeros(size), 1.0, temperature, flow=flow, delta=delta)]
    if method == "IGR-I":
        priors.append(InvertibleGaussian(mu.new_zeros(size), 1.0, 0.5, delta=2.0))
    outputs = {
        "sample": [q.rsample()],
        "log-sample": [q.log_rsample()],
        "log-density": [q.rsample_and_log_prob()[1]],
        "KL": [q.kl(prior) for prior in priors],
    }
    return outputs, parameters


def gumbel(method: str, logits: Tensor, tau: float) -> tuple[Outputs, list[Tensor]]:
    """The same for the Gumbel-Softmax in its three implementations."""
    logits.requires_grad_()
    if method == "F.gumbel_softmax":
        return {"sample": [F.gumbel_softmax(logits, tau)]}, [logits]
    if method == "GS":
        temperature = logits.new_full((len(logits), 1), tau).requires_grad_()
        q = GumbelSoftmax(temperature, logits)
        log_density = q.rsample_and_log_prob()[1]
        outputs = {"sample": [q.rsample()], "log-sample": [q.log_rsample()], "log-density": [log_density]}
        return outputs, [logits, temperature]
    p = RelaxedOneHotCategorical(logits.new_tensor(tau), logits=logits, validate_args=False)
    z = p.rsample()
    return {"sample": [z], "log-density": [p.log_prob(z)]}, [logits]


def projection(tensors: list[Tensor]) -> Tensor:
    return sum((x * torch.randn_like(x)).sum() for x in tensors)


def shares(outputs: Outputs, parameters: list[Tensor]) -> dict[str, float]:
    """The share of rows, by column."""

    def nonfinite(tensors: list[Tensor]) -> float:
        flat = torch.cat([x.reshape(len(x), -1) for x in tensors], -1)
        return (~flat.isfinite()).any(-1).double().mean().item()

    def zero(tensors: list[Tensor]) -> float:
        (gradient,) = torch.autograd.grad(projection(tensors), parameters[:1], retain_graph=True)
        return (gradient == 0).all(-1).double().mean().item()

    result = {name: nonfinite(tensors) for name, tensors in outputs.items()}
    result["zero: z"] = zero(outputs["sample"])
    if "log-sample" in outputs:
        result["zero: log z"] = zero(outputs["log-sample"])
    everything = projection([x for tensors in outputs.values() for x in tensors])
    result["gradient"] = nonfinite(list(torch.autograd.grad(everything, parameters)))
    return result


def cell(values: list[float]) -> str:
    if not values:
        return "n/a"
    worst, mean = 100 * max(values), 100 * sum(values) / len(values)
    return "." if worst == 0 else f"{worst:.1f} / {mean:.1f}" if mean >= 0.1 else f"{worst:.1f} / <0.1"


def table(title: str, results: dict[str, list[dict[str, float]]]) -> str:
    lines = [title, f"  {'':<20}" + "".join(f"{name:>14}" for name in COLUMNS)]
    for method, settings in results.items():
        cells = (cell([s[name] for s in settings if name in s]) for name in COLUMNS)
        lines.append(f"  {method:<20}" + "".join(f"{text:>14}" for text in cells))
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="fewer settings and rows: a check of the script")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # the tensors are small
    categories, taus, n = ((2, 10), (1.0, 0.01), 8) if args.quick else ((2, 10, 1000), (1.0, 0.1, 0.01, 0.001), 512)
    print(f"torch {torch.__version__}, device {args.device}, seed {args.seed}")
    print(f"K in {categories}, {n} rows a setting (64 at most for K = 1000), μ ~ {MAGNITUDES} x N(0, 1), σ in {SIGMAS}")
    print("percent of rows that are nonfinite, worst / mean over K, μ and σ; the zero columns count vanished gradients")
    if args.quick:
        print("QUICK RUN: fewer settings and rows; the shares are rough")
    print()

    failures = []
    for dtype, tau in itertools.product((torch.float32, torch.bfloat16, torch.float64), taus):
        results = defaultdict(list)
        name = str(dtype).removeprefix("torch.")
        for method, K, m in itertools.product(METHODS, categories, MAGNITUDES):
            for sigma in SIGMAS if method.startswith("IGR") else (None,):
                mu = (m * torch.randn(min(n, 64) if K == 1000 else n, K - (sigma is not None))).to(args.device, dtype)
                share = shares(*(gumbel(method, mu, tau) if sigma is None else gaussian(method, mu, sigma, tau)))
                if sigma not in (None, 1.0):  # the zero columns compare like with like
                    share = {column: share[column] for column in share if column in ERRORS}
                results[method].append(share)
                bad = {column: share[column] for column in ERRORS if share.get(column)}
                if bad and method in OURS:
                    where = f"{method}, {name}, τ = {tau:g}, K = {K}, μ ~ {m:g} N(0, 1), σ = {sigma}: "
                    failures.append(where + ", ".join(f"{column} {x:.1%}" for column, x in bad.items()))
        print(table(f"{name}, τ = {tau:g}", results), flush=True)
    if failures:
        print("Nonfinite values of this library, by setting:", *failures, sep="\n  ")
    print(f"This library: {f'nonfinite values in {len(failures)} settings' if failures else 'zero nonfinite values'}.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
