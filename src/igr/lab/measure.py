"""The instrument: how far estimates of a gradient are from the exact one, on average and one at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Self

import torch
from torch import Tensor

__all__ = ["MeasureError", "Sums", "measure"]

ROUNDING = 1e-6
"""What single precision may add to an entry of a mean, in units of the gradient's norm."""

Draw = Callable[[int, torch.Generator], Tensor]


class MeasureError(ValueError):
    """Estimates that cannot be measured."""


class Sums(NamedTuple):
    """Of n estimates of a gradient g with P entries, in float64; those of two sets of estimates are added."""

    number: Tensor
    error: Tensor
    """The sum of errors, ``(P,)``."""
    squares: Tensor
    """The sum of squared errors, ``(P,)``."""
    cosine: Tensor
    """The sum of cosines with g, that of a zero being zero."""
    zeros: Tensor
    """How many are zero in every entry."""

    def plus(self, other: Self) -> Sums:
        """Those of both sets."""
        return Sums(*(a + b for a, b in zip(self, other, strict=True)))

    def minus(self, other: Self) -> Sums:
        """Those without a part."""
        return Sums(*(a - b for a, b in zip(self, other, strict=True)))


def measure(
    draw: Draw,
    gradient: Tensor,
    draws: int,
    *,
    repetitions: int = 10,
    seed: int = 0,
    chunk: int = 2_000,
    workers: int = 1,
) -> dict[str, float]:
    r"""Bias, standard deviation and more of estimates, relative to the norm of the exact gradient g.

    The mean :math:`\bar g` of n estimates is off by its own noise as well, so that :math:`|\bar g - g|` is not their
    bias. What noise adds is known, and is taken off:

    .. math:: \text{bias}^2 = |\bar g - g|^2 - \frac{\mathrm{tr}\,\mathrm{Cov}}{n}, \qquad
        \text{floor}^2 = \frac{\mathrm{tr}\,\mathrm{Cov}}{n}.

    A bias well below the floor cannot be told from none. Standard errors are those of the jackknife that leaves out one
    repetition at a time; that of the squared bias is at least :math:`\text{floor}^2 \sqrt{2 / P}`, what noise alone
    makes of it.

    Arguments:
        draw: makes so many independent estimates from a generator, ``(n, P)``.
        gradient: g, ``(P,)``.
        draws: how many estimates in all.
        repetitions: into how many parts they are split, each with a generator of its own.
        seed: of the first of these; they are numbered on from there.
        chunk: how many are asked for at once.
        workers: threads, which share the repetitions, and make no difference to the result.

    Returns:
        ``bias``, the square root of what is left of its square, or zero, and ``bias_limit``, that of its square plus
        three standard errors; ``floor``; ``raw``, :math:`|\bar g - g|`; ``std``, of an estimate; ``rmse``, of an
        estimate; ``cosine`` of the mean estimate with g; ``cosine_single``, the mean cosine of an estimate; ``zero``,
        the share of estimates that are exactly zero; and ``z``, the largest :math:`|z|` of an entry of the mean. All
        but ``floor``, ``raw`` and ``z`` have a standard error, ``*_se``.

    Raises:
        MeasureError: the exact gradient is zero, or an estimate is not finite, or there are too few draws.
    """
    if repetitions < 2 or draws < 2 * repetitions:
        raise MeasureError(
            f"standard errors need at least 2 repetitions of at least 2 draws each, got {repetitions} repetitions of "
            f"{draws} draws in all"
        )
    g = gradient.double()
    if not bool(g.norm() > 0):
        raise MeasureError("the exact gradient is zero, so nothing can be relative to it; choose other parameters")
    sizes = [draws * (r + 1) // repetitions - draws * r // repetitions for r in range(repetitions)]

    def part(r: int) -> Sums:
        return _sums(draw, g, sizes[r], chunk, torch.Generator(g.device).manual_seed(seed + r))

    if workers == 1:
        parts = [part(r) for r in range(repetitions)]
    else:
        pool = ThreadPoolExecutor(workers)
        try:
            parts = list(pool.map(part, range(repetitions)))
        finally:
            pool.shutdown(cancel_futures=True)  # of which some are left after an error or Ctrl-C alone
    return _summary(parts, g)


def _summary(parts: list[Sums], g: Tensor) -> dict[str, float]:
    """Statistics of all parts and their standard errors."""
    whole = Sums(*(torch.stack(each).sum(0) for each in zip(*parts, strict=True)))
    found, without = _statistics(whole, g), [_statistics(whole.minus(part), g) for part in parts]
    errors = {name: _jackknife(torch.stack([each[name] for each in without])) for name in found}
    squared, least = found.pop("bias_squared").item(), found["floor"].item() ** 2 * math.sqrt(2 / len(g))
    error, above = max(errors.pop("bias_squared").item(), least, ROUNDING**2), max(0.0, squared)
    bias = math.sqrt(above)
    result = {"bias": bias, "bias_se": math.sqrt(above + error) - bias, "bias_limit": math.sqrt(above + 3 * error)}
    for name, value in found.items():
        result[name] = value.item()
        if name not in ("floor", "raw", "z"):
            result[f"{name}_se"] = errors[name].item()
    return result


def _sums(draw: Draw, g: Tensor, size: int, chunk: int, generator: torch.Generator) -> Sums:
    """Those of one repetition."""
    total = None
    for start in range(0, size, chunk):
        estimates = draw(min(chunk, size - start), generator).double()
        bad = int((~estimates.isfinite()).any(-1).sum())
        if bad:
            raise MeasureError(f"{bad} of {len(estimates)} estimates are not finite")
        error, norm = estimates - g, estimates.norm(dim=-1)
        cosine = (estimates @ g) / (norm * g.norm()).clamp(min=torch.finfo(g.dtype).tiny)
        number = torch.full_like(norm[0], len(estimates))
        sums = Sums(number, error.sum(0), error.square().sum(0), cosine.sum(), (norm == 0).double().sum())
        total = sums if total is None else total.plus(sums)
    assert total is not None
    return total


def _statistics(sums: Sums, g: Tensor) -> dict[str, Tensor]:
    """All that is reported, the bias still squared."""
    n, norm = sums.number, g.norm()
    error = sums.error / n
    variance = (sums.squares - n * error.square()).clamp(min=0.0) / (n - 1)  # an entry that never varies rounds to < 0
    floor = variance.sum() / n
    mean = g + error
    deviation = (variance / n).sqrt().clamp(min=ROUNDING * norm)
    return {
        "bias_squared": (error.square().sum() - floor) / norm.square(),
        "floor": floor.sqrt() / norm,
        "raw": error.norm() / norm,
        "std": variance.sum().sqrt() / norm,
        "rmse": (sums.squares.sum() / n).sqrt() / norm,
        "cosine": mean @ g / (mean.norm() * norm).clamp(min=torch.finfo(g.dtype).tiny),
        "cosine_single": sums.cosine / n,
        "zero": sums.zeros / n,
        "z": (error.abs() / deviation).amax(),
    }


def _jackknife(values: Tensor) -> Tensor:
    """The standard error of what has these values with one part of the data left out."""
    return ((values - values.mean(0)).square().sum(0) * (len(values) - 1) / len(values)).sqrt()
