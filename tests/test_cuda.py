"""Every property of every class once more, with parameters on a CUDA device."""

import math

import pytest
import torch
from registry import DISTRIBUTIONS, TRANSFORMS, Setting, cases, label

from igr import functional
from igr._simplex import one_hot_argmax
from igr.conditional import sample_conditional, sample_conditional_gumbel
from igr.countable import CountableStickBreaking
from igr.distributions import GumbelSoftmax, InvertibleGaussian
from igr.nn import GrowingSticks
from igr.prior import fit_prior
from igr.recovery import recovered_log_probs, recovered_log_probs_stick_breaking
from igr.testing import check_distribution, check_transform
from igr.transforms import StickBreaking

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


@pytest.mark.parametrize("function", [recovered_log_probs, recovered_log_probs_stick_breaking])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_recovered_probabilities_agree_with_the_cpu(function, dtype: torch.dtype):
    loc, scale = torch.randn(300, 6, dtype=dtype), torch.rand(300, 6, dtype=dtype) + 0.3
    results = []
    for device in ("cpu", "cuda"):
        m, s = (x.to(device).requires_grad_() for x in (loc, scale))
        log_p = function(m, s)
        gradients = torch.autograd.grad(log_p.exp()[:, 0].sum(), (m, s))
        results.append([x.detach().cpu() for x in (log_p.exp(), *gradients)])
    tolerance = 2e-6 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(results[1][0], results[0][0], rtol=0, atol=tolerance)
    for there, here in zip(results[1][1:], results[0][1:], strict=True):
        torch.testing.assert_close(there, here, rtol=0, atol=20 * tolerance)


def test_conditional_samples_fall_where_they_should():
    loc = (20 * torch.randn(2000, 9, device="cuda")).requires_grad_()
    scale = torch.exp(2 * torch.randn(2000, 9, device="cuda"))
    one_hot = one_hot_argmax(torch.randn(2000, 10, device="cuda"))
    y = sample_conditional(loc, scale, one_hot)
    assert torch.equal(functional.harden(y), one_hot)
    assert torch.autograd.grad(y.sum(), loc)[0].isfinite().all()
    logits = (20 * torch.randn(2000, 10, device="cuda")).requires_grad_()
    x = sample_conditional_gumbel(logits, one_hot)
    assert torch.equal(one_hot_argmax(x), one_hot)
    assert torch.autograd.grad(x.sum(), logits)[0].isfinite().all()


def test_priors_and_countable_sticks():
    p0 = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64, device="cuda")
    for flow, tolerance in ((None, 1e-8), (StickBreaking(), 1e-5)):
        prior = fit_prior(p0, temperature=0.1, flow=flow)
        assert (prior.recovered().probs - p0).abs().max() < tolerance
    poisson = torch.distributions.Poisson(torch.tensor(3.0, device="cuda"))
    counts = fit_prior(poisson, temperature=0.1)
    assert isinstance(counts, CountableStickBreaking)
    drawn = counts.hard_rsample((100_000,)).z.argmax(-1).double()
    assert drawn.is_cuda
    assert drawn.mean().item() == pytest.approx(3.0, abs=5 * math.sqrt(3.0 / 100_000))
    sticks = GrowingSticks(block=4).cuda()
    optimizer = torch.optim.Adam(sticks.parameters())
    sticks.attach(optimizer)
    sample, log_q = sticks(0.5, 0.999).rsample_and_log_prob((100,))
    (sample.z.sum() + log_q.sum()).backward()
    assert all(p.grad is not None and p.grad.is_cuda for p in sticks.parameters())
