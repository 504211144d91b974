"""Divergences by sampling: how well, for which pairs, and with which gradients."""

import copy
import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from kl_cases import igr_i, planar
from torch import Tensor
from torch.distributions import Dirichlet, Normal, StudentT, kl_divergence

import igr
from igr._stick_ends import StickEnd, _log_sum
from igr.distributions import (
    BinaryConcrete,
    GumbelSoftmax,
    InvertibleGaussian,
    InvertibleReparameterization,
    Relaxation,
)
from igr.kl import monte_carlo_kl
from igr.nn import PlanarFlow
from igr.transforms import SoftmaxPlusPlus, StickBreaking, VertexInterpolation

DOUBLE = torch.float64


def test_monte_carlo_estimates_and_says_how_well():
    p, q = igr_i(0.5, 0.7, 0.4), igr_i(-0.3, 1.2, 0.9, delta=0.5)
    closed = p.kl(q).item()
    scores = []
    for seed in range(200):
        estimate, error = monte_carlo_kl(p, q, 100, generator=torch.Generator().manual_seed(seed))
        scores.append((estimate.item() - closed) / error.item())
    assert abs(np.mean(scores)) < 5 / math.sqrt(200)
    assert 0.8 < np.std(scores) < 1.25


def test_the_squared_error_of_two_samples_is_right_on_average():
    p, q = igr_i(0.5, 0.7, 0.4).expand((20_000,)), igr_i(-0.3, 1.2, 0.9, delta=0.5)
    estimate, error = monte_carlo_kl(p, q, 2)
    squares = (estimate - igr_i(0.5, 0.7, 0.4).kl(q)).square() - error.square()
    assert abs(squares.mean()) < 5 * squares.std() / math.sqrt(20_000)


def test_monte_carlo_is_differentiable_in_both():
    loc = torch.tensor([0.5, -0.2], dtype=DOUBLE, requires_grad=True)
    prior = torch.tensor([0.1, 0.4], dtype=DOUBLE, requires_grad=True)

    def pair() -> tuple[Relaxation, Relaxation]:
        return InvertibleGaussian(loc, 0.8, 0.3), InvertibleGaussian(prior, 1.1, 0.6)

    p, q = pair()
    exact = torch.autograd.grad(p.kl(q), (loc, prior))
    draws = []
    for seed in range(100):
        estimate, error = monte_carlo_kl(p, q, 500, generator=torch.Generator().manual_seed(seed))
        assert not error.requires_grad
        draws.append(torch.cat(torch.autograd.grad(estimate, (loc, prior))))
    draws = torch.stack(draws)
    z = (draws.mean(0) - torch.cat(exact)) / (draws.std(0) / 10)
    assert z.abs().max() < 5


def test_monte_carlo_to_a_distribution_of_torch():
    p, q = igr_i(0.4, 0.6, 0.8, K=2), Dirichlet(torch.tensor([2.0, 3.0], dtype=DOUBLE))
    estimate, error = monte_carlo_kl(p, q, 20_000)

    def integrand(z: float) -> float:
        y = 0.8 * math.log(z / (1 - z))
        log_p = scipy.stats.norm.logpdf(y, 0.4, 0.6) + math.log(0.8 / (z * (1 - z)))
        return math.exp(log_p) * (log_p - scipy.stats.beta.logpdf(z, 2, 3))

    expected, _ = scipy.integrate.quad(integrand, 1e-9, 1 - 1e-9, limit=200)
    assert abs(estimate.item() - expected) < 5 * error.item()
    with pytest.raises(NotImplementedError, match="monte_carlo_kl"):
        kl_divergence(p, q)


def test_monte_carlo_survives_where_samples_underflow():
    logits = (10 * torch.randn(20, 10)).requires_grad_()
    estimate, error = monte_carlo_kl(GumbelSoftmax(0.01, logits), GumbelSoftmax(0.02, torch.zeros(10)), 100)
    assert estimate.isfinite().all()
    assert error.isfinite().all()
    (gradient,) = torch.autograd.grad(estimate.sum(), logits)
    assert gradient.isfinite().all()


