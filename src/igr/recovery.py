r"""The discrete distribution that a relaxation relaxes: the probabilities of :math:`h(y)` of Proposition 1."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, overload

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from igr import kernels
from igr._checks import check_count, check_finite, check_range, transformed, values_checkable, widen
from igr._draws import location_scale
from igr._normal import Forwards, inverse_mills, log_ndtr, low_quantile_of_maximum, once, standardised
from igr._stick_recovery import nodes_for_sticks, stick_masses
from igr.quadrature import constant_rule, kept_rule

__all__ = ["QuadratureError", "recovered_log_probs", "recovered_log_probs_stick_breaking"]

STICK_NODES = (256, 384, 512, 768, 1024, 1536, 2048)  # the sizes of tables that rows of stick-breaking may have


class QuadratureError(NamedTuple):
    r"""How far to trust a quadrature, both of shape ``(*)``.

    ``residual`` is how much the probabilities missed one before they were normalised, which the rule does not impose;
    it is about the largest error of a probability once ``num_nodes`` nodes are used, and may be far too small with
    fewer.
    """

    residual: Tensor
    """How much the probabilities missed one."""
    num_nodes: Tensor
    """How many nodes an error below about 1e-6, or 1e-5 for stick-breaking, asks for."""


@overload
def recovered_log_probs(
    loc: Tensor, scale: Tensor | float, *, num_nodes: int = 192, return_error: Literal[False] = False
) -> Tensor: ...
@overload
def recovered_log_probs(
    loc: Tensor, scale: Tensor | float, *, num_nodes: int = 192, return_error: Literal[True]
) -> tuple[Tensor, QuadratureError]: ...
def recovered_log_probs(
    loc: Tensor, scale: Tensor | float, *, num_nodes: int = 192, return_error: bool = False
) -> Tensor | tuple[Tensor, QuadratureError]:
    r"""Log-probabilities of the categories of IGR-I, differentiable in :math:`\mu` and :math:`\sigma`.

    .. math::
        P(H = k) &= \int_0^\infty \frac{1}{\sigma_k} \phi\Bigl(\frac{t - \mu_k}{\sigma_k}\Bigr)
        \prod_{j \ne k} \Phi\Bigl(\frac{t - \mu_j}{\sigma_j}\Bigr) dt, \quad k < K, \\
        P(H = K) &= \prod_{j < K} \Phi\Bigl(-\frac{\mu_j}{\sigma_j}\Bigr).

    They do not depend on the temperature. Two categories are a closed form, :math:`P(H = 1) = \Phi(\mu / \sigma)`.

    Note:
        One Gauss-Legendre rule in :math:`\log(1 + (t - t_0) / a)` serves all categories, where :math:`t_0` is where the
        product of the :math:`\Phi` becomes noticeable: a coordinate that matters at the distance s from there has a
        scale of at least about s / 17, so the resolution needed falls off with s, and scales from 1e-3 to 1e3 may stand
        in one vector. Categories less likely than about 1e-18 get a lower bound of their log-probability. Rows are
        taken in chunks, forwards and backwards, so that memory does not grow with the number of nodes.

    References:
        Proposition 2 (equation 21).

    Arguments:
        loc: :math:`\mu`, shape ``(*, K-1)``.
        scale: :math:`\sigma > 0`, a number or broadcastable with ``loc``.
        num_nodes: nodes of the rule.
        return_error: whether to return a :class:`QuadratureError` as well.

    Returns:
        Shape ``(*, K)``, normalised; float32 for half-precision parameters.

    Raises:
        ValueError: shapes that do not fit, or, on the CPU, a ``loc`` that is not finite or a ``scale`` not positive.

    Example:
        >>> recovered_log_probs(torch.tensor([0.3, -0.5, 1.2]), 1.0).exp()
        tensor([0.2282, 0.0660, 0.6754, 0.0304])
    """
    mu, sigma = _parameters(loc, scale)
    shape = mu.shape
    if shape[-1] == 1:
        ratio = standardised(mu, sigma)
        log_p = torch.cat([log_ndtr(ratio), log_ndtr(-ratio)], -1)
        exact = QuadratureError(torch.zeros_like(mu[..., 0]), torch.ones_like(mu[..., 0]))
        return (log_p, exact) if return_error else log_p
    mu, sigma = mu.reshape(-1, shape[-1]), sigma.reshape(-1, shape[-1])
    if not return_error and kernels.usable_on_rows(mu, sigma):
        fused: Tensor = _Fused.apply(mu, sigma, *constant_rule(num_nodes, mu.device))  # type: ignore[no-untyped-call]
        return fused.reshape(*shape[:-1], shape[-1] + 1)
    # the unit is arbitrary: one in which multiples of the largest scale are finite
    unit = torch.where(sigma.amax(-1, keepdim=True) > 2.0**120, 2.0**-30, 1.0).to(sigma.dtype)
    mu, sigma = unit * mu, unit * sigma
    start, width, a = _window(mu.detach(), sigma.detach())
    rule = kept_rule(num_nodes, mu)
    function = _LogMassForwards if transformed() else _LogMass
    log_mass: Tensor = function.apply(mu, sigma, start, width, a, *rule)  # type: ignore[no-untyped-call]
    log_mass = log_mass.reshape(*shape[:-1], shape[-1] + 1)
    log_p = _normalise(log_mass)
    if not return_error:
        return log_p
    span = torch.log1p(width / a).reshape(shape[:-1])
    return log_p, QuadratureError(torch.expm1(log_mass.detach().logsumexp(-1)).abs(), 24 + 10 * span)


@overload
def recovered_log_probs_stick_breaking(
    loc: Tensor,
    scale: Tensor | float,
    leftover: bool = True,
    *,
    num_nodes: int | None = None,
    return_error: Literal[False] = False,
) -> Tensor: ...
@overload
def recovered_log_probs_stick_breaking(
    loc: Tensor,
    scale: Tensor | float,
    leftover: bool = True,
    *,
    num_nodes: int | None = None,
    return_error: Literal[True],
) -> tuple[Tensor, QuadratureError]: ...
def recovered_log_probs_stick_breaking(
    loc: Tensor,
    scale: Tensor | float,
    leftover: bool = True,
    *,
    num_nodes: int | None = None,
    return_error: bool = False,
) -> Tensor | tuple[Tensor, QuadratureError]:
    r"""Log-probabilities of the categories of IGR-SB, differentiable in :math:`\mu` and :math:`\sigma`.

    .. math:: P(H = k) = P(w_k = \max_j w_j), \qquad w = SB(\mathrm{sigmoid}(y)), \quad y \sim N(\mu, \sigma^2).

    Note:
        Deterministic: the ratio of the longest stick so far to what is left of the whole is a Markov chain, and so is
        its counterpart from the other end, so that one-dimensional recursions over the sticks give all probabilities.
        Their distribution functions are kept at ``num_nodes`` nodes, by default four to the narrowest scale of a row
        but at least 256 and at most 2048, so that errors are mostly below 1e-5 for scales of 0.02 and more. With fewer
        nodes than the error estimate asks for, its residual may be several times too small. Probabilities below about
        1e-12 are not resolved, and at least 1e-30.

    References:
        Equations 16, 18 and 20.

    Arguments:
        loc: :math:`\mu`, shape ``(*, K-1)``.
        scale: :math:`\sigma > 0`, a number or broadcastable with ``loc``.
        leftover: whether the leftover stick competes as K-th category. If not, as in the paper's literal form, its
            probability is zero.
        num_nodes: nodes of the tables, at least 16; by default as many as each row asks for, or 256 where parameters
            cannot be looked at (under ``torch.compile`` and ``torch.func.vmap``).
        return_error: whether to return a :class:`QuadratureError` as well.

    Returns:
        Shape ``(*, K)``, normalised; float32 for half-precision parameters; the last is :math:`-\infty` without the
        leftover.

    Raises:
        ValueError: shapes that do not fit, or, on the CPU, a ``loc`` that is not finite or a ``scale`` not positive.

    Example:
        >>> recovered_log_probs_stick_breaking(torch.tensor([0.0, 0.0]), 1.0).exp()
        tensor([0.6560, 0.1720, 0.1720])
    """
    mu, sigma = _parameters(loc, scale)
    needed = nodes_for_sticks(mu, sigma)
    rows = mu.reshape(-1, mu.shape[-1]), sigma.reshape(-1, mu.shape[-1])
    if num_nodes is None and values_checkable(mu) and mu.numel():
        mass = _masses_of_all(*rows, leftover, needed.flatten())
    else:
        num_nodes = check_count("num_nodes", STICK_NODES[0] if num_nodes is None else num_nodes, at_least=16)
        mass = _masses_in_chunks(*rows, leftover, num_nodes)
    mass = mass.reshape(*mu.shape[:-1], mass.shape[-1])
    log_p = _normalise(mass.clamp(min=1e-30).log())
    if not leftover:
        log_p = F.pad(log_p, (0, 1), value=-math.inf)
    if not return_error:
        return log_p
    residual = (mass.detach().sum(-1) - 1).abs()
    return log_p, QuadratureError(residual, needed)


def _masses_of_all(mu: Tensor, sigma: Tensor, leftover: bool, needed: Tensor) -> Tensor:
    """The masses of rows, (B, n) to (B, n) or (B, n + 1), each from tables of the size that it asks for itself."""
    sizes = torch.tensor(STICK_NODES, dtype=needed.dtype, device=needed.device)
    index = torch.bucketize(needed, sizes).clamp(max=len(STICK_NODES) - 1)
    some = [int(i) for i in index.unique()]  # tolist of PyTorch 2.6 fails inside transforms
    if len(some) == 1:
        return _masses_in_chunks(mu, sigma, leftover, STICK_NODES[some[0]])
    groups = [(STICK_NODES[i], (index == i).nonzero().squeeze(-1)) for i in some]
    keep = 16 * mu.shape[-1] * sum(num_nodes * len(rows) for num_nodes, rows in groups) <= _budget(mu)
    masses = [_masses_in_chunks(mu[rows], sigma[rows], leftover, num_nodes, keep) for num_nodes, rows in groups]
    return torch.cat(masses)[torch.cat([rows for _, rows in groups]).argsort()]


def _masses_in_chunks(mu: Tensor, sigma: Tensor, leftover: bool, num_nodes: int, keep: bool = True) -> Tensor:
    """The same from tables of one size, to be kept for the gradient if that is allowed and all fit at once."""
    rows = _chunks((mu, sigma), 16 * num_nodes)
    keep = keep and len(rows) == 1
    return torch.cat([_stick_masses(m, s, leftover, num_nodes, keep=keep) for m, s in rows])


def _stick_masses(mu: Tensor, sigma: Tensor, leftover: bool, num_nodes: int, *, keep: bool) -> Tensor:
    """The masses of some rows, whose tables are kept for the gradient, or else made anew."""
    if keep or not torch.is_grad_enabled() or transformed():  # checkpoints are unknown to transforms
        return stick_masses(mu, sigma, leftover, num_nodes)
    arguments = mu, sigma, leftover, num_nodes
    masses: Tensor = checkpoint(stick_masses, *arguments, use_reentrant=False, preserve_rng_state=False)
    return masses


def _parameters(loc: Tensor, scale: Tensor | float) -> tuple[Tensor, Tensor]:
    """Both in one shape and in at least float32."""
    mu, sigma = (widen(x) for x in location_scale(loc, scale))
    if mu.device.type == "cpu":  # a look at values elsewhere would wait for the device
        check_finite("loc", mu)
        check_range("scale", sigma)
    return mu, sigma


def _normalise(log_mass: Tensor) -> Tensor:
    """A log-softmax that keeps the relative accuracy of the largest entry as it tends to zero."""
    top, index = log_mass.max(-1, keepdim=True)
    others = (log_mass - top).exp().scatter(-1, index, 0.0)
    return log_mass - top - torch.log1p(others.sum(-1, keepdim=True))


@torch.no_grad()
def _window(mu: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where the integrands live: t0 - μ for the lower end t0, (B, K-1), the width, and the scale ``a`` of the grading.

    t0 itself would lose the digits of coordinates that are narrow beside it.
    """
    loc, t = low_quantile_of_maximum(mu, sigma, -42.0)
    start = torch.where(t <= -loc, -mu, loc - mu + t)  # t0 is not negative
    z0 = standardised(start, sigma)
    log_f, rate = log_ndtr(z0).sum(-1, keepdim=True), (inverse_mills(z0) / sigma).sum(-1, keepdim=True)
    least = z0.amin(-1, keepdim=True)
    reach = 40.0 / ((z0.clamp(min=0.0).square() + 40.0).sqrt() + z0.clamp(min=0.0)) - z0.clamp(max=0.0)
    width = torch.where(z0 <= (least + 0.5).clamp(min=8.5), sigma * reach, 0.0).amax(-1, keepdim=True)
    matters = (log_f + log_ndtr(-z0) > -33.0) | (z0 == least)
    finest = torch.where(matters, sigma / z0.clamp(min=1.0), math.inf).amin(-1, keepdim=True)
    a = 32 * torch.minimum(torch.minimum(1 / rate, width), finest)
    tiny = torch.finfo(sigma.dtype).tiny  # what underflows has to have a logarithm
    return start, width.clamp(min=tiny), a.clamp(min=tiny)


