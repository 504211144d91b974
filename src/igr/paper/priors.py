r"""The priors of the VAEs: relaxations whose discrete distribution is uniform, as numbers that a step can use.

Honest: IGR-I has :math:`\sigma_0 = 1` and :math:`\mu_0 = -\Phi^{-1}(K^{-1 / (K - 1)})`, and IGR-SB the locations that
:func:`igr.fit_prior` finds, both exact. Published: what is left of the published fits, which are close to uniform.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from igr.distributions import InvertibleGaussian
from igr.nn import PlanarFlow
from igr.paper.streams import generator_of
from igr.paper.vae import Vae
from igr.prior import fit_prior, match_moments
from igr.transforms import Planar, StickBreaking

__all__ = ["Prior", "prior_of"]

# (μ0, log σ0) of IGR-I that a comment of the published code gives, and of the sticks as its own fit at τ = 0.01 finds
# them again; the files that were used are not published
PUBLISHED_GAUSSIAN = (-0.55, -0.26)
PUBLISHED_STICKS = (
    (-2.50, -2.44, -2.44, -2.52, -2.49, -2.30, -2.09, -1.87, -1.36),
    (0.10, 0.17, 0.27, 0.47, 0.57, 0.62, 0.73, 0.89, 1.24),
)
FLOW_TEMPERATURE, FLOW_SAMPLES, FLOW_STEPS = 0.1, 2_000, 500  # of the fit of a prior with a flow of its own


class Prior(NamedTuple):
    r"""p(z) of all members: :math:`\mu_0, \sigma_0`, ``(K-1,)``, for IGR; temperatures, ``(E, 1, 1, 1)``, for GS."""

    loc: Tensor
    scale: Tensor
    temperature: Tensor | None = None
    flow: Sequence[Planar] = ()
    """A flow of the prior's own, for IGR-Planar read as the paper has it."""

    def log_prob(self, y: Tensor) -> Tensor:
        r"""The log-density at y, summed over the last axis, without the constant :math:`-\frac{K-1}{2} \log 2 \pi`.

        The posterior's density is without it too.
        """
        ladj: Tensor | float = 0.0
        for part in reversed(self.flow):
            x = part.inv(y)
            ladj, y = ladj + part.log_abs_det_jacobian(x, y), x
        return (-0.5 * ((y - self.loc) / self.scale).square() - self.scale.log()).sum(-1) - ladj

    def of_members(self, rows: Sequence[int]) -> Prior:
        """The prior of some members."""
        return self if self.temperature is None else self._replace(temperature=self.temperature[list(rows)])


def prior_of(
    cell: Vae, temperatures: Sequence[float | None], num_categories: int, dtype: torch.dtype, device: torch.device | str
) -> Prior:
    """The prior of a cell's members.

    Arguments:
        cell: method, protocol, and for IGR-Planar whether the prior has a flow of its own.
        temperatures: the prior temperature of each member, ``None`` for all but GS.
        num_categories: K.
        dtype: of the result.
        device: of the result.
    """
    K = num_categories
    tau: Tensor | None = None
    if cell.method == "gs" and None not in temperatures:
        tau = torch.tensor(temperatures, dtype=dtype, device=device).view(-1, 1, 1, 1)
    loc, scale, flow = _gaussian(cell.method, cell.protocol, cell.prior, K)
    loc, scale = (x.to(device, dtype).expand(K - 1) for x in (loc, scale))
    moved = [[x.to(device, dtype) for x in layer] for layer in flow]
    return Prior(loc, scale, tau, [Planar(u, w, b) for u, w, b in moved])


@cache
def _gaussian(
    method: str, protocol: str, prior: str, K: int
) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor, Tensor]]]:
    uniform = torch.full((K,), 1 / K, dtype=torch.float64)
    if method == "igr-planar" and prior == "flow":
        return _with_flow(uniform.float())
    if protocol == "published" and K == 10:
        mu0, xi0 = PUBLISHED_STICKS if method == "igr-sb" else PUBLISHED_GAUSSIAN
        return torch.tensor(mu0), torch.tensor(xi0).exp(), []
    fitted = fit_prior(uniform, temperature=1.0, flow=StickBreaking() if method == "igr-sb" else None)
    assert isinstance(fitted, InvertibleGaussian)
    return fitted.loc.detach(), fitted.scale.detach(), []


def _with_flow(uniform: Tensor) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor, Tensor]]]:
    """Locations and two planar maps fitted together, as equation 14 is meant; σ0 stays one."""
    K = uniform.shape[-1]
    planar = PlanarFlow(K)
    start, draws = generator_of(0, "prior", "start"), generator_of(0, "prior", "fit")
    with torch.no_grad():
        for parameter in (planar.u, planar.w):
            parameter.normal_(std=0.5, generator=start)
    loc = torch.full((K - 1,), -math.log(K - 1) / 2, requires_grad=True)
    match_moments(
        lambda: InvertibleGaussian(loc, 1.0, FLOW_TEMPERATURE, flow=planar()),
        [loc, *planar.parameters()],
        uniform,
        num_samples=FLOW_SAMPLES,
        num_steps=FLOW_STEPS,
        generator=draws,
    )
    layers = zip(planar.u.detach(), planar.w.detach(), planar.b.detach(), strict=True)
    return loc.detach(), torch.ones(K - 1), list(layers)
