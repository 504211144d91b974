"""The layer of categorical variables: what it returns in every mode, its divergences, masks, and how it is kept."""

import copy
import io
import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.distributions import Categorical, MultivariateNormal, kl_divergence

import igr
from igr import _bottleneck_parts as bottleneck_parts
from igr import estimators, schedules
from igr._bottleneck_parts import as_temperature, masked_gaussian_kl, masked_log_probs
from igr.nn import Bottleneck, CategoricalBottleneck
from igr.schedules import Exponential, Learnable, Linear

RELAXATIONS = ["igr-i", "igr-sb", "igr-planar", "gs"]
EXACT = ["igr-i", "igr-sb", "gs"]
MASKED = ["igr-i", "gs"]
K, N, H = 5, 3, 8


def layer(relaxation="igr-i", spread=1.0, **options):
    """A layer in float64 whose parameters are spread out, as training would do."""
    made = CategoricalBottleneck(H, N, K, relaxation, **options).double()
    with torch.no_grad():
        made.head.weight.add_(spread * torch.randn_like(made.head.weight) / H**0.5)
    return made


def features(*shape, **options):
    return torch.randn(*shape, H, dtype=torch.float64, **options)


def some_mask(*shape):
    mask = torch.rand(*shape, N, K) < 0.6
    mask[..., 1] = True
    return mask


def is_one_hot(z):
    return bool((((z == 0) | (z == 1)).all(-1) & (z.sum(-1) == 1)).all())


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


# ---- estimators


def exact_gradient(model, h, values):
    """The derivative of E f(D) by the biases, for one variable and f(e_k) given, from the categories' probabilities."""
    log_p = model.distribution(h).recovered().logits.log_softmax(-1)
    return torch.autograd.grad((log_p.exp() * values).sum(), model.head.bias)[0]


@pytest.mark.parametrize(("estimator", "power"), [("straight_through", 1), ("reinmax", 1), ("reinmax", 2)])
@pytest.mark.parametrize("relaxation", MASKED)
def test_gradients_by_probabilities_are_exact_for(relaxation, estimator, power):
    """Linear functions of the sample, and by ReinMax quadratic ones."""
    model = CategoricalBottleneck(H, 1, 4, relaxation, estimator=estimator).double()
    nn.init.normal_(model.head.bias)
    h, v, n = features(1), torch.randn(4, dtype=torch.float64), 2_000
    expected = exact_gradient(model, h, v**power)
    means = []
    for _ in range(20):
        z = model(h.expand(n, H)).z
        assert is_one_hot(z)
        means.append(torch.autograd.grad(((z @ v) ** power).sum() / n, model.head.bias)[0])
    found = torch.stack(means)
    error = found.std(0) / math.sqrt(20)
    assert bool(((found.mean(0) - expected).abs() < 5 * error + 1e-12).all())
    assert bool((error < 0.05 * expected.abs().max()).all())  # so that a wrong one is seen


@pytest.mark.parametrize(
    ("relaxation", "estimator"),
    [
        ("gs", "gumbel_rao"),
        ("igr-i", "igr_rao"),
        ("gs", "gapped_straight_through"),
        ("igr-i", "gapped_straight_through"),
    ],
)
def test_gradients_are_those_of_the_estimator(relaxation, estimator):
    model, h = layer(relaxation, estimator=estimator), features(6, requires_grad=True)
    noise = torch.Generator()
    (found,) = torch.autograd.grad(model(h, generator=noise.manual_seed(0)).z.cumsum(-1).square().sum(), h)
    q = model.distribution(h)
    if estimator.startswith("gapped"):
        q = torch.distributions.OneHotCategorical(logits=q.recovered().logits)
    surrogate = getattr(estimators, estimator)(
        q, lambda z: z.cumsum(-1).square().sum((-2, -1)), generator=noise.manual_seed(0)
    ).surrogate
    torch.testing.assert_close(found, torch.autograd.grad(surrogate.sum(), h)[0])


