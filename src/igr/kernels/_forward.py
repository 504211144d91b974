r"""The forward kernel: parameters to points of the simplex, in one pass over memory.

A row has K categories. Its scores are :math:`y = \mu + \sigma \epsilon` in the first K-1 columns and
:math:`\tau \log \delta` in the last one (Gaussian), or :math:`\log \alpha + \epsilon` in all K (Gumbel, where ``scale``
is None), and the point is :math:`\mathrm{softmax}(y / \tau)`: differences come before the division, which keeps their
accuracy. All is float32 inside. A tensor that is None leaves out what it is for; one that has been left out costs
nothing. Parameters of fewer rows than the sample are read again and again: row i of the sample has row i % period.

NaN and infinities go the way they go in PyTorch's softmax: a row with a NaN or with +inf is NaN as a whole, -inf has
probability zero, and a row without any allowed category is NaN.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

from igr.kernels._random import GAUSSIAN, GUMBEL, exp, exp_times, log, noise, reciprocal


@triton.jit
def rows_here(rows, EVEN: tl.constexpr, ROWS: tl.constexpr):
    """The first row of this program, in 64 bits, where its rows are from there, and which of them there are."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    local = tl.arange(0, ROWS)[:, None]
    if EVEN:
        return first, local, tl.full((ROWS, 1), 1, tl.int1)
    else:
        return first, local, first + local < rows


@triton.jit
def read_rows(pointer, number, first, row, inside):
    """A number, or one value per row (R, 1) where there is a tensor of them."""
    if pointer is not None:
        return tl.load(pointer + first + row, mask=inside, other=1.0).to(tl.float32)
    else:
        return tl.zeros((1, 1), tl.float32) + number


@triton.jit
def read_tile(
    pointer, first, row, column, row_stride: tl.constexpr, column_stride: tl.constexpr, inside, other: tl.constexpr
):  # fmt: skip
    """Entries as float32; the first row's address takes 64 bits, distances from it 32."""
    place = (pointer + first * row_stride) + (row * row_stride + column * column_stride)
    return tl.load(place, mask=inside, other=other).to(tl.float32)


@triton.jit
def last_score(delta_rows, log_delta, tau, first, row, inside):
    """τ log δ, the score of the K-th category."""
    if delta_rows is not None:
        return tau * log(tl.load(delta_rows + first + row, mask=inside, other=1.0).to(tl.float32))
    else:
        return tau * log_delta


@triton.jit
def exp_remainder(x):
    """e^x - 1 - x, by its series near zero."""
    series = 0.5 * x * x * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6 * (1 + x / 7 * (1 + x / 8))))))
    return tl.where(tl.abs(x) < 0.5, series, exp(x) - 1 - x)


@triton.jit
def gaussian_kl(mu, sigma, mu0, sigma0, origin, row, column, m_row: tl.constexpr, m_column: tl.constexpr,
                s_row: tl.constexpr, s_column: tl.constexpr, inside):  # fmt: skip
    """Equation 13 for each coordinate."""
    mean = read_tile(mu0, origin, row, column, m_row, m_column, inside, 0.0)
    deviation = read_tile(sigma0, origin, row, column, s_row, s_column, inside, 1.0)
    shift = (mu - mean) / deviation
    return 0.5 * (exp_remainder(2 * log(sigma / deviation)) + shift * shift)


@triton.jit
def rounding_error(total, a, b):
    """What was lost when a + b was rounded to ``total``, exactly (Knuth)."""
    part = total - a
    error = (a - (total - part)) + (b - part)
    return tl.where(total == float("-inf"), 0.0, error)  # what is forbidden stays so


@triton.jit
def draw_tile(loc, scale, seed, first, row, origin, source, start, inside, n: tl.constexpr, loc_row: tl.constexpr,
              loc_column: tl.constexpr, scale_row: tl.constexpr, scale_column: tl.constexpr, stream,
              BLOCK: tl.constexpr):  # fmt: skip
    """μ, σ, ε and y of some columns."""
    column = start + tl.arange(0, BLOCK)[None, :]
    drawn = inside & (column < n)
    mu = read_tile(loc, origin, source, column, loc_row, loc_column, drawn, 0.0)
    if scale is None:
        eps = noise(seed, first, row, start, stream, GUMBEL, BLOCK)
        return mu, 1.0, eps, mu + eps
    else:
        eps = noise(seed, first, row, start, stream, GAUSSIAN, BLOCK)
        sigma = read_tile(scale, origin, source, column, scale_row, scale_column, drawn, 1.0)
        return mu, sigma, eps, tl.fma(sigma, eps, mu)


@triton.jit
def complete(y, last, mask, first, row, column, mask_row: tl.constexpr, mask_column: tl.constexpr,
             n: tl.constexpr, K: tl.constexpr, inside):  # fmt: skip
    """The scores of all K categories: the K-th has its own, what is forbidden or beyond has -inf."""
    y = tl.where(column < n, y, tl.where(column < K, last, float("-inf")))
    if mask is not None:
        place = (mask + first * mask_row) + row * mask_row + column * mask_column
        allowed = tl.load(place, mask=inside & (column < K), other=1)
        y = tl.where(allowed != 0, y, float("-inf"))
    return y


