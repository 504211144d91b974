r"""The bounds of the mixture: what is trained, what is measured, and what was published.

Noise comes from outside, so that every member of an ensemble has its own, and a step is a function of what is given.
Sticks that are not broken are the prior's, in posterior and prior alike: sums run over those that are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from igr.paper.compiled import fast
from igr.paper.evaluate import at_once, sample_categories
from igr.paper.noise import draw
from igr.paper.nonparametric.laws import LogitNormalSticks, StickDraw, Sticks, log_prior
from igr.paper.nonparametric.model import Components, EnsembleMixture, posterior_of
from igr.paper.nonparametric.spec import Mixture
from igr.paper.nonparametric.sticks import broken, chances, log_components, log_unbroken

__all__ = ["Noise", "Weights", "draw_noise", "joint_bound", "published_objective", "weigh"]


class Noise(NamedTuple):
    """Of one v, and one z for each component."""

    sticks: Tensor
    """``(E, B, C - 1)``, standard normal for logit-normal sticks and standard Gumbel for Kumaraswamy sticks."""
    z: Tensor
    """``(E, B, C, L)``, standard normal."""


class Draw(NamedTuple):
    """One v, or several for each image, ``(*, C - 1)``, and what follows from it."""

    at: StickDraw
    """v itself."""
    mask: Tensor
    """Which sticks are broken."""
    log_q: Tensor
    """log q(c | v), ``(*, C)``."""
    log_unbroken: Tensor
    """log p(c | v) - log q(c | v) of the component after them, ``(*)``."""

    @property
    def extra(self) -> Tensor:
        """The index of that component, ``(*)``."""
        return self.mask.sum(-1)

    @property
    def log_leftover(self) -> Tensor:
        """The logarithm of its mass, ``(*)``."""
        return self.log_q.gather(-1, self.extra.unsqueeze(-1)).squeeze(-1)

    def of(self, components: Components) -> Components:
        """The same with zeros for components that q leaves out: nothing of these may count, be it infinite."""
        absent = self.log_q.isneginf().unsqueeze(-1)
        return Components(*(each.masked_fill(absent, 0.0) for each in components))


class Weights(NamedTuple):
    """What draws of the posterior say, in float64."""

    log_w: Tensor
    """log p(x, c, z, v) - log q(c, z, v | x) of every draw, ``(E, B, S)``."""
    mass: Tensor
    """E q(c | v), the mean over draws, ``(E, B, C)``."""
    kept: Tensor
    """How many components a draw has, the one with what is left among them; the mean, ``(E, B)``."""


def draw_noise(model: EnsembleMixture, shape: tuple[int, int], generator: torch.Generator) -> Noise:
    """Noise for E members and B images, as every step has it.

    It is drawn for as many components as there may be, and cut: a member has the same, whatever others need.
    """
    C, L = model.shape
    most = model.cell.max_components
    sticks = draw(model.stick_noise, (*shape, 1, most - 1), model.means, generator).squeeze(-2)
    z = draw("gaussian", (*shape, most, L), model.means, generator)
    return Noise(sticks[..., : C - 1], z[..., :C, :])


def draw_sticks(cell: Mixture, sticks: Sticks, noise: Tensor, limit: Tensor) -> Draw:
    """v, from noise of its shape."""
    at = sticks.draw(noise)
    mask = broken(at.y, limit, cell.precision if cell.method == "igr-sb-mm" else None)
    log_ratio_of_extra = log_unbroken(mask, cell.max_components, cell.concentration, at.y)
    return Draw(at, mask, log_components(at.y, mask), log_ratio_of_extra)


def joint_bound(model: EnsembleMixture, x: Tensor, noise: Noise, *, landing: bool = False) -> Tensor:
    r"""The evidence lower bound of (c, z, v) with one draw of v and of every z, ``(E, B)``.

    .. math:: \sum_c q(c | v) \Bigl[\log p(x | z_c) + \log \frac{N(z_c; m_c, I)}{q(z_c | c, x)}
        + \log \frac{p(c | v)}{q(c | v)}\Bigr] + \sum_{k \le M} \log \frac{p(v_k)}{q(v_k | x)}

    Note:
        Unless landing sticks, the divergences are exact: of z in closed form, and of every stick that is broken, since
        whether it is does not depend on its own length. For the same reason the terms of sticks have, in place of the
        mask :math:`k \le M`, its expectation over the stick before (:func:`~igr.paper.nonparametric.sticks.chances`):
        the mean is the same, and the gradient knows that a further stick costs something. What is left out of it is
        that components are cut off, :math:`1 - \rho` of the mass at most.

    References:
        Roeder, Wu and Duvenaud (2017), Sticking the landing.

    Arguments:
        model: the members.
        x: images, ``(E, B, D)``.
        noise: of v and z.
        landing: whether log-ratios are sampled, with what the encoder says a constant inside log q.
    """
    q, z, of_z, rest = fast(_draw_and_terms, x)(model.cell, model.say(x), model.means, model.limit, noise, landing)
    return fast(_expected, x)(q, model.log_px(x, z), of_z, rest)


def _expected(q: Tensor, fit: Tensor, of_z: Tensor, rest: Tensor) -> Tensor:
    return (q * (fit + of_z)).sum(-1) + rest


def _draw_and_terms(
    cell: Mixture, said: Tensor, means: Tensor, limit: Tensor, noise: Noise, landing: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q(c | v), z, and its log-ratios or minus the divergences, ``(E, B, C, *)``, and what v and c add, ``(E, B)``."""
    sticks, components = posterior_of(cell.method, said, (means.shape[0], means.shape[1]))
    drawn = draw_sticks(cell, sticks, noise.sticks, limit)
    components = drawn.of(components)
    z = torch.addcmul(components.mean, components.xi.exp(), noise.z)
    if landing:
        of_z = log_ratio(z, components.mean.detach(), components.xi.detach(), means)
        known = type(sticks)(*(each.detach() for each in sticks))
        of_sticks = log_prior(drawn.at, cell.concentration) - known.log_q(drawn.at)
    else:
        of_z = -divergence(components.mean, components.xi, means)
        of_sticks = -sticks.kl(cell.concentration)
    extra = drawn.log_leftover.exp() * drawn.log_unbroken
    return drawn.log_q.exp(), z, of_z, extra + _expected_over_sticks(cell, sticks, drawn, of_sticks)


