r"""How the largest coordinate of :mod:`igr._winner` moves with the parameters, in one pass over them.

The same mode, windows and rules as there, with the parameters in registers throughout. What the losers'
:math:`\Phi` and the winner's density contribute to a derivative of :math:`\log f` is kept apart, since their sum
cancels at the mode, and the nodes are summed relative to the largest so far.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from igr.kernels._normal import expm1, log1p, tail
from igr.kernels._random import exp, log

DROP = tl.constexpr(36.0)  # as in igr._winner
LOG_DROP = tl.constexpr(3.58351893845611)
LEAST = tl.constexpr(1.0842021724855044e-19)  # in place of zero: it has a logarithm, and its square an inverse
LOWEST = tl.constexpr(-1e30)  # in place of the logarithm of zero


def blocks(num_columns: int) -> dict[str, int]:
    """Sizes of the blocks: a warp each, whose threads have 8 entries, or 16 of the longest rows."""
    columns = max(2, triton.next_power_of_2(num_columns))
    return {"COLUMNS": columns, "ROWS": max(256 // columns, 1), "num_warps": 1}


@torch.library.custom_op("igr::winner_slopes", mutates_args=())
def winner_slopes(mu: Tensor, sigma: Tensor, wins: Tensor, m: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`igr._winner.slopes`: dm / dμ and dm / dσ, (B, K-1).

    Arguments:
        mu: (B, K-1), float32, where K - 1 is at most :data:`igr.kernels.MOST_COLUMNS`.
        sigma: likewise.
        wins: which coordinate is the largest, (B, K-1), boolean.
        m: its value, (B, 1).
        x: nodes of the rule on [0, 1], ascending.
        w: their weights.
    """
    rows, columns = mu.shape
    d_mu, d_sigma = torch.empty_like(mu, memory_format=torch.contiguous_format), mu.new_empty(rows, columns)
    if mu.numel():
        block = blocks(columns)
        inputs = mu.contiguous(), sigma.contiguous(), wins.to(torch.int8).contiguous(), m.contiguous(), x, w
        grid = (triton.cdiv(rows, block["ROWS"]),)
        with torch.cuda.device_of(mu):  # launches go to the current one
            _slopes[grid](*inputs, d_mu, d_sigma, rows, 1, WIDTH=columns, NODES=len(x), **block)
    return d_mu, d_sigma


