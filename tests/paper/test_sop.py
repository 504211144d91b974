"""Completing images: units, bounds and likelihoods against enumeration and quadrature in numpy and scipy."""

import itertools
import json

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import expit, log_expit, logsumexp
from scipy.stats import logistic, norm

from igr.functional import harden, softmaxpp
from igr.paper.measure import Stopped, assess
from igr.paper.models import members_axis
from igr.paper.sop import objectives
from igr.paper.sop.assess import COLUMNS, COMPLETIONS, Budget
from igr.paper.sop.ensemble import CompletionEnsemble
from igr.paper.sop.model import EnsembleCompletion
from igr.paper.sop.objectives import (
    bound,
    draw_noise,
    flow,
    hard_units,
    log_likelihoods,
    log_px,
    relaxed_units,
    sample_units,
    scores,
)
from igr.paper.sop.spec import Completion
from igr.transforms import StickBreaking

pytestmark = pytest.mark.usefixtures("one_thread")

METHODS = ("igr-i", "igr-planar", "igr-sb", "gs")
CASES = [
    *((method, {}) for method in METHODS),
    ("igr-i", {"scale": "one"}),
    ("igr-sb", {"scale": "one"}),
    ("igr-planar", {"network": "linear"}),
    ("igr-i", {"scale": "one", "network": "linear"}),
    ("gs", {"network": "linear"}),
]
CPU = torch.device("cpu")
D = 8


def cell(method: str, **changes) -> Completion:
    defaults = {"temperatures": (0.3, 0.8), "seeds": (1, 2), "batch_size": 10, "epochs": 3}
    return Completion(f"sop/mnist/{method}", method, **defaults | changes)


def random_model(
    method: str, num_units: int, members: int = 2, strength: float = 1.0, **changes: str
) -> EnsembleCompletion:
    """Networks whose units depend on what comes before, with flows that do something and biases that are not zero."""
    model = EnsembleCompletion(
        cell(method, **changes), range(1, members + 1), num_units=num_units, num_pixels=D, dtype=torch.float64
    )
    with torch.no_grad():
        for k, p in enumerate(model.parameters()):
            p.add_(torch.randn(p.shape, dtype=p.dtype, generator=torch.Generator().manual_seed(k)))
        model.weights[-1].mul_(strength)
    return model


def random_images(members: int = 2, n: int = 2) -> torch.Tensor:
    return (torch.rand(n, D, generator=torch.Generator().manual_seed(5)) < 0.5).double().expand(members, n, D)


