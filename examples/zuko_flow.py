"""A zuko flow inside a relaxation: the red bus and the blue bus.

Half of the travellers take the car. Offered a bus instead, red or blue, half take it; offered both, those who like a
bus do not care which, and the car keeps its half. So a traveller's taste is a hidden y in R^2, the wish to take either
bus rather than the car, and the choice among what is offered is the largest of (y_1, y_2, 0). With independent noise,
as in IGR-I with unit scale, no locations give these shares: the car is left only if both are negative, so that two
chances of one half leave it a quarter.

A masked autoregressive flow of zuko between the Gaussian and the softmax++ makes the two wishes depend on each other.
Both relaxations are trained by the cross-entropy of relaxed samples, restricted to what is offered, and then judged by
the total variation of hard ones. IGR-I spreads its error over all offers, which lowers the first and not the second.

    python examples/zuko_flow.py [--seed 0] [--quick]

Needs zuko: pip install -e '.[zuko]'. The shares are made up; the story is an old one of discrete choice.
"""

import argparse
from collections.abc import Callable

import torch
import zuko
from torch import Tensor, nn
from torch.distributions import Normal

import igr
from igr.distributions import Relaxation

TAU = 0.1
OFFERS = torch.tensor([[True, True, True], [True, False, True], [False, True, True]])  # red bus, blue bus, car
SHARES = torch.tensor([[0.25, 0.25, 0.5], [0.5, 0.0, 0.5], [0.0, 0.5, 0.5]])


class Plain(nn.Module):
    """IGR-I with unit scale: two locations."""

    def __init__(self) -> None:
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(2))

    def forward(self) -> Relaxation:
        """The relaxation."""
        return igr.InvertibleGaussian(self.loc, 1.0, temperature=TAU)


class Flow(nn.Module):
    """A standard normal, a flow of zuko, and the softmax++."""

    def __init__(self) -> None:
        super().__init__()
        self.flow = zuko.flows.MAF(features=2, transforms=2, hidden_features=(32,))

    def forward(self) -> Relaxation:
        """The relaxation."""
        base = Normal(torch.zeros(2), torch.ones(2))
        return igr.InvertibleReparameterization(base, [self.flow().transform, igr.SoftmaxPlusPlus(TAU)])


def offered(log_z: Tensor) -> Tensor:
    """Samples (S, 3) restricted to each offer, logarithms again: (S, 3 offers, 3)."""
    return log_z.unsqueeze(-2).masked_fill(~OFFERS, -1e4).log_softmax(-1)  # -inf has no gradient


@torch.no_grad()
def shares(make: Callable[[], Relaxation], num_samples: int = 200_000) -> Tensor:
    """How often each category is the largest in each offer, (3, 3)."""
    largest = offered(make().log_rsample((num_samples,))).argmax(-1)  # (S, 3)
    return nn.functional.one_hot(largest, 3).double().mean(0)


def distance(probs: Tensor) -> float:
    """Total variation from the target, mean over offers."""
    return ((probs - SHARES).abs().sum(-1) / 2).mean().item()


def best_of_igr_i() -> float:
    """The smallest distance that any locations of IGR-I with unit scale have, on a grid, by exact probabilities."""
    loc = torch.cartesian_prod(*2 * [torch.linspace(-2.0, 2.0, 161, dtype=torch.float64)])
    car = Normal(0.0, 1.0).cdf(-loc)  # its share beside one bus
    rows = [igr.recovered_log_probs(loc, torch.ones_like(loc)).exp()]
    rows += [torch.stack([(1 - p) * bus, (1 - p) * (1 - bus), p], -1) for bus, p in ((1, car[:, 0]), (0, car[:, 1]))]
    return min(distance(probs) for probs in torch.stack(rows, -2))


def train(module: nn.Module, steps: int) -> None:
    """By the cross-entropy of the target shares and the mean relaxed sample."""
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        log_mean = offered(module().log_rsample((1_000,))).logsumexp(0)
        loss = -(SHARES * log_mean).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()


def main() -> None:
    """Trains both, and prints their distances and shares."""
    parser = argparse.ArgumentParser(description="A zuko flow inside a relaxation; see the top of this file.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a few seconds")
    args = parser.parse_args()
    print(f"IGR-I, whatever its locations: distance at least {best_of_igr_i():.4f}")
    for name, kind in (("IGR-I", Plain), ("zuko flow", Flow)):
        torch.manual_seed(args.seed)
        module = kind()
        before = distance(shares(module))
        train(module, 200 if args.quick else 2_000)
        after = shares(module)
        print(f"{name}: distance before {before:.4f}, after {distance(after):.4f}")
        for offer, target, row in zip(OFFERS, SHARES, after, strict=True):
            names = [label for label, there in zip(("red", "blue", "car"), offer.tolist(), strict=True) if there]
            found = ", ".join(f"{share:.3f}" for share in row[offer].tolist())
            print(f"    {'/'.join(names)}: {found}; wanted {target[offer].tolist()}")
    log_q = module().rsample_and_log_prob((1_000,))[1]
    print(f"density at its samples: finite {log_q.isfinite().float().mean():.0%}")


if __name__ == "__main__":
    main()
