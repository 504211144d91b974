r"""Pure tensor maths: maps onto the simplex, their inverses, and the drop-in samplers.

:math:`K` is the number of categories; arguments have shape ``(*, K-1)``, points of the simplex ``(*, K)``, and the
category axis is last. A temperature is a number, a 0-d tensor, or a tensor of shape ``(*, 1)`` with one value per row.
Half precisions are computed in float32: points of the simplex come back in the dtype of the input, logarithms and what
comes from them in float32. Types and shapes are always checked. Of values, temperatures, δ and masks are, but a
temperature or δ that is a tensor on another device than the CPU is not, since a look at it would wait for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from igr import _terms, kernels
from igr._checks import (
    broadcast,
    check_parameter,
    check_range,
    check_row_scalar,
    check_tensor,
    describe,
    expand,
    is_number,
    log,
    under_vmap,
    values_checkable,
    widen,
)
from igr._scalars import log_row

if TYPE_CHECKING:
    from igr.kernels.fused import Fused

__all__ = [
    "softmaxpp",
    "log_softmaxpp",
    "softmaxpp_inverse",
    "log_softmaxpp_inverse",
    "log_stick_breaking",
    "log_stick_breaking_inverse",
    "vertex_interpolation",
    "log_vertex_interpolation",
    "vertex_interpolation_inverse",
    "harden",
    "straight_through",
    "gaussian_softmax",
    "gumbel_softmax",
    "SampleTerms",
    "gaussian_softmax_terms",
    "gumbel_softmax_terms",
]


def softmaxpp(y: Tensor, tau: float | Tensor = 1.0, delta: float | Tensor = 1.0) -> Tensor:
    r"""The softmax++ of equation 15, with the K-th coordinate that completes it to one.

    .. math:: g(y, \tau)_k = \frac{\exp(y_k / \tau)}{\sum_{j<K} \exp(y_j / \tau) + \delta}, \quad k < K.

    Note:
        It is a softmax over :math:`(y / \tau, \log \delta)` and computed as one: the K-th coordinate is never
        :math:`1 - \sum_k g_k`, which is zero or negative for most float32 arguments at low temperature.

    References:
        Equation 15.

    Arguments:
        y: :math:`y`, shape ``(*, K-1)``.
        tau: the temperature :math:`\tau`.
        delta: :math:`\delta`, the weight of the K-th category.

    Returns:
        A point of the simplex, shape ``(*, K)``.

    Example:
        >>> softmaxpp(torch.tensor([0.0, 0.0]))
        tensor([0.3333, 0.3333, 0.3333])
    """
    return _softmaxpp_logits(y, tau, delta).softmax(-1).to(y.dtype)


def log_softmaxpp(y: Tensor, tau: float | Tensor = 1.0, delta: float | Tensor = 1.0) -> Tensor:
    """The logarithm of :func:`softmaxpp`, finite wherever ``y / tau`` is."""
    return _softmaxpp_logits(y, tau, delta).log_softmax(-1)


def softmaxpp_inverse(z: Tensor, tau: float | Tensor = 1.0, delta: float | Tensor = 1.0) -> Tensor:
    r"""Inverse of :func:`softmaxpp`: :math:`y_k = \tau (\log z_k - \log z_K + \log \delta)`.

    Note:
        A coordinate of ``z`` that has underflowed to zero cannot be inverted; :func:`log_softmaxpp_inverse` starts from
        logarithms, which do not underflow.
    """
    check_parameter("z", z, "K")
    return log_softmaxpp_inverse(widen(z).log(), tau, delta).to(z.dtype)


def log_softmaxpp_inverse(log_z: Tensor, tau: float | Tensor = 1.0, delta: float | Tensor = 1.0) -> Tensor:
    """Inverse of :func:`log_softmaxpp`: ``(*, K)`` logarithms of a point of the simplex to ``(*, K-1)``."""
    check_parameter("log_z", log_z, "K")
    log_z = widen(log_z)
    tau, delta = check_row_scalar("tau", tau, log_z), check_row_scalar("delta", delta, log_z)
    return tau * (log_z[..., :-1] - log_z[..., -1:] + log(delta))


def log_stick_breaking(y: Tensor) -> Tensor:
    r"""Logarithm of :math:`w = SB(\mathrm{sigmoid}(y))`, the leftover stick last.

    .. math:: w_k = u_k \prod_{i<k} (1 - u_i), \quad w_K = \prod_{i<K} (1 - u_i), \quad u = \mathrm{sigmoid}(y).

    Note:
        Sums of log-sigmoids: nothing is clipped, and a stick of length :math:`e^{-1000}` keeps its logarithm and its
        gradient.

    References:
        Equation 16, with the leftover stick as K-th category.

    Arguments:
        y: shape ``(*, K-1)``.

    Returns:
        ``log w``, shape ``(*, K)``; ``w`` sums to one.

    Example:
        >>> log_stick_breaking(torch.zeros(2)).exp()
        tensor([0.5000, 0.2500, 0.2500])
    """
    y = widen(check_parameter("y", y))
    log_rest = F.logsigmoid(-y)
    if y.shape[-1] > 1:  # a sum of one costs as much as one of many, and on GPUs that is a lot
        log_rest = log_rest.cumsum(-1)  # (*, K-1), what is left after each break
    return F.pad(F.logsigmoid(y), (0, 1)) + F.pad(log_rest, (1, 0))


def log_stick_breaking_inverse(log_w: Tensor) -> Tensor:
    r"""Inverse of :func:`log_stick_breaking`: :math:`y_k = \log w_k - \log \sum_{j>k} w_j`."""
    log_w = widen(check_parameter("log_w", log_w, "K"))
    log_tail = log_w.flip(-1).logcumsumexp(-1).flip(-1)  # (*, K), log Σ_{j>=k} w_j
    return log_w[..., :-1] - log_tail[..., 1:]


def vertex_interpolation(w: Tensor, tau: float | Tensor) -> Tensor:
    r"""Interpolates between a point of the simplex and its nearest vertex.

    .. math:: z = \tau w + (1 - \tau)\, e_{\arg\max w}, \quad 0 < \tau \le 1.

    Note:
        The paper projects onto the vertices of :math:`\mathcal{S}^{(K-1)}`, zero included, which read literally gives
        zero unless some :math:`w_k > 1/2`. This is the nearest vertex of the closed simplex, the leftover taking part.

    References:
        Equation 17.

    Arguments:
        w: a point of the simplex, shape ``(*, K)``.
        tau: the temperature, in (0, 1].

    Example:
        >>> vertex_interpolation(torch.tensor([0.5, 0.3, 0.2]), 0.1)
        tensor([0.9500, 0.0300, 0.0200])
    """
    wide = widen(check_parameter("w", w, "K"))
    tau = check_row_scalar("tau", tau, wide, at_most=1.0)
    return (tau * wide + (1 - tau) * one_hot_argmax(wide)).to(w.dtype)


def log_vertex_interpolation(log_w: Tensor, tau: float | Tensor) -> Tensor:
    """The logarithm of :func:`vertex_interpolation`, as a function of ``log w``."""
    log_w = widen(check_parameter("log_w", log_w, "K"))
    tau = check_row_scalar("tau", tau, log_w, at_most=1.0)
    nearest = one_hot_argmax(log_w) > 0
    # log(τ w + 1 - τ) at the vertex; its argument is fenced off elsewhere, where it could underflow to log1p(-1)
    top = torch.log1p(tau * torch.expm1(log_w.masked_fill(~nearest, 0.0)))
    return torch.where(nearest, top, log(tau) + log_w)


def vertex_interpolation_inverse(z: Tensor, tau: float | Tensor) -> Tensor:
    r"""Inverse of :func:`vertex_interpolation`: :math:`w = (z - (1 - \tau)\, e_{\arg\max z}) / \tau`.

    Off the image (K disjoint pieces of the simplex) the result has a negative entry or another largest one than ``z``.
    """
    wide = widen(check_parameter("z", z, "K"))
    tau = check_row_scalar("tau", tau, wide, at_most=1.0)
    return ((wide - (1 - tau) * one_hot_argmax(wide)) / tau).to(z.dtype)


def harden(y: Tensor) -> Tensor:
    r"""The limit :math:`h(y)` of the softmax++ as :math:`\tau \to 0`, as a one-hot vector.

    Category :math:`k^* = \arg\max_k y_k` if :math:`y_{k^*} > 0`, category :math:`K` if all :math:`y_k < 0`: the
    threshold is zero whatever :math:`\delta` is.

    References:
        Equation 20 (Proposition 1).

    Arguments:
        y: shape ``(*, K-1)``.

    Returns:
        One-hot ``(*, K)`` in the dtype of ``y``, without gradient.

    Example:
        >>> harden(torch.tensor([[0.2, 1.5], [-0.3, -2.0]]))
        tensor([[0., 1., 0.],
                [0., 0., 1.]])
    """
    return one_hot_argmax(F.pad(check_parameter("y", y), (0, 1)))


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """The value of ``hard``, exactly, with the gradient of ``soft``."""
    if hard.shape != soft.shape:
        raise ValueError(f"hard and soft must have one shape, got {tuple(hard.shape)} and {tuple(soft.shape)}")
    return hard + (soft - soft.detach())  # the bracket is an exact zero, so a one-hot stays one-hot


def gaussian_softmax(
    loc: Tensor,
    scale: Tensor | float,
    tau: float | Tensor = 1.0,
    hard: bool = False,
    *,
    delta: float | Tensor = 1.0,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""One sample of IGR-I per row, in one call: :math:`\mathrm{softmax}_{++}(\mu + \sigma \epsilon, \tau)`.

    Where ``torch.nn.functional.gumbel_softmax`` takes K logits, this takes K-1 locations and K-1 scales; the K-th
    category is the reference, likely where all locations are negative.

    References:
        Equations 10, 11 and 15.

    Arguments:
        loc: :math:`\mu`, shape ``(*, K-1)``.
        scale: :math:`\sigma > 0`, broadcastable with ``loc``.
        tau: the temperature :math:`\tau`.
        hard: return :math:`h(y)`, exactly one-hot, with the gradient of the relaxed sample.
        delta: :math:`\delta`, the weight of the K-th category in the softmax++.
        mask: booleans, shape ``(*, K)``; categories where it is False get probability exactly zero.
        generator: source of the noise; eager mode only.

    Returns:
        Shape ``(*, K)``, rows sum to one.

    Raises:
        ValueError: shapes that do not broadcast, a temperature that is not positive, a mask that forbids a whole row.

    Example:
        >>> loc, scale = torch.randn(32, 9), torch.ones(32, 9)
        >>> gaussian_softmax(loc, scale, tau=0.5).shape
        torch.Size([32, 10])
        >>> gaussian_softmax(loc, scale, tau=0.5, hard=True).sum()
        tensor(32.)
    """
    loc, scale = location_scale(loc, scale)
    mu, sigma = widen(loc), widen(scale)
    tau, delta = check_row_scalar("tau", tau, mu), check_row_scalar("delta", delta, mu)
    shape = _sample_shape(mu.shape, mu.shape[-1] + 1, mask, tau=tau, delta=delta)
    if fusible(generator, (loc, scale), (tau, delta), mask):
        return fused_sample(loc, scale, shape[:-1], tau, delta, mask, hard=hard, generator=generator).z
    eps = gaussian_noise(shape, mu, generator)
    y = torch.addcmul(mu, sigma, eps)  # (*, K-1)
    scores = F.pad(y, (0, 1)) if hard else None
    return _relax(_softmaxpp_logits(y, tau, delta), scores, mask).to(loc.dtype)


