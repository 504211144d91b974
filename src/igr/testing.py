r"""The correctness kit: properties that every transform and every relaxation must have, for yours and for ours.

Each check runs one property after the other in float64 and fails with an :class:`AssertionError` that names the
property.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError
from torch.distributions import Distribution, Transform

from igr._scalars import same_value
from igr.distributions import EstimatedOneHotCategorical, InvertibleReparameterization, Relaxation
from igr.estimators._graph import leaves
from igr.kl import monte_carlo_kl
from igr.transforms import SimplexTransform, call_and_ladj

__all__ = ["check_distribution", "check_transform"]


def check_transform(
    transform: Transform,
    x: Tensor | None = None,
    *,
    skip: Collection[str] = (),
    seed: int = 0,
    tolerance: float = 1e-9,
) -> None:
    r"""Checks a transform of vectors, from :math:`\mathbb{R}^{K-1}` to itself or onto the simplex.

    Properties, in this order: ``shapes``, ``codomain``, ``round trip``, ``log-determinant`` (against the determinant
    of the autograd Jacobian of the first K-1 coordinates), ``inverse log-determinant``, ``one pass``
    (:func:`igr.transforms.call_and_ladj` says what the two calls say), ``finite`` (float32, inputs up to 50),
    ``gradients`` (against finite differences), ``equality`` (by value) and ``repr``.

    Arguments:
        transform: the transform.
        x: float64 points of its domain, shape ``(N, *, K-1)``; by default eight standard normal vectors within 3,
            of the smallest length that the transform takes, from two upwards if it can be.
        skip: names of properties that are not asked for.
        seed: seed of the default points.
        tolerance: largest error, relative to the larger of one and the value. Round trips are asked only of points
            whose image has not underflowed.

    Raises:
        AssertionError: a property fails; the message names it.

    Example:
        >>> from igr.transforms import SoftmaxPlusPlus
        >>> check_transform(SoftmaxPlusPlus(tau=0.3))
    """
    x = _default_points(transform, seed) if x is None else x
    for name in _selected(_TRANSFORM_PROPERTIES, skip):
        _run(transform, name, partial(_TRANSFORM_PROPERTIES[name], transform, x, tolerance))


def check_distribution(
    d: Relaxation,
    *,
    other: Distribution | None = None,
    parameters: Sequence[Tensor] = (),
    skip: Collection[str] = (),
    num_samples: int = 20_000,
    seed: int = 0,
) -> None:
    r"""Checks a relaxation: its samples, its density, and that they belong together.

    Properties, in this order: ``shapes`` (and ``expand``), ``support``, ``own density`` (all ways to sample
    agree on one noise, and ``rsample_and_log_prob`` says what ``log_prob`` and ``log_prob_from_log`` say, in nine rows
    of ten; the rest may be beyond floating point), ``integral`` (the density integrates to one within 1e-3, and its
    first two moments are those of the samples within 5 standard errors; up to three categories), ``never NaN`` (at the
    vertices), ``hard samples`` (one-hot, at the nearest vertex where δ = 1, with the gradient of the relaxed sample),
    ``recovered`` (the probabilities of hard samples, within 5 standard errors of their frequencies),
    ``gradients`` (every tensor in ``parameters`` gets a finite one that is not all zero) and ``KL`` (zero to itself;
    within 5 standard errors of Monte Carlo to ``other``).

    Note:
        Only up to three categories can the density be integrated: give your class as well with two or three.

    Arguments:
        d: the relaxation, best with float64 parameters.
        other: another distribution of the same kind, to which the KL divergence has a closed form.
        parameters: leaf tensors that require gradients and should receive them.
        skip: names of properties that are not asked for.
        num_samples: number of samples behind the statistical checks.
        seed: seed of all randomness; torch's global generator is left as it was.

    Raises:
        AssertionError: a property fails; the message names it.

    Example:
        >>> from igr import InvertibleGaussian
        >>> check_distribution(InvertibleGaussian(torch.zeros(2, dtype=torch.float64), 1.0, temperature=0.5))
    """
    checks: dict[str, Callable[[], None]] = {
        "shapes": partial(_distribution_shapes, d),
        "support": partial(_support, d),
        "own density": partial(_own_density, d),
        "integral": partial(_integral, d, num_samples),
        "never NaN": partial(_never_nan, d),
        "hard samples": partial(_hard_samples, d),
        "recovered": partial(_recovered, d, num_samples),
        "gradients": partial(_every_parameter, d, parameters),
        "KL": partial(_kl, d, other, num_samples),
    }
    with torch.random.fork_rng():
        for name in _selected(checks, skip):
            torch.manual_seed(seed)
            _run(d, name, checks[name])


def _selected(properties: Collection[str], skip: Collection[str]) -> list[str]:
    if not __debug__:
        raise RuntimeError("python -O leaves out what igr.testing asserts; run the checks without it")
    unknown = set(skip) - set(properties)
    if unknown:
        raise ValueError(f"no properties called {sorted(unknown)}; there are {', '.join(properties)}")
    return [name for name in properties if name not in skip]


def _run(subject: object, name: str, check: Callable[[], None]) -> None:
    try:
        check()
    except AssertionError as error:
        raise AssertionError(f"property '{name}' fails for {subject}: {error}") from error
    except Exception as error:
        raise AssertionError(f"property '{name}' fails for {subject}: {type(error).__name__}: {error}") from error


def _close(what: str, actual: Tensor, expected: Tensor, tolerance: float) -> None:
    error = (actual - expected).abs() / expected.abs().clamp(min=1.0)
    worst = error.max().item() if error.numel() else 0.0
    assert worst <= tolerance, f"{what} is off by {worst:.3g}, allowed {tolerance:.3g}"


# transforms


def _default_points(transform: Transform, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    for size in (*range(2, 4097), 1):
        try:
            shape = transform.inverse_shape(transform.forward_shape(torch.Size((size,))))
        except (ValueError, RuntimeError):
            continue
        return torch.randn((8, *shape), dtype=torch.float64, generator=generator).clamp(-3, 3)
    raise ValueError(f"{transform} takes no vectors of length 1 to 4096; pass points x of its domain")


def _is_simplex(x: Tensor, y: Tensor) -> bool:
    return y.shape[-1] == x.shape[-1] + 1


def _transform_shapes(t: Transform, x: Tensor, tolerance: float) -> None:
    y = t(x)
    expected = torch.Size(t.forward_shape(x.shape))
    assert y.shape == expected, f"output has shape {tuple(y.shape)}, forward_shape says {tuple(expected)}"
    back = torch.Size(t.inverse_shape(y.shape))
    assert back[-1] == x.shape[-1], (
        f"inverse_shape of {tuple(y.shape)} is {tuple(back)}, the input had {tuple(x.shape)}"
    )
    ladj = t.log_abs_det_jacobian(x, y)
    assert ladj.shape == y.shape[:-1], (
        f"the log-determinant has shape {tuple(ladj.shape)}, expected {tuple(y.shape[:-1])}"
    )


def _codomain(t: Transform, x: Tensor, tolerance: float) -> None:
    assert bool(t.codomain.check(t(x)).all()), f"some outputs are not in the codomain {t.codomain}"


def _round_trip(t: Transform, x: Tensor, tolerance: float) -> None:
    y = t(x)
    x = x.expand(y.shape[:-1] + x.shape[-1:])
    whole = (y > 1e-300).all(-1) if _is_simplex(x, y) else torch.ones_like(y[..., 0], dtype=torch.bool)
    _close("inv(forward(x))", t.inv(y)[whole], x[whole], tolerance)
    if isinstance(t, SimplexTransform):
        _close("log_inverse(log_call(x))", t.log_inverse(t.log_call(x)), x, tolerance)


def _log_determinant(t: Transform, x: Tensor, tolerance: float) -> None:
    """Autograd's Jacobian. Where z underflows, that of the log-ratios, whose own map to z has determinant prod z."""
    y = t(x)
    ladj = t.log_abs_det_jacobian(x, y)
    if isinstance(t, SimplexTransform):
        log_z = t.log_call(x)
        reference = _slogdet(lambda v: _log_ratios(t.log_call(v)), x) + log_z.sum(-1)
        _close("log_abs_det_jacobian, against log-ratios,", ladj, reference, tolerance)
    size = x.shape[-1]
    whole = (y > 1e-6).all(-1) if _is_simplex(x, y) else torch.ones_like(y[..., 0], dtype=torch.bool)
    _close("log_abs_det_jacobian", ladj[whole], _slogdet(lambda v: t(v)[..., :size], x)[whole], tolerance)


