"""The Kumaraswamy distribution: samples at both ends of (0, 1), density, moments and divergences from the Beta."""

import copy
import itertools
import math
import pickle

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.distributions import Beta, kl_divergence
from torch.distributions import Kumaraswamy as TorchKumaraswamy

from igr import _kumaraswamy_forms as forms
from igr.functional import NoiseSource, gumbel_noise
from igr.kumaraswamy import Kumaraswamy, log_from_gumbel, log_from_gumbel_of_logs

PAIRS = [(0.3, 0.4), (0.5, 3.0), (1.0, 1.0), (2.0, 0.7), (5.0, 8.0)]
FAR = [1e-3, 0.03, 1.0, 20.0, 1e3]
LOGS = [-80.0, -60.0, -44.0, -43.0, -20.0, -3.0, 0.0, 3.0, 20.0, 43.0, 80.0]
NOISE = [-4.0, -2.8, -1.0, -0.3, 0.0, 0.4, 1.0, 4.0, 15.0, 87.0]


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def close(actual, expected, rtol=1e-12, atol=0.0):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), rtol=rtol, atol=atol)


def log_density(a, b, log_x):
    return math.log(a * b) + (a - 1) * log_x + (b - 1) * np.log(-np.expm1(a * log_x))


def expectation(a, b, f):
    """Of f(log x, log(1 - x)), by scipy over the logit of x, which resolves both ends."""

    def integrand(y):
        log_x, log1m = -np.logaddexp(0.0, -y), -np.logaddexp(0.0, y)
        return math.exp(log_density(a, b, log_x) + log_x + log1m) * f(log_x, log1m)

    ends = -45 / min(a, 1), 45 / min(b, 1)
    return integrate.quad(integrand, *ends, points=[0.0], limit=500, epsabs=1e-13, epsrel=1e-12)[0]


def exact_log1mexp(w):
    """log(1 - e^-w) by mpmath."""
    return mp.log1p(-mp.exp(-w)) if w > 1 else mp.log(-mp.expm1(-w))


def mean_neg_log1m(a, b):
    """The integral of (1 - x^a)^b / (1 - x) over (0, 1) by mpmath, in log v with x = 1 - exp(-v)."""
    with mp.workdps(25):
        a, b = mp.mpf(a), mp.mpf(b)

        def integrand(y):
            v = mp.exp(y)
            return v * (-mp.expm1(a * exact_log1mexp(v))) ** b

        first, last = -250 if a < 0.1 and b > 10 else -60, mp.log(80 / b + abs(mp.log(a)) + 1)
        panels = int((last - first) / 4) + 1
        return float(mp.quad(integrand, mp.linspace(first, last, panels + 1), maxdegree=7))


def exact_logs(a, b, gumbel):
    """log x and log(1 - x)."""
    with mp.workdps(30):
        t = -exact_log1mexp(mp.exp(-mp.mpf(gumbel)) / mp.mpf(b)) / mp.mpf(a)
        return float(-t), float(exact_log1mexp(t))


# ------------------------------------------------------------------------------------------------------------ samples


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
        actual = log_from_gumbel(a, b, gumbel)
        for x, exact in zip(actual, exact_logs(a.item(), b.item(), gumbel.item()), strict=True):
            assert x.dtype == dtype
            close(x, exact, rtol=rtol, atol=tiny)


def test_what_rounds_to_one_keeps_its_distance():
    log_x, log1m = log_from_gumbel(torch.tensor(2.0), torch.tensor(1e-3), torch.tensor(-1.0))
    assert log_x.exp() == 1
    close(log1m, -1e3 * math.e - math.log(2))


def test_gradients_of_logarithms():
    a, b = (torch.rand(4, 3).mul(4).sub(2).exp().requires_grad_() for _ in range(2))
    gumbel = gumbel_noise(a.detach())
    assert torch.autograd.gradcheck(lambda a, b: log_from_gumbel(a, b, gumbel), (a, b))
    assert torch.autograd.gradgradcheck(lambda a, b: log_from_gumbel(a, b, gumbel), (a, b))


