"""The layer of categorical variables: what it returns in every mode, its divergences, and what it refuses."""

import math

import numpy as np
import pytest
import torch
from bottleneck_cases import EXACT, RELAXATIONS, H, K, N, features, is_one_hot, layer
from scipy import stats
from torch import nn
from torch.distributions import Categorical

import igr
from igr import schedules
from igr.nn import Bottleneck, CategoricalBottleneck
from igr.schedules import Exponential, Learnable


@pytest.mark.parametrize("shape", [(), (4,), (2, 6)])
@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_shapes(relaxation, shape):
    for train in (True, False):
        out = layer(relaxation).train(train)(features(*shape))
        assert isinstance(out, Bottleneck)
        assert out.z.shape == (*shape, N, K)
        assert out.kl.shape == shape
        torch.testing.assert_close(out.z.sum(-1), torch.ones(*shape, N, dtype=torch.float64))


@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_estimators_and_gradients(relaxation):
    for estimator, hard in (("reparameterized", False), ("st_relaxed", True)):
        model, h = layer(relaxation, estimator=estimator, temperature=Learnable(0.5)), features(16, requires_grad=True)
        z, kl = model(h)
        assert is_one_hot(z) == hard
        (z.cumsum(-1).square().sum() + kl.sum()).backward()
        for parameter in (h, *model.parameters()):
            assert bool(parameter.grad.isfinite().all())
            assert bool((parameter.grad != 0).any())
        relaxed = layer(relaxation, temperature=0.5)
        relaxed.load_state_dict({k: v for k, v in model.state_dict().items() if "logit" not in k}, strict=False)
        same = {"generator": torch.Generator().manual_seed(1)}
        v = torch.randn(K, dtype=torch.float64)
        (expected,) = torch.autograd.grad((relaxed(h, **same).z @ v).sum(), h)
        same["generator"].manual_seed(1)
        (found,) = torch.autograd.grad((model(h, **same).z @ v).sum(), h)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)  # the temperature is trained in float32


@pytest.mark.parametrize("relaxation", EXACT)
def test_eval_modes(relaxation):
    h = features(4)
    model = layer(relaxation).eval()
    probs = igr.monte_carlo_recovered(model.distribution(h), 20_000)
    assert is_one_hot(model(h).z)
    draws = model(h.expand(2000, 4, H)).z
    error = (probs.estimate * (1 - probs.estimate) / 2000).sqrt() + probs.standard_error
    assert bool(((draws.mean(0) - probs.estimate).abs() < 5 * error + 1e-3).all())
    model.eval_mode = "mean"
    assert bool(((model(h).z - probs.estimate).abs() < 5 * probs.standard_error).all())
    model.eval_mode = "argmax"
    assert is_one_hot(model(h).z)
    likeliest = (probs.estimate * model(h).z).sum(-1)
    assert bool((likeliest > probs.estimate.amax(-1) - 0.02).all())
    assert torch.equal(model(h).z, model(h).z)


@pytest.mark.parametrize("relaxation", ["igr-i", "igr-sb"])
def test_gaussian_divergence_is_that_of_the_relaxations(relaxation):
    """Against E[log q(z) - log p(z)] by sampling, with densities on the simplex."""
    model, h = layer(relaxation, spread=0.5), features(6)
    flow = igr.StickBreaking() if relaxation == "igr-sb" else None
    prior = igr.fit_prior(torch.full((K,), 1 / K).double(), temperature=model.temperature, flow=flow)
    with torch.no_grad():
        z, log_q = model.distribution(h).rsample_and_log_prob((20_000,))
        ratio = (log_q - prior.log_prob(z)).sum(-1) if relaxation == "igr-i" else None
        if ratio is None:  # sticks below eps cannot be read off z
            ratio = model.distribution(h)._log_ratio(prior, (20_000,)).sum(-1)
        kl = model(h).kl
    error = ratio.std(0) / len(ratio) ** 0.5
    assert bool(((ratio.mean(0) - kl).abs() < 5 * error).all())


@pytest.mark.parametrize("relaxation", EXACT)
def test_discrete_divergence_is_a_sum_over_categories(relaxation):
    p0 = torch.tensor([0.1, 0.2, 0.3, 0.25, 0.15], dtype=torch.float64)
    model, h = layer(relaxation, kl="discrete", prior=p0), features(6)
    with torch.no_grad():
        probs = model.distribution(h).recovered().probs.numpy()
        kl = model(h).kl
    expected = [sum(stats.entropy(p, p0.numpy()) for p in row) for row in probs]
    np.testing.assert_allclose(kl, expected, rtol=1e-6)


