import itertools
import math
import statistics
import time

import numpy as np
import pytest
import torch

from igr import suggest_temperature
from igr.explorer.quantities import BINS, NAMES, Controls, density_grid, parameter, relaxation, view
from igr.paper.demo import simplex_grid

# w·u >= 0, so that the planar flow needs no correction of u, and a plain formula is what it should be
SOME = Controls(0.7, 1.6, (0.4, -0.6), (0.8, 1.3), (0.2, -0.4, 0.5), (0.7, -0.8), (1.5, -1.0), 0.3)
PLACES = {"start": Controls(), "elsewhere": SOME}


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def simulate(name, at, noise):
    """Relaxed samples by the formulas of the paper, and the scores whose largest is the hard sample."""
    if name == "gs":
        logits = np.array(at.logits) if at.logits is not None else np.log(view("igr-i", at).probs)
        scores = logits + noise
        return softmax(scores / at.tau), scores
    y = np.array(at.loc) + np.array(at.scale) * noise[..., :2]
    if name == "igr-sb":
        u = 1 / (1 + np.exp(-y))
        w = np.stack([u[..., 0], (1 - u[..., 0]) * u[..., 1], (1 - u[..., 0]) * (1 - u[..., 1])], -1)
        y = w[..., :2] - w[..., 2:]
    if name == "igr-planar":
        y = y + np.array(at.u) * np.tanh(y @ np.array(at.w) + at.b)[..., None]
    scores = np.concatenate([y, np.zeros_like(y[..., :1])], -1)
    return softmax(scores / at.tau + np.array([0.0, 0.0, math.log(at.delta)])), scores


def noise_of(name, size, seed=1):
    generator = np.random.default_rng(seed)
    return generator.gumbel(size=(size, 3)) if name == "gs" else generator.normal(size=(size, 3))


every = pytest.mark.parametrize("name", NAMES)
everywhere = pytest.mark.parametrize("place", PLACES)


@every
@everywhere
def test_density_integrates_to_one(name, place):
    """In log-ratios a = log(z_k / z_3), where nothing is singular: dz = z1 z2 z3 da; the trapezoidal rule is exact."""
    at = PLACES[place]
    reach = 1.3 / at.tau + 1 if name == "igr-sb" else 40.0
    axis = torch.linspace(-reach, reach, 801, dtype=torch.float64)
    a, b = torch.meshgrid(axis, axis, indexing="ij")
    log_z = torch.stack([a, b, torch.zeros_like(a)], -1).log_softmax(-1)
    q = relaxation(name, at, parameter(name, at))
    total = (q.log_prob_from_log(log_z) + log_z.sum(-1)).exp().sum() * (axis[1] - axis[0]) ** 2
    enough = 1e-4 if name == "igr-sb" else 1e-6  # its density falls steeply at the edge of what it reaches
    assert total.item() == pytest.approx(1.0, abs=enough)


@every
def test_picture_has_the_density_where_it_is(name):
    found, (z, _) = view(name, SOME, resolution=24).log_density, simplex_grid(24)
    q = relaxation(name, SOME, parameter(name, SOME))
    for row, column in ((0, 0), (0, 23), (20, 12), (7, 9)):
        assert found[row, column] == pytest.approx(q.log_prob(torch.from_numpy(z[row, column])).item())
    nearest = [int(z[at].argmax()) for at in ((0, 0), (0, -1), (-1, 12))]
    assert nearest == [0, 1, 2]  # bottom left, bottom right, top


@every
@everywhere
def test_density_belongs_to_the_samples(name, place):
    z, _ = simulate(name, PLACES[place], noise_of(name, 100_000))
    part = (z[:, 0] > 0.3) & (z[:, 0] < 0.6) & (z[:, 1] > 0.1) & (z[:, 1] < 0.3)
    share, error = part.mean(), math.sqrt(part.mean() / len(part))
    x, y = torch.meshgrid(*(torch.linspace(0, 1, 81)[1::2].double() for _ in range(2)), indexing="ij")
    z1, z2 = 0.3 + 0.3 * x, 0.1 + 0.2 * y
    at = PLACES[place]
    q = relaxation(name, at, parameter(name, at))
    probability = q.log_prob(torch.stack([z1, z2, 1 - z1 - z2], -1)).exp().mean() * 0.3 * 0.2
    assert abs(share - probability.item()) < 5 * error


@every
@everywhere
def test_recovered_probabilities_are_those_of_hard_samples(name, place):
    found = view(name, PLACES[place], num_samples=10)
    _, scores = simulate(name, PLACES[place], noise_of(name, 200_000))
    counted = np.bincount(scores.argmax(-1), minlength=3) / len(scores)
    errors = np.sqrt(counted / len(scores) + (0 if found.errors is None else found.errors**2))
    assert (np.abs(found.probs - counted) < 5 * errors).all()
    assert (found.errors is None) == (name != "igr-planar")


