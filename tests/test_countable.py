"""Countably many sticks: where samples stop, what they are, their density piece by piece, and the law behind."""

import copy
import pickle

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.distributions import Independent, Normal, kl_divergence

from igr import countable
from igr.countable import CountableStickBreaking, StickSample
from igr.nn import GrowingSticks


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def rising(k):
    return 0.3 * k - 1.0


def widening(k):
    return 0.5 + 0.1 * k


def make(temperature=0.5, precision=0.9, **options):
    return CountableStickBreaking(rising, widening, temperature, precision, **options)


def brute_force(num_samples, num_sticks, seed=0):
    """Lengths of many sticks by numpy's own noise and plain products, shape (S, n)."""
    rng, k = np.random.default_rng(seed), np.arange(num_sticks)
    u = 1 / (1 + np.exp(-rising(k) - widening(k) * rng.standard_normal((num_samples, num_sticks))))
    return u * np.cumprod(np.concatenate([np.ones((num_samples, 1)), 1 - u[:, :-1]], 1), 1)


def first_stop(w, precision):
    """K by the letter of the rule: the first with enough in the sticks, and no more left than the longest has."""
    for K in range(1, len(w) + 1):
        used = sum(w[:K])
        if used > precision and 1 - used <= max(w[:K]):
            return K
    return None


def same_law(a, b):
    """The p-value of two samples of integers having one law, rare values pooled."""
    size = 1 + max(a.max(), b.max())
    table = np.stack([np.bincount(a, minlength=size), np.bincount(b, minlength=size)])
    rare = table.sum(0) < 20
    table = np.concatenate([table[:, ~rare], table[:, rare].sum(1, keepdims=True)], 1)
    return stats.chi2_contingency(table[:, table.sum(0) > 0]).pvalue


@pytest.fixture
def fixed_noise(monkeypatch):
    """Noise for 5000 sticks, dealt out to whoever asks for it."""
    eps, dealt = torch.randn(400, 5000), 0

    def deal(shape, like, generator=None):
        nonlocal dealt
        dealt += shape[-1]
        return eps[:, dealt - shape[-1] : dealt]

    monkeypatch.setattr(countable.functional, "gaussian_noise", deal)
    return eps


# ------------------------------------------------------------------------------------------------- where samples stop


@pytest.mark.parametrize("precision", [0.05, 0.5, 0.9, 0.999])
def test_samples_stop_where_the_rule_says(precision):
    sample = make(precision=precision).sample((300,))
    K = sample.mask.sum(-1)
    assert int(K.max()) == sample.z.shape[-1]
    assert bool((sample.mask == (torch.arange(sample.z.shape[-1]) < K.unsqueeze(-1))).all())
    for w, k in zip(sample.w.tolist(), K.tolist(), strict=True):
        assert first_stop(w, precision) == k


@pytest.mark.parametrize("precision", [0.05, 0.5, 0.9])
def test_longest_stick_is_the_longest_of_all(precision, fixed_noise):
    k = torch.arange(5000)
    loc, scale = torch.full((5000,), -2.0), 1 + 0.5 * torch.sin(k.double())
    sample = CountableStickBreaking(loc, scale, 0.5, precision).sample((400,))
    u = torch.sigmoid(loc + scale * fixed_noise)
    w = u * torch.cat([torch.ones(400, 1), (1 - u).cumprod(-1)[:, :-1]], -1)
    assert sample.z.shape[-1] < 200
    assert bool((sample.w.argmax(-1) == w.argmax(-1)).all())
    n = sample.z.shape[-1]
    torch.testing.assert_close(sample.w, torch.where(sample.mask, w[:, :n], 0.0))


def test_leftover_would_win_without_the_second_condition():
    """With ρ alone, one sample in several stops while what is left could still hold the longest stick."""
    w = brute_force(2000, 60)
    alone = np.array([int(np.argmax(row.cumsum() > 0.05)) + 1 for row in w])
    left = 1 - np.array([row[:K].sum() for row, K in zip(w, alone, strict=True)])
    assert np.mean(left > [row[:K].max() for row, K in zip(w, alone, strict=True)]) > 0.1