def _expected_over_sticks(cell: Mixture, sticks: Sticks, drawn: Draw, terms: Tensor) -> Tensor:
    """The sum of what sticks add, each by the chance that it is broken; Kumaraswamy ones are, or are not."""
    if not isinstance(sticks, LogitNormalSticks):
        return torch.where(drawn.mask, terms, 0.0).sum(-1)
    chance = chances(sticks.mu, sticks.xi, drawn.at.log1m_v, drawn.mask, cell.precision)
    return (chance * torch.where(chance > 0, terms, 0.0)).sum(-1)


def log_ratio(z: Tensor, mean: Tensor, xi: Tensor, prior_mean: Tensor) -> Tensor:
    r""":math:`\log N(z; m, I) - \log N(z; \mathrm{mean}, e^{2 \xi})`, summed over the last axis."""
    eps = (z - mean) * (-xi).exp()
    return (0.5 * (eps.square() - (z - prior_mean).square()) + xi).sum(-1)


def divergence(mean: Tensor, xi: Tensor, prior_mean: Tensor) -> Tensor:
    """The mean of minus :func:`log_ratio`."""
    return (0.5 * ((2 * xi).exp() + (mean - prior_mean).square() - 1) - xi).sum(-1)


@torch.no_grad()
def published_objective(model: EnsembleMixture, x: Tensor, noise: Noise) -> Tensor:
    r"""What the published code reports: its training objective with one draw, ``(E, B)``.

    .. math:: \sum_k \pi_k [\log p(x | z_k) + \log N(z_k; m_k, I)] - \log \sum_k \pi_k\, q(z_k | k, x)
        + \sum_{k \le M} \log \frac{p(v_k)}{q(v_k | x)}

    Note:
        The mixture's density has every component at its own sample, where :func:`joint_bound` has the mean of their
        log-densities: by Jensen's inequality it is the larger of the two, and what is reported too low. On the other
        side, components beyond the last are taken for impossible: that :math:`p(c | v)` is below :math:`q(c | v)` there
        is not counted.
    """
    sticks, components = model.encode(x)
    drawn = draw_sticks(model.cell, sticks, noise.sticks, model.limit)
    components = drawn.of(components)
    z = torch.addcmul(components.mean, components.xi.exp(), noise.z)
    log_p = -0.5 * (z - model.means).square().sum(-1)
    log_q = -(0.5 * noise.z.square() + components.xi).sum(-1)  # both without the same constant
    expected = (drawn.log_q.exp() * (model.log_px(x, z) + log_p)).sum(-1)
    mixed = (drawn.log_q + log_q).logsumexp(-1)
    of_sticks = log_prior(drawn.at, model.cell.concentration) - sticks.log_q(drawn.at)
    return expected - mixed + torch.where(drawn.mask, of_sticks, 0.0).sum(-1)


