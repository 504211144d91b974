import math

import mpmath
import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from igr.functional import harden
from igr.recovery import inverse_mills, log_ndtr, recovered_log_probs

DOUBLE = torch.float64
RULE = np.polynomial.legendre.leggauss(40)


def probabilities(mu: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """Equation 21 by panels that end wherever some integrand bends; checked to sum to one."""
    ends = np.unique(np.concatenate([mu + c * sigma for c in (-8, -4, -2, -1, 0, 1, 2, 4, 8)]))
    top = max((mu + 12 * sigma).max(), 1e-9)
    ends = np.concatenate([[0.0], ends[(ends > 0) & (ends < top)], [top]])
    half = np.diff(ends) / 2
    t = (half[:, None] * RULE[0] + (ends[:-1] + half)[:, None]).ravel()
    w = (half[:, None] * RULE[1]).ravel()
    z = (t - mu[:, None]) / sigma[:, None]
    log_cdf = scipy.special.log_ndtr(z)
    total = log_cdf.sum(0)
    log_pdf = -0.5 * z**2 - 0.5 * math.log(2 * math.pi)
    first = [(w * np.exp(total - c + f)).sum() for c, f in zip(log_cdf, log_pdf, strict=True)]
    p = np.append(np.array(first) / sigma, np.exp(scipy.stats.norm.logcdf(-mu / sigma).sum()))
    assert abs(p.sum() - 1) < 1e-9
    return p


def parameters(kind: str, d: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    scales = 10 ** generator.uniform(-3, 3, d)
    match kind:
        case "benign":
            return generator.normal(size=d), generator.uniform(0.5, 2, d)
        case "all scales":
            return generator.uniform(-50, 50, d), scales
        case "near-ties":
            return 1 + 1e-3 * generator.normal(size=d), scales
        case "two scales":
            return generator.uniform(-5, 5, d), np.where(generator.random(d) < 0.5, 1e-3, 1e3)
        case "all negative":
            return -generator.uniform(0, 50, d), 10 ** generator.uniform(-3, 1, d)
        case "all positive":
            return generator.uniform(10, 50, d), 10 ** generator.uniform(-3, 1, d)
        case "identical":
            return np.full(d, 0.7), np.full(d, 0.3)
    raise ValueError(kind)


KINDS = ["benign", "all scales", "near-ties", "two scales", "all negative", "all positive", "identical"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("K", [2, 3, 10, 100, pytest.param(1000, marks=pytest.mark.slow)])
def test_proposition_2_matches_panels(kind: str, K: int):
    generator = np.random.default_rng(K)
    for _ in range({100: 2, 1000: 1}.get(K, 12)):
        mu, sigma = parameters(kind, K - 1, generator)
        for dtype, tolerance in ((DOUBLE, 1e-6), (torch.float32, 1e-5)):
            loc, scale = torch.tensor(mu, dtype=dtype), torch.tensor(sigma, dtype=dtype)
            log_p, error = recovered_log_probs(loc, scale, return_error=True)
            expected = probabilities(loc.double().numpy(), scale.double().numpy())
            actual = log_p.double().exp().numpy()
            assert np.abs(actual - expected).max() <= tolerance
            assert abs(actual.sum() - 1) < (1e-12 if dtype == DOUBLE else 1e-5)
            assert (log_p <= 0).all()
            assert error.residual.shape == ()


def test_proposition_2_matches_mpmath():
    mu, sigma = [0.4, -3.0, 2.0], [0.01, 5.0, 0.7]
    with mpmath.workdps(30):

        def integrand(k: int, t):
            others = [mpmath.ncdf((t - mu[j]) / sigma[j]) for j in range(3) if j != k]
            return mpmath.npdf(t, mu[k], sigma[k]) * mpmath.fprod(others)

        ends = [0, 0.3, 0.36, 0.4, 0.44, 0.5, 1, 2, 3, 5, 10, 20, 40]
        expected = [float(mpmath.quad(lambda t, k=k: integrand(k, t), ends)) for k in range(3)]
        expected.append(float(mpmath.fprod(mpmath.ncdf(-m / s) for m, s in zip(mu, sigma, strict=True))))
    log_p = recovered_log_probs(torch.tensor(mu, dtype=DOUBLE), torch.tensor(sigma, dtype=DOUBLE))
    np.testing.assert_allclose(log_p.exp().numpy(), expected, rtol=1e-8, atol=1e-12)


def test_proposition_2_matches_hard_samples():
    loc, scale = torch.tensor([0.5, -0.2, 0.1, -1.0]), torch.tensor([0.3, 1.0, 2.0, 0.7])
    counts = harden(loc + scale * torch.randn(1_000_000, 4)).sum(0).double().numpy()
    expected = 1_000_000 * recovered_log_probs(loc.double(), scale.double()).exp().numpy()
    assert scipy.stats.chisquare(counts, expected).pvalue > 1e-5


def test_the_error_estimate_is_one():
    loc, scale = torch.tensor([1.0, 1.001, -4.0], dtype=DOUBLE), torch.tensor([1e-3, 10.0, 300.0], dtype=DOUBLE)
    expected = probabilities(loc.numpy(), scale.numpy())
    coarse, error = recovered_log_probs(loc, scale, num_nodes=24, return_error=True)
    assert error.num_nodes > 24
    assert np.abs(coarse.exp().numpy() - expected).max() > 1e-5
    fine, error = recovered_log_probs(loc, scale, num_nodes=math.ceil(error.num_nodes.item()), return_error=True)
    assert np.abs(fine.exp().numpy() - expected).max() < 10 * error.residual.item() + 1e-6


def test_gradients_against_differences_and_the_analytic_form():
    loc = torch.randn(3, 4, dtype=DOUBLE, requires_grad=True)
    scale = (torch.rand(3, 4, dtype=DOUBLE) + 0.3).requires_grad_()
    assert gradcheck(recovered_log_probs, (loc, scale))
    assert gradgradcheck(recovered_log_probs, (loc, scale))
    # ∂P_K / ∂μ_j = -P_K φ(a) / Φ(a) / σ_j with a = -μ_j / σ_j, and rows of the Jacobian of P sum to zero
    jacobian = torch.func.jacrev(lambda m: recovered_log_probs(m, scale[0].detach()).exp())(loc[0].detach())
    a = -(loc[0] / scale[0]).detach()
    last = recovered_log_probs(loc[0], scale[0])[-1].exp().detach()
    pdf, cdf = scipy.stats.norm.pdf(a.numpy()), scipy.stats.norm.cdf(a.numpy())
    np.testing.assert_allclose(jacobian[-1].numpy(), -last.item() * pdf / cdf / scale[0].detach().numpy(), rtol=1e-8)
    np.testing.assert_allclose(jacobian.sum(0).numpy(), np.zeros(4), atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_gradients_are_finite_and_right(kind: str):
    mu, sigma = parameters(kind, 9, np.random.default_rng(3))
    weights = torch.randn(10, dtype=DOUBLE)
    gradients = []
    for dtype in (torch.float32, DOUBLE):
        loc, scale = (torch.tensor(x, dtype=torch.float32).to(dtype).requires_grad_() for x in (mu, sigma))
        value = (weights.to(dtype) * recovered_log_probs(loc, scale).exp()).sum()
        gradients.append(torch.stack(torch.autograd.grad(value, (loc, scale))).double() * scale.detach().double())
    assert gradients[0].isfinite().all()
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)


def test_a_certain_category_keeps_the_accuracy_of_its_logarithm():
    loc, scale = torch.tensor([6.0, -30.0], dtype=DOUBLE), torch.ones(2, dtype=DOUBLE)
    log_p = recovered_log_probs(loc, scale)
    assert log_p[0].item() == pytest.approx(scipy.stats.norm.logcdf(6.0), rel=1e-6)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own, while compiling
def test_shapes_batches_and_programs():
    loc, scale = torch.randn(2, 5, 3, dtype=DOUBLE), torch.rand(5, 3, dtype=DOUBLE) + 0.5
    whole = recovered_log_probs(loc, scale)
    assert whole.shape == (2, 5, 4)
    one = recovered_log_probs(loc[1, 2], scale[2])
    torch.testing.assert_close(whole[1, 2], one, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.func.vmap(recovered_log_probs, in_dims=(0, None))(loc, scale), whole)
    compiled = torch.compile(recovered_log_probs, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(loc, scale), whole)
    assert recovered_log_probs(loc.bfloat16(), 1.0).dtype == torch.float32
    assert recovered_log_probs(torch.zeros(0, 3), 1.0).shape == (0, 4)
    with pytest.raises(TypeError, match="loc"):
        recovered_log_probs(torch.zeros(3, dtype=torch.int64), 1.0)
    with pytest.raises(ValueError, match="scale must be positive"):
        recovered_log_probs(torch.zeros(3), torch.tensor([1.0, -1.0, 1.0]))
    with pytest.raises(ValueError, match="loc must be finite"):
        recovered_log_probs(torch.tensor([0.0, math.nan]), 1.0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (DOUBLE, 1e-14)])
def test_normal_tails(dtype: torch.dtype, tolerance: float):
    x = torch.cat([-torch.logspace(-3, 4, 400), torch.linspace(-2, 5, 200)]).to(dtype)
    with mpmath.workdps(60):
        expected = [float(mpmath.log(mpmath.ncdf(mpmath.mpf(v)))) for v in x.tolist()]
    np.testing.assert_allclose(log_ndtr(x).double().numpy(), expected, rtol=tolerance, atol=1e-30)
    with mpmath.workdps(60):
        mills = [float(mpmath.npdf(v) / mpmath.ncdf(v)) for v in map(mpmath.mpf, x.tolist())]
    np.testing.assert_allclose(inverse_mills(x).double().numpy(), mills, rtol=10 * tolerance, atol=1e-30)


def chunked(loc: Tensor) -> Tensor:
    return recovered_log_probs(loc, 1.0)


def test_chunks_make_no_difference():
    loc = torch.randn(3000, 9, dtype=DOUBLE, requires_grad=True)  # several chunks
    rows = loc.detach()[::500].clone().requires_grad_()
    torch.testing.assert_close(chunked(loc)[::500], chunked(rows), rtol=1e-13, atol=1e-13)
    (whole,) = torch.autograd.grad(chunked(loc)[:, 0].sum(), loc)
    (some,) = torch.autograd.grad(chunked(rows)[:, 0].sum(), rows)
    torch.testing.assert_close(whole[::500], some, rtol=1e-12, atol=1e-13)
