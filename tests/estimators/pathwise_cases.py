"""Kinds of q with their parameters, a loss that remembers what it was shown, and Jacobians of probabilities."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from exact import gaussian_winner_probs
from torch import Tensor
from torch.autograd import grad
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, Normal, OneHotCategorical

from igr.distributions import BinaryConcrete, GumbelSoftmax, InvertibleGaussian, InvertibleReparameterization
from igr.recovery import recovered_log_probs_stick_breaking
from igr.transforms import Planar, StickBreaking, VertexInterpolation

DOUBLE = torch.float64
N, K, S = 3, 4, 4
BATCHES = [(), (5,), (2, 3)]


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def leaf(*shape: int, positive: bool = False) -> Tensor:
    x = torch.randn(shape, dtype=DOUBLE)
    return ((0.4 * x).exp() if positive else 0.8 * x).requires_grad_()


def two(log_odds: Tensor) -> Tensor:
    return F.logsigmoid(torch.stack([log_odds, -log_odds], -1))


def sticks(loc: Tensor, scale: Tensor) -> Distribution:
    return InvertibleGaussian(loc, scale, 0.5, flow=StickBreaking())


# how q is made of its parameters, and the log-probabilities of its categories
KINDS: dict[str, tuple[Callable[..., Distribution], Callable[..., Tensor]]] = {
    "Categorical": (lambda logits: Categorical(logits=logits), lambda logits: logits.log_softmax(-1)),
    "OneHotCategorical": (lambda logits: OneHotCategorical(logits=logits), lambda logits: logits.log_softmax(-1)),
    "GS": (lambda logits: GumbelSoftmax(0.3, logits), lambda logits: logits.log_softmax(-1)),
    "Bernoulli": (lambda logits: Bernoulli(logits=logits), two),
    "BinaryConcrete": (lambda logits: BinaryConcrete(0.3, logits), two),
    "Independent": (lambda logits: Independent(Bernoulli(logits=logits), 1), two),
    "IGR-I": (
        lambda loc, scale: InvertibleGaussian(loc, scale, 0.5, delta=1.7),
        lambda *parts: gaussian_winner_probs(*parts).log(),
    ),
    "IGR-SB": (sticks, recovered_log_probs_stick_breaking),
}
BINARY = ("Bernoulli", "BinaryConcrete", "Independent")


def parameters(kind: str, batch: tuple[int, ...], n: int = N, k: int = K) -> list[Tensor]:
    if kind in BINARY:
        return [leaf(*batch, n)]
    if kind.startswith("IGR"):
        return [leaf(*batch, n, k - 1), leaf(*batch, n, k - 1, positive=True)]
    return [leaf(*batch, n, k)]


class Loss:
    """Different for every example, dependent on its own weights and on a parameter of q; remembers its argument."""

    def __init__(self, q_parameter: Tensor, binary: bool, batch: tuple[int, ...], n: int = N, k: int = K) -> None:
        self.events = (-1,) if binary else (-2, -1)
        self.weight = leaf(*batch, n) if binary else leaf(*batch, n, k)
        self.q_parameter = q_parameter
        self.calls: list[Tensor] = []

    def __call__(self, z: Tensor) -> Tensor:
        self.calls.append(z.detach())
        inner = (z * self.weight).sum(self.events)
        own = self.q_parameter.flatten(self.q_parameter.dim() - len(self.events)).sum(-1)
        return inner.tanh() + inner * (z.square() * self.weight.cos()).sum(self.events) + own * inner

    def at(self, one_hot: Tensor) -> Tensor:
        """Of one-hot vectors also where f is shown zeros and ones."""
        return self(one_hot[..., 0] if self.events == (-1,) else one_hot)


def jacobian(p: Tensor) -> Tensor:
    return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)


def apply(matrix: Tensor, v: Tensor) -> Tensor:
    return (matrix @ v.unsqueeze(-1)).squeeze(-1)


def gradients(surrogate: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    return list(grad(surrogate.sum(), inputs))


def at_the_samples(loss: Loss, parameters: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """D ``(S, *, N, K)``, f's value, its slope at D, and the gradients of what depends on parameters directly."""
    z = loss.calls[0]
    D = (torch.stack([z, 1 - z], -1) if loss.events == (-1,) else z).requires_grad_()
    assert torch.equal(D.square(), D)
    assert (D.sum(-1) == 1).all()
    values = loss.at(D)
    owned = [*parameters, loss.weight]
    v, *direct = grad(values.mean(0).sum(), [D, *owned], allow_unused=True, materialize_grads=True)
    return D.detach(), values.mean(0), v, direct


def name(value: object) -> str:
    return getattr(value, "__name__", str(value))


RELAXED = {  # with the parameters they are made of
    "GS": (lambda logits: GumbelSoftmax(0.6, logits), "real"),
    "GS of rows": (lambda logits: GumbelSoftmax(torch.tensor([[0.3], [0.6], [1.0]]).double(), logits), "real"),
    "BinaryConcrete": (lambda logits: BinaryConcrete(0.6, logits), "binary"),
    "IGR-I": (lambda loc, scale: InvertibleGaussian(loc, scale, 0.6, delta=1.7), "gaussian"),
    "IGR-SB": (lambda loc, scale: InvertibleGaussian(loc, scale, 0.2, flow=StickBreaking()), "gaussian"),
    "vertices": (
        lambda loc, scale: InvertibleReparameterization(Normal(loc, scale), VertexInterpolation(0.5)),
        "gaussian",
    ),
    "IGR-Planar": (lambda loc, scale, u, w: InvertibleGaussian(loc, scale, 0.6, flow=Planar(u, w)), "flow"),
}


def relaxed(kind: str, batch: tuple[int, ...] = (), n: int = N) -> tuple[Callable[..., Distribution], list[Tensor]]:
    build, sort = RELAXED[kind]
    shapes = {"real": [(K,)], "binary": [()], "gaussian": [(K - 1,)] * 2, "flow": [(K - 1,)] * 4}[sort]
    return build, [leaf(*batch, n, *shape, positive=i == 1) for i, shape in enumerate(shapes)]


def z_scores(a: Tensor, b: Tensor) -> Tensor:
    """Of the difference of means over the first axis; where neither varies, they are the same."""
    error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
    assert torch.equal(a.mean(0)[error == 0], b.mean(0)[error == 0])
    return ((a.mean(0) - b.mean(0)) / error)[error > 0]
