r"""Proposition 2 in one pass over the parameters: the probabilities of IGR-I, and their gradient.

With :math:`F = \prod_j \Phi(z_j)` and :math:`z_j = (t - \mu_j) / \sigma_j` the integrals are those of
:math:`F \phi(z_k) / \Phi(z_k)`. From the start of the window on, F is at least about 1e-19, so that in
float32 products do instead of sums of logarithms. The other factor may underflow; it is :math:`e^{-z_k^2 / 2}` for
positive :math:`z_k`, and is taken relative to its value at the first node, where it is largest. The exponent of that is
a product, :math:`(z - z_1)(z + z_1) / 2`: a difference of squares would be that of their roundings, which is hundreds
where :math:`z_1` is 1e5, and not zero at the first node if a compiler fuses one of them with the subtraction.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from igr.kernels._normal import ROOT, expm1, factors, log1p, log_ndtr
from igr.kernels._random import INTERPRETED, exp, reciprocal

ROOT_OF_LEVEL = tl.constexpr(42.0**0.5)  # the window starts where F is exp(-42)
ROOT_OF_TWO_LEVELS = tl.constexpr(84.0**0.5)
LEAST = tl.constexpr(1e-37)  # in place of a rate of zero, and of widths that underflow
LARGE = tl.constexpr(2.0**120)  # scales beyond this are in a unit of their own
LARGE_UNIT = tl.constexpr(2.0**-30)
FAR = tl.constexpr(1e18)  # in place of what is farther out: sums of its squares do not overflow


def blocks(num_columns: int) -> dict[str, int]:
    """Sizes of the blocks: a thread has 16 entries at most, and up to 16 columns it has all of a row."""
    columns = max(2, triton.next_power_of_2(num_columns))
    if columns <= 16:
        return {"COLUMNS": columns, "ROWS": 128, "num_warps": 4}
    return {"COLUMNS": columns, "ROWS": 512 // columns, "num_warps": 1}


@torch.library.custom_op("igr::recovered_log_probs", mutates_args=())
def recovered_log_probs(mu: Tensor, sigma: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The log-probabilities, (B, K), and for the gradient the sums of the rule, (B, K-1), and the windows, (B, 4).

    Arguments:
        mu: (B, K-1), float32, where K - 1 is between 2 and :data:`igr.kernels.MOST_COLUMNS`.
        sigma: likewise.
        x: nodes of the rule on [0, 1], ascending.
        w: their weights.
    """
    (rows, columns), block = mu.shape, blocks(mu.shape[1])
    log_p, sums, window = mu.new_empty(rows, columns + 1), mu.new_empty(rows, columns), mu.new_empty(rows, 4)
    if rows:
        grid = (triton.cdiv(rows, block["ROWS"]),)
        inputs = mu.contiguous(), sigma.contiguous(), x, w
        sizes = {"WIDTH": columns, "NODES": len(x), "LOGS": INTERPRETED, **block}
        with torch.cuda.device_of(mu):  # launches go to the current one
            _forward[grid](*inputs, log_p, sums, window, rows, 1, **sizes)
    return log_p, sums, window