@pytest.mark.parametrize("relaxation", ["igr-planar", "gs"])
def test_sampled_divergence(relaxation):
    """log q - log p at the sample itself: against densities at z, and on average against another way to sample."""
    model, h = layer(relaxation, spread=0.3, kl="continuous"), features(5)
    tau = model.temperature
    with torch.no_grad():
        z, kl = model(h)
        prior = (
            igr.GumbelSoftmax(tau, torch.zeros(K).double())
            if relaxation == "gs"
            else igr.fit_prior(torch.full((K,), 1 / K).double(), temperature=tau)
        )
        expected = (model.distribution(h).log_prob(z) - prior.log_prob(z)).sum(-1)
        torch.testing.assert_close(kl, expected, rtol=1e-6, atol=1e-6)
        many = model(h.expand(2000, 5, H)).kl
        reference = igr.monte_carlo_kl(model.distribution(h), prior, 20_000)
    error = (many.var(0) / 2000 + reference.standard_error.square().sum(-1)).sqrt()
    assert bool(((many.mean(0) - reference.estimate.sum(-1)).abs() < 5 * error).all())
    model.estimator = "st_relaxed"
    same = torch.Generator()
    hard = model(h, generator=same.manual_seed(0))
    model.estimator = "reparameterized"
    soft = model(h, generator=same.manual_seed(0))
    assert torch.equal(hard.kl, soft.kl)
    assert torch.equal(hard.z.argmax(-1), soft.z.argmax(-1))


@pytest.mark.parametrize("relaxation", ["igr-i", "igr-sb", "igr-planar"])
def test_priors_of_another_delta_are_refused(relaxation):
    flow = igr.StickBreaking() if relaxation == "igr-sb" else None
    prior = igr.InvertibleGaussian(torch.zeros(K - 1), 1.0, 0.5, flow=flow, delta=0.01)
    with pytest.raises(ValueError, match=f"the prior of {relaxation} must have delta=1"):
        CategoricalBottleneck(H, N, K, relaxation, prior=prior)
    same = igr.InvertibleGaussian(torch.zeros(K - 1), 1.0, 0.5, flow=flow, delta=torch.tensor(1.0))
    CategoricalBottleneck(H, N, K, relaxation, prior=same)


@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_given_priors(relaxation):
    """At a layer that returns its prior, the divergence is zero, whatever the prior is."""
    p0 = torch.tensor([[0.1, 0.2, 0.3, 0.25, 0.15], [0.2] * 5, [0.6, 0.1, 0.1, 0.1, 0.1]])
    given = [p0, p0[0]]
    if relaxation == "gs":
        given.append(igr.GumbelSoftmax(0.7, torch.randn(N, K)))
    else:
        flow = igr.StickBreaking() if relaxation == "igr-sb" else None
        given.append(igr.InvertibleGaussian(torch.randn(N, K - 1), torch.rand(N, K - 1) + 0.1, 0.7, flow=flow))
    for prior in given:
        model = CategoricalBottleneck(H, N, K, relaxation, prior=prior).double()
        nn.init.zeros_(model.head.weight)
        if relaxation == "igr-planar":
            nn.init.zeros_(model.flow.u)
            nn.init.zeros_(model.flow.w)
            q, p = model.distribution(features()), model.prior_loc.expand(N, K - 1)
            torch.testing.assert_close(q.loc, p)
        else:
            p = prior.recovered().probs if isinstance(prior, igr.distributions.Relaxation) else prior
            q = model.distribution(features()).recovered().probs
            torch.testing.assert_close(q, p.double().expand(N, K), rtol=0, atol=2e-6)
        assert abs(model(features()).kl.item()) < 1e-5
        assert model.prior().batch_shape == (N,)
        assert model.prior().temperature == model.temperature
        if relaxation != "igr-planar":
            torch.testing.assert_close(model.prior().recovered().probs, p.double().expand(N, K), rtol=0, atol=2e-6)
        z = model.prior().sample((7,))
        torch.testing.assert_close(model.prior().log_prob(z), model.distribution(features()).log_prob(z))


@pytest.mark.parametrize("categories", [2, 5, 10])
@pytest.mark.parametrize("relaxation", EXACT)
def test_starts_near_uniform(relaxation, categories):
    model, h = CategoricalBottleneck(64, 4, categories, relaxation), torch.randn(24, 64)
    entropy = model.distribution(h).recovered().entropy()
    assert entropy.min().item() > 0.95 * math.log(categories)
    assert model(h).kl.max().item() < 0.2 * categories


def test_planar_starts_near_uniform():
    model = CategoricalBottleneck(64, 4, 10, "igr-planar")
    recovered = model.distribution(torch.randn(8, 64)).recovered(num_samples=20_000)
    assert recovered.entropy().min().item() > 0.95 * math.log(10)


@pytest.mark.parametrize("size", [1e3, 1e6, 1e12])
@pytest.mark.parametrize("relaxation", ["igr-i", "igr-sb", "gs"])
def test_large_activations(relaxation, size):
    model = CategoricalBottleneck(H, N, K, relaxation, temperature=0.1)
    h = (size * torch.randn(64, H)).requires_grad_()
    z, kl = model(h)
    (z @ torch.randn(K)).sum().backward()
    assert bool(z.isfinite().all() & kl.isfinite().all())
    assert bool(h.grad.isfinite().all())
    q = model.distribution(h.detach())
    if relaxation != "gs":
        assert q.scale.min().item() >= 1e-3


