"""REBAR and RELAX: the pieces of the estimate, its mean, and the training of the control variate by its variance.

The control variate of most tests is f plus a small network, with parameters of its own.
"""

import math
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from exact import expectation, gaussian_winner_probs, z_scores
from torch import Tensor
from torch.distributions import Bernoulli, Independent, MultivariateNormal, OneHotCategorical

from igr import BinaryConcrete, GumbelSoftmax, InvertibleGaussian, InvertibleReparameterization
from igr._draws import NoiseSource, gaussian_noise, gumbel_noise
from igr.conditional import conditional_path
from igr.estimators._core import Latent
from igr.estimators.rebar import rebar
from igr.estimators.relax import relax
from igr.functional import harden, softmaxpp
from igr.transforms import Planar, SoftmaxPlusPlus, StickBreaking

pytestmark = pytest.mark.usefixtures("one_thread")

DOUBLE = torch.float64
TAU = 0.6
Function = Callable[[Tensor], Tensor]
KINDS = ("gs", "igr")
COUPLED = pytest.mark.parametrize("coupled", [True, False], ids=["coupled", "independent"])


def noise() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def leaf(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_()


def parameters(kind: str, *batch: int, N: int = 2, K: int = 3) -> list[Tensor]:
    """Logits, or μ and σ: leaves."""
    if kind != "igr":
        return [leaf(0.8 * torch.randn(*batch, N, K, dtype=DOUBLE))]
    mu = 0.7 * torch.randn(*batch, N, K - 1, dtype=DOUBLE)
    return [leaf(mu), leaf(0.5 + torch.rand(*batch, N, K - 1, dtype=DOUBLE))]


def build(kind: str, theta: list[Tensor], tau: float | Tensor = TAU) -> GumbelSoftmax | InvertibleGaussian:
    return InvertibleGaussian(*theta, tau) if kind == "igr" else GumbelSoftmax(tau, *theta)


class Objective:
    """f with a weight for every category of every example, ``(*, N, K)``."""

    def __init__(self, *shape: int) -> None:
        self.weight = leaf(torch.randn(*shape, dtype=DOUBLE))

    def __call__(self, z: Tensor) -> Tensor:
        return _curve(z, self.weight)


def _curve(z: Tensor, weight: Tensor) -> Tensor:
    x = (z * weight).sum((-2, -1))
    return (x - 0.3).square() + torch.sin(2 * x)


class Network:
    """f, times a factor, and a curve with parameters of its own."""

    def __init__(self, f: Function, *shape: int) -> None:
        self.f = f
        self.parameters = [leaf(torch.randn(s, dtype=DOUBLE)) for s in ((), shape, ())]

    def __call__(self, z: Tensor) -> Tensor:
        factor, weight, shift = self.parameters
        return factor * self.f(z) + torch.tanh((z.square() * weight).sum((-2, -1)) + shift)


def gradients(surrogate: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(surrogate, leaves, allow_unused=True)


# -- the estimate, for given noise -------------------------------------------------------------------------------------


def gumbel_by_hand(logits: Tensor, S: int) -> tuple[Tensor, Tensor]:
    """x, and x held to its category by the exponential noise that it would have come from."""
    x = logits + gumbel_noise(logits.detach().expand(S, *logits.shape), noise())
    top, k = x.detach().max(-1, keepdim=True)
    others = (logits.exp() * ((-x).exp() - (-top).exp())).detach() / logits.exp()
    log_total = logits.logsumexp(-1, keepdim=True)
    held_top = log_total + (top - log_total).detach()
    held = -torch.log(others + (-held_top).exp())
    return x, torch.where(torch.arange(logits.shape[-1]) == k, held_top, held)


def gaussian_by_hand(mu: Tensor, sigma: Tensor, S: int) -> tuple[Tensor, Tensor]:
    """y, and y held to its category; the quantile of a truncated normal for two of them."""
    y = mu + sigma * gaussian_noise((S, *mu.shape), mu, noise())
    if mu.shape[-1] > 1:
        return y, conditional_path(mu, sigma, y.detach())
    ndtr, cut, positive = torch.special.ndtr, torch.special.ndtr(-mu / sigma), y.detach() > 0
    u = ndtr((y - mu) / sigma)
    v = torch.where(positive, (u - cut) / (1 - cut), u / cut).detach()
    return y, mu + sigma * torch.special.ndtri(torch.where(positive, cut + v * (1 - cut), v * cut))


def by_hand(kind: str, theta: list[Tensor], f: Objective, c: Function, S: int) -> Tensor:
    if kind == "gs":
        y, held = gumbel_by_hand(*theta, S)
        D = torch.nn.functional.one_hot(y.argmax(-1), y.shape[-1]).double()
        probs, onto = theta[0].softmax(-1), lambda x: (x / TAU).softmax(-1)
    else:
        y, held = gaussian_by_hand(*theta, S)
        D = harden(y.detach())
        probs, onto = gaussian_winner_probs(*theta), lambda y: softmaxpp(y, TAU)
    assert (y - held).abs().max() < 1e-10
    log_q = (D * probs.log()).sum((-2, -1))
    value = f(D)
    return ((value - c(onto(held))).detach() * log_q + c(onto(y)) - c(onto(held)) + value).mean(0)


@pytest.mark.parametrize(("kind", "K"), [("gs", 4), ("igr", 2), ("igr", 4)])
def test_formula(kind, K):
    theta, f = parameters(kind, 3, K=K), Objective(3, 2, K)
    frozen = f.weight.detach()
    c = Network(lambda z: _curve(z, frozen), 2, K)
    for p in c.parameters:
        p.requires_grad_(False)
    actual = relax(build(kind, theta), f, control_variate=c, num_samples=5, generator=noise())
    expected = by_hand(kind, theta, f, c, 5)
    torch.testing.assert_close(actual.surrogate, actual.value, check_stride=False)
    for i in range(3):  # each example has its own
        leaves = [*theta, f.weight]
        ours = torch.autograd.grad(actual.surrogate[i], leaves, retain_graph=True)
        theirs = torch.autograd.grad(expected[i], leaves, retain_graph=True)
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("concrete", [False, True], ids=["bernoulli", "binary-concrete"])
def test_logistic_form_of_two_categories(concrete):
    """Tucker et al. (2017) have zeros and ones, and logistic noise."""
    logits, weight = leaf(torch.randn(3, 2, dtype=DOUBLE)), torch.randn(3, 2, dtype=DOUBLE)
    q, options = (BinaryConcrete(TAU, logits), {}) if concrete else (Bernoulli(logits=logits), {"temperature": TAU})
    f = lambda b: ((b - weight).square().sum(-1) + b.prod(-1)).exp()  # noqa: E731
    x = Latent(q, f, **options).scores(4, noise()).detach()
    z = leaf(x[..., 0] - x[..., 1])
    D, l = (z > 0).double(), logits.detach()  # noqa: E741
    c = 0.8 * f((z / TAU).sigmoid())
    slope = torch.autograd.grad(c.sum(), z)[0]
    s = 2 * D - 1
    held = 1 - (-s * l).sigmoid() / (s * (z - l)).sigmoid()  # by the logits
    expected = ((f(D) - c).unsqueeze(-1) * (D - l.sigmoid()) + slope * (1 - held)).mean(0)
    estimate = rebar(q, f, num_samples=4, scale=0.8, generator=noise(), **options)
    estimate.surrogate.sum().backward()
    torch.testing.assert_close(logits.grad, expected.detach())
    torch.testing.assert_close(estimate.value, f(D).mean(0))


@COUPLED
@pytest.mark.parametrize("kind", KINDS)
def test_others_get_nothing_from_the_training(kind, coupled):
    """f's own parameters get the gradient of f(D), q's parameters what they get without training."""
    theta, f, tau = parameters(kind, 3), Objective(3, 2, 3), torch.tensor(TAU, dtype=DOUBLE)
    c = Network(f, 2, 3)
    options = {"control_variate": c, "num_samples": 4, "coupled": coupled}
    still = {p: leaf(p) for p in c.parameters}
    trained = relax(build(kind, theta, leaf(tau)), f, generator=noise(), **options)
    with_training = gradients(trained.surrogate.sum(), [*theta, f.weight])
    c.parameters = [p.detach() for p in still]
    without = gradients(relax(build(kind, theta), f, generator=noise(), **options).surrogate.sum(), [*theta, f.weight])
    torch.testing.assert_close(with_training, without)
    D = Latent(build(kind, theta), f).draw(4, noise())
    torch.testing.assert_close(with_training[-1], *gradients(f(D).mean(0).sum(), [f.weight]))


def test_scale_that_depends_on_loc():
    (loc, _), f = parameters("igr", 3), Objective(3, 2, 3)
    scale = 0.5 + loc.square()
    whole = gradients(relax(build("igr", [loc, scale]), f, generator=noise()).surrogate.sum(), [loc])[0]
    theta = [leaf(loc), leaf(scale)]
    mu, sigma = gradients(relax(build("igr", theta), f, generator=noise()).surrogate.sum(), theta)
    torch.testing.assert_close(whole, mu + 2 * loc.detach() * sigma)


def test_rebar_is_relax_with_a_multiple_of_f():
    theta, f = parameters("gs", 3), Objective(3, 2, 3)
    scale = torch.tensor([0.3, 0.7, 1.5], dtype=DOUBLE)
    ours = rebar(build("gs", theta), f, scale=scale, generator=noise())
    theirs = relax(build("gs", theta), f, control_variate=lambda z: scale * f(z), generator=noise())
    torch.testing.assert_close(gradients(ours.surrogate.sum(), theta), gradients(theirs.surrogate.sum(), theta))


@pytest.mark.parametrize("shape", [(1,), (4,), (3, 1), (1, 4)])
def test_rebar_scale_broadcasts_over_examples(shape):
    """Value, gradient and training of the scale are those of one that is written out."""

    def f(z: Tensor) -> Tensor:
        return (z * torch.tensor([1.0, 4.0, 9.0], dtype=DOUBLE)).sum(-1).square().sum(-1)

    logits = torch.randn(3, 4, 2, 3, dtype=DOUBLE, requires_grad=True)
    scale = torch.rand(shape, dtype=DOUBLE, requires_grad=True)
    found = []
    for given in (scale, scale.expand(3, 4)):
        noise = torch.Generator().manual_seed(3)
        value, surrogate = rebar(GumbelSoftmax(0.5, logits), f, scale=given, generator=noise)
        found.append((value, *torch.autograd.grad(surrogate.sum(), (logits, scale))))
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(here, there)


@pytest.mark.parametrize(("coupled", "calls"), [(True, 2), (False, 3)])
def test_evaluations_of_f(coupled, calls):
    f, seen = Objective(2, 3), []

    def counted(z: Tensor) -> Tensor:
        seen.append(z)
        return f(z)

    q = build("gs", parameters("gs"))
    relax(q, counted, num_samples=4, coupled=coupled).surrogate.backward()
    assert len(seen) == calls
    assert all(z.shape == (4, 2, 3) for z in seen)
    assert len({tuple(z.flatten().tolist()) for z in seen}) == calls  # nothing is shown twice
    assert all(torch.equal(z.argmax(-1), seen[0].argmax(-1)) for z in seen)


# -- the gradient of the variance --------------------------------------------------------------------------------------


def mean_square_norms(kind: str, theta: list[Tensor], S: int, estimate: Callable[[object], Tensor]) -> Tensor:
    """Of the gradients of S samples, each an example of its own: the same noise in the same order, ``(*)``."""
    rows = [leaf(t.expand(S, *t.shape)) for t in theta]
    g = gradients(estimate(rows).sum(), rows)
    return sum(x.square().sum((-2, -1)) for x in g).mean(0)


def differences(objective: Callable[[], Tensor], x: Tensor, step: float = 1e-5) -> Tensor:
    """The derivative by every entry of x, which is changed in place."""
    slopes = torch.empty_like(x)
    with torch.no_grad():
        for i in range(x.numel()):
            entry = x.view(-1)[i : i + 1]
            ends = []
            for sign in (1, -2, 1):
                entry += sign * step
                with torch.enable_grad():
                    ends.append(objective().detach())
            slopes.view(-1)[i] = (ends[0] - ends[1]) / (2 * step)
    return slopes


@COUPLED
@pytest.mark.parametrize("kind", [*KINDS, "one-hot"])
def test_trained_by_the_gradient_of_the_variance(kind, coupled):
    """Against differences of the squared norms of gradients, each example with its own weight."""
    theta, f, S = parameters(kind, 3), Objective(3, 2, 3), 4
    c, log_tau, weight = Network(f, 2, 3), leaf(torch.tensor(-0.4, dtype=DOUBLE)), torch.tensor([0.2, 1.0, -0.7])

    def surrogate(at: list[Tensor], num_samples: int = 1) -> Tensor:
        tau = log_tau.exp()
        if kind == "one-hot":
            q, options = OneHotCategorical(logits=at[0]), {"temperature": tau}
        else:
            q, options = build(kind, at, tau), {}
        options |= {"control_variate": c, "coupled": coupled, "num_samples": num_samples, "generator": noise()}
        return relax(q, f, **options).surrogate

    trained = [*c.parameters, log_tau]
    actual = gradients((weight * surrogate(theta, S)).sum(), trained)
    for x, ours in zip(trained, actual, strict=True):
        expected = differences(lambda: (weight * mean_square_norms(kind, theta, S, surrogate)).sum(), x)
        assert ours.abs().max() > 1e-3
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_rebar_trains_its_scale(kind):
    theta, f, S = parameters(kind, 3), Objective(3, 2, 3), 4
    scale = leaf(torch.tensor([0.4, 1.0, 1.3], dtype=DOUBLE))

    def surrogate(at: list[Tensor], num_samples: int = 1) -> Tensor:
        q = build(kind, at)
        return rebar(q, f, scale=scale, num_samples=num_samples, generator=noise()).surrogate

    # S samples as examples of their own have scales of their own: the shape that is allowed is that of all examples
    def rows(at: list[Tensor]) -> Tensor:
        return rebar(build(kind, at), f, scale=scale.expand(S, 3), generator=noise()).surrogate

    actual = gradients(surrogate(theta, S).sum(), [scale])[0]
    expected = differences(lambda: mean_square_norms(kind, theta, S, rows).sum(), scale)
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-7)


def test_examples_train_one_by_one():
    theta, f = parameters("igr", 3), Objective(3, 2, 3)
    c = Network(f, 2, 3)
    surrogate = relax(build("igr", theta), f, control_variate=c, num_samples=2).surrogate
    whole = torch.autograd.grad(surrogate.sum(), c.parameters, retain_graph=True)
    parts = [torch.autograd.grad(surrogate[i], c.parameters, retain_graph=True) for i in range(3)]
    torch.testing.assert_close(whole, tuple(sum(x) for x in zip(*parts, strict=True)))


class _Square(torch.autograd.Function):
    """Remembers whether its derivatives were to be differentiated."""

    asked: ClassVar[list[bool]] = []

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, gradient):
        _Square.asked.append(torch.is_grad_enabled())
        return 2 * ctx.saved_tensors[0] * gradient


