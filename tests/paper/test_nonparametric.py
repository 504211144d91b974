"""The formulas of the mixture, against integration in one dimension and transcriptions in NumPy."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import scipy.special as sp
import scipy.stats
import torch

from igr.paper.nonparametric import bounds
from igr.paper.nonparametric.bounds import Noise, draw_noise, joint_bound, published_objective, weigh
from igr.paper.nonparametric.laws import KumaraswamySticks, LogitNormalSticks, expected_softplus, log_prior
from igr.paper.nonparametric.model import EnsembleMixture, prior_means
from igr.paper.nonparametric.spec import Mixture
from igr.paper.nonparametric.sticks import broken, chances, log_components, log_unbroken
from igr.paper.streams import generator_of

pytestmark = pytest.mark.usefixtures("one_thread")

F64 = torch.float64
X = (1.0, 0.0, 1.0)
MEANS = (0.0, 1.3, -2.0)
OUTPUTS = {  # of the encoder, about: two numbers of each stick, and mean and log-scale of each component
    "igr-sb-mm": [0.3, -0.4, 0.6, 0.7, 0.2, 1.0, -1.5, 0.1, -0.1, 0.2],
    "dldpmm": [0.2, -0.1, 0.3, -0.2, 0.2, 1.0, -1.5, 0.1, -0.1, 0.2],
}
CASES = {  # method, α, ρ, and the component from which on all are one
    "igr-sb-mm": ("igr-sb-mm", 1.0, 1 - 1e-12, 3),
    "igr-sb-mm, α = 2.5": ("igr-sb-mm", 2.5, 1 - 1e-12, 3),
    "igr-sb-mm, truncated": ("igr-sb-mm", 1.0, 0.6, 3),
    "igr-sb-mm, truncated, α = 2.5": ("igr-sb-mm", 2.5, 0.6, 3),
    "dldpmm": ("dldpmm", 1.0, 0.5, 3),
    "dldpmm, of five": ("dldpmm", 1.0, 0.5, 5),
    "dldpmm, of five, α = 2.5": ("dldpmm", 2.5, 0.5, 5),
}


def cell_of(method, *, K=3, alpha=1.0, rho=0.9999, most=3, L=1, **more) -> Mixture:
    fixed = {"num_components": (K,)} if method == "dldpmm" else {}
    sizes = {"concentration": alpha, "precision": rho, "max_components": most, "latent_dim": L, "seeds": (1,)}
    return Mixture(f"nonparametric/mnist/{method}", "mnist", method, **fixed | sizes | more)


def mixture_of(cell, *, D=3, hidden=8, copies=1, std=0.7) -> EnsembleMixture:
    """Weights of some size; the same for all members, if there are copies."""
    members = [each for each in cell.members() for _ in range(copies)]
    model = EnsembleMixture(cell, members, num_pixels=D, hidden=hidden, dtype=F64)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(std * torch.randn(p.shape[1:], dtype=F64, generator=generator))
    return model


def case_of(name, copies=1) -> EnsembleMixture:
    method, alpha, rho, most = CASES[name]
    model = mixture_of(cell_of(method, alpha=alpha, rho=rho, most=most), copies=copies)
    model.means.copy_(torch.tensor(MEANS).view(-1, 1))
    with torch.no_grad():  # a posterior wide enough for weights of finite variance, or as good as
        model.weights[model.depth - 1].mul_(0.1)
        model.biases[model.depth - 1].copy_(torch.tensor(OUTPUTS[method]))
    return model


def panels(*edges, width=1.0, order=20) -> tuple[np.ndarray, np.ndarray]:
    """A Gauss-Legendre rule on pieces between the edges."""
    t, w = np.polynomial.legendre.leggauss(order)
    cuts = np.unique(np.concatenate([np.linspace(a, b, 1 + math.ceil((b - a) / width)) for a, b in pairwise(edges)]))
    half = np.diff(cuts) / 2
    return (cuts[:-1, None] + half[:, None] * (t + 1)).ravel(), (half[:, None] * w).ravel()


class Exact:
    """One image and one member, by integration in NumPy; z has one dimension, and there are two sticks."""

    def __init__(self, model: EnsembleMixture) -> None:
        cell = self.cell = model.cell
        self.layers = [
            (w[0].detach().numpy(), b[0, 0].detach().numpy()) for w, b in zip(model.weights, model.biases, strict=True)
        ]
        self.x, self.alpha, self.means = np.array(X), cell.concentration, model.means.numpy()[:, 0]
        h = self.network(self.x, self.layers[: model.depth])
        self.sticks = h[:4].reshape(2, 2)  # (parameter, stick)
        self.mean, self.xi = h[4:].reshape(2, 3)
        z, weight = panels(-30, 30, width=0.02, order=4)
        logits = self.network(z[:, None], self.layers[model.depth :])
        fit = (self.x * sp.log_expit(logits) + (1 - self.x) * sp.log_expit(-logits)).sum(-1)
        prior = scipy.stats.norm(self.means[:, None]).logpdf(z)
        post = scipy.stats.norm(self.mean[:, None], np.exp(self.xi[:, None])).logpdf(z)
        self.evidence = (weight * np.exp(prior + fit)).sum(-1)  # p(x | c)
        self.inner = (weight * np.exp(post) * (fit + prior - post)).sum(-1)

    @staticmethod
    def network(h, layers):
        for i, (w, b) in enumerate(layers):
            h = h @ w + b
            h = np.maximum(h, 0) if i + 1 < len(layers) else h
        return h

    def prior_mass(self) -> np.ndarray:
        """E π_c of the first two components, the third, or all from the third on, and the rest: by an endless sum."""
        k = np.arange(4000)
        pi = (self.alpha / (1 + self.alpha)) ** k / (1 + self.alpha)
        last = pi[2:].sum() if self.cell.max_components == 3 else pi[2]
        return np.array([*pi[:2], last])

    @property
    def log_px(self) -> float:
        """log p(x) of the components that there are."""
        return math.log(self.prior_mass() @ self.evidence)

    @property
    def log_px_reached(self) -> float:
        """The same without what the truncation leaves out: the third component, where the first stick is above ρ."""
        if self.cell.method == "dldpmm":
            return self.log_px
        a, rho = self.alpha, self.cell.precision
        v, w = panels(rho, 1, width=0.01)
        excluded = (w * scipy.stats.beta(1, a).pdf(v) * (1 - v)).sum() * a / (1 + a)
        return math.log(self.prior_mass() @ self.evidence - excluded * self.evidence[2])

    def log_q(self, k, y) -> tuple[np.ndarray, np.ndarray]:
        """The log-densities of the k-th stick's log-odds: the posterior's and the prior's."""
        one, two = self.sticks[:, k]
        log_v, log1m_v = sp.log_expit(y), sp.log_expit(-y)
        if self.cell.method == "igr-sb-mm":
            q = scipy.stats.norm(one, math.exp(two)).logpdf(y)
        else:
            a, b = math.exp(one), math.exp(two)
            q = one + two + (a - 1) * log_v + (b - 1) * np.log(-np.expm1(a * log_v)) + log_v + log1m_v
        return q, math.log(self.alpha) + log_v + self.alpha * log1m_v

    def elbo(self) -> float:
        """The mean over both sticks of the bound given them."""
        cut = sp.logit(self.cell.precision)
        y, w = panels(-30, min(cut, 29), 30)
        (q1, p1), (q2, p2) = self.log_q(0, y), self.log_q(1, y)
        v, A = sp.expit(y), self.inner
        share = math.log(1 + self.alpha)
        last = A[2] - (share if self.cell.max_components > 3 else 0)
        second = (w * np.exp(q2) * (v * A[1] + (1 - v) * last)).sum()
        cost1, cost2 = q1 - p1, (w * np.exp(q2) * (q2 - p2)).sum()
        all_sticks = v * A[0] + (1 - v) * second - cost1 - cost2
        one_stick = v * A[0] + (1 - v) * (A[1] - share) - cost1
        stops = (v > self.cell.precision) & (self.cell.method == "igr-sb-mm")
        return (w * np.exp(q1) * np.where(stops, one_stick, all_sticks)).sum()


