"""Every distribution: its properties, low temperatures, densities against other people's, and its samples."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from registry import DISTRIBUTIONS, Setting, cases, label
from torch import Tensor
from torch.distributions import Independent, Laplace, Normal, RelaxedBernoulli, RelaxedOneHotCategorical

import igr
from igr.distributions import (
    BinaryConcrete,
    GumbelSoftmax,
    InvertibleGaussian,
    InvertibleReparameterization,
    Relaxation,
)
from igr.testing import check_distribution
from igr.transforms import Planar, SoftmaxPlusPlus, StickBreaking, VertexInterpolation

DOUBLE = torch.float64


@pytest.mark.parametrize(("name", "setting"), cases(DISTRIBUTIONS), ids=label)
def test_properties(name: str, setting: Setting):
    d, other = DISTRIBUTIONS[name](setting)
    check_distribution(d, other=other, parameters=setting.parameters)


# the methods of the paper, from K-1 (GS: K) locations and scales in any dtype


def planar_layers(K: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(2, K - 1).to(dtype), torch.randn(2, K - 1).to(dtype), torch.randn(2).to(dtype)]


def method(name: str, loc: Tensor, scale: Tensor, tau: float | Tensor, flow: list[Tensor]) -> Relaxation:
    match name:
        case "IGR-I":
            return InvertibleGaussian(loc, scale, tau)
        case "IGR-SB":
            return InvertibleGaussian(loc, scale, tau, flow=StickBreaking())
        case "IGR-SB, literal":
            return InvertibleGaussian(loc, scale, tau, flow=StickBreaking(leftover=False))
        case "IGR-Planar":
            return InvertibleGaussian(loc, scale, tau, flow=[Planar(*layer) for layer in zip(*flow, strict=True)])
        case "VertexInterpolation":
            base = Independent(Normal(loc, scale, validate_args=False), 1)
            return InvertibleReparameterization(base, VertexInterpolation(tau))
        case "GS":
            return GumbelSoftmax(tau, loc)
    raise ValueError(name)


METHODS = ["IGR-I", "IGR-SB", "IGR-SB, literal", "IGR-Planar", "VertexInterpolation", "GS"]


@pytest.mark.parametrize("K", [2, 10, 1000])
@pytest.mark.parametrize("name", METHODS)
def test_nothing_is_ever_nonfinite(name: str, K: int):
    for dtype in (torch.float32, torch.bfloat16, DOUBLE):
        for tau in (1.0, 0.1, 0.01, 0.001):
            for size in (1, 10, 100):
                for sigma in (1e-3, 1.0, 1e3):
                    loc = (size * torch.randn(16, K if name == "GS" else K - 1)).to(dtype).requires_grad_()
                    scale = torch.full_like(loc, sigma).requires_grad_()
                    temperature = torch.tensor(tau, requires_grad=True)
                    flow = [p.requires_grad_() for p in planar_layers(K)]
                    d = method(name, loc, scale, temperature, flow)
                    z, log_z = d.rsample(), d.log_rsample()
                    again, log_q = d.rsample_and_log_prob()
                    assert z.dtype == again.dtype == dtype
                    assert log_z.dtype == log_q.dtype == torch.promote_types(dtype, torch.float32)
                    outputs = [z, log_z, again, log_q, *closed_kls(name, d, temperature, flow)]
                    loss = sum((torch.randn(o.shape) * o.double()).sum() for o in outputs)
                    leaves = {"GS": [loc, temperature], "IGR-Planar": [loc, scale, temperature, *flow]}
                    gradients = torch.autograd.grad(loss, leaves.get(name, [loc, scale, temperature]))
                    where = f"{dtype}, tau={tau}, mu~{size}, sigma={sigma}"
                    assert all(o.isfinite().all() for o in outputs), f"outputs at {where}"
                    assert all(g.isfinite().all() for g in gradients), f"gradients at {where}"


def closed_kls(name: str, d: Relaxation, tau: Tensor, flow: list[Tensor]) -> list[Tensor]:
    if name == "GS":
        return []
    zeros = torch.zeros(d.event_shape[-1] - 1, dtype=torch.promote_types(d.dtype, torch.float32))
    kls = [d.kl(method(name, zeros, zeros + 1, tau, flow))]
    if name == "IGR-I":
        kls += [d.kl(InvertibleGaussian(zeros, 1.0, t, delta=delta)) for t in (1.0, 0.001) for delta in (0.1, 10.0)]
    return kls


def reference_log_prob(name: str, loc: Tensor, scale: Tensor, eps: Tensor, tau: float, flow: list[Tensor]) -> Tensor:
    """log q of the sample with this noise, in float64 and from the literal formulas."""
    loc, scale, eps = loc.double(), scale.double(), eps.double()
    K = loc.shape[-1] + (name != "GS")
    if name == "GS":  # equation 6, with log z from the noise
        log_z = ((loc + eps) / tau).log_softmax(-1)
        terms = loc - tau * log_z
        powers = terms.sum(-1) - K * terms.logsumexp(-1)
        return math.lgamma(K) + (K - 1) * math.log(tau) + powers - log_z.sum(-1)
    a = loc + scale * eps
    log_q = torch.from_numpy(scipy.stats.norm.logpdf(eps.numpy())).sum(-1) - scale.log().sum(-1)
    if name == "IGR-SB":
        u = a.sigmoid()
        log_u, log_rest = torch.nn.functional.logsigmoid(a), torch.nn.functional.logsigmoid(-a)
        before = torch.cat([torch.zeros_like(a[..., :1]), log_rest.cumsum(-1)], -1)
        log_w = torch.cat([log_u, torch.zeros_like(u[..., :1])], -1) + before
        log_q = log_q - log_w.sum(-1) - math.log(K)
        a = log_w[..., :-1].exp() - log_w[..., -1:].exp()
    if name == "IGR-Planar":
        for layer in zip(*[p.double() for p in flow], strict=True):
            before, a = a, Planar(*layer)(a)
            jacobians = torch.func.vmap(torch.func.jacrev(Planar(*layer)))(before)
            log_q = log_q - torch.linalg.slogdet(jacobians).logabsdet
    logits = torch.cat([a / tau, torch.zeros_like(a[..., :1])], -1)
    return log_q - logits.log_softmax(-1).sum(-1) + (K - 1) * math.log(tau)


@pytest.mark.parametrize("K", [2, 3, 10, 100])
@pytest.mark.parametrize("name", ["IGR-I", "IGR-SB", "IGR-Planar", "GS"])
def test_float32_densities_of_own_samples(name: str, K: int):
    n, tau = 50_000 if K == 2 and name != "IGR-Planar" else 2000, 0.01
    loc = 10 * torch.randn(n, K if name == "GS" else K - 1)
    scale = torch.rand(loc.shape) + 0.5
    flow = planar_layers(K)
    d = method(name, loc, scale, tau, flow)
    torch.manual_seed(1)
    _, log_q = d.rsample_and_log_prob()
    torch.manual_seed(1)
    eps = -torch.empty_like(loc).exponential_().log() if name == "GS" else torch.randn(loc.shape)
    expected = reference_log_prob(name, loc, scale, eps, tau, flow)
    assert log_q.dtype == torch.float32
    error = (log_q.double() - expected).abs() / expected.abs().clamp(min=1.0)
    assert error.max() <= 1e-5


# densities against other people's


def test_igr_i_of_two_categories_is_logit_normal():
    mu, sigma, tau, delta = 0.7, 1.3, 0.4, 2.5
    d = InvertibleGaussian(torch.tensor([mu], dtype=DOUBLE), sigma, tau, delta=delta)
    z = np.linspace(0.01, 0.99, 50)
    y = tau * (np.log(z / (1 - z)) + math.log(delta))
    expected = scipy.stats.norm.logpdf(y, mu, sigma) + np.log(tau / (z * (1 - z)))
    actual = d.log_prob(torch.tensor(np.stack([z, 1 - z], -1)))
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
def test_gumbel_softmax_agrees_with_torch_where_torch_is_finite(tau: float):
    logits = torch.randn(7, 4, dtype=DOUBLE)
    theirs = RelaxedOneHotCategorical(torch.tensor(tau, dtype=DOUBLE), logits=logits)
    z = theirs.sample((20,))
    torch.testing.assert_close(GumbelSoftmax(tau, logits).log_prob(z), theirs.log_prob(z), rtol=1e-9, atol=1e-9)


def test_binary_concrete_agrees_with_torch_where_torch_is_finite():
    logits = torch.randn(7, dtype=DOUBLE)
    theirs = RelaxedBernoulli(torch.tensor(0.8, dtype=DOUBLE), logits=logits)
    z = theirs.sample((20,)).clamp(1e-6, 1 - 1e-6)
    torch.testing.assert_close(BinaryConcrete(0.8, logits).log_prob(z), theirs.log_prob(z), rtol=1e-8, atol=1e-8)


def test_binary_concrete_is_the_first_coordinate_of_two_categories():
    logits, z = torch.randn(5, dtype=DOUBLE), torch.rand(9, 5, dtype=DOUBLE)
    pair = GumbelSoftmax(0.3, torch.stack([logits, torch.zeros_like(logits)], -1))
    torch.testing.assert_close(BinaryConcrete(0.3, logits).log_prob(z), pair.log_prob(torch.stack([z, 1 - z], -1)))


def test_binary_concrete_scores_its_own_samples_at_any_temperature():
    logits = (100 * torch.randn(1000)).requires_grad_()
    z, log_q = BinaryConcrete(0.001, logits).rsample_and_log_prob()
    assert ((z == 0) | (z == 1)).float().mean() > 0.9  # rounded, and scored all the same
    assert log_q.isfinite().all()
    (gradient,) = torch.autograd.grad(z.sum() + log_q.sum(), logits)
    assert gradient.isfinite().all()


def test_samples_of_binary_concrete_follow_the_logistic():
    z = BinaryConcrete(0.5, torch.tensor(0.8, dtype=DOUBLE)).sample((50_000,)).numpy()
    logistic = 0.5 * np.log(z / (1 - z)) - 0.8
    assert scipy.stats.kstest(logistic, "logistic").pvalue > 1e-5


def test_hard_samples_of_binary_concrete_follow_the_bernoulli():
    count = int(BinaryConcrete(0.5, torch.tensor(0.8, dtype=DOUBLE)).hard_rsample((50_000,)).sum())
    assert scipy.stats.binomtest(count, 50_000, 1 / (1 + math.exp(-0.8))).pvalue > 1e-5


# temperatures, hard samples, noise


def test_per_row_temperatures_are_separate_distributions():
    loc, tau = torch.randn(4, 3, dtype=DOUBLE), torch.tensor([[0.1], [0.5], [1.0], [2.0]], dtype=DOUBLE)
    together = InvertibleGaussian(loc, 0.7, tau, delta=2 * tau)
    z = torch.randn(6, 4, 4, dtype=DOUBLE).softmax(-1)
    rows = [InvertibleGaussian(loc[i], 0.7, tau[i].item(), delta=2 * tau[i].item()).log_prob(z[:, i]) for i in range(4)]
    torch.testing.assert_close(together.log_prob(z), torch.stack(rows, -1))
    gs = GumbelSoftmax(tau, torch.zeros(4, dtype=DOUBLE))
    assert gs.batch_shape == (4,)
    rows = [GumbelSoftmax(tau[i].item(), torch.zeros(4, dtype=DOUBLE)).log_prob(z[:, i]) for i in range(4)]
    torch.testing.assert_close(gs.log_prob(z), torch.stack(rows, -1))


@pytest.mark.parametrize("build", [InvertibleGaussian, lambda m, s, t: GumbelSoftmax(t, m)], ids=["IGR-I", "GS"])
def test_rows_added_by_the_temperature_have_noise_of_their_own(build):
    tau = torch.full((5, 1), 0.5)
    z = build(torch.zeros(3), torch.ones(3), tau).sample()
    assert len(torch.unique(z[:, 0])) == 5


def test_hard_samples_use_the_threshold_of_h_and_not_the_largest_z():
    d = InvertibleGaussian(torch.zeros(2, dtype=DOUBLE), 1.0, 0.5, delta=20.0)
    generator = torch.Generator().manual_seed(3)
    z = d.sample((1000,), generator=generator)
    generator.manual_seed(3)
    hard = d.hard_rsample((1000,), generator=generator)
    y = 0.5 * (z[..., :2].log() - z[..., 2:].log() + math.log(20.0))
    expected = torch.where(y.amax(-1) > 0, y.argmax(-1), 2)
    assert torch.equal(hard.argmax(-1), expected)
    assert (z.argmax(-1) != expected).any()


@pytest.mark.parametrize("name", METHODS)
def test_generators_make_samples_reproducible(name: str):
    d = method(name, torch.zeros(4, 3), torch.ones(4, 3), 0.5, planar_layers(4))
    state = torch.get_rng_state()
    for draw in (
        d.rsample,
        d.sample,
        d.log_rsample,
        d.hard_rsample,
        lambda *a, **k: d.rsample_and_log_prob(*a, **k)[1],
    ):
        first = draw((2,), generator=torch.Generator().manual_seed(5))
        assert torch.equal(first, draw((2,), generator=torch.Generator().manual_seed(5)))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("name", METHODS)
def test_seeds_in_place_of_generators_are_refused(name: str):
    d = method(name, torch.zeros(4, 3), torch.ones(4, 3), 0.5, planar_layers(4))
    with pytest.raises(TypeError, match=r"got 7; use torch\.Generator\('cpu'\)\.manual_seed\(7\)"):
        d.rsample(generator=7)
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator, got a module"):
        d.rsample(generator=torch)


def test_bases_without_a_generator_say_so():
    d = InvertibleReparameterization(Laplace(torch.zeros(2), 1.0), SoftmaxPlusPlus(0.5))
    with pytest.raises(ValueError, match=r"Laplace.* draws from torch's global generator"):
        d.sample(generator=torch.Generator())


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_no_samples_have_no_densities(name: str):
    d, _ = DISTRIBUTIONS[name](next(setting for each, setting in cases(DISTRIBUTIONS) if each == name))
    z = d.rsample((0,))
    assert z.shape == (0, *d.batch_shape, *d.event_shape)
    assert d.log_prob(z).shape == d.log_prob_from_log(z).shape == (0, *d.batch_shape)
    assert igr.monte_carlo_kl(d.expand((0, *d.batch_shape)), d.expand((0, *d.batch_shape))).estimate.numel() == 0
