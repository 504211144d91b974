r"""Temperatures: how they change during training, and which one to start from.

A schedule is a function of the step, :class:`Scheduled` a module that counts steps, :class:`Learnable` one whose
temperature is trained. Modules return the temperature as a 0-d tensor, which every sampler and relaxation takes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from igr._checks import check_range, describe, is_number, widen
from igr._suggest import Suggestion, measure_temperature, suggest_temperature

__all__ = [
    "Constant",
    "Linear",
    "Exponential",
    "Cosine",
    "Scheduled",
    "Learnable",
    "step",
    "Suggestion",
    "suggest_temperature",
    "measure_temperature",
]

Schedule = Callable[[int], float]


@dataclass(frozen=True)
class Constant:
    r"""The same temperature at every step: :math:`\tau_t = v`.

    Example:
        >>> Constant(0.5)(1000)
        0.5
    """

    value: float

    def __post_init__(self) -> None:
        _check_positive(value=self.value)

    def __call__(self, step: float) -> float:
        """The temperature at this step, counted from zero."""
        _check_step(step)
        return self.value


@dataclass(frozen=True)
class _Annealed(ABC):
    """From one temperature to another, where it stays."""

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        _check_positive(start=self.start, end=self.end)
        if not is_number(self.steps) or not 1 <= self.steps < math.inf:
            raise ValueError(f"steps must be a number of at least 1, got {describe(self.steps)}")

    def __call__(self, step: float) -> float:
        """The temperature at this step, counted from zero; ``end`` from ``steps`` on."""
        _check_step(step)
        return self.end if step >= self.steps else self._between(step / self.steps)

    @abstractmethod
    def _between(self, progress: float) -> float:
        """The temperature at a progress in [0, 1)."""


@dataclass(frozen=True)
class Linear(_Annealed):
    r"""A straight line: :math:`\tau_t = a + (b - a)\, t / T` from a to b, and b after T steps.

    Arguments:
        start: a.
        end: b.
        steps: T.

    Example:
        >>> Linear(1.0, 0.5, steps=100)(50)
        0.75
    """

    def _between(self, progress: float) -> float:
        return self.start + (self.end - self.start) * progress


@dataclass(frozen=True)
class Exponential(_Annealed):
    r"""A straight line in :math:`\log \tau`: :math:`\tau_t = a\, (b / a)^{t / T}` from a to b, and b after T steps.

    Arguments:
        start: a.
        end: b.
        steps: T.

    Example:
        >>> round(Exponential(1.0, 0.01, steps=100)(50), 6)
        0.1
    """

    def _between(self, progress: float) -> float:
        return self.start * math.exp(progress * (math.log(self.end) - math.log(self.start)))


@dataclass(frozen=True)
class Cosine(_Annealed):
    r"""Half a cosine, flat at both ends: :math:`\tau_t = b + (a - b) (1 + \cos(\pi t / T)) / 2`, and b after T steps.

    Arguments:
        start: a.
        end: b.
        steps: T.

    Example:
        >>> Cosine(1.0, 0.5, steps=100)(50)
        0.75
    """

    def _between(self, progress: float) -> float:
        return self.start + (self.end - self.start) * math.sin(math.pi / 2 * progress) ** 2  # start exactly, at zero


class Scheduled(nn.Module):
    r"""A schedule and the number of steps taken; calling it returns the present temperature.

    Note:
        The temperature is a tensor, made anew by every :meth:`step`: a compiled model is not compiled again as it
        changes, and what was computed with it before keeps the old value. A CUDA graph that you capture yourself reads
        the old one, too, whose memory may serve something else by then: copy the temperature to a tensor of your own
        before each replay. The count is in the state dict. One module may be shared by several layers, which then count
        together.

    Arguments:
        schedule: a function from a step, counted from zero, to a positive number, such as :class:`Exponential`.

    Attributes:
        count: the number of steps taken, a 0-d integer buffer.

    Example:
        >>> tau = Scheduled(Linear(1.0, 0.5, steps=2))
        >>> tau.step()
        >>> tau(), tau.count
        (tensor(0.7500), tensor(1))
    """

    count: Tensor
    tau: Tensor

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        if not callable(schedule):
            raise TypeError(f"schedule must be a function of the step, got {describe(schedule)}; use Constant(0.5)")
        self.schedule = schedule
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("tau", torch.empty(()), persistent=False)
        self._set(0)

    def forward(self) -> Tensor:
        """The present temperature, a 0-d tensor of at least float32."""
        return self.tau

    def step(self) -> None:
        """Counts one step."""
        count = int(self.count) + 1
        with torch.inference_mode(False):
            self.count = torch.full_like(self.count, count)
        self._set(count)

    def _set(self, count: int) -> None:
        value = self.schedule(count)
        if not is_number(value) and not (isinstance(value, Tensor) and value.dim() == 0):
            raise TypeError(f"a schedule must return a number, got {describe(value)} at step {count}: {self.schedule}")
        check_range(f"the temperature of {self.schedule} at step {count}", value)
        dtype = torch.promote_types(self.tau.dtype, torch.float32)
        with torch.inference_mode(False):  # or the layer could not be trained afterwards
            self.tau = torch.full_like(self.tau, value, dtype=dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """After a change of dtype the temperature is rounded from the schedule, not from the dtype before."""
        count = None if self.count.is_meta else int(self.count)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if count is not None and not self.tau.is_meta:
            self._set(count)
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        if not self.count.is_meta:
            if self.tau.is_meta:  # which no state has: the count was assigned in place of one on the meta device
                self.tau = torch.empty_like(self.tau, device=self.count.device)
            self._set(int(self.count))

    def extra_repr(self) -> str:
        return f"{self.schedule}, count={'?' if self.count.is_meta else int(self.count)}"


class Learnable(nn.Module):
    r"""A temperature that is trained, between two bounds; calling it returns the present one.

    .. math:: \log \tau = \log l + \mathrm{sigmoid}(\theta) (\log h - \log l).

    Arguments:
        initial: :math:`\tau` to start from.
        low: the lower bound :math:`l > 0`.
        high: the upper bound :math:`h`.

    Example:
        >>> tau = Learnable(0.5, low=0.1, high=2.0)
        >>> tau()
        tensor(0.5000, grad_fn=...)
    """

    def __init__(self, initial: float, low: float = 0.05, high: float = 5.0) -> None:
        super().__init__()
        _check_positive(initial=initial, low=low, high=high)
        if not low < initial < high:
            raise ValueError(f"need low < initial < high, got low={low}, initial={initial} and high={high}")
        self.low, self.high = float(low), float(high)
        progress = math.log(initial / low) / math.log(high / low)
        self.logit = nn.Parameter(torch.tensor(math.log(progress) - math.log1p(-progress)))

    def forward(self) -> Tensor:
        """The present temperature, a 0-d tensor of at least float32 with a gradient."""
        low, high = math.log(self.low), math.log(self.high)
        log_tau = low + widen(self.logit).sigmoid() * (high - low)
        return log_tau.exp().clamp(self.low, self.high)  # which only rounding leaves

    def extra_repr(self) -> str:
        value = "?" if self.logit.is_meta else f"{self().item():g}"
        return f"low={self.low:g}, high={self.high:g}, value={value}"


def step(model: nn.Module) -> None:
    """Counts one step in every :class:`Scheduled` of a model, once each; call it after ``optimizer.step()``.

    Example:
        >>> tau = Scheduled(Exponential(1.0, 0.1, steps=1000))
        >>> step(nn.ModuleList([tau, nn.ModuleList([tau])]))
        >>> tau.count
        tensor(1)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"step counts the schedules of a model, an nn.Module, got {describe(model)}")
    for module in model.modules():
        if isinstance(module, Scheduled):
            module.step()


def _check_positive(**values: object) -> None:
    for name, value in values.items():
        if not is_number(value):
            raise TypeError(f"{name} must be a number, got {describe(value)}")
        check_range(name, float(value))


def _check_step(step: object) -> None:
    if not is_number(step):
        raise TypeError(f"step must be a number, got {describe(step)}")
    if not step >= 0:
        raise ValueError(f"steps are counted from zero, got step {step}")