def z_score(values, expected) -> float:
    values = np.asarray(values).ravel()
    return abs(values.mean() - expected) / (values.std() / math.sqrt(len(values)))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("landing", [False, True])
def test_joint_bound_is_the_integral(name, landing):
    model = case_of(name)
    x = torch.tensor(X, dtype=F64).expand(1, 20_000, 3)
    noise = draw_noise(model, (1, 20_000), generator_of(0, "test"))
    with torch.no_grad():
        found = joint_bound(model, x, noise, landing=landing)
    assert z_score(found, Exact(model).elbo()) < 5


@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_the_likelihood(name, monkeypatch):
    """Their mean is p(x), but for what the truncation leaves out, and that of their logarithms the lower bound."""
    model, exact = case_of(name), Exact(case_of(name))
    monkeypatch.setattr(bounds, "at_once", lambda *_: 17_000)  # several parts, of which the last is smaller
    found = weigh(model, torch.tensor(X, dtype=F64).expand(1, 2, 3), 60_000, generator_of(0, "test"))
    assert found.log_w.shape == (1, 2, 60_000)
    assert z_score(found.log_w.exp(), math.exp(exact.log_px_reached)) < 5
    assert z_score(found.log_w, exact.elbo()) < 5
    assert exact.log_px_reached <= exact.log_px + 1e-12
    assert (exact.log_px - exact.log_px_reached > 0.02) == ("truncated" in name)