class _LogMass(torch.autograd.Function):
    """The logarithms of the K integrals, before normalisation: (B, K-1) to (B, K).

    The nodes do not depend on the parameters, since the integrals do not depend on the nodes.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(mu: Tensor, sigma: Tensor, start: Tensor, width: Tensor, a: Tensor, x: Tensor, w: Tensor) -> Tensor:
        rows = _chunks((mu, sigma, start, width, a), len(x))
        masses = torch.cat([_summands(*chunk, x, w)[0].logsumexp(-1) for chunk in rows])
        return torch.cat([masses, log_ndtr(standardised(-mu, sigma)).sum(-1, keepdim=True)], -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return *_gradients(gradient, *ctx.saved_tensors), None, None, None, None, None


class _LogMassForwards(Forwards, _LogMass):
    @staticmethod
    @once
    def jvp(ctx: Any, d_mu: Tensor, d_sigma: Tensor, *_: Tensor | None) -> Tensor:
        return _tangents(d_mu, d_sigma, *ctx.saved_tensors)


class _Fused(torch.autograd.Function):
    """Window, masses and normalisation in one kernel: (B, K-1) to (B, K); the gradient in another.

    A gradient that is itself to be differentiated is that of the functions here.
    """

    @staticmethod
    def forward(ctx: Any, mu: Tensor, sigma: Tensor, x: Tensor, w: Tensor) -> Tensor:
        from igr.kernels.recovery import recovered_log_probs as kernel

        log_p: Tensor
        log_p, sums, window = kernel(mu, sigma, x, w)
        ctx.save_for_backward(mu, sigma, x, w, log_p, sums, window)
        return log_p

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from igr.kernels.recovery import recovered_log_probs_backward as kernel

        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return *kernel(gradient, *ctx.saved_tensors), None, None
        mu, sigma, *rule = ctx.saved_tensors[:4]
        rule = *_window(mu, sigma), *rule
        p = _normalise(_LogMass.apply(mu, sigma, *rule)).exp()  # type: ignore[no-untyped-call]
        return *_gradients(gradient - p * gradient.sum(-1, keepdim=True), mu, sigma, *rule), None, None


@torch.no_grad()
def masses_and_jacobian(mu: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    r"""The probabilities of Proposition 2, not normalised, and their derivatives by all locations.

    .. math:: \frac{\partial P_k}{\partial \mu_j} = -\int_0^\infty F h_k h_j dt, \quad j \ne k, \qquad
        F = \prod_j \Phi\Bigl(\frac{t - \mu_j}{\sigma_j}\Bigr), \quad
        h_j = \frac{\phi}{\sigma_j \Phi}\Bigl(\frac{t - \mu_j}{\sigma_j}\Bigr),

    for k < K, where :math:`\sum_j \partial P_k / \partial \mu_j = F(0) h_k(0)`, since to move all locations is to move
    the threshold, and :math:`\partial P_K / \partial \mu_j = -F(0) h_j(0)`. Shapes ``(B, K-1)`` to ``(B, K)`` and
    ``(B, K, K-1)``, for K above two.
    """
    summands, z, _ = _summands(mu, sigma, *_window(mu, sigma), *kept_rule(192, mu))  # (B, K-1, Q)
    last = log_ndtr(standardised(-mu, sigma)).sum(-1, keepdim=True).exp()
    masses = torch.cat([summands.logsumexp(-1).exp(), last], -1)
    hazards = inverse_mills(z) / sigma.unsqueeze(-1)
    jacobian = -summands.exp() @ hazards.mT
    jacobian.diagonal(dim1=-2, dim2=-1).zero_()
    threshold = last * inverse_mills(standardised(-mu, sigma)) / sigma
    jacobian = jacobian + torch.diag_embed(threshold - jacobian.sum(-1))
    return masses, torch.cat([jacobian, -threshold.unsqueeze(-2)], -2)


def _gradients(gradient: Tensor, mu: Tensor, sigma: Tensor, *rule: Tensor) -> tuple[Tensor, Tensor]:
    """From gradients in the logarithms of the K integrals to those in μ and σ."""
    start, width, a, x, w = rule
    rows = _chunks((gradient[..., :-1], mu, sigma, start, width, a), len(x))
    d_mu, d_sigma = (torch.cat(d) for d in zip(*[_weighted_gradients(*chunk, x, w) for chunk in rows], strict=True))
    last = standardised(-mu, sigma)
    rest = gradient[..., -1:] * inverse_mills(last)
    return (d_mu - rest) / sigma, (d_sigma - rest * last) / sigma


def _weighted_gradients(gradient: Tensor, mu: Tensor, sigma: Tensor, *rule: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the K-1 integrals in μ and σ, times σ."""
    summands, z, log_cdf = _summands(mu, sigma, *rule)
    weights = gradient.unsqueeze(-1) * summands.softmax(-1)  # (B, K-1, Q)
    ratio = torch.exp(_log_pdf(z) - log_cdf)  # the inverse Mills ratio; no z is so far out that this would be inexact
    d_z = weights * (z + ratio) - ratio * weights.sum(-2, keepdim=True)
    return d_z.sum(-1), (z * d_z - weights).sum(-1)


