"""Problems whose answers are known: q as it may be given, f with parameters of its own, expectations by enumeration.

No answer comes from the library. Probabilities are a softmax, or Proposition 2 by Simpson's rule on a dense grid,
through which autograd differentiates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical

import igr
from igr.transforms import Planar, StickBreaking

Function = Callable[[Tensor], Tensor]
Tensors = dict[str, Tensor]
TAU = 0.6

# -- expectations and z-scores -----------------------------------------------------------------------------------------


def gaussian_winner_probs(loc: Tensor, scale: Tensor, nodes: int = 4001, width: float = 9.0) -> Tensor:
    """P(h(y) = k) for y ~ N(loc, scale²): coordinate k is positive and the largest, or, the last, none is positive."""
    top = (loc + width * scale).detach().amax(-1, keepdim=True).clamp(min=1e-3)
    grid = torch.linspace(0, 1, nodes, dtype=loc.dtype)
    simpson = torch.full((nodes,), 2.0, dtype=loc.dtype)
    simpson[1::2] = 4.0
    simpson[0] = simpson[-1] = 1.0
    t = top.unsqueeze(-1) * grid  # (*, 1, nodes)
    z = (t - loc.unsqueeze(-1)) / scale.unsqueeze(-1)  # (*, K-1, nodes)
    cdf, pdf = torch.special.ndtr(z), torch.exp(-0.5 * z.square()) / (2 * torch.pi) ** 0.5 / scale.unsqueeze(-1)
    others = torch.stack([_product_without(cdf, k) for k in range(loc.shape[-1])], -2)
    first = (pdf * others * simpson).sum(-1) * top / (3 * (nodes - 1))
    return torch.cat([first, torch.special.ndtr(-loc / scale).prod(-1, keepdim=True)], -1)


def _product_without(x: Tensor, k: int) -> Tensor:
    """The product over the second to last axis, entry k left out."""
    return torch.cat([x[..., :k, :], x[..., k + 1 :, :]], -2).prod(-2)


def states(N: int, K: int) -> Tensor:
    """All K^N of them, one-hot, shape (K^N, N, K)."""
    index = torch.cartesian_prod(*[torch.arange(K)] * N).reshape(-1, N)
    return torch.nn.functional.one_hot(index, K).double()


def tabulate(probs: Tensor, f: Function) -> tuple[Tensor, Tensor]:
    """Probabilities and values of all states, both (K^N, *), from probs of shape (*, N, K)."""
    every = states(*probs.shape[-2:])
    every = every.reshape(-1, *[1] * (probs.dim() - 2), *probs.shape[-2:]).expand(-1, *probs.shape)
    return (probs * every).sum(-1).prod(-1), f(every)


def expectation(probs: Tensor, f: Function) -> Tensor:
    """E[f(D)], shape (*)."""
    p, values = tabulate(probs, f)
    return (p * values).sum(0)


def bound(probs: Tensor, f: Function, num_samples: int) -> Tensor:
    """E[log 1/S Σ_s exp f(D_s)] over all S-tuples of states, shape (*)."""
    p, values = tabulate(probs, f)
    tuples = torch.cartesian_prod(*[torch.arange(len(p))] * num_samples).reshape(-1, num_samples)
    log_mean = values[tuples].logsumexp(1) - math.log(num_samples)
    return (p[tuples].prod(1) * log_mean).sum(0)


def z_scores(estimates: Tensor, truth: Tensor) -> Tensor:
    """Of the mean over the first axis, in standard errors; the enumeration itself is trusted to nine digits."""
    error = estimates.mean(0) - truth
    variance = estimates.var(0) / len(estimates)
    return error / (variance + (1e-9 * (1 + truth.abs())).square()).sqrt()


# -- q, whatever it may be given as ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """A kind of q: its parameters, shape (*, N, ...), what is made of them, and the probabilities of its categories."""

    build: Callable[[Tensors], Distribution]
    parameters: tuple[str, ...] = ("logits",)
    probs: Callable[[Tensors], Tensor] | None = None
    binary: bool = False  # f maps (S, *, N)
    kinds: tuple[str, ...] = ()  # its noise, and whether its probabilities and the density of its samples are known

    def shape(self, N: int, K: int) -> tuple[int, ...]:
        return (N,) if self.binary else (N, K - 1 if "loc" in self.parameters else K)


def igr_i(p: Tensors, tau: float | Tensor = TAU, **options: Any) -> Distribution:
    return igr.InvertibleGaussian(p["loc"], p["scale"], tau, **options)


def _planar(p: Tensors) -> Distribution:
    ones = torch.ones_like(p["loc"][0])
    return igr_i(p, flow=Planar(u=0.4 * ones, w=0.3 * ones, b=ones[..., 0]))


def _softmax(p: Tensors) -> Tensor:
    return p["logits"].softmax(-1)


def _two(p: Tensors) -> Tensor:
    return torch.stack([p["logits"].sigmoid(), (-p["logits"]).sigmoid()], -1)


def _winner(p: Tensors) -> Tensor:
    return gaussian_winner_probs(p["loc"], p["scale"])


NORMAL = ("loc", "scale")
FAMILIES: dict[str, Family] = {
    "gs": Family(lambda p: igr.GumbelSoftmax(TAU, p["logits"]), probs=_softmax, kinds=("gumbel", "known", "path")),
    "igr": Family(igr_i, NORMAL, _winner, kinds=("gaussian", "known", "path")),
    "categorical": Family(lambda p: Categorical(logits=p["logits"]), probs=_softmax, kinds=("gumbel", "known")),
    "one-hot": Family(lambda p: OneHotCategorical(logits=p["logits"]), probs=_softmax, kinds=("gumbel", "known")),
    "independent": Family(
        lambda p: Independent(OneHotCategorical(logits=p["logits"]), 1), probs=_softmax, kinds=("gumbel", "known")
    ),
    "bernoulli": Family(lambda p: Bernoulli(logits=p["logits"]), probs=_two, binary=True, kinds=("gumbel", "known")),
    "binary-concrete": Family(
        lambda p: igr.BinaryConcrete(TAU, p["logits"]), probs=_two, binary=True, kinds=("gumbel", "known", "path")
    ),
    "independent bernoulli": Family(
        lambda p: Independent(Bernoulli(logits=p["logits"]), 1), probs=_two, binary=True, kinds=("gumbel", "known")
    ),
    "igr-sb": Family(lambda p: igr_i(p, flow=StickBreaking()), NORMAL, kinds=("sticks", "known", "path")),
    "igr-planar": Family(_planar, NORMAL, kinds=("path",)),
}


# -- f -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """f(D; its own parameters), for D of shape (S, *, N, K), and the shapes of these parameters, (*, ...)."""

    f: Callable[[Tensor, Tensors], Tensor]
    shapes: Callable[[int, int], dict[str, tuple[int, ...]]]


def _quadratic(D: Tensor, w: Tensors) -> Tensor:
    return ((D * w["weight"]).sum((-2, -1)) - w["target"]).square()


def _network(D: Tensor, w: Tensors) -> Tensor:
    hidden = torch.tanh((w["hidden"] * D.flatten(-2).unsqueeze(-2)).sum(-1))
    return (w["out"] * hidden).sum(-1)


def _product(D: Tensor, w: Tensors) -> Tensor:
    each = (D * w["weight"]).sum(-1)
    return each.prod(-1) + torch.cos(each.sum(-1))


PROBLEMS = {
    "quadratic": Problem(_quadratic, lambda N, K: {"weight": (N, K), "target": ()}),
    "network": Problem(_network, lambda N, K: {"hidden": (4, N * K), "out": (4,)}),
    "product": Problem(_product, lambda N, K: {"weight": (N, K)}),
}


@dataclass
class Setting:
    """Parameters of q and of f, both leaves, shape (*, ...), and the two made of them."""

    family: Family
    problem: Problem
    q_parameters: Tensors
    f_parameters: Tensors
    with_log_q: bool = False

    @property
    def leaves(self) -> Tensors:
        return self.q_parameters | self.f_parameters

    @property
    def q(self) -> Distribution:
        return self.family.build(self.q_parameters)

    def f(self, D: Tensor) -> Tensor:
        D = torch.stack([D, 1 - D], -1) if self.family.binary else D
        return self.f_one_hot(D)

    def f_one_hot(self, D: Tensor) -> Tensor:
        values = self.problem.f(D, self.f_parameters)
        if self.with_log_q:
            values = values + (D * self.family.probs(self.q_parameters).log()).sum((-2, -1))
        return values

    def expand(self, rows: int) -> Setting:
        """The same, for every row a copy, which are leaves."""
        q, f = (
            {name: p.detach().expand(rows, *p.shape).clone().requires_grad_() for name, p in group.items()}
            for group in (self.q_parameters, self.f_parameters)
        )
        return replace(self, q_parameters=q, f_parameters=f)

    def to(self, dtype: torch.dtype) -> Setting:
        q, f = (
            {name: p.detach().to(dtype).requires_grad_() for name, p in group.items()}
            for group in (self.q_parameters, self.f_parameters)
        )
        return replace(self, q_parameters=q, f_parameters=f)


def setting(
    family: str, problem: str, batch: tuple[int, ...] = (), N: int = 2, K: int = 3, seed: int = 3, **options: Any
) -> Setting:
    generator = torch.Generator().manual_seed(seed)

    def leaf(*shape: int, positive: bool = False) -> Tensor:
        x = torch.randn((*batch, *shape), dtype=torch.float64, generator=generator)
        return (0.4 + torch.sigmoid(2 * x) if positive else 0.8 * x).requires_grad_()

    kind, function = FAMILIES[family], PROBLEMS[problem]
    q = {name: leaf(*kind.shape(N, K), positive=name == "scale") for name in kind.parameters}
    f = {name: leaf(*shape) for name, shape in function.shapes(N, 2 if kind.binary else K).items()}
    return Setting(kind, function, q, f, **options)
