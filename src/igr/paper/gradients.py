"""The estimators of gradients by the names that specs have for them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from igr import estimators
from igr.distributions import GumbelSoftmax, Relaxation
from igr.estimators import Estimate

__all__ = ["estimate"]


def estimate(
    name: str,
    q: Relaxation,
    f: Callable[[Tensor], Tensor],
    *,
    num_samples: int,
    temperature: Tensor,
    generator: torch.Generator,
) -> Estimate:
    """E[f] with the gradient of an estimator that needs nothing but samples of q.

    Arguments:
        name: as in a spec; ``rao`` is Gumbel-Rao for GS, and IGR-Rao otherwise.
        q: the relaxation, at its own temperature.
        f: the loss of samples.
        num_samples: S.
        temperature: of estimators that have one of their own.
        generator: source of the noise.
    """
    S, noise = num_samples, generator
    match name:
        case "straight_through":
            return estimators.straight_through(q, f, num_samples=S, temperature=temperature, generator=noise)
        case "reinmax":
            return estimators.reinmax(q, f, num_samples=S, temperature=temperature, generator=noise)
        case "gapst":
            return estimators.gapped_straight_through(q, f, num_samples=S, temperature=temperature, generator=noise)
    rao = estimators.gumbel_rao if isinstance(q, GumbelSoftmax) else estimators.igr_rao
    others: dict[str, Callable[..., Estimate]] = {
        "st_relaxed": estimators.st_relaxed,
        "rao": rao,
        "rloo": estimators.rloo,
        "uspg": estimators.uspg,
        "disarm": estimators.disarm,
        "rebar": estimators.rebar,
    }
    if name not in others:
        raise NotImplementedError(f"no estimator is called {name!r}")
    return others[name](q, f, num_samples=S, generator=noise)
