r"""Affine layers of all members, and Adam for them.

On CUDA in float32 both are the kernels of :mod:`igr.paper.layer_kernels`: a layer leaves the two factors of the
gradient of its weights, x and that of y, and :class:`Adam` multiplies them where it needs the product. Elsewhere they
are torch's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Adam", "Factors", "layers"]

BETAS, EPS = (0.9, 0.999), 1e-7  # as published


def layers(h: Tensor, weights: Iterable[Tensor], biases: Iterable[Tensor], factors: Factors | None = None) -> Tensor:
    """Affine layers one after another with ReLU in between, of rows ``(E, rows, in)``.

    Arguments:
        h: what the first one is given.
        weights: ``(E, in, out)`` each.
        biases: ``(E, 1, out)`` each.
        factors: where gradients of weights and biases are left, if they are not to be computed; without gradients
            products are in the precision of h all the same.
    """
    if factors is not None and torch.is_grad_enabled():
        w = tuple(weights)
        out: Tensor = _Layers.apply(h, factors, len(w), *w, *biases)  # type: ignore[no-untyped-call]
        return out
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        h = torch.baddbmm(bias, h.relu() if i else h, weight)
    return h


class Factors:
    """The gradients of layers' weights, as pairs of factors (x, gradient of y).

    A layer may be used several times in a step: then it has several pairs, and its gradient is the sum.

    Attributes:
        pairs: by the weight that they belong to.
        precision: of products, as Triton names it.
    """

    def __init__(self, precision: str = "tf32") -> None:
        self.precision = precision
        self.pairs: dict[Tensor, list[tuple[Tensor, Tensor]]] = {}
        self._collects = False

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Gradients that are computed inside count; those that estimators take on the way do not."""
        self._collects = True
        try:
            yield
        finally:
            self._collects = False

    def add(self, weight: Tensor, x: Tensor, dy: Tensor) -> None:
        """One use of a layer."""
        if self._collects:
            self.pairs.setdefault(weight, []).append((x, dy))

    def taken(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Weights with their factors, all uses as rows of one pair, which are then forgotten."""
        pairs, self.pairs = self.pairs, {}
        for weight, uses in pairs.items():
            x, dy = uses[0] if len(uses) == 1 else (torch.cat(parts, 1) for parts in zip(*uses, strict=True))
            yield weight, x, dy


class _Layers(torch.autograd.Function):
    """What :func:`layers` computes, where weights and biases have no gradient but factors of it."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, factors: Factors, n: int, *parameters: Tensor) -> Tensor:
        from igr.paper.layer_kernels import affine

        ctx.factors, ctx.weights, biases = factors, parameters[:n], parameters[n:]
        given = [h]
        for i in range(n):
            given.append(affine(given[i], ctx.weights[i], biases[i], i + 1 < n, factors.precision))
        ctx.save_for_backward(*given[:-1])
        return given[-1]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        from igr.paper.layer_kernels import affine_input_gradient

        given, weights, factors = ctx.saved_tensors, ctx.weights, ctx.factors
        for i in range(len(weights) - 1, 0, -1):
            factors.add(weights[i], given[i], d)
            d = affine_input_gradient(d, weights[i], factors.precision, relu=given[i])
        factors.add(weights[0], given[0], d)
        first = affine_input_gradient(d, weights[0], factors.precision) if ctx.needs_input_grad[0] else None
        return first, None, None, *[None] * 2 * len(weights)


class Adam:
    """Adam for all members, its state made at once, so that it can be loaded and captured before the first step.

    Arguments:
        model: the parameters; its layers are in ``weights`` and ``biases``.
        rate: the learning rate.
        varies: whether that will change. Where steps are captured it is then a tensor, in float32, as fused kernels
            want it.
        factors: where layers leave their gradients, if they do.
    """

    def __init__(self, model: nn.Module, rate: float, varies: bool, factors: Factors | None = None) -> None:
        parameters = list(model.parameters())
        self._factors, self._rate = factors, rate
        self._biases = dict(zip(model.weights, model.biases, strict=True))  # type: ignore[arg-type]
        device = parameters[0].device
        self._captured = device.type == "cuda"
        self._rate_there = torch.tensor(rate, dtype=torch.float32, device=device)
        lr = self._rate_there if self._captured and varies else rate
        self._torch = torch.optim.Adam(parameters, lr, BETAS, EPS, fused=True, capturable=self._captured)
        for p in parameters:
            step = torch.zeros((), dtype=torch.float32, device=device)
            self.state[p] = {"step": step, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}

    @property
    def state(self) -> dict[Tensor, dict[str, Tensor]]:
        """By parameter: ``step``, ``exp_avg`` and ``exp_avg_sq``."""
        return self._torch.state

    @property
    def products(self) -> str | None:
        """The precision of products that layers leave undone, if they do."""
        return None if self._factors is None else self._factors.precision

    def set_rate(self, rate: float) -> None:
        """Changes the learning rate."""
        if rate == self._rate:
            return
        self._rate = rate
        self._rate_there.fill_(rate)  # where a graph reads it
        for group in self._torch.param_groups:
            if not isinstance(group["lr"], Tensor):
                group["lr"] = rate

    def backward(self, losses: Tensor) -> None:
        """The gradients of the mean of each member's losses, ``(E, B)``, in place of earlier ones."""
        self._torch.zero_grad(set_to_none=True)
        with nullcontext() if self._factors is None else self._factors.collected():
            losses.backward(torch.full_like(losses, 1 / losses.shape[-1]))

    def step(self) -> None:
        """One step of all parameters that have gradients."""
        if self._factors is not None:
            self._step_layers(list(self._factors.taken()), self._factors.precision)
        self._torch.step()

    @torch.no_grad()
    def _step_layers(self, found: list[tuple[Tensor, Tensor, Tensor]], precision: str) -> None:
        from igr.paper.layer_kernels import adam_product, adam_sizes

        pairs = [(weight, self._biases[weight]) for weight, _, _ in found]
        torch._foreach_add_([self.state[p]["step"] for pair in pairs for p in pair], 1.0)
        sizes = adam_sizes(self.state[pairs[0][0]]["step"], self._rate_there, BETAS)  # all are at the same step
        for (weight, bias), (_, x, dy) in zip(pairs, found, strict=True):
            adam_product(x, dy, self._tensors(weight), self._tensors(bias), sizes, BETAS, EPS, precision)

    def _tensors(self, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return p, self.state[p]["exp_avg"], self.state[p]["exp_avg_sq"]
