"""Bases and flows from elsewhere."""

import pytest
import torch
from torch.distributions import Laplace, MultivariateNormal, Normal

import igr
from igr.distributions import InvertibleGaussian, InvertibleReparameterization
from igr.testing import check_distribution
from igr.transforms import SoftmaxPlusPlus

DOUBLE = torch.float64


def test_a_zuko_flow_is_a_flow():
    zuko = pytest.importorskip("zuko")
    spline = zuko.transforms.MonotonicRQSTransform(*[torch.randn(2, n, dtype=DOUBLE) for n in (8, 8, 7)])
    flow = zuko.transforms.DependentTransform(spline, 1)
    d = InvertibleGaussian(torch.zeros(2, dtype=DOUBLE), 1.0, 0.5, flow=flow)
    check_distribution(d, other=InvertibleGaussian(torch.ones(2, dtype=DOUBLE), 0.7, 0.5, flow=flow))


def test_a_whole_zuko_flow_learns_through_the_simplex():
    zuko = pytest.importorskip("zuko")
    module = zuko.flows.MAF(features=2, transforms=1, hidden_features=(8,))
    d = InvertibleGaussian(torch.zeros(5, 2), 1.0, 0.5, flow=module().transform.inv)
    z, log_q = d.rsample_and_log_prob()
    (z[:, 0].sum() + log_q.sum()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
    torch.testing.assert_close(d.log_prob(z), log_q, rtol=1e-3, atol=1e-3)


def test_a_bare_normal_base_reads_its_last_axis_as_coordinates():
    loc, scale = torch.randn(4, 3, dtype=DOUBLE), torch.rand(4, 3, dtype=DOUBLE) + 0.5
    z = torch.randn(4, 4, dtype=DOUBLE).softmax(-1)
    bare = InvertibleReparameterization(Normal(loc, scale), SoftmaxPlusPlus(0.3))
    assert bare.batch_shape == (4,)
    torch.testing.assert_close(bare.log_prob(z), InvertibleGaussian(loc, scale, 0.3).log_prob(z))


def test_half_precision_normal_bases_are_computed_in_float32():
    loc, g = torch.randn(50, 3).bfloat16(), SoftmaxPlusPlus(0.1)
    bare = InvertibleReparameterization(Normal(loc, torch.ones(3).bfloat16()), g)
    wide = InvertibleReparameterization(Normal(loc.float(), torch.ones(3)), g)
    prior = InvertibleGaussian(torch.zeros(3).bfloat16(), 1.0, 0.7)
    assert bare.sample().dtype == torch.bfloat16
    torch.testing.assert_close(bare.kl(prior), wide.kl(prior), rtol=0, atol=0)
    torch.manual_seed(2)
    _, log_q = bare.rsample_and_log_prob()
    torch.manual_seed(2)
    torch.testing.assert_close(log_q, wide.rsample_and_log_prob()[1], rtol=0, atol=0)


def test_half_precision_normals_of_any_covariance_are_computed_in_float32():
    loc, tril = torch.tensor([0.5, -1.0]), torch.tensor([[1.0, 0.0], [0.5, 2.0]])
    half, wide = (
        InvertibleReparameterization(MultivariateNormal(loc.to(t), scale_tril=tril.to(t)), SoftmaxPlusPlus(0.5))
        for t in (torch.bfloat16, torch.float32)
    )
    z = half.rsample((5,))
    assert z.dtype == torch.bfloat16
    log_z = wide.log_rsample((5,))
    torch.testing.assert_close(half.log_prob_from_log(log_z), wide.log_prob_from_log(log_z))
    prior = InvertibleGaussian(torch.zeros(2), 1.0, 0.5)
    torch.testing.assert_close(half.kl(prior), wide.kl(prior))


def test_half_precision_laplace():
    d = InvertibleReparameterization(Laplace(torch.zeros(3).bfloat16(), torch.ones(3).bfloat16()), SoftmaxPlusPlus(0.1))
    z, log_q = d.rsample_and_log_prob((100,))
    assert z.dtype == torch.bfloat16
    assert log_q.dtype == torch.float32
    assert log_q.isfinite().all()


def test_a_flow_that_was_not_called():
    with pytest.raises(TypeError, match="got a PlanarFlow; call it for the transform that it holds"):
        igr.InvertibleGaussian(torch.zeros(3), 1.0, 0.5, flow=igr.nn.PlanarFlow(4))