@pytest.mark.parametrize("name", ["igr-sb-mm, truncated, α = 2.5", "dldpmm, of five, α = 2.5"])
def test_sticking_the_landing_keeps_the_mean_of_the_gradient(name):
    """Every member is one of many that are the same, with noise of its own."""
    size, batch = 300, 20
    x = torch.tensor(X, dtype=F64).expand(size, batch, 3)

    def gradients(landing):
        model = case_of(name, copies=size)
        noise = draw_noise(model, (size, batch), generator_of(0, "test", landing))
        joint_bound(model, x, noise, landing=landing).mean(-1).sum().backward()
        return model.biases[model.depth - 1].grad[:, 0], model.weights[0].grad.flatten(1)

    for exact, stuck in zip(gradients(False), gradients(True), strict=True):
        error = ((exact.var(0) + stuck.var(0)) / size).sqrt()
        moving = error > 1e-9
        assert moving.any()
        assert ((exact.mean(0) - stuck.mean(0)) / error)[moving].abs().max() < 5


def test_chances_are_masks_on_average():
    generator = torch.Generator().manual_seed(4)
    mu, xi = torch.tensor([0.5, 1.0, -0.5, 2.0, 0.0]), torch.tensor([0.0, -1.0, 0.5, 0.3, 0.0])
    y = mu + xi.exp() * torch.randn(100_000, 5, generator=generator)
    mask = broken(y, torch.tensor(5), 0.97)
    assert 0.01 < mask.double().mean(0)[-1] < 0.9
    difference = chances(mu, xi, torch.nn.functional.logsigmoid(-y), mask, 0.97).double() - mask.double()
    assert difference[:, 0].abs().max() == 0
    assert max(z_score(difference[:, k], 0.0) for k in range(1, 5)) < 5


@pytest.mark.parametrize("landing", [False, True])
def test_the_gradient_knows_what_a_further_stick_costs(landing):
    """Against differences of the integral: a first stick that often stops, and a second whose divergence is large."""
    start = torch.tensor([6.0, 3.0, 0.4, -1.2, *OUTPUTS["igr-sb-mm"][4:]], dtype=F64)

    def model_at(output, copies=1):
        model = mixture_of(cell_of("igr-sb-mm", rho=0.9995), copies=copies)
        model.means.copy_(torch.tensor(MEANS).view(-1, 1))
        with torch.no_grad():
            model.weights[model.depth - 1].zero_()
            model.biases[model.depth - 1].copy_(output)
        return model

    size, batch, h = 300, 40, 1e-3
    model = model_at(start, size)
    x = torch.tensor(X, dtype=F64).expand(size, batch, 3)
    joint_bound(model, x, draw_noise(model, (size, batch), generator_of(0, "test")), landing=landing).mean(
        -1
    ).sum().backward()
    found = model.biases[model.depth - 1].grad[:, 0, :4]
    for k, step in enumerate(h * torch.eye(len(start), dtype=F64)[:4]):
        expected = (Exact(model_at(start + step)).elbo() - Exact(model_at(start - step)).elbo()) / (2 * h)
        assert abs(expected) > 0.1
        assert z_score(found[:, k], expected) < 5