def _tangents(d_mu: Tensor, d_sigma: Tensor, mu: Tensor, sigma: Tensor, *rule: Tensor) -> Tensor:
    """From changes of μ and σ to those of the logarithms of the K integrals."""
    start, width, a, x, w = rule
    rows = _chunks((d_mu / sigma, d_sigma / sigma, mu, sigma, start, width, a), len(x))
    masses = torch.cat([_weighted_tangents(*chunk, x, w) for chunk in rows])
    last = standardised(-mu, sigma)
    d_last = -(d_mu + last * d_sigma) / sigma
    return torch.cat([masses, (inverse_mills(last) * d_last).sum(-1, keepdim=True)], -1)


def _weighted_tangents(d_mu: Tensor, d_sigma: Tensor, mu: Tensor, sigma: Tensor, *rule: Tensor) -> Tensor:
    """Changes of the logarithms of the K-1 integrals, given those of μ and σ over σ."""
    summands, z, log_cdf = _summands(mu, sigma, *rule)
    d_z = -(d_mu.unsqueeze(-1) + z * d_sigma.unsqueeze(-1))
    d_log_cdf = torch.exp(_log_pdf(z) - log_cdf) * d_z
    change = d_log_cdf.sum(-2, keepdim=True) - d_log_cdf - z * d_z - d_sigma.unsqueeze(-1)
    return (summands.softmax(-1) * change).sum(-1)