def test_monte_carlo_broadcasts_as_the_closed_form_does():
    p = InvertibleGaussian(torch.randn(3, 2, dtype=DOUBLE), 1.0, 0.5)
    q = InvertibleGaussian(torch.randn(5, 3, 2, dtype=DOUBLE), 1.0, 0.7)
    closed = p.kl(q)
    for num_samples in (5, 3, 20_000):  # also where their number is the length of an axis
        estimate, error = monte_carlo_kl(p, q, num_samples)
        assert estimate.shape == error.shape == closed.shape == (5, 3)
    assert ((closed - estimate).abs() < 5 * error).all()
    single = GumbelSoftmax(0.5, torch.zeros(4))
    assert monte_carlo_kl(single, GumbelSoftmax(0.5, torch.randn(1000, 4))).estimate.shape == (1000,)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_monte_carlo_does_not_invert_what_both_have_in_common(dtype: torch.dtype):
    zeros, g = torch.zeros(9, dtype=dtype), [StickBreaking(), SoftmaxPlusPlus(0.5)]
    p = InvertibleReparameterization(StudentT(3.0, zeros, zeros + 2), g)
    q = InvertibleReparameterization(Normal(zeros, zeros + 3), g)
    estimate, error = monte_carlo_kl(p, q, 50_000)
    one, _ = scipy.integrate.quad(
        lambda t: scipy.stats.t.pdf(t, 3, 0, 2) * (scipy.stats.t.logpdf(t, 3, 0, 2) - scipy.stats.norm.logpdf(t, 0, 3)),
        -2000,
        2000,
        points=[-5, 0, 5],
        limit=1000,
    )
    assert abs(estimate.item() - 9 * one) < 5 * error.item()


def test_monte_carlo_with_flows_before_a_common_end():
    p, q = (
        InvertibleGaussian(torch.zeros(2, dtype=DOUBLE), 1.0, 0.5, flow=[f, StickBreaking()])
        for f in (planar(), planar(-1.0))
    )
    estimate, error = monte_carlo_kl(p, q, 20_000)
    z, log_p = p.log_rsample_and_log_prob((20_000,))
    ratio = log_p - q.log_prob_from_log(z)
    assert abs(estimate - ratio.mean()) < 5 * (error + ratio.std() / math.sqrt(20_000))


def test_monte_carlo_of_binary_concretes_at_low_temperature():
    p = BinaryConcrete(0.05, torch.tensor([4.0, -4.0, 0.3], dtype=DOUBLE))
    q = BinaryConcrete(0.1, torch.zeros(3, dtype=DOUBLE))
    estimate, error = monte_carlo_kl(p, q, 100_000)
    pair = [GumbelSoftmax(d.temperature, torch.stack([d.logits, 0 * d.logits], -1)) for d in (p, q)]
    same, same_error = monte_carlo_kl(pair[0], pair[1], 100_000)
    assert ((estimate - same).abs() < 5 * (error.square() + same_error.square()).sqrt()).all()


def test_monte_carlo_of_binary_concretes_that_round_to_zero_and_one():
    logits = torch.tensor([4.0, -4.0, 0.3])
    (estimate, error), (wide, wide_error) = (
        monte_carlo_kl(BinaryConcrete(0.02, logits.to(dtype)), BinaryConcrete(0.1, torch.zeros(3, dtype=dtype)), 20_000)
        for dtype in (torch.float32, DOUBLE)
    )
    assert ((estimate - wide).abs() < 5 * (error.square() + wide_error.square()).sqrt()).all()


def test_monte_carlo_refuses_bad_input():
    with pytest.raises(ValueError, match="num_samples must be an integer of at least 2 for a standard error, got 1"):
        monte_carlo_kl(igr_i(), igr_i(), 1)
    with pytest.raises(TypeError, match="p must be a relaxation"):
        monte_carlo_kl(Dirichlet(torch.ones(3)), igr_i())
    with pytest.raises(TypeError, match="other must be a distribution, got 3"):
        monte_carlo_kl(igr_i(), 3)  # type: ignore[arg-type]


