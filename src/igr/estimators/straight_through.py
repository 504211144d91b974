"""The straight-through estimator of a categorical."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution

from igr import functional
from igr.estimators._core import Estimate, Function, Latent, check_num_samples, check_per_variable, estimate

__all__ = ["straight_through"]


def straight_through(
    q: Distribution,
    f: Function,
    *,
    num_samples: int = 1,
    generator: torch.Generator | None = None,
    temperature: float | Tensor = 1.0,
) -> Estimate:
    r"""f at one-hot samples D, with the gradient of their probabilities in place of their own.

    .. math:: \frac{1}{\tau} J(\pi_\tau) \nabla f(D), \qquad D \sim \pi, \quad
        \pi_\tau = \mathrm{softmax}(\log \pi / \tau), \quad J(p) = \mathrm{diag}(p) - p p^\top,

    with respect to :math:`\log \pi`, and from there to the parameters of q: logits, or :math:`\mu` and :math:`\sigma`
    by Proposition 2.

    Note:
        Exact in expectation, at :math:`\tau = 1`, for an f that is linear in each variable given the others.

    References:
        Bengio et al. (2013), "Estimating or propagating gradients through stochastic neurons for conditional
        computation".

    Arguments:
        q: a discrete distribution, or a relaxation whose discrete probabilities are known; batch shape ``(*, N)``.
        f: maps one-hot samples ``(S, *, N, K)``, or zeros and ones ``(S, *, N)``, to ``(S, *)``.
        num_samples: the number of samples S.
        generator: source of the noise; eager mode only.
        temperature: :math:`\tau > 0`, a number or one value per variable, ``(*, N, 1)``; not that of a relaxation.

    Returns:
        Value and surrogate, shape ``(*)``.

    Raises:
        NotImplementedError: a relaxation whose discrete probabilities only samples know.
        ValueError: a temperature that is not positive, or an f whose values have another shape.

    Example:
        >>> from torch.distributions import OneHotCategorical
        >>> logits = torch.zeros(5, 3, 10, requires_grad=True)
        >>> value, surrogate = straight_through(OneHotCategorical(logits=logits), lambda z: z[..., 0].sum(-1))
        >>> surrogate.sum().backward()
        >>> logits.grad[0, 0, 0]  # 1/10 - 1/100
        tensor(0.0900)
    """
    latent = Latent(q, f)
    log_p = latent.log_probs
    tau = check_per_variable("temperature", temperature, log_p)
    hard = latent.draw(check_num_samples(num_samples), generator)  # (S, *, N, K)
    soft = (log_p / tau).softmax(-1).to(hard.dtype)
    values = latent.call_through(functional.straight_through(hard, soft.expand_as(hard)))
    return estimate(values, values)
