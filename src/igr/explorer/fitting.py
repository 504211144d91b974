r"""Fits of relaxations to discrete distributions that can be looked at, and stopped, while they run.

The objective is that of ``igr approximate``, :math:`\|E \tilde{z} - p_0\|^2`, by :func:`igr.match_moments`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from igr import GumbelSoftmax, InvertibleGaussian, StickBreaking, match_moments
from igr.distributions import Relaxation
from igr.nn import PlanarFlow
from igr.paper.approximate import FitError
from igr.paper.demo import NAMES
from igr.paper.distances import Array, kl_divergence, total_variation
from igr.paper.targets import TARGETS, Target

__all__ = ["Fits", "Problem", "Progress", "fit", "own_target", "reach", "start", "target_of"]

LARGEST = 200  # K
MOST_STEPS, MOST_SAMPLES = 100_000, 10_000  # of one fit
MOST = 4  # fits at once
EVERY = 0.2  # seconds between looks at a fit, or four times what a look takes
ABANDONED = 120.0  # seconds without a question, after which a fit ends by itself; hidden pages ask once a minute
COUNTED = 10_000  # hard samples of IGR-Planar, whose probabilities only they know


@dataclass(frozen=True)
class Problem:
    """What is fitted to what."""

    log_p0: Array
    """Of the target; categories beyond K stay without probability."""
    method: str
    num_categories: int
    tau: float = 0.1
    learning_rate: float = 0.01
    steps: int = 1_000
    samples: int = 1_000
    seed: int = 0

    @property
    def floor(self) -> float:
        """The mean of the objective where samples are one-hot and have the target's probabilities."""
        return float(1 - np.exp(2 * self.log_p0).sum()) / self.samples

    def __post_init__(self) -> None:
        if self.method not in NAMES:
            raise ValueError(f"no relaxation is called {self.method!r}; expected one of {', '.join(NAMES)}")
        if not 2 <= self.num_categories <= LARGEST:
            raise ValueError(f"K must be between 2 and {LARGEST}, got {self.num_categories}")
        for name, value in (("τ", self.tau), ("the learning rate", self.learning_rate)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be a positive number, got {value}")
        for what, given, most in (("steps", self.steps, MOST_STEPS), ("samples", self.samples, MOST_SAMPLES)):
            if not 1 <= given <= most:
                raise ValueError(f"{what} must be from 1 to {most:,}, got {given}")


class Progress(NamedTuple):
    """How far a fit is: ``running``, ``finished``, ``stopped`` or ``failed``."""

    problem: Problem
    status: str
    losses: tuple[float, ...]
    probs: Array
    """Of the recovered discrete distribution, ``(K,)``."""
    error: float
    """Their largest standard error, zero where they are exact."""
    tv: float
    kl: float
    r""":math:`KL(p_0 \| q)`, infinite where q lacks a category."""
    kl_reverse: float
    r""":math:`KL(q \| p_0)`, infinite where the target lacks one."""
    seconds: float
    message: str = ""


def own_target(text: str) -> Target:
    """The distribution whose probabilities, or any weights, are typed in.

    Raises:
        ValueError: these are no weights.

    Example:
        >>> own_target("2, 1 1").log_probs()
        array([-0.69314718, -1.38629436, -1.38629436])
    """
    words = text.replace(",", " ").replace(";", " ").split()
    try:
        weights = torch.tensor([float(word) for word in words], dtype=torch.float64)
    except ValueError as error:
        raise ValueError(f"expected numbers with spaces or commas between them: {error}") from error
    if not 2 <= len(weights) <= LARGEST:
        raise ValueError(f"expected 2 to {LARGEST} weights, got {len(weights)}")
    if not bool(weights.isfinite().all()) or bool((weights <= 0).any()):
        raise ValueError("weights must be positive and finite; leave out what has no probability")
    weights = weights / weights.max()  # so that their sum is finite
    return Target("own", "your own", len(weights), lambda: weights / weights.sum())


def target_of(name: str, text: str = "") -> Target:
    """That of ``igr approximate`` by its name, or ``own``, with its weights as text."""
    return own_target(text) if name == "own" else TARGETS[name]


def reach(target: Target, left_out: float = 1e-3) -> int:
    """A number of categories that leaves out at most so much of the target."""
    if target.num_categories is not None:
        return target.num_categories
    covered = np.exp(target.log_probs()).cumsum()
    return min(LARGEST, int((covered < 1 - left_out).sum()) + 1)


def start(problem: Problem) -> tuple[Callable[[], Relaxation], list[Tensor]]:
    """A function that builds the relaxation from its parameters, and these, where every fit starts.

    GS starts at equal probabilities, IGR-I and IGR-Planar at a standard normal, IGR-SB with sticks of equal lengths
    but for their noise.
    """
    K, tau = problem.num_categories, problem.tau
    if problem.method == "gs":
        logits = torch.full((K,), -math.log(K), requires_grad=True)
        return lambda: GumbelSoftmax(tau, logits), [logits]
    sticks = problem.method == "igr-sb"
    mu = -torch.arange(K - 1.0, 0.0, -1.0).log() if sticks else torch.zeros(K - 1)
    parameters = [mu.requires_grad_(), torch.zeros(K - 1, requires_grad=True)]
    if problem.method != "igr-planar":
        flow = StickBreaking() if sticks else None
        return lambda: InvertibleGaussian(parameters[0], parameters[1].exp(), tau, flow=flow), parameters
    planar = PlanarFlow(K)
    generator = torch.Generator().manual_seed(problem.seed)
    with torch.no_grad():  # not from the noise that all threads share
        for each in (planar.u, planar.w):
            each.normal_(0.0, 0.05, generator=generator)
    build = lambda: InvertibleGaussian(parameters[0], parameters[1].exp(), tau, flow=planar())  # noqa: E731
    return build, [*parameters, *planar.parameters()]


class _Stopped(Exception):
    """Somebody asked for it."""


def fit(problem: Problem, report: Callable[[Progress], None], stopped: Callable[[], bool]) -> Progress:
    """Fits, calls ``report`` every now and then, and asks ``stopped`` at each step; returns how it ended."""
    build, parameters = start(problem)
    began, losses = time.perf_counter(), list[float]()
    due = began

    def look(status: str) -> Progress:
        return _look(problem, build(), status, losses, time.perf_counter() - began)

    def after(step: int, loss: float) -> None:
        nonlocal due
        losses.append(loss)
        if not math.isfinite(loss):
            raise FitError(f"the objective is {loss} after {step} steps; lower the learning rate")
        if stopped():
            raise _Stopped
        if (now := time.perf_counter()) >= due:
            report(look("running"))
            spent = time.perf_counter() - now
            due = now + spent + max(EVERY, 4 * spent)

    try:
        report(look("running"))
        match_moments(
            build,
            [],
            torch.from_numpy(np.exp(problem.log_p0)).float(),
            num_samples=problem.samples,
            num_steps=problem.steps,
            optimizer=torch.optim.Adam(parameters, lr=problem.learning_rate),
            generator=torch.Generator().manual_seed(problem.seed),
            callback=after,
        )
        return look("finished")
    except _Stopped:
        return look("stopped")  # parameters were fine a step ago
    except (RuntimeError, ValueError) as error:  # FitError among them
        return _failed(problem, losses, time.perf_counter() - began, str(error))


@torch.no_grad()
def _look(problem: Problem, q: Relaxation, status: str, losses: list[float], seconds: float) -> Progress:
    known = q.recovered(COUNTED, generator=torch.Generator().manual_seed(problem.seed))
    errors, probs = getattr(known, "standard_error", torch.zeros(1)), known.probs.double().numpy()
    log_q = known.logits.double().numpy()
    kl, back = (kl_divergence(problem.log_p0, log_q, reverse=reverse) for reverse in (False, True))
    tv = total_variation(np.exp(problem.log_p0), probs)
    return Progress(problem, status, tuple(losses), probs, errors.max().item(), tv, kl, back, seconds)


def _failed(problem: Problem, losses: list[float], seconds: float, message: str) -> Progress:
    """What is left where parameters are no longer numbers."""
    nothing = np.zeros(problem.num_categories)
    return Progress(problem, "failed", tuple(losses), nothing, 0.0, math.nan, math.nan, math.nan, seconds, message)


@dataclass
class _Running:
    asked: float
    """When the page last asked."""
    stop: Event = field(default_factory=Event)
    thread: Thread = field(init=False)
    progress: Progress | None = None


@dataclass
class Fits:
    """The fits of all open pages, one a page, each in a thread of its own."""

    _running: dict[str, _Running] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def start(self, page: str, problem: Problem) -> None:
        """Begins a fit in place of the page's last one.

        Raises:
            RuntimeError: other pages fit as many as may run at once.
        """
        with self._lock:
            if page in self._running:
                self._running[page].stop.set()
            others = [each for name, each in self._running.items() if name != page and each.thread.is_alive()]
            if len(others) >= MOST:
                raise RuntimeError(f"{MOST} fits are running in other windows: stop one of them first")
            self._running = {name: each for name, each in self._running.items() if not self._old(each)}
            run = _Running(time.monotonic())
            run.thread = Thread(target=self._run, args=(run, problem), daemon=True)
            self._running[page] = run
            run.thread.start()

    def stop(self, page: str) -> None:
        """Ends the page's fit, if there is one, after the step that it is at."""
        with self._lock:
            if page in self._running:
                self._running[page].stop.set()

    def progress(self, page: str) -> Progress | None:
        """How far the page's fit is, if it has one."""
        run = self._running.get(page)
        if run is None:
            return None
        run.asked = time.monotonic()
        return run.progress

    def close(self) -> None:
        """Ends all fits, and waits for the steps that they are at."""
        with self._lock:
            runs = list(self._running.values())
        for run in runs:
            run.stop.set()
        for run in runs:
            run.thread.join(timeout=2.0)

    @staticmethod
    def _old(run: _Running) -> bool:
        return time.monotonic() - run.asked > ABANDONED

    def _run(self, run: _Running, problem: Problem) -> None:
        def report(progress: Progress) -> None:
            run.progress = progress

        report(fit(problem, report, lambda: run.stop.is_set() or self._old(run)))
