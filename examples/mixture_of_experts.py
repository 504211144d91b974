"""Experts of which one answers: hard routing by IGR and GS, and soft routing by a softmax.

The function to learn is made up: x in R^8, cut into four regions by the signs of its first two coordinates, a linear
map in each, and noise of variance 0.01. Four linear experts could be exact, if a router sent each x to the right one.
Three routers learn which:

    igr-i, gs   one expert for each x, by straight-through samples with a falling temperature, and a small weight on the
                divergence from a uniform router, which keeps all experts in use at first
    soft        the experts' answers weighted by a softmax: all of them are computed for every x

All are judged twice, by what they do themselves and with the likeliest expert alone, "top 1". A soft router has no
reason to be right in the second way; its experts work as a committee. The load is the share of test points for which an
expert is the likeliest. Routers can get stuck, and how well they do depends on where they start: look at all starts.

    python examples/mixture_of_experts.py [--seed 0] [--quick]
"""

import argparse
import statistics

import torch
from torch import Tensor, nn

import igr

D, K = 8, 4


class Mixture(nn.Module):
    """A router and K linear experts."""

    def __init__(self, routing: str, steps: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(D, 32), nn.ReLU())
        self.experts = nn.Linear(D, K)
        tau = igr.schedules.Exponential(1.0, 0.1, steps=steps)
        self.router: nn.Module = (
            nn.Linear(32, K)
            if routing == "soft"
            else igr.nn.CategoricalBottleneck(
                32, 1, K, routing, temperature=tau, estimator="st_relaxed", eval_mode="argmax"
            )
        )

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of experts (batch, K), one-hot if hard, and a divergence (batch,)."""
        h = self.features(x)
        if isinstance(self.router, nn.Linear):
            return self.router(h).softmax(-1), h.new_zeros(len(h))
        z, kl = self.router(h)
        return z.squeeze(-2), kl

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Answers (batch,) and the divergence."""
        weights, kl = self.route(x)
        return (weights * self.experts(x)).sum(-1), kl


def make_data(n: int, maps: Tensor) -> tuple[Tensor, Tensor]:
    """Points and values; maps has shape (4, D)."""
    x = torch.randn(n, D)
    region = 2 * (x[:, 0] > 0) + (x[:, 1] > 0)
    return x, (maps[region] * x).sum(-1) + 0.1 * torch.randn(n)


def train(model: Mixture, x: Tensor, y: Tensor, steps: int) -> None:
    """By Adam, on the squared error and a little of the divergence."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        rows = torch.randint(len(x), (256,))
        answer, kl = model.train()(x[rows])
        loss = (answer - y[rows]).square().mean() + 0.02 * kl.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        igr.schedules.step(model)


@torch.no_grad()
def judge(model: Mixture, x: Tensor, y: Tensor) -> tuple[float, float, list[float]]:
    """Squared errors of the model itself and of the likeliest expert, and loads."""
    own = (model.eval()(x)[0] - y).square().mean()
    likeliest = model.route(x)[0].argmax(-1, keepdim=True)
    top = (model.experts(x).gather(-1, likeliest).squeeze(-1) - y).square().mean()
    return own.item(), top.item(), (likeliest.flatten().bincount(minlength=K) / len(x)).tolist()


def main() -> None:
    """Trains the three, each from several starts, and prints losses and loads."""
    parser = argparse.ArgumentParser(description="Hard and soft routing; see the top of this file.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a few seconds")
    args = parser.parse_args()
    steps, starts = (300, 1) if args.quick else (2_000, 5)
    torch.manual_seed(args.seed)
    maps = torch.randn(4, D)
    points, test = make_data(20_000, maps), make_data(5_000, maps)
    print(f"squared error on {len(test[0])} test points; variance of the values {test[1].var():.3f}, of noise 0.010")
    print(f"router  start  {'itself':>7}  {'top 1':>7}  load of each expert")
    for routing in ("igr-i", "gs", "soft"):
        results = []
        for start in range(starts):
            torch.manual_seed(args.seed + start)
            model = Mixture(routing, steps)
            train(model, *points, steps)
            own, top, load = judge(model, *test)
            print(f"{routing:6}  {start:5}  {own:7.3f}  {top:7.3f}  " + " ".join(f"{share:.2f}" for share in load))
            results.append((own, top))
        own, top = (statistics.median(column) for column in zip(*results, strict=True))
        print(f"{routing:6} median  {own:7.3f}  {top:7.3f}")


if __name__ == "__main__":
    main()
