"""The Kumaraswamy distribution on (0, 1), whose samples are explicit functions of uniform noise, in log space."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import Beta, Distribution, constraints, register_kl

from igr._checks import (
    broadcast,
    check_range,
    check_tensor,
    describe,
    differentiated,
    expand,
    is_number,
    validation,
    values_checkable,
    widen,
)
from igr._draws import gumbel_noise
from igr._kumaraswamy_forms import (
    Concentrations,
    divergence,
    harmonic,
    log1mexp,
    log_beta,
    log_density,
    log_moment,
    log_neg_log,
    log_samples,
    mean_neg_log1m,
    variance,
)
from igr._scalars import show

__all__ = ["Kumaraswamy", "log_from_gumbel"]


class Kumaraswamy(Distribution):
    r"""The Kumaraswamy distribution, a relative of the Beta that is reparameterized in closed form.

    .. math:: q(x) = a b\, x^{a - 1} (1 - x^a)^{b - 1}, \qquad x = (1 - e^{-E / b})^{1 / a},

    with :math:`E = -\log u` standard exponential noise.

    Note:
        Nothing is clipped. :meth:`rsample` rounds to 0 or 1 where x does; :meth:`log_rsample` and
        :meth:`log_prob_from_log` carry :math:`\log x` and :math:`\log(1 - x)` instead, and are as exact at both ends as
        in the middle. :meth:`icdf` is 0 at 0 and 1 at 1, and rounds between as samples do. The density is unbounded at
        0 where a is below 1, and at 1 where b is.

        Samples and quantiles have the dtype of the parameters; logarithms of samples, densities, probabilities and
        moments at least float32.

        With a or b below about 1e-18 gradients with respect to them overflow in float32. :meth:`from_logs` takes
        the logarithms instead, whose gradients are of the size of the values.

        The variance has a relative error below 1e-9 for a and b in [0.001, 1000], before the result is rounded to its
        dtype.

        KL divergences to ``torch.distributions.Beta`` and to another Kumaraswamy are registered. Their only part
        without a closed form is :math:`E[\log(1 - x^r)]`, with r = 1 for the Beta: a trapezoidal rule of 160 nodes,
        whose relative error is below 1e-11 for a / r and b in [0.01, 100] and below 1e-8 in [0.001, 1000], where
        it is more than 1e-6 in size. It has the weight :math:`b' - 1`, :math:`b'` being the other's ``concentration0``,
        and is left out where that is the constant 1: :meth:`kl_to_beta` says when this can be seen.

    References:
        Kumaraswamy (1980), A generalized probability density function for double-bounded random processes; Nalisnick
        and Smyth (2017), Stick-breaking variational autoencoders.

    Arguments:
        concentration1: :math:`a > 0`, a number or a tensor.
        concentration0: :math:`b > 0`, a number or a tensor that broadcasts with it.
        validate_args: whether to look at the entries of both and at the points given to ``log_prob``, by default yes,
            whatever torch's global default is; types and shapes are always checked.

    Example:
        >>> q = Kumaraswamy(torch.tensor([0.5, 2.0]), 3.0)
        >>> log_x, log1m_x = q.log_rsample((1000,))
        >>> bool(torch.allclose(log_x.exp() + log1m_x.exp(), torch.ones(1000, 2)))
        True
        >>> torch.distributions.kl_divergence(q, Beta(1.0, 3.0))
        tensor([0.7165, 0.5098])
    """

    has_rsample = True
    support = constraints.unit_interval
    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "concentration1": constraints.positive,
        "concentration0": constraints.positive,
    }

    def __init__(
        self,
        concentration1: Tensor | float,
        concentration0: Tensor | float,
        validate_args: bool | None = None,
    ) -> None:
        self._logs: tuple[Tensor, Tensor] | None = None
        self.concentration1, self.concentration0 = _together(concentration1, concentration0)
        super().__init__(self.concentration1.shape, torch.Size(), validate_args=False)
        self._validate_args = validation(validate_args)
        if self._validate_args:
            check_range("concentration1", concentration1)
            check_range("concentration0", concentration0)

    @classmethod
    def from_logs(
        cls,
        log_concentration1: Tensor | float,
        log_concentration0: Tensor | float,
        validate_args: bool | None = None,
    ) -> Self:
        r"""The same, of :math:`\log a` and :math:`\log b`, for gradients with respect to these.

        Note:
            In float32 the gradients of :meth:`log_rsample`, of :meth:`log_prob_from_log` at such samples and of the KL
            divergences are finite for both in [-80, 80]. Moments are computed from a and b.

        Arguments:
            log_concentration1: :math:`\log a`, a number or a tensor, with a finite and positive exponential.
            log_concentration0: :math:`\log b`, likewise.
            validate_args: as above.
        """
        logs = _together(log_concentration1, log_concentration0)
        new = cls(logs[0].exp(), logs[1].exp(), validate_args)
        new._logs = logs
        return new

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of samples."""
        return self.concentration1.dtype

    @property
    def _ab(self) -> Concentrations:
        """Both concentrations and their logarithms, of at least float32."""
        if self._logs is not None:
            return Concentrations.of_logs(*map(widen, self._logs))
        return Concentrations.of(widen(self.concentration1), widen(self.concentration0))

    def expand(self, batch_shape: Sequence[int], _instance: Self | None = None) -> Self:
        batch_shape = torch.Size(batch_shape)
        if broadcast(batch_shape=self.batch_shape, new=batch_shape) != batch_shape:
            raise ValueError(f"batch shape {tuple(self.batch_shape)} cannot be expanded to {tuple(batch_shape)}")
        new: Self = self._get_checked_instance(Kumaraswamy, _instance)  # type: ignore[no-untyped-call]
        a, b = expand(self.concentration1, batch_shape), expand(self.concentration0, batch_shape)
        logs = self._logs and (expand(self._logs[0], batch_shape), expand(self._logs[1], batch_shape))
        new.__dict__.update(self.__dict__, _batch_shape=batch_shape, concentration1=a, concentration0=b, _logs=logs)
        return new

    def rsample(self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """A differentiable sample, shape ``sample_shape + batch_shape``; 0 or 1 where it rounds to them."""
        return self.log_rsample(sample_shape, generator=generator)[0].exp().to(self.dtype)

    def sample(self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """A sample without gradient."""
        with torch.no_grad():
            return self.rsample(sample_shape, generator=generator)

    def log_rsample(
        self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """log x and log(1 - x) of one differentiable sample x, both of shape ``sample_shape + batch_shape``."""
        p = self._ab
        return log_samples(p.log_a, p.log_b, gumbel_noise(p.a.expand((*sample_shape, *p.a.shape)), generator))

    def log_prob(self, value: Tensor) -> Tensor:
        r"""The log-density, shape ``sample_shape + batch_shape``; at 0 and 1 its limit, which may be infinite.

        Raises:
            ValueError: a shape that does not fit, or, unless ``validate_args`` is off, a point outside [0, 1], where
                the log-density is :math:`-\infty`.
        """
        value = self._check_value(value)
        outside = (value < 0) | (value > 1)
        p, zero, one = self._ab, value == 0, value == 1
        x = torch.where(outside | zero | one, 0.5, value)
        log_x, log1m_x = (
            torch.where(sure, 0.0, torch.where(never, -math.inf, log))
            for sure, never, log in ((one, zero, x.log()), (zero, one, (-x).log1p()))
        )
        # what is zero at an end where the limit is finite, and has the derivatives that the logarithms do not have
        at_zero = (p.b - 1) * (-torch.where(zero, value, 0.5)).log1p()
        at_one = (p.a - 1) * torch.where(one, value, 0.5).log()
        rest = torch.where(zero & (p.a == 1), at_zero, torch.where(one & (p.b == 1), at_one, 0.0))
        return torch.where(outside, -math.inf, log_density(p, log_x, log1m_x) + rest)

    def log_prob_from_log(self, log_x: Tensor, log1m_x: Tensor) -> Tensor:
        """:meth:`log_prob` as a function of log x and log(1 - x), where x may be within rounding of 0 or 1.

        Raises:
            ValueError: shapes that do not fit, or, unless ``validate_args`` is off, what are no such logarithms.
        """
        given = check_tensor("log_x", log_x), check_tensor("log1m_x", log1m_x)
        broadcast(log_x=log_x, log1m_x=log1m_x, batch_shape=self.batch_shape)
        log_x, log1m_x = map(widen, given)
        if self._validate_args and values_checkable(*given):
            log_total = torch.logaddexp(log_x, log1m_x).abs()
            # what float32 or float64 arithmetic may lose, or rounding of both to half precision
            tolerance = max(64 * torch.finfo(log_total.dtype).eps, *(4 * torch.finfo(x.dtype).eps for x in given))
            if not bool((log_total <= tolerance).all()):
                raise ValueError(
                    "log_x and log1m_x must be log x and log(1 - x) of numbers x in [0, 1], got "
                    f"{describe(given[0])} and {describe(given[1])}; use log_prob for the numbers themselves"
                )
        return log_density(self._ab, log_x, log1m_x)

    def cdf(self, value: Tensor) -> Tensor:
        """P(X <= value); values as for :meth:`log_prob`."""
        value = self._check_value(value)
        p = self._ab
        ends = (value <= 0) | (value >= 1)
        x = torch.where(ends, 0.5, value)
        probability = -torch.expm1(p.b * log1mexp(log_neg_log(x.log(), (-x).log1p()) + p.log_a))
        return torch.where(ends, (value > 0).to(probability.dtype), probability)

    def icdf(self, value: Tensor) -> Tensor:
        """The quantile at probabilities in [0, 1]: the inverse of :meth:`cdf`.

        Raises:
            ValueError: a shape that does not fit, or, unless ``validate_args`` is off, a number outside [0, 1], where
                the quantile is NaN.
        """
        dtype = torch.promote_types(check_tensor("value", value).dtype, self.dtype)
        value = self._check_value(value, "value must be probabilities", "use cdf to make probabilities of points")
        p = self._ab
        ends = (value == 0) | (value == 1)
        exponential = -torch.log1p(-torch.where(ends, 0.5, value))
        quantile = log_samples(p.log_a, p.log_b, -exponential.log())[0].exp()
        return torch.where(ends, value, quantile).to(dtype)

    @property
    def mean(self) -> Tensor:
        return log_moment(self._ab, 1).exp().to(self._ab.a.dtype)

    @property
    def variance(self) -> Tensor:
        return variance(self._ab)

    @property
    def mode(self) -> Tensor:
        """Where the density is largest; NaN where it is unbounded, with a or b below 1, or constant."""
        a, b, *_ = self._ab
        x = ((a - 1) / (a * b - 1)).pow(1 / a)
        return torch.where((a >= 1) & (b >= 1), x, math.nan)

    def mean_log(self) -> Tensor:
        r""":math:`E[\log x] = -(\psi(b + 1) + \gamma) / a`."""
        return -harmonic(self._ab.b) * (-self._ab.log_a).exp()

    def mean_log1m(self) -> Tensor:
        r""":math:`E[\log(1 - x)]`, by quadrature; the class says how exact."""
        return -mean_neg_log1m(self._ab.log_a, self._ab.log_b)

    def entropy(self) -> Tensor:
        r""":math:`1 - 1/b + (1 - 1/a)(\psi(b + 1) + \gamma) - \log(a b)`."""
        return -divergence(self._ab, (-self._ab.log_a).exp(), 0.0, None)

    def kl_to_beta(self, concentration1: Tensor | float, concentration0: Tensor | float) -> Tensor:
        r"""The KL divergence to a Beta distribution :math:`\mathrm{Beta}(\alpha, \beta)`, differentiable in all four.

        .. math:: \log(a b) - 1 + \frac1b + \frac{\alpha - a}{a} (\psi(b + 1) + \gamma) + \log B(\alpha, \beta)
            - (\beta - 1)\, E[\log(1 - x)].

        Note:
            The last term is not computed where :math:`\beta` is the number 1, or a tensor of ones on the CPU that
            needs no gradient and whose values can be looked at; on other devices a look would wait for the device, so
            there give a number.

        References:
            Nalisnick and Smyth (2017), appendix.

        Arguments:
            concentration1: :math:`\alpha > 0`, a number or a tensor.
            concentration0: :math:`\beta > 0`, likewise.

        Raises:
            ValueError: shapes that do not broadcast, or a number that is not positive.
        """
        p = self._ab
        for name, value in (("concentration1", concentration1), ("concentration0", concentration0)):
            if is_number(value):
                check_range(name, value)
        alpha = widen(_as_tensor("concentration1", concentration1, p.a))
        beta = widen(_as_tensor("concentration0", concentration0, p.a))
        broadcast(batch_shape=self.batch_shape, concentration1=alpha, concentration0=beta)
        ratio = alpha * (-p.log_a).exp()
        return divergence(p, ratio, 0.0, None if _is_one(concentration0) else beta) + log_beta(alpha, beta)

    def _check_value(
        self,
        value: Tensor,
        problem: str = "",
        advice: str = "use samples of this distribution, or log_prob_from_log on their logarithms",
    ) -> Tensor:
        """The value, of at least float32."""
        value = widen(check_tensor("value", given := value))
        broadcast(value=value, batch_shape=self.batch_shape)
        if self._validate_args and values_checkable(value) and not bool(self.support.check(value).all()):
            problem = problem or f"value is not in the support of {self}"
            raise ValueError(f"{problem}: expected numbers in [0, 1], got {describe(given)}; {advice}")
        return value

    def __repr__(self) -> str:
        a, b = show(self.concentration1), show(self.concentration0)
        return f"{type(self).__name__}(concentration1: {a}, concentration0: {b})"


def log_from_gumbel(log_concentration1: Tensor, log_concentration0: Tensor, gumbel: Tensor) -> tuple[Tensor, Tensor]:
    r"""log x and log(1 - x) of the Kumaraswamy sample x that standard Gumbel noise makes: :math:`E = e^{-\epsilon}`.

    Note:
        A pure function, which looks at no values: it can be captured in a CUDA graph. Gradients in float32 are finite
        for both logarithms in [-80, 80] and noise in [-4, 87]. Beyond, :math:`\log x` or :math:`\log(1 - x)` may itself
        overflow.

    Arguments:
        log_concentration1: :math:`\log a`.
        log_concentration0: :math:`\log b`, broadcastable with it.
        gumbel: :math:`\epsilon`, broadcastable with both.

    Example:
        >>> log_from_gumbel(torch.tensor(-60.0), torch.tensor(0.0), torch.tensor(0.0))
        (tensor(-5.2381e+25), tensor(-0.))
    """
    return log_samples(widen(log_concentration1), widen(log_concentration0), widen(gumbel))


@register_kl(Kumaraswamy, Beta)  # type: ignore[untyped-decorator]
def _kl_kumaraswamy_beta(p: Kumaraswamy, q: Beta) -> Tensor:
    return p.kl_to_beta(q.concentration1, q.concentration0)


@register_kl(Kumaraswamy, Kumaraswamy)  # type: ignore[untyped-decorator]
def _kl_kumaraswamy_kumaraswamy(p: Kumaraswamy, q: Kumaraswamy) -> Tensor:
    broadcast(p=p.batch_shape, q=q.batch_shape)
    here, there = p._ab, q._ab
    beta = None if _is_one(q.concentration0) else there.b
    cross = divergence(here, (there.log_a - here.log_a).exp(), there.log_a, beta)  # x^r has concentration1 a / r
    return cross - there.log_a - there.log_b


def _is_one(value: Tensor | float) -> bool:
    """Whether this is the constant 1, as far as can be said without waiting for a device."""
    if not isinstance(value, Tensor):
        return value == 1
    if differentiated(value) or value.device.type != "cpu" or not values_checkable(value):
        return False
    return bool((value == 1).all())


def _as_tensor(name: str, value: Tensor | float, like: Tensor) -> Tensor:
    """A tensor as it is, or a number in the dtype and on the device of ``like``."""
    return like.new_full((), float(value)) if is_number(value) else check_tensor(name, value)


def _together(concentration1: Tensor | float, concentration0: Tensor | float) -> tuple[Tensor, Tensor]:
    """Both as tensors of one shape and one dtype; types and shapes are checked."""
    like = next(x for x in (concentration1, concentration0, torch.empty(())) if isinstance(x, Tensor))
    a = _as_tensor("concentration1", concentration1, like)
    b = _as_tensor("concentration0", concentration0, like)
    shape, dtype = broadcast(concentration1=a, concentration0=b), torch.promote_types(a.dtype, b.dtype)
    return expand(a.to(dtype), shape), expand(b.to(dtype), shape)