@pytest.mark.parametrize("precision", [0.3, 0.99])
def test_law_of_the_number_of_sticks_and_of_the_longest(precision):
    sample, w = make(precision=precision).sample((40_000,)), brute_force(40_000, 60)
    used = w.cumsum(1)
    K = np.argmax((used > precision) & (1 - used <= np.maximum.accumulate(w, 1)), 1) + 1
    assert same_law(sample.mask.sum(-1).numpy(), K) > 1e-5
    assert same_law(sample.w.argmax(-1).numpy(), w.argmax(1)) > 1e-5


def test_needs_no_more_than_max_sticks():
    q = CountableStickBreaking(-9.0, 0.1, 0.5, 0.9, max_sticks=100)
    with pytest.raises(RuntimeError, match=r"20 of 20 samples need more than max_sticks=100 .* 0.98\d* of the stick"):
        q.rsample((20,))
    assert CountableStickBreaking(1.0, 0.1, 0.5, 0.5, max_sticks=1).rsample((20,)).z.shape == (20, 1)


# ------------------------------------------------------------------------------------------------------ what they are


@pytest.mark.parametrize("sample_shape", [(), (7,), (2, 5), (0,)])
@pytest.mark.parametrize("batch_shape", [(), (4,), (2, 3)])
def test_shapes_and_sums(batch_shape, sample_shape):
    q = CountableStickBreaking(torch.randn(*batch_shape, 3), 1.0, 0.5, 0.9)
    assert q.batch_shape == batch_shape
    assert q.event_shape == ()
    rows = (*sample_shape, *batch_shape)
    for sample in (q.rsample(sample_shape), q.sample(sample_shape), q.hard_rsample(sample_shape)):
        n = sample.z.shape[-1]
        assert sample.z.shape == sample.w.shape == sample.mask.shape == (*rows, n)
        assert sample.rest.shape == sample.leftover.shape == q.log_prob(sample).shape == rows
        torch.testing.assert_close(sample.z.sum(-1) + sample.rest, torch.ones(rows))
        torch.testing.assert_close(sample.w.sum(-1) + sample.leftover, torch.ones(rows))
        assert bool((sample.z[~sample.mask] == 0).all())
        assert bool((sample.w[~sample.mask] == 0).all())


def test_is_the_softmaxpp_of_its_own_sticks():
    tau, delta = torch.tensor([[0.3], [2.0]]), torch.tensor([[1.0], [0.2]])
    q = CountableStickBreaking(torch.randn(2, 5), 1.0, tau, 0.9, delta=delta)
    sample = q.rsample((50,))
    for s in range(50):
        for b in range(2):
            K = int(sample.mask[s, b].sum())
            e = torch.exp(sample.w[s, b, :K] / tau[b])
            torch.testing.assert_close(sample.z[s, b, :K], e / (e.sum() + delta[b]))
            torch.testing.assert_close(sample.rest[s, b], (delta[b] / (e.sum() + delta[b])).squeeze())


def test_parameters_as_functions_tensors_and_numbers():
    k = torch.arange(40)
    expected = make().sample((20,), generator=torch.Generator().manual_seed(1))
    for loc, scale in ((rising(k), widening(k)), (rising, widening(k)), (rising(k).expand(3, 40), widening)):
        q = CountableStickBreaking(loc, scale, 0.5, 0.9)
        torch.testing.assert_close(q.loc(k), q.loc(k.clone()))
        noise = torch.Generator().manual_seed(1)
        if not q.batch_shape:
            torch.testing.assert_close(q.sample((20,), generator=noise), expected)
    assert CountableStickBreaking(torch.tensor([[0.0, -1.0]]), 2.0, 0.5, 0.9).loc(torch.arange(5)).tolist() == [
        [0.0, -1.0, -1.0, -1.0, -1.0]
    ]
    assert CountableStickBreaking(0.0, torch.tensor(2.0), 0.5, 0.9).scale(torch.arange(3)).tolist() == [2.0, 2.0, 2.0]


