import math

import mpmath
import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import grad, gradcheck, gradgradcheck

from igr._draws import gumbel_noise
from igr._winner import tail
from igr.conditional import (
    conditional_path,
    conditional_path_gumbel,
    sample_conditional,
    sample_conditional_gumbel,
)
from igr.functional import harden, softmaxpp
from igr.recovery import recovered_log_probs

DOUBLE = torch.float64
SETTINGS = {  # loc and scale; every category has enough mass for rejection sampling
    "two": ([0.3], [0.8]),
    "benign": ([0.4, -0.3], [0.8, 1.5]),
    "mixed scales": ([0.004, 0.2, -0.5, 0.05], [0.01, 1.0, 3.0, 0.1]),
    "near-ties": ([5e-4, 5e-4, 5e-4], [1e-3, 1.0, 100.0]),
    "ten": ([-1.0, -0.5, -0.8, -1.5, -0.9, -0.7, -0.2, -0.6, -2.0], [1.0, 0.8, 0.9, 1.3, 0.7, 1.0, 0.5, 0.9, 1.2]),
}
TAILS = {  # by about the logarithm of its probability: a category, loc and scale
    "-1": (0, [0.4, -0.3], [0.8, 1.5]),
    "-35": (0, [-4.0, 3.0], [0.6, 0.8]),
    "-35, narrow": (1, [2.0, -7.0], [1e-2, 1.2]),
    "-800": (0, [-20.0, 10.0, 1.0], [0.7, 0.6, 3.0]),
    "-1e5": (1, [30.0, -20.0], [0.5, 0.1]),
}
RULE = np.polynomial.legendre.leggauss(30)
UNITS = np.array([-200, -60, -30, -15, -8, -5, -3, -2, -1, 0, 1, 2, 3, 5, 8, 15, 30, 60, 200])


def one_hot(k: int, K: int, *shape: int) -> Tensor:
    return F.one_hot(torch.tensor(k), K).to(DOUBLE).expand(*shape, K)


def double(*values: list[float]) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(value, dtype=DOUBLE) for value in values)


def assert_same_law(a: Tensor, b: Tensor) -> None:
    for i in range(a.shape[-1]):
        assert scipy.stats.ks_2samp(a[:, i].numpy(), b[:, i].numpy()).pvalue > 1e-5


def assert_mean_is_zero(x: Tensor) -> None:
    z = x.mean(0) / (x.std(0) / math.sqrt(len(x)))
    assert z.abs().max() < 5


@pytest.mark.parametrize("name", SETTINGS)
def test_matches_rejection_sampling(name: str):
    loc, scale = double(*SETTINGS[name])
    y = loc + scale * torch.randn(300_000, len(loc), dtype=DOUBLE)
    category = harden(y).argmax(-1)
    K = len(loc) + 1
    for k in range(K):
        expected = y[category == k][:10_000]
        assert len(expected) > 1000
        actual = sample_conditional(loc, scale, one_hot(k, K, 3000))
        assert_same_law(actual, expected)
        # whether the coordinates depend on each other as they should, a projection of all of them tells
        direction = torch.randn(K - 1, 1, dtype=DOUBLE) / scale.unsqueeze(-1)
        assert_same_law(actual @ direction, expected @ direction)


@pytest.mark.parametrize("name", SETTINGS)
def test_tower_property(name: str):
    loc, scale = double(*SETTINGS[name])
    p = recovered_log_probs(loc, scale).exp()
    b = F.one_hot(torch.multinomial(p, 10_000, replacement=True), len(p))
    y = sample_conditional(loc, scale, b)
    for i, normal in enumerate(zip(loc.tolist(), scale.tolist(), strict=True)):
        assert scipy.stats.kstest(y[:, i].numpy(), "norm", normal).pvalue > 1e-5
    z, other = softmaxpp(y, 0.5), softmaxpp(loc + scale * torch.randn(100_000, len(loc), dtype=DOUBLE), 0.5)
    gap = z.mean(0) - other.mean(0)
    assert (gap.abs() < 5 * (z.var(0) / len(z) + other.var(0) / len(other)).sqrt()).all()
    covariance = torch.atleast_2d(((y - loc) / scale).T.cov())
    assert (covariance - torch.eye(len(loc), dtype=DOUBLE)).abs().max() < 5 * math.sqrt(2 / len(y))


