"""Gradients of countably many sticks, their density piece by piece, and its precision."""

import numpy as np
import pytest
import torch
from countable_cases import make, rising, widening
from scipy import integrate, stats
from torch.distributions import Normal, kl_divergence

from igr.countable import CountableStickBreaking, StickSample

pytestmark = pytest.mark.usefixtures("float64")


# ------------------------------------------------------------------------------------------------------------ gradients


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


# ---------------------------------------------------------------------------------------------------------- the density


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


# ----------------------------------------------------------------------------------------------------------- precisions


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
