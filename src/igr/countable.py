r"""Stick-breaking on :math:`\mathcal{S}^\infty`: relaxations of discrete distributions on the integers 0, 1, 2, ...

There are countably many sticks, of which a sample needs finitely many: as many as it takes until no later one can be
the longest. Sticks are counted from zero, and their axis is last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution, constraints, register_kl

from igr import functional
from igr._checks import (
    broadcast,
    check_count,
    check_finite,
    check_range,
    check_row_scalar,
    check_tensor,
    describe,
    is_number,
    log,
    validation,
    widen,
)
from igr._draws import gaussian_noise
from igr._scalars import show
from igr._simplex import one_hot_argmax
from igr.recovery import recovered_log_probs_stick_breaking

__all__ = ["CountableStickBreaking", "StickSample", "CountableProbs"]

Sticks = Callable[[Tensor], Tensor]
KL_ADVICE = "average log_p - q.log_prob(sample) over sample, log_p = p.rsample_and_log_prob((num_samples,))"


class StickSample(NamedTuple):
    r"""Samples of :class:`CountableStickBreaking`, each with the sticks that it needed.

    ``z.sum(-1) + rest`` and ``w.sum(-1) + leftover`` are one; the discrete sample is ``w.argmax(-1)``.
    """

    z: Tensor
    r"""The relaxed sample, shape ``(*, n)`` with n the largest :math:`K(\epsilon)` of the call, zero off the mask."""
    mask: Tensor
    r"""True for the first :math:`K(\epsilon)` sticks of each sample, shape ``(*, n)``."""
    rest: Tensor
    r"""The last coordinate of the softmax++, :math:`1 - \sum_k z_k`, shape ``(*)``."""
    w: Tensor
    """The lengths of the sticks, shape ``(*, n)``, zero off the mask; at least float32."""
    leftover: Tensor
    r"""What is left of the stick, :math:`1 - \sum_{k \le K} w_k`, shape ``(*)``; at least float32."""


class CountableProbs(NamedTuple):
    """A probability mass function on the integers, bracketed: it lies between ``probs`` and ``probs + tail``."""

    probs: Tensor
    """Lower bounds of the first n probabilities, shape ``(*, n)``."""
    tail: Tensor
    """What they leave to one, shape ``(*)``."""


class CountableStickBreaking(Distribution):
    r"""IGR-SB on :math:`\mathcal{S}^\infty`, each sample cut where no later stick can be the longest.

    .. math:: y_k = \mu_k + \sigma_k \epsilon_k, \quad u = \mathrm{sigmoid}(y), \quad
        w_k = u_k \prod_{i<k} (1 - u_i), \quad z = \mathrm{softmax}_{++}\bigl((w_1, \dots, w_K), \tau\bigr),

    where :math:`K = K(\epsilon)` is the first number with :math:`\sum_{k \le K} w_k > \rho` and what is left of the
    stick no longer than :math:`\max_{k \le K} w_k`. The longest of all sticks is then among the first K, so that the
    discrete sample does not depend on :math:`\rho`; what is left does not compete.

    Note:
        The cut is made on the lengths and not, as printed, on the softmax++, whose infinite sum diverges. Gradients are
        those at a fixed K, and reach the first K coordinates of :math:`\mu` and :math:`\sigma` only; that K itself
        moves with the parameters is not in them. The number of sticks depends on the noise, so this works neither under
        ``torch.compile`` nor under ``torch.func.vmap``; over samples and batch there is no loop.

        The law lives on the disjoint union over K of the sets of samples with K sticks, and :meth:`log_prob` is its
        density with respect to Lebesgue measure on :math:`z_1, \dots, z_K` in each of them: that of
        :math:`y_1, \dots, y_K` over the determinant of stick-breaking and softmax++, which is

        .. math:: \log |\det J| = \sum_{k \le K} \log w_k + \log\Bigl(1 - \sum_{k \le K} w_k\Bigr)
            + \sum_{k \le K} \log z_k + \log\Bigl(1 - \sum_{k \le K} z_k\Bigr) - K \log \tau.

        An event is a sequence without a fixed length: ``event_shape`` is empty, and samples come as
        :class:`StickSample`. For a distribution on :math:`\mathcal{S}^\infty` that need not be near its vertices, use
        the lengths ``w`` of the samples. The KL divergence between two that differ in ``loc`` and ``scale`` only is
        :math:`E \sum_{k \le K} KL_k`, those of the normals summed over the mask of the first one's samples.

    References:
        Equations 16, 18 and 19, section 3.2.

    Arguments:
        loc: :math:`\mu`: a function of indices ``(n,)`` that returns ``(*, n)``, always the same for the same index; a
            tensor ``(*, n)``, continued by its last entry; or a number.
        scale: :math:`\sigma > 0`, likewise.
        temperature: :math:`\tau > 0`: a number, a 0-d tensor or one value per row, shape ``(*, 1)``.
        precision: :math:`\rho`, a number in (0, 1).
        delta: :math:`\delta > 0`, the weight of the last coordinate in the softmax++.
        max_sticks: how many sticks a sample may need before that is an error.
        validate_args: whether to look at the entries of ``loc`` and ``scale`` and at the points given to ``log_prob``,
            by default yes, whatever torch's global default is; types, shapes and the scalars are always checked.

    Attributes:
        loc: :math:`\mu` as a function of indices.
        scale: :math:`\sigma` as a function of indices.

    Example:
        >>> q = CountableStickBreaking(lambda k: 0.1 * k - 1.0, 1.0, temperature=0.5, precision=0.99)
        >>> sample = q.rsample((1000,))
        >>> bool(torch.allclose(sample.z.sum(-1) + sample.rest, torch.ones(1000)))
        True
        >>> probs, tail = q.recovered()
        >>> probs[:4], bool(tail < 1e-6)
        (tensor([0.4645, 0.2809, 0.1495, 0.0683]), True)
    """

    has_rsample = True
    support = constraints.dependent
    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "temperature": constraints.positive,
        "delta": constraints.positive,
        "precision": constraints.unit_interval,
    }

    def __init__(
        self,
        loc: Sticks | Tensor | float,
        scale: Sticks | Tensor | float,
        temperature: float | Tensor,
        precision: float,
        *,
        delta: float | Tensor = 1.0,
        max_sticks: int = 10_000,
        validate_args: bool | None = None,
    ) -> None:
        self.temperature, self.delta = check_row_scalar("temperature", temperature), check_row_scalar("delta", delta)
        if not is_number(precision) or not 0 < precision < 1:
            raise ValueError(f"precision must be a number in (0, 1), got {describe(precision)}")
        self.precision, self.max_sticks = float(precision), check_count("max_sticks", max_sticks)
        self._like = _example(loc, scale, temperature, delta)
        self.loc, self.scale = _as_function("loc", loc, self._like), _as_function("scale", scale, self._like)
        index = torch.zeros(1, dtype=torch.long, device=self._like.device)
        with torch.no_grad():
            mu, sigma = evaluate("loc", self.loc, index), evaluate("scale", self.scale, index)
        rows = broadcast(loc=mu, scale=sigma, temperature=self.temperature, delta=self.delta)[:-1]
        super().__init__(rows, torch.Size(), validate_args=False)
        self._validate_args = validation(validate_args)
        if self._validate_args:
            check_finite("loc", mu)
            check_range("scale", sigma)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of samples."""
        return self._like.dtype

    def expand(self, batch_shape: Sequence[int], _instance: Self | None = None) -> Self:
        batch_shape = torch.Size(batch_shape)
        if broadcast(batch_shape=self.batch_shape, new=batch_shape) != batch_shape:
            raise ValueError(f"batch shape {tuple(self.batch_shape)} cannot be expanded to {tuple(batch_shape)}")
        new: Self = self._get_checked_instance(CountableStickBreaking, _instance)  # type: ignore[no-untyped-call]
        new.__dict__.update(self.__dict__, _batch_shape=batch_shape)
        return new

    def rsample(  # type: ignore[override]
        self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None
    ) -> StickSample:
        """Differentiable samples, their ``z`` of shape ``sample_shape + batch_shape + (n,)``.

        Raises:
            RuntimeError: some sample needs more than ``max_sticks`` sticks.
        """
        return self._draw(sample_shape, generator)[0]

    def sample(  # type: ignore[override]
        self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None
    ) -> StickSample:
        """Samples without gradient."""
        with torch.no_grad():
            return self.rsample(sample_shape, generator=generator)

    def hard_rsample(
        self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None
    ) -> StickSample:
        """Discrete samples: ``z`` exactly one-hot and ``rest`` zero, with the gradients of the relaxed ones."""
        sample = self.rsample(sample_shape, generator=generator)
        z = functional.straight_through(one_hot_argmax(sample.w).to(self.dtype), sample.z)
        return sample._replace(z=z, rest=functional.straight_through(torch.zeros_like(sample.rest), sample.rest))

    def rsample_and_log_prob(
        self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None
    ) -> tuple[StickSample, Tensor]:
        """Differentiable samples and their log-densities, computed from the noise."""
        sample, eps, sigma, log_w = self._draw(sample_shape, generator)
        return sample, self._log_density(eps, sigma, log_w, sample.mask)

    def log_prob(self, value: StickSample | Tensor) -> Tensor:
        r"""The log-density at a sample, shape ``sample_shape + batch_shape``.

        It is :math:`-\infty` at points that cannot be reached: those with another number of sticks than the rule says,
        or where a stick would not be positive. Points within rounding of the edge count as reached.

        Arguments:
            value: a :class:`StickSample`, or its ``z`` alone, of which trailing zeros are no sticks. The lengths in a
                sample are used if its ``z`` is their softmax++ here, since ``z`` alone determines a stick only down to
                about eps; otherwise, say at another temperature, they are found from ``z``.

        Raises:
            ValueError: a shape that does not fit, or, unless ``validate_args`` is off, a ``z`` that is negative or sums
                to more than one.
        """
        sample = value if isinstance(value, StickSample) else self._completed(value)
        shape, mask = self._check_sample(sample), sample.mask
        sticks, inside = self._invert(sample)  # (*, n + 1), the leftover last
        error = torch.finfo(sample.z.dtype).eps * (1 + self._scalar("temperature", sticks)) / _tails(sticks)
        if isinstance(value, StickSample):
            same = self._made_of_its_sticks(sample)
            given = torch.cat([sample.w, sample.leftover.unsqueeze(-1)], -1).to(sticks.dtype)
            inside, same = inside | same, same.unsqueeze(-1)
            sticks, error = torch.where(same, given, sticks), torch.where(same, torch.finfo(sticks.dtype).eps, error)
        inside = inside & self._reached(sticks, mask, 4 * sticks.shape[-1] * error)
        log_w = torch.where(F.pad(mask, (0, 1), value=True), sticks, 1.0).log()
        y = log_w[..., :-1] - _tails(sticks).log()
        mu, sigma = self._parameters(mask.shape[-1])
        log_q = self._log_density((y - mu) / sigma, sigma, log_w, mask)
        return torch.where(inside, log_q, -math.inf).expand(shape)

    @property
    def mode(self) -> Tensor:
        """The likeliest of the integers, shape ``batch_shape``."""
        return self.recovered().probs.argmax(-1)

    @property
    def mean(self) -> Tensor:
        """Has no closed form; :meth:`recovered` gives the probabilities of the integers."""
        raise NotImplementedError(
            f"the mean of {self} has no closed form: use sample((10_000,)).z.mean(0), or recovered().probs for the "
            "probabilities of the integers"
        )

    @property
    def variance(self) -> Tensor:
        """Has no closed form."""
        raise NotImplementedError(f"the variance of {self} has no closed form: use sample((10_000,)).z.var(0)")

    def entropy(self) -> Tensor:
        """Has no closed form; that of the integers follows from :meth:`recovered`."""
        raise NotImplementedError(
            f"the entropy of {self} has no closed form: use -rsample_and_log_prob((1_000,))[1].mean(0), or "
            "torch.special.entr(recovered().probs).sum(-1) for that of the integers"
        )

    def recovered(self, tolerance: float = 1e-6, *, max_sticks: int = 1024) -> CountableProbs:
        r"""The discrete distribution behind: the probabilities that each stick is the longest of all.

        They are computed for the first n sticks and the leftover after them, where n is doubled until the leftover is
        the longest with probability at most ``tolerance``. Where the leftover is not the longest, no later stick can be
        either, so ``probs`` are lower bounds and miss at most ``tail``, up to the error of the quadrature.
        Differentiable in the parameters.

        Arguments:
            tolerance: the largest ``tail`` to accept.
            max_sticks: the largest n; the ``tail`` there is returned as it is, be it above ``tolerance`` or not.
        """
        max_sticks = check_count("max_sticks", max_sticks)
        n = min(16, max_sticks)
        while True:
            mu, sigma = self._parameters(n)
            probs = recovered_log_probs_stick_breaking(mu, sigma, leftover=True).exp()
            if n == max_sticks or bool((probs[..., -1] <= tolerance).all()):
                break
            n = min(2 * n, max_sticks)
        probs = probs.expand(*self.batch_shape, n + 1)
        return CountableProbs(probs[..., :-1], probs[..., -1])

    def _parameters(self, n: int) -> tuple[Tensor, Tensor]:
        """μ and σ of the first n sticks, of at least float32, broadcastable with ``batch_shape + (n,)``."""
        index = torch.arange(n, device=self._like.device)
        mu, sigma = evaluate("loc", self.loc, index), evaluate("scale", self.scale, index)
        shape = torch.Size((*self.batch_shape, n))
        if broadcast(loc=mu, scale=sigma, batch_shape=shape) != shape:
            raise ValueError(
                f"loc and scale of shapes {tuple(mu.shape)} and {tuple(sigma.shape)} for {n} sticks do not have the "
                f"batch shape {tuple(self.batch_shape)} they had for the first one"
            )
        if self._validate_args:
            check_finite("loc", mu)
            check_range("scale", sigma)
        return widen(mu.to(self.dtype)), widen(sigma.to(self.dtype))

    def _scalar(self, name: str, like: Tensor) -> float | Tensor:
        value: float | Tensor = getattr(self, name)
        return value.to(like.dtype) if isinstance(value, Tensor) else value

    def _draw(
        self, sample_shape: Sequence[int], generator: torch.Generator | None
    ) -> tuple[StickSample, Tensor, Tensor, Tensor]:
        """Samples, and what they are made of: noise, scales, and logarithms of the sticks, the leftover last."""
        with torch.no_grad():  # where to stop; nothing beyond is ever part of a graph
            eps, mask = self._noise((*sample_shape, *self.batch_shape), generator)
        mu, sigma = self._parameters(mask.shape[-1])
        log_w, log_rest = _break(torch.addcmul(mu, sigma, eps))
        w = torch.where(mask, log_w.exp(), 0.0)
        log_leftover = log_rest.gather(-1, mask.sum(-1, keepdim=True) - 1)
        z = self._log_relax(w, mask).exp().to(self.dtype)
        sample = StickSample(z[..., :-1], mask, z[..., -1], w, log_leftover.squeeze(-1).exp())
        return sample, eps, sigma, torch.cat([log_w, log_leftover], -1)

    def _noise(self, rows: Sequence[int], generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Noise for as many sticks as the samples need, and the mask of those that each sample needs."""
        n, eps = min(16, self.max_sticks), widen(self._like).new_empty((*rows, 0))
        while True:
            mu, sigma = self._parameters(n)
            fresh = gaussian_noise((*rows, n - eps.shape[-1]), eps, generator)
            eps = torch.cat([eps, fresh], -1)
            log_w, log_rest = _break(torch.addcmul(mu, sigma, eps))
            stopped = self._stopped(log_w, log_rest)
            if bool(stopped[..., -1].all()):
                break
            if n == self.max_sticks:
                raise RuntimeError(self._exhausted(stopped[..., -1], log_rest[..., -1]))
            n = min(2 * n, self.max_sticks)
        mask = F.pad(~stopped[..., :-1], (1, 0), value=True)
        n = max(1, int(mask.reshape(-1, n).any(0).sum()))
        return eps[..., :n], mask[..., :n]

    def _exhausted(self, stopped: Tensor, log_rest: Tensor) -> str:
        return (
            f"{int((~stopped).sum())} of {stopped.numel()} samples need more than max_sticks={self.max_sticks} sticks, "
            f"with up to {log_rest.max().exp().item():.3g} of the stick left: precision={self.precision:g} allows less "
            f"than {1 - self.precision:.3g}, and no more than the longest stick; raise loc, lower precision or raise "
            "max_sticks"
        )

    def _stopped(self, log_w: Tensor, log_rest: Tensor, slack: float | Tensor = 0.0) -> Tensor:
        """Whether the k-th stick, or one before it, is the last that a sample needs; once true, it stays so."""
        enough = log_rest < math.log1p(-self.precision) + slack
        return enough & (log_rest <= log_w.cummax(-1).values + slack)

    def _log_relax(self, w: Tensor, mask: Tensor) -> Tensor:
        """log z of the sticks in the mask, and the logarithm of the rest: (*, n) to (*, n + 1)."""
        # divided before it is masked: -inf / τ would have a gradient of NaN in τ
        x = (w / self._scalar("temperature", w)).masked_fill(~mask, -math.inf)
        return functional.log_softmaxpp(x, 1.0, self.delta)

    def _log_density(self, eps: Tensor, sigma: Tensor, log_w: Tensor, mask: Tensor) -> Tensor:
        """Of the first K coordinates of z, given the noise (*, n) and the logarithms of the sticks (*, n + 1)."""
        log_z = self._log_relax(log_w[..., :-1].exp(), mask)
        log_normal = -0.5 * (eps.square() + math.log(2 * math.pi)) - sigma.log()
        terms = log_normal - log_w[..., :-1] - log_z[..., :-1] + log(self._scalar("temperature", log_w))
        return torch.where(mask, terms, 0.0).sum(-1) - log_w[..., -1] - log_z[..., -1]

    def _completed(self, z: Tensor) -> StickSample:
        """What a sample consists of, from its z alone, its sticks excepted."""
        if check_tensor("value", z).dim() == 0 or z.shape[-1] == 0:
            raise ValueError(f"value must have shape (*, n) with at least one stick, got {tuple(z.shape)}")
        wide = widen(z)
        mask = (z != 0).long().flip(-1).cumsum(-1).flip(-1) > 0
        rest = 1 - torch.where(mask, wide, 0.0).sum(-1)  # zeros that are no sticks are no coordinates either
        tolerance = 8 * torch.finfo(z.dtype).eps + z.shape[-1] * torch.finfo(wide.dtype).eps
        if self._validate_args and not bool(((z >= 0).all(-1) & (rest >= -tolerance)).all()):
            raise ValueError(
                f"value is not in the support of {self}: expected non-negative entries that sum to at most one, got "
                f"{describe(z)}; use samples of this distribution"
            )
        return StickSample(z, mask, rest, wide, rest)

    def _check_sample(self, sample: StickSample) -> torch.Size:
        """The shape of the sample's densities, or an error."""
        rows = sample.z.shape[:-1]
        expected = (sample.z.shape, sample.z.shape, rows, sample.z.shape, rows)
        if sample.z.dim() == 0 or tuple(x.shape for x in sample) != expected:
            shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in sample._asdict().items())
            raise ValueError(f"z, mask and w must have one shape (*, n), and rest and leftover (*), got {shapes}")
        return broadcast(value=rows, batch_shape=self.batch_shape)

    def _invert(self, sample: StickSample) -> tuple[Tensor, Tensor]:
        """The sticks from z, the leftover last, and whether there are such; stand-ins where there are none."""
        z, mask, rest = widen(sample.z), sample.mask, widen(sample.rest).unsqueeze(-1)
        positive = ((z > 0) | ~mask).all(-1, keepdim=True) & (rest > 0)
        log_ratio = torch.where(positive & mask, z, 1.0).log() - torch.where(positive, rest, 1.0).log()
        w = self._scalar("temperature", z) * (log_ratio + log(self._scalar("delta", z)))
        w = torch.where(mask, w, 0.0)
        sticks = torch.cat([w, 1 - w.sum(-1, keepdim=True)], -1)
        own = F.pad(mask, (0, 1), value=True)
        inside = positive & ((sticks > 0) | ~own).all(-1, keepdim=True)
        stand_in = own / own.sum(-1, keepdim=True)
        return torch.where(inside, sticks, stand_in.to(sticks.dtype)), inside.squeeze(-1)

    @torch.no_grad()
    def _made_of_its_sticks(self, sample: StickSample) -> Tensor:
        """Whether z is, up to rounding, the softmax++ of the lengths that come with it."""
        z = torch.cat([sample.z, sample.rest.unsqueeze(-1)], -1)
        made = self._log_relax(sample.w, sample.mask).exp()
        wide = 8 * torch.finfo(made.dtype).eps * (1 + 1 / self._scalar("temperature", made))
        close = (made - z).abs() <= (torch.finfo(z.dtype).eps + wide) * made + torch.finfo(z.dtype).tiny
        positive = ((sample.w > 0) | ~sample.mask).all(-1) & (sample.leftover > 0)
        return close.all(-1) & positive

    @torch.no_grad()
    def _reached(self, sticks: Tensor, mask: Tensor, slack: Tensor) -> Tensor:
        """Whether the rule, up to this relative error of what is left, says that these are all the sticks."""
        log_w, log_rest = sticks[..., :-1].log(), _tails(sticks).log()
        last = mask & ~F.pad(mask[..., 1:], (0, 1), value=False)
        one_piece = mask[..., 0] & (last.sum(-1) == 1)
        too_late = (self._stopped(log_w, log_rest, -slack) & mask & ~last).any(-1)
        return one_piece & ~too_late & (self._stopped(log_w, log_rest, slack) | ~last).all(-1)

    def __repr__(self) -> str:
        scalars = f"temperature={show(self.temperature)}, precision={show(self.precision)}, delta={show(self.delta)}"
        return f"{type(self).__name__}(batch_shape: {tuple(self.batch_shape)}, {scalars})"


