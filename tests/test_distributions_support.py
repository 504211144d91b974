"""The edges of the support: exact zeros, points off the simplex, and logarithms that are none."""

import math
from collections.abc import Callable

import pytest
import torch
from torch.distributions import Normal

from igr.distributions import (
    BinaryConcrete,
    GumbelSoftmax,
    InvertibleGaussian,
    InvertibleReparameterization,
    Relaxation,
)
from igr.transforms import Planar, SoftmaxPlusPlus, StickBreaking, VertexInterpolation

DOUBLE = torch.float64


def test_an_exact_zero_has_density_zero_and_a_gradient():
    loc = torch.zeros(2, dtype=DOUBLE, requires_grad=True)
    z = torch.tensor([[0.0, 0.0, 1.0], [0.5, 0.0, 0.5], [0.2, 0.3, 0.5]], dtype=DOUBLE, requires_grad=True)
    for flow in (None, StickBreaking(), Planar(torch.ones(2, dtype=DOUBLE), torch.ones(2, dtype=DOUBLE))):
        value = InvertibleGaussian(loc, 1.0, 0.5, flow=flow).log_prob(z)
        assert value.isneginf().tolist()[:2] == [True, True]
        assert value[2].isfinite()
        gradients = torch.autograd.grad(value[2], (loc, z))
        assert all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize(
    "build", [lambda: GumbelSoftmax(0.5, torch.zeros(3)), lambda: BinaryConcrete(0.5, torch.zeros(3))]
)
def test_gumbels_refuse_an_exact_zero(build: Callable[[], Relaxation]):
    with pytest.raises(ValueError, match="rsample_and_log_prob"):
        build().log_prob(torch.tensor([0.0, 0.0, 1.0]))


@pytest.mark.parametrize("leftover", [True, False])
def test_stick_breaking_has_bounded_support(leftover: bool):
    d = InvertibleGaussian(torch.zeros(2, dtype=DOUBLE), 1.0, 0.5, flow=StickBreaking(leftover))
    z = torch.tensor([[0.999, 0.0005, 0.0005], [0.34, 0.33, 0.33]], dtype=DOUBLE)
    outside, inside = d.log_prob(z)
    assert outside == -math.inf  # log-ratios beyond 1 / τ
    assert bool(inside.isfinite()) == leftover
    centre = d.log_prob(torch.full((3,), 1 / 3, dtype=DOUBLE) + torch.tensor([2e-3, -1e-3, -1e-3], dtype=DOUBLE))
    assert bool(centre.isfinite()) == leftover  # the literal form has a_k > 0, so z_k > z_K for all k


def test_vertex_interpolation_has_disjoint_pieces():
    d = InvertibleReparameterization(Normal(torch.zeros(2, dtype=DOUBLE), 1.0), VertexInterpolation(0.3))
    z = torch.tensor([[0.5, 0.3, 0.2], [0.9, 0.06, 0.04]], dtype=DOUBLE)
    between, near = d.log_prob(z)
    assert between == -math.inf
    assert near.isfinite()