def test_second_derivatives_are_for_training_alone():
    f = lambda z: _Square.apply(z).sum((-2, -1))  # noqa: E731
    for tau in (TAU, leaf(torch.tensor(TAU))):
        relax(build("gs", parameters("gs", 3), tau), f)
    assert _Square.asked == [False, True]


def variance(kind: str, theta: list[Tensor], tau: float | Tensor, estimator: Callable[..., object]) -> float:
    """Of the gradient of one sample, summed over all parameters."""
    rows = [leaf(t.expand(2000, *t.shape)) for t in theta]
    g = gradients(estimator(build(kind, rows, tau), generator=noise()).surrogate.sum(), rows)
    return sum(x.var(0).sum() for x in g).item()


@pytest.mark.parametrize("kind", KINDS)
def test_training_lowers_the_variance(kind):
    theta, f = [t.detach() for t in parameters(kind)], Objective(2, 3)
    f.weight.requires_grad_(False)
    hidden, out = torch.nn.Linear(6, 16, dtype=DOUBLE), torch.nn.Linear(16, 1, dtype=DOUBLE)
    log_tau = leaf(torch.tensor(0.0, dtype=DOUBLE))

    def c(z: Tensor) -> Tensor:
        return f(z) + out(torch.tanh(hidden(z.flatten(-2)))).squeeze(-1)

    def measure(**options: object) -> float:
        return variance(kind, theta, log_tau.detach().exp(), lambda q, **k: relax(q, f, **options, **k))

    plain = variance(kind, theta, 1.0, lambda q, **k: rebar(q, f, scale=0.0, **k))
    default, untrained = measure(), measure(control_variate=c)
    trained = [*hidden.parameters(), *out.parameters(), log_tau]
    optimizer = torch.optim.Adam(trained, 0.02)
    source = noise()
    for _ in range(200):
        optimizer.zero_grad()
        relax(
            build(kind, theta, log_tau.exp()), f, control_variate=c, num_samples=16, generator=source
        ).surrogate.backward()
        optimizer.step()
    after = measure(control_variate=c)
    print(
        f"\n{kind}: variance {plain:.3f} of the score function, {default:.3f} with c = f at τ = 1, "
        f"{untrained:.3f} with a network, {after:.3f} when it is trained, τ = {log_tau.exp().item():.2f}"
    )
    assert after < 0.5 * plain
    assert after < 0.7 * min(default, untrained)


