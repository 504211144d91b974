import itertools
import math

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import torch
from torch import Tensor
from torch.autograd import grad, gradcheck, gradgradcheck

from igr._normal import inverse_mills, log_ndtr
from igr._stick_recovery import stick_masses
from igr.functional import harden, log_stick_breaking
from igr.recovery import recovered_log_probs, recovered_log_probs_stick_breaking

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


def narrow_rows() -> tuple[Tensor, Tensor]:
    """The first coordinate, nearly always the largest, is narrower than the numbers of float32 are apart there."""
    mu = torch.tensor([[240.83, 30.0, -100.0, 6.0], [167.2, 50.0, -2.9, -80.0], [5.1, 0.3, -9.0, -3.0]])
    sigma = torch.tensor([[1e-6, 15.0, 7.5, 170.0], [1.2e-6, 9e-7, 1.3e-4, 2e4], [4e-8, 2.5, 1e-4, 0.3]])
    return mu, sigma


def extreme_rows() -> tuple[Tensor, Tensor]:
    """Coordinates so far from the threshold, in units of their scales, that squares overflow; in the last row all."""
    mu = torch.tensor([[3.0, -40.0, 60.0], [0.2, 20.0, -7.0], [-50.0, -20.0, -30.0]])
    sigma = torch.tensor([[2e3, 1e-19, 1e-22], [1e-25, 1e4, 4e-18], [1e-18, 1e-20, 1e-24]])
    return mu, sigma


