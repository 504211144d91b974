"""Each estimator against its formula, by dense Jacobians, enumeration, quadrature or the densities of torch."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
import torch.nn.functional as F
from exact import expectation, gaussian_winner_probs, states
from torch import Tensor
from torch.autograd import grad, gradcheck
from torch.distributions import (
    Bernoulli,
    Beta,
    Categorical,
    Dirichlet,
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
    OneHotCategorical,
    RelaxedBernoulli,
    RelaxedOneHotCategorical,
    StudentT,
)

from igr.distributions import BinaryConcrete, GumbelSoftmax, InvertibleGaussian, InvertibleReparameterization
from igr.estimators.gapped_straight_through import gapped_straight_through
from igr.estimators.gumbel_rao import gumbel_rao
from igr.estimators.igr_rao import igr_rao
from igr.estimators.reinmax import reinmax
from igr.estimators.reparameterized import reparameterized
from igr.estimators.st_relaxed import st_relaxed
from igr.estimators.sticking_the_landing import sticking_the_landing
from igr.estimators.straight_through import straight_through
from igr.functional import NoiseSource
from igr.recovery import recovered_log_probs_stick_breaking
from igr.transforms import Planar, SoftmaxPlusPlus, StickBreaking, VertexInterpolation

DOUBLE = torch.float64
N, K, S = 3, 4, 4
BATCHES = [(), (5,), (2, 3)]
ROWS = torch.tensor([[0.5], [1.0], [2.5]], dtype=DOUBLE)  # one value for each of the N variables
pytestmark = pytest.mark.usefixtures("one_thread")


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


def name(value: object) -> str:
    return getattr(value, "__name__", str(value))


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


@pytest.mark.parametrize("kind", RELAXED)
def test_reparameterized_is_the_derivative_at_fixed_noise(kind):
    batch = (2,)
    build, parts = relaxed(kind, batch)
    loss = Loss(parts[0], kind == "BinaryConcrete", batch)

    def surrogate(*parts: Tensor) -> Tensor:
        loss.q_parameter = parts[0]
        return reparameterized(build(*parts), loss, num_samples=S, generator=seeded()).surrogate

    assert gradcheck(surrogate, parts)
    value, s = reparameterized(build(*parts), loss, num_samples=S, generator=seeded())
    z = loss.calls[-1]
    torch.testing.assert_close(value, loss(z).mean(0))
    torch.testing.assert_close(grad(s.sum(), loss.weight), grad(loss(z).mean(0).sum(), loss.weight))


@pytest.mark.parametrize("kind", ["GS", "IGR-I", "IGR-SB", "IGR-Planar"])
def test_reparameterized_samples_are_those_of_q(kind):
    build, parts = relaxed(kind, (5,))
    loss = Loss(parts[0], False, (5,))
    reparameterized(build(*parts), loss, num_samples=S, generator=seeded())
    torch.testing.assert_close(loss.calls[0], build(*parts).rsample((S,), generator=seeded()).detach())


def test_a_discrete_q_is_relaxed_at_the_temperature_given():
    logits = leaf(5, N)
    tau = torch.tensor([[0.3], [1.0], [2.0]]).double()
    for q, tau_of in ((Bernoulli(logits=logits), tau), (Independent(Bernoulli(logits=logits), 1), 0.4)):
        shown = []
        reparameterized(q, lambda z: shown.append(z) or z.sum(-1), temperature=tau_of, num_samples=20_000)  # noqa: B023
        log_odds = shown[0].logit() * (tau_of.squeeze(-1) if isinstance(tau_of, Tensor) else tau_of) - logits
        assert scipy.stats.kstest(log_odds.detach().flatten().numpy(), "logistic").pvalue > 1e-5


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_st_relaxed_gumbel_softmax_equals_its_dense_formula(batch):
    logits, tau = leaf(*batch, N, K), 0.3
    loss = Loss(logits, False, batch)
    value, surrogate = st_relaxed(GumbelSoftmax(tau, logits), loss, num_samples=S, generator=seeded())
    actual = gradients(surrogate, [logits, loss.weight])
    exponential = torch.empty(S, *batch, N, K, dtype=DOUBLE).exponential_(generator=seeded())
    x = logits.detach() - exponential.log()
    D, expected_value, v, direct = at_the_samples(loss, [logits])
    assert torch.equal(D, F.one_hot(x.argmax(-1), K).double())
    torch.testing.assert_close(value, expected_value)
    torch.testing.assert_close(actual[0], direct[0] + apply(jacobian((x / tau).softmax(-1)), v).sum(0) / tau)
    torch.testing.assert_close(actual[1], direct[1])


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_st_relaxed_igr_equals_its_dense_formula(batch):
    parts, tau, delta = [leaf(*batch, N, K - 1), leaf(*batch, N, K - 1, positive=True)], 0.3, 2.5
    loss = Loss(parts[0], False, batch)
    value, surrogate = st_relaxed(InvertibleGaussian(*parts, tau, delta=delta), loss, num_samples=S, generator=seeded())
    actual = gradients(surrogate, [*parts, loss.weight])
    eps = torch.randn(S, *batch, N, K - 1, dtype=DOUBLE, generator=seeded())
    y = (parts[0] + parts[1] * eps).detach()
    top = y.argmax(-1).where(y.amax(-1) > 0, K - 1)
    D, expected_value, v, direct = at_the_samples(loss, parts)
    assert torch.equal(D, F.one_hot(top, K).double())
    torch.testing.assert_close(value, expected_value)
    e = (y / tau).exp()
    z = torch.cat([e, torch.full_like(e[..., :1], delta)], -1) / (e.sum(-1, keepdim=True) + delta)
    through_y = apply(jacobian(z), v)[..., :-1] / tau
    torch.testing.assert_close(actual[0], direct[0] + through_y.sum(0))
    torch.testing.assert_close(actual[1], direct[1] + (through_y * eps).sum(0))
    torch.testing.assert_close(actual[2], direct[2])


@pytest.mark.parametrize("kind", ["BinaryConcrete", "IGR-SB", "vertices", "IGR-Planar"])
def test_st_relaxed_backward_is_that_of_the_relaxed_sample(kind):
    build, parts = relaxed(kind, (2,))
    binary = kind == "BinaryConcrete"
    weight = leaf(*(2, N) if binary else (2, N, K))
    events = (-1,) if binary else (-2, -1)
    shown = []

    def f(z: Tensor) -> Tensor:
        shown.append(z.detach())
        return (z * weight).sum(events)  # linear: one slope at the hard and at the relaxed sample

    hard = st_relaxed(build(*parts), f, num_samples=S, generator=seeded())
    soft = reparameterized(build(*parts), f, num_samples=S, generator=seeded())
    assert torch.equal(shown[0].square(), shown[0])
    *actual, own = gradients(hard.surrogate, [*parts, weight])
    torch.testing.assert_close(actual, gradients(soft.surrogate, parts))
    assert torch.equal(own, shown[0].mean(0))


def z_scores(a: Tensor, b: Tensor) -> Tensor:
    """Of the difference of means over the first axis; where neither varies, they are the same."""
    error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
    assert torch.equal(a.mean(0)[error == 0], b.mean(0)[error == 0])
    return ((a.mean(0) - b.mean(0)) / error)[error > 0]


RAO = {
    "GS": (gumbel_rao, lambda logits: GumbelSoftmax(0.2, logits)),
    "GS of rows": (gumbel_rao, lambda logits: GumbelSoftmax(torch.tensor([[0.2], [0.4]]).double(), logits)),
    "BinaryConcrete": (gumbel_rao, lambda logits: BinaryConcrete(0.2, logits)),
    "OneHotCategorical": (gumbel_rao, lambda logits: OneHotCategorical(logits=logits)),
    "IGR-I": (igr_rao, lambda loc, scale: InvertibleGaussian(loc, scale, 0.2)),
    "IGR-I with delta": (igr_rao, lambda loc, scale: InvertibleGaussian(loc, scale, 0.2, delta=3.0)),
}


@pytest.mark.parametrize("kind", RAO)
def test_rao_keeps_the_mean_and_lowers_the_variance(kind):
    """Two examples of two variables, different all, and two samples of each; many repetitions, as further examples."""
    rao, build = RAO[kind]
    repetitions, n, k = 3000, 2, 3
    parts = parameters(kind.split(" ")[0], (2,), n, k)
    loss = Loss(parts[0], kind in BINARY, (2,), n, k)
    loss.q_parameter = torch.zeros_like(parts[0])

    def draws(estimator, **options) -> Tensor:
        copies = [p.detach().expand(repetitions, *p.shape).clone().requires_grad_() for p in parts]
        surrogate = estimator(build(*copies), loss, num_samples=2, **options).surrogate
        assert len(loss.calls) == 1
        assert torch.equal(loss.calls.pop().unique(), torch.tensor([0.0, 1.0]).double())
        return torch.cat([g.flatten(2) for g in gradients(surrogate, copies)], -1)

    plain, averaged = draws(st_relaxed), draws(rao, num_redraws=16)
    assert z_scores(averaged, plain).abs().max() < 5
    assert averaged.var(0).sum() < 0.8 * plain.var(0).sum()
    once = draws(rao, num_redraws=1)  # a single redraw replaces the noise, and has its variance
    assert z_scores(once, plain).abs().max() < 5
    assert 0.8 < once.var(0).sum() / plain.var(0).sum() < 1.25
    assert averaged.var(0).sum() < 0.8 * once.var(0).sum()


@pytest.mark.parametrize("kind", ["GS", "IGR-I"])
def test_rao_keeps_the_mean_given_the_sample(kind):
    rao, build = RAO[kind]
    k, repetitions = 3, 20_000
    parts = [
        torch.tensor([x], dtype=DOUBLE) for x in {"GS": [[0.3, -0.5, 0.1]], "IGR-I": [[0.2, -0.4], [0.7, 1.3]]}[kind]
    ]
    weight = torch.randn(k, dtype=DOUBLE)

    def draws(estimator, **options) -> tuple[Tensor, Tensor]:
        copies = [p.detach().expand(repetitions, *p.shape).clone().requires_grad_() for p in parts]
        shown = []

        def f(z: Tensor) -> Tensor:
            shown.append(z.detach())
            return (weight * z).sum((-2, -1))

        surrogate = estimator(build(*copies), f, **options).surrogate
        g = torch.cat([g.flatten(1) for g in gradients(surrogate, copies)], -1)
        return shown[0].argmax(-1).flatten(), g

    (D, plain), (D_rao, averaged) = draws(st_relaxed), draws(rao, num_redraws=4)
    for category in range(k):
        assert (category == D).sum() > 500
        assert z_scores(averaged[D_rao == category], plain[category == D]).abs().max() < 5


class OnlyFirst(NoiseSource):
    """Decides about the sample, not about the redraws, which have one axis more."""

    def __init__(self, one_hot: Tensor) -> None:
        self.one_hot = one_hot

    def gumbel(self, like: Tensor) -> Tensor:
        noise = -torch.empty_like(like).exponential_().log()
        return 100 * self.one_hot if like.shape == self.one_hot.shape else noise


@pytest.mark.parametrize("category", [0, 1])
def test_many_gumbel_redraws_tend_to_the_conditional_expectation(category):
    """Two categories: the difference of the two scores is logistic, and positive or negative given the sample."""
    logits, tau, R = torch.tensor([[0.7, -0.4]], dtype=DOUBLE, requires_grad=True), 0.5, 40_000
    source = OnlyFirst(torch.eye(2, dtype=DOUBLE)[category].reshape(1, 1, 2))
    q = GumbelSoftmax(tau, logits)
    surrogate = gumbel_rao(q, lambda z: 2 * z[..., 0].sum(-1), num_redraws=R, generator=source).surrogate
    (g,) = gradients(surrogate, [logits])

    law, (low, high) = scipy.stats.logistic(loc=1.1), [(0, 60), (-60, 0)][category]

    def moment(power: int) -> float:
        def integrand(x: float) -> float:
            return (2 / tau * 0.25 / np.cosh(x / tau / 2) ** 2) ** power * law.pdf(x)

        return scipy.integrate.quad(integrand, low, high, limit=200)[0] / (law.cdf(high) - law.cdf(low))

    assert abs(g[0, 0].item() - moment(1)) < 5 * math.sqrt((moment(2) - moment(1) ** 2) / R)
    assert g[0, 1].item() == pytest.approx(-g[0, 0].item())


def test_many_gaussian_redraws_tend_to_the_conditional_expectation():
    """Two categories: the only coordinate is kept if it wins, and a normal truncated to negative values if it loses."""
    mu, sigma, tau, R = 0.3, 0.8, 0.5, 40_000
    parts = [torch.full((1, 1, 1), x, dtype=DOUBLE, requires_grad=True) for x in (mu, sigma)]

    class Given(NoiseSource):
        def gaussian(self, shape, like: Tensor) -> Tensor:
            return torch.full(tuple(shape), self.eps, dtype=DOUBLE)

        def gumbel(self, like: Tensor) -> Tensor:
            return -torch.empty_like(like).exponential_().log()

    def g(eps: float) -> Tensor:
        source = Given()
        source.eps = eps
        q = InvertibleGaussian(*parts, tau)
        surrogate = igr_rao(q, lambda z: 2 * z[..., 0].sum(-1), num_redraws=R, generator=source).surrogate
        return torch.cat(gradients(surrogate, parts)).flatten()

    def slope(eps: float) -> np.ndarray:
        return 2 / tau * 0.25 / np.cosh((mu + sigma * eps) / tau / 2) ** 2 * np.array([1, eps])

    torch.testing.assert_close(g(0.5), torch.from_numpy(slope(0.5)))
    end = -mu / sigma

    def moment(power: int) -> np.ndarray:
        integral = scipy.integrate.quad_vec(lambda e: slope(e) ** power * scipy.stats.norm.pdf(e), -12, end)[0]
        return integral / scipy.stats.norm.cdf(end)

    assert (np.abs(g(-2.0).numpy() - moment(1)) < 5 * np.sqrt((moment(2) - moment(1) ** 2) / R)).all()


LANDING = {  # q and the density that torch has for it, or one written out, at z in place of log z, y or noise
    "GS": (
        lambda logits: GumbelSoftmax(0.6, logits),
        lambda z, logits: RelaxedOneHotCategorical(torch.tensor(0.6).double(), logits=logits).log_prob(z),
    ),
    "BinaryConcrete": (
        lambda logits: BinaryConcrete(0.6, logits),
        lambda z, logits: RelaxedBernoulli(torch.tensor(0.6).double(), logits=logits).log_prob(z),
    ),
    "IGR-I": (
        lambda loc, scale: InvertibleGaussian(loc, scale, 0.6, delta=1.7),
        lambda z, loc, scale: (
            Normal(loc, scale).log_prob(0.6 * (z[..., :-1] * 1.7 / z[..., -1:]).log()).sum(-1)
            - z.log().sum(-1)
            + (K - 1) * math.log(0.6)
        ),
    ),
}


def stick_density(z: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """Of IGR-SB at temperature 0.2: sticks w from z, and y from sticks, with the Jacobian of each by autograd."""

    def to_y(first: Tensor) -> Tensor:
        log_z = torch.cat([first, 1 - first.sum(-1, keepdim=True)], -1).log()
        a = 0.2 * (log_z[..., :-1] - log_z[..., -1:])
        last = (1 - a.sum(-1, keepdim=True)) / K
        w = torch.cat([a + last, last], -1)
        rest = w.flip(-1).cumsum(-1).flip(-1)
        return (w[..., :-1] / rest[..., 1:]).log()

    flat = z[..., :-1].reshape(-1, K - 1)
    determinant = torch.vmap(lambda x: torch.linalg.slogdet(torch.func.jacrev(to_y)(x))[1])(flat)
    return Normal(loc, scale).log_prob(to_y(z[..., :-1])).sum(-1) + determinant.reshape(z.shape[:-1])


LANDING["IGR-SB"] = (RELAXED["IGR-SB"][0], stick_density)
PRIORS = {
    "same family": None,
    "torch": lambda kind: Beta(1.3, 0.8) if kind == "BinaryConcrete" else Dirichlet(torch.full((K,), 1.3).double()),
}


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("kind", LANDING)
def test_landing_equals_its_formula(kind, prior):
    batch = (2,)
    build, density = LANDING[kind]
    parts = relaxed(kind, batch)[1]
    others = [p.detach()[0].clone().mul_(0.7).requires_grad_() for p in parts]  # broadcasts with q's
    p = build(*others) if prior == "same family" else PRIORS[prior](kind)
    trained = [*parts, *others] if prior == "same family" else parts
    loss = Loss(parts[0], kind == "BinaryConcrete", batch)
    value, surrogate = sticking_the_landing(build(*parts), loss, p, num_samples=S, generator=seeded())
    actual = gradients(surrogate, [*trained, loss.weight])

    shown = []  # the same samples, with their path
    reparameterized(build(*parts), lambda z: shown.append(z) or loss(z), num_samples=S, generator=seeded())
    z = shown[0]
    torch.testing.assert_close(z.detach(), loss.calls[0])
    log_q = density(z, *[x.detach() for x in parts])
    log_p = density(z, *others) if prior == "same family" else p.log_prob(z)
    expected = (loss(z) + (log_q - log_p).sum(-1)).mean(0)
    torch.testing.assert_close(value, expected.detach())
    assert torch.equal(value, surrogate)
    assert not value.requires_grad
    for a, e in zip(actual, gradients(expected, [*trained, loss.weight]), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-6, atol=1e-8)


def total_derivative(q: Distribution, prior: Distribution, f: Callable, generator: torch.Generator) -> Tensor:
    """The surrogate with the score of q, from the same noise."""
    log_z, log_q = q.log_rsample_and_log_prob((1,), generator=generator)
    return (f(log_z.exp()) + (log_q - prior.log_prob_from_log(log_z)).sum(-1)).mean(0)


@pytest.mark.parametrize("kind", ["GS", "IGR-I", "IGR-SB", "IGR-Planar"])
def test_landing_has_the_mean_of_the_total_derivative(kind):
    build, parts = relaxed(kind, (), 2)
    prior = build(*relaxed(kind, (), 2)[1]) if kind != "IGR-SB" else build(parts[0].detach() + 0.3, 0.8)
    weight, M = torch.randn(2, K, dtype=DOUBLE), 20_000

    def f(z: Tensor) -> Tensor:
        return (weight * z).sum((-2, -1)).sin()

    def draws(surrogate: Callable) -> Tensor:
        copies = [p.detach().expand(M, *p.shape).clone().requires_grad_() for p in parts]
        return torch.cat([g.flatten(1) for g in gradients(surrogate(build(*copies)), copies)], -1)

    landing = draws(lambda q: sticking_the_landing(q, f, prior, generator=seeded()).surrogate)
    total = draws(lambda q: total_derivative(q, prior, f, seeded()))
    size = sum(p.numel() for p in parts[:2])  # of the base: a flow keeps the total derivative
    difference = (landing - total)[:, :size]  # of the same noise, so the score alone
    assert z_scores(difference, torch.zeros_like(difference)).abs().max() < 5
    assert difference.std(0).min() > 0.1
    torch.testing.assert_close(landing[:, size:], total[:, size:])


@pytest.mark.parametrize("kind", RELAXED)
def test_at_the_landing_every_draw_is_zero(kind):
    build, parts = relaxed(kind, (5,))
    events = (-1,) if kind == "BinaryConcrete" else (-2, -1)
    prior = build(*[p.detach().clone() for p in parts])
    value, surrogate = sticking_the_landing(build(*parts), lambda z: 0 * z.sum(events), prior, num_samples=S)
    frozen = 4 if kind != "IGR-Planar" else 2  # parameters of a flow are no parameters of the base
    for g in gradients(surrogate, parts[:frozen]):
        assert g.abs().max() < 1e-9
    assert value.abs().max() < 1e-9


def test_the_variance_vanishes_at_the_posterior():
    """f is log p - log q* up to a constant; the total derivative still varies there, by the score."""
    parts = [leaf(5, N, K - 1), leaf(5, N, K - 1, positive=True)]
    prior = InvertibleGaussian(torch.zeros(K - 1).double(), 1.0, 0.4)
    posterior = InvertibleGaussian(*[p.detach() for p in parts], 0.7)

    def f(z: Tensor) -> Tensor:
        return (prior.log_prob(z) - posterior.log_prob(z)).sum(-1) + 1.5

    q = InvertibleGaussian(*parts, 0.7)
    value, surrogate = sticking_the_landing(q, f, prior, num_samples=S)
    torch.testing.assert_close(value, torch.full_like(value, 1.5))
    for g in gradients(surrogate, parts):
        assert g.abs().max() < 1e-8
    assert gradients(total_derivative(q, prior, f, seeded()), parts)[0].abs().max() > 0.1


def test_a_trained_temperature_keeps_its_gradient_where_it_equals_that_of_the_prior():
    loc, M, h = torch.tensor([[0.8, -0.5]]).double(), 40_000, 1e-5
    prior = InvertibleGaussian(torch.zeros(1, 2).double(), 1.0, 0.5)
    expected = [InvertibleGaussian(loc, 0.7, 0.5 + step).kl(prior).item() for step in (h, -h)]
    tau = torch.full((M, 1, 1), 0.5, dtype=DOUBLE, requires_grad=True)
    q = InvertibleGaussian(loc.expand(M, 1, 2), 0.7, tau)
    surrogate = sticking_the_landing(q, lambda z: 0 * z.sum((-2, -1)), prior).surrogate
    g = gradients(surrogate, [tau])[0].flatten()
    assert abs(g.mean() - (expected[0] - expected[1]) / (2 * h)) < 5 * g.std() / math.sqrt(M)
    shared = torch.tensor(0.5, dtype=DOUBLE, requires_grad=True)  # trained together: the divergence does not see it
    pair = [InvertibleGaussian(x, 0.7, shared) for x in (loc, loc + 1)]
    surrogate = sticking_the_landing(pair[0], lambda z: z[..., 0].sum(-1), pair[1], generator=seeded()).surrogate
    plain = reparameterized(pair[0], lambda z: z[..., 0].sum(-1), generator=seeded()).surrogate
    torch.testing.assert_close(gradients(surrogate, [shared]), gradients(plain, [shared]))


@pytest.mark.parametrize("kind", ["GS", "BinaryConcrete", "IGR-I", "IGR-SB"])
def test_landing_at_low_temperature_in_single_precision(kind):
    parts = [
        (4 * p.detach()).float().requires_grad_() if i == 0 else p.detach().float().requires_grad_()
        for i, p in enumerate(relaxed(kind, (50,))[1])
    ]
    build = {
        "GS": lambda logits: GumbelSoftmax(0.01, logits),
        "BinaryConcrete": lambda logits: BinaryConcrete(0.01, logits),
        "IGR-I": lambda loc, scale: InvertibleGaussian(loc, scale, 0.01),
        "IGR-SB": lambda loc, scale: InvertibleGaussian(loc, scale, 0.01, flow=StickBreaking()),
    }[kind]
    prior = build(*[torch.ones_like(p[0, 0]) for p in parts])
    events = (-1,) if kind == "BinaryConcrete" else (-2, -1)
    value, surrogate = sticking_the_landing(
        build(*parts), lambda z: 0 * z.sum(events), prior, num_samples=20, generator=seeded()
    )
    assert value.isfinite().all()
    for g in gradients(surrogate, parts):
        assert g.isfinite().all()
    if kind.startswith("IGR"):  # the maps are the same, so the ratio is that of the Gaussians
        eps = torch.randn(20, 50, N, K - 1, generator=seeded()).double()
        loc, scale = (p.detach().double() for p in parts)
        ratio = Normal(0.0, 1.0).log_prob(eps) - scale.log() - Normal(1.0, 1.0).log_prob(loc + scale * eps)
        torch.testing.assert_close(value.double(), ratio.sum((-2, -1)).mean(0), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", ["full", "low rank", "heavy tails"])
def test_landing_from_other_bases(kind):
    loc, tril = leaf(N, 2), torch.eye(2).double().add(0.3 * torch.ones(2, 2).double().tril()).requires_grad_()

    def base(loc: Tensor, tril: Tensor) -> Distribution:
        if kind == "full":
            return MultivariateNormal(loc, scale_tril=tril)
        if kind == "low rank":
            return LowRankMultivariateNormal(loc, tril[:, :1], tril.diagonal().square())
        return StudentT(5.0, loc, tril.diagonal())

    prior = InvertibleGaussian(torch.zeros(2).double(), 1.0, 0.5)
    q = InvertibleReparameterization(base(loc, tril), SoftmaxPlusPlus(0.5))
    torch.manual_seed(3)
    value, surrogate = sticking_the_landing(q, lambda z: 0 * z.sum((-2, -1)), prior, num_samples=S)
    torch.manual_seed(3)
    y = base(loc, tril).rsample((S,))
    log_q = base(loc.detach(), tril.detach()).log_prob(y)
    log_p = Normal(0.0, 1.0).log_prob(y).sum((-2, -1))
    expected = ((log_q.sum((-2, -1)) if kind == "heavy tails" else log_q.sum(-1)) - log_p).mean(0)
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(gradients(surrogate, [loc, tril]), gradients(expected, [loc, tril]))


ALL = {
    reparameterized: ["Bernoulli", "GS", "IGR-I", "IGR-SB"],
    straight_through: ["Bernoulli", "GS", "IGR-I", "IGR-SB"],
    st_relaxed: ["Bernoulli", "GS", "IGR-I", "IGR-SB"],
    gumbel_rao: ["Bernoulli", "GS"],
    igr_rao: ["IGR-I"],
    gapped_straight_through: ["Bernoulli", "GS", "IGR-I", "IGR-SB"],
    reinmax: ["Bernoulli", "GS", "IGR-I", "IGR-SB"],
}


@pytest.mark.parametrize(("estimator", "kind"), [(e, k) for e, kinds in ALL.items() for k in kinds], ids=name)
def test_half_precision_and_reproducibility(estimator, kind):
    parts = [p.detach().bfloat16().requires_grad_() for p in parameters(kind, (5,))]
    shown = []

    def f(z: Tensor) -> Tensor:
        shown.append(z)
        return z.square().flatten(2).sum(-1)

    estimates = [estimator(KINDS[kind][0](*parts), f, num_samples=S, generator=seeded()) for _ in range(2)]
    assert shown[0].dtype == torch.bfloat16
    assert torch.equal(shown[0], shown[1])
    assert torch.equal(estimates[0].value, estimates[1].value)
    assert estimates[0].surrogate.dtype == torch.float32
    for first, again in zip(*[gradients(e.surrogate, parts) for e in estimates], strict=True):
        assert first.isfinite().all()
        assert torch.equal(first, again)


@pytest.mark.parametrize("estimator", [e for e, kinds in ALL.items() if "GS" in kinds], ids=name)
def test_impossible_categories_have_finite_gradients(estimator):
    logits = torch.tensor([[1.0, 2.0, -math.inf], [-math.inf, 0.5, -math.inf]], requires_grad=True)
    q = OneHotCategorical(logits=logits, validate_args=False)
    surrogate = estimator(q, lambda z: z.cumsum(-1).square().sum((-2, -1)), num_samples=S).surrogate
    (g,) = gradients(surrogate, [logits])
    assert g.isfinite().all()
    assert (g[logits.isneginf()] == 0).all()


@pytest.mark.parametrize("estimator", list(ALL), ids=name)
def test_refusals(estimator):
    q = InvertibleGaussian(torch.zeros(5, N, K - 1), 1.0, 0.5)
    q = GumbelSoftmax(0.5, torch.zeros(5, N, K)) if estimator is gumbel_rao else q
    with pytest.raises(ValueError, match=r"f must map samples of shape \(1, 5, 3, 4\).*shape \(1, 5\)"):
        estimator(q, lambda z: z.sum(-1))
    with pytest.raises(ValueError, match="num_samples must be an integer of at least 1"):
        estimator(q, lambda z: z.sum((-2, -1)), num_samples=0)
    with pytest.raises(TypeError, match="q must be a relaxation"):
        estimator(Normal(torch.zeros(3), 1.0), lambda z: z.sum(-1))


def test_refusals_of_options():
    def f(z: Tensor) -> Tensor:
        return z.sum((-2, -1))

    gs, igr = GumbelSoftmax(0.5, torch.zeros(N, K)), InvertibleGaussian(torch.zeros(N, K - 1), 1.0, 0.5)
    flow = InvertibleGaussian(torch.zeros(N, 2), 1.0, 0.5, flow=Planar(torch.ones(2), torch.ones(2)))
    for estimator in (reparameterized, st_relaxed, gumbel_rao):
        with pytest.raises(ValueError, match="temperature is for a discrete q"):
            estimator(gs, f, temperature=0.5)
    for estimator in CATEGORICAL:
        with pytest.raises(ValueError, match="temperature must be positive"):
            estimator(gs, f, temperature=0.0)
        with pytest.raises(ValueError, match="one value per category"):
            estimator(gs, f, temperature=torch.ones(K))
        with pytest.raises(NotImplementedError, match="known through samples only"):
            estimator(flow, f)
    with pytest.raises(ValueError, match="gap must be positive"):
        gapped_straight_through(gs, f, gap=-1.0)
    for q in (igr, flow):
        with pytest.raises(NotImplementedError, match="use igr_rao for IGR-I"):
            gumbel_rao(q, f)
    sticks = InvertibleGaussian(torch.zeros(N, 2), 1.0, 0.5, flow=StickBreaking())
    for q in (gs, flow, sticks, Categorical(torch.ones(N, K))):
        with pytest.raises(NotImplementedError, match="use gumbel_rao for a Gumbel-Softmax"):
            igr_rao(q, f)
    for rao, q in ((gumbel_rao, gs), (igr_rao, igr)):
        for wrong in (0, 1.5, True):
            with pytest.raises(ValueError, match="num_redraws must be an integer of at least 1"):
                rao(q, f, num_redraws=wrong)


def test_refusals_of_the_landing():
    def f(z: Tensor) -> Tensor:
        return z.sum((-2, -1))

    gs, binary = GumbelSoftmax(0.5, torch.zeros(N, K)), BinaryConcrete(0.5, torch.zeros(N))
    for q in (Categorical(torch.ones(N, K)), Independent(Bernoulli(torch.full((N,), 0.5)), 1)):
        with pytest.raises(TypeError, match=r"q must have a density on the simplex.*relax it"):
            sticking_the_landing(q, f, gs)
    with pytest.raises(TypeError, match="prior must have a density on the simplex"):
        sticking_the_landing(gs, f, OneHotCategorical(torch.ones(K)))
    with pytest.raises(TypeError, match="prior must be a distribution, got"):
        sticking_the_landing(gs, f, torch.ones(K))
    for q, prior in ((gs, binary), (binary, gs), (gs, GumbelSoftmax(0.5, torch.zeros(5, N, K)))):
        with pytest.raises(ValueError, match="prior must have the event shape of q"):
            sticking_the_landing(q, f, prior)
    with pytest.raises(ValueError, match="num_samples must be an integer of at least 1"):
        sticking_the_landing(gs, f, gs, num_samples=0)
    with pytest.raises(ValueError, match="f must map samples"):
        sticking_the_landing(gs, lambda z: z.sum(-1), gs)


def test_independent_variables_and_priors_are_single_ones():
    logits = leaf(5, N)
    q, prior = BinaryConcrete(0.5, logits), BinaryConcrete(0.5, torch.zeros(N).double())
    plain, wrapped = (
        sticking_the_landing(a, lambda z: z.sum(-1), b, generator=seeded())
        for a, b in ((q, prior), (Independent(q, 1), Independent(prior, 1)))
    )
    assert torch.equal(plain.value, wrapped.value)


FORWARD = {
    "reparameterized": lambda q, f: reparameterized(q, f, num_samples=2),
    "st_relaxed": lambda q, f: st_relaxed(q, f, num_samples=2),
    "straight_through": lambda q, f: straight_through(q, f, num_samples=2),
    "reinmax": lambda q, f: reinmax(q, f, num_samples=2),
    "gumbel_rao": lambda q, f: gumbel_rao(q, f, num_redraws=3),
    "gapped_straight_through": lambda q, f: gapped_straight_through(q, f, gap=0.8),
    "sticking_the_landing": lambda q, f: sticking_the_landing(q, f, GumbelSoftmax(0.7, torch.zeros(K, dtype=DOUBLE))),
}


@pytest.mark.parametrize("name", FORWARD)
def test_forward_mode_has_the_derivatives_of_reverse_mode(name):
    """What counts as constant does so in both."""
    logits, direction = (torch.randn(5, N, K, dtype=DOUBLE) for _ in range(2))

    def surrogate(logits: Tensor) -> Tensor:
        torch.manual_seed(3)
        q = GumbelSoftmax(0.5, logits, validate_args=False)
        return FORWARD[name](q, lambda z: z.cumsum(-1).square().sum((-2, -1)).sin()).surrogate.sum()

    expected = (torch.func.grad(surrogate)(logits) * direction).sum()
    _, found = torch.func.jvp(surrogate, (logits,), (direction,))
    torch.testing.assert_close(found, expected)
    assert found.abs() > 1e-3


def test_the_gap_is_a_constant_in_forward_mode():
    q, f = Categorical(logits=torch.randn(5, N, K, dtype=DOUBLE)), lambda z: z.cumsum(-1).square().sum((-2, -1)).sin()
    gap = torch.tensor(0.8, dtype=DOUBLE)
    surrogate = lambda gap: gapped_straight_through(q, f, gap=gap, generator=seeded()).surrogate.sum()  # noqa: E731
    assert torch.func.jvp(surrogate, (gap,), (torch.ones_like(gap),))[1] == 0