# -- the mean ----------------------------------------------------------------------------------------------------------


def exact_gradients(kind: str, theta: list[Tensor], f: Function) -> tuple[Tensor, ...]:
    probs = theta[0].softmax(-1) if kind == "gs" else gaussian_winner_probs(*theta)
    return gradients(expectation(probs, f), theta)


def largest_z(label: str, g: tuple[Tensor, ...], truth: tuple[Tensor, ...]) -> float:
    z = torch.cat([z_scores(x, t).flatten() for x, t in zip(g, truth, strict=True)])
    print(f"\n{label}, mean of {len(g[0])}: z = {' '.join(f'{x:.2f}' for x in z.tolist())}")
    return z.abs().max().item()


VARIATES: dict[str, Callable[..., object]] = {
    "f": relax,
    "network": lambda q, f, **k: relax(q, f, control_variate=Network(f, *f.weight.shape), **k),
    "rebar 0.7": lambda q, f, **k: rebar(q, f, scale=0.7, **k),
}


@pytest.mark.parametrize(
    ("kind", "name", "coupled", "N"),
    [
        *[("gs", name, coupled, 2) for name in VARIATES for coupled in (True, False)],
        ("igr", "network", True, 1),
    ],
)
def test_unbiased(kind, name, coupled, N):
    theta, f = parameters(kind, N=N), Objective(N, 3)
    rows = [leaf(t.expand(100_000, *t.shape)) for t in theta]
    estimate = VARIATES[name](build(kind, rows), f, coupled=coupled, generator=noise())
    label = f"{kind}, c = {name}, {'coupled' if coupled else 'independent'}"
    assert largest_z(label, gradients(estimate.surrogate.sum(), rows), exact_gradients(kind, theta, f)) < 5