def test_flows_that_are_trained_apart_have_a_sampled_gradient():
    flow = PlanarFlow(3, std=0.7).double()
    other = copy.deepcopy(flow)
    loc = torch.tensor([0.5, -0.3], dtype=DOUBLE)

    def estimate(seed: int) -> Tensor:
        p = InvertibleGaussian(loc, 1.0, 0.5, flow=flow())
        q = InvertibleGaussian(torch.zeros_like(loc), 1.0, 0.5, flow=other())
        return monte_carlo_kl(p, q, 2_000, generator=torch.Generator().manual_seed(seed)).estimate

    found = torch.stack([torch.autograd.grad(estimate(i), other.b)[0] for i in range(20)])
    with torch.no_grad():
        differences = torch.zeros_like(found)
        for at in range(len(other.b)):
            ends = []
            for change in (1e-4, -2e-4):
                other.b[at] += change
                ends.append(torch.stack([estimate(i) for i in range(20)]))
            other.b[at] += 1e-4
            differences[:, at] = (ends[0] - ends[1]) / 2e-4
    torch.testing.assert_close(found, differences, rtol=1e-4, atol=1e-5)  # with the same noise
    assert found.mean(0).abs().max() > 0.01


STICK_ENDS = [
    (True, True, 0.5, 0.4, 1.0),
    (True, True, 0.5, 0.5, 1.3),
    (True, True, 0.4, 0.5, 1.0),
    (False, True, 0.5, 0.4, 1.0),
    (False, True, 0.5, 0.5, 1.0),
    (False, False, 0.5, 0.4, 1.0),
    (True, False, 0.5, 0.2, 1.0),
]


@pytest.mark.parametrize(("here", "there", "tau", "tau_there", "delta"), STICK_ENDS)
def test_sticks_between_temperatures_are_those_of_the_densities(here, there, tau, tau_there, delta):
    """Where sticks are not near what is rounded, the ratio is that of the two densities of z."""
    p = InvertibleGaussian(torch.tensor([0.2, -0.4, 0.1], dtype=DOUBLE), 0.7, tau, flow=StickBreaking(here))
    flow = StickBreaking(there)
    q = InvertibleGaussian(torch.zeros(3, dtype=DOUBLE), 1.2, tau_there, flow=flow, delta=delta)
    generator = torch.Generator().manual_seed(0)
    found = p._log_ratio(q, (2_000,), generator=generator)
    log_z, log_p = p.log_rsample_and_log_prob((2_000,), generator=generator.manual_seed(0))
    expected = log_p - q.log_prob_from_log(log_z)
    assert torch.equal(found.isinf(), expected.isinf())
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(("leftover", "tau", "expected"), [(False, 0.4, 640.6), (True, 0.5, 5.136)])
def test_sticks_below_what_is_rounded_do_not_make_a_divergence_infinite(leftover, tau, expected):
    """The literal form of 20 sticks in float32; expected is what float64 says of 200,000 samples."""
    p, q = (
        InvertibleGaussian(torch.zeros(19), 1.0, t, flow=StickBreaking(leftover=left))
        for t, left in ((0.5, False), (tau, leftover))
    )
    estimate, error = monte_carlo_kl(p, q, 5_000)
    assert 0 < error < 5
    assert abs(estimate - expected) < 5 * error


@pytest.mark.parametrize("derivative", [torch.func.jacrev, torch.func.jacfwd])
def test_a_factor_of_zero_has_a_derivative_in_both_modes(derivative):
    """log(f e^x + 1) by f at zero is e^x, though the factor has no logarithm there."""
    x = torch.tensor([0.5, -1.0], dtype=torch.float64)
    found = derivative(lambda f: _log_sum([(f, x)], 1.0))(torch.zeros((), dtype=torch.float64))
    torch.testing.assert_close(found, x.exp())


@pytest.mark.parametrize("outer", [torch.func.jacrev, torch.func.jacfwd])
@pytest.mark.parametrize("inner", [torch.func.jacrev, torch.func.jacfwd])
def test_a_factor_of_zero_has_second_derivatives(outer, inner):
    """log(f e^x + e^y) by f at zero is e^(x - y), whose derivatives by f, x and y are -e^(2(x - y)) and ±e^(x - y)."""
    point = torch.tensor([0.0, 0.5, -0.2], dtype=DOUBLE)

    def value(at: Tensor) -> Tensor:
        f, x, y = at
        return _log_sum([(f, x), (1.0, y)], 0.0)

    _, x, y = point
    slope = (x - y).exp()
    torch.testing.assert_close(outer(inner(value))(point)[0], torch.stack([-slope.square(), slope, -slope]))


