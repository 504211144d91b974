"""Both samplers: their laws, shapes, noise and dtypes."""

import math

import numpy as np
import pytest
import torch
from functional_cases import ROWS, both, close, gaussian, literal_softmaxpp, real, seeded, show, z_scores
from scipy import integrate, stats

from igr import functional as F


@pytest.mark.parametrize("tau", [0.5, 2, torch.tensor(0.3), ROWS.float()], ids=show)
@pytest.mark.parametrize("delta", [1.0, 0.2, ROWS.float()], ids=show)
def test_gaussian_softmax_is_softmaxpp_of_a_normal(tau, delta):
    mu, sigma = real(5, 3), real(5, 3, seed=1).exp()
    eps = torch.randn(5, 3, dtype=torch.float64, generator=seeded(3))
    z = F.gaussian_softmax(mu, sigma, tau, delta=delta, generator=seeded(3))
    as_float64 = (x.double() if isinstance(x, torch.Tensor) else x for x in (tau, delta))
    close(z, torch.as_tensor(literal_softmaxpp(mu + sigma * eps, *as_float64)), atol=1e-12)


def test_scalars_may_be_on_another_device():
    loc, scalar = torch.zeros(4, 2, device="meta"), torch.tensor(0.5)
    assert F.gaussian_softmax(loc, 1.0, scalar, delta=scalar).shape == (4, 3)
    assert F.log_softmaxpp(loc, scalar, scalar).device.type == "meta"
    assert F.log_softmaxpp_inverse(loc, scalar, scalar).shape == (4, 1)


@pytest.mark.parametrize("scale", [0.7, torch.tensor([0.7]), torch.tensor(0.7)], ids=show)
def test_scale_as_a_number(scale):
    mu = real(5, 3, dtype=torch.float32)
    z = F.gaussian_softmax(mu, scale, 0.5, generator=seeded(0))
    close(z, F.gaussian_softmax(mu, torch.full((5, 3), 0.7), 0.5, generator=seeded(0)))


@pytest.mark.parametrize(("mu", "sigma"), [(0.0, 1.0), (0.7, 1.0), (-1.5, 0.8), (0.3, 4.0)])
@pytest.mark.parametrize("delta", [1.0, 0.1])
def test_hard_frequencies_of_two_categories(mu, sigma, delta):
    hard = F.gaussian_softmax(torch.full((200_000, 1), mu), sigma, 0.5, hard=True, delta=delta)
    p = stats.norm.cdf(mu / sigma)
    assert z_scores(hard, [p, 1 - p]).abs().max() < 5


def test_proposition_2_hard_frequencies():
    mu, sigma = np.array([0.4, -0.3, -1.0]), np.array([0.5, 1.0, 2.0])

    def integrand(t, k):
        others = np.prod([stats.norm.cdf(t, mu[j], sigma[j]) for j in range(3) if j != k])
        return stats.norm.pdf(t, mu[k], sigma[k]) * others

    p = [integrate.quad(integrand, 0, np.inf, args=(k,))[0] for k in range(3)]
    p.append(np.prod(stats.norm.cdf(-mu / sigma)))
    assert sum(p) == pytest.approx(1)
    loc, scale = torch.as_tensor(mu, dtype=torch.float32), torch.as_tensor(sigma, dtype=torch.float32)
    hard = F.gaussian_softmax(loc.expand(200_000, 3), scale, 0.1, hard=True)
    assert z_scores(hard, p).abs().max() < 5