@every
@everywhere
def test_distances_are_those_of_a_simulation(name, place):
    found = view(name, PLACES[place])
    z, _ = simulate(name, PLACES[place], noise_of(name, 100_000))
    distance = np.abs(z[:, None] - np.eye(3)).sum(-1).min(-1) / 2  # to each vertex, half the sum of differences
    assert abs(found.distance.mean - distance.mean()) < 5 * found.distance.error
    shares, _ = np.histogram(distance, BINS)
    shares = shares / len(distance)
    assert found.histogram.sum() == pytest.approx(1.0)
    assert (np.abs(found.histogram - shares) < 5 * np.sqrt((shares + 1e-3) / 4_000)).all()


@every
def test_gradient_is_that_of_finite_differences(name):
    found, noise, step = view(name, SOME), noise_of(name, 20_000), 1e-5
    size = 3 if name == "gs" else 2
    columns = []
    for k in range(size):
        moved = [list(SOME.logits if name == "gs" else SOME.loc) for _ in range(2)]
        moved[0][k] += step
        moved[1][k] -= step
        ends = [SOME._replace(**{"logits" if name == "gs" else "loc": tuple(each)}) for each in moved]
        ahead, behind = (simulate(name, each, noise)[0] for each in ends)
        columns.append((ahead - behind) / (2 * step))
    v = np.random.default_rng(2).normal(size=(len(noise), 3))
    norms = np.linalg.norm(np.einsum("sk,psk->sp", v, np.stack(columns)), axis=-1)
    error = math.hypot(norms.std() / math.sqrt(len(norms)), found.gradient.error)
    assert abs(found.gradient.mean - norms.mean()) < 5 * error
    assert found.vanished == 0


@pytest.mark.parametrize("name", ["igr-i", "igr-sb", "gs"])
def test_distance_and_vanishing_gradients_are_those_of_suggested_temperatures(name):
    at = Controls(logits=(0.2, -0.4, 0.5))
    given = {"logits": torch.tensor(at.logits)} if name == "gs" else {"loc": torch.tensor(at.loc), "scale": 1.0}
    asked = {"igr-i": 0.003, "igr-sb": 0.003, "gs": 0.003}[name]
    found = suggest_temperature(3, name, distance=asked, vanishing=0.9, seed=9, **given)
    assert 0.1 < found.vanishing < 0.9
    seen = view(name, at._replace(tau=found.temperature))
    assert abs(seen.distance.mean - asked) < 5 * math.sqrt(2) * seen.distance.error
    spread = math.sqrt(found.vanishing * (1 - found.vanishing) * 2 / 4_000)
    assert abs(seen.vanished - found.vanishing) < 5 * spread


def test_gumbel_softmax_has_the_probabilities_of_igr_i_unless_it_is_given_others():
    at = SOME._replace(logits=None)
    assert view("gs", at).probs == pytest.approx(view("igr-i", at).probs, abs=1e-9)
    assert view("gs", SOME).probs == pytest.approx(softmax(np.array(SOME.logits)))


@every
def test_samples_move_with_the_sliders(name):
    before = view(name, SOME)
    assert np.array_equal(before.samples, view(name, SOME).samples)
    moved = SOME._replace(loc=(0.401, -0.6), logits=(0.201, -0.4, 0.5))
    shift = np.abs(view(name, moved).samples - before.samples).max()
    assert 0 < shift < 0.01


@pytest.mark.parametrize("tau", [0.01, 5.0])
@pytest.mark.parametrize("delta", [0.01, 100.0])
@every
def test_ends_of_the_sliders(name, tau, delta):
    flows = [((3.0, -3.0), (3.0, 3.0), 3.0), ((-3.0, -3.0), (3.0, 3.0), -3.0), ((3.0, 3.0), (0.0, 0.0), 0.0)]
    ends = itertools.product((-5.0, 5.0), (-5.0, 5.0), (0.05, 5.0), (0.05, 5.0), (None, (-5.0, 5.0, 5.0)), flows)
    for mu1, mu2, sigma1, sigma2, logits, (u, w, b) in ends:
        if (logits is not None and name != "gs") or (b != 3.0 and name != "igr-planar"):
            continue
        at = Controls(tau, delta, (mu1, mu2), (sigma1, sigma2), logits, u, w, b)
        found = view(name, at, resolution=16, num_samples=50)
        numbers = [found.samples, found.histogram, found.probs, found.distance, found.gradient, found.vanished]
        assert all(np.isfinite(each).all() for each in numbers), at
        assert not np.isnan(found.log_density).any(), at
        assert (found.log_density < math.inf).all(), at
        assert found.probs.sum() == pytest.approx(1.0), at
        assert found.histogram.sum() == pytest.approx(1.0), at


def test_a_move_of_a_slider_is_answered_at_once(one_thread):
    spent = []
    for i in range(7):
        start = time.perf_counter()
        for name in NAMES:
            view(name, Controls(tau=0.5 + 0.01 * i))
        spent.append(time.perf_counter() - start)
    assert statistics.median(spent) < 0.3


def test_grid_is_that_of_the_picture():
    assert density_grid(64).exp().sum(-1).numpy() == pytest.approx(np.ones((55, 64)))


def test_unknown_relaxation_is_refused():
    with pytest.raises(ValueError, match="no relaxation called 'igr'; expected one of igr-i, igr-sb"):
        relaxation("igr", Controls(), torch.zeros(2))