@pytest.mark.parametrize("tau", [0.4, 0.5])  # another one, and one that is trained apart where they meet
def test_sticks_between_temperatures_have_gradients(tau):
    tau = torch.tensor(tau, dtype=DOUBLE, requires_grad=True)
    loc = torch.tensor([0.2, -0.4, 0.1], dtype=DOUBLE, requires_grad=True)
    noise = torch.Generator()

    def ratio(loc: Tensor, tau: Tensor) -> Tensor:
        p = InvertibleGaussian(loc, 0.7, 0.5, flow=StickBreaking())
        q = InvertibleGaussian(torch.zeros(3, dtype=DOUBLE), 1.2, tau, flow=StickBreaking())
        return p._log_ratio(q, (3,), generator=noise.manual_seed(1))

    assert torch.autograd.gradcheck(ratio, (loc, tau), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(ratio, (loc, tau))


def test_compiled_forward_mode_knows_a_temperature_that_meets_another():
    log_w = torch.randn(4, dtype=DOUBLE).log_softmax(-1)

    def moved(tau: Tensor) -> Tensor:
        return StickEnd(True, tau, 1.0).sticks_of(log_w, StickEnd(True, 0.5, 1.0))

    def slope(tau: Tensor) -> Tensor:
        return torch.func.jvp(moved, (tau,), (torch.ones_like(tau),))[1]

    tau = torch.tensor(0.5, dtype=DOUBLE)
    torch.compiler.reset()
    found = torch.compile(slope, fullgraph=True, backend="eager")(tau)
    torch.testing.assert_close(found, torch.func.jacrev(moved)(tau))


def test_vertex_interpolation_keeps_what_underflows():
    """Sticks of exp(-120): float32 has no such number, and its logarithm."""

    def pair(dtype: torch.dtype) -> list[InvertibleReparameterization]:
        base = Normal(torch.tensor([0.0, -120.0], dtype=dtype), torch.ones(2, dtype=dtype))
        return [InvertibleReparameterization(base, VertexInterpolation(tau)) for tau in (0.5, 0.7)]

    p, q = pair(torch.float32)
    log_z, log_p = p.log_rsample_and_log_prob((50,))
    torch.testing.assert_close(p.log_prob_from_log(log_z), log_p, rtol=1e-4, atol=1e-3)
    (here, _), (there, error) = monte_carlo_kl(p, q, 20_000), monte_carlo_kl(*pair(DOUBLE), 20_000)
    assert abs(here - there) < 8 * error
    outside = torch.tensor([0.4, 0.3, 0.3]).log()  # between the pieces
    assert p.log_prob_from_log(outside) == -math.inf


def test_a_number_of_samples_is_an_integer():
    q = igr_i()
    with pytest.raises(ValueError, match=r"num_samples must be an integer .*, got 100\.0"):
        monte_carlo_kl(q, q, 100.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"num_samples must be an integer .*, got 100\.0"):
        igr.monte_carlo_recovered(q, 100.0)  # type: ignore[arg-type]
    assert monte_carlo_kl(q, q, np.int64(100)).estimate.abs() < 1e-12


def test_countable_relaxations_are_refused_with_a_recipe_that_works():
    p = igr.CountableStickBreaking(0.0, 1.0, temperature=0.5, precision=0.9)
    q = igr.CountableStickBreaking(0.5, 1.2, temperature=0.5, precision=0.9)
    with pytest.raises(
        TypeError, match=r"with K categories, got a Countable.*average log_p - q\.log_prob\(sample\) over sample"
    ):
        monte_carlo_kl(p, q)
    sample, log_p = p.rsample_and_log_prob((20_000,))
    closed = kl_divergence(Normal(0.0, 1.0), Normal(0.5, 1.2)) * sample.mask.sum(-1)  # of all sticks that a sample has
    difference = log_p - q.log_prob(sample) - closed
    assert abs(difference.mean()) < 5 * difference.std() / 20_000**0.5
