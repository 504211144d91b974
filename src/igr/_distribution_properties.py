"""The properties of the correctness kit that every relaxation must have."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution

from igr._scalars import same_value
from igr._transform_properties import close, log_ratios
from igr.distributions import EstimatedOneHotCategorical, InvertibleReparameterization, Relaxation
from igr.estimators._graph import leaves
from igr.kl import monte_carlo_kl


def properties(
    d: Relaxation, other: Distribution | None, parameters: Sequence[Tensor], num_samples: int
) -> dict[str, Callable[[], None]]:
    """By their names, in the order in which they are asked for."""
    return {
        "shapes": partial(_shapes, d),
        "support": partial(_support, d),
        "own density": partial(_own_density, d),
        "integral": partial(_integral, d, num_samples),
        "never NaN": partial(_never_nan, d),
        "hard samples": partial(_hard_samples, d),
        "recovered": partial(_recovered, d, num_samples),
        "gradients": partial(_every_parameter, d, parameters),
        "KL": partial(_kl, d, other, num_samples),
    }


def _coordinates(d: Relaxation, log_z: Tensor) -> Tensor:
    """Log-ratios of a sample, shape (*, K-1); those of (z, 1 - z) for a scalar one."""
    return log_ratios(log_z) if d.event_shape else (log_z - (-torch.expm1(log_z)).log()).unsqueeze(-1)


def _from_coordinates(d: Relaxation, ratios: Tensor) -> tuple[Tensor, Tensor]:
    """log z and the log-determinant of log-ratios to the first K-1 coordinates of z."""
    if d.event_shape:
        log_z = F.pad(ratios, (0, 1)).log_softmax(-1)
        return log_z, log_z.sum(-1)
    ratio = ratios.squeeze(-1)
    return F.logsigmoid(ratio), F.logsigmoid(ratio) + F.logsigmoid(-ratio)


def _shapes(d: Relaxation) -> None:
    wide = torch.Size((2, *d.batch_shape))
    for q, batch in ((d, d.batch_shape), (d.expand(wide), wide)):
        assert q.batch_shape == batch, f"expand gives batch shape {tuple(q.batch_shape)}, expected {tuple(batch)}"
        shape = torch.Size((5, *batch, *d.event_shape))
        samples = {"rsample": q.rsample((5,)), "log_rsample": q.log_rsample((5,)), "hard_rsample": q.hard_rsample((5,))}
        samples["rsample_and_log_prob"], log_q = q.rsample_and_log_prob((5,))
        for name, z in samples.items():
            assert z.shape == shape, f"{name} has shape {tuple(z.shape)}, expected {tuple(shape)}"
        assert log_q.shape == shape[: len(batch) + 1], f"the log-density has shape {tuple(log_q.shape)}"
    log_z = d.log_rsample().detach().clamp(max=0.0 if d.event_shape else -1e-12)
    density = d.log_prob_from_log(log_z).expand(wide)
    same = torch.isclose(d.expand(wide).log_prob_from_log(log_z), density, equal_nan=True)
    assert bool(same.all()), "expand changes the density"


def _support(d: Relaxation) -> None:
    assert bool(d.support.check(d.rsample((100,))).all()), "some samples are not in the support"


def _own_density(d: Relaxation) -> None:
    torch.manual_seed(1)
    log_z, log_q = d.log_rsample_and_log_prob((1000,))
    torch.manual_seed(1)
    z = d.rsample((1000,))
    rounding = max(1e-6, 4 * torch.finfo(z.dtype).eps)
    close("rsample, with the noise of log_rsample_and_log_prob,", z.to(log_z.dtype), log_z.exp(), rounding)
    torch.manual_seed(1)
    close("log_rsample, with the same noise,", d.log_rsample((1000,)).exp(), log_z.exp(), rounding)
    assert bool(log_q.isfinite().all()), "some samples have a nonfinite log-density"
    precision = torch.finfo(log_z.dtype)
    if d.event_shape:
        kept = (log_z > math.log(precision.tiny) + 10).all(-1)  # the others have underflowed in z, and give way to
        log_z_kept = torch.where(kept.unsqueeze(-1), log_z, -math.log(log_z.shape[-1]))  # the centre of the simplex
        again = {"log_prob_from_log": d.log_prob_from_log(log_z)}
    else:
        kept = (log_z > math.log(precision.tiny) + 10) & (log_z < -1e4 * precision.eps)
        log_z_kept, again = torch.where(kept, log_z, -math.log(2)), {}
    again["log_prob"] = torch.where(kept, d.log_prob(log_z_kept.exp()), log_q)
    for name, value in again.items():
        agree = (value - log_q).abs() <= max(1e-6, 1e3 * precision.eps) * log_q.abs().clamp(min=1.0)
        share = agree.double().mean().item()
        assert share >= 0.9, f"{name} agrees with rsample_and_log_prob in only {share:.1%} of the rows"


def _integral(d: Relaxation, num_samples: int) -> None:
    size = (d.event_shape[-1] if d.event_shape else 2) - 1
    log_z = d.log_rsample((num_samples,)).detach()
    if size > 2 or not bool((log_z.isfinite() if d.event_shape else log_z < 0).all()):
        return
    ratios = _coordinates(d, log_z)
    margin = 0.25 * (ratios.amax(0) - ratios.amin(0))
    low, high = ratios.amin(0) - margin, ratios.amax(0) + margin  # (*, K-1)
    if not d.event_shape:
        low, high = low.clamp(min=-700.0), high.clamp(max=700.0)  # beyond, log z rounds to zero
    centre = ratios.median(0).values
    spread = (ratios - centre).abs().median(0).values.clamp(min=torch.finfo(ratios.dtype).tiny)
    window = _Window(centre, spread, *(torch.asinh((edge - centre) / spread) for edge in (low, high)))
    total, expected = _integrate(d, window, *_LATTICES[0])
    for lattice in _LATTICES[1:]:  # finer, until two of them agree on one: edges of a density mislead two alike
        previous = total
        total, expected = _integrate(d, window, *lattice)
        if bool((total - previous).abs().max() < 5e-4) and bool((total - 1).abs().max() < 5e-4):
            break
    close("the integral of the density", total, torch.ones_like(total), 1e-3)
    moments = _moments(d, log_z)
    error = moments.std(0) / math.sqrt(num_samples)
    worst = ((moments.mean(0) - expected).abs() / (5 * error + 1e-3)).max().item()
    assert worst <= 1, f"moments of the density and of the samples differ by {worst:.2g} times what is allowed"


# number of points and step of Fibonacci lattices, to which hardly an edge of a density is parallel
_LATTICES = ((28_657, 17_711), (75_025, 46_368), (514_229, 317_811), (1_346_269, 832_040))


class _Window(NamedTuple):
    """Log-ratios c + s sinh(u), for u between two corners: dense in the middle, and far into heavy tails."""

    centre: Tensor  # (*, K-1)
    spread: Tensor
    low: Tensor
    high: Tensor


@torch.no_grad()
def _integrate(d: Relaxation, window: _Window, points: int, step: int) -> tuple[Tensor, Tensor]:
    """The mass and the moments of the density in a window."""
    centre, spread, low, high = window
    total, moments, volume = torch.zeros_like(low[..., 0]), torch.zeros_like(low[..., :1]), (high - low).prod(-1)
    for index in torch.arange(points, dtype=torch.float64, device=low.device).split(25_000):
        unit = torch.stack([index / points, (index * step / points).frac()], -1)[:, : low.shape[-1]]
        cells = unit.to(low.dtype).reshape(-1, *[1] * (low.dim() - 1), low.shape[-1])
        u = low + cells * (high - low)
        point, log_det = _from_coordinates(d, centre + spread * u.sinh())
        slope = (spread * u.cosh()).prod(-1)
        mass = (d.log_prob_from_log(point) + log_det).exp() * slope * volume / points
        total += mass.sum(0)
        moments = moments + (mass.unsqueeze(-1) * _moments(d, point)).sum(0)
    return total, moments


def _moments(d: Relaxation, log_z: Tensor) -> Tensor:
    """The first K-1 coordinates of z and their squares, shape (*, 2K-2)."""
    z = log_z.exp()[..., :-1] if d.event_shape else log_z.exp().unsqueeze(-1)
    return torch.cat([z, z.square()], -1)


def _never_nan(d: Relaxation) -> None:
    vertex = d.hard_rsample((10,)).detach()
    try:
        value = d.log_prob(vertex)
    except ValueError:
        return  # refused, with advice
    assert not bool(value.isnan().any()), "log_prob is NaN at a vertex"


def _hard_samples(d: Relaxation) -> None:
    parameters = [p for p in leaves(d.log_rsample()).values() if p.requires_grad]
    weights = torch.randn_like(d.rsample((7,)))
    torch.manual_seed(1)
    soft = d.rsample((7,))
    torch.manual_seed(1)
    hard = d.hard_rsample((7,))
    assert bool(((hard == 0) | (hard == 1)).all()), "some entries are neither zero nor one"
    if d.event_shape:
        assert bool((hard.sum(-1) == 1).all()), "some rows are not one-hot"
    onto = d.maps[-1] if isinstance(d, InvertibleReparameterization) else None
    if same_value(getattr(onto, "delta", 1.0), 1.0):  # otherwise the largest coordinate is not the limit
        nearest = soft.argmax(-1) == hard.argmax(-1) if d.event_shape else (soft > 0.5) == (hard > 0.5)
        assert bool(nearest.all()), "some hard samples are not the vertex that the relaxed sample is nearest to"
    if parameters:
        assert hard.requires_grad, "they have no gradient"
        wanted = torch.autograd.grad((weights * soft).sum(), parameters, allow_unused=True)
        given = torch.autograd.grad((weights * hard).sum(), parameters, allow_unused=True)
        for a, b in zip(given, wanted, strict=True):
            assert (a is None) == (b is None), "hard and relaxed samples depend on different parameters"
            if a is not None and b is not None:
                close("the gradient of the hard sample", a, b, 1e-9)


@torch.no_grad()
def _recovered(d: Relaxation, num_samples: int) -> None:
    frequencies = d.hard_rsample((num_samples,)).double().mean(0)
    recovered = d.recovered(num_samples)
    probs = recovered.mean.double()
    assert probs.shape == frequencies.shape, f"it has shape {tuple(probs.shape)}, expected {tuple(frequencies.shape)}"
    error = ((probs * (1 - probs)).clamp(min=1 / num_samples) / num_samples).sqrt()
    if isinstance(recovered, EstimatedOneHotCategorical):
        error = math.sqrt(2) * error  # both are estimates
    worst = ((probs - frequencies).abs() / (5 * error + 1e-5)).max().item()
    assert worst <= 1, f"it differs from the frequencies of hard samples by {5 * worst:.1f} standard errors"


def _every_parameter(d: Relaxation, parameters: Sequence[Tensor]) -> None:
    if not parameters:
        return
    log_z, log_q = d.log_rsample_and_log_prob((3,))
    loss = (torch.randn_like(log_z) * log_z).sum() + log_q.sum()
    assert loss.requires_grad, "no parameter gets a gradient"
    for index, gradient in enumerate(torch.autograd.grad(loss, list(parameters), allow_unused=True)):
        assert gradient is not None, f"parameter {index} gets no gradient"
        assert bool(gradient.isfinite().all()), f"parameter {index} gets a nonfinite gradient"
        assert bool((gradient != 0).any()), f"parameter {index} gets a gradient of zero"


def _kl(d: Relaxation, other: Distribution | None, num_samples: int) -> None:
    try:
        own = d.kl(d)
    except NotImplementedError:
        own = None
    if own is not None:
        assert own.shape == d.batch_shape, f"it has shape {tuple(own.shape)}, expected {tuple(d.batch_shape)}"
        close("the KL to itself", own, torch.zeros_like(own), 1e-9)
    if other is None:
        return
    closed = d.kl(other)
    estimate, error = monte_carlo_kl(d, other, num_samples)
    worst = ((closed - estimate).abs() / (5 * error + 1e-9)).max().item()
    assert worst <= 1, f"it differs from Monte Carlo by {5 * worst:.1f} standard errors"
