"""A discrete VAE in plain PyTorch: 20 variables of 10 categories between an encoder and a decoder.

`igr.nn.CategoricalBottleneck` is the part in the middle. In training it returns relaxed samples and their divergence
from a uniform prior, at a temperature that falls from 1 to 0.3; in evaluation it returns one-hot samples. The test
images are then scored as the discrete model that this is: reconstruction from one-hot codes, and the divergence of
the categoricals behind, which together bound -log p(x).

    python examples/discrete_vae.py [--data-dir DIR] [--seed 0] [--quick]

The images are binary MNIST: all of it where --data-dir or IGR_DATA_DIR says where, else the 2,000 that come with igr.
"""

import argparse
import math
import os

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import igr
from igr.paper.data import DataError, load, load_sample

N, K = 20, 10


class VAE(nn.Module):
    """Pixels to N categorical variables and back."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        tau = igr.schedules.Exponential(1.0, 0.3, steps=steps)
        self.encoder = nn.Sequential(nn.Linear(784, 256), nn.ReLU())
        self.code = igr.nn.CategoricalBottleneck(256, num_variables=N, num_categories=K, temperature=tau)
        self.decoder = nn.Sequential(nn.Linear(N * K, 256), nn.ReLU(), nn.Linear(256, 784))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Reconstruction error and divergence in nats, both of shape (batch,)."""
        z, kl = self.code(self.encoder(x))  # (batch, N, K) and (batch,)
        logits = self.decoder(z.flatten(-2))
        return F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1), kl


@torch.no_grad()
def discrete_bound(vae: VAE, x: Tensor) -> float:
    """An upper bound on -log p(x) of the discrete model, with one-hot samples, mean over images."""
    error, _ = vae.eval()(x)
    q = vae.code.distribution(vae.encoder(x)).recovered()  # categoricals, batch shape (batch, N)
    return (error + N * math.log(K) - q.entropy().sum(-1)).mean().item()


def main() -> None:
    """Trains, and prints the bound on test images before and after."""
    parser = argparse.ArgumentParser(description="A discrete VAE; see the top of this file.")
    parser.add_argument("--data-dir", default=os.environ.get("IGR_DATA_DIR"), help="where MNIST is")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a few seconds")
    args = parser.parse_args()
    steps = 150 if args.quick else 2_000

    try:
        data = load("mnist", args.data_dir) if args.data_dir else load_sample("mnist")
    except DataError as error:
        parser.error(str(error))
    train, test = torch.tensor(data.train).float(), torch.tensor(data.test[:1_000]).float()
    print(f"MNIST ({data.source}): {len(train)} images train, {len(test)} test")

    torch.manual_seed(args.seed)
    vae = VAE(steps)
    optimizer = torch.optim.Adam(vae.parameters(), lr=2e-3)
    print(f"before: test bound {discrete_bound(vae, test):.1f} nats")
    for step in range(1, steps + 1):
        error, kl = vae.train()(train[torch.randint(len(train), (100,))])
        loss = (error + kl).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        igr.schedules.step(vae)
        if step % (steps // 5) == 0:
            bound, tau = discrete_bound(vae, test), vae.code.temperature
            print(f"step {step}: tau {tau:.3f}, training loss {loss:.1f}, test bound {bound:.1f} nats")


if __name__ == "__main__":
    main()
