"""Each formula against an independent method: mpmath, scipy, or the paper's formula written out in float64."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.autograd import gradcheck

from igr import categorical_kl
from igr import functional as F
from igr.distributions import GumbelSoftmax, InvertibleGaussian

ROWS = torch.linspace(0.3, 2, 5, dtype=torch.float64).unsqueeze(-1)  # one value per row


def real(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def points(*shape, seed=0, dtype=torch.float64):
    """Random points of the simplex."""
    return real(*shape, seed=seed, dtype=dtype).softmax(-1)


def show(value):
    """A readable test id."""
    if isinstance(value, torch.Tensor):
        return f"{value.tolist()}" if value.numel() < 4 else f"rows{tuple(value.shape)}"
    return getattr(value, "__name__", repr(value))


def exact(f, rows):
    """f on each row in 60 digits, rounded to float64."""
    with mpmath.workdps(60):
        results = [[float(v) for v in f([mpmath.mpf(v) for v in row])] for row in rows.tolist()]
    return torch.tensor(results, dtype=torch.float64)


def close(actual, expected, rtol=1e-12, atol=1e-15):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, check_dtype=False)


# softmax++


def literal_softmaxpp(y, tau, delta):
    e = np.exp(np.asarray(y) / np.asarray(tau))
    g = e / (e.sum(-1, keepdims=True) + np.asarray(delta))
    return np.concatenate([g, 1 - g.sum(-1, keepdims=True)], -1)


@pytest.mark.parametrize(
    ("tau", "delta"),
    [
        (1.0, 1.0),
        (0.4, 0.3),
        (2, 5),
        (torch.tensor(0.5), torch.tensor(2.0)),
        (ROWS, 0.7),
        (0.7, ROWS),
    ],
    ids=show,
)
def test_softmaxpp_is_equation_15(tau, delta):
    y = real(5, 3)
    expected = torch.as_tensor(literal_softmaxpp(y, tau, delta))
    close(F.softmaxpp(y, tau, delta), expected)
    close(F.log_softmaxpp(y, tau, delta), expected.log(), atol=1e-12)


def test_softmaxpp_rows_from_tau_and_delta():
    rows = torch.tensor([[0.5], [2.0]], dtype=torch.float64)
    y = real(3)
    for z in (F.softmaxpp(y, rows), F.softmaxpp(y, 0.5, rows), F.softmaxpp(y, rows, rows)):
        assert z.shape == (2, 4)
    close(F.softmaxpp(y, 0.5, rows)[1], F.softmaxpp(y, 0.5, 2.0))


@pytest.mark.parametrize("delta", [1.0, 0.2])
def test_log_softmaxpp_at_low_temperature(delta):
    tau, y = 0.01, 10 * real(20, 4)

    def log_z(row):
        logits = [v / mpmath.mpf(tau) for v in row] + [mpmath.log(mpmath.mpf(delta))]
        total = mpmath.log(mpmath.fsum(mpmath.exp(v) for v in logits))
        return [v - total for v in logits]

    close(F.log_softmaxpp(y, tau, delta), exact(log_z, y))


def test_last_coordinate_is_positive_in_float32():
    y = real(1000, 4, dtype=torch.float32)
    literal = literal_softmaxpp(y.numpy(), np.float32(0.1), np.float32(1.0))[:, -1]
    assert literal.dtype == np.float32
    assert (literal <= 0).mean() > 0.1  # what the K-th coordinate must not be
    assert bool((F.softmaxpp(y, 0.1)[:, -1] > 0).all())
    assert bool(F.log_softmaxpp(y, 0.001).isfinite().all())


@pytest.mark.parametrize("tau", [1.0, 0.3, ROWS], ids=show)
@pytest.mark.parametrize("delta", [1.0, 0.2, ROWS], ids=show)
def test_softmaxpp_inverse(tau, delta):
    y, z = real(5, 3), points(5, 4)
    close(F.softmaxpp_inverse(F.softmaxpp(y, tau, delta), tau, delta), y, atol=1e-12)
    close(F.softmaxpp(F.softmaxpp_inverse(z, tau, delta), tau, delta), z)


def test_log_softmaxpp_inverse_survives_underflow():
    y = 10 * real(50, 3)
    assert bool((F.softmaxpp(y, 0.001) == 0).any())
    close(F.log_softmaxpp_inverse(F.log_softmaxpp(y, 0.001, 0.4), 0.001, 0.4), y, atol=1e-11)


@pytest.mark.parametrize("f", [F.softmaxpp, F.log_softmaxpp], ids=show)
def test_softmaxpp_gradients(f):
    tau, delta = real(2, 1).exp().requires_grad_(), real(2, 1, seed=1).exp().requires_grad_()
    assert gradcheck(f, (real(2, 3).requires_grad_(), tau, delta))
    assert gradcheck(f, (real(3).requires_grad_(), tau[0, 0], delta[0, 0]))


@pytest.mark.parametrize("f", [F.softmaxpp_inverse, F.log_softmaxpp_inverse], ids=show)
def test_softmaxpp_inverse_gradients(f):
    tau, delta = real(2, 1).exp().requires_grad_(), real(2, 1, seed=1).exp().requires_grad_()
    assert gradcheck(f, (points(2, 4).requires_grad_(), tau, delta))


# stick-breaking


def test_log_stick_breaking_is_equation_16():
    y = real(6, 4)
    u = 1 / (1 + np.exp(-y.numpy()))
    rest = np.concatenate([np.ones((6, 1)), np.cumprod(1 - u, -1)], -1)  # Π_{i<k} (1 - u_i)
    w = np.concatenate([u, np.ones((6, 1))], -1) * rest
    close(F.log_stick_breaking(y), torch.as_tensor(np.log(w)), atol=1e-12)


@pytest.mark.parametrize("size", [1.0, 50.0, 800.0])
def test_log_stick_breaking_far_out(size):
    y = size * (2 * torch.rand(20, 4, dtype=torch.float64) - 1)

    def log_w(row):
        u = [1 / (1 + mpmath.exp(-v)) for v in row]
        rest = [mpmath.fprod(1 / (1 + mpmath.exp(v)) for v in row[:k]) for k in range(len(row) + 1)]
        return [mpmath.log(a * b) for a, b in zip([*u, mpmath.mpf(1)], rest, strict=True)]

    close(F.log_stick_breaking(y), exact(log_w, y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sticks_sum_to_one(dtype):
    w = F.log_stick_breaking(30 * real(100, 9, dtype=dtype)).exp()
    assert w.shape == (100, 10)
    close(w.sum(-1), torch.ones(100, dtype=dtype), rtol=0, atol=4 * torch.finfo(dtype).eps)


def test_log_stick_breaking_inverse():
    y, w = 10 * real(20, 4), points(20, 5)
    close(F.log_stick_breaking_inverse(F.log_stick_breaking(y)), y, atol=1e-12)
    expected = [[math.log(row[k] / math.fsum(row[k + 1 :])) for k in range(4)] for row in w.tolist()]
    close(F.log_stick_breaking_inverse(w.log()), torch.tensor(expected, dtype=torch.float64), atol=1e-12)


def test_stick_breaking_gradients():
    assert gradcheck(F.log_stick_breaking, (real(2, 3).requires_grad_(),))
    assert gradcheck(F.log_stick_breaking_inverse, (points(2, 4).log().requires_grad_(),))
    y = torch.full((3,), -800.0, requires_grad=True)
    (gradient,) = torch.autograd.grad(F.log_stick_breaking(y)[0], y)
    close(gradient, torch.tensor([1.0, 0.0, 0.0]))  # d log sigmoid(y) / dy, not clipped


# vertex interpolation


@pytest.mark.parametrize(
    "tau", [1.0, 0.3, 0.01, torch.linspace(0.05, 1, 40, dtype=torch.float64).unsqueeze(-1)], ids=show
)
def test_vertex_interpolation(tau):
    w = points(40, 4)
    distances = torch.cdist(w, torch.eye(4, dtype=torch.float64))  # to every vertex, the leftover's among them
    vertex = torch.eye(4, dtype=torch.float64)[distances.argmin(-1)]
    assert bool((vertex.sum(0) > 0).all())
    expected = tau * w + (1 - tau) * vertex
    z = F.vertex_interpolation(w, tau)
    close(z, expected)
    close(z.sum(-1), torch.ones(40))
    close(F.log_vertex_interpolation(w.log(), tau), expected.log(), atol=1e-14)
    close(F.vertex_interpolation_inverse(z, tau), w, atol=1e-13)


def test_vertex_interpolation_at_one_is_the_identity():
    w = points(10, 4)
    close(F.vertex_interpolation(w, 1.0), w)
    close(F.log_vertex_interpolation(w.log(), 1.0), w.log(), atol=1e-14)


def test_log_vertex_interpolation_survives_underflow():
    log_w = F.log_stick_breaking(torch.tensor([[-400.0, 900.0], [900.0, -3.0]], dtype=torch.float64))
    expected = [[math.log(0.1) - 400, 0.0, math.log(0.1) - 900], [0.0, math.log(0.1) - 903, math.log(0.1) - 900]]
    close(F.log_vertex_interpolation(log_w, 0.1), torch.tensor(expected), rtol=1e-3)


@pytest.mark.parametrize("tau", [0.2, 0.7])
def test_vertex_interpolation_inverse_shows_points_off_the_image(tau):
    z = points(500, 3)
    largest, second = z.topk(2).values.unbind(-1)
    inside = largest - second >= 1 - tau  # w_k >= w_j for the nearest vertex k and all others j
    assert 0 < inside.sum() < 500
    w = F.vertex_interpolation_inverse(z, tau)
    assert torch.equal((w >= 0).all(-1) & (w.argmax(-1) == z.argmax(-1)), inside)


@pytest.mark.parametrize("f", [F.vertex_interpolation, F.vertex_interpolation_inverse], ids=show)
def test_vertex_interpolation_gradients(f):
    tau = torch.tensor([[0.3], [0.6]], dtype=torch.float64, requires_grad=True)
    w = points(2, 4).requires_grad_()
    assert gradcheck(f, (w, tau))
    assert gradcheck(F.log_vertex_interpolation, (w.detach().log().requires_grad_(), tau))


@pytest.mark.parametrize("tau", [0.01, torch.tensor(0.01), torch.tensor([[0.01]])], ids=show)
@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_vertex_interpolation_with_half_precision_tau(tau, low):
    tau = tau.to(low) if isinstance(tau, torch.Tensor) else tau
    w = torch.tensor([[0.5, 0.3, 0.2]])
    close(F.vertex_interpolation(w, tau).sum(-1), torch.ones(1), rtol=1e-6)
    close(F.vertex_interpolation_inverse(F.vertex_interpolation(w, tau), tau), w, rtol=1e-4)


# h(y)


@pytest.mark.parametrize("delta", [0.001, 1.0, 50.0])
def test_proposition_1_limit(delta):
    y = real(200, 4)
    padded = np.pad(y.numpy(), ((0, 0), (0, 1)))
    first, second = np.sort(padded)[:, [-1, -2]].T
    y, padded = y[first - second > 0.05], padded[first - second > 0.05]  # the limit is slow at ties
    limit = torch.as_tensor(np.eye(5)[padded.argmax(-1)])
    assert bool((limit.sum(0) > 0).all())
    assert torch.equal(F.harden(y), limit)
    errors = [(F.softmaxpp(y, tau, delta) - limit).abs().max().item() for tau in (1.0, 0.1, 0.01, 0.001)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-12


def test_harden():
    y = torch.tensor([[0.2, 1.5], [-0.3, -2.0], [1e-30, -1.0], [-1e-30, -1.0]])
    assert F.harden(y).tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 0, 1]]
    assert F.harden(y.half().requires_grad_()).dtype == torch.float16
    assert not F.harden(y.requires_grad_()).requires_grad


def test_straight_through():
    logits = real(1000, 10, dtype=torch.float32).requires_grad_()
    soft = logits.softmax(-1)
    for hard in (torch.eye(10)[logits.argmax(-1)], 1e-3 * torch.rand(1000, 10)):
        z = F.straight_through(hard, soft)
        assert torch.equal(z, hard)
        weights = real(1000, 10, seed=1, dtype=torch.float32)
        given, wanted = (torch.autograd.grad((weights * x).sum(), logits, retain_graph=True)[0] for x in (z, soft))
        assert torch.equal(given, wanted)
        assert bool((wanted != 0).any())
    assert not torch.equal(hard - soft.detach() + soft, hard)  # the usual way of writing it rounds what is not 0 or 1


# samplers


def gaussian(logits, *args, **options):
    """K - 1 locations in place of K logits, so that both samplers take the same arguments."""
    return F.gaussian_softmax(logits[..., :-1], 1.0, *args, **options)


both = pytest.mark.parametrize("sample", [gaussian, F.gumbel_softmax], ids=["gaussian", "gumbel"])
seeded = torch.Generator().manual_seed


@pytest.mark.parametrize("tau", [0.5, 2, torch.tensor(0.3), ROWS.float()], ids=show)
@pytest.mark.parametrize("delta", [1.0, 0.2, ROWS.float()], ids=show)
def test_gaussian_softmax_is_softmaxpp_of_a_normal(tau, delta):
    mu, sigma = real(5, 3), real(5, 3, seed=1).exp()
    eps = torch.randn(5, 3, dtype=torch.float64, generator=seeded(3))
    z = F.gaussian_softmax(mu, sigma, tau, delta=delta, generator=seeded(3))
    as_float64 = (x.double() if isinstance(x, torch.Tensor) else x for x in (tau, delta))
    close(z, torch.as_tensor(literal_softmaxpp(mu + sigma * eps, *as_float64)), atol=1e-12)


@pytest.mark.parametrize("scale", [0.7, torch.tensor([0.7]), torch.tensor(0.7)], ids=show)
def test_scale_as_a_number(scale):
    mu = real(5, 3, dtype=torch.float32)
    z = F.gaussian_softmax(mu, scale, 0.5, generator=seeded(0))
    close(z, F.gaussian_softmax(mu, torch.full((5, 3), 0.7), 0.5, generator=seeded(0)))


def z_scores(hard, probability):
    """Of the frequencies of one-hot samples (S, K) against probabilities (K,)."""
    p = torch.as_tensor(probability, dtype=torch.float64)
    return (hard.double().mean(0) - p) / (p * (1 - p) / len(hard)).sqrt()


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


# masks

MASK = torch.tensor([[1, 1, 1, 0], [0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 1], [1, 1, 1, 1]], dtype=torch.bool)


@both
@pytest.mark.parametrize("size", [1.0, 100.0])
@pytest.mark.parametrize("value", [1.0, 0.001])
@pytest.mark.parametrize("hard", [False, True])
def test_mask(sample, size, value, hard):
    logits = (size * real(300, 5, 4, dtype=torch.float32)).requires_grad_()
    tau = torch.full((5, 1), value, requires_grad=True)
    z = sample(logits, tau, hard, mask=MASK)
    assert bool((z[:, ~MASK] == 0).all())
    close(z.sum(-1), torch.ones(300, 5), rtol=1e-6)
    assert bool((z[:, MASK] > 0).any(0).all())
    for gradient in torch.autograd.grad((real(4, dtype=torch.float32) * z).sum(), (logits, tau)):
        assert bool(gradient.isfinite().all())


@both
def test_mask_restricts_the_discrete_distribution(sample):
    mask = torch.tensor([False, True, False, True])
    logits = torch.tensor([3.0, 0.5, 2.0, 0.0])
    p = {gaussian: stats.norm.cdf(0.5), F.gumbel_softmax: 1 / (1 + math.exp(-0.5))}[sample]
    hard = sample(logits.expand(100_000, 4), 0.5, hard=True, mask=mask)
    assert bool((hard[:, ~mask] == 0).all())
    assert z_scores(hard[:, mask], [p, 1 - p]).abs().max() < 5


@both
def test_mask_equals_fewer_categories(sample):
    logits = real(7, 4)
    masked = sample(logits, 0.5, mask=MASK[4], generator=seeded(0))
    close(masked, sample(logits, 0.5, generator=seeded(0)))
    some = torch.tensor([True, True, False, True])
    z = sample(logits, 0.5, generator=seeded(0))[:, some]
    close(sample(logits, 0.5, mask=some, generator=seeded(0))[:, some], z / z.sum(-1, keepdim=True))


@both
@pytest.mark.parametrize(
    ("mask", "error"),
    [
        (torch.tensor([[True] * 4, [False] * 4]), ValueError),
        (torch.ones(4), TypeError),
        ([True] * 4, TypeError),
        (torch.ones(3, dtype=torch.bool), ValueError),
        (torch.ones(5, dtype=torch.bool), ValueError),
        (torch.tensor(True), ValueError),
        (torch.ones(3, 4, dtype=torch.bool), ValueError),
    ],
    ids=["forbids all", "float", "list", "K - 1", "K + 1", "0-d", "rows"],
)
def test_bad_mask(sample, mask, error):
    with pytest.raises(error, match="mask"):
        sample(torch.zeros(2, 4), mask=mask)


# terms


@pytest.mark.parametrize("tau", [0.4, ROWS], ids=show)
@pytest.mark.parametrize("hard", [False, True])
def test_gaussian_terms_are_those_of_the_distribution(tau, hard):
    loc, scale, delta = real(5, 3), real(5, 3, seed=1).exp(), 0.7
    mu0, sigma0 = real(3, seed=2), real(5, 1, seed=3).exp()
    q = InvertibleGaussian(loc, scale, tau, delta=delta)
    torch.manual_seed(1)
    z, log_q, kl = F.gaussian_softmax_terms(loc, scale, tau, hard, delta=delta, prior=(mu0, sigma0))
    torch.manual_seed(1)
    expected, expected_log_q = q.rsample_and_log_prob()
    close(log_q, expected_log_q)
    close(kl, q.kl(InvertibleGaussian(mu0, sigma0, tau, delta=delta)))
    torch.manual_seed(1)
    close(z, q.hard_rsample() if hard else expected)


@pytest.mark.parametrize("tau", [0.4, ROWS], ids=show)
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("prior", [None, real(4, seed=2)], ids=["uniform", "given"])
def test_gumbel_terms_are_those_of_the_distribution(tau, hard, prior):
    logits = real(5, 4)
    q = GumbelSoftmax(tau, logits)
    torch.manual_seed(1)
    z, log_q, kl = F.gumbel_softmax_terms(logits, tau, hard, prior_logits=prior)
    torch.manual_seed(1)
    expected, expected_log_q = q.rsample_and_log_prob()
    close(log_q, expected_log_q)
    close(kl, categorical_kl(logits, real(4) * 0 if prior is None else prior))
    torch.manual_seed(1)
    close(z, q.hard_rsample() if hard else expected)


def test_terms_with_rows_from_the_temperature():
    taus = torch.tensor([[[0.3]], [[0.6]]])
    z, log_q, kl = F.gaussian_softmax_terms(torch.zeros(5, 3), 1.0, taus, prior=(0.0, 1.0))
    assert (z.shape, log_q.shape, kl.shape) == ((2, 5, 4), (2, 5), (2, 5))
    z, log_q, kl = F.gumbel_softmax_terms(torch.zeros(5, 3), taus)
    assert (z.shape, log_q.shape, kl.shape) == ((2, 5, 3), (2, 5), (2, 5))
    assert F.gaussian_softmax_terms(torch.zeros(5, 3), 1.0).kl is None


def test_a_prior_does_not_decide_shapes():
    with pytest.raises(ValueError, match="prior location of shape"):
        F.gaussian_softmax_terms(torch.zeros(3), 1.0, prior=(torch.zeros(2, 3), 1.0))
    for sigma0 in (-1.0, torch.tensor([1.0, -1.0, 1.0])):
        with pytest.raises(ValueError, match="prior scale must be positive"):
            F.gaussian_softmax_terms(torch.zeros(3), 1.0, prior=(0.0, sigma0))
    with pytest.raises(ValueError, match="prior_logits of shape"):
        F.gumbel_softmax_terms(torch.zeros(3), prior_logits=torch.zeros(2, 3))


Y, Z = real(2, 3), points(2, 4)
ROW_SCALAR_ARGUMENTS = {
    ("softmaxpp", "tau"): lambda v: F.softmaxpp(Y, v),
    ("softmaxpp", "delta"): lambda v: F.softmaxpp(Y, 1.0, v),
    ("log_softmaxpp", "tau"): lambda v: F.log_softmaxpp(Y, v),
    ("log_softmaxpp", "delta"): lambda v: F.log_softmaxpp(Y, 1.0, v),
    ("softmaxpp_inverse", "tau"): lambda v: F.softmaxpp_inverse(Z, v),
    ("softmaxpp_inverse", "delta"): lambda v: F.softmaxpp_inverse(Z, 1.0, v),
    ("log_softmaxpp_inverse", "tau"): lambda v: F.log_softmaxpp_inverse(Z, v),
    ("log_softmaxpp_inverse", "delta"): lambda v: F.log_softmaxpp_inverse(Z, 1.0, v),
    ("vertex_interpolation", "tau"): lambda v: F.vertex_interpolation(Z, v),
    ("log_vertex_interpolation", "tau"): lambda v: F.log_vertex_interpolation(Z, v),
    ("vertex_interpolation_inverse", "tau"): lambda v: F.vertex_interpolation_inverse(Z, v),
    ("gaussian_softmax", "tau"): lambda v: F.gaussian_softmax(Y, 1.0, v),
    ("gaussian_softmax", "delta"): lambda v: F.gaussian_softmax(Y, 1.0, delta=v),
    ("gumbel_softmax", "tau"): lambda v: F.gumbel_softmax(Z, v),
    ("gaussian_top_k", "tau"): lambda v: F.gaussian_top_k(Y, 1.0, 2, v),
    ("gumbel_top_k", "tau"): lambda v: F.gumbel_top_k(Z, 2, v),
    ("gaussian_softmax_terms", "tau"): lambda v: F.gaussian_softmax_terms(Y, 1.0, v),
    ("gaussian_softmax_terms", "delta"): lambda v: F.gaussian_softmax_terms(Y, 1.0, delta=v),
    ("gumbel_softmax_terms", "tau"): lambda v: F.gumbel_softmax_terms(Z, v),
}
TENSOR_ARGUMENTS = {
    ("softmaxpp", "y"): F.softmaxpp,
    ("log_softmaxpp", "y"): F.log_softmaxpp,
    ("softmaxpp_inverse", "z"): F.softmaxpp_inverse,
    ("log_softmaxpp_inverse", "log_z"): F.log_softmaxpp_inverse,
    ("log_stick_breaking", "y"): F.log_stick_breaking,
    ("log_stick_breaking_inverse", "log_w"): F.log_stick_breaking_inverse,
    ("vertex_interpolation", "w"): lambda v: F.vertex_interpolation(v, 0.5),
    ("log_vertex_interpolation", "log_w"): lambda v: F.log_vertex_interpolation(v, 0.5),
    ("vertex_interpolation_inverse", "z"): lambda v: F.vertex_interpolation_inverse(v, 0.5),
    ("harden", "y"): F.harden,
    ("gaussian_softmax", "loc"): lambda v: F.gaussian_softmax(v, 1.0),
    ("gaussian_softmax", "scale"): lambda v: F.gaussian_softmax(Y, v),
    ("gumbel_softmax", "logits"): F.gumbel_softmax,
    ("gaussian_top_k", "loc"): lambda v: F.gaussian_top_k(v, 1.0, 2),
    ("gaussian_top_k", "scale"): lambda v: F.gaussian_top_k(Y, v, 2),
    ("gumbel_top_k", "logits"): lambda v: F.gumbel_top_k(v, 2),
    ("gaussian_softmax_terms", "loc"): lambda v: F.gaussian_softmax_terms(v, 1.0),
    ("gaussian_softmax_terms", "scale"): lambda v: F.gaussian_softmax_terms(Y, v),
    ("gumbel_softmax_terms", "logits"): F.gumbel_softmax_terms,
    ("gumbel_softmax_terms", "prior_logits"): lambda v: F.gumbel_softmax_terms(Z, prior_logits="" if v is None else v),
}


def test_every_public_function_is_asked():
    functions = {function for function, _ in (*ROW_SCALAR_ARGUMENTS, *TENSOR_ARGUMENTS)}
    assert functions | {"straight_through", "SampleTerms"} == set(F.__all__)


@pytest.mark.parametrize("argument", ROW_SCALAR_ARGUMENTS, ids=".".join)
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (0, ValueError),
        (0.0, ValueError),
        (-1.0, ValueError),
        (math.nan, ValueError),
        (math.inf, ValueError),
        (torch.tensor(0.0), ValueError),
        (torch.tensor([[0.5], [math.nan]]), ValueError),
        (torch.ones(4), ValueError),
        (torch.full((2, 3), 0.5), ValueError),
        (torch.full((3, 1), 0.5), ValueError),
        (True, TypeError),
        ("0.5", TypeError),
        (None, TypeError),
        (torch.tensor(1), TypeError),
        (torch.tensor([[True], [True]]), TypeError),
    ],
    ids=show,
)
def test_bad_temperature_and_delta(argument, value, error):
    with pytest.raises(error, match=rf"\b{argument[1]}\b"):
        ROW_SCALAR_ARGUMENTS[argument](value)


@pytest.mark.parametrize("argument", ROW_SCALAR_ARGUMENTS, ids=".".join)
def test_rows_that_do_not_broadcast_are_all_named(argument):
    with pytest.raises(ValueError, match=r"\(2, .*\(3, 1\)|\(3, 1\).*\(2, "):
        ROW_SCALAR_ARGUMENTS[argument](torch.full((3, 1), 0.5))


@pytest.mark.parametrize(
    "f", [F.vertex_interpolation, F.log_vertex_interpolation, F.vertex_interpolation_inverse], ids=show
)
@pytest.mark.parametrize("tau", [1.1, torch.tensor([[0.5], [1.1]])], ids=["number", "tensor"])
def test_vertex_interpolation_needs_tau_of_at_most_one(f, tau):
    with pytest.raises(ValueError, match=r"tau must be in \(0, 1\]"):
        f(Z, tau)


@pytest.mark.parametrize("argument", TENSOR_ARGUMENTS, ids=".".join)
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (torch.ones(2, 3, dtype=torch.long), TypeError),
        (torch.ones(2, 3, dtype=torch.bool), TypeError),
        ([0.5, 0.5], TypeError),
        ("0.5", TypeError),
        (None, TypeError),
        (torch.ones(2, 0), ValueError),
    ],
    ids=["integers", "booleans", "list", "string", "None", "empty"],
)
def test_bad_tensor(argument, value, error):
    with pytest.raises(error, match=rf"\b{argument[1]}\b"):
        TENSOR_ARGUMENTS[argument](value)


@pytest.mark.parametrize("argument", [a for a in TENSOR_ARGUMENTS if a[1] != "scale"], ids=".".join)
def test_no_category_axis(argument):
    with pytest.raises(ValueError, match=rf"\b{argument[1]}\b"):
        TENSOR_ARGUMENTS[argument](torch.tensor(0.5))


@pytest.mark.parametrize("argument", [a for a in TENSOR_ARGUMENTS if a[1] not in ("y", "loc", "scale")], ids=".".join)
def test_one_category(argument):
    with pytest.raises(ValueError, match=rf"\b{argument[1]}\b.* K >= 2"):
        TENSOR_ARGUMENTS[argument](torch.ones(2, 1))


@pytest.mark.parametrize(
    "scale",
    [torch.ones(4), torch.ones(3, 3), 0.0, -1.0, math.nan, math.inf],
    ids=show,
)
def test_bad_scale(scale):
    with pytest.raises(ValueError, match="scale"):
        F.gaussian_softmax(Y, scale)


def test_scale_does_not_decide_the_number_of_categories():
    with pytest.raises(ValueError, match="scale"):
        F.gaussian_softmax(torch.zeros(2, 1), torch.ones(2, 3))


def test_straight_through_needs_one_shape():
    with pytest.raises(ValueError, match=r"hard .*soft"):
        F.straight_through(torch.ones(2, 3), torch.ones(3, 2))


# compilation, vmap, autocast


@both
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "mask"])
@pytest.mark.parametrize("tau", [0.5, torch.full((5, 1), 0.5)], ids=["number", "tensor"])
def test_compiles_whole(sample, hard, mask, tau):
    torch.compiler.reset()
    logits = real(5, 4, dtype=torch.float32).requires_grad_()
    compiled = torch.compile(sample, fullgraph=True, backend="aot_eager")
    results = []
    for f in (sample, compiled):
        torch.manual_seed(0)
        z = f(logits, tau, hard, mask=mask)
        results.append((z, *torch.autograd.grad(z[:, 1].sum(), logits)))
    for eager, again in zip(*results, strict=True):
        close(again, eager, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "f",
    [
        lambda y: F.softmaxpp_inverse(F.softmaxpp(y, 0.5), 0.5),
        lambda y: F.log_stick_breaking_inverse(F.log_stick_breaking(y)),
        lambda y: F.vertex_interpolation_inverse(F.vertex_interpolation(y.softmax(-1), 0.5), 0.5),
        lambda y: F.straight_through(F.harden(y), F.softmaxpp(y)),
    ],
    ids=["softmaxpp", "stick-breaking", "vertex interpolation", "straight-through"],
)
def test_maps_compile_and_vmap(f):
    torch.compiler.reset()
    y = real(5, 3, dtype=torch.float32)
    close(torch.compile(f, fullgraph=True, backend="aot_eager")(y), f(y), rtol=1e-5, atol=1e-6)
    close(torch.func.vmap(f)(y), f(y), rtol=1e-6, atol=1e-6)


@both
@pytest.mark.parametrize("hard", [False, True])
def test_vmap(sample, hard):
    draw = torch.func.vmap(lambda x, m: sample(x, 0.5, hard, mask=m), randomness="different")
    z = draw(torch.zeros(1000, 4), MASK.repeat(200, 1))
    close(z.sum(-1), torch.ones(1000), rtol=1e-6)
    assert bool((z[~MASK.repeat(200, 1)] == 0).all())
    assert len(torch.unique(z[4::5], dim=0)) == (4 if hard else 200)


@both
@pytest.mark.parametrize("over", ["nothing", "tau", "mask"])
def test_vmap_over_something_else_draws_anew(sample, over):
    logits = torch.zeros(4)
    f, x = {
        "nothing": (lambda _: sample(logits), torch.arange(50)),
        "tau": (lambda tau: sample(logits, tau), torch.full((50,), 0.5)),
        "mask": (lambda mask: sample(logits, mask=mask), torch.ones(50, 4, dtype=torch.bool)),
    }[over]
    assert len(torch.unique(torch.func.vmap(f, randomness="different")(x), dim=0)) == 50


@both
def test_only_types_and_shapes_are_checked_under_vmap_and_compile(sample):
    def vmap(f, *xs):
        return torch.func.vmap(f, randomness="different")(*xs)

    x, tau, nowhere = torch.zeros(3, 4), torch.zeros(3), torch.zeros(3, 4, dtype=torch.bool)
    assert vmap(sample, x, tau).shape == vmap(lambda x, m: sample(x, mask=m), x, nowhere).shape == (3, 4)
    with pytest.raises(ValueError, match="tau"):
        vmap(sample, x, torch.ones(3, 4))
    with pytest.raises(TypeError, match="mask"):
        vmap(lambda x, m: sample(x, mask=m), x, torch.ones(3, 4))
    torch.compiler.reset()
    compiled = torch.compile(sample, fullgraph=True, backend="aot_eager")
    assert compiled(x, torch.tensor(-1.0)).shape == (3, 4)


@both
def test_grad_of_a_row_matches_autograd(sample):
    logits = real(4)

    def first(x):
        return sample(x, 0.5, generator=seeded(0))[0]

    x = logits.clone().requires_grad_()
    close(torch.func.grad(first)(logits), *torch.autograd.grad(first(x), x))


@both
@pytest.mark.parametrize("hard", [False, True])
def test_autocast(sample, hard):
    logits = real(50, 6, dtype=torch.float32)
    torch.manual_seed(0)
    expected = sample(logits, 0.1, hard)
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = sample(logits, 0.1, hard)
        low = sample(torch.nn.functional.linear(logits, torch.eye(6)), 0.1, hard)
    assert z.dtype == torch.float32
    close(z, expected, rtol=1e-6, atol=1e-7)
    assert low.dtype == torch.bfloat16
    close(low.float().sum(-1), torch.ones(50), rtol=0, atol=0.02)


def test_a_mask_over_impossible_logits_keeps_the_gradient_of_tau():
    tau = torch.tensor(0.5, requires_grad=True)
    logits = torch.tensor([0.0, -math.inf, 1.0], requires_grad=True)
    z = F.gumbel_softmax(logits, tau, mask=torch.tensor([True, False, True]))
    gradients = torch.autograd.grad(z[0], (logits, tau))
    assert all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize(
    "sample",
    [
        F.gumbel_softmax,
        lambda logits, *arguments, **options: F.gumbel_softmax_terms(logits, *arguments, **options).z,
        lambda loc, *arguments, **options: F.gaussian_softmax(loc, 1.0, *arguments, **options),
        lambda loc, *arguments, **options: F.gaussian_softmax_terms(loc, 1.0, *arguments, **options).z,
    ],
)
def test_impossible_categories_keep_the_gradient_of_tau(sample, hard):
    """It is that of a category so unlikely that its share is zero too."""

    def gradients(least):
        tau = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        scores = torch.tensor([0.0, least, 1.0], dtype=torch.float64, requires_grad=True)
        z = sample(scores, tau, hard, generator=torch.Generator().manual_seed(0))
        assert z[1] == 0
        return torch.autograd.grad(z[0], (scores, tau))

    torch.testing.assert_close(gradients(-math.inf), gradients(-1e4))

    def of_tau(tau):
        scores = torch.tensor([0.0, -math.inf, 1.0], dtype=torch.float64)
        return sample(scores, tau, hard, generator=torch.Generator().manual_seed(0))[0]

    tau = torch.tensor(0.5, dtype=torch.float64)
    _, forward = torch.func.jvp(of_tau, (tau,), (torch.ones_like(tau),))
    torch.testing.assert_close(forward, gradients(-math.inf)[1])


@pytest.mark.parametrize("dim", [0, 1, -2, -1, 2])
def test_gumbel_softmax_over_another_axis(dim):
    """As torch's own has it; the mask and the temperatures of rows have the same axes."""
    logits, tau = torch.randn(4, 3, 5), torch.rand(4, 3, 5).amax(dim, keepdim=True) + 0.3
    mask = torch.rand(4, 3, 5) < 0.7
    mask.select(dim, 0).fill_(True)
    same = torch.Generator()
    z = F.gumbel_softmax(logits, tau, dim=dim, mask=mask, generator=same.manual_seed(0))
    assert z.shape == logits.shape
    torch.testing.assert_close(z.sum(dim), torch.ones_like(z.sum(dim)))
    assert bool((z[~mask] == 0).all())
    moved = [x.movedim(dim, -1) for x in (logits, tau, mask)]
    expected = F.gumbel_softmax(*moved[:2], mask=moved[2], generator=same.manual_seed(0))
    assert torch.equal(z.movedim(dim, -1), expected)
    hard = F.gumbel_softmax(logits, 0.5, True, dim=dim)
    assert torch.equal(hard.sum(dim), torch.ones_like(hard.sum(dim)))