def test_sticks_have_estimators_by_probabilities():
    model, h = CategoricalBottleneck(H, 1, 3, "igr-sb", estimator="reinmax"), torch.randn(2, H)
    z, kl = model(h)
    (z.cumsum(-1).square().sum() + kl.sum()).backward()
    assert is_one_hot(z)
    assert model.kl == "discrete"
    assert bool(model.head.weight.grad.isfinite().all() & model.head.weight.grad.any())


@pytest.mark.parametrize(
    ("relaxation", "estimator", "kl"),
    [
        ("igr-i", "reparameterized", "continuous"),
        ("igr-i", "st_relaxed", "continuous"),
        ("igr-i", "reinmax", "discrete"),
        ("igr-sb", "straight_through", "discrete"),
        ("igr-planar", "st_relaxed", "continuous"),
        ("gs", "reparameterized", "discrete"),
    ],
)
def test_default_divergence(relaxation, estimator, kl):
    assert CategoricalBottleneck(H, 1, 3, relaxation, estimator=estimator).kl == kl


# ---- masks


@pytest.mark.parametrize(("relaxation", "kl"), [("igr-i", "continuous"), ("igr-i", "discrete"), ("gs", "discrete")])
def test_masks_forbid_in_all_modes(relaxation, kl):
    h = features(40, requires_grad=True)
    for mask in (some_mask(40), some_mask(), some_mask(40)[:, :1]):
        forbidden = ~mask.expand(40, N, K)
        for estimator in ("reparameterized", "st_relaxed", "reinmax", "gapped_straight_through"):
            model = layer(relaxation, estimator=estimator, kl=kl, temperature=Learnable(0.3))
            z, divergence = model(h, mask)
            assert bool((z[forbidden] == 0).all())
            (z.square().sum() + divergence.sum()).backward()
            assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in (h, *model.parameters()))
        for mode in ("sample", "argmax", "mean"):
            model = layer(relaxation, eval_mode=mode, kl=kl).eval()
            z, divergence = model(h, mask)
            assert bool((z[forbidden] == 0).all())
            torch.testing.assert_close(z.sum(-1), torch.ones(40, N, dtype=torch.float64))
            assert bool(divergence.isfinite().all() & (divergence > -1e-9).all())


@pytest.mark.parametrize("relaxation", MASKED)
def test_mean_under_a_mask_matches_samples(relaxation):
    h, mask = features(8), some_mask(8)
    model = layer(relaxation, eval_mode="mean").eval()
    z, kl = model(h, mask)
    model.eval_mode = "sample"
    draws = model(h.expand(4000, 8, H), mask).z.mean(0)
    assert bool(((draws - z).abs() < 5 * (z * (1 - z) / 4000).sqrt() + 2e-3).all())
    if relaxation == "gs":  # the divergence from the uniform distribution on what is allowed
        p0 = mask / mask.sum(-1, keepdim=True)
        expected = stats.entropy(z.detach().numpy(), p0.numpy(), axis=-1).sum(-1)
        np.testing.assert_allclose(kl.detach(), expected, rtol=1e-9)


@pytest.mark.parametrize(("mu", "sigma"), [((0.5, -1.0, 2.0), (1.0, 3.0, 0.1)), ((-0.5, -0.8, -0.6), (1.0, 1.0, 1.1))])
def test_masked_probabilities_match_quadrature(mu, sigma):
    """P(k is the largest of the allowed) by scipy, with and without the last category, also for scales far apart."""
    mu, sigma = torch.tensor([mu, sigma], dtype=torch.float64)

    def win(k, allowed):
        others = [j for j in allowed if j != k]

        def density(t):
            return stats.norm.pdf(t, mu[k], sigma[k]) * math.prod(stats.norm.cdf(t, mu[j], sigma[j]) for j in others)

        return integrate.quad(density, *sorted((mu[k] - 12 * sigma[k], mu[k] + 12 * sigma[k])), limit=500)[0]

    for mask in ([1, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 0], [0, 1, 0, 0]):
        found = masked_log_probs(mu, sigma, torch.tensor(mask).bool()).exp().tolist()
        allowed = [k for k in range(3) if mask[k]]
        expected = [win(k, allowed) if k in allowed else 0.0 for k in range(3)]
        np.testing.assert_allclose(found, [*expected, 0.0], atol=1e-6)
    found = masked_log_probs(mu, sigma, torch.tensor([1, 0, 0, 1]).bool()).exp().tolist()
    np.testing.assert_allclose(found, [stats.norm.cdf(mu[0]), 0, 0, stats.norm.cdf(-mu[0])], atol=1e-9)
    single = masked_log_probs(mu.float(), sigma.float(), torch.tensor([1, 1, 1, 0]).bool()).exp().tolist()
    np.testing.assert_allclose(single, [*(win(k, [0, 1, 2]) for k in range(3)), 0.0], atol=5e-6)