def log_integral(log_function, ends: np.ndarray) -> complex:
    """By panels; the first and the last end may be complex."""
    half = np.diff(ends)[:, None] / 2
    values = log_function(half * RULE[0] + ends[:-1, None] + half)
    top = values.real.max()
    return top + np.log((half * RULE[1] * np.exp(values - top)).sum())


def log_odds(m: complex, k: int, mu: np.ndarray, sigma: np.ndarray) -> complex:
    """Of the distribution function of the largest coordinate, by definition; analytic in all arguments."""

    def log_density(t: np.ndarray, mu: np.ndarray = mu, sigma: np.ndarray = sigma) -> np.ndarray:
        z = (t[..., None] - mu) / sigma
        factors = scipy.special.log_ndtr(z)
        factors[..., k] = -0.5 * z[..., k] ** 2
        return factors.sum(-1)

    slope = log_density(np.array(np.real(m) + 1e-30j), mu.real, sigma.real).imag / 1e-30
    units = np.append(sigma.real, 1 / abs(slope))
    ends = np.concatenate([np.outer(UNITS, units).ravel() + m, (np.outer(UNITS, sigma) + mu).ravel(), [0]]).real
    ends = np.unique(ends)
    below, above = ends[(ends >= 0) & (ends < np.real(m))], ends[ends > np.real(m)]
    return log_integral(log_density, np.append(below, m)) - log_integral(log_density, np.append(m, above))


@pytest.mark.parametrize("name", TAILS)
def test_the_reference_is_right(name: str):
    k, mu, sigma = TAILS[name]
    m = sample_conditional(*double(mu, sigma), one_hot(k, len(mu) + 1))[k].item()
    with mpmath.workdps(20):

        def log_density(t):
            losers = [mpmath.log(mpmath.ncdf(t, mu[j], sigma[j])) for j in range(len(mu)) if j != k]
            return mpmath.log(mpmath.npdf(t, mu[k], sigma[k])) + mpmath.fsum(losers)

        at = log_density(m)
        unit = 1 / mpmath.diff(log_density, m)
        ends = sorted(abs(unit) * c for c in (1, 3, 10, 30, 100))
        lower = [0, *[m - e for e in reversed(ends) if e < m], m]
        upper = [m, *[m + e for e in ends], m + 40 * sigma[k]]
        masses = [mpmath.quad(lambda t: mpmath.exp(log_density(t) - at), sorted(e)) for e in (lower, upper)]
        expected = float(mpmath.log(masses[0] / masses[1]))
    assert log_odds(m, k, np.array(mu), np.array(sigma)).real == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("name", TAILS)
def test_far_tails_have_the_right_law(name: str):
    k, mu, sigma = TAILS[name]
    y = sample_conditional(*double(mu, sigma), one_hot(k, len(mu) + 1, 400))
    assert (harden(y).argmax(-1) == k).all()
    odds = [log_odds(m, k, np.array(mu), np.array(sigma)).real for m in y[:, k].tolist()]
    assert scipy.stats.kstest(odds, "logistic").pvalue > 1e-5
    for j in set(range(len(mu))) - {k}:
        log_p = [scipy.special.log_ndtr((y[:, i].numpy() - mu[j]) / sigma[j]) for i in (j, k)]
        assert scipy.stats.kstest(log_p[1] - log_p[0], "expon").pvalue > 1e-5


def test_the_last_category_in_its_far_tail():
    mu, sigma = [30.0, 2.0, -1.0], [0.5, 0.1, 1.0]
    for dtype in (DOUBLE, torch.float32):
        loc, scale = (x.to(dtype) for x in double(mu, sigma))
        y = sample_conditional(loc, scale, one_hot(3, 4, 1000)).double()
        assert (y < 0).all()
        with mpmath.workdps(30):
            for j in range(3):
                normal = loc[j].item(), scale[j].item()
                v = [float(mpmath.ncdf(t, *normal) / mpmath.ncdf(0, *normal)) for t in y[:200, j].tolist()]
                assert scipy.stats.kstest(v, "uniform").pvalue > 1e-5


def complex_steps(function, arguments: list[float]) -> np.ndarray:
    """The gradient of an analytic function, without cancellation."""
    steps = 1e-30j * np.eye(len(arguments))
    return np.array([function(*(np.array(arguments) + step)).imag for step in steps]) / 1e-30


