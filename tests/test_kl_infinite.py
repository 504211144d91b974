"""Divergences that are infinite, and those that are refused; each claim is checked by sampling."""

import math

import numpy as np
import pytest
import torch
from kl_cases import gs, igr_i, planar, sticks, vertices
from torch.distributions import (
    Bernoulli,
    Dirichlet,
    Laplace,
    MultivariateNormal,
    OneHotCategorical,
    StudentT,
    kl_divergence,
)

import igr
from igr.distributions import (
    BinaryConcrete,
    GumbelSoftmax,
    InvertibleGaussian,
    InvertibleReparameterization,
    Relaxation,
)
from igr.kl import monte_carlo_kl
from igr.transforms import SoftmaxPlusPlus, StickBreaking

DOUBLE = torch.float64
INFINITE = {
    "sticks, hotter": (sticks(0.4), sticks(0.5)),
    "sticks, delta up": (sticks(0.5), sticks(0.5, delta=1.2)),
    "sticks, delta down": (sticks(0.5), sticks(0.5, delta=0.8)),
    "literal, hotter": (sticks(0.4, leftover=False), sticks(0.5, leftover=False)),
    "literal, delta down": (sticks(0.5, leftover=False), sticks(0.2, 0.9, leftover=False)),
    "leftover to literal": (sticks(0.5), sticks(0.5, leftover=False)),
    "IGR-I to sticks": (igr_i(), sticks()),
    "IGR-Planar to sticks": (igr_i(flow=planar()), sticks()),
    "GS to sticks": (gs(), sticks()),
    "vertices to sticks": (vertices(), sticks()),
    "vertices, colder": (vertices(0.5), vertices(0.4)),
    "IGR-I to vertices": (igr_i(), vertices()),
    "GS to vertices": (gs(), vertices()),
}
REFUSED = {
    "sticks, colder": (sticks(0.5), sticks(0.3)),
    "literal, colder": (sticks(0.5, leftover=False), sticks(0.3, leftover=False)),
    "literal, delta up": (sticks(0.5, leftover=False), sticks(0.2, 1.5, leftover=False)),
    "literal to leftover": (sticks(0.5, leftover=False), sticks(0.5)),
    "sticks to IGR-I": (sticks(), igr_i()),
    "sticks to GS": (sticks(), gs()),
    "vertices, hotter": (vertices(0.4), vertices(0.5)),
    "vertices to IGR-I": (vertices(), igr_i()),
    "IGR-I to vertices at one": (igr_i(), vertices(1.0)),
    "GS to GS": (gs(0.5), gs(0.7)),
    "IGR-I to GS": (igr_i(), gs()),
    "GS to IGR-I": (gs(), igr_i()),
    "other flows": (igr_i(flow=planar()), igr_i(flow=planar(-1.0))),
    "other temperature, same flow": (igr_i(tau=0.5, flow=planar()), igr_i(tau=0.4, flow=planar())),
}


@pytest.mark.parametrize(("p", "q"), INFINITE.values(), ids=INFINITE)
def test_infinite(p: Relaxation, q: Relaxation):
    assert p.kl(q).item() == math.inf
    assert kl_divergence(p, q).item() == math.inf
    estimate, error = monte_carlo_kl(p, q, 100_000)
    assert estimate.item() == math.inf
    assert error.item() == 0


@pytest.mark.parametrize(("p", "q"), REFUSED.values(), ids=REFUSED)
def test_refused_with_advice_where_finite(p: Relaxation, q: Relaxation):
    with pytest.raises(NotImplementedError, match=r"no closed form.*igr\.monte_carlo_kl"):
        kl_divergence(p, q)
    estimate, error = monte_carlo_kl(p, q, 100_000)
    assert estimate.isfinite()
    assert estimate > -5 * error  # a divergence is not negative


@pytest.mark.parametrize("p_leftover", [True, False])
@pytest.mark.parametrize("q_leftover", [True, False])
@pytest.mark.parametrize("K", [2, 3, 5])
def test_which_sticks_leave_the_others_support(p_leftover: bool, q_leftover: bool, K: int):
    generator = np.random.default_rng(K + 10 * p_leftover + 20 * q_leftover)
    seen = {True: 0, False: 0}
    for _ in range(60):
        tau = generator.uniform(0.2, 1.0, 2)
        log_delta = generator.normal(0, 0.4, 2) * generator.integers(0, 2)
        p = sticks(tau[0], math.exp(log_delta[0]), p_leftover, K, loc=0.0, scale=4.0)  # wide: reaches all its corners
        q = sticks(tau[1], math.exp(log_delta[1]), q_leftover, K, loc=0.0, scale=4.0)
        log_z = p.log_rsample((20_000,))
        a = tau[1] * (log_z[..., :-1] - log_z[..., -1:] + log_delta[1])  # the sticks with which q would make this z
        last = (1 - a.sum(-1, keepdim=True)) / (K if q_leftover else 1)
        w = torch.cat([a + last if q_leftover else a, last], -1)
        outside = bool((w < -1e-9).any())
        try:
            infinite = bool(p.kl(q) == math.inf)
        except NotImplementedError:
            infinite = False
        assert infinite == outside, f"tau {tau}, log delta {log_delta}"
        seen[infinite] += 1
    assert seen[True] > 0


