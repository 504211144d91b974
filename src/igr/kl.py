r"""KL divergences where there is no closed form, by Monte Carlo, and the categorical surrogate.

The closed forms live on the classes, as :meth:`igr.distributions.Relaxation.kl`, and are registered with torch there.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, OneHotCategorical

from igr import _terms
from igr._checks import broadcast, check_count, check_parameter, describe, widen
from igr._others import logits_of
from igr.countable import KL_ADVICE, CountableStickBreaking
from igr.distributions import MonteCarlo, Relaxation

__all__ = ["monte_carlo_kl", "categorical_kl"]


def monte_carlo_kl(
    p: Relaxation, q: Distribution, num_samples: int = 1000, *, generator: torch.Generator | None = None
) -> MonteCarlo:
    r"""Estimates :math:`KL(p \| q) = E_p[\log p(z) - \log q(z)]` by sampling p, differentiably in both.

    Note:
        Samples travel as logarithms, so that neither density sees an underflow, and where both distributions end in the
        same maps, from before these. A q that is not of this library, and no Dirichlet, Beta or relaxed categorical of
        torch, knows points alone: there, samples that have rounded to the boundary are an error. If a sample falls
        where q has density zero, the divergence is infinite, and the estimate says so with a standard error of zero.

    References:
        Equation 9.

    Arguments:
        p: the relaxation to sample from.
        q: another relaxation, or any distribution with a density on the same simplex as ``log_prob``.
        num_samples: the number of samples S, at least 2.
        generator: source of the noise; eager mode only.

    Returns:
        The estimate, differentiable, and its standard error.

    Raises:
        NotImplementedError: a discrete q, which has no density.
        ValueError: event shapes that differ, or batch shapes that do not broadcast; samples that have rounded to the
            boundary, where q knows points alone.

    Example:
        >>> from igr import GumbelSoftmax, monte_carlo_kl
        >>> p, q = GumbelSoftmax(0.5, torch.randn(4, 10)), GumbelSoftmax(0.5, torch.zeros(10))
        >>> kl, standard_error = monte_carlo_kl(p, q, 1000)
        >>> kl.shape, standard_error.shape
        (torch.Size([4]), torch.Size([4]))
    """
    if not isinstance(p, Relaxation):
        advice = f"; {KL_ADVICE}" if isinstance(p, CountableStickBreaking) else ""
        raise TypeError(f"p must be a relaxation of this library with K categories, got {describe(p)}{advice}")
    num_samples = check_count("num_samples", num_samples, 2, " for a standard error")
    p = p.expand(p._check_other(q))  # so that samples come first, and q's own axes after
    log_ratio = p._log_ratio(q, (num_samples,), generator=generator)  # (S, *)
    estimate = log_ratio.mean(0)
    deviation = torch.where(estimate.isposinf(), 0.0, log_ratio - estimate)
    error = deviation.detach().square().sum(0).div(num_samples * (num_samples - 1)).sqrt()
    return MonteCarlo(estimate, error)


def categorical_kl(p: Distribution | Tensor, q: Distribution | Tensor) -> Tensor:
    r"""The KL divergence between the discrete distributions behind two relaxations, :math:`KL(\bar{\alpha} \| p_0)`.

    Note:
        A common substitute for the divergence of the relaxations themselves, which it is not: it does not see how far
        from the vertices the relaxation is. Objectives that use it are not evidence bounds of the relaxed model. It is
        infinite where q gives a category the probability zero, as estimates from samples do that have not seen it.

    References:
        Equation 8.

    Arguments:
        p: a relaxation with ``recovered()``, a (one-hot) categorical or Bernoulli distribution, or unnormalised logits
            ``(*, K)``. The categories of a Bernoulli are 0 and 1, in this order.
        q: likewise.

    Returns:
        Shape ``(*)``.

    Example:
        >>> categorical_kl(torch.tensor([0.5, 0.5]).log(), torch.tensor([0.9, 0.1]).log())
        tensor(0.5108)
    """
    log_p, log_q = _log_probs("p", p), _log_probs("q", q)
    broadcast(p=log_p, q=log_q)
    return _terms.categorical_kl(log_p, log_q)


def _log_probs(name: str, value: Distribution | Tensor) -> Tensor:
    """Normalised log-probabilities of the discrete distribution behind ``value``, shape (*, K)."""
    if isinstance(value, Tensor):
        return widen(check_parameter(name, value, "K")).log_softmax(-1)
    if isinstance(value, Relaxation) and (log_p := value._recovered_log_probs()) is not None:
        return widen(log_p)  # what is impossible has a logit of -inf here, and recovered() a finite one
    if hasattr(value, "recovered"):
        value = value.recovered()
    if isinstance(value, Bernoulli):
        logits = logits_of(value)
        return F.logsigmoid(torch.stack([-logits, logits], -1))
    if not isinstance(value, (Categorical, OneHotCategorical)):
        raise TypeError(f"{name} must have recovered(), be a categorical or a tensor of logits, got {describe(value)}")
    return logits_of(value)
