r"""Relaxations of discrete distributions: densities on the simplex, sampled by differentiable maps of noise.

Densities are with respect to Lebesgue measure on the first :math:`K-1` coordinates. Samples have the dtype of the
parameters; densities, divergences and log-samples of half-precision parameters are float32. All classes share the
methods of :class:`Relaxation`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import ComposeTransform, Distribution, Independent, Normal, Transform, constraints

from igr import _bases, functional
from igr._checks import (
    broadcast,
    check_finite,
    check_range,
    check_row_scalar,
    full_precision,
    validation,
    values_checkable,
)
from igr._constraints import NearVertices, holds
from igr._draws import fused_sample, fusible, location_scale
from igr._gumbel import BinaryConcrete, GumbelSoftmax
from igr._maps import maps_onto_simplex, parts_of
from igr._relaxation import (
    EstimatedOneHotCategorical,
    MonteCarlo,
    RecoveredOneHotCategorical,
    Relaxation,
    Shape,
    monte_carlo_recovered,
)
from igr._stick_ends import StickEnd
from igr.conditional import conditional_path
from igr.recovery import recovered_log_probs, recovered_log_probs_stick_breaking
from igr.transforms import (
    SimplexTransform,
    SoftmaxPlusPlus,
    StickBreaking,
    VertexInterpolation,
    call_and_ladj,
    same_map,
)

if TYPE_CHECKING:
    from igr.kernels.fused import Fused

__all__ = [
    "InvertibleGaussian",
    "InvertibleReparameterization",
    "GumbelSoftmax",
    "BinaryConcrete",
    "Relaxation",
    "monte_carlo_recovered",
    "MonteCarlo",
    "RecoveredOneHotCategorical",
    "EstimatedOneHotCategorical",
]


class InvertibleReparameterization(Relaxation):
    r"""A base distribution on :math:`\mathbb{R}^{K-1}` pushed onto the simplex by an invertible map.

    .. math:: z = g(y), \quad y \sim \text{base}, \qquad \log q(z) = \log p_{\text{base}}(y) - \log |\det J_g(y)|.

    Note:
        :meth:`~Relaxation.rsample_and_log_prob` scores its own samples from y and its noise, at any temperature.
        :meth:`~Relaxation.log_prob` has to invert g; it is :math:`-\infty`, never NaN, at an exact zero and off the
        image of g.

    References:
        Equations 10 to 13.

    Arguments:
        base: any reparameterizable distribution with event shape ``(K-1,)``; one with event shape ``()`` has the last
            axis of its batch read as the K-1 independent coordinates.
        transform: a map onto the simplex, or a sequence of maps of which the last is one.
        validate_args: whether to look at the points given to ``log_prob``, by default yes.

    Attributes:
        base: the base, with the batch shape of the whole; normals of half precision as float32.
        maps: the maps, one after the other.

    Example:
        >>> from torch.distributions import StudentT
        >>> from igr.transforms import Planar
        >>> flow = Planar(u=torch.tensor([1.0, 0.5]), w=torch.tensor([0.3, -1.0]))
        >>> q = InvertibleReparameterization(StudentT(3.0, torch.zeros(2), torch.ones(2)), [flow, SoftmaxPlusPlus(0.5)])
        >>> z, log_q = q.rsample_and_log_prob((100,))
        >>> z.shape, log_q.shape
        (torch.Size([100, 3]), torch.Size([100]))
    """

    def __init__(
        self,
        base: Distribution,
        transform: Transform | Sequence[Transform],
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.maps = maps_onto_simplex(transform)
        base = _bases.vector_base(base)
        shape = base.batch_shape + base.event_shape
        for part in self.maps[:-1]:
            shape = part.forward_shape(shape)
            if shape[-1] != base.event_shape[-1]:
                raise ValueError(
                    f"{part} maps {base.event_shape[-1]} coordinates to {shape[-1]}; only the last map may"
                )
        shape = self._onto.forward_shape(shape)
        self._example = _bases.example(base)
        self.base = _bases.widened(base)
        if base.batch_shape != shape[:-1]:
            self.base = self.base.expand(shape[:-1])
        super().__init__(shape[:-1], shape[-1:], validate_args)

    @property
    def transform(self) -> Transform:
        """The whole map from the base to the simplex."""
        return self.maps[0] if len(self.maps) == 1 else ComposeTransform(list(self.maps))

    @property
    def _like(self) -> Tensor:
        return self._example

    @property
    def _pushforward(self) -> tuple[Distribution, Sequence[Transform]]:
        return self.base, self.maps

    @property
    def _onto(self) -> SimplexTransform:
        return self.maps[-1]  # type: ignore[return-value]

    def expand(self, batch_shape: Shape, _instance: Self | None = None) -> Self:
        base = self.base.expand(torch.Size(batch_shape))
        return self._expanded(InvertibleReparameterization, _instance, batch_shape, base=base)

    def _full_precision(self) -> AbstractContextManager[Any]:
        """Where the matrix products of a base are not cast to half precision."""
        return full_precision(self._like.device)

    def rsample(self, sample_shape: Shape = (), *, generator: torch.Generator | None = None) -> Tensor:
        fused = self._fused(sample_shape, generator)
        return super().rsample(sample_shape, generator=generator) if fused is None else fused.z.to(self.dtype)

    def hard_rsample(self, sample_shape: Shape = (), *, generator: torch.Generator | None = None) -> Tensor:
        fused = self._fused(sample_shape, generator, hard=True)
        return super().hard_rsample(sample_shape, generator=generator) if fused is None else fused.z.to(self.dtype)

    def rsample_and_log_prob(
        self, sample_shape: Shape = (), *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        fused = self._fused(sample_shape, generator, log_prob=True)
        if fused is None or fused.log_prob is None:
            return super().rsample_and_log_prob(sample_shape, generator=generator)
        return fused.z.to(self.dtype), fused.log_prob

    def _fused(self, sample_shape: Shape, generator: torch.Generator | None, **options: bool) -> Fused | None:
        """IGR-I by a kernel, where one can."""
        normal = gaussian_of(self)
        if normal is None or not self._has_steps_of(InvertibleReparameterization, "_draw_through"):
            return None
        scalars = [getattr(self._onto, name) for name in ("tau", "delta")]
        tau, delta = (t.to(normal.loc.dtype) if isinstance(t, Tensor) else t for t in scalars)
        if not fusible(generator, (normal.loc, normal.scale), (tau, delta)):
            return None
        batch = torch.Size((*sample_shape, *self.batch_shape))
        return fused_sample(normal.loc, normal.scale, batch, tau, delta, generator=generator, **options)

    def _scores(self, sample_shape: Shape, generator: torch.Generator | None) -> Tensor:
        with self._full_precision():
            x, _ = _bases.draw(self.base, sample_shape, generator)
        for part in self.maps[:-1]:
            x = part(x)
        return x

    def _relax(self, scores: Tensor) -> Tensor:
        z: Tensor = self._onto(scores)
        return z

    def _log_relax(self, scores: Tensor) -> Tensor:
        return self._onto.log_call(scores)

    def _harden(self, scores: Tensor) -> Tensor:
        return self._onto.harden(scores)

    def _tally(self, scores: Tensor) -> Tensor:
        """By comparisons with the best score, which takes a third of the time of one-hot vectors on a CPU."""
        known = type(self._onto) is SoftmaxPlusPlus and self._has_steps_of(InvertibleReparameterization)
        if known and values_checkable(scores):
            best = scores.amax(-1, keepdim=True)
            wins, above = (scores >= best.clamp(min=0.0)).sum(0), (best >= 0).sum(0)
            if torch.equal(wins.sum(-1, keepdim=True), above):  # where scores are level, one-hot vectors decide
                return torch.cat([wins, (best < 0).sum(0)], -1)
        return super()._tally(scores)

    def log_rsample_and_log_prob(
        self, sample_shape: Shape = (), *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        x, log_q = self._draw_through(self.maps[:-1], sample_shape, generator)
        log_z = self._onto.log_call(x)
        return log_z, log_q - self._onto.ladj(x, log_z)

    def _draw_through(
        self, maps: Sequence[Transform], sample_shape: Shape, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """What ``maps``, the first of this distribution's, make of a draw, and its log-density."""
        with self._full_precision():
            x, eps = _bases.draw(self.base, sample_shape, generator)
            log_p = _bases.log_prob(self.base, x) if eps is None else _bases.log_prob_of_noise(self.base, eps)
        for part in maps:
            x, ladj = call_and_ladj(part, x)
            log_p = log_p - ladj
        return x, log_p

    def _log_density(self, log_z: Tensor) -> Tensor:
        log_z = log_z.expand(broadcast(log_z=log_z, batch=self._extended_shape()))
        # outside the image of a map its inverse is undefined: there the image of zero stands in, and -inf is returned
        inside = _contains(self._onto, log_z)
        y = log_z.new_zeros((*log_z.shape[:-1], log_z.shape[-1] - 1))
        log_z = torch.where(inside.unsqueeze(-1), log_z, self._onto.log_call(y))
        x = self._onto.log_inverse(log_z)
        return torch.where(inside, self._log_prob_before(x, self.maps[:-1]) - self._onto.ladj(x, log_z), -math.inf)

    def _log_prob_before(self, x: Tensor, maps: Sequence[Transform]) -> Tensor:
        """The log-density of x, what ``maps``, the first of this distribution's, make of the base."""
        zeros, total = torch.zeros_like(x), torch.zeros_like(x[..., 0])
        inside = torch.ones_like(total, dtype=torch.bool)
        for part in reversed(maps):
            reached = holds(part.codomain, x)
            reached = reached if part.codomain.event_dim else reached.all(-1)
            x = torch.where(reached.unsqueeze(-1), x, part(zeros))
            inside, image = inside & reached, x
            x = part.inv(image)
            ladj = part.log_abs_det_jacobian(x, image)
            total = total + (ladj if part.domain.event_dim else ladj.sum(-1))
        with self._full_precision():
            return torch.where(inside, _bases.log_prob(self.base, x) - total, -math.inf)

    def _recovered_log_probs(self) -> Tensor | None:
        """Proposition 2 for IGR-I, the recursion for IGR-SB; subclasses of maps may map differently, so exact types."""
        normal = _bases.diagonal_normal(self.base)
        if normal is None:
            return None
        with self._full_precision():
            if gaussian_of(self) is not None:
                return recovered_log_probs(normal.loc, normal.scale)
            if len(self.maps) == 2 and (end := _stick_end(self)) is not None:
                return recovered_log_probs_stick_breaking(normal.loc, normal.scale, end.leftover)
            if len(self.maps) == 1 and type(self.maps[0]) is VertexInterpolation:
                return recovered_log_probs_stick_breaking(normal.loc, normal.scale)
        return None

    def _conditional_path(self, scores: Tensor) -> Tensor | None:
        normal = gaussian_of(self)
        return None if normal is None else conditional_path(normal.loc, normal.scale, scores)

    def _log_ratio(
        self, other: Distribution, sample_shape: Shape = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """log self(z) - log other(z) at samples z of ``self``, taken before the last maps that both have in common.

        Sticks travel as logarithms also between maps that differ: what z keeps of them ends where they are rounded.
        """
        if not isinstance(other, InvertibleReparameterization):
            return super()._log_ratio(other, sample_shape, generator=generator)
        common, here, there = self._maps_in_common(other), _stick_end(self), _stick_end(other)
        if common < 2 and here is not None and there is not None:
            y, log_p = self._draw_through(self.maps[:-2], sample_shape, generator)
            log_w = functional.log_stick_breaking(y)
            return log_p - here.ladj(log_w) - other._log_density_of_sticks(there.sticks_of(log_w, here), there)
        if common:
            x, log_p = self._draw_through(self.maps[:-common], sample_shape, generator)
            return log_p - other._log_prob_before(x, other.maps[:-common])
        return super()._log_ratio(other, sample_shape, generator=generator)

    def _log_density_of_sticks(self, log_w: Tensor, end: StickEnd) -> Tensor:
        """At the point of the simplex with these sticks, but for the sum of the logarithms of its coordinates."""
        inside = (log_w > -math.inf).all(-1)
        center = functional.log_stick_breaking(torch.zeros_like(log_w[..., :-1]))
        log_w = torch.where(inside.unsqueeze(-1), log_w, center)  # outside of the image -inf is returned
        y = functional.log_stick_breaking_inverse(log_w)
        return torch.where(inside, self._log_prob_before(y, self.maps[:-2]) - end.ladj(log_w), -math.inf)

    def _maps_in_common(self, other: Distribution) -> int:
        """How many of the last maps are the same; if trained, then as one, so that their derivative cancels too."""
        if not isinstance(other, InvertibleReparameterization):
            return 0
        pairs = zip(reversed(self.maps), reversed(other.maps), strict=False)
        return sum(1 for _ in takewhile(lambda pair: same_map(*pair), pairs))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base}, {self.transform})"