def implicit_gradients(y: list[float], k: int, mu: list[float], sigma: list[float]) -> np.ndarray:
    """dy / d(μ, σ), (K-1, 2K-2), from the equations that say that the noise is fixed."""
    n = len(mu)

    def log_v(t, m, mean, unit):
        return scipy.special.log_ndtr((t - mean) / unit) - scipy.special.log_ndtr((m - mean) / unit)

    *d_theta, d_m = complex_steps(
        lambda *x: log_odds(x[-1], k, np.array(x[:n]), np.array(x[n:-1])), [*mu, *sigma, y[k]]
    )
    winner = -np.array(d_theta) / d_m
    result = np.tile(winner, (n, 1))
    for j in set(range(n)) - {k}:
        d_y, d_m, d_mean, d_unit = complex_steps(log_v, [y[j], y[k], mu[j], sigma[j]])
        result[j] *= -d_m / d_y
        result[j, [j, n + j]] -= np.array([d_mean, d_unit]) / d_y
    return result


@pytest.mark.parametrize("name", TAILS)
@pytest.mark.parametrize("logit", [-23.0, -4.0, 0.3, 23.0])  # at 23 the noise is within 1e-10 of 0 or 1
def test_gradients_match_the_equations(name: str, logit: float):
    k, mu, sigma = TAILS[name]
    y = sample_conditional(*double(mu, sigma), one_hot(k, len(mu) + 1))
    low, high = 1e-12, max(m + 12 * s for m, s in zip(mu, sigma, strict=True))
    for _ in range(60):
        m = math.sqrt(low * high)
        low, high = (low, m) if log_odds(m, k, np.array(mu), np.array(sigma)).real > logit else (m, high)
    loc, scale = (x.requires_grad_() for x in double(mu, sigma))
    y = torch.minimum(y, m - 0.3 * scale.detach())
    y[k] = m
    path = conditional_path(loc, scale, y)
    actual = np.array([torch.cat(grad(t, (loc, scale), retain_graph=True)).numpy() for t in path])
    expected = implicit_gradients(y.tolist(), k, mu, sigma)
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", [*SETTINGS, "far"])
def test_the_path_is_the_derivative_of_the_sampler(name: str):
    # the last category, and with it all truncated normals, is in its far tail in the last setting
    loc, scale = (x.requires_grad_() for x in double(*SETTINGS.get(name, ([2.0, 3.0], [0.5, 0.1]))))
    b = torch.eye(len(loc) + 1, dtype=DOUBLE)

    def sample(loc: Tensor, scale: Tensor) -> Tensor:
        return sample_conditional(loc, scale, b, generator=torch.Generator().manual_seed(1))

    smallest = scale.min().item()
    # values may be in the hundreds, so that smaller steps would be lost in their rounding
    assert gradcheck(sample, (loc, scale), eps=1e-4 * smallest, atol=1e-6, rtol=1e-5)
    if len(loc) < 5:  # for the sake of time
        assert gradgradcheck(sample, (loc, scale), eps=1e-5 * smallest, atol=1e-4 / smallest, rtol=1e-4)


@pytest.mark.parametrize("b", [[1.0, 0.0], [0.0, 1.0]])
def test_two_categories_are_a_truncated_normal(b: list[float]):
    loc, scale = torch.tensor([-1.5], dtype=DOUBLE, requires_grad=True), torch.tensor([0.7], dtype=DOUBLE)
    y = sample_conditional(loc, scale, torch.tensor(b, dtype=DOUBLE).expand(50, 2))
    ends = (0.0, np.inf) if b[0] else (-np.inf, 0.0)

    def law(mu: float):
        return scipy.stats.truncnorm((ends[0] - mu) / 0.7, (ends[1] - mu) / 0.7, mu, 0.7)

    v = law(-1.5).cdf(y.detach().numpy())
    (actual,) = torch.func.vmap(lambda e: grad(y, loc, e, retain_graph=True))(torch.eye(50, dtype=DOUBLE).unsqueeze(-1))
    expected = (law(-1.5 + 1e-5).ppf(v) - law(-1.5 - 1e-5).ppf(v)) / 2e-5
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-6)


