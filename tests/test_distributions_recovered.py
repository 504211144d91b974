"""The discrete distribution behind each relaxation: exact, or estimated and said to be so."""

import math

import pytest
import scipy.stats
import torch
from torch.distributions import Bernoulli, Categorical, Laplace, Normal, OneHotCategorical, kl_divergence

import igr
from igr.distributions import (
    BinaryConcrete,
    EstimatedOneHotCategorical,
    GumbelSoftmax,
    InvertibleGaussian,
    InvertibleReparameterization,
    monte_carlo_recovered,
)
from igr.recovery import recovered_log_probs
from igr.transforms import Planar, SoftmaxPlusPlus, StickBreaking, VertexInterpolation

DOUBLE = torch.float64


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


@pytest.mark.parametrize("flow", [None, StickBreaking(), Planar(torch.tensor([1.0, 0.5]), torch.tensor([0.3, -1.0]))])
def test_estimates_where_values_cannot_be_looked_at(flow):
    """Under transforms, in one graph, and without numbers."""
    loc = torch.tensor([[0.5, -0.3], [2.0, 1.0], [-1.0, -2.0]])

    def estimate(loc):
        q = igr.InvertibleGaussian(loc, 1.0, 0.5, flow=flow, validate_args=False)
        return igr.monte_carlo_recovered(q, 4000).estimate

    def of_gumbels(loc):
        return igr.monte_carlo_recovered(igr.GumbelSoftmax(0.5, loc, validate_args=False), 4000).estimate

    for each in (estimate, of_gumbels):
        expected = each(loc)
        compiled = torch.compile(each, fullgraph=True, backend="eager")(loc)
        mapped = torch.vmap(each, randomness="different")(loc)
        for found in (compiled, mapped):
            torch.testing.assert_close(found, expected, rtol=0, atol=0.05)
            torch.testing.assert_close(found.sum(-1), torch.ones(3))
        if not isinstance(flow, Planar):  # whose parameters are somewhere
            assert each(loc.to("meta")).shape == expected.shape
