"""Every property of every class once more, with parameters on a CUDA device."""

import math

import pytest
import torch
from registry import DISTRIBUTIONS, TRANSFORMS, Setting, cases, label

from igr import functional
from igr.distributions import GumbelSoftmax, InvertibleGaussian
from igr.testing import check_distribution, check_transform

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize(("name", "setting"), cases(TRANSFORMS, "cuda"), ids=label)
def test_transforms(name: str, setting: Setting):
    transform = TRANSFORMS[name](setting)
    x = torch.randn(8, *setting.batch, setting.K - 1, dtype=torch.float64, device="cuda").clamp(-3, 3)
    check_transform(transform, x)


@pytest.mark.parametrize(("name", "setting"), cases(DISTRIBUTIONS, "cuda"), ids=label)
def test_distributions(name: str, setting: Setting):
    d, other = DISTRIBUTIONS[name](setting)
    check_distribution(d, other=other, parameters=setting.parameters)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_temperatures_stay_finite(dtype: torch.dtype):
    loc = (10 * torch.randn(1000, 9, device="cuda")).to(dtype).requires_grad_()
    logits = (10 * torch.randn(1000, 10, device="cuda")).to(dtype).requires_grad_()
    for d, parameter in ((InvertibleGaussian(loc, 1.0, 0.01), loc), (GumbelSoftmax(0.01, logits), logits)):
        z, log_q = d.rsample_and_log_prob()
        assert z.dtype == dtype
        assert log_q.isfinite().all()
        (gradient,) = torch.autograd.grad(z.float().sum() + log_q.mean(), parameter)
        assert gradient.isfinite().all()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_temperature_on_the_device_is_used_without_waiting():
    loc, tau = torch.zeros(4, 3, device="cuda"), torch.full((4, 1), 0.5, device="cuda")
    d = InvertibleGaussian(loc, 1.0, tau)
    torch.cuda.set_sync_debug_mode("error")
    try:
        z, log_q = d.rsample_and_log_prob()
        d.hard_rsample()
        functional.gaussian_softmax(loc, 1.0, tau, hard=True)
        functional.gumbel_softmax(loc, tau)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert z.isfinite().all()
    assert log_q.isfinite().all()


def test_samples_and_densities_agree_with_the_cpu():
    loc, scale = torch.randn(50, 9, dtype=torch.float64), torch.rand(50, 9, dtype=torch.float64) + 0.5
    q = InvertibleGaussian(loc, scale, 0.01)
    log_z = q.log_rsample()
    there = InvertibleGaussian(loc.cuda(), scale.cuda(), 0.01).log_prob_from_log(log_z.cuda())
    torch.testing.assert_close(there.cpu(), q.log_prob_from_log(log_z), rtol=1e-12, atol=1e-9)
    assert math.isfinite(there.sum().item())
