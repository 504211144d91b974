r"""REBAR: the score function with f at the relaxed sample as control variate, unbiased."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution

from igr._checks import broadcast, check_tensor, describe, is_number
from igr.estimators._control import control_variate_estimate
from igr.estimators._core import Estimate, Function, Latent

__all__ = ["rebar"]


def rebar(
    q: Distribution,
    f: Function,
    *,
    num_samples: int = 1,
    scale: float | Tensor = 1.0,
    temperature: float | Tensor | None = None,
    coupled: bool = True,
    generator: torch.Generator | None = None,
) -> Estimate:
    r"""The score function with f at the relaxed sample, times a factor, as control variate: RELAX with c = η f.

    .. math:: g = [f(D) - \eta f(\tilde z)] \nabla \log q(D) + \eta \nabla f(z) - \eta \nabla f(\tilde z) + \nabla f(D),

    with z, :math:`\tilde z` and D as in :func:`relax`. Unbiased, for Gumbel noise and for IGR-I, at any η and
    temperature; either one is trained by the variance of the gradient if it is a tensor that requires a gradient.

    Note:
        See :func:`relax` for what it means that z and :math:`\tilde z` are coupled, what f has to be, which norm trains
        η and the temperature, and that it is for eager mode.

    References:
        Tucker et al. (2017), "REBAR: low-variance, unbiased gradient estimates for discrete latent variable models";
        appendix D, and for IGR-I Proposition 2.

    Arguments:
        q: the distribution of the N variables of each example, batch shape ``(*, N)``: Gumbel-Softmax, IGR-I, or a
            discrete distribution.
        f: maps samples ``(S, *, N, K)``, or ``(S, *, N)`` of zeros and ones, to ``(S, *)``, and takes relaxed ones.
        num_samples: S, over which the estimate is averaged.
        scale: η, a number or one value per example, broadcastable to ``(*)``.
        temperature: :math:`\tau` of the relaxation of a discrete q, by default 1.
        coupled: whether :math:`\tilde z` has the value of z, or is drawn anew.
        generator: source of the noise.

    Returns:
        An estimate for each example, shape ``(*)``.

    Raises:
        NotImplementedError: a relaxation that has no samples given the category, such as IGR-SB; a call inside
            ``torch.compile`` or ``torch.func``.
        ValueError: a function that returns the wrong shape, or that has no gradient.

    Example:
        >>> from torch.distributions import Bernoulli
        >>> logits = torch.zeros(5, 3, requires_grad=True)  # 5 examples of 3 variables
        >>> f = lambda b: (b - 0.45).square().sum(-1)
        >>> value, surrogate = rebar(Bernoulli(logits=logits), f, temperature=0.5)
        >>> surrogate.sum().backward()
        >>> value.shape, logits.grad.shape
        (torch.Size([5]), torch.Size([5, 3]))
    """
    latent = Latent(q, f, temperature)
    _check_scale(scale, latent.shape)
    return control_variate_estimate(latent, lambda z: scale * f(z), num_samples, coupled, generator)


def _check_scale(scale: object, shape: torch.Size) -> None:
    if isinstance(scale, Tensor):
        if broadcast(scale=check_tensor("scale", scale), examples=shape) != shape:
            raise ValueError(f"scale must be a number or broadcast to {tuple(shape)}, got {describe(scale)}")
    elif not is_number(scale):
        raise TypeError(f"scale must be a number or a floating-point tensor, got {describe(scale)}")