@pytest.mark.parametrize("alpha", [1.0, 2.5])
def test_sticking_the_landing_has_no_variance_where_posterior_and_prior_agree(alpha):
    """Its defining property: a gradient of zero, sample by sample; log q with its score has the same value, and none.

    All that an image says is lost: the decoder does not look at z. Kumaraswamy(1, α) is Beta(1, α).
    """
    model = mixture_of(cell_of("dldpmm", K=4, alpha=alpha, most=4, L=2))
    with torch.no_grad():
        model.weights[-1].zero_()
        model.weights[model.depth - 1].zero_()
        start = [torch.tensor([0.0] * 3 + [math.log(alpha)] * 3, dtype=F64), model.means.flatten(), torch.zeros(8)]
        model.biases[model.depth - 1].copy_(torch.cat([each.to(F64) for each in start]))
    x = torch.tensor(X, dtype=F64).expand(1, 5, 3)
    noise = draw_noise(model, (1, 5), generator_of(0, "test"))
    last = model.biases[model.depth - 1]
    (stuck,) = torch.autograd.grad(joint_bound(model, x, noise, landing=True).sum(), last)
    assert stuck.abs().max() < 1e-9
    sticks, components = model.encode(x)
    at = sticks.draw(noise.sticks)
    z = components.mean + components.xi.exp() * noise.z
    log_q = torch.distributions.Normal(components.mean, components.xi.exp()).log_prob(z).sum() + sticks.log_q(at).sum()
    log_p = torch.distributions.Normal(model.means, 1.0).log_prob(z).sum() + log_prior(at, alpha).sum()
    (plain,) = torch.autograd.grad(log_p - log_q, last)
    assert plain.abs().max() > 0.1


@pytest.mark.parametrize("name", CASES)
def test_landing_and_published_objective_are_their_formulas(name):
    model = case_of(name)
    B = 50
    x = torch.tensor(X, dtype=F64).expand(1, B, 3)
    noise = draw_noise(model, (1, B), generator_of(0, "test"))
    joint, published = joint_bound(model, x, noise, landing=True), published_objective(model, x, noise)
    exact, (method, alpha, rho, most) = Exact(model), CASES[name]
    for i in range(B):
        one, two = exact.sticks
        raw = noise.sticks[0, i].numpy()
        if method == "igr-sb-mm":
            y = one + np.exp(two) * raw
        else:
            v = (1 - np.exp(-np.exp(-raw)) ** np.exp(-two)) ** np.exp(-one)
            y = sp.logit(v)
        v = sp.expit(y)
        M = 1 if method == "igr-sb-mm" and v[0] > rho else 2
        pi = np.array([v[0], 1 - v[0]] if M == 1 else [v[0], (1 - v[0]) * v[1], (1 - v[0]) * (1 - v[1])])
        of_sticks = [np.subtract(*exact.log_q(k, y[k])[::-1]) for k in range(2)]
        log_sticks = sum(of_sticks[:M])
        further = 1.0 if method == "dldpmm" else scipy.stats.norm.cdf((sp.logit(rho) - one[0]) / np.exp(two[0]))
        z = exact.mean + np.exp(exact.xi) * noise.z[0, i, :, 0].numpy()
        logits = exact.network(z[:, None], exact.layers[model.depth :])
        fit = (exact.x * sp.log_expit(logits) + (1 - exact.x) * sp.log_expit(-logits)).sum(-1)[: M + 1]
        log_p = scipy.stats.norm(exact.means).logpdf(z)[: M + 1]
        log_q = scipy.stats.norm(exact.mean, np.exp(exact.xi)).logpdf(z)[: M + 1]
        correction = 0.0 if most == M + 1 else pi[-1] * math.log(1 + alpha)
        expected = (pi * (fit + log_p - log_q)).sum() - correction + of_sticks[0] + further * of_sticks[1]
        mixed = (pi * (fit + log_p)).sum() - np.log((pi * np.exp(log_q)).sum()) + log_sticks
        assert joint[0, i].item() == pytest.approx(expected, abs=1e-9)
        assert published[0, i].item() == pytest.approx(mixed, abs=1e-9)
        assert mixed - log_sticks < (pi * (fit + log_p - log_q)).sum()  # Jensen's inequality