def test_masked_gaussian_divergence_is_that_of_differences():
    """The last forbidden: scores of the allowed, less the first of them, are normal with a full covariance matrix."""
    mu, mu0 = torch.randn(2, 6).double()
    sigma, sigma0 = torch.rand(2, 6).double() + 0.2
    for mask in ([1, 1, 1, 1, 1, 1, 0], [0, 1, 0, 1, 1, 0, 0], [0, 0, 1, 0, 0, 1, 0], [1, 0, 0, 1, 1, 1, 1]):
        allowed = [k for k in range(6) if mask[k]]
        differences = torch.eye(6).double()[allowed]
        if not mask[-1]:
            differences = differences[1:] - differences[:1]

        def normal(loc, scale, A=differences):
            return MultivariateNormal(A @ loc, A @ scale.square().diag() @ A.T)

        expected = kl_divergence(normal(mu, sigma), normal(mu0, sigma0))
        found = masked_gaussian_kl(mu, sigma, mu0, sigma0, torch.tensor(mask).bool())
        torch.testing.assert_close(found, expected)
    only_one = torch.tensor([0, 0, 1, 0, 0, 0, 0]).bool()
    assert masked_gaussian_kl(mu, sigma, mu0, sigma0, only_one).abs() < 1e-12
    two = masked_gaussian_kl(mu[:1], sigma[:1], mu0[:1], sigma0[:1], torch.tensor([True, False]))
    assert two.abs() < 1e-12


def test_masked_layer_divergence_uses_rows():
    model, h, mask = layer(), features(12), some_mask(12)
    q = model.distribution(h)
    kl = model(h, mask).kl
    mu0, sigma0 = model.prior_loc, model.prior_scale
    rows = [
        sum(masked_gaussian_kl(q.loc[i, n], q.scale[i, n], mu0, sigma0, mask[i, n]) for n in range(N))
        for i in range(12)
    ]
    torch.testing.assert_close(kl, torch.stack(rows))
    torch.testing.assert_close(model(h, torch.ones(K, dtype=torch.bool)).kl, model(h).kl)


@pytest.mark.parametrize("relaxation", MASKED)
def test_masked_distribution(relaxation):
    model, h, mask = layer(relaxation, eval_mode="mean").eval(), features(12), some_mask(12)
    mask[..., -1] = True
    q = model.distribution(h, mask)
    torch.testing.assert_close(q.recovered().probs, model(h, mask).z, rtol=0, atol=1e-7)
    for sample in (q.rsample((50,)), q.hard_rsample((50,))):
        assert bool((sample[:, ~mask] == 0).all())
    estimators.reinmax(q, lambda z: z[..., 1].sum(-1)).surrogate.sum().backward()
    assert bool(model.head.weight.grad.isfinite().all())


