import copy
import math
import subprocess
import sys

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Categorical,
    Dirichlet,
    Laplace,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
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
from igr.kl import categorical_kl, monte_carlo_kl
from igr.nn import PlanarFlow
from igr.transforms import Planar, SoftmaxPlusPlus, StickBreaking, VertexInterpolation

DOUBLE = torch.float64


def igr_i(
    loc: float = 0.3, scale: float = 0.8, tau: float = 0.5, delta: float = 1.0, K: int = 3, flow=None
) -> Relaxation:
    return InvertibleGaussian(torch.full((K - 1,), loc, dtype=DOUBLE), scale, tau, delta=delta, flow=flow)


def sticks(tau: float = 0.5, delta: float = 1.0, leftover: bool = True, K: int = 3, **parameters: float) -> Relaxation:
    return igr_i(tau=tau, delta=delta, K=K, flow=StickBreaking(leftover), **parameters)


def vertices(tau: float = 0.5, loc: float = 0.0, K: int = 3) -> Relaxation:
    base = Normal(torch.full((K - 1,), loc, dtype=DOUBLE), torch.ones(K - 1, dtype=DOUBLE))
    return InvertibleReparameterization(base, VertexInterpolation(tau))


def gs(tau: float = 0.5, K: int = 3) -> Relaxation:
    return GumbelSoftmax(tau, torch.zeros(K, dtype=DOUBLE))


def planar(sign: float = 1.0) -> Planar:
    return Planar(torch.tensor([1.0, sign], dtype=DOUBLE), torch.tensor([0.5, -1.0], dtype=DOUBLE))


# closed forms


def test_across_temperature_and_delta_against_quadrature():
    p = InvertibleGaussian(torch.tensor([0.7], dtype=DOUBLE), 1.3, 0.4, delta=2.0)
    q = InvertibleGaussian(torch.tensor([-0.2], dtype=DOUBLE), 0.9, 0.9, delta=0.5)

    def integrand(ratio: float) -> float:  # over log z_1 / z_2, so that no density is infinite
        log_z = torch.tensor([0.0, -ratio], dtype=DOUBLE).log_softmax(-1)
        log_p, log_q = p.log_prob_from_log(log_z).item(), q.log_prob_from_log(log_z).item()
        return math.exp(log_p + log_z.sum().item()) * (log_p - log_q)

    expected, _ = scipy.integrate.quad(integrand, -40, 40, points=[0.0], limit=200)
    assert p.kl(q).item() == pytest.approx(expected, rel=1e-8)


def test_same_map_is_the_gaussian_divergence():
    mu, sigma = torch.randn(5, 2, dtype=DOUBLE), torch.rand(5, 2, dtype=DOUBLE) + 0.5
    base = kl_divergence(Normal(mu, sigma), Normal(torch.zeros(2, dtype=DOUBLE), 1.0)).sum(-1)  # equation 13
    for flow in (None, StickBreaking(), StickBreaking(leftover=False), planar(), [planar(), planar(-1.0)]):
        p, q = (InvertibleGaussian(m, s, 0.3, flow=flow) for m, s in ((mu, sigma), (torch.zeros_like(mu), 1.0)))
        torch.testing.assert_close(p.kl(q), base)
        torch.testing.assert_close(kl_divergence(p, q), base)


def test_nearly_equal_scales_do_not_cancel():
    sigma = torch.tensor([1000.0, 1.0])
    other = sigma * (1 + 1e-3)
    p, q = InvertibleGaussian(torch.zeros(2), other, 0.5), InvertibleGaussian(torch.zeros(2), sigma, 0.5)
    expected = kl_divergence(
        Normal(0.0 * other.double(), other.double()), Normal(0.0 * sigma.double(), sigma.double())
    ).sum()
    assert p.kl(q).item() == pytest.approx(expected.item(), rel=1e-2)
    assert q.kl(q).item() == 0


