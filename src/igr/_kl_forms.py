r"""Which KL divergences between pushed-forward bases are closed forms, and which are infinite.

A relaxation is a base distribution on :math:`\mathbb{R}^{K-1}` and the maps that carry it onto the simplex, here a
sequence of transforms; the Gumbel-Softmax, which no such sequence describes, counts as the empty one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution, Transform

from igr import _bases
from igr._checks import full_precision, log, values_checkable, widen
from igr._scalars import row, same_value, trained_apart
from igr.transforms import SoftmaxPlusPlus, StickBreaking, VertexInterpolation, same_map

Rows = bool | Tensor

ADVICE = "estimate it with igr.monte_carlo_kl(p, q, num_samples)"


def kl(
    p: Distribution, p_maps: Sequence[Transform], q: Distribution, q_maps: Sequence[Transform], like: Tensor
) -> Tensor | None:
    """The KL divergence where it is known, row by row.

    None where it is not known; NaN in such rows if they cannot be looked at. ``like`` is a parameter of shape ``(*,
    K)`` or ``(*, K-1)``, whose dtype and device the result has.
    """
    with full_precision(like.device):
        closed, same = _closed(p, p_maps, q, q_maps)
    if same is True:
        return closed
    everywhere = len(p_maps) == 0 or _bases.is_real(_bases.support_of(p))
    infinite = everywhere and _infinite(p_maps, q_maps, q.event_shape)
    known = _either(same, infinite)
    if known is False or (isinstance(known, Tensor) and values_checkable(known) and not bool(known.all())):
        return None
    value = widen(like).new_full(torch.broadcast_shapes(p.batch_shape, q.batch_shape), math.inf)
    if isinstance(known, Tensor):
        value = value.masked_fill(~known, math.nan)
    return torch.where(same, closed, value) if isinstance(same, Tensor) and closed is not None else value


def _closed(
    p: Distribution, p_maps: Sequence[Transform], q: Distribution, q_maps: Sequence[Transform]
) -> tuple[Tensor | None, Rows]:
    """The KL of the bases, and the rows in which it is the KL on the simplex because both maps are the same."""
    if len(p_maps) != len(q_maps) or len(p_maps) == 0:
        return None, False
    if not all(same_map(a, b) for a, b in zip(p_maps[:-1], q_maps[:-1], strict=True)):
        return None, False
    last, other = p_maps[-1], q_maps[-1]
    # of these classes themselves: what a subclass maps is its own affair
    if type(last) is SoftmaxPlusPlus and type(other) is SoftmaxPlusPlus:
        if len(p_maps) == 1:
            rescaled = _in_coordinates_of(last, q, other)
            closed = None if rescaled is None else _bases.kl(p, rescaled)
            return closed, closed is not None
        same = _both(_equal(last.tau, other.tau), _equal(last.delta, other.delta))
    elif type(last) is VertexInterpolation and type(other) is VertexInterpolation:
        same = _equal(last.tau, other.tau)
    else:
        same = same_map(last, other)
    if same is False:
        return None, False
    closed = _bases.kl(p, q)
    return closed, False if closed is None else same


def _in_coordinates_of(p_map: SoftmaxPlusPlus, q: Distribution, q_map: SoftmaxPlusPlus) -> Distribution | None:
    r"""The base of q as seen through the softmax++ of p.

    The log-ratios :math:`y / \tau - \log \delta` determine z, so another temperature and :math:`\delta` are the affine
    map :math:`y \mapsto r y + c` with :math:`r = \tau_1 / \tau_2` and :math:`c = \tau_1 \log(\delta_1 / \delta_2)`.
    """
    if all(_same_constant(a, b) for a, b in ((p_map.tau, q_map.tau), (p_map.delta, q_map.delta))):
        return q
    tau, other = (widen(t) if isinstance(t, Tensor) else t for t in (p_map.tau, q_map.tau))
    return _bases.affine(q, tau / other, tau * (log(p_map.delta) - log(q_map.delta)))


def _same_constant(a: float | Tensor, b: float | Tensor) -> bool:
    """Whether they are equal and stay so: one that is trained apart has a derivative where they meet."""
    return not trained_apart(a, b) and same_value(a, b)


class _Image(NamedTuple):
    """The part of the simplex that a sequence of maps reaches: all, the sticks', that near the vertices, or unknown."""

    kind: str
    tau: float | Tensor = 1.0
    delta: float | Tensor = 1.0
    leftover: bool = True


