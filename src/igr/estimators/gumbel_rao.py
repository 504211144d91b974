"""Gumbel-Rao: the straight-through Gumbel-Softmax, averaged over the noise that leads to the same sample."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution

from igr import functional
from igr._checks import check_count, widen
from igr.conditional import sample_conditional_gumbel
from igr.distributions import GumbelSoftmax
from igr.estimators._core import Estimate, Function, Latent, check_num_samples, estimate

__all__ = ["gumbel_rao"]


def gumbel_rao(
    q: Distribution,
    f: Function,
    *,
    num_samples: int = 1,
    generator: torch.Generator | None = None,
    num_redraws: int = 10,
    temperature: float | Tensor | None = None,
) -> Estimate:
    r"""f at one-hot samples D, with the relaxed gradient averaged over R redraws of the noise given D.

    .. math:: \frac{1}{R} \sum_{r=1}^R \frac{1}{\tau} J(z_r) \nabla f(D), \qquad
        z_r = \mathrm{softmax}(x_r / \tau), \quad x_r \sim p(\log \alpha + \epsilon \mid \arg\max x_r = D),

    with :math:`J(p) = \mathrm{diag}(p) - p p^\top`: the noise inside :math:`x_r` is constant, however it was drawn.

    Note:
        The mean is that of :func:`~igr.estimators.st_relaxed`, the variance is never larger, and f is evaluated once
        for each D. Memory grows with R, that of f does not.

    References:
        Paulus et al. (2021), "Rao-Blackwellizing the straight-through Gumbel-Softmax gradient estimator".

    Arguments:
        q: a Gumbel-Softmax or binary Concrete, or a discrete distribution; batch shape ``(*, N)``.
        f: maps one-hot samples ``(S, *, N, K)``, or zeros and ones ``(S, *, N)``, to ``(S, *)``.
        num_samples: the number of samples S.
        generator: source of the noise; eager mode only.
        num_redraws: the number of redraws R for each sample.
        temperature: :math:`\tau > 0` for a discrete q, by default 1; a relaxation has its own.

    Returns:
        Value and surrogate, shape ``(*)``.

    Raises:
        NotImplementedError: a relaxation without Gumbel noise.
        ValueError: ``num_redraws`` below 1, a temperature for a relaxation, or an f whose values have another shape.

    Example:
        >>> from torch.distributions import OneHotCategorical
        >>> logits = torch.zeros(5, 3, 10, requires_grad=True)
        >>> q = OneHotCategorical(logits=logits)
        >>> value, surrogate = gumbel_rao(q, lambda z: z.cumsum(-1).square().sum((-2, -1)), temperature=0.1)
        >>> surrogate.sum().backward()
        >>> value.shape, logits.grad.shape
        (torch.Size([5]), torch.Size([5, 3, 10]))
    """
    latent = Latent(q, f, temperature)
    if not isinstance(latent.relaxation, GumbelSoftmax):
        raise NotImplementedError(
            f"gumbel_rao redraws Gumbel noise, and {q} has none; use igr_rao for IGR-I, "
            "st_relaxed for other relaxations"
        )
    R = check_count("num_redraws", num_redraws)
    hard = latent.draw(check_num_samples(num_samples), generator)  # (S, *, N, K)
    log_alpha = widen(latent.relaxation.logits)
    x = sample_conditional_gumbel(log_alpha.detach(), hard.expand(R, *hard.shape), generator=generator)
    soft = latent.relax(x + (log_alpha - log_alpha.detach())).mean(0)  # of (R, S, *, N, K)
    values = latent.call_through(functional.straight_through(hard, soft))
    return estimate(values, values)
