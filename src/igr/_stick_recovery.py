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
from igr.quadrature import kept_rule

REACH = 8.5  # standard deviations beyond which a normal has less than 1e-16 of its mass
FAR = 25.0  # 1 - sigmoid(FAR) is nothing
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
        first = torch.where(v < 0, left, right).nan_to_num(0.0)  # no node is at NaN, which the position stays
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


class Step(NamedTuple):
    r"""What makes the next table f of each stick: offset + diagonal f + Σ_j density_j (f(v_j) - f), at R nodes."""

    first: Tensor  # (B, n, R, J), the stencils of the v_j
    position: Tensor
    density: Tensor
    diagonal: Tensor  # (B, n, R)
    offset: Tensor

    def take(self, k: int, f: Tensor, num_nodes: int) -> Tensor:
        """The table after stick k from the one before, of which the first ``num_nodes`` entries are at the nodes."""
        shifted = interpolate(f[..., :num_nodes], (self.first[:, k], self.position[:, k]))
        change = (self.density[:, k] * (shifted - f.unsqueeze(-1))).sum(-1)
        return self.offset[:, k] + self.diagonal[:, k] * f + change


def stick_masses(mu: Tensor, sigma: Tensor, leftover: bool, num_nodes: int) -> Tensor:
    """The probabilities, not normalised, that each stick is the longest: (B, n) to (B, n), or (B, n + 1) with leftover.

    With the leftover, the last entry is the probability that it is the longest; without, it does not take part.
    """
    grid = Grid.between(*stick_range(mu, sigma), num_nodes)
    before = tables_before(forward_step(mu, sigma, grid), grid)
    after = tables_after(backward_step(mu, sigma, grid, leftover), grid, leftover)
    masses = meet(mu, sigma, grid, before[:, :-1], after, leftover)
    return torch.cat([masses, before[:, -1, -1:]], -1) if leftover else masses


