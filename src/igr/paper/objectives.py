r"""What is trained: relaxed samples of the posterior from given noise, their KL terms, and the bounds made of both.

Noise comes from outside, so that every member of an ensemble has its own, and a step is a function of what is given.
Samples are ``(S, E, B, N, K)``; ratios and divergences are summed over the N variables.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Normal

from igr import functional, kernels
from igr._simplex import one_hot_argmax
from igr._terms import gaussian_kl, gumbel_energy
from igr.distributions import GumbelSoftmax, InvertibleGaussian, InvertibleReparameterization, Relaxation
from igr.kl import categorical_kl
from igr.paper.compiled import fast
from igr.paper.models import EnsembleVae, parameters_of
from igr.paper.priors import Prior
from igr.paper.vae import Vae
from igr.recovery import recovered_log_probs
from igr.transforms import Planar, StickBreaking, VertexInterpolation, call_and_ladj

Tensors = tuple[Tensor, ...]
Flow = list[tuple[Tensor, ...]]

NODES = 64  # of Proposition 2 in training, at every step; metrics use all that it takes

__all__ = ["discrete_terms", "gaussian_log_probs", "objective", "posterior", "relaxed_terms"]


class Draw(NamedTuple):
    """A relaxed sample of all variables, and what its density is computed from."""

    z: Tensor
    """The relaxed sample, ``(S, E, B, N, K)``."""
    scores: Tensor
    """What decides the hard sample: y after the flow, or logits and noise."""
    origin: Tensor
    """What the densities see: y before the flow, or log z for GS."""
    ladj: Tensor | float
    """The log-determinant of a planar flow; others cancel between posterior and prior."""


def objective(vae: EnsembleVae, x: Tensor, tau: Tensor, prior: Prior, noise: Tensor) -> Tensor:
    """The training objective of each image, ``(E, B)``, to be maximised.

    Arguments:
        vae: the members.
        x: images in [0, 1], ``(E, B, D)``.
        tau: temperatures, ``(E, 1, 1, 1)``.
        prior: the prior.
        noise: ``(S, E, B, N, K - 1)`` standard normal, or ``(S, E, B, N, K)`` standard Gumbel for GS.
    """
    cell = vae.cell
    z, kl = fast(_sample_and_kl, x)(cell, vae.say(x), vae.flow, tau, prior, noise)
    return fast(_bound, x)(cell.bound, vae.log_px(x, z), kl)


def _sample_and_kl(
    cell: Vae, said: Tensor, flow: Flow, tau: Tensor, prior: Prior, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """What the decoder is given, ``(S, E, B, N, K)``, and the divergence to subtract, ``(S, E, B)`` or ``(E, B)``."""
    N, k = noise.shape[-2:]
    parameters = parameters_of(said, (N, k), cell)
    sample = _draw(cell, parameters, flow, tau, noise)
    z = sample.z
    if cell.forward == "hard":
        z = functional.straight_through(_hard(cell, sample), z)
    if cell.objective == "discrete":
        return z, discrete_kl(cell.method, parameters)
    closed = None
    if cell.bound == "elbo" and not cell.landing and cell.protocol == "honest":
        closed = closed_form_kl(cell.method, parameters, prior)
    return z, log_ratio(cell, parameters, tau, prior, noise, sample) if closed is None else closed


def _bound(kind: str, log_px: Tensor, kl: Tensor) -> Tensor:
    """The evidence bound, or the importance-weighted one, of S samples."""
    log_w = log_px - kl
    return log_w.mean(0) if kind == "elbo" else log_w.logsumexp(0) - math.log(len(log_w))


def relaxed_terms(vae: EnsembleVae, x: Tensor, tau: Tensor, prior: Prior, noise: Tensor) -> tuple[Tensor, Tensor]:
    """log p(x | z) of relaxed samples, ``(S, E, B)``, and their KL term, whatever was trained."""
    cell, parameters = vae.cell, vae.encode(x)
    sample = _draw(cell, parameters, vae.flow, tau, noise)
    closed = closed_form_kl(cell.method, parameters, prior)
    ratio = log_ratio(cell, parameters, tau, prior, noise, sample) if closed is None else closed.unsqueeze(0)
    return vae.log_px(x, sample.z), ratio


def discrete_terms(vae: EnsembleVae, x: Tensor, tau: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """log p(x | D) of hard samples, ``(S, E, B)``, and the divergence of their categoricals, ``(E, B)``."""
    cell, parameters = vae.cell, vae.encode(x)
    sample = _draw(cell, parameters, vae.flow, tau, noise)
    return vae.log_px(x, _hard(cell, sample)), discrete_kl(cell.method, parameters)


def posterior(vae: EnsembleVae, x: Tensor, tau: Tensor) -> Relaxation:
    """q(z | x) of all members as a relaxation of this library, batch shape ``(E, B, N)``."""
    parameters = vae.encode(x)
    if vae.cell.method == "gs":
        return GumbelSoftmax(tau, *parameters, validate_args=False)
    mu, xi = parameters
    if vae.cell.onto == "vertex":
        base = Normal(mu, xi.exp(), validate_args=False)
        return InvertibleReparameterization(base, VertexInterpolation(tau), validate_args=False)
    return InvertibleGaussian(mu, xi.exp(), tau, flow=_maps(vae.cell, vae.flow) or None, validate_args=False)


def closed_form_kl(method: str, parameters: Tensors, prior: Prior) -> Tensor | None:
    """Equation 13 for IGR-I and IGR-SB, whose flow the prior shares; ``(E, B)``, or nothing."""
    if method not in ("igr-i", "igr-sb"):
        return None
    mu, xi = parameters
    return gaussian_kl(mu, xi.exp(), prior.loc, prior.scale).sum(-1)


def discrete_kl(method: str, parameters: Tensors) -> Tensor:
    """The KL divergence of the recovered categoricals from the uniform distribution, ``(E, B)``.

    For GS that is equation 8, the KL of Jang et al. (2017); for IGR-I it is taken through Proposition 2.

    Raises:
        NotImplementedError: the recovered distribution is not differentiable, or too costly for every step.
    """
    if method == "gs":
        logits = parameters[0]
    elif method == "igr-i":
        mu, xi = parameters
        logits = gaussian_log_probs(mu, xi, num_nodes=NODES)
    else:
        raise NotImplementedError(f"no discrete objective for {method}: use igr-i or gs")
    return categorical_kl(logits, torch.zeros_like(logits)).sum(-1)


def gaussian_log_probs(mu: Tensor, xi: Tensor, num_nodes: int = 192) -> Tensor:
    r"""Proposition 2 at :math:`\log \sigma = \xi`; NaN for rows that are not finite, which stop nobody else's."""
    sigma = xi.exp()
    fine = (mu.isfinite() & (sigma > 0) & sigma.isfinite()).all(-1, keepdim=True)
    log_p = recovered_log_probs(torch.where(fine, mu, 0.0), torch.where(fine, sigma, 1.0), num_nodes=num_nodes)
    return torch.where(fine, log_p, math.nan)


