"""Pyro models whose guides have sites of igr: a VAE with categorical codes, and a Dirichlet process mixture.

Pyro samples from any PyTorch distribution that derives from its `TorchDistributionMixin` too, so that two classes
without a body are all that is needed. `TraceMeanField_ELBO` then finds the closed-form divergences of igr by itself;
`Trace_ELBO`, which scores samples, agrees in the mean, down to temperatures where samples round to the vertices.

1.  Categorical codes: prior and guide of a VAE are igr.InvertibleGaussian, on the MNIST images that come with igr.
2.  How many clusters? Points around five centres (drawn here, from a seed), a truncated stick-breaking prior with
    Beta sticks for up to 12 components, and Kumaraswamy sticks in the guide; of three starts that with the best ELBO.

    python examples/pyro_mixture.py [--seed 0] [--quick]

Needs pyro-ppl: pip install -e '.[pyro]'
"""

import argparse

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from torch import Tensor, nn
from torch.distributions import constraints

import igr
from igr.paper.data import load_sample


class InvertibleGaussian(igr.InvertibleGaussian, TorchDistributionMixin):
    """As in igr; expand_by, to_event and mask, which sites and plates need, come from Pyro."""


class Kumaraswamy(igr.Kumaraswamy, TorchDistributionMixin):
    """Likewise."""


class VAE(nn.Module):
    """Pixels to N categorical variables of K categories and back, as a model and a guide."""

    N, K, TAU = 20, 10, 0.5

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 2 * self.N * (self.K - 1)))
        self.decoder = nn.Sequential(nn.Linear(self.N * self.K, 256), nn.ReLU(), nn.Linear(256, 784))
        uniform = igr.fit_prior(torch.full((self.K,), 1 / self.K), temperature=self.TAU)
        self.loc, self.scale = uniform.loc, uniform.scale

    def model(self, x: Tensor) -> None:
        """Codes from the prior, pixels from codes."""
        pyro.module("vae", self)
        with pyro.plate("images", len(x)):
            prior = InvertibleGaussian(self.loc, self.scale, self.TAU).expand((len(x), self.N))
            z = pyro.sample("z", prior.to_event(1))  # (batch, N, K)
            pixels = dist.Bernoulli(logits=self.decoder(z.flatten(-2)), validate_args=False)
            pyro.sample("x", pixels.to_event(1), obs=x)

    def guide(self, x: Tensor) -> None:
        """Codes from pixels."""
        loc, a = self.encoder(x).unflatten(-1, (self.N, -1)).chunk(2, -1)
        with pyro.plate("images", len(x)):
            q = InvertibleGaussian(loc, nn.functional.softplus(a) + 1e-3, self.TAU)
            pyro.sample("z", q.to_event(1))


def train_vae(steps: int) -> None:
    """Prints the ELBO of test images before and after, and after as Trace_ELBO has it."""
    data = load_sample("mnist")
    train, test = torch.tensor(data.train).float(), torch.tensor(data.test).float()
    vae = VAE()
    svi = SVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 2e-3}), TraceMeanField_ELBO())
    print(f"VAE, before: -ELBO {svi.evaluate_loss(test) / len(test):.2f} nats")
    for _ in range(steps):
        svi.step(train[torch.randint(len(train), (100,))])
    exact, scored = (
        elbo(num_particles=20).loss(vae.model, vae.guide, test) / len(test)
        for elbo in (TraceMeanField_ELBO, Trace_ELBO)
    )
    print(f"VAE, after: -ELBO {exact:.2f} nats with divergences in closed form, {scored:.2f} by scoring samples")


