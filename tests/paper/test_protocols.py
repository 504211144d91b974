"""Which expression is trained, which images are looked at, and which noise is used, under each protocol."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_objectives import METHODS, D, E, K, N, noise_for, setting
from torch.distributions import Normal, kl_divergence

import igr
from igr.paper import data, noise, streams
from igr.paper.assess import Budget
from igr.paper.data import Dataset
from igr.paper.ensemble import Ensemble
from igr.paper.measure import assess
from igr.paper.objectives import objective
from igr.paper.run import Options, run_cell
from igr.paper.specs import SPECS

CPU = torch.device("cpu")
CLOSED, SAMPLED, PATH = "closed form", "sampled", "sampled, along the path alone"
DIVERGENCES = {
    ("igr-i", "honest"): CLOSED,
    ("igr-sb", "honest"): CLOSED,
    ("igr-planar", "honest"): SAMPLED,
    ("gs", "honest"): SAMPLED,
    ("igr-i", "published"): SAMPLED,
    ("igr-sb", "published"): SAMPLED,
    ("igr-planar", "published"): SAMPLED,
    ("gs", "published"): SAMPLED,
}


pytestmark = pytest.mark.usefixtures("one_thread")


def relaxations(vae, tau, prior, parameters):
    """Posterior and prior, whose densities are the library's."""
    method = vae.cell.method
    if method == "gs":
        zeros = torch.zeros(E, 1, N, K).double()
        return igr.GumbelSoftmax(tau, *parameters), igr.GumbelSoftmax(prior.temperature, zeros)
    flow = shared = None
    if method == "igr-sb":
        flow = shared = igr.StickBreaking(leftover=vae.cell.protocol == "honest")
    if method == "igr-planar":
        flow, shared = [igr.Planar(*layer) for layer in zip(vae.u, vae.w, vae.b, strict=True)], prior.flow or None
    mu, xi = parameters
    p = igr.InvertibleGaussian(prior.loc.expand(E, 1, N, K - 1), prior.scale, tau, flow=shared)
    return igr.InvertibleGaussian(mu, xi.exp(), tau, flow=flow), p


def by_hand(vae, x, tau, prior, noise, divergence: str, bound: str) -> torch.Tensor:
    """The objective of each image, (E, B), with this divergence."""
    parameters = vae.encode(x)
    q, p = relaxations(vae, tau, prior, parameters)
    if vae.cell.method == "gs":
        log_z = ((parameters[0] + noise) / tau).log_softmax(-1)
    else:
        mu, xi = parameters
        y = mu + xi.exp() * noise
        log_z = igr.functional.log_softmaxpp(y if q.flow is None else q.flow(y), tau)
    fit = vae.log_px(x, log_z.exp())
    if divergence == CLOSED:
        mu, xi = parameters
        return fit.mean(0) - kl_divergence(Normal(mu, xi.exp()), Normal(prior.loc, prior.scale)).sum((-2, -1))
    if divergence == PATH:
        q, p = relaxations(vae, tau, prior, [parameter.detach() for parameter in parameters])
    log_w = fit - (q.log_prob_from_log(log_z) - p.log_prob_from_log(log_z)).sum(-1)
    return log_w.mean(0) if bound == "elbo" else (log_w.logsumexp(0) - math.log(len(log_w)))


def gradients(vae, values: torch.Tensor) -> dict[str, torch.Tensor]:
    """Those of a sum with other weights for every image."""
    weights = torch.linspace(0.5, 1.5, values.numel(), dtype=values.dtype).view(values.shape)
    names, parameters = zip(*vae.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad((weights * values).sum(), parameters), strict=True))


