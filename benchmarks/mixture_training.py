"""How fast are mixtures trained? A step of IGR-SB-MM beside one of DLDPMM with as many components.

A step is a batch of 100 images of 784 pixels: forward, backward, Adam, and the noise and the order of the images. Both
have 20 components, all of which are decoded at every step, and differ in their sticks: logit-normal ones that are cut
where little is left, or Kumaraswamy ones. The images are random bits; nothing depends on what they show.

    one           a single model (one seed)
    ensemble      five seeds at once; its ms are per model, total time divided by models
    times         IGR-SB-MM over DLDPMM. At most 1.5 is asked for; the published code takes 7

How to read the times. Everything runs once in a round, in a random order; ms are medians over rounds. Two threads on
cores that others use can be many times slower than one: use --threads 1 there, or wait.

    python benchmarks/mixture_training.py [--device cuda] [--rounds 7] [--steps 20] [--threads 2] [--quick]
"""

import argparse

import numpy as np
import torch
from training import measure

from igr.paper.nonparametric.ensemble import MixtureEnsemble
from igr.paper.nonparametric.spec import Mixture
from igr.paper.specs import SEEDS

COMPONENTS, TARGET = 20, 1.5


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the training of mixtures; see the top of this file.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20, help="steps in a round")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.steps = 2, 2
        print("QUICK RUN: these times mean nothing")
    if args.threads:
        torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads, {args.rounds} rounds\n")
    print(f"{'':12}{'one':>22}{'':>8}{'ensemble':>22}")
    print(f"{'':12}{'igr-sb-mm':>11}{'dldpmm':>11}{'times':>8}{'igr-sb-mm':>11}{'dldpmm':>11}{'times':>8}")
    for suffix in ("", "+sl"):
        print(row(suffix, device, args), flush=True)


def row(suffix: str, device: torch.device, args: argparse.Namespace) -> str:
    images = np.random.default_rng(0).integers(0, 2, (100 * args.steps, 784), dtype=np.uint8)

    def trainer(method: str, num_seeds: int) -> MixtureEnsemble:
        fixed = (COMPONENTS,) if method == "dldpmm" else ()
        id = f"nonparametric/mnist/{method}{suffix}"
        cell = Mixture(
            id,
            "mnist",
            method,
            landing=suffix == "+sl",
            num_components=fixed,
            max_components=COMPONENTS,
            seeds=SEEDS[:num_seeds],
        )
        return MixtureEnsemble(cell, images, device)

    sizes = (1, 1 if args.quick else len(SEEDS))
    line, worst = f"{'ms/model' + suffix:12}", 0.0
    for name, size in zip(("one", "ensemble"), sizes, strict=True):
        work = {f"{name} {method}": trainer(method, size).run_epoch for method in ("igr-sb-mm", "dldpmm")}
        times = measure(work, args.rounds, device)
        ours, theirs = (1e3 * seconds / args.steps / size for seconds in times.values())
        worst = max(worst, ours / theirs)
        line += f"{ours:11.2f}{theirs:11.2f}{ours / theirs:8.2f}"
    return f"{line}   <= {TARGET}: {'met' if worst <= TARGET else 'not met'}"


if __name__ == "__main__":
    main()
