"""The reparameterization trick: the gradient through a relaxed sample."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution

from igr.estimators._core import Estimate, Function, Latent, check_num_samples, estimate

__all__ = ["reparameterized"]


def reparameterized(
    q: Distribution,
    f: Function,
    *,
    num_samples: int = 1,
    generator: torch.Generator | None = None,
    temperature: float | Tensor | None = None,
) -> Estimate:
    r"""f at relaxed samples, and its gradient along their path.

    .. math:: \nabla E[f(z)] = E\bigl[\nabla f(z(\theta, \epsilon))\bigr], \qquad z = g(\theta, \epsilon).

    Note:
        Unbiased for the expectation over the relaxation, which is not the one over the discrete variables: f has to
        have a meaning inside the simplex.

    References:
        Kingma and Welling (2014), "Auto-encoding variational Bayes"; Maddison et al. (2017), "The Concrete
        distribution"; Jang et al. (2017), "Categorical reparameterization with Gumbel-Softmax".

    Arguments:
        q: a relaxation, or a discrete distribution, which is relaxed by the Gumbel-Softmax; batch shape ``(*, N)``.
        f: maps relaxed samples ``(S, *, N, K)``, of zeros and ones ``(S, *, N)``, to ``(S, *)``.
        num_samples: the number of samples S.
        generator: source of the noise; eager mode only.
        temperature: :math:`\tau > 0` for a discrete q, by default 1; a relaxation has its own.

    Returns:
        Value and surrogate, shape ``(*)``.

    Raises:
        ValueError: a temperature for a relaxation, or an f whose values have another shape.

    Example:
        >>> from igr import InvertibleGaussian
        >>> loc = torch.zeros(5, 3, 9, requires_grad=True)  # 5 examples of 3 variables with 10 categories
        >>> q = InvertibleGaussian(loc, 1.0, temperature=0.5)
        >>> value, surrogate = reparameterized(q, lambda z: z.square().sum((-2, -1)), num_samples=4)
        >>> surrogate.sum().backward()
        >>> value.shape, loc.grad.shape
        (torch.Size([5]), torch.Size([5, 3, 9]))
    """
    latent = Latent(q, f, temperature)
    values = latent.call_through(latent.relax(latent.scores(check_num_samples(num_samples), generator)))
    return estimate(values, values)