def test_hard_samples():
    loc = torch.full((200, 60), -0.5, requires_grad=True)
    q = CountableStickBreaking(loc, 1.0, 0.5, 0.9)
    hard, soft = (f(generator=torch.Generator().manual_seed(3)) for f in (q.hard_rsample, q.rsample))
    assert bool((hard.rest == 0).all())
    assert bool((hard.z == torch.nn.functional.one_hot(soft.w.argmax(-1), hard.z.shape[-1])).all())
    weights = torch.randn_like(soft.z), torch.randn_like(soft.rest)
    losses = [(s.z * weights[0]).sum() + (s.rest * weights[1]).sum() for s in (hard, soft)]
    torch.testing.assert_close(*(torch.autograd.grad(loss, loc)[0] for loss in losses))


# --------------------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("what", ["rsample", "hard_rsample", "rsample_and_log_prob"])
def test_only_the_first_sticks_get_a_gradient(what):
    loc, scale = torch.full((300, 64), -0.5, requires_grad=True), torch.ones(300, 64, requires_grad=True)
    drawn = getattr(CountableStickBreaking(loc, scale, 0.5, 0.9), what)()
    sample, loss = (drawn[0], drawn[1].sum()) if isinstance(drawn[0], StickSample) else (drawn, 0.0)
    n = sample.z.shape[-1]
    assert n < 64
    (loss + (sample.z * torch.randn_like(sample.z)).sum()).backward()
    mask = torch.nn.functional.pad(sample.mask, (0, 64 - n))
    for parameter in (loc, scale):
        assert bool((parameter.grad[~mask] == 0).all())
        assert bool((parameter.grad[mask] != 0).all())


def test_gradients_at_a_fixed_number_of_sticks():
    parameters = [
        torch.randn(2, 30) - 0.5,
        torch.rand(2, 30) + 0.5,
        torch.tensor([[0.4], [1.3]]),
        torch.tensor([[1.0], [0.3]]),
    ]

    def draw(loc, scale, tau, delta):
        q = CountableStickBreaking(loc, scale, tau, 0.9, delta=delta)
        sample, log_q = q.rsample_and_log_prob((3,), generator=torch.Generator().manual_seed(0))
        return sample.z, sample.rest, sample.w, sample.leftover, log_q

    torch.autograd.gradcheck(draw, [p.requires_grad_() for p in parameters])


def test_gradients_of_the_density():
    sample = make().sample((20,))
    z = sample.z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(make().log_prob(z).sum(), z)
    assert not bool(sample.mask.all())
    assert bool((gradient[~sample.mask] == 0).all())
    for point, mask in zip(sample.z, sample.mask, strict=True):
        torch.autograd.gradcheck(make().log_prob, point[mask].clone().requires_grad_())
    loc, scale = rising(torch.arange(40)).requires_grad_(), widening(torch.arange(40)).requires_grad_()
    torch.autograd.gradcheck(lambda *p: CountableStickBreaking(*p, 0.5, 0.9).log_prob(sample), [loc, scale])


# ------------------------------------------------------------------------------------------------------- the density


def stick_map(y, tau, delta):
    """y to the K coordinates of z, by plain products."""
    u = torch.sigmoid(y)
    w = torch.stack([u[k] * (1 - u[:k]).prod() for k in range(len(y))])
    e = torch.exp(w / tau)
    return e / (e.sum() + delta)


