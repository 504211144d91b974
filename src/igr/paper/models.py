r"""The VAE of the paper, many of them at once: every parameter has a leading axis E, one slice for each member.

Encoder and decoder are affine, 784 - 200 - 784, or have two hidden layers each, 784 ~ 512 ~ 256 - 200 - 256 ~ 512 ~ 784
with ReLU. The encoder says :math:`(\mu, \log \sigma)`, or the logits, of N variables with K categories for each image.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn

from igr.paper.compiled import fast
from igr.paper.layers import Factors, layers
from igr.paper.likelihood import BINARY, Pixels
from igr.paper.streams import generator_of
from igr.paper.trained import DIFFERENTIATED_TWICE
from igr.paper.vae import Vae

__all__ = ["EnsembleVae", "glorot", "members_axis", "parameters_of", "select_members"]

M = TypeVar("M", bound=nn.Module)

HIDDEN = {"linear": (), "nonlinear": (512, 256)}
SCALE_FLOOR = 0.1  # of the Gaussian decoder: without one, pixels that are black in every image have infinite density
GREY = {"honest": Pixels(True, floor=SCALE_FLOOR), "published": Pixels(True, elu=True, floor=1e-6)}
PLANAR_LAYERS, PLANAR_STD = 2, 0.05
MOST_LOC, MOST_LOG_SCALE = 5.0, 1.5  # of parameters that are bounded
CONTROL_UNITS = 50  # of the hidden layer of a control variate


class EnsembleVae(nn.Module):
    """The parameters of E variational autoencoders, and what they compute.

    A member starts from its own seed: the same weights whatever the other members are, and whatever its temperature.
    Weights are drawn uniformly as by Glorot and Bengio (2010), biases start at zero.

    Arguments:
        cell: architecture, method, data set and protocol.
        seeds: the seed of each member, E of them.
        num_variables: N.
        num_categories: K.
        num_pixels: D.
        dtype: of the parameters.
    """

    def __init__(
        self,
        cell: Vae,
        seeds: Sequence[int],
        *,
        num_variables: int = 20,
        num_categories: int = 10,
        num_pixels: int = 784,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.cell, self.shape = cell, (num_variables, num_categories)
        self.pixels = GREY[cell.protocol] if cell.dataset == "fmnist" else BINARY
        hidden, coded = HIDDEN[cell.architecture], num_variables * num_categories
        parameters = coded if cell.method == "gs" else 2 * num_variables * (num_categories - 1)
        encoder = [num_pixels, *hidden, parameters]
        decoder = [coded, *reversed(hidden), (2 if self.pixels.grey else 1) * num_pixels]
        sizes = [*pairwise(encoder), *pairwise(decoder)]
        generators = [generator_of(seed, "weights") for seed in seeds]
        self.weights = nn.ParameterList([glorot(generators, *size).to(dtype) for size in sizes])
        self.biases = nn.ParameterList([torch.zeros(len(seeds), 1, size[1], dtype=dtype) for size in sizes])
        self.depth = len(encoder) - 1
        self.factors: Factors | None = None  # where gradients are left in training, if they are not computed
        if cell.method == "igr-planar":
            shape = (2, PLANAR_LAYERS, 1, num_variables, num_categories - 1)
            drawn = torch.stack([torch.randn(shape, generator=each) for each in generators]) * PLANAR_STD
            u, w = drawn.to(dtype).movedim(0, 2)  # (layers, E, 1, N, K - 1) each
            self.u, self.w = nn.Parameter(u.contiguous()), nn.Parameter(w.contiguous())
            self.b = nn.Parameter(torch.zeros(u.shape[:-1], dtype=dtype))
        if cell.estimator == "relax":
            sizes = [(coded, CONTROL_UNITS), (CONTROL_UNITS, 1)]
            self.control_weights = nn.ParameterList([glorot(generators, *size).to(dtype) for size in sizes])
            self.control_biases = nn.ParameterList([torch.zeros(len(seeds), 1, size[1], dtype=dtype) for size in sizes])
            self.log_temperature = nn.Parameter(torch.zeros(len(seeds), 1, num_variables, dtype=dtype))

    @property
    def noise_shape(self) -> tuple[int, int]:
        """The noise of one sample: ``(N, K - 1)``, or ``(N, K)`` for GS."""
        N, K = self.shape
        return N, K if self.cell.method == "gs" else K - 1

    @property
    def noise_kind(self) -> str:
        """What it is."""
        return "gumbel" if self.cell.method == "gs" else "gaussian"

    @property
    def flow(self) -> list[tuple[Tensor, ...]]:
        """u, w and b of each planar map of IGR-Planar, none for others."""
        return list(zip(self.u, self.w, self.b, strict=True)) if self.cell.method == "igr-planar" else []

    def subset(self, rows: Sequence[int]) -> EnsembleVae:
        """Some of the members, as copies."""
        return select_members(self, rows)

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        r""":math:`\mu` and :math:`\log \sigma`, ``(E, B, N, K-1)``, or logits, ``(E, B, N, K)``, of x ``(E, B, D)``."""
        return parameters_of(self.say(x), self.noise_shape, self.cell)

    def say(self, x: Tensor) -> Tensor:
        """What the encoder says, ``(E, B, -1)``, all numbers of an image in one row."""
        return self._layers(x, 0, self.depth)

    def decode(self, z: Tensor) -> Tensor:
        """The parameters of the pixels, ``(S, E, B, D)`` or ``(S, E, B, 2 D)``, for z of shape ``(S, E, B, N, K)``."""
        S, E, B = z.shape[:3]
        h = self._layers(_by_member(z), self.depth, len(self.weights))
        return h.view(E, S, B, -1).transpose(0, 1)

    def control(self, z: Tensor) -> Tensor:
        """The free part of a control variate, ``(S, E, B)``: a network of the relaxed sample, in [-1, 1]."""
        S, E, B = z.shape[:3]
        h = torch.baddbmm(self.control_biases[0], _by_member(2 * z - 1), self.control_weights[0]).relu()
        return torch.baddbmm(self.control_biases[1], h, self.control_weights[1]).view(E, S, B).transpose(0, 1)

    def temperature(self, tau: Tensor) -> Tensor:
        """What a control variate has learned, one for each variable, ``(E, 1, N, 1)``, from where it started."""
        return tau * self.log_temperature.exp().unsqueeze(-1)

    def log_px(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x | z), ``(S, E, B)``, for x of shape ``(E, B, D)``."""
        # compiled functions lose second derivatives, and do not always say so
        once = self.cell.estimator not in DIFFERENTIATED_TWICE
        return (fast(Pixels.log_prob, x) if once else Pixels.log_prob)(self.pixels, x, self.decode(z))

    def mean_image(self, z: Tensor) -> Tensor:
        """The expected pixels, in [0, 1], shape ``(S, E, B, D)``."""
        return self.pixels.mean(self.decode(z))

    def _layers(self, h: Tensor, first: int, end: int) -> Tensor:
        return layers(h, self.weights[first:end], self.biases[first:end], self.factors)