@pytest.mark.parametrize(
    "sampler", [F.gaussian_softmax, F.gaussian_softmax_terms, lambda loc, scale: F.gaussian_top_k(loc, scale, 2)]
)
def test_negative_scales_are_refused(sampler):
    with pytest.raises(
        ValueError, match=r"scale must be positive, and its least entry is -0.5; a logarithm\? Give its exp"
    ):
        sampler(torch.zeros(2, 3), torch.tensor([1.0, -0.5, 2.0]))


def test_scales_that_are_not_numbers_are_seen_in_samples():
    assert F.gaussian_softmax(torch.zeros(2, 3), torch.tensor([1.0, math.nan, 2.0])).isnan().any()


@pytest.mark.parametrize(("shape", "dim"), [((3,), 1), ((3,), -2), ((3, 4), 2), ((3, 4), -3)])
def test_an_axis_that_logits_do_not_have_is_refused(shape, dim):
    with pytest.raises(IndexError, match=f"dim must be an axis of logits, .* got {dim}$"):
        F.gumbel_softmax(torch.zeros(shape), dim=dim)


@pytest.mark.parametrize("dim", [0, -2])
def test_temperatures_and_masks_may_add_axes_whatever_the_axis_of_the_categories(dim):
    tau, mask = torch.tensor([0.5, 1.0]).view(2, 1, 1), torch.ones(2, 3, 4, dtype=torch.bool)
    for more in ({"tau": tau}, {"mask": mask}):
        z = F.gumbel_softmax(torch.zeros(3, 4), dim=dim, **more)
        assert z.shape == (2, 3, 4)
        torch.testing.assert_close(z.sum(1), torch.ones(2, 4))
    z = F.gumbel_softmax(torch.zeros(3, 1), dim=dim)  # three categories, though the last axis has one entry
    torch.testing.assert_close(z.sum(0), torch.ones(1))