@pytest.mark.parametrize(("tau", "delta"), [(1.0, 1.0), (0.5, 0.2), (0.3, 3.0)])
def test_density_is_that_of_the_normals_over_the_determinant(tau, delta):
    q = make(tau, 0.9, delta=delta)
    sample, log_q = q.rsample_and_log_prob((60,))
    checked = set()
    for z, w, mask, log_density in zip(sample.z, sample.w, sample.mask, log_q, strict=True):
        K = int(mask.sum())
        y = torch.stack([torch.log(w[k]) - torch.log(1 - w[: k + 1].sum()) for k in range(K)])
        torch.testing.assert_close(stick_map(y, tau, delta), z[:K])
        jacobian = torch.autograd.functional.jacobian(lambda y: stick_map(y, tau, delta), y)
        k = torch.arange(K)
        expected = Normal(rising(k), widening(k)).log_prob(y).sum() - torch.linalg.slogdet(jacobian)[1]
        torch.testing.assert_close(log_density, expected, rtol=1e-7, atol=1e-7)
        checked.add(K)
    assert len(checked) > 2


@pytest.mark.parametrize(("temperature", "delta"), [(1.0, 1.0), (0.3, 0.2), (0.1, 2.0)])
@pytest.mark.parametrize("precision", [0.5, 0.99])
def test_density_from_noise_and_from_the_sample(temperature, delta, precision):
    q = make(temperature, precision, delta=delta)
    sample, log_q = q.rsample_and_log_prob((2000,))
    torch.testing.assert_close(q.log_prob(sample), log_q, rtol=1e-9, atol=1e-9)
    representable = sample.leftover > 1e-6  # z knows sticks to about 1e-16
    torch.testing.assert_close(q.log_prob(sample.z)[representable], log_q[representable], rtol=1e-6, atol=1e-6)
    wide = torch.nn.functional.pad(sample.z, (0, 5))
    torch.testing.assert_close(q.log_prob(wide), q.log_prob(sample.z))


def mass_of_one_stick(q, mu, sigma):
    """P(K = 1): the first stick is longer than ρ and than a half."""
    edge = max(q.precision, 0.5)
    return stats.norm.sf((np.log(edge / (1 - edge)) - mu[0]) / sigma[0])


def mass_of_two_sticks(q, mu, sigma):
    """P(K = 2), by one integral over y₁; given it, the rule is a threshold for u₂."""
    edge = max(q.precision, 0.5)

    def given(y):
        left = 1 / (1 + np.exp(y))
        enough = 1 - (1 - q.precision) / left  # (1 - u₁)(1 - u₂) < 1 - ρ
        longest = min(0.5, 1 - (1 - left) / left)  # what is left is below w₂, or below w₁
        least = max(enough, longest, 0.0)
        y2 = -np.inf if least == 0 else np.log(least / (1 - least))
        return stats.norm.pdf(y, mu[0], sigma[0]) * stats.norm.sf((y2 - mu[1]) / sigma[1])

    top, low = np.log(edge / (1 - edge)), mu[0] - 12 * sigma[0]
    return integrate.quad(given, low, top, points=[0.0, np.log(2 / 3)] if top > 0 else None, limit=400)[0]


@pytest.mark.parametrize("precision", [0.3, 0.8])
def test_density_of_one_stick_integrates(precision):
    q = CountableStickBreaking(torch.tensor([0.4, 0.9]), torch.tensor([0.8, 1.2]), 0.7, precision, delta=0.6)
    low, high = (np.exp(w / 0.7) / (np.exp(w / 0.7) + 0.6) for w in (max(precision, 0.5), 1.0))
    mass, _ = integrate.quad(lambda z: q.log_prob(torch.tensor([z])).exp().item(), low, high, limit=400)
    assert abs(mass - mass_of_one_stick(q, [0.4], [0.8])) < 1e-8
    for z in (1e-3, low - 1e-6, high + 1e-6, 1 - 1e-6):
        assert q.log_prob(torch.tensor([z])) == -torch.inf


