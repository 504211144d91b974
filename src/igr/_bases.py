"""What the maps are applied to: base distributions on R^(K-1), their draws, densities and divergences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import (
    ComposeTransform,
    Distribution,
    Independent,
    Laplace,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
    constraints,
    kl_divergence,
    transform_to,
)

from igr import _terms
from igr._checks import describe, wide_dtype, widen
from igr._constraints import NearVertices, simplex
from igr._draws import gaussian_noise
from igr.transforms import same_map


def vector_base(base: Distribution) -> Distribution:
    """The base with event shape (K-1,), or an error that says what is wrong with it."""
    if not isinstance(base, Distribution):
        raise TypeError(f"base must be a torch.distributions.Distribution, got {describe(base)}")
    if not base.has_rsample:
        raise ValueError(f"base must be reparameterizable (has_rsample), got {base}")
    if not base.event_shape and base.batch_shape:
        base = Independent(base, 1, validate_args=False)
    if len(base.event_shape) != 1 or base.event_shape[0] < 1:
        raise ValueError(f"base must have event shape (K - 1,) with K >= 2, got {tuple(base.event_shape)}")
    if isinstance(support_of(base), (type(constraints.simplex), type(simplex), NearVertices)):
        raise ValueError(
            f"base must have a density on R^(K - 1), and {base} lies on a simplex, a surface in it; give K - 1 free "
            "coordinates, such as those of a Normal"
        )
    return base


def support_of(base: Distribution) -> constraints.Constraint | None:
    try:
        return base.support
    except NotImplementedError:  # a distribution that does not say
        return None


def widened(base: Distribution) -> Distribution:
    """A normal of half precision as one of float32, so that noise, densities and divergences are."""
    normal = diagonal_normal(base)
    if normal is not None and normal.loc.dtype != wide_dtype(normal.loc.dtype):
        return Independent(Normal(widen(normal.loc), widen(normal.scale), validate_args=False), 1, validate_args=False)
    if isinstance(base, MultivariateNormal) and base.loc.dtype != wide_dtype(base.loc.dtype):
        return MultivariateNormal(widen(base.loc), scale_tril=widen(base.scale_tril), validate_args=False)
    return base


def example(base: Distribution) -> Tensor:
    """An empty tensor with the dtype and device of the base's parameters."""
    while hasattr(base, "base_dist"):
        base = base.base_dist
    for name in base.arg_constraints:
        value = getattr(base, name, None)
        if isinstance(value, Tensor):
            return value.new_empty(0)
    with torch.no_grad():  # a distribution that does not say what it depends on
        draw: Tensor = base.rsample()
    return draw.new_empty(0)


def diagonal_normal(base: Distribution) -> Normal | None:
    """The Normal inside, if ``base`` is one with independent coordinates."""
    inner = base.base_dist if isinstance(base, Independent) and base.reinterpreted_batch_ndims == 1 else None
    return inner if isinstance(inner, Normal) else None


def full_normal(base: Distribution) -> tuple[Tensor, Tensor] | None:
    """Mean and Cholesky factor, if ``base`` is a normal of any covariance."""
    normal = diagonal_normal(base)
    if normal is not None:
        return normal.loc, normal.scale.diag_embed()
    if isinstance(base, (MultivariateNormal, LowRankMultivariateNormal)):
        return base.loc, base.scale_tril
    return None


def draw(
    base: Distribution, sample_shape: Sequence[int], generator: torch.Generator | None
) -> tuple[Tensor, Tensor | None]:
    """y, and the standard normal noise in it if the base is a normal, diagonal or with a Cholesky factor."""
    normal = diagonal_normal(base)
    if normal is not None:
        eps = gaussian_noise((*sample_shape, *normal.loc.shape), normal.loc, generator)
        # fused, so rounded once: y keeps its relative accuracy where μ and σε nearly cancel
        return torch.addcmul(normal.loc, normal.scale, eps), eps
    if isinstance(base, MultivariateNormal):
        eps = gaussian_noise((*sample_shape, *base.loc.shape), base.loc, generator)
        return base.loc + (base.scale_tril @ eps.unsqueeze(-1)).squeeze(-1), eps
    if generator is not None:
        raise ValueError(f"the base {base} draws from torch's global generator; leave generator out")
    return widen(base.rsample(torch.Size(sample_shape))), None


def log_prob_of_noise(base: Distribution, eps: Tensor) -> Tensor:
    """Log-density of the y that a normal base makes of this noise."""
    return _terms.gaussian_log_prob(eps, _log_scale(base))


