"""Layers for models of your own, and modules that return a distribution or a transform, to train its parameters."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Adagrad, Optimizer

from igr._bottleneck import Bottleneck, CategoricalBottleneck
from igr._checks import check_count, check_finite, check_range, describe, is_number
from igr._planar_flow import PlanarFlow
from igr.countable import CountableStickBreaking, evaluate

__all__ = ["CategoricalBottleneck", "Bottleneck", "PlanarFlow", "GrowingSticks"]


class GrowingSticks(nn.Module):
    r"""Locations and scales of countably many sticks, as parameters that are made when a sample first needs them.

    Calling it returns the :class:`~igr.countable.CountableStickBreaking` with the present parameters. They come in
    blocks, each new one as large as all before it; a block stays the same parameter for good, so that what an optimizer
    knows about it is kept. Sticks that no block holds yet have the values that new ones start from.

    Note:
        An optimizer knows the parameters that it was built with. :meth:`attach` it once, and every new block joins the
        group of the first one as it is made, so that its learning rate and its schedule hold for the new block as well.
        Blocks are made where gradients are recorded only: evaluation leaves the module as it is. A stick that no sample
        has reached gets a gradient of zero, which moves nothing, unless the optimizer decays weights. What lists the
        parameters once and for all, such as distributed training, needs :meth:`grow` before it.

    References:
        Section 3.2.

    Arguments:
        batch_shape: sticks of their own for each of these.
        loc: :math:`\mu` to start from: a number, or a function of indices ``(n,)`` that returns ``(*, n)``.
        scale: :math:`\sigma > 0` to start from, likewise; trained as :math:`\log \sigma`.
        block: the size of the first block.

    Example:
        >>> sticks = GrowingSticks(loc=-2.0)
        >>> optimizer = torch.optim.Adam(sticks.parameters(), lr=0.05)
        >>> sticks.attach(optimizer)
        >>> sample = sticks(temperature=0.5, precision=0.999).rsample((100,))
        >>> sample.rest.mean().backward()
        >>> optimizer.step()
        >>> sticks.num_sticks >= sample.z.shape[-1] > 32
        True
    """

    def __init__(
        self,
        batch_shape: tuple[int, ...] = (),
        *,
        loc: float | Callable[[Tensor], Tensor] = 0.0,
        scale: float | Callable[[Tensor], Tensor] = 1.0,
        block: int = 32,
    ) -> None:
        super().__init__()
        if not isinstance(batch_shape, (tuple, list)):
            raise TypeError(f"batch_shape must be a tuple, such as (4,), got {describe(batch_shape)}")
        self.batch_shape, self.block = tuple(batch_shape), check_count("block", block)
        self._start = {"loc": loc, "log_scale": scale}
        self._optimizers: WeakSet[Optimizer] = WeakSet()
        self.grow(block)

    @property
    def num_sticks(self) -> int:
        """How many sticks the blocks hold."""
        return sum(block.shape[-1] for block in self._blocks("loc"))

    def loc(self, k: Tensor) -> Tensor:
        r""":math:`\mu` at the indices ``k``, shape ``batch_shape + k.shape``."""
        return self._values("loc", k)

    def scale(self, k: Tensor) -> Tensor:
        r""":math:`\sigma` at the indices ``k``, shape ``batch_shape + k.shape``."""
        return self._values("log_scale", k).exp()

    def forward(self, temperature: float | Tensor, precision: float, **options: Any) -> CountableStickBreaking:
        """The distribution with the present parameters; ``options`` are its other arguments."""
        return CountableStickBreaking(self.loc, self.scale, temperature, precision, **options)

    def grow(self, num_sticks: int) -> None:
        """Makes the blocks that at least this many sticks need; those that are there stay as they are."""
        while (start := self.num_sticks) < num_sticks:
            fresh = {kind: self._initial(kind, start, 2 * start or self.block) for kind in self._start}
            for kind, values in fresh.items():
                blocks = self._blocks(kind)
                trained = blocks[0].requires_grad if blocks else True
                self.register_parameter(f"{kind}_{len(blocks)}", nn.Parameter(values, trained))
        for optimizer in self._optimizers:
            self._join(optimizer)

    def attach(self, optimizer: Optimizer) -> None:
        """Has every block that the optimizer does not hold, now and later, join the group of the first block.

        The module does not keep the optimizer alive; copies of the module are not attached to it.

        Raises:
            TypeError: an optimizer that cannot take new parameters.
            ValueError: an optimizer that does not hold the first block.
        """
        if isinstance(optimizer, LBFGS) or not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"a {type(optimizer).__name__} cannot take new parameters; grow to as many sticks as are to be trained "
                "and build the optimizer after that"
            )
        if all(_group_of(self._blocks(kind)[0], optimizer) is None for kind in self._start):
            raise ValueError("the optimizer does not hold the first block; build it with the parameters of this module")
        self._optimizers.add(optimizer)
        self._join(optimizer)

    def _blocks(self, kind: str) -> list[nn.Parameter]:
        return [self.get_parameter(name) for name in self._parameters if name.startswith(f"{kind}_")]

    def _values(self, kind: str, k: Tensor) -> Tensor:
        low, high = (int(x) for x in k.aminmax()) if k.numel() else (0, -1)
        if low < 0:
            raise IndexError(f"sticks are counted from 0, got index {low}")
        trained = torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters())
        if high >= self.num_sticks and trained:
            if not self._optimizers:
                warnings.warn(
                    f"sticks from {self.num_sticks} on are new, and no optimizer trains them: attach it, or grow "
                    "before it is built",
                    stacklevel=3,
                )
            self.grow(high + 1)
        values: list[Tensor] = [*self._blocks(kind)]
        if high >= self.num_sticks:
            values.append(self._initial(kind, self.num_sticks, high + 1))
        return torch.cat(values, -1)[..., k.to(values[0].device)]

    @torch.no_grad()
    def _initial(self, kind: str, start: int, stop: int) -> Tensor:
        """What sticks start from, with the dtype and device of the first block."""
        like = next(self.parameters(), torch.empty(0))
        name, value = kind.removeprefix("log_"), self._start[kind]
        if not callable(value) and not is_number(value):
            raise TypeError(f"{name} must be a number or a function of indices, got {describe(value)}")
        index = torch.arange(start, stop, device=like.device)
        given = evaluate(name, value, index) if callable(value) else like.new_full((1,), value)
        if name == "loc":
            check_finite(name, given)
        else:
            check_range(name, given)
            given = given.log()
        return given.to(like).expand(*self.batch_shape, stop - start).clone()

    def _join(self, optimizer: Optimizer) -> None:
        """Puts missing blocks into the group of the first one, where learning-rate schedules reach them.

        They come after the block before them: optimizers save and load their state in the order of ``parameters()``.
        """
        own = {id(parameter) for parameter in self.parameters()}
        for name, parameter in self.named_parameters():
            kind = name.rpartition("_")[0]
            group = _group_of(self._blocks(kind)[0], optimizer)
            if group is None or _group_of(parameter, optimizer) is not None:
                continue
            place = max(i for i, p in enumerate(group["params"]) if id(p) in own) + 1
            group["params"].insert(place, parameter)
            if "param_names" in group:
                prefix = group["param_names"][place - 1].rpartition(".")
                group["param_names"].insert(place, "".join(prefix[:2]) + name)
            if isinstance(optimizer, Adagrad):  # whose older versions make their state only when they are built
                options = {key: group[key] for key in optimizer.defaults}
                optimizer.state[parameter] = Adagrad([parameter], **options).state[parameter]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Grows to the size of the saved module; what that one did not hold starts afresh."""
        saved = [x for key, x in state_dict.items() if key.startswith(f"{prefix}loc_")]
        if saved:
            self.grow(sum(x.shape[-1] for x in saved))
        for kind in self._start if saved else ():
            sizes = [block.shape[-1] for block in self._blocks(kind)]
            for j, values in enumerate(self._initial(kind, 0, self.num_sticks).split(sizes, -1)):
                if j >= len(saved):
                    state_dict[f"{prefix}{kind}_{j}"] = values
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_optimizers"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._optimizers = WeakSet()

    def extra_repr(self) -> str:
        return f"num_sticks={self.num_sticks}, batch_shape={self.batch_shape}, block={self.block}"


def _group_of(parameter: nn.Parameter, optimizer: Optimizer) -> dict[str, Any] | None:
    return next((g for g in optimizer.param_groups if any(p is parameter for p in g["params"])), None)