@pytest.mark.parametrize("precision", [0.3, 0.8])
def test_densities_of_all_pieces_integrate(precision):
    """Uniform points of the K-dimensional simplex, weighted by the density, against what samples say of K."""
    mu, sigma = [0.4, 0.9, 1.5], [0.8, 1.2, 0.5]
    q = CountableStickBreaking(torch.tensor(mu), torch.tensor(sigma), 0.7, precision, delta=0.6)
    K = q.sample((400_000,)).mask.sum(-1)
    volume, total = 1.0, 0.0
    for k in (1, 2, 3):
        volume /= k
        points = torch.distributions.Dirichlet(torch.ones(k + 1)).sample((400_000,))[:, :-1]
        values = volume * q.log_prob(points).exp()
        error = values.std() / len(values) ** 0.5
        mass = (k == K).double().mean()
        assert abs(values.mean() - mass) < 5 * (error.square() + mass * (1 - mass) / len(K)).sqrt()
        total += mass.item()
        if k < 3:
            exact = (mass_of_one_stick, mass_of_two_sticks)[k - 1](q, mu, sigma)
            assert abs(values.mean() - exact) < 5 * error
    assert total > 0.9


def test_points_that_cannot_be_reached():
    q = make()
    sample = q.sample((500,))
    K = sample.mask.sum(-1)
    several = K > 1
    last = torch.arange(sample.z.shape[-1]) == (K - 1).unsqueeze(-1)
    assert bool(q.log_prob(sample).isfinite().all())
    without_last = torch.where(last, 0.0, sample.z)
    one_more = torch.nn.functional.pad(sample.z, (0, 1)).scatter(-1, K.unsqueeze(-1), 0.2 * sample.rest.unsqueeze(-1))
    hole = torch.where(torch.arange(sample.z.shape[-1]) == 0, 0.0, sample.z)
    for z in (without_last, one_more, hole):
        log_q = q.log_prob(z)
        assert not bool(log_q.isnan().any())
        assert bool((log_q[several] == -torch.inf).all())
    assert q.log_prob(torch.zeros(4)) == -torch.inf
    assert q.log_prob(torch.tensor([1.0, 0.0])) == -torch.inf
    assert bool((q.log_prob(q.hard_rsample((9,))) == -torch.inf).all())
    gap = sample._replace(mask=sample.mask & ~(torch.arange(sample.z.shape[-1]) == 0))
    assert bool((q.log_prob(gap) == -torch.inf).all())


def test_gradient_stays_finite_off_the_image():
    z = torch.tensor([[0.9, 0.0], [1.0, 0.0], [0.01, 0.3], [0.0, 0.0]], requires_grad=True)
    make().log_prob(z).exp().sum().backward()
    assert bool(z.grad.isfinite().all())


def test_sample_of_another_temperature_is_read_from_z():
    """Sticks travel with a sample; at another temperature or δ they are other sticks."""
    sample = make(0.5, 0.3).sample((3000,))
    for other in (make(0.45, 0.3), make(0.5, 0.3, delta=1.1), make(0.4, 0.3, delta=1.3)):
        from_sample = other.log_prob(sample)
        torch.testing.assert_close(from_sample, other.log_prob(sample.z), rtol=1e-4, atol=1e-4)
        assert 0.05 < from_sample.isfinite().double().mean() < 1
    same = make(0.5, 0.3).log_prob(sample)
    torch.testing.assert_close(make(torch.tensor(0.5), 0.3).log_prob(sample), same)
    cold = make(0.01, 0.3).sample((200,))
    assert bool((make(0.02, 0.3).log_prob(cold) == -torch.inf).all())  # sticks would have to be twice as long


def test_divergence_by_the_densities_is_that_of_the_sticks_in_use():
    """E[log p - log q] = E Σ_{k ≤ K} KL_k: whether there is a k-th stick is settled before its noise is."""
    p, q = make(), CountableStickBreaking(0.0, 1.2, 0.5, 0.9)
    sample, log_p = p.rsample_and_log_prob((100_000,))
    k = torch.arange(sample.z.shape[-1])
    per_stick = kl_divergence(Normal(rising(k), widening(k)), Normal(torch.zeros(len(k)), 1.2))
    difference = log_p - q.log_prob(sample) - (sample.mask * per_stick).sum(-1)
    assert abs(difference.mean()) < 5 * difference.std() / len(difference) ** 0.5