def _image(maps: Sequence[Transform]) -> _Image:
    if len(maps) == 0:
        return _Image("all")
    *flow, last = maps
    sticks = flow[-1] if flow else None
    if type(last) is SoftmaxPlusPlus and type(sticks) is StickBreaking:
        flow = flow[:-1]
        image = _Image("sticks", last.tau, last.delta, sticks.leftover)
    elif type(last) is SoftmaxPlusPlus:
        image = _Image("all")
    elif type(last) is VertexInterpolation:
        image = _Image("vertices", last.tau)
    else:
        return _Image("unknown")
    return image if all(_bases.is_real(f.codomain) for f in flow) else _Image("unknown")


def _infinite(p_maps: Sequence[Transform], q_maps: Sequence[Transform], q_base_shape: torch.Size) -> Rows:
    """The rows in which p gives mass to points that q cannot reach."""
    p, q = _image(p_maps), _image(q_maps)
    if "unknown" in (p.kind, q.kind) or q.kind == "all":
        return False
    if q.kind == "sticks":
        return _sticks_leave(p, q, q_base_shape[-1] + 1) if p.kind == "sticks" else True
    if p.kind == "vertices":
        return _less(q.tau, p.tau)  # a smaller τ reaches a smaller neighbourhood of each vertex
    return _less(q.tau, 1.0) if p.kind == "all" else False


def _sticks_leave(p: _Image, q: _Image, K: int) -> Rows:
    r"""Whether some a reached by p falls outside what q reaches, both images being simplices.

    In the coordinates of q, p's :math:`a` is :math:`r a + c` with :math:`r = \tau_2 / \tau_1` and
    :math:`c = \tau_2 \log(\delta_2 / \delta_1)`. An affine map carries one simplex into another iff it carries the
    vertices there: :math:`e_k`, and the last one, 0 in the literal form and :math:`(-1, \dots, -1)` with the leftover
    stick.
    """
    r, c = q.tau / p.tau, q.tau * (log(q.delta) - log(p.delta))
    n = K - 1
    last = (c - r) if p.leftover else c
    outside: Rows = False
    for entries, total in (([r + c] + [c] * (n > 1), r + n * c), ([last], n * last)):
        rest = (1 - total) / K if q.leftover else 1 - total
        for stick in [rest] + [entry + rest if q.leftover else entry for entry in entries]:
            outside = _either(outside, _less(stick, 0.0))
    return outside


def _less(a: float | Tensor, b: float | Tensor) -> Rows:
    less = a < b
    return row(less) if isinstance(less, Tensor) else bool(less)


def _equal(a: float | Tensor, b: float | Tensor) -> Rows:
    """Where they are equal, and stay so: one that is trained apart has a derivative where they meet."""
    if trained_apart(a, b):
        return False
    if same_value(a, b):
        return True
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype != b.dtype:
        coarser = max(a.dtype, b.dtype, key=lambda dtype: torch.finfo(dtype).eps)
        a, b = a.to(coarser), b.to(coarser)  # 0.1 is not the same number in two precisions
    equal = a == b
    return row(equal) if isinstance(equal, Tensor) else bool(equal)


def _either(a: Rows, b: Rows) -> Rows:
    if a is True or b is True:
        return True
    return b if a is False else a if b is False else a | b


def _both(a: Rows, b: Rows) -> Rows:
    if a is False or b is False:
        return False
    return b if a is True else a if b is True else a & b
