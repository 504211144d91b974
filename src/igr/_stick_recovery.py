r"""Which of the sticks of IGR-SB is the longest: one-dimensional recursions for its recovered probabilities.

With :math:`u_k = \mathrm{sigmoid}(y_k)`, :math:`S_k = \prod_{i<k} (1 - u_i)` and :math:`w_k = u_k S_k`, let
:math:`m_k = \max_{i \le k} w_i / S_{k+1}` and :math:`R_k = \max_{i \ge k} w_i / S_k`. Then

.. math:: m_k = \frac{\max(m_{k-1}, u_k)}{1 - u_k}, \qquad R_k = \max(u_k, (1 - u_k) R_{k+1}), \qquad
    \{\arg\max w = k\} = \{m_{k-1} \le u_k\} \cap \{R_{k+1} \le u_k / (1 - u_k)\},

and :math:`m_{k-1}`, :math:`u_k` and :math:`R_{k+1}` are independent. :math:`A_k` and :math:`B_k`, the distribution
functions of :math:`m_k` and :math:`R_k`, are functions of :math:`x = \log r \le 0`, kept at nodes of
:math:`v = \mathrm{logit}(e^x)`. Nodes carry no gradient: the integrals do not depend on them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from igr._normal import low_quantile_of_maximum, ndtr, pdf
from igr.quadrature import gauss_legendre

REACH = 8.5  # standard deviations beyond which a normal has less than 1e-16 of its mass
FAR = 40.0  # 1 - sigmoid(FAR) is nothing
CORE = 20.0  # nodes are evenly spaced in asinh(v / CORE): evenly for common scales, ever farther apart for large ones
STENCIL = 6  # nodes that one interpolation uses


class Grid(NamedTuple):
    """Nodes v of a table, one of them zero, where distribution functions may have a kink that no stencil crosses."""

    v: Tensor  # (B, Q)
    below: Tensor  # (B,), the number of nodes below zero
    step: Tensor  # (B,), their distance in asinh(v / CORE)

    @staticmethod
    def between(low: Tensor, high: Tensor, num_nodes: int) -> Grid:
        low, high = -torch.asinh(low / CORE), torch.asinh(high / CORE)
        last = num_nodes - 1
        below = (low / (low + high) * last).round().clamp(STENCIL - 1, last - (STENCIL - 1))
        step = torch.maximum(low / below, high / (last - below))
        nodes = torch.arange(num_nodes, dtype=low.dtype, device=low.device)
        return Grid(CORE * torch.sinh((nodes - below.unsqueeze(-1)) * step.unsqueeze(-1)), below, step)

    def locate(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """The first node of the stencil around v, which is (B, *), and the position of v in it, in nodes."""
        below, step = (each.reshape(-1, *[1] * (v.dim() - 1)) for each in (self.below, self.step))
        last = self.v.shape[-1] - 1
        position = (torch.asinh(v / CORE) / step + below).clamp(0, last)
        first = position.floor() - (STENCIL // 2 - 1)
        left = first.clamp(min=0).minimum(below - (STENCIL - 1))
        right = first.clamp(max=last - (STENCIL - 1)).maximum(below)
        first = torch.where(v < 0, left, right)
        return first.long(), position - first


def interpolate(f: Tensor, where: tuple[Tensor, Tensor]) -> Tensor:
    """The values of a table f, (B, Q), at the located points, (B, *): Newton's form of the interpolating polynomial."""
    first, position = where
    table = [f]
    for order in range(1, STENCIL):
        table.append(table[-1].diff(dim=-1) / order)
    differences = torch.stack([F.pad(d, (0, order)) for order, d in enumerate(table)], -1)  # (B, Q, STENCIL)
    rows = first.flatten(1).unsqueeze(-1)
    coefficients = differences.gather(1, rows.expand(-1, -1, STENCIL)).unbind(-1)
    position = position.flatten(1)
    value = coefficients[-1]
    for order in range(STENCIL - 2, -1, -1):
        value = torch.addcmul(coefficients[order], position - order, value)
    return value.reshape(first.shape)


