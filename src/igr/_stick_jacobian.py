r"""The derivatives of all recovered probabilities of IGR-SB by all locations, as cheap as a few of the probabilities.

The steps of the recursions are linear in the tables. As dense matrices, they carry the derivative of one step to all
later probabilities at once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from igr._stick_recovery import (
    STENCIL,
    Grid,
    Step,
    backward_step,
    forward_step,
    meet,
    stick_range,
    tables_after,
    tables_before,
)


def stick_masses_and_jacobian(mu: Tensor, sigma: Tensor, leftover: bool, num_nodes: int) -> tuple[Tensor, Tensor]:
    """The masses of one row of n sticks, and their derivatives by its locations: (n,) to (K,) and (K, n)."""
    mu, sigma = mu.detach().unsqueeze(0), sigma.detach().unsqueeze(0)
    grid = Grid.between(*stick_range(mu, sigma), num_nodes)
    forward, forward_slope = _with_slope(lambda m: forward_step(m, sigma, grid), mu)
    backward, backward_slope = _with_slope(lambda m: backward_step(m, sigma, grid, leftover), mu)
    before, after = tables_before(forward, grid), tables_after(backward, grid, leftover)
    mu, used, after = mu.requires_grad_(), before[:, :-1].clone().requires_grad_(), after.requires_grad_()
    with torch.enable_grad():
        masses = meet(mu, sigma, grid, used, after, leftover)
        own, by_before, by_after = torch.autograd.grad(masses.sum(), (mu, used, after))  # each mass has its own rows
    jacobian = own[0].diag_embed() + _through_later(backward, backward_slope, after.detach(), by_after, grid)
    masses, by_before = masses.detach()[0], by_before[0]
    if leftover:
        masses = torch.cat([masses, before[0, -1, -1:]])
        at_zero = torch.zeros_like(by_before[:1])
        at_zero[..., -1] = 1.0
        by_before = torch.cat([by_before, at_zero])
        jacobian = F.pad(jacobian, (0, 0, 0, 1))
    return masses, jacobian + _through_earlier(forward, forward_slope, before, by_before, grid)


def _with_slope(build: Callable[[Tensor], Step], mu: Tensor) -> tuple[Step, Step]:
    """A step, and its derivative: what belongs to a stick depends on no location but its own.

    By reverse mode twice, since the levels of forward mode are the same for all threads of a process.
    """
    mu = mu.detach().requires_grad_()
    with torch.enable_grad():
        first, position, *numbers = build(mu)
        moving = [each for each in numbers if each.requires_grad]
        weights = [torch.zeros_like(each, requires_grad=True) for each in moving]
        (transposed,) = torch.autograd.grad(moving, mu, weights, create_graph=True)
        along = iter(torch.autograd.grad(transposed.sum(), weights))
    slopes = [next(along) if each.requires_grad else torch.zeros_like(each) for each in numbers]
    first, position = first.detach(), position.detach()
    return Step(first, position, *(each.detach() for each in numbers)), Step(first, position, *slopes)


def _through_earlier(step: Step, slope: Step, before: Tensor, by_before: Tensor, grid: Grid) -> Tensor:
    """How masses depend on the locations of earlier sticks, through their tables :math:`A_k`: (K, n)."""
    n, Q = step.diagonal.shape[1], grid.v.shape[-1]
    jacobian = by_before.new_zeros(len(by_before), n)
    adjoint = torch.zeros_like(by_before)
    for j in reversed(range(n)):
        later = slice(j + 1, None)
        adjoint[j + 1 : j + 2] = by_before[j + 1 : j + 2]
        jacobian[later, j] = adjoint[later] @ slope.take(j, before[:, j], Q)[0]
        adjoint[later] = adjoint[later] @ _dense(step, j, Q)
    return jacobian


def _through_later(step: Step, slope: Step, after: Tensor, by_after: Tensor, grid: Grid) -> Tensor:
    """How masses depend on the locations of later sticks, through their tables :math:`B_k`: (n, n)."""
    n, Q = step.diagonal.shape[1], grid.v.shape[-1]
    jacobian = by_after.new_zeros(n, n)
    adjoint = torch.zeros_like(by_after[0])
    for j in range(1, n):
        adjoint[j - 1] = by_after[0, j - 1]
        jacobian[:j, j] = adjoint[:j] @ slope.take(j, after[:, j], Q)[0]
        adjoint[:j] = adjoint[:j] @ _dense(step, j, Q)
    return jacobian


def _dense(step: Step, k: int, num_nodes: int) -> Tensor:
    """One step as the matrix, (R, R), that it applies to a table."""
    first, position, density = step.first[0, k], step.position[0, k], step.density[0, k]  # (R, J)
    offsets = torch.arange(STENCIL, device=first.device)
    columns = (first.unsqueeze(-1) + offsets).flatten(-2)
    values = (density.unsqueeze(-1) * _lagrange(position)).flatten(-2)
    matrix = torch.diag_embed(step.diagonal[0, k] - density.sum(-1))
    return matrix.scatter_add(-1, columns, values)


def _lagrange(position: Tensor) -> Tensor:
    """The weights of the nodes 0, 1, ... of a stencil in the interpolation at a position."""
    nodes = torch.arange(STENCIL, dtype=position.dtype, device=position.device)
    weights = []
    for i in range(STENCIL):
        others = nodes[nodes != i]
        weights.append(((position.unsqueeze(-1) - others) / (i - others)).prod(-1))
    return torch.stack(weights, -1)