def test_masks_and_temperatures_broadcast_from_the_right_whatever_the_axis_of_the_categories():
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[2, 0] = False  # category 2 at the first of the last positions
    for dim in (1, -2):
        z = F.gumbel_softmax(torch.zeros(2, 5, 5), dim=dim, mask=mask)
        assert torch.equal(z == 0, ~mask.expand(2, 5, 5))
        torch.testing.assert_close(z.sum(1), torch.ones(2, 5))
    column = torch.tensor([True, False, True, True])[:, None]
    z = F.gumbel_softmax(torch.zeros(2, 4, 3), dim=1, mask=column)
    assert torch.equal(z == 0, ~column.expand(2, 4, 3))
    tau = torch.tensor([[1e-3, 1.0, 1e3]])  # of each of the last positions
    z = F.gumbel_softmax(torch.zeros(500, 3, 3), tau, dim=1)
    far = (1 - z.amax(1)).mean(0)
    assert far[0] < 0.01 < far[1] < 0.6 < far[2]
    with pytest.raises(ValueError, match="tau"):
        F.gumbel_softmax(torch.zeros(2, 3, 3), tau.mT, dim=1)  # one of each category
    with pytest.raises(ValueError, match="mask"):
        F.gumbel_softmax(torch.zeros(2, 4, 3), dim=1, mask=column[:, 0])  # is of the last axis


def test_terms_of_impossible_categories():
    logits = torch.tensor([[0.0, 1.0, -math.inf], [0.0, 1.0, 2.0]], requires_grad=True)
    z, log_q, kl = F.gumbel_softmax_terms(logits, 0.5)
    assert (z[:, 2] > 0).tolist() == [False, True]
    torch.testing.assert_close(z.sum(-1), torch.ones(2))
    assert log_q.tolist() == [math.inf, log_q[1].item()]  # there is mass on a face of the simplex
    assert kl.isfinite().all()
    (gradient,) = torch.autograd.grad((z[:, 1] + kl).sum(), logits)
    assert gradient.isfinite().all()
    assert gradient[0, 2] == 0
    hard = F.gumbel_softmax_terms(logits.expand(500, 2, 3), 0.5, hard=True).z.mean(0)
    torch.testing.assert_close(hard, logits.softmax(-1), rtol=0, atol=0.1)