def stress(K: int, rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = np.random.default_rng(K)
    loc, scale = generator.uniform(-50, 50, (rows, K - 1)), 10 ** generator.uniform(-3, 3, (rows, K - 1))
    loc[1::4] = 1 + 1e-3 * loc[1::4]  # near-ties
    loc[2::4] = -abs(loc[2::4])
    scale[3::4] = np.where(scale[3::4] < 1, 1e-3, 1e3)
    return tuple(torch.tensor(x).to(dtype).requires_grad_() for x in (loc, scale))


@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("K", [2, 3, 10, 100, pytest.param(1000, marks=pytest.mark.slow)])
def test_the_category_is_exact_and_everything_finite(K: int, dtype: torch.dtype):
    loc, scale = stress(K, {100: 12, 1000: 4}.get(K, 200), dtype)
    b = F.one_hot(torch.randint(K, (6, len(loc))), K).to(dtype)
    y = sample_conditional(loc, scale, b)
    assert y.dtype == dtype
    assert y.isfinite().all()
    assert torch.equal(harden(y), b)
    assert torch.equal(y.amax(-1) > 0, b[..., -1] == 0)
    if dtype != torch.float16:  # where true gradients overflow
        assert all(g.isfinite().all() for g in grad(y.sum(), (loc, scale)))


@pytest.mark.parametrize("K", [2, 3, 10])
def test_float32_gradients_are_right(K: int):
    loc, scale = stress(K, 100, torch.float32)
    y = sample_conditional(loc, scale, F.one_hot(torch.randint(K, (100,)), K))
    gradients = []
    for dtype in (torch.float32, DOUBLE):
        parameters = [x.detach().to(dtype).requires_grad_() for x in (loc, scale)]
        gradients.append(grad(conditional_path(*parameters, y.to(dtype)).sum(), parameters))
    for single, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(single.double(), expected, rtol=1e-2, atol=1e-2)


def far_from_zero() -> tuple[Tensor, ...]:
    """Locations near 1e4, in float32 a tenth of some of the scales and ten times the others: loc, scale, categories."""
    step = 2.0**-10  # between numbers of float32 there
    loc = 1e4 + step * torch.randint(-1, 2, (40, 3))
    scale = step * torch.tensor([0.1, 0.1, 10.0])[torch.rand(40, 3).argsort(-1)]
    return loc, scale, F.one_hot(torch.arange(40) % 3, 4)


def test_locations_that_are_large_beside_the_scales():
    loc, scale, category = (x.float() for x in far_from_zero())
    y = sample_conditional(loc, scale, category)
    assert torch.equal(harden(y), category)
    units = (y - loc).double() / scale
    exact = sample_conditional(loc.double(), scale.double(), category.double().expand(500, 40, 4))
    low, high = ((exact - loc) / scale).aminmax(dim=0)
    rounding = 2 * torch.finfo(torch.float32).eps * loc / scale
    assert ((units > low - rounding) & (units < high + rounding)).all()
    gradients = []
    for dtype in (torch.float32, DOUBLE):
        parameters = [x.to(dtype).requires_grad_() for x in (loc, scale)]
        gradients.append(grad(conditional_path(*parameters, y.to(dtype)).sum(), parameters))
    for single, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(single.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("coupled", [False, True])
def test_conditional_and_score_gradients_add_up(coupled: bool):
    """E_b E_{y|b} [path gradient of c] + E [c grad log p(b)] = grad E c(y), which is what RELAX is made of."""
    loc, scale = (x.expand(20_000, -1).clone().requires_grad_() for x in double([0.4, -0.3, 0.1], [0.8, 1.5, 0.1]))
    y = loc + scale * torch.randn_like(loc)
    b = harden(y)
    held = conditional_path(loc, scale, y) if coupled else sample_conditional(loc, scale, b)

    def c(y: Tensor) -> Tensor:
        return (softmaxpp(y, 0.7) * torch.tensor([1.3, -0.7, 2.1, 0.4], dtype=DOUBLE)).sum(-1) + y[:, 1].sin()

    score = torch.stack(
        torch.func.jacrev(recovered_log_probs, argnums=(0, 1))(loc[0].detach(), scale[0].detach()), 1
    ).flatten(1)  # (K, 2K-2)
    whole, conditional = (torch.cat(grad(c(x).sum(), (loc, scale), retain_graph=True), -1) for x in (y, held))
    assert_mean_is_zero(whole - conditional - c(held).detach().unsqueeze(-1) * score[b.argmax(-1)])
    # the parts do not vanish by themselves
    assert (conditional.mean(0) - whole.mean(0)).abs().max() > 0.01


def test_a_path_keeps_any_value():
    loc, scale = torch.zeros(7, 3, requires_grad=True), torch.ones(3, requires_grad=True)
    y = torch.tensor(
        [
            [0.0, 0.0, 0.0],
            [1.0, 1.0, 1.0],
            [0.0, -1.0, -2.0],
            [40.0, 39.0, -60.0],
            [1e-30, 0.0, 0.0],
            [-9.0, -50.0, -1e-9],
            [-0.0, -1.0, 0.0],
        ],
        requires_grad=True,
    )
    path = conditional_path(loc, scale, y)
    assert torch.equal(path, y)
    gradients = grad(path.sum(), (loc, scale, y), allow_unused=True)
    assert gradients[0].isfinite().all()
    assert gradients[1].isfinite().all()
    assert gradients[2] is None


def test_shapes_broadcast():
    loc, scale = torch.randn(5, 3, dtype=DOUBLE, requires_grad=True), torch.rand(3, dtype=DOUBLE) + 0.5
    b = F.one_hot(torch.randint(4, (2, 5)), 4)
    assert sample_conditional(loc, 1.0, b).shape == (2, 5, 3)
    assert sample_conditional(loc, scale, b[0, 0].bool()).shape == (5, 3)
    assert sample_conditional(loc[0], scale, b).shape == (2, 5, 3)
    assert sample_conditional(loc[0], scale.expand(6, 1, 3), b[0].double()).shape == (6, 5, 3)
    assert sample_conditional(torch.zeros(0, 3), 1.0, b[0, 0]).shape == (0, 3)
    y = torch.randn(2, 1, 3)
    assert conditional_path(loc, scale, y).shape == (2, 5, 3)
    assert conditional_path(loc, scale, y).dtype == torch.float32
    assert conditional_path(loc, scale, y[0, 0]).requires_grad
    with torch.no_grad():
        assert not sample_conditional(loc, 1.0, b).requires_grad
    logits = torch.randn(5, 4, requires_grad=True)
    assert sample_conditional_gumbel(logits, b).shape == (2, 5, 4)
    assert sample_conditional_gumbel(logits[0], b.bool()).shape == (2, 5, 4)
    assert sample_conditional_gumbel(logits.bfloat16(), b[0]).dtype == torch.bfloat16
    assert conditional_path_gumbel(logits, torch.randn(2, 1, 4)).shape == (2, 5, 4)


def test_noise_comes_from_the_generator():
    loc, b = torch.randn(5, 3), F.one_hot(torch.arange(5) % 4, 4)
    draws = [sample_conditional(loc, 1.0, b, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert (draws[0] != draws[2]).all()
    x = [
        sample_conditional_gumbel(loc[0, 0].expand(4), b, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2)
    ]
    assert torch.equal(x[0], x[1])
    assert (x[0] != x[2]).all()


def test_many_rows_are_as_good_as_few():
    loc = torch.randn(3000, 9, dtype=DOUBLE, requires_grad=True)
    y = loc.detach() + torch.randn(3000, 9, dtype=DOUBLE)
    few = loc.detach()[::300].clone().requires_grad_()
    (whole,) = grad(conditional_path(loc, 1.0, y).sin().sum(), loc)
    (some,) = grad(conditional_path(few, 1.0, y[::300]).sin().sum(), few)
    torch.testing.assert_close(whole[::300], some, rtol=1e-9, atol=1e-9)


def path_gradient(loc: Tensor, y: Tensor) -> Tensor:
    return torch.func.grad(lambda m: conditional_path(m, 0.8, y).sin().sum())(loc)


def test_vmap():
    loc = torch.randn(4, 5, 3, dtype=DOUBLE)
    y = loc + torch.randn_like(loc)
    torch.testing.assert_close(torch.func.vmap(path_gradient)(loc, y), path_gradient(loc, y), rtol=1e-9, atol=1e-9)
    b = harden(y[0])
    samplers = (
        lambda b: sample_conditional(loc[0], 1.0, b),
        lambda b: sample_conditional_gumbel(loc[0, 0, :1].expand(4), b),
    )
    for sample in samplers:
        draws = torch.func.vmap(sample, randomness="different")(b.expand(3, 5, 4))
        assert (draws[0] != draws[1]).all()


@pytest.mark.slow
def test_compile():
    loc = torch.randn(5, 3, dtype=DOUBLE, requires_grad=True)
    y = loc.detach() + torch.randn_like(loc)
    path = torch.compile(conditional_path, fullgraph=True, backend="aot_eager")
    (actual,) = grad(path(loc, 0.8, y).sin().sum(), loc)
    torch.testing.assert_close(actual, path_gradient(loc.detach(), y), rtol=1e-9, atol=1e-9)
    b = harden(y)
    sample = torch.compile(sample_conditional, fullgraph=True, backend="aot_eager")
    assert torch.equal(harden(sample(loc, 0.8, b)), b)


def test_errors_say_what_to_do():
    loc, b = torch.zeros(5, 3), F.one_hot(torch.zeros(5, dtype=torch.int64), 4)
    with pytest.raises(TypeError, match="one_hot must be a tensor"):
        sample_conditional(loc, 1.0, 2)
    with pytest.raises(ValueError, match=r"one_hot must have shape \(\*, K\) with K = 4"):
        sample_conditional(loc, 1.0, b[:, :3])
    for wrong in (b * 0, b + b, 1 - b, b.double() - 0.5, torch.full((5, 4), 0.25)):
        with pytest.raises(ValueError, match="a single one in every row"):
            sample_conditional(loc, 1.0, wrong)
        with pytest.raises(ValueError, match="a single one in every row"):
            sample_conditional_gumbel(torch.zeros(4), wrong)
    with pytest.raises(ValueError, match=r"do not broadcast together: loc .* one_hot"):
        sample_conditional(loc, 1.0, b[:4])
    with pytest.raises(ValueError, match="scale must be positive"):
        sample_conditional(loc, torch.tensor([1.0, -1.0, 1.0]), b)
    with pytest.raises(ValueError, match="loc must be finite"):
        conditional_path(loc / 0, 1.0, loc)
    with pytest.raises(ValueError, match="y must be finite"):
        conditional_path(loc, 1.0, loc / 0)
    with pytest.raises(ValueError, match="y must have the 3 coordinates of loc"):
        conditional_path(loc, 1.0, loc[:, :1])
    with pytest.raises(ValueError, match="num_nodes must be an integer of at least 1"):
        conditional_path(loc, 1.0, loc, num_nodes=10.5)
    with pytest.raises(TypeError, match="y must be a floating-point tensor"):
        conditional_path(loc, 1.0, b[:, :3])
    with pytest.raises(ValueError, match="logits must be finite"):
        sample_conditional_gumbel(torch.tensor([0.0, -math.inf, 0.0, 0.0]), b)
    with pytest.raises(ValueError, match="logits must be finite"):
        conditional_path_gumbel(torch.tensor([0.0, -math.inf]), torch.zeros(2))
    with pytest.raises(ValueError, match=r"do not broadcast together: logits .* x"):
        conditional_path_gumbel(loc, loc[:, :2])


def test_gumbel_matches_rejection_sampling():
    logits = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=DOUBLE)
    x = logits + gumbel_noise(logits.expand(200_000, 4))
    for k in range(4):
        expected = x[x.argmax(-1) == k][:10_000]
        actual = sample_conditional_gumbel(logits, one_hot(k, 4, 5000))
        assert len(expected) > 1000
        assert_same_law(actual, expected)
        direction = torch.randn(4, 1, dtype=DOUBLE)
        assert_same_law(actual @ direction, expected @ direction)


def test_gumbel_path_is_the_derivative_of_the_sampler():
    logits = torch.tensor([[0.5, -1.0, 2.0, 0.0], [30.0, -30.0, 0.0, 29.0]], dtype=DOUBLE, requires_grad=True)
    b = torch.eye(4, dtype=DOUBLE).unsqueeze(1)

    def sample(logits: Tensor) -> Tensor:
        return sample_conditional_gumbel(logits, b, generator=torch.Generator().manual_seed(1))

    assert gradcheck(sample, (logits,))
    assert gradgradcheck(sample, (logits,))


@pytest.mark.parametrize("coupled", [False, True])
def test_gumbel_gradients_add_up(coupled: bool):
    logits = torch.tensor([0.5, -1.0, 1.0], dtype=DOUBLE).expand(100_000, 3).clone().requires_grad_()
    x = logits + gumbel_noise(logits)
    category = x.argmax(-1)
    held = conditional_path_gumbel(logits, x) if coupled else sample_conditional_gumbel(logits, F.one_hot(category, 3))

    def c(x: Tensor) -> Tensor:
        return ((x / 0.7).softmax(-1) * torch.tensor([1.3, -0.7, 2.1], dtype=DOUBLE)).sum(-1) + x[:, 1].sin()

    (whole,), (conditional,) = (grad(c(v).sum(), logits, retain_graph=True) for v in (x, held))
    score = F.one_hot(category, 3) - logits.detach().softmax(-1)
    assert_mean_is_zero(whole - conditional - c(held).detach().unsqueeze(-1) * score)
    assert (conditional.mean(0) - whole.mean(0)).abs().max() > 0.01


@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_gumbel_category_is_exact_and_everything_finite(dtype: torch.dtype):
    logits = (torch.randn(2000, 5, dtype=DOUBLE) * 10 ** torch.empty(2000, 1, dtype=DOUBLE).uniform_(-3, 4)).to(dtype)
    logits = logits.clamp(-6e4, 6e4).requires_grad_()
    b = F.one_hot(torch.randint(5, (2000,)), 5).to(dtype)
    x = sample_conditional_gumbel(logits, b)
    assert x.dtype == dtype
    assert torch.equal(F.one_hot(x.argmax(-1), 5).to(dtype), b)
    assert x.isfinite().all()
    assert grad(x.sum(), logits)[0].isfinite().all()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-5), (DOUBLE, 1e-11)])