def _slogdet(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """log |det| of the Jacobian of f at every row of x."""
    x = x.detach().expand(f(x).shape[:-1] + x.shape[-1:]).clone().requires_grad_()
    y = f(x)
    rows = [torch.autograd.grad(y[..., k].sum(), x, retain_graph=True)[0] for k in range(y.shape[-1])]
    logabsdet: Tensor = torch.linalg.slogdet(torch.stack(rows, -2)).logabsdet
    return logabsdet


def _inverse_log_determinant(t: Transform, x: Tensor, tolerance: float) -> None:
    y = t(x)
    whole = (y > 1e-300).all(-1) if _is_simplex(x, y) else torch.ones_like(y[..., 0], dtype=torch.bool)
    inverse = t.inv.log_abs_det_jacobian(y, t.inv(y))
    _close("the inverse's log-determinant", inverse[whole], -t.log_abs_det_jacobian(x, y)[whole], tolerance)


def _one_pass(t: Transform, x: Tensor, tolerance: float) -> None:
    y, ladj = call_and_ladj(t, x)
    _close("the value of call_and_ladj", y, t(x), tolerance)
    _close("the log-determinant of call_and_ladj", ladj, t.log_abs_det_jacobian(x, t(x)), tolerance)


def _finite(t: Transform, x: Tensor, tolerance: float) -> None:
    far = (50 * x / x.abs().amax().clamp(min=1e-3)).float()
    for signed in (far, -far):
        y = t(signed)
        assert bool(y.isfinite().all()), "float32 inputs up to 50 give nonfinite outputs"
        ladj = t.log_abs_det_jacobian(signed, y)
        assert bool(ladj.isfinite().all()), "float32 inputs up to 50 give nonfinite log-determinants"


def _transform_gradients(t: Transform, x: Tensor, tolerance: float) -> None:
    # one row is enough, and the log-determinant is O(1 / τ), so its differences are taken relative to that size
    point = x.flatten(0, -2)[:1].clone().requires_grad_() if x.dim() > 1 else x.clone().requires_grad_()

    def outputs(v: Tensor) -> tuple[Tensor, Tensor]:
        y, ladj = call_and_ladj(t, v)
        return y, ladj + 0.0 * v.sum()  # also where it has lost its gradient, which gradcheck would pass over

    try:
        torch.autograd.gradcheck(outputs, (point,), eps=1e-7, atol=1e-4, rtol=1e-4)
    except GradcheckError as error:
        raise AssertionError(str(error)) from error


def _equality(t: Transform, x: Tensor, tolerance: float) -> None:
    try:
        other = copy.deepcopy(t)
    except RuntimeError:  # parameters with a history, such as one layer's part of a stack, cannot be copied
        other = copy.copy(t)
    assert t == other, "a copy is not equal to the original"
    assert t != Transform(), "it is equal to another kind of transform"


def _repr(t: Transform, x: Tensor, tolerance: float) -> None:
    name = type(t).__name__
    assert name in repr(t), f"repr {t!r} does not name the class {name}"


_TRANSFORM_PROPERTIES: dict[str, Callable[[Transform, Tensor, float], None]] = {
    "shapes": _transform_shapes,
    "codomain": _codomain,
    "round trip": _round_trip,
    "log-determinant": _log_determinant,
    "inverse log-determinant": _inverse_log_determinant,
    "one pass": _one_pass,
    "finite": _finite,
    "gradients": _transform_gradients,
    "equality": _equality,
    "repr": _repr,
}


# distributions


def _log_ratios(log_z: Tensor) -> Tensor:
    """log z_k / z_K for k < K: coordinates in which nothing underflows."""
    return log_z[..., :-1] - log_z[..., -1:]


def _coordinates(d: Relaxation, log_z: Tensor) -> Tensor:
    """Log-ratios of a sample, shape (*, K-1); those of (z, 1 - z) for a scalar one."""
    return _log_ratios(log_z) if d.event_shape else (log_z - (-torch.expm1(log_z)).log()).unsqueeze(-1)


def _from_coordinates(d: Relaxation, ratios: Tensor) -> tuple[Tensor, Tensor]:
    """log z and the log-determinant of log-ratios to the first K-1 coordinates of z."""
    if d.event_shape:
        log_z = F.pad(ratios, (0, 1)).log_softmax(-1)
        return log_z, log_z.sum(-1)
    ratio = ratios.squeeze(-1)
    return F.logsigmoid(ratio), F.logsigmoid(ratio) + F.logsigmoid(-ratio)


def _distribution_shapes(d: Relaxation) -> None:
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
    _close("rsample, with the noise of log_rsample_and_log_prob,", z.to(log_z.dtype), log_z.exp(), rounding)
    torch.manual_seed(1)
    _close("log_rsample, with the same noise,", d.log_rsample((1000,)).exp(), log_z.exp(), rounding)
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
    _close("the integral of the density", total, torch.ones_like(total), 1e-3)
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
                _close("the gradient of the hard sample", a, b, 1e-9)


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
        _close("the KL to itself", own, torch.zeros_like(own), 1e-9)
    if other is None:
        return
    closed = d.kl(other)
    estimate, error = monte_carlo_kl(d, other, num_samples)
    worst = ((closed - estimate).abs() / (5 * error + 1e-9)).max().item()
    assert worst <= 1, f"it differs from Monte Carlo by {5 * worst:.1f} standard errors"
