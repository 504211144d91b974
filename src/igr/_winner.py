r"""The largest of independent normal coordinates, given that it is the k-th and positive.

.. math:: p(m) \propto f(m) = \phi\Bigl(\frac{m - \mu_k}{\sigma_k}\Bigr)
    \prod_{j \ne k} \Phi\Bigl(\frac{m - \mu_j}{\sigma_j}\Bigr), \quad m > 0.

:math:`f` is log-concave. It lives between the two points where it is down by a factor of :math:`e^{-36}` from its mode,
or where it begins at zero, and a coordinate whose :math:`\Phi` still changes at the distance s from the left one has a
scale of at least about s / 17: left of its :math:`\mu_j` the curvature of :math:`\log f` is that of a normal of scale
:math:`\sigma_j`. So a Gauss-Legendre rule in :math:`\log(1 + s / a)` resolves scales from 1e-3 to 1e3 side by side.
Only differences of :math:`\log f` are ever computed, term by term, since :math:`\log f` itself may be -1e9. And m is
counted from a point where f is large, next to which numbers are as fine as the scales: with it, zero moves to a
``floor`` below.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from igr import kernels
from igr._checks import transformed, values_checkable
from igr._normal import once, tail
from igr.quadrature import constant_rule, kept_rule

Tensors = tuple[Tensor, ...]

MOST_NODES = 192
DROP = 36.0  # what is exp(-36) times the largest does not matter


class Race(NamedTuple):
    """Normal coordinates and which of them wins, all (B, K-1)."""

    mu: Tensor
    sigma: Tensor
    wins: Tensor


class Window(NamedTuple):
    """Where to integrate, and the scale of the grading there, all (B, 1)."""

    start: Tensor
    width: Tensor
    a: Tensor


def slopes(race: Race, m: Tensor, num_nodes: int | None = None) -> tuple[Tensor, Tensor]:
    """dm / dμ and dm / dσ, (B, K-1), with the value of the distribution function at m, (B, 1), kept fixed."""
    function = (_SlopesForwards if transformed() else _Slopes).apply
    pair: tuple[Tensor, Tensor] = function(*race, m, num_nodes)  # type: ignore[no-untyped-call]
    return pair


def quantile(race: Race, logit: Tensor) -> Tensor:
    """Where the log-odds of the distribution function are ``logit``, (B, 1)."""
    return _by_rows(lambda *rows: (_quantile(Race(*rows[:3]), rows[3]),), 1, *race, logit)[0]


class _Slopes(torch.autograd.Function):
    """Without a graph, unless a second derivative is asked for, which is that of the functions here."""

    generate_vmap_rule = True

    @staticmethod
    def forward(mu: Tensor, sigma: Tensor, wins: Tensor, m: Tensor, num_nodes: int | None) -> tuple[Tensor, ...]:
        if kernels.usable_on_rows(mu, sigma, m):
            from igr.kernels.winner import winner_slopes

            fused: tuple[Tensor, Tensor] = winner_slopes(
                mu, sigma, wins, m, *constant_rule(num_nodes or MOST_NODES, mu.device)
            )
            return fused
        return _by_rows(partial(_slopes, num_nodes=num_nodes), 1, mu, sigma, wins, m)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.num_nodes = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, d_mu: Tensor, d_sigma: Tensor) -> tuple[Tensor | None, ...]:
        pull = partial(_pulled, num_nodes=ctx.num_nodes)
        g_mu, g_sigma, g_m = _by_rows(pull, 64, *ctx.saved_tensors, d_mu, d_sigma)
        return g_mu, g_sigma, None, g_m, None


class _SlopesForwards(_Slopes):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _Slopes.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[:-1])

    @staticmethod
    @once
    def jvp(ctx: Any, d_mu: Tensor, d_sigma: Tensor, _: None, d_m: Tensor, *__: None) -> tuple[Tensor, ...]:
        push = partial(_pushed, num_nodes=ctx.num_nodes)
        return _by_rows(push, 64, *ctx.saved_tensors, d_mu, d_sigma, d_m)


def _pulled(mu: Tensor, sigma: Tensor, wins: Tensor, m: Tensor, *gradient: Tensor, num_nodes: int | None) -> Tensors:
    """Gradients in μ, σ and m from those in both slopes."""
    pull = torch.func.vjp(lambda mu, sigma, m: _slopes(mu, sigma, wins, m, num_nodes), mu, sigma, m)[1]
    gradients: Tensors = pull(gradient)
    return gradients


def _pushed(mu: Tensor, sigma: Tensor, wins: Tensor, m: Tensor, *tangents: Tensor, num_nodes: int | None) -> Tensors:
    """Changes of both slopes with μ, σ and m: the transpose of the above, as tails have forward mode only once."""
    transpose = partial(_pulled, mu, sigma, wins, m, num_nodes=num_nodes)
    changes: Tensors = torch.func.vjp(transpose, *map(torch.zeros_like, (mu, sigma)))[1](tangents)
    return changes


def _slopes(mu: Tensor, sigma: Tensor, wins: Tensor, m: Tensor, num_nodes: int | None = None) -> tuple[Tensor, Tensor]:
    r"""From :math:`\log P - \log(1 - P)`, whose derivative at fixed m is a difference of mean scores."""
    origin = m.detach()
    mu, m = mu - origin, m - origin
    lower, upper = _windows(Race(mu.detach(), sigma.detach(), wins), -origin)
    lower = Window(lower.start, _positive(m - lower.start), lower.a)  # the ends that are m move with it
    upper = Window(m, upper.width, upper.a)
    race, integrate = (mu, sigma, wins), partial(_mass_and_scores, num_nodes=num_nodes)
    log_below, *below = _by_rows(integrate, 64, *race, *lower, lower.width)
    log_above, *above = _by_rows(integrate, 64, *race, *upper, torch.zeros_like(m))
    weight = (log_below + log_above - torch.logaddexp(log_below, log_above)).exp()
    return weight * (above[0] - below[0]), weight * (above[1] - below[1])


@torch.no_grad()
def _windows(race: Race, floor: Tensor) -> tuple[Window, Window]:
    """Below zero, which is m, and above it, each as far as the density matters there."""
    mode, m = _mode(race, floor), torch.zeros_like(floor)
    low, high = mode.clamp(max=0.0), mode.clamp(min=0.0)
    start = low - _reach(race, floor, low, -1.0)
    return _window(race, start, -start), _window(race, m, high + _reach(race, floor, high, 1.0))


def _mass_and_scores(
    mu: Tensor, sigma: Tensor, wins: Tensor, *window: Tensor, num_nodes: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """log of the mass in the window over the density at the distance ``at`` from its start, and averages over the
    window of the derivatives of the log-density in μ and in σ, less those there."""
    race, at = Race(mu, sigma, wins), window[-1]
    fewest, per_span, most = (40, 14, MOST_NODES) if num_nodes is None else (num_nodes, 0, num_nodes)
    s, log_w = _nodes(Window(*window[:3]), fewest, per_span, most)
    ratio, z, e = _log_ratio(race, _standard(race, window[0]), torch.cat([s, at], -1))
    terms = log_w + ratio[..., :-1]
    z, z_at, e, e_at = z[..., :-1], z[..., -1:], e[..., :-1], e[..., -1:]
    step = (s - at).unsqueeze(-2) / sigma.unsqueeze(-1)  # z - z_at
    mills, mills_at = e - z.clamp(max=0.0), e_at - z_at.clamp(max=0.0)
    change = e - e_at - _fall(z, z_at, step)  # mills - mills_at
    # z mills - z_at mills_at, in a form that does not cancel where both are far below zero
    moment = torch.where(torch.maximum(z, z_at) < 0, step * mills + z_at * change, z * mills - z_at * mills_at)
    wins, weights = wins.unsqueeze(-1), terms.softmax(-1).unsqueeze(-2)
    d_mu = (weights * torch.where(wins, step, -change)).sum(-1) / sigma
    d_sigma = (weights * torch.where(wins, step * (z + z_at), -moment)).sum(-1) / sigma
    return terms.logsumexp(-1, keepdim=True) - ratio[..., -1:], d_mu, d_sigma


def _mass(mu: Tensor, sigma: Tensor, wins: Tensor, *window: Tensor) -> tuple[Tensor]:
    """The first of :func:`_mass_and_scores`, for which fewer nodes do."""
    race = Race(mu, sigma, wins)
    s, log_w = _nodes(Window(*window[:3]), 32, 8, 96)
    ratio = _log_ratio(race, _standard(race, window[0]), torch.cat([s, window[-1]], -1))[0]
    return ((log_w + ratio[..., :-1]).logsumexp(-1, keepdim=True) - ratio[..., -1:],)


def _quantile(race: Race, logit: Tensor) -> Tensor:
    """A first guess from a coarse rule, the mass on either side of it from fine ones, the rest by Newton."""
    origin = _mode(race, torch.zeros_like(logit))  # to rounding there
    race, floor = Race(race.mu - origin, race.sigma, race.wins), -origin
    mode = _mode(race, floor)
    start = mode - _reach(race, floor, mode, -1.0)
    whole = _window(race, start, mode - start + _reach(race, floor, mode, 1.0))
    m = start + _by_rows(_first_guess, 32, *race, *whole, logit.sigmoid())[0]
    lower, upper = _window(race, start, m - start), _window(race, m, start - m + whole.width)
    fewest, most = torch.maximum(start - m, -0.99 * (m - floor)), upper.width  # steps that stay inside
    (log_below,) = _by_rows(_mass, 48, *race, *lower, lower.width)
    (log_above,) = _by_rows(_mass, 48, *race, *upper, torch.zeros_like(m))
    return origin + _by_rows(_refined, 8, *race, m, fewest, most, log_below, log_above, logit)[0]


def _refined(mu: Tensor, sigma: Tensor, wins: Tensor, m: Tensor, *odds: Tensor) -> tuple[Tensor]:
    """From m and the masses on its sides, by a step between two ends, to where their log-odds are the last argument."""
    fewest, most, log_below, log_above, logit = odds
    # the smaller of the two masses is brought to its target: its logarithm is concave in m
    sign = torch.copysign(torch.ones_like(logit), -logit)
    mass = torch.where(sign > 0, log_below, log_above).exp()
    target = torch.logaddexp(log_below, log_above) + F.logsigmoid(-logit.abs())
    race = Race(mu, sigma, wins)
    here, (x, w) = _standard(race, m), kept_rule(8, m)
    step = torch.zeros_like(m)
    for _ in range(4):
        ratio = _log_ratio(race, here, torch.cat([step * x, step], -1))[0].exp()
        now = mass + sign * step * (w * ratio[..., :-1]).sum(-1, keepdim=True)
        now = torch.maximum(now, 1e-4 * target.exp())  # a step too far
        step = step - sign * now * (now.log() - target) / ratio[..., -1:]
        step = torch.minimum(torch.maximum(step.nan_to_num(0.0), fewest), most)  # masses may be beyond all numbers
    return (m + step,)


def _first_guess(mu: Tensor, sigma: Tensor, wins: Tensor, *window: Tensor) -> tuple[Tensor]:
    """The distance from the start of the window with a mass of about v below: partial sums of a rule's weights."""
    race, whole, v = Race(mu, sigma, wins), Window(*window[:3]), window[-1]
    x, w = kept_rule(32, v)
    s, log_w = _nodes(whole, 32, 0, 32)
    mass = (log_w + _log_ratio(race, _standard(race, whole.start), s)[0]).softmax(-1)
    total = mass.cumsum(-1)
    cell = (total < v).sum(-1, keepdim=True).clamp(max=len(x) - 1)
    mass = mass.gather(-1, cell)
    share = ((v - total.gather(-1, cell) + mass) / _positive(mass)).clamp(0.0, 1.0)
    y = (w.cumsum(0) - w)[cell] + share * w[cell]
    return (whole.a * torch.expm1(torch.log1p(whole.width / whole.a) * y),)