def parameters_of(said: Tensor, noise_shape: tuple[int, int], cell: Vae) -> tuple[Tensor, ...]:
    r""":math:`\mu` and :math:`\log \sigma`, or logits, from what the encoder says.

    Those that are bounded are :math:`5 \tanh(\mu / 5)` and :math:`1.5 \tanh(\log \sigma / 1.5)`: all scales are within
    a factor of 20 of each other, and any category can still be all but certain. The discrete KL has no hold on the
    scales: where they are free they drift to where float32 ends.
    """
    if cell.method == "gs":
        return (said.unflatten(-1, noise_shape),)
    mu, xi = said.unflatten(-1, (2, *noise_shape)).unbind(-3)
    if cell.parameters == "bounded":
        return tuple(most * (each / most).tanh() for each, most in ((mu, MOST_LOC), (xi, MOST_LOG_SCALE)))
    return mu, xi


def _by_member(z: Tensor) -> Tensor:
    """Samples ``(S, E, B, N, K)`` as rows of each member, ``(E, S B, N K)``."""
    S, E, B = z.shape[:3]
    return z.flatten(-2).transpose(0, 1).reshape(E, S * B, -1)


def select_members(model: M, rows: Sequence[int]) -> M:
    """Some of the members of a model, as copies."""
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        index = torch.as_tensor(rows, device=parameter.device)
        parameter.data = parameter.data.index_select(members_axis(parameter), index)
    other.factors = None  # type: ignore[assignment] # they are not trained
    return other


def members_axis(parameter: Tensor) -> int:
    """Weights and biases begin with E; the parameters of planar flows with the layers, then E."""
    return 0 if parameter.dim() == 3 else 1  # (E, in, out) and (E, 1, out); (layers, E, 1, N, ...)


def glorot(generators: Sequence[torch.Generator], fan_in: int, fan_out: int) -> Tensor:
    """One uniform draw for each member, ``(E, in, out)``, in float32 whatever the model computes in."""
    limit = math.sqrt(6 / (fan_in + fan_out))
    return torch.stack([torch.empty(fan_in, fan_out).uniform_(-limit, limit, generator=each) for each in generators])