@pytest.mark.parametrize("hard", [False, True])
def test_gumbel_softmax_is_torchs(hard):
    logits = real(50, 6, dtype=torch.float32)
    torch.manual_seed(3)
    expected = torch.nn.functional.gumbel_softmax(logits, tau=0.5, hard=hard)
    torch.manual_seed(3)
    close(F.gumbel_softmax(logits, 0.5, hard), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gumbel_noise(dtype):
    noise = F.gumbel_noise(torch.empty(100_000, dtype=dtype))
    assert noise.dtype == dtype
    assert stats.kstest(noise, stats.gumbel_r.cdf).pvalue > 1e-5


def test_gumbel_noise_under_vmap():
    noise = torch.func.vmap(lambda _: F.gumbel_noise(torch.empty(10)), randomness="different")(torch.arange(10_000))
    assert stats.kstest(noise.flatten(), stats.gumbel_r.cdf).pvalue > 1e-5


def test_gumbel_softmax_log_ratio_is_logistic():
    log_alpha = torch.tensor([0.9, -0.4], dtype=torch.float64)
    log_z = F.gumbel_softmax(log_alpha.expand(100_000, 2), 0.5).log()
    ratio = 0.5 * (log_z[:, 0] - log_z[:, 1])
    assert stats.kstest(ratio, stats.logistic(1.3).cdf).pvalue > 1e-5


@pytest.mark.parametrize("tau", [2.0, 0.01])
def test_gumbel_softmax_hard_frequencies(tau):
    logits = real(5, seed=2)
    counts = F.gumbel_softmax(logits.expand(100_000, 5), tau, hard=True).sum(0)
    expected = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum()
    assert stats.chisquare(counts, 100_000 * expected).pvalue > 1e-5


@both
@pytest.mark.parametrize("batch", [(), (0,), (1,), (7,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize("K", [2, 10])
def test_any_leading_shape(sample, batch, K):
    z, hard = sample(torch.zeros(*batch, K)), sample(torch.zeros(*batch, K), hard=True)
    assert z.shape == hard.shape == (*batch, K)
    close(z.sum(-1), torch.ones(batch), rtol=1e-6)
    assert torch.equal(hard.amax(-1) if hard.numel() else hard.sum(-1), torch.ones(batch))


@both
@pytest.mark.parametrize(
    "options",
    [{"tau": torch.ones(6, 1)}, {"mask": torch.ones(6, 4, dtype=torch.bool)}, {"tau": torch.ones(1, 1)}],
    ids=["tau", "mask", "one row"],
)
def test_rows_have_noise_of_their_own(sample, options):
    z = sample(torch.zeros(4), **options)
    assert z.shape == torch.broadcast_shapes((4,), *((*v.shape[:-1], 4) for v in options.values()))
    assert len(torch.unique(z, dim=0)) == len(z)


def test_rows_of_delta_and_scale_have_noise_of_their_own():
    for options in ({"scale": 1.0, "delta": torch.ones(6, 1)}, {"scale": torch.ones(6, 1)}):
        z = F.gaussian_softmax(torch.zeros(3), **options)
        assert z.shape == (6, 4)
        assert len(torch.unique(z, dim=0)) == 6


@both
def test_per_row_temperature(sample):
    logits, tau = real(5, 4), torch.linspace(0.1, 2, 5, dtype=torch.float64).unsqueeze(-1)
    whole = sample(logits, tau, generator=seeded(0))
    rows = [sample(logits, t.item(), generator=seeded(0))[k] for k, t in enumerate(tau)]
    close(whole, torch.stack(rows))


@both
@pytest.mark.parametrize("hard", [False, True])
def test_generator_is_reproducible(sample, hard):
    a, b, c = (sample(torch.zeros(9, 4), 0.5, hard, generator=seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    state = torch.get_rng_state()
    sample(torch.zeros(9, 4), 0.5, hard, generator=seeded(1))
    assert torch.equal(torch.get_rng_state(), state)


@both
@pytest.mark.parametrize("tau", [1.0, 0.01, torch.tensor(0.01, dtype=torch.float64)], ids=show)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes(sample, tau, dtype):
    logits = (5 * real(200, 10)).to(dtype).requires_grad_()
    for hard in (False, True):
        z = sample(logits, tau, hard)
        assert z.dtype == dtype
        close(z.double().sum(-1), torch.ones(200), rtol=0, atol=4 * torch.finfo(dtype).eps)
        (gradient,) = torch.autograd.grad(z[:, 0].sum(), logits)
        assert gradient.dtype == dtype
        assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    logits = real(50, 4).to(dtype)
    for sample in (gaussian, F.gumbel_softmax):
        torch.manual_seed(0)
        low = sample(logits, 0.1)
        torch.manual_seed(0)
        assert torch.equal(low, sample(logits.float(), 0.1).to(dtype))
    y = real(50, 3).to(dtype)
    assert torch.equal(F.softmaxpp(y, 0.01), F.softmaxpp(y.float(), 0.01).to(dtype))
    for log_z in (F.log_softmaxpp(y, 0.01), F.log_stick_breaking(y), F.log_vertex_interpolation(y, 0.1)):
        assert log_z.dtype == torch.float32


def test_mixed_dtypes_promote():
    assert F.gaussian_softmax(torch.zeros(3), torch.ones(3, dtype=torch.float64)).dtype == torch.float64
    assert F.gaussian_softmax(torch.zeros(3), 1.0, torch.ones(1, dtype=torch.float64)).dtype == torch.float32
    tau = torch.full((2, 1), 0.5, dtype=torch.float64)
    assert F.log_vertex_interpolation(torch.zeros(2, 3).log_softmax(-1), tau).dtype == torch.float32


def test_scales_that_are_not_numbers_are_seen_in_samples():
    assert F.gaussian_softmax(torch.zeros(2, 3), torch.tensor([1.0, math.nan, 2.0])).isnan().any()
