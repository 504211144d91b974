"""Maps onto the simplex and their inverses, the one-hot limit, and straight-through values."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from igr._checks import broadcast, check_parameter, check_row_scalar, log, widen


def softmaxpp(y: Tensor, tau: float | Tensor = 1.0, delta: float | Tensor = 1.0) -> Tensor:
    r"""The softmax++ of equation 15, with the K-th coordinate that completes it to one.

    .. math:: g(y, \tau)_k = \frac{\exp(y_k / \tau)}{\sum_{j<K} \exp(y_j / \tau) + \delta}, \quad k < K.

    Note:
        It is a softmax over :math:`(y / \tau, \log \delta)` and computed as one: the K-th coordinate is never
        :math:`1 - \sum_k g_k`, which is zero or negative for most float32 arguments at low temperature.

    References:
        Equation 15.

    Arguments:
        y: :math:`y`, shape ``(*, K-1)``.
        tau: the temperature :math:`\tau`.
        delta: :math:`\delta`, the weight of the K-th category.

    Returns:
        A point of the simplex, shape ``(*, K)``.

    Example:
        >>> softmaxpp(torch.tensor([0.0, 0.0]))
        tensor([0.3333, 0.3333, 0.3333])
    """
    return softmaxpp_logits(y, tau, delta).softmax(-1).to(y.dtype)


def log_softmaxpp(y: Tensor, tau: float | Tensor = 1.0, delta: float | Tensor = 1.0) -> Tensor:
    """The logarithm of :func:`softmaxpp`, finite wherever ``y / tau`` is."""
    return softmaxpp_logits(y, tau, delta).log_softmax(-1)


def softmaxpp_inverse(z: Tensor, tau: float | Tensor = 1.0, delta: float | Tensor = 1.0) -> Tensor:
    r"""Inverse of :func:`softmaxpp`: :math:`y_k = \tau (\log z_k - \log z_K + \log \delta)`.

    Note:
        A coordinate of ``z`` that has underflowed to zero cannot be inverted; :func:`log_softmaxpp_inverse` starts from
        logarithms, which do not underflow.
    """
    check_parameter("z", z, "K")
    return log_softmaxpp_inverse(widen(z).log(), tau, delta).to(z.dtype)


def log_softmaxpp_inverse(log_z: Tensor, tau: float | Tensor = 1.0, delta: float | Tensor = 1.0) -> Tensor:
    """Inverse of :func:`log_softmaxpp`: ``(*, K)`` logarithms of a point of the simplex to ``(*, K-1)``."""
    check_parameter("log_z", log_z, "K")
    log_z = widen(log_z)
    tau, delta = check_row_scalar("tau", tau, log_z), check_row_scalar("delta", delta, log_z)
    return tau * (log_z[..., :-1] - log_z[..., -1:] + log(delta))


def log_stick_breaking(y: Tensor) -> Tensor:
    r"""Logarithm of :math:`w = SB(\mathrm{sigmoid}(y))`, the leftover stick last.

    .. math:: w_k = u_k \prod_{i<k} (1 - u_i), \quad w_K = \prod_{i<K} (1 - u_i), \quad u = \mathrm{sigmoid}(y).

    Note:
        Sums of log-sigmoids: nothing is clipped, and a stick of length :math:`e^{-1000}` keeps its logarithm and its
        gradient.

    References:
        Equation 16, with the leftover stick as K-th category.

    Arguments:
        y: shape ``(*, K-1)``.

    Returns:
        ``log w``, shape ``(*, K)``; ``w`` sums to one.

    Example:
        >>> log_stick_breaking(torch.zeros(2)).exp()
        tensor([0.5000, 0.2500, 0.2500])
    """
    y = widen(check_parameter("y", y))
    log_rest = F.logsigmoid(-y)
    if y.shape[-1] > 1:  # a sum of one costs as much as one of many, and on GPUs that is a lot
        log_rest = log_rest.cumsum(-1)  # (*, K-1), what is left after each break
    return F.pad(F.logsigmoid(y), (0, 1)) + F.pad(log_rest, (1, 0))


def log_stick_breaking_inverse(log_w: Tensor) -> Tensor:
    r"""Inverse of :func:`log_stick_breaking`: :math:`y_k = \log w_k - \log \sum_{j>k} w_j`."""
    log_w = widen(check_parameter("log_w", log_w, "K"))
    log_tail = log_w.flip(-1).logcumsumexp(-1).flip(-1)  # (*, K), log Σ_{j>=k} w_j
    return log_w[..., :-1] - log_tail[..., 1:]


def vertex_interpolation(w: Tensor, tau: float | Tensor) -> Tensor:
    r"""Interpolates between a point of the simplex and its nearest vertex.

    .. math:: z = \tau w + (1 - \tau)\, e_{\arg\max w}, \quad 0 < \tau \le 1.

    Note:
        The paper projects onto the vertices of :math:`\mathcal{S}^{(K-1)}`, zero included, which read literally gives
        zero unless some :math:`w_k > 1/2`. This is the nearest vertex of the closed simplex, the leftover taking part.

    References:
        Equation 17.

    Arguments:
        w: a point of the simplex, shape ``(*, K)``.
        tau: the temperature, in (0, 1].

    Example:
        >>> vertex_interpolation(torch.tensor([0.5, 0.3, 0.2]), 0.1)
        tensor([0.9500, 0.0300, 0.0200])
    """
    wide = widen(check_parameter("w", w, "K"))
    tau = check_row_scalar("tau", tau, wide, at_most=1.0)
    return (tau * wide + (1 - tau) * one_hot_argmax(wide)).to(w.dtype)


def log_vertex_interpolation(log_w: Tensor, tau: float | Tensor) -> Tensor:
    """The logarithm of :func:`vertex_interpolation`, as a function of ``log w``."""
    log_w = widen(check_parameter("log_w", log_w, "K"))
    tau = check_row_scalar("tau", tau, log_w, at_most=1.0)
    nearest = one_hot_argmax(log_w) > 0
    # log(τ w + 1 - τ) at the vertex; its argument is fenced off elsewhere, where it could underflow to log1p(-1)
    top = torch.log1p(tau * torch.expm1(log_w.masked_fill(~nearest, 0.0)))
    return torch.where(nearest, top, log(tau) + log_w)


def vertex_interpolation_inverse(z: Tensor, tau: float | Tensor) -> Tensor:
    r"""Inverse of :func:`vertex_interpolation`: :math:`w = (z - (1 - \tau)\, e_{\arg\max z}) / \tau`.

    Off the image (K disjoint pieces of the simplex) the result has a negative entry or another largest one than ``z``.
    """
    wide = widen(check_parameter("z", z, "K"))
    tau = check_row_scalar("tau", tau, wide, at_most=1.0)
    return ((wide - (1 - tau) * one_hot_argmax(wide)) / tau).to(z.dtype)


def log_vertex_interpolation_inverse(log_z: Tensor, tau: float | Tensor) -> Tensor:
    """Inverse of :func:`log_vertex_interpolation`; NaN where an entry of w would be negative."""
    log_z = widen(check_parameter("log_z", log_z, "K"))
    tau = check_row_scalar("tau", tau, log_z, at_most=1.0)
    nearest = one_hot_argmax(log_z) > 0
    top = torch.log1p(torch.expm1(log_z.masked_fill(~nearest, 0.0)) / tau)
    return torch.where(nearest, top, log_z - log(tau))


def harden(y: Tensor) -> Tensor:
    r"""The limit :math:`h(y)` of the softmax++ as :math:`\tau \to 0`, as a one-hot vector.

    Category :math:`k^* = \arg\max_k y_k` if :math:`y_{k^*} > 0`, category :math:`K` if all :math:`y_k < 0`: the
    threshold is zero whatever :math:`\delta` is.

    References:
        Equation 20 (Proposition 1).

    Arguments:
        y: shape ``(*, K-1)``.

    Returns:
        One-hot ``(*, K)`` in the dtype of ``y``, without gradient.

    Example:
        >>> harden(torch.tensor([[0.2, 1.5], [-0.3, -2.0]]))
        tensor([[0., 1., 0.],
                [0., 0., 1.]])
    """
    return one_hot_argmax(F.pad(check_parameter("y", y), (0, 1)))


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """The value of ``hard``, exactly, with the gradient of ``soft``."""
    if hard.shape != soft.shape:
        raise ValueError(f"hard and soft must have one shape, got {tuple(hard.shape)} and {tuple(soft.shape)}")
    return hard + (soft - soft.detach())  # the bracket is an exact zero, so a one-hot stays one-hot


def softmaxpp_logits(y: Tensor, tau: float | Tensor, delta: float | Tensor) -> Tensor:
    """The argument of the softmax that the softmax++ is: (y / τ, log δ), of shape (*, K)."""
    y = widen(check_parameter("y", y))
    tau, delta = check_row_scalar("tau", tau, y), check_row_scalar("delta", delta, y)
    x, last = divided(y, tau), log(delta)
    if not isinstance(last, Tensor):
        return F.pad(x, (0, 1), value=last)
    last = last.to(x.device)  # a scalar may be elsewhere
    shape = broadcast(y=x[..., :1], delta=last)
    return torch.cat([x.expand(shape[:-1] + x.shape[-1:]), last.expand(shape)], -1)


def divided(scores: Tensor, tau: float | Tensor) -> Tensor:
    """scores / τ; where a score is -inf, of what is impossible, the derivative by τ is zero, and not NaN."""
    if not isinstance(tau, Tensor):
        return scores / tau
    impossible = scores.isneginf()
    return (scores.masked_fill(impossible, 0.0) / tau).masked_fill(impossible, -torch.inf)


def one_hot_argmax(x: Tensor) -> Tensor:
    """One-hot of the largest entry, without gradient."""
    return torch.zeros_like(x).scatter(-1, x.argmax(-1, keepdim=True), 1.0)