def test_tail(dtype: torch.dtype, tolerance: float):
    z = torch.cat([-torch.logspace(-3, 5, 300), torch.linspace(-3, 5, 100), torch.tensor([0.0, 40.0])]).to(dtype)
    with mpmath.workdps(40):
        at = [mpmath.mpf(v) for v in z.tolist()]
        q = [float(mpmath.log(mpmath.ncdf(v)) + min(v, 0) ** 2 / 2) for v in at]
        slope = [float(mpmath.npdf(v) / mpmath.ncdf(v) + min(v, 0)) for v in at]
    actual = tail(z)
    np.testing.assert_allclose(actual[0].double().numpy(), q, rtol=tolerance, atol=torch.finfo(dtype).eps)
    np.testing.assert_allclose(actual[1].double().numpy(), slope, rtol=tolerance, atol=1e-30)
    assert gradcheck(tail, (torch.linspace(-4, 4, 9, dtype=DOUBLE) + 0.1).requires_grad_())
    assert gradgradcheck(tail, (torch.linspace(-4, 4, 9, dtype=DOUBLE) + 0.1).requires_grad_())


@pytest.mark.parametrize("spread", [(1e-7, 1.5e-7), (0.5, 1.5)], ids=["narrow", "far"])
def test_float32_samples_are_finite_where_numbers_are_coarse_beside_scales(spread):
    low, high = spread
    loc = torch.randn(2000, 9) if high < 0.1 else torch.tensor([-1e8, 1e8]).expand(2000, 2)
    scale = low + (high - low) * torch.rand_like(loc)
    K = loc.shape[-1] + 1
    one_hot = F.one_hot(torch.randint(K, (2000,)) if high < 0.1 else torch.zeros(2000, dtype=torch.long), K).float()
    y = sample_conditional(loc, scale, one_hot)
    assert y.isfinite().all()
    assert torch.equal(harden(y), one_hot)


@pytest.mark.parametrize("loc", [[-40.0, -1.0], [-1e3, -1.0], [-30.0, 2.0]], ids=str)
def test_second_derivatives_where_the_winner_is_far_from_its_location(loc):
    """By differences of first ones, to where the sample goes with the locations."""
    mu, y = torch.tensor(loc, dtype=DOUBLE), torch.tensor([0.02, -1.5], dtype=DOUBLE)

    def path(mu: Tensor, y: Tensor) -> Tensor:
        return conditional_path(mu, torch.ones(2, dtype=DOUBLE), y, num_nodes=128)

    def slope(mu: Tensor, y: Tensor) -> Tensor:
        return torch.autograd.functional.jacobian(lambda mu: path(mu, y), mu).sum(0)

    found = torch.autograd.functional.hessian(lambda mu: path(mu, y).sum(), mu)
    h, moves = 1e-3, torch.autograd.functional.jacobian(lambda mu: path(mu, y), mu)
    for i, step in enumerate(h * torch.eye(2, dtype=DOUBLE)):
        change = h * moves[:, i]
        expected = (slope(mu + step, y + change) - slope(mu - step, y - change)) / (2 * h)
        torch.testing.assert_close(found[i], expected, rtol=1e-4, atol=1e-9)
