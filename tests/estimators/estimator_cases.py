"""Every estimator, once: its keywords, what is known of it, and the kinds of q that it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from exact import FAMILIES, Setting, Tensors, bound, expectation
from torch import Tensor

from igr import estimators
from igr._draws import NoiseSource


@dataclass(frozen=True)
class Case:
    """An estimator with its keywords, and what is known of it."""

    name: str
    keywords: Callable[[Setting], dict[str, Any]] = field(default=lambda s: {})
    unbiased: bool = False
    hard: bool = True  # the value is an estimate of E[f(D)]
    relaxed: bool = False  # f is shown relaxed samples
    needs: tuple[str, ...] = ("known",)  # kinds of q, one of which is enough
    least: int = 1  # samples

    def __call__(self, s: Setting, keywords: dict[str, Any] | None = None, **options: Any) -> Any:
        keywords = self.keywords(s) if keywords is None else keywords
        return getattr(estimators, self.name)(s.q, s.f, **keywords, **options)

    def takes(self, family: str, K: int = 2) -> bool:
        return not {*self.needs}.isdisjoint(FAMILIES[family].kinds) and (self.name != "disarm" or K == 2)

    def target(self, s: Setting, num_samples: int) -> Tensor:
        """The exact expectation of the value, (*); its gradient is the expectation of the gradient."""
        probs = s.family.probs(s.q_parameters)
        return bound(probs, s.f_one_hot, num_samples) if self.name == "vimco" else expectation(probs, s.f_one_hot)


def _running_mean(s: Setting) -> dict[str, Any]:
    return {"baseline": estimators.RunningMean()}


def _prior(s: Setting) -> dict[str, Any]:
    make = {"logits": torch.zeros_like, "loc": torch.zeros_like, "scale": torch.ones_like}
    return {"prior": s.family.build({name: make[name](p).detach() for name, p in s.q_parameters.items()})}


class ControlVariate(torch.nn.Module):
    """A small network of relaxed samples with two parameters of its own."""

    def __init__(self, s: Setting) -> None:
        super().__init__()
        like, self.binary = next(iter(s.q_parameters.values())), s.family.binary
        self.weight, self.shift = (torch.nn.Parameter(torch.tensor(x, dtype=like.dtype)) for x in (1.3, -0.6))

    def forward(self, z: Tensor) -> Tensor:
        z = torch.stack([z, 1 - z], -1) if self.binary else z
        steps = torch.arange(z.shape[-1], dtype=z.dtype) - 0.5
        wave = torch.tanh((self.weight * z.square() * steps).sum((-2, -1)) + self.shift)
        return wave + 0.3 * (self.shift * z[..., 0]).sum(-1)


def _network_variate(s: Setting) -> dict[str, Any]:
    return {"control_variate": ControlVariate(s)}


CONDITIONAL = ("gumbel", "gaussian")
CASES: dict[str, Case] = {
    "score_function": Case("score_function", unbiased=True),
    "score_function, given": Case("score_function", lambda s: {"baseline": torch.tensor(0.7)}, unbiased=True),
    "score_function, running": Case("score_function", _running_mean, unbiased=True),
    "rloo": Case("rloo", unbiased=True, least=2),
    "vimco": Case("vimco", unbiased=True, least=2),
    "uspg": Case("uspg", unbiased=True, least=2),
    "disarm": Case("disarm", unbiased=True),
    "rebar": Case("rebar", unbiased=True, relaxed=True, needs=CONDITIONAL),
    "rebar, independent": Case(
        "rebar", lambda s: {"scale": 0.8, "coupled": False}, unbiased=True, relaxed=True, needs=CONDITIONAL
    ),
    "relax": Case("relax", unbiased=True, relaxed=True, needs=CONDITIONAL),
    "relax, network": Case("relax", _network_variate, unbiased=True, needs=CONDITIONAL),
    "relax, independent": Case(
        "relax", lambda s: {**_network_variate(s), "coupled": False}, unbiased=True, needs=CONDITIONAL
    ),
    "reparameterized": Case("reparameterized", hard=False, relaxed=True, needs=("gumbel", "path")),
    "sticking_the_landing": Case("sticking_the_landing", _prior, hard=False, relaxed=True, needs=("path",)),
    "straight_through": Case("straight_through"),
    "straight_through, temperature": Case("straight_through", lambda s: {"temperature": 0.5}),
    "st_relaxed": Case("st_relaxed", needs=("gumbel", "path")),
    "gumbel_rao": Case("gumbel_rao", lambda s: {"num_redraws": 3}, needs=("gumbel",)),
    "igr_rao": Case("igr_rao", lambda s: {"num_redraws": 3}, needs=("gaussian",)),
    "gapped_straight_through": Case("gapped_straight_through", lambda s: {"gap": 0.8, "temperature": 0.7}),
    "reinmax": Case("reinmax", lambda s: {"temperature": 1.2}),
}
UNBIASED = [name for name, case in CASES.items() if case.unbiased]
PAIRS = [(name, family) for name, case in CASES.items() for family in FAMILIES if case.takes(family)]
MAIN = [(name, family) for name, family in PAIRS if family in ("gs", "igr")]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gradients(
    case: Case,
    s: Setting,
    row: int | None = None,
    num_samples: int = 4,
    seed: int = 5,
    keywords: dict[str, Any] | None = None,
) -> Tensors:
    surrogate = case(s, keywords, num_samples=num_samples, generator=generator(seed)).surrogate
    total = surrogate.sum() if row is None else surrogate[row]
    return dict(zip(s.leaves, torch.autograd.grad(total, [*s.leaves.values()]), strict=True))


class Supply(NoiseSource):
    """Noise drawn beforehand, and the shapes that were asked for; slices of the first axis, if so told."""

    def __init__(self, seed: int = 1, part: slice = slice(None), of: int = 0) -> None:
        self.source, self.part, self.of, self.shapes = generator(seed), part, of, []

    def _shape(self, shape: Any) -> tuple[int, ...]:
        self.shapes.append(tuple(shape))
        return (self.of or shape[0], *shape[1:])

    def gaussian(self, shape: Any, like: Tensor) -> Tensor:
        return torch.randn(self._shape(shape), dtype=like.dtype, generator=self.source)[self.part]

    def gumbel(self, like: Tensor) -> Tensor:
        x = torch.empty(self._shape(like.shape), dtype=like.dtype).exponential_(generator=self.source)
        return -x.log()[self.part]
