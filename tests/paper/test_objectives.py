import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import Bernoulli, Categorical, Normal, kl_divergence

import igr
from igr.paper import objectives
from igr.paper.likelihood import BINARY, bernoulli_log_prob, gaussian_log_prob
from igr.paper.models import SCALE_FLOOR, EnsembleVae
from igr.paper.objectives import objective, posterior, relaxed_terms
from igr.paper.priors import prior_of
from igr.paper.specs import SPECS

METHODS = ("igr-i", "igr-sb", "igr-planar", "gs")
E, B, N, K, D, S = 3, 4, 3, 5, 8, 6


def setting(method, seed=0, **changes):
    """Members with weights of some size, images, temperatures, a prior and noise; all float64."""
    spec = SPECS[f"table1/mnist/linear/{method}"]
    spec = replace(spec, **changes)
    torch.manual_seed(seed)
    vae = EnsembleVae(spec, range(E), num_variables=N, num_categories=K, num_pixels=D, dtype=torch.float64)
    with torch.no_grad():
        for p in vae.parameters():
            p.normal_(std=0.5)
    x = (torch.rand(E, B, D) < 0.5).double()
    tau = torch.tensor([0.3, 0.5, 1.0]).double().view(-1, 1, 1, 1)
    prior = prior_of(spec, [0.4, 0.5, 0.9] if method == "gs" else [None] * E, K, torch.float64, "cpu")
    return vae, x, tau, prior


def noise_for(method, num_samples=S):
    shape = (num_samples, E, B, N, K if method == "gs" else K - 1)
    eps = torch.randn(shape, dtype=torch.float64)
    return -torch.empty_like(eps).exponential_().log() if method == "gs" else eps


def prior_relaxation(vae, tau, prior):
    """The prior as a relaxation of the library, with densities of its own."""
    if vae.cell.method == "gs":
        return igr.GumbelSoftmax(prior.temperature, torch.zeros(E, 1, N, K).double())
    flow = igr.StickBreaking(vae.cell.leftover) if vae.cell.method == "igr-sb" else None
    loc = prior.loc.expand(E, 1, N, K - 1)
    if vae.cell.onto == "vertex":
        return igr.InvertibleReparameterization(Normal(loc, prior.scale), igr.VertexInterpolation(tau))
    return igr.InvertibleGaussian(loc, prior.scale, tau, flow=flow)


@pytest.mark.parametrize(("method", "onto"), [*((each, "softmax++") for each in METHODS), ("igr-sb", "vertex")])
@pytest.mark.parametrize("landing", [False, True])
def test_log_ratio_is_that_of_the_librarys_densities(method, onto, landing):
    vae, x, tau, prior = setting(method, landing=landing, onto=onto)
    noise = noise_for(method)
    parameters = vae.encode(x)
    sample = objectives._draw(vae.cell, parameters, vae.flow, tau, noise)
    found = objectives.log_ratio(vae.cell, parameters, tau, prior, noise, sample)
    q, p = posterior(vae, x, tau), prior_relaxation(vae, tau, prior)
    log_z = sample.z.log()
    expected = (q.log_prob_from_log(log_z) - p.log_prob_from_log(log_z)).sum(-1)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


def test_planar_maps_come_between_the_gaussian_and_the_softmax():
    vae, x, tau, _ = setting("igr-planar")
    noise, (mu, xi) = noise_for("igr-planar"), vae.encode(x)
    y = mu + xi.exp() * noise
    for u, w, b in vae.flow:
        y = igr.Planar(u, w, b)(y)
    found = objectives._draw(vae.cell, (mu, xi), vae.flow, tau, noise)
    torch.testing.assert_close(found.scores, y)
    torch.testing.assert_close(found.z, igr.functional.softmaxpp(y, tau))


def test_a_prior_with_a_flow_of_its_own_has_its_density():
    vae, x, tau, prior = setting("igr-planar", prior="flow")
    assert len(prior.flow) == 2
    noise, parameters = noise_for("igr-planar"), vae.encode(x)
    sample = objectives._draw(vae.cell, parameters, vae.flow, tau, noise)
    found = objectives.log_ratio(vae.cell, parameters, tau, prior, noise, sample)
    p = igr.InvertibleGaussian(prior.loc.expand(E, 1, N, K - 1), prior.scale, tau, flow=list(prior.flow))
    log_z = sample.z.log()
    expected = (posterior(vae, x, tau).log_prob_from_log(log_z) - p.log_prob_from_log(log_z)).sum(-1)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("method", ["igr-i", "igr-sb"])
