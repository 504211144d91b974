r"""What the explorer shows of four relaxations with three categories: values in, values out, and nothing is drawn here.

Densities are with respect to Lebesgue measure on the first two coordinates. Every call has the same noise, so that
samples move with the parameters and do not jump.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from igr import GumbelSoftmax, InvertibleGaussian, Planar, StickBreaking, recovered_log_probs
from igr._suggest import vanished_share
from igr.distributions import Relaxation
from igr.paper.demo import NAMES, simplex_grid

__all__ = ["BINS", "NAMES", "Controls", "Estimate", "View", "density_grid", "parameter", "relaxation", "view"]

Array = NDArray[np.float64]

RESOLUTION = 96  # pixels below the triangle
SAMPLES = 4_000  # for distances and gradients; the first of them are drawn as points
COUNTED = 10_000  # hard samples where nothing else knows the recovered probabilities
BINS = np.linspace(0.0, 2 / 3, 25)  # of distances; no point is further from all vertices than the centre


class Controls(NamedTuple):
    """Where the sliders are."""

    tau: float = 0.5
    r""":math:`\tau` of all four."""
    delta: float = 1.0
    r""":math:`\delta` of the softmax++, which the three IGR have."""
    loc: tuple[float, float] = (0.3, -0.1)
    r""":math:`\mu`, the same for the three IGR."""
    scale: tuple[float, float] = (1.0, 1.0)
    r""":math:`\sigma`, the same for the three IGR."""
    logits: tuple[float, float, float] | None = None
    r""":math:`\log \alpha` of GS; by default it has the recovered probabilities of IGR-I."""
    u: tuple[float, float] = (0.7, -0.8)
    """Of the planar flow, as are w and b."""
    w: tuple[float, float] = (2.0, -2.0)
    b: float = 0.0


class Estimate(NamedTuple):
    """A mean over samples and its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Tensor) -> Estimate:
        """That of these values, one a sample."""
        values = values.double()
        return cls(values.mean().item(), values.std().item() / math.sqrt(len(values)))


@dataclass(frozen=True)
class View:
    r"""One relaxation at one place of the sliders.

    Attributes:
        name: the key of :data:`~igr.paper.methods.METHODS`.
        log_density: on :func:`density_grid`; minus infinity where samples never are.
        samples: ``(S, 3)``.
        distance: :math:`E[1 - \max_k z_k]`, the mean distance to the nearest vertex.
        histogram: the share of samples in each of :data:`BINS`.
        probs: of the recovered discrete distribution, ``(3,)``.
        errors: their standard errors where hard samples were counted, and None where they are exact.
        gradient: :math:`E\|\nabla_\theta v^\top z\|_2` in float32, with respect to locations (GS: logits).
        vanished: the share of samples for which no entry of that gradient exceeds the smallest normal float32.
    """

    name: str
    log_density: Array
    samples: Array
    distance: Estimate
    histogram: Array
    probs: Array
    errors: Array | None
    gradient: Estimate
    vanished: float


def parameter(name: str, at: Controls, dtype: torch.dtype = torch.float64) -> Tensor:
    """What gradients are with respect to: locations ``(2,)``, or the logits ``(3,)`` of GS."""
    if name != "gs":
        return torch.tensor(at.loc, dtype=dtype)
    if at.logits is not None:
        return torch.tensor(at.logits, dtype=dtype)
    loc, scale = (torch.tensor(each, dtype=torch.float64) for each in (at.loc, at.scale))
    return recovered_log_probs(loc, scale).to(dtype)


def relaxation(name: str, at: Controls, theta: Tensor) -> Relaxation:
    """The relaxation with these locations, or logits, ``(*, 2)`` or ``(*, 3)``; all else is where the sliders are.

    Raises:
        ValueError: no relaxation has that name.
    """

    def vector(values: tuple[float, float]) -> Tensor:
        return torch.tensor(values, dtype=theta.dtype)

    if name == "gs":
        return GumbelSoftmax(at.tau, theta)
    flows = {"igr-i": None, "igr-sb": StickBreaking(), "igr-planar": Planar(vector(at.u), vector(at.w), at.b)}
    if name not in flows:
        raise ValueError(f"no relaxation called {name!r}; expected one of {', '.join(NAMES)}")
    return InvertibleGaussian(theta, vector(at.scale), at.tau, flow=flows[name], delta=at.delta)


@cache
def density_grid(resolution: int = RESOLUTION) -> Tensor:
    """Logarithms of the points ``(H, n, 3)`` that densities are computed at: pixels of a picture of the triangle."""
    return torch.from_numpy(simplex_grid(resolution)[0]).log()


@torch.no_grad()
def view(name: str, at: Controls, *, resolution: int = RESOLUTION, num_samples: int = SAMPLES, seed: int = 0) -> View:
    """All that is shown of a relaxation.

    Arguments:
        name: ``"igr-i"``, ``"igr-sb"``, ``"igr-planar"`` or ``"gs"``.
        at: where the sliders are.
        resolution: of :func:`density_grid`.
        num_samples: S, for distances and gradients.
        seed: of the noise, the same at every place of the sliders.
    """
    q = relaxation(name, at, parameter(name, at))
    z = q.sample((num_samples,), generator=_noise(seed))
    distance = z.sort(-1).values[..., :-1].sum(-1)  # 1 - max z, without the difference
    known = q.recovered(COUNTED, generator=_noise(seed))
    errors = getattr(known, "standard_error", None)
    gradient = _gradients(name, at, num_samples, seed)
    return View(
        name=name,
        log_density=q.log_prob_from_log(density_grid(resolution)).numpy(),
        samples=z.numpy(),
        distance=Estimate.of(distance),
        histogram=np.histogram(distance.numpy(), BINS)[0] / num_samples,
        probs=known.probs.numpy(),
        errors=None if errors is None else errors.numpy(),
        gradient=Estimate.of(gradient.double().norm(dim=-1)),  # squares of float32 underflow
        vanished=vanished_share(gradient),
    )


@torch.enable_grad()
def _gradients(name: str, at: Controls, num_samples: int, seed: int) -> Tensor:
    r"""The derivative of :math:`v^\top z` by each sample's own parameters in float32, v standard normal.

    As :func:`igr.suggest_temperature` has it.
    """
    theta = parameter(name, at, torch.float32).repeat(num_samples, 1).requires_grad_()
    z = relaxation(name, at, theta).rsample(generator=_noise(seed))
    v = torch.randn(z.shape, generator=_noise(seed + 1))
    return torch.autograd.grad(z, theta, v)[0]


def _noise(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