def test_gradients_are_finite_in_float32():
    """Over seven orders of magnitude, and right: as in float64."""
    a, b = torch.meshgrid(*[torch.logspace(-3, 3, 13, dtype=torch.float32)] * 2, indexing="ij")
    gumbel = torch.tensor(NOISE, dtype=torch.float32)
    gradients = {}
    for dtype in (torch.float32, torch.float64):
        leaves = [x.to(dtype).unsqueeze(-1).requires_grad_() for x in (a, b)]
        logs = log_from_gumbel(*leaves, gumbel.to(dtype))
        gradients[dtype] = [g for x in logs for g in _per_entry(x, leaves)]
    for g, exact in zip(gradients[torch.float32], gradients[torch.float64], strict=True):
        assert bool(g.isfinite().all())
        torch.testing.assert_close(g.double(), exact, rtol=1e-4, atol=1e-30)


def test_gradients_are_finite_in_float32_further_out():
    leaves = [x.clone().unsqueeze(-1).requires_grad_() for x in grid(torch.logspace(-12, 12, 13, dtype=torch.float32))]
    for x in log_from_gumbel(*leaves, torch.tensor(NOISE, dtype=torch.float32)):
        assert bool(x.isfinite().all())
        assert all(bool(g.isfinite().all()) for g in _per_entry(x, leaves))


def test_gradients_with_respect_to_logs():
    """In float32, finite and right wherever the exponentials are numbers."""
    gradients = {}
    for dtype in (torch.float32, torch.float64):
        leaves = [x.clone().unsqueeze(-1).requires_grad_() for x in grid(torch.tensor(LOGS, dtype=dtype))]
        logs = log_from_gumbel_of_logs(*leaves, torch.tensor(NOISE, dtype=dtype))
        gradients[dtype] = [*(x.detach() for x in logs), *(g for x in logs for g in _per_entry(x, leaves))]
    for g, exact in zip(gradients[torch.float32], gradients[torch.float64], strict=True):
        assert bool(g.isfinite().all())
        torch.testing.assert_close(g.double(), exact, rtol=1e-4, atol=1e-30)


def test_logs_make_the_same_samples():
    a, b, gumbel = torch.tensor([0.2, 3.0]), torch.tensor([4.0, 0.1]), torch.tensor([0.3, -1.0])
    for x, same in zip(log_from_gumbel_of_logs(a.log(), b.log(), gumbel), log_from_gumbel(a, b, gumbel), strict=True):
        close(x, same)


def grid(values):
    return torch.meshgrid(values, values, indexing="ij")


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


# ------------------------------------------------------------------------------------------------------------ density


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=str)
def test_density(a, b):
    q, x = Kumaraswamy(a, b), torch.linspace(0.01, 0.99, 50)
    close(q.log_prob(x).exp(), a * b * x ** (a - 1) * (1 - x**a) ** (b - 1))
    close(q.log_prob(x), TorchKumaraswamy(torch.tensor(a), torch.tensor(b)).log_prob(x), rtol=1e-9, atol=1e-12)
    close(q.log_prob_from_log(x.log(), (-x).log1p()), q.log_prob(x))
    assert expectation(a, b, lambda log_x, log1m: 1.0) == pytest.approx(1.0, rel=1e-9)


def test_density_within_rounding_of_both_ends():
    for a, b, (log_x, log1m) in itertools.product(FAR, FAR, [(-500.0, 0.0), (0.0, -500.0), (0.0, -40.0)]):
        with mp.workdps(300):
            log_exact = mp.mpf(log_x) if log_x else mp.log1p(-mp.exp(log1m))
            rest = mp.log(-mp.expm1(mp.mpf(a) * log_exact))
            exact = mp.log(a) + mp.log(b) + (mp.mpf(a) - 1) * log_exact + (mp.mpf(b) - 1) * rest
        actual = Kumaraswamy(a, b).log_prob_from_log(torch.tensor(log_x), torch.tensor(log1m))
        close(actual, float(exact), rtol=1e-12, atol=1e-12)


def test_density_of_own_samples_is_finite_in_float32():
    a, b = torch.meshgrid(*[torch.logspace(-3, 3, 7, dtype=torch.float32)] * 2, indexing="ij")
    a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
    q = Kumaraswamy(a, b)
    log_q = q.log_prob_from_log(*q.log_rsample((2000,)))
    assert bool(log_q.isfinite().all())
    log_q.sum().backward()
    assert bool(a.grad.isfinite().all() & b.grad.isfinite().all())


