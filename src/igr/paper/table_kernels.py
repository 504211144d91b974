r"""How often each category is h(y), over many draws of every row, with noise that never leaves the registers.

A thread has a row. It makes the normals of four draws from K - 1 Philox blocks, maps them, finds the category of each
draw by comparisons, and counts in the bit fields of one 64-bit number, which is emptied before a field can overflow.
The noise of draw d is what :func:`igr.kernels.sampling.noise` has in the columns from d (K - 1) on.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment"
# ruff: noqa: RUF005
# tuples of tensors grow entry by entry in kernels, whose language has no unpacking

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.distributions import Transform

from igr.kernels._random import GAUSSIAN, INTERPRETED, _normal_pair, philox, reciprocal
from igr.transforms import Planar, StickBreaking

__all__ = ["MOST_CATEGORIES", "count", "serves"]

MOST_CATEGORIES = 21  # of three bits each, which can count the four draws of a step
AT_ONCE = 2**35  # draws of all rows in one launch, a third of a second
BLOCK = 4096 if INTERPRETED else 128  # rows of a program, one for each thread where there are any
NUM_WARPS = 4
REGISTERS = 128  # of a thread at most, so that a multiprocessor has room for 16 warps

_INTERPRETED = tl.constexpr(INTERPRETED)
_PER_LOG_2 = tl.constexpr(1.4426950408889634)
_MOST = tl.constexpr(24.0)  # a stick of 1 - 2^-24 is all there is


@triton.jit
def _exp2(x):
    if _INTERPRETED:
        return tl.exp2(x)
    else:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def _normals(seed, row, step, stream, n: tl.constexpr):
    """The 4 n normals of a step, each of shape (BLOCK, 1)."""
    eps = ()
    for i in tl.static_range(n):
        a, b, c, d = philox(seed, row, tl.zeros((1, 1), tl.int32) + (step * n + i), stream, GAUSSIAN)
        a, b = _normal_pair(a, b)
        c, d = _normal_pair(c, d)
        eps = eps + (a, b, c, d)
    return eps


@triton.jit
def _read(pointer, first, inside, n: tl.constexpr):
    """The n numbers of each row from this place on."""
    values = ()
    for i in tl.static_range(n):
        values = values + (tl.load(pointer + first + i, mask=inside, other=0.0),)
    return values


@triton.jit
def _planar(y, layer, flow, n: tl.constexpr):
    """y + û tanh(w y + b), where w, b and û of a layer come one after the other."""
    first: tl.constexpr = layer * (2 * n + 1)
    t = flow[first + n]
    for i in tl.static_range(n):
        t += flow[first + i] * y[i]
    tanh = 1.0 - 2.0 * reciprocal(_exp2(t * (2.0 * _PER_LOG_2)) + 1.0)
    x = ()
    for i in tl.static_range(n):
        x = x + (y[i] + flow[first + n + 1 + i] * tanh,)
    return x


@triton.jit
def _largest(y, n: tl.constexpr, BITS: tl.constexpr):
    """The category of h(y), as the place of its bits: from the last to the first, which has the ties."""
    best, place = tl.zeros_like(y[0]), tl.full(y[0].shape, n * BITS, tl.int32)
    for k in tl.static_range(n - 1, -1, -1):
        place = tl.where(y[k] >= best, k * BITS, place)
        best = tl.maximum(y[k], best)
    return place


@triton.jit
def _longest(y, n: tl.constexpr, BITS: tl.constexpr, LEFTOVER: tl.constexpr):
    """The longest of the sticks that y, in units of log 2, breaks, as the place of its bits.

    In units of what is left at the end, the last stick is 1, the k-th e^y (1 + e^y_{k+1}) ... (1 + e^y_{K-1}), and what
    they sum to is a product like that: no division. Only ratios count, so that units may change on the way.
    """
    rest = tl.full(y[0].shape, 1.0, tl.float32)
    best = rest if LEFTOVER else tl.zeros_like(rest)
    place = tl.full(y[0].shape, n * BITS, tl.int32)
    for k in tl.static_range(n - 1, -1, -1):
        if k < n - 1 and (n - 1 - k) % 5 == 0:  # five of at most 2^24 each: the product would overflow with a sixth
            power = rest.to(tl.int32, bitcast=True) & 0x7F800000  # the exponent's bits alone
            unit = (0x7F000000 - power).to(tl.float32, bitcast=True)  # those of the reciprocal
            rest, best = rest * unit, best * unit
        stick = _exp2(tl.minimum(y[k], _MOST)) * rest
        rest += stick
        place = tl.where(stick >= best, k * BITS, place)
        best = tl.maximum(stick, best)
    return place


@triton.jit
def _place(
    eps, draw, mu, sigma, flow,
    n: tl.constexpr, LAYERS: tl.constexpr, STICKS: tl.constexpr, LEFTOVER: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """The category of one draw of a step, as the place of its bits."""
    y = ()
    for i in tl.static_range(n):
        y = y + (mu[i] + sigma[i] * eps[draw * n + i],)
    for layer in tl.static_range(LAYERS):
        y = _planar(y, layer, flow, n)
    if STICKS:
        return _longest(y, n, BITS, LEFTOVER)
    else:
        return _largest(y, n, BITS)


@triton.jit
def _finite(values, n: tl.constexpr):
    fine = tl.full((1, 1), 1, tl.int1)
    for i in tl.static_range(n):
        fine = fine & (tl.abs(values[i]) < float("inf"))
    return fine


@triton.jit
def _scaled(values, n: tl.constexpr):
    scaled = ()
    for i in tl.static_range(n):
        scaled = scaled + (values[i] * _PER_LOG_2,)
    return scaled


@triton.jit
def _added(found, fields, n: tl.constexpr, BITS: tl.constexpr):
    more = ()
    for k in tl.static_range(n + 1):
        more = more + (found[k] + ((fields >> (k * BITS)) & (2**BITS - 1)).to(tl.int32),)
    return more


@triton.jit(do_not_specialize=["first", "rows", "repeat", "inner", "stream"])
def _count_kernel(
    counts, mu_ptr, sigma_ptr, flow_ptr, seed_ptr, first, rows, repeat, inner, stream,
    n: tl.constexpr, LAYERS: tl.constexpr, STICKS: tl.constexpr, LEFTOVER: tl.constexpr,
    DRAWS: tl.constexpr, STEPS: tl.constexpr, TIMES: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Counts of all draws of a block of rows: TIMES rounds of STEPS steps of four draws."""
    row = (first + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]).to(tl.int64)
    inside = row < rows
    numbers: tl.constexpr = LAYERS * (2 * n + 1)
    owner = row // (repeat * inner) * inner + row % inner
    mu, sigma = _read(mu_ptr, row * n, inside, n), _read(sigma_ptr, row * n, inside, n)
    flow = _read(flow_ptr, owner * numbers, inside, numbers)
    fine = _finite(mu, n) & _finite(sigma, n) & _finite(flow, numbers)
    if STICKS:
        mu, sigma = _scaled(mu, n), _scaled(sigma, n)
    seed = tl.load(seed_ptr)
    found = ()
    for _ in tl.static_range(n + 1):
        found = found + (tl.zeros((BLOCK, 1), tl.int32),)
    for time in range(TIMES):
        fields = tl.zeros((BLOCK, 1), tl.int64)
        for step in range(STEPS):
            eps = _normals(seed, row, time * STEPS + step, stream, n)
            for draw in tl.static_range(4):
                place = _place(eps, draw, mu, sigma, flow, n, LAYERS, STICKS, LEFTOVER, BITS)
                one = tl.full((BLOCK, 1), 1, tl.int64) << place.to(tl.int64)
                if DRAWS % 4 > 0:
                    one = tl.where((time * STEPS + step) * 4 + draw < DRAWS, one, 0)
                fields += one
        found = _added(found, fields, n, BITS)
    for k in tl.static_range(n + 1):
        tl.store(counts + row * (n + 1) + k, tl.where(fine, found[k], 0), mask=inside)