def test_scales_below_the_spacing_of_numbers():
    mu, sigma = (x.requires_grad_() for x in narrow_rows())
    log_p = recovered_log_probs(mu, sigma)
    for row, *given in zip(log_p.detach().exp(), mu.detach(), sigma.detach(), strict=True):
        np.testing.assert_allclose(row, probabilities(*(x.double().numpy() for x in given)), rtol=0, atol=1e-5)
    exact = [x.detach().double().requires_grad_() for x in (mu, sigma)]
    weights = log_p.detach().exp() * torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0])
    expected = grad(recovered_log_probs(*exact), exact, weights.double())
    for here, there in zip(grad(log_p, (mu, sigma), weights), expected, strict=True):
        torch.testing.assert_close(here * sigma, (there * sigma.double()).float(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("loc", [[1.0, -14.0], [0.3, 20.0, -9.0], [-30.0, -16.0]])
def test_second_derivatives_in_float32(loc: list[float]):
    """Far from the threshold too, where the derivative of a scaled error function would overflow."""

    def hessian(dtype: torch.dtype) -> Tensor:
        mu = torch.tensor(loc, dtype=dtype, requires_grad=True)
        p = recovered_log_probs(mu, 1.0).exp()
        (slope,) = grad((p * torch.arange(1.0, len(loc) + 2, dtype=dtype)).sum(), mu, create_graph=True)
        return torch.stack([grad(each, mu, retain_graph=True)[0] for each in slope])

    torch.testing.assert_close(hessian(torch.float32), hessian(DOUBLE).float(), rtol=1e-4, atol=1e-5)


def test_log_probabilities_of_extreme_scales_are_finite():
    mu, sigma = (x.requires_grad_() for x in extreme_rows())
    log_p = recovered_log_probs(mu, sigma)
    assert log_p.isfinite().all()
    assert (log_p.amin(-1) < -1e30).all()
    np.testing.assert_allclose(log_p.exp().sum(-1).detach(), 1.0, rtol=1e-6)
    np.testing.assert_allclose(log_p[2].exp().detach(), [0.0, 0.0, 0.0, 1.0], atol=1e-6)
    for gradient in grad((log_p.exp() * log_p).sum(), (mu, sigma)):
        assert gradient.isfinite().all()
    assert recovered_log_probs(torch.tensor([-3.0]), 1e-30).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize(("loc", "winner"), [([-1.0, -2.0, -3.0], 3), ([1.0, 2.0, 3.0], 2), ([-1.0, 2.0, 0.0], 1)])
def test_limits_of_all_scales(dtype: torch.dtype, loc: list[float], winner: int):
    """Narrow, the largest of the locations and zero is certain; wide, only the signs of the noise matter."""
    wide = torch.tensor([7 / 24, 7 / 24, 7 / 24, 1 / 8], dtype=dtype)
    info = torch.finfo(dtype)
    for scale, expected in (
        *((scale, torch.eye(4, dtype=dtype)[winner]) for scale in (info.tiny, 1e4 * info.tiny, 1e-28)),
        *((scale, wide) for scale in (1e37, info.max / 1e4 if dtype == DOUBLE else info.max / 1.2)),
    ):
        mu = torch.tensor(loc, dtype=dtype, requires_grad=True)
        sigma = torch.full_like(mu, scale).requires_grad_()
        p = recovered_log_probs(mu, sigma).exp()
        torch.testing.assert_close(p, expected, rtol=0, atol=1e-6)
        for gradient in grad((p * torch.arange(4.0)).sum(), (mu, sigma)):
            assert gradient.isfinite().all()


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


@pytest.mark.parametrize("kind", KINDS)
def test_the_nodes_that_are_asked_for_are_enough(kind: str):
    generator = np.random.default_rng(3)
    for _ in range(12):
        mu, sigma = parameters(kind, 2, generator)
        loc, scale = torch.tensor(mu), torch.tensor(sigma)
        num_nodes = math.ceil(recovered_log_probs(loc, scale, return_error=True)[1].num_nodes)
        p = recovered_log_probs(loc, scale, num_nodes=num_nodes).exp()
        np.testing.assert_allclose(p, probabilities(mu, sigma), rtol=0, atol=1e-5)


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


def sticks_won(loc: Tensor, scale: Tensor, num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """How often each stick is the longest, with the leftover taking part and without."""
    counts = [np.zeros(len(loc) + 1), np.zeros(len(loc))]
    for _ in range(num_samples // 500_000):
        log_w = log_stick_breaking(loc + scale * torch.randn(500_000, len(loc)))
        for count, candidates in zip(counts, (log_w, log_w[:, :-1]), strict=True):
            count += torch.bincount(candidates.argmax(-1), minlength=len(count)).numpy()
    return counts[0] / num_samples, counts[1] / num_samples


@pytest.mark.parametrize("K", [2, 3, 5, 10, 21])
def test_sticks_match_ten_million_samples(K: int):
    generator = torch.Generator().manual_seed(K)
    loc = torch.randn(K - 1, generator=generator) - 1.0
    scale = torch.rand(K - 1, generator=generator) * 1.8 + 0.2
    num_samples = 10_000_000
    for found, leftover in zip(sticks_won(loc, scale, num_samples), (True, False), strict=True):
        p = recovered_log_probs_stick_breaking(loc.double(), scale.double(), leftover).exp().numpy()
        assert (p[-1] > 0) == leftover
        p = p[: len(found)]
        error = np.sqrt(np.maximum(p * (1 - p), 1e-7) / num_samples)
        assert np.abs((found - p) / error).max() < 5


@pytest.mark.parametrize("loc", [(0.0, 0.0), (-1.0, 0.7), (2.0, -3.0), (-0.05, 4.0)])
@pytest.mark.parametrize("scale", [(1.0, 1.0), (0.05, 2.0), (3.0, 0.3), (0.02, 0.02)])
def test_two_sticks_match_quad(loc: tuple[float, float], scale: tuple[float, float]):
    def integral(second: tuple[float, float]) -> float:  # of the second stick's share being between these, given y1
        def integrand(y1: float) -> float:
            lower, upper = (scipy.special.ndtr((f(y1) - loc[1]) / scale[1]) for f in second)
            return scipy.stats.norm.pdf(y1, loc[0], scale[0]) * max(upper - lower, 0.0)

        edges = np.unique(np.clip([loc[0] + c * scale[0] for c in (-9, -3, -1, 1, 3, 9)] + [0, -np.log(2)], -40, 40))
        edges = edges[(edges >= loc[0] - 9 * scale[0]) & (edges <= loc[0] + 9 * scale[0])]
        return sum(
            scipy.integrate.quad(integrand, *part, epsabs=1e-11, limit=200)[0] for part in itertools.pairwise(edges)
        )

    def log_odds(x: float) -> float:  # of exp(x), which is one and more for x >= 0
        return np.inf if x >= 0 else x - np.log(-np.expm1(x))

    # w1 >= w2 where u2 <= e^y1, and w1 >= w3 where 1 - u2 <= e^y1
    alone = integral((lambda y: -np.inf, log_odds))
    both = integral((lambda y: -log_odds(y), log_odds))
    # w2 >= w1 and w2 >= w3 where u2 >= max(e^y1, 1/2)
    second = integral((lambda y: max(log_odds(y), 0.0), lambda y: np.inf))
    mu, sigma = torch.tensor(loc, dtype=DOUBLE), torch.tensor(scale, dtype=DOUBLE)
    for leftover, truth in ((False, [alone, 1 - alone, 0.0]), (True, [both, second, 1 - both - second])):
        log_p, error = recovered_log_probs_stick_breaking(mu, sigma, leftover, return_error=True)
        distance = np.abs(log_p.exp().numpy() - truth).max()
        assert distance < 2 * error.residual.item() + 1e-9  # the estimate is one, for narrow scales too
        assert distance < 1e-6


@pytest.mark.parametrize(("K", "scale"), [(20, 0.05), (50, 0.1), (4, 0.02)])
def test_narrow_scales_get_the_nodes_they_ask_for(K: int, scale: float):
    loc = -torch.arange(K - 1, 0, -1, dtype=DOUBLE).log()  # sticks of about one length
    loc = torch.cat([loc, loc.new_tensor([50.0])])  # and one that takes all that is left, which costs no nodes
    scale = torch.full((K,), scale, dtype=DOUBLE)
    log_p, error = recovered_log_probs_stick_breaking(loc, scale, return_error=True)
    assert error.residual < 1e-4
    assert error.num_nodes > 256
    found, _ = sticks_won(loc, scale, 1_000_000)
    p = log_p.exp().numpy()
    assert np.abs((found - p) / np.sqrt(np.maximum(p * (1 - p), 1e-7) / 1e6)).max() < 5


def test_rows_do_not_pay_for_the_narrow_scales_of_others(monkeypatch):
    """Wide, narrow, wide, in between: each row has the tables, values and gradients that it has alone."""
    sizes = []

    def counted(mu, sigma, leftover, num_nodes):
        sizes.append((len(mu), num_nodes))
        return stick_masses(mu, sigma, leftover, num_nodes)

    monkeypatch.setattr("igr.recovery.stick_masses", counted)
    loc = torch.randn(2, 2, 4, dtype=DOUBLE)
    scale = torch.tensor([1.0, 0.01, 1.5, 0.06], dtype=DOUBLE).reshape(2, 2, 1).expand(2, 2, 4).contiguous()
    weights = torch.randn(2, 2, 5, dtype=DOUBLE)

    def found(*rows):
        mu, sigma = (x[rows].detach().requires_grad_() for x in (loc, scale))
        log_p = recovered_log_probs_stick_breaking(mu, sigma)
        return log_p, *grad((log_p * weights[rows]).sum(), (mu, sigma))

    together = found()
    assert [each for each in sizes if each[1] in (256, 2048)] == [(2, 256), (1, 2048)]
    assert len(sizes) == 3
    for rows in itertools.product(range(2), range(2)):
        for alone, one in zip(found(*rows), together, strict=True):
            torch.testing.assert_close(one[rows], alone, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("budget", "kept"), [(170_000, True), (140_000, False)])
def test_tables_of_all_sizes_are_kept_together_or_not_at_all(monkeypatch, budget: int, kept: bool):
    """Two wide rows are 32,768 numbers and a narrow one 131,072: each size fits into both budgets, all into one."""
    monkeypatch.setattr("igr.recovery._budget", lambda like: budget)
    loc = torch.zeros(3, 4, dtype=DOUBLE, requires_grad=True)
    scale = torch.tensor([[1.0], [1.5], [0.01]], dtype=DOUBLE).expand(3, 4)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        log_p = recovered_log_probs_stick_breaking(loc, scale)
    assert (max(saved) > 10_000) == kept
    assert grad(log_p[:, 0].sum(), loc)[0].isfinite().all()


def test_rows_that_are_not_numbers_stay_by_themselves():
    """Off the CPU nothing looks at parameters first."""
    loc, scale = torch.zeros(3, 4, dtype=DOUBLE), torch.ones(3, 4, dtype=DOUBLE)
    loc[1, 2] = math.nan
    found = stick_masses(loc, scale, True, 256)
    assert found[1].isnan().any()
    torch.testing.assert_close(found[[0, 2]], stick_masses(loc[[0, 2]], scale[[0, 2]], True, 256), rtol=0, atol=0)


@pytest.mark.parametrize("leftover", [True, False])
def test_the_residual_of_sticks_is_their_error(leftover: bool):
    loc, scale = 2 * torch.randn(6, 6, dtype=DOUBLE) - 1, torch.exp(torch.randn(6, 6, dtype=DOUBLE) - 0.5)
    fine, error = recovered_log_probs_stick_breaking(loc, scale, leftover, num_nodes=768, return_error=True)
    assert error.residual.max() < 1e-6
    log_p, error = recovered_log_probs_stick_breaking(loc, scale, leftover, return_error=True)
    assert (log_p.exp() - fine.exp()).abs().max() < 1e-5
    coarse, error = recovered_log_probs_stick_breaking(loc, scale, leftover, num_nodes=32, return_error=True)
    distance = (coarse.exp() - fine.exp()).abs().amax(-1)
    assert (distance < 2 * error.residual + 1e-5).all()
    assert (error.num_nodes >= 32).all()
    assert error.residual.max() > 1e-5


@pytest.mark.parametrize("leftover", [True, False])
def test_gradients_of_sticks_against_differences(leftover: bool):
    loc = (torch.randn(2, 3, dtype=DOUBLE) - 0.5).requires_grad_()
    scale = (torch.rand(2, 3, dtype=DOUBLE) + 0.4).requires_grad_()

    def fine(loc: Tensor, scale: Tensor) -> Tensor:  # another rule, so that errors of the rule itself show as well
        return recovered_log_probs_stick_breaking(loc, scale, leftover, num_nodes=512)[..., :3].exp()

    weights = torch.randn(2, 3, dtype=DOUBLE)
    value = (weights * recovered_log_probs_stick_breaking(loc, scale, leftover)[..., :3].exp()).sum()
    found = torch.autograd.grad(value, (loc, scale))
    step = 1e-3
    with torch.no_grad():
        for which, gradient in enumerate(found):
            for index in np.ndindex(2, 3):
                values = []
                for move in (step, -step):
                    parameters = [loc.clone(), scale.clone()]
                    parameters[which][index] += move
                    values.append((weights * fine(*parameters)).sum())
                assert gradient[index] == pytest.approx((values[0] - values[1]).item() / (2 * step), abs=2e-5)


def test_sticks_in_batches_and_precisions():
    loc, scale = torch.randn(2, 20, 8), torch.rand(20, 8) + 0.5
    whole = recovered_log_probs_stick_breaking(loc, scale)
    assert whole.shape == (2, 20, 9)
    torch.testing.assert_close(whole.exp().sum(-1), torch.ones(2, 20))
    one = recovered_log_probs_stick_breaking(loc[1, 3].double(), scale[3].double())
    torch.testing.assert_close(whole[1, 3].double().exp(), one.exp(), rtol=0, atol=2e-6)
    assert torch.equal(whole, recovered_log_probs_stick_breaking(loc, scale))  # deterministic
    mapped = torch.func.vmap(recovered_log_probs_stick_breaking)(loc[0], scale)
    torch.testing.assert_close(mapped, whole[0], rtol=1e-4, atol=1e-5)
    loc.requires_grad_()  # several chunks, whose tables are made anew
    (gradient,) = torch.autograd.grad(recovered_log_probs_stick_breaking(loc, scale)[..., 0].sum(), loc)
    row = loc.detach()[1, 3].double().requires_grad_()
    (expected,) = torch.autograd.grad(recovered_log_probs_stick_breaking(row, scale[3].double())[0], row)
    torch.testing.assert_close(gradient[1, 3].double(), expected, rtol=1e-3, atol=1e-4)
    assert recovered_log_probs_stick_breaking(loc.detach().bfloat16(), 1.0).dtype == torch.float32
    assert recovered_log_probs_stick_breaking(torch.zeros(0, 3), 1.0).shape == (0, 4)


def test_sticks_far_out_are_finite():
    loc = torch.tensor([[30.0, -5.0, 2.0], [-300.0, -40.0, -35.0], [-2.0, 60.0, 0.0]])
    for scale in (0.01, 1.0, 100.0):
        log_p, error = recovered_log_probs_stick_breaking(loc, scale, return_error=True)
        assert log_p.isfinite().all()
        assert error.residual.max() < 1e-4
    certain = recovered_log_probs_stick_breaking(loc, 0.01).exp()
    torch.testing.assert_close(certain, torch.eye(4)[[0, 3, 1]], rtol=0, atol=1e-5)


def test_sticks_refuse_bad_input():
    with pytest.raises(ValueError, match="scale must be positive"):
        recovered_log_probs_stick_breaking(torch.zeros(3), torch.tensor([1.0, 0.0, 1.0]))
    for wrong in (8, 64.5):
        with pytest.raises(ValueError, match=f"num_nodes must be an integer of at least 16, got {wrong}"):
            recovered_log_probs_stick_breaking(torch.zeros(3), 1.0, num_nodes=wrong)
    with pytest.raises(TypeError, match="loc"):
        recovered_log_probs_stick_breaking([0.0], 1.0)
