"""Sticking the landing: a pathwise gradient of a divergence from the prior, without the score of q."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical

from igr import _bases
from igr._checks import broadcast, describe
from igr._others import log_prob_on_interval, log_prob_on_simplex
from igr.distributions import BinaryConcrete, InvertibleReparameterization, Relaxation
from igr.estimators._core import Estimate, Function, Latent, as_relaxation, check_num_samples, estimate
from igr.transforms import call_and_ladj

__all__ = ["sticking_the_landing"]


def sticking_the_landing(
    q: Distribution,
    f: Function,
    prior: Distribution,
    *,
    num_samples: int = 1,
    generator: torch.Generator | None = None,
) -> Estimate:
    r"""f plus the log-ratio of q and the prior at relaxed samples, with the parameters of q constant inside log q.

    .. math:: E\Bigl[f(z) + \sum_{n=1}^N \log \frac{q_\theta(z_n)}{p(z_n)}\Bigr], \qquad
        \nabla_\theta \Bigl[f(z) + \sum_{n=1}^N \log \frac{q_{\bar\theta}(z_n)}{p(z_n)}\Bigr]_{\bar\theta = \theta},
        \quad z = z(\theta, \epsilon).

    Note:
        What is left out, :math:`\nabla_\theta \log q_\theta(z)` at a fixed z, is zero on average. Without it the
        variance vanishes as q approaches the optimum, :math:`q(z) \propto e^{-f(z)} p(z)`. Of maps after a base only
        the base has its parameters held constant: those of flows, and temperatures, keep the whole derivative, which is
        unbiased as well. Densities are computed from the noise and from logarithms, never from the rounded z; where q
        and the prior end in the same maps, from before these. A prior that is not of this library, and no Dirichlet,
        Beta or relaxed categorical of torch, is asked at z itself, which must not have rounded to the boundary.

    References:
        Roeder et al. (2017), "Sticking the landing: simple, lower-variance gradient estimators for variational
        inference".

    Arguments:
        q: a relaxation, batch shape ``(*, N)``.
        f: maps relaxed samples ``(S, *, N, K)``, of zeros and ones ``(S, *, N)``, to ``(S, *)``.
        prior: a relaxation, or any distribution with a density on the same simplex, of a batch shape that broadcasts to
            ``(*, N)``.
        num_samples: the number of samples S.
        generator: source of the noise; eager mode only.

    Returns:
        Value and surrogate, shape ``(*)``.

    Raises:
        TypeError: a discrete q or prior.
        ValueError: a prior whose shapes do not fit, or which is asked at z itself where that has rounded to the
            boundary; an f whose values have another shape.

    Example:
        >>> from igr import InvertibleGaussian
        >>> loc = torch.zeros(5, 3, 9, requires_grad=True)
        >>> q, prior = InvertibleGaussian(loc, 1.0, 0.1), InvertibleGaussian(torch.zeros(9), 1.0, 0.1)
        >>> value, surrogate = sticking_the_landing(q, lambda z: 0 * z.sum((-2, -1)), prior)
        >>> surrogate.sum().backward()
        >>> bool((loc.grad.abs() < 1e-5).all())  # it has landed: zero for every draw
        True
    """
    latent = Latent(q, f)
    prior = _checked_prior(q, prior)
    if isinstance(latent.relaxation, InvertibleReparameterization):
        z, log_ratio = _through_maps(latent.relaxation, prior, check_num_samples(num_samples), generator)
    else:
        log_z = latent.relaxation.log_rsample((check_num_samples(num_samples),), generator=generator)
        log_q = _at_constant_parameters(latent.relaxation._log_density, log_z)
        z, log_ratio = log_z.exp(), log_q - _log_prior(prior, log_z)
    values = latent.call(z.to(latent.relaxation.dtype)) + log_ratio.sum(-1)  # (S, *)
    return estimate(values, values)


def _checked_prior(q: Distribution, prior: Distribution) -> Distribution:
    """The prior of single variables, a binary Concrete one as two categories, if it fits a relaxed q."""
    if not isinstance(prior, Distribution):
        raise TypeError(f"prior must be a distribution, got {describe(prior)}")
    q, prior = _single(q), _single(prior)
    for name, value in (("q", q), ("prior", prior)):
        if isinstance(value, (Bernoulli, Categorical, OneHotCategorical)):
            raise TypeError(
                f"{name} must have a density on the simplex, got {value}, which is discrete; relax it, for example by "
                "igr.GumbelSoftmax, or give an estimator of discrete variables an f that includes the log-ratio"
            )
    if prior.event_shape != q.event_shape or broadcast(q=q.batch_shape, prior=prior.batch_shape) != q.batch_shape:
        raise ValueError(
            f"prior must have the event shape of q, {tuple(q.event_shape)}, and a batch shape that broadcasts to "
            f"{tuple(q.batch_shape)}, got {tuple(prior.event_shape)} and {tuple(prior.batch_shape)}: {prior}"
        )
    return as_relaxation(prior, None) if isinstance(prior, BinaryConcrete) else prior


def _single(d: Distribution) -> Distribution:
    return d.base_dist if isinstance(d, Independent) and d.reinterpreted_batch_ndims == 1 else d


def _through_maps(
    q: InvertibleReparameterization, prior: Distribution, num_samples: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """z and the log-ratio, taken before the last maps that q and the prior have in common."""
    shared = q._maps_in_common(prior)
    with q._full_precision():
        x, eps = _bases.draw(q.base, (num_samples,), generator)
        log_q = _log_base(q.base, x, eps)
    for part in q.maps[: -max(shared, 1)]:
        x, ladj = call_and_ladj(part, x)
        log_q = log_q - ladj
    if isinstance(prior, InvertibleReparameterization) and shared:
        log_ratio = log_q - prior._log_prob_before(x, prior.maps[:-shared])
        for part in q.maps[-shared:-1]:
            x = part(x)
        return q._relax(x), log_ratio
    log_z = q._log_relax(x)
    return log_z.exp(), log_q - q._onto.ladj(x, log_z) - _log_prior(prior, log_z)


def _log_base(base: Distribution, y: Tensor, eps: Tensor | None) -> Tensor:
    """Log-density of y under the base, the base's parameters being constant."""
    normal = _bases.diagonal_normal(base)
    if normal is None or eps is None:
        return _at_constant_parameters(lambda x: _bases.log_prob(base, x), y)
    score = -eps / normal.scale.detach()
    return _bases.log_prob_of_noise(base, eps).detach() + (score * (y - y.detach())).sum(-1)


def _at_constant_parameters(log_density: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The value ``(*)`` of a density at x, ``(*, K)``, and its gradient through x alone, whatever else it hangs on."""

    def total(x: Tensor) -> tuple[Tensor, Tensor]:
        value = log_density(x)
        return value.sum(), value

    # around, not inside: the derivative itself is taken
    with torch.no_grad(), forward_ad._set_fwd_grad_enabled(False):
        score, value = torch.func.grad(total, has_aux=True)(x.detach())
    log_p: Tensor = value + (score * (x - x.detach())).sum(-1)
    return log_p


def _log_prior(prior: Distribution, log_z: Tensor) -> Tensor:
    if isinstance(prior, Relaxation):
        return prior.log_prob_from_log(log_z)
    return log_prob_on_simplex(prior, log_z) if prior.event_shape else log_prob_on_interval(prior, *log_z.unbind(-1))
