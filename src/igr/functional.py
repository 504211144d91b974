r"""Pure tensor maths: maps onto the simplex, their inverses, and the drop-in samplers.

:math:`K` is the number of categories; arguments have shape ``(*, K-1)``, points of the simplex ``(*, K)``, and the
category axis is last. A temperature is a number, a 0-d tensor, or a tensor of shape ``(*, 1)`` with one value per row.
Half precisions are computed in float32: points of the simplex come back in the dtype of the input, logarithms and what
comes from them in float32. Types and shapes are always checked, and so are the values of temperatures, δ and masks,
except for a temperature or δ in a tensor on another device than the CPU: reading it would wait for the device.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from igr._checks import check_parameter, check_row_scalar, check_tensor, describe, is_integer, widen
from igr._draws import check_scale, fused_sample, fusible, gaussian_noise, gumbel_noise, location_scale, sample_shape
from igr._sample_terms import SampleTerms, gaussian_softmax_terms, gumbel_softmax_terms
from igr._simplex import (
    divided,
    harden,
    log_softmaxpp,
    log_softmaxpp_inverse,
    log_stick_breaking,
    log_stick_breaking_inverse,
    log_vertex_interpolation,
    one_hot_argmax,
    softmaxpp,
    softmaxpp_inverse,
    softmaxpp_logits,
    straight_through,
    vertex_interpolation,
    vertex_interpolation_inverse,
)
from igr._top_k import gaussian_top_k, gumbel_top_k

__all__ = [
    "softmaxpp",
    "log_softmaxpp",
    "softmaxpp_inverse",
    "log_softmaxpp_inverse",
    "log_stick_breaking",
    "log_stick_breaking_inverse",
    "vertex_interpolation",
    "log_vertex_interpolation",
    "vertex_interpolation_inverse",
    "harden",
    "straight_through",
    "gaussian_softmax",
    "gumbel_softmax",
    "gaussian_top_k",
    "gumbel_top_k",
    "SampleTerms",
    "gaussian_softmax_terms",
    "gumbel_softmax_terms",
]


def gaussian_softmax(
    loc: Tensor,
    scale: Tensor | float,
    tau: float | Tensor = 1.0,
    hard: bool = False,
    *,
    delta: float | Tensor = 1.0,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""One sample of IGR-I per row, in one call: :math:`\mathrm{softmax}_{++}(\mu + \sigma \epsilon, \tau)`.

    Where ``torch.nn.functional.gumbel_softmax`` takes K logits, this takes K-1 locations and K-1 scales; the K-th
    category is the reference, likely where all locations are negative.

    References:
        Equations 10, 11 and 15.

    Arguments:
        loc: :math:`\mu`, shape ``(*, K-1)``.
        scale: :math:`\sigma > 0`, broadcastable with ``loc``; where torch's has its temperature.
        tau: the temperature :math:`\tau`.
        hard: return :math:`h(y)`, exactly one-hot, with the gradient of the relaxed sample.
        delta: :math:`\delta`, the weight of the K-th category in the softmax++.
        mask: booleans, shape ``(*, K)``; categories where it is False get probability exactly zero.
        generator: source of the noise; eager mode only.

    Returns:
        Shape ``(*, K)``, rows sum to one.

    Raises:
        ValueError: shapes that do not broadcast, a temperature that is not positive, a mask that forbids a whole row,
            or, on the CPU, a negative scale.

    Example:
        >>> loc, scale = torch.randn(32, 9), torch.ones(32, 9)
        >>> gaussian_softmax(loc, scale, tau=0.5).shape
        torch.Size([32, 10])
        >>> gaussian_softmax(loc, scale, tau=0.5, hard=True).sum()
        tensor(32.)
    """
    loc, scale = location_scale(loc, scale)
    check_scale(scale)
    tau, delta = check_row_scalar("tau", tau, loc), check_row_scalar("delta", delta, loc)
    shape = sample_shape(loc.shape, loc.shape[-1] + 1, mask, tau=tau, delta=delta)
    if fusible(generator, (loc, scale), (tau, delta), mask):
        return fused_sample(loc, scale, shape[:-1], tau, delta, mask, hard=hard, generator=generator).z
    mu, sigma = widen(loc), widen(scale)
    eps = gaussian_noise(shape, mu, generator)
    y = torch.addcmul(mu, sigma, eps)  # (*, K-1)
    scores = F.pad(y, (0, 1)) if hard else None
    return _relax(softmaxpp_logits(y, tau, delta), scores, mask).to(loc.dtype)