def differ(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Whether two gradients of the encoder do, by more than a hundredth."""
    return all((a[name] - b[name]).norm() > 0.01 * b[name].norm() for name in ("weights.0", "biases.0"))


def check_objective(method: str, divergence: str, **changes) -> None:
    """That values and all gradients are those of this divergence, and of no other."""
    vae, x, tau, prior = setting(method, **changes)
    with torch.no_grad():  # so that no stick is so short that its length, and not its logarithm, loses digits
        for parameter in vae.parameters():
            parameter *= 0.5
    noise = noise_for(method)
    found = objective(vae, x, tau, prior, noise)
    slopes = gradients(vae, found)
    expected = by_hand(vae, x, tau, prior, noise, divergence, vae.cell.bound)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)
    for name, slope in gradients(vae, expected).items():
        torch.testing.assert_close(
            slopes[name], slope, rtol=1e-6, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )
    possible = (CLOSED, SAMPLED, PATH) if method in ("igr-i", "igr-sb") else (SAMPLED, PATH)
    for other in set(possible) - {divergence}:
        assert differ(slopes, gradients(vae, by_hand(vae, x, tau, prior, noise, other, vae.cell.bound))), other


@pytest.mark.parametrize("protocol", ["honest", "published"])
@pytest.mark.parametrize("method", METHODS)
def test_the_divergence_is_in_closed_form_where_there_is_one_and_sampled_where_it_was(method, protocol):
    check_objective(method, DIVERGENCES[method, protocol], protocol=protocol)


@pytest.mark.parametrize("protocol", ["honest", "published"])
@pytest.mark.parametrize("method", METHODS)
def test_sticking_the_landing_is_the_gradient_of_the_path_alone(method, protocol):
    check_objective(method, PATH, protocol=protocol, landing=True)


@pytest.mark.parametrize("protocol", ["honest", "published"])
@pytest.mark.parametrize("method", METHODS)
def test_importance_weights_are_sampled(method, protocol):
    check_objective(method, SAMPLED, protocol=protocol, bound="iwae", num_samples=6)


@pytest.mark.parametrize("landing", [False, True])
def test_a_prior_with_a_flow_of_its_own_is_sampled_too(landing):
    check_objective("igr-planar", PATH if landing else SAMPLED, prior="flow", landing=landing)


NUM_PIXELS, APART = 784, 80.0  # nats


@pytest.fixture
def _splits(monkeypatch):
    """Images that say where they are from, and members that expect ones: so all ones are likely, and zeros are not."""

    def load_sample(name: str, protocol: str = "honest") -> Dataset:
        train = (np.random.default_rng(0).random((300, NUM_PIXELS)) < 0.7).astype(np.uint8)
        ones, zeros = (np.full((30, NUM_PIXELS), value, np.uint8) for value in (1, 0))
        validation = ones if protocol == "honest" else ones[:0]
        return Dataset(name, train, validation, zeros, binary=True, synthetic=True, source="made up")

    def expecting(self, *args, **kwargs) -> None:
        original(self, *args, **kwargs)
        with torch.no_grad():
            self.vae.weights[0] *= 0.01  # the same posterior for all images
            self.vae.biases[-1] += 0.5

    original = Ensemble.__init__
    monkeypatch.setattr(data, "load_sample", load_sample)
    monkeypatch.setattr(Ensemble, "__init__", expecting)


@pytest.mark.usefixtures("_splits")
@pytest.mark.parametrize("protocol", ["honest", "published"])
@pytest.mark.parametrize("method", ["igr-i", "gs"])
def test_every_split_is_measured_on_its_own_images(method, protocol, tmp_path):
    cell = SPECS[f"table1/mnist/linear/{method}"].with_protocol(protocol).shortened()
    budget = Budget(10, 2, 50, 10, 50, 20, 2, 2, 3)
    options = Options(tmp_path / "out", tmp_path / "checkpoints", CPU, budget=budget)
    found = run_cell(cell, options, lambda: False, lambda progress: None)
    held, better = ("validation", 1) if protocol == "honest" else ("test", -1)
    chosen = [record for record in found if record["selected"]]
    assert len(chosen) >= 2
    for record in found:
        train, other = record["metrics"]["train"], record["metrics"][held]
        for name in ("elbo_discrete", "elbo_continuous"):
            assert better * (other[name] - train[name]) > APART
        assert better * (other["log_likelihood"] - train["elbo_discrete"]) > APART
        for point in record["curves"]["elbo_continuous"]:  # of all epochs
            assert better * (point - train["elbo_continuous"]) > APART
    for record in chosen:
        train, test = record["metrics"]["train"], dict(record["metrics"]["test"])
        assert train["elbo_continuous"] - test.pop("elbo_continuous") > APART
        assert len(test) == 6
        assert train["elbo_discrete"] - max(test.values()) > APART


@pytest.mark.parametrize("method", ["igr-i", "gs"])
def test_no_number_of_the_noise_is_used_twice(method, monkeypatch):
    """In training, on held-out images in between, and in the metrics of all splits."""
    drawn, draw, draw_noise = [], noise.draw, Ensemble.draw_noise

    def beforehand(kind, shape, like, generator):
        drawn.append(draw(kind, shape, like, generator).flatten())
        return drawn[-1].view(shape)

    def at_once(self, shape, generator):
        drawn.append(draw_noise(self, shape, generator).flatten())
        return drawn[-1].view(shape)

    monkeypatch.setattr(noise, "draw", beforehand)
    monkeypatch.setattr(Ensemble, "draw_noise", at_once)
    trained, images = small_ensemble(method)
    counts = [0]
    for _ in range(3):
        trained.run_epoch()
        counts.append(len(drawn))
        trained.held_out(torch.from_numpy(images))
        counts.append(len(drawn))
    for split in ("train", "validation", "test"):
        assess(trained, images, split, range(4), Budget().shortened(), full=split == "test")
        counts.append(len(drawn))
    assert (np.diff(counts) > 0).all()
    everything = torch.cat(drawn)
    assert len(everything.unique()) == len(everything) > 10_000


def test_every_purpose_has_a_stream_of_its_own(monkeypatch):
    seen, stream = [], streams.stream

    def spy(seed, *purpose):
        seen.append(stream(seed, *purpose))
        return seen[-1]

    monkeypatch.setattr(streams, "stream", spy)
    trained, images = small_ensemble("igr-sb")
    weights = set(seen)
    assert len(weights) == 2  # one of each seed: members that differ in temperature alone start from the same
    seen.clear()
    for _ in range(3):
        trained.run_epoch()
        trained.held_out(torch.from_numpy(images))
    for split in ("train", "validation", "test"):
        assess(trained, images, split, range(4), Budget().shortened(), full=split == "test")
    assert len(set(seen)) == len(seen) >= 3 * 2 * 3 + 3  # order, noise and held-out noise in every epoch and seed
    assert not weights & set(seen)


def small_ensemble(method: str):
    """Two temperatures with two seeds, and the images that they train on."""
    changes = {"temperatures": (0.1, 0.5), "seeds": (1, 2), "batch_size": 10}
    changes |= {"prior_temperatures": (0.5,)} if method == "gs" else {}
    images = (np.random.default_rng(0).random((60, D)) < 0.3).astype(np.uint8)
    cell = replace(SPECS[f"table1/mnist/linear/{method}"], **changes)
    return Ensemble(cell, images, CPU, torch.float64, num_variables=N, num_categories=K), images
