"""What is asked of distributions that are not this library's, in logarithms, which do not round to the boundary."""

from __future__ import annotations

import math
from typing import TypeGuard, TypeVar

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Beta, Categorical, Dirichlet, Distribution, OneHotCategorical
from torch.distributions.relaxed_bernoulli import RelaxedBernoulli
from torch.distributions.relaxed_categorical import RelaxedOneHotCategorical

from igr import _terms
from igr._checks import values_checkable, widen
from igr.kumaraswamy import Kumaraswamy

D = TypeVar("D", bound=Distribution)


def log_prob_on_simplex(d: Distribution, log_z: Tensor) -> Tensor:
    """log d(z), ``(*, K)`` to ``(*)``: at the logarithms themselves where the density is known by them.

    Raises:
        ValueError: it is not known by them, and a coordinate of z has underflowed, or rounded to one.
    """
    if _has_density_of(d, Dirichlet):
        alpha = widen(d.concentration)
        powers = (alpha - 1) * log_z.clamp(min=torch.finfo(log_z.dtype).min)  # finite, so that zero times it is zero
        return powers.sum(-1) + torch.lgamma(alpha.sum(-1)) - torch.lgamma(alpha).sum(-1)
    if _has_density_of(d, RelaxedOneHotCategorical) and _of_rows(d.temperature):
        tau = widen(torch.as_tensor(d.temperature))
        return _terms.gumbel_log_prob(tau * log_z - widen(d.logits), log_z, tau)
    z = log_z.exp()
    _refuse_rounded(d, (z < torch.finfo(z.dtype).tiny) | (z == 1))
    log_p: Tensor = d.log_prob(z)
    return log_p


def log_prob_on_interval(d: Distribution, log_x: Tensor, log1m_x: Tensor) -> Tensor:
    """log d(x), of numbers x in (0, 1), likewise, from log x and log(1 - x).

    Raises:
        ValueError: the density is not known by them, and x has rounded to 0 or 1.
    """
    if _has_density_of(d, Kumaraswamy):
        return d.log_prob_from_log(log_x, log1m_x)
    if _has_density_of(d, Beta):
        a, b = widen(d.concentration1), widen(d.concentration0)
        return (a - 1) * log_x + (b - 1) * log1m_x + torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)
    if _has_density_of(d, RelaxedBernoulli):
        tau, logit = widen(torch.as_tensor(d.temperature)), log_x - log1m_x
        return tau.log() + _terms.logistic_log_prob(tau * logit - widen(d.logits)) - log_x - log1m_x
    x = log_x.exp()
    _refuse_rounded(d, (x < torch.finfo(x.dtype).tiny) | (x == 1))
    log_p: Tensor = d.log_prob(x)
    return log_p


def _has_density_of(d: Distribution, kind: type[D]) -> TypeGuard[D]:
    """Not a subclass with another one."""
    return isinstance(d, kind) and type(d).log_prob is kind.log_prob


def _of_rows(temperature: Tensor | float) -> bool:
    return not isinstance(temperature, Tensor) or temperature.dim() == 0 or temperature.shape[-1] == 1


def logits_of(d: Categorical | OneHotCategorical | Bernoulli) -> Tensor:
    """Normalised logits, or the log-odds of a Bernoulli, of at least float32.

    Infinite where probabilities that d was made of are zero or one, which torch moves inwards by a rounding of their
    dtype.
    """
    inner = d._categorical if isinstance(d, OneHotCategorical) else d
    probs = inner.__dict__.get("probs")
    if probs is None or inner._param is not probs:
        return widen(inner.logits)
    p = widen(probs)
    return _log(p) - _log(1 - p) if isinstance(d, Bernoulli) else _log(p)


def _log(p: Tensor) -> Tensor:
    """The logarithm, with a gradient of zero at zero."""
    zero = p == 0
    return torch.where(zero, -math.inf, torch.where(zero, 1.0, p).log())


def _refuse_rounded(d: Distribution, rounded: Tensor) -> None:
    if values_checkable(rounded) and bool(rounded.any()):
        raise ValueError(
            f"some samples have rounded to the boundary, where {d} cannot tell them apart: use a higher temperature, "
            "float64, or a distribution whose density is known at logarithms: one of this library, a Dirichlet, a Beta "
            "or a relaxed categorical of torch"
        )
