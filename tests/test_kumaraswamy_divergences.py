"""Divergences of the Kumaraswamy distribution from the Beta and from another."""

import math

import pytest
import torch
from kumaraswamy_cases import LOGS, PAIRS, close, expectation, grid, log_density
from torch.distributions import Beta, kl_divergence

from igr import _kumaraswamy_forms as forms
from igr.kumaraswamy import Kumaraswamy, log_from_gumbel

pytestmark = pytest.mark.usefixtures("float64")


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
            check_forward_ad=True,
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
        logs = log_from_gumbel(*leaves, torch.tensor(0.4, dtype=dtype))
        values = q.log_prob_from_log(*logs), q.kl_to_beta(1.0, 1.0), q.kl_to_beta(1.0, 5.0), kl_divergence(q, other)
        results[dtype] = [[v.detach(), *torch.autograd.grad(v.sum(), leaves, retain_graph=True)] for v in values]
    for found, exact in zip(*results.values(), strict=True):
        for x, y in zip(found, exact, strict=True):
            assert bool(x.isfinite().all())
            torch.testing.assert_close(x.double(), y, rtol=1e-3, atol=1e-3)


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


MODES = {"rev": torch.func.jacrev, "fwd": torch.func.jacfwd}


@pytest.mark.parametrize("modes", [(a, b) for a in MODES for b in MODES], ids="-".join)
def test_mixed_derivatives_where_a_concentration_is_one(modes):
    """Where the divergence has another form, which knows no derivative by that concentration."""

    def divergence(a, b):
        return kl_divergence(
            Kumaraswamy(a, 3.0, validate_args=False), Kumaraswamy(torch.full_like(b, 1.5), b, validate_args=False)
        )

    a, b, h = torch.tensor(0.8), torch.tensor(1.0), 1e-4
    at = [divergence(a + i * h, b + j * h) for i in (1, -1) for j in (1, -1)]
    expected = (at[0] - at[1] - at[2] + at[3]) / (4 * h * h)
    outer, inner = (MODES[mode] for mode in modes)
    close(outer(lambda b: inner(divergence)(a, b))(b), expected, rtol=1e-4)
    trained = b.clone().requires_grad_()
    close(torch.autograd.grad(inner(divergence)(a, trained), trained)[0], expected, rtol=1e-4)
    slope = (divergence(a, b + h) - divergence(a, b - h)) / (2 * h)
    close(MODES[modes[0]](divergence, argnums=1)(a, b), slope, rtol=1e-5)