# -------------------------------------------------------------------------------------------------------- precisions


@pytest.mark.parametrize("temperature", [1.0, 0.1, 0.01, 0.001])
def test_float32_density_at_low_temperature(temperature):
    q = CountableStickBreaking(lambda k: rising(k).float(), lambda k: 4 * widening(k).float(), temperature, 0.99)
    sample, log_q = q.rsample_and_log_prob((5000,))
    assert sample.z.dtype == log_q.dtype == torch.float32
    assert bool(log_q.isfinite().all())
    torch.testing.assert_close(q.log_prob(sample), log_q, rtol=1e-5, atol=2e-6 / temperature)
    assert not bool(q.log_prob(sample.z).isnan().any())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    loc = torch.linspace(-1, 1, 8, dtype=dtype).requires_grad_()
    q = CountableStickBreaking(loc, 1.0, 0.5, 0.9)
    sample, log_q = q.rsample_and_log_prob((1000,))
    assert q.dtype == sample.z.dtype == sample.rest.dtype == dtype
    assert sample.w.dtype == sample.leftover.dtype == log_q.dtype == torch.float32
    torch.testing.assert_close(q.log_prob(sample), log_q, rtol=1e-4, atol=1e-4)
    (log_q.sum() + sample.z.float().sum()).backward()
    assert bool(loc.grad.isfinite().all())


def test_dtype_of_the_parameters():
    assert CountableStickBreaking(0.0, 1.0, 0.5, 0.9).dtype == torch.float64
    assert CountableStickBreaking(torch.zeros(1, dtype=torch.float32), 1.0, 0.5, 0.9).dtype == torch.float32
    wider = CountableStickBreaking(torch.zeros(1, dtype=torch.float32), torch.ones(1), 0.5, 0.9)
    assert wider.sample().z.dtype == torch.float64
    tau = torch.tensor(0.5, dtype=torch.float64)
    assert CountableStickBreaking(torch.zeros(1, dtype=torch.float32), 1.0, tau, 0.9).sample().z.dtype == torch.float32


# -------------------------------------------------------------------------------------------------------- recovered


def test_recovered_brackets_the_truth():
    probs, tail = make().recovered()
    assert tail <= 1e-6
    torch.testing.assert_close(probs.sum() + tail, torch.tensor(1.0))
    draws = brute_force(200_000, 40, seed=1).argmax(1)
    counts = np.bincount(draws, minlength=len(probs))[: len(probs)]
    expected = 200_000 * probs.numpy()
    common = expected > 20
    z = (counts - expected)[common] / np.sqrt(expected * (1 - probs.numpy()))[common]
    assert common.sum() > 5
    assert np.abs(z).max() < 5


def test_recovered_says_what_it_left_out():
    q = make()
    full = q.recovered(1e-9)
    for max_sticks in (1, 3, 6):
        probs, tail = q.recovered(max_sticks=max_sticks)
        assert probs.shape == (max_sticks,)
        assert tail > 1e-4
        assert bool((probs <= full.probs[:max_sticks] + 1e-6).all())
        assert bool((full.probs[:max_sticks] <= probs + tail + 1e-6).all())
    for wrong in (0, 4.5):
        with pytest.raises(ValueError, match="max_sticks must be an integer of at least 1"):
            q.recovered(max_sticks=wrong)
        with pytest.raises(ValueError, match="max_sticks must be an integer of at least 1"):
            CountableStickBreaking(0.0, 1.0, 0.5, 0.9, max_sticks=wrong)


