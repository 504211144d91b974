r"""Samples given their category: :math:`y \mid h(y) = b` for IGR-I, and the same for the Gumbel-Softmax."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from igr import kernels
from igr._checks import (
    broadcast,
    check_count,
    check_finite,
    check_parameter,
    check_range,
    describe,
    expand,
    transformed,
    values_checkable,
    widen,
)
from igr._draws import gumbel_noise, location_scale
from igr._normal import log_ndtr, once, tail
from igr._winner import Race, quantile, slopes
from igr.functional import harden

__all__ = ["sample_conditional", "conditional_path", "sample_conditional_gumbel", "conditional_path_gumbel"]


def sample_conditional(
    loc: Tensor, scale: Tensor | float, one_hot: Tensor, *, generator: torch.Generator | None = None
) -> Tensor:
    r"""Samples of :math:`y \sim N(\mu, \mathrm{diag}(\sigma^2))` given :math:`h(y) = b`, differentiable in μ and σ.

    For category :math:`k < K` the largest coordinate :math:`m = y_k` has the density

    .. math:: p(m) \propto \phi\Bigl(\frac{m - \mu_k}{\sigma_k}\Bigr)
        \prod_{j \ne k} \Phi\Bigl(\frac{m - \mu_j}{\sigma_j}\Bigr), \quad m > 0,

    and the others are normal, truncated to :math:`y_j < m`; for category :math:`K` all are truncated to
    :math:`y_j < 0`.

    Note:
        :math:`m` is the quantile of a uniform :math:`v`, found by Gauss-Legendre rules for the mass below and above it
        and a Newton iteration, to about 1e-8 in :math:`v` (float64), however unlikely the category is. The gradient is
        that of :func:`conditional_path`. :math:`h(y) = b` holds exactly: a coordinate that rounds to the largest one
        is moved below it.

    References:
        Equation 20; Figurnov et al. (2018), "Implicit reparameterization gradients".

    Arguments:
        loc: :math:`\mu`, shape ``(*, K-1)``.
        scale: :math:`\sigma > 0`, a number or broadcastable with ``loc``.
        one_hot: :math:`b`, shape ``(*, K)``, whose rows broadcast with those of ``loc``: ``(S, *, K)`` gives S samples.
        generator: source of the noise; eager mode only.

    Returns:
        :math:`y`, shape ``(*, K-1)``.

    Raises:
        ValueError: shapes that do not fit, or, on the CPU, a ``loc`` that is not finite, a ``scale`` not positive or a
            ``one_hot`` that is none.

    Example:
        >>> y = sample_conditional(torch.zeros(3), 1.0, torch.tensor([0.0, 1.0, 0.0, 0.0]).expand(5, 4))
        >>> y.argmax(-1)
        tensor([1, 1, 1, 1, 1])
    """
    mu, sigma = location_scale(loc, scale)
    _check_values(mu, sigma)
    category = _category(one_hot, mu.shape[-1] + 1)  # (*, 1)
    rows = broadcast(loc=torch.Size((*mu.shape[:-1], 1)), one_hot=category)
    with torch.no_grad():
        mu, sigma = (x.expand(rows[:-1] + x.shape[-1:]) for x in (mu, sigma))
        y = _draw(mu, sigma, category.expand(rows), generator)
    return conditional_path(loc, scale, y)


def conditional_path(loc: Tensor, scale: Tensor | float, y: Tensor, *, num_nodes: int | None = None) -> Tensor:
    r"""The value of ``y`` with the gradient of a sample that is held to its category :math:`h(y)`.

    The noise that :func:`sample_conditional` would have made ``y`` from is what is kept fixed: with k the category,
    :math:`m = y_k` and :math:`P(m; \mu, \sigma)` the distribution function of :math:`m`,

    .. math:: dm = -\frac{dP}{p(m)}, \qquad
        d\Bigl[\log \Phi\Bigl(\frac{y_j - \mu_j}{\sigma_j}\Bigr)
        - \log \Phi\Bigl(\frac{m - \mu_j}{\sigma_j}\Bigr)\Bigr] = 0,

    and the second with :math:`m = 0` for category :math:`K`. Given a category the noise is uniform, so an unconditional
    sample may be used: it serves as a conditional one, coupled to itself.

    Note:
        The derivative of :math:`P` is taken from :math:`\log P - \log (1 - P)`, by two Gauss-Legendre rules, one on
        either side of :math:`m`, and is as accurate for a :math:`P` within 1e-10 of zero or one. On the CPU the number
        of nodes follows the range of the scales. Memory does not grow with it.

        In float32 nothing is left of the difference of two coordinates that meet at :math:`m` from 1e8 scales away:
        gradients may be infinite there, and samples not finite from 1e14 on. Float64 has them. Forward mode inside of
        ``torch.compile`` is refused.

    Arguments:
        loc: :math:`\mu`, shape ``(*, K-1)``.
        scale: :math:`\sigma > 0`, a number or broadcastable with ``loc``.
        y: shape ``(*, K-1)``, broadcastable with ``loc``.
        num_nodes: nodes of each rule; by default 192, on the CPU as many of them as the scales ask for.

    Returns:
        ``y``; its own gradient is not passed on.

    Raises:
        ValueError: shapes that do not fit, or, on the CPU, a ``loc`` or ``y`` that is not finite or a ``scale`` not
            positive.

    Example:
        >>> loc = torch.tensor([0.5, -1.0], requires_grad=True)
        >>> y = loc.detach() + torch.tensor([0.3, 0.8])
        >>> torch.autograd.grad(conditional_path(loc, 1.0, y).sum(), loc)
        (tensor([0.5859, 0.8510]),)
    """
    mu, sigma = location_scale(loc, scale)
    _check_values(mu, sigma)
    check_parameter("y", y)
    if y.device.type == "cpu":
        check_finite("y", y)
    shape = broadcast(loc=mu, y=y)
    if shape[-1] != y.shape[-1] or shape[-1] != mu.shape[-1]:
        raise ValueError(f"y must have the {mu.shape[-1]} coordinates of loc, got shape {tuple(y.shape)}")
    if num_nodes is not None:
        check_count("num_nodes", num_nodes)
    _check_mode()
    dtype = torch.promote_types(widen(mu).dtype, widen(y).dtype)
    mu, sigma, value = (expand(x.to(dtype), shape).reshape(-1, shape[-1]) for x in (mu, sigma, y.detach()))
    follow = (_PathForwards if transformed() else _Path).apply
    path: Tensor = follow(mu, sigma, value, num_nodes)  # type: ignore[no-untyped-call]
    return path.reshape(shape).to(y.dtype)


def sample_conditional_gumbel(logits: Tensor, one_hot: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    r"""Samples of :math:`x = \log \alpha + \epsilon`, with Gumbel noise, given :math:`\arg\max x = b`.

    .. math:: x_k = \log \sum_j \alpha_j + \epsilon, \qquad
        x_j = -\log \Bigl(\frac{E_j}{\alpha_j} + e^{-x_k}\Bigr), \quad j \ne k,

    with Gumbel noise :math:`\epsilon` and exponential noise :math:`E_j`. Differentiable in :math:`\log \alpha`.

    References:
        Equation 5; Maddison et al. (2014), "A* sampling"; Tucker et al. (2017), "REBAR".

    Arguments:
        logits: :math:`\log \alpha`, unnormalised and finite, shape ``(*, K)``.
        one_hot: :math:`b`, shape ``(*, K)``, whose rows broadcast with those of ``logits``.
        generator: source of the noise; eager mode only.

    Returns:
        :math:`x`, shape ``(*, K)``; the relaxed sample is ``(x / tau).softmax(-1)``.

    Raises:
        ValueError: shapes that do not fit, or, on the CPU, ``logits`` that are not finite or a ``one_hot`` that is
            none.

    Example:
        >>> x = sample_conditional_gumbel(torch.zeros(4), torch.tensor([0.0, 0.0, 1.0, 0.0]).expand(5, 4))
        >>> x.argmax(-1)
        tensor([2, 2, 2, 2, 2])
    """
    log_alpha = widen(check_parameter("logits", logits, "K"))
    if logits.device.type == "cpu":
        check_finite("logits", logits)
    category = _category(one_hot, logits.shape[-1])
    rows = broadcast(logits=torch.Size((*logits.shape[:-1], 1)), one_hot=category)
    with torch.no_grad():
        total = log_alpha.logsumexp(-1, keepdim=True)
        log_alpha = log_alpha.expand(rows[:-1] + logits.shape[-1:])
        noise = gumbel_noise(log_alpha, generator)  # -log E
        top = total + gumbel_noise(log_alpha[..., :1], generator)
        others = -torch.logaddexp(-noise - log_alpha, -top)
        x = _settle(top.to(logits.dtype), others.to(logits.dtype), _is_category(others, category))
    return conditional_path_gumbel(logits, x)


def conditional_path_gumbel(logits: Tensor, x: Tensor) -> Tensor:
    r"""The value of ``x`` with the gradient of a sample that is held to its category :math:`\arg\max x`.

    .. math:: dx_k = \sum_j \frac{\alpha_j}{\sum_i \alpha_i}\, d\log \alpha_j, \qquad
        dx_j = (1 - e^{x_j - x_k})\, d\log \alpha_j + e^{x_j - x_k}\, dx_k.

    As in :func:`conditional_path`, an unconditional sample serves as a conditional one, coupled to itself.

    Arguments:
        logits: :math:`\log \alpha`, unnormalised and finite, shape ``(*, K)``.
        x: shape ``(*, K)``, broadcastable with ``logits``.

    Returns:
        ``x``; its own gradient is not passed on.

    Raises:
        ValueError: shapes that do not fit, or, on the CPU, ``logits`` or ``x`` that are not finite.

    Example:
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> x = conditional_path_gumbel(logits, torch.tensor([0.5, 2.0, -1.0]))
        >>> torch.autograd.grad(x[1], logits)
        (tensor([0.3333, 0.3333, 0.3333]),)
    """
    log_alpha = widen(check_parameter("logits", logits, "K"))
    check_parameter("x", x, "K")
    for name, value in (("logits", logits), ("x", x)):
        if value.device.type == "cpu":
            check_finite(name, value)
    _check_mode()
    shape = broadcast(logits=logits, x=x)
    dtype = torch.promote_types(log_alpha.dtype, widen(x).dtype)
    log_alpha, value = (expand(v.to(dtype), shape) for v in (log_alpha, x.detach()))
    follow = (_GumbelPathForwards if transformed() else _GumbelPath).apply
    path: Tensor = follow(log_alpha, value)  # type: ignore[no-untyped-call]
    return path.to(x.dtype)


def _check_mode() -> None:
    if torch.compiler.is_compiling() and torch.autograd.forward_ad._current_level >= 0:
        raise NotImplementedError(
            "forward mode through samples given their category inside of torch.compile, which would take the "
            "derivative for zero; differentiate backwards there (torch.func.grad, jacrev), or leave it uncompiled"
        )


def _check_values(mu: Tensor, sigma: Tensor) -> None:
    if mu.device.type == "cpu":  # a look at values elsewhere would wait for the device
        check_finite("loc", mu)
        check_range("scale", sigma)


def _category(one_hot: object, K: int) -> Tensor:
    """The index of the category, shape (*, 1)."""
    if not isinstance(one_hot, Tensor):
        raise TypeError(f"one_hot must be a tensor, got {describe(one_hot)}")
    if one_hot.dim() == 0 or one_hot.shape[-1] != K:
        raise ValueError(
            f"one_hot must have shape (*, K) with K = {K} categories on its last axis, got shape {tuple(one_hot.shape)}"
        )
    one_hot = one_hot.detach()
    if one_hot.device.type == "cpu" and values_checkable(one_hot):
        binary = ((one_hot == 0) | (one_hot == 1)).all()
        if not bool(binary and (one_hot.sum(-1) == 1).all()):
            raise ValueError("one_hot must hold a single one in every row and zeros elsewhere; use harden(y)")
    return one_hot.to(torch.uint8).argmax(-1, keepdim=True)


def _is_category(like: Tensor, category: Tensor) -> Tensor:
    return torch.arange(like.shape[-1], device=like.device) == category


def _settle(top: Tensor, others: Tensor, wins: Tensor) -> Tensor:
    """``top`` where ``wins``, elsewhere ``others``, below it also where they have been rounded."""
    info = torch.finfo(top.dtype)
    below = top - (top.abs() * info.eps).clamp(min=info.tiny)
    return torch.where(wins, top, torch.minimum(others, below))


class _GumbelPath(torch.autograd.Function):
    """Saves its output, so that second derivatives know how that depends on the logits."""

    generate_vmap_rule = True

    @staticmethod
    def forward(log_alpha: Tensor, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        log_alpha, x = ctx.saved_tensors
        gap = x - x.amax(-1, keepdim=True)
        top = (gap.exp() * gradient).sum(-1, keepdim=True)
        return log_alpha.softmax(-1) * top - torch.expm1(gap) * gradient, None


class _GumbelPathForwards(_GumbelPath):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        _save_for_both(ctx, inputs[0], output)

    @staticmethod
    @once
    def jvp(ctx: Any, d_log_alpha: Tensor, _: Tensor) -> Tensor:
        log_alpha, x = ctx.saved_tensors
        gap = x - x.amax(-1, keepdim=True)
        top = (log_alpha.softmax(-1) * d_log_alpha).sum(-1, keepdim=True)
        change: Tensor = gap.exp() * top - torch.expm1(gap) * d_log_alpha
        return change


class _Path(torch.autograd.Function):
    """Rows of :func:`conditional_path`, all (B, K-1). Saves its output for second derivatives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(mu: Tensor, sigma: Tensor, y: Tensor, num_nodes: int | None) -> Tensor:
        return y.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.num_nodes = inputs[-1]
        ctx.save_for_backward(*inputs[:2], output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        mu, sigma, y = ctx.saved_tensors
        d = _path_derivatives(mu, sigma, y, ctx.num_nodes)
        top = (d.m * gradient).sum(-1, keepdim=True)
        return gradient * d.mu + top * d.m_mu, gradient * d.sigma + top * d.m_sigma, None, None


class _PathForwards(_Path):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.num_nodes = inputs[-1]
        _save_for_both(ctx, *inputs[:2], output)

    @staticmethod
    @once
    def jvp(ctx: Any, d_mu: Tensor, d_sigma: Tensor, *_: Tensor | None) -> Tensor:
        mu, sigma, y = ctx.saved_tensors
        d = _path_derivatives(mu, sigma, y, ctx.num_nodes)
        top = (d.m_mu * d_mu + d.m_sigma * d_sigma).sum(-1, keepdim=True)
        return d.mu * d_mu + d.sigma * d_sigma + d.m * top


def _save_for_both(ctx: Any, *tensors: Tensor) -> None:
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)


