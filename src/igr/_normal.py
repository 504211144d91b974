"""The standard normal distribution function and what is made of it, right in the far tails in every precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from igr._checks import interpreters, transformed

MILLS = math.sqrt(2 / math.pi)


def ndtr(x: Tensor) -> Tensor:
    r""":math:`\Phi(x)`."""
    complement: Tensor = torch.special.erfc(-x / math.sqrt(2))
    return 0.5 * complement


def pdf(y: Tensor, mu: Tensor, sigma: Tensor) -> Tensor:
    r"""The density of :math:`N(\mu, \sigma^2)` at y."""
    return torch.exp(-0.5 * ((y - mu) / sigma).square()) / (math.sqrt(2 * math.pi) * sigma)


def log_ndtr(x: Tensor) -> Tensor:
    r""":math:`\log \Phi(x)`, with a gradient that is right in the far tail in every precision."""
    value: Tensor = (_LogNdtrForwards if transformed() else _LogNdtr).apply(x)  # type: ignore[no-untyped-call]
    return value


def inverse_mills(x: Tensor) -> Tensor:
    r""":math:`\phi(x) / \Phi(x)`, the derivative of :math:`\log \Phi`."""
    ratio: Tensor = (_InverseMillsForwards if transformed() else _InverseMills).apply(x)  # type: ignore[no-untyped-call]
    return ratio


class _OfOneTensor(torch.autograd.Function):
    """Entry by entry; the gradient needs what was given."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Any) -> None:
        ctx.save_for_backward(*inputs)


class Forwards(torch.autograd.Function):
    """A function with derivatives of forward mode too, in a class of its own, since compilers refuse such a one."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)


def once(jvp: Callable[..., Any]) -> Callable[..., Any]:
    """Refuses to be differentiated forwards again: torch takes what a custom jvp returns for a constant there."""

    def checked(ctx: Any, *tangents: Tensor) -> Any:
        if interpreters().count("Jvp") > 1:
            raise NotImplementedError(
                "a forward-mode derivative of a forward-mode derivative, which torch would take for zero here; use "
                "torch.func.hessian, or jacrev for one of the two"
            )
        return jvp(ctx, *tangents)

    return checked


class _InverseMills(_OfOneTensor):
    """erfcx overflows above about 13 in float32, where its derivative would be infinite and this one is zero."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        ratio: Tensor = MILLS / torch.special.erfcx(-x / math.sqrt(2))
        return ratio

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        slope: Tensor = -inverse_mills(x) * (tail(x)[1] + x.clamp(min=0.0))  # the last is φ/Φ + x
        return gradient * slope


class _InverseMillsForwards(Forwards, _InverseMills):
    jvp = staticmethod(once(_InverseMills.backward))


class _LogNdtr(_OfOneTensor):
    """torch's own has no rule for vmap, and in float32 a gradient that is wrong below about -1000."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        value: Tensor = torch.special.log_ndtr(x)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * inverse_mills(x)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None], x: Tensor) -> tuple[Tensor, int | None]:
        return log_ndtr(x), in_dims[0]  # entry by entry, whichever axis is mapped over


class _LogNdtrForwards(Forwards, _LogNdtr):
    jvp = staticmethod(once(_LogNdtr.backward))


def tail(z: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`q(z) = \log \Phi(z) + \min(z, 0)^2 / 2` and :math:`q'(z)`, accurate and without overflow at any z."""
    pair: tuple[Tensor, Tensor] = (_TailForwards if transformed() else _Tail).apply(z)  # type: ignore[no-untyped-call]
    return pair


class _Tail(_OfOneTensor):
    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor) -> tuple[Tensor, Tensor]:
        scaled = torch.special.erfcx(z.abs() / math.sqrt(2))
        density = (-0.5 * z.square()).exp()
        q = torch.where(z < 0, 0.5 * scaled, 1 - 0.5 * scaled * density).log()
        # below -far, z + φ/Φ would cancel; its expansion has a relative error of 706 / far^8
        far = 12.0 if z.dtype == torch.float32 else 100.0
        x = -1 / z.clamp(max=-far)
        square = x.square()
        left = torch.where(z < -far, x * (1 - square * (2 - square * (10 - 74 * square))), z + MILLS / scaled)
        return q, torch.where(z < 0, left, MILLS * density / (2 - scaled * density))

    @staticmethod
    def backward(ctx: Any, d_q: Tensor, d_e: Tensor) -> Tensor:
        slope, bend = _tail_slopes(*ctx.saved_tensors)
        return d_q * slope + d_e * bend


class _TailForwards(Forwards, _Tail):
    @staticmethod
    @once
    def jvp(ctx: Any, d_z: Tensor) -> tuple[Tensor, Tensor]:
        slope, bend = _tail_slopes(*ctx.saved_tensors)
        return d_z * slope, d_z * bend


def _tail_slopes(z: Tensor) -> tuple[Tensor, Tensor]:
    """q'(z) and q''(z)."""
    e = tail(z)[1]
    return e, (z < 0).to(z.dtype) - (e - z.clamp(max=0.0)) * (e + z.clamp(min=0.0))


def standardised(distance: Tensor, sigma: Tensor) -> Tensor:
    """A distance in units of σ, but not so far out that sums of its squares would overflow."""
    far = math.sqrt(torch.finfo(sigma.dtype).max) / 1024
    return (distance / sigma).clamp(-far, far)


@torch.no_grad()
def low_quantile_of_maximum(mu: Tensor, sigma: Tensor, log_level: float) -> tuple[Tensor, Tensor]:
    r"""Where :math:`\prod_j \Phi((t - \mu_j) / \sigma_j)` is ``exp(log_level)``, or a little less: (*, n) to (*, 1).

    It is the sum of what is returned, one of the locations and a distance from it: where that location's scale is below
    the spacing of floating-point numbers at t, the sum would lose the distance.
    """
    root = math.sqrt(-log_level)
    anchor = (mu - math.sqrt(2) * root * sigma).argmax(-1, keepdim=True)
    loc, t = mu.gather(-1, anchor), -math.sqrt(2) * root * sigma.gather(-1, anchor)
    gap = loc - mu
    for _ in range(8):  # Newton on sqrt(-log F), monotone from the left
        z = standardised(gap + t, sigma)
        rho = (-log_ndtr(z).sum(-1, keepdim=True)).clamp(min=0.0).sqrt()
        rate = (inverse_mills(z) / sigma).sum(-1, keepdim=True)
        t = t + torch.where(rho > root, (rho - root) * 2 * rho / rate, 0.0)
    return loc, t
