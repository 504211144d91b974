"""The laboratory at work: every estimator on every problem, in every parameterization, at every temperature."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from igr import __version__, estimators
from igr.lab import cost
from igr.lab.control import BATCH as CONTROL_BATCH
from igr.lab.control import HIDDEN, LEARNING_RATE, train_control
from igr.lab.exact import Exact, differentiable, evaluate, exact
from igr.lab.measure import MeasureError, measure
from igr.lab.parameters import Parameters, parameters
from igr.lab.problems import Problem, ProblemError
from igr.lab.registry import ESTIMATORS, Entry
from igr.paper import records
from igr.paper.records import Record
from igr.paper.threads import one_thread

__all__ = ["Settings", "Row", "laboratory", "rows"]

BATCH, TIMINGS = 100, 5  # examples of what is timed, and how often
SMOKE_BATCH, SMOKE_TIMINGS = 2, 1
DRAWS, COSTLY = 10_000, 4
FLAT = 1e-12  # a gradient that is not larger, in units of E|f|, is a rounding error


@dataclass(frozen=True)
class Settings:
    """What all rows are given alike.

    Arguments:
        draws: how many estimates of each; by default 10,000, or a quarter where they take long.
        repetitions: into how many parts they are split for standard errors.
        samples: S of each estimate, or more where an estimator needs more.
        control_steps: how many steps a control variate is trained for.
        seed: of all noise.
        dtype: ``float32`` or ``float64``.
        smoke: whether this is a short run that only shows that everything works.
    """

    draws: int | None = None
    repetitions: int = 10
    samples: int = 4
    control_steps: int = 200
    seed: int = 0
    dtype: str = "float32"
    smoke: bool = False

    def shortened(self) -> Settings:
        """The same, cut short."""
        draws, repetitions = min(100, self.draws or 100), min(5, self.repetitions)
        return replace(self, draws=max(draws, 2 * repetitions), repetitions=repetitions, control_steps=3, smoke=True)


class Row(NamedTuple):
    """One measurement: a line of a table, and a record."""

    problem: Problem
    method: str
    estimator: str
    tau: float | None

    @property
    def entry(self) -> Entry:
        """What is known of the estimator."""
        return ESTIMATORS[self.estimator]

    @property
    def spec(self) -> str:
        """The id in records."""
        return f"lab/{self.problem.name}/{self.method}/{self.estimator}"


def rows(
    problems: Sequence[Problem],
    methods: Sequence[str],
    names: Sequence[str],
    temperatures: Sequence[float],
    *,
    device: torch.device | str = "cpu",
    dtype: str = "float32",
) -> list[Row]:
    """Every combination that has a meaning; an estimator without a temperature comes once.

    Raises:
        ProblemError: the function of a problem does not take samples of that dtype on that device.
    """
    smooth = [differentiable(problem, torch.device(device), getattr(torch, dtype)) for problem in problems]
    return [
        Row(problem, method, name, tau)
        for problem, has_gradient in zip(problems, smooth, strict=True)
        for method in methods
        for name in names
        if ESTIMATORS[name].fits(method, problem.num_categories, has_gradient)
        for tau in (temperatures if ESTIMATORS[name].tempered else (None,))
    ]


def laboratory(
    work: Sequence[Row],
    settings: Settings,
    device: torch.device | str = "cpu",
    path: Path | None = None,
    report: Callable[[str], None] = lambda words: None,
    *,
    fresh: bool = False,
    since: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Record]:
    """Measures rows, or finds them in the records at ``path``, where new ones are added one by one.

    Arguments:
        work: the rows.
        settings: what all of them are given.
        device: where to compute.
        path: the file of the records; without one, nothing is looked up or kept.
        report: called with a few words before each row.
        fresh: whether to measure anew what is in the records.
        since: how many lines these had when that was begun; later ones count. See :mod:`igr.paper.again`.
        stop: asked before each measurement whether to end here.

    Raises:
        MeasureError: estimates that cannot be measured.
        ProblemError: a problem that cannot be gone through, or whose gradient is zero.
        RecordError: the file is there but does not hold records.
    """
    device, setup = torch.device(device), None
    for row in work:
        report(f"{row.problem.name}, {row.method}: {row.entry.label}" + (f", τ = {row.tau:g}" if row.tau else ""))
        if setup is None or setup.problem is not row.problem or setup.parameters.method != row.method:
            setup = _Setup(row.problem, row.method, settings, device)
        wanted = setup.identity(row)
        known = [] if path is None or (fresh and since is None) else records.read(path, since or 0)
        record = records.find(known, wanted)
        if record is None:
            if stop():
                return
            record = setup.record(row, wanted)
            if path is not None:
                records.append(path, [record], replace=fresh)
        yield record


class _Setup:
    """A problem in one parameterization, with its exact gradient."""

    def __init__(self, problem: Problem, method: str, settings: Settings, device: torch.device) -> None:
        self.problem, self.settings, self.device = problem, settings, device
        self.calls: Counter[str] = Counter()
        self.dtype: torch.dtype = getattr(torch, settings.dtype)
        self.parameters: Parameters = parameters(problem, method, device)
        self.exact: Exact = exact(problem, self.parameters.log_probs, self.dtype)
        self.gradient = self.parameters.chain(self.exact.moments)
        self._check_gradient()
        self.smooth = differentiable(problem, device, self.dtype)

    def _check_gradient(self) -> None:
        """Refuses a gradient that is nothing but rounding, of sums in float64 or of f in its dtype."""
        norm, magnitude = self.gradient.norm().item(), self.exact.magnitude
        if norm <= max(FLAT, 8 * torch.finfo(self.dtype).eps) * magnitude:
            raise ProblemError(
                f"{self.problem.name}, {self.parameters.method}: the exact gradient is zero up to rounding, |g| = "
                f"{norm:.2g} with E|f| = {magnitude:.2g}, so nothing can be relative to it; choose other logits, or an "
                "f that differs between its states by more than its rounding error, which is less in float64"
            )

    def function(self, z: Tensor) -> Tensor:
        """f, counting how many samples it is given."""
        self.calls["f"] += z.shape[:-2].numel()
        return evaluate(self.problem, z)

    def identity(self, row: Row) -> Record:
        """The part of a record that says what is measured; the exact value and norm tell a changed problem apart."""
        settings, entry = self.settings, row.entry
        slow = entry.costly and row.method != "gs"
        given: dict[str, Any] = {
            "draws": settings.draws or (DRAWS // COSTLY if slow else DRAWS),
            "repetitions": settings.repetitions,
            "samples": max(entry.least, settings.samples // entry.each * entry.each),
            "num_categories": self.problem.num_categories,
            "num_variables": self.problem.num_variables,
            "problem": dict(self.problem.settings),
            "exact": {"value": _digits(self.exact.value), "norm": _digits(self.gradient.norm().item())},
            "dtype": settings.dtype,
        }
        if entry.keywords:
            given["keywords"] = dict(entry.keywords)
        if entry.prepare == "control":
            steps, size = settings.control_steps, {"batch": CONTROL_BATCH, "hidden": HIDDEN}
            given["control"] = {"steps": steps, "learning_rate": LEARNING_RATE} | size
        return {
            "spec": row.spec,
            "protocol": "enumeration",
            "seed": settings.seed,
            "tau": row.tau,
            "prior_temperature": None,
            "smoke": settings.smoke,
            "device": str(self.device),
            "settings": given,
        }

    def record(self, row: Row, identity: Record) -> Record:
        """The measurement, with what it took."""
        start, threads = time.perf_counter(), torch.get_num_threads()
        with one_thread():
            try:
                metrics = self._metrics(row, identity["settings"], threads)
            except ProblemError:
                raise
            except ValueError as error:  # of the measurement, or of an estimator that refuses what f returns
                at = "" if row.tau is None else f" at τ = {row.tau:g}"
                raise MeasureError(f"{row.entry.label} on {row.problem.name}, {row.method}{at}: {error}") from error
        commit, dirty = records.source()
        return identity | {
            "metrics": {key: _digits(value) for key, value in metrics.items()},
            "label": row.entry.label,
            "unbiased": row.entry.unbiased,
            "timed_batch": self._timed()[0],
            "commit": commit,
            "dirty": dirty,
            "tree": records.tree(),
            "version": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "host_cpus": os.cpu_count(),
            "threads": threads,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.perf_counter() - start, 3),
        }

    def _metrics(self, row: Row, given: Record, threads: int) -> dict[str, float]:
        """How far off estimates are, and what one costs."""
        name, on_gpu = f"{row.spec}/{row.tau}/{self.settings.seed}", self.device.type == "cuda"
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")
        keywords = self._keywords(row, seed)
        metrics = measure(
            self._estimator(row, given["samples"], keywords),
            self.gradient,
            given["draws"],
            repetitions=given["repetitions"],
            seed=seed,
            chunk=max(1, (100_000 if on_gpu else 2_000) // given["samples"]),  # what a cache holds
            workers=1 if on_gpu else threads,
        )
        return metrics | self._cost(row, given["samples"], keywords)

    def _leaves(self, size: int) -> dict[str, Tensor]:
        """A row of parameters for each of so many examples."""
        return {
            name: value.to(self.dtype).expand(size, *value.shape).clone().requires_grad_()
            for name, value in self.parameters.leaves.items()
        }

    def _keywords(self, row: Row, seed: int) -> dict[str, Any]:
        """What the estimator is given beside q and f."""
        entry, keywords = row.entry, dict(row.entry.keywords)
        if entry.prepare == "mean":
            keywords["baseline"] = torch.tensor(self.exact.value, dtype=self.dtype, device=self.device)
        if entry.prepare == "control":
            keywords["control_variate"] = train_control(
                self.function,
                self.smooth,
                lambda size: self.parameters.relaxation(self._leaves(size), row.tau or 1.0),
                self.problem.logits.numel(),
                steps=self.settings.control_steps,
                like=torch.zeros((), dtype=self.dtype, device=self.device),
                generator=torch.Generator(self.device).manual_seed(seed - 1),
            )
        return keywords

    def _estimator(
        self, row: Row, samples: int, keywords: dict[str, Any], *, linear: bool = True
    ) -> Callable[[int, torch.Generator | None], Tensor]:
        """Makes estimates, one for each example of a batch, each with parameters of its own."""
        function = getattr(estimators, row.entry.function)
        count = samples // row.entry.each
        tau = 1.0 if row.tau is None else row.tau

        def estimate(size: int, generator: torch.Generator | None) -> Tensor:
            leaves = self._leaves(size)
            q = self.parameters.relaxation(leaves, tau, linear=linear)
            found = function(q, self.function, num_samples=count, generator=generator, **keywords)
            gradients = torch.autograd.grad(found.surrogate.sum(), list(leaves.values()))
            return torch.cat([each.flatten(1) for each in gradients], 1)

        return estimate

    def _cost(self, row: Row, samples: int, keywords: dict[str, Any]) -> dict[str, float]:
        """Of one example of a batch, on one thread, with probabilities that are computed anew for each."""
        estimate, (size, timings) = self._estimator(row, samples, keywords, linear=False), self._timed()
        self.calls.clear()
        estimate(size, None)
        evaluations = self.calls.total() / size
        seconds = cost.seconds(lambda: estimate(size, None), self.device, timings)
        memory = cost.peak_memory(lambda: estimate(size, None), self.device)
        return {"evaluations": evaluations, "microseconds": 1e6 * seconds / size, "kilobytes": memory / 1e3 / size}

    def _timed(self) -> tuple[int, int]:
        """How many examples, how often."""
        return (SMOKE_BATCH, SMOKE_TIMINGS) if self.settings.smoke else (BATCH, TIMINGS)


def _digits(value: float) -> float:
    return float(f"{value:.6g}")