class Mixture:
    """A Dirichlet process mixture of round Gaussians in the plane, cut at T components."""

    T, ALPHA = 12, 1.0

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.start = x[torch.randperm(len(x))[: self.T]].clone()  # components start at points of the data

    def log_weights(self, v: Tensor) -> Tensor:
        """Lengths of T sticks from T-1 fractions, the last being what is left."""
        rest = nn.functional.pad(torch.log1p(-v).cumsum(-1), (1, 0))
        return nn.functional.pad(v.log(), (0, 1)) + rest

    def components(self, v: Tensor, centre: Tensor) -> dist.MixtureSameFamily:
        """The distribution of a point."""
        around = dist.Normal(centre, 1.0).to_event(1)
        return dist.MixtureSameFamily(dist.Categorical(logits=self.log_weights(v)), around)

    def model(self) -> None:
        """Sticks, centres, points."""
        with pyro.plate("sticks", self.T - 1):
            v = pyro.sample("v", dist.Beta(torch.ones(()), self.ALPHA))
        with pyro.plate("centres", self.T):
            centre = pyro.sample("centre", dist.Normal(torch.zeros(2), 10.0).to_event(1))
        with pyro.plate("points", len(self.x)):
            pyro.sample("x", self.components(v, centre), obs=self.x)

    def guide(self) -> None:
        """Kumaraswamy sticks, normal centres."""
        ones = torch.ones(self.T - 1)
        a, b = (pyro.param(name, ones, constraint=constraints.positive) for name in ("a", "b"))
        loc = pyro.param("loc", self.start)
        scale = pyro.param("scale", torch.full_like(self.start, 0.1), constraint=constraints.positive)
        with pyro.plate("sticks", self.T - 1):
            pyro.sample("v", Kumaraswamy(a, b))
        with pyro.plate("centres", self.T):
            pyro.sample("centre", dist.Normal(loc, scale).to_event(1))

    def assign(self) -> Tensor:
        """The likeliest component of each point, at the means of the guide."""
        v, centre = Kumaraswamy(pyro.param("a"), pyro.param("b")).mean, pyro.param("loc")
        log_p = self.log_weights(v) - (self.x.unsqueeze(1) - centre).square().sum(-1) / 2
        return log_p.argmax(-1)


def fit_mixture(steps: int, starts: int) -> None:
    """Prints the ELBO of each start, and how many components the best one uses, and for which points."""
    centres = torch.tensor([[-6.0, -6.0], [-6.0, 6.0], [0.0, 0.0], [6.0, -6.0], [6.0, 6.0]])
    label = torch.repeat_interleave(torch.arange(5), torch.tensor([120, 90, 60, 60, 30]))
    x = centres[label] + torch.randn(len(label), 2)
    fits = []
    for start in range(starts):
        pyro.clear_param_store()
        mixture = Mixture(x)
        elbo = TraceMeanField_ELBO(num_particles=100)
        before = elbo.loss(mixture.model, mixture.guide) / len(x)
        svi = SVI(mixture.model, mixture.guide, pyro.optim.Adam({"lr": 0.05}), TraceMeanField_ELBO())
        for _ in range(steps):
            svi.step()
        fits.append((elbo.loss(mixture.model, mixture.guide) / len(x), mixture.assign()))
        print(f"mixture, start {start}: -ELBO {before:.3f} before, {fits[-1][0]:.3f} nats per point after")
    _, found = min(fits, key=lambda fit: fit[0])
    table = nn.functional.one_hot(found, Mixture.T).T @ nn.functional.one_hot(label, 5)  # (T, 5), how many points
    sizes = sorted(table.sum(-1).tolist(), reverse=True)
    print(
        f"mixture: {sum(size >= 0.01 * len(x) for size in sizes)} clusters of at least 1 % of the points, 5 are there"
    )
    print(f"mixture: sizes {sizes[:7]}, true {label.bincount().tolist()}")
    print(f"mixture: {table.amax(-1).sum() / len(x):.1%} of the points are among their kind")


def main() -> None:
    """Both models."""
    parser = argparse.ArgumentParser(description="Pyro models with sites of igr; see the top of this file.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a few seconds")
    args = parser.parse_args()
    pyro.set_rng_seed(args.seed)
    train_vae(100 if args.quick else 2_000)
    torch.set_default_dtype(torch.float64)
    fit_mixture(300, starts=1) if args.quick else fit_mixture(800, starts=3)


if __name__ == "__main__":
    main()