@pytest.mark.parametrize("K", [3, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_own_rounded_samples_are_in_the_support(dtype: torch.dtype, K: int):
    d = InvertibleGaussian(torch.randn(50, K - 1).to(dtype), 1.0, 1.0)
    assert not d.log_prob(d.sample()).isnan().any()
    assert d.log_prob(d.sample()).dtype == torch.float32


def test_points_off_the_simplex_are_refused():
    d = InvertibleGaussian(torch.zeros(2), 1.0, 0.5)
    with pytest.raises(ValueError, match="not in the support"):
        d.log_prob(torch.tensor([0.5, 0.3, 0.3]))
    with pytest.raises(ValueError, match="not in the support"):
        d.log_prob(torch.tensor([1.2, -0.1, -0.1]))
    with pytest.raises(ValueError, match=r"shape \(\*, 3\)"):
        d.log_prob(torch.tensor([0.5, 0.5]))
    unchecked = InvertibleGaussian(torch.zeros(2), 1.0, 0.5, validate_args=False)
    assert unchecked.log_prob(torch.tensor([0.5, 0.3, 0.3])).isfinite()


def test_points_off_the_support_of_the_base_have_no_part_in_gradients():
    concentration = torch.tensor([2.0, 3.0], dtype=DOUBLE, requires_grad=True)
    y = torch.tensor([0.5, 1.2], dtype=DOUBLE)
    d = InvertibleReparameterization(torch.distributions.Gamma(concentration, torch.ones(2)), SoftmaxPlusPlus(0.5))
    inside, outside = d.log_prob(SoftmaxPlusPlus(0.5)(torch.stack([y, -y])))
    assert outside == -math.inf
    (found,) = torch.autograd.grad(inside, concentration)
    torch.testing.assert_close(found, (y.log() - concentration.digamma()).detach())


def test_a_base_on_part_of_the_space_has_density_zero_elsewhere():
    ones = torch.ones(2, dtype=DOUBLE)
    d = InvertibleReparameterization(torch.distributions.Uniform(-0.01 * ones, 0.01 * ones), SoftmaxPlusPlus(0.5))
    outside, inside = d.log_prob(torch.tensor([[0.8, 0.1, 0.1], [0.33, 0.33, 0.34]], dtype=DOUBLE))
    assert outside == -math.inf
    assert inside == -math.inf  # |y| = 0.5 log(0.34 / 0.33) > 0.01
    assert d.log_prob(torch.full((3,), 1 / 3, dtype=DOUBLE)).item() == pytest.approx(
        2 * math.log(50) + 3 * math.log(3) + 2 * math.log(0.5)
    )


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_large_samples_of_nearly_equal_coordinates_are_accepted(dtype: torch.dtype):
    d = InvertibleGaussian(torch.randn(20, 49_999, dtype=dtype), 1.0, 0.5, flow=StickBreaking())
    assert not d.log_prob(d.rsample()).isnan().any()


def test_points_in_place_of_logarithms_are_noticed():
    for d in (InvertibleGaussian(torch.zeros(2), 1.0, 0.5), GumbelSoftmax(0.5, torch.zeros(3))):
        z = d.sample((4,))
        with pytest.raises(ValueError, match="use log_prob for the points themselves"):
            d.log_prob_from_log(z)
    with pytest.raises(ValueError, match="use log_prob for the points themselves"):
        BinaryConcrete(0.5, torch.zeros(3)).log_prob_from_log(torch.rand(3))


def test_where_a_zero_cannot_be_seen_it_has_density_zero():
    z = torch.tensor([[0.0, 0.0, 1.0], [0.2, 0.3, 0.5]])
    log_q = torch.func.vmap(GumbelSoftmax(0.5, torch.zeros(3)).log_prob)(z)
    assert log_q.isneginf().tolist() == [True, False]
    log_q = torch.func.vmap(BinaryConcrete(0.5, torch.zeros(())).log_prob)(torch.tensor([0.0, 1.0, 0.5]))
    assert log_q.isneginf().tolist() == [True, True, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logarithms_in_half_precision(dtype):
    """What is summed has been rounded in that dtype, and is refused for more than that."""
    d = GumbelSoftmax(2.0, torch.randn(20, 60).to(dtype))
    log_z = d.log_rsample().to(dtype)
    assert d.log_prob_from_log(d.rsample().log()).isfinite().all()
    torch.testing.assert_close(
        d.log_prob_from_log(log_z), d.log_prob_from_log(log_z.float().log_softmax(-1)), rtol=0.2, atol=2
    )
    with pytest.raises(ValueError, match=f"not the logarithm of .* got a {str(dtype).removeprefix('torch.')} tensor"):
        d.log_prob_from_log(log_z + 0.1)