class _PathDerivatives(NamedTuple):
    r"""Of :math:`y_j` by :math:`\mu_j, \sigma_j` and m, and of m by all :math:`\mu_j, \sigma_j`, all (B, K-1)."""

    mu: Tensor
    sigma: Tensor
    m: Tensor
    m_mu: Tensor
    m_sigma: Tensor


def _path_derivatives(mu: Tensor, sigma: Tensor, y: Tensor, num_nodes: int | None) -> _PathDerivatives:
    hard = harden(y.detach())
    m = y.amax(-1, keepdim=True) * (1 - hard[..., -1:])  # zero for category K
    z, a, gap = (y - mu) / sigma, (m - mu) / sigma, (y - m) / sigma
    (q, e), (q_a, e_a) = tail(z), tail(a)
    # the ratio of the inverse Mills ratios at a and at z, and what it lacks to one
    log_ratio = q - q_a - 0.5 * (a.clamp(min=0.0).square() - z.clamp(min=0.0).square())
    below = torch.where(a < 0, e - z.clamp(max=0.0), 1.0)  # which may be zero where it is not asked for
    lack = torch.where(a < 0, (e - e_a - gap) / below, -torch.expm1(log_ratio))
    ratio = log_ratio.exp()
    wins = _is_category(y, hard.argmax(-1, keepdim=True).clamp(max=y.shape[-1] - 1))  # any, for category K
    m_mu, m_sigma = slopes(Race(mu, sigma, wins), m, num_nodes)
    return _PathDerivatives(lack, z * lack + ratio * gap, ratio * (1 - hard[..., -1:]), m_mu, m_sigma)


