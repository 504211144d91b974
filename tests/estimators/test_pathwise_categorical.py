"""Straight-through, its gapped form and ReinMax, against dense Jacobians and enumeration."""

from collections.abc import Callable

import pytest
import torch
from exact import expectation, states
from pathwise_cases import (
    BATCHES,
    BINARY,
    DOUBLE,
    KINDS,
    K,
    Loss,
    N,
    S,
    apply,
    at_the_samples,
    gradients,
    jacobian,
    name,
    parameters,
    seeded,
)
from torch import Tensor
from torch.autograd import grad

from igr._draws import NoiseSource
from igr.estimators.gapped_straight_through import gapped_straight_through
from igr.estimators.reinmax import reinmax
from igr.estimators.straight_through import straight_through

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = torch.tensor([[0.5], [1.0], [2.5]], dtype=DOUBLE)  # one value for each of the N variables


def dense_straight_through(D: Tensor, log_p: Tensor, v: Tensor, tau: Tensor | float) -> Tensor:
    return apply(jacobian((log_p / tau).softmax(-1)), v) / tau


def dense_gapped(D: Tensor, log_p: Tensor, v: Tensor, tau: Tensor | float, gap: Tensor | float = 1.0) -> Tensor:
    top = log_p.max(-1, keepdim=True).values
    moved = torch.where(D > 0, top, torch.minimum(log_p.expand_as(D), top - gap))
    return apply(jacobian((moved / tau).softmax(-1)), v) / tau


def dense_reinmax(D: Tensor, log_p: Tensor, v: Tensor, tau: Tensor | float) -> Tensor:
    middle = ((log_p / tau).softmax(-1) + D) / 2
    return 2 * apply(jacobian(middle), v) - apply(jacobian(log_p.exp()), v) / 2


DENSE = {
    straight_through: dense_straight_through,
    gapped_straight_through: dense_gapped,
    reinmax: dense_reinmax,
}
CATEGORICAL = list(DENSE)