@pytest.mark.parametrize(
    ("a", "b", "x", "limit"),
    [
        (0.5, 2.0, 0.0, math.inf),
        (1.0, 2.0, 0.0, math.log(2)),
        (3.0, 2.0, 0.0, -math.inf),
        (3.0, 0.5, 1.0, math.inf),
        (3.0, 1.0, 1.0, math.log(3)),
        (3.0, 2.0, 1.0, -math.inf),
    ],
    ids=str,
)
def test_limits_at_the_ends(a, b, x, limit):
    a, b = (torch.tensor(v, requires_grad=True) for v in (a, b))
    log_q = Kumaraswamy(a, b).log_prob(torch.tensor(x))
    close(log_q.detach(), limit)
    assert all(g.isfinite() for g in torch.autograd.grad(log_q, (a, b)))


def test_gradients_of_the_density():
    a, b = (torch.rand(8).mul(4).sub(2).exp().requires_grad_() for _ in range(2))
    x = torch.tensor([0.01, 0.2, 0.45, 0.55, 0.9, 0.99, 0.3, 0.7], requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b, x: Kumaraswamy(a, b).log_prob(x), (a, b, x))


def test_points_off_the_support():
    a = torch.tensor([0.5], requires_grad=True)
    with pytest.raises(ValueError, match=r"not in the support of Kumaraswamy.*\[0, 1\].*shape \(2,\)"):
        Kumaraswamy(a, 1.0).log_prob(torch.tensor([0.5, 1.5]))
    with pytest.raises(ValueError, match=r"must be log x and log\(1 - x\)"):
        Kumaraswamy(a, 1.0).log_prob_from_log(torch.tensor(-1.0), torch.tensor(-1.0))
    off = Kumaraswamy(a, 1.0, validate_args=False).log_prob(torch.tensor([-0.5, 1.5, 0.5]))
    assert off[:2].eq(-math.inf).all()
    assert torch.autograd.grad(off[2], a)[0].isfinite()
    assert Kumaraswamy(a, 1.0, validate_args=False).log_prob(torch.tensor(math.nan)).isnan()


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=str)
def test_distribution_function_and_quantiles(a, b):
    q, x = Kumaraswamy(a, b), torch.linspace(0.001, 0.999, 40)
    close(q.cdf(q.icdf(x)), x, rtol=1e-10)
    close(q.cdf(x), 1 - (1 - x**a) ** b, atol=1e-15)
    close(q.cdf(torch.tensor([0.0, 1.0])), [0.0, 1.0])
    close(q.icdf(torch.tensor([0.0, 1.0])), [0.0, 1.0])
    assert float(q.cdf(torch.tensor(1e-300))) == pytest.approx(b * 10 ** (-300 * a), rel=1e-10)


def test_distribution_function_off_the_support():
    q = Kumaraswamy(2.0, 3.0, validate_args=False)
    close(q.cdf(torch.tensor([-1.0, 2.0])), [0.0, 1.0])
    assert q.cdf(torch.tensor(math.nan)).isnan()


def test_quantiles_at_the_ends_have_gradients():
    a, b = torch.tensor(0.3, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    q = Kumaraswamy(a, b).icdf(torch.tensor([0.0, 1.0]))
    assert q.tolist() == [0.0, 1.0]
    assert [g.item() for g in torch.autograd.grad(q.sum(), (a, b))] == [0.0, 0.0]


@pytest.mark.parametrize("p", [1.5, -0.1, math.nan], ids=str)
def test_quantiles_of_no_probabilities(p):
    with pytest.raises(ValueError, match=r"must be probabilities: expected numbers in \[0, 1\], got .*shape \(2,\)"):
        Kumaraswamy(2.0, 3.0).icdf(torch.tensor([0.5, p]))
    assert Kumaraswamy(2.0, 3.0, validate_args=False).icdf(torch.tensor(p)).isnan()
    with pytest.raises(ValueError, match=r"value \(3,\), batch_shape \(2,\)"):
        Kumaraswamy(torch.ones(2), 3.0).icdf(torch.full((3,), 0.5))


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 2**-46), (torch.float32, 2**-17), (torch.float16, 2**-8), (torch.bfloat16, 2**-5)],
    ids=["64", "32", "16", "b16"],
)
def test_logarithms_within_rounding_are_taken(dtype, tolerance):
    """And those a little further off are not: x and 1 - x must add up to 1 within the tolerance."""
    q = Kumaraswamy(torch.tensor([2.0]), 3.0)
    x = torch.linspace(0.001, 0.999, 999)
    assert q.log_prob_from_log(x.log().to(dtype), (-x).log1p().to(dtype)).isfinite().all()
    exact = torch.zeros(1)  # log x of an x within rounding of 1: log(1 - x) has no part in the sum
    other = torch.tensor([-1e3], dtype=dtype)
    assert q.log_prob_from_log(exact.sub(0.9 * tolerance).to(dtype), other).isfinite().all()
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(ValueError, match=rf"got a {name} tensor of shape \(1,\) and a {name} tensor"):
        q.log_prob_from_log(exact.sub(1.1 * tolerance).to(dtype), other)