def stick_masses(mu: Tensor, sigma: Tensor, leftover: bool, num_nodes: int) -> Tensor:
    """The probabilities, not normalised, that each stick is the longest: (B, n) to (B, n), or (B, n + 1) with leftover.

    With the leftover, the last entry is the probability that it is the longest; without, it does not take part.
    """
    grid = _grid(mu.detach(), sigma.detach(), leftover, num_nodes)
    num_inner = max(8, num_nodes // 8)
    before, none_longer = _forward(mu, sigma, grid, num_inner)
    after = _backward(mu, sigma, grid, num_inner, leftover)
    masses = _meet(mu, sigma, grid, before, after, 2 * num_nodes, leftover)
    return torch.cat([masses, none_longer], -1) if leftover else masses


@torch.no_grad()
def _grid(mu: Tensor, sigma: Tensor, leftover: bool, num_nodes: int) -> Grid:
    """Below its lower end, no stick can be the longest: sticks shorter than 1/2n leave more than half of the whole."""
    low = low_quantile_of_maximum(mu, sigma, -35.0).squeeze(-1).clamp(max=-math.log(2 * mu.shape[-1])) - 1.2
    high = ((mu.abs() if leftover else mu) + REACH * sigma).amax(-1).clamp(1.0, FAR)
    return Grid.between(low, high, num_nodes)


def _forward(mu: Tensor, sigma: Tensor, grid: Grid, num_inner: int) -> tuple[Tensor, Tensor]:
    r"""The tables :math:`A_0, \dots, A_{n-1}`, (B, n, Q), and :math:`A_n` at x = 0, (B, 1).

    .. math:: A_k(x) = \Phi_k(x) A_{k-1}(x) - \int_{y \le x} N_k(y) [A_{k-1}(x) - A_{k-1}(x - \log(1 + e^y))] dy.
    """
    x = F.pad(F.logsigmoid(grid.v), (0, 1)).unsqueeze(1)  # (B, 1, Q + 1), the last at zero
    y, weight = _inner_rule(mu, sigma, x, None, num_inner)
    first, position = grid.locate(logit_exp(x.unsqueeze(-1) - F.softplus(y)))
    density = weight * pdf(y, mu[..., None, None], sigma[..., None, None])  # (B, n, Q + 1, J)
    cdf = ndtr((x - mu.unsqueeze(-1)) / sigma.unsqueeze(-1))
    tables = [torch.ones_like(cdf[:, 0])]
    for k in range(mu.shape[-1]):
        a = tables[-1]
        shifted = interpolate(a[..., :-1], (first[:, k], position[:, k]))
        tables.append(cdf[:, k] * a - (density[:, k] * (a.unsqueeze(-1) - shifted)).sum(-1))
    return torch.stack(tables[:-1], 1)[..., :-1], tables[-1][..., -1:]


def _backward(mu: Tensor, sigma: Tensor, grid: Grid, num_inner: int, leftover: bool) -> Tensor:
    r"""The tables :math:`B_2, \dots, B_{n+1}`, (B, n, Q).

    .. math:: B_k(x) = [\Phi_k(v) - \Phi_k(-v)]_+ + \Phi_k(-|v|) B_{k+1}(x)
        + \int_{y \le -|v|} N_k(y) [B_{k+1}(x + \log(1 + e^y)) - B_{k+1}(x)] dy.
    """
    v = grid.v.unsqueeze(1)  # (B, 1, Q)
    x = F.logsigmoid(v)
    edge = _shortest(mu) - x if leftover else None  # below the support of B_{k+1}, what it takes to get there
    y, weight = _inner_rule(mu, sigma, -v.abs(), edge, num_inner)
    first, position = grid.locate(logit_exp(x.unsqueeze(-1) + F.softplus(y)))
    loc, scale = mu.unsqueeze(-1), sigma.unsqueeze(-1)
    density = weight * pdf(y, loc.unsqueeze(-1), scale.unsqueeze(-1))  # (B, n, Q, J)
    between = (ndtr((v - loc) / scale) - ndtr((-v - loc) / scale)).clamp(min=0.0)
    below = ndtr((-v.abs() - loc) / scale)
    tables = [torch.full_like(between[:, 0], 0.0 if leftover else 1.0)]
    for k in reversed(range(1, mu.shape[-1])):
        b = tables[-1]
        shifted = interpolate(b, (first[:, k], position[:, k]))
        tables.append(between[:, k] + below[:, k] * b + (density[:, k] * (shifted - b.unsqueeze(-1))).sum(-1))
    return torch.stack(tables[::-1], 1)


def _meet(
    mu: Tensor, sigma: Tensor, grid: Grid, before: Tensor, after: Tensor, num_outer: int, leftover: bool
) -> Tensor:
    r""":math:`P(k) = \int N_k(y) A_{k-1}(\log \mathrm{sigmoid}(y)) B_{k+1}(y) dy`, where B is one for y > 0."""
    flat = Grid(*(each.repeat_interleave(mu.shape[-1], 0) for each in grid))  # (B n, Q)
    before, after = before.flatten(0, 1), after.flatten(0, 1)
    loc, scale = mu.reshape(-1, 1), sigma.reshape(-1, 1)
    x, w = gauss_legendre(num_outer, mu)
    with torch.no_grad():
        low, high = loc - REACH * scale, loc + REACH * scale
        if leftover:
            low = low.maximum(_shortest(mu).expand(len(mu), -1, -1).reshape(-1, 1))
        start, end = (logit_exp(y.clamp(max=0.0)).clamp(max=FAR) for y in (low, high))
        pieces = []
        for a, b in ((start, end.clamp(max=0.0)), (start.clamp(min=0.0), end)):
            v = a + (b - a).clamp(min=0.0) * x
            pieces.append((F.logsigmoid(v), w * (b - a).clamp(min=0.0) * torch.sigmoid(-v), v))
        low = low.clamp(min=0.0)
        width = (high - low).clamp(min=0.0)
        y_positive, weight_positive = low + width * x, w * width
    mass = (weight_positive * pdf(y_positive, loc, scale) * interpolate(before, flat.locate(y_positive))).sum(-1)
    for y, weight, v in pieces:
        both = interpolate(before, flat.locate(y)) * interpolate(after, flat.locate(v))
        mass = mass + (weight * pdf(y, loc, scale) * both).sum(-1)
    return mass.reshape(mu.shape)


@torch.no_grad()
def _inner_rule(mu: Tensor, sigma: Tensor, top: Tensor, edge: Tensor | None, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights, (B, n, Q, J), for y up to ``top`` and with log(1 + e^y) above ``edge``, denser at the top."""
    loc, reach = mu.detach().unsqueeze(-1), REACH * sigma.detach().unsqueeze(-1)
    high = top.minimum(loc + reach)
    low = loc - reach
    if edge is not None:
        low = low.maximum(torch.where(edge > 0, torch.expm1(edge).clamp(min=0.0).log(), -math.inf))
    x, w = gauss_legendre(num_nodes, mu)
    span = torch.log1p((high - low).clamp(min=0.0)).unsqueeze(-1)
    return high.unsqueeze(-1) - torch.expm1(span * x), w * span * torch.exp(span * x)


def _shortest(mu: Tensor) -> Tensor:
    """The log of the shortest that the longest can be of the sticks after each, the leftover included: (1, n, 1)."""
    competitors = torch.arange(mu.shape[-1], 0, -1, dtype=mu.dtype, device=mu.device)
    return -competitors.log().reshape(1, -1, 1)


def logit_exp(x: Tensor) -> Tensor:
    """logit(exp(x)) for x <= 0, where it is finite: at most what the smallest step below zero gives."""
    x = x.clamp(max=-torch.finfo(x.dtype).tiny)
    return x - (-torch.expm1(x)).log()