def log_ratio(cell: Vae, parameters: Tensors, tau: Tensor, prior: Prior, noise: Tensor, sample: Draw) -> Tensor:
    """log q(z | x) - log p(z) of the relaxed sample, ``(S, E, B)``.

    With sticking the landing (Roeder et al., 2017) what the encoder says is a constant inside log q: what is left out
    of the gradient is its score, whose mean is zero. The log-determinant of a planar flow keeps its gradient, as
    published.
    """
    if cell.landing:
        parameters = tuple(parameter.detach() for parameter in parameters)
    if cell.method == "gs":
        return gumbel_log_ratio(sample.origin, parameters[0], noise, tau, prior, cell.landing).sum(-1)
    mu, xi = parameters
    eps = (sample.origin - mu) * (-xi).exp() if cell.landing else noise
    log_q = (-0.5 * eps.square() - xi).sum(-1) - sample.ladj
    at = sample.scores if cell.method == "igr-planar" else sample.origin
    return (log_q - prior.log_prob(at)).sum(-1)


def gumbel_log_ratio(log_z: Tensor, logits: Tensor, noise: Tensor, tau: Tensor, prior: Prior, landing: bool) -> Tensor:
    r"""The log-ratio of two densities of equation 6 at one z: their common factor :math:`\prod_k z_k^{-1}` drops out.

    The prior has equal logits and a temperature of its own.
    """
    if prior.temperature is None:
        raise ValueError("the continuous objective of GS needs a prior temperature for every member")
    K = log_z.shape[-1]
    constant = (K - 1) * (tau.log() - prior.temperature.log()).squeeze(-1)
    # log α - τ log z is the noise with its sign changed, up to a constant that the energy does not see
    log_q = -gumbel_energy(logits - tau * log_z if landing else -noise)
    return constant + log_q + gumbel_energy(-prior.temperature * log_z)


def _draw(cell: Vae, parameters: Tensors, flow: Flow, tau: Tensor, noise: Tensor) -> Draw:
    if cell.method == "gs":
        scores = parameters[0] + noise
        log_z = log_softmax(scores / tau)
        return Draw(log_z.exp(), scores, log_z, 0.0)
    mu, xi = parameters
    y = torch.addcmul(mu, xi.exp(), noise)
    scores, ladj = _mapped(cell, y, flow)
    if cell.onto == "vertex":  # equation 17
        z = functional.vertex_interpolation(functional.log_stick_breaking(y).exp(), tau)
    else:
        z = log_softmax(F.pad(scores / tau, (0, 1))).exp()  # the softmax++ of equation 15, with δ = 1
    return Draw(z, scores, y, ladj)


def _hard(cell: Vae, sample: Draw) -> Tensor:
    """The one-hot sample that a relaxed one is of."""
    return (one_hot_argmax if cell.method == "gs" else functional.harden)(sample.scores)


def _mapped(cell: Vae, y: Tensor, flow: Flow) -> tuple[Tensor, Tensor | float]:
    """y after the flow, and the log-determinant of a planar one.

    What is compiled for CUDA leaves a planar one to kernels: as torch 2.11 compiles the product of y and w, which
    images share, it has wrong gradients for all members but the first.
    """
    if cell.method == "igr-planar" and y.dtype == torch.float32 and kernels.usable(y):
        from igr.paper.planar_kernels import planar_flow

        u, w, b = (torch.stack(each) for each in zip(*flow, strict=True))
        return planar_flow(y, u, w, b)
    ladj = torch.zeros_like(y[..., 0]) if cell.method == "igr-planar" else 0.0
    for part in _maps(cell, flow):
        if isinstance(part, Planar):
            y, change = call_and_ladj(part, y)
            ladj = ladj + change
        else:
            y = part(y)
    return y, ladj


def log_softmax(x: Tensor) -> Tensor:
    """Over the last axis. On CPUs torch's own takes five times as long for rows as short as ten."""
    if x.is_cuda:
        return x.log_softmax(-1)
    x = x - x.detach().amax(-1, keepdim=True)
    return x - x.exp().sum(-1, keepdim=True).log()


def _maps(cell: Vae, flow: Flow) -> list[StickBreaking | Planar]:
    """What comes between the Gaussian and the softmax++."""
    if cell.method == "igr-sb":
        return [StickBreaking(leftover=cell.leftover)]
    if cell.method == "igr-planar":
        return [Planar(u, w, b, validate_args=False) for u, w, b in flow]
    return []
