"""The sampling kernels as operators of torch: ``igr::sample``, ``igr::sample_backward`` and ``igr::noise``.

All work on rows, as :mod:`igr.kernels.sampling` does. An operator returns tensors always: what was not asked for is one
without entries. The key of the noise is an input, so operators are functions, and compilers and graphs may treat them
as such.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from igr.kernels.sampling import Scalars, backward, forward, noise


@torch.library.custom_op("igr::sample", mutates_args=())
def sample(
    loc: Tensor,
    scale: Tensor | None,
    seed: Tensor,
    tau: float,
    delta: float,
    tau_rows: Tensor | None,
    delta_rows: Tensor | None,
    mask: Tensor | None,
    mu0: Tensor | None,
    sigma0: Tensor | None,
    rows: int,
    hard: bool,
    keep: bool,
    log_prob: bool,
    kl: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """z; as far as wanted the relaxed point behind a hard one, log-density, divergence and what its gradient needs."""
    scalars = Scalars(tau, delta, tau_rows, delta_rows)
    out = forward(
        loc, scale, seed, scalars, mask, (mu0, sigma0), rows, hard=hard, keep=keep, log_prob=log_prob, kl=kl
    )  # fmt: skip
    none = loc.new_empty(0, dtype=torch.float32)
    return out.z, *(torch.empty_like(none) if x is None else x for x in out[1:])  # type: ignore[return-value]


@sample.register_fake
def _(
    loc: Tensor, scale: Tensor | None, seed: Tensor, tau: float, delta: float, tau_rows: Tensor | None,
    delta_rows: Tensor | None, mask: Tensor | None, mu0: Tensor | None, sigma0: Tensor | None,
    rows: int, hard: bool, keep: bool, log_prob: bool, kl: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    K = loc.shape[1] + int(scale is not None)  # a boolean is no term of symbolic sizes before torch 2.13
    empty = [loc.new_empty(0, dtype=torch.float32) for _ in range(4)]
    row = [loc.new_empty(rows, dtype=torch.float32) for _ in range(2)]
    return (
        loc.new_empty(rows, K),
        loc.new_empty(rows, K) if hard and keep else empty[0],
        row[0] if log_prob else empty[1],
        row[1] if kl else empty[2],
        loc.new_empty(rows, 2, dtype=torch.float32) if kl and keep and scale is None else empty[3],
    )


@torch.library.custom_op("igr::sample_backward", mutates_args=())
def sample_backward(
    p: Tensor,
    g: Tensor,
    loc: Tensor | None,
    scale: Tensor | None,
    seed: Tensor,
    tau: float,
    tau_rows: Tensor | None,
    mu0: Tensor | None,
    sigma0: Tensor | None,
    stats: Tensor | None,
    g_log_prob: Tensor | None,
    g_kl: Tensor | None,
    gumbel: bool,
    need_loc: bool,
    need_scale: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of the parameters, a row for each of the sample's."""
    found = backward(
        p, g, loc, scale, seed, Scalars(tau, 1.0, tau_rows, None), (mu0, sigma0), stats, g_log_prob, g_kl,
        gumbel=gumbel, need_loc=need_loc, need_scale=need_scale,
    )  # fmt: skip
    first, second = (p.new_empty(0) if x is None else x for x in found)
    return first, second


@sample_backward.register_fake
def _(
    p: Tensor, g: Tensor, loc: Tensor | None, scale: Tensor | None, seed: Tensor, tau: float, tau_rows: Tensor | None,
    mu0: Tensor | None, sigma0: Tensor | None, stats: Tensor | None, g_log_prob: Tensor | None, g_kl: Tensor | None,
    gumbel: bool, need_loc: bool, need_scale: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    rows, n = p.shape[0], p.shape[1] - int(not gumbel)
    shapes = [(rows, n) if need else (0,) for need in (need_loc, need_scale)]
    return p.new_empty(shapes[0]), p.new_empty(shapes[1])


@torch.library.custom_op("igr::noise", mutates_args=())
def noise_of(seed: Tensor, rows: int, columns: int, gumbel: bool) -> Tensor:
    """The noise of a call with this key."""
    return noise(seed, rows, columns, gumbel=gumbel)


@noise_of.register_fake
def _(seed: Tensor, rows: int, columns: int, gumbel: bool) -> Tensor:
    return seed.new_empty(rows, columns, dtype=torch.float32)


@noise_of.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], seed: Tensor, rows: int, columns: int, gumbel: bool
) -> tuple[Tensor, int]:
    """One key after another, for compilers as below."""
    keys = seed.movedim(in_dims[0] or 0, 0)
    return torch.stack([noise_of(key, rows, columns, gumbel) for key in keys]), 0