def test_a_users_own_map_is_not_taken_for_the_one_it_extends():
    class Sharper(SoftmaxPlusPlus):
        """The softmax++ of a multiple of y."""

        def __init__(self, power: float) -> None:
            super().__init__(1.0)
            self.power = power

        def log_call(self, y: Tensor) -> Tensor:
            return super().log_call(self.power * y)

        def log_inverse(self, log_z: Tensor) -> Tensor:
            return super().log_inverse(log_z) / self.power

        def ladj(self, y: Tensor, log_z: Tensor) -> Tensor:
            return super().ladj(y, log_z) + y.shape[-1] * math.log(self.power)

    base = Normal(torch.zeros(2, dtype=DOUBLE), torch.ones(2, dtype=DOUBLE))
    maps = [SoftmaxPlusPlus(1.0), Sharper(1.0), Sharper(3.0)]
    for p in (InvertibleReparameterization(base, g) for g in maps):
        assert p.kl(p).item() == 0  # the same object
        for q in (InvertibleReparameterization(base, g) for g in maps if g is not p.maps[-1]):
            with pytest.raises(NotImplementedError, match="monte_carlo_kl"):
                p.kl(q)
    wide, narrow = (InvertibleReparameterization(base, g) for g in (maps[2], maps[0]))
    truth = narrow.kl(InvertibleGaussian(torch.zeros(2, dtype=DOUBLE), 1.0, 1 / 3))  # Sharper(3) is τ = 1 / 3
    estimate, error = monte_carlo_kl(narrow, wide, 20_000)
    assert abs(estimate - truth) < 5 * error


@pytest.mark.parametrize("build", [StickBreaking, lambda: Planar(torch.ones(2), torch.ones(2))])
def test_subclasses_are_compared_by_identity(build):
    plain = build()
    own = type("Own", (type(plain),), {})
    one, other = (own(*([] if isinstance(plain, StickBreaking) else [plain.u, plain.w])) for _ in range(2))
    assert one == one
    assert one != other
    assert one != plain
    assert plain != one


def test_full_covariance_against_torch():
    def random() -> MultivariateNormal:
        a = torch.randn(4, 3, 3, dtype=DOUBLE)
        return MultivariateNormal(torch.randn(4, 3, dtype=DOUBLE), a @ a.mT + torch.eye(3, dtype=DOUBLE))

    p, q = random(), random()
    g = SoftmaxPlusPlus(0.2)
    ours = InvertibleReparameterization(p, g).kl(InvertibleReparameterization(q, g))
    torch.testing.assert_close(ours, kl_divergence(p, q))


@pytest.mark.parametrize("low_rank", [False, True])
def test_full_covariance_across_temperature_and_delta(low_rank: bool):
    def relaxation(tau: float, delta: float) -> Relaxation:
        loc, factor, diagonal = torch.randn(3), torch.randn(3, 1), torch.rand(3) + 0.5
        base = LowRankMultivariateNormal(loc.double(), factor.double(), diagonal.double())
        base = base if low_rank else MultivariateNormal(base.loc, base.covariance_matrix)
        return InvertibleReparameterization(base, SoftmaxPlusPlus(tau, delta))

    p, q = relaxation(0.4, 2.0), relaxation(0.7, 0.5)
    estimate, error = monte_carlo_kl(p, q, 50_000)
    assert abs(estimate - p.kl(q)) < 5 * error


def test_per_row_temperatures():
    tau = torch.tensor([[0.2], [0.7]], dtype=DOUBLE)
    zeros = torch.zeros(3, dtype=DOUBLE)
    together = InvertibleGaussian(zeros, 0.8, tau).kl(InvertibleGaussian(zeros + 1, 1.1, tau.flip(0)))
    rows = [
        InvertibleGaussian(zeros, 0.8, a).kl(InvertibleGaussian(zeros + 1, 1.1, b)) for a, b in ((0.2, 0.7), (0.7, 0.2))
    ]
    torch.testing.assert_close(together, torch.stack(rows))


# infinite and refused; each claim is checked by sampling

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


