r"""Affine layers of all members, and Adam for them.

On CUDA in float32 both are the kernels of :mod:`igr.paper.layer_kernels`: a layer leaves the two factors of the
gradient of its weights, x and that of y, and :class:`Adam` multiplies them where it needs the product. Elsewhere they
are torch's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

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


class Listener(Protocol):
    """What is told of gradients while they are computed."""

    def before_products(self) -> None:
        """Products of gradients and weights come next."""

    def complete(self, weights: list[Tensor]) -> None:
        """Nothing will ask for these weights any more: every use of them has left its factors."""


class Factors:
    """The gradients of layers' weights, as pairs of factors (x, gradient of y).

    A layer may be used several times in a step: then it has several pairs, and its gradient is the sum.

    Attributes:
        pairs: by the weight that they belong to.
        uses: how often each weight was used in this step, where gradients were wanted.
        precision: of products, as Triton names it.
    """

    def __init__(self, precision: str) -> None:
        self.precision = precision
        self.pairs: dict[Tensor, list[tuple[Tensor, Tensor]]] = {}
        self.uses: Counter[Tensor] = Counter()
        self._listener: Listener | None = None

    @contextmanager
    def collected(self, listener: Listener) -> Iterator[None]:
        """Gradients that are computed inside count; those that estimators take on the way do not."""
        self._listener = listener  # only here: copies of a model have none
        try:
            yield
        finally:
            self._listener = None

    def begin(self) -> None:
        """Gradients of inputs are about to be computed."""
        if self._listener is not None:
            self._listener.before_products()

    def add(self, weights: Sequence[Tensor], given: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """One use of some layers, once all gradients that depend on their weights have been computed."""
        if self._listener is None:
            return
        for weight, x, dy in zip(weights, given, gradients, strict=True):
            self.pairs.setdefault(weight, []).append((x, dy))
        self._listener.complete([weight for weight in weights if len(self.pairs[weight]) == self.uses[weight]])

    def taken(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The factors of a weight, all uses as rows of one pair, which are then forgotten."""
        uses = self.pairs.pop(weight)
        x, dy = uses[0] if len(uses) == 1 else (torch.cat(parts, 1) for parts in zip(*uses, strict=True))
        return x, dy


class _Layers(torch.autograd.Function):
    """What :func:`layers` computes, where weights and biases have no gradient but factors of it."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, factors: Factors, n: int, *parameters: Tensor) -> Tensor:
        from igr.paper.layer_kernels import affine

        ctx.factors, ctx.weights, biases = factors, parameters[:n], parameters[n:]
        factors.uses.update(ctx.weights)
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
        gradients = [d]  # from the last layer to the first
        wanted = ctx.needs_input_grad[0]
        if wanted or len(weights) > 1:
            factors.begin()
        for i in range(len(weights) - 1, 0, -1):
            gradients.append(affine_input_gradient(gradients[-1], weights[i], factors.precision, relu=given[i]))
        first = affine_input_gradient(gradients[-1], weights[0], factors.precision) if wanted else None
        factors.add(weights, given, gradients[::-1])
        return first, None, None, *[None] * 2 * len(weights)


class Adam:
    """Adam for all members, its state made at once, so that it can be loaded and captured before the first step.

    A layer that left factors takes its step as soon as they are complete, on CUDA beside the gradients that are still
    being computed: many of those are small kernels, which leave the memory idle that Adam is bound by. The products of
    other layers are bound by it as well, so they wait.

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
        self._beside = torch.cuda.Stream(device) if self._captured and factors is not None else None
        self._rate_there = torch.tensor(rate, dtype=torch.float32, device=device)
        lr = self._rate_there if self._captured and varies else rate
        self._torch = torch.optim.Adam(parameters, lr, BETAS, EPS, fused=True, capturable=self._captured)
        self._sizes = torch.empty(0)  # of the step that is being taken
        self._in_use: list[tuple[Tensor, Tensor]] = []  # whose memory is to stay theirs until the end of the step
        shared = torch.zeros((), dtype=torch.float32, device=device)  # layers that leave factors count together
        layered = set() if factors is None else {*model.weights, *model.biases}  # type: ignore[misc]
        for p in parameters:
            step = shared if p in layered else torch.zeros_like(shared)
            self.state[p] = {"step": step, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}

    @property
    def state(self) -> dict[Tensor, dict[str, Tensor]]:
        """By parameter: ``step``, ``exp_avg`` and ``exp_avg_sq``."""
        return self._torch.state

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
        """The gradients of the mean of each member's losses, ``(E, B)``, in place of earlier ones.

        Layers that leave factors begin their steps, and may have changed when this returns.
        """
        self._torch.zero_grad(set_to_none=True)
        gradient = torch.full_like(losses, 1 / losses.shape[-1])
        if self._factors is None:
            losses.backward(gradient)
            return
        with self._aside():
            self._sizes = self._next_sizes()
        with self._factors.collected(self):
            losses.backward(gradient)

    def step(self) -> None:
        """One step of all parameters that have gradients."""
        self._torch.step()
        if self._factors is not None:
            self.complete(list(self._factors.pairs))
            self._factors.uses.clear()
        self.before_products()
        self._in_use.clear()

    def _next_sizes(self) -> Tensor:
        from igr.paper.layer_kernels import adam_sizes

        return adam_sizes(self.state[next(iter(self._biases))]["step"], self._rate_there, BETAS)

    @torch.no_grad()
    def complete(self, weights: list[Tensor]) -> None:
        """The steps of layers whose factors are complete."""
        from igr.paper.layer_kernels import adam_product

        assert self._factors is not None
        with self._aside():
            for weight in weights:
                self._in_use += self._factors.pairs[weight]
                x, dy = self._factors.taken(weight)
                parameters = self._tensors(weight), self._tensors(self._biases[weight])
                adam_product(x, dy, *parameters, self._sizes, BETAS, EPS, self._factors.precision)

    def before_products(self) -> None:
        """What is launched from now on comes after all that was launched aside."""
        if self._beside is not None:
            torch.cuda.current_stream(self._beside.device).wait_stream(self._beside)

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """What is launched inside comes after all that was launched before, and beside what is launched later."""
        if self._beside is None:
            yield
            return
        self._beside.wait_stream(torch.cuda.current_stream(self._beside.device))
        with torch.cuda.stream(self._beside):
            yield

    def _tensors(self, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return p, self.state[p]["exp_avg"], self.state[p]["exp_avg_sq"]