# ------------------------------------------------------------------------------------------------------------ moments


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=str)
def test_moments(a, b):
    q = Kumaraswamy(a, b)
    mean = expectation(a, b, lambda log_x, _: math.exp(log_x))
    close(q.mean, mean, rtol=1e-9)
    close(q.variance, expectation(a, b, lambda log_x, _: (math.exp(log_x) - mean) ** 2), rtol=1e-9)
    close(q.stddev, math.sqrt(q.variance))
    close(q.mean_log(), expectation(a, b, lambda log_x, _: log_x), rtol=1e-9)
    close(q.mean_log1m(), expectation(a, b, lambda _, log1m: log1m), rtol=1e-9)
    close(q.entropy(), expectation(a, b, lambda log_x, _: -log_density(a, b, log_x)), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("a", "b"), [(1e3, 1e3), (1e3, 0.5), (0.02, 3.0)], ids=str)
def test_variance_keeps_its_digits(a, b):
    with mp.workdps(40):
        first, second = (mp.mpf(b) * mp.beta(1 + mp.mpf(n) / mp.mpf(a), b) for n in (1, 2))
        mean, variance = float(first), float(second - first**2)
    close(Kumaraswamy(a, b).mean, mean, rtol=1e-11)
    close(Kumaraswamy(a, b).variance, variance, rtol=1e-9)
    a, b = torch.tensor(a, dtype=torch.float32), torch.tensor(b, dtype=torch.float32)
    close(Kumaraswamy(a, b).variance, variance, rtol=1e-4)


def exact_variance(a, b):
    with mp.workdps(60):
        first, second = (mp.mpf(b) * mp.beta(1 + n / mp.mpf(a), mp.mpf(b)) for n in (1, 2))
        return float(second - first**2)


def test_variance_error():
    """Over six orders of magnitude of both, and a little less exact beyond."""
    values = [1e-3, 0.01, 0.1, 0.5, 1.0, 4.9, 5.1, 10.0, 30.0, 100.0, 1e3]
    for a, b in itertools.product(values, values):
        exact = exact_variance(a, b)
        close(Kumaraswamy(a, b).variance, exact, rtol=1e-9, atol=1e-300)
        a32, b32 = torch.tensor(a, dtype=torch.float32), torch.tensor(b, dtype=torch.float32)
        close(Kumaraswamy(a32, b32).variance, exact_variance(a32.item(), b32.item()), rtol=2e-7, atol=1e-37)
    close(Kumaraswamy(1e-4, 1e-4).variance, exact_variance(1e-4, 1e-4), rtol=1e-8)


def test_gradients_of_moments():
    a, b = (x.clone().requires_grad_() for x in grid(torch.logspace(-3, 3, 7)))
    for moment in (Kumaraswamy(a, b).mean, Kumaraswamy(a, b).variance):
        assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(moment.sum(), (a, b)))
    a, b = torch.tensor([0.1, 2.0, 20.0], requires_grad=True), torch.tensor([3.0, 0.2, 7.0], requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: Kumaraswamy(a, b).variance, (a, b))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["32", "64"])
def test_mean_logarithm_where_b_is_small(dtype):
    b = torch.tensor([1e-30, 1e-12, 1e-6, 1e-4, 9.9e-4, 1.1e-3, 0.1, 1.0, 1e3], dtype=dtype, requires_grad=True)
    rtol = 64 * torch.finfo(dtype).eps if dtype == torch.float32 else 1e-12
    mean_log = Kumaraswamy(1.0, b).mean_log()
    with mp.workdps(60):
        exact = [float(-mp.harmonic(mp.mpf(x))) for x in b.tolist()]
        slopes = [float(-mp.polygamma(1, mp.mpf(x) + 1)) for x in b.tolist()]
    close(mean_log.detach(), exact, rtol=rtol)
    close(torch.autograd.grad(mean_log.sum(), b)[0], slopes, rtol=max(rtol, 1e-9))  # torch's trigamma is that exact