def _draw(mu: Tensor, sigma: Tensor, category: Tensor, generator: torch.Generator | None) -> Tensor:
    """y given its category, an index of shape (*, 1)."""
    dtype, shape, d = mu.dtype, mu.shape, mu.shape[-1]
    mu, sigma = widen(mu), widen(sigma)
    logit = gumbel_noise(mu[..., :1], generator) - gumbel_noise(mu[..., :1], generator)
    exponential = (-gumbel_noise(mu, generator)).exp()
    mu, sigma, exponential, logit = (x.reshape(-1, x.shape[-1]) for x in (mu, sigma, exponential, logit))
    category = category.reshape(-1, 1)
    wins = _is_category(mu, category.clamp(max=d - 1))  # any, for category K
    m = torch.where(category < d, quantile(Race(mu, sigma, wins), logit), 0.0)
    others = _truncated(mu, sigma, m, exponential)
    top = torch.where(category < d, m.to(dtype).clamp(min=torch.finfo(dtype).tiny), 0.0)
    return _settle(top, others.to(dtype), wins & (category < d)).reshape(shape)


def _truncated(mu: Tensor, sigma: Tensor, m: Tensor, exponential: Tensor) -> Tensor:
    """Normal coordinates below m: from m to y, log Φ falls by ``exponential``. Without a gradient."""
    given = mu, sigma, m, exponential
    if kernels.usable(*given) and all(x.dtype == torch.float32 for x in given):
        from igr.kernels.truncated import truncated

        return truncated(mu, sigma, m, exponential)
    a = (m - mu) / sigma
    log_p = log_ndtr(a) - exponential
    upper = log_p > -math.log(2)
    z = torch.special.ndtri(torch.where(upper, -torch.expm1(log_p), log_p.exp()))
    # far below μ it is the distance from m that can be computed: Newton, which does not overshoot
    start = a.clamp(max=-1.0)
    step = -2 * exponential / ((start.square() + 2 * exponential).sqrt() - start)
    q_start = tail(start)[0]
    for _ in range(5):
        q, e = tail(start + step)
        fall = q_start - q + 0.5 * step * (2 * start + step)
        step = step + (fall - exponential) / (e - start - step)
    return torch.where(a < -1, m + sigma * step, mu + sigma * torch.where(upper, -z, z))