def test_masks_that_are_refused():
    h, mask = features(4), some_mask(4)
    for relaxation in ("igr-sb", "igr-planar"):
        with pytest.raises(NotImplementedError, match=f"{relaxation} takes no mask"):
            layer(relaxation)(h, mask)
        with pytest.raises(NotImplementedError, match="takes no mask"):
            layer(relaxation).distribution(h, mask)
    with pytest.raises(NotImplementedError, match="no continuous divergence of gs under a mask"):
        layer("gs", kl="continuous")(h, mask)
    mask[0, 0, -1] = False
    with pytest.raises(NotImplementedError, match="put one that is always allowed last"):
        layer().distribution(h, mask)
    with pytest.raises(NotImplementedError, match="estimator takes any mask, such as 'st_relaxed'"):
        layer(estimator="igr_rao")(h, mask)
    assert bool((layer(estimator="st_relaxed")(h, mask).z[~mask] == 0).all())
    with pytest.raises(ValueError, match="forbids every category"):
        layer()(h, torch.zeros_like(mask))
    with pytest.raises(TypeError, match="boolean"):
        layer("gs")(h, mask.double())
    with pytest.raises(ValueError, match=r"must broadcast to \(4, 3, 5\)"):
        layer()(h, some_mask(2, 4))


# ---- estimators


@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_every_estimator_takes_the_distribution(relaxation):
    model, h = layer(relaxation), features(4)
    v = torch.randn(N, K, dtype=torch.float64)

    def f(z):
        return (z * v).sum((-1, -2)).square()

    any_flow = ["reparameterized", "sticking_the_landing", "st_relaxed"]
    known = ["straight_through", "gapped_straight_through", "reinmax", "score_function"]
    several = ["rloo", "vimco", "uspg"]
    special = {"igr-i": ["igr_rao", "relax", "rebar"], "gs": ["gumbel_rao", "relax", "rebar"]}.get(relaxation, [])
    for name in any_flow + ([] if relaxation == "igr-planar" else known + several + special):
        model.zero_grad()
        q = model.distribution(h)
        options = {"num_samples": 2} if name in several else {}
        if name == "sticking_the_landing":
            options["prior"] = q.expand(q.batch_shape)
        value, surrogate = getattr(estimators, name)(q, f, **options)
        assert value.shape == (4,)
        surrogate.sum().backward()
        assert bool((model.head.weight.grad != 0).any()), name


# ---- temperatures and state


def test_schedules():
    model = nn.Sequential(nn.Linear(4, H), CategoricalBottleneck(H, N, K, temperature=Exponential(1.0, 0.1, 10)))
    other = CategoricalBottleneck(H, N, K, temperature=0.3)
    assert other.temperature.item() == np.float32(0.3)
    for _ in range(5):
        schedules.step(model)
    model[1].step()
    assert model[1].temperature.item() == pytest.approx(10**-0.6)
    assert model[1].distribution(torch.randn(2, H)).temperature is model[1].temperature
    other.step()
    assert other.temperature.item() == np.float32(0.3)
    for bad in (0.0, -1.0):
        with pytest.raises(ValueError, match="must be positive"):
            CategoricalBottleneck(H, N, K, temperature=bad)
    with pytest.raises(TypeError, match=r"temperature must be a positive number, a schedule .* got 'low'"):
        CategoricalBottleneck(H, N, K, temperature="low")


@pytest.mark.parametrize("categories", [2, 10, 300])
@pytest.mark.parametrize("relaxation", EXACT)
def test_default_temperature_is_as_far_from_the_vertices_for_all(relaxation, categories):
    tau = as_temperature(None, relaxation, categories)().item()
    assert igr.measure_temperature(categories, relaxation, tau, seed=1).distance == pytest.approx(0.2, abs=0.02)
    if relaxation == "igr-i":
        assert as_temperature(None, "igr-planar", categories)().item() == tau


def test_temperature_may_be_assigned():
    model = CategoricalBottleneck(H, N, K, temperature=torch.tensor(0.7))
    assert model.temperature.item() == np.float32(0.7)
    model.temperature = 0.3
    assert model.temperature.item() == np.float32(0.3)
    model.temperature = Linear(1.0, 0.5, 1)
    model.step()
    assert model.temperature.item() == 0.5
    model.temperature = learned = Learnable(0.4)
    assert model.tau is learned
    assert [name for name, _ in model.named_parameters()] == ["tau.logit", "head.weight", "head.bias"]
    with pytest.raises(TypeError, match=r"Learnable\(0.5\) for one that is trained, got a "):
        model.temperature = nn.Parameter(torch.tensor(0.5))
    with pytest.raises(ValueError, match="temperature must be positive"):
        model.temperature = -1.0
    assert model.tau is learned


