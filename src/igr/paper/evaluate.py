r"""Metrics of a trained model: of the discrete one that it recovers, and of the relaxed one.

A model is known here through tensors. ``log_q`` holds :math:`\log q(z_n = k | x)`, shape ``(E, B, N, K)``; ``log_p``
the prior's :math:`\log p(z_n = k)`, which broadcasts with it; the decoder is a function ``log_px`` of one-hot z,
``(S, E, B, N, K)``, that already holds the images and returns :math:`\log p(x | z)`, ``(S, E, B)``. Metrics are
``(E, B)``, one value per member and image, in nats and float64. Members do not disturb each other: where parameters are
NaN, so are the metrics of that member, and no others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from igr._bases import diagonal_normal
from igr._checks import broadcast, check_parameter, check_range, check_tensor, describe, widen
from igr._draws import fusible
from igr._relaxation import count_categories, frequencies
from igr.distributions import InvertibleGaussian, InvertibleReparameterization, Relaxation
from igr.kl import categorical_kl
from igr.transforms import SoftmaxPlusPlus, StickBreaking, VertexInterpolation

__all__ = [
    "Decoder",
    "Scores",
    "elbo_continuous",
    "elbo_discrete",
    "frequency_table",
    "log_likelihood",
    "log_likelihood_published",
    "sample_categories",
    "score",
]

Decoder = Callable[[Tensor], Tensor]

KNOWN = (InvertibleGaussian, InvertibleReparameterization)  # to kernels; subclasses may map differently


class Scores(NamedTuple):
    """What the metrics of the discrete model are made of, for S samples z of q(z|x); float64."""

    log_px: Tensor
    """log p(x | z), shape ``(S, E, B)``."""
    log_pz: Tensor
    """log p(z), shape ``(S, E, B)``."""
    log_qz: Tensor
    """log q(z | x), shape ``(S, E, B)``."""
    kl: Tensor
    """KL(q(z|x) || p(z)), summed exactly over categories and variables, shape ``(E, B)``."""


@torch.no_grad()
def frequency_table(
    q: Relaxation, num_samples: int = 20_000, mix: float = 1e-3, *, generator: torch.Generator | None = None
) -> Tensor:
    r"""Log-probabilities of the categories of :math:`h(y)`, counted over draws and mixed with a little uniform.

    .. math:: q_k = (1 - \epsilon) \frac{\#\{s : h(y_s) = e_k\}}{S} + \frac{\epsilon}{K}

    Note:
        For relaxations whose recovered distribution is known through samples only. The table is not exact, and need
        not be: it is a distribution of its own, and bounds on :math:`\log p(x)` hold for any distribution as long as z
        is sampled from the very table that the weights divide by, as :func:`score` does. The uniform part gives every
        category its chance, so that the bounds tend to :math:`\log p(x)` with the number of samples. It has a price:
        with :math:`\epsilon` = 0.001 and 20 variables, about 0.1 nats of the evidence lower bound.

    Arguments:
        q: the relaxation, with batch shape ``(*)``, such as ``(E, B, N)``.
        num_samples: the number of draws S.
        mix: :math:`\epsilon`, the weight of the uniform distribution, in (0, 1].
        generator: source of the noise.

    Returns:
        Shape ``(*, K)``, normalised; float32 for relaxations of half precision. NaN where parameters are.

    Example:
        >>> from igr import InvertibleGaussian, Planar
        >>> flow = Planar(u=torch.tensor([1.0, 0.5]), w=torch.tensor([0.3, -1.0]))
        >>> q = InvertibleGaussian(torch.tensor([40.0, 0.0]), 1.0, temperature=0.5, flow=flow)
        >>> frequency_table(q, 1000, mix=0.03).exp()
        tensor([0.9800, 0.0100, 0.0100])
    """
    if not isinstance(q, Relaxation) or not q.event_shape:
        raise TypeError(f"q must be a relaxation of this library on the simplex, got {describe(q)}")
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, got {num_samples}")
    check_range("mix", mix, at_most=1.0)
    counts = _counts_by_kernel(q, num_samples, generator)
    if counts is None:
        counts = count_categories(q, num_samples, generator)
    probs = (1 - mix) * frequencies(counts, num_samples) + mix / counts.shape[-1]
    return probs.log().to(widen(q._like).dtype)


def _counts_by_kernel(q: Relaxation, num_samples: int, generator: torch.Generator | None) -> Tensor | None:
    """What :func:`count_categories` returns, by a kernel where one can; but none where parameters are infinite."""
    if not isinstance(q, InvertibleReparameterization) or type(q) not in KNOWN:
        return None
    normal = diagonal_normal(q.base)
    if normal is None:
        return None
    match q.maps:
        case [onto] if type(onto) is VertexInterpolation:  # the longest stick, as with a softmax++ after them
            maps = [StickBreaking()]
        case [*maps, onto] if type(onto) is SoftmaxPlusPlus:
            pass
        case _:
            return None
    loc, scale = normal.loc, normal.scale
    tensors = [loc, scale, *(x for part in maps for x in vars(part).values() if isinstance(x, Tensor))]
    if any(x.dtype != torch.float32 for x in tensors) or not fusible(generator, tensors):
        return None
    from igr.paper import table_kernels

    if not table_kernels.serves(maps, q.event_shape[-1]):
        return None
    return table_kernels.count(loc, scale, maps, num_samples, generator=generator)


def sample_categories(
    log_p: Tensor, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None
) -> Tensor:
    """Draws categories from log-probabilities ``(*, K)``: indices of shape ``sample_shape + (*)``.

    Note:
        By the inverse of the distribution function, in float64 throughout. In float32, noise has steps of 6e-8, and a
        category far rarer than that would be drawn as often as that, or never; with a weight 1 / q(z), one such draw
        outweighs all others. Categories that are impossible are not drawn; nor is anything but the first where
        probabilities are NaN.
    """
    return draw_categories(distribution_function(log_p), sample_shape, generator)


def distribution_function(log_p: Tensor) -> Tensor:
    """Probabilities of the categories up to each one but the last, ``(*, K - 1)``, in float64."""
    cdf = log_p.double().softmax(-1).cumsum(-1)
    return cdf[..., :-1] / cdf[..., -1:]  # exactly one from the last possible category on


def draw_categories(cdf: Tensor, sample_shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
    """Draws categories from their distribution function."""
    shape = (*sample_shape, *cdf.shape[:-1])
    u = torch.rand(shape, dtype=cdf.dtype, device=cdf.device, generator=generator)  # in [0, 1)
    return (u.unsqueeze(-1) >= cdf).sum(-1)


@torch.no_grad()
def score(
    log_q: Tensor,
    log_p: Tensor,
    log_px: Decoder,
    num_samples: int,
    *,
    generator: torch.Generator | None = None,
    chunk: int | None = None,
) -> Scores:
    """Samples z from q(z|x) and looks up, or decodes, what the metrics need. One set of samples serves them all.

    Arguments:
        log_q: normalised log-probabilities of the variables given the images, shape ``(E, B, N, K)``.
        log_p: those of the prior, broadcastable with ``log_q``.
        log_px: the decoder; z has the dtype of ``log_q``.
        num_samples: the number of samples S.
        generator: source of the noise.
        chunk: how many of the S samples are decoded at once; by default as many as keep z below 8 MiB on a CPU and
            128 MiB elsewhere, in float32. On a CPU, samples do not depend on it.

    Raises:
        ValueError: shapes that do not fit, or tables that are not normalised.

    Example:
        >>> log_q = torch.zeros(1, 2, 3, 4).log_softmax(-1)
        >>> scores = score(log_q, log_q, lambda z: z[..., 0].sum(-1), 5)
        >>> scores.log_px.shape, scores.kl
        (torch.Size([5, 1, 2]), tensor([[0., 0.]], dtype=torch.float64))
    """
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, got {num_samples}")
    table, prior = tables(log_q, log_p)
    size = at_once(log_q, 2**21) if chunk is None else chunk
    if size < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    vertices = torch.eye(log_q.shape[-1], dtype=log_q.dtype, device=log_q.device)
    cdf, parts = distribution_function(table), []
    for start in range(0, num_samples, size):
        index = draw_categories(cdf, (min(size, num_samples - start),), generator)  # (S, E, B, N)
        parts.append((decode(log_px, vertices[index]), log_prob_of(index, prior), log_prob_of(index, table)))
    fit, log_pz, log_qz = (torch.cat(terms) for terms in zip(*parts, strict=True))
    return Scores(fit, log_pz, log_qz, categorical_kl(table, prior).sum(-1))


def tables(log_q: Tensor, log_p: Tensor) -> tuple[Tensor, Tensor]:
    """Both in float64 and in the shape of ``log_q``, normalised to that precision.

    Raises:
        ValueError: shapes that do not fit, or log-probabilities that are not normalised to begin with.
    """
    check_parameter("log_q", log_q, "K")
    check_parameter("log_p", log_p, "K")
    if log_q.dim() < 2 or broadcast(log_q=log_q, log_p=log_p) != log_q.shape:
        raise ValueError(
            "log_q must have shape (E, B, N, K) and log_p one that broadcasts to it, "
            f"got {tuple(log_q.shape)} and {tuple(log_p.shape)}"
        )
    for name, table in (("log_q", log_q), ("log_p", log_p)):
        log_total = table.double().logsumexp(-1)
        wrong = log_total[log_total.abs() > 1e-3]  # a NaN passes: it is that of one member
        if len(wrong):
            raise ValueError(
                f"{name} must be normalised log-probabilities, got {describe(table)} with rows whose probabilities sum "
                f"to {wrong[0].exp().item():g} instead of one; use {name}.log_softmax(-1)"
            )
    return log_q.double().log_softmax(-1), log_p.double().log_softmax(-1).expand(log_q.shape)


def log_prob_of(index: Tensor, table: Tensor) -> Tensor:
    """Log-probabilities ``(S, E, B)`` of the categories ``(S, E, B, N)`` that were drawn, by a table (E, B, N, K)."""
    each = table.expand(*index.shape, table.shape[-1]).gather(-1, index.unsqueeze(-1))
    return each.squeeze(-1).sum(-1)


def decode(log_px: Decoder, z: Tensor) -> Tensor:
    """The decoder's answer in float64, or an error where it is not of shape (S, E, B)."""
    value = log_px(z)
    if value.shape != z.shape[:-2]:
        raise ValueError(
            f"log_px must map z of shape {tuple(z.shape)} to {tuple(z.shape[:-2])}, one number per sample, member and "
            f"image, got {tuple(value.shape)}; sum over the pixels"
        )
    return value.double()


def elbo_discrete(log_px: Tensor, kl: Tensor) -> Tensor:
    r"""The evidence lower bound of the discrete model, with an exact divergence.

    .. math:: \frac1S \sum_s \log p(x | z_s) - KL(q(z | x) \| p(z)), \qquad z_s \sim q(z | x)

    Arguments:
        log_px: :math:`\log p(x | z_s)`, shape ``(S, E, B)``.
        kl: the divergence, shape ``(E, B)``.
    """
    return log_px.double().mean(0) - kl.double()


def log_likelihood(scores: Scores, num_samples: int | None = None) -> Tensor:
    r"""The importance-weighted lower bound on :math:`\log p(x)`, with weights of each sample.

    .. math:: \log \frac1m \sum_{s \le m} \frac{p(x | z_s)\, p(z_s)}{q(z_s | x)}, \qquad z_s \sim q(z | x)

    Its expectation is the evidence lower bound at m = 1, grows with m, and tends to :math:`\log p(x)`.

    References:
        Burda, Grosse and Salakhutdinov (2016), Importance weighted autoencoders, equation 8.

    Arguments:
        scores: of S samples.
        num_samples: m, the number of samples used, the first ones; by default S.
    """
    log_w = scores.log_px + scores.log_pz - scores.log_qz
    return _log_mean_exp(_first(log_w, num_samples))


def log_likelihood_published(scores: Scores, num_samples: int | None = None) -> Tensor:
    r"""What the code published with the paper calls log-likelihood; kept to compare with the paper's tables.

    .. math:: \log \frac1m \sum_{s \le m} p(x | z_s) - KL(q(z | x) \| p(z)), \qquad z_s \sim q(z | x)

    Note:
        Not a bound on :math:`\log p(x)`, nor an estimate of it. By Jensen's inequality the first term moves up, as m
        grows, from :math:`E_q \log p(x | z)` to :math:`\log E_q\, p(x | z)`, but the divergence does not move with it:
        it stays the average of :math:`\log q / p` over all of q, where the weights of :func:`log_likelihood` count it
        sample by sample. The limit can lie on either side of :math:`\log p(x)`. Where q is the posterior, the evidence
        lower bound is :math:`\log p(x)` already, and this exceeds it unless :math:`p(x | z)` is the same for all z
        that the posterior can reach.

    Arguments:
        scores: of S samples.
        num_samples: m, the number of samples used, the first ones; by default S.
    """
    return _log_mean_exp(_first(scores.log_px, num_samples)) - scores.kl


def elbo_continuous(log_px: Tensor, log_ratio: Tensor) -> Tensor:
    r"""The evidence lower bound of the relaxed model, by Monte Carlo.

    .. math:: \frac1S \sum_s \log p(x | \tilde z_s) - \log \frac{q(\tilde z_s | x)}{p(\tilde z_s)}, \qquad
        \tilde z_s \sim q(\tilde z | x)

    Arguments:
        log_px: :math:`\log p(x | \tilde z_s)`, shape ``(S, E, B)``.
        log_ratio: log-densities, :math:`\log q(\tilde z_s | x) - \log p(\tilde z_s)`, summed over the variables, or a
            divergence in closed form; broadcastable with ``log_px``.
    """
    check_tensor("log_px", log_px)
    if broadcast(log_px=log_px, log_ratio=check_tensor("log_ratio", log_ratio)) != log_px.shape:
        raise ValueError(
            f"log_ratio must broadcast to the shape (S, E, B) of log_px, {tuple(log_px.shape)}, got "
            f"{tuple(log_ratio.shape)}; sum it over the variables"
        )
    return (log_px.double() - log_ratio.double()).mean(0)


def _first(terms: Tensor, num_samples: int | None) -> Tensor:
    """The first of S samples, which are as good as any."""
    if num_samples is not None and not 1 <= num_samples <= len(terms):
        raise ValueError(f"num_samples must be between 1 and the {len(terms)} samples there are, got {num_samples}")
    return terms[:num_samples]


def _log_mean_exp(terms: Tensor) -> Tensor:
    return terms.logsumexp(0) - math.log(len(terms))


def at_once(like: Tensor, numbers: int) -> int:
    """How many samples of this shape to hold at once: so many numbers on a CPU, 16 times as many elsewhere."""
    budget = numbers if like.device.type == "cpu" else 16 * numbers
    return max(1, budget // max(1, like.numel()))
