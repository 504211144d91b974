"""A control variate for RELAX, trained before its estimates are measured."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from igr.distributions import Relaxation
from igr.estimators import relax
from igr.lab.problems import Function

__all__ = ["BATCH", "HIDDEN", "LEARNING_RATE", "train_control"]

HIDDEN, LEARNING_RATE, BATCH = 32, 0.03, 32


def train_control(
    f: Function,
    smooth: bool,
    relaxation: Callable[[int], Relaxation],
    size: int,
    *,
    steps: int,
    like: Tensor,
    generator: torch.Generator,
) -> Function:
    r""":math:`c(z) = \eta f(z) + v \cdot \tanh(W z + b)`, trained by the variance of the gradient, and then fixed.

    It starts as REBAR, at :math:`\eta = 1` and :math:`v = 0`.

    Arguments:
        f: the function.
        smooth: whether it has a gradient; otherwise :math:`\eta = 0` throughout.
        relaxation: gives q with so many examples in its batch, all alike.
        size: N K, the numbers that a sample has.
        steps: of Adam, each looking at a few estimates of one sample.
        like: a tensor of the dtype and device.
        generator: source of the noise.
    """

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)

    weights = [noise(size, HIDDEN) / math.sqrt(HIDDEN), noise(HIDDEN), like.new_zeros(HIDDEN), like.new_ones(())]
    for each in weights:
        each.requires_grad_()

    def c(z: Tensor) -> Tensor:
        W, b, v, eta = weights
        network = torch.tanh(z.flatten(-2) @ W + b) @ v
        return network + eta * f(z) if smooth else network

    adam = torch.optim.Adam(weights, lr=LEARNING_RATE)
    for _ in range(steps):
        adam.zero_grad()
        relax(relaxation(BATCH), f, control_variate=c, generator=generator).surrogate.mean().backward()
        adam.step()
    for each in weights:
        each.requires_grad_(False)
    return c
