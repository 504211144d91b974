"""Straight-through a relaxation: a discrete sample forward, the relaxed one backward."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution

from igr import functional
from igr.estimators._core import Estimate, Function, Latent, check_num_samples, estimate

__all__ = ["st_relaxed"]


def st_relaxed(
    q: Distribution,
    f: Function,
    *,
    num_samples: int = 1,
    generator: torch.Generator | None = None,
    temperature: float | Tensor | None = None,
) -> Estimate:
    r"""f at one-hot samples D, with the gradient of the relaxed samples z made of the same noise.

    .. math:: \Bigl(\frac{\partial z}{\partial \theta}\Bigr)^\top \nabla f(D), \qquad D = h(y), \quad z = g(y, \tau).

    Note:
        The value is unbiased for the discrete expectation, the gradient is not: f is differentiated at D and the sample
        at z. The bias shrinks with the temperature while the variance grows. D follows from the scores, with the
        threshold 0 whatever :math:`\delta` is.

    References:
        Jang et al. (2017), "Categorical reparameterization with Gumbel-Softmax", section 2.2.

    Arguments:
        q: a relaxation, or a discrete distribution, which is relaxed by the Gumbel-Softmax; batch shape ``(*, N)``.
        f: maps one-hot samples ``(S, *, N, K)``, or zeros and ones ``(S, *, N)``, to ``(S, *)``.
        num_samples: the number of samples S.
        generator: source of the noise; eager mode only.
        temperature: :math:`\tau > 0` for a discrete q, by default 1; a relaxation has its own.

    Returns:
        Value and surrogate, shape ``(*)``.

    Raises:
        ValueError: a temperature for a relaxation, or an f whose values have another shape.

    Example:
        >>> from igr import GumbelSoftmax
        >>> logits = torch.zeros(5, 3, 10, requires_grad=True)
        >>> value, surrogate = st_relaxed(GumbelSoftmax(0.5, logits), lambda z: z.square().sum((-2, -1)))
        >>> surrogate.sum().backward()
        >>> value  # of one-hot vectors
        tensor([3., 3., 3., 3., 3.])
    """
    latent = Latent(q, f, temperature)
    scores = latent.scores(check_num_samples(num_samples), generator)
    values = latent.call_through(functional.straight_through(latent.harden(scores), latent.relax(scores)))
    return estimate(values, values)
