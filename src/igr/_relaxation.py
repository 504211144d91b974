"""The abstract class of all relaxations."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    OneHotCategorical,
    Transform,
    constraints,
    register_kl,
)

from igr import _kl_forms, functional
from igr._checks import broadcast, check_count, check_tensor, describe, validation, values_checkable, widen
from igr._others import log_prob_on_simplex
from igr._simplex import one_hot_argmax
from igr.transforms import simplex

Shape = Sequence[int]
IN_CACHE, AT_ONCE = 2**19, 2**23  # numbers that are counted at once on a CPU and elsewhere


class MonteCarlo(NamedTuple):
    """A Monte Carlo estimate with its standard error, both of one shape."""

    estimate: Tensor
    """The mean over samples."""
    standard_error: Tensor
    """Its standard error, without gradient."""


class RecoveredOneHotCategorical(OneHotCategorical):
    r"""A categorical whose log-probability is linear in the point: :math:`\sum_k z_k \log p_k`.

    On vertices that is what torch's has. Between them, where torch's looks at the argmax, it passes gradients on, so
    that a log q(z) inside a function has its part in estimators that differentiate the function, or relax it.

    Example:
        >>> d = RecoveredOneHotCategorical(probs=torch.tensor([0.5, 0.25, 0.25]), validate_args=False)
        >>> d.log_prob(torch.tensor([0.5, 0.5, 0.0])).exp()
        tensor(0.3536)
    """

    def __init__(
        self, probs: Tensor | None = None, logits: Tensor | None = None, validate_args: bool | None = None
    ) -> None:
        given = logits if probs is None else probs
        empty = given is not None and (given.is_meta or given.numel() == 0)
        hidden = torch.compiler.is_compiling() or empty  # torch's checks of values cannot be asked
        self._categorical = Categorical(probs, logits, validate_args=False if hidden else None)
        shapes = self._categorical.batch_shape, self._categorical.param_shape[-1:]
        Distribution.__init__(self, *shapes, validate_args=False if hidden else validate_args)

    def expand(self, batch_shape: Shape, _instance: Self | None = None) -> Self:
        new = self._get_checked_instance(RecoveredOneHotCategorical, _instance)  # type: ignore[no-untyped-call]
        expanded: Self = super().expand(torch.Size(batch_shape), _instance=new)  # type: ignore[no-untyped-call]
        return expanded

    def log_prob(self, value: Tensor) -> Tensor:
        """Shape ``sample_shape + batch_shape``."""
        if value.shape[-1:] != self.event_shape:
            raise ValueError(f"value must have shape (*, {self.event_shape[-1]}), got {describe(value)}")
        broadcast(value=value.shape[:-1], batch_shape=self.batch_shape)
        log_p = self.logits.clamp(min=torch.finfo(self.logits.dtype).min / 4)  # finite, so that zero times it is zero
        return (value * log_p).sum(-1)


class EstimatedOneHotCategorical(RecoveredOneHotCategorical):
    """A categorical whose probabilities were estimated by sampling, and how well.

    Attributes:
        standard_error: of each probability, shape ``batch_shape + (K,)``.
        num_samples: how many samples there were.
    """

    def __init__(self, probs: Tensor, standard_error: Tensor, num_samples: int) -> None:
        self.standard_error, self.num_samples = standard_error, num_samples
        super().__init__(probs=probs, validate_args=False)

    def expand(self, batch_shape: Shape, _instance: Self | None = None) -> Self:
        shape = torch.Size((*batch_shape, *self.event_shape))
        error = self.standard_error.expand(shape)
        return type(self)(self.probs.expand(shape), error, self.num_samples)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(probs: {tuple(self.probs.shape)}, estimated from {self.num_samples} samples)"


class Relaxation(Distribution, ABC):
    """What all relaxations share: scores decide the hard sample, and a smooth map of them is the relaxed one.

    A subclass supplies ``_scores``, ``_relax``, ``_log_relax``, ``_harden``, ``_like``, ``_log_density``,
    ``log_rsample_and_log_prob`` and ``expand``, and ``_recovered_log_probs`` if it knows them;
    :func:`igr.testing.check_distribution` then checks it.
    """

    has_rsample = True
    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support: constraints.Constraint = simplex

    def __init__(self, batch_shape: torch.Size, event_shape: torch.Size, validate_args: bool | None) -> None:
        super().__init__(batch_shape, event_shape, validate_args=False)
        self._validate_args = validation(validate_args)

    @abstractmethod
    def _scores(self, sample_shape: Shape, generator: torch.Generator | None) -> Tensor:
        """Noise and parameters combined: what the map onto the simplex is applied to."""

    @abstractmethod
    def _relax(self, scores: Tensor) -> Tensor:
        """The point of the simplex."""

    @abstractmethod
    def _log_relax(self, scores: Tensor) -> Tensor:
        """Its logarithm."""

    @abstractmethod
    def _harden(self, scores: Tensor) -> Tensor:
        """Its limit at temperature zero."""

    @property
    @abstractmethod
    def _like(self) -> Tensor:
        """A tensor with the dtype and device of samples."""

    def _has_steps_of(self, owner: type[Relaxation], *names: str) -> bool:
        """Whether samples are made by the steps of ``owner``, none of which a subclass has replaced."""
        steps = ("_scores", "_relax", "_log_relax", "_harden", "log_rsample_and_log_prob", *names)
        return all(getattr(type(self), name) is getattr(owner, name) for name in steps)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of samples."""
        return self._like.dtype

    @abstractmethod
    def log_rsample_and_log_prob(
        self, sample_shape: Shape = (), *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """The logarithm of a sample and the sample's log-density, computed from the noise itself."""

    @abstractmethod
    def _log_density(self, log_z: Tensor) -> Tensor:
        """The log-density at exp(log_z), of at least float32."""

    def rsample(self, sample_shape: Shape = (), *, generator: torch.Generator | None = None) -> Tensor:
        """A differentiable sample, shape ``sample_shape + batch_shape + event_shape``."""
        return self._relax(self._scores(sample_shape, generator)).to(self.dtype)

    def sample(self, sample_shape: Shape = (), *, generator: torch.Generator | None = None) -> Tensor:
        """A sample without gradient."""
        with torch.no_grad():
            return self.rsample(sample_shape, generator=generator)

    def log_rsample(self, sample_shape: Shape = (), *, generator: torch.Generator | None = None) -> Tensor:
        """The logarithm of a differentiable sample; finite where the sample itself underflows."""
        return self._log_relax(self._scores(sample_shape, generator))

    def hard_rsample(self, sample_shape: Shape = (), *, generator: torch.Generator | None = None) -> Tensor:
        """A discrete sample, exactly one-hot, with the gradient of the relaxed one (straight-through)."""
        scores = self._scores(sample_shape, generator)
        return functional.straight_through(self._harden(scores), self._relax(scores)).to(self.dtype)

    def rsample_and_log_prob(
        self, sample_shape: Shape = (), *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """A differentiable sample and its log-density, computed from the noise and not from the rounded sample."""
        log_z, log_q = self.log_rsample_and_log_prob(sample_shape, generator=generator)
        return log_z.exp().to(self.dtype), log_q

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density at a point of the simplex, shape ``sample_shape + batch_shape``.

        Raises:
            ValueError: a shape that does not fit, or, unless ``validate_args`` is off, a point off the simplex.
        """
        self._check_shape("value", value)
        if self._validate_args and values_checkable(value) and not bool(self.support.check(value).all()):
            raise ValueError(
                f"value is not in the support of {self}: expected {_describe_support(self)}, got {describe(value)}; "
                "use samples of this distribution, or log_prob_from_log on their logarithms"
            )
        value = widen(value)
        positive = value > 0  # keeps the gradient of the logarithm finite at an exact zero
        return self._log_density(torch.where(positive, torch.where(positive, value, 1.0).log(), -math.inf))

    def log_prob_from_log(self, log_z: Tensor) -> Tensor:
        """:meth:`log_prob` as a function of the logarithm of a sample, which cannot underflow.

        Raises:
            ValueError: a shape that does not fit, or, unless ``validate_args`` is off, what is no logarithm of a point.
        """
        self._check_shape("log_z", log_z)
        wide = widen(log_z)
        if self._validate_args and values_checkable(log_z):
            log_total = wide.logsumexp(-1).abs() if self.event_shape else wide
            tolerance = torch.finfo(wide.dtype).eps * (64 + self._categories)
            if log_z.dtype != wide.dtype:  # rounded entries change the sum by half of eps times the entropy at most
                tolerance += torch.finfo(log_z.dtype).eps * (1 + math.log(self._categories))
            if not bool((log_total <= tolerance).all()):
                raise ValueError(
                    f"log_z is not the logarithm of {_describe_support(self)}: got {describe(log_z)}; "
                    "use log_prob for the points themselves"
                )
        return self._log_density(wide)

    def _tally(self, scores: Tensor) -> Tensor:
        """How many of S scores have each category, ``(*, K)``: those with NaN have none."""
        unknown = scores.isnan().any(-1, keepdim=True)
        hard = self._harden(scores).masked_fill(unknown, 0.0)
        return hard.sum(0, dtype=torch.float32).long()  # exact: whole numbers below 2^24

    def _recovered_log_probs(self) -> Tensor | None:
        """Log-probabilities of the hard sample, shape (*, K), or nothing where only samples know them."""
        return None

    def _conditional_path(self, scores: Tensor) -> Tensor | None:
        """The value of scores with the gradient of ones held to their category, or nothing where that is not known."""
        return None

    def recovered(
        self, num_samples: int | None = None, *, generator: torch.Generator | None = None
    ) -> OneHotCategorical:
        r"""The discrete distribution that is relaxed: that of :math:`h(y)`, the limit of samples as :math:`\tau \to 0`.

        Deterministic and differentiable for IGR-I, IGR-SB and the Gumbel-Softmax. Where nothing but samples is known,
        with another flow or another base, ``num_samples`` of them are drawn, and the result, an
        :class:`EstimatedOneHotCategorical`, has their standard errors and no gradient. The log-probability of both is
        linear in the point that it is asked at (:class:`RecoveredOneHotCategorical`).

        Arguments:
            num_samples: samples to draw where there is no other way; ignored elsewhere.
            generator: source of their noise.

        Raises:
            NotImplementedError: only samples know, and ``num_samples`` is not given.
        """
        log_p = self._recovered_log_probs()
        if log_p is not None:  # what is impossible has a logit that is finite, and with it gradients of divergences
            log_p = log_p.clamp(min=torch.finfo(log_p.dtype).min / 4)
            return RecoveredOneHotCategorical(logits=log_p, validate_args=False)
        if num_samples is None:
            raise NotImplementedError(
                f"the discrete distribution behind {self} is known through samples only: use "
                "recovered(num_samples=100_000), or igr.monte_carlo_recovered for probabilities and standard errors"
            )
        return EstimatedOneHotCategorical(*monte_carlo_recovered(self, num_samples, generator=generator), num_samples)

    @property
    def mode(self) -> Tensor:
        """The likeliest recovered vertex, a one-hot vector."""
        log_p = self._recovered_log_probs()
        if log_p is None:
            raise NotImplementedError(
                f"the mode of {self} is known through samples only: use recovered(num_samples=100_000).mode"
            )
        return one_hot_argmax(log_p).to(self.dtype)

    @property
    def mean(self) -> Tensor:
        """Has no closed form; that of the categorical behind is ``recovered().probs``."""
        raise NotImplementedError(
            f"the mean of {self} has no closed form: use sample((10_000,)).mean(0), or recovered().probs for the "
            "probabilities of the categories"
        )

    @property
    def variance(self) -> Tensor:
        """Has no closed form."""
        raise NotImplementedError(f"the variance of {self} has no closed form: use sample((10_000,)).var(0)")

    def entropy(self) -> Tensor:
        """Has no closed form; that of the categorical behind is ``recovered().entropy()``."""
        raise NotImplementedError(
            f"the entropy of {self} has no closed form: use -rsample_and_log_prob((1_000,))[1].mean(0), or "
            "recovered().entropy() for that of the categories"
        )

    @property
    def _categories(self) -> int:
        return self.event_shape[-1] if self.event_shape else 2

    def kl(self, other: Distribution) -> Tensor:
        r"""The KL divergence :math:`KL(\text{self} \| \text{other})` in closed form, of the common batch shape.

        Infinite where ``other`` cannot reach all that ``self`` does. Usable inside ``torch.compile(fullgraph=True)``;
        there, values cannot be looked at: flows are the same if their tensors are the same objects, and rows that have
        no closed form are NaN.

        Raises:
            NotImplementedError: there is no closed form; the message names the alternative.
            ValueError: event shapes that differ, or batch shapes that do not broadcast.
        """
        self._check_other(other)
        value = None
        if isinstance(other, Relaxation):
            value = _kl_forms.kl(*self._pushforward, *other._pushforward, self._like)
        if value is None:
            raise NotImplementedError(f"no closed form for KL({self} || {other}); {_kl_forms.ADVICE}")
        return value

    def _check_other(self, other: Distribution) -> torch.Size:
        """The batch shape of a divergence from ``other``, be it in closed form or estimated, if there is one."""
        if not isinstance(other, Distribution):
            raise TypeError(f"other must be a distribution, got {describe(other)}")
        if isinstance(other, (Bernoulli, Categorical, OneHotCategorical)):
            raise NotImplementedError(
                f"no KL({self} || {other}): the second has no density; use igr.categorical_kl(p, q), the divergence of "
                "the categories"
            )
        if other.event_shape != self.event_shape:
            raise ValueError(
                f"no KL between event shapes {tuple(self.event_shape)} and {tuple(other.event_shape)}: "
                "both need the same number of categories"
            )
        return broadcast(p=self.batch_shape, q=other.batch_shape)

    def _log_ratio(
        self, other: Distribution, sample_shape: Shape = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """log self(z) - log other(z) at samples z of ``self``, which travel as logarithms."""
        log_z, log_p = self.log_rsample_and_log_prob(sample_shape, generator=generator)
        if isinstance(other, Relaxation):
            return log_p - other.log_prob_from_log(log_z)
        return log_p - log_prob_on_simplex(other, log_z)

    @property
    def _pushforward(self) -> tuple[Distribution, Sequence[Transform]]:
        """A base and the maps that carry it onto the simplex; what is not made that way is its own base."""
        return self, ()

    def _check_shape(self, name: str, value: Tensor) -> None:
        check_tensor(name, value)
        events = len(self.event_shape)
        if value.shape[value.dim() - events :] != self.event_shape:
            raise ValueError(f"{name} must have shape (*, {self.event_shape[-1]}), got {tuple(value.shape)}")
        broadcast(**{name: value.shape[: value.dim() - events], "batch_shape": self.batch_shape})

    def _expanded(self, owner: type[Distribution], instance: Self | None, batch_shape: Shape, **changed: Any) -> Self:
        """A copy with another batch shape and other parameters."""
        new: Self = self._get_checked_instance(owner, instance)  # type: ignore[no-untyped-call]
        new.__dict__.update(self.__dict__, _batch_shape=torch.Size(batch_shape), **changed)
        return new


@torch.no_grad()
def monte_carlo_recovered(
    q: Relaxation, num_samples: int = 100_000, *, generator: torch.Generator | None = None
) -> MonteCarlo:
    r"""Estimates the discrete distribution behind a relaxation, :math:`E[h(y)]`, by counting hard samples.

    Note:
        Of the relaxations here, all but those with another flow than stick-breaking, or with another base than a
        normal of independent coordinates, have these probabilities exactly, as :meth:`Relaxation.recovered`. The
        paper's :math:`E[h(\tilde z)]` is :math:`E[h(y)]`: the two differ unless :math:`\delta = 1`.

    References:
        Section 3.5.

    Arguments:
        q: the relaxation to sample from.
        num_samples: the number of samples S.
        generator: source of the noise; eager mode only.

    Returns:
        Probabilities and standard errors, both ``batch_shape + (K,)``, NaN where parameters are. The errors are those
        of a category seen once more than it was, so that one never seen has an error as well.

    Example:
        >>> from igr import InvertibleGaussian, Planar
        >>> flow = Planar(u=torch.tensor([1.0, 0.5]), w=torch.tensor([0.3, -1.0]))
        >>> q = InvertibleGaussian(torch.zeros(2), 1.0, temperature=0.5, flow=flow)
        >>> probs, standard_error = monte_carlo_recovered(q, 10_000)
        >>> probs.shape, bool((standard_error < 0.006).all())
        (torch.Size([3]), True)
    """
    if not isinstance(q, Relaxation) or not q.event_shape:
        raise TypeError(f"q must be a relaxation of this library on the simplex, got {describe(q)}")
    num_samples = check_count("num_samples", num_samples)
    estimate = frequencies(count_categories(q, num_samples, generator), num_samples)
    pessimistic = (estimate * num_samples + 1) / (num_samples + 2)
    error = (pessimistic * (1 - pessimistic) / num_samples).sqrt()
    dtype = torch.promote_types(q.dtype, torch.float32)
    return MonteCarlo(estimate.to(dtype), error.to(dtype))


@torch.no_grad()
def count_categories(q: Relaxation, num_samples: int, generator: torch.Generator | None) -> Tensor:
    """How many draws have each category, ``(*, K)``; fewer in all where scores are NaN, which h(y) has no word for."""
    counts = torch.zeros(q.batch_shape + q.event_shape, dtype=torch.int64, device=q._like.device)
    size = max(1, (IN_CACHE if counts.device.type == "cpu" else AT_ONCE) // max(1, counts.numel()))
    for start in range(0, num_samples, size):  # the relaxed samples, of which h(y) does not ask, are not computed
        counts = counts + q._tally(q._scores((min(size, num_samples - start),), generator))
    return counts


def frequencies(counts: Tensor, num_samples: int) -> Tensor:
    """How often each category was drawn, in float64; NaN in rows of which not all draws have been counted."""
    return (counts.double() / num_samples).masked_fill(counts.sum(-1, keepdim=True) != num_samples, math.nan)


@register_kl(Relaxation, Distribution)  # type: ignore[untyped-decorator]
def _kl_relaxation(p: Relaxation, q: Distribution) -> Tensor:
    return p.kl(q)


def _describe_support(d: Distribution) -> str:
    return "a number in [0, 1]" if not d.event_shape else f"{d.event_shape[-1]} non-negative entries that sum to one"