def test_mode():
    a, b = torch.tensor([1.0, 2.0, 3.0, 2.0]), torch.tensor([2.0, 1.0, 4.0, 9.0])
    mode, x = Kumaraswamy(a, b).mode, torch.linspace(0, 1, 100_001).unsqueeze(-1)
    close(mode, x[(a * b * x ** (a - 1) * (1 - x**a) ** (b - 1)).argmax(0)].squeeze(-1), rtol=0, atol=2e-5)
    assert Kumaraswamy(torch.tensor([0.5, 2.0, 1.0]), torch.tensor([2.0, 0.5, 1.0])).mode.isnan().all()


@pytest.mark.parametrize("a", [0.01, 0.037, 1.0, 8.3, 100.0])
def test_quadrature_against_closed_forms(a):
    """Where b is 1 the expectation is a harmonic number, where a is 1 it is 1 / b."""
    close(-Kumaraswamy(a, 1.0).mean_log1m(), float(mp.harmonic(a)), rtol=1e-11)
    close(-Kumaraswamy(1.0, a).mean_log1m(), 1 / a, rtol=1e-11)


@pytest.mark.parametrize(
    ("a", "b"),
    [(0.01, 0.01), (0.01, 0.1), (0.01, 100.0), (0.1, 0.3), (0.2, 20.0), (3.3, 0.01), (100.0, 0.01), (100.0, 100.0)],
    ids=str,
)
def test_quadrature_error(a, b):
    close(-Kumaraswamy(a, b).mean_log1m(), mean_neg_log1m(a, b), rtol=1e-11)
    a, b = torch.tensor(a, dtype=torch.float32), torch.tensor(b, dtype=torch.float32)
    close(-Kumaraswamy(a, b).mean_log1m(), mean_neg_log1m(a.item(), b.item()), rtol=2e-5, atol=1e-30)


@pytest.mark.parametrize(("a", "b"), [(1e-3, 1e-3), (1e-3, 1e-2), (1e-3, 1.0), (1e3, 1e-3), (1e3, 1e3)], ids=str)
def test_quadrature_error_further_out(a, b):
    close(-Kumaraswamy(a, b).mean_log1m(), mean_neg_log1m(a, b), rtol=1e-8)


# -------------------------------------------------------------------------------------------------------- divergences


def kl_by_scipy(a, b, alpha, beta):
    log_beta = math.lgamma(alpha) + math.lgamma(beta) - math.lgamma(alpha + beta)

    def log_ratio(log_x, log1m):
        return log_density(a, b, log_x) - ((alpha - 1) * log_x + (beta - 1) * log1m - log_beta)

    return expectation(a, b, log_ratio)


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (1.0, 5.0), (2.5, 0.4), (0.3, 1.0)], ids=str)
@pytest.mark.parametrize(("a", "b"), PAIRS, ids=str)
def test_divergence_from_a_beta(a, b, alpha, beta):
    q = Kumaraswamy(a, b)
    exact = kl_by_scipy(a, b, alpha, beta)
    close(kl_divergence(q, Beta(alpha, beta)), exact, rtol=1e-9, atol=1e-10)
    close(q.kl_to_beta(alpha, beta), exact, rtol=1e-9, atol=1e-10)
    assert exact > -1e-12


@pytest.mark.parametrize("c", [0.01, 0.4, 1.0, 7.0, 100.0])
def test_divergence_is_zero_where_both_are_one(c):
    close(Kumaraswamy(1.0, c).kl_to_beta(1.0, c), 0.0, atol=1e-11 * (1 + 1 / c))
    close(Kumaraswamy(c, 1.0).kl_to_beta(c, 1.0), 0.0, atol=1e-13)
    close(kl_divergence(Kumaraswamy(2.0, c), Kumaraswamy(2.0, c)), 0.0, atol=1e-11 * (1 + 1 / c))


