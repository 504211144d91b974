"""Expectations and gradients without sampling: a sum over all states of the variables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from igr._checks import describe
from igr.lab.problems import Problem, ProblemError, in_words

__all__ = ["LIMIT", "Exact", "differentiable", "evaluate", "exact"]

LIMIT = 2_000_000
"""How many states there may be."""

CHUNK = 2**15


class Exact(NamedTuple):
    """What is known of a problem at given probabilities, in float64."""

    value: float
    """E[f]."""
    moments: Tensor
    """E[f 1(D_n = k)], shape ``(N, K)``: the derivative of E[f] with respect to log-probabilities."""
    magnitude: float
    r""":math:`E[|f|]`, which rounding errors are in proportion to."""


def exact(problem: Problem, log_probs: Tensor, dtype: torch.dtype = torch.float64) -> Exact:
    r"""Goes through all :math:`K^N` states.

    .. math:: \frac{\partial}{\partial \log p_{nk}} E[f(D)] = \sum_D f(D)\, 1(D_n = k) \prod_m p_{m D_m}.

    Arguments:
        problem: its function is called with one-hot states of shape ``(1, B, N, K)``.
        log_probs: of each category, ``(N, K)``.
        dtype: of the states that the function is given; sums are taken in float64.

    Raises:
        ProblemError: there are too many states, or the function does not return one finite number for each.
    """
    N, K = log_probs.shape
    if K**N > LIMIT:
        raise ProblemError(
            f"{problem.name} has {K}^{N} states, and the exact gradient is a sum over all of them; at most {LIMIT:,} "
            "can be gone through: use fewer variables or categories"
        )
    log_p = log_probs.double()
    moments, total, magnitude = torch.zeros_like(log_p), log_p.new_zeros(()), log_p.new_zeros(())
    with torch.no_grad():
        for index in _states(N, K, log_probs.device):
            one_hot = F.one_hot(index, K)  # (B, N, K)
            weighted = _call(problem, one_hot.to(dtype)) * (one_hot * log_p).sum((-1, -2)).exp()
            total += weighted.sum()
            magnitude += weighted.abs().sum()
            moments += torch.einsum("b,bnk->nk", weighted, one_hot.double())
    return Exact(total.item(), moments, magnitude.item())


def evaluate(problem: Problem, z: Tensor) -> Tensor:
    """f of samples ``(S, *, N, K)``, as it is.

    Raises:
        ProblemError: it raised something.
    """
    try:
        return problem.function(z)
    except Exception as error:  # whatever somebody's own function raises
        raise ProblemError(
            f"{problem.name} failed on {z.dtype} samples of shape {tuple(z.shape)}, (S, *, N, K): {in_words(error)}"
        ) from error


def differentiable(problem: Problem, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether f depends smoothly on relaxed samples: it has a gradient at some points, other than zero."""
    shape, generator = (8, *problem.logits.shape), torch.Generator().manual_seed(0)
    z = torch.randn(shape, generator=generator).softmax(-1).to(device, dtype).requires_grad_()
    values = _call(problem, z)
    if not values.requires_grad:
        return False
    (slope,) = torch.autograd.grad(values.sum(), z, allow_unused=True)
    return slope is not None and bool((slope != 0).any())


def _states(N: int, K: int, device: torch.device) -> Iterator[Tensor]:
    """All states as indices of categories, ``(B, N)`` at a time."""
    powers = K ** torch.arange(N - 1, -1, -1, device=device)
    for start in range(0, K**N, CHUNK):
        number = torch.arange(start, min(start + CHUNK, K**N), device=device)
        yield number.unsqueeze(-1) // powers % K


def _call(problem: Problem, one_hot: Tensor) -> Tensor:
    """f of each state in float64, checked."""
    values = evaluate(problem, one_hot.unsqueeze(0))
    expected = (1, len(one_hot))
    if not isinstance(values, Tensor) or values.shape != expected:
        raise ProblemError(
            f"{problem.name} must map samples (S, *, N, K), here {tuple(one_hot.unsqueeze(0).shape)}, to (S, *), here "
            f"{expected}, got {describe(values)}; sum over variables and categories only"
        )
    if not bool(values.isfinite().all()):
        raise ProblemError(f"{problem.name} is not finite on {int((~values.isfinite()).sum())} of the states")
    return values[0].double()
