r"""The planar flow of all members as Triton kernels: all its layers in one pass, and their gradients in another.

A layer is :math:`y + \hat{u} \tanh t` at :math:`t = w^\top y + b`, and its log-determinant
:math:`\log(1 + m \tanh' t)` with :math:`m = w^\top \hat{u}`. Images and samples share the parameters of a member and
variable: a program has one set of these, and a thread one row. The gradient keeps nothing but the rows that the flow
was given, maps them again, and adds up what they say of the parameters, in an order that is always the same.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment"
# ruff: noqa: RUF005
# tuples of tensors grow entry by entry in kernels, whose language has no unpacking

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from igr.kernels._normal import expm1, log1p
from igr.kernels._random import exp, reciprocal
from igr.paper.table_kernels import _read
from igr.transforms import Planar

__all__ = ["planar_flow"]

# rows of a program at once, and warps; one warp adds up numbers of its threads without waiting for others
FORWARD, BACKWARD = (128, 4), (32, 1)


@triton.jit
def _activation(y, w, t, n: tl.constexpr):
    """tanh t at t = w y + b, and its derivative 1 - tanh² t, both without cancellation."""
    for i in tl.static_range(n):
        t += w[i] * y[i]
    twice = -2.0 * tl.abs(t)
    q = exp(twice)
    per = reciprocal(1.0 + q)
    tanh = -expm1(twice) * per
    return tl.where(t < 0, -tanh, tanh), 4.0 * q * per * per


@triton.jit
def _determinant(m, tanh, slope):
    """1 + m tanh', which is a sum of positive numbers for any m > -1."""
    return tl.where(m < 0, (1.0 + m) - m * tanh * tanh, 1.0 + m * slope)