def gumbel_softmax(
    logits: Tensor,
    tau: float | Tensor = 1.0,
    hard: bool = False,
    *,
    dim: int = -1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""One sample of the Gumbel-Softmax per row: :math:`\mathrm{softmax}((\log \alpha + \epsilon) / \tau)`.

    A twin of ``torch.nn.functional.gumbel_softmax`` that refuses a temperature of zero, takes masks, generators and
    per-row temperatures, and draws its noise in float32 for half-precision logits. It has no ``eps``, which torch's
    ignores, and takes ``dim`` by its name.

    References:
        Equation 5; Maddison et al. (2017); Jang et al. (2017).

    Arguments:
        logits: :math:`\log \alpha`, unnormalised, shape ``(*, K)``.
        tau: the temperature :math:`\tau`.
        hard: return a one-hot vector with the gradient of the relaxed sample.
        dim: the axis of the categories of ``logits``, where it is not the last; ``tau`` and ``mask`` broadcast with
            these from the right, as always.
        mask: booleans, shape ``(*, K)``; categories where it is False get probability exactly zero.
        generator: source of the noise; eager mode only.

    Returns:
        Shape ``(*, K)``, rows sum to one.

    Example:
        >>> mask = torch.tensor([True, True, False])
        >>> gumbel_softmax(torch.zeros(5, 3), tau=0.1, mask=mask)[:, 2]
        tensor([0., 0., 0., 0., 0.])
    """
    axes = check_tensor("logits", logits).dim()
    if not is_integer(dim):
        raise TypeError(f"dim must be an integer, got {describe(dim)}")
    if axes and not -axes <= dim < axes:
        raise IndexError(f"dim must be an axis of logits, which have shape {tuple(logits.shape)}, got {dim}")
    if axes > 1 and dim not in (-1, axes - 1):
        from_right = dim if dim < 0 else dim - axes  # tau and mask may add axes to the left
        rows = _moved(tau, from_right, logits) if isinstance(tau, Tensor) and tau.dim() else tau
        moved = _moved(mask, from_right, logits) if isinstance(mask, Tensor) else mask
        z = gumbel_softmax(logits.movedim(from_right, -1), rows, hard, mask=moved, generator=generator)
        return z.movedim(-1, from_right)
    check_parameter("logits", logits, "K")
    tau = check_row_scalar("tau", tau, logits)
    shape = sample_shape(logits.shape, logits.shape[-1], mask, tau=tau)
    if fusible(generator, (logits,), (tau,), mask):
        return fused_sample(logits, None, shape[:-1], tau, 1.0, mask, hard=hard, generator=generator).z
    log_alpha = widen(logits).expand(shape)
    if mask is not None:  # a forbidden category's logit, were it -inf, would make the gradient of τ NaN
        log_alpha = log_alpha.masked_fill(~mask, 0.0)
    scores = log_alpha + gumbel_noise(log_alpha, generator)
    return _relax(divided(scores, tau), scores if hard else None, mask).to(logits.dtype)


def _moved(x: Tensor, from_right: int, logits: Tensor) -> Tensor:
    """x, which broadcasts with the logits, with this axis of theirs as its last."""
    missing = max(0, logits.dim() - x.dim())
    return x[(None,) * missing].movedim(from_right, -1)


def _relax(logits: Tensor, scores: Tensor | None, mask: Tensor | None) -> Tensor:
    """Softmax over the allowed categories; straight-through to the largest of ``scores`` if they are given."""
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf)
        scores = None if scores is None else scores.masked_fill(~mask, -torch.inf)
    soft = logits.softmax(-1)
    return soft if scores is None else straight_through(one_hot_argmax(scores), soft)
