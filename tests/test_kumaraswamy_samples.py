"""Samples of the Kumaraswamy distribution at both ends of (0, 1), and their gradients."""

import itertools
import math

import mpmath as mp
import pytest
import torch
from kumaraswamy_cases import FAR, LOGS, PAIRS, close, exact_log1mexp, grid
from scipy import stats

from igr._draws import NoiseSource, gumbel_noise
from igr.kumaraswamy import Kumaraswamy, log_from_gumbel

pytestmark = pytest.mark.usefixtures("float64")

NOISE = [-4.0, -2.8, -1.0, -0.3, 0.0, 0.4, 1.0, 4.0, 15.0, 87.0]


def exact_logs(a, b, gumbel):
    """log x and log(1 - x)."""
    with mp.workdps(30):
        t = -exact_log1mexp(mp.exp(-mp.mpf(gumbel)) / mp.mpf(b)) / mp.mpf(a)
        return float(-t), float(exact_log1mexp(t))


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=str)
def test_law_of_samples(a, b):
    x = Kumaraswamy(a, b).sample((20_000,)).numpy()
    assert stats.kstest(x, lambda x: 1 - (1 - x**a) ** b).pvalue > 1e-5


@pytest.mark.parametrize(("a", "b"), [(1e-3, 1.0), (1.0, 1e-3), (1e3, 1e3), (1e-3, 1e3)], ids=str)
def test_law_of_samples_near_the_ends(a, b):
    """Whatever the parameters, -b log(1 - x^a) is exponential noise."""
    log_x, log1m = Kumaraswamy(a, b).log_rsample((20_000,))
    log1m_power = log1m if a == 1 else torch.log1p(-(a * log_x).exp())
    assert stats.kstest((-b * log1m_power).numpy(), stats.expon.cdf).pvalue > 1e-5


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 2e-13), (torch.float32, 5e-5)], ids=["64", "32"])
def test_logarithms_are_exact_at_both_ends(dtype, rtol):
    tiny = torch.finfo(dtype).tiny
    for a, b, gumbel in itertools.product(FAR, FAR, [-2.8, 0.3, 6.0, 80.0]):
        a, b, gumbel = (torch.tensor(x, dtype=dtype) for x in (a, b, gumbel))
        actual = log_from_gumbel(a.log(), b.log(), gumbel)
        for x, exact in zip(actual, exact_logs(a.item(), b.item(), gumbel.item()), strict=True):
            assert x.dtype == dtype
            close(x, exact, rtol=rtol, atol=tiny)


def test_what_rounds_to_one_keeps_its_distance():
    log_x, log1m = log_from_gumbel(torch.tensor(2.0).log(), torch.tensor(1e-3).log(), torch.tensor(-1.0))
    assert log_x.exp() == 1
    close(log1m, -1e3 * math.e - math.log(2))


def test_gradients_of_logarithms():
    a, b = (torch.rand(4, 3).mul(4).sub(2).exp().requires_grad_() for _ in range(2))
    gumbel = gumbel_noise(a.detach())
    assert torch.autograd.gradcheck(lambda a, b: log_from_gumbel(a.log(), b.log(), gumbel), (a, b))
    assert torch.autograd.gradgradcheck(lambda a, b: log_from_gumbel(a.log(), b.log(), gumbel), (a, b))


def test_gradients_are_finite_in_float32():
    """Over seven orders of magnitude, and right: as in float64."""
    a, b = torch.meshgrid(*[torch.logspace(-3, 3, 13, dtype=torch.float32)] * 2, indexing="ij")
    gumbel = torch.tensor(NOISE, dtype=torch.float32)
    gradients = {}
    for dtype in (torch.float32, torch.float64):
        leaves = [x.to(dtype).unsqueeze(-1).requires_grad_() for x in (a, b)]
        logs = log_from_gumbel(*(x.log() for x in leaves), gumbel.to(dtype))
        gradients[dtype] = [g for x in logs for g in _per_entry(x, leaves)]
    for g, exact in zip(gradients[torch.float32], gradients[torch.float64], strict=True):
        assert bool(g.isfinite().all())
        torch.testing.assert_close(g.double(), exact, rtol=1e-4, atol=1e-30)


def test_gradients_are_finite_in_float32_further_out():
    leaves = [x.clone().unsqueeze(-1).requires_grad_() for x in grid(torch.logspace(-12, 12, 13, dtype=torch.float32))]
    for x in log_from_gumbel(*(x.log() for x in leaves), torch.tensor(NOISE, dtype=torch.float32)):
        assert bool(x.isfinite().all())
        assert all(bool(g.isfinite().all()) for g in _per_entry(x, leaves))


def test_gradients_with_respect_to_logs():
    """In float32, finite and right wherever the exponentials are numbers."""
    gradients = {}
    for dtype in (torch.float32, torch.float64):
        leaves = [x.clone().unsqueeze(-1).requires_grad_() for x in grid(torch.tensor(LOGS, dtype=dtype))]
        logs = log_from_gumbel(*leaves, torch.tensor(NOISE, dtype=dtype))
        gradients[dtype] = [*(x.detach() for x in logs), *(g for x in logs for g in _per_entry(x, leaves))]
    for g, exact in zip(gradients[torch.float32], gradients[torch.float64], strict=True):
        assert bool(g.isfinite().all())
        torch.testing.assert_close(g.double(), exact, rtol=1e-4, atol=1e-30)


def _per_entry(x, leaves):
    """Gradients of every entry: the leaves as if they had its shape."""
    columns = [torch.autograd.grad(x[..., i].sum(), leaves, retain_graph=True) for i in range(x.shape[-1])]
    return [torch.cat(column, -1) for column in zip(*columns, strict=True)]


def test_sample_is_the_exponential_of_its_logarithm():
    q = Kumaraswamy(torch.tensor([0.5, 4.0]), 2.0)
    draws = [f((7,), generator=torch.Generator().manual_seed(3)) for f in (q.rsample, q.sample, q.log_rsample)]
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(draws[0], draws[2][0].exp())
    close(draws[2][0].exp() + draws[2][1].exp(), torch.ones(7, 2))


def test_noise_of_a_source():
    class Fixed(NoiseSource):
        def gumbel(self, like):
            return torch.full_like(like, 0.25)

    log_x, _ = Kumaraswamy(2.0, 3.0).log_rsample((5,), generator=Fixed())
    close(log_x, [0.5 * math.log(-math.expm1(-math.exp(-0.25) / 3))] * 5)
