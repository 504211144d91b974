r"""The VAE with a mixture as prior, many of them at once: every parameter has a leading axis E, one slice for a member.

.. math:: v_k \sim \mathrm{Beta}(1, \alpha), \quad \pi_k = v_k \prod_{i<k} (1 - v_i), \quad c \sim \pi, \quad
    z | c \sim N(m_c, I), \quad x | z \sim \mathrm{Bernoulli}(\mathrm{decoder}(z)).

Encoder 784 ~ 200 ~ 200 ~ 200, then two numbers for each stick and mean and log-scale of z for each component; decoder
50 ~ 200 ~ 200 - 784, with ReLU. The paper's list gives the decoder three hidden layers, its picture and the published
code two.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from igr.paper.compiled import fast
from igr.paper.layers import Factors, layers
from igr.paper.likelihood import bernoulli_log_prob
from igr.paper.models import glorot, select_members
from igr.paper.nonparametric.laws import LAWS, Sticks
from igr.paper.nonparametric.spec import Mixture
from igr.paper.streams import generator_of
from igr.paper.trained import Member

__all__ = ["Components", "EnsembleMixture", "posterior_of", "prior_means"]


class Components(NamedTuple):
    r""":math:`q(z | c, x) = N(\mathrm{mean}_c, \mathrm{diag}\, e^{2 \xi_c})`, ``(E, B, C, L)`` each."""

    mean: Tensor
    xi: Tensor


class EnsembleMixture(nn.Module):
    """The parameters of E mixtures, and what they compute.

    A member starts from its own seed: the same weights whatever the other members are. Weights are drawn uniformly as
    by Glorot and Bengio (2010), biases start at zero. Members of DLDPMM may differ in their number of components: there
    is room for the largest, and what others have no use for stays at zero.

    Attributes:
        means: the prior's means of z, ``(C, L)``, the same for all members and seeds.
        limit: how many sticks a member may break, ``(E, 1, 1)``.

    Arguments:
        cell: method, sizes and prior.
        members: E of them.
        num_pixels: D.
        hidden: the width of hidden layers.
        dtype: of the parameters.
    """

    means: Tensor
    limit: Tensor

    def __init__(
        self,
        cell: Mixture,
        members: Sequence[Member],
        *,
        num_pixels: int = 784,
        hidden: int = 200,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.cell = cell
        sizes = [each.num_components or cell.max_components for each in members]
        self.shape = max(sizes), cell.latent_dim
        generators = [generator_of(each.seed, "weights") for each in members]
        coded = self.num_outputs(self.shape[0])
        layers = [*pairwise([num_pixels, hidden, hidden, hidden]), (hidden, coded)]
        self.depth = len(layers)
        layers += pairwise([cell.latent_dim, hidden, hidden, num_pixels])
        weights = [self._start(each, layers, K) for each, K in zip(generators, sizes, strict=True)]
        self.weights = nn.ParameterList([torch.stack(each).to(dtype) for each in zip(*weights, strict=True)])
        self.biases = nn.ParameterList([torch.zeros(len(members), 1, size[1], dtype=dtype) for size in layers])
        self.factors: Factors | None = None  # where gradients are left in training, if they are not computed
        self.register_buffer("means", prior_means(cell)[: self.shape[0]].to(dtype))
        self.register_buffer("limit", torch.tensor(sizes).view(-1, 1, 1) - 1)

    @property
    def stick_noise(self) -> str:
        """What draws of sticks are made of."""
        return "gumbel" if self.cell.method == "dldpmm" else "gaussian"

    def num_outputs(self, num_components: int) -> int:
        """Of the encoder."""
        return 2 * (num_components - 1) + 2 * num_components * self.cell.latent_dim

    def subset(self, rows: Sequence[int]) -> EnsembleMixture:
        """Some of the members, as copies."""
        other = select_members(self, rows)
        other.limit = other.limit[list(rows)]
        return other

    def encode(self, x: Tensor) -> tuple[Sticks, Components]:
        """The posterior of the sticks, ``(E, B, C - 1)``, and of z given each component, for x ``(E, B, D)``."""
        return posterior_of(self.cell.method, self.say(x), self.shape)

    def say(self, x: Tensor) -> Tensor:
        """What the encoder says of images, ``(E, B, -1)``, all numbers of one in a row."""
        return self._layers(x, 0, self.depth)

    def decode(self, z: Tensor) -> Tensor:
        """Logits of the pixels, ``(E, B, n, D)``, for z of shape ``(E, B, n, L)``."""
        h = self._layers(z.flatten(1, 2), self.depth, len(self.weights))
        return h.view(*z.shape[:3], -1)

    def log_px(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x | z), ``(E, B, n)``, for x of shape ``(E, B, D)``."""
        return fast(bernoulli_log_prob, x)(x.unsqueeze(2), self.decode(z))

    def _layers(self, h: Tensor, first: int, end: int) -> Tensor:
        return layers(h, self.weights[first:end], self.biases[first:end], self.factors)

    def _start(self, generator: torch.Generator, layers: Sequence[tuple[int, int]], K: int) -> list[Tensor]:
        """The weights of a member with K components; the last ones of its encoder are filled up to those of C."""
        sizes = list(layers)
        sizes[self.depth - 1] = sizes[self.depth - 1][0], self.num_outputs(K)
        weights = [glorot([generator], *size)[0] for size in sizes]
        weights[self.depth - 1] = self._widened(weights[self.depth - 1], K)
        return weights

    def _widened(self, weight: Tensor, K: int) -> Tensor:
        """Outputs for K components at the places that they have among those for C, the others zero."""
        C, L = self.shape
        sticks, components = weight.split([2 * (K - 1), 2 * K * L], -1)
        sticks = F.pad(sticks.unflatten(-1, (2, K - 1)), (0, C - K))
        components = F.pad(components.unflatten(-1, (2, K, L)), (0, 0, 0, C - K))
        return torch.cat([sticks.flatten(1), components.flatten(1)], -1)


def posterior_of(method: str, said: Tensor, shape: tuple[int, int]) -> tuple[Sticks, Components]:
    """What :meth:`EnsembleMixture.encode` returns, from what the encoder says of C components of L numbers."""
    C, L = shape
    sticks, components = said.split([2 * (C - 1), 2 * C * L], -1)
    law = LAWS[method](*sticks.unflatten(-1, (2, C - 1)).unbind(-2))
    return law, Components(*components.unflatten(-1, (2, C, L)).unbind(-3))


def prior_means(cell: Mixture) -> Tensor:
    r""":math:`m_1 = 0`, and random signs over :math:`\sqrt L` for the others; ``(max_components, L)``.

    They belong to the data set, and no seed has a say in them: bits of sha256("prior means/<data set>/<c>/<n>"), 256
    for each n, the same on any machine.
    """
    C, L = cell.max_components, cell.latent_dim
    signs = np.zeros((C, L))
    for c in range(1, C):
        digests = [
            hashlib.sha256(f"prior means/{cell.dataset}/{c + 1}/{n}".encode()).digest() for n in range(-(-L // 256))
        ]
        signs[c] = 2.0 * np.unpackbits(np.frombuffer(b"".join(digests), np.uint8))[:L] - 1
    return torch.from_numpy(signs / math.sqrt(L))