def _summands(mu: Tensor, sigma: Tensor, *rule: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-summands of the rule for every category, the standardised nodes and their log-cdfs, each (B, K-1, Q)."""
    start, width, a, x, w = rule
    start = start - (mu - mu.detach())  # of a t0 that does not move with μ
    span = torch.log1p(width / a)
    y = span * x  # (B, Q)
    log_w = (w * span).log() + a.log() + y
    z = standardised(start.unsqueeze(-1) + (a * torch.expm1(y)).unsqueeze(-2), sigma.unsqueeze(-1))
    log_cdf = log_ndtr(z)
    log_pdf = _log_pdf(z) - sigma.log().unsqueeze(-1)
    return log_w.unsqueeze(-2) + log_cdf.sum(-2, keepdim=True) - log_cdf + log_pdf, z, log_cdf


def _log_pdf(z: Tensor) -> Tensor:
    return -0.5 * z.square() - 0.5 * math.log(2 * math.pi)


def _chunks(tensors: tuple[Tensor, ...], num_nodes: int) -> list[tuple[Tensor, ...]]:
    """Rows in chunks, which keeps the memory down; all at once for a compiler, and where no memory is used."""
    if torch.compiler.is_compiling() or tensors[0].is_meta:
        return [tensors]
    step = max(1, _budget(tensors[0]) // (tensors[0].shape[-1] * num_nodes))
    return list(zip(*(t.split(step) for t in tensors), strict=True))


def _budget(like: Tensor) -> int:
    """How many numbers to have at once: what caches hold, or what keeps a device busy."""
    return 2**24 if like.is_cuda else 2**19