def gumbel_softmax(
    logits: Tensor,
    tau: float | Tensor = 1.0,
    hard: bool = False,
    *,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""One sample of the Gumbel-Softmax per row: :math:`\mathrm{softmax}((\log \alpha + \epsilon) / \tau)`.

    A twin of ``torch.nn.functional.gumbel_softmax`` that refuses a temperature of zero, takes masks, generators and
    per-row temperatures, and draws its noise in float32 for half-precision logits. Categories are on the last axis.

    References:
        Equation 5; Maddison et al. (2017); Jang et al. (2017).

    Arguments:
        logits: :math:`\log \alpha`, unnormalised, shape ``(*, K)``.
        tau: the temperature :math:`\tau`.
        hard: return a one-hot vector with the gradient of the relaxed sample.
        mask: booleans, shape ``(*, K)``; categories where it is False get probability exactly zero.
        generator: source of the noise; eager mode only.

    Returns:
        Shape ``(*, K)``, rows sum to one.

    Example:
        >>> mask = torch.tensor([True, True, False])
        >>> gumbel_softmax(torch.zeros(5, 3), tau=0.1, mask=mask)[:, 2]
        tensor([0., 0., 0., 0., 0.])
    """
    log_alpha = widen(check_parameter("logits", logits, "K"))
    tau = check_row_scalar("tau", tau, log_alpha)
    shape = _sample_shape(log_alpha.shape, logits.shape[-1], mask, tau=tau)
    if fusible(generator, (logits,), (tau,), mask):
        return fused_sample(logits, None, shape[:-1], tau, 1.0, mask, hard=hard, generator=generator).z
    log_alpha = log_alpha.expand(shape)
    if mask is not None:  # a forbidden category's logit, were it -inf, would make the gradient of τ NaN
        log_alpha = log_alpha.masked_fill(~mask, 0.0)
    scores = log_alpha + gumbel_noise(log_alpha, generator)
    return _relax(scores / tau, scores if hard else None, mask).to(logits.dtype)


class SampleTerms(NamedTuple):
    """A sample and what an evidence bound asks about it."""

    z: Tensor
    """The sample, shape ``(*, K)``."""
    log_prob: Tensor
    """The log-density of the relaxed sample, shape ``(*)``, of at least float32."""
    kl: Tensor | None
    """The divergence from the prior, shape ``(*)``, of at least float32; None if there is no prior."""


def gaussian_softmax_terms(
    loc: Tensor,
    scale: Tensor | float,
    tau: float | Tensor = 1.0,
    hard: bool = False,
    *,
    delta: float | Tensor = 1.0,
    prior: tuple[Tensor | float, Tensor | float] | None = None,
    generator: torch.Generator | None = None,
) -> SampleTerms:
    r"""A sample of IGR-I with its log-density and the divergence from a prior, in one pass on CUDA devices.

    The density is that of the relaxed sample, computed from its noise as in
    :meth:`igr.distributions.Relaxation.rsample_and_log_prob`, also where ``hard`` returns its vertex. The divergence is
    that of the Gaussians, which is that of the relaxations if the prior has the same temperature and :math:`\delta`.

    References:
        Equations 10 to 13 and 15.

    Arguments:
        loc, scale, tau, hard, delta, generator: as in :func:`gaussian_softmax`.
        prior: :math:`\mu_0` and :math:`\sigma_0`, numbers or tensors that broadcast with ``loc``.

    Example:
        >>> z, log_q, kl = gaussian_softmax_terms(torch.zeros(4, 9), 1.0, tau=0.5, prior=(0.0, 1.0))
        >>> z.shape, log_q.shape, kl
        (torch.Size([4, 10]), torch.Size([4]), tensor([0., 0., 0., 0.]))
    """
    loc, scale = location_scale(loc, scale)
    mu, sigma = widen(loc), widen(scale)
    tau, delta = check_row_scalar("tau", tau, mu), check_row_scalar("delta", delta, mu)
    shape = _sample_shape(mu.shape, mu.shape[-1] + 1, None, tau=tau, delta=delta)
    known = (None, None) if prior is None else _prior_of(prior, mu)
    if fusible(generator, (loc, scale), (tau, delta, *known)):
        found = fused_sample(
            loc, scale, shape[:-1], tau, delta, hard=hard, log_prob=True, kl=prior is not None, prior=known,
            generator=generator,
        )  # fmt: skip
        return SampleTerms(found.z, found.log_prob, found.kl)  # type: ignore[arg-type]
    eps = gaussian_noise(shape, mu, generator)
    y = torch.addcmul(mu, sigma, eps)
    log_z = log_softmaxpp(y, tau, delta)
    ladj = log_z.sum(-1) - mu.shape[-1] * log_row(tau, log_z)
    z = log_z.exp()
    z = straight_through(harden(y), z) if hard else z
    kl = None if prior is None else _terms.gaussian_kl(mu, sigma, *known).expand(shape[:-1])
    return SampleTerms(z.to(loc.dtype), _terms.gaussian_log_prob(eps, sigma.log().sum(-1)) - ladj, kl)


def gumbel_softmax_terms(
    logits: Tensor,
    tau: float | Tensor = 1.0,
    hard: bool = False,
    *,
    prior_logits: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> SampleTerms:
    r"""A sample of the Gumbel-Softmax with its log-density and the categorical divergence from a prior, in one pass.

    The density is that of the relaxed sample, the divergence that of the discrete distributions behind, as in
    :func:`igr.categorical_kl`: that of the relaxations has no closed form.

    References:
        Equations 5, 6 and 8.

    Arguments:
        logits, tau, hard, generator: as in :func:`gumbel_softmax`.
        prior_logits: unnormalised log-probabilities of the prior, broadcastable with ``logits``; uniform by default.

    Example:
        >>> z, log_q, kl = gumbel_softmax_terms(torch.zeros(4, 10), tau=0.5)
        >>> z.shape, log_q.shape, bool((kl.abs() < 1e-6).all())
        (torch.Size([4, 10]), torch.Size([4]), True)
    """
    log_alpha = widen(check_parameter("logits", logits, "K"))
    tau = check_row_scalar("tau", tau, log_alpha)
    shape = _sample_shape(log_alpha.shape, logits.shape[-1], None, tau=tau)
    if prior_logits is not None:
        prior_logits = widen(check_parameter("prior_logits", prior_logits, "K")).to(log_alpha.dtype)
        _check_within("prior_logits", prior_logits, log_alpha)
    if fusible(generator, (logits,), (tau, prior_logits)):
        found = fused_sample(
            logits, None, shape[:-1], tau, hard=hard, log_prob=True, kl=True, prior=(prior_logits, None),
            generator=generator,
        )  # fmt: skip
        return SampleTerms(found.z, found.log_prob, found.kl)  # type: ignore[arg-type]
    full = log_alpha.expand(shape)
    eps = gumbel_noise(full, generator)
    log_z = (_terms.exact_differences(full, eps) / tau).log_softmax(-1)
    z = log_z.exp()
    z = straight_through(one_hot_argmax(full + eps), z) if hard else z
    prior = torch.zeros_like(log_alpha) if prior_logits is None else prior_logits
    kl = _terms.categorical_kl(log_alpha.log_softmax(-1), prior.log_softmax(-1)).expand(shape[:-1])
    return SampleTerms(z.to(logits.dtype), _terms.gumbel_log_prob(eps, log_z, tau), kl)


class NoiseSource(torch.Generator):
    """A generator that supplies the noise itself, such as numbers drawn beforehand, in place of torch's kernels.

    All samplers of this library ask for noise by the two functions below, which ask such a generator in turn.
    """

    def __new__(cls, *arguments: object, **keywords: object) -> Self:
        return super().__new__(cls)  # what a subclass is made of is not torch's

    def gaussian(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Standard normal noise of this shape with the dtype and device of ``like``."""
        raise NotImplementedError

    def gumbel(self, like: Tensor) -> Tensor:
        """Standard Gumbel noise with the shape, dtype and device of ``like``."""
        raise NotImplementedError


def gaussian_noise(shape: Sequence[int], like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard normal noise of this shape with the dtype and device of ``like``."""
    if isinstance(generator, NoiseSource):
        return generator.gaussian(shape, like)
    return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)


def gumbel_noise(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard Gumbel noise with the shape, dtype and device of ``like``."""
    if isinstance(generator, NoiseSource):
        return generator.gumbel(like)
    fresh = torch.rand_like if under_vmap() else torch.empty_like  # a random tensor, so that every map has its own
    exponential = fresh(like, memory_format=torch.contiguous_format).exponential_(generator=generator)
    # one that rounds to zero would be infinite noise
    return exponential.clamp(min=torch.finfo(like.dtype).tiny).log_().neg_()


def location_scale(loc: Tensor, scale: Tensor | float) -> tuple[Tensor, Tensor]:
    """Both in one shape and one dtype, that of samples; types and shapes are checked."""
    check_parameter("loc", loc)
    if is_number(scale):
        check_range("scale", float(scale))
        scale = loc.new_full((1,), float(scale))
    scale = check_tensor("scale", scale)
    scale = check_parameter("scale", scale if scale.dim() else scale.unsqueeze(-1))
    shape, dtype = broadcast(loc=loc, scale=scale), torch.promote_types(loc.dtype, scale.dtype)
    if shape[-1] != loc.shape[-1]:
        raise ValueError(
            f"scale of shape {tuple(scale.shape)} has more coordinates than loc of shape {tuple(loc.shape)}; "
            "give loc its full shape (*, K - 1)"
        )
    return expand(loc.to(dtype), shape), expand(scale.to(dtype), shape)


def _prior_of(prior: tuple[Tensor | float, Tensor | float], mu: Tensor) -> tuple[Tensor, Tensor]:
    """μ₀ and σ₀ as tensors like μ, of at most its shape."""
    found = []
    for name, value in zip(("prior location", "prior scale"), prior, strict=True):
        tensor = mu.new_full((1,), float(value)) if is_number(value) else check_tensor(name, value).to(mu.dtype)
        if name == "prior scale" and (
            is_number(value) or tensor.device.type == "cpu"
        ):  # a look would wait for a device
            check_range(name, float(value) if is_number(value) else tensor)
        _check_within(name, tensor, mu)
        found.append(tensor)
    return found[0], found[1]


def _check_within(name: str, value: Tensor, parameters: Tensor) -> None:
    if broadcast(**{name: value, "parameters": parameters}) != parameters.shape:
        raise ValueError(
            f"{name} of shape {tuple(value.shape)} has more rows or columns than the parameters of shape "
            f"{tuple(parameters.shape)}; give these their full shape"
        )


def fusible(
    generator: torch.Generator | None,
    parameters: Sequence[Tensor],
    constants: Sequence[float | Tensor | None] = (),
    mask: Tensor | None = None,
) -> bool:
    """Whether a kernel can take this call: it draws noise by itself, and has no gradients of constants."""
    tensors = [x for x in constants if isinstance(x, Tensor)]
    if isinstance(generator, NoiseSource) or (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
        return False
    return kernels.usable(*parameters, *tensors) and (mask is None or mask.device == parameters[0].device)


def fused_sample(loc: Tensor, scale: Tensor | None, batch: torch.Size, *arguments: Any, **options: Any) -> Fused:
    """The sample by a kernel, whose modules are imported when the first one is needed."""
    from igr.kernels.fused import sample

    return sample(loc, scale, batch, *arguments, **options)


def _softmaxpp_logits(y: Tensor, tau: float | Tensor, delta: float | Tensor) -> Tensor:
    """The argument of the softmax that the softmax++ is: (y / τ, log δ), of shape (*, K)."""
    y = widen(check_parameter("y", y))
    tau, delta = check_row_scalar("tau", tau, y), check_row_scalar("delta", delta, y)
    x, last = y / tau, log(delta)
    if not isinstance(last, Tensor):
        return F.pad(x, (0, 1), value=last)
    shape = broadcast(y=x[..., :1], delta=last)
    return torch.cat([x.expand(shape[:-1] + x.shape[-1:]), last.expand(shape)], -1)


def one_hot_argmax(x: Tensor) -> Tensor:
    """One-hot of the largest entry, without gradient."""
    return torch.zeros_like(x).scatter(-1, x.argmax(-1, keepdim=True), 1.0)


def _sample_shape(parameters: torch.Size, K: int, mask: Tensor | None, **row_scalars: float | Tensor) -> torch.Size:
    """``parameters`` with the leading axes that masks and temperatures add: every row has noise of its own."""
    rows = dict(row_scalars)
    if mask is not None:
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            raise TypeError(f"mask must be a boolean tensor, True where a category is allowed, got {describe(mask)}")
        if mask.dim() == 0 or mask.shape[-1] != K:
            raise ValueError(f"mask must have shape (*, K) with K = {K}, got shape {tuple(mask.shape)}")
        if values_checkable(mask) and not bool(mask.any(-1).all()):
            raise ValueError("mask forbids every category of some row; allow at least one per row")
        rows["mask"] = mask[..., :1]
    return broadcast(parameters=torch.Size((*parameters[:-1], 1)), **rows)[:-1] + parameters[-1:]


def _relax(logits: Tensor, scores: Tensor | None, mask: Tensor | None) -> Tensor:
    """Softmax over the allowed categories; straight-through to the largest of ``scores`` if they are given."""
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf)
        scores = None if scores is None else scores.masked_fill(~mask, -torch.inf)
    soft = logits.softmax(-1)
    return soft if scores is None else straight_through(one_hot_argmax(scores), soft)