class InvertibleGaussian(InvertibleReparameterization):
    r"""The Invertible Gaussian Reparameterization: Gaussian noise pushed onto the simplex.

    .. math:: y = \mu + \sigma \epsilon, \quad \epsilon \sim N(0, I_{K-1}), \qquad
        z = \mathrm{softmax}_{++}(f(y), \tau).

    With ``flow=None`` this is IGR-I, with ``flow=StickBreaking()`` IGR-SB, with a planar flow IGR-Planar.

    References:
        Equations 10 to 13, 15 and 18.

    Arguments:
        loc: :math:`\mu`, shape ``(*, K-1)``.
        scale: :math:`\sigma > 0`, a number or broadcastable with ``loc``.
        temperature: :math:`\tau > 0`: a number, a 0-d tensor or one value per row, shape ``(*, 1)``.
        flow: an invertible transform :math:`f` of :math:`\mathbb{R}^{K-1}`, or a sequence of them.
        delta: :math:`\delta > 0`, the weight of the K-th category in the softmax++.
        validate_args: whether to look at the entries of ``loc`` and ``scale`` and at the points given to ``log_prob``,
            by default yes, whatever torch's global default is; types, shapes, temperature and delta are always checked.

    Example:
        >>> q = InvertibleGaussian(torch.zeros(4, 9), 1.0, temperature=0.1)
        >>> q.rsample().shape
        torch.Size([4, 10])
        >>> q.kl(InvertibleGaussian(torch.zeros(9), 1.0, temperature=0.5)).shape
        torch.Size([4])
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "loc": constraints.real_vector,
        "scale": constraints.independent(constraints.positive, 1),
        "temperature": constraints.positive,
        "delta": constraints.positive,
    }

    def __init__(
        self,
        loc: Tensor,
        scale: Tensor | float,
        temperature: float | Tensor,
        *,
        flow: Transform | Sequence[Transform] | None = None,
        delta: float | Tensor = 1.0,
        validate_args: bool | None = None,
    ) -> None:
        loc, sigma = location_scale(loc, scale)
        temperature, delta = check_row_scalar("temperature", temperature), check_row_scalar("delta", delta)
        broadcast(loc=torch.Size((*loc.shape[:-1], 1)), temperature=temperature, delta=delta)
        if validation(validate_args):
            check_finite("loc", loc)
            check_range("scale", scale)
        base = Independent(Normal(loc, sigma, validate_args=False), 1, validate_args=False)
        flows = () if flow is None else parts_of(flow)
        super().__init__(base, [*flows, SoftmaxPlusPlus(temperature, delta)], validate_args=validate_args)
        self.temperature, self.delta = temperature, delta

    @property
    def _normal(self) -> Normal:
        return self.base.base_dist  # type: ignore[attr-defined, no-any-return]

    @property
    def loc(self) -> Tensor:
        r""":math:`\mu`, shape ``batch_shape + (K-1,)``."""
        return self._normal.loc.to(self.dtype)

    @property
    def scale(self) -> Tensor:
        r""":math:`\sigma`, shape ``batch_shape + (K-1,)``."""
        return self._normal.scale.to(self.dtype)

    @property
    def flow(self) -> Transform | None:
        """What comes between the Gaussian and the softmax++."""
        flows = list(self.maps[:-1])
        return None if not flows else flows[0] if len(flows) == 1 else ComposeTransform(flows)

    def expand(self, batch_shape: Shape, _instance: Self | None = None) -> Self:
        base = self.base.expand(torch.Size(batch_shape))
        return self._expanded(InvertibleGaussian, _instance, batch_shape, base=base)

    def __repr__(self) -> str:
        flow = f", flow={self.flow}" if self.flow else ""
        return f"{type(self).__name__}(loc: {tuple(self.loc.shape)}, {self._onto}{flow})"


def gaussian_of(q: Relaxation) -> Normal | None:
    """The Gaussian of IGR-I, if q is that; subclasses of the softmax++ may map differently, so its exact type."""
    if isinstance(q, InvertibleReparameterization) and len(q.maps) == 1 and type(q.maps[0]) is SoftmaxPlusPlus:
        return _bases.diagonal_normal(q.base)
    return None


def _stick_end(q: InvertibleReparameterization) -> StickEnd | None:
    """How q ends, if with stick-breaking and a softmax++; subclasses may map differently, so exact types."""
    if len(q.maps) < 2:
        return None
    sticks, onto = q.maps[-2:]
    if type(sticks) is StickBreaking and type(onto) is SoftmaxPlusPlus:
        return StickEnd(sticks.leftover, onto.tau, onto.delta)
    return None


def _contains(onto: SimplexTransform, log_z: Tensor) -> Tensor:
    """Whether z is in the image of the map onto the simplex; for those of this library, logarithms suffice."""
    inside = (log_z > -math.inf).all(-1)
    if isinstance(onto, SoftmaxPlusPlus):
        return inside
    image = onto.codomain
    return inside & (image.check_log(log_z) if isinstance(image, NearVertices) else image.check(log_z.exp()))
