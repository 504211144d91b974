"""The trainable parameters of planar flows; public as :mod:`igr.nn`."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributions import ComposeTransform

from igr._checks import check_count
from igr.transforms import Planar


class PlanarFlow(nn.Module):
    r"""The parameters of nested planar flows; calling it returns the transform.

    References:
        Section 4: two nested planar flows before the softmax++ make IGR-Planar.

    Arguments:
        num_categories: K; the flow acts on :math:`\mathbb{R}^{K-1}`.
        num_layers: how many planar maps are nested.
        batch_shape: one flow of its own for each of these, such as each latent variable.
        std: standard deviation of the initial u and w; b starts at zero.

    Example:
        >>> from igr import InvertibleGaussian
        >>> planar = PlanarFlow(num_categories=10)
        >>> q = InvertibleGaussian(torch.zeros(32, 9), 1.0, temperature=0.3, flow=planar())
        >>> q.rsample().sum().backward()
        >>> planar.u.grad.shape
        torch.Size([2, 9])
    """

    def __init__(
        self, num_categories: int, num_layers: int = 2, batch_shape: tuple[int, ...] = (), std: float = 0.05
    ) -> None:
        super().__init__()
        size = check_count("num_categories", num_categories, 2) - 1
        shape = (check_count("num_layers", num_layers), *batch_shape, size)
        self.u = nn.Parameter(std * torch.randn(shape))
        self.w = nn.Parameter(std * torch.randn(shape))
        self.b = nn.Parameter(torch.zeros(shape[:-1]))

    def forward(self) -> ComposeTransform:
        """The nested planar maps with the present parameters."""
        return ComposeTransform([Planar(u, w, b) for u, w, b in zip(self.u, self.w, self.b, strict=True)])

    def extra_repr(self) -> str:
        num_layers, *batch_shape, size = self.u.shape
        return f"num_categories={size + 1}, num_layers={num_layers}, batch_shape={tuple(batch_shape)}"