@triton.jit
def _places(owner, first, rows, E, B, N, BLOCK: tl.constexpr):
    """Where a block of the rows of one set of parameters is in ``(S, E, B, N)``, and which of them are there."""
    row = first + tl.arange(0, BLOCK)
    return ((row // B * E + owner // N) * B + row % B) * N + owner % N, row < rows


@triton.jit
def _parameters(u, w, b, m, owner, sets, n: tl.constexpr, LAYERS: tl.constexpr):
    """û, w, b and m of each layer."""
    flow = ()
    for layer in tl.static_range(LAYERS):
        at = layer * sets + owner
        flow = flow + ((_read(u, at * n, True, n), _read(w, at * n, True, n), tl.load(b + at), tl.load(m + at)),)
    return flow


@triton.jit
def _moved(x, factor, v, n: tl.constexpr):
    """x + factor v."""
    moved = ()
    for i in tl.static_range(n):
        moved = moved + (x[i] + factor * v[i],)
    return moved


@triton.jit
def _gradients(y, g, g_ladj, flow, total, n: tl.constexpr, LAYERS: tl.constexpr):
    """The gradient of y, and those of û, w, b and m of each layer added to their sums."""
    given, found = (), ()
    for layer in tl.static_range(LAYERS):
        u, w, b, m = flow[layer]
        tanh, slope = _activation(y, w, b, n)
        given = given + ((y, tanh, slope),)
        y = _moved(y, tanh, u, n)
    for layer in tl.static_range(LAYERS - 1, -1, -1):
        u, w, b, m = flow[layer]
        y, tanh, slope = given[layer]
        d_u, d_w, d_b, d_m = total[layer]
        change = g_ladj * slope / _determinant(m, tanh, slope)
        d_t = -2.0 * m * tanh * change  # as tanh'' = -2 tanh tanh'
        for i in tl.static_range(n):
            d_t += g[i] * u[i] * slope
        found = ((_moved(d_u, tanh, g, n), _moved(d_w, d_t, y, n), d_b + d_t, d_m + change),) + found
        g = _moved(g, d_t, w, n)
    return g, found


@triton.jit
def _repeated(x, n: tl.constexpr):
    values = ()
    for _ in tl.static_range(n):
        values = values + (x,)
    return values


@triton.jit
def _write(pointer, first, inside, values, n: tl.constexpr):
    for i in tl.static_range(n):
        tl.store(pointer + first + i, values[i], mask=inside)


@triton.jit(do_not_specialize=["rows", "E", "B"])
def _forward_kernel(
    y_ptr, u_ptr, w_ptr, b_ptr, m_ptr, x_ptr, ladj_ptr, rows, E, B,
    N: tl.constexpr, n: tl.constexpr, LAYERS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some rows of one set of parameters."""
    owner = tl.program_id(0).to(tl.int64)
    place, inside = _places(owner, tl.program_id(1) * BLOCK, rows, E, B, N, BLOCK)
    flow = _parameters(u_ptr, w_ptr, b_ptr, m_ptr, owner, E * N, n, LAYERS)
    y, ladj = _read(y_ptr, place * n, inside, n), tl.zeros((BLOCK,), tl.float32)
    for layer in tl.static_range(LAYERS):
        u, w, b, m = flow[layer]
        tanh, slope = _activation(y, w, b, n)
        near = log1p(m * slope)  # whose formula holds above -1 as well
        ladj += tl.where(m * slope < -0.5, tl.log(_determinant(m, tanh, slope)), near)
        y = _moved(y, tanh, u, n)
    _write(x_ptr, place * n, inside, y, n)
    tl.store(ladj_ptr + place, ladj, mask=inside)


@triton.jit(do_not_specialize=["rows", "E", "B"])
def _backward_kernel(
    y_ptr, u_ptr, w_ptr, b_ptr, m_ptr, g_ptr, g_ladj_ptr, d_y_ptr, d_u_ptr, d_w_ptr, d_b_ptr, d_m_ptr, rows, E, B,
    N: tl.constexpr, n: tl.constexpr, LAYERS: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """All rows of one set of parameters, one block after another."""
    owner = tl.program_id(0).to(tl.int64)
    flow = _parameters(u_ptr, w_ptr, b_ptr, m_ptr, owner, E * N, n, LAYERS)
    zero = tl.zeros((BLOCK,), tl.float32)
    total = _repeated((_repeated(zero, n), _repeated(zero, n), zero, zero), LAYERS)
    for step in range(STEPS):
        place, inside = _places(owner, step * BLOCK, rows, E, B, N, BLOCK)
        y, g = _read(y_ptr, place * n, inside, n), _read(g_ptr, place * n, inside, n)
        g_ladj = tl.load(g_ladj_ptr + place, mask=inside, other=0.0)
        g, total = _gradients(y, g, g_ladj, flow, total, n, LAYERS)
        _write(d_y_ptr, place * n, inside, g, n)
    for layer in tl.static_range(LAYERS):
        at = layer * E * N + owner
        d_u, d_w, d_b, d_m = total[layer]
        for i in tl.static_range(n):
            tl.store(d_u_ptr + at * n + i, tl.sum(d_u[i], 0))
            tl.store(d_w_ptr + at * n + i, tl.sum(d_w[i], 0))
        tl.store(d_b_ptr + at, tl.sum(d_b, 0))
        tl.store(d_m_ptr + at, tl.sum(d_m, 0))


@torch.library.custom_op("igr::planar", mutates_args=())
def planar(y: Tensor, u_hat: Tensor, w: Tensor, b: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """What layers ``(L, E, 1, N, n)`` make of rows, ``(S, E, B, N, n)``, and the log-determinant, all in float32."""
    S, E, B, N, n = y.shape
    inputs = [each.contiguous() for each in (y, u_hat, w, b, m)]
    x, ladj = y.new_empty(y.shape), y.new_empty(y.shape[:-1])
    if y.numel():
        block, warps = FORWARD
        with torch.cuda.device_of(y):  # launches go to the current one
            _forward_kernel[(E * N, triton.cdiv(S * B, block))](
                *inputs, x, ladj, S * B, E, B, N, n, len(w), block, num_warps=warps
            )
    return x, ladj


@planar.register_fake
def _(y: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
    return y.new_empty(y.shape), y.new_empty(y.shape[:-1])


def _like_inputs(*inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    y, u_hat, w, b, m = (each.new_empty(each.shape) for each in inputs[:5])
    return y, u_hat, w, b, m


@torch.library.custom_op("igr::planar_backward", mutates_args=())
def planar_backward(
    y: Tensor, u_hat: Tensor, w: Tensor, b: Tensor, m: Tensor, g: Tensor, g_ladj: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of what :func:`planar` is given, from those of what it gives."""
    S, E, B, N, n = y.shape
    inputs = [each.contiguous() for each in (y, u_hat, w, b, m, g, g_ladj)]
    found = _like_inputs(*inputs)
    block, warps = BACKWARD
    with torch.cuda.device_of(y):  # launches go to the current one
        _backward_kernel[(E * N,)](
            *inputs, *found, S * B, E, B, N, n, len(w), triton.cdiv(S * B, block), block, num_warps=warps
        )
    return found


planar_backward.register_fake(_like_inputs)


def _setup(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, g: Tensor, g_ladj: Tensor) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = planar_backward(*ctx.saved_tensors, g, g_ladj)
    return found


planar.register_autograd(_backward, setup_context=_setup)


def planar_flow(y: Tensor, u: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """y after L planar maps, ``(S, E, B, N, n)``, and the sum of their log-determinants, ``(S, E, B, N)``.

    Gradients cannot be differentiated again.

    Arguments:
        y: what the first map is given, ``(S, E, B, N, n)``.
        u: of each map, as :class:`igr.transforms.Planar` has it, ``(L, E, 1, N, n)``.
        w: likewise.
        b: likewise, ``(L, E, 1, N)``.

    Raises:
        ValueError: shapes or dtypes are others than that, in float32.
    """
    shape = (len(w), y.shape[1], 1, *y.shape[3:])
    given = [(tuple(each.shape), each.dtype) for each in (u, w, b)]
    if given != [(size, torch.float32) for size in (shape, shape, shape[:-1])] or y.dtype != torch.float32:
        raise ValueError(f"expected float32 u, w and b that fit y, {shape} and {shape[:-1]}, got {given}, y {y.dtype}")
    u_hat, m = Planar(u, w, b, validate_args=False).constrained()
    x, ladj = planar(y, u_hat, w, b, m)
    return x, ladj
