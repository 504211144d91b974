"""VIMCO: the gradient of a bound by several samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Distribution

from igr.estimators._core import Estimate, Function, Latent, check_num_samples, estimate

__all__ = ["vimco"]


def vimco(q: Distribution, f: Function, *, num_samples: int = 2, generator: torch.Generator | None = None) -> Estimate:
    r"""The gradient of the bound :math:`E[L]`, :math:`L = \log \frac{1}{S} \sum_s w_s`, from the log-weights f.

    .. math:: \sum_s (L - L_{-s}) \nabla \log q(D_s) + \nabla L, \qquad
        L_{-s} = \log \frac{1}{S} \Bigl(\sum_{s' \ne s} w_{s'} + \exp \frac{1}{S - 1} \sum_{s' \ne s} \log w_{s'}\Bigr),

    where :math:`\nabla L` is through :math:`\log w_s = f(D_s)` itself. Unbiased for the gradient of :math:`E[L]`.

    Note:
        The bound is to be maximised: ``(-surrogate).sum().backward()`` for an optimiser that minimises. For
        the importance weighted bound, f is :math:`\log p(x, D) - \log q(D)`, whose dependence on q's parameters
        counts. A weight of zero, a log-weight of :math:`-\infty`, is allowed as long as another weight of the example
        is not; where all of the others are zero, :math:`L_{-s}` is replaced by 0.

    References:
        Mnih & Rezende (2016), "Variational inference for Monte Carlo objectives".

    Arguments:
        q: any relaxation whose recovered probabilities are known, or a Categorical, OneHotCategorical or Bernoulli of
            torch; the last axis of its batch shape ``(*, N)`` is that of the variables of an example.
        f: :math:`\log w`: maps one-hot samples ``(S, *, N, K)``, or bits ``(S, *, N)``, to ``(S, *)``.
        num_samples: S, at least 2. The bound itself depends on it.
        generator: source of the noise; eager mode only.

    Returns:
        Value, that of L, and surrogate, both ``(*)``.

    Raises:
        ValueError: fewer than two samples, or an f of the wrong shape.
        NotImplementedError: probabilities of q that are known through samples only.

    Example:
        >>> logits = torch.zeros(5, 3, requires_grad=True)  # five examples of three bits
        >>> q = torch.distributions.Bernoulli(logits=logits)
        >>> value, surrogate = vimco(q, lambda b: -b.sum(-1) - q.log_prob(b).sum(-1), num_samples=10)
        >>> (-surrogate).sum().backward()
        >>> value.shape, logits.grad.shape
        (torch.Size([5]), torch.Size([5, 3]))
    """
    check_num_samples(num_samples, 2, ", since the others are the baseline of each")
    latent = Latent(q, f)
    one_hot = latent.draw(num_samples, generator)
    log_q = latent.log_prob(one_hot)  # before f, which may write into its samples
    return from_weights(latent.call(one_hot), log_q)


def from_weights(log_w: Tensor, log_q: Tensor) -> Estimate:
    """The estimate of samples that are drawn already: log-weights and log q of each, ``(S, *)``."""
    bound = log_w.logsumexp(0) - math.log(len(log_w))
    advantage = bound.detach() - _leave_one_out(log_w.detach())
    return estimate(bound.unsqueeze(0), (advantage * log_q).sum(0) + bound)


def _leave_one_out(log_w: Tensor) -> Tensor:
    """The bound in which a sample's weight is replaced by the geometric mean of the others', ``(S, *)``."""
    S, others = log_w.shape[0], log_w.movedim(0, -1).unsqueeze(-2)  # (*, 1, S)
    own = torch.eye(S, dtype=torch.bool, device=log_w.device)
    geometric = torch.where(own, 0.0, others).sum(-1, keepdim=True) / (S - 1)  # (*, S, 1)
    bound = torch.where(own, geometric, others).logsumexp(-1).movedim(-1, 0) - math.log(S)
    return torch.where(bound == -math.inf, 0.0, bound)  # a function of the others alone, as any baseline must be