def test_the_state_of_another_relaxation_is_refused():
    model = CategoricalBottleneck(H, N, K, "igr-i")
    with pytest.raises(ValueError, match="with relaxation='igr-i', and this one has 'igr-sb'; make one with 'igr-i'"):
        CategoricalBottleneck(H, N, K, "igr-sb").load_state_dict(model.state_dict())


def test_temperature_is_used():
    """A lower temperature is nearer to the vertices, in every relaxation."""
    h = features(200)
    for relaxation in RELAXATIONS:
        model = layer(relaxation, temperature=Linear(2.0, 0.01, 1))
        warm = model(h).z.amax(-1).mean()
        model.step()
        assert model(h).z.amax(-1).mean() > warm + 0.1


@pytest.mark.parametrize("relaxation", RELAXATIONS)
@pytest.mark.parametrize("temperature", [0.5, Exponential(1.0, 0.1, 10), Learnable(0.5)], ids=["float", "exp", "learn"])
def test_state(relaxation, temperature):
    model = layer(relaxation, temperature=temperature, prior=torch.tensor([0.1, 0.2, 0.3, 0.25, 0.15])).float()
    model.step()
    if isinstance(temperature, Learnable):
        nn.init.constant_(model.tau.logit, 0.3)
    fresh = CategoricalBottleneck(H, N, K, relaxation, temperature=copy.deepcopy(temperature))
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    h = torch.randn(4, H)
    for other in (fresh, copy.deepcopy(model), copy.deepcopy(model).double().float()):
        for train in (True, False):
            a, b = (m.train(train)(h, generator=torch.Generator().manual_seed(0)) for m in (model, other))
            assert torch.equal(a.z, b.z)
            assert torch.equal(a.kl, b.kl)
    assert torch.equal(model.temperature, fresh.temperature)
    if not isinstance(temperature, Learnable):
        assert fresh.tau.count.item() == 1


def test_priors_are_not_shared():
    """Also where they have the dtype in which they were found, and in which they are kept for the next layer."""
    torch.set_default_dtype(torch.float64)
    try:
        one, given = CategoricalBottleneck(H, N, K), igr.InvertibleGaussian(torch.randn(K - 1), 1.0, 0.5)
        before, loc = one.prior_loc.clone(), given.loc.clone()
        for model in (one, CategoricalBottleneck(H, N, K, prior=given)):
            model.load_state_dict({k: v + v.is_floating_point() for k, v in model.state_dict().items()})
        assert torch.equal(CategoricalBottleneck(H, N, K).prior_loc, before)
        assert torch.equal(given.loc, loc)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_dtypes(relaxation, dtype):
    model = CategoricalBottleneck(H, N, K, relaxation).to(dtype)
    for train in (True, False):
        z, kl = model.train(train)(torch.randn(4, H, dtype=dtype))
        assert z.dtype == dtype
        assert kl.dtype == torch.promote_types(dtype, torch.float32)


@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_autocast(relaxation):
    model, h = CategoricalBottleneck(H, N, K, relaxation, estimator="st_relaxed"), torch.randn(64, H)
    with torch.autocast("cpu", torch.bfloat16):
        z, kl = model(h)
        model.eval_mode = "sample" if relaxation == "igr-planar" else "mean"
        probs = model.eval()(h).z
    assert z.dtype == probs.dtype == torch.bfloat16
    assert kl.dtype == torch.float32
    assert is_one_hot(z)
    (z.float().square().sum() + kl.sum()).backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())
    if relaxation != "igr-planar":
        torch.testing.assert_close(probs.float(), model(h).z, rtol=0, atol=0.02)