# Monte Carlo


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


def test_a_base_on_part_of_the_space_is_not_called_infinite():
    base = torch.distributions.Uniform(torch.full((2,), -0.01, dtype=DOUBLE), torch.full((2,), 0.01, dtype=DOUBLE))
    p = InvertibleReparameterization(base, SoftmaxPlusPlus(0.5))
    with pytest.raises(NotImplementedError, match="monte_carlo_kl"):
        p.kl(sticks(0.5))
    estimate, error = monte_carlo_kl(p, sticks(0.5), 10_000)
    assert estimate.isfinite()
    assert error < 0.01


def test_equal_temperatures_of_two_precisions():
    def with_tau(tau: Tensor) -> Relaxation:
        return InvertibleGaussian(torch.zeros(2), 1.0, tau, flow=StickBreaking())

    value = with_tau(torch.tensor(0.1)).kl(with_tau(torch.tensor(0.1, dtype=DOUBLE)))
    assert value.item() == 0


def test_half_precision_temperatures_are_divided_in_float32():
    tau = [torch.tensor([[t]], dtype=torch.bfloat16) for t in (0.1, 0.3)]
    p, q = (InvertibleGaussian(torch.ones(1, 3), 1.0, t) for t in tau)
    wide = [InvertibleGaussian(torch.ones(1, 3), 1.0, t.float()) for t in tau]
    torch.testing.assert_close(p.kl(q), wide[0].kl(wide[1]), rtol=1e-6, atol=0)


def test_half_precision_bases_have_a_float32_divergence():
    g = SoftmaxPlusPlus(0.5)
    p, q = (InvertibleReparameterization(Laplace(torch.full((3,), m).bfloat16(), 1.0), g) for m in (0.0, 1.0))
    assert p.kl(q).dtype == torch.float32


def test_autocast_leaves_divergences_of_full_covariances_alone():
    a, g = torch.randn(6, 6), SoftmaxPlusPlus(0.5)
    p = InvertibleReparameterization(MultivariateNormal(torch.randn(6), a @ a.T + torch.eye(6)), g)
    low_rank = LowRankMultivariateNormal(torch.randn(6), torch.randn(6, 2), torch.ones(6))
    plain = p.kl(InvertibleReparameterization(low_rank, g))
    fresh = LowRankMultivariateNormal(low_rank.loc, low_rank.cov_factor, low_rank.cov_diag)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = p.kl(InvertibleReparameterization(fresh, g))
    torch.testing.assert_close(cast, plain, rtol=1e-6, atol=0)