class Nets(NoiseSource):
    """Scrambled Sobol points, ``(nets * points, dimensions)``, whose mean is far more accurate than that of draws."""

    uniforms: Tensor

    def _next(self, shape: tuple[int, ...]) -> Tensor:
        columns, self.uniforms = self.uniforms.tensor_split([shape[-1]], -1)
        return columns.reshape(shape)

    def gaussian(self, shape, like):
        return torch.special.ndtri(self._next(shape))

    def gumbel(self, like):
        return -(-self._next(like.shape).log()).log()


def sobol(nets: int, points: int, dimensions: int) -> Nets:
    draws = [
        torch.quasirandom.SobolEngine(dimensions, scramble=True, seed=i).draw(points, dtype=DOUBLE) for i in range(nets)
    ]
    source = Nets()
    source.uniforms = torch.cat(draws).clamp(1e-9, 1 - 1e-9)
    return source


@pytest.mark.parametrize(
    ("name", "coupled"), [*[(name, True) for name in VARIATES], ("network", False), ("rebar 0.7", False)]
)
def test_unbiased_on_nets(name, coupled):
    """IGR-I: a mean over 1024 points that fill the space is as accurate as one of many times as many draws."""
    theta, f, nets = parameters("igr", N=1), Objective(1, 3), 16
    rows = [leaf(t.expand(nets * 1024, *t.shape)) for t in theta]
    source = sobol(nets, 1024, 2 if coupled else 6)
    estimate = VARIATES[name](build("igr", rows), f, coupled=coupled, generator=source)
    g = gradients(estimate.surrogate.sum(), rows)
    means, truth = tuple(x.reshape(nets, 1024, *x.shape[1:]).mean(1) for x in g), exact_gradients("igr", theta, f)
    for x, mean in zip(g, means, strict=True):  # as many draws would have a standard error of 0.0078
        assert (mean.std(0) / nets**0.5 < 0.003 * x.std(0)).all()
    assert largest_z(f"igr on nets, c = {name}, {'coupled' if coupled else 'independent'}", means, truth) < 5


