r"""Binary units from given noise, relaxed and hard, and the log-likelihood of lower halves given samples of them.

A unit is the difference :math:`z_1 - z_2` of two categories. At K = 2 the softmax++ of a score s is
:math:`z_1 = \mathrm{sigmoid}(s / \tau)`, and so is the Gumbel-Softmax of logits (a, 0) for :math:`s = a + \epsilon_1
- \epsilon_2`; hence a unit is :math:`\tanh(s / 2 \tau)`, and the sign of s in the limit :math:`\tau \to 0`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from igr import kernels
from igr.paper.compiled import fast
from igr.paper.evaluate import at_once
from igr.paper.noise import draw
from igr.paper.sop.model import LAYERS, EnsembleCompletion, parameters_of
from igr.paper.sop.spec import Completion
from igr.transforms import Planar, StickBreaking

__all__ = [
    "bound",
    "draw_noise",
    "flow",
    "hard_units",
    "log_likelihoods",
    "log_px",
    "relaxed_units",
    "sample_units",
    "scores",
]


Maps = Sequence[Callable[[Tensor], Tensor]]


def bound(model: EnsembleCompletion, x: Tensor, tau: Tensor, noise: Sequence[Tensor]) -> Tensor:
    r"""What is maximised through relaxed units, for each image, ``(E, B)``.

    .. math:: \log \frac1S \sum_s p(\text{lower} | u_s), \qquad u_s \sim q(u | \text{upper}),

    with one sample of the second layer for each of the first. Its expectation grows with S to the log-likelihood of the
    relaxed network, which is not the discrete one.

    Arguments:
        model: the members.
        x: images, ``(E, B, D)``.
        tau: temperatures, ``(E, 1, 1, 1)``.
        noise: of both layers, ``(S, E, B, N, 1)`` standard normal, or ``(S, E, B, N, 2)`` standard Gumbel for GS.
    """
    terms = log_px(model, x, tau, noise)
    return terms.logsumexp(0) - math.log(len(terms))


def log_px(model: EnsembleCompletion, x: Tensor, tau: Tensor | None, noise: Sequence[Tensor]) -> Tensor:
    """log p(lower half | units) of S joint samples, ``(S, E, B)``; of discrete ones where there is no temperature."""
    upper, lower = model.halves(x)
    return model.log_px(lower, sample_units(model, model.say(0, upper), tau, noise))


def sample_units(model: EnsembleCompletion, said: Tensor, tau: Tensor | None, noise: Sequence[Tensor]) -> Tensor:
    """Units of the last layer, ``(S, E, B, N)``, given what is said of the first; without a temperature in {-1, 1}."""
    units = fast(_units, noise[0])(model.cell, said, _planar(model, 0), noise[0], tau)
    for layer, eps in enumerate(noise[1:], 1):
        units = fast(_units, eps)(model.cell, model.say(layer, units), _planar(model, layer), eps, tau)
    return units


def _planar(model: EnsembleCompletion, layer: int) -> tuple[Tensor, ...]:
    """u, w and b of a layer's planar maps, ``(maps, E, 1, N, ...)``, if there are any."""
    return (model.u[layer], model.w[layer], model.b[layer]) if model.cell.method == "igr-planar" else ()


def _units(cell: Completion, said: Tensor, planar: tuple[Tensor, ...], eps: Tensor, tau: Tensor | None) -> Tensor:
    """A layer of units, ``(*, E, B, N)``, from what the network says.

    On CUDA planar maps are a kernel: what is compiled has wrong gradients of them, see the VAEs' objective.
    """
    maps: Maps
    if planar and eps.dtype == torch.float32 and kernels.usable(eps):
        from igr.paper.planar_kernels import planar_flow

        maps = [lambda y: planar_flow(y, *planar)[0]]
    else:
        maps = _maps(cell.method, planar)
    s = scores(cell.method, parameters_of(said, eps.shape[-2], cell.scale), maps, eps)
    return hard_units(s) if tau is None else relaxed_units(s, tau)


def scores(method: str, parameters: tuple[Tensor, ...], maps: Maps, noise: Tensor) -> Tensor:
    """What decides a unit by its sign, ``(*, E, B, N, 1)``: noise and parameters combined, after the flow."""
    if method == "gs":
        (a,) = parameters
        return a + (noise[..., :1] - noise[..., 1:])
    mu, xi = parameters
    y = torch.addcmul(mu, xi.exp(), noise)
    for part in maps:
        y = part(y)
    return y


def relaxed_units(s: Tensor, tau: Tensor) -> Tensor:
    r""":math:`z_1 - z_2 = \tanh(s / 2 \tau)`, ``(*, N)``.

    Nothing overflows, at any temperature, and where tanh is saturated its gradient is zero.
    """
    return (s / (2 * tau)).tanh().squeeze(-1)


def hard_units(s: Tensor) -> Tensor:
    """Its limit, in {-1, 1}, without gradient; the first category at zero, as in ``harden``, and NaN where s is."""
    s = s.detach().squeeze(-1)
    return (2 * (s >= 0).to(s.dtype) - 1).masked_fill(s.isnan(), math.nan)


def flow(model: EnsembleCompletion, layer: int) -> list[StickBreaking | Planar]:
    """What comes between the Gaussian and the softmax++ in a layer."""
    return _maps(model.cell.method, _planar(model, layer))


def _maps(method: str, planar: tuple[Tensor, ...]) -> list[StickBreaking | Planar]:
    """The maps one after another; both categories of IGR-SB can be reached."""
    if method == "igr-sb":
        return [StickBreaking(leftover=True)]
    return [Planar(u, w, b, validate_args=False) for u, w, b in zip(*planar, strict=True)]


def draw_noise(
    model: EnsembleCompletion, shape: Sequence[int], like: Tensor, generator: torch.Generator
) -> list[Tensor]:
    """Noise of both layers, ``shape + (N, 1)``, or ``shape + (N, 2)`` for GS; shape ends in ``(E, B)``."""
    return [draw(model.noise_kind, (*shape, *model.noise_shape), like, generator) for _ in range(LAYERS)]


@torch.no_grad()
def log_likelihoods(
    model: EnsembleCompletion,
    x: Tensor,
    num_samples: int,
    generator: torch.Generator,
    taus: Sequence[Tensor | None] = (None,),
) -> list[Tensor]:
    r"""The log-likelihoods of lower halves given upper ones, by Monte Carlo, ``(E, B)`` each, in float64.

    .. math:: \log \frac1m \sum_{s \le m} p(\text{lower} | u_s), \qquad u_s \sim p(u | \text{upper}).

    The samples are of the model itself, not of a posterior, so this is consistent; its expectation is a lower bound.

    Arguments:
        model: the members.
        x: images, ``(E, B, D)``.
        num_samples: m, which are taken in parts that bound the memory.
        generator: source of the noise, which all of them share.
        taus: temperatures ``(E, 1, 1, 1)`` of networks with relaxed units; where there is none, units are in {-1, 1}.
    """
    upper, lower = model.halves(x)
    said, size = model.say(0, upper), at_once(x, 2**21)
    totals = [torch.full(x.shape[:2], -math.inf, dtype=torch.float64, device=x.device) for _ in taus]
    for start in range(0, num_samples, size):
        noise = draw_noise(model, (min(size, num_samples - start), *x.shape[:2]), x, generator)
        for total, tau in zip(totals, taus, strict=True):
            terms = model.log_px(lower, sample_units(model, said, tau, noise))
            torch.logaddexp(total, terms.double().logsumexp(0), out=total)
    return [total - math.log(num_samples) for total in totals]
