"""Relaxed samples of k-subsets; public as :mod:`igr.functional`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from igr._checks import (
    broadcast,
    check_parameter,
    check_row_scalar,
    describe,
    expand,
    is_integer,
    values_checkable,
    widen,
)
from igr._draws import check_scale, gaussian_noise, gumbel_noise, location_scale, sample_shape
from igr._simplex import divided, straight_through

NEVER = -1e30  # the logarithm of nothing, finite, so that its gradient is zero


def gaussian_top_k(
    loc: Tensor,
    scale: Tensor | float,
    k: int,
    tau: float | Tensor = 1.0,
    hard: bool = False,
    *,
    method: str = "marginals",
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""One relaxed k-hot sample per row, by Gaussian noise: the k largest of :math:`(\mu + \sigma \epsilon, 0)`.

    As in IGR-I, K scores come from K-1 locations and scales, and the last score is zero; ``k=1`` is
    :func:`gaussian_softmax`. The relaxation is that of :func:`gumbel_top_k`.

    References:
        Equations 10, 11 and 15.

    Arguments:
        loc: :math:`\mu`, shape ``(*, K-1)``.
        scale: :math:`\sigma > 0`, broadcastable with ``loc``.
        k, tau, hard, method, mask, generator: as in :func:`gumbel_top_k`.

    Returns:
        Shape ``(*, K)``, rows sum to k.

    Example:
        >>> z = gaussian_top_k(torch.zeros(32, 9), 1.0, k=3, tau=0.1, hard=True)
        >>> bool((z.sum(-1) == 3).all())
        True
    """
    loc, scale = location_scale(loc, scale)
    check_scale(scale)
    mu, sigma = widen(loc), widen(scale)
    tau = check_row_scalar("tau", tau, mu)
    shape = sample_shape(mu.shape, mu.shape[-1] + 1, mask, tau=tau)
    y = torch.addcmul(mu, sigma, gaussian_noise(shape, mu, generator))  # (*, K-1)
    return _relax(F.pad(y, (0, 1)), k, tau, hard, method, mask).to(loc.dtype)


