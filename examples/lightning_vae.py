"""The discrete VAE of discrete_vae.py as a Lightning module, interrupted and resumed from a checkpoint.

A hook counts the steps of the temperature's schedule, one after each batch. The count is a buffer of the model, so that
Lightning saves it with the weights. Half of the training, a checkpoint, and the other half in a new trainer and a new
module end at the very temperature of the whole training in one go.

    python examples/lightning_vae.py [--data-dir DIR] [--seed 0] [--quick]

Needs Lightning: pip install -e '.[lightning]'. The images are binary MNIST: all of it where --data-dir or IGR_DATA_DIR
says where, else the 2,000 that come with igr.
"""

import argparse
import logging
import math
import os
import tempfile
import warnings
from pathlib import Path

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import igr
from igr.paper.data import DataError, load, load_sample

N, K = 20, 10


class VAE(lightning.LightningModule):
    """Pixels to N categorical variables and back."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        tau = igr.schedules.Exponential(1.0, 0.3, steps=steps)
        self.encoder = nn.Sequential(nn.Linear(784, 256), nn.ReLU())
        self.code = igr.nn.CategoricalBottleneck(256, num_variables=N, num_categories=K, temperature=tau)
        self.decoder = nn.Sequential(nn.Linear(N * K, 256), nn.ReLU(), nn.Linear(256, 784))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Reconstruction error and divergence in nats, both of shape (batch,)."""
        z, kl = self.code(self.encoder(x))
        logits = self.decoder(z.flatten(-2))
        return F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1), kl

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        error, kl = self(batch[0])
        self.log("tau", self.code.temperature)
        return (error + kl).mean()

    def on_train_batch_end(self, outputs: object, batch: object, batch_idx: int) -> None:
        igr.schedules.step(self)

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        error, _ = self(batch[0])  # from one-hot samples: Lightning has called eval()
        q = self.code.distribution(self.encoder(batch[0])).recovered()
        self.log("bound", (error + N * math.log(K) - q.entropy().sum(-1)).mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def trainer(epochs: int) -> lightning.Trainer:
    """One that prints and writes nothing."""
    return lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def main() -> None:
    """Trains in one go and in two, and prints the temperature and the bound on test images of both."""
    parser = argparse.ArgumentParser(description="A discrete VAE in Lightning; see the top of this file.")
    parser.add_argument("--data-dir", default=os.environ.get("IGR_DATA_DIR"), help="where MNIST is")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a few seconds")
    args = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")  # its advice to load data in other processes

    try:
        data = load("mnist", args.data_dir) if args.data_dir else load_sample("mnist")
    except DataError as error:
        parser.error(str(error))
    images = TensorDataset(torch.tensor(data.train).float())
    train = DataLoader(images, batch_size=100, shuffle=True)
    test = DataLoader(TensorDataset(torch.tensor(data.test[:1_000]).float()), batch_size=100)
    print(f"MNIST ({data.source}): {len(images)} images train, {len(test.dataset)} test")
    epochs = 4 if args.quick else max(4, 2 * (1_000 // len(train)))
    steps = epochs * len(train)

    def bound(vae: VAE) -> float:
        return trainer(epochs).test(vae, test, verbose=False)[0]["bound"]

    lightning.seed_everything(args.seed, verbose=False)
    whole = VAE(steps)
    print(f"before: test bound {bound(whole):.1f} nats, tau {whole.code.temperature:.6f}")
    trainer(epochs).fit(whole, train)
    print(f"in one go: test bound {bound(whole):.1f} nats, tau {whole.code.temperature:.6f}")

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "half.ckpt"
        lightning.seed_everything(args.seed, verbose=False)
        first = trainer(epochs // 2)
        first.fit(VAE(steps), train)
        first.save_checkpoint(checkpoint)
        print(f"half way: tau {first.lightning_module.code.temperature:.6f}")
        resumed = VAE(steps)
        trainer(epochs).fit(resumed, train, ckpt_path=checkpoint)
    print(f"resumed: test bound {bound(resumed):.1f} nats, tau {resumed.code.temperature:.6f}")
    counts = int(whole.code.tau.count), int(resumed.code.tau.count)
    same = counts[0] == counts[1] and torch.equal(whole.code.temperature, resumed.code.temperature)
    print(f"same temperature: {'yes' if same else 'no'}, after {counts[0]} and {counts[1]} steps")


if __name__ == "__main__":
    main()
