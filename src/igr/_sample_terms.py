"""Samples together with what an evidence bound asks about them, in one pass where there is a kernel for it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from igr import _terms
from igr._checks import (
    broadcast,
    check_parameter,
    check_range,
    check_row_scalar,
    check_tensor,
    describe,
    is_number,
    wide_dtype,
    widen,
)
from igr._draws import check_scale, fused_sample, fusible, gaussian_noise, gumbel_noise, location_scale, sample_shape
from igr._scalars import log_row
from igr._simplex import divided, harden, log_softmaxpp, one_hot_argmax, straight_through


class SampleTerms(NamedTuple):
    """A sample and what an evidence bound asks about it."""

    z: Tensor
    """The sample, shape ``(*, K)``."""
    log_prob: Tensor
    """The log-density of the relaxed sample, shape ``(*)``, of at least float32."""
    kl: Tensor | None
    """The divergence from the prior, shape ``(*)``, of at least float32; None if there is no prior."""


def gaussian_softmax_terms(
    loc: Tensor,
    scale: Tensor | float,
    tau: float | Tensor = 1.0,
    hard: bool = False,
    *,
    delta: float | Tensor = 1.0,
    prior: tuple[Tensor | float, Tensor | float] | None = None,
    generator: torch.Generator | None = None,
) -> SampleTerms:
    r"""A sample of IGR-I with its log-density and the divergence from a prior, in one pass on CUDA devices.

    The density is that of the relaxed sample, computed from its noise as in
    :meth:`igr.distributions.Relaxation.rsample_and_log_prob`, also where ``hard`` returns its vertex. The divergence is
    that of the Gaussians, which is that of the relaxations if the prior has the same temperature and :math:`\delta`.

    References:
        Equations 10 to 13 and 15.

    Arguments:
        loc, scale, tau, hard, delta, generator: as in :func:`igr.functional.gaussian_softmax`.
        prior: :math:`\mu_0` and :math:`\sigma_0`, numbers or tensors that broadcast with ``loc``.

    Returns:
        The sample, its log-density, and the divergence, None without ``prior``.

    Raises:
        ValueError: shapes that do not broadcast, a temperature or prior scale that is not positive, a prior of more
            rows or columns than the parameters.

    Example:
        >>> z, log_q, kl = gaussian_softmax_terms(torch.zeros(4, 9), 1.0, tau=0.5, prior=(0.0, 1.0))
        >>> z.shape, log_q.shape, kl
        (torch.Size([4, 10]), torch.Size([4]), tensor([0., 0., 0., 0.]))
    """
    loc, scale = location_scale(loc, scale)
    check_scale(scale)
    tau, delta = check_row_scalar("tau", tau, loc), check_row_scalar("delta", delta, loc)
    shape = sample_shape(loc.shape, loc.shape[-1] + 1, None, tau=tau, delta=delta)
    known = (None, None) if prior is None else _prior_of(prior, loc)
    if fusible(generator, (loc, scale), (tau, delta, *known)):
        found = fused_sample(
            loc, scale, shape[:-1], tau, delta, hard=hard, log_prob=True, kl=prior is not None, prior=known,
            generator=generator,
        )  # fmt: skip
        return SampleTerms(found.z, found.log_prob, found.kl)  # type: ignore[arg-type]
    mu, sigma = widen(loc), widen(scale)
    eps = gaussian_noise(shape, mu, generator)
    y = torch.addcmul(mu, sigma, eps)
    log_z = log_softmaxpp(y, tau, delta)
    ladj = log_z.sum(-1) - mu.shape[-1] * log_row(tau, log_z)
    z = log_z.exp()
    z = straight_through(harden(y), z) if hard else z
    kl = None if prior is None else _terms.gaussian_kl(mu, sigma, *known).expand(shape[:-1])
    return SampleTerms(z.to(loc.dtype), _terms.gaussian_log_prob(eps, sigma.log().sum(-1)) - ladj, kl)


def gumbel_softmax_terms(
    logits: Tensor,
    tau: float | Tensor = 1.0,
    hard: bool = False,
    *,
    prior_logits: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> SampleTerms:
    r"""A sample of the Gumbel-Softmax with its log-density and the categorical divergence from a prior, in one pass.

    The density is that of the relaxed sample, the divergence that of the discrete distributions behind, as in
    :func:`igr.categorical_kl`: that of the relaxations has no closed form.

    References:
        Equations 5, 6 and 8.

    Arguments:
        logits, tau, hard, generator: as in :func:`igr.functional.gumbel_softmax`.
        prior_logits: unnormalised log-probabilities of the prior, broadcastable with ``logits``; uniform by default.

    Returns:
        The sample, its log-density, and the divergence.

    Raises:
        ValueError: shapes that do not broadcast, a temperature that is not positive, a prior of more rows or columns
            than the parameters.

    Example:
        >>> z, log_q, kl = gumbel_softmax_terms(torch.zeros(4, 10), tau=0.5)
        >>> z.shape, log_q.shape, bool((kl.abs() < 1e-6).all())
        (torch.Size([4, 10]), torch.Size([4]), True)
    """
    check_parameter("logits", logits, "K")
    tau = check_row_scalar("tau", tau, logits)
    shape = sample_shape(logits.shape, logits.shape[-1], None, tau=tau)
    if prior_logits is not None:
        prior_logits = check_parameter("prior_logits", prior_logits, "K").to(wide_dtype(logits.dtype))
        _check_within("prior_logits", prior_logits, logits)
    if fusible(generator, (logits,), (tau, prior_logits)):
        found = fused_sample(
            logits, None, shape[:-1], tau, hard=hard, log_prob=True, kl=True, prior=(prior_logits, None),
            generator=generator,
        )  # fmt: skip
        return SampleTerms(found.z, found.log_prob, found.kl)  # type: ignore[arg-type]
    log_alpha = widen(logits)
    full = log_alpha.expand(shape)
    eps = gumbel_noise(full, generator)
    log_z = divided(_terms.exact_differences(full, eps), tau).log_softmax(-1)
    z = log_z.exp()
    z = straight_through(one_hot_argmax(full + eps), z) if hard else z
    prior = torch.zeros_like(log_alpha) if prior_logits is None else prior_logits
    kl = _terms.categorical_kl(log_alpha.log_softmax(-1), prior.log_softmax(-1)).expand(shape[:-1])
    return SampleTerms(z.to(logits.dtype), _terms.gumbel_log_prob(eps, log_z, tau), kl)


def _prior_of(prior: tuple[Tensor | float, Tensor | float], mu: Tensor) -> tuple[Tensor, Tensor]:
    """μ₀ and σ₀ as tensors of at most the shape of μ, in the dtype that it is computed in."""
    if not isinstance(prior, (tuple, list)) or len(prior) != 2:
        raise TypeError(f"prior must be a pair, its location and its scale, got {describe(prior)}")
    found, dtype = [], wide_dtype(mu.dtype)
    for name, value in zip(("prior location", "prior scale"), prior, strict=True):
        number = is_number(value)
        tensor = mu.new_full((1,), float(value), dtype=dtype) if number else check_tensor(name, value).to(dtype)
        # a look at a tensor elsewhere would wait for its device
        if name == "prior scale" and (number or tensor.device.type == "cpu"):
            check_range(name, float(value) if number else tensor)
        _check_within(name, tensor, mu)
        found.append(tensor)
    return found[0], found[1]


def _check_within(name: str, value: Tensor, parameters: Tensor) -> None:
    if broadcast(**{name: value, "parameters": parameters}) != parameters.shape:
        raise ValueError(
            f"{name} of shape {tuple(value.shape)} has more rows or columns than the parameters of shape "
            f"{tuple(parameters.shape)}; give these their full shape"
        )
