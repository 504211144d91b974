"""The properties of the correctness kit that every transform of vectors must have."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError
from torch.distributions import Transform

from igr.transforms import SimplexTransform, call_and_ladj


def close(what: str, actual: Tensor, expected: Tensor, tolerance: float) -> None:
    error = (actual - expected).abs() / expected.abs().clamp(min=1.0)
    worst = error.max().item() if error.numel() else 0.0
    assert worst <= tolerance, f"{what} is off by {worst:.3g}, allowed {tolerance:.3g}"


def log_ratios(log_z: Tensor) -> Tensor:
    """log z_k / z_K for k < K: coordinates in which nothing underflows."""
    return log_z[..., :-1] - log_z[..., -1:]


def default_points(transform: Transform, seed: int) -> Tensor:
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


def _shapes(t: Transform, x: Tensor, tolerance: float) -> None:
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
    close("inv(forward(x))", t.inv(y)[whole], x[whole], tolerance)
    if isinstance(t, SimplexTransform):
        close("log_inverse(log_call(x))", t.log_inverse(t.log_call(x)), x, tolerance)


def _log_determinant(t: Transform, x: Tensor, tolerance: float) -> None:
    """Autograd's Jacobian. Where z underflows, that of the log-ratios, whose own map to z has determinant prod z."""
    y = t(x)
    ladj = t.log_abs_det_jacobian(x, y)
    if isinstance(t, SimplexTransform):
        log_z = t.log_call(x)
        reference = _slogdet(lambda v: log_ratios(t.log_call(v)), x) + log_z.sum(-1)
        close("log_abs_det_jacobian, against log-ratios,", ladj, reference, tolerance)
    size = x.shape[-1]
    whole = (y > 1e-6).all(-1) if _is_simplex(x, y) else torch.ones_like(y[..., 0], dtype=torch.bool)
    close("log_abs_det_jacobian", ladj[whole], _slogdet(lambda v: t(v)[..., :size], x)[whole], tolerance)


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
    close("the inverse's log-determinant", inverse[whole], -t.log_abs_det_jacobian(x, y)[whole], tolerance)


def _one_pass(t: Transform, x: Tensor, tolerance: float) -> None:
    y, ladj = call_and_ladj(t, x)
    close("the value of call_and_ladj", y, t(x), tolerance)
    close("the log-determinant of call_and_ladj", ladj, t.log_abs_det_jacobian(x, t(x)), tolerance)


def _finite(t: Transform, x: Tensor, tolerance: float) -> None:
    far = (50 * x / x.abs().amax().clamp(min=1e-3)).float()
    for signed in (far, -far):
        y = t(signed)
        assert bool(y.isfinite().all()), "float32 inputs up to 50 give nonfinite outputs"
        ladj = t.log_abs_det_jacobian(signed, y)
        assert bool(ladj.isfinite().all()), "float32 inputs up to 50 give nonfinite log-determinants"


def _gradients(t: Transform, x: Tensor, tolerance: float) -> None:
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


PROPERTIES: dict[str, Callable[[Transform, Tensor, float], None]] = {
    "shapes": _shapes,
    "codomain": _codomain,
    "round trip": _round_trip,
    "log-determinant": _log_determinant,
    "inverse log-determinant": _inverse_log_determinant,
    "one pass": _one_pass,
    "finite": _finite,
    "gradients": _gradients,
    "equality": _equality,
    "repr": _repr,
}
