"""Moments of the Kumaraswamy distribution, in closed form and by quadrature."""

import itertools
import math

import mpmath as mp
import pytest
import torch
from kumaraswamy_cases import PAIRS, close, exact_log1mexp, expectation, grid, log_density

from igr.kumaraswamy import Kumaraswamy

pytestmark = pytest.mark.usefixtures("float64")


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
