"""What a bottleneck is made of: options, its prior as tensors, and divergences and probabilities under a mask."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, constraints

from igr import _terms, estimators
from igr._checks import check_parameter, check_range, describe, full_precision, is_number
from igr._scalars import same_value
from igr._suggest import suggest_temperature
from igr.distributions import GumbelSoftmax, InvertibleGaussian, Relaxation
from igr.prior import fit_prior
from igr.recovery import recovered_log_probs
from igr.schedules import Constant, Scheduled
from igr.transforms import StickBreaking

OPTIONS = {
    "relaxation": ("igr-i", "igr-sb", "igr-planar", "gs"),
    "estimator": (
        "reparameterized",
        "st_relaxed",
        "straight_through",
        "gapped_straight_through",
        "reinmax",
        "gumbel_rao",
        "igr_rao",
    ),
    "eval_mode": ("sample", "argmax", "mean"),
    "kl": ("continuous", "discrete"),
}
BY_PROBABILITIES = ("straight_through", "gapped_straight_through", "reinmax")  # and hard samples of these
BY_REDRAWS = {"gumbel_rao": "gs", "igr_rao": "igr-i"}  # and what noise they draw again
DISTANCE = 0.1  # to the nearest vertex, on average, at the default temperature
FAR = -1e4  # where the score of a forbidden category is put: its softmax is exactly zero at temperatures below 10
AHEAD = 9  # standard deviations by which one of the others is above the last category, if that one is forbidden


class PriorParts(NamedTuple):
    """The discrete log-probabilities, ``(K,)`` or ``(N, K)``, and for Gaussians the locations and scales."""

    log_probs: Tensor
    loc: Tensor | None = None
    scale: Tensor | None = None


def prior_parts(relaxation: str, prior: Tensor | Relaxation | None, N: int, K: int) -> PriorParts:
    """The prior of N variables: uniform, of given probabilities, or that of a relaxation of the same kind."""
    sticks = relaxation == "igr-sb"
    if isinstance(prior, Relaxation):
        return _parts_of(relaxation, prior, N, K)
    if isinstance(prior, Distribution):
        also = "" if relaxation == "gs" else ", or the relaxation that igr.fit_prior makes of it"
        raise TypeError(f"prior must be a tensor of probabilities or a relaxation, got {prior}; give its probs{also}")
    probs = _uniform(K) if prior is None else _check_probs(prior, N, K)
    if relaxation == "gs":
        return PriorParts(probs.log())
    loc = _uniform_locations(K, sticks) if prior is None else _locations(probs, sticks)
    return PriorParts(probs.log(), loc, torch.ones_like(loc))


@cache
def _uniform_locations(K: int, sticks: bool) -> Tensor:
    """Those of the uniform distribution, which take a while for many sticks."""
    return _locations(_uniform(K), sticks)


def _uniform(K: int) -> Tensor:
    """Wherever the layer is made: on the meta device nothing could be fitted."""
    return torch.full((K,), 1 / K, dtype=torch.float64, device="cpu")


def _locations(probs: Tensor, sticks: bool) -> Tensor:
    fitted = fit_prior(probs, temperature=1.0, flow=StickBreaking() if sticks else None)
    assert isinstance(fitted, InvertibleGaussian)  # these are no probabilities of all integers
    return fitted.loc


def _check_probs(prior: Tensor, N: int, K: int) -> Tensor:
    probs = check_parameter("prior", prior, "K").detach().double()
    if probs.shape not in {(K,), (N, K)}:
        raise ValueError(f"prior must have shape ({K},) or ({N}, {K}), got {tuple(probs.shape)}")
    if probs.is_meta:
        raise ValueError("prior is on the meta device, and has no probabilities to fit; make it on the CPU")
    if not bool(constraints.simplex.check(probs).all() & (probs > 0).all()):
        raise ValueError(
            "prior must be positive probabilities that sum to one; what has probability zero is forbidden by a mask"
        )
    return probs / probs.sum(-1, keepdim=True)


def _parts_of(relaxation: str, prior: Relaxation, N: int, K: int) -> PriorParts:
    kind = GumbelSoftmax if relaxation == "gs" else InvertibleGaussian
    flow = getattr(prior, "flow", None)
    fits = flow == StickBreaking() if relaxation == "igr-sb" else flow is None
    if not isinstance(prior, kind) or not fits:
        wanted = "StickBreaking() as its flow" if relaxation == "igr-sb" else "no flow"
        what = "a GumbelSoftmax" if relaxation == "gs" else f"an InvertibleGaussian with {wanted}"
        raise TypeError(f"the prior of {relaxation} must be probabilities or {what}, got {prior}")
    shape = (*prior.batch_shape, *prior.event_shape)
    if shape not in {(K,), (N, K)}:
        raise ValueError(f"prior must have batch shape () or ({N},) and {K} categories, got {prior}")
    if isinstance(prior, InvertibleGaussian) and not same_value(prior.delta, 1.0):
        raise ValueError(
            f"the prior of {relaxation} must have delta=1, as the layer has, got {prior}; make it so, or give "
            "its probabilities"
        )
    log_probs = prior.recovered().logits.detach()
    if isinstance(prior, InvertibleGaussian):
        return PriorParts(log_probs, prior.loc.detach(), prior.scale.detach())
    return PriorParts(log_probs)


def move_forbidden(mu: Tensor, sigma: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The parameters of IGR-I without its forbidden categories, of which the last cannot be one."""
    allowed = mask[..., :-1]
    return torch.where(allowed, mu, FAR), torch.where(allowed, sigma, 1.0)


