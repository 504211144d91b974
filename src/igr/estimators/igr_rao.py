"""IGR-Rao: straight-through IGR-I, averaged over the losers' noise that leads to the same sample."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from igr import functional
from igr._checks import check_count
from igr._draws import gumbel_noise
from igr.conditional import _settle, _truncated
from igr.distributions import gaussian_of
from igr.estimators._core import Estimate, Function, Latent, check_num_samples, estimate

__all__ = ["igr_rao"]


def igr_rao(
    q: Distribution,
    f: Function,
    *,
    num_samples: int = 1,
    generator: torch.Generator | None = None,
    num_redraws: int = 10,
) -> Estimate:
    r"""f at one-hot samples :math:`D = h(y)` of IGR-I, with the relaxed gradient averaged over redrawn losers.

    .. math:: \frac{1}{R} \sum_{r=1}^R \Bigl(\frac{\partial z_r}{\partial (\mu, \sigma)}\Bigr)^\top \nabla f(D), \qquad
        z_r = \mathrm{softmax}_{++}(\mu + \sigma \epsilon_r, \tau),

    where :math:`\epsilon_r` is a constant, equal to the noise :math:`\epsilon` of y at the winning coordinate; the
    others are drawn again, given that they lose: :math:`y_j < y_k` for category :math:`k < K`, and :math:`y_j < 0` for
    category :math:`K`, which all coordinates lose to.

    Note:
        The mean is that of :func:`~igr.estimators.st_relaxed`, the variance is never larger, and f is evaluated once
        for each D. Given the winner's coordinate the losers are independent truncated normals, which are drawn to full
        accuracy however far in the tail. Memory grows with R, that of f does not.

    References:
        Equations 10, 15 and 20; Paulus et al. (2021), "Rao-Blackwellizing the straight-through Gumbel-Softmax gradient
        estimator", for the idea.

    Arguments:
        q: IGR-I, an :class:`~igr.InvertibleGaussian` without flow; batch shape ``(*, N)``.
        f: maps one-hot samples ``(S, *, N, K)`` to ``(S, *)``.
        num_samples: the number of samples S.
        generator: source of the noise; eager mode only.
        num_redraws: the number of redraws R for each sample.

    Returns:
        Value and surrogate, shape ``(*)``.

    Raises:
        NotImplementedError: another q.
        ValueError: ``num_redraws`` below 1, or an f whose values have another shape.

    Example:
        >>> from igr import InvertibleGaussian
        >>> loc = torch.zeros(5, 3, 9, requires_grad=True)
        >>> q = InvertibleGaussian(loc, 1.0, temperature=0.1)
        >>> value, surrogate = igr_rao(q, lambda z: z.cumsum(-1).square().sum((-2, -1)), num_redraws=20)
        >>> surrogate.sum().backward()
        >>> value.shape, loc.grad.shape
        (torch.Size([5]), torch.Size([5, 3, 9]))
    """
    latent = Latent(q, f)
    normal = gaussian_of(latent.relaxation)
    if normal is None:
        raise NotImplementedError(
            f"igr_rao redraws the noise of IGR-I, and {q} is none; use gumbel_rao for a Gumbel-Softmax or a discrete "
            "distribution, st_relaxed for other relaxations"
        )
    R = check_count("num_redraws", num_redraws)
    with torch.no_grad():
        y = latent.scores(check_num_samples(num_samples), generator)  # (S, *, N, K-1)
        hard = latent.harden(y)
        eps = (_redraw_losers(normal, y, hard, R, generator) - normal.loc) / normal.scale
    eps = eps.detach()  # also in forward mode, to which no_grad is nothing
    soft = latent.relax(torch.addcmul(normal.loc, normal.scale, eps)).mean(0)  # of (R, S, *, N, K)
    values = latent.call_through(functional.straight_through(hard, soft))
    return estimate(values, values)


def _redraw_losers(
    normal: Normal, y: Tensor, hard: Tensor, num_redraws: int, generator: torch.Generator | None
) -> Tensor:
    """R times y, with all coordinates but the winner's drawn anew below it, ``(R, S, *, N, K-1)``."""
    top = y.amax(-1, keepdim=True).clamp(min=0.0)  # zero for category K
    exponential = (-gumbel_noise(y.expand(num_redraws, *y.shape), generator)).exp()
    others = _truncated(normal.loc, normal.scale, top, exponential)
    return _settle(top, others, hard[..., :-1] > 0)