def test_registered_without_asking_for_it():
    code = (
        "import torch; from igr.distributions import GumbelSoftmax as G\n"
        "try: torch.distributions.kl_divergence(G(0.5, torch.zeros(3)), G(0.5, torch.ones(3)))\n"
        "except NotImplementedError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "igr.monte_carlo_kl" in done.stdout


def test_batches_that_do_not_broadcast_are_named():
    with pytest.raises(ValueError, match=r"p \(2,\), q \(3,\)"):
        InvertibleGaussian(torch.zeros(2, 3), 1.0, 0.5).kl(InvertibleGaussian(torch.zeros(3, 3), 1.0, 0.5))
    with pytest.raises(ValueError, match=r"p \(2,\), q \(3,\)"):
        categorical_kl(torch.zeros(2), torch.zeros(3))


def test_monte_carlo_refuses_bad_input():
    with pytest.raises(ValueError, match="num_samples must be an integer of at least 2 for a standard error, got 1"):
        monte_carlo_kl(igr_i(), igr_i(), 1)
    with pytest.raises(TypeError, match="p must be a relaxation"):
        monte_carlo_kl(Dirichlet(torch.ones(3)), igr_i())
    with pytest.raises(TypeError, match="other must be a distribution, got 3"):
        monte_carlo_kl(igr_i(), 3)  # type: ignore[arg-type]


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


# the categorical surrogate of equation 8


def test_categorical_kl_against_scipy():
    logits = torch.randn(6, 4, dtype=DOUBLE)
    other = torch.randn(4, dtype=DOUBLE)
    expected = scipy.stats.entropy(logits.softmax(-1).numpy(), other.softmax(-1).numpy()[None], axis=-1)
    pairs: list[tuple[object, object]] = [
        (logits, other),
        (GumbelSoftmax(0.3, logits + 5.0), GumbelSoftmax(1.0, other)),  # blind to the temperatures
        (OneHotCategorical(logits=logits), Categorical(logits=other)),
    ]
    for p, q in pairs:
        np.testing.assert_allclose(igr.categorical_kl(p, q).numpy(), expected, rtol=1e-12)


def test_categorical_kl_with_impossible_categories():
    p = torch.tensor([0.0, 0.0, -math.inf], dtype=DOUBLE, requires_grad=True)
    value = categorical_kl(p, torch.zeros(3, dtype=DOUBLE))
    assert value.item() == pytest.approx(math.log(3 / 2))
    (gradient,) = torch.autograd.grad(value, p)
    assert gradient.isfinite().all()
    assert categorical_kl(torch.zeros(3), torch.tensor([0.0, 0.0, -math.inf])) == math.inf
    q = torch.tensor([1.0, 0.0, -math.inf], dtype=DOUBLE)  # impossible for both
    assert categorical_kl(p, q).item() == pytest.approx(scipy.stats.entropy([0.5, 0.5], q[:2].softmax(-1).numpy()))


def test_categorical_kl_of_bernoullis():
    logits = torch.randn(5, dtype=DOUBLE)
    expected = kl_divergence(Bernoulli(logits=logits), Bernoulli(logits=torch.zeros(5, dtype=DOUBLE)))
    actual = categorical_kl(BinaryConcrete(0.5, logits), Bernoulli(logits=torch.zeros(5, dtype=DOUBLE)))
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("value", [Normal(torch.zeros(3), 1.0), 0.5, torch.zeros(3, dtype=torch.int64)])
def test_categorical_kl_refuses_what_is_not_categorical(value: Tensor):
    with pytest.raises(TypeError, match="p must"):
        categorical_kl(value, torch.zeros(3))


@pytest.mark.parametrize("name", ["temperature", "delta"])
def test_what_is_trained_has_a_gradient_where_it_meets_the_others_value(name):
    def pair(value, other):
        loc = torch.tensor([0.3, -1.0], dtype=torch.float64)
        q = InvertibleGaussian(loc, 0.7, **{"temperature": 0.5, name: value})
        return q, InvertibleGaussian(torch.zeros_like(loc), 1.0, **{"temperature": 0.5, name: other})

    value = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    q, p = pair(value, 0.5)
    (found,) = torch.autograd.grad(q.kl(p), value)
    high, low = (first.kl(second) for first, second in (pair(0.5 + 1e-5, 0.5), pair(0.5 - 1e-5, 0.5)))
    torch.testing.assert_close(found, (high - low) / 2e-5, rtol=1e-6, atol=0)
    sampled = torch.stack([torch.autograd.grad(monte_carlo_kl(q, p, 500).estimate, value)[0] for _ in range(50)])
    assert abs(sampled.mean() - found) < 5 * sampled.std() / math.sqrt(50)
    first, second = pair(value, value)
    assert not first.kl(second).requires_grad  # trained as one they change nothing


def test_flows_that_are_trained_apart_have_no_closed_form_where_they_meet():
    """There is none where they differ, and its derivative is not zero where they do not."""
    loc = torch.tensor([0.5, -0.3, 0.2], dtype=DOUBLE)
    flow = PlanarFlow(4, std=0.7).double()
    other = copy.deepcopy(flow)
    p = InvertibleGaussian(loc, 1.0, 0.5, flow=flow())

    def prior(its_own: PlanarFlow, temperature: float | Tensor = 0.5) -> InvertibleGaussian:
        return InvertibleGaussian(torch.zeros_like(loc), 1.0, temperature, flow=its_own())

    with pytest.raises(NotImplementedError, match="monte_carlo_kl"):
        p.kl(prior(other))
    torch.testing.assert_close(p.kl(prior(flow)), loc.square().sum() / 2)  # another call of one module
    frozen = flow.requires_grad_(False)
    q = InvertibleGaussian(loc, 1.0, 0.5, flow=frozen())
    torch.testing.assert_close(q.kl(prior(other.requires_grad_(False))), loc.square().sum() / 2)
    with pytest.raises(NotImplementedError, match="monte_carlo_kl"):
        q.kl(prior(frozen, torch.tensor(0.5, dtype=DOUBLE, requires_grad=True)))


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


@pytest.mark.parametrize("tau", [0.4, 0.5])  # another one, and one that is trained apart where they meet
def test_sticks_between_temperatures_have_gradients(tau):
    tau = torch.tensor(tau, dtype=DOUBLE, requires_grad=True)
    loc = torch.tensor([0.2, -0.4, 0.1], dtype=DOUBLE, requires_grad=True)
    noise = torch.Generator()

    def ratio(loc: Tensor, tau: Tensor) -> Tensor:
        p = InvertibleGaussian(loc, 0.7, 0.5, flow=StickBreaking())
        q = InvertibleGaussian(torch.zeros(3, dtype=DOUBLE), 1.2, tau, flow=StickBreaking())
        return p._log_ratio(q, (3,), generator=noise.manual_seed(1))

    assert torch.autograd.gradcheck(ratio, (loc, tau))


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


def test_what_is_impossible_makes_a_categorical_divergence_infinite():
    p = InvertibleGaussian(torch.zeros(2), 1.0, 0.5)
    q = InvertibleGaussian(torch.zeros(2), 1.0, 0.5, flow=StickBreaking(leftover=False))
    assert categorical_kl(p, q) == math.inf
    assert categorical_kl(q, p).isfinite()
    loc = torch.zeros(2, requires_grad=True)
    own = InvertibleGaussian(loc, 1.0, 0.5, flow=StickBreaking(leftover=False))
    assert torch.autograd.grad(categorical_kl(own, p) + categorical_kl(own, q), loc)[0].isfinite().all()


def test_a_bernoulli_is_the_categories_zero_and_one():
    coin = Bernoulli(torch.tensor([0.9, 0.3], dtype=torch.float32))
    for i in range(2):
        one = Bernoulli(coin.probs[i])
        assert categorical_kl(igr.fit_prior(one, temperature=0.5), one).abs() < 1e-6
    torch.testing.assert_close(
        categorical_kl(torch.stack([1 - coin.probs, coin.probs], -1).log(), coin), torch.zeros(2)
    )
    half = Bernoulli(logits=torch.zeros(2, dtype=torch.bfloat16))
    assert categorical_kl(half, half).dtype == torch.float32


def test_a_number_of_samples_is_an_integer():
    q = igr_i()
    with pytest.raises(ValueError, match=r"num_samples must be an integer .*, got 100\.0"):
        monte_carlo_kl(q, q, 100.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"num_samples must be an integer .*, got 100\.0"):
        igr.monte_carlo_recovered(q, 100.0)  # type: ignore[arg-type]
    assert monte_carlo_kl(q, q, np.int64(100)).estimate.abs() < 1e-12


def test_divergences_between_flows_compile():
    flow = PlanarFlow(4, std=0.7)

    def kl(loc: Tensor) -> Tensor:
        maps = flow()
        p, q = (InvertibleGaussian(m, 1.0, 0.5, flow=maps, validate_args=False) for m in (loc, torch.zeros_like(loc)))
        return p.kl(q)

    loc = torch.randn(5, 3)
    found = torch.compile(kl, fullgraph=True, backend="aot_eager")(loc)
    torch.testing.assert_close(found, loc.square().sum(-1) / 2)