@recovered_log_probs.register_fake
def _(mu: Tensor, sigma: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = mu.shape
    return mu.new_empty(rows, columns + 1), mu.new_empty(rows, columns), mu.new_empty(rows, 4)


@torch.library.custom_op("igr::recovered_log_probs_backward", mutates_args=())
def recovered_log_probs_backward(
    gradient: Tensor, mu: Tensor, sigma: Tensor, x: Tensor, w: Tensor, log_p: Tensor, sums: Tensor, window: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients in μ and σ, (*, B, K-1), of what has these gradients, (*, B, K), in the log-probabilities."""
    (rows, columns), block = mu.shape, blocks(mu.shape[1])
    d_mu = gradient.new_empty(*gradient.shape[:-1], columns)
    d_sigma = torch.empty_like(d_mu)
    samples = gradient.shape[:-2].numel()
    if d_mu.numel():
        inputs = gradient.contiguous(), mu.contiguous(), sigma.contiguous(), x, w, log_p, sums, window
        grid = (triton.cdiv(rows, block["ROWS"]) * samples,)
        sizes = {"WIDTH": columns, "NODES": len(x), "LOGS": INTERPRETED, **block}
        with torch.cuda.device_of(mu):
            _backward[grid](*inputs, d_mu, d_sigma, rows, 1, **sizes)
    return d_mu, d_sigma


@recovered_log_probs_backward.register_fake
def _(
    gradient: Tensor, mu: Tensor, sigma: Tensor, x: Tensor, w: Tensor, log_p: Tensor, sums: Tensor, window: Tensor
) -> tuple[Tensor, Tensor]:
    shape = (*gradient.shape[:-1], mu.shape[1])
    return gradient.new_empty(shape), gradient.new_empty(shape)


@recovered_log_probs_backward.register_vmap
def _(
    info: object, in_dims: tuple[int | None, ...], gradient: Tensor, *saved: Tensor
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    """Many gradients of one result, by one launch."""
    first, *others = in_dims
    if first is None or any(dim is not None for dim in others):
        raise NotImplementedError(
            "the kernel maps over gradients only, got parameters that are mapped over; use igr.kernels.disabled()"
        )
    return recovered_log_probs_backward(gradient.movedim(first, 0), *saved), (0, 0)


@triton.jit
def _times(a, b):
    return a * b


@triton.jit
def _product(c, LOGS: tl.constexpr):
    """Over the columns; by logarithms for the interpreter, which would multiply entry by entry."""
    if LOGS:
        return tl.exp(tl.sum(tl.log(c), axis=1, keep_dims=True))
    return tl.reduce(c, 1, _times, keep_dims=True)


@triton.jit
def _standard(start, per):
    """z; NaN stays NaN."""
    return tl.clamp(start * per, -FAR, FAR, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _unit(sigma):
    """What μ and σ are multiplied by, so that multiples of the largest scale of a row are finite, (ROWS, 1)."""
    return tl.where(tl.max(sigma, axis=1, keep_dims=True) > LARGE, LARGE_UNIT, 1.0)


@triton.jit
def _log_f_and_rate(z, per, valid):
    """log F and its derivative in t, each (ROWS, 1)."""
    c, e = factors(z)
    negative = tl.minimum(z, 0.0)
    log_f = tl.sum(tl.where(valid, tl.log(c) - 0.5 * negative * negative, 0.0), axis=1, keep_dims=True)
    return log_f, tl.sum(tl.where(valid, e * ROOT / c * per, 0.0), axis=1, keep_dims=True)


@triton.jit
def _start(mu, loc, t):
    """t0 - μ, where t0 is t beyond ``loc``, but not negative: a sum of those would lose the digits of narrow scales."""
    return tl.where(t <= -loc, -mu, loc - mu + t)


@triton.jit
def _window(mu, sigma, per, column, valid):
    """Where the integrands live, as in :mod:`igr.recovery`: the anchor, the distance of the start t0 from it, the width
    and the scale a, each (ROWS, 1), and t0 - μ."""
    low = tl.where(valid, mu - sigma * ROOT_OF_TWO_LEVELS, float("-inf"))
    anchor = column == tl.argmax(low, axis=1, keep_dims=True)
    loc = tl.sum(tl.where(anchor, mu, 0.0), axis=1, keep_dims=True)
    t = -ROOT_OF_TWO_LEVELS * tl.sum(tl.where(anchor, sigma, 0.0), axis=1, keep_dims=True)
    gap = loc - mu
    for _ in range(8):  # Newton on sqrt(-log F), monotone from the left
        log_f, rate = _log_f_and_rate(_standard(gap + t, per), per, valid)
        rho = tl.sqrt(tl.maximum(-log_f, 0.0))
        t += tl.where(rho > ROOT_OF_LEVEL, (rho - ROOT_OF_LEVEL) * 2.0 * rho / tl.maximum(rate, LEAST), 0.0)
    t = tl.maximum(t, -loc)
    start = _start(mu, loc, t)
    z = _standard(start, per)
    log_f, rate = _log_f_and_rate(z, per, valid)
    positive, negative = tl.maximum(z, 0.0), tl.minimum(z, 0.0)
    least = tl.min(tl.where(valid, z, float("inf")), axis=1, keep_dims=True)
    reach = 40.0 / (tl.sqrt(positive * positive + 40.0) + positive) - negative
    within = valid & (z <= tl.maximum(least + 0.5, 8.5))
    width = tl.maximum(tl.max(tl.where(within, sigma * reach, 0.0), axis=1, keep_dims=True), LEAST)
    matters = valid & ((log_f + log_ndtr(-z) > -33.0) | (z == least))
    finest = tl.min(tl.where(matters, sigma / tl.maximum(z, 1.0), float("inf")), axis=1, keep_dims=True)
    a = 32.0 * tl.minimum(tl.minimum(1.0 / tl.maximum(rate, LEAST), width), finest)
    return loc, t, start, width, tl.maximum(a, LEAST)


@triton.jit
def _at_node(x, start, a, span, per):
    """exp(y) - 1 and z at a node: t - μ is ``start``, exact for narrow coordinates that are near t0, and the rest."""
    growth = expm1(span * x)
    return growth, _standard(start + a * growth, per)


@triton.jit
def _cdf_and_rest(z, positive_first, step, valid, LOGS: tl.constexpr):
    """F, (ROWS, 1), and φ(z) / Φ(z), but for a constant, as it is and relative to the first node, ``step`` before z."""
    c, e = factors(z)
    positive, negative = tl.maximum(z, 0.0), tl.minimum(z, 0.0)
    fall = tl.sum(tl.where(valid, negative * negative, 0.0), axis=1, keep_dims=True)
    F = exp(-0.5 * fall) * _product(tl.where(valid, c, 1.0), LOGS)
    per_c = reciprocal(c)
    gap = tl.minimum(step, positive)  # from the first node on, or from zero
    return F, e * per_c, exp(-0.5 * gap * (positive + positive_first)) * per_c


@triton.jit
def _normaliser(log_mass, last, valid):
    """The largest of the logarithms, and that of the sum relative to it: exact as all others tend to zero.

    The largest is NaN if one of them is.
    """
    spoilt = tl.max((valid & (log_mass != log_mass)).to(tl.int32), axis=1, keep_dims=True) > 0
    log_mass = tl.where(valid, log_mass, float("-inf"))
    top = tl.maximum(tl.max(log_mass, axis=1, keep_dims=True), last)
    others = tl.sum(tl.where(log_mass < top, tl.exp(log_mass - top), 0.0), axis=1, keep_dims=True)
    others += tl.where(last < top, tl.exp(last - top), 0.0)
    as_large = tl.sum((log_mass == top).to(tl.float32), axis=1, keep_dims=True) + (last == top).to(tl.float32)
    top = tl.where(spoilt | (last != last), float("nan"), top)
    return top, log1p(others + (tl.maximum(as_large, 1.0) - 1.0))


# ``step`` is one. Where the compiler knows that, it lays the columns of a row out over the lanes of a warp, for the
# sake of loads and stores, and every sum over columns takes shuffles; not knowing it, it gives each lane a row.


@triton.jit(do_not_specialize=["rows", "step"])
def _forward(
    mu_ptr, sigma_ptr, x_ptr, w_ptr, log_p_ptr, sums_ptr, window_ptr, rows, step,
    WIDTH: tl.constexpr, NODES: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, LOGS: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, COLUMNS)[None, :]
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    valid, inside = column < WIDTH, row < rows
    at, row_at = row * WIDTH + column * step, row * (WIDTH + 1)
    mu = tl.load(mu_ptr + at, mask=valid & inside, other=0.0)
    sigma = tl.load(sigma_ptr + at, mask=valid & inside, other=1.0)
    unit = _unit(sigma)
    mu, sigma = unit * mu, unit * sigma
    per = tl.div_rn(1.0, sigma)  # an error of z is one of z² times as much in the logarithm of a small probability
    per = tl.where(sigma > 0, per, float("nan"))  # no scale, no probabilities: nobody looks at values on a device
    loc, t, start, width, a = _window(mu, sigma, per, column, valid)
    span = log1p(width / a)
    growth_first, z_first = _at_node(tl.load(x_ptr), start, a, span, per)
    first = tl.maximum(z_first, 0.0)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for q in range(NODES):
        growth, z = _at_node(tl.load(x_ptr + q), start, a, span, per)
        F, _mills, rest = _cdf_and_rest(z, first, a * (growth - growth_first) * per, valid, LOGS)
        sums += tl.load(w_ptr + q) * (1.0 + growth) * F * rest
    log_mass = tl.log(sums) + tl.log(a * span * ROOT * per) - 0.5 * first * first
    last = tl.sum(tl.where(valid, log_ndtr(_standard(-mu, per)), 0.0), axis=1, keep_dims=True)
    top, log_total = _normaliser(log_mass, last, valid)
    tl.store(log_p_ptr + row_at + column * step, log_mass - top - log_total, mask=valid & inside)
    tl.store(log_p_ptr + row_at + WIDTH, last - top - log_total, mask=inside)
    tl.store(sums_ptr + at, sums, mask=valid & inside)
    tl.store(window_ptr + row * 4, loc, mask=inside)
    tl.store(window_ptr + row * 4 + 1, t, mask=inside)
    tl.store(window_ptr + row * 4 + 2, a, mask=inside)
    tl.store(window_ptr + row * 4 + 3, span, mask=inside)


@triton.jit(do_not_specialize=["rows", "step"])
def _backward(
    gradient_ptr, mu_ptr, sigma_ptr, x_ptr, w_ptr, log_p_ptr, sums_ptr, window_ptr, d_mu_ptr, d_sigma_ptr, rows, step,
    WIDTH: tl.constexpr, NODES: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, LOGS: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, COLUMNS)[None, :]
    tiles = tl.cdiv(rows, ROWS)
    row = (tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    sample = (tl.program_id(0) // tiles).to(tl.int64) * rows
    valid, inside = column < WIDTH, row < rows
    at, row_at = row * WIDTH + column * step, row * (WIDTH + 1)
    mu = tl.load(mu_ptr + at, mask=valid & inside, other=0.0)
    sigma = tl.load(sigma_ptr + at, mask=valid & inside, other=1.0)
    unit = _unit(sigma)
    mu, per = unit * mu, tl.div_rn(1.0, unit * sigma)
    loc = tl.load(window_ptr + row * 4, mask=inside, other=0.0)
    start = _start(mu, loc, tl.load(window_ptr + row * 4 + 1, mask=inside, other=0.0))
    a = tl.load(window_ptr + row * 4 + 2, mask=inside, other=1.0)
    span = tl.load(window_ptr + row * 4 + 3, mask=inside, other=1.0)
    p = tl.exp(tl.load(log_p_ptr + row_at + column * step, mask=valid & inside, other=float("-inf")))
    p_last = tl.exp(tl.load(log_p_ptr + row_at + WIDTH, mask=inside, other=float("-inf")))
    gradient_ptr += sample * (WIDTH + 1)
    g = tl.load(gradient_ptr + row_at + column * step, mask=valid & inside, other=0.0)
    g_last = tl.load(gradient_ptr + row_at + WIDTH, mask=inside, other=0.0)
    total = tl.sum(g, axis=1, keep_dims=True) + g_last  # 1 - p may lose digits: what it is multiplied by is as small
    g = (g - total * p) / tl.load(sums_ptr + at, mask=valid & inside, other=1.0)
    g_last = g_last - total * p_last
    growth_first, z_first = _at_node(tl.load(x_ptr), start, a, span, per)
    first = tl.maximum(z_first, 0.0)
    d_mu, d_sigma = tl.zeros([ROWS, COLUMNS], tl.float32), tl.zeros([ROWS, COLUMNS], tl.float32)
    for q in range(NODES):
        growth, z = _at_node(tl.load(x_ptr + q), start, a, span, per)
        F, mills, rest = _cdf_and_rest(z, first, a * (growth - growth_first) * per, valid, LOGS)
        weights = g * (tl.load(w_ptr + q) * (1.0 + growth) * F * rest)
        mills = mills * ROOT
        d_z = weights * (z + mills) - mills * tl.sum(tl.where(valid, weights, 0.0), axis=1, keep_dims=True)
        d_mu += d_z
        d_sigma += z * d_z - weights
    z = _standard(-mu, per)
    c, e = factors(z)
    beyond = g_last * (e * ROOT / c)  # what P(H = K) contributes
    per = per * unit
    tl.store(d_mu_ptr + sample * WIDTH + at, (d_mu - beyond) * per, mask=valid & inside)
    tl.store(d_sigma_ptr + sample * WIDTH + at, (d_sigma - beyond * z) * per, mask=valid & inside)
