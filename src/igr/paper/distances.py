"""How far two discrete distributions are apart, as arrays over the categories 0, 1, 2, ..."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "kl_divergence", "moments", "total_variation"]

Array = NDArray[np.float64]


def total_variation(p: Array, q: Array, tail: float = 0.0) -> float:
    r"""Total variation, :math:`\frac12 \sum_k |p_k - q_k|`; categories that one of them lacks count as zeros.

    Arguments:
        p: a probability mass function, shape ``(n,)``.
        q: another, shape ``(m,)``.
        tail: probability that ``q`` leaves somewhere unknown; it counts as misplaced, so that the value is an upper
            bound, by at most the tail.
    """
    size = max(len(p), len(q))
    p, q = (np.pad(each, (0, size - len(each))) for each in (p, q))
    return 0.5 * (float(np.abs(p - q).sum()) + tail)


def kl_divergence(log_p: Array, log_q: Array, log_tail: float = -np.inf, *, reverse: bool = False) -> float:
    r"""The Kullback-Leibler divergence :math:`\sum_k p_k \log (p_k / q_k)`, infinite where q lacks a category of p.

    Note:
        Computed as :math:`\sum_k p_k (e^{d_k} - 1 - d_k)` with :math:`d = \log q - \log p`, the same for probabilities
        that sum to one, whose terms are positive: nothing cancels where p and q are close.

    Arguments:
        log_p: logarithms of probabilities, shape ``(n,)``.
        log_q: likewise, shape ``(m,)``.
        log_tail: logarithm of what ``q`` has beyond its m categories. All beyond is then one category for both, so that
            the value is a lower bound.
        reverse: whether to return :math:`KL(q \| p)` instead.
    """
    size = len(log_q)
    beyond = np.logaddexp.reduce(log_p[size:], initial=-np.inf)
    log_p = np.append(np.pad(log_p[:size], (0, max(0, size - len(log_p))), constant_values=-np.inf), beyond)
    log_q = np.append(log_q, log_tail)
    a, b = (log_q, log_p) if reverse else (log_p, log_q)
    present = a > -np.inf
    a, b, alone = a[present], b[present], np.exp(b[~present]).sum()
    d = b - a
    with np.errstate(over="ignore", invalid="ignore"):  # e^d overflows where p is tiny, and there nothing cancels
        terms = np.where(d > 1, np.exp(b) - np.exp(a) * (1 + d), np.exp(a) * (np.expm1(d) - d))
    return float(terms.sum() + alone)


def moments(p: Array, tail: float = 0.0) -> tuple[float, float]:
    """Mean and variance of the category, with the tail at the first one that ``p`` has no entry for."""
    p = np.append(p, tail)
    k = np.arange(len(p))
    mean = float((p * k).sum())
    return mean, float((p * (k - mean) ** 2).sum())
