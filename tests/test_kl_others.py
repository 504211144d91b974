"""Divergences from relaxations to distributions that are not this library's, where samples round to the boundary."""

import math

import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import torch
from torch.distributions import (
    Beta,
    Dirichlet,
    Distribution,
    LogisticNormal,
    RelaxedBernoulli,
    RelaxedOneHotCategorical,
    Uniform,
)

from igr import estimators
from igr.distributions import BinaryConcrete, GumbelSoftmax, InvertibleGaussian
from igr.kl import monte_carlo_kl
from igr.kumaraswamy import Kumaraswamy

DOUBLE = torch.float64
SAMPLES = 20_000


def of_log_odds(log_p_times_slope, log_q_times_slope, tau: float) -> float:
    """KL(p || q) as an integral over log-odds x, from the logarithms of p(x) dx and q(x) dx."""

    def integrand(x: float) -> float:
        return math.exp(log_p_times_slope(x)) * (log_p_times_slope(x) - log_q_times_slope(x))

    return scipy.integrate.quad(integrand, -60 / tau, 60 / tau, limit=1000, points=(0.0,), epsabs=1e-10)[0]


def logistic(x: float) -> float:
    return -abs(x) - 2 * math.log1p(math.exp(-abs(x)))


@pytest.mark.parametrize("tau", [0.5, 0.1, 0.02])
@pytest.mark.parametrize("q", [Beta(2.0, 3.0), Kumaraswamy(2.0, 3.0)], ids=["beta", "kumaraswamy"])
def test_binary_concretes_to_distributions_on_the_interval(q: Distribution, tau: float):
    estimate, error = monte_carlo_kl(BinaryConcrete(tau, torch.tensor(0.7)), q, SAMPLES)

    def log_q(x: float) -> float:  # times x (1 - x), the slope of the sigmoid
        log_z, log_1m = -float(scipy.special.softplus(-x)), -float(scipy.special.softplus(x))
        if isinstance(q, Beta):
            return 2 * log_z + 3 * log_1m - float(scipy.special.betaln(2, 3))
        log_1m_square = log_1m + math.log1p(math.exp(log_z))  # 1 - z² = (1 - z) (1 + z)
        return math.log(6) + 2 * log_z + 2 * log_1m_square + log_1m

    expected = of_log_odds(lambda x: math.log(tau) + logistic(tau * x - 0.7), log_q, tau)
    assert error < 0.02 * expected
    assert abs(estimate - expected) < 5 * error


@pytest.mark.parametrize("tau", [0.5, 0.05, 0.01])
def test_igr_to_a_dirichlet(tau: float):
    q = Dirichlet(torch.tensor([2.0, 3.0]))
    estimate, error = monte_carlo_kl(InvertibleGaussian(torch.tensor([0.4]), 0.6, tau), q, SAMPLES)

    def log_p(x: float) -> float:
        return float(scipy.stats.norm.logpdf(x, 0.4 / tau, 0.6 / tau))

    def log_q(x: float) -> float:
        return (
            -2 * float(scipy.special.softplus(-x)) - 3 * float(scipy.special.softplus(x)) - scipy.special.betaln(2, 3)
        )

    low, high = (0.4 - 8 * 0.6) / tau, (0.4 + 8 * 0.6) / tau
    expected, _ = scipy.integrate.quad(
        lambda x: math.exp(log_p(x)) * (log_p(x) - log_q(x)), low, high, points=(0.0, 0.4 / tau), limit=500
    )
    assert error < 0.02 * expected
    assert abs(estimate - expected) < 5 * error


@pytest.mark.parametrize("temperature", [torch.tensor(0.1), torch.tensor([0.05]), 0.1], ids=str)
def test_the_same_law_of_torch_has_no_divergence(temperature: torch.Tensor | float):
    logits, tau = torch.tensor([0.3, -1.0, 0.8]), float(temperature)
    estimate, _ = monte_carlo_kl(GumbelSoftmax(tau, logits), RelaxedOneHotCategorical(temperature, logits=logits), 1000)
    assert estimate.abs() < 1e-4
    binary = BinaryConcrete(tau, logits)
    estimate, _ = monte_carlo_kl(binary, RelaxedBernoulli(temperature, logits=logits), 1000)
    assert (estimate.abs() < 1e-4).all()


def test_logits_of_torch_have_gradients():
    logits = torch.tensor([0.3, -1.0, 0.8], dtype=DOUBLE, requires_grad=True)
    gradients = []
    for q in (RelaxedOneHotCategorical(torch.tensor(0.7), logits=logits), GumbelSoftmax(0.7, logits)):
        p, generator = GumbelSoftmax(0.5, torch.zeros(3, dtype=DOUBLE)), torch.Generator().manual_seed(1)
        estimate, _ = monte_carlo_kl(p, q, 200, generator=generator)
        gradients += torch.autograd.grad(estimate, logits)
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-8)
    assert gradients[0].abs().max() > 0.01


@pytest.mark.parametrize(
    ("p", "q"),
    [
        (BinaryConcrete(0.02, torch.tensor(0.0)), Uniform(0.0, 1.0)),
        (InvertibleGaussian(torch.zeros(2), 1.0, 0.01), LogisticNormal(torch.zeros(2), torch.ones(2))),
        (InvertibleGaussian(torch.zeros(2), 1.0, 0.1), LogisticNormal(torch.zeros(2), torch.ones(2))),
    ],
    ids=["interval", "zero", "one"],
)
def test_samples_that_have_rounded_are_not_scored_at_points(p, q):
    with pytest.raises(ValueError, match=r"rounded to the boundary, where .* higher temperature"):
        monte_carlo_kl(p, q, 1000)


def test_what_extends_them_has_a_density_of_its_own():
    class Scaled(Dirichlet):
        def log_prob(self, value: torch.Tensor) -> torch.Tensor:
            return super().log_prob(value) + 1.0

    p = InvertibleGaussian(torch.zeros(2, dtype=DOUBLE), 1.0, 0.9)
    plain, scaled = (
        monte_carlo_kl(p, kind(torch.ones(3, dtype=DOUBLE)), 1000, generator=torch.Generator().manual_seed(0)).estimate
        for kind in (Dirichlet, Scaled)
    )
    torch.testing.assert_close(scaled, plain - 1)


def test_points_will_do_where_nothing_rounds():
    p = BinaryConcrete(0.9, torch.tensor(0.4, dtype=DOUBLE))
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    uniform, beta = (
        monte_carlo_kl(p, q, 1000, generator=g)
        for q, g in zip((Uniform(0.0, 1.0), Beta(1.0, 1.0)), generators, strict=True)
    )
    torch.testing.assert_close(uniform.estimate, beta.estimate)


@pytest.mark.parametrize("tau", [0.5, 0.02])
def test_sticking_the_landing_knows_them_as_well(tau: float):
    logits = torch.tensor([[0.3, -1.0, 0.8]], requires_grad=True)
    prior = RelaxedOneHotCategorical(torch.tensor(tau), logits=torch.tensor([0.3, -1.0, 0.8]))
    value, surrogate = estimators.sticking_the_landing(
        GumbelSoftmax(tau, logits), lambda z: 0 * z.sum((-2, -1)), prior, num_samples=100
    )
    assert value.abs() < 1e-3
    (gradient,) = torch.autograd.grad(surrogate.sum(), logits)
    assert gradient.abs().max() < 1e-3  # it has landed
