"""Samples of any shape by the kernels, which work on rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from igr._checks import check_generator
from igr.kernels import ops


class Fused(NamedTuple):
    """What one pass gives; None for what was not asked for."""

    z: Tensor
    log_prob: Tensor | None
    kl: Tensor | None


def sample(
    loc: Tensor,
    scale: Tensor | None,
    batch: torch.Size,
    tau: float | Tensor,
    delta: float | Tensor = 1.0,
    mask: Tensor | None = None,
    *,
    hard: bool = False,
    log_prob: bool = False,
    kl: bool = False,
    prior: tuple[Tensor | None, Tensor | None] = (None, None),
    generator: torch.Generator | None = None,
) -> Fused:
    """One sample for every row of ``batch``; ``loc`` and ``scale`` are of one shape, which broadcasts with it.

    Without ``scale`` the noise is Gumbel's, and ``loc`` the logits. The divergence is that from ``prior``: location and
    scale, or logits and nothing. The key of the noise is drawn from torch's own generator of the device.
    """
    seed = _key(loc, generator)
    own = _own_rows(loc.shape[:-1], batch)
    shape = torch.Size((*own, loc.shape[-1]))
    parameters = [None if x is None else _rows(x, shape) for x in (loc, scale, *prior)]
    K = loc.shape[-1] + int(scale is not None)
    keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (loc, scale))
    z, _, log_q, divergence, _ = ops.sample(
        parameters[0], parameters[1], seed, *_numbers(tau, delta), _column(tau, batch), _column(delta, batch),
        None if mask is None else _rows(mask, torch.Size((*batch, K))), parameters[2], parameters[3],
        math.prod(batch), hard, keep, log_prob, kl,
    )  # fmt: skip
    return Fused(
        z.reshape(*batch, K), log_q.reshape(batch) if log_prob else None, divergence.reshape(batch) if kl else None
    )


def noise(shape: Sequence[int], like: Tensor, generator: torch.Generator | None = None, *, gumbel: bool) -> Tensor:
    """The noise that :func:`sample` has for parameters of this shape, by itself; of the dtype of ``like``."""
    rows, columns = math.prod(shape[:-1]), shape[-1] if shape else 1
    eps: Tensor = ops.noise_of(_key(like, generator), rows, columns, gumbel)
    return eps.reshape(tuple(shape)).to(like.dtype)


def _key(like: Tensor, generator: torch.Generator | None) -> Tensor:
    check_generator(generator, like.device)
    return torch.randint(2**63 - 1, (1,), dtype=torch.int64, device=like.device, generator=generator)


def _own_rows(rows: torch.Size, batch: torch.Size) -> torch.Size:
    """The axes that parameters vary along; those before them are samples, which the kernel makes by itself."""
    own = rows
    while own and own[0] == 1:
        own = own[1:]
    return own if batch[len(batch) - len(own) :] == own else batch


def _rows(x: Tensor, shape: torch.Size) -> Tensor:
    """In two dimensions; what is expanded stays so, as far as strides can say it."""
    while x.dim() > len(shape):
        x = x.squeeze(0)
    return x.expand(shape).reshape(math.prod(shape[:-1]), shape[-1])


def _numbers(*values: float | Tensor) -> list[float]:
    return [1.0 if isinstance(value, Tensor) else value for value in values]


def _column(value: float | Tensor, batch: torch.Size) -> Tensor | None:
    """One value for each row."""
    if not isinstance(value, Tensor):
        return None
    return value.detach().expand((*batch, 1)).reshape(-1).contiguous()