def test_recovered_takes_the_sticks_that_the_tolerance_asks_for():
    q = CountableStickBreaking(-2.0, 1.0, 0.5, 0.9)
    sizes = []
    for tolerance in (0.1, 1e-4, 1e-6, 1e-12):
        probs, tail = q.recovered(tolerance)
        assert tail <= tolerance
        assert len(probs) == 16 or q.recovered(max_sticks=len(probs) // 2).tail > tolerance
        sizes.append(len(probs))
    assert sizes[0] == 16
    assert sizes == sorted(sizes)
    assert 32 <= sizes[-1] <= 128


def test_recovered_in_batches_and_its_gradient():
    loc = torch.tensor([[0.0, 1.0], [-2.0, 0.5]], requires_grad=True)
    q = CountableStickBreaking(loc, 1.0, torch.tensor([[[0.5]], [[0.7]], [[0.9]]]), 0.9)
    probs, tail = q.recovered()
    assert probs.shape[:-1] == tail.shape == q.batch_shape == (3, 2)
    assert bool((tail <= 1e-6).all())
    for b in range(2):
        alone = CountableStickBreaking(loc[b], 1.0, 0.5, 0.9).recovered()
        n = min(alone.probs.shape[-1], probs.shape[-1])
        torch.testing.assert_close(probs[1, b, :n], alone.probs[:n], rtol=0, atol=1e-5)
    mean = (probs[0] * torch.arange(probs.shape[-1])).sum(-1)
    mean.sum().backward()
    assert bool((loc.grad[:, 0] < 0).all())  # a longer first stick lowers the mean


def test_recovered_does_not_depend_on_temperature_or_precision():
    a, b = make(0.1, 0.5).recovered(), make(2.0, 0.99, delta=3.0).recovered()
    torch.testing.assert_close(a, b)


# --------------------------------------------------------------------------------------------------------- protocol


def test_expand():
    q = make(torch.tensor([[0.5], [1.5]]))
    wide = q.expand((3, 2))
    assert wide.batch_shape == (3, 2)
    sample = wide.sample((40,))
    assert sample.z.shape[:-1] == (40, 3, 2)
    torch.testing.assert_close(wide.log_prob(sample), q.log_prob(sample))
    one = make(0.5).sample()
    expected = torch.stack([make(tau).log_prob(one) for tau in (0.5, 1.5)])
    for point in (one, one.z):
        torch.testing.assert_close(wide.log_prob(point), expected.expand(3, 2))
    assert wide.recovered().tail.shape == (3, 2)
    with pytest.raises(ValueError, match="broadcast"):
        q.expand((3,))
    with pytest.raises(ValueError, match="expand"):
        wide.expand((2,))


def test_protocol():
    q = make()
    assert repr(q) == "CountableStickBreaking(batch_shape: (), temperature=0.5, precision=0.9, delta=1)"
    assert q.has_rsample
    rows = Independent(q.expand((4,)), 1)
    sample = rows.rsample((6,))
    torch.testing.assert_close(rows.log_prob(sample), q.log_prob(sample).sum(-1))
    for copied in (copy.deepcopy(q), pickle.loads(pickle.dumps(q))):
        torch.testing.assert_close(copied.log_prob(sample), q.log_prob(sample))
    with pytest.raises(NotImplementedError, match=r"q\.log_prob\(sample\)"):
        kl_divergence(q, make(0.3))


def test_generator():
    a, b = (make().sample((5,), generator=torch.Generator().manual_seed(9)) for _ in range(2))
    torch.testing.assert_close(a, b)


@pytest.mark.parametrize("precision", [0.0, 1.0, -0.1, 2, float("nan"), "0.9", torch.tensor(0.5), True, None], ids=str)
def test_bad_precision(precision):
    with pytest.raises(ValueError, match="precision"):
        CountableStickBreaking(0.0, 1.0, 0.5, precision)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"loc": "a"}, TypeError, "loc"),
        ({"loc": torch.zeros(3, dtype=torch.long)}, TypeError, "loc"),
        ({"loc": torch.zeros(2, 0)}, ValueError, "at least one stick"),
        ({"loc": GrowingSticks()}, TypeError, r"loc must be .* got a GrowingSticks; call it, as in sticks\("),
        ({"scale": GrowingSticks()}, TypeError, r"scale must be .* got a GrowingSticks; call it, as in sticks\("),
        ({"loc": lambda k: -k}, TypeError, "loc must return a floating-point"),
        ({"loc": lambda k: 0.5}, TypeError, "loc must return a floating-point"),
        ({"scale": lambda k: torch.ones(len(k) + 1)}, ValueError, "scale must return shape"),
        ({"loc": float("nan")}, ValueError, "loc must be finite"),
        ({"loc": torch.tensor([torch.inf])}, ValueError, "loc must be finite"),
        ({"scale": 0.0}, ValueError, "scale"),
        ({"scale": torch.tensor([-1.0])}, ValueError, "scale"),
        ({"temperature": 0.0}, ValueError, "temperature"),
        ({"temperature": torch.ones(3)}, ValueError, "temperature"),
        ({"delta": -1.0}, ValueError, "delta"),
        ({"max_sticks": 0}, ValueError, "max_sticks"),
        ({"loc": torch.zeros(2, 1), "scale": torch.ones(3, 1)}, ValueError, "broadcast"),
        ({"loc": torch.zeros(2, 1), "temperature": torch.ones(3, 1)}, ValueError, "broadcast"),
    ],
)
def test_bad_arguments(arguments, error, match):
    with pytest.raises(error, match=match):
        CountableStickBreaking(**{"loc": 0.0, "scale": 1.0, "temperature": 0.5, "precision": 0.9, **arguments})


