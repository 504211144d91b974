"""ReinMax: a straight-through estimator of second order."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution

from igr import functional
from igr.estimators._core import Estimate, Function, Latent, check_num_samples, check_per_variable, estimate

__all__ = ["reinmax"]


def reinmax(
    q: Distribution,
    f: Function,
    *,
    num_samples: int = 1,
    generator: torch.Generator | None = None,
    temperature: float | Tensor = 1.0,
) -> Estimate:
    r"""f at one-hot samples D, with a gradient that is exact for quadratic f.

    .. math:: 2 J\Bigl(\frac{\pi_\tau + D}{2}\Bigr) \nabla f(D) - \frac{1}{2} J(\pi) \nabla f(D), \qquad D \sim \pi,
        \quad \pi_\tau = \mathrm{softmax}(\log \pi / \tau), \quad J(p) = \mathrm{diag}(p) - p p^\top,

    with respect to :math:`\log \pi`, and from there to the parameters of q: logits, or :math:`\mu` and :math:`\sigma`
    by Proposition 2.

    Note:
        At :math:`\tau = 1` it is Heun's method for the differences of f between categories, and exact in expectation
        for an f that is quadratic in each variable given the others: products of quadratics, of different variables,
        are among them. Temperatures above one trade that for less variance.

    References:
        Liu et al. (2023), "Bridging discrete and backpropagation: straight-through and beyond".

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
        >>> from igr import InvertibleGaussian
        >>> loc = torch.zeros(5, 3, 9, requires_grad=True)
        >>> q = InvertibleGaussian(loc, 1.0, temperature=0.5)
        >>> value, surrogate = reinmax(q, lambda z: z.cumsum(-1).square().sum((-2, -1)))
        >>> surrogate.sum().backward()
        >>> value.shape, loc.grad.shape
        (torch.Size([5]), torch.Size([5, 3, 9]))
    """
    latent = Latent(q, f)
    log_p = latent.log_probs
    tau = check_per_variable("temperature", temperature, log_p)
    hard = latent.draw(check_num_samples(num_samples), generator)  # (S, *, N, K)
    with torch.no_grad():
        middle = ((log_p / tau).softmax(-1) + hard) / 2
    step = log_p - log_p.detach()  # zero
    soft = 2 * _jacobian_product(middle, step) - _jacobian_product(log_p.detach().exp(), step) / 2
    values = latent.call_through(functional.straight_through(hard, soft.to(hard.dtype)))
    return estimate(values, values)


def _jacobian_product(p: Tensor, x: Tensor) -> Tensor:
    """(diag(p) - p pᵀ) x."""
    return p * (x - (p * x).sum(-1, keepdim=True))
