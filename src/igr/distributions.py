r"""Relaxations of discrete distributions: densities on the simplex, sampled by differentiable maps of noise.

Densities are with respect to Lebesgue measure on the first :math:`K-1` coordinates. Samples have the dtype of the
parameters; densities, divergences and log-samples of half-precision parameters are float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    ComposeTransform,
    Distribution,
    Independent,
    MultivariateNormal,
    Normal,
    OneHotCategorical,
    Transform,
    constraints,
    transform_to,
)

from igr import _kl_forms, functional
from igr._checks import (
    broadcast,
    check_finite,
    check_parameter,
    check_range,
    check_row_scalar,
    check_tensor,
    describe,
    is_number,
    log,
    validation,
    values_checkable,
    widen,
)
from igr._maps import maps_onto_simplex, parts_of
from igr._relaxation import Relaxation, Shape
from igr.transforms import SimplexTransform, SoftmaxPlusPlus, call_and_ladj, row, show

__all__ = ["BinaryConcrete", "GumbelSoftmax", "InvertibleGaussian", "InvertibleReparameterization", "Relaxation"]


class InvertibleReparameterization(Relaxation):
    r"""A base distribution on :math:`\mathbb{R}^{K-1}` pushed onto the simplex by an invertible map.

    .. math:: z = g(y), \quad y \sim \text{base}, \qquad \log q(z) = \log p_{\text{base}}(y) - \log |\det J_g(y)|.

    Note:
        :meth:`rsample_and_log_prob` scores its own samples from y and its noise, at any temperature. :meth:`log_prob`
        has to invert g; it is :math:`-\infty`, never NaN, at an exact zero and off the image of g.

    References:
        Equations 10 to 13.

    Arguments:
        base: any reparameterizable distribution with event shape ``(K-1,)``; one with event shape ``()`` has the last
            axis of its batch read as the K-1 independent coordinates.
        transform: a map onto the simplex, or a sequence of maps of which the last is one.

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
        validate_args: bool | None = None,
    ) -> None:
        self.maps = maps_onto_simplex(transform)
        base = _vector_base(base)
        shape = base.batch_shape + base.event_shape
        for part in self.maps[:-1]:
            shape = part.forward_shape(shape)
            if shape[-1] != base.event_shape[-1]:
                raise ValueError(
                    f"{part} maps {base.event_shape[-1]} coordinates to {shape[-1]}; only the last map may"
                )
        shape = self._onto.forward_shape(shape)
        self._like = _example(base)
        self.base = _widened(base)
        if base.batch_shape != shape[:-1]:
            self.base = self.base.expand(shape[:-1])
        super().__init__(shape[:-1], shape[-1:], validate_args)

    @property
    def transform(self) -> Transform:
        """The whole map from the base to the simplex."""
        return self.maps[0] if len(self.maps) == 1 else ComposeTransform(list(self.maps))

    @property
    def dtype(self) -> torch.dtype:
        return self._like.dtype

    @property
    def _onto(self) -> SimplexTransform:
        return self.maps[-1]  # type: ignore[return-value]

    def expand(self, batch_shape: Shape, _instance: Self | None = None) -> Self:
        base = self.base.expand(torch.Size(batch_shape))
        return self._expanded(InvertibleReparameterization, _instance, batch_shape, base=base)

    def _draw(self, sample_shape: Shape, generator: torch.Generator | None) -> tuple[Tensor, Tensor | None]:
        """y, and the standard normal noise in it if the base is a normal."""
        normal, base = _kl_forms.diagonal_normal(self.base), self.base
        if normal is not None:
            eps = functional.gaussian_noise((*sample_shape, *normal.loc.shape), normal.loc, generator)
            # fused, so rounded once: y keeps its relative accuracy where μ and σε nearly cancel
            return torch.addcmul(normal.loc, normal.scale, eps), eps
        with torch.autocast(self._like.device.type, enabled=False):  # matrix products in full precision
            if isinstance(base, MultivariateNormal):
                eps = functional.gaussian_noise((*sample_shape, *base.loc.shape), base.loc, generator)
                return base.loc + (base.scale_tril @ eps.unsqueeze(-1)).squeeze(-1), eps
            if generator is not None:
                raise ValueError(f"the base {base} draws from torch's global generator; leave generator out")
            return widen(base.rsample(torch.Size(sample_shape))), None

    def _base_log_prob(self, y: Tensor, eps: Tensor | None) -> Tensor:
        """Log-density of y under the base: from the noise where it is known, and -inf off the base's support."""
        normal, base = _kl_forms.diagonal_normal(self.base), self.base
        if eps is not None:
            log_scale = _kl_forms.log_scale(base)
            return -0.5 * (eps.square().sum(-1) + eps.shape[-1] * math.log(2 * math.pi)) - log_scale
        if normal is not None:
            return -0.5 * ((y - normal.loc) / normal.scale).square().sum(-1) - (
                normal.scale.log().sum(-1) + 0.5 * y.shape[-1] * math.log(2 * math.pi)
            )
        inside, support = None, base.support
        if support is not None and not _kl_forms.is_real(support):
            inside = support.check(y)
            y = torch.where(inside.unsqueeze(-1), y, transform_to(support)(torch.zeros_like(y)))
        with torch.autocast(self._like.device.type, enabled=False):
            log_p = widen(base.log_prob(y))
        return log_p if inside is None else torch.where(inside, log_p, -math.inf)

    def _scores(self, sample_shape: Shape, generator: torch.Generator | None) -> Tensor:
        x, _ = self._draw(sample_shape, generator)
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

    def log_rsample_and_log_prob(
        self, sample_shape: Shape = (), *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        x, eps = self._draw(sample_shape, generator)
        log_q = self._base_log_prob(x, eps)
        for part in self.maps[:-1]:
            x, ladj = call_and_ladj(part, x)
            log_q = log_q - ladj
        log_z = self._onto.log_call(x)
        return log_z, log_q - self._onto.ladj(x, log_z)

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
        inside, total, zeros = (
            torch.ones_like(x[..., 0], dtype=torch.bool),
            torch.zeros_like(x[..., 0]),
            torch.zeros_like(x),
        )
        for part in reversed(maps):
            reached = part.codomain.check(x)
            reached = reached if part.codomain.event_dim else reached.all(-1)
            x = torch.where(reached.unsqueeze(-1), x, part(zeros))
            inside, image = inside & reached, x
            x = part.inv(image)
            ladj = part.log_abs_det_jacobian(x, image)
            total = total + (ladj if part.domain.event_dim else ladj.sum(-1))
        return torch.where(inside, self._base_log_prob(x, None) - total, -math.inf)

    def log_ratio(
        self, other: Distribution, sample_shape: Shape = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """log self(z) - log other(z) at samples z of ``self``, taken before the last maps that both have in common."""
        if not isinstance(other, InvertibleReparameterization) or self.maps[-1] != other.maps[-1]:
            return super().log_ratio(other, sample_shape, generator=generator)
        common = 1
        while common < min(len(self.maps), len(other.maps)) and self.maps[-1 - common] == other.maps[-1 - common]:
            common += 1
        x, eps = self._draw(sample_shape, generator)
        log_p = self._base_log_prob(x, eps)
        for part in self.maps[:-common]:
            x, ladj = call_and_ladj(part, x)
            log_p = log_p - ladj
        return log_p - other._log_prob_before(x, other.maps[:-common])

    def _known_kl(self, other: Distribution) -> Tensor | None:
        if isinstance(other, InvertibleReparameterization):
            return _kl_forms.kl(self.base, self.maps, other.base, other.maps, self._like)
        return None

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
        validate_args: whether to check values, by default yes; types and shapes are always checked.

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
        mu, sigma, dtype = functional.location_scale(loc, scale)
        temperature, delta = check_row_scalar("temperature", temperature), check_row_scalar("delta", delta)
        broadcast(loc=torch.Size((*mu.shape[:-1], 1)), temperature=temperature, delta=delta)
        if validation(validate_args):
            check_finite("loc", loc)
            check_range("scale", scale)
        base = Independent(Normal(mu, sigma, validate_args=False), 1, validate_args=False)
        flows = () if flow is None else parts_of(flow)
        super().__init__(base, [*flows, SoftmaxPlusPlus(temperature, delta)], validate_args)
        self._like = loc.new_empty(0, dtype=dtype)
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


class GumbelSoftmax(Relaxation):
    r"""The Gumbel-Softmax, or Concrete, distribution, in log space.

    .. math:: z = \mathrm{softmax}((\log \alpha + \epsilon) / \tau), \qquad
        q(z) = (K-1)!\, \tau^{K-1} \prod_k \frac{\alpha_k z_k^{-\tau - 1}}{\sum_j \alpha_j z_j^{-\tau}}.

    Note:
        In :meth:`rsample_and_log_prob` everything but :math:`\sum_k \log z_k` is a function of the noise alone:
        :math:`\log q = \log (K-1)! + (K-1) \log \tau - \sum_k \epsilon_k - K \log \sum_k e^{-\epsilon_k}
        - \sum_k \log z_k`.
        At an exact zero the density has no limit (it depends on the direction), so :meth:`log_prob` refuses there;
        where values cannot be looked at, it is :math:`-\infty`.

    References:
        Equations 5 and 6; Maddison et al. (2017); Jang et al. (2017).

    Arguments:
        temperature: :math:`\tau > 0`: a number, a 0-d tensor or one value per row, shape ``(*, 1)``.
        logits: :math:`\log \alpha`, unnormalised and finite, shape ``(*, K)``.
        validate_args: whether to check values, by default yes; types and shapes are always checked.

    Example:
        >>> q = GumbelSoftmax(0.01, torch.zeros(5, 10))
        >>> z, log_q = q.rsample_and_log_prob()
        >>> bool(log_q.isfinite().all())
        True
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "temperature": constraints.positive,
        "logits": constraints.real_vector,
    }

    def __init__(self, temperature: float | Tensor, logits: Tensor, *, validate_args: bool | None = None) -> None:
        check_parameter("logits", logits, "K")
        self.temperature = check_row_scalar("temperature", temperature)
        if validation(validate_args):
            check_finite("logits", logits)
        rows = broadcast(logits=torch.Size((*logits.shape[:-1], 1)), temperature=temperature)
        self.logits = _expand(logits, rows[:-1] + logits.shape[-1:])
        super().__init__(self.logits.shape[:-1], self.logits.shape[-1:], validate_args)

    @property
    def dtype(self) -> torch.dtype:
        return self.logits.dtype

    def expand(self, batch_shape: Shape, _instance: Self | None = None) -> Self:
        logits = self.logits.expand(torch.Size((*batch_shape, *self.event_shape)))
        return self._expanded(GumbelSoftmax, _instance, batch_shape, logits=logits)

    @property
    def _tau(self) -> float | Tensor:
        return check_row_scalar("temperature", self.temperature, widen(self.logits))

    def _draw(self, sample_shape: Shape, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        log_alpha = widen(self.logits).expand(torch.Size((*sample_shape, *self.logits.shape)))
        return log_alpha, functional.gumbel_noise(log_alpha, generator)

    def _scores(self, sample_shape: Shape, generator: torch.Generator | None) -> Tensor:
        log_alpha, eps = self._draw(sample_shape, generator)
        return log_alpha + eps

    def _relax(self, scores: Tensor) -> Tensor:
        return (scores / self._tau).softmax(-1)

    def _log_relax(self, scores: Tensor) -> Tensor:
        return (scores / self._tau).log_softmax(-1)

    def _harden(self, scores: Tensor) -> Tensor:
        return functional.one_hot_argmax(scores)

    def log_rsample_and_log_prob(
        self, sample_shape: Shape = (), *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        log_alpha, eps = self._draw(sample_shape, generator)
        log_z = self._log_relax(_exact_differences(log_alpha, eps))
        return log_z, self._normaliser() - _gumbel_energy(-eps) - log_z.sum(-1)

    def _log_density(self, log_z: Tensor) -> Tensor:
        zero = torch.isneginf(log_z).any(-1)
        if values_checkable(log_z) and bool(zero.any()):
            raise ValueError(
                "the Gumbel-Softmax density has no limit at an exact zero: the sample has underflowed; "
                "use rsample_and_log_prob, or log_prob_from_log on log_rsample"
            )
        log_z = torch.where(zero.unsqueeze(-1), 0.0, log_z)
        log_q = self._normaliser() - _gumbel_energy(widen(self.logits) - self._tau * log_z) - log_z.sum(-1)
        return torch.where(zero, -math.inf, log_q)

    def _normaliser(self) -> Tensor | float:
        K, log_tau = self.event_shape[-1], log(self._tau)
        return math.lgamma(K) + (K - 1) * (row(log_tau) if isinstance(log_tau, Tensor) else log_tau)

    def recovered(self) -> OneHotCategorical:
        r"""The discrete distribution that is relaxed, :math:`\alpha / \sum_k \alpha_k`."""
        return OneHotCategorical(logits=widen(self.logits), validate_args=False)

    @property
    def mode(self) -> Tensor:
        """The likeliest recovered vertex."""
        return functional.one_hot_argmax(self.logits)

    def _known_kl(self, other: Distribution) -> Tensor | None:
        if not isinstance(other, InvertibleReparameterization):
            return None
        return _kl_forms.kl(self, (), other.base, other.maps, self.logits)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(temperature: {show(self.temperature)}, logits: {tuple(self.logits.shape)})"


class BinaryConcrete(Relaxation):
    r"""The relaxed Bernoulli on (0, 1): a Gumbel-Softmax of two categories, seen through its first coordinate.

    .. math:: z = \mathrm{sigmoid}((\log \alpha + \epsilon) / \tau), \quad \epsilon \sim \text{Logistic}(0, 1).

    References:
        Maddison et al. (2017), appendix B.

    Arguments:
        temperature: :math:`\tau > 0`, a number or broadcastable with ``logits``.
        logits: :math:`\log \alpha`, the log-odds of one, any shape ``(*)``.
        validate_args: whether to check values, by default yes; types and shapes are always checked.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "temperature": constraints.positive,
        "logits": constraints.real,
    }
    support = constraints.unit_interval

    def __init__(self, temperature: float | Tensor, logits: Tensor, *, validate_args: bool | None = None) -> None:
        check_tensor("logits", logits)
        temperature = float(temperature) if is_number(temperature) else check_tensor("temperature", temperature)
        check_range("temperature", temperature)
        if validation(validate_args):
            check_finite("logits", logits)
        self.temperature = temperature
        self.logits = _expand(logits, broadcast(logits=logits, temperature=temperature))
        super().__init__(self.logits.shape, torch.Size(), validate_args)

    @property
    def dtype(self) -> torch.dtype:
        return self.logits.dtype

    def expand(self, batch_shape: Shape, _instance: Self | None = None) -> Self:
        logits = self.logits.expand(torch.Size(batch_shape))
        return self._expanded(BinaryConcrete, _instance, batch_shape, logits=logits)

    def _tau(self) -> float | Tensor:
        like = widen(self.logits)
        return self.temperature.to(like.dtype) if isinstance(self.temperature, Tensor) else self.temperature

    def _draw(self, sample_shape: Shape, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        log_alpha = widen(self.logits).expand(torch.Size((*sample_shape, *self.logits.shape)))
        eps = functional.gumbel_noise(log_alpha, generator) - functional.gumbel_noise(log_alpha, generator)
        return log_alpha, eps

    def _scores(self, sample_shape: Shape, generator: torch.Generator | None) -> Tensor:
        log_alpha, eps = self._draw(sample_shape, generator)
        return log_alpha + eps

    def _relax(self, scores: Tensor) -> Tensor:
        return (scores / self._tau()).sigmoid()

    def _log_relax(self, scores: Tensor) -> Tensor:
        return F.logsigmoid(scores / self._tau())

    def _harden(self, scores: Tensor) -> Tensor:
        return (scores > 0).to(scores.dtype)

    def log_rsample_and_log_prob(
        self, sample_shape: Shape = (), *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        log_alpha, eps = self._draw(sample_shape, generator)
        log_z, log_rest = self._log_relax(log_alpha + eps), self._log_relax(-log_alpha - eps)
        return log_z, log(self._tau()) + _logistic_log_prob(eps) - log_z - log_rest

    def _log_density(self, log_z: Tensor) -> Tensor:
        edge = torch.isneginf(log_z) | (log_z == 0)
        if values_checkable(log_z) and bool(edge.any()):
            raise ValueError(
                "the density of a sample that has rounded to 0 or 1 is not defined: use rsample_and_log_prob"
            )
        log_z = torch.where(edge, -1.0, log_z)
        return torch.where(edge, -math.inf, self._log_prob_from_logit(log_z - (-torch.expm1(log_z)).log()))

    def _log_prob_from_logit(self, x: Tensor) -> Tensor:
        """The log-density at sigmoid(x); the log-odds x tell apart what rounds to 0 or 1."""
        eps = self._tau() * x - widen(self.logits)
        return log(self._tau()) + _logistic_log_prob(eps) - _logistic_log_prob(x)

    def log_ratio(
        self, other: Distribution, sample_shape: Shape = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """log self(z) - log other(z) at samples z of ``self``, which travel as log-odds."""
        if not isinstance(other, BinaryConcrete):
            return super().log_ratio(other, sample_shape, generator=generator)
        log_alpha, eps = self._draw(sample_shape, generator)
        x = (log_alpha + eps) / self._tau()
        log_p = log(self._tau()) + _logistic_log_prob(eps) - _logistic_log_prob(x)
        return log_p - other._log_prob_from_logit(x)

    def recovered(self) -> Bernoulli:
        r"""The discrete distribution that is relaxed: one with probability :math:`\mathrm{sigmoid}(\log \alpha)`."""
        return Bernoulli(logits=widen(self.logits), validate_args=False)

    @property
    def mode(self) -> Tensor:
        """The likelier of zero and one."""
        return self._harden(self.logits)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(temperature: {show(self.temperature)}, logits: {tuple(self.logits.shape)})"


def _vector_base(base: Distribution) -> Distribution:
    """The base with event shape (K-1,), or an error that says what is wrong with it."""
    if not isinstance(base, Distribution):
        raise TypeError(f"base must be a torch.distributions.Distribution, got {describe(base)}")
    if not base.has_rsample:
        raise ValueError(f"base must be reparameterizable (has_rsample), got {base}")
    if not base.event_shape and base.batch_shape:
        base = Independent(base, 1, validate_args=False)
    if len(base.event_shape) != 1 or base.event_shape[0] < 1:
        raise ValueError(f"base must have event shape (K - 1,) with K >= 2, got {tuple(base.event_shape)}")
    return base


def _widened(base: Distribution) -> Distribution:
    """A diagonal normal of half precision as one of float32, so that noise, densities and divergences are."""
    normal = _kl_forms.diagonal_normal(base)
    if normal is None:
        return base
    return Independent(Normal(widen(normal.loc), widen(normal.scale), validate_args=False), 1, validate_args=False)


def _example(base: Distribution) -> Tensor:
    """An empty tensor with the dtype and device of the base's parameters."""
    while hasattr(base, "base_dist"):
        base = base.base_dist
    for name in base.arg_constraints:
        value = getattr(base, name, None)
        if isinstance(value, Tensor):
            return value.new_empty(0)
    with torch.no_grad():  # a distribution that does not say what it depends on
        example: Tensor = base.rsample()
    return example.new_empty(0)


def _expand(x: Tensor, shape: torch.Size) -> Tensor:
    """``x`` itself, where it has that shape already: a leaf stays a leaf."""
    return x if x.shape == shape else x.expand(shape)


def _contains(onto: SimplexTransform, log_z: Tensor) -> Tensor:
    """Whether z is in the image of the map onto the simplex; for a map onto all of it, logarithms suffice."""
    inside = (log_z > -math.inf).all(-1)
    return inside if isinstance(onto, SoftmaxPlusPlus) else inside.logical_and(onto.codomain.check(log_z.exp()))


def _exact_differences(a: Tensor, b: Tensor) -> Tensor:
    """a + b less its largest entry, correctly rounded: near-ties of large sums keep their relative accuracy."""
    total = a + b
    top = total.detach().amax(-1, keepdim=True)
    with torch.no_grad():  # the rounding error of the sum, exactly (Knuth)
        part = total - a
        error = (a - (total - part)) + (b - part)
    return (total - top) + error


def _gumbel_energy(x: Tensor) -> Tensor:
    r""":math:`K \log \sum_k e^{x_k} - \sum_k x_k`."""
    return x.shape[-1] * x.logsumexp(-1) - x.sum(-1)


def _logistic_log_prob(x: Tensor) -> Tensor:
    return F.logsigmoid(x) + F.logsigmoid(-x)
