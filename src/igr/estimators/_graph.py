"""Questions to autograd's graph: what a tensor is made from, and gradients that go to some of that only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import grad
from torch.autograd.graph import Node, get_gradient_edge

from igr._checks import interpreters


def can_be_walked() -> bool:
    """Whether there is a graph to look at: not for a compiler, nor inside ``torch.func``."""
    return not torch.compiler.is_compiling() and not interpreters()


def leaves(*roots: Tensor) -> dict[int, Tensor]:
    """The tensors that these are made from in the end, by their ids."""
    found = (getattr(node, "variable", None) for node in _nodes(*roots))
    return {id(leaf): leaf for leaf in found if leaf is not None}


def depends(value: Tensor, x: Tensor) -> bool:
    """Whether a gradient of ``value`` would get to ``x``."""
    target = get_gradient_edge(x).node
    return any(node is target for node in _nodes(value))


def _nodes(*roots: Tensor) -> Iterator[Node]:
    nodes = [get_gradient_edge(root).node for root in roots if root.requires_grad]
    visited = set(nodes)
    while nodes:
        node = nodes.pop()
        yield node
        new = [parent for parent, _ in node.next_functions if parent is not None and parent not in visited]
        visited.update(new)
        nodes.extend(new)


def only_to(some: Sequence[Tensor], x: Tensor) -> Tensor:
    """Zeros that pass the gradient of x on to these leaves, and to nothing else that x depends on."""

    def pull(weight: Tensor) -> Sequence[Tensor | None]:
        return grad(x, some, weight, retain_graph=True, allow_unused=True)

    zeros: Tensor = _Pull.apply(pull, torch.zeros_like(x), *some)  # type: ignore[no-untyped-call]
    return zeros


class _Pull(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pull: Callable[[Tensor], Sequence[Tensor | None]], zeros: Tensor, *some: Tensor) -> Tensor:
        ctx.pull = pull
        return zeros.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *ctx.pull(weight)
