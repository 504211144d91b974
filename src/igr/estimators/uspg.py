"""Unordered set policy gradient: samples without replacement."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution

from igr.estimators._core import Estimate, Function, Latent, carry, check_num_samples, estimate, score_surrogate
from igr.estimators._without_replacement import Sampled, diagonal, log_set_probs, sample_without_replacement

__all__ = ["uspg"]


def uspg(q: Distribution, f: Function, *, num_samples: int = 2, generator: torch.Generator | None = None) -> Estimate:
    r"""The unordered set estimator with its built-in baseline: S joint states without replacement, each seen once.

    With :math:`p(s)` the probability of a state of all N variables and :math:`P^D(S)` that of the set S, drawn without
    replacement from the domain D,

    .. math::
        \sum_{s \in S} p(s) R(S, s) \Bigl[\Bigl(f(s) - \sum_{s' \in S} p(s') R(S, s, s') f(s')\Bigr) \nabla \log p(s)
        + \nabla f(s)\Bigr], \\
        R(S, s) = \frac{P^{D \setminus s}(S \setminus s)}{P^D(S)}, \qquad
        R(S, s, s') = \frac{P^{D \setminus \{s, s'\}}(S \setminus \{s, s'\})}{P^{D \setminus s}(S \setminus s)},
        \quad R(S, s, s) = 1.

    Unbiased, and its value :math:`\sum_s p(s) R(S, s) f(s)` is an unbiased estimate of :math:`E[f]`. The exact sum over
    states where num_samples is at least :math:`K^N`.

    Note:
        The weights :math:`p(s) R(S, s)` add up to one, and so do those of each baseline: adding a constant to f leaves
        the gradient as it is. They are computed in float64 and in log space, for any S, in time that grows with
        :math:`S^2`.

    References:
        Kool, van Hoof & Welling (2020), "Estimating gradients for discrete random variables by sampling without
        replacement".

    Arguments:
        q: any relaxation whose recovered probabilities are known, or a Categorical, OneHotCategorical or Bernoulli of
            torch; the last axis of its batch shape ``(*, N)`` is that of the variables of an example.
        f: maps one-hot samples ``(S, *, N, K)``, or bits ``(S, *, N)``, to ``(S, *)``, where S is at most
            :math:`K^N`.
        num_samples: S, at least 2.
        generator: source of the noise; eager mode only.

    Returns:
        Value and surrogate, both ``(*)``.

    Raises:
        ValueError: fewer than two samples, or an f of the wrong shape.
        NotImplementedError: probabilities of q that are known through samples only.

    Example:
        >>> logits = torch.tensor([[0.2, 0.7, -1.0]], requires_grad=True)  # one variable of three categories
        >>> q = torch.distributions.Categorical(logits=logits)
        >>> value, surrogate = uspg(q, lambda z: (z * torch.tensor([1.0, 4.0, 9.0])).sum((-2, -1)), num_samples=3)
        >>> value  # three states, three samples: the expectation itself
        tensor(3.4935)
        >>> surrogate.backward()
        >>> logits.grad
        tensor([[-0.8453,  0.2831,  0.5622]])
    """
    check_num_samples(num_samples, 2, " for a baseline")
    latent = Latent(q, f)
    if latent.num_variables == 0:  # a single state, of which f is all there is
        values = latent.call(latent.draw(1, generator))
        return estimate(values, values)
    sampled = sample_without_replacement(latent.log_probs.detach(), num_samples, generator)
    return _from_set(latent, sampled)


def _from_set(latent: Latent, sampled: Sampled) -> Estimate:
    """The estimate from the given states."""
    every = torch.arange(latent.num_categories, device=sampled.categories.device)
    one_hot = (sampled.categories.unsqueeze(-1) == every).to(latent.relaxation.dtype)
    log_q, values = latent.log_prob(one_hot), latent.call(one_hot)
    weights, baseline_weights = _weights(sampled)
    f = values.detach().double()
    advantage = f - (baseline_weights * f).sum(1)
    terms = score_surrogate(values, advantage.to(values.dtype), log_q)
    value = (weights * f).sum(0).to(values.dtype)
    return Estimate(value, carry(value, (weights.to(values.dtype) * terms).sum(0)))


def _weights(sampled: Sampled) -> tuple[Tensor, Tensor]:
    """p(s) R(S, s), ``(S, *)``, and p(s') R(S, s, s'), ``(S, S, *)`` with s first, both float64."""
    log_p = sampled.log_p
    whole, less_one, less_two = log_set_probs(log_p, sampled.log_rest)
    log_ratios = (less_two - less_one.unsqueeze(1)).masked_fill(diagonal(log_p), 0.0)
    return (log_p + less_one - whole).exp(), (log_p + log_ratios).exp()
