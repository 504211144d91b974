r"""The network that completes images, many of them at once: every parameter has a leading axis E, one for each member.

392 ~ 240 - (240 binary units) ~ 240 - (240 binary units) - 392: the upper half of an image, a layer with tanh and a
linear one that says the parameters of binary units, the same again from what the units are, in [-1, 1], and the logits
of the lower half. Linear networks have no layers with tanh.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from igr.paper.compiled import fast
from igr.paper.layers import Factors, layers
from igr.paper.likelihood import bernoulli_log_prob
from igr.paper.models import PLANAR_LAYERS, PLANAR_STD, glorot, select_members
from igr.paper.sop.spec import Completion
from igr.paper.streams import generator_of
from igr.paper.trained import DIFFERENTIATED_TWICE

__all__ = ["LAYERS", "EnsembleCompletion"]

LAYERS = 2  # of binary units


class EnsembleCompletion(nn.Module):
    """The parameters of E networks, and what they compute.

    A member starts from its own seed: the same weights whatever the other members are, and whatever its temperature.
    Weights are drawn uniformly as by Glorot and Bengio (2010), biases start at zero. The flows of IGR-Planar have
    parameters for each unit, which do not depend on the image.

    Arguments:
        cell: what is trained.
        seeds: the seed of each member, E of them.
        num_units: N, of each layer.
        num_pixels: D, of a whole image; the first half of them is the upper one.
        dtype: of the parameters.
    """

    def __init__(
        self,
        cell: Completion,
        seeds: Sequence[int],
        *,
        num_units: int = 240,
        num_pixels: int = 784,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if num_pixels % 2:
            raise ValueError(f"images of {num_pixels} pixels have no halves; give an even number of them")
        self.cell, self.num_units, self.num_given = cell, num_units, num_pixels // 2
        N, said = num_units, (1 if cell.method == "gs" or cell.scale == "one" else 2) * num_units
        pairs = [
            [(given, N), (N, said)] if cell.network == "tanh" else [(given, said)] for given in (self.num_given, N)
        ]
        sizes = [*pairs[0], *pairs[1], (N, self.num_given)]
        generators = [generator_of(seed, "weights") for seed in seeds]
        self.weights = nn.ParameterList([glorot(generators, *size).to(dtype) for size in sizes])
        self.biases = nn.ParameterList([torch.zeros(len(seeds), 1, size[1], dtype=dtype) for size in sizes])
        self.factors: Factors | None = None  # where gradients are left in training, if they are not computed
        if cell.method == "igr-planar":
            shape = (2, LAYERS, PLANAR_LAYERS, 1, N, 1)
            drawn = torch.stack([torch.randn(shape, generator=each) for each in generators], 3) * PLANAR_STD
            u, w = drawn.to(dtype)  # (layers of units, layers of a flow, E, 1, N, 1) each
            self.u = nn.ParameterList([each.clone() for each in u])
            self.w = nn.ParameterList([each.clone() for each in w])
            self.b = nn.ParameterList([torch.zeros_like(each[..., 0]) for each in u])

    @property
    def noise_shape(self) -> tuple[int, int]:
        """The noise of one sample of a layer: ``(N, 1)``, or ``(N, 2)`` for GS."""
        return self.num_units, 2 if self.cell.method == "gs" else 1

    @property
    def noise_kind(self) -> str:
        """What it is."""
        return "gumbel" if self.cell.method == "gs" else "gaussian"

    def subset(self, rows: Sequence[int]) -> EnsembleCompletion:
        """Some of the members, as copies."""
        return select_members(self, rows)

    def halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The upper and the lower half of images ``(E, B, D)``."""
        return x[..., : self.num_given], x[..., self.num_given :]

    def encode(self, layer: int, h: Tensor) -> tuple[Tensor, ...]:
        r"""The parameters of a layer of units from the upper half, ``(E, B, D / 2)``, or the units before.

        Arguments:
            layer: 0 or 1.
            h: ``(*, E, B, N)`` for the second layer, with any axes of samples.

        Returns:
            :math:`\mu` and :math:`\log \sigma`, or the log-odds alone for GS, ``(*, E, B, N, 1)`` each.
        """
        return parameters_of(self.say(layer, h), self.num_units, self.cell.scale)

    def say(self, layer: int, h: Tensor) -> Tensor:
        """What the network says of a layer of units, ``(*, E, B, -1)``, all numbers of an image in one row."""
        if self.cell.network == "linear":
            return self._affine(layer, h)
        return self._affine(2 * layer + 1, self._affine(2 * layer, h).tanh())

    def decode(self, units: Tensor) -> Tensor:
        """The logits of the lower half, ``(*, E, B, D / 2)``, for units of the second layer, ``(*, E, B, N)``."""
        return self._affine(-1, units)

    def log_px(self, lower: Tensor, units: Tensor) -> Tensor:
        """log p(lower half | units), ``(*, E, B)``, for lower halves ``(E, B, D / 2)``."""
        once = self.cell.estimator not in DIFFERENTIATED_TWICE
        return (fast(bernoulli_log_prob, lower) if once else bernoulli_log_prob)(lower, self.decode(units))

    def _affine(self, i: int, h: Tensor) -> Tensor:
        """Of ``(*, E, B, in)``: all samples of a member are rows of one matrix."""
        rows = h.movedim(-3, 0)  # (E, *, B, in)
        out = layers(rows.flatten(1, -2), [self.weights[i]], [self.biases[i]], self.factors)
        return out.view(*rows.shape[:-1], -1).movedim(0, -3)


def parameters_of(said: Tensor, num_units: int, scale: str) -> tuple[Tensor, ...]:
    r""":math:`\mu` and :math:`\log \sigma`, or log-odds, ``(*, E, B, N, 1)`` each, from what the network says."""
    parameters: tuple[Tensor, ...] = said.unflatten(-1, (-1, num_units, 1)).unbind(-3)
    return (*parameters, torch.zeros_like(parameters[0])) if scale == "one" else parameters