def _break(y: Tensor) -> tuple[Tensor, Tensor]:
    """The logarithms of the sticks and of what is left after each, both (*, n)."""
    log_rest = F.logsigmoid(-y).cumsum(-1)
    return F.logsigmoid(y) + F.pad(log_rest[..., :-1], (1, 0)), log_rest


def _tails(sticks: Tensor) -> Tensor:
    """What is left after each stick: (*, n + 1), the leftover last, to (*, n); sums of positive numbers."""
    return sticks.flip(-1).cumsum(-1).flip(-1)[..., 1:]


def _continued(values: Tensor, index: Tensor) -> Tensor:
    """Entries of a tensor, the last one standing for all that would come after it."""
    return values.index_select(-1, index.clamp(max=values.shape[-1] - 1).to(values.device))


def _as_function(name: str, value: Sticks | Tensor | float, like: Tensor) -> Sticks:
    if all(callable(getattr(value, each, None)) for each in ("loc", "scale")):  # as of igr.nn.GrowingSticks
        raise TypeError(
            f"{name} must be a function of indices, a tensor or a number, got {describe(value)}; call it, as in "
            "sticks(temperature, precision), for the distribution with its parameters"
        )
    if callable(value):
        return value
    if is_number(value):
        value = like.new_full((1,), float(value))
    tensor = check_tensor(name, value)
    tensor = tensor if tensor.dim() else tensor.unsqueeze(-1)
    if tensor.shape[-1] == 0:
        raise ValueError(f"{name} must have shape (*, n) with at least one stick, got {tuple(tensor.shape)}")
    return partial(_continued, tensor)