class Reference:
    """One member, in numpy: what its layers say, and how a score comes from a Gaussian."""

    def __init__(self, model: EnsembleCompletion, i: int) -> None:
        self.method, self.N, self.unit = model.cell.method, model.num_units, model.cell.scale == "one"
        arrays = {name: p.detach().select(members_axis(p), i).numpy() for name, p in model.named_parameters()}
        linear = model.cell.network == "linear"
        affine = [(arrays[f"weights.{k}"], arrays[f"biases.{k}"][0]) for k in range(3 if linear else 5)]
        self.blocks = [affine[:1], affine[1:2]] if linear else [affine[:2], affine[2:4]]
        self.decoder = affine[-1]
        if self.method == "igr-planar":
            self.flows = [[arrays[f"{name}.{layer}"][:, 0] for name in "uwb"] for layer in (0, 1)]

    def said(self, layer, h):
        *hidden, (v, c) = self.blocks[layer]
        for w, b in hidden:
            h = np.tanh(h @ w + b)
        said = h @ v + c
        return np.concatenate([said, np.zeros_like(said)], -1) if self.unit else said

    def flow(self, layer, n, y):
        """Two planar flows of one dimension, each with u moved to where w u > -1."""
        u, w, b = self.flows[layer]
        for k in range(2):
            uk, wk, bk = u[k, n, 0], w[k, n, 0], b[k, n]
            c = 1 - 1e-6
            wu = uk * wk if uk * wk >= 0 else c * (np.exp(uk * wk / c) - 1)
            y = y + wu / wk * np.tanh(wk * y + bk)
        return y

    def probability(self, layer, h):
        """Of +1 for every unit."""
        said = self.said(layer, h)
        if self.method == "gs":
            return expit(said)
        mu, sigma = said[: self.N], np.exp(said[self.N :])
        roots = np.zeros(self.N)
        if self.method == "igr-planar":
            roots = np.array([brentq(lambda y, n=n: self.flow(layer, n, y), -60, 60) for n in range(self.N)])
        return norm.cdf((mu - roots) / sigma)

    def score(self, layer, said, eps):
        """Of a single unit."""
        if self.method == "gs":
            return said[..., 0] + eps
        y = said[..., 0] + np.exp(said[..., 1]) * eps
        if self.method == "igr-planar":
            return self.flow(layer, 0, y)
        return np.tanh(y / 2) if self.method == "igr-sb" else y

    def log_px(self, lower, units):
        w, b = self.decoder
        return log_expit((2 * lower - 1) * (units @ w + b)).sum(-1)

    def enumerated(self, x):
        """Probabilities of all joint states of both layers, and log p(lower | state)."""
        upper, lower = x[: D // 2], x[D // 2 :]
        states = np.array(list(itertools.product((-1.0, 1.0), repeat=self.N)))
        first = self.probability(0, upper)
        log_w = self.log_px(lower, states)
        weights = []
        for state in states:
            second = self.probability(1, state)
            p1 = np.where(state > 0, first, 1 - first).prod()
            weights.append(p1 * np.where(states > 0, second, 1 - second).prod(-1))
        return np.array(weights), np.broadcast_to(log_w, (len(states), len(states)))


@pytest.mark.parametrize(("method", "changes"), CASES, ids=str)
def test_sizes_are_those_of_the_paper(method, changes):
    model = EnsembleCompletion(cell(method, **changes), [1])
    said = 240 if method == "gs" or changes.get("scale") == "one" else 480
    affine = 392 * 240 + 240 * said + 240 * 240 + 240 * said + 240 * 392 + 240 + said + 240 + said + 392
    if changes.get("network") == "linear":
        affine = 392 * said + 240 * said + 240 * 392 + said + said + 392
    flows = 2 * 2 * 240 * 3 if method == "igr-planar" else 0
    assert sum(p.numel() for p in model.parameters()) == affine + flows
    assert all((p == 0).all() for p in model.biases)
    assert model.weights[0].abs().max() <= (6 / (392 + model.weights[0].shape[-1])) ** 0.5


def test_an_odd_number_of_pixels_has_no_halves():
    with pytest.raises(ValueError, match="images of 783 pixels have no halves; give an even number"):
        EnsembleCompletion(cell("gs"), [1], num_pixels=783)


@pytest.mark.parametrize(("method", "changes"), CASES, ids=str)
def test_likelihood_is_that_of_enumeration(method, changes):
    model, x, m = random_model(method, 3, **changes), random_images(), 40_000
    (found,) = log_likelihoods(model, x, m, torch.Generator().manual_seed(1))
    for i in range(2):
        for b in range(2):
            weights, log_w = Reference(model, i).enumerated(x[i, b].numpy())
            assert weights.sum() == pytest.approx(1, abs=1e-12)
            mean, square = (weights * np.exp(log_w)).sum(), (weights * np.exp(2 * log_w)).sum()
            error = np.sqrt((square - mean**2) / m) / mean  # by the delta method
            assert abs(found[i, b].item() - np.log(mean)) < 5 * error < 0.1


def test_likelihood_in_parts_is_the_same(monkeypatch):
    model, x, m = random_model("igr-i", 3), random_images(), 30_000
    monkeypatch.setattr(objectives, "at_once", lambda like, numbers: 700)  # the last part is smaller
    (found,) = log_likelihoods(model, x, m, torch.Generator().manual_seed(2))
    assert found.dtype == torch.float64
    weights, log_w = Reference(model, 1).enumerated(x[1, 0].numpy())
    mean, square = (weights * np.exp(log_w)).sum(), (weights * np.exp(2 * log_w)).sum()
    assert abs(found[1, 0].item() - np.log(mean)) < 5 * np.sqrt((square - mean**2) / m) / mean


@pytest.mark.parametrize("m", [1, 3, 7])
def test_every_sample_of_a_likelihood_counts_once(m, monkeypatch):
    model, x = random_model("igr-i", 3, strength=0.0), random_images()  # what is said does not depend on samples
    monkeypatch.setattr(objectives, "at_once", lambda like, numbers: 3)
    expected = [[Reference(model, i).log_px(x[i, b, D // 2 :].numpy(), np.ones(3)) for b in range(2)] for i in range(2)]
    (found,) = log_likelihoods(model, x, m, torch.Generator().manual_seed(3))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def by_quadrature(reference: Reference, x, tau):
    """E[log p(lower | relaxed units)] and log E[p], of a network with one unit a layer, by the trapezoidal rule."""
    noise, reach = (logistic, 45) if reference.method == "gs" else (norm, 10)
    eps = np.linspace(-reach, reach, 1201)
    weights = noise.pdf(eps) * (eps[1] - eps[0])
    first = np.tanh(reference.score(0, reference.said(0, x[: D // 2]), eps) / (2 * tau))
    said = reference.said(1, first[:, None])[:, None]  # (nodes, 1, parameters)
    units = np.tanh(reference.score(1, said, eps) / (2 * tau))
    log_w = reference.log_px(x[D // 2 :], units[..., None])
    both = weights[:, None] * weights
    assert both.sum() == pytest.approx(1, abs=1e-9)
    return (both * log_w).sum(), logsumexp(log_w, b=both)


@pytest.mark.parametrize(("method", "changes"), CASES, ids=str)
def test_bound_is_that_of_quadrature_and_grows_with_samples(method, changes):
    model, x, draws = random_model(method, 1, strength=3, **changes), random_images(n=1), 200_000
    tau = torch.tensor([0.3, 0.8], dtype=torch.float64).view(-1, 1, 1, 1)
    noise = draw_noise(model, (draws, 2, 1), x, torch.Generator().manual_seed(3))
    one = log_px(model, x, tau, noise).detach().squeeze(-1)  # bounds of one sample
    five = torch.stack([bound(model, x, tau, [eps[k * 5 : k * 5 + 5] for eps in noise]) for k in range(4)])
    assert five.shape == (4, 2, 1)
    groups = one.view(-1, 5, 2).logsumexp(1) - np.log(5)
    torch.testing.assert_close(groups[:4], five.detach().squeeze(-1))
    for i in range(2):
        expected, log_p = by_quadrature(Reference(model, i), x[i, 0].numpy(), tau[i].item())
        error = one[:, i].std().item() / draws**0.5
        assert abs(one[:, i].mean().item() - expected) < 5 * error
        margin = 5 * groups[:, i].std().item() / len(groups) ** 0.5
        assert expected + margin < groups[:, i].mean().item() < log_p - margin  # Jensen
        mean = one[:, i].exp()
        assert abs(mean.mean().log().item() - log_p) < 5 * (mean.std() / mean.mean()).item() / draws**0.5


@pytest.mark.parametrize("method", METHODS)
def test_the_same_sample_several_times_is_one(method):
    model, x = random_model(method, 3), random_images()
    tau = torch.full((2, 1, 1, 1), 0.5, dtype=torch.float64)
    noise = draw_noise(model, (1, 2, 2), x, torch.Generator().manual_seed(3))
    several = bound(model, x, tau, [eps.expand(7, *eps.shape[1:]) for eps in noise])
    torch.testing.assert_close(several, bound(model, x, tau, noise))


@pytest.mark.parametrize("method", METHODS)
def test_gradients_are_those_of_finite_differences(method):
    model, x = random_model(method, 2), random_images()
    tau = torch.tensor([0.4, 1.0], dtype=torch.float64).view(-1, 1, 1, 1)
    noise = draw_noise(model, (3, 2, 2), x, torch.Generator().manual_seed(4))
    found = torch.autograd.grad(bound(model, x, tau, noise).sum(), list(model.parameters()))
    step = 1e-5
    with torch.no_grad():
        for p, gradient in zip(model.parameters(), found, strict=True):
            flat, slopes = p.view(-1), gradient.flatten()
            for k in range(len(flat)):
                value = flat[k].item()
                ends = []
                for moved in (value + step, value - step):
                    flat[k] = moved
                    ends.append(bound(model, x, tau, noise).sum())
                flat[k] = value
                assert slopes[k].item() == pytest.approx(((ends[0] - ends[1]) / (2 * step)).item(), abs=1e-6, rel=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_units_are_differences_of_two_categories(method):
    """Relaxed and hard, by the functions of K categories."""
    model, x = random_model(method, 3), random_images()
    tau = torch.tensor([0.1, 1.0], dtype=torch.float64).view(-1, 1, 1, 1)
    parameters = model.encode(0, model.halves(x)[0])
    (noise, _) = draw_noise(model, (4, 2, 2), x, torch.Generator().manual_seed(5))
    s = scores(model.cell.method, parameters, flow(model, 0), noise)
    z = softmaxpp(s, tau)
    if method == "gs":
        logits = torch.cat([parameters[0], torch.zeros_like(parameters[0])], -1)
        z = ((logits + noise) / tau).softmax(-1)
    torch.testing.assert_close(relaxed_units(s, tau), z[..., 0] - z[..., 1])
    hard = harden(s)
    assert torch.equal(hard_units(s), hard[..., 0] - hard[..., 1])
    units = sample_units(model, model.say(0, model.halves(x)[0]), None, [noise])
    assert units.unique().tolist() == [-1, 1]


def test_a_score_of_zero_is_the_first_category_and_nan_stays_nan():
    s = torch.tensor([[0.0], [-0.0], [2.0], [-1e-30], [torch.nan]])
    assert hard_units(s)[:4].tolist() == [1, 1, 1, -1]
    assert hard_units(s)[4].isnan()


def test_both_categories_of_sticks_can_be_reached():
    """Without the leftover stick, as published, every score is positive and all units are +1."""
    y = torch.randn(1000, 1, dtype=torch.float64)
    assert 400 < (hard_units(StickBreaking(leftover=True)(y)) > 0).sum() < 600
    assert (hard_units(StickBreaking(leftover=False)(y)) == 1).all()


@pytest.mark.parametrize("method", METHODS[:3])
def test_scales_are_learned(method):
    model, x = random_model(method, 3), random_images()
    noise = draw_noise(model, (2, 2, 2), x, torch.Generator().manual_seed(6))
    bound(model, x, torch.full((2, 1, 1, 1), 0.5, dtype=torch.float64), noise).sum().backward()
    for layer in (0, 1):
        assert (model.biases[2 * layer + 1].grad[..., model.num_units :].abs() > 1e-6).all()


@pytest.mark.parametrize("method", METHODS)
def test_low_temperatures_have_finite_gradients_in_single_precision(method):
    model = EnsembleCompletion(cell(method), [1, 2])
    with torch.no_grad():
        model.weights[1].mul_(30)
    x = (torch.rand(2, 5, 784) < 0.3).float()
    noise = draw_noise(model, (3, 2, 5), x, torch.Generator().manual_seed(7))
    value = bound(model, x, torch.full((2, 1, 1, 1), 0.01), noise)
    value.sum().backward()
    assert value.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert model.weights[0].grad.abs().max() > 0


def pictures_of(images_of: int) -> np.ndarray:
    return (np.random.default_rng(0).random((images_of, 16)) < 0.4).astype(np.uint8)


def trainer(method: str, **changes) -> CompletionEnsemble:
    return CompletionEnsemble(cell(method, **changes), pictures_of(40), CPU, torch.float64, num_units=3)


@pytest.mark.parametrize("method", METHODS)
def test_assessment_is_of_hard_units_and_of_relaxed_ones(method):
    """Of the members that are asked for, by enumeration, or by samples of their own."""
    ensemble, m, rows = trainer(method, temperatures=(2.0, 9.0)), 20_000, [3, 0]
    ensemble.model = random_model(method, 3, members=4)
    images, apart = pictures_of(2)[:, :D], []
    found = assess(ensemble, images, "test", rows, Budget(m=m), full=True)
    assert [values.keys() for values in found] == [{"log_likelihood", "log_likelihood_relaxed"}] * 2
    for row, values in zip(rows, found, strict=True):
        exact = [Reference(ensemble.model, row).enumerated(x.astype(float)) for x in images]
        mean, square = ([(w * np.exp(k * log_w)).sum() for w, log_w in exact] for k in (1, 2))
        error = np.sqrt(sum((b / a**2 - 1) / m for a, b in zip(mean, square, strict=True))) / 2
        assert abs(values["log_likelihood"] - np.log(mean).mean()) < 5 * error
        model, x = ensemble.model.subset([row]), torch.from_numpy(images).double().unsqueeze(0)
        noise = draw_noise(model, (m, 1, 2), x, torch.Generator().manual_seed(8))
        p = log_px(model, x, ensemble.tau[[row]], noise).detach().exp()[:, 0]
        error = ((p.std(0) / p.mean(0)).square().sum() * 2 / m).sqrt() / 2  # of a difference of two such means
        assert abs(values["log_likelihood_relaxed"] - p.mean(0).log().mean()) < 5 * error
        apart.append(abs(values["log_likelihood_relaxed"] - values["log_likelihood"]) / error)
    assert max(apart) > 20


def test_all_members_are_assessed_on_validation_images_and_none_on_those_of_training():
    ensemble, images, budget = trainer("gs"), pictures_of(7), Budget(m=5)
    both = {"log_likelihood", "log_likelihood_relaxed"}
    assert [each.keys() for each in assess(ensemble, images, "validation", range(4), budget)] == [both] * 4
    assert assess(ensemble, images, "train", [0, 1], budget) == [{}, {}]


@pytest.mark.parametrize("method", METHODS)
def test_members_with_one_seed_are_measured_with_the_same_noise(method):
    """They have the same weights at first, and differ in temperature; other seeds have other noise."""
    ensemble, images = trainer(method), pictures_of(5)
    with torch.no_grad():
        for p in ensemble.model.parameters():
            axis = members_axis(p)
            p.copy_(p.narrow(axis, 0, 1).expand_as(p).clone())
    found = [each["log_likelihood"] for each in assess(ensemble, images, "validation", range(4), Budget(m=20))]
    assert found[:2] == found[2:]
    assert found[0] != found[1]


def test_cold_units_are_measured_as_hard_ones():
    """Both networks have the same noise, so that a limit is one sample by sample."""
    model, x = random_model("igr-i", 3), random_images()
    taus = [None, torch.full((2, 1, 1, 1), 1e-9, dtype=torch.float64)]
    hard, relaxed = log_likelihoods(model, x, 7, torch.Generator().manual_seed(4), taus)
    torch.testing.assert_close(relaxed, hard, rtol=1e-12, atol=0)


def test_only_relaxations_have_relaxed_likelihoods():
    ensemble = trainer("gs", estimator="rloo", num_samples=2)
    (found,) = assess(ensemble, pictures_of(3), "test", [1], Budget(m=5), full=True)
    assert found.keys() == {"log_likelihood"}


def test_assessment_goes_on_where_it_stopped(monkeypatch):
    monkeypatch.setattr("igr.paper.sop.assess.ROWS", {"cpu": 4})
    ensemble, images, budget = trainer("igr-i"), pictures_of(7), Budget(m=5)
    whole = assess(ensemble, images, "test", [0, 3], budget)
    partial: dict = {}
    with pytest.raises(Stopped):
        assess(ensemble, images, "test", [0, 3], budget, stop=lambda: True, partial=partial)
    assert partial["metrics"]["start"] == 2
    assert assess(ensemble, images, "test", [0, 3], budget, partial=json.loads(json.dumps(partial))) == whole


@pytest.mark.parametrize("weights", ["weights.0", "weights.2", "weights.4"])
def test_a_member_that_is_not_finite_has_no_likelihood_and_disturbs_nobody(weights):
    ensemble, images = trainer("igr-i"), torch.from_numpy(pictures_of(7))
    x = ensemble.pixels(images).expand(4, -1, -1)
    (before,) = log_likelihoods(ensemble.model, x, 5, torch.Generator().manual_seed(1))
    curve = ensemble.held_out(images)["log_likelihood_10"]
    with torch.no_grad():
        ensemble.model.get_parameter(weights)[1] = torch.nan
    (after,) = log_likelihoods(ensemble.model, x, 5, torch.Generator().manual_seed(1))
    assert after[1].isnan().all()
    assert torch.equal(after[[0, 2, 3]], before[[0, 2, 3]])
    found = ensemble.held_out(images)["log_likelihood_10"]
    assert found.isnan().tolist() == [False, True, False, False]
    assert torch.equal(found[[0, 2, 3]], curve[[0, 2, 3]])


def test_curves_are_of_ten_discrete_samples():
    """Members with the same seed have the same noise, and at first the same weights; they differ in temperature."""
    ensemble, images = trainer("gs"), torch.from_numpy(pictures_of(40))
    found = ensemble.held_out(images)["log_likelihood_10"]
    assert torch.equal(found[:2], found[2:])
    (many,) = log_likelihoods(ensemble.model, ensemble.pixels(images).expand(4, -1, -1), 2_000, torch.Generator())
    assert (found <= many.mean(-1) + 0.05).all()
    torch.testing.assert_close(found, many.mean(-1), rtol=0, atol=0.2)


def test_pictures_are_completions_below_their_originals():
    ensemble, images = trainer("igr-sb"), pictures_of(20)
    (name, picture), *others = ensemble.pictures(images, 2, Budget()).items()
    assert name == "completions"
    assert not others
    assert picture.shape == ((1 + COMPLETIONS) * 4, COLUMNS * 4)
    tiles = 1 - picture.reshape(1 + COMPLETIONS, 4, COLUMNS, 4).transpose(0, 2, 1, 3)  # (rows, columns, 4, 4), ink 1
    assert np.array_equal(tiles[0].reshape(COLUMNS, 16), images[:COLUMNS])
    assert all(np.array_equal(row[:, :2], tiles[0][:, :2]) for row in tiles)
    lower = tiles[1:, :, 2:]
    assert np.ptp(lower, 0).max() > 0
    states = np.array(list(itertools.product((-1.0, 1.0), repeat=3)))  # what discrete units can be
    w, b = (p[2].detach().numpy() for p in (ensemble.model.weights[-1], ensemble.model.biases[-1]))
    possible = expit(states @ w + b)
    apart = np.abs(lower.reshape(-1, 1, 8) - possible).max(-1).min(-1)
    assert apart.max() < 1e-12


def test_budget_is_recorded():
    assert Budget().settings("gs") == {"m": 1000, "images": None}
    assert Budget().shortened().settings("gs") == {"m": 20, "images": 20}
    assert CompletionEnsemble.budget() == Budget()