@pytest.mark.parametrize("name", ["mean", "variance", "stddev", "entropy"])
def test_moments_without_a_closed_form_say_what_there_is(name):
    with pytest.raises(NotImplementedError, match=r"of CountableStickBreaking.* has no closed form: use "):
        getattr(make(), name)() if name == "entropy" else getattr(make(), name)


def test_later_sticks_are_looked_at():
    with pytest.raises(ValueError, match="scale must be positive"):
        CountableStickBreaking(-2.0, lambda k: 1.0 - 0.5 * k, 0.5, 0.9).rsample((5,))
    with pytest.raises(ValueError, match="batch shape"):
        CountableStickBreaking(lambda k: torch.zeros(len(k), len(k)), 1.0, 0.5, 0.9).rsample((5,))
    loose = CountableStickBreaking(torch.tensor([torch.nan]), 1.0, 0.5, 0.9, max_sticks=20, validate_args=False)
    with pytest.raises(RuntimeError, match="max_sticks=20"):
        loose.rsample()


def test_bad_points():
    q = make().expand((3,))
    with pytest.raises(TypeError, match="value"):
        q.log_prob([0.5, 0.3])
    with pytest.raises(ValueError, match="at least one stick"):
        q.log_prob(torch.tensor(0.5))
    with pytest.raises(ValueError, match="broadcast"):
        q.log_prob(torch.full((2, 4), 0.1))
    for z in (torch.tensor([0.9, 0.2]), torch.tensor([-0.1, 0.3]), torch.tensor([torch.nan, 0.1])):
        with pytest.raises(ValueError, match="sum to at most one"):
            q.log_prob(z)
        assert bool((make(validate_args=False).log_prob(z) == -torch.inf).all())
    sample = q.sample()
    with pytest.raises(ValueError, match=r"one shape \(\*, n\).*w \(3, 1\)"):
        q.log_prob(sample._replace(w=sample.w[..., :1]))


def test_mode():
    probs, _ = make().recovered()
    assert make().mode == probs.argmax()
    batch = CountableStickBreaking(torch.tensor([[3.0, 0.0], [-6.0, 3.0]]), 1.0, 0.5, 0.9)
    assert batch.mode.tolist() == [0, 1]