@pytest.mark.parametrize(("alpha", "beta"), [(0.6, 1.0), (3.0, 0.5), (1.5, 4.0)], ids=str)
@pytest.mark.parametrize(("a", "b"), PAIRS, ids=str)
def test_divergence_from_another(a, b, alpha, beta):
    def log_ratio(log_x, _):
        return log_density(a, b, log_x) - log_density(alpha, beta, log_x)

    exact = expectation(a, b, log_ratio)
    close(kl_divergence(Kumaraswamy(a, b), Kumaraswamy(alpha, beta)), exact, rtol=1e-9, atol=1e-10)


def test_gradients_of_divergences():
    a, b, alpha, beta = (torch.rand(4).mul(3).sub(1.5).exp().requires_grad_() for _ in range(4))
    beta = beta.detach().index_fill(0, torch.tensor(0), 1.0).requires_grad_()
    for kind in (Beta, Kumaraswamy):
        assert torch.autograd.gradcheck(
            lambda a, b, alpha, beta, kind=kind: kl_divergence(Kumaraswamy(a, b), kind(alpha, beta)),
            (a, b, alpha, beta),
            atol=1e-7,
            rtol=1e-6,
        )


@pytest.mark.parametrize(("a", "b"), [(0.4, 0.5), (3.0, 2.0)], ids=str)
def test_gradients_of_divergences_by_scipy(a, b):
    point, h = (a, b, 1.5, 2.5), 1e-3
    leaves = [torch.tensor(x, requires_grad=True) for x in point]
    gradients = torch.autograd.grad(kl_divergence(Kumaraswamy(*leaves[:2]), Beta(*leaves[2:])), leaves)
    for i, gradient in enumerate(gradients):
        values = {k: kl_by_scipy(*(x + k * h * (j == i) for j, x in enumerate(point))) for k in (-2, -1, 1, 2)}
        close(gradient, (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * h), rtol=1e-7, atol=1e-8)


def test_gradients_of_divergences_are_finite_in_float32():
    a, b = torch.meshgrid(*[torch.logspace(-3, 3, 13, dtype=torch.float32)] * 2, indexing="ij")
    a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
    kl = Kumaraswamy(a, b).kl_to_beta(1.0, 5.0)
    kl.sum().backward()
    exact = Kumaraswamy(a.detach().double(), b.detach().double()).kl_to_beta(1.0, 5.0)
    torch.testing.assert_close(kl.detach().double(), exact, rtol=2e-5, atol=1e-5)
    assert bool(a.grad.isfinite().all() & b.grad.isfinite().all())


def test_gradients_of_densities_and_divergences_with_respect_to_logs():
    """In float32, where those with respect to a and b are infinite."""
    results = {}
    for dtype in (torch.float32, torch.float64):
        leaves = [x.clone().requires_grad_() for x in grid(torch.tensor(LOGS, dtype=dtype))]
        q = Kumaraswamy.from_logs(*leaves)
        other = Kumaraswamy(torch.tensor(2.0, dtype=dtype), torch.tensor(3.0, dtype=dtype))
        logs = log_from_gumbel_of_logs(*leaves, torch.tensor(0.4, dtype=dtype))
        values = q.log_prob_from_log(*logs), q.kl_to_beta(1.0, 1.0), q.kl_to_beta(1.0, 5.0), kl_divergence(q, other)
        results[dtype] = [[v.detach(), *torch.autograd.grad(v.sum(), leaves, retain_graph=True)] for v in values]
    for found, exact in zip(*results.values(), strict=True):
        for x, y in zip(found, exact, strict=True):
            assert bool(x.isfinite().all())
            torch.testing.assert_close(x.double(), y, rtol=1e-3, atol=1e-3)


def test_from_logs():
    log_a, log_b = torch.tensor([-1.0, 0.7]), torch.tensor([[0.3], [-0.4], [1.0]])
    q, same = Kumaraswamy.from_logs(log_a, log_b), Kumaraswamy(log_a.exp(), log_b.exp())
    x = torch.tensor([0.2, 0.9])
    for other in (q, copy.deepcopy(q), pickle.loads(pickle.dumps(q)), q.expand((4, 3, 2))):
        for f in (Kumaraswamy.entropy, lambda q: q.variance, lambda q: q.cdf(x), lambda q: q.kl_to_beta(2.0, 3.0)):
            close(f(other), f(same).expand(other.batch_shape), rtol=1e-10)
        assert other.log_rsample()[0].shape == other.batch_shape
    assert Kumaraswamy.from_logs(0.0, 0.5).batch_shape == ()
    with pytest.raises(ValueError, match="concentration1 must be positive and finite"):
        Kumaraswamy.from_logs(torch.tensor(-1e4), 0.0)


