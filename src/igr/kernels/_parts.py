"""Kernels for rows too long for one program: each of several has a part of the columns, and they meet in between.

A program reads its part once, keeps it in registers, writes the sums over it on a board, and waits until all programs
of its row have done so; then it finishes its part with the sums of the row.

Why that ends: a program takes its number from a counter as it starts, in whatever order the device starts them, and
those of a row have numbers that follow each other. So only the row that was begun last can lack a program. All others
have theirs on the device, and end; fewer programs than a row has wait for one that is yet to start, and that one is
next, as soon as there is room beside them. Where there may be none (:func:`igr.kernels.sampling._all_run`), and in the
interpreter, which runs one program after another, a launch for the first half of the work and one for the second are
made (``HALF``).
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

from igr.kernels._backward import write_gradients
from igr.kernels._forward import (
    complete,
    draw_tile,
    gaussian_kl,
    last_score,
    read_rows,
    read_tile,
    rounding_error,
    write_point,
)
from igr.kernels._random import exp, exp_times, log, reciprocal

WHOLE, FIRST, SECOND = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # what of the work a launch does

# places on the board: largest score and mass of the points, largest hard score, sums for log-density and divergence
TOP, MASS, BEST, POWERS, ENERGY, EXPONENTIALS = (tl.constexpr(i) for i in range(6))
KL, TOP_A, MASS_A, RATIO, TOP_B, MASS_B = (tl.constexpr(i) for i in range(6, 12))
FIELDS = 12

_LOWEST = tl.constexpr(-3.4e38)  # below all scores, and finite: differences from it are no NaN


@triton.jit
def part_here(arrived, rows, HALF: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """The row of this program, in 64 bits, its part of it, and the first column of that.

    Where programs wait for others, a program's number is how many have started before it, counted behind the rows.
    """
    program = tl.atomic_add(arrived + rows, 1, sem="relaxed") if HALF == WHOLE else tl.program_id(0)
    return (program // PARTS).to(tl.int64), program % PARTS, program % PARTS * BLOCK


@triton.jit
def post(mine, step, field: tl.constexpr, value):
    """Writes a value (1, 1) of this part; ``mine`` is its place for the first field, and each takes ``step``."""
    tl.store(mine + field * step, value)


@triton.jit
def gather(line, step, field: tl.constexpr, other: tl.constexpr, PARTS: tl.constexpr, WIDTH: tl.constexpr):
    """The values (1, WIDTH) of all parts in the row's line of the board; past caches that others do not write to."""
    i = tl.arange(0, WIDTH)[None, :]
    return tl.load(line + field * step + i, mask=i < PARTS, other=other, cache_modifier=".cg")


@triton.jit
def meet(arrived, first, PARTS: tl.constexpr, HALF: tl.constexpr):
    """Waits until all parts of the row are on the board."""
    if HALF == WHOLE:
        tl.debug_barrier()  # this program's own threads first
        tl.atomic_add(arrived + first, 1, sem="release")
        while tl.atomic_add(arrived + first, 0, sem="acquire") < PARTS:
            pass
        tl.debug_barrier()


@triton.jit
def largest(x, kept):
    """Over the columns; finite where there is nothing to choose from."""
    top = tl.max(tl.where(kept, x, float("-inf")), 1)[:, None]
    return tl.where(top > float("-inf"), top, _LOWEST)


@triton.jit
def total(x):
    return tl.sum(x, 1)[:, None]


@triton.jit
def post_divergence(
    mine, step, mu, sigma, mu0, sigma0, origin, source, column, kept, m_row: tl.constexpr, m_column: tl.constexpr,
    s_row: tl.constexpr, s_column: tl.constexpr, GUMBEL: tl.constexpr,
):  # fmt: skip
    """What the divergence needs of this part."""
    if GUMBEL:
        b = tl.zeros_like(mu)
        if mu0 is not None:
            b = read_tile(mu0, origin, source, column, m_row, m_column, kept, 0.0)
        top_a, top_b = largest(mu, kept), largest(b, kept)
        weight = tl.where(kept, exp(mu - top_a), 0.0)
        ratio = tl.where(weight > 0, (mu - top_a) - (b - top_b), 0.0)
        post(mine, step, TOP_A, top_a)
        post(mine, step, MASS_A, total(weight))
        post(mine, step, RATIO, total(weight * ratio))
        post(mine, step, TOP_B, top_b)
        post(mine, step, MASS_B, total(tl.where(kept, exp(b - top_b), 0.0)))
    else:
        d = gaussian_kl(mu, sigma, mu0, sigma0, origin, source, column, m_row, m_column, s_row, s_column, kept)
        post(mine, step, KL, total(tl.where(kept, d, 0.0)))


