r"""Approximations of discrete distributions by relaxations: fits, and how far they are from the truth.

The paper's objective for every family, :math:`\|E \tilde{z} - p_0\|^2` estimated with the same number of samples at the
same temperature and learning rate; and, beside it, :func:`igr.fit_prior`. Results are records; nothing is drawn here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from igr import CountableProbs, CountableStickBreaking, GumbelSoftmax, InvertibleGaussian, StickBreaking, __version__
from igr.distributions import Relaxation
from igr.nn import GrowingSticks
from igr.paper import records
from igr.paper.distances import Array, kl_divergence, moments, total_variation
from igr.paper.methods import METHODS
from igr.paper.records import Record
from igr.paper.specs import GUMBEL_SIZES
from igr.paper.targets import TARGETS, Target
from igr.paper.threads import one_thread
from igr.prior import fit_prior, match_moments

__all__ = ["FitError", "Model", "Settings", "State", "approximate", "evaluate", "exact_models", "models", "ticks"]

PRECISION = 0.9  # ρ of the countable sticks
XI = 0.541  # log σ at the start, as published
STICKS, SLOPE = 200, 0.05  # and μ: see _first_locations
SHORT = 200  # the steps of the published script; the state after them is kept
HISTOGRAM = 1_000  # samples
TICKS = 20  # how often a fit reports

Draw = Relaxation | CountableStickBreaking


class FitError(RuntimeError):
    """A fit that broke down, with what can be done about it."""


@dataclass(frozen=True)
class Settings:
    """What all families are given alike."""

    steps: int = 1_000
    samples: int = 1_000
    tau: float = 0.01
    learning_rate: float = 0.01
    seed: int = 0
    smoke: bool = False
    """Whether this is a short run that only shows that everything works."""

    def shortened(self) -> Settings:
        """The same, cut short."""
        return replace(self, steps=min(20, self.steps), samples=min(100, self.samples), smoke=True)

    @property
    def kept(self) -> tuple[int, ...]:
        """After how many steps the state is kept."""
        short = SHORT if self.steps > SHORT else self.steps // 5
        return (0, short, self.steps) if short else (0, self.steps)


class Model(NamedTuple):
    """One of the approximations of a target: how it is found, which relaxation it is, and K unless it has none."""

    protocol: str
    method: str
    num_categories: int | None
    name: str

    @property
    def label(self) -> str:
        """What tables and figures call it."""
        size = f", K = {self.num_categories}" if self.name != self.method else ""
        return METHODS[self.method].label + size + (" exact" if self.protocol == "exact" else "")


class State(NamedTuple):
    """A model after so many steps: its probability mass function, what that leaves out, and hard samples."""

    step: int | None
    seconds: float
    probs: Array
    tail: float
    counts: NDArray[np.int64]
    needed: Array
    """How many categories each hard sample needed."""


def models(target: Target) -> list[Model]:
    """The models of the paper: IGR-I where K is known, IGR-SB without a K, GS with the K or with several."""
    K = target.num_categories
    sticks = Model("paper", "igr-sb", None, "igr-sb")
    if K is None:
        return [sticks, *(Model("paper", "gs", size, f"gs-{size}") for size in GUMBEL_SIZES)]
    return [Model("paper", "igr-i", K, "igr-i"), sticks, Model("paper", "gs", K, "gs")]


def exact_models(target: Target) -> list[Model]:
    """What :func:`igr.fit_prior` finds: IGR-I where K is known, and IGR-SB."""
    K = target.num_categories
    methods = ["igr-sb"] if K is None else ["igr-i", "igr-sb"]
    return [Model("exact", method, K, method) for method in methods]


def ticks(names: Sequence[str], exact: bool) -> int:
    """How often :func:`approximate` reports in all."""
    targets = [TARGETS[name] for name in names]
    return sum(TICKS * len(models(t)) + (len(exact_models(t)) if exact else 0) for t in targets)


def approximate(
    name: str,
    settings: Settings,
    device: torch.device | str,
    path: Path,
    report: Callable[[str, int], None],
    *,
    exact: bool = False,
    fresh: bool = False,
    since: int | None = None,
    only: Collection[str] | None = None,
) -> Iterator[Record]:
    """Fits every model of a target, or finds it in the records at ``path``, where new ones are added as they finish.

    Arguments:
        name: one of ``TARGETS``.
        settings: what all models are given.
        device: where to compute; exact fits are small and stay on the CPU.
        path: the file of the records.
        report: called with a few words and the number of steps that they are about, of :func:`ticks` in all.
        exact: whether to add the exact fits.
        fresh: whether to fit anew what is in the records.
        since: how many lines these had when that was begun; later ones count. See :mod:`igr.paper.again`.
        only: the specs to fit, by default all of the target.

    Raises:
        FitError: a fit broke down.
        RecordError: the file is there but does not hold records.
    """
    target = TARGETS[name]
    for model in models(target) + (exact_models(target) if exact else []):
        size = TICKS if model.protocol == "paper" else 1
        wanted = _identity(target, model, settings, device)
        if only is not None and wanted["spec"] not in only:
            continue
        record = None if fresh and since is None else records.find(records.read(path, since or 0), wanted)
        if record is None:
            with one_thread():
                fit = _descend if model.protocol == "paper" else _solve
                states, losses = fit(target, model, settings, device, report)
            record = _record(target, wanted, model, states, losses)
            records.append(path, [record], replace=fresh)
        else:
            report(f"{target.name}: {model.label} is there", size)
        yield record


def _descend(
    target: Target, model: Model, settings: Settings, device: torch.device | str, report: Callable[[str, int], None]
) -> tuple[list[State], list[float]]:
    """The paper's fit: the states that are kept, and the loss at each step."""
    report(f"{target.name}: {model.label}", 0)
    relaxation, optimizer = _start(model, settings, device)
    known = _first_sticks(settings.smoke) if model.num_categories is None else None
    states = [_look(relaxation(), settings, device, 0, 0.0, known)]
    start, looking, told = time.perf_counter(), 0.0, 0

    def after(step: int, loss: float) -> None:
        nonlocal looking, told
        if not math.isfinite(loss):
            raise FitError(f"{model.label}: the loss is {loss} after {step} steps; lower the learning rate")
        if (due := TICKS * step // settings.steps) > told:
            report(f"{target.name}: {model.label}", due - told)
            told = due
        if step in settings.kept:
            now = time.perf_counter()
            states.append(_look(relaxation(), settings, device, step, now - start - looking))
            looking += time.perf_counter() - now

    p0 = torch.as_tensor(np.exp(target.log_probs()), dtype=torch.float32, device=device)
    generator = torch.Generator(device).manual_seed(settings.seed)
    try:
        losses = match_moments(
            relaxation,
            [],
            p0,
            num_samples=settings.samples,
            num_steps=settings.steps,
            optimizer=optimizer,
            generator=generator,
            callback=after,
        )
    except FitError:
        raise
    except (RuntimeError, ValueError) as error:
        raise FitError(
            f"{model.label} broke down: {error}; a lower learning rate, or fewer samples, may help"
        ) from error
    return states, losses


def _start(
    model: Model, settings: Settings, device: torch.device | str
) -> tuple[Callable[[], Draw], torch.optim.Optimizer]:
    """A function that builds the relaxation from its parameters, at their initial values, and their optimizer."""
    K, tau = model.num_categories, settings.tau

    def adam(parameters: Iterator[Tensor] | Sequence[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=settings.learning_rate)

    if K is None:
        sticks = GrowingSticks(loc=_first_locations, scale=math.exp(XI)).to(device)
        optimizer = adam(sticks.parameters())
        sticks.attach(optimizer)
        return lambda: sticks(tau, PRECISION), optimizer
    if model.method == "gs":
        logits = torch.full((K,), -math.log(K), device=device, requires_grad=True)
        return lambda: GumbelSoftmax(tau, logits), adam([logits])
    mu, xi = (torch.zeros(K - 1, device=device, requires_grad=True) for _ in range(2))
    return lambda: InvertibleGaussian(mu, xi.exp(), tau), adam([mu, xi])


def _first_locations(k: Tensor) -> Tensor:
    r"""Where the locations of sticks start, whatever the target: at the published :math:`-\log(K - 2)` with K = 200.

    The published sticks end there. These go on, ever longer, so that no sample needs many more than 200: if all started
    alike, each far stick that is trained away would be followed by another one.
    """
    return SLOPE * (k - (STICKS - 1)).clamp(min=0).float() - math.log(STICKS - 2)


def _solve(
    target: Target, model: Model, settings: Settings, device: torch.device | str, report: Callable[[str, int], None]
) -> tuple[list[State], list[float]]:
    """The exact fit."""
    report(f"{target.name}: {model.label}", 1)
    start = time.perf_counter()
    unbounded = target.num_categories is None
    options: dict[str, Any] = {"precision": PRECISION} if unbounded else {}
    if model.method == "igr-sb":
        options["flow"] = StickBreaking()
    try:
        q = fit_prior(target.exact(), temperature=settings.tau, **options)
    except RuntimeError as error:
        raise FitError(f"{model.label}: {error}") from error
    return [_look(q, settings, "cpu", None, time.perf_counter() - start)], []


@torch.no_grad()
def _look(
    q: Draw,
    settings: Settings,
    device: torch.device | str,
    step: int | None,
    seconds: float,
    known: tuple[Array, float] | None = None,
) -> State:
    """The state of a relaxation, unless its mass function is known; every histogram is drawn with the same noise."""
    probs, tail = known or _mass_function(q, settings.smoke)
    generator = torch.Generator(device).manual_seed(settings.seed)
    if isinstance(q, CountableStickBreaking):
        sample = q.sample((HISTOGRAM,), generator=generator)
        category, needed = sample.w.argmax(-1), sample.mask.sum(-1).double()
    else:
        one_hot = q.hard_rsample((HISTOGRAM,), generator=generator)
        category, needed = one_hot.argmax(-1), torch.full((HISTOGRAM,), one_hot.shape[-1], dtype=torch.float64)
    return State(step, seconds, probs, tail, category.bincount().cpu().numpy(), needed.cpu().numpy())


def _mass_function(q: Draw, rough: bool) -> tuple[Array, float]:
    """The recovered probabilities and what they leave out; where the support is countable, roughly or not."""
    behind = q.recovered(1e-3 if rough else 1e-6) if isinstance(q, CountableStickBreaking) else q.recovered()
    tail = behind.tail.item() if isinstance(behind, CountableProbs) else 0.0
    return behind.probs.double().cpu().numpy(), tail


@cache
@torch.no_grad()
def _first_sticks(rough: bool) -> tuple[Array, float]:
    """Where all sticks start, the same for every target; of all states, it takes the most time."""
    return _mass_function(CountableStickBreaking(_first_locations, math.exp(XI), 1.0, PRECISION), rough)


def evaluate(log_p0: Array, state: State) -> dict[str, float]:
    """How far a state is from the truth.

    Returns:
        Total variation of the distribution itself (``tv``, an upper bound by at most ``tail``) and of the histogram
        (``tv_histogram``), both divergences (lower bounds, tight up to the tail; infinite where support is missing),
        ``mean`` and ``variance``, and how many categories the hard samples needed.
    """
    p0 = np.exp(log_p0)
    with np.errstate(divide="ignore"):
        log_q, log_tail = np.log(state.probs), float(np.log(state.tail))
    mean, variance = moments(state.probs, state.tail)
    return {
        "tv": total_variation(p0, state.probs, state.tail),
        "tv_histogram": total_variation(p0, state.counts / state.counts.sum()),
        "kl_truth_model": kl_divergence(log_p0, log_q, log_tail),
        "kl_model_truth": kl_divergence(log_p0, log_q, log_tail, reverse=True),
        "mean": mean,
        "variance": variance,
        "tail": state.tail,
        "categories_mean": float(state.needed.mean()),
        "categories_max": float(state.needed.max()),
    }


def _identity(target: Target, model: Model, settings: Settings, device: torch.device | str) -> Record:
    """The part of a record that says what was done."""
    given: Record = {"histogram": HISTOGRAM}
    if model.protocol == "paper":
        given |= {"steps": settings.steps, "samples": settings.samples, "learning_rate": settings.learning_rate}
    if model.num_categories is None:
        given |= {"precision": PRECISION}
        if model.protocol == "paper":
            given |= {"initial_sticks": STICKS, "initial_slope": SLOPE, "initial_log_scale": XI}
    return {
        "spec": f"approximate/{target.name}/{model.name}",
        "protocol": model.protocol,
        "seed": settings.seed,
        "tau": settings.tau,
        "prior_temperature": None,
        "smoke": settings.smoke,
        "device": str(device) if model.protocol == "paper" else "cpu",
        "settings": given,
    }


def _record(target: Target, identity: Record, model: Model, states: list[State], losses: list[float]) -> Record:
    """All that tables and figures need, in plain numbers; an infinity is "inf", since JSON has no word for it."""
    log_p0 = target.log_probs()
    mean, variance = moments(np.exp(log_p0))
    every = max(1, len(losses) // 200)
    metrics = [_plain(evaluate(log_p0, state)) for state in states]
    commit, dirty = records.source()
    return identity | {
        "metrics": metrics[-1],
        "commit": commit,
        "dirty": dirty,
        "igr": __version__,
        "torch": torch.__version__,
        "seconds": round(states[-1].seconds, 3),
        "model": {"label": model.label, "method": model.method, "num_categories": model.num_categories},
        "target": {
            "name": target.name,
            "title": target.title,
            "num_categories": target.num_categories,
            "mean": mean,
            "variance": variance,
            "probs": _short(np.exp(log_p0)),
        },
        "states": [
            {
                "step": state.step,
                "seconds": round(state.seconds, 3),
                "metrics": each,
                "probs": _short(state.probs),
                "counts": state.counts.tolist(),
            }
            for state, each in zip(states, metrics, strict=True)
        ],
        "loss": {
            "every": every,
            "means": [_digits(x) for x in np.mean(np.reshape(losses[: len(losses) // every * every], (-1, every)), -1)],
        },
    }


def _digits(value: float) -> float:
    return float(f"{value:.6g}")


def _plain(metrics: dict[str, float]) -> dict[str, float | str]:
    return {name: "inf" if value == math.inf else _digits(value) for name, value in metrics.items()}


def _short(probs: Array) -> list[float]:
    """Without the end that holds less than 1e-9 of the mass."""
    size = int((probs[::-1].cumsum()[::-1] > 1e-9).sum())
    return [_digits(p) for p in probs[:size]]