def test_published_form_is_biased():
    """One independent sample, and no gradient of c at a conditional one: off by the gradient of E[c(z)]."""
    theta, f, draws = parameters("igr", N=1), Objective(1, 3), 100_000
    source = noise()
    rows = [leaf(t.expand(draws, *t.shape)) for t in theta]
    y, other = (rows[0] + rows[1] * gaussian_noise(rows[0].shape, rows[0], source) for _ in range(2))
    D, c = harden(y.detach()), f(softmaxpp(other, TAU))
    log_p = gaussian_winner_probs(*theta).log()[0]
    score = [
        torch.stack([torch.autograd.grad(x, t, retain_graph=True)[0][0] for x in log_p]) for t in theta
    ]  # (K, K-1)
    advantage = (f(D) - c).detach()[:, None, None]
    paths = gradients(c.sum(), rows)
    truth = exact_gradients("igr", theta, f)
    without = tuple(advantage * (D @ s) for s in score)
    assert largest_z("igr, the same without its path", without, truth) < 5
    published = tuple(x + path for x, path in zip(without, paths, strict=True))
    assert largest_z("igr, as published", published, truth) > 20


# -- what it refuses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [rebar, relax])
@pytest.mark.parametrize(
    "q",
    [
        InvertibleGaussian(torch.zeros(2, 2), 1.0, 0.5, flow=StickBreaking()),
        InvertibleGaussian(torch.zeros(2, 2), 1.0, 0.5, flow=Planar(u=torch.ones(2), w=torch.ones(2))),
        InvertibleReparameterization(MultivariateNormal(torch.zeros(2, 2), torch.eye(2)), SoftmaxPlusPlus(0.5)),
    ],
    ids=["sticks", "planar", "full covariance"],
)
def test_refuses_where_nothing_is_known_given_the_category(estimator, q):
    with pytest.raises(NotImplementedError, match="use rloo, score_function or uspg"):
        estimator(q, lambda z: z.square().sum((-2, -1)))


