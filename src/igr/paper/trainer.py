r"""The trainer: all members of a cell take each step together.

Parameters have a leading axis E and temperatures the shape ``(E, 1, 1, 1)``; the sum of the members' losses has, for
each, the gradient of its own loss alone, and Adam acts on every number by itself. So a member is trained as it would be
alone. Each seed has streams of its own (:mod:`igr.paper.streams`): ``weights``; ``order/<epoch>``, the permutation of
the images; and ``noise/<epoch>/<block>`` for every block of steps. Members that share a seed and differ in temperature
start from the same weights and see the same images and noise, which makes temperatures comparable; different seeds
share nothing. On CUDA a step is captured once as a graph, and replayed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from igr import kernels
from igr.paper.compiled import fast
from igr.paper.layers import Adam, Factors
from igr.paper.measure import Budget, Job, Pictures
from igr.paper.models import members_axis
from igr.paper.noise import BLOCK, BlockNoise
from igr.paper.products import products_in
from igr.paper.streams import generator_of
from igr.paper.trained import DIFFERENTIATED_TWICE, Trained

__all__ = ["ROWS", "Trainer"]

ROWS = {"cpu": 2_000, "cuda": 50_000}  # images times members that are evaluated at once
WARM_UP = 3  # steps before a graph is captured, whose traces are removed

Images = NDArray[np.uint8]


class Trainer(ABC):
    """The members of a cell in training: parameters, optimizer and place in the schedule.

    Attributes:
        model: the parameters, each with an axis for the members.
        epoch: whole epochs done.
        step: steps done of the next one.
        failed: for each member that diverged, the epoch in which its loss, parameters or means of Adam stopped being
            finite.

    Arguments:
        cell: what to train.
        model: the members as they start.
        images: the training images, ``(n, D)`` bytes.
        device: where.
        dtype: of parameters and arithmetic.
    """

    grey = False
    """Whether images have 256 levels; others are 0 and 1."""
    precision = "tf32"
    """Of products in float32, where kernels are used, as Triton names it."""

    def __init__(
        self, cell: Trained, model: nn.Module, images: Images, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.cell, self.device, self.dtype = cell, device, dtype
        self.members = cell.members()
        self.model = model.to(device)
        self.images = torch.from_numpy(images).to(device)
        self.steps = len(images) // cell.batch_size
        if self.steps == 0:
            raise ValueError(f"{len(images)} images are less than one batch of {cell.batch_size}")
        self.epoch = self.step = 0
        self.failed: dict[int, int] = {}
        self.total = torch.zeros(len(self.members), dtype=dtype, device=device)
        factors = Factors(self.precision) if self._fuses() else None
        self.model.factors = factors  # type: ignore[assignment]
        rate = cell.learning_rate_at(0)
        self.optimizer = Adam(model, rate, cell.learning_rate_at(1) != rate, factors)
        R, B = len(cell.seeds), cell.batch_size
        self._owner = torch.tensor([cell.seeds.index(m.seed) for m in self.members], device=device)
        self._order = torch.zeros(R, self.steps, B, dtype=torch.int64, device=device)
        self._at = torch.zeros(1, dtype=torch.int64, device=device)  # the step, where a graph can read it
        self._noise = BlockNoise(cell.seeds, self._owner, self._at, self.steps)
        self._shuffled = self._block = -1  # which order and noise are in place
        self._upcoming = -1, self._order  # an epoch and its order, made beforehand
        self._kept = [p.detach().clone() for p in model.parameters()]  # the last finite state, for members that fail
        self._graph: torch.cuda.CUDAGraph | None = None

    @classmethod
    @abstractmethod
    def budget(cls) -> Budget:
        """What to spend on metrics, in a whole run."""

    @abstractmethod
    def _losses(self, x: Tensor) -> Tensor:
        """What is minimised, for each image, ``(E, B)``, with noise from ``self._noise``."""

    @abstractmethod
    def held_out(self, images: Tensor) -> dict[str, Tensor]:
        """Points of curves: means over some images, ``(E,)``, by their names."""

    @abstractmethod
    def jobs(self, rows: Sequence[int], images: Images, split: str, budget: Any, full: bool) -> list[Job]:
        """What is measured of some members on the images of a split; more if ``full``."""

    @abstractmethod
    def pictures(self, images: Images, row: int, budget: Any) -> Pictures:
        """What one member makes of some images, by the names of the files."""

    def learned(self, i: int) -> dict[str, Any]:
        """What else is to be recorded of a member."""
        return {}

    @property
    def done(self) -> bool:
        """Whether all epochs are."""
        return self.epoch == self.cell.epochs

    @property
    def alive(self) -> list[int]:
        """The members that have not failed."""
        return [i for i in range(len(self.members)) if i not in self.failed]

    def run_epoch(self, stop: Callable[[], bool] = lambda: False) -> Tensor | None:
        """Goes on to the end of the epoch, unless asked to stop after a step.

        Returns:
            The mean loss of the epoch, ``(E,)``, or nothing if it was stopped; the next call then goes on.
        """
        if self._shuffled != self.epoch:
            self._shuffle()
        while self.step < self.steps:
            if self._block != self.step // BLOCK:
                self._block = self.step // BLOCK
                self._noise.seek(self.epoch, self._block)
            self._take_step()
            self.step += 1
            if self.step < self.steps and stop():
                return None
        losses = self.total / self.steps
        self.epoch, self.step = self.epoch + 1, 0
        if self.device.type == "cuda" and not self.done:
            self._upcoming = self.epoch, self._order_of(self.epoch)  # while the device is still busy
        losses[list(self.failed)] = math.nan  # whatever came of steps from where they are kept
        self._freeze(losses)
        self.total.zero_()
        return losses.cpu()

    def pixels(self, images: Tensor) -> Tensor:
        """Bytes as numbers in [0, 1]: grey levels are divided by 255, binary images are 0 and 1 already."""
        return _pixels(images, self.grey, self.dtype)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that is needed to go on: tensors, and numbers that JSON can hold."""
        tensors = {"total": self.total}
        for (name, p), kept in zip(self.model.named_parameters(), self._kept, strict=True):
            tensors[f"parameter.{name}"] = p.detach()
            tensors |= {f"{key}.{name}": value for key, value in self.optimizer.state[p].items()}
            if self.step or self.failed:  # between epochs it is what the parameters are, but for members that failed
                tensors[f"kept.{name}"] = kept
        return tensors, {"epoch": self.epoch, "step": self.step, "failed": sorted(self.failed.items())}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Goes back to a saved state."""

        def put(target: Tensor, name: str) -> None:
            if tensors[name].shape != target.shape:
                raise ValueError(f"{name} has shape {tuple(tensors[name].shape)}, expected {tuple(target.shape)}")
            target.copy_(tensors[name])

        self.failed = {int(member): int(epoch) for member, epoch in numbers["failed"]}
        put(self.total, "total")
        for (name, p), kept in zip(self.model.named_parameters(), self._kept, strict=True):
            put(p, f"parameter.{name}")
            for key, value in self.optimizer.state[p].items():
                put(value, f"{key}.{name}")
            put(kept, f"kept.{name}" if f"kept.{name}" in tensors else f"parameter.{name}")
        self.epoch, self.step = int(numbers["epoch"]), int(numbers["step"])
        self._at.fill_(self.step)
        self._shuffled = self._block = -1

    def _fuses(self) -> bool:
        """Whether layers are kernels that leave factors of their gradients, which cannot be differentiated again."""
        return self._has_kernels and getattr(self.cell, "estimator", None) not in DIFFERENTIATED_TWICE

    @property
    def _has_kernels(self) -> bool:
        return self.dtype == torch.float32 and kernels.usable(self.total)

    @property
    def products(self) -> str:
        """The precision of matrix products in training, by kernels of ours or torch's own."""
        return self.precision if self._has_kernels else str(self.dtype).removeprefix("torch.")

    def _take_step(self) -> None:
        self.optimizer.set_rate(self.cell.learning_rate_at(self.epoch * self.steps + self.step))
        if self.device.type != "cuda":
            self._step()
            return
        with torch.cuda.device(self.device):  # which need not be the current one
            if self._graph is None:
                self._graph = self._capture()
            self._graph.replay()

    def _step(self) -> None:
        """One step of every member; reads and writes fixed tensors only, so that it can be replayed."""
        self._noise.begin_step()
        with products_in("high" if self.products == "tf32" else None):
            losses = self._losses(self._batch())  # (E, B)
            self.optimizer.backward(losses)
        self.total += losses.detach().mean(-1)
        self._at += 1
        self.optimizer.step()

    def _batch(self) -> Tensor:
        """The images of the step, ``(E, B, D)``, in [0, 1]."""
        return fast(_images_at, self.total)(self.images, self._order, self._at, self._owner, self.grey, self.dtype)

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Warms up and captures a step, then puts everything back to where it was."""
        tensors, numbers = self.state()
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        shuffled, block = self._shuffled, self._block
        self._at.fill_(0)
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(min(WARM_UP, self.steps)):
                self._step()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):  # torch's own stream would be of whatever device was first
            self._step()
        self.load(tensors, numbers)
        self._shuffled, self._block = shuffled, block
        return graph

    def _order_of(self, epoch: int) -> Tensor:
        """The order of the images in an epoch, for each seed; those that fill no batch are left out, this time."""
        used = self.steps * self.cell.batch_size
        generators = [generator_of(seed, "order", epoch) for seed in self.cell.seeds]
        orders = [torch.randperm(len(self.images), generator=each)[:used] for each in generators]
        return torch.stack(orders).view(self._order.shape)

    def _shuffle(self) -> None:
        """Puts the order of this epoch in place."""
        epoch, order = self._upcoming
        self._order.copy_(order if epoch == self.epoch else self._order_of(self.epoch))
        self._at.fill_(self.step)
        self._shuffled, self._block = self.epoch, -1

    @torch.no_grad()
    def _freeze(self, losses: Tensor) -> None:
        """Members that diverged, by loss, parameters or Adam's means, are put back to where the epoch began."""
        fine = losses.isfinite()
        for p in self.model.parameters():
            axis = members_axis(p)
            means = [value for value in self.optimizer.state[p].values() if value.shape == p.shape]
            for each in (p, *means):  # where means overflow, p stands still
                fine &= each.isfinite().movedim(axis, 0).flatten(1).all(1)
        for i, each in enumerate(fine.tolist()):
            if not each:
                self.failed.setdefault(i, self.epoch)
        rows = torch.tensor(sorted(self.failed), dtype=torch.int64, device=self.device)
        for p, kept in zip(self.model.parameters(), self._kept, strict=True):
            if self.failed:
                axis = members_axis(p)
                p.index_copy_(axis, rows, kept.index_select(axis, rows))
            kept.copy_(p)


def _images_at(images: Tensor, order: Tensor, at: Tensor, owner: Tensor, grey: bool, dtype: torch.dtype) -> Tensor:
    """The images whose turn it is in each seed's order, for each member, ``(E, B, D)``."""
    now = order.index_select(1, at).squeeze(1)  # (R, B)
    x = _pixels(images[now], grey, dtype)
    return x.index_select(0, owner) if len(now) < len(owner) else x


def _pixels(images: Tensor, grey: bool, dtype: torch.dtype) -> Tensor:
    x = images.to(dtype)
    return x / 255 if grey else x