def test_closed_form_is_the_mean_of_the_sampled_ratio(method):
    vae, x, tau, prior = setting(method)
    noise, parameters = noise_for(method, 20_000), vae.encode(x)
    sample = objectives._draw(vae.cell, parameters, vae.flow, tau, noise)
    ratio = objectives.log_ratio(vae.cell, parameters, tau, prior, noise, sample)
    closed = objectives.closed_form_kl(vae.cell.method, parameters, prior)
    z = (ratio.mean(0) - closed) / (ratio.std(0) / len(ratio) ** 0.5)
    assert z.abs().max() < 5


@pytest.mark.parametrize("method", METHODS)
def test_sticking_the_landing_keeps_the_mean_of_the_gradient(method):
    """Every encoder gradient, averaged over noise, with and without; other noise for each."""

    def gradients(landing, count=400, size=50):
        torch.manual_seed(landing)
        vae, x, tau, prior = setting(method, landing=landing, protocol="published" if method != "igr-sb" else "honest")
        found = []
        for _ in range(count):
            vae.zero_grad()
            noise = noise_for(method, size)
            parameters = vae.encode(x)
            sample = objectives._draw(vae.cell, parameters, vae.flow, tau, noise)
            ratio = objectives.log_ratio(vae.cell, parameters, tau, prior, noise, sample)
            (vae.log_px(x, sample.z) - ratio).mean(0).sum().backward()
            found.append(vae.biases[0].grad.flatten().clone())
        return torch.stack(found)

    plain, stuck = gradients(False), gradients(True)
    assert not torch.allclose(plain[0], stuck[0])
    error = ((plain.var(0) + stuck.var(0)) / len(plain)).sqrt()
    z = (plain.mean(0) - stuck.mean(0)) / error
    assert z.abs().max() < 5


def test_sticking_the_landing_has_no_variance_where_posterior_and_prior_agree():
    """Its defining property (Roeder et al., 2017): the gradient of the KL term vanishes sample by sample."""
    vae, _, tau, prior = setting("igr-i", landing=True)
    mu = prior.loc.expand(E, B, N, K - 1).clone().requires_grad_()
    xi = prior.scale.log().expand(E, B, N, K - 1).clone().requires_grad_()
    noise = noise_for("igr-i")
    sample = objectives._draw(vae.cell, (mu, xi), vae.flow, tau, noise)
    objectives.log_ratio(vae.cell, (mu, xi), tau, prior, noise, sample).sum().backward()
    assert mu.grad.abs().max() < 1e-12
    assert xi.grad.abs().max() < 1e-12


def test_objectives_are_what_they_are_called():
    vae, x, tau, prior = setting("gs")
    noise = noise_for("gs")
    log_px, ratio = relaxed_terms(vae, x, tau, prior, noise)
    log_w = log_px - ratio
    torch.testing.assert_close(objective(vae, x, tau, prior, noise), log_w.mean(0))
    vae.cell = replace(vae.cell, bound="iwae", num_samples=S)
    expected = torch.from_numpy(np.log(np.exp(log_w.detach().numpy()).mean(0)))
    torch.testing.assert_close(objective(vae, x, tau, prior, noise).detach(), expected)


