"""Every transform and every distribution, once. A new class gets every property by adding one line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributions import (
    ComposeTransform,
    Gamma,
    Laplace,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
    StickBreakingTransform,
    StudentT,
    Transform,
)

from igr.distributions import (
    BinaryConcrete,
    GumbelSoftmax,
    InvertibleGaussian,
    InvertibleReparameterization,
    Relaxation,
)
from igr.transforms import Planar, SoftmaxPlusPlus, StickBreaking, VertexInterpolation

# every K with every tau, every batch shape with each of both
SETTINGS = [
    (K, tau, [(), (4,), (2, 3)][(i + j) % 3])
    for i, K in enumerate((2, 3, 10))
    for j, tau in enumerate((1.0, 0.1, 0.01))
]


@dataclass
class Setting:
    """K, τ and a batch shape, and random parameters for them, all leaves in one list."""

    K: int
    tau: float
    batch: tuple[int, ...]
    device: str = "cpu"
    parameters: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._generator = torch.Generator().manual_seed(7 * self.K + len(self.batch))

    def real(self, *shape: int, batch: bool = True) -> Tensor:
        return self._parameter(
            torch.randn((*self.batch, *shape) if batch else shape, dtype=torch.float64, generator=self._generator)
        )

    def positive(self, *shape: int) -> Tensor:
        return self._parameter(torch.rand((*self.batch, *shape), dtype=torch.float64, generator=self._generator) + 0.5)

    def _parameter(self, x: Tensor) -> Tensor:
        self.parameters.append(x.to(self.device).requires_grad_())
        return self.parameters[-1]

    def zeros(self) -> Tensor:
        return torch.zeros(self.K - 1, dtype=torch.float64, device=self.device)

    def per_row(self) -> Tensor:
        rows = torch.rand((*self.batch, 1), dtype=torch.float64, generator=self._generator)
        return (self.tau * (0.5 + rows / 2)).to(self.device)

    def planar(self) -> Planar:
        n = self.K - 1
        return Planar(self.real(n, batch=False), self.real(n, batch=False), self.real(batch=False))

    def normal(self) -> tuple[Tensor, Tensor]:
        return self.real(self.K - 1), self.positive(self.K - 1)


TRANSFORMS: dict[str, Callable[[Setting], Transform]] = {
    "SoftmaxPlusPlus": lambda s: SoftmaxPlusPlus(s.tau),
    "SoftmaxPlusPlus, delta": lambda s: SoftmaxPlusPlus(s.tau, delta=0.3),
    "SoftmaxPlusPlus, per row": lambda s: SoftmaxPlusPlus(s.per_row(), delta=s.per_row()),
    "VertexInterpolation": lambda s: VertexInterpolation(s.tau),
    "VertexInterpolation, per row": lambda s: VertexInterpolation(s.per_row()),
    "StickBreaking": lambda s: StickBreaking(),
    "StickBreaking, literal": lambda s: StickBreaking(leftover=False),
    "Planar": lambda s: s.planar(),
    "Planar, nested": lambda s: ComposeTransform([s.planar(), s.planar()]),
    "StickBreaking, SoftmaxPlusPlus": lambda s: ComposeTransform([StickBreaking(), SoftmaxPlusPlus(max(s.tau, 0.1))]),
    "Planar, SoftmaxPlusPlus": lambda s: ComposeTransform([s.planar(), SoftmaxPlusPlus(s.tau)]),
}

# a distribution, and one of the same kind at which its KL is a closed form (or None)
Pair = tuple[Relaxation, Relaxation | None]


def _igr(s: Setting, **options: object) -> Pair:
    return (
        InvertibleGaussian(*s.normal(), s.tau, **options),  # type: ignore[arg-type]
        InvertibleGaussian(s.zeros(), 1.0, s.tau, **options),  # type: ignore[arg-type]
    )


def _igr_i_rescaled(s: Setting) -> Pair:
    return (
        InvertibleGaussian(*s.normal(), s.tau, delta=0.4),
        InvertibleGaussian(s.zeros(), 1.0, 1.7 * s.tau, delta=1.3),
    )


def _igr_i_per_row(s: Setting) -> Pair:
    return (
        InvertibleGaussian(*s.normal(), s.per_row()),
        InvertibleGaussian(s.zeros(), 1.0, s.per_row()),
    )


def _vertices(s: Setting) -> Pair:
    g = VertexInterpolation(s.tau)
    return (
        InvertibleReparameterization(Normal(*s.normal()), g),
        InvertibleReparameterization(Normal(s.zeros(), s.zeros() + 1), g),
    )


def _full_covariance(s: Setting) -> Pair:
    n = s.K - 1
    tril = (s.zeros() + 1).diag() + 0.3 * torch.ones(n, n, dtype=torch.float64, device=s.device).tril(-1)
    q = InvertibleGaussian(s.zeros(), 1.0, 2 * s.tau)  # diagonal, and another temperature
    return InvertibleReparameterization(MultivariateNormal(s.real(n), scale_tril=tril), SoftmaxPlusPlus(s.tau)), q


def _low_rank(s: Setting) -> Pair:
    n = s.K - 1
    base = LowRankMultivariateNormal(s.real(n), s.real(n, 1), s.positive(n))
    q = MultivariateNormal(s.zeros(), (s.zeros() + 1).diag())
    return InvertibleReparameterization(base, SoftmaxPlusPlus(s.tau)), InvertibleReparameterization(
        q, SoftmaxPlusPlus(s.tau, delta=0.5)
    )


def _laplace(s: Setting) -> Pair:
    zeros = s.zeros()
    return (
        InvertibleReparameterization(Laplace(*s.normal()), SoftmaxPlusPlus(s.tau)),
        InvertibleReparameterization(Laplace(zeros, zeros + 1), SoftmaxPlusPlus(0.5 * s.tau)),
    )


DISTRIBUTIONS: dict[str, Callable[[Setting], Pair]] = {
    "IGR-I": _igr,
    "IGR-I, delta": lambda s: _igr(s, delta=0.3),
    "IGR-I, rescaled": _igr_i_rescaled,
    "IGR-I, per row": _igr_i_per_row,
    "IGR-I, delta per row": lambda s: _igr(s, delta=s.per_row()),
    "IGR-SB": lambda s: _igr(s, flow=StickBreaking()),
    "IGR-SB, literal": lambda s: _igr(s, flow=StickBreaking(leftover=False)),
    "IGR-Planar": lambda s: _igr(s, flow=[s.planar(), s.planar()]),
    "VertexInterpolation": _vertices,
    "full covariance": _full_covariance,
    "low rank": _low_rank,
    "Laplace": _laplace,
    "Student-t": lambda s: (
        InvertibleReparameterization(StudentT(5.0, *s.normal()), [s.planar(), SoftmaxPlusPlus(s.tau)]),
        None,
    ),
    "Gamma": lambda s: (
        InvertibleReparameterization(Gamma(2 + s.positive(s.K - 1), s.positive(s.K - 1)), SoftmaxPlusPlus(s.tau)),
        None,
    ),
    "torch's stick-breaking": lambda s: (
        InvertibleReparameterization(Normal(*s.normal()), StickBreakingTransform()),
        None,
    ),
    "GS": lambda s: (GumbelSoftmax(s.tau, s.real(s.K)), None),
    "GS, per row": lambda s: (GumbelSoftmax(s.per_row(), s.real(s.K)), None),
    "BinaryConcrete": lambda s: (BinaryConcrete(max(s.tau, 0.1), s.real()), None),
}


def cases(names: Iterable[str], device: str = "cpu") -> list[tuple[str, Setting]]:
    """Every name at every setting."""
    return [(name, Setting(K, tau, batch, device)) for name in names for K, tau, batch in SETTINGS]


def label(value: object) -> str:
    """A readable test id."""
    return f"K={value.K}, tau={value.tau}, {value.batch}" if isinstance(value, Setting) else str(value)