@triton.jit
def write_point(z, soft, p, best, first, row, column, kept, HARD: tl.constexpr, K: tl.constexpr):
    """The point, or with ``HARD`` the vertex in column ``best``, and the point behind it if that is to be kept."""
    place = row * K + column
    if HARD:
        tl.store(z + first * K + place, tl.where(column == best, 1.0, 0.0) + (p - p), mask=kept)
        if soft is not None:
            tl.store(soft + first * K + place, p, mask=kept)
    else:
        tl.store(z + first * K + place, p, mask=kept)


@triton.jit
def forward_rows(
    z, soft, log_prob, kl, stats, loc, scale, seed, tau_rows, delta_rows, mask, mu0, sigma0,
    loc_row: tl.constexpr, loc_column: tl.constexpr, scale_row: tl.constexpr, scale_column: tl.constexpr,
    m_row: tl.constexpr, m_column: tl.constexpr, s_row: tl.constexpr, s_column: tl.constexpr,
    mask_row: tl.constexpr, mask_column: tl.constexpr, tau, log_delta, constant, rows, period, stream,
    n: tl.constexpr, K: tl.constexpr,
    REPEATS: tl.constexpr, HARD: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Whole rows, one tile of them for each program."""
    first, row, inside = rows_here(rows, EVEN, ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    source, origin = row, first
    if REPEATS:
        source, origin = (first + row) % period, 0
    key = tl.load(seed)
    t = read_rows(tau_rows, tau, first, row, inside)
    mu, sigma, eps, y = draw_tile(
        loc, scale, key, first, row, origin, source, 0, inside,
        n, loc_row, loc_column, scale_row, scale_column, stream, BLOCK,
    )  # fmt: skip
    total = y
    last = last_score(delta_rows, log_delta, t, first, row, inside)
    y = complete(y, last, mask, first, row, column, mask_row, mask_column, n, K, inside)
    below = y - tl.max(y, 1)[:, None]
    if scale is None and log_prob is not None:
        below += rounding_error(total, mu, eps)  # near-ties of large sums keep their accuracy
    inverse = reciprocal(t)
    p = exp_times(below, inverse)
    mass = tl.sum(p, 1)[:, None]
    p = p * reciprocal(mass)
    kept = inside & (column < K)
    best = row
    if HARD:
        # the threshold is zero, whatever δ is
        score = complete(total, 0.0, mask, first, row, column, mask_row, mask_column, n, K, inside)
        best = tl.argmax(score, 1)[:, None]
    write_point(z, soft, p, best, first, row, column, kept, HARD, K)
    drawn = column < n
    if log_prob is not None:
        x = tl.where(column < K, below * inverse, 0.0)
        _density_rows(log_prob, x, eps, sigma, mass, t, constant, first, row, drawn, inside, K, scale is None)
    if kl is not None:
        if scale is None:
            _categorical_rows(kl, stats, mu, mu0, first, row, origin, source, column, m_row, m_column, inside, K)
        else:
            part = gaussian_kl(
                mu, sigma, mu0, sigma0, origin, source, column, m_row, m_column, s_row, s_column, inside & drawn
            )
            tl.store(kl + first + row, tl.sum(tl.where(drawn, part, 0.0), 1)[:, None], mask=inside)


@triton.jit
def _density_rows(
    log_prob, x, eps, sigma, mass, tau, constant, first, row, drawn, inside, K: tl.constexpr, gumbel: tl.constexpr
):  # fmt: skip
    """Equation 6, or the density of the softmax++, by the noise of the sample and the powers x of its entries."""
    log_z = tl.sum(x, 1)[:, None] - K * log(mass)
    if gumbel:
        energy = tl.sum(tl.where(drawn, eps, 0.0), 1)[:, None]
        energy += K * log(tl.sum(tl.where(drawn, exp(-eps), 0.0), 1)[:, None])
    else:
        energy = tl.sum(tl.where(drawn, 0.5 * eps * eps + log(sigma), 0.0), 1)[:, None]
    tl.store(log_prob + first + row, constant + (K - 1) * log(tau) - energy - log_z, mask=inside)


@triton.jit
def _categorical_rows(
    kl, stats, a, prior, first, row, origin, source, column, prior_row: tl.constexpr, prior_column: tl.constexpr,
    inside, K: tl.constexpr,
):  # fmt: skip
    """Equation 8, and for the backward pass log Σ exp a and the mean of a - b."""
    kept = column < K
    top = tl.max(tl.where(kept, a, float("-inf")), 1)[:, None]
    weight = tl.where(kept, exp(a - top), 0.0)
    mass = tl.sum(weight, 1)[:, None]
    b = tl.zeros_like(a)
    if prior is not None:
        b = read_tile(prior, origin, source, column, prior_row, prior_column, inside & kept, 0.0)
    top_b = tl.max(tl.where(kept, b, float("-inf")), 1)[:, None]
    log_b = log(tl.sum(tl.where(kept, exp(b - top_b), 0.0), 1)[:, None])
    ratio = tl.where(weight > 0, (a - top) - (b - top_b), 0.0)
    mean = tl.sum(weight * ratio, 1)[:, None] / mass
    tl.store(kl + first + row, mean - log(mass) + log_b, mask=inside)
    if stats is not None:
        tl.store(stats + 2 * first + 2 * row, top + log(mass), mask=inside)
        tl.store(stats + 2 * first + 2 * row + 1, mean + top - top_b, mask=inside)
