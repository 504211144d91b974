r"""The maps :math:`g(\cdot, \tau)` as torch transforms.

Two kinds: maps onto the simplex, :math:`\mathbb{R}^{K-1} \to \Delta^{K-1}` (:class:`SoftmaxPlusPlus`,
:class:`VertexInterpolation`), and maps of :math:`\mathbb{R}^{K-1}` that may come before the softmax++
(:class:`StickBreaking`, :class:`Planar`). Log-determinants are those of the first :math:`K-1` coordinates.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import ComposeTransform, Transform, constraints
from torch.distributions.transforms import _InverseTransform

from igr import functional
from igr._checks import (
    broadcast,
    check_finite,
    check_parameter,
    check_row_scalar,
    check_tensor,
    is_number,
    validation,
    widen,
)
from igr._constraints import NearVertices, Sticks, simplex, sticks
from igr._planar import expm1_remainder, solve
from igr._scalars import log_row, same_value, show, trained_apart
from igr._simplex import log_vertex_interpolation_inverse

__all__ = [
    "SoftmaxPlusPlus",
    "VertexInterpolation",
    "StickBreaking",
    "Planar",
    "SimplexTransform",
    "call_and_ladj",
    "simplex",
]

PLANAR = ("u", "w", "b")  # the parameters of a planar flow


class SimplexTransform(Transform, ABC):
    r"""A bijection from :math:`\mathbb{R}^{K-1}` into the simplex that also works on logarithms.

    A point near a vertex underflows, its logarithm does not: densities and samples go through the methods here.
    """

    domain = constraints.real_vector
    codomain: constraints.Constraint = simplex
    bijective = True

    @abstractmethod
    def log_call(self, y: Tensor) -> Tensor:
        """log g(y), shape ``(*, K-1)`` to ``(*, K)``."""

    @abstractmethod
    def log_inverse(self, log_z: Tensor) -> Tensor:
        """The y with log g(y) = ``log_z``, shape ``(*, K)`` to ``(*, K-1)``."""

    @abstractmethod
    def ladj(self, y: Tensor, log_z: Tensor) -> Tensor:
        r""":math:`\log |\det J_g(y)|` of the first K-1 coordinates, given ``log_z`` = log g(y)."""

    @abstractmethod
    def harden(self, y: Tensor) -> Tensor:
        r"""The limit of g(y) as :math:`\tau \to 0`, a one-hot ``(*, K)``."""

    def call_and_ladj(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """g(y) and its log-determinant in one pass."""
        log_z = self.log_call(y)
        return log_z.exp().to(y.dtype), self.ladj(y, log_z)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.ladj(x, self.log_call(x))

    def forward_shape(self, shape: Sequence[int]) -> torch.Size:
        return _row_shape("forward", shape, 1, self._row_scalars())

    def inverse_shape(self, shape: Sequence[int]) -> torch.Size:
        return _row_shape("inverse", shape, -1, self._row_scalars())

    def _row_scalars(self) -> dict[str, float | Tensor]:
        """All that the map depends on, by name; a class that does not say so itself is compared by identity."""
        return {}

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self) or "_row_scalars" not in type(self).__dict__:
            return self is other
        return all(same_value(value, getattr(other, name)) for name, value in self._row_scalars().items())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={show(value)}" for name, value in self._row_scalars().items())
        return f"{type(self).__name__}({arguments})"


class SoftmaxPlusPlus(SimplexTransform):
    r"""Maps :math:`\mathbb{R}^{K-1}` onto the open simplex by the softmax++.

    .. math:: g(y, \tau)_k = \frac{\exp(y_k / \tau)}{\sum_j \exp(y_j / \tau) + \delta}, \quad k < K,

    and :math:`g_K = 1 - \sum_k g_k`, with :math:`\log |\det J_g| = \sum_{k=1}^K \log g_k - (K-1) \log \tau`.

    Note:
        Computed as a log-softmax over :math:`(y / \tau, \log \delta)`, so the log-determinant is finite for any
        :math:`\tau`; the inverse is not, once a coordinate underflows: use :meth:`~SimplexTransform.log_inverse`.

    References:
        Equation 15 and appendix A.

    Arguments:
        tau: the temperature :math:`\tau > 0`: a number, a 0-d tensor or one value per row, shape ``(*, 1)``.
        delta: :math:`\delta > 0`, the weight of the K-th category, likewise.

    Example:
        >>> g = SoftmaxPlusPlus(tau=0.5)
        >>> g(torch.tensor([1.0, -1.0]))
        tensor([0.8668, 0.0159, 0.1173])
    """

    def __init__(self, tau: float | Tensor = 1.0, delta: float | Tensor = 1.0, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.tau = check_row_scalar("tau", tau)
        self.delta = check_row_scalar("delta", delta)

    def _row_scalars(self) -> dict[str, float | Tensor]:
        return {"tau": self.tau, "delta": self.delta}

    def with_cache(self, cache_size: int = 1) -> SoftmaxPlusPlus:
        return self if cache_size == self._cache_size else SoftmaxPlusPlus(self.tau, self.delta, cache_size)

    def _call(self, y: Tensor) -> Tensor:
        return functional.softmaxpp(y, self.tau, self.delta)

    def _inverse(self, z: Tensor) -> Tensor:
        return functional.softmaxpp_inverse(z, self.tau, self.delta)

    def log_call(self, y: Tensor) -> Tensor:
        return functional.log_softmaxpp(y, self.tau, self.delta)

    def log_inverse(self, log_z: Tensor) -> Tensor:
        return functional.log_softmaxpp_inverse(log_z, self.tau, self.delta)

    def ladj(self, y: Tensor, log_z: Tensor) -> Tensor:
        return log_z.sum(-1) - (log_z.shape[-1] - 1) * log_row(self.tau, log_z)

    def harden(self, y: Tensor) -> Tensor:
        return functional.harden(y)


class VertexInterpolation(SimplexTransform):
    r"""Stick-breaking, then linear interpolation to the nearest vertex.

    .. math:: w = SB(\mathrm{sigmoid}(y)), \qquad g(y, \tau) = \tau w + (1 - \tau)\, e_{\arg\max w},

    with :math:`\log |\det J_g| = \sum_{k=1}^K \log w_k + (K-1) \log \tau`. For :math:`\tau < 1` the image is K disjoint
    pieces, one at each vertex.

    Note:
        :math:`w` has K entries, the leftover stick last; read literally, the paper's projection would be zero unless
        some :math:`w_k > 1/2`.

    References:
        Equation 17.

    Arguments:
        tau: the temperature, in (0, 1]: a number, a 0-d tensor or one value per row, shape ``(*, 1)``.

    Example:
        >>> VertexInterpolation(0.1)(torch.zeros(2))
        tensor([0.9500, 0.0250, 0.0250])
    """

    def __init__(self, tau: float | Tensor, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.tau = check_row_scalar("tau", tau, at_most=1.0)
        self.codomain = NearVertices(self.tau)

    def _row_scalars(self) -> dict[str, float | Tensor]:
        return {"tau": self.tau}

    def with_cache(self, cache_size: int = 1) -> VertexInterpolation:
        return self if cache_size == self._cache_size else VertexInterpolation(self.tau, cache_size)

    def _call(self, y: Tensor) -> Tensor:
        w = functional.log_stick_breaking(y).exp()
        return functional.vertex_interpolation(w, self.tau).to(y.dtype)

    def _inverse(self, z: Tensor) -> Tensor:
        w = functional.vertex_interpolation_inverse(widen(z), self.tau)
        return functional.log_stick_breaking_inverse(w.log()).to(z.dtype)

    def log_call(self, y: Tensor) -> Tensor:
        return functional.log_vertex_interpolation(functional.log_stick_breaking(y), self.tau)

    def log_inverse(self, log_z: Tensor) -> Tensor:
        log_w = log_vertex_interpolation_inverse(log_z, self.tau)
        return functional.log_stick_breaking_inverse(log_w)

    def ladj(self, y: Tensor, log_z: Tensor) -> Tensor:
        return functional.log_stick_breaking(y).sum(-1) + y.shape[-1] * log_row(self.tau, log_z)

    def harden(self, y: Tensor) -> Tensor:
        return functional.harden(StickBreaking()(y))


class StickBreaking(Transform):
    r"""Stick-breaking as a bijection of :math:`\mathbb{R}^{K-1}` onto a bounded part of it, to come before a softmax++.

    With :math:`w = SB(\mathrm{sigmoid}(y))` and the leftover stick :math:`w_K = 1 - \sum_{k<K} w_k`,

    .. math:: a_k = w_k - w_K, \qquad \log |\det J| = \sum_{k=1}^K \log w_k + \log K,

    so that the softmax++ of :math:`a` is the softmax of :math:`w / \tau`, and :math:`h(a)` the longest of all K sticks.

    Note:
        ``leftover=False`` is the paper's literal form, :math:`a = w_{<K}`, without the :math:`\log K`. There every
        :math:`a_k` is positive, so that the K-th category is never the limit of any sample.

        a, and with it z, knows sticks down to its rounding: below about 1e-7 in float32, which many of 20 sticks are,
        the inverse and densities at a given z are inexact, or those of a point that no sticks reach. Log-densities
        of samples (``rsample_and_log_prob``) and divergences do not come back from there.

    References:
        Equations 16 and 18.

    Arguments:
        leftover: whether the leftover stick competes as K-th category.

    Example:
        >>> StickBreaking()(torch.zeros(2))
        tensor([0.2500, 0.0000])
    """

    domain = constraints.real_vector
    bijective = True

    def __init__(self, leftover: bool = True, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.leftover = leftover
        self.codomain = Sticks(leftover)

    def with_cache(self, cache_size: int = 1) -> StickBreaking:
        return self if cache_size == self._cache_size else StickBreaking(self.leftover, cache_size)

    def _call(self, y: Tensor) -> Tensor:
        return self._from_log_sticks(functional.log_stick_breaking(y)).to(y.dtype)

    def _inverse(self, a: Tensor) -> Tensor:
        return functional.log_stick_breaking_inverse(sticks(widen(a), self.leftover).log()).to(a.dtype)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self._ladj(functional.log_stick_breaking(x))

    def call_and_ladj(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """a and its log-determinant in one pass."""
        log_w = functional.log_stick_breaking(y)
        return self._from_log_sticks(log_w).to(y.dtype), self._ladj(log_w)

    def _from_log_sticks(self, log_w: Tensor) -> Tensor:
        w = log_w.exp()
        return w[..., :-1] - w[..., -1:] if self.leftover else w[..., :-1]

    def _ladj(self, log_w: Tensor) -> Tensor:
        return log_w.sum(-1) + (math.log(log_w.shape[-1]) if self.leftover else 0.0)

    def __eq__(self, other: object) -> bool:
        if type(other) is not StickBreaking or type(self) is not StickBreaking:
            return self is other
        return self.leftover == other.leftover

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"StickBreaking(leftover={self.leftover})"


class Planar(Transform):
    r"""The planar flow, made invertible for every parameter, with its inverse.

    .. math:: f(y) = y + \hat{u} \tanh(w^\top y + b), \qquad
        \log |\det J| = \log\bigl(1 + w^\top \hat{u}\, \mathrm{sech}^2(w^\top y + b)\bigr).

    It is invertible iff :math:`w^\top \hat{u} > -1`. The component of :math:`u` along :math:`w` is moved there by

    .. math:: \hat{u} = u + \bigl(m(w^\top u) - w^\top u\bigr) \frac{w}{\|w\|^2}, \qquad
        m(x) = x \text{ for } x \ge 0, \quad c\,(e^{x / c} - 1) \text{ for } x < 0, \quad c = 1 - 10^{-6}.

    Note:
        :math:`m` keeps every :math:`u` with :math:`w^\top u \ge 0` as it is, and :math:`\hat{u} \to u` as
        :math:`w \to 0`. The customary :math:`m(x) = \log(1 + e^x) - 1` has :math:`m(0) \ne 0`, so that there
        :math:`\hat{u}` grows like :math:`1 / \|w\|`. The inverse is one monotone equation in :math:`w^\top y`, solved
        by Newton's method from a bound on the side from which it converges; its gradient is that of the implicit
        function.

    References:
        Rezende and Mohamed (2015), section 4.1 and appendix A.1.

    Arguments:
        u: :math:`u`, shape ``(*, K-1)``.
        w: :math:`w`, shape ``(*, K-1)``; zero makes the flow a translation.
        b: :math:`b`, a number or shape ``(*)``.
        validate_args: whether to look at the entries of the parameters, by default yes.

    Example:
        >>> flow = Planar(u=torch.tensor([1.0, 0.0]), w=torch.tensor([1.0, 1.0]))
        >>> flow(torch.tensor([0.5, 0.5]))
        tensor([1.2616, 0.5000])
        >>> flow.inv(torch.tensor([1.2616, 0.5]))
        tensor([0.5000, 0.5000])
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(
        self,
        u: Tensor,
        w: Tensor,
        b: float | Tensor = 0.0,
        cache_size: int = 0,
        *,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(cache_size=cache_size)
        self.u, self.w = check_parameter("u", u), check_parameter("w", w)
        self.b = float(b) if is_number(b) else check_tensor("b", b)
        if u.shape[-1] != w.shape[-1]:
            raise ValueError(f"u and w must have the same last axis, got shapes {tuple(u.shape)} and {tuple(w.shape)}")
        if validation(validate_args):
            for name in ("u", "w", "b"):
                check_finite(name, getattr(self, name))
        self.batch_shape = broadcast(u=u.shape[:-1], w=w.shape[:-1], b=b)

    def with_cache(self, cache_size: int = 1) -> Planar:
        return (
            self if cache_size == self._cache_size else Planar(self.u, self.w, self.b, cache_size, validate_args=False)
        )

    def forward_shape(self, shape: Sequence[int]) -> torch.Size:
        if len(shape) == 0 or shape[-1] != self.u.shape[-1]:
            raise ValueError(f"Planar maps vectors of length {self.u.shape[-1]}, got shape {tuple(shape)}")
        return broadcast(x=torch.Size(shape[:-1]), parameters=self.batch_shape) + torch.Size(shape[-1:])

    inverse_shape = forward_shape

    def constrained(self, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        r""":math:`\hat{u}`, shape ``(*, K-1)``, and :math:`w^\top \hat{u} \ge -1 + 10^{-6}`, shape ``(*)``."""
        u, w = widen(self.u.to(dtype)), widen(self.w.to(dtype))
        norm = torch.linalg.vector_norm(w, dim=-1, keepdim=True).clamp(min=torch.finfo(w.dtype).tiny ** 0.5)
        wu, along = (w * u).sum(-1), (w / norm * u).sum(-1)
        bound = 1 - 1e-6
        negative = wu.clamp(max=0.0)
        m = bound * torch.expm1(negative / bound) + (wu - negative)
        # (m(x) - x) w / ‖w‖², as a multiple of x² so that nothing cancels as w tends to zero
        second = torch.where(wu < 0, expm1_remainder(negative / bound) / bound, 0.0)
        u_hat = u + (second * along.square()).unsqueeze(-1) * w
        with torch.no_grad():  # what rounding has left of a large u along w
            error = (m - (w * u_hat).sum(-1)).unsqueeze(-1) / norm * (w / norm)
        return u_hat + error, m

    def _argument(self, y: Tensor) -> Tensor:
        self.forward_shape(y.shape)  # refuses what would broadcast to other vectors
        return (widen(self.w) * widen(y)).sum(-1) + self.b

    def _dtype(self, y: Tensor) -> torch.dtype:
        """The most precise dtype involved, so that a constraint rounded in one is not undone in another."""
        return torch.promote_types(torch.promote_types(self.u.dtype, self.w.dtype), y.dtype)

    def _call(self, y: Tensor) -> Tensor:
        u_hat, _ = self.constrained(self._dtype(y))
        return torch.addcmul(widen(y), u_hat, self._argument(y).tanh().unsqueeze(-1)).to(y.dtype)

    def call_and_ladj(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """f(y) and its log-determinant in one pass."""
        u_hat, wu = self.constrained(self._dtype(y))
        tanh = self._argument(y).tanh()
        x = torch.addcmul(widen(y), u_hat, tanh.unsqueeze(-1)).to(y.dtype)
        return x, torch.log1p(wu * (1 - tanh) * (1 + tanh))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.call_and_ladj(x)[1]

    def _inverse(self, x: Tensor) -> Tensor:
        u_hat, wu = self.constrained(self._dtype(x))
        t = solve(self._argument(x), wu)
        return torch.addcmul(widen(x), u_hat, -t.tanh().unsqueeze(-1)).to(x.dtype)

    def __eq__(self, other: object) -> bool:
        if type(other) is not Planar or type(self) is not Planar:
            return self is other
        return all(same_value(getattr(self, name), getattr(other, name)) for name in PLANAR)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Planar(u={show(self.u)}, w={show(self.w)}, b={show(self.b)})"


def same_map(a: Transform, b: Transform) -> bool:
    """Whether they are equal, and stay so when they are trained."""
    if isinstance(a, ComposeTransform) and isinstance(b, ComposeTransform):
        return len(a.parts) == len(b.parts) and all(map(same_map, a.parts, b.parts))
    if isinstance(a, _InverseTransform) and isinstance(b, _InverseTransform):
        return same_map(a.inv, b.inv)
    if a is b or a != b:
        return a is b
    return not any(trained_apart(getattr(a, name), getattr(b, name, None)) for name in _parameters(a))


def _parameters(t: Transform) -> tuple[str, ...]:
    """Names of what may be trained; for those of this library without ``vars``, which older compilers do not know."""
    if type(t) is StickBreaking:
        return ()
    return PLANAR if type(t) is Planar else tuple(vars(t))


def call_and_ladj(transform: Transform, x: Tensor) -> tuple[Tensor, Tensor]:
    """``transform(x)`` and its log-determinant over the last axis, in one pass where the transform knows how to."""
    if isinstance(transform, ComposeTransform):
        total: Tensor | float = 0.0
        for part in transform.parts:
            x, ladj = call_and_ladj(part, x)
            total = total + ladj
        return x, total if isinstance(total, Tensor) else x.new_zeros(x.shape[:-1])
    if hasattr(transform, "call_and_ladj"):
        y, ladj = transform.call_and_ladj(x)
    else:
        y = transform(x)
        ladj = transform.log_abs_det_jacobian(x, y)
    return y, ladj if transform.domain.event_dim else ladj.sum(-1)


def _row_shape(way: str, shape: Sequence[int], change: int, row_scalars: dict[str, Any]) -> torch.Size:
    if len(shape) == 0 or shape[-1] + min(change, 0) < 1:
        raise ValueError(f"cannot infer the {way} shape of {tuple(shape)}: expected a last axis of categories")
    rows = broadcast(x=torch.Size((*shape[:-1], 1)), **row_scalars)
    return rows[:-1] + torch.Size((shape[-1] + change,))