@torch.no_grad()
def weigh(model: EnsembleMixture, x: Tensor, num_draws: int, generator: torch.Generator) -> Weights:
    r"""Draws v, c and z from the posterior, and weighs them.

    .. math:: \log w = \log p(x | z_c) + \log \frac{N(z_c; m_c, I)}{q(z_c | c, x)} + \log \frac{p(c | v)}{q(c | v)}
        + \sum_{k \le M} \log \frac{p(v_k)}{q(v_k | x)}

    The mean of log w is the evidence lower bound, and the log-mean-exp of S of them the importance-weighted one. Only
    the component that is drawn is decoded, and of the draws so many at once that memory is bounded.

    Note:
        Components that q leaves out are missing from the limit of many draws, which is then below log p(x). Weights of
        logit-normal sticks have no finite variance, since a Beta's log-odds have the heavier tails: the bound holds all
        the same, but draws that are rare tighten it late.
    """
    sticks, components = model.encode(x)
    size = at_once(x, 2**22)
    for_draws = type(sticks)(*(each.unsqueeze(2) for each in sticks))
    parts = [
        _some_weights(model, x, for_draws, components, min(size, num_draws - start), generator)
        for start in range(0, num_draws, size)
    ]
    log_w, mass, kept = zip(*parts, strict=True)
    return Weights(torch.cat(log_w, -1), sum(mass[1:], mass[0]) / num_draws, sum(kept[1:], kept[0]) / num_draws)


def _some_weights(
    model: EnsembleMixture, x: Tensor, sticks: Sticks, components: Components, S: int, generator: torch.Generator
) -> Weights:
    """The same of S draws, with sums in the place of means."""
    (E, B), (C, L) = x.shape[:2], model.shape
    noise = draw(model.stick_noise, (E, B, S, C - 1), x, generator)
    drawn = draw_sticks(model.cell, sticks, noise, model.limit.unsqueeze(-1))
    c = sample_categories(drawn.log_q, generator=generator)  # (E, B, S)
    mean, xi = (each.gather(2, c.unsqueeze(-1).expand(-1, -1, -1, L)) for each in components)
    eps = draw("gaussian", (E, B, S, L), x, generator)
    z = torch.addcmul(mean, xi.exp(), eps)
    of_z = log_ratio(z, mean, xi, model.means[c])
    of_c = torch.where(c == drawn.extra, drawn.log_unbroken, 0.0)
    of_sticks = log_prior(drawn.at, model.cell.concentration) - sticks.log_q(drawn.at)
    terms = (model.log_px(x, z), of_z, of_c, torch.where(drawn.mask, of_sticks, 0.0).sum(-1))
    log_w = torch.stack([each.double() for each in terms]).sum(0)
    return Weights(log_w, drawn.log_q.double().exp().sum(2), (drawn.extra + 1.0).double().sum(2))
