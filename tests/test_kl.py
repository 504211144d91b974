"""Divergences in closed form: against quadrature and torch, in all precisions, and with what is trained."""

import copy
import math
import subprocess
import sys
from functools import partial

import pytest
import scipy.integrate
import torch
from kl_cases import planar
from torch import Tensor
from torch.distributions import (
    AffineTransform,
    Distribution,
    Gumbel,
    Independent,
    Laplace,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
    Pareto,
    TanhTransform,
    TransformedDistribution,
    kl_divergence,
)

from igr.distributions import InvertibleGaussian, InvertibleReparameterization, Relaxation
from igr.kl import categorical_kl, monte_carlo_kl
from igr.nn import PlanarFlow
from igr.transforms import Planar, SoftmaxPlusPlus, StickBreaking

DOUBLE = torch.float64


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
    one = torch.tensor(1.0, dtype=DOUBLE)
    for other in (0.5, 0.5 * one):
        kl = partial(lambda other, value: Relaxation.kl(*pair(value, other)), other)
        torch.testing.assert_close(torch.func.jvp(kl, (0.5 * one,), (one,))[1], found)
        rows = torch.func.vmap(kl)  # which hides from the outer derivative what is inside
        torch.testing.assert_close(torch.func.jvp(rows, (0.5 * one.expand(3),), (one.expand(3),))[1], found.expand(3))


MODES = {"rev": torch.func.jacrev, "fwd": torch.func.jacfwd}


@pytest.mark.parametrize("modes", [(a, b) for a in MODES for b in MODES], ids="-".join)
def test_mixed_derivatives_where_temperatures_meet(modes):
    """By scale and temperature, in every mode, and by plain gradients around that of torch.func."""
    loc = torch.tensor([0.3, -1.0], dtype=DOUBLE)

    def kl(scale: Tensor, temperature: Tensor) -> Tensor:
        q = InvertibleGaussian(loc, scale, temperature, validate_args=False)
        return q.kl(InvertibleGaussian(torch.zeros_like(loc), 1.0, 0.5, validate_args=False))

    scale, tau, h = torch.tensor([0.7, 0.7], dtype=DOUBLE), torch.tensor(0.5, dtype=DOUBLE), 1e-4
    at = [kl(scale + s * h, tau + t * h) for s in (1, -1) for t in (1, -1)]
    expected = (at[0] - at[1] - at[2] + at[3]) / (4 * h * h)
    outer, inner = (MODES[mode] for mode in modes)
    found = outer(lambda tau: inner(kl)(scale, tau).sum())(tau)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    trained = tau.clone().requires_grad_()
    found = torch.autograd.grad(inner(kl)(scale, trained).sum(), trained)[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


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


def test_inverses_and_bases_that_are_trained_apart_have_none_either():
    loc = torch.tensor([0.5, -0.3], dtype=DOUBLE)
    flow = PlanarFlow(3, std=0.7).double()
    maps, others = flow(), copy.deepcopy(flow)()
    p = InvertibleGaussian(loc, 1.0, 0.5, flow=maps.inv)
    with pytest.raises(NotImplementedError, match="monte_carlo_kl"):
        p.kl(InvertibleGaussian(torch.zeros_like(loc), 1.0, 0.5, flow=others.inv))
    q = InvertibleGaussian(torch.zeros_like(loc), 1.0, 0.5, flow=maps.inv)
    torch.testing.assert_close(p.kl(q), loc.square().sum() / 2)

    def stretched(scale: Tensor, sigma: float) -> InvertibleReparameterization:
        inner = Independent(Normal(torch.zeros_like(loc), sigma), 1)
        base = TransformedDistribution(inner, AffineTransform(0.0, scale))
        return InvertibleReparameterization(base, SoftmaxPlusPlus(0.5))

    one, other = (torch.tensor(2.0, dtype=DOUBLE, requires_grad=True) for _ in range(2))
    torch.testing.assert_close(
        stretched(one, 1.0).kl(stretched(one, 2.0)), stretched(one.detach(), 1.0).kl(stretched(one.detach(), 2.0))
    )
    with pytest.raises(NotImplementedError, match="monte_carlo_kl"):
        stretched(one, 1.0).kl(stretched(other, 2.0))

    def squashed(scale: Tensor, sigma: float) -> InvertibleReparameterization:
        base = TransformedDistribution(stretched(scale, sigma).base, TanhTransform())
        return InvertibleReparameterization(base, SoftmaxPlusPlus(0.5))

    torch.testing.assert_close(squashed(one, 1.0).kl(squashed(one, 2.0)), stretched(one, 1.0).kl(stretched(one, 2.0)))
    with pytest.raises(NotImplementedError, match="monte_carlo_kl"):
        squashed(one, 1.0).kl(squashed(other, 2.0))


def test_bases_that_torch_makes_of_transforms_have_its_divergences():
    """Their parameters are in their transforms, and their divergences are not those of what is transformed."""
    loc = torch.tensor([0.5, -0.3], dtype=DOUBLE, requires_grad=True)
    for kind in (Gumbel, Pareto):
        p, q = kind(loc.exp(), loc.exp()), kind(0.5 * loc.exp(), 2 * loc.exp())
        found = InvertibleReparameterization(p, SoftmaxPlusPlus(0.5)).kl(
            InvertibleReparameterization(q, SoftmaxPlusPlus(0.5))
        )
        torch.testing.assert_close(found, kl_divergence(p, q).sum(-1))


def test_a_base_that_does_not_say_its_support_is_refused_with_advice():
    class Silent(Distribution):
        has_rsample, arg_constraints = True, {}

        def rsample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
            return torch.randn(*sample_shape, 2, dtype=DOUBLE)

    silent = InvertibleReparameterization(Silent(event_shape=torch.Size((2,))), SoftmaxPlusPlus(0.5))
    state = torch.get_rng_state()
    for temperature in (0.5, 0.7):
        with pytest.raises(NotImplementedError, match="monte_carlo_kl"):
            silent.kl(InvertibleGaussian(torch.zeros(2, dtype=DOUBLE), 1.0, temperature))
        with pytest.raises(NotImplementedError, match="monte_carlo_kl"):
            InvertibleGaussian(torch.zeros(2, dtype=DOUBLE), 1.0, temperature).kl(silent)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
def test_scalars_do_not_decide_the_dtype(shape: tuple[int, ...]):
    def at(m: float, tau: float, dtype: torch.dtype) -> InvertibleGaussian:
        return InvertibleGaussian(torch.tensor([m, 0.5]).to(dtype), 1.0, torch.full(shape, tau, dtype=DOUBLE))

    exact = at(0.0, 0.5, DOUBLE).kl(at(1.0, 0.6, DOUBLE))
    for dtype in (torch.float32, torch.float16):
        found = at(0.0, 0.5, dtype).kl(at(1.0, 0.6, dtype))
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=0)


def test_divergences_between_flows_compile():
    flow = PlanarFlow(4, std=0.7)

    def kl(loc: Tensor) -> Tensor:
        maps = flow()
        p, q = (InvertibleGaussian(m, 1.0, 0.5, flow=maps, validate_args=False) for m in (loc, torch.zeros_like(loc)))
        return p.kl(q)

    loc = torch.randn(5, 3)
    found = torch.compile(kl, fullgraph=True, backend="aot_eager")(loc)
    torch.testing.assert_close(found, loc.square().sum(-1) / 2)
