"""Which temperature: near enough to the vertices, with gradients that are still there; public as igr.schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from igr import functional
from igr._checks import check_count, check_finite, check_parameter, check_range, describe, is_number
from igr._draws import gaussian_noise, location_scale

LOWEST, HIGHEST = 1e-9, 1e9  # temperatures looked at
ACCURACY = 1e-4  # to which log τ is found


class Suggestion(NamedTuple):
    """A temperature and what was measured at it."""

    temperature: float
    r""":math:`\tau`."""
    distance: float
    r"""The mean distance of a sample to its nearest vertex, :math:`E[1 - \max_k z_k]`."""
    vanishing: float
    """The share of samples whose gradient has vanished."""


def suggest_temperature(
    num_categories: int,
    relaxation: str = "igr-i",
    *,
    distance: float = 0.1,
    vanishing: float = 0.01,
    dtype: torch.dtype = torch.float32,
    loc: Tensor | None = None,
    scale: Tensor | float | None = None,
    logits: Tensor | None = None,
    num_samples: int = 4096,
    seed: int = 0,
) -> Suggestion:
    r"""The largest temperature whose samples are near enough to the vertices, if their gradients are still there.

    .. math:: \max \{\tau : E[1 - \max_k z_k] \le d\}, \quad \text{provided that} \quad
        P(\|\nabla_\theta\, v^\top z\|_\infty \le \text{tiny}) \le s.

    A sample's gradient has vanished where all entries of the derivative of :math:`v^\top z` with respect to its own
    locations (logits for the Gumbel-Softmax), v being standard normal, are at most the smallest normal number of
    ``dtype`` in absolute value. Parameters, sample and derivative are of that dtype, by the samplers of
    :mod:`igr.functional`.

    Note:
        The distance grows and the vanishing share falls with the temperature. All temperatures are looked at with the
        same noise, so that bisection in :math:`\log \tau` finds where the distance is d, to 1e-4; how well the
        expectation is known depends on ``num_samples``. IGR-Planar is not offered: its samples depend on the flow.

    Arguments:
        num_categories: K.
        relaxation: ``"igr-i"``, ``"igr-sb"`` or ``"gs"``.
        distance: d, between zero and :math:`1 - 1/K`, the distance of the centre.
        vanishing: s, the share of vanished gradients that is still all right.
        dtype: the dtype to train in.
        loc: :math:`\mu`, shape ``(*, K-1)``, such as those of a trained model; by default all categories of IGR-I are
            equally likely, if all scales are the same, and all sticks of IGR-SB are equally long where there is no
            noise.
        scale: :math:`\sigma`, a number or broadcastable with ``loc``; one by default.
        logits: :math:`\log \alpha` of the Gumbel-Softmax, shape ``(*, K)``; zero by default.
        num_samples: samples, of each row where there are several.
        seed: of the noise.

    Returns:
        The temperature, the distance and the vanishing share.

    Raises:
        ValueError: no temperature meets both; the message says what each would cost. Or arguments out of range, or
            those of another relaxation.

    Example:
        >>> tau, distance, vanishing = suggest_temperature(10, "gs")
        >>> round(tau, 1), round(distance, 3), vanishing
        (0.2, 0.1, 0.0)
    """
    _check_targets(num_categories, distance, vanishing, num_samples)
    parameters = _parameters(num_categories, relaxation, loc, scale, logits)
    draw = _sampler(relaxation, _in_dtype(parameters, dtype), num_samples, seed)

    def measure(tau: float) -> Suggestion:
        return _measure(draw, tau, seed)

    if not measure(LOWEST).distance <= distance:  # NaN too
        raise ValueError(f"no temperature above {LOWEST:g} has a distance of at most {distance:g}; are there ties?")
    found = measure(_bisect(lambda tau: measure(tau).distance <= distance, LOWEST, HIGHEST)[0])
    if found.vanishing <= vanishing:
        return found
    raise ValueError(
        f"no temperature has both a distance of at most {distance:g} and a vanishing share of at most {vanishing:g} in "
        f"{str(dtype).removeprefix('torch.')}: {found.temperature:.3g} has a distance of {found.distance:.3g} and a "
        f"share of {found.vanishing:.3g}; {_compromise(measure, found.temperature, vanishing)}"
    )


def measure_temperature(
    num_categories: int,
    relaxation: str,
    temperature: float,
    *,
    dtype: torch.dtype = torch.float32,
    loc: Tensor | None = None,
    scale: Tensor | float | None = None,
    logits: Tensor | None = None,
    num_samples: int = 4096,
    seed: int = 0,
) -> Suggestion:
    r"""How far samples are from the vertices at a temperature, and how many gradients have vanished.

    What :func:`suggest_temperature` looks for, at a temperature that is known: the same numbers from the same noise.

    Arguments:
        num_categories: K.
        relaxation: ``"igr-i"``, ``"igr-sb"`` or ``"gs"``.
        temperature: :math:`\tau`.
        dtype: the dtype to train in.
        loc: :math:`\mu`, as in :func:`suggest_temperature`, as are all that follow.
        scale: :math:`\sigma`.
        logits: :math:`\log \alpha`.
        num_samples: samples, of each row where there are several.
        seed: of the noise.

    Raises:
        ValueError: arguments out of range, or those of another relaxation.

    Example:
        >>> measure_temperature(10, "gs", 0.2).distance < measure_temperature(10, "gs", 2.0).distance
        True
    """
    _check_sizes(num_categories, num_samples)
    if not is_number(temperature):
        raise TypeError(f"temperature must be a number, got {describe(temperature)}")
    check_range("temperature", float(temperature))
    parameters = _parameters(num_categories, relaxation, loc, scale, logits)
    return _measure(_sampler(relaxation, _in_dtype(parameters, dtype), num_samples, seed), temperature, seed)


def _check_sizes(K: int, num_samples: int) -> None:
    check_count("num_categories", K, 2)
    check_count("num_samples", num_samples)


def _check_targets(K: int, distance: float, vanishing: float, num_samples: int) -> None:
    _check_sizes(K, num_samples)
    for name, value in (("distance", distance), ("vanishing", vanishing)):
        if not is_number(value):
            raise TypeError(f"{name} must be a number, got {describe(value)}")
    if not 0 < distance < 1 - 1 / K:
        raise ValueError(
            f"distance must be between 0 and {1 - 1 / K:g}, that of the centre of {K} categories, got {distance}"
        )
    if not 0 <= vanishing < 1:
        raise ValueError(f"vanishing must be a share, at least 0 and below 1, got {vanishing}")


def _parameters(
    K: int, relaxation: str, loc: Tensor | None, scale: Tensor | float | None, logits: Tensor | None
) -> tuple[Tensor, ...]:
    """(log α) or (μ, σ), float64 where they are ours."""
    if relaxation == "gs":
        if loc is not None or scale is not None:
            raise ValueError("the Gumbel-Softmax has logits, not loc and scale")
        equal = torch.zeros(K, dtype=torch.float64, device="cpu")
        log_alpha = _of_size(K, "logits", equal if logits is None else logits)
        check_finite("logits", log_alpha.clamp(min=torch.finfo(log_alpha.dtype).min))  # of what is impossible, -inf
        if bool((log_alpha == -math.inf).all(-1).any()):
            raise ValueError("logits must leave a category possible in every row, got one of -inf alone")
        return (log_alpha,)
    if relaxation not in ("igr-i", "igr-sb"):
        why = "; a planar flow is yours to choose, and samples depend on it" if relaxation == "igr-planar" else ""
        raise ValueError(f"relaxation must be 'igr-i', 'igr-sb' or 'gs', got {describe(relaxation)}{why}")
    if logits is not None:
        raise ValueError(f"{relaxation} has loc and scale, not logits")
    sigma = 1.0 if scale is None else scale
    if loc is None:
        loc = -torch.arange(K - 1, 0, -1, dtype=torch.float64, device="cpu").log()  # the breaks 1/K, 1/(K-1), ..., 1/2
        if relaxation == "igr-i":  # P(all below zero) = 1/K, and all others share the rest
            unit, sigma = location_scale(torch.ones_like(loc), sigma)
            loc = -sigma * torch.special.ndtri(unit * K ** (-1 / (K - 1)))
    mu, sigma = location_scale(_of_size(K - 1, "loc", loc), sigma)
    check_range("scale", sigma)
    check_finite("loc", mu)
    return mu, sigma


def _in_dtype(parameters: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"dtype must be a floating-point one of torch's, such as torch.float16, got {dtype!r}")
    found = [p.to(dtype) for p in parameters]
    for given, cast in zip(parameters, found, strict=True):
        if bool((cast.isinf() & ~given.isinf()).any()):
            largest = given.abs().masked_fill(given.isinf(), 0.0).amax().item()
            raise ValueError(
                f"parameters must be within the range of dtype, {str(dtype).removeprefix('torch.')} up to "
                f"{torch.finfo(dtype).max:g}, got {largest:g}; give smaller ones or a wider dtype"
            )
    return found


def _of_size(size: int, name: str, value: Tensor) -> Tensor:
    check_parameter(name, value, "K" if name == "logits" else "K - 1")
    if value.shape[-1] != size:
        raise ValueError(f"{name} must have shape (*, {size}) for this many categories, got {tuple(value.shape)}")
    return value.detach()


def _sampler(
    relaxation: str, parameters: list[Tensor], num_samples: int, seed: int
) -> Callable[[float], tuple[Tensor, Tensor]]:
    """A function from τ to S samples of each row, the same noise at every τ, and the parameters of their own."""

    def draw(tau: float) -> tuple[Tensor, Tensor]:
        generator = torch.Generator(parameters[0].device).manual_seed(seed)
        first, *rest = (p.detach().expand(num_samples, *p.shape).clone() for p in parameters)
        first.requires_grad_()
        if relaxation == "gs":
            return functional.gumbel_softmax(first, tau, generator=generator), first
        if relaxation == "igr-i":
            return functional.gaussian_softmax(first, rest[0], tau, generator=generator), first
        mu, sigma = (p.float() if p.dtype.itemsize < 4 else p for p in (first, rest[0]))
        y = mu + sigma * gaussian_noise(mu.shape, mu, generator)
        w = functional.log_stick_breaking(y).exp()
        return functional.softmaxpp(w[..., :-1] - w[..., -1:], tau).to(first.dtype), first

    return draw


def _compromise(measure: Callable[[float], Suggestion], start: float, vanishing: float) -> str:
    """The nearest temperature above ``start`` that has the gradients; far above, they are small again."""
    high = start
    while measure(high).vanishing > vanishing:
        high *= 2
        if high > 1000 * start:
            return "none has so few: allow more, or train in a wider dtype"
    other = measure(_bisect(lambda tau: measure(tau).vanishing > vanishing, start, high)[1])
    return (
        f"the nearest with so few, {other.temperature:.3g}, has a distance of {other.distance:.3g}: ask for "
        f"distance={math.ceil(other.distance * 1e3) / 1e3:g}, allow more, or train in a wider dtype"
    )


def _measure(draw: Callable[[float], tuple[Tensor, Tensor]], tau: float, seed: int) -> Suggestion:
    with torch.inference_mode(False), torch.enable_grad():
        z, theta = draw(tau)
        generator = torch.Generator(z.device).manual_seed(seed + 1)
        v = torch.randn(z.shape, device=z.device, generator=generator).to(z.dtype)
        (gradient,) = torch.autograd.grad(z, theta, v)
    distance = 1 - z.detach().double().amax(-1)
    return Suggestion(tau, distance.mean().item(), vanished_share(gradient))


def vanished_share(gradient: Tensor) -> float:
    """The share of rows of which no entry exceeds the smallest normal number."""
    return (gradient.abs() <= torch.finfo(gradient.dtype).tiny).all(-1).double().mean().item()


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Two temperatures next to each other: at the first it holds, as at ``low``, at the second not, as at ``high``."""
    while math.log(high / low) > ACCURACY:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high
