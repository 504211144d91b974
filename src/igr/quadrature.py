"""Integration rules."""

from __future__ import annotations

import operator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache

import numpy as np
import torch
from torch import Tensor

from igr._checks import check_count

__all__ = ["gauss_legendre"]


def gauss_legendre(num_nodes: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the Gauss-Legendre rule on [0, 1], exact for polynomials of degree below ``2 num_nodes``.

    Arguments:
        num_nodes: number of nodes.
        like: a tensor whose dtype and device the result has.

    Returns:
        Nodes, ascending, and weights, which sum to one; both of shape ``(num_nodes,)``.

    Example:
        >>> x, w = gauss_legendre(3, torch.zeros(()))
        >>> (w * x**5).sum()
        tensor(0.1667)
    """
    x, w = kept_rule(num_nodes, like)
    return x.clone(), w.clone()


def kept_rule(num_nodes: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """The same without copies, which are not to be written to: all who ask share them."""
    if torch.compiler.is_compiling() or like.device.type == "meta":
        return _tensors(num_nodes, like.dtype, like.device)
    return _kept_tensors(num_nodes, like.dtype, like.device)


def constant_rule(num_nodes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The rule of :func:`gauss_legendre` in float32, for the kernels."""
    rule: tuple[Tensor, Tensor] = _held_rule(_constant(num_nodes), device)
    return rule


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator] # which a compiled program holds, and not copies
def _held_rule(num_nodes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    return kept_rule(num_nodes, torch.empty((), dtype=torch.float32, device=device))


def _constant(num_nodes: int) -> int:
    """A count that a compiler, to which an argument of its program is a variable, makes a program for."""
    return operator.index(check_count("num_nodes", num_nodes))


def _tensors(num_nodes: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    nodes, weights = _rule(_constant(num_nodes))
    return torch.tensor(nodes, dtype=dtype, device=device), torch.tensor(weights, dtype=dtype, device=device)


@cache
def _kept_tensors(num_nodes: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Kept for good: nothing can be copied to a device while a CUDA graph is captured there, which then reads these."""
    # in a thread, where no transform of torch.func and no inference mode is around that they would belong to
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_tensors, num_nodes, dtype, device).result()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator] # a compiler need not look into numpy
def _rule(num_nodes: int) -> tuple[list[float], list[float]]:
    return _computed_rule(num_nodes)


@lru_cache(maxsize=32)
def _computed_rule(num_nodes: int) -> tuple[list[float], list[float]]:
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    return ((nodes + 1) / 2).tolist(), (weights / 2).tolist()