def _standard(race: Race, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The coordinates of t, standardised, with their :func:`tail`, all (B, K-1)."""
    z = (t - race.mu) / race.sigma
    return (z, *tail(z))


def _log_ratio(race: Race, here: tuple[Tensor, Tensor, Tensor], s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log f at the distances s, (B, Q), from a point, less that at the point; with z and q'(z), (B, K-1, Q)."""
    start, q_start = here[0].unsqueeze(-1), here[1].unsqueeze(-1)
    step = s.unsqueeze(-2) / race.sigma.unsqueeze(-1)
    z = start + step
    q, e = tail(z)
    loses = q - q_start - 0.5 * _fall(z, start, step) * (z.clamp(max=0.0) + start.clamp(max=0.0))
    return torch.where(race.wins.unsqueeze(-1), -0.5 * step * (z + start), loses).sum(-2), z, e


def _fall(z: Tensor, start: Tensor, step: Tensor) -> Tensor:
    """min(z, 0) - min(start, 0), where z is start + step: exact where both are negative, however large."""
    return torch.where(torch.maximum(z, start) < 0, step, z.clamp(max=0.0) - start.clamp(max=0.0))


def _derivatives(race: Race, z: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """The first and minus the second derivative of log f, both (B, 1), from z and q'(z)."""
    mills = e - z.clamp(max=0.0)
    first = torch.where(race.wins, -z, mills) / race.sigma
    second = torch.where(race.wins, 1.0, mills * (e + z.clamp(min=0.0))) / race.sigma.square()
    return first.sum(-1, keepdim=True), second.sum(-1, keepdim=True)


def _mode(race: Race, floor: Tensor) -> Tensor:
    """The mode of f above the floor, from below.

    The derivative of log f is convex and decreasing, so that Newton's step from anywhere ends below its root. It is
    slow where the Φ of narrow coordinates saturate one after the other; there the logarithms of what pulls up and of
    what pulls down, which is the winner's own density, are nearly straight.
    """
    mu, sigma = (torch.where(race.wins, x, 0.0).sum(-1, keepdim=True) for x in (race.mu, race.sigma))
    low, high = torch.maximum(mu, floor), torch.full_like(mu, math.inf)
    t = low
    for _ in range(16):
        z, _, e = _standard(race, t)
        first, second = _derivatives(race, z, e)
        high = torch.where(first < 0, torch.minimum(high, t), high)
        low = torch.maximum(low, t + first / second)
        down = (t - mu) / sigma.square()
        up = first + down
        guess = t + (up.log() - down.log()) / ((second - 1 / sigma.square()) / up + 1 / (t - mu))
        t = torch.where((guess > low) & (guess < high), guess, low)
    return low


def _reach(race: Race, floor: Tensor, t: Tensor, side: float) -> Tensor:
    """How far from t, on a side where f falls, it is down by exp(-DROP), or the floor is met."""
    here = _standard(race, t)
    slope = (-side * _derivatives(race, here[0], here[2])[0]).clamp(min=0.0)
    sigma = torch.where(race.wins, race.sigma, 0.0).sum(-1, keepdim=True)
    # the winner's own density and the slope at t alone; the others only add to the fall
    most = 2 * DROP / (slope + (slope.square() + 2 * DROP / sigma.square()).sqrt())
    most = torch.minimum(most, t - floor) if side < 0 else most
    distance = most
    for _ in range(10 if side < 0 else 6):  # Newton on the n-th root of the fall, a power between 1 and 2 of a distance
        ratio, z, e = _log_ratio(race, here, side * distance)
        fall = (-ratio).clamp(min=0.0)
        first, second = _derivatives(race, z[..., 0], e[..., 0])
        slope = _positive(torch.maximum(-side * first, distance / sigma.square()))
        root = 1 - (fall * second / slope.square()).clamp(0.0, 0.5)
        newton = distance - (fall - DROP**root * fall ** (1 - root)) / (root * slope)
        chord = distance * DROP / _positive(fall)  # the fall is convex: this is not beyond the solution, seen from here
        inside = torch.where(fall > DROP, torch.maximum(newton, chord), torch.minimum(newton, chord))
        distance = torch.minimum(inside, most)
    return distance


def _window(race: Race, start: Tensor, width: Tensor) -> Window:
    """Graded by the narrowest coordinate that changes at the start, the slope there, and the width."""
    z, _, e = _standard(race, start)
    width, slope = _positive(width), _derivatives(race, z, e)[0].abs()
    changes = (z < 8.5) & ~race.wins
    finest = torch.where(changes, race.sigma / z.clamp(min=1.0), math.inf).amin(-1, keepdim=True)
    return Window(start, width, 32 * torch.minimum(torch.minimum(1 / slope, width), finest))


def _nodes(window: Window, fewest: int, per_span: int, most: int) -> tuple[Tensor, Tensor]:
    """Distances from the start and log-weights, (B, Q); as many as the window asks for where that can be looked at."""
    span = torch.log1p(window.width / window.a)
    num_nodes = most
    if per_span and span.device.type == "cpu" and span.numel() and values_checkable(span):
        widest = span.amax().item()  # NaN where scales are beyond what squares can hold
        num_nodes = most if math.isnan(widest) else min(most, 16 * math.ceil((fewest + per_span * widest) / 16))
    x, w = kept_rule(num_nodes, span)
    y = span * x
    return window.a * torch.expm1(y), (w * span * window.a).log() + y


def _positive(x: Tensor) -> Tensor:
    """What has rounded to zero still has a logarithm, and its square an inverse."""
    return x.clamp(min=math.sqrt(torch.finfo(x.dtype).tiny))


def _by_rows(function: Callable[..., tuple[Tensor, ...]], num_nodes: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Applies a function to chunks of rows, which keeps the memory down; to all at once for a compiler."""
    rows, size = tensors[0].shape[0], tensors[0].shape[-1] * num_nodes * tensors[0].element_size()
    most = 2**22 if tensors[0].device.type == "cpu" else 2**25
    step = rows if torch.compiler.is_compiling() else most // size
    parts = [function(*chunk) for chunk in zip(*(t.split(max(step, 1)) for t in tensors), strict=True)]
    return tuple(torch.cat(part) for part in zip(*parts, strict=True)) if len(parts) > 1 else parts[0]