@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_compiles(relaxation):
    torch._dynamo.reset()
    model = CategoricalBottleneck(H, N, K, relaxation, temperature=Linear(1.0, 0.5, 10))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=False)
    h, sizes = torch.randn(4, H), []
    for _ in range(3):
        torch.manual_seed(0)
        z, kl = compiled(h)
        (z.square().sum() + kl.sum()).backward()
        torch.manual_seed(0)
        expected = model(h)
        torch.testing.assert_close(z, expected.z, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(kl, expected.kl, rtol=1e-4, atol=1e-5)
        model.step()
        sizes.append(z.amax(-1).mean().item())
    assert sizes == sorted(sizes)
    if relaxation in MASKED:
        z, _ = compiled(h, torch.tensor([True, True, True, False, True]))
        assert bool((z[..., 3] == 0).all())


def test_compiled_once_as_the_temperature_changes():
    torch._dynamo.reset()
    count = CompileCounter()
    model = CategoricalBottleneck(H, N, K, temperature=Linear(1.0, 0.5, 10))
    compiled = torch.compile(model, fullgraph=True, backend=count)
    for _ in range(4):
        compiled(torch.zeros(4, H))
        model.step()
    assert count.frame_count == 1


@pytest.mark.parametrize(
    ("relaxation", "estimator"), [("igr-i", "reparameterized"), ("igr-sb", "st_relaxed"), ("gs", "reinmax")]
)
def test_compiled_for_batches_of_any_size(relaxation, estimator):
    """As of the last batch of an epoch."""
    torch._dynamo.reset()
    count = CompileCounter()
    compiled = torch.compile(CategoricalBottleneck(H, N, K, relaxation, estimator=estimator), backend=count)
    for size in (16, 7, 9, 12):
        assert compiled(torch.zeros(size, H)).z.shape == (size, N, K)
    assert count.frame_count == 2  # the size of the first, and then any


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


@pytest.mark.parametrize("relaxation", ["igr-i", "igr-sb", "igr-planar", "gs"])
def test_made_where_nothing_is_trained(relaxation):
    """What is kept for layers to come may be part of their gradients."""
    bottleneck_parts._uniform_locations.cache_clear()
    bottleneck_parts.default_temperature.cache_clear()
    with torch.inference_mode():
        served = CategoricalBottleneck(H, N, K, relaxation).eval()
        assert is_one_hot(served(torch.randn(4, H)).z)
    trained = CategoricalBottleneck(H, N, K, relaxation)
    trained.load_state_dict(served.state_dict())
    assert trained.temperature == served.temperature
    z, kl = trained(torch.randn(4, H))
    (z.square().sum() + kl.sum()).backward()
    assert trained.head.weight.grad.isfinite().all()


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


@pytest.mark.parametrize("relaxation", ["igr-i", "igr-planar", "igr-sb", "gs"])
def test_made_on_the_meta_device_and_loaded(relaxation):
    """As large models are: shapes first, numbers from a file."""
    with torch.device("meta"):
        layer = CategoricalBottleneck(8, 3, 5, relaxation)
    assert all(each.is_meta for each in (*layer.parameters(), *layer.buffers()))
    assert "count=?" in repr(layer)
    loaded = CategoricalBottleneck(8, 3, 5, relaxation)
    layer.load_state_dict(loaded.state_dict(), assign=True)
    h, outputs = torch.randn(4, 8), []
    for each in (layer, loaded):
        torch.manual_seed(0)
        outputs.append(each(h))
    assert torch.equal(outputs[0].z, outputs[1].z)
    assert torch.equal(outputs[0].kl, outputs[1].kl)


def test_shapes_on_the_meta_device():
    with torch.device("meta"):
        layer = CategoricalBottleneck(8, 3, 5, kl="discrete", temperature=0.5)
        mask = torch.ones(3, 5, dtype=torch.bool)
        z, kl = layer(torch.zeros(4, 8), mask=mask)
        assert (z.shape, kl.shape) == ((4, 3, 5), (4,))
        with pytest.raises(ValueError, match="on the meta device, and has no probabilities to fit"):
            CategoricalBottleneck(8, 3, 5, prior=torch.full((5,), 0.2))