class _Saved(NamedTuple):
    """The tensors of a call that its gradient needs."""

    p: Tensor
    seed: Tensor
    tau_rows: Tensor | None
    loc: Tensor | None
    scale: Tensor | None
    mu0: Tensor | None
    sigma0: Tensor | None
    stats: Tensor | None


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    loc, scale, seed, tau, _, tau_rows, _, _, mu0, sigma0, rows, hard, _, log_prob, kl = inputs
    terms = log_prob or kl
    z, soft, _, _, stats = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(
        soft if hard else z, seed, tau_rows,
        loc if terms else None, scale if terms else None, mu0, sigma0, stats if kl and scale is None else None,
    )  # fmt: skip
    ctx.tau, ctx.gumbel, ctx.kl = tau, scale is None, kl
    ctx.period, ctx.repeats = loc.shape[0], rows // loc.shape[0] if loc.shape[0] else 1


def _backward(
    ctx: Any, g_z: Tensor | None, g_soft: Tensor | None, g_log_prob: Tensor | None, g_kl: Tensor | None, _: Any
) -> tuple[Tensor | None, ...]:
    saved = _Saved(*ctx.saved_tensors)
    need_loc, need_scale = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
    g = g_z if g_soft is None or g_soft.numel() == 0 else g_soft if g_z is None else g_z + g_soft
    g = torch.zeros_like(saved.p) if g is None else g
    if torch.is_grad_enabled():  # a gradient of this gradient is wanted
        found = _differentiable(ctx, saved, g, g_log_prob, g_kl)
    else:
        found = torch.ops.igr.sample_backward(
            saved.p, g, saved.loc, saved.scale, saved.seed, ctx.tau, saved.tau_rows, saved.mu0, saved.sigma0,
            saved.stats, _dense(g_log_prob), _dense(g_kl), ctx.gumbel, need_loc, need_scale,
        )  # fmt: skip
    needed = (need_loc, need_scale)
    both = [_summed(d, ctx.repeats, ctx.period) if need else None for d, need in zip(found, needed, strict=True)]
    return (*both, *(None,) * 13)


def _dense(g: Tensor | None) -> Tensor | None:
    return None if g is None else g.contiguous()


def _summed(d: Tensor, repeats: int, period: int) -> Tensor:
    """Over the rows of the sample that have the same parameters, which may be none."""
    return d if repeats == 1 else d.unflatten(0, (repeats, period)).sum(0)


def _differentiable(
    ctx: Any, saved: _Saved, g: Tensor, g_log_prob: Tensor | None, g_kl: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The same gradients by differentiable operations; all that depends on parameters but p comes from ``saved``."""
    dtype, K = saved.p.dtype, saved.p.shape[1]
    p, g = saved.p.float(), g.float()
    n = K if ctx.gumbel else K - 1
    tau = ctx.tau if saved.tau_rows is None else saved.tau_rows.unsqueeze(-1).float()

    def repeated(x: Tensor) -> Tensor:
        return x.float().repeat(ctx.repeats, 1) if ctx.repeats != 1 else x.float()

    if dtype != torch.float32:
        p = p / p.sum(-1, keepdim=True)  # it was rounded, see igr.kernels._backward
    d = p * (g - (g * p).sum(-1, keepdim=True))
    if g_log_prob is not None:
        d = d + g_log_prob.unsqueeze(-1) * (K * p - 1)
    d = d[:, :n] / tau
    if ctx.gumbel:
        if g_kl is not None:
            d = d + g_kl.unsqueeze(-1) * _categorical_gradient(repeated(saved.loc), saved.mu0, repeated)  # type: ignore[arg-type]
        return d.to(dtype), d
    ds = d * torch.ops.igr.noise(saved.seed, p.shape[0], n, False)
    if g_log_prob is not None:
        ds = ds - g_log_prob.unsqueeze(-1) / repeated(saved.scale)  # type: ignore[arg-type]
    if g_kl is not None:
        mu, sigma, mu0, sigma0 = (repeated(x) for x in (saved.loc, saved.scale, saved.mu0, saved.sigma0))  # type: ignore[arg-type]
        d = d + g_kl.unsqueeze(-1) * (mu - mu0) / sigma0.square()
        ds = ds + g_kl.unsqueeze(-1) * (sigma / sigma0.square() - 1 / sigma)
    return d.to(dtype), ds.to(dtype)


def _categorical_gradient(a: Tensor, prior: Tensor | None, repeated: Any) -> Tensor:
    log_p = a.log_softmax(-1)
    ratio = log_p if prior is None else log_p - repeated(prior).log_softmax(-1)
    ratio = torch.where(log_p > -torch.inf, ratio, 0.0)
    p = log_p.exp()
    return p * (ratio - (p * ratio).sum(-1, keepdim=True))


sample.register_autograd(_backward, setup_context=_setup)


@sample.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """One call after another: only compilers meet a vmap here, elsewhere :func:`igr.kernels.usable` says no to it."""
    calls = [
        [x if dim is None else x.select(dim, i) for x, dim in zip(arguments, in_dims, strict=True)]
        for i in range(info.batch_size)
    ]
    outputs = tuple(torch.stack(found) for found in zip(*(sample(*call) for call in calls), strict=True))
    return outputs, (0,) * len(outputs)