@winner_slopes.register_fake
def _(mu: Tensor, sigma: Tensor, wins: Tensor, m: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return mu.new_empty(mu.shape), mu.new_empty(mu.shape)


@triton.jit
def _total(x, where):
    """Over the columns."""
    return tl.sum(tl.where(where, x, 0.0), axis=1, keep_dims=True)


@triton.jit
def _fall(z, start, step):
    """min(z, 0) - min(start, 0), where z is start + step: exact where both are negative, however large."""
    return tl.where(tl.maximum(z, start) < 0, step, tl.minimum(z, 0.0) - tl.minimum(start, 0.0))


@triton.jit
def _log_ratio(start, q_start, step, wins, valid):
    """log f at the standardised distance ``step`` from a point, less that at the point; with z and q'(z)."""
    z = start + step
    q, e = tail(z)
    loses = q - q_start - 0.5 * _fall(z, start, step) * (tl.minimum(z, 0.0) + tl.minimum(start, 0.0))
    return _total(tl.where(wins, -0.5 * step * (z + start), loses), valid), z, e


@triton.jit
def _pull(z, e, per, loses):
    """What the losers add to the first derivative of log f, and to minus the second."""
    mills = e - tl.minimum(z, 0.0)
    return _total(mills * per, loses), _total(mills * (e + tl.maximum(z, 0.0)) * per * per, loses)


@triton.jit
def _mode(mu, per, mu_wins, precision, loses, floor):
    """The mode of f above the floor, from below: Newton, or logarithms of what pulls up and down, where inside."""
    low = tl.maximum(mu_wins, floor)
    high = tl.full(low.shape, float("inf"), tl.float32)
    t = low
    for _ in range(16):
        z = (t - mu) * per
        _q, e = tail(z)
        up, curvature = _pull(z, e, per, loses)
        down = (t - mu_wins) * precision
        high = tl.where(up < down, tl.minimum(high, t), high)
        low = tl.maximum(low, t + (up - down) / (curvature + precision))
        slopes = curvature / tl.maximum(up, LEAST) + 1.0 / tl.maximum(t - mu_wins, LEAST)
        guess = t + (log(tl.maximum(up, LEAST)) - log(tl.maximum(down, LEAST))) / slopes
        t = tl.where((guess > low) & (guess < high), guess, low)
    return low


@triton.jit
def _reach(t, mu, per, mu_wins, precision, floor, wins, loses, valid, SIDE: tl.constexpr, STEPS: tl.constexpr):
    """How far from t, on a side where f falls, it is down by exp(-DROP), or the floor is met: as in igr._winner."""
    z_start = (t - mu) * per
    q_start, e = tail(z_start)
    up, _curvature = _pull(z_start, e, per, loses)
    slope = tl.maximum(SIDE * ((t - mu_wins) * precision - up), 0.0)
    most = 2.0 * DROP / (slope + tl.sqrt(slope * slope + 2.0 * DROP * precision))
    if SIDE < 0:
        most = tl.minimum(most, t - floor)
    distance = most
    for _ in range(STEPS):
        ratio, z, e = _log_ratio(z_start, q_start, SIDE * distance * per, wins, valid)
        fall = tl.maximum(-ratio, 0.0)
        up, curvature = _pull(z, e, per, loses)
        slope = SIDE * ((t - mu_wins + SIDE * distance) * precision - up)
        slope = tl.maximum(tl.maximum(slope, distance * precision), LEAST)
        root = 1.0 - tl.minimum(tl.maximum(fall / slope * ((curvature + precision) / slope), 0.0), 0.5)
        level = exp(root * LOG_DROP + (1.0 - root) * log(tl.maximum(fall, LEAST)))
        newton = distance - (fall - level) / (root * slope)
        chord = distance * DROP / tl.maximum(fall, LEAST)
        inside = tl.where(fall > DROP, tl.maximum(newton, chord), tl.minimum(newton, chord))
        distance = tl.minimum(inside, most)
    return distance


@triton.jit
def _grading(start, width, mu, sigma, per, mu_wins, precision, loses):
    """The scale of the grading of a window: the narrowest coordinate that changes, the slope, or the width."""
    z = (start - mu) * per
    _q, e = tail(z)
    up, _curvature = _pull(z, e, per, loses)
    slope = tl.abs(up - (start - mu_wins) * precision)
    changes = loses & (z < 8.5)
    finest = tl.min(tl.where(changes, sigma / tl.maximum(z, 1.0), float("inf")), axis=1, keep_dims=True)
    return 32.0 * tl.minimum(tl.minimum(1.0 / tl.maximum(slope, LEAST), width), finest)


@triton.jit
def _distances(x, span, width, a, BELOW: tl.constexpr):
    """Of a node from the start of its window, and from m, which is that start, or the end of the window below it.

    The latter are as exact as the former: below m they are counted from the end in the half that is next to it.
    """
    s = a * expm1(span * x)
    if BELOW:
        back = (a + width) * expm1(span * (x - 1.0))
        return tl.where(x < 0.5, s, width + back), tl.where(x < 0.5, s - width, back)
    else:
        return s, s


@triton.jit
def _density_and_scores(m, width, a, mu, per, wins, valid, x_ptr, w_ptr, NODES: tl.constexpr, BELOW: tl.constexpr):
    """The density at m over the mass of the window below or above it, and averages of the derivatives of log f in μ
    and in σ over the window less those at m, times σ: as in igr._winner."""
    start = m - width if BELOW else m
    z_start = (start - mu) * per
    q_start, _e = tail(z_start)
    ratio_at, z_at, e_at = _log_ratio(z_start, q_start, width * per if BELOW else 0.0 * per, wins, valid)
    mills_at = e_at - tl.minimum(z_at, 0.0)
    span = log1p(width / a)
    top, total = tl.full(m.shape, LOWEST, tl.float32), tl.zeros(m.shape, tl.float32)
    d_mu, d_sigma = tl.zeros(mu.shape, tl.float32), tl.zeros(mu.shape, tl.float32)
    for node in range(NODES):
        x = tl.load(x_ptr + node)
        s, beyond = _distances(x, span, width, a, BELOW)
        ratio, z, e = _log_ratio(z_start, q_start, s * per, wins, valid)
        step = beyond * per  # z - z_at
        mills = e - tl.minimum(z, 0.0)
        change = e - e_at - _fall(z, z_at, step)  # mills - mills_at
        # z mills - z_at mills_at, in a form that does not cancel where both are far below zero
        both = tl.maximum(z, z_at) < 0
        moment = tl.where(both, step * mills + z_at * change, z * mills - z_at * mills_at)
        term = span * x + ratio
        higher = tl.maximum(top, term)
        keep, weight = exp(top - higher), exp(term - higher) * tl.load(w_ptr + node)
        top, total = higher, total * keep + weight
        d_mu = d_mu * keep + weight * tl.where(wins, step, -change)
        d_sigma = d_sigma * keep + weight * tl.where(wins, step * (z + z_at), -moment)
    return exp(ratio_at - top) / (total * span * a), d_mu / total, d_sigma / total


# ``step`` is one, which is not said: see igr.kernels.recovery


@triton.jit(do_not_specialize=["rows", "step"])
def _slopes(
    mu_ptr, sigma_ptr, wins_ptr, m_ptr, x_ptr, w_ptr, d_mu_ptr, d_sigma_ptr, rows, step,
    WIDTH: tl.constexpr, NODES: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, COLUMNS)[None, :]
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    valid, inside = column < WIDTH, row < rows
    at = (row * WIDTH + column) * step
    mu = tl.load(mu_ptr + at, mask=valid & inside, other=0.0)
    sigma = tl.load(sigma_ptr + at, mask=valid & inside, other=1.0)
    wins = tl.where(inside, tl.load(wins_ptr + at, mask=valid & inside, other=0) != 0, column == 0)
    origin = tl.load(m_ptr + row * step, mask=inside, other=1.0)
    mu, floor, m = mu - origin, -origin, tl.zeros(origin.shape, tl.float32)  # numbers are finest next to m
    per = tl.div_rn(1.0, sigma)
    loses = valid & (wins == 0)
    mu_wins, per_wins = _total(mu, wins), _total(per, wins)
    precision = per_wins * per_wins
    mode = _mode(mu, per, mu_wins, precision, loses, floor)
    low, high = tl.minimum(m, mode), tl.maximum(m, mode)
    start = low - _reach(low, mu, per, mu_wins, precision, floor, wins, loses, valid, -1.0, 10)
    below = tl.maximum(m - start, LEAST)
    above = tl.maximum(high - m + _reach(high, mu, per, mu_wins, precision, floor, wins, loses, valid, 1.0, 6), LEAST)
    a = _grading(start, below, mu, sigma, per, mu_wins, precision, loses)
    per_below, d_mu, d_sigma = _density_and_scores(m, below, a, mu, per, wins, valid, x_ptr, w_ptr, NODES, True)
    a = _grading(m, above, mu, sigma, per, mu_wins, precision, loses)
    per_above, u_mu, u_sigma = _density_and_scores(m, above, a, mu, per, wins, valid, x_ptr, w_ptr, NODES, False)
    weight = per / (per_below + per_above)  # m is where one of the densities is largest, so that one is not zero
    tl.store(d_mu_ptr + at, weight * (u_mu - d_mu), mask=valid & inside)
    tl.store(d_sigma_ptr + at, weight * (u_sigma - d_sigma), mask=valid & inside)