@torch.no_grad()
def stick_range(mu: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    """Where tables are needed, both (B,).

    Below, no stick can be the longest: sticks shorter than 1/2n leave more than half of the whole. Above, tables are
    flat but for sticks that surely take all there is, which need not be resolved.
    """
    mu, sigma = mu.detach(), sigma.detach()  # which reaches forward mode too
    loc, t = (x.squeeze(-1) for x in low_quantile_of_maximum(mu, sigma, -35.0))
    low = (loc + t).clamp(max=-math.log(2 * mu.shape[-1])) - 1.2
    sure = mu - REACH * sigma >= FAR
    return low, torch.where(sure, 0.0, mu.abs() + REACH * sigma).amax(-1).clamp(1.0, FAR)


@torch.no_grad()
def nodes_for_sticks(mu: Tensor, sigma: Tensor) -> Tensor:
    """How many nodes rows ask for, (*, n) to (*): four to the narrowest scale."""
    low, high = stick_range(mu, sigma)
    width = CORE * (torch.asinh(high / CORE) - torch.asinh(low / CORE))
    return 4 * width / sigma.amin(-1)


def forward_step(mu: Tensor, sigma: Tensor, grid: Grid) -> Step:
    r"""From :math:`A_{k-1}` to :math:`A_k`, at the nodes and, last, at x = 0.

    .. math:: A_k(x) = \Phi_k(x) A_{k-1}(x) + \int_{y \le x} N_k(y) [A_{k-1}(x - \log(1 + e^y)) - A_{k-1}(x)] dy.
    """
    x = F.pad(F.logsigmoid(grid.v), (0, 1)).unsqueeze(1)  # (B, 1, Q + 1)
    y, weight = _inner_rule(mu, sigma, x, None, grid)
    first, position = grid.locate(logit_exp(x.unsqueeze(-1) - F.softplus(y)))
    cdf = ndtr((x - mu.unsqueeze(-1)) / sigma.unsqueeze(-1))
    return Step(first, position, weight * _pdf(y, mu, sigma), cdf, torch.zeros_like(cdf))


def backward_step(mu: Tensor, sigma: Tensor, grid: Grid, leftover: bool) -> Step:
    r"""From :math:`B_{k+1}` to :math:`B_k`, at the nodes.

    .. math:: B_k(x) = [\Phi_k(v) - \Phi_k(-v)]_+ + \Phi_k(-|v|) B_{k+1}(x)
        + \int_{y \le -|v|} N_k(y) [B_{k+1}(x + \log(1 + e^y)) - B_{k+1}(x)] dy.
    """
    v = grid.v.unsqueeze(1)  # (B, 1, Q)
    x = F.logsigmoid(v)
    edge = _shortest(mu) - x if leftover else None  # below the support of B_{k+1}, what it takes to get there
    y, weight = _inner_rule(mu, sigma, -v.abs(), edge, grid)
    first, position = grid.locate(logit_exp(x.unsqueeze(-1) + F.softplus(y)))
    loc, scale = mu.unsqueeze(-1), sigma.unsqueeze(-1)
    below = ndtr((-v.abs() - loc) / scale)
    between = torch.where(v > 0, ndtr((v - loc) / scale) - below, 0.0)
    return Step(first, position, weight * _pdf(y, mu, sigma), below, between)


def tables_before(step: Step, grid: Grid) -> Tensor:
    r""":math:`A_0, \dots, A_n`, (B, n + 1, Q + 1), the last node being x = 0."""
    tables = [torch.ones_like(step.diagonal[:, 0])]
    for k in range(step.diagonal.shape[1]):
        tables.append(step.take(k, tables[-1], grid.v.shape[-1]))
    return torch.stack(tables, 1)


def tables_after(step: Step, grid: Grid, leftover: bool) -> Tensor:
    r""":math:`B_2, \dots, B_{n+1}`, (B, n, Q)."""
    tables = [torch.full_like(step.diagonal[:, 0], 0.0 if leftover else 1.0)]
    for k in reversed(range(1, step.diagonal.shape[1])):
        tables.append(step.take(k, tables[-1], grid.v.shape[-1]))
    return torch.stack(tables[::-1], 1)


def meet(mu: Tensor, sigma: Tensor, grid: Grid, before: Tensor, after: Tensor, leftover: bool) -> Tensor:
    r""":math:`P(k) = \int N_k(y) A_{k-1}(\log \mathrm{sigmoid}(y)) B_{k+1}(y) dy`, where B is one for y > 0.

    ``before`` has the nodes and, last, x = 0.
    """
    flat = Grid(*(each.repeat_interleave(mu.shape[-1], 0) for each in grid))  # (B n, Q)
    before, after = before.flatten(0, 1), after.flatten(0, 1)
    loc, scale = mu.reshape(-1, 1), sigma.reshape(-1, 1)
    x, w = _outer_rule(grid, mu)
    with torch.no_grad():
        low, high = (loc - REACH * scale).detach(), (loc + REACH * scale).detach()
        if leftover:
            low = low.maximum(_shortest(mu).expand(mu.shape[0], -1, -1).reshape(-1, 1))
        start, end = (logit_exp(y.clamp(max=0.0)).clamp(max=FAR) for y in (low, high))
        pieces = []
        for a, b in ((start, end.clamp(max=0.0)), (start.clamp(min=0.0), end)):
            v = a + (b - a).clamp(min=0.0) * x
            pieces.append((F.logsigmoid(v), w * (b - a).clamp(min=0.0) * torch.sigmoid(-v), v))
        low = low.clamp(min=0.0)
        width = (high - low).clamp(min=0.0)
        y_positive, weight_positive = low + width * x, w * width
    before, at_zero = before[:, :-1], before[:, -1:]
    reached = torch.where(y_positive < FAR, interpolate(before, flat.locate(y_positive)), at_zero)
    mass = (weight_positive * pdf(y_positive, loc, scale) * reached).sum(-1)
    for y, weight, v in pieces:
        both = interpolate(before, flat.locate(y)) * interpolate(after, flat.locate(v))
        mass = mass + (weight * pdf(y, loc, scale) * both).sum(-1)
    return mass.reshape(mu.shape)


def _outer_rule(grid: Grid, like: Tensor) -> tuple[Tensor, Tensor]:
    """Two nodes on [0, 1] for each of the tables', in panels, since a single rule of thousands is slow to make."""
    x, w = kept_rule(64, like)
    panels = max(1, grid.v.shape[-1] // 32)
    starts = torch.arange(panels, dtype=like.dtype, device=like.device).unsqueeze(-1)
    return ((starts + x) / panels).flatten(), (w / panels).repeat(panels)


@torch.no_grad()
def _inner_rule(mu: Tensor, sigma: Tensor, top: Tensor, edge: Tensor | None, grid: Grid) -> tuple[Tensor, Tensor]:
    """Nodes and weights, (B, n, R, J), for y up to ``top`` and with log(1 + e^y) above ``edge``, denser at the top."""
    loc, reach = mu.detach().unsqueeze(-1), REACH * sigma.detach().unsqueeze(-1)
    high = top.minimum(loc + reach)
    low = loc - reach
    if edge is not None:
        low = low.maximum(torch.where(edge > 0, torch.expm1(edge).clamp(min=0.0).log(), -math.inf))
    x, w = kept_rule(min(64, max(8, grid.v.shape[-1] // 8)), mu)
    span = torch.log1p((high - low).clamp(min=0.0)).unsqueeze(-1)
    return high.unsqueeze(-1) - torch.expm1(span * x), w * span * torch.exp(span * x)


def _pdf(y: Tensor, mu: Tensor, sigma: Tensor) -> Tensor:
    """The densities of the sticks' normals at (B, n, R, J) points."""
    return pdf(y, mu[..., None, None], sigma[..., None, None])


def _shortest(mu: Tensor) -> Tensor:
    """The log of the shortest that the longest can be of the sticks after each, the leftover included: (1, n, 1)."""
    competitors = torch.arange(mu.shape[-1], 0, -1, dtype=mu.dtype, device=mu.device)
    return -competitors.log().reshape(1, -1, 1)


def logit_exp(x: Tensor) -> Tensor:
    """logit(exp(x)) for x <= 0, where it is finite: at most what the smallest step below zero gives."""
    x = x.clamp(max=-torch.finfo(x.dtype).tiny)
    return x - (-torch.expm1(x)).log()
