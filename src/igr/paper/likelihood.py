"""Log-likelihoods of images given the decoder's output, summed over pixels."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from igr import kernels

__all__ = ["BINARY", "Pixels", "bernoulli_log_prob", "gaussian_log_prob"]


class Pixels(NamedTuple):
    """What D pixels are, given what a decoder says: D logits, or of grey ones D means and then D scales.

    The mean of a grey pixel is sigmoid(·), its scale the floor + softplus(·).
    """

    grey: bool
    elu: bool = False
    """Whether what is said of grey pixels goes through an ELU first."""
    floor: float = 0.0

    def log_prob(self, x: Tensor, said: Tensor) -> Tensor:
        """log p(x | z), summed over the pixels; shapes broadcast but for the last axis."""
        if not self.grey:
            return bernoulli_log_prob(x, said)
        mean, scale = (F.elu(said) if self.elu else said).chunk(2, -1)
        return gaussian_log_prob(x, mean.sigmoid(), self.floor + F.softplus(scale))

    def mean(self, said: Tensor) -> Tensor:
        """The expected pixels, in [0, 1]."""
        if not self.grey:
            return said.sigmoid()
        mean = said.chunk(2, -1)[0]
        return (F.elu(mean) if self.elu else mean).sigmoid()


BINARY = Pixels(grey=False)


class _Bernoulli(torch.autograd.Function):
    """The sum over pixels, which keeps the logits alone for its gradient: this is most of the memory of a step."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, logits: Tensor) -> Tensor:
        ctx.save_for_backward(x, logits)
        return torch.addcmul(F.softplus(logits).neg_(), x, logits).sum(-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        x, logits = ctx.saved_tensors
        return None, (x - logits.sigmoid()).mul_(grads[0].unsqueeze(-1))


def bernoulli_log_prob(x: Tensor, logits: Tensor) -> Tensor:
    r""":math:`\sum_d x_d l_d - \log(1 + e^{l_d})`, x without a gradient; shapes broadcast, the last axis is summed.

    Example:
        >>> bernoulli_log_prob(torch.tensor([1.0, 0.0]), torch.zeros(2))
        tensor(-1.3863)
    """
    if torch.compiler.is_compiling():  # which finds out by itself what to keep
        return (x * logits - F.softplus(logits)).sum(-1)
    if not torch.is_grad_enabled() and _in_rows(x, logits) and kernels.usable(x, logits):
        from igr.paper.likelihood_kernels import bernoulli_rows

        return bernoulli_rows(x, logits)
    value: Tensor = _Bernoulli.apply(x, logits)  # type: ignore[no-untyped-call]
    return value


def _in_rows(x: Tensor, logits: Tensor) -> bool:
    """Whether the kernel takes these shapes and dtypes."""
    if logits.dim() > 4 or logits.numel() == 0 or not x.dtype == logits.dtype == torch.float32:
        return False
    return bool(torch.broadcast_shapes(x.shape, logits.shape) == logits.shape)


def gaussian_log_prob(x: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    r""":math:`\sum_d \log N(x_d; m_d, s_d^2)`.

    Example:
        >>> gaussian_log_prob(torch.zeros(2), torch.zeros(2), torch.ones(2))
        tensor(-1.8379)
    """
    return (-0.5 * ((x - mean) / scale).square() - scale.log() - 0.5 * math.log(2 * math.pi)).sum(-1)