def assert_dense(estimator, kind, batch, *, n=N, k=K, num_samples=S, tau: Tensor | float = 1.0, **options) -> None:
    """Against the dense formula, for every example, with respect to everything."""
    build, log_probs = KINDS[kind]
    parts = parameters(kind, batch, n, k)
    loss = Loss(parts[0], kind in BINARY, batch, n, k)
    value, surrogate = estimator(
        build(*parts), loss, num_samples=num_samples, generator=seeded(), temperature=tau, **options
    )
    assert value.shape == surrogate.shape == batch
    assert not value.requires_grad
    assert torch.equal(value, surrogate)
    assert len(loss.calls) == 1
    actual = gradients(surrogate, [*parts, loss.weight])

    D, expected_value, v, direct = at_the_samples(loss, parts)
    assert D.shape == (num_samples, *batch, n, 2 if kind in BINARY else k)
    log_p = log_probs(*parts)
    through = DENSE[estimator](D, log_p.detach(), v, tau, **options).sum(0)
    expected = [*grad(log_p, parts, through), torch.zeros_like(loss.weight)]
    torch.testing.assert_close(value, expected_value)
    for a, e, d in zip(actual, expected, direct, strict=True):
        torch.testing.assert_close(a, e + d, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("estimator", CATEGORICAL, ids=name)
def test_equals_its_dense_formula(estimator, kind, batch):
    assert_dense(estimator, kind, batch)


@pytest.mark.parametrize("tau", [0.4, 1.5, ROWS], ids=["0.4", "1.5", "rows"])
@pytest.mark.parametrize("estimator", CATEGORICAL, ids=name)
def test_equals_its_dense_formula_at_any_temperature(estimator, tau):
    assert_dense(estimator, "GS", (5,), tau=tau)
    assert_dense(estimator, "IGR-I", (5,), tau=tau, num_samples=1)


@pytest.mark.parametrize("kind", ["OneHotCategorical", "IGR-I"])
@pytest.mark.parametrize("estimator", CATEGORICAL, ids=name)
def test_two_categories_and_one_variable(estimator, kind):
    assert_dense(estimator, kind, (3,), n=1, k=2)


@pytest.mark.parametrize("gap", [0.1, 3.0, ROWS], ids=["0.1", "3", "rows"])
def test_the_gap(gap):
    assert_dense(gapped_straight_through, "Categorical", (5,), gap=gap)
    assert_dense(gapped_straight_through, "Categorical", (5,), gap=gap, tau=0.5)


class Chosen(NoiseSource):
    """Noise that makes the samples these one-hot vectors."""

    def __init__(self, one_hot: Tensor) -> None:
        self.one_hot = one_hot

    def gumbel(self, like: Tensor) -> Tensor:
        return 100 * self.one_hot.expand_as(like)

    def gaussian(self, shape, like: Tensor) -> Tensor:
        return (100 * (2 * self.one_hot[..., :-1] - 1)).expand(shape)


def enumerated(estimator, kind: str, f: Callable, n: int, k: int) -> tuple[list[Tensor], list[Tensor]]:
    """The estimator's mean over all samples, and the exact gradient."""
    build, log_probs = KINDS[kind]
    parts = parameters(kind, (), n, k)
    log_p = log_probs(*parts)
    exact = grad(expectation(log_p.exp(), f), parts)

    D = states(n, k)
    copies = [p.detach().expand(len(D), *p.shape).clone().requires_grad_() for p in parts]
    shown = []
    estimate = estimator(build(*copies), lambda z: shown.append(z.detach()) or f(z), generator=Chosen(D))
    assert torch.equal(shown[0][0], D)
    weight = (D * log_p.detach()).sum((-2, -1)).exp()
    return [torch.tensordot(weight, g, 1) for g in grad(estimate.surrogate.sum(), copies)], list(exact)


def functions(n: int, k: int) -> dict[str, Callable[[Tensor], Tensor]]:
    A, b = torch.randn(n * k, n * k, dtype=DOUBLE), torch.randn(n * k, dtype=DOUBLE)
    B, c = torch.randn(n, k, k, dtype=DOUBLE), torch.randn(n, k, dtype=DOUBLE)

    def each(z: Tensor) -> Tensor:
        """One quadratic per variable."""
        return torch.einsum("...ni,nij,...nj->...n", z, B, z) + (c * z).sum(-1) + 0.3

    return {
        "multilinear": lambda z: ((c * z).sum(-1) + 0.3).prod(-1) + z.flatten(-2) @ b,
        "quadratic": lambda z: torch.einsum("...i,ij,...j", z.flatten(-2), A, z.flatten(-2)) + z.flatten(-2) @ b,
        "product of quadratics": lambda z: each(z).prod(-1),
        "cubic": lambda z: (c * z.pow(3)).sum((-2, -1)),
    }


@pytest.mark.parametrize("sizes", [(1, 2), (1, 5), (3, 3)], ids=str)
@pytest.mark.parametrize("f", ["quadratic", "product of quadratics"])
@pytest.mark.parametrize("kind", ["Categorical", "IGR-I", "IGR-SB"])
def test_reinmax_is_exact_for_quadratics_of_each_variable(kind, f, sizes):
    for actual, exact in zip(*enumerated(reinmax, kind, functions(*sizes)[f], *sizes), strict=True):
        torch.testing.assert_close(actual, exact, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", ["Categorical", "IGR-I"])
def test_straight_through_is_exact_for_linear_functions_of_each_variable(kind):
    for actual, exact in zip(*enumerated(straight_through, kind, functions(3, 3)["multilinear"], 3, 3), strict=True):
        torch.testing.assert_close(actual, exact, rtol=1e-6, atol=1e-8)


def test_enumeration_sees_a_bias():
    cases = [
        (reinmax, "cubic"),
        (straight_through, "quadratic"),
        (lambda q, f, generator: reinmax(q, f, generator=generator, temperature=1.5), "quadratic"),
    ]
    for estimator, f in cases:
        actual, exact = enumerated(estimator, "Categorical", functions(2, 3)[f], 2, 3)
        assert (actual[0] - exact[0]).abs().max() > 0.01
