r"""The backward kernel: from the relaxed point and its gradient to those of the parameters, the noise drawn once more.

With :math:`g` the gradient of the point :math:`p`, and :math:`g_q` and :math:`g_{KL}` those of its log-density and of
the divergence, the gradient of a score is

.. math:: \frac{1}{\tau} \bigl( p_k (g_k - \sum_j g_j p_j) + g_q (K p_k - 1) \bigr),

that of :math:`\mu` or :math:`\log \alpha`. That of :math:`\sigma` is :math:`\epsilon` times it, less
:math:`g_q / \sigma_k`, and the divergence adds to both.

A point that was rounded to 16 bits does not sum to one any more, and what all :math:`g_k` have in common would be left
over, times what is missing: such points are divided by their sum first.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

from igr.kernels._forward import read_rows, read_tile, rows_here
from igr.kernels._random import GAUSSIAN, exp, noise, reciprocal


@triton.jit
def write_gradients(
    d_loc, d_scale, p, g, dot, loc, scale, key, mu0, sigma0, stats, g_log_prob, g_kl, inverse,
    first, row, origin, source, start, inside,
    loc_row: tl.constexpr, loc_column: tl.constexpr, scale_row: tl.constexpr, scale_column: tl.constexpr,
    m_row: tl.constexpr, m_column: tl.constexpr, s_row: tl.constexpr, s_column: tl.constexpr,
    n: tl.constexpr, K: tl.constexpr, stream, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradients of some columns, given Σ g p of the row."""
    column = start + tl.arange(0, BLOCK)[None, :]
    drawn = inside & (column < n)
    d = p * (g - dot)
    if g_log_prob is not None:
        g_q = tl.load(g_log_prob + first + row, mask=inside, other=0.0).to(tl.float32)
        d += g_q * (K * p - 1.0)
    d = d * inverse
    along = d
    if g_kl is not None:
        g_d = tl.load(g_kl + first + row, mask=inside, other=0.0).to(tl.float32)
        mu = read_tile(loc, origin, source, column, loc_row, loc_column, drawn, 0.0)
        if stats is not None:  # the categorical divergence: p_k (a_k - b_k - mean)
            ratio = mu - tl.load(stats + 2 * first + 2 * row + 1, mask=inside, other=0.0)
            if mu0 is not None:
                ratio -= read_tile(mu0, origin, source, column, m_row, m_column, drawn, 0.0)
            weight = exp(mu - tl.load(stats + 2 * first + 2 * row, mask=inside, other=0.0))
            d += g_d * tl.where(weight > 0, weight * ratio, 0.0)
        else:
            shift = mu - read_tile(mu0, origin, source, column, m_row, m_column, drawn, 0.0)
            deviation = read_tile(sigma0, origin, source, column, s_row, s_column, drawn, 1.0)
            d += g_d * shift / (deviation * deviation)
    place = row * n + column
    if d_loc is not None:
        tl.store(d_loc + first * n + place, d, mask=drawn)
    if d_scale is not None:
        ds = along * noise(key, first, row, start, stream, GAUSSIAN, BLOCK)
        if g_log_prob is not None or g_kl is not None:
            sigma = read_tile(scale, origin, source, column, scale_row, scale_column, drawn, 1.0)
            if g_log_prob is not None:
                ds -= g_q / sigma
            if g_kl is not None:
                ds += g_d * (sigma / (deviation * deviation) - 1.0 / sigma)
        tl.store(d_scale + first * n + place, ds, mask=drawn)


@triton.jit
def backward_rows(
    d_loc, d_scale, p, g, loc, scale, seed, tau_rows, mu0, sigma0, stats, g_log_prob, g_kl,
    g_row: tl.constexpr, g_column: tl.constexpr, loc_row: tl.constexpr, loc_column: tl.constexpr,
    scale_row: tl.constexpr, scale_column: tl.constexpr, m_row: tl.constexpr, m_column: tl.constexpr,
    s_row: tl.constexpr, s_column: tl.constexpr, tau, rows, period, stream, n: tl.constexpr, K: tl.constexpr,
    REPEATS: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Whole rows, one tile of them for each program."""
    first, row, inside = rows_here(rows, EVEN, ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    kept = inside & (column < K)
    source, origin = row, first
    if REPEATS:
        source, origin = (first + row) % period, 0
    inverse = reciprocal(read_rows(tau_rows, tau, first, row, inside))
    point = read_tile(p, first, row, column, K, 1, kept, 0.0)
    gradient = read_tile(g, first, row, column, g_row, g_column, kept, 0.0)
    if p.dtype.element_ty.primitive_bitwidth < 32:
        point = point * reciprocal(tl.sum(point, 1)[:, None])
    dot = tl.sum(point * gradient, 1)[:, None]
    write_gradients(
        d_loc, d_scale, point, gradient, dot, loc, scale, tl.load(seed), mu0, sigma0, stats, g_log_prob, g_kl, inverse,
        first, row, origin, source, 0, inside,
        loc_row, loc_column, scale_row, scale_column, m_row, m_column, s_row, s_column, n, K, stream, BLOCK,
    )  # fmt: skip
