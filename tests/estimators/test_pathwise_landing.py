"""Sticking the landing, against the densities of torch and the total derivative."""

import math
from collections.abc import Callable

import pytest
import torch
from pathwise_cases import DOUBLE, RELAXED, K, Loss, N, S, gradients, leaf, relaxed, seeded, z_scores
from torch import Tensor
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
from igr.estimators.reparameterized import reparameterized
from igr.estimators.sticking_the_landing import sticking_the_landing
from igr.transforms import SoftmaxPlusPlus, StickBreaking

pytestmark = pytest.mark.usefixtures("one_thread")

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