def masked_log_probs(mu: Tensor, sigma: Tensor, mask: Tensor) -> Tensor:
    """Log-probabilities of the largest score among the allowed, the last score being zero; -inf where forbidden.

    Where the last is forbidden, the others are moved up together, which leaves their order as it is, until one of them
    is above it.
    """
    allowed, last = mask[..., :-1], mask[..., -1:]
    with torch.no_grad():
        needed = torch.where(allowed, AHEAD * sigma - mu, torch.inf).amin(-1, keepdim=True).clamp(min=0.0)
    mu, sigma = move_forbidden(mu + torch.where(last, 0.0, needed), sigma, mask)
    with full_precision(mu.device):
        log_p = recovered_log_probs(mu, sigma)
    return log_p.masked_fill(~mask, -torch.inf).log_softmax(-1)


def masked_gaussian_kl(mu: Tensor, sigma: Tensor, mu0: Tensor, sigma0: Tensor, mask: Tensor) -> Tensor:
    r"""The divergence of IGR-I and a prior, both without the forbidden categories.

    Where the last category is allowed, that of the Gaussians of the other allowed ones. Where it is forbidden, only
    differences of scores matter: from the divergence of the m Gaussians, that of what all of them have in common, given
    the differences, is taken away; with weights :math:`w_k = \sigma_k^{-2}` and :math:`\delta = \mu - \mu_0`,

    .. math:: \frac{1}{2} \Bigl(\frac{\sum w_{0k}^2 \sigma_k^2 + (\sum w_{0k} \delta_k)^2}{\sum w_{0k}} - 1
        + \log \sum w_k - \log \sum w_{0k}\Bigr).
    """
    allowed, last = mask[..., :-1], mask[..., -1]
    # summed over an axis of one: the divergence of each coordinate
    each = _terms.gaussian_kl(*(x.unsqueeze(-1) for x in torch.broadcast_tensors(mu, sigma, mu0, sigma0)))
    total = torch.where(allowed, each, 0.0).sum(-1)
    safe = allowed | last.unsqueeze(-1)  # where nothing is taken away, no empty sums
    w0 = torch.where(safe, sigma0.pow(-2), 0.0)
    sum0 = w0.sum(-1)
    log_sum = (-2 * sigma.log()).masked_fill(~safe, -torch.inf).logsumexp(-1)
    common = ((w0 * sigma).square().sum(-1) + (w0 * (mu - mu0)).sum(-1).square()) / sum0 - 1 + log_sum - sum0.log()
    return torch.where(last, total, total - common / 2)


def check_options(**given: str) -> None:
    """Refuses choices that do not exist, and those that a relaxation does not have."""
    for name, value in given.items():
        if value not in OPTIONS[name]:
            needs_loss = name == "estimator" and value in estimators.__all__
            advice = f"; it needs the loss: give layer.distribution(x) to igr.estimators.{value}" if needs_loss else ""
            options = ", ".join(map(repr, OPTIONS[name]))
            raise ValueError(f"{name} must be one of {options}, got {describe(value)}{advice}")
    relaxation, estimator = given["relaxation"], given["estimator"]
    if estimator in BY_REDRAWS and BY_REDRAWS[estimator] != relaxation:
        raise ValueError(f"{estimator} is for {BY_REDRAWS[estimator]}, got {relaxation}; st_relaxed has the same mean")
    unknown = estimator in BY_PROBABILITIES or (given["eval_mode"], given["kl"]) != ("sample", "continuous")
    if relaxation == "igr-planar" and unknown:
        raise ValueError(
            f"the probabilities of igr-planar are known through samples only, got {estimator=}, "
            f"eval_mode={given['eval_mode']!r} and kl={given['kl']!r}; use 'reparameterized' or 'st_relaxed', 'sample' "
            "and 'continuous', or another relaxation"
        )


def default_divergence(relaxation: str, estimator: str) -> str:
    """The one that makes a bound with what is sampled, as far as there is one, and for GS what is common."""
    return "discrete" if relaxation == "gs" or estimator in BY_PROBABILITIES else "continuous"


@cache
def default_temperature(relaxation: str, K: int) -> float:
    """Where samples have the mean distance :data:`DISTANCE`, to two digits.

    Those of equally likely categories, or for IGR-SB of sticks that are equally long where there is no noise.
    """
    like = "igr-i" if relaxation == "igr-planar" else relaxation
    num_samples = max(64, min(4096, 2**20 // K))
    with torch.device("cpu"):  # wherever the layer is made, as above
        found = suggest_temperature(K, like, distance=DISTANCE, vanishing=0.99, num_samples=num_samples)
    return float(f"{found.temperature:.2g}")


def as_temperature(given: object, relaxation: str, K: int) -> nn.Module:
    """A module that returns the temperature, from whatever it was given as."""
    if given is None:
        given = default_temperature(relaxation, K)
    if isinstance(given, nn.Module):
        return given
    if isinstance(given, Tensor) and given.dim() == 0 and not given.requires_grad:
        given = given.item()
    if is_number(given):
        check_range("temperature", float(given))
        return Scheduled(Constant(float(given)))
    if callable(given):
        return Scheduled(given)
    raise TypeError(
        "temperature must be a positive number, a schedule of igr.schedules, or a module that returns it, such as "
        f"igr.schedules.Learnable(0.5) for one that is trained, got {describe(given)}"
    )


def shown(estimator: str, q: Relaxation, generator: torch.Generator | None) -> Tensor:
    """The sample that an estimator of :mod:`igr.estimators` shows to its function: hard, with the gradient of that."""
    seen: list[Tensor] = []

    def function(z: Tensor) -> Tensor:
        seen.append(z)
        return z.sum((-2, -1))

    getattr(estimators, estimator)(q, function, generator=generator)
    return seen[0].squeeze(0)  # one sample of each row
