r"""Priors: parameters :math:`(\mu_0, \sigma_0)` whose recovered discrete distribution is a given :math:`p_0`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Binomial,
    Categorical,
    Distribution,
    Geometric,
    NegativeBinomial,
    OneHotCategorical,
    Poisson,
    Transform,
)

from igr._checks import broadcast, check_count, check_finite, check_parameter, describe, expand, is_number
from igr._draws import location_scale
from igr._locations import NEGLIGIBLE, countable_locations, gaussian_locations, refuse_zeros, stick_locations
from igr._maps import parts_of
from igr.countable import CountableStickBreaking, StickSample
from igr.distributions import InvertibleGaussian, Relaxation
from igr.transforms import StickBreaking

__all__ = ["fit_prior", "match_moments"]

Pmf = Callable[[Tensor], Tensor]


@torch.inference_mode(False)  # whatever is around, since derivatives are needed
def fit_prior(
    p0: Tensor | Distribution | Pmf,
    *,
    temperature: float | Tensor,
    scale: float | Tensor = 1.0,
    flow: Transform | Sequence[Transform] | None = None,
    delta: float | Tensor = 1.0,
    precision: float = 0.99,
    tolerance: float = 1e-6,
    num_samples: int = 10_000,
    num_steps: int = 1_000,
    generator: torch.Generator | None = None,
) -> InvertibleGaussian | CountableStickBreaking:
    r"""A relaxation whose recovered discrete distribution is :math:`p_0`.

    Only :math:`\mu_0` is fitted. The scale is given, since the discrete distribution leaves it free; without a flow,
    multiplying locations, scales and temperature by one number changes neither samples nor divergences.

    Note:
        Without a flow, Newton's method solves Proposition 2 to 1e-8, and for a uniform :math:`p_0` it is the
        closed form :math:`\mu_0 = -\sigma_0 \Phi^{-1}(K^{-1 / (K - 1)})`. With ``StickBreaking`` it solves the
        recursions of :func:`igr.recovered_log_probs_stick_breaking`, exact to their error, along a path of scales that
        fall from where the probabilities are products of hazards. With any other flow only samples are known, and
        :func:`match_moments` fits :math:`E \tilde{z}` at the given temperature. Equation 14 as printed,
        :math:`E \|\tilde{z} - p_0\|^2`, would be least for a point mass at :math:`p_0`; what is meant is
        :math:`\|E \tilde{z} - p_0\|^2`.

        Probabilities below 1e-10 are not told apart: the result gives such a category about that, or less.

        On the integers, the result has one stick for each of the first n, where all later ones together have a
        probability below ``tolerance``; the next stick takes all that is left. That takes about a second for ten of
        them and ten for a hundred.

    References:
        Equation 14, section 3.1.

    Arguments:
        p0: probabilities, shape ``(*, K)``; a ``Categorical``, ``OneHotCategorical``, ``Bernoulli`` or ``Binomial``;
            or, for a distribution on all of the integers 0, 1, 2, ..., a ``Poisson``, ``Geometric`` or
            ``NegativeBinomial`` or a function from a tensor of integers to their probabilities.
        temperature: :math:`\tau` of the result.
        scale: :math:`\sigma_0`, a number or broadcastable with ``(*, K-1)``.
        flow: what comes before the softmax++: nothing, ``StickBreaking()``, or any other; its parameters stay as they
            are. On the integers it is always stick-breaking.
        delta: :math:`\delta` of the result.
        precision: :math:`\rho` of the result, on the integers.
        tolerance: the probability that may be left out on the integers.
        num_samples: samples per step, where only samples are known.
        num_steps: steps, where only samples are known.
        generator: source of noise, where only samples are known.

    Returns:
        An :class:`igr.InvertibleGaussian`, or on the integers an :class:`igr.CountableStickBreaking`, whose location
        and scale have no gradients.

    Raises:
        ValueError: ``p0`` is no distribution, or asks for a probability of exactly zero, which no Gaussian gives (or
            for a positive one where ``StickBreaking(leftover=False)`` gives zero).
        RuntimeError: no solution was found.

    Example:
        >>> prior = fit_prior(torch.tensor([0.5, 0.3, 0.2]), temperature=0.1)
        >>> prior.recovered().probs
        tensor([0.5000, 0.3000, 0.2000])
        >>> counts = fit_prior(torch.distributions.Poisson(3.0), temperature=0.1)
        >>> counts.recovered().probs[:4]
        tensor([0.0498, 0.1494, 0.2240, 0.2240])
    """
    scale = scale.detach().clone() if isinstance(scale, Tensor) else scale
    parts = () if flow is None else parts_of(flow)
    sticks = parts[0] if len(parts) == 1 and type(parts[0]) is StickBreaking else None
    target = _target(p0, tolerance)
    if target.unbounded:
        if parts and sticks is None:
            raise ValueError(f"on the integers the flow is StickBreaking(), got {flow}")
        if not is_number(scale):
            raise ValueError(f"on the integers scale must be one number, got {describe(scale)}")

        def countable(loc: Tensor | float) -> CountableStickBreaking:
            return CountableStickBreaking(loc, float(scale), temperature, precision, delta=delta)

        countable(0.0)  # refuses what is wrong before anything is fitted
        return countable(countable_locations(target.probs, float(scale)).to(target.like))
    loc, sigma = location_scale(torch.zeros_like(target.probs[..., 1:]), scale)
    probs = expand(target.probs, loc.shape[:-1] + target.probs.shape[-1:])

    def relaxation(loc: Tensor) -> InvertibleGaussian:
        return InvertibleGaussian(loc.to(target.like), sigma.to(target.like), temperature, flow=flow, delta=delta)

    relaxation(loc)
    if sticks is None or sticks.leftover:
        refuse_zeros(probs)
    if parts and sticks is None:
        loc = loc.to(target.like).requires_grad_()
        match_moments(
            lambda: relaxation(loc), [loc], probs, num_samples=num_samples, num_steps=num_steps, generator=generator
        )
        return relaxation(loc.detach())
    rows = [
        gaussian_locations(p, s) if sticks is None else stick_locations(p, s, sticks.leftover)
        for p, s in zip(*(x.reshape(-1, x.shape[-1]) for x in (probs, sigma.double())), strict=True)
    ]
    return relaxation(torch.stack(rows).reshape(loc.shape) if rows else loc)


def match_moments(
    relaxation: Callable[[], Relaxation | CountableStickBreaking],
    parameters: Sequence[Tensor],
    p0: Tensor,
    *,
    num_samples: int = 1_000,
    num_steps: int = 1_000,
    learning_rate: float = 1e-2,
    optimizer: torch.optim.Optimizer | None = None,
    generator: torch.Generator | None = None,
    callback: Callable[[int, float], None] | None = None,
) -> list[float]:
    r"""Fits parameters in place by stochastic gradients of :math:`\|E \tilde{z} - p_0\|^2`.

    The squared error of the mean of ``num_samples`` samples is minimised by Adam. Its expectation exceeds what is
    meant by the variance of that mean, :math:`O(1 / S)`.

    References:
        Equation 14, as it is meant.

    Arguments:
        relaxation: builds the relaxation from the current parameters.
        parameters: what is optimised, unless there is an ``optimizer``, which knows.
        p0: :math:`p_0`, shape ``(*, K)``; on the integers the first K probabilities. Categories that one of the two
            lacks count as zero.
        num_samples: samples S per step.
        num_steps: steps.
        learning_rate: of Adam, falling to zero by half a cosine over the steps.
        optimizer: another optimizer of the parameters, whose learning rate is left alone.
        generator: source of the noise.
        callback: called with the number of steps done and the loss, at each step.

    Returns:
        The loss at each step, summed over rows.

    Example:
        >>> from igr import GumbelSoftmax
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> losses = match_moments(lambda: GumbelSoftmax(0.1, logits), [logits], torch.tensor([0.5, 0.3, 0.2]))
        >>> losses[-1] < losses[0]
        True
    """
    if not callable(relaxation):
        raise TypeError(f"relaxation must be a function that builds one, got {describe(relaxation)}; use lambda: ...")
    _check_moments(p0, num_samples, num_steps)
    fixed = optimizer is not None
    optimizer = torch.optim.Adam(list(parameters), learning_rate) if optimizer is None else optimizer
    losses = []
    for step in range(num_steps):
        if not fixed:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * 0.5 * (1 + math.cos(math.pi * step / num_steps))
        optimizer.zero_grad()
        with torch.enable_grad():
            mean = _mean(relaxation().rsample((num_samples,), generator=generator))
            loss = _squared_error(mean, p0)
        moving = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
        if moving:
            loss.backward(inputs=moving)  # nothing else that the relaxation is made of gets a gradient
        optimizer.step()
        losses.append(loss.item())
        if callback is not None:
            callback(step + 1, losses[-1])
    return losses


def _check_moments(p0: object, num_samples: int, num_steps: int) -> None:
    tensor = check_parameter("p0", p0, "K")
    check_finite("p0", tensor)
    if bool((tensor < 0).any()) or bool((tensor.sum(-1) > 1 + 1e-2).any()):
        raise ValueError("p0 is not a distribution: its entries must not be negative, nor sum to more than one")
    check_count("num_samples", num_samples)
    check_count("num_steps", num_steps, 0)


def _mean(sample: Tensor | StickSample) -> Tensor:
    return (sample.z if isinstance(sample, StickSample) else sample).mean(0)


def _squared_error(mean: Tensor, p0: Tensor) -> Tensor:
    """Summed over rows and categories, where those that one of the two lacks are zero."""
    if broadcast(samples=mean.shape[:-1], p0=p0.shape[:-1]) != mean.shape[:-1]:
        raise ValueError(f"p0 of shape {tuple(p0.shape)} has more rows than samples, which are {tuple(mean.shape)}")
    K = max(mean.shape[-1], p0.shape[-1])
    mean, p = (F.pad(x, (0, K - x.shape[-1])) for x in (mean, p0.to(mean)))
    return (mean - p).square().sum()


class _Target(NamedTuple):
    probs: Tensor  # (*, K), float64; on the integers one entry more, for the tail
    unbounded: bool
    like: Tensor  # of the dtype and device of the result


def _target(p0: Tensor | Distribution | Pmf, tolerance: float) -> _Target:
    """What is asked for, as probabilities that have been checked."""
    match p0:
        case Tensor():
            probs = check_parameter("p0", p0, "K")
        case Categorical() | OneHotCategorical():
            probs = p0.probs
        case Bernoulli():
            probs = torch.stack([1 - p0.probs, p0.probs], -1)
        case Binomial():
            return _Target(_checked(_binomial(p0), 1e-5), False, p0.probs.detach())
        case Poisson() | Geometric() | NegativeBinomial():
            if p0.batch_shape:
                raise ValueError(
                    f"on the integers p0 must be one distribution, got batch shape {tuple(p0.batch_shape)}"
                )
            example = p0.mean.detach()
            return _Target(_first_integers(_pmf_in_float64(p0), tolerance, example), True, example)
        case Distribution():
            raise TypeError(
                f"no discrete distribution is known behind {p0}: give its probabilities as a tensor or as a function"
            )
        case _ if callable(p0):
            example = torch.empty(0)
            return _Target(_first_integers(p0, tolerance, example), True, example)
        case _:
            raise TypeError(f"p0 must be a tensor, a distribution or a function of integers, got {describe(p0)}")
    rounding = max(1e-5, probs.shape[-1] * torch.finfo(probs.dtype).eps)
    return _Target(_checked(probs.detach().double(), rounding), False, probs.detach())


def _pmf_in_float64(p0: Poisson | Geometric | NegativeBinomial) -> Pmf:
    names = {Poisson: ("rate",), Geometric: ("probs",), NegativeBinomial: ("total_count", "probs")}
    kind = next(each for each in names if isinstance(p0, each))
    wide = kind(*(getattr(p0, name).detach().double() for name in names[kind]), validate_args=False)
    return lambda k: _without_underflow(wide.log_prob(k.double()))


def _without_underflow(log_p: Tensor) -> Tensor:
    """Probabilities that are zero only if their logarithms are minus infinity."""
    return torch.where(log_p > -math.inf, log_p.clamp(min=-700.0), log_p).exp()


def _binomial(p0: Binomial) -> Tensor:
    counts = p0.total_count
    if bool((counts != counts.flatten()[0]).any()):
        raise ValueError("p0 must have one total_count: the number of categories is one more")
    n = int(counts.flatten()[0])
    if n < 1:
        raise ValueError(f"p0 must have at least two categories, got {p0}")
    k = torch.arange(n + 1, dtype=torch.float64, device=p0.probs.device)
    return _without_underflow(Binomial(n, p0.probs.detach().double().unsqueeze(-1), validate_args=False).log_prob(k))


def _checked(probs: Tensor, rounding: float) -> Tensor:
    """Rows that are probabilities, normalised."""
    if not bool(probs.isfinite().all()) or bool((probs < 0).any()):
        raise ValueError("p0 is not a distribution: its entries must be finite and not negative")
    total = probs.sum(-1, keepdim=True)
    if bool(((total - 1).abs() > rounding).any()):
        worst = total.flatten()[(total - 1).abs().flatten().argmax()].item()
        raise ValueError(f"p0 is not a distribution: a row sums to {worst:g} instead of one")
    return probs / total


def _first_integers(pmf: Pmf, tolerance: float, like: Tensor) -> Tensor:
    """The probabilities of 0, ..., n - 1 and, last, of all others, which are at most ``tolerance``."""
    if not 0 < tolerance < 0.5:
        raise ValueError(f"tolerance must be in (0, 0.5), got {tolerance}")
    n, limit = 64, 2**11
    while True:
        k = torch.arange(n, device=like.device)
        probs = torch.as_tensor(pmf(k), device=like.device).detach().double()
        if probs.shape != k.shape:
            raise ValueError(f"p0 must return one probability for each of {n} integers, got shape {tuple(probs.shape)}")
        if not bool(probs.isfinite().all()) or bool((probs < 0).any()) or bool(probs.sum() > 1 + 1e-5):
            raise ValueError("p0 is not a distribution on the integers: entries are negative, or sum to more than one")
        total = probs.cumsum(0)
        if bool(total[-1] >= 1 - tolerance):
            break
        if n >= limit:
            raise ValueError(
                f"p0 is not a distribution on the integers 0, 1, ..., or needs too many of them: the first {n} sum to "
                f"{total[-1].item():g}; use a larger tolerance"
            )
        n *= 2
    n = int((total < 1 - tolerance).sum()) + 1
    probs = torch.cat([probs[:n], (1 - total[n - 1 : n]).clamp(min=0.0)])
    refuse_zeros(probs[:n])
    return probs if probs[-1] > NEGLIGIBLE else probs[:-1] / probs[:-1].sum()
