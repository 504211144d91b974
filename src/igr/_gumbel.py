"""Relaxations by Gumbel noise; public as :mod:`igr.distributions`."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Bernoulli, Distribution, constraints

from igr import _terms
from igr._checks import (
    broadcast,
    check_finite,
    check_parameter,
    check_range,
    check_row_scalar,
    check_tensor,
    expand,
    is_number,
    log,
    validation,
    values_checkable,
    widen,
)
from igr._draws import fused_sample, fusible, gumbel_noise
from igr._others import log_prob_on_interval
from igr._relaxation import Relaxation, Shape
from igr._scalars import show
from igr._simplex import one_hot_argmax
from igr.conditional import conditional_path_gumbel

if TYPE_CHECKING:
    from igr.kernels.fused import Fused


_LOGITS_ADVICE = (
    "look for the step that produced them; to forbid categories, give a mask to igr.functional.gumbel_softmax or to "
    "igr.nn.CategoricalBottleneck"
)


class _LogitRelaxation(Relaxation):
    """Logits to which noise is added."""

    temperature: float | Tensor
    logits: Tensor

    @property
    def _like(self) -> Tensor:
        return self.logits

    @property
    def _tau(self) -> float | Tensor:
        dtype = torch.promote_types(self.logits.dtype, torch.float32)
        return self.temperature.to(dtype) if isinstance(self.temperature, Tensor) else self.temperature

    @abstractmethod
    def _noise(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        """Noise with the shape, dtype and device of ``like``."""

    def _draw(self, sample_shape: Shape, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        log_alpha = widen(self.logits).expand(torch.Size((*sample_shape, *self.logits.shape)))
        return log_alpha, self._noise(log_alpha, generator)

    def _scores(self, sample_shape: Shape, generator: torch.Generator | None) -> Tensor:
        log_alpha, eps = self._draw(sample_shape, generator)
        return log_alpha + eps

    def __repr__(self) -> str:
        return f"{type(self).__name__}(temperature: {show(self.temperature)}, logits: {tuple(self.logits.shape)})"


class GumbelSoftmax(_LogitRelaxation):
    r"""The Gumbel-Softmax, or Concrete, distribution, in log space.

    .. math:: z = \mathrm{softmax}((\log \alpha + \epsilon) / \tau), \qquad
        q(z) = (K-1)!\, \tau^{K-1} \prod_k \frac{\alpha_k z_k^{-\tau - 1}}{\sum_j \alpha_j z_j^{-\tau}}.

    Note:
        In ``rsample_and_log_prob`` everything but :math:`\sum_k \log z_k` is a function of the noise alone:
        :math:`\log q = \log (K-1)! + (K-1) \log \tau - \sum_k \epsilon_k - K \log \sum_k e^{-\epsilon_k}
        - \sum_k \log z_k`.
        At an exact zero the density has no limit (it depends on the direction), so ``log_prob`` refuses there;
        where values cannot be looked at, it is :math:`-\infty`.

        The second argument is logits, where that of torch's ``RelaxedOneHotCategorical`` is probabilities: call that
        one by ``logits=``, or give this one ``probs.log()``.

    References:
        Equations 5 and 6; Maddison et al. (2017); Jang et al. (2017).

    Arguments:
        temperature: :math:`\tau > 0`: a number, a 0-d tensor or one value per row, shape ``(*, 1)``.
        logits: :math:`\log \alpha`, unnormalised and finite, shape ``(*, K)``.
        validate_args: whether to look at the entries of ``logits`` and at the points given to ``log_prob``, by default
            yes, whatever torch's global default is; types, shapes and the temperature are always checked.

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
            check_finite("logits", logits, _LOGITS_ADVICE)
        rows = broadcast(logits=torch.Size((*logits.shape[:-1], 1)), temperature=temperature)
        self.logits = expand(logits, rows[:-1] + logits.shape[-1:])
        super().__init__(self.logits.shape[:-1], self.logits.shape[-1:], validate_args)

    def expand(self, batch_shape: Shape, _instance: Self | None = None) -> Self:
        logits = self.logits.expand(torch.Size((*batch_shape, *self.event_shape)))
        return self._expanded(GumbelSoftmax, _instance, batch_shape, logits=logits)

    def _noise(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        return gumbel_noise(like, generator)

    def rsample(self, sample_shape: Shape = (), *, generator: torch.Generator | None = None) -> Tensor:
        fused = self._fused(sample_shape, generator)
        return super().rsample(sample_shape, generator=generator) if fused is None else fused.z

    def hard_rsample(self, sample_shape: Shape = (), *, generator: torch.Generator | None = None) -> Tensor:
        fused = self._fused(sample_shape, generator, hard=True)
        return super().hard_rsample(sample_shape, generator=generator) if fused is None else fused.z

    def rsample_and_log_prob(
        self, sample_shape: Shape = (), *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        fused = self._fused(sample_shape, generator, log_prob=True)
        if fused is None or fused.log_prob is None:
            return super().rsample_and_log_prob(sample_shape, generator=generator)
        return fused.z, fused.log_prob

    def _fused(self, sample_shape: Shape, generator: torch.Generator | None, **options: bool) -> Fused | None:
        """By a kernel, where one can."""
        if not self._has_steps_of(GumbelSoftmax, "_draw", "_noise"):
            return None
        if not fusible(generator, (self.logits,), (self._tau,)):
            return None
        batch = torch.Size((*sample_shape, *self.batch_shape))
        return fused_sample(self.logits, None, batch, self._tau, generator=generator, **options)

    def _relax(self, scores: Tensor) -> Tensor:
        return (scores / self._tau).softmax(-1)

    def _log_relax(self, scores: Tensor) -> Tensor:
        return (scores / self._tau).log_softmax(-1)

    def _harden(self, scores: Tensor) -> Tensor:
        return one_hot_argmax(scores)

    def log_rsample_and_log_prob(
        self, sample_shape: Shape = (), *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        log_alpha, eps = self._draw(sample_shape, generator)
        log_z = self._log_relax(_terms.exact_differences(log_alpha, eps))
        return log_z, _terms.gumbel_log_prob(eps, log_z, self._tau)

    def _log_density(self, log_z: Tensor) -> Tensor:
        """Equation 6."""
        zero = torch.isneginf(log_z).any(-1)
        if values_checkable(log_z) and bool(zero.any()):
            raise ValueError(
                "the Gumbel-Softmax density has no limit at an exact zero: the sample has underflowed; "
                "use rsample_and_log_prob, or log_prob_from_log on log_rsample"
            )
        log_z = torch.where(zero.unsqueeze(-1), 0.0, log_z)
        log_q = _terms.gumbel_log_prob(self._tau * log_z - widen(self.logits), log_z, self._tau)
        return torch.where(zero, -math.inf, log_q)

    def _recovered_log_probs(self) -> Tensor:
        return widen(self.logits).log_softmax(-1)

    def _conditional_path(self, scores: Tensor) -> Tensor:
        return conditional_path_gumbel(widen(self.logits), scores)


class BinaryConcrete(_LogitRelaxation):
    r"""The relaxed Bernoulli on (0, 1): a Gumbel-Softmax of two categories, seen through its first coordinate.

    .. math:: z = \mathrm{sigmoid}((\log \alpha + \epsilon) / \tau), \quad \epsilon \sim \text{Logistic}(0, 1), \qquad
        q(z) = \frac{\tau \alpha z^{-\tau - 1} (1 - z)^{-\tau - 1}}{(\alpha z^{-\tau} + (1 - z)^{-\tau})^2}.

    Note:
        A sample that has rounded to 0 or 1 cannot be scored by ``log_prob``; ``rsample_and_log_prob`` scores it from
        its log-odds.

    References:
        Maddison et al. (2017), appendix B.

    Arguments:
        temperature: :math:`\tau > 0`, a number or broadcastable with ``logits``.
        logits: :math:`\log \alpha`, the log-odds of one, any shape ``(*)``.
        validate_args: whether to look at the entries of ``logits`` and at the points given to ``log_prob``, by default
            yes, whatever torch's global default is; types, shapes and the temperature are always checked.

    Example:
        >>> q = BinaryConcrete(0.1, torch.zeros(5))
        >>> z, log_q = q.rsample_and_log_prob()
        >>> z.shape, log_q.shape
        (torch.Size([5]), torch.Size([5]))
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
        self.logits = expand(logits, broadcast(logits=logits, temperature=temperature))
        super().__init__(self.logits.shape, torch.Size(), validate_args)

    def expand(self, batch_shape: Shape, _instance: Self | None = None) -> Self:
        logits = self.logits.expand(torch.Size(batch_shape))
        return self._expanded(BinaryConcrete, _instance, batch_shape, logits=logits)

    def _noise(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        return gumbel_noise(like, generator) - gumbel_noise(like, generator)

    def _relax(self, scores: Tensor) -> Tensor:
        return (scores / self._tau).sigmoid()

    def _log_relax(self, scores: Tensor) -> Tensor:
        return F.logsigmoid(scores / self._tau)

    def _harden(self, scores: Tensor) -> Tensor:
        return (scores > 0).to(scores.dtype)

    def log_rsample_and_log_prob(
        self, sample_shape: Shape = (), *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        log_alpha, eps = self._draw(sample_shape, generator)
        x = (log_alpha + eps) / self._tau
        return F.logsigmoid(x), self._log_prob_at(eps, x)

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
        return self._log_prob_at(self._tau * x - widen(self.logits), x)

    def _log_prob_at(self, eps: Tensor, x: Tensor) -> Tensor:
        """The log-density at sigmoid(x), x being the log-odds that the noise makes."""
        return log(self._tau) + _terms.logistic_log_prob(eps) - _terms.logistic_log_prob(x)

    def _log_ratio(
        self, other: Distribution, sample_shape: Shape = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """log self(z) - log other(z) at samples z of ``self``, which travel as log-odds."""
        if isinstance(other, Relaxation) and not isinstance(other, BinaryConcrete):
            return super()._log_ratio(other, sample_shape, generator=generator)
        log_alpha, eps = self._draw(sample_shape, generator)
        x = (log_alpha + eps) / self._tau
        if isinstance(other, BinaryConcrete):
            return self._log_prob_at(eps, x) - other._log_prob_from_logit(x)
        return self._log_prob_at(eps, x) - log_prob_on_interval(other, F.logsigmoid(x), F.logsigmoid(-x))

    def recovered(  # type: ignore[override] # zero and one have no vertices
        self, num_samples: int | None = None, *, generator: torch.Generator | None = None
    ) -> Bernoulli:
        r"""The discrete distribution that is relaxed: one with probability :math:`\mathrm{sigmoid}(\log \alpha)`."""
        return Bernoulli(logits=widen(self.logits), validate_args=False)

    @property
    def mode(self) -> Tensor:
        """The likelier of zero and one."""
        return self._harden(self.logits)