@triton.jit
def write_divergence(kl, stats, line, step, first, row, PARTS: tl.constexpr, WIDTH: tl.constexpr, GUMBEL: tl.constexpr):
    """The divergence of the row, and for the backward pass of the categorical one log Σ exp a and the mean of a - b."""
    if GUMBEL:
        tops_a = gather(line, step, TOP_A, _LOWEST, PARTS, WIDTH)
        tops_b = gather(line, step, TOP_B, _LOWEST, PARTS, WIDTH)
        top_a, top_b = tl.max(tops_a, 1)[:, None], tl.max(tops_b, 1)[:, None]
        weight = exp(tops_a - top_a)
        masses = gather(line, step, MASS_A, 0.0, PARTS, WIDTH) * weight
        ratios = gather(line, step, RATIO, 0.0, PARTS, WIDTH) * weight
        ratios += tl.where(masses > 0, masses * ((tops_a - top_a) - (tops_b - top_b)), 0.0)
        mass_b = total(gather(line, step, MASS_B, 0.0, PARTS, WIDTH) * exp(tops_b - top_b))
        mass_a = total(masses)
        mean = total(ratios) / mass_a
        tl.store(kl + first + row, mean - log(mass_a) + log(mass_b))
        if stats is not None:
            tl.store(stats + 2 * first + 2 * row, top_a + log(mass_a))
            tl.store(stats + 2 * first + 2 * row + 1, mean + top_a - top_b)
    else:
        tl.store(kl + first + row, total(gather(line, step, KL, 0.0, PARTS, WIDTH)))


@triton.jit
def post_density(mine, step, x, eps, sigma, kept, drawn, GUMBEL: tl.constexpr):
    """What the log-density needs of this part."""
    post(mine, step, POWERS, total(tl.where(kept, x, 0.0)))
    if GUMBEL:
        post(mine, step, ENERGY, total(tl.where(drawn, eps, 0.0)))
        post(mine, step, EXPONENTIALS, total(tl.where(drawn, exp(-eps), 0.0)))
    else:
        energy = tl.where(drawn, 0.5 * eps * eps + log(sigma), 0.0)
        post(mine, step, ENERGY, total(energy))


@triton.jit
def write_density(
    log_prob, line, step, tops, top, mass, tau, inverse, constant, first, row,
    K: tl.constexpr, PARTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, GUMBEL: tl.constexpr,
):  # fmt: skip
    """The log-density of the row."""
    columns = tl.minimum(K - BLOCK * tl.arange(0, WIDTH)[None, :], BLOCK)  # of each part
    powers = gather(line, step, POWERS, 0.0, PARTS, WIDTH)
    powers += tl.where(columns > 0, columns * ((tops - top) * inverse), 0.0)
    energy = total(gather(line, step, ENERGY, 0.0, PARTS, WIDTH))
    if GUMBEL:
        energy += K * log(total(gather(line, step, EXPONENTIALS, 0.0, PARTS, WIDTH)))
    log_z = total(powers) - K * log(mass)
    tl.store(log_prob + first + row, constant + (K - 1) * log(tau) - energy - log_z)