@pytest.mark.parametrize("method", ["igr-i", "igr-sb"])
def test_only_the_honest_evidence_bound_has_a_closed_form(method):
    vae, x, tau, prior = setting(method)
    noise, (mu, xi) = noise_for(method), vae.encode(x)
    log_px, _ = relaxed_terms(vae, x, tau, prior, noise)
    kl = kl_divergence(Normal(mu, xi.exp()), Normal(prior.loc, prior.scale)).sum((-2, -1))
    torch.testing.assert_close(objective(vae, x, tau, prior, noise), log_px.mean(0) - kl)
    for changes in ({"bound": "iwae", "num_samples": S}, {"landing": True}, {"protocol": "published"}):
        vae, *_ = setting(method, **changes)
        z = objectives._draw(vae.cell, vae.encode(x), vae.flow, tau, noise).z
        q, p = posterior(vae, x, tau), prior_relaxation(vae, tau, prior)
        log_w = vae.log_px(x, z) - (q.log_prob_from_log(z.log()) - p.log_prob_from_log(z.log())).sum(-1)
        expected = log_w.logsumexp(0) - math.log(S) if "bound" in changes else log_w.mean(0)
        torch.testing.assert_close(objective(vae, x, tau, prior, noise), expected, rtol=1e-6, atol=1e-6)


def test_discrete_objective_of_gs_is_equation_8():
    vae, x, tau, prior = setting("gs", objective="discrete", prior_temperatures=())
    noise, (logits,) = noise_for("gs"), vae.encode(x)
    log_px, _ = relaxed_terms(vae, x, tau, prior, noise)
    kl = kl_divergence(Categorical(logits=logits), Categorical(logits=torch.zeros(K).double())).sum(-1)
    torch.testing.assert_close(objective(vae, x, tau, prior, noise), log_px.mean(0) - kl)


def test_discrete_objective_of_igr_is_the_divergence_of_hard_samples():
    vae, x, tau, _ = setting("igr-i", objective="discrete")
    found = objectives.discrete_kl(vae.cell.method, vae.encode(x))
    counted = igr.monte_carlo_recovered(posterior(vae, x, tau), 400_000).estimate
    expected = (torch.special.xlogy(counted, counted * K)).sum((-2, -1))
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-3)


def test_bounded_parameters_are_free_ones_where_those_are_small():
    (vae, x, *_), options = setting("igr-i"), {"objective": "discrete", "forward": "hard"}
    bounded = setting("igr-i", parameters="bounded", **options)[0]
    most = torch.tensor([5.0, 1.5]).double().view(2, 1, 1, 1, 1)
    for size in (1e-4, 1e8):  # one after the other
        with torch.no_grad():
            for p in (vae.weights[0], vae.biases[0], bounded.weights[0], bounded.biases[0]):
                p.mul_(size)
        said, found = torch.stack(vae.encode(x)), torch.stack(bounded.encode(x))
        assert (found.abs() <= most).all()
        assert (found.sign() == said.sign()).all()
        small, large = said.abs() < 0.01, said.abs() > 10 * most
        torch.testing.assert_close(found[small], said[small], rtol=1e-4, atol=0)
        torch.testing.assert_close(found[large].abs(), most.expand_as(found)[large], rtol=1e-6, atol=0)
        assert (small if size < 1 else large).any()


@pytest.mark.parametrize("method", ["igr-i", "gs"])
def test_hard_forward_decodes_one_hot_vectors_with_gradients_of_relaxed_ones(method, monkeypatch):
    vae, x, tau, prior = setting(method, objective="discrete", forward="hard", prior_temperatures=())
    noise, seen = noise_for(method), []
    decode = vae.decode
    monkeypatch.setattr(vae, "decode", lambda z: (seen.append(z), decode(z))[1])
    objective(vae, x, tau, prior, noise).sum().backward()
    relaxed = objectives._draw(vae.cell, vae.encode(x), vae.flow, tau, noise).z
    assert torch.equal(seen[0].detach(), torch.nn.functional.one_hot(relaxed.argmax(-1), K).double())
    assert vae.biases[0].grad.abs().min() > 0


@pytest.mark.parametrize("protocol", ["honest", "published"])
@pytest.mark.parametrize("method", ["igr-i", "igr-sb"])
def test_priors_are_uniform(method, protocol):
    spec = replace(SPECS[f"table1/mnist/linear/{method}"], protocol=protocol)
    prior = prior_of(spec, [None], 10, torch.float64, "cpu")
    flow = igr.StickBreaking(leftover=protocol == "honest") if method == "igr-sb" else None
    probs = igr.InvertibleGaussian(prior.loc, prior.scale, 0.1, flow=flow).recovered().probs
    if protocol == "honest":
        torch.testing.assert_close(probs, torch.full((10,), 0.1).double(), rtol=0, atol=1e-6)
    elif method == "igr-sb":  # as published, the last category is never reached
        torch.testing.assert_close(probs, torch.tensor([1 / 9] * 9 + [0.0]).double(), rtol=0, atol=0.01)
    else:
        torch.testing.assert_close(probs, torch.full((10,), 0.1).double(), rtol=0, atol=0.015)


