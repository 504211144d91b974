"""REINFORCE with a leave-one-out baseline."""

from __future__ import annotations

import torch
from torch.distributions import Distribution

from igr.estimators._core import Estimate, Function, Latent, check_num_samples, estimate, score_surrogate

__all__ = ["rloo"]


def rloo(q: Distribution, f: Function, *, num_samples: int = 2, generator: torch.Generator | None = None) -> Estimate:
    r"""The score function estimator in which the other samples are each sample's baseline.

    .. math:: \frac{1}{S} \sum_s \Bigl[\Bigl(f(D_s) - \frac{1}{S - 1} \sum_{s' \ne s} f(D_{s'})\Bigr)
        \nabla \log q(D_s) + \nabla f(D_s)\Bigr].

    Unbiased.

    References:
        Kool, van Hoof & Welling (2019), "Buy 4 REINFORCE samples, get a baseline for free!"; Salimans & Knowles (2014),
        "On using control variates with stochastic approximation for variational Bayes and its connection to
        stochastic linear regression".

    Arguments:
        q: any relaxation whose recovered probabilities are known, or a Categorical, OneHotCategorical or Bernoulli of
            torch; the last axis of its batch shape ``(*, N)`` is that of the variables of an example.
        f: maps one-hot samples ``(S, *, N, K)``, or bits ``(S, *, N)``, to ``(S, *)``.
        num_samples: S, at least 2.
        generator: source of the noise; eager mode only.

    Returns:
        Value and surrogate, both ``(*)``.

    Raises:
        ValueError: fewer than two samples, or an f of the wrong shape.
        NotImplementedError: probabilities of q that are known through samples only.

    Example:
        >>> logits = torch.zeros(5, 3, 10, requires_grad=True)  # five examples of three variables
        >>> q = torch.distributions.Categorical(logits=logits)
        >>> value, surrogate = rloo(q, lambda z: z[..., 0].sum(-1), num_samples=4)
        >>> surrogate.sum().backward()
        >>> value.shape, logits.grad.shape
        (torch.Size([5]), torch.Size([5, 3, 10]))
    """
    check_num_samples(num_samples, 2, ", since the others are the baseline of each")
    latent = Latent(q, f)
    one_hot = latent.draw(num_samples, generator)
    log_q, values = latent.log_prob(one_hot), latent.call(one_hot)
    # what is left of f minus the mean of the others, written with the mean of all
    advantage = (values - values.mean(0)) * (num_samples / (num_samples - 1))
    return estimate(values, score_surrogate(values, advantage, log_q))
