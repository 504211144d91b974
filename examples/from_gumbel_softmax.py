"""From `F.gumbel_softmax` to igr: a model before and after, trained side by side.

The model is an autoencoder whose code is 20 variables of 10 categories. What is between encoder and decoder differs:

    before      logits (*, N, K) -> F.gumbel_softmax
    renamed     the same logits through igr.functional.gumbel_softmax: one word changes. The samples are the same, to
                the last bit on a CPU; new are masks, generators, and a temperature for each row
    one line    the same logits through igr.functional.gaussian_softmax: the last one is the reference of the others,
                whose differences from it are K - 1 locations, with unit scale. One line changes, no shape does
    two lines   the head has 2 (K - 1) outputs for locations and scales, so that the noise is learned as well

Codes come out as (*, N, K) in all four, and are one-hot in training too, with the gradient of the relaxed ones
(`hard=True`). That matters to the last: an encoder that sets its own noise and may use relaxed codes does without
noise, away from the vertices, and one-hot codes then mean little to its decoder. A divergence from a prior works
against this as well; that of IGR is in closed form, and `igr.nn.CategoricalBottleneck` has it (discrete_vae.py).

    python examples/from_gumbel_softmax.py [--data-dir DIR] [--seed 0] [--quick]

The images are binary MNIST: all of it where --data-dir or IGR_DATA_DIR says where, else the 2,000 that come with igr.
"""

import argparse
import os
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import igr
from igr.paper.data import DataError, load, load_sample

N, K, TAU = 20, 10, 0.5

Sampler = Callable[[Tensor], Tensor]


def before(logits: Tensor) -> Tensor:
    """As PyTorch has it."""
    return F.gumbel_softmax(logits, TAU, hard=True)


def renamed(logits: Tensor) -> Tensor:
    """The same distribution."""
    return igr.functional.gumbel_softmax(logits, TAU, hard=True)


def one_line(logits: Tensor) -> Tensor:
    """Gaussian noise, K logits as before."""
    return igr.functional.gaussian_softmax(logits[..., :-1] - logits[..., -1:], 1.0, TAU, hard=True)


def two_lines(outputs: Tensor) -> Tensor:
    """Gaussian noise, of which the head (see `main`) also gives the scale."""
    loc, a = outputs.chunk(2, -1)
    return igr.functional.gaussian_softmax(loc, F.softplus(a) + 1e-3, TAU, hard=True)


class Autoencoder(nn.Module):
    """Pixels to codes by a sampler, and back."""

    def __init__(self, sampler: Sampler, outputs: int) -> None:
        super().__init__()
        self.sampler = sampler
        self.encoder = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, N * outputs))
        self.decoder = nn.Sequential(nn.Linear(N * K, 256), nn.ReLU(), nn.Linear(256, 784))

    def forward(self, x: Tensor) -> Tensor:
        """The reconstruction error in nats, mean over images."""
        z = self.sampler(self.encoder(x).unflatten(-1, (N, -1)))  # (batch, N, K)
        logits = self.decoder(z.flatten(-2))
        return F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / len(x)


def train(model: Autoencoder, images: Tensor, steps: int) -> float:
    """Returns the mean loss of the last tenth of the steps."""
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=2e-3), []
    for _ in range(steps):
        loss = model(images[torch.randint(len(images), (100,))])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    last = losses[-(steps // 10) :]
    return sum(last) / len(last)


def main() -> None:
    """Trains the four, and prints their losses."""
    parser = argparse.ArgumentParser(description="From F.gumbel_softmax to igr; see the top of this file.")
    parser.add_argument("--data-dir", default=os.environ.get("IGR_DATA_DIR"), help="where MNIST is")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a few seconds")
    args = parser.parse_args()
    try:
        data = load("mnist", args.data_dir) if args.data_dir else load_sample("mnist")
    except DataError as error:
        parser.error(str(error))
    images, test = torch.tensor(data.train).float(), torch.tensor(data.test[:1_000]).float()
    print(f"MNIST ({data.source}): {len(images)} images train, {len(test)} test; nats per image")
    print(f"{'':10}  {'training':>8}  {'test':>8}")
    for name, sampler, outputs in (
        ("before", before, K),
        ("renamed", renamed, K),
        ("one line", one_line, K),
        ("two lines", two_lines, 2 * (K - 1)),  # the second line
    ):
        torch.manual_seed(args.seed)
        model = Autoencoder(sampler, outputs)
        loss = train(model, images, 60 if args.quick else 1_000)
        with torch.no_grad():
            print(f"{name:10}  {loss:8.2f}  {model(test):8.2f}")


if __name__ == "__main__":
    main()