def serves(maps: Sequence[Transform], num_categories: int) -> bool:
    """Whether a kernel knows these maps, all that come before the softmax++; subclasses may map differently."""
    kinds = [type(part) for part in maps]
    known = kinds == [StickBreaking] or all(kind is Planar for kind in kinds)
    return known and num_categories <= MOST_CATEGORIES


def count(
    mu: Tensor, sigma: Tensor, maps: Sequence[Transform], num_draws: int, *, generator: torch.Generator | None = None
) -> Tensor:
    r"""How many of the draws of :math:`\mu + \sigma \epsilon`, mapped, have each category.

    Arguments:
        mu: :math:`\mu`, shape ``(*, K-1)``, float32.
        sigma: :math:`\sigma`, of the same shape.
        maps: none, a :class:`StickBreaking`, or :class:`Planar` maps whose parameters broadcast to ``(*)``.
        num_draws: the number of draws of each row.
        generator: of the key of the noise, on the device.

    Returns:
        Shape ``(*, K)``, int32; all zero where parameters are not finite.
    """
    seed = torch.randint(2**63 - 1, (1,), dtype=torch.int64, device=mu.device, generator=generator)
    return count_of_key(mu, sigma, maps, num_draws, seed)


def count_of_key(mu: Tensor, sigma: Tensor, maps: Sequence[Transform], num_draws: int, seed: Tensor) -> Tensor:
    """The counts for a key of the noise, a tensor of one 64-bit integer."""
    batch, n = mu.shape[:-1], mu.shape[-1]
    rows = batch.numel()
    counts = torch.empty(*batch, n + 1, dtype=torch.int32, device=mu.device)
    sticks = [part for part in maps if isinstance(part, StickBreaking)]
    flow, repeat, inner = _parameters([part for part in maps if isinstance(part, Planar)], mu)
    size = max(1, AT_ONCE // num_draws // BLOCK) * BLOCK
    mu, sigma = mu.contiguous(), sigma.contiguous()
    for first in range(0, rows, size):
        end = min(first + size, rows)
        with torch.cuda.device_of(mu):  # launches go to the current one
            _count_kernel[(triton.cdiv(end - first, BLOCK),)](
                counts, mu, sigma, flow, seed, first, end, repeat, inner, mu.device.index or 0,
                n, flow.shape[-1] // (2 * n + 1), bool(sticks), bool(sticks and sticks[0].leftover),
                num_draws, *_plan(num_draws, n + 1), BLOCK,
                num_warps=NUM_WARPS, maxnreg=REGISTERS,
            )  # fmt: skip
    return counts


class Plan(NamedTuple):
    """How draws are counted: so many steps of four until the fields are emptied, so many times, in so many bits."""

    steps: int
    times: int
    bits: int


def _plan(num_draws: int, num_categories: int) -> Plan:
    bits, whole = min(64 // num_categories, 8), triton.cdiv(num_draws, 4)
    steps = max(i for i in range(1, (2**bits - 1) // 4 + 1) if whole % i == 0)
    return Plan(steps, whole // steps, bits)


def _parameters(layers: Sequence[Planar], mu: Tensor) -> tuple[Tensor, int, int]:
    """w, b and û of all layers in one row for each set of them, and how rows find theirs.

    Sets are used by rows that differ along neighbouring axes alone, or else repeated: row (i, j, k) of ``(*)``, with
    sizes (I, repeat, inner), has set (i, k).
    """
    batch = mu.shape[:-1]
    if not layers:
        return mu.new_empty(0), 1, 1
    own = torch.broadcast_shapes(*(part.batch_shape for part in layers))
    own = torch.Size((1,) * (len(batch) - len(own)) + own)
    shared = [axis for axis, size in enumerate(own) if size != batch[axis]]
    low, high = (shared[0], shared[-1] + 1) if shared else (len(batch), len(batch))
    if own[low:high].numel() > 1:
        own, low, high = batch, len(batch), len(batch)
    columns = []
    for part in layers:
        b = torch.as_tensor(part.b, dtype=mu.dtype, device=mu.device).unsqueeze(-1)
        columns += [x.expand(*own, x.shape[-1]) for x in (part.w, b, part.constrained()[0])]
    return torch.cat(columns, -1).contiguous(), batch[low:high].numel(), batch[high:].numel()