def _log_scale(base: Distribution) -> Tensor:
    """Half the log-determinant of a normal's covariance."""
    normal = diagonal_normal(base)
    if normal is not None:
        return normal.scale.log().sum(-1)
    return _log_diagonal(base.scale_tril)  # type: ignore[attr-defined]


def log_prob(base: Distribution, y: Tensor) -> Tensor:
    """Log-density of y under the base, and -inf off its support."""
    normal = diagonal_normal(base)
    if normal is not None:
        return log_prob_of_noise(base, (y - normal.loc) / normal.scale)
    if not y.numel():  # which torch's own checks cannot be asked about
        return widen(y).sum(-1)
    support = support_of(base)
    if support is None or is_real(support):
        return widen(base.log_prob(y))
    inside = support.check(y)
    stand_in = transform_to(support)(torch.zeros_like(y))
    return torch.where(inside, widen(base.log_prob(torch.where(inside.unsqueeze(-1), y, stand_in))), -math.inf)


def is_real(constraint: constraints.Constraint | None) -> bool:
    """Whether all real numbers, or vectors of them, are meant."""
    inner = getattr(constraint, "base_constraint", None)
    return constraint is constraints.real if inner is None else is_real(inner)


def affine(base: Distribution, r: float | Tensor, c: float | Tensor) -> Distribution | None:
    """The distribution of r y + c, for location-scale families."""
    if isinstance(base, Independent):
        inner = affine(base.base_dist, r, c)
        return None if inner is None else Independent(inner, base.reinterpreted_batch_ndims, validate_args=False)
    if not isinstance(base, (Normal, Laplace, MultivariateNormal, LowRankMultivariateNormal)):
        return None
    dtype = wide_dtype(base.loc.dtype)  # what scalars are in does not decide that of the result
    r, c = (x.to(dtype) if isinstance(x, Tensor) else x for x in (r, c))
    if isinstance(base, (Normal, Laplace)):
        return type(base)(r * base.loc + c, r * base.scale, validate_args=False)
    column = r.unsqueeze(-1) if isinstance(r, Tensor) and r.dim() else r
    if isinstance(base, MultivariateNormal):
        return MultivariateNormal(r * base.loc + c, scale_tril=column * base.scale_tril, validate_args=False)
    factor, diagonal = column * base.cov_factor, r * r * base.cov_diag
    return LowRankMultivariateNormal(r * base.loc + c, factor, diagonal, validate_args=False)


def kl(p: Distribution, q: Distribution) -> Tensor | None:
    """KL between two bases, or None if there is no closed form."""
    p_normal, q_normal = diagonal_normal(p), diagonal_normal(q)
    if p_normal is not None and q_normal is not None:
        return _terms.gaussian_kl(p_normal.loc, p_normal.scale, q_normal.loc, q_normal.scale)
    p_full, q_full = full_normal(p), full_normal(q)
    if p_full is not None and q_full is not None:
        return _full_gaussian_kl(*p_full, *q_full)
    if not _same_transforms(p, q):
        return None
    try:
        return widen(kl_divergence(p, q))
    except NotImplementedError:
        return None


def _same_transforms(p: Distribution, q: Distribution) -> bool:
    """Whether what torch compares by value, the transforms of both, stays the same when it is trained."""
    if isinstance(p, Independent) and isinstance(q, Independent):
        return _same_transforms(p.base_dist, q.base_dist)
    if type(p) is not TransformedDistribution or type(q) is not TransformedDistribution:  # whose subclasses know more
        return True
    maps = ComposeTransform(p.transforms), ComposeTransform(q.transforms)
    return same_map(*maps) and _same_transforms(p.base_dist, q.base_dist)


def _full_gaussian_kl(mu1: Tensor, tril1: Tensor, mu2: Tensor, tril2: Tensor) -> Tensor:
    """KL between two normals with Cholesky factors of their covariances."""
    whitened: Tensor = torch.linalg.solve_triangular(tril2, tril1, upper=False)
    shift: Tensor = torch.linalg.solve_triangular(tril2, (mu1 - mu2).unsqueeze(-1), upper=False)
    squares = whitened.square().sum((-2, -1)) + shift.square().sum((-2, -1)) - mu1.shape[-1]
    return 0.5 * squares + _log_diagonal(tril2) - _log_diagonal(tril1)


def _log_diagonal(tril: Tensor) -> Tensor:
    """Half the log-determinant of the covariance."""
    return tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
