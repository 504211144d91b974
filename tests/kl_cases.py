"""Small relaxations of each kind, to be compared in pairs."""

import torch
from torch.distributions import Normal

from igr.distributions import GumbelSoftmax, InvertibleGaussian, InvertibleReparameterization, Relaxation
from igr.transforms import Planar, StickBreaking, VertexInterpolation

DOUBLE = torch.float64


def igr_i(
    loc: float = 0.3, scale: float = 0.8, tau: float = 0.5, delta: float = 1.0, K: int = 3, flow=None
) -> Relaxation:
    return InvertibleGaussian(torch.full((K - 1,), loc, dtype=DOUBLE), scale, tau, delta=delta, flow=flow)


def sticks(tau: float = 0.5, delta: float = 1.0, leftover: bool = True, K: int = 3, **parameters: float) -> Relaxation:
    return igr_i(tau=tau, delta=delta, K=K, flow=StickBreaking(leftover), **parameters)


def vertices(tau: float = 0.5, loc: float = 0.0, K: int = 3) -> Relaxation:
    base = Normal(torch.full((K - 1,), loc, dtype=DOUBLE), torch.ones(K - 1, dtype=DOUBLE))
    return InvertibleReparameterization(base, VertexInterpolation(tau))


def gs(tau: float = 0.5, K: int = 3) -> Relaxation:
    return GumbelSoftmax(tau, torch.zeros(K, dtype=DOUBLE))


def planar(sign: float = 1.0) -> Planar:
    return Planar(torch.tensor([1.0, sign], dtype=DOUBLE), torch.tensor([0.5, -1.0], dtype=DOUBLE))