@pytest.mark.parametrize(
    "control_variate",
    [
        lambda z: torch.zeros(z.shape[:-2]),
        lambda z: torch.nn.functional.one_hot(z.argmax(-1), 3).float().sum((-2, -1)),
        lambda z: torch.ones((), requires_grad=True).expand(z.shape[:-2]),
    ],
    ids=["constant", "hard", "parameter alone"],
)
def test_refuses_a_control_variate_without_gradient(control_variate):
    q = GumbelSoftmax(0.5, torch.zeros(4, 2, 3))
    with pytest.raises(ValueError, match="no gradient with respect to the relaxed sample"):
        relax(q, lambda z: z.square().sum((-2, -1)), control_variate=control_variate)


def test_refuses_bad_arguments():
    q, f = GumbelSoftmax(0.5, torch.zeros(4, 2, 3)), lambda z: z.square().sum((-2, -1))
    with pytest.raises(ValueError, match="control_variate must map samples of shape \\(1, 4, 2, 3\\)"):
        relax(q, f, control_variate=lambda z: z.sum())
    with pytest.raises(ValueError, match="num_samples must be an integer of at least 1"):
        relax(q, f, num_samples=0)
    with pytest.raises(ValueError, match="shapes that do not broadcast together: scale \\(2,\\), examples \\(4,\\)"):
        rebar(q, f, scale=torch.ones(2))
    with pytest.raises(ValueError, match="scale must be a number or broadcast to \\(4,\\)"):
        rebar(q, f, scale=torch.ones(2, 4))
    with pytest.raises(TypeError, match="scale must be a number"):
        rebar(q, f, scale="large")
    with pytest.raises(ValueError, match="temperature is for a discrete q"):
        relax(q, f, temperature=0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_value_without_gradients(kind):
    q, f = build(kind, parameters(kind, 3)), Objective(3, 2, 3)
    expected = relax(q, f, num_samples=2, generator=noise())
    with torch.no_grad():
        actual = relax(q, f, num_samples=2, generator=noise())
    torch.testing.assert_close(actual.value, expected.value, rtol=0, atol=0)
    assert not actual.surrogate.requires_grad


def test_forms_of_the_same_q():
    """IGR-I by its base and its map, and a discrete q with its variables as one event."""
    f, theta, logits = Objective(3, 2, 3), parameters("igr", 3), parameters("gs", 3)
    base = torch.distributions.Normal(*theta)
    pairs = [
        (build("igr", theta), {}, InvertibleReparameterization(base, SoftmaxPlusPlus(TAU)), {}),
        (build("gs", logits), {}, Independent(OneHotCategorical(logits=logits[0]), 1), {"temperature": TAU}),
    ]
    for one, _, other, options in pairs:
        leaves = [*theta, *logits]
        a = relax(one, f, generator=noise()).surrogate.sum()
        b = relax(other, f, generator=noise(), **options).surrogate.sum()
        for x, y in zip(gradients(a, leaves), gradients(b, leaves), strict=True):
            assert (x is None) == (y is None)
            assert x is None or torch.allclose(x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_low_precision_and_low_temperature(kind, dtype):
    theta = [leaf(t.to(dtype)) for t in parameters(kind, 50, N=3, K=10)]
    tau, f = leaf(torch.tensor(0.01)), Objective(3, 10)
    estimate = relax(build(kind, theta, tau), lambda z: f(z.double()), num_samples=2)  # f has another dtype than q
    estimate.surrogate.sum().backward()
    assert math.isfinite(sum(x.grad.double().abs().sum().item() for x in [*theta, tau, f.weight]))
