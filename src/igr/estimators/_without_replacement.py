"""Samples of several variables without replacement, and the probability of the set that was sampled."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from igr._draws import gumbel_noise

_IMPOSSIBLE = -1e30  # finite, so that differences of what is impossible are not NaN; sums of it do not overflow
_AT_ONCE = 2**21  # float64 numbers of an intermediate tensor


class Sampled(NamedTuple):
    """S distinct joint states of N variables, in the order in which they were drawn, float64."""

    categories: Tensor
    """Of each variable, ``(S, *, N)``."""
    log_p: Tensor
    """log p(s), ``(S, *)``."""
    log_rest: Tensor
    """The logarithm of the mass of all other states, ``(*)``."""


class SetProbs(NamedTuple):
    """Log-probabilities of a set S, and of S with one or two states taken out of it and out of the domain D."""

    whole: Tensor
    r""":math:`P^D(S)`, ``(*)``."""
    less_one: Tensor
    r""":math:`P^{D \setminus s}(S \setminus s)`, ``(S, *)``."""
    less_two: Tensor
    r""":math:`P^{D \setminus \{s, s'\}}(S \setminus \{s, s'\})`, ``(S, S, *)``; the diagonal means nothing."""


@torch.no_grad()
def sample_without_replacement(log_probs: Tensor, num_samples: int, generator: torch.Generator | None) -> Sampled:
    r"""The ``num_samples`` largest of all :math:`K^N` perturbed log-probabilities, variable by variable.

    A node of the tree of partial states has log-probability :math:`\phi` and the maximum :math:`G` of the perturbed
    values below it. Its children's :math:`g_c = \phi_c + \epsilon_c` are moved so that their maximum is :math:`G`,

    .. math:: G_c = -\log (e^{-G} - e^{-\max_c g_c} + e^{-g_c}),

    and nodes with the largest :math:`G_c` are kept. All states are returned where there are no more than asked for.

    Note:
        The remaining mass is the sum over all nodes that were left out, so it is accurate however small it is. States
        of probability zero are reached after all others; they are replaced by the first state, with probability zero.

    References:
        Kool et al. (2019), "Stochastic beams and where to find them".

    Arguments:
        log_probs: shape ``(*, N, K)``.
    """
    log_q = log_probs.double().log_softmax(-1).clamp(min=_IMPOSSIBLE)
    N, K = log_q.shape[-2:]
    noise = gumbel_noise(log_q.expand(num_samples, *log_q.shape), generator).movedim(0, -3)  # (*, S, N, K)
    phi = top = log_q.new_zeros((*log_q.shape[:-2], 1))  # of the root; the order of leaves does not depend on its top
    categories = torch.zeros((*phi.shape, 0), dtype=torch.long, device=phi.device)
    left_out = []
    for n in range(N):
        grown = phi.unsqueeze(-1) + log_q[..., n, :].unsqueeze(-2)  # (*, nodes, K)
        perturbed = _with_maximum(grown + noise[..., : phi.shape[-1], n, :], top.unsqueeze(-1)).flatten(-2)
        top, kept = perturbed.topk(min(num_samples, perturbed.shape[-1]), -1)
        left_out.append(grown.flatten(-2).scatter(-1, kept, -math.inf).logsumexp(-1))
        phi = grown.flatten(-2).gather(-1, kept)
        parents = (kept // K).unsqueeze(-1)
        categories = torch.cat([categories.take_along_dim(parents, -2), (kept % K).unsqueeze(-1)], -1)
    possible = (phi > _IMPOSSIBLE / 2).unsqueeze(-1)
    categories = torch.where(possible, categories, categories[..., :1, :])
    return Sampled(categories.movedim(-2, 0), phi.movedim(-1, 0), torch.stack(left_out).logsumexp(0))


def _with_maximum(g: Tensor, top: Tensor) -> Tensor:
    """Gumbel variables g moved, in their order, so that the largest is ``top``."""
    shrunk = (-torch.expm1(g - g.amax(-1, keepdim=True))).log()  # -inf for the largest, which then is exactly top
    return top - torch.logaddexp(torch.zeros_like(g), top - g + shrunk)


@torch.no_grad()
def log_set_probs(log_p: Tensor, log_rest: Tensor) -> SetProbs:
    r"""The probability that the first S draws without replacement are the given set, whatever their order.

    State s is drawn at an exponential time of rate :math:`p(s)`, and the first of those outside of the set at one of
    rate :math:`r`, the remaining mass; the set comes first if all its times are earlier. In units of :math:`1 / r`,

    .. math:: P(S) = \int_0^\infty e^{-t} \prod_{s \in S} (1 - e^{-t\, p(s) / r})\, dt.

    Taking a state out of both set and domain leaves r as it is and drops its factor. The integral is done without two
    factors; the other probabilities follow from it, since some state of the set comes first:

    .. math:: P^{D \setminus s}(S \setminus s) = \sum_{s' \ne s} \frac{p(s')}{1 - p(s)}
        P^{D \setminus \{s, s'\}}(S \setminus \{s, s'\}), \qquad
        P^D(S) = \sum_s p(s)\, P^{D \setminus s}(S \setminus s).

    Note:
        The trapezoidal rule in :math:`\log t`, where the integrand is analytic and decays at both ends, with a step
        that follows S, is exact to about 1e-14 for a few states and 1e-12 for a hundred, for rates of any size.
        Cost grows with :math:`S^2`, not with the number of orders, :math:`S!`. Rows are taken in chunks.

    Arguments:
        log_p: float64, shape ``(S, *)``.
        log_rest: :math:`\log r`, where r and all p(s) add up to one; it may be :math:`-\infty`, shape ``(*)``.
    """
    S = log_p.shape[0]
    x, log_weight = _rule(log_p)
    log_rates = (log_p - log_rest).reshape(S, -1).T  # (rows, S)
    chunks = log_rates.split(max(1, _AT_ONCE // (S * len(x))))
    less_two = torch.cat([_without_pairs(rows, x, log_weight) for rows in chunks])  # (rows, S, S)
    less_two = less_two.movedim(0, -1).reshape(S, S, *log_rest.shape)
    others = log_p.masked_fill(diagonal(log_p), -math.inf)  # (S, S, *), the second another state than the first
    log_others = torch.cat([others, log_rest.expand(S, 1, *log_rest.shape)], 1).logsumexp(1)  # of 1 - p
    less_one = (others + less_two).logsumexp(1) - log_others
    return SetProbs((log_p + less_one).logsumexp(0), less_one, less_two)


def _without_pairs(log_rates: Tensor, x: Tensor, log_weight: Tensor) -> Tensor:
    """The logarithm of the integral without two of the factors, ``(rows, S, S)``, from rates ``(rows, S)``."""
    u = log_rates.unsqueeze(-1) + x  # (rows, S, nodes)
    product = log_rates.exp().unsqueeze(-1) * x.exp()  # e^u, which is looked at where it has not underflowed
    factors = torch.where(u < -40, u, (-torch.expm1(-product)).log())
    # the product of two of these is the integrand without both factors: one matrix product for all pairs
    halves = 0.5 * (factors.sum(-2, keepdim=True) + log_weight) - factors
    peak = halves.amax(-1, keepdim=True)
    scaled = (halves - peak).exp()
    return (scaled @ scaled.mT).log() + peak + peak.mT


def diagonal(log_p: Tensor) -> Tensor:
    """Which pairs of states are one and the same, to be broadcast over ``(S, S, *)``."""
    S = log_p.shape[0]
    return torch.eye(S, dtype=torch.bool, device=log_p.device).reshape(S, S, *(1,) * (log_p.dim() - 1))


def _rule(log_p: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes in log t, and the logarithms of their weights, those of e^(-t) dt."""
    S = log_p.shape[0]
    # integrands are at least as wide as t^S e^(-t), which is what unlikely states make; e^(-37) is a rounding error
    step, low, high = 0.7 / math.sqrt(S + 8), -37.0, math.log(S + 10 * math.sqrt(S) + 40)
    nodes = torch.arange(math.ceil((high - low) / step), dtype=log_p.dtype, device=log_p.device)
    x = low + step * nodes
    return x, math.log(step) + x - x.exp()