def test_no_quadrature_where_its_weight_is_zero(monkeypatch):
    q = Kumaraswamy(torch.tensor([0.5, 2.0]), 3.0)
    trained = torch.tensor(1.0, requires_grad=True)
    slope = torch.autograd.grad(q.kl_to_beta(1.0, trained).sum(), trained)[0]
    h = 1e-5
    close(slope, (q.kl_to_beta(1.0, 1 + h) - q.kl_to_beta(1.0, 1 - h)).sum() / (2 * h), rtol=1e-8)

    def refuse(*_):
        raise AssertionError("the quadrature was used")

    monkeypatch.setattr(forms, "expectation", refuse)
    exact = q.kl_to_beta(1.0, 1.0)
    close(exact, -q.entropy())
    close(kl_divergence(q, Beta(1.0, 1.0)), exact)
    close(kl_divergence(q, Beta(torch.ones(2), torch.ones(2))), exact)
    close(kl_divergence(q, Kumaraswamy(1.0, 1.0)), exact)
    with pytest.raises(AssertionError, match="was used"):
        q.kl_to_beta(1.0, trained)


# ----------------------------------------------------------------------------------------------- shapes, types, errors


@pytest.mark.parametrize("sample_shape", [(), (7,), (2, 5), (0,)], ids=str)
@pytest.mark.parametrize("batch_shape", [(), (4,), (2, 3)], ids=str)
def test_shapes(batch_shape, sample_shape):
    q, rows = Kumaraswamy(torch.rand(batch_shape) + 0.5, 2.0), (*sample_shape, *batch_shape)
    assert q.batch_shape == batch_shape
    assert q.event_shape == ()
    x, (log_x, log1m) = q.rsample(sample_shape), q.log_rsample(sample_shape)
    for value in (x, log_x, log1m, q.log_prob(x), q.log_prob_from_log(log_x, log1m), q.cdf(x), q.icdf(x)):
        assert value.shape == rows
    kl = kl_divergence(q, Beta(2.0, 3.0))
    for value in (q.mean, q.variance, q.mode, q.entropy(), q.mean_log(), q.mean_log1m(), kl):
        assert value.shape == batch_shape


def test_expand():
    q = Kumaraswamy(torch.tensor([[0.5], [2.0]]), torch.tensor(3.0))
    wide = q.expand((5, 2, 3))
    assert wide.batch_shape == wide.rsample().shape == wide.log_prob(torch.tensor(0.5)).shape == (5, 2, 3)
    close(wide.entropy(), q.entropy().expand(5, 2, 3))
    assert kl_divergence(q, Beta(torch.ones(4), 2.0)).shape == (2, 4)
    with pytest.raises(ValueError, match="cannot be expanded"):
        q.expand((1, 1))


