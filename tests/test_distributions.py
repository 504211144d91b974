import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats
import torch
from registry import DISTRIBUTIONS, Setting, cases, label
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Categorical,
    Independent,
    Laplace,
    Normal,
    OneHotCategorical,
    RelaxedBernoulli,
    RelaxedOneHotCategorical,
    SoftmaxTransform,
    biject_to,
    kl_divergence,
    transform_to,
)

import igr
from igr.distributions import (
    BinaryConcrete,
    EstimatedOneHotCategorical,
    GumbelSoftmax,
    InvertibleGaussian,
    InvertibleReparameterization,
    Relaxation,
    monte_carlo_recovered,
)
from igr.recovery import recovered_log_probs
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


# the edges of the support


def test_an_exact_zero_has_density_zero_and_a_gradient():
    loc = torch.zeros(2, dtype=DOUBLE, requires_grad=True)
    z = torch.tensor([[0.0, 0.0, 1.0], [0.5, 0.0, 0.5], [0.2, 0.3, 0.5]], dtype=DOUBLE, requires_grad=True)
    for flow in (None, StickBreaking(), Planar(torch.ones(2, dtype=DOUBLE), torch.ones(2, dtype=DOUBLE))):
        value = InvertibleGaussian(loc, 1.0, 0.5, flow=flow).log_prob(z)
        assert value.isneginf().tolist()[:2] == [True, True]
        assert value[2].isfinite()
        gradients = torch.autograd.grad(value[2], (loc, z))
        assert all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize(
    "build", [lambda: GumbelSoftmax(0.5, torch.zeros(3)), lambda: BinaryConcrete(0.5, torch.zeros(3))]
)
def test_gumbels_refuse_an_exact_zero(build: Callable[[], Relaxation]):
    with pytest.raises(ValueError, match="rsample_and_log_prob"):
        build().log_prob(torch.tensor([0.0, 0.0, 1.0]))


@pytest.mark.parametrize("leftover", [True, False])
def test_stick_breaking_has_bounded_support(leftover: bool):
    d = InvertibleGaussian(torch.zeros(2, dtype=DOUBLE), 1.0, 0.5, flow=StickBreaking(leftover))
    z = torch.tensor([[0.999, 0.0005, 0.0005], [0.34, 0.33, 0.33]], dtype=DOUBLE)
    outside, inside = d.log_prob(z)
    assert outside == -math.inf  # log-ratios beyond 1 / τ
    assert bool(inside.isfinite()) == leftover
    centre = d.log_prob(torch.full((3,), 1 / 3, dtype=DOUBLE) + torch.tensor([2e-3, -1e-3, -1e-3], dtype=DOUBLE))
    assert bool(centre.isfinite()) == leftover  # the literal form has a_k > 0, so z_k > z_K for all k


def test_vertex_interpolation_has_disjoint_pieces():
    d = InvertibleReparameterization(Normal(torch.zeros(2, dtype=DOUBLE), 1.0), VertexInterpolation(0.3))
    z = torch.tensor([[0.5, 0.3, 0.2], [0.9, 0.06, 0.04]], dtype=DOUBLE)
    between, near = d.log_prob(z)
    assert between == -math.inf
    assert near.isfinite()