@pytest.mark.parametrize("alpha", [0.4, 1.0, 2.5])
@pytest.mark.parametrize("law", [LogitNormalSticks, KumaraswamySticks], ids=["logit-normal", "kumaraswamy"])
def test_divergence_of_sticks_is_the_integral(law, alpha):
    cell = cell_of("igr-sb-mm" if law is LogitNormalSticks else "dldpmm", alpha=alpha)
    exact = Exact.__new__(Exact)
    exact.cell, exact.alpha = cell, alpha
    y, w = panels(-300, 150)
    for one, two in [(0.0, 0.0), (1.5, 0.7), (-2.0, -1.0), (0.5, 1.2)]:
        exact.sticks = np.array([[one], [two]])
        q, p = exact.log_q(0, y)
        expected = (w * np.exp(q) * np.where(np.exp(q) > 0, q - p, 0)).sum()
        found = law(torch.tensor(one, dtype=F64), torch.tensor(two, dtype=F64)).kl(alpha)
        assert found.item() == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("sigma", [0.01, 1.0, 4.0, 30.0, 1e4])
def test_expected_softplus(sigma):
    for mu in (0.0, 0.7, -3.0, 12.0):
        kink = -mu / sigma
        inner = [e for e in (kink - 40 / sigma, kink, kink + 40 / sigma) if -12 < e < 12]
        edges = [-12, *inner, 12]
        parts = [panels(a, b, width=(b - a) / 60) for a, b in pairwise(edges)]
        expected = sum((w * scipy.stats.norm.pdf(e) * np.logaddexp(0, mu + sigma * e)).sum() for e, w in parts)
        found = expected_softplus(torch.tensor(mu, dtype=F64), torch.tensor(sigma, dtype=F64))
        assert found.item() == pytest.approx(expected, rel=1e-10, abs=1e-11)


@pytest.mark.parametrize("rho", [0.5, 0.9, 0.9999])
def test_truncation_keeps_the_stick_that_crosses(rho):
    y = 2 * torch.randn(2000, 7, dtype=F64) - 0.5
    mask = broken(y, torch.tensor(7), rho)
    q = log_components(y, mask).exp()
    torch.testing.assert_close(q.sum(-1), torch.ones(2000, dtype=F64))
    stops = set()
    for row, sticks, found in zip(mask.tolist(), y.sigmoid().tolist(), q.tolist(), strict=True):
        lengths, left = [], 1.0
        for v in sticks:
            if sum(lengths) > rho:
                break
            lengths.append(left * v)
            left *= 1 - v
        M = len(lengths)
        stops.add(M)
        assert row == [k < M for k in range(7)]
        assert found == pytest.approx([*lengths, left, *[0.0] * (7 - M)], abs=1e-12)
    assert len(stops) > 3
    alone = torch.cat([broken(each, torch.tensor(7), rho) for each in y.split(1)])  # samples know nothing of each other
    assert torch.equal(alone, mask)


def test_component_after_the_sticks_has_its_share():
    mask = torch.tensor([[True, False, False], [True, True, False], [True, True, True]])
    like = torch.zeros((), dtype=F64)
    share = -math.log(3.5)
    assert log_unbroken(mask, 4, 2.5, like).tolist() == pytest.approx([share, share, 0.0])
    assert log_unbroken(mask, 5, 2.5, like).tolist() == pytest.approx([share, share, share])


@pytest.mark.parametrize("method", ["igr-sb-mm", "dldpmm"])
def test_images_do_not_depend_on_their_neighbours(method):
    model = mixture_of(cell_of(method, K=6, most=6, rho=0.9, L=2), D=8)
    x = (torch.rand(1, 12, 8) < 0.5).to(F64)
    noise = draw_noise(model, (1, 12), generator_of(0, "test"))
    whole = joint_bound(model, x, noise)
    part = joint_bound(model, x[:, 3:5], Noise(noise.sticks[:, 3:5], noise.z[:, 3:5]))
    torch.testing.assert_close(whole[:, 3:5], part)


