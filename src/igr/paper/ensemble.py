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
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from igr.paper.estimated import estimated_loss
from igr.paper.evaluate import elbo_continuous
from igr.paper.models import EnsembleVae, members_axis
from igr.paper.noise import BLOCK, BlockNoise, draw
from igr.paper.objectives import objective, relaxed_terms
from igr.paper.priors import prior_of
from igr.paper.specs import Vae
from igr.paper.streams import generator_of

__all__ = ["Ensemble"]

ADAM_EPS = 1e-7  # as published
ROWS = {"cpu": 2_000, "cuda": 50_000}  # images times members that are evaluated at once
WARM_UP = 3  # steps before a graph is captured, whose traces are removed

Images = NDArray[np.uint8]


class Ensemble:
    """The members of a cell in training: parameters, optimizer and place in the schedule.

    Attributes:
        vae: the parameters.
        epoch: whole epochs done.
        step: steps done of the next one.
        failed: for each member that diverged, the epoch in which its loss stopped being finite.

    Arguments:
        cell: what to train.
        images: the training images, ``(n, D)`` bytes.
        device: where.
        dtype: of parameters and arithmetic.
    """

    def __init__(
        self, cell: Vae, images: Images, device: torch.device, dtype: torch.dtype = torch.float32, **sizes: int
    ) -> None:
        self.cell, self.device, self.dtype = cell, device, dtype
        self.members = cell.members()
        self.vae = EnsembleVae(
            cell, [m.seed for m in self.members], num_pixels=images.shape[1], dtype=dtype, **sizes
        ).to(device)
        self.tau = torch.tensor([m.tau for m in self.members], dtype=dtype, device=device).view(-1, 1, 1, 1)
        priors = [m.prior_temperature for m in self.members]
        self.prior = prior_of(cell, priors, self.vae.shape[1], dtype, device)
        self.images = torch.from_numpy(images).to(device)
        self.steps = len(images) // cell.batch_size
        if self.steps == 0:
            raise ValueError(f"{len(images)} images are less than one batch of {cell.batch_size}")
        self.epoch = self.step = 0
        self.failed: dict[int, int] = {}
        self.total = torch.zeros(len(self.members), dtype=dtype, device=device)
        self.optimizer = _adam(self.vae, cell.learning_rate, device)
        R, B = len(cell.seeds), cell.batch_size
        self._owner = torch.tensor([cell.seeds.index(m.seed) for m in self.members], device=device)
        self._order = torch.zeros(R, self.steps, B, dtype=torch.int64, device=device)
        self._at = torch.zeros(1, dtype=torch.int64, device=device)  # the step, where a graph can read it
        self._noise = BlockNoise(cell.seeds, self._owner, self._at)
        self._shuffled = self._block = -1  # which order and noise are in place
        self._kept = [p.detach().clone() for p in self.vae.parameters()]  # the last finite state, for members that fail
        self._graph: torch.cuda.CUDAGraph | None = None

    @property
    def done(self) -> bool:
        """Whether all epochs are."""
        return self.epoch == self.cell.epochs

    @property
    def alive(self) -> list[int]:
        """The members that have not failed."""
        return [i for i in range(len(self.members)) if i not in self.failed]

    @property
    def has_relaxed_bound(self) -> bool:
        """Whether there is a relaxed model with a continuous bound: GS needs a prior for it, estimators have none."""
        relaxed = self.cell.estimator == "reparameterized"
        return relaxed and (self.cell.method != "gs" or self.prior.temperature is not None)

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
        losses[list(self.failed)] = math.nan  # whatever came of steps from where they are kept
        self._freeze(losses)
        self.total.zero_()
        return losses.cpu()

    @torch.no_grad()
    def held_out(self, images: Tensor) -> Tensor | None:
        """The continuous evidence bound of every member, ``(E,)``, the mean over images with one sample each."""
        if not self.has_relaxed_bound:
            return None
        total = torch.zeros(len(self.members), dtype=torch.float64, device=self.device)
        size = max(1, ROWS[self.device.type] // len(self.members))
        generators = [generator_of(seed, "held-out", self.epoch, device=self.device) for seed in self.cell.seeds]
        for start in range(0, len(images), size):
            x = self.pixels(images[start : start + size]).expand(len(self.members), -1, -1)
            shape = (1, x.shape[1], *self.vae.noise_shape)
            noise = torch.stack([self.draw_noise(shape, each) for each in generators], 1)  # (1, R, B, N, K)
            terms = relaxed_terms(self.vae, x, self.tau, self.prior, noise.index_select(1, self._owner))
            total += elbo_continuous(*terms).sum(-1)
        return (total / len(images)).cpu()

    def pixels(self, images: Tensor) -> Tensor:
        """Bytes as numbers in [0, 1]: grey levels are divided by 255, binary images are 0 and 1 already."""
        x = images.to(self.dtype)
        return x / 255 if self.vae.grey else x

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that is needed to go on: tensors, and numbers that JSON can hold."""
        tensors = {"total": self.total}
        for (name, p), kept in zip(self.vae.named_parameters(), self._kept, strict=True):
            tensors[f"parameter.{name}"] = p.detach()
            tensors |= {f"{key}.{name}": value for key, value in self.optimizer.state[p].items()}
            if self.step or self.failed:  # between epochs it is what the parameters are, but for members that failed
                tensors[f"kept.{name}"] = kept
        return tensors, {"epoch": self.epoch, "step": self.step, "failed": sorted(self.failed.items())}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Goes back to a saved state."""
        self.failed = {int(member): int(epoch) for member, epoch in numbers["failed"]}
        self.total.copy_(tensors["total"])
        for (name, p), kept in zip(self.vae.named_parameters(), self._kept, strict=True):
            p.copy_(tensors[f"parameter.{name}"])
            for key, value in self.optimizer.state[p].items():
                value.copy_(tensors[f"{key}.{name}"])
            kept.copy_(tensors.get(f"kept.{name}", p))
        self.epoch, self.step = int(numbers["epoch"]), int(numbers["step"])
        self._at.fill_(self.step)
        self._shuffled = self._block = -1

    def _take_step(self) -> None:
        if self.device.type != "cuda":
            self._step()
            return
        if self._graph is None:
            self._capture()
        assert self._graph is not None
        self._graph.replay()

    def _step(self) -> None:
        """One step of every member; reads and writes fixed tensors only, so that it can be replayed."""
        index = self._order.index_select(1, self._at).flatten()
        x = self.pixels(self.images.index_select(0, index)).view(len(self.cell.seeds), self.cell.batch_size, -1)
        if len(self.cell.seeds) < len(self.members):
            x = x.index_select(0, self._owner)
        loss = self._losses(x).mean(-1)  # (E,)
        self.optimizer.zero_grad(set_to_none=True)
        loss.sum().backward()
        self.optimizer.step()
        self.total += loss.detach()
        self._at += 1

    def _losses(self, x: Tensor) -> Tensor:
        """What is minimised, for each image, ``(E, B)``."""
        self._noise.begin_step()
        if self.cell.estimator != "reparameterized":
            return estimated_loss(self.vae, x, self.tau, self._noise)
        shape = (self.cell.num_samples, *x.shape[:2], *self.vae.noise_shape)
        noise = draw(self.vae.noise_kind, shape, x, self._noise)
        return -objective(self.vae, x, self.tau, self.prior, noise)

    def _capture(self) -> None:
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
        self.optimizer.zero_grad(set_to_none=True)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._step()
        self.load(tensors, numbers)
        self._shuffled, self._block = shuffled, block

    def _shuffle(self) -> None:
        """The order of the images in this epoch, for each seed; those that fill no batch are left out, this time."""
        used = self.steps * self.cell.batch_size
        for r, seed in enumerate(self.cell.seeds):
            order = torch.randperm(len(self.images), generator=generator_of(seed, "order", self.epoch))
            self._order[r].copy_(order[:used].view(self.steps, -1))
        self._at.fill_(self.step)
        self._shuffled, self._block = self.epoch, -1

    def draw_noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Standard normal noise, or standard Gumbel noise for GS."""
        return draw(self.vae.noise_kind, shape, self.total, generator)

    @torch.no_grad()
    def _freeze(self, losses: Tensor) -> None:
        """Members that diverged, by their loss or their parameters, are put back to where the epoch began, for good."""
        fine = losses.isfinite()
        for p in self.vae.parameters():
            axis = members_axis(p)
            fine &= p.isfinite().movedim(axis, 0).flatten(1).all(1)
        for i, each in enumerate(fine.tolist()):
            if not each:
                self.failed.setdefault(i, self.epoch)
        rows = torch.tensor(sorted(self.failed), dtype=torch.int64, device=self.device)
        for p, kept in zip(self.vae.parameters(), self._kept, strict=True):
            if self.failed:
                axis = members_axis(p)
                p.index_copy_(axis, rows, kept.index_select(axis, rows))
            kept.copy_(p)


def _adam(vae: EnsembleVae, learning_rate: float, device: torch.device) -> torch.optim.Adam:
    """Adam, its state made at once, so that it can be loaded and captured before the first step."""
    optimizer = torch.optim.Adam(
        vae.parameters(), learning_rate, eps=ADAM_EPS, fused=True, capturable=device.type == "cuda"
    )
    for p in vae.parameters():
        step = torch.zeros((), dtype=torch.float32, device=device)
        optimizer.state[p] = {"step": step, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
    return optimizer