def test_rows_may_differ():
    tau = torch.tensor([[0.5], [0.4]], dtype=DOUBLE)
    p = InvertibleGaussian(torch.zeros(2, dtype=DOUBLE), 1.0, tau, flow=StickBreaking())
    q = InvertibleGaussian(torch.ones(2, dtype=DOUBLE), 1.0, 0.5, flow=StickBreaking())
    value = p.kl(q)
    assert value[0].item() == pytest.approx(1.0)
    assert value[1] == math.inf
    colder = InvertibleGaussian(torch.ones(2, dtype=DOUBLE), 1.0, 0.45, flow=StickBreaking())
    with pytest.raises(NotImplementedError, match="monte_carlo_kl"):
        p.kl(colder)  # the first row has a finite divergence without a closed form
    unseen = torch.func.vmap(
        lambda t: InvertibleGaussian(torch.zeros(2), 1.0, t, flow=StickBreaking()).kl(
            InvertibleGaussian(torch.ones(2), 1.0, 0.45, flow=StickBreaking())
        )
    )(tau.float())
    assert unseen.isnan().tolist() == [True, False]  # values cannot be looked at under vmap


def test_other_refusals():
    with pytest.raises(TypeError, match="other must be a distribution, got 3"):
        igr_i().kl(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="event shapes"):
        igr_i(K=3).kl(igr_i(K=4))
    with pytest.raises(NotImplementedError, match="monte_carlo_kl"):
        igr_i().kl(Dirichlet(torch.ones(3)))
    with pytest.raises(NotImplementedError, match="monte_carlo_kl"):
        BinaryConcrete(0.5, torch.zeros(2)).kl(BinaryConcrete(0.5, torch.ones(2)))
    t = [InvertibleReparameterization(StudentT(3.0, torch.zeros(2)), SoftmaxPlusPlus(tau)) for tau in (0.5, 0.4)]
    with pytest.raises(NotImplementedError, match="monte_carlo_kl"):
        t[0].kl(t[1])
    mixed = InvertibleReparameterization(Laplace(torch.zeros(2), torch.ones(2)), SoftmaxPlusPlus(0.5))
    with pytest.raises(NotImplementedError, match="monte_carlo_kl"):
        mixed.kl(t[0])
    full = MultivariateNormal(torch.zeros(2, dtype=DOUBLE), torch.eye(2, dtype=DOUBLE))
    heavy = StudentT(torch.full((2,), 3.0, dtype=DOUBLE))
    for one, other in ((full, heavy), (heavy, full)):
        p, q = (InvertibleReparameterization(base, SoftmaxPlusPlus(0.5)) for base in (one, other))
        with pytest.raises(NotImplementedError, match="monte_carlo_kl"):
            p.kl(q)


def test_a_base_on_part_of_the_space_is_not_called_infinite():
    base = torch.distributions.Uniform(torch.full((2,), -0.01, dtype=DOUBLE), torch.full((2,), 0.01, dtype=DOUBLE))
    p = InvertibleReparameterization(base, SoftmaxPlusPlus(0.5))
    with pytest.raises(NotImplementedError, match="monte_carlo_kl"):
        p.kl(sticks(0.5))
    estimate, error = monte_carlo_kl(p, sticks(0.5), 10_000)
    assert estimate.isfinite()
    assert error < 0.01


@pytest.mark.parametrize("divergence", [kl_divergence, monte_carlo_kl])
def test_what_has_no_divergence_is_refused_alike(divergence):
    """Whether it is asked for in closed form or estimated; three coins are no point of three categories."""
    categories = GumbelSoftmax(0.5, torch.zeros(3), validate_args=False)
    coins = BinaryConcrete(0.5, torch.zeros(3), validate_args=False)
    countable = igr.CountableStickBreaking(0.0, 1.0, 0.5, 0.9)
    four = GumbelSoftmax(0.5, torch.zeros(4))
    for p, q in ((coins, categories), (categories, coins), (categories, four), (categories, countable)):
        with pytest.raises(ValueError, match="no KL between event shapes"):
            divergence(p, q)
    for p, q in ((categories, OneHotCategorical(torch.ones(3))), (coins, Bernoulli(torch.tensor(0.5)))):
        with pytest.raises(NotImplementedError, match=r"the second has no density; use igr\.categorical_kl"):
            divergence(p, q)