def gumbel_top_k(
    logits: Tensor,
    k: int,
    tau: float | Tensor = 1.0,
    hard: bool = False,
    *,
    method: str = "marginals",
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""One relaxed k-hot sample per row, by Gumbel noise: how much each category is among the k largest scores.

    .. math:: z_i = \frac{\sum_{S \ni i} \exp(\sum_{j \in S} s_j / \tau)}{\sum_S \exp(\sum_{j \in S} s_j / \tau)},
        \quad |S| = k, \quad s = \log \alpha + \epsilon,

    the probability of category i in a random set of k categories. With ``method="sequential"``, k successive softmaxes,
    each without what those before it have taken,

    .. math:: z = \sum_{j=1}^k p_j, \quad p_j = \mathrm{softmax}(s_j / \tau), \quad s_{j+1} = s_j + \log(1 - p_j),
        \quad s_1 = \log \alpha + \epsilon.

    Both sum to k, are the softmax for k = 1, and tend to the k-hot vector of the k largest scores as
    :math:`\tau \to 0`, which is what ``hard`` returns. That one is k draws without replacement from
    :math:`\mathrm{softmax}(\log \alpha)`: the set has the Plackett-Luce distribution.

    Note:
        Probabilities of sets are in [0, 1], and one where k = K. Entries of successive softmaxes may be larger than
        one, at any temperature: where two scores nearly tie and the first softmax makes (0.6, 0.4) of them, the second
        gives the other one almost all, which makes (0.6, 1.4). For 3 of 10 equal logits some entry is above 1.001 in
        74 % of the samples at :math:`\tau = 0.5`, and in 14 % at 0.01.

        The probabilities are sums of positive terms, by recursions over the categories in float64: right to about
        1e-15 times the largest :math:`\sum_{j \in S} s_j / \tau`, in the time of 2 K small operations. In the softmaxes
        :math:`1 - p_j` is the sum of the others, and its logarithm taken as theirs: it is right, and has a gradient,
        where :math:`p_j` has rounded to one.

    References:
        Ahmed et al. (2023), "SIMPLE: a gradient estimator for k-subset sampling", for the probabilities; Xie and Ermon
        (2019), "Reparameterizable subset sampling via continuous relaxations", for the softmaxes.

    Arguments:
        logits: :math:`\log \alpha`, unnormalised, shape ``(*, K)``.
        k: how many categories, from 1 to K, or to the number that ``mask`` allows.
        tau: the temperature :math:`\tau`.
        hard: return a k-hot vector with the gradient of the relaxed sample.
        method: the relaxation, ``"marginals"`` or ``"sequential"``.
        mask: booleans, shape ``(*, K)``; categories where it is False are exactly zero.
        generator: source of the noise; eager mode only.

    Returns:
        Shape ``(*, K)``, rows sum to k.

    Raises:
        ValueError: a k that is not from 1 to K, a mask that allows fewer, a temperature that is not positive, or, on
            the CPU, fewer logits above :math:`-\infty`.

    Example:
        >>> z = gumbel_top_k(torch.zeros(5, 10), k=3, tau=0.5)
        >>> z.shape, z.sum(-1)
        (torch.Size([5, 10]), tensor([3.0000, 3.0000, 3.0000, 3.0000, 3.0000]))
    """
    log_alpha = widen(check_parameter("logits", logits, "K"))
    tau = check_row_scalar("tau", tau, log_alpha)
    log_alpha = log_alpha.expand(sample_shape(log_alpha.shape, logits.shape[-1], mask, tau=tau))
    if mask is not None:  # -inf there would make the gradient of τ NaN
        log_alpha = log_alpha.masked_fill(~mask, 0.0)
    return _relax(log_alpha + gumbel_noise(log_alpha, generator), k, tau, hard, method, mask).to(logits.dtype)


def _relax(scores: Tensor, k: int, tau: float | Tensor, hard: bool, method: str, mask: Tensor | None) -> Tensor:
    """The relaxed k-hot vector of the allowed categories; straight-through to the k largest scores."""
    k = _check_k(k, scores, mask)
    if method not in ("marginals", "sequential"):
        raise ValueError(f"method must be 'marginals' or 'sequential', got {describe(method)}")
    forbidden = None if mask is None else ~expand(mask, broadcast(scores=scores, mask=mask))
    soft = (_sequential if k == 1 or method == "sequential" else _marginals)(scores, k, tau, forbidden)
    if not hard:
        return soft
    top = _without(scores, forbidden).topk(k, dim=-1).indices
    return straight_through(torch.zeros_like(scores).scatter(-1, top, 1.0), soft)


def _sequential(scores: Tensor, k: int, tau: float | Tensor, forbidden: Tensor | None) -> Tensor:
    remaining, logits = scores, _without(divided(scores, tau), forbidden)
    total = logits.softmax(-1)
    for _ in range(k - 1):
        remaining = remaining + _log_complement(logits)
        logits = _without(divided(remaining, tau), forbidden)
        total = total + logits.softmax(-1)
    return total


def _log_complement(logits: Tensor) -> Tensor:
    """log(1 - softmax): of the largest, the one that may round to one, as the logarithm of all others together."""
    top = logits.argmax(-1, keepdim=True)
    is_top = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, top, True)
    p = logits.softmax(-1).masked_fill(is_top, 0.0)
    others = logits.masked_fill(is_top, -torch.inf).logsumexp(-1, keepdim=True) - logits.logsumexp(-1, keepdim=True)
    return torch.where(is_top, others, torch.log1p(-p))


def _marginals(scores: Tensor, k: int, tau: float | Tensor, forbidden: Tensor | None) -> Tensor:
    """Sets with i: those of j categories before i, times those of k - 1 - j after it, times i itself."""
    x = divided(scores, tau).double()
    x = x if forbidden is None else x.masked_fill(forbidden, NEVER)
    before = _log_weights_of_sets(x, k)  # (*, K+1, k+1)
    after = _log_weights_of_sets(x.flip(-1), k)[..., :-1, :].flip(-2)
    log_with = x + (before[..., :-1, :k] + after[..., :k].flip(-1)).logsumexp(-1)
    z = (log_with - before[..., -1, k:]).clamp(max=0.0).exp()  # which only rounding is above
    return z.to(scores.dtype)


def _log_weights_of_sets(x: Tensor, k: int) -> Tensor:
    """log of the sum of exp(Σ x) over the sets of j of the first i categories, i = 0..K and j = 0..k, (*, K+1, k+1)."""
    found = [F.pad(torch.zeros_like(x[..., :1]), (0, k), value=NEVER)]
    for xi in x.unsqueeze(-1).unbind(-2):  # (*, 1)
        found.append(_log_add(found[-1], F.pad(found[-1][..., :-1] + xi, (1, 0), value=NEVER)))
    return torch.stack(found, -2)


def _log_add(a: Tensor, b: Tensor) -> Tensor:
    """log(exp a + exp b). The second derivatives of torch's logaddexp, which is faster, overflow at NEVER."""
    return torch.stack([a, b]).logsumexp(0) if torch.is_grad_enabled() else torch.logaddexp(a, b)


def _without(x: Tensor, forbidden: Tensor | None) -> Tensor:
    return x if forbidden is None else x.masked_fill(forbidden, -torch.inf)


def _check_k(k: int, scores: Tensor, mask: Tensor | None) -> int:
    K = scores.shape[-1]
    if not is_integer(k):
        raise TypeError(f"k must be an integer, got {describe(k)}")
    k = int(k)
    if not 1 <= k <= K:
        raise ValueError(f"k must be from 1 to the number of categories, {K}, got {k}")
    if mask is not None and mask.numel() and values_checkable(mask):
        fewest = int(mask.sum(-1).min())
        if fewest < k:
            raise ValueError(f"mask allows {fewest} categories in some row, got k = {k}; allow at least k")
    if scores.device.type == "cpu" and values_checkable(scores):  # a look elsewhere would wait for the device
        possible = ~scores.isneginf() if mask is None else ~scores.isneginf() & mask
        if scores.numel() and (fewest := int(possible.sum(-1).min())) < k:
            raise ValueError(
                f"{fewest} categories of some row are allowed and have a logit above -inf, got k = {k}; ask for fewer"
            )
    return k