def test_members_with_fewer_components_are_what_they_are_alone():
    cell = replace(cell_of("dldpmm", most=6, L=2, alpha=1.7), num_components=(3, 5, 2))
    together = EnsembleMixture(cell, cell.members(), num_pixels=8, hidden=5, dtype=F64)
    x = (torch.rand(1, 7, 8) < 0.5).to(F64)
    for i, K in enumerate(cell.num_components):
        one = replace(cell, num_components=(K,))
        alone = EnsembleMixture(one, one.members(), num_pixels=8, hidden=5, dtype=F64)
        assert alone.shape == (K, 2)
        noise = draw_noise(together, (1, 7), generator_of(0, "test"))
        own = draw_noise(alone, (1, 7), generator_of(0, "test"))
        torch.testing.assert_close(noise.z[..., :K, :], own.z)
        for landing in (False, True):
            part = together.subset([i])
            found = joint_bound(part, x, noise, landing=landing)
            expected = joint_bound(alone, x, own, landing=landing)
            torch.testing.assert_close(found, expected)
            (found_gradient,) = torch.autograd.grad(found.sum(), part.weights[0])
            (expected_gradient,) = torch.autograd.grad(expected.sum(), alone.weights[0])
            torch.testing.assert_close(found_gradient, expected_gradient)
        torch.testing.assert_close(published_objective(part, x, noise), published_objective(alone, x, own))
        found = weigh(part, x, 50, generator_of(0, "weigh"))
        assert found.mass[..., K:].sum() == 0
        assert (found.kept == K).all()


@pytest.mark.parametrize("landing", [False, True])
@pytest.mark.parametrize("alpha", [1.0, 2.5])
@pytest.mark.parametrize("method", ["igr-sb-mm", "dldpmm"])
def test_extreme_parameters_are_survived(method, alpha, landing):
    """In float32: sticks with parameters of ±50, and scales of z of exp(±10), in all combinations.

    A component that is cut off has no say, be its scale infinite.
    """
    model = mixture_of(cell_of(method, K=4, most=5 if method == "dldpmm" else 4, alpha=alpha, L=2)).float()
    noise = Noise(*(each.float() for each in draw_noise(model, (1, 40), generator_of(0, "test"))))
    x = torch.tensor(X).expand(1, 40, 3)
    for one in (-50.0, 0.0, 50.0):
        for two in (-50.0, 0.0, 50.0):
            for scale in (-10.0, 10.0):
                cut = method == "igr-sb-mm" and (one, two) == (50.0, -50.0)  # the first stick takes all
                last = 60.0 if cut else scale
                output = torch.tensor([[one] * 3 + [two] * 3 + [1.0] * 8 + [scale] * 4 + [last] * 4])
                with torch.no_grad():
                    model.biases[model.depth - 1].copy_(output)
                model.zero_grad()
                value = joint_bound(model, x, noise, landing=landing)
                value.sum().backward()
                assert value.isfinite().all(), (one, two, scale)
                assert all(p.grad.isfinite().all() for p in model.parameters()), (one, two, scale)
                assert not weigh(model, x, 5, generator_of(0, "weigh")).log_w.isnan().any()
                assert not published_objective(model, x, noise).isnan().any()


def test_prior_means_are_one_set_for_a_dataset():
    cell = cell_of("igr-sb-mm", most=20, L=50)
    means = prior_means(cell)
    assert means.shape == (20, 50)
    assert means[0].abs().max() == 0
    torch.testing.assert_close(means[1:].norm(dim=-1), torch.ones(19).double())
    assert (means[1:].unsqueeze(0) != means[1:].unsqueeze(1)).any(-1).sum() == 19 * 18  # no two are the same
    assert torch.equal(prior_means(replace(cell, seeds=(7, 8))), means)
    assert not torch.equal(prior_means(replace(cell, dataset="omniglot")), means)
    model = EnsembleMixture(cell_of("dldpmm", K=7, most=20, L=50), cell.members(), num_pixels=4, hidden=3)
    torch.testing.assert_close(model.means, means.float())