@pytest.mark.parametrize("K", [3, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_own_rounded_samples_are_in_the_support(dtype: torch.dtype, K: int):
    d = InvertibleGaussian(torch.randn(50, K - 1).to(dtype), 1.0, 1.0)
    assert not d.log_prob(d.sample()).isnan().any()
    assert d.log_prob(d.sample()).dtype == torch.float32


def test_points_off_the_simplex_are_refused():
    d = InvertibleGaussian(torch.zeros(2), 1.0, 0.5)
    with pytest.raises(ValueError, match="not in the support"):
        d.log_prob(torch.tensor([0.5, 0.3, 0.3]))
    with pytest.raises(ValueError, match="not in the support"):
        d.log_prob(torch.tensor([1.2, -0.1, -0.1]))
    with pytest.raises(ValueError, match=r"shape \(\*, 3\)"):
        d.log_prob(torch.tensor([0.5, 0.5]))
    unchecked = InvertibleGaussian(torch.zeros(2), 1.0, 0.5, validate_args=False)
    assert unchecked.log_prob(torch.tensor([0.5, 0.3, 0.3])).isfinite()


def test_points_off_the_support_of_the_base_have_no_part_in_gradients():
    concentration = torch.tensor([2.0, 3.0], dtype=DOUBLE, requires_grad=True)
    y = torch.tensor([0.5, 1.2], dtype=DOUBLE)
    d = InvertibleReparameterization(torch.distributions.Gamma(concentration, torch.ones(2)), SoftmaxPlusPlus(0.5))
    inside, outside = d.log_prob(SoftmaxPlusPlus(0.5)(torch.stack([y, -y])))
    assert outside == -math.inf
    (found,) = torch.autograd.grad(inside, concentration)
    torch.testing.assert_close(found, (y.log() - concentration.digamma()).detach())


def test_a_base_on_part_of_the_space_has_density_zero_elsewhere():
    ones = torch.ones(2, dtype=DOUBLE)
    d = InvertibleReparameterization(torch.distributions.Uniform(-0.01 * ones, 0.01 * ones), SoftmaxPlusPlus(0.5))
    outside, inside = d.log_prob(torch.tensor([[0.8, 0.1, 0.1], [0.33, 0.33, 0.34]], dtype=DOUBLE))
    assert outside == -math.inf
    assert inside == -math.inf  # |y| = 0.5 log(0.34 / 0.33) > 0.01
    assert d.log_prob(torch.full((3,), 1 / 3, dtype=DOUBLE)).item() == pytest.approx(
        2 * math.log(50) + 3 * math.log(3) + 2 * math.log(0.5)
    )


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_large_samples_of_nearly_equal_coordinates_are_accepted(dtype: torch.dtype):
    d = InvertibleGaussian(torch.randn(20, 49_999, dtype=dtype), 1.0, 0.5, flow=StickBreaking())
    assert not d.log_prob(d.rsample()).isnan().any()


def test_points_in_place_of_logarithms_are_noticed():
    for d in (InvertibleGaussian(torch.zeros(2), 1.0, 0.5), GumbelSoftmax(0.5, torch.zeros(3))):
        z = d.sample((4,))
        with pytest.raises(ValueError, match="use log_prob for the points themselves"):
            d.log_prob_from_log(z)
    with pytest.raises(ValueError, match="use log_prob for the points themselves"):
        BinaryConcrete(0.5, torch.zeros(3)).log_prob_from_log(torch.rand(3))


def test_where_a_zero_cannot_be_seen_it_has_density_zero():
    z = torch.tensor([[0.0, 0.0, 1.0], [0.2, 0.3, 0.5]])
    log_q = torch.func.vmap(GumbelSoftmax(0.5, torch.zeros(3)).log_prob)(z)
    assert log_q.isneginf().tolist() == [True, False]
    log_q = torch.func.vmap(BinaryConcrete(0.5, torch.zeros(())).log_prob)(torch.tensor([0.0, 1.0, 0.5]))
    assert log_q.isneginf().tolist() == [True, True, False]


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


def test_bases_without_a_generator_say_so():
    d = InvertibleReparameterization(Laplace(torch.zeros(2), 1.0), SoftmaxPlusPlus(0.5))
    with pytest.raises(ValueError, match=r"Laplace.* draws from torch's global generator"):
        d.sample(generator=torch.Generator())


def test_gumbel_softmax_knows_what_it_relaxes():
    logits = torch.tensor([0.1, 2.0, -1.0])
    d = GumbelSoftmax(0.1, logits)
    torch.testing.assert_close(d.recovered().probs, logits.softmax(-1))
    assert d.mode.tolist() == [0.0, 1.0, 0.0]
    frequencies = d.hard_rsample((100_000,)).sum(0)
    assert (
        scipy.stats.chisquare(
            frequencies.numpy(), 100_000 * logits.softmax(-1).double().numpy(), sum_check=False
        ).pvalue
        > 1e-5
    )
    assert BinaryConcrete(0.1, logits).mode.tolist() == [1.0, 1.0, 0.0]
    torch.testing.assert_close(BinaryConcrete(0.1, logits).recovered().probs, logits.sigmoid())


def test_igr_knows_what_it_relaxes():
    loc, scale = torch.randn(2, 4, dtype=DOUBLE, requires_grad=True), torch.rand(4, dtype=DOUBLE) + 0.5
    q = InvertibleGaussian(loc, scale, 0.1, delta=3.0)  # the threshold of h is zero whatever δ is
    torch.testing.assert_close(q.recovered().logits, recovered_log_probs(loc, scale))
    frequencies = InvertibleGaussian(loc, scale, 1e-6).rsample((200_000,)).mean(0)  # Proposition 1
    assert (q.recovered().probs - frequencies).abs().max() < 5 * 0.5 / math.sqrt(200_000)
    assert torch.equal(q.mode, torch.nn.functional.one_hot(recovered_log_probs(loc, scale).argmax(-1), 5).double())
    q.recovered().log_prob(q.mode).sum().backward()
    assert (loc.grad != 0).all()


@pytest.mark.parametrize("shape", [(4, 1), (4, 2), (4,), ()])
def test_recovered_refuses_what_is_no_point(shape):
    """An axis of one, or indices of categories, would be summed with all logarithms."""
    for recovered in (
        GumbelSoftmax(0.5, torch.zeros(4, 3)).recovered(),
        EstimatedOneHotCategorical(torch.full((4, 3), 1 / 3), torch.zeros(4, 3), 10),
    ):
        with pytest.raises(ValueError, match=r"value must have shape \(\*, 3\), got a float32 tensor"):
            recovered.log_prob(torch.ones(shape))
        with pytest.raises(ValueError, match=r"value \(5,\), batch_shape \(4,\)"):
            recovered.log_prob(torch.ones(5, 3))
        assert recovered.log_prob(torch.eye(3, dtype=torch.long)[1]).shape == (4,)


def test_igr_sb_knows_what_it_relaxes():
    loc = torch.tensor([-1.0, 0.3, -0.5])
    q = InvertibleGaussian(loc, 1.2, 0.1, flow=StickBreaking())
    assert torch.equal(q.recovered().probs, q.recovered().probs)
    assert (q.recovered().probs > 0.01).all()
    torch.testing.assert_close(
        InvertibleReparameterization(Normal(loc, 1.2), VertexInterpolation(0.5)).recovered().probs, q.recovered().probs
    )
    leaf = loc.clone().requires_grad_()
    literal = InvertibleGaussian(leaf, 1.2, 0.1, flow=StickBreaking(leftover=False)).recovered()
    assert literal.probs[-1] == 0
    uniform = torch.distributions.OneHotCategorical(logits=torch.zeros(4))
    (gradient,) = torch.autograd.grad(torch.distributions.kl_divergence(literal, uniform), leaf)
    assert gradient.isfinite().all()
    frequencies = q.hard_rsample((200_000,)).mean(0)
    assert (q.recovered().probs - frequencies).abs().max() < 5 * 0.5 / math.sqrt(200_000)


def test_flows_and_other_bases_are_estimated_and_say_so():
    flow = Planar(torch.tensor([1.0, 0.5]), torch.tensor([2.0, -1.0]))
    for q in (
        InvertibleGaussian(torch.zeros(3, 2), 1.0, 0.5, flow=flow),
        InvertibleReparameterization(Laplace(torch.zeros(3, 2), 1.0), SoftmaxPlusPlus(0.5)),
    ):
        with pytest.raises(NotImplementedError, match=r"through samples only: use recovered\(num_samples="):
            q.recovered()
        with pytest.raises(NotImplementedError, match=r"use recovered\(num_samples=100_000\).mode"):
            _ = q.mode
        estimated = q.recovered(num_samples=5_000)
        assert isinstance(estimated, EstimatedOneHotCategorical)
        assert "estimated from 5000 samples" in repr(estimated)
        assert estimated.probs.shape == estimated.standard_error.shape == (3, 3)
        assert estimated.mode.sum() == 3
        wide = estimated.expand((2, 3))
        assert wide.probs.shape == wide.standard_error.shape == (2, 3, 3)
        assert not estimated.probs.requires_grad


def test_monte_carlo_agrees_with_what_is_exact():
    q = InvertibleGaussian(torch.randn(4, 3), torch.rand(3) + 0.5, 0.5)
    probs, standard_error = monte_carlo_recovered(q, 300_000, generator=torch.Generator().manual_seed(0))
    exact = q.recovered().probs
    assert ((probs - exact) / standard_error).abs().max() < 5
    assert ((probs - exact) / standard_error).square().mean() == pytest.approx(1.0, abs=0.75)
    common = exact > 0.02  # there the counts know the error to a hundredth
    expected = (exact * (1 - exact) / 300_000).sqrt()
    assert common.sum() > 8
    torch.testing.assert_close(standard_error[common], expected[common], rtol=0.02, atol=0)
    never = monte_carlo_recovered(InvertibleGaussian(torch.full((2,), -30.0), 1.0, 0.5), 100)
    assert never.estimate.tolist() == [0.0, 0.0, 1.0]
    assert (never.standard_error > 0).all()
    with pytest.raises(ValueError, match="num_samples must be an integer of at least 1, got 0"):
        monte_carlo_recovered(q, 0)
    with pytest.raises(TypeError, match="q must be a relaxation"):
        monte_carlo_recovered(BinaryConcrete(0.5, torch.zeros(2)))


# torch's contract


def test_attributes():
    loc, scale, tau = torch.randn(4, 9, requires_grad=True), torch.rand(9) + 0.1, torch.full((3, 1, 1), 0.5)
    d = InvertibleGaussian(loc, scale, tau, flow=StickBreaking())
    assert d.batch_shape == (3, 4)
    assert d.event_shape == (10,)
    assert d.loc.shape == d.scale.shape == (3, 4, 9)
    assert torch.equal(d.loc[1], loc)
    assert d.temperature is tau
    assert d.flow == StickBreaking()
    assert d.has_rsample
    assert set(d.arg_constraints) == {"loc", "scale", "temperature", "delta"}
    assert d.rsample().requires_grad
    assert not d.sample().requires_grad
    assert d.expand((2, 3, 4)).sample((5,)).shape == (5, 2, 3, 4, 10)
    assert "StickBreaking" in repr(d)


def test_empty_batches():
    for d in (InvertibleGaussian(torch.zeros(0, 3), 1.0, 0.5), GumbelSoftmax(0.5, torch.zeros(0, 4))):
        z, log_q = d.rsample_and_log_prob((2,))
        assert z.shape == (2, 0, 4)
        assert d.log_prob(z).shape == log_q.shape == (2, 0)
    d = InvertibleGaussian(torch.zeros(0, 3), 1.0, 0.5)
    assert d.kl(d).shape == (0,)


@pytest.mark.parametrize("flow", [None, StickBreaking(), Planar(torch.ones(3), torch.ones(3)), "gs"], ids=str)
def test_what_is_behind_an_empty_batch(flow):
    loc = torch.zeros(2, 0, 3, requires_grad=True)
    d = GumbelSoftmax(0.5, torch.zeros(2, 0, 4)) if flow == "gs" else InvertibleGaussian(loc, 1.0, 0.5, flow=flow)
    behind = d.recovered(num_samples=10)
    assert behind.probs.shape == behind.mean.shape == behind.mode.shape == (2, 0, 4)
    assert behind.entropy().shape == behind.log_prob(d.sample()).shape == (2, 0)
    assert behind.sample((5,)).shape == behind.expand((5, 2, 0)).sample().shape == (5, 2, 0, 4)
    assert kl_divergence(behind, behind).shape == (2, 0)


def test_what_is_behind_can_be_expanded():
    behind = GumbelSoftmax(0.5, torch.tensor([0.0, 1.0, 2.0])).recovered()
    expanded = behind.expand((2, 4))
    assert type(expanded) is type(behind)
    between = torch.tensor([0.5, 0.5, 0.0])
    torch.testing.assert_close(expanded.log_prob(between), behind.log_prob(between).expand(2, 4))


@pytest.mark.parametrize("other", [Categorical, OneHotCategorical])
def test_divergences_from_what_is_discrete_say_what_there_is(other):
    p, q = InvertibleGaussian(torch.zeros(4, 2), 1.0, 0.5), other(logits=torch.arange(3.0))
    with pytest.raises(NotImplementedError, match=r"use igr\.categorical_kl\(p, q\)") as refused:
        kl_divergence(p, q)
    assert "monte_carlo" not in str(refused.value)
    torch.testing.assert_close(
        igr.categorical_kl(p, q), kl_divergence(p.recovered(), OneHotCategorical(logits=torch.arange(3.0)))
    )


def test_divergences_from_a_bernoulli_say_what_there_is():
    p, q = BinaryConcrete(0.5, torch.zeros(4)), Bernoulli(0.25)
    with pytest.raises(NotImplementedError, match=r"use igr\.categorical_kl\(p, q\)"):
        kl_divergence(p, q)
    torch.testing.assert_close(igr.categorical_kl(p, q), kl_divergence(p.recovered(), q))


def test_parameters_stay_leaves_and_copies_work():
    loc = torch.nn.Parameter(torch.zeros(4, 3))
    for d in (InvertibleGaussian(loc, torch.ones(4, 3), 0.5), GumbelSoftmax(0.5, loc), BinaryConcrete(0.5, loc)):
        clone = copy.deepcopy(d)
        assert clone.sample().shape == d.sample().shape
    assert InvertibleGaussian(loc, 1.0, 0.5).loc is loc


def test_the_support_can_be_reached_from_the_reals():
    d = InvertibleGaussian(torch.zeros(2), 1.0, 0.5)
    assert d.support.check(biject_to(d.support)(torch.randn(5, 2))).all()
    assert d.support.check(transform_to(d.support)(torch.randn(5, 3))).all()


def test_subclasses_are_named():
    class Mine(InvertibleGaussian):
        pass

    assert repr(Mine(torch.zeros(2), 1.0, 0.5)).startswith("Mine(")


def test_float16_parameters_are_computed_in_float32():
    loc = torch.randn(5, 3).half()
    d = InvertibleGaussian(loc, torch.ones(5, 3).half(), 0.01)
    assert d.loc.dtype == d.sample().dtype == torch.float16
    assert d.log_rsample().dtype == torch.float32
    assert d.kl(InvertibleGaussian(torch.zeros(3).half(), 1.0, 0.01)).dtype == torch.float32


BAD = [
    (lambda: InvertibleGaussian(torch.tensor([math.nan, 0.0]), 1.0, 0.5), ValueError, r"loc must be finite.*\(2,\)"),
    (lambda: InvertibleGaussian(torch.tensor([math.inf, 0.0]), 1.0, 0.5), ValueError, "loc must be finite"),
    (lambda: InvertibleGaussian(torch.zeros(2), torch.tensor([1.0, 0.0]), 0.5), ValueError, "scale must be positive"),
    (
        lambda: InvertibleGaussian(torch.zeros(2), torch.tensor([1.0, math.nan]), 0.5),
        ValueError,
        "scale must be positive",
    ),
    (lambda: InvertibleGaussian(torch.zeros(2), -1.0, 0.5), ValueError, "scale must be positive"),
    (lambda: InvertibleGaussian(torch.zeros(2), 1.0, 0.0), ValueError, "temperature must be positive"),
    (lambda: InvertibleGaussian(torch.zeros(2), 1.0, torch.tensor(-1.0)), ValueError, "temperature must be positive"),
    (lambda: InvertibleGaussian(torch.zeros(2), 1.0, math.nan), ValueError, "temperature must be positive"),
    (lambda: InvertibleGaussian(torch.zeros(4, 2), 1.0, torch.ones(4)), ValueError, r"temperature\.unsqueeze\(-1\)"),
    (lambda: InvertibleGaussian(torch.zeros(2), 1.0, 0.5, delta=0.0), ValueError, "delta must be positive"),
    (lambda: InvertibleGaussian(torch.zeros(2), torch.ones(3), 0.5), ValueError, r"loc \(2,\), scale \(3,\)"),
    (lambda: InvertibleGaussian(torch.zeros(3, 1), torch.ones(3, 4), 0.5), ValueError, "more coordinates than loc"),
    (lambda: InvertibleGaussian(torch.zeros(3, 2), 1.0, torch.ones(4, 1)), ValueError, "do not broadcast"),
    (lambda: InvertibleGaussian(torch.zeros(2, dtype=torch.int64), 1.0, 0.5), TypeError, r"loc\.float\(\)"),
    (lambda: InvertibleGaussian(torch.zeros(2), torch.ones(2, dtype=torch.int64), 0.5), TypeError, r"scale\.float\(\)"),
    (lambda: InvertibleGaussian([0.0, 1.0], 1.0, 0.5), TypeError, "loc must be a floating-point tensor, got a list"),
    (lambda: InvertibleGaussian(torch.zeros(()), 1.0, 0.5), ValueError, "K >= 2"),
    (lambda: InvertibleGaussian(torch.zeros(4, 0), 1.0, 0.5), ValueError, "K >= 2"),
    (lambda: InvertibleGaussian(torch.zeros(2), 1.0, 0.5, flow="planar"), TypeError, "Transform"),
    (lambda: InvertibleGaussian(torch.zeros(2), 1.0, "cold"), TypeError, "temperature must be a number"),
    (lambda: GumbelSoftmax(0.5, torch.zeros(4, 1)), ValueError, "K >= 2"),
    (lambda: GumbelSoftmax(0.5, torch.tensor([0.0, -math.inf])), ValueError, "logits must be finite"),
    (lambda: GumbelSoftmax(0.5, torch.tensor([0.0, -math.inf])), ValueError, "a mask to igr.functional.gumbel_softmax"),
    (lambda: GumbelSoftmax(-0.5, torch.zeros(3)), ValueError, "temperature must be positive"),
    (lambda: GumbelSoftmax(torch.zeros(3), 0.5), TypeError, "logits must be a floating-point tensor"),
    (lambda: GumbelSoftmax(0.5, torch.zeros(3, dtype=torch.int32)), TypeError, r"logits\.float\(\)"),
    (lambda: BinaryConcrete(0.0, torch.zeros(3)), ValueError, "temperature must be positive"),
    (lambda: BinaryConcrete(0.5, torch.tensor(math.nan)), ValueError, "logits must be finite"),
    (lambda: BinaryConcrete(torch.ones(2), torch.zeros(3)), ValueError, "do not broadcast"),
    (lambda: InvertibleReparameterization(Normal(0.0, 1.0), SoftmaxPlusPlus()), ValueError, r"event shape \(K - 1,\)"),
    (lambda: InvertibleReparameterization(torch.zeros(3), SoftmaxPlusPlus()), TypeError, "Distribution"),
    (
        lambda: InvertibleReparameterization(torch.distributions.Poisson(torch.ones(3)), SoftmaxPlusPlus()),
        ValueError,
        "reparameterizable",
    ),
    (
        lambda: InvertibleReparameterization(Normal(torch.zeros(3), 1.0), StickBreaking()),
        ValueError,
        "append SoftmaxPlusPlus",
    ),
    (lambda: InvertibleReparameterization(Normal(torch.zeros(3), 1.0), SoftmaxTransform()), ValueError, "bijection"),
    (lambda: InvertibleReparameterization(Normal(torch.zeros(3), 1.0), []), ValueError, "bijection"),
    (lambda: InvertibleGaussian(torch.zeros(3), 1.0, 1.0, flow=SoftmaxPlusPlus()), ValueError, "only the last map"),
    (lambda: InvertibleGaussian(torch.zeros(4, 3), 1.0, torch.ones(5, 1)), ValueError, r"temperature \(5, 1\)"),
    (lambda: BinaryConcrete(True, torch.zeros(3)), TypeError, "temperature must be a floating-point tensor, got True"),
    (lambda: BinaryConcrete("a", torch.zeros(3)), TypeError, "temperature must be"),
]


@pytest.mark.parametrize(("build", "error", "words"), BAD)
def test_bad_input_is_refused_at_construction(build, error, words):
    with pytest.raises(error, match=words):
        build()


def test_values_are_unchecked_on_request_but_types_are_not():
    d = InvertibleGaussian(torch.tensor([math.nan]), 1.0, 0.5, validate_args=False)
    assert d.sample().isnan().any()
    with pytest.raises(TypeError, match="loc"):
        InvertibleGaussian(torch.zeros(2, dtype=torch.int64), 1.0, 0.5, validate_args=False)


# bases and flows from elsewhere


def test_a_zuko_flow_is_a_flow():
    zuko = pytest.importorskip("zuko")
    spline = zuko.transforms.MonotonicRQSTransform(*[torch.randn(2, n, dtype=DOUBLE) for n in (8, 8, 7)])
    flow = zuko.transforms.DependentTransform(spline, 1)
    d = InvertibleGaussian(torch.zeros(2, dtype=DOUBLE), 1.0, 0.5, flow=flow)
    check_distribution(d, other=InvertibleGaussian(torch.ones(2, dtype=DOUBLE), 0.7, 0.5, flow=flow))


def test_a_whole_zuko_flow_learns_through_the_simplex():
    zuko = pytest.importorskip("zuko")
    module = zuko.flows.MAF(features=2, transforms=1, hidden_features=(8,))
    d = InvertibleGaussian(torch.zeros(5, 2), 1.0, 0.5, flow=module().transform.inv)
    z, log_q = d.rsample_and_log_prob()
    (z[:, 0].sum() + log_q.sum()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
    torch.testing.assert_close(d.log_prob(z), log_q, rtol=1e-3, atol=1e-3)


def test_a_bare_normal_base_reads_its_last_axis_as_coordinates():
    loc, scale = torch.randn(4, 3, dtype=DOUBLE), torch.rand(4, 3, dtype=DOUBLE) + 0.5
    z = torch.randn(4, 4, dtype=DOUBLE).softmax(-1)
    bare = InvertibleReparameterization(Normal(loc, scale), SoftmaxPlusPlus(0.3))
    assert bare.batch_shape == (4,)
    torch.testing.assert_close(bare.log_prob(z), InvertibleGaussian(loc, scale, 0.3).log_prob(z))


def test_half_precision_normal_bases_are_computed_in_float32():
    loc, g = torch.randn(50, 3).bfloat16(), SoftmaxPlusPlus(0.1)
    bare = InvertibleReparameterization(Normal(loc, torch.ones(3).bfloat16()), g)
    wide = InvertibleReparameterization(Normal(loc.float(), torch.ones(3)), g)
    prior = InvertibleGaussian(torch.zeros(3).bfloat16(), 1.0, 0.7)
    assert bare.sample().dtype == torch.bfloat16
    torch.testing.assert_close(bare.kl(prior), wide.kl(prior), rtol=0, atol=0)
    torch.manual_seed(2)
    _, log_q = bare.rsample_and_log_prob()
    torch.manual_seed(2)
    torch.testing.assert_close(log_q, wide.rsample_and_log_prob()[1], rtol=0, atol=0)


def test_half_precision_laplace():
    d = InvertibleReparameterization(Laplace(torch.zeros(3).bfloat16(), torch.ones(3).bfloat16()), SoftmaxPlusPlus(0.1))
    z, log_q = d.rsample_and_log_prob((100,))
    assert z.dtype == torch.bfloat16
    assert log_q.dtype == torch.float32
    assert log_q.isfinite().all()


@pytest.mark.parametrize("name", ["mean", "variance", "entropy"])
@pytest.mark.parametrize(
    "q", [igr.GumbelSoftmax(0.5, torch.zeros(3)), igr.InvertibleGaussian(torch.zeros(2), 1.0, 0.5)], ids=["gs", "igr-i"]
)
def test_moments_without_a_closed_form_say_what_there_is(q, name):
    with pytest.raises(NotImplementedError, match=rf"the {name} of {type(q).__name__}.* has no closed form: use "):
        getattr(q, name)() if name == "entropy" else getattr(q, name)


def test_a_flow_that_was_not_called():
    with pytest.raises(TypeError, match="got a PlanarFlow; call it for the transform that it holds"):
        igr.InvertibleGaussian(torch.zeros(3), 1.0, 0.5, flow=igr.nn.PlanarFlow(4))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_no_samples_have_no_densities(name: str):
    d, _ = DISTRIBUTIONS[name](next(setting for each, setting in cases(DISTRIBUTIONS) if each == name))
    z = d.rsample((0,))
    assert z.shape == (0, *d.batch_shape, *d.event_shape)
    assert d.log_prob(z).shape == d.log_prob_from_log(z).shape == (0, *d.batch_shape)
    assert igr.monte_carlo_kl(d.expand((0, *d.batch_shape)), d.expand((0, *d.batch_shape))).estimate.numel() == 0


def test_on_the_meta_device():
    """Shapes without numbers, as of models that are yet to be loaded."""
    loc = torch.zeros(4, 3, device="meta")
    for d in (InvertibleGaussian(loc, 1.0, 0.5), GumbelSoftmax(0.5, loc)):
        K = d.event_shape[0]
        for z in (d.rsample((2,)), d.hard_rsample((2,)), d.log_rsample((2,))):
            assert (z.shape, z.device.type) == ((2, 4, K), "meta")
        assert d.rsample_and_log_prob()[1].shape == (4,)
        assert d.recovered().probs.shape == (4, K)
    assert kl_divergence(InvertibleGaussian(loc, 1.0, 0.5), InvertibleGaussian(loc, 2.0, 0.5)).shape == (4,)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logarithms_in_half_precision(dtype):
    """What is summed has been rounded in that dtype, and is refused for more than that."""
    d = GumbelSoftmax(2.0, torch.randn(20, 60).to(dtype))
    log_z = d.log_rsample().to(dtype)
    assert d.log_prob_from_log(d.rsample().log()).isfinite().all()
    torch.testing.assert_close(
        d.log_prob_from_log(log_z), d.log_prob_from_log(log_z.float().log_softmax(-1)), rtol=0.2, atol=2
    )
    with pytest.raises(ValueError, match=f"not the logarithm of .* got a {str(dtype).removeprefix('torch.')} tensor"):
        d.log_prob_from_log(log_z + 0.1)