@triton.jit
def forward_parts(
    z, soft, log_prob, kl, stats, loc, scale, seed, tau_rows, delta_rows, mask, mu0, sigma0,
    loc_row: tl.constexpr, loc_column: tl.constexpr, scale_row: tl.constexpr, scale_column: tl.constexpr,
    m_row: tl.constexpr, m_column: tl.constexpr, s_row: tl.constexpr, s_column: tl.constexpr,
    mask_row: tl.constexpr, mask_column: tl.constexpr, tau, log_delta, constant, rows, period, stream,
    n: tl.constexpr, K: tl.constexpr, REPEATS: tl.constexpr, HARD: tl.constexpr,
    board, arrived, HALF: tl.constexpr, PARTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One part of a row for each program."""
    GUMBEL: tl.constexpr = scale is None
    first, part, start = part_here(arrived, rows, HALF, PARTS, BLOCK)
    row, inside = tl.zeros((1, 1), tl.int32), tl.full((1, 1), 1, tl.int1)
    column = start + tl.arange(0, BLOCK)[None, :]
    drawn, kept = column < n, column < K
    line, step = board + first * PARTS, rows * PARTS
    mine = line + part + row
    source, origin = row, first
    if REPEATS:
        origin = first % period
    tau = read_rows(tau_rows, tau, first, row, inside)
    inverse = reciprocal(tau)
    mu, sigma, eps, raw = draw_tile(
        loc, scale, tl.load(seed), first, row, origin, source, start, inside,
        n, loc_row, loc_column, scale_row, scale_column, stream, BLOCK,
    )  # fmt: skip
    last = last_score(delta_rows, log_delta, tau, first, row, inside)
    y = complete(raw, last, mask, first, row, column, mask_row, mask_column, n, K, inside)
    own_top = largest(y, kept)
    below = y - own_top
    if GUMBEL and log_prob is not None:
        below += rounding_error(raw, mu, eps)  # near-ties of large sums keep their accuracy
    p = exp_times(below, inverse)
    best = row
    if HARD:  # the threshold is zero, whatever δ is
        score = complete(raw, 0.0, mask, first, row, column, mask_row, mask_column, n, K, inside)
        best = start + tl.argmax(score, 1)[:, None]
    if HALF != SECOND:
        post(mine, step, TOP, own_top)
        post(mine, step, MASS, total(p))
        if HARD:
            post(mine, step, BEST, tl.max(score, 1)[:, None])
        if log_prob is not None:
            post_density(mine, step, below * inverse, eps, sigma, kept, drawn, GUMBEL)
        if kl is not None:
            post_divergence(
                mine, step, mu, sigma, mu0, sigma0, origin, source, column, drawn,
                m_row, m_column, s_row, s_column, GUMBEL,
            )  # fmt: skip
    if HALF != FIRST:
        meet(arrived, first, PARTS, HALF)
        tops = gather(line, step, TOP, _LOWEST, PARTS, WIDTH)
        top = tl.max(tops, 1)[:, None]
        mass = total(gather(line, step, MASS, 0.0, PARTS, WIDTH) * exp((tops - top) * inverse))
        p = p * (exp((own_top - top) * inverse) * reciprocal(mass))
        if HARD:
            scores = gather(line, step, BEST, float("-inf"), PARTS, WIDTH)
            best = tl.where(tl.argmax(scores, 1)[:, None] == part, best, -1)
        write_point(z, soft, p, best, first, row, column, kept, HARD, K)
        if part == 0:
            if log_prob is not None:
                write_density(
                    log_prob, line, step, tops, top, mass, tau, inverse, constant, first, row,
                    K, PARTS, WIDTH, BLOCK, GUMBEL,
                )  # fmt: skip
            if kl is not None:
                write_divergence(kl, stats, line, step, first, row, PARTS, WIDTH, GUMBEL)


@triton.jit
def backward_parts(
    d_loc, d_scale, p, g, loc, scale, seed, tau_rows, mu0, sigma0, stats, g_log_prob, g_kl,
    g_row: tl.constexpr, g_column: tl.constexpr, loc_row: tl.constexpr, loc_column: tl.constexpr,
    scale_row: tl.constexpr, scale_column: tl.constexpr, m_row: tl.constexpr, m_column: tl.constexpr,
    s_row: tl.constexpr, s_column: tl.constexpr, tau, rows, period, stream, n: tl.constexpr, K: tl.constexpr,
    REPEATS: tl.constexpr,
    board, arrived, HALF: tl.constexpr, PARTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One part of a row for each program; what they tell each other is Σ g p, and Σ p of rounded points."""
    ROUNDED: tl.constexpr = p.dtype.element_ty.primitive_bitwidth < 32
    first, part, start = part_here(arrived, rows, HALF, PARTS, BLOCK)
    row, inside = tl.zeros((1, 1), tl.int32), tl.full((1, 1), 1, tl.int1)
    column = start + tl.arange(0, BLOCK)[None, :]
    line, step = board + first * PARTS, rows * PARTS
    source, origin = row, first
    if REPEATS:
        origin = first % period
    inverse = reciprocal(read_rows(tau_rows, tau, first, row, inside))
    point = read_tile(p, first, row, column, K, 1, column < K, 0.0)
    gradient = read_tile(g, first, row, column, g_row, g_column, column < K, 0.0)
    if HALF != SECOND:
        post(line + part + row, step, 0, total(point * gradient))
        if ROUNDED:
            post(line + part + row, step, 1, total(point))
    if HALF != FIRST:
        meet(arrived, first, PARTS, HALF)
        # scalars: blocks of one number, two of them here, would each be spread over the columns in shared memory
        dot = tl.sum(gather(line, step, 0, 0.0, PARTS, WIDTH))
        if ROUNDED:
            share = reciprocal(tl.sum(gather(line, step, 1, 0.0, PARTS, WIDTH)))
            point, dot = point * share, dot * share
        write_gradients(
            d_loc, d_scale, point, gradient, dot, loc, scale, tl.load(seed), mu0, sigma0, stats, g_log_prob, g_kl,
            inverse, first, row, origin, source, start, inside,
            loc_row, loc_column, scale_row, scale_column, m_row, m_column, s_row, s_column, n, K, stream, BLOCK,
        )  # fmt: skip