def evaluate(name: str, function: Sticks, index: Tensor) -> Tensor:
    """The values at these indices, or an error that says what is wrong with them."""
    values = function(index)
    if not isinstance(values, Tensor) or not values.dtype.is_floating_point:
        raise TypeError(f"{name} must return a floating-point tensor, got {describe(values)}")
    if values.dim() == 0 or values.shape[-1] != len(index):
        raise ValueError(
            f"{name} must return shape (*, {len(index)}) for {len(index)} indices, got {tuple(values.shape)}"
        )
    return values


def _example(loc: Sticks | Tensor | float, scale: Sticks | Tensor | float, *scalars: float | Tensor) -> Tensor:
    """An empty tensor with the dtype and device of the parameters, or torch's defaults if both are numbers."""
    tensors = [x for x in (loc, scale, *scalars) if isinstance(x, Tensor)]
    like = tensors[0].new_empty(0) if tensors else torch.empty(0)
    index = torch.zeros(1, dtype=torch.long, device=like.device)
    with torch.no_grad():
        given = {"loc": loc, "scale": scale}
        first = [evaluate(name, _as_function(name, x, like), index) for name, x in given.items() if not is_number(x)]
    if not first:
        return torch.empty(0, device=like.device)
    return first[0].new_empty(0, dtype=reduce(torch.promote_types, [x.dtype for x in first]))


@register_kl(CountableStickBreaking, Distribution)  # type: ignore[untyped-decorator]
def _kl(p: CountableStickBreaking, q: Distribution) -> Tensor:
    raise NotImplementedError(f"no closed form for KL({p} || {q}); {KL_ADVICE}")