def test_a_fitted_flow_prior_is_close_to_uniform():
    spec = SPECS["beyond/mnist/linear/igr-planar+flow-prior"]
    prior = prior_of(spec, [None], 10, torch.float64, "cpu")
    q = igr.InvertibleGaussian(prior.loc, prior.scale, 0.1, flow=list(prior.flow))
    probs, error = igr.monte_carlo_recovered(q, 200_000)
    assert (probs - 0.1).abs().max() < 0.006 + 5 * error.max()


def test_published_igr_sb_has_no_leftover_stick():
    honest, x, tau, _ = setting("igr-sb")
    published = setting("igr-sb", protocol="published")[0]
    assert posterior(honest, x, tau).flow.leftover
    assert not posterior(published, x, tau).flow.leftover


def test_log_softmax_is_that_of_torch_at_any_size():
    x = 1_000 * torch.randn(6, 10).requires_grad_()
    weights = torch.randn(6, 10)
    found, expected = objectives.log_softmax(x), x.log_softmax(-1)
    torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad(each, x, weights)[0] for each in (found, expected))
    torch.testing.assert_close(*gradients)


def test_likelihoods_are_those_of_torch():
    x, logits = (torch.rand(4, 8) < 0.5).double(), 30 * torch.randn(3, 4, 8).double()
    torch.testing.assert_close(bernoulli_log_prob(x, logits), Bernoulli(logits=logits).log_prob(x).sum(-1))
    mean, scale = torch.randn(3, 4, 8).double(), torch.rand(3, 4, 8).double() + 0.1
    torch.testing.assert_close(gaussian_log_prob(x, mean, scale), Normal(mean, scale).log_prob(x).sum(-1))
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda each: bernoulli_log_prob(x, each), (logits / 10,))
    compiled = torch.compile(bernoulli_log_prob, backend="aot_eager")
    torch.testing.assert_close(compiled(x, logits), bernoulli_log_prob(x, logits))
    torch.testing.assert_close(BINARY.mean(logits), Bernoulli(logits=logits).mean)


@pytest.mark.parametrize("protocol", ["honest", "published"])
def test_gaussian_decoder(protocol):
    spec = replace(SPECS["table1/fmnist/linear/igr-i"], protocol=protocol)
    vae = EnsembleVae(spec, range(E), num_variables=N, num_categories=K, num_pixels=D, dtype=torch.float64)
    z = torch.nn.functional.one_hot(torch.randint(K, (S, E, B, N)), K).double()
    x, out = torch.rand(E, B, D).double(), vae.decode(z)
    assert out.shape == (S, E, B, 2 * D)
    if protocol == "published":
        out = torch.where(out > 0, out, out.exp() - 1)
    mean, raw = 1 / (1 + (-out[..., :D]).exp()), (1 + out[..., D:].exp()).log()
    scale = raw + (SCALE_FLOOR if protocol == "honest" else 1e-6)
    torch.testing.assert_close(vae.log_px(x, z), Normal(mean, scale).log_prob(x).sum(-1))
    torch.testing.assert_close(vae.mean_image(z), mean)


def test_decoding_is_that_of_each_member():
    vae, x, _, _ = setting("igr-i")
    z = torch.rand(S, E, B, N, K).double()
    for e in range(E):
        expected = z[:, e].flatten(-2) @ vae.weights[1][e] + vae.biases[1][e]
        torch.testing.assert_close(vae.decode(z)[:, e], expected)
    mu, xi = vae.encode(x)
    flat = x[1] @ vae.weights[0][1] + vae.biases[0][1]
    torch.testing.assert_close(torch.cat([mu[1].flatten(-2), xi[1].flatten(-2)], -1), flat)
    assert math.isclose(vae.subset([2]).encode(x[2:])[0].sum().item(), mu[2].sum().item())
