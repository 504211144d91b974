"""Locations for which the recovered distribution is a given one, of one row at a time and in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from igr._stick_jacobian import stick_masses_and_jacobian
from igr._stick_recovery import nodes_for_sticks
from igr.recovery import masses_and_jacobian

SURE = 50.0  # the location of a stick that takes all that is left
NEGLIGIBLE = 1e-10  # probabilities below this are not told apart
UNRESOLVED = 1e-13  # and below this not computed for sticks

Map = Callable[[Tensor], tuple[Tensor, Tensor]]  # from x to a value and its Jacobian


def refuse_zeros(p: Tensor) -> None:
    """Gaussian noise gives every category a positive probability."""
    zeros = (p == 0).nonzero()[:, -1].unique().tolist()
    if zeros:
        which = ", ".join(map(str, zeros[:5])) + (", ..." if len(zeros) > 5 else "")
        raise ValueError(
            f"p0 is zero for categories {which}, but Gaussian noise gives every category a positive probability: "
            "leave these out, or give them a small probability"
        )


def gaussian_locations(p: Tensor, sigma: Tensor) -> Tensor:
    """The locations of IGR-I, (K,) to (K-1,)."""
    K = len(p)
    if K == 2:
        quantile: Tensor = torch.special.ndtri(p.amin(-1, keepdim=True))  # of the smaller, which does not round to one
        return torch.where(p[:1] < 0.5, sigma, -sigma) * quantile
    quantile = torch.special.ndtri(torch.as_tensor(K ** (-1 / (K - 1)), dtype=p.dtype, device=p.device))
    start = -sigma * quantile  # uniform, if all scales are the same
    if bool(((p - 1 / K).abs() < 1e-9 / K).all()) and bool((sigma == sigma[0]).all()):
        return start

    kept = torch.arange(K, device=p.device) != p.argmax()  # the likeliest is what the others leave

    def log_probs(mu: Tensor) -> tuple[Tensor, Tensor]:
        masses, jacobian = masses_and_jacobian(mu.unsqueeze(0), sigma.unsqueeze(0))
        masses = (masses / masses.sum())[0].clamp(min=1e-30)
        return masses[kept].log(), (jacobian[0] / masses.unsqueeze(-1))[kept]

    goal = p[kept].clamp(min=NEGLIGIBLE).log()
    return _follow(log_probs, start, goal, sigma, p[kept] + 1e-6, 1e-11)


def stick_locations(p: Tensor, sigma: Tensor, leftover: bool) -> Tensor:
    """The locations of IGR-SB, (K,) to (K-1,)."""
    if leftover:
        return _hazard_locations(p, sigma)
    if bool(p[-1] != 0):
        raise ValueError(
            f"p0 gives the last category the probability {p[-1].item():g}, but StickBreaking(leftover=False) never "
            "reaches it: use StickBreaking(), or give it zero"
        )
    refuse_zeros(p[:-1])
    if len(p) == 2:
        return torch.zeros_like(sigma)
    return F.pad(_hazard_locations(p[:-1], sigma[:-1]), (0, 1), value=SURE + 9 * sigma[-1].item())


def countable_locations(p: Tensor, scale: float) -> Tensor:
    """Locations of sticks for all but the last of these probabilities, and of one that takes all that is left."""
    if len(p) == 1:
        return p.new_full((1,), SURE + 9 * scale)
    return F.pad(_hazard_locations(p, torch.full_like(p[1:], scale)), (0, 1), value=SURE + 9 * scale)


def _hazard_locations(p: Tensor, sigma: Tensor) -> Tensor:
    r"""Locations of K-1 sticks, the leftover being the K-th category, found as scales fall to the given ones.

    For large scales every stick takes all or nothing of what is left, so that probabilities are products of hazards:
    :math:`\Phi(\mu_k / \sigma_k) = p_k / \sum_{j \ge k} p_j`. From there the solution is followed.
    """
    p = p.clamp(min=UNRESOLVED)
    p = p / p.sum()
    hazards = p[:-1] / p.flip(0).cumsum(0).flip(0)[:-1]
    factor, ratio = max(1.0, 8.0 / sigma.min().item()), 0.6
    found = _sticks_at_scale(p, factor * sigma, factor * sigma * torch.special.ndtri(hazards.clamp(1e-12, 1 - 1e-12)))
    while found is not None and factor > 1:
        mu, closer = found, max(1.0, factor * ratio)
        found = _sticks_at_scale(p, closer * sigma, mu * closer / factor)
        if found is not None:
            factor = closer
        elif ratio < 0.97:
            found, ratio = mu, math.sqrt(ratio)
    if found is not None:
        found = _sticks_at_scale(p, sigma, found, final=True)
    if found is None:
        nearest = f", only at {factor:.2g} times it" if factor > 1.05 else ""
        raise RuntimeError(f"no locations were found for p0 at this scale{nearest}: use a larger scale")
    return found


def _sticks_at_scale(p: Tensor, sigma: Tensor, mu: Tensor, *, final: bool = False) -> Tensor | None:
    """Newton's method on the log-odds of the hazards; sticks of negligible probability are kept out of the way."""
    fitted = p[:-1] > NEGLIGIBLE
    mu = torch.where(fitted, mu, -math.log(len(p)) - 7 * sigma)
    if not bool(fitted.any()):
        return mu
    needed = math.ceil(nodes_for_sticks(mu, sigma).item())
    num_nodes = min(2048, max(needed, 512 if len(p) < 40 else 256)) if final else min(1024, max(needed // 2, 128))

    def log_odds(free: Tensor) -> tuple[Tensor, Tensor]:
        masses, jacobian = stick_masses_and_jacobian(mu.masked_scatter(fitted, free), sigma, True, num_nodes)
        masses = masses.clamp(min=1e-14)
        tails, tail_jacobian = (x.flip(0).cumsum(0).flip(0)[1:] for x in (masses, jacobian))
        slope = jacobian[:-1] / masses[:-1, None] - tail_jacobian / tails[:, None]
        return _log_odds_of_hazards(masses)[fitted], slope[fitted][:, fitted]

    goal = _log_odds_of_hazards(p)[fitted]
    found = _newton(log_odds, mu[fitted], goal, sigma[fitted], torch.ones_like(goal), 1e-10 if final else 1e-3)
    return None if found is None else mu.masked_scatter(fitted, found)


def _log_odds_of_hazards(p: Tensor) -> Tensor:
    r""":math:`\log p_k - \log \sum_{j > k} p_j`."""
    return p[:-1].log() - p.flip(0).cumsum(0).flip(0)[1:].log()


def _follow(f: Map, x: Tensor, goal: Tensor, sigma: Tensor, weight: Tensor, tolerance: float) -> Tensor:
    """Where f is ``goal``: along a straight path of goals from f at the start, in steps that Newton's method takes."""
    start, _ = f(x)
    done, step = 0.0, 1.0
    while done < 1:
        ahead = min(1.0, done + step)
        if ahead == 1:
            found = _newton(f, x, goal, sigma, weight, tolerance)
        else:
            found = _newton(f, x, start + ahead * (goal - start), sigma, torch.ones_like(weight), 1e-2)
        if found is not None:
            x, done, step = found, ahead, 2 * step
        elif step > 1e-3:
            step /= 4
        else:
            raise RuntimeError(f"no parameters were found for p0: the search stopped {done:.0%} of the way")
    return x


def _newton(f: Map, x: Tensor, goal: Tensor, sigma: Tensor, weight: Tensor, tolerance: float) -> Tensor | None:
    """Where f is ``goal``, up to ``tolerance`` over ``weight``, if Newton's method finds it in steps within a scale.

    Where the error of the rule behind f does not let it that far, up to a hundred times as much.
    """
    best, found = math.inf, x
    for _ in range(20):
        value, slope = f(x)
        error = (weight * (value - goal).abs()).max().item()
        if not error < 4 * best or (error > best / 2 and best < 100 * tolerance):
            break
        if error < best:
            best, found = error, x
        if error < tolerance:
            break
        step, failed = torch.linalg.solve_ex(slope, goal - value)
        if bool(failed) or not bool(step.isfinite().all()):
            break
        x = x + step * min(1.0, 1.0 / (step / sigma).abs().max().item())
    return found if best < 100 * tolerance else None