def test_generator():
    model, h = layer(), features(3)
    one, two = (model(h, generator=torch.Generator().manual_seed(0)).z for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(one, model(h, generator=torch.Generator().manual_seed(1)).z)


def test_learns_a_code():
    """Eight inputs through one variable of eight categories: the code becomes one to one."""
    torch.manual_seed(3)
    x = torch.eye(8)
    encoder = nn.Sequential(nn.Linear(8, 32), nn.Tanh())
    code = CategoricalBottleneck(32, 1, 8, temperature=Exponential(1.0, 0.3, 300), eval_mode="argmax")
    decoder = nn.Linear(8, 8)
    model = nn.ModuleList([encoder, code, decoder])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(400):
        optimizer.zero_grad()
        z, kl = code(encoder(x.repeat(8, 1)))
        loss = nn.functional.cross_entropy(decoder(z.flatten(-2)), torch.arange(8).repeat(8)) + 0.01 * kl.mean()
        loss.backward()
        optimizer.step()
        schedules.step(model)
    model.eval()
    guess = decoder(code(encoder(x)).z.flatten(-2)).argmax(-1)
    assert (guess == torch.arange(8)).sum() >= 7


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"relaxation": "softmax"}, ValueError, "relaxation must be one of 'igr-i', .* got 'softmax'"),
        ({"estimator": "st"}, ValueError, "estimator must be one of .*got 'st'$"),
        ({"estimator": "rloo"}, ValueError, r"give layer\.distribution\(x\) to igr\.estimators\.rloo$"),
        ({"eval_mode": "hard"}, ValueError, "eval_mode must be one of"),
        ({"kl": "exact"}, ValueError, "kl must be one of"),
        ({"estimator": "gumbel_rao"}, ValueError, "gumbel_rao is for gs, got igr-i; st_relaxed has the same mean"),
        ({"relaxation": "igr-planar", "estimator": "reinmax"}, ValueError, "known through samples only"),
        ({"relaxation": "igr-planar", "kl": "discrete"}, ValueError, "known through samples only"),
        ({"relaxation": "igr-planar", "eval_mode": "mean"}, ValueError, "known through samples only"),
        ({"num_categories": 1}, ValueError, "num_categories must be an integer of at least 2, got 1"),
        ({"num_categories": 5.0}, ValueError, "num_categories must be an integer of at least 2, got 5.0"),
        ({"num_variables": 0}, ValueError, "num_variables must be an integer of at least 1, got 0"),
        ({"prior": torch.ones(4) / 4}, ValueError, r"prior must have shape \(5,\) or \(3, 5\), got \(4,\)"),
        ({"prior": Categorical(torch.ones(5))}, TypeError, r"give its probs, or the relaxation that igr\.fit_prior"),
        ({"relaxation": "gs", "prior": Categorical(torch.ones(5))}, TypeError, "got Categorical.*; give its probs$"),
        ({"prior": torch.ones(5)}, ValueError, "positive probabilities that sum to one"),
        ({"prior": torch.tensor([0.5, 0.5, 0, 0, 0])}, ValueError, "forbidden by a mask"),
        ({"prior": igr.GumbelSoftmax(1.0, torch.zeros(5))}, TypeError, "an InvertibleGaussian with no flow"),
        ({"relaxation": "gs", "prior": igr.InvertibleGaussian(torch.zeros(4), 1.0, 1.0)}, TypeError, "a GumbelSoftmax"),
        (
            {"relaxation": "igr-sb", "prior": igr.InvertibleGaussian(torch.zeros(4), 1.0, 1.0)},
            TypeError,
            r"StickBreaking\(\) as its flow",
        ),
        ({"prior": igr.InvertibleGaussian(torch.zeros(2, 4), 1.0, 1.0)}, ValueError, "batch shape"),
        ({"prior": igr.InvertibleGaussian(torch.zeros(4), 1e-4, 1.0)}, ValueError, "must be above 0.001"),
    ],
)
def test_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        CategoricalBottleneck(**{"in_features": H, "num_variables": N, "num_categories": K, **arguments})


def test_refuses_features():
    with pytest.raises(ValueError, match=r"features must have shape \(\*, 8\), got \(4, 7\)"):
        layer()(torch.randn(4, 7).double())
    with pytest.raises(TypeError, match="features must be a floating-point tensor"):
        layer()(torch.ones(4, 8, dtype=torch.long))


def test_repr():
    text = repr(CategoricalBottleneck(H, N, K, "gs", temperature=Learnable(0.5)))
    assert "num_variables=3, num_categories=5, relaxation='gs'" in text
    assert "kl='discrete'" in text
    assert "Learnable(low=0.05, high=5, value=0.5)" in text