def test_numbers_and_dtypes():
    assert Kumaraswamy(1, 2.0).dtype == torch.float64
    half = Kumaraswamy(torch.tensor([0.5, 2.0], dtype=torch.bfloat16), 3.0)
    same = Kumaraswamy(torch.tensor([0.5, 2.0], dtype=torch.float32), 3.0)
    assert half.rsample((5,)).dtype == torch.bfloat16
    assert half.icdf(torch.tensor([0.2, 0.3], dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert half.icdf(torch.tensor([0.2, 0.3])).dtype == torch.float64
    assert half.log_rsample()[0].dtype == half.variance.dtype == half.mode.dtype == torch.float32
    assert half.cdf(half.sample()).dtype == torch.float32
    x = torch.tensor([0.25, 0.5])
    assert half.log_prob(x.bfloat16()).dtype == half.entropy().dtype == half.mean.dtype == torch.float32
    for f in (lambda q: q.log_prob(x.float()), lambda q: q.kl_to_beta(1.0, 2.0), lambda q: q.variance):
        assert torch.equal(f(half), f(same))
    assert Kumaraswamy(torch.ones(2, dtype=torch.float32), torch.ones(())).dtype == torch.float64


@pytest.mark.parametrize(
    ("a", "b", "error", "message"),
    [
        (0.0, 1.0, ValueError, "concentration1 must be positive and finite, got a value of 0.0"),
        (torch.ones(2), torch.tensor([1.0, -1.0]), ValueError, r"concentration0 must be positive .* \[-1, 1\]"),
        (torch.tensor([math.nan]), 1.0, ValueError, "concentration1 must be positive and finite"),
        (torch.ones(2, dtype=torch.long), 1.0, TypeError, "concentration1 must be a floating-point tensor"),
        ("2", 1.0, TypeError, "concentration1 must be a floating-point tensor, got '2'"),
        (1.0, True, TypeError, "concentration0 must be"),
        (torch.ones(2), torch.ones(3), ValueError, r"concentration1 \(2,\), concentration0 \(3,\)"),
    ],
    ids=["zero", "negative", "nan", "integers", "string", "boolean", "shapes"],
)
def test_errors(a, b, error, message):
    with pytest.raises(error, match=message):
        Kumaraswamy(a, b)


def test_errors_of_methods():
    q = Kumaraswamy(torch.ones(2), 1.0)
    with pytest.raises(ValueError, match=r"value \(3,\), batch_shape \(2,\)"):
        q.log_prob(torch.full((3,), 0.5))
    with pytest.raises(ValueError, match=r"batch_shape \(2,\), concentration1 \(3,\)"):
        q.kl_to_beta(torch.ones(3), 1.0)
    with pytest.raises(ValueError, match="concentration0 must be positive and finite, got a value of -1"):
        q.kl_to_beta(1.0, -1.0)
    with pytest.raises(TypeError, match=r"value must be a floating-point tensor, got 0\.5"):
        q.log_prob(0.5)
    assert Kumaraswamy(-1.0, 1.0, validate_args=False).batch_shape == ()


def test_copies_and_repr():
    q = Kumaraswamy(torch.tensor([0.5, 2.0]), 3.0)
    assert repr(q) == "Kumaraswamy(concentration1: tensor(2,), concentration0: tensor(2,))"
    assert repr(Kumaraswamy(0.5, 3.0)) == "Kumaraswamy(concentration1: 0.5, concentration0: 3)"
    for other in (copy.deepcopy(q), pickle.loads(pickle.dumps(q))):
        assert torch.equal(other.entropy(), q.entropy())


# ------------------------------------------------------------------------------------------------- programs around it


def everything(a, b, gumbel):
    q = Kumaraswamy(a, b)
    logs = log_from_gumbel(a, b, gumbel)
    return *logs, q.log_prob_from_log(*logs), q.log_prob(logs[0].exp()), kl_divergence(q, Beta(1.0, 3.0)), q.variance


def test_compiles():
    a, b = torch.tensor([0.1, 1.0, 4.0]), torch.tensor([3.0, 0.2, 1.0])
    gumbel = gumbel_noise(a)
    compiled = torch.compile(everything, fullgraph=True, backend="aot_eager")
    for x, exact in zip(compiled(a, b, gumbel), everything(a, b, gumbel), strict=True):
        close(x, exact, rtol=1e-10)
    draw = torch.compile(lambda a, b: Kumaraswamy(a, b).log_rsample((4,)), fullgraph=True, backend="aot_eager")
    assert [x.shape for x in draw(a, b)] == [(4, 3), (4, 3)]


def test_maps():
    a, b = torch.tensor([0.1, 1.0, 4.0]), torch.tensor([3.0, 0.2, 1.0])
    gumbel = gumbel_noise(a)
    for x, exact in zip(torch.func.vmap(everything)(a, b, gumbel), everything(a, b, gumbel), strict=True):
        close(x, exact, rtol=1e-10)
    draw = torch.func.vmap(lambda a, b: Kumaraswamy(a, b).log_rsample((4,))[0], randomness="different")
    assert len(draw(a, b).unique()) == 12
    slopes = torch.func.vmap(torch.func.grad(lambda a, b: Kumaraswamy(a, b).kl_to_beta(1.0, 3.0)))(a, b)
    leaf = a.clone().requires_grad_()
    close(slopes, torch.autograd.grad(Kumaraswamy(leaf, b).kl_to_beta(1.0, 3.0).sum(), leaf)[0], rtol=1e-10)
