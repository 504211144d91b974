r"""Noise inside of kernels: Philox counters to normals and Gumbels, the same whatever tile asks for them.

The noise of one call is a matrix. Its entry at (row, column) is one of the four outputs of a Philox block cipher with
the call's 64-bit key and the counter (column // 4, row, stream, kind): number column % 4. The stream is the index of
the device, so that devices seeded alike differ. What a row has beyond 32 bits is beside the kind, which has three.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

ROUNDS = tl.constexpr(10)  # of Philox, as many as torch has; 7 are the fewest that pass BigCrush (Salmon et al., 2011)

GAUSSIAN = tl.constexpr(0)  # kinds of noise, below eight
GUMBEL = tl.constexpr(1)

_LOG_2 = tl.constexpr(0.6931471805599453)
_PER_LOG_2 = tl.constexpr(1.4426950408889634)
_LOG_4 = tl.constexpr(1.3862943611198906)
_TURN = tl.constexpr(1.4629180792671596e-09)  # 2π / 2^32
_ULP = tl.constexpr(2.3283064365386963e-10)  # 1 / 2^32


@triton.jit
def philox(seed, row, group, stream, kind: tl.constexpr, high=0):
    """Four blocks of random 32-bit words; rows (R, 1) and groups (1, G) are joined as late as the rounds allow.

    ``high`` is what all these rows have beyond 32 bits.
    """
    k0, k1 = (seed & 0xFFFFFFFF).to(tl.uint32), ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    c0, c1 = group.to(tl.uint32), row.to(tl.uint32)
    c2 = (tl.zeros((1, 1), tl.int32) + stream).to(tl.uint32)
    c3 = (tl.zeros((1, 1), tl.int64) + (high * 8 + kind)).to(tl.uint32)
    for _ in tl.static_range(ROUNDS):
        a, b = c0.to(tl.uint64) * 0xD2511F53, c2.to(tl.uint64) * 0xCD9E8D57
        c0, c1 = (b >> 32).to(tl.uint32) ^ c1 ^ k0, b.to(tl.uint32)
        c2, c3 = (a >> 32).to(tl.uint32) ^ c3 ^ k1, a.to(tl.uint32)
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    return c0, c1, c2, c3


INTERPRETED = not isinstance(philox, triton.JITFunction)  # on the CPU, for tests; each Triton has its own option for it
_HARDWARE = tl.constexpr(not INTERPRETED)  # the interpreter knows no instructions of a device


@triton.jit
def log2(x):
    """Base 2, with an absolute error of about 2^-22 on a device: one instruction there, as for those that follow."""
    if _HARDWARE:
        return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        return tl.log2(x)


@triton.jit
def exp(x):
    """Of natural base; what is below the smallest normal number is zero."""
    return exp_times(x, 1.0)


@triton.jit
def exp_times(x, rate):
    """exp(x * rate), with one multiplication for every x."""
    if _HARDWARE:
        x = x * (rate * _PER_LOG_2)
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        return tl.exp(x * rate)


@triton.jit
def reciprocal(x):
    if _HARDWARE:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        return 1.0 / x


@triton.jit
def _sqrt(x):
    if _HARDWARE:
        return tl.inline_asm_elementwise("sqrt.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        return tl.sqrt(x)


@triton.jit
def log(x):
    return log2(x) * _LOG_2


@triton.jit
def _cos_sin(angle):
    """Of an angle in [-π, π), where the device's own instructions are good to 2^-20."""
    if _HARDWARE:
        cos = tl.inline_asm_elementwise("cos.approx.ftz.f32 $0, $1;", "=f,f", [angle], tl.float32, is_pure=True, pack=1)
        sin = tl.inline_asm_elementwise("sin.approx.ftz.f32 $0, $1;", "=f,f", [angle], tl.float32, is_pure=True, pack=1)
        return cos, sin
    else:
        return tl.cos(angle), tl.sin(angle)


@triton.jit
def _unit(word):
    """A number in (0, 1], with as many digits near zero as a float has: 2^-33 is the smallest."""
    return tl.fma(word.to(tl.float32), _ULP, 0.5 * _ULP)


@triton.jit
def _normal_pair(a, b):
    """Box and Muller (1958)."""
    unit = (a.to(tl.float32) + 0.5) * _ULP  # in two steps: with one, the compiler has fewer loads under way beside it
    # the logarithm of a number just below one may come out above zero by its rounding
    radius = _sqrt(tl.maximum(log2(unit) * -_LOG_4, 0.0))
    cos, sin = _cos_sin(b.to(tl.int32, bitcast=True).to(tl.float32) * _TURN)
    return radius * cos, radius * sin


@triton.jit
def _gumbel(word):
    """-log E, with E = -log(1 - v): by a series for small v, by the logarithm of the complement for the others."""
    v = _unit(word)
    series = v * (1 + v * (1 / 2 + v * (1 / 3 + v * (1 / 4 + v * (1 / 5 + v * (1 / 6))))))
    exponential = tl.where(v < 0.0625, series, -log(_unit(word ^ 0xFFFFFFFF)))
    return -log(exponential)


@triton.jit
def noise(seed, first, row, start, stream, kind: tl.constexpr, BLOCK: tl.constexpr):
    """Noise (R, BLOCK) of the rows (R, 1) from ``first`` in the columns from ``start``, a multiple of four.

    ``first`` has 64 bits. Tiles have powers of two as their numbers of rows, so no tile crosses a multiple of 2^32.
    """
    group = start // 4 + tl.arange(0, BLOCK // 4)[None, :]
    a, b, c, d = philox(seed, first + row, group, stream, kind, first >> 32)
    if kind == GUMBEL:
        a, b, c, d = _gumbel(a), _gumbel(b), _gumbel(c), _gumbel(d)
    else:
        a, b = _normal_pair(a, b)
        c, d = _normal_pair(c, d)
    return tl.interleave(tl.interleave(a, c), tl.interleave(b, d))


@triton.jit
def write_noise(
    eps, seed, rows, columns, stream, KIND: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The noise as a matrix, for those who ask for it itself."""
    parts = tl.cdiv(columns, BLOCK)
    first = (tl.program_id(0) // parts).to(tl.int64) * ROWS
    row = tl.arange(0, ROWS)[:, None]
    start = tl.program_id(0) % parts * BLOCK
    column = start + tl.arange(0, BLOCK)[None, :]
    value = noise(tl.load(seed), first, row, start, stream, KIND, BLOCK)
    tl.store(eps + (first + row) * columns + column, value, mask=(column < columns) & (first + row < rows))
