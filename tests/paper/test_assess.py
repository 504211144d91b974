import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from torch.distributions import Normal, kl_divergence

from igr import (
    GumbelSoftmax,
    InvertibleGaussian,
    InvertibleReparameterization,
    Planar,
    StickBreaking,
    VertexInterpolation,
)
from igr.paper.assess import Budget
from igr.paper.ensemble import Ensemble
from igr.paper.measure import assess
from igr.paper.models import EnsembleVae
from igr.paper.specs import SPECS, Times
from igr.paper.trainer import ROWS

N, K, D = 3, 3, 8
STATES = np.array(list(itertools.product(range(K), repeat=N)))  # (Z, N)
ROWS_TAKEN = (3, 0)  # two of four members, in an order of their own
DIFFERENT, NUM_IMAGES, SUBSET = 20, 400, 100  # every image comes twenty times, so that one sample each says enough
INDEX = np.arange(NUM_IMAGES) * DIFFERENT // NUM_IMAGES
NOTHING = np.zeros(1)
DRAWS = 500  # of a frequency table
MIX = 1e-3  # its uniform part
CASES = {
    "igr-i": ("mnist/linear/igr-i", {}),
    "igr-sb": ("mnist/linear/igr-sb", {}),
    "igr-planar": ("mnist/linear/igr-planar", {}),
    "gs": ("mnist/linear/gs", {"prior_temperatures": (Times(2.0),)}),
    "igr-sb-published": ("mnist/linear/igr-sb", {"protocol": "published"}),
    "igr-sb-vertex": ("mnist/linear/igr-sb", {"onto": "vertex"}),
    "igr-i-grey": ("fmnist/linear/igr-i", {}),
}
BASIC = {"elbo_discrete", "elbo_continuous"}


pytestmark = pytest.mark.usefixtures("one_thread")


def different_images(grey: bool) -> np.ndarray:
    """From much ink to little, so that the first ones are not like the others."""
    rng = np.random.default_rng(0)
    ink = rng.random((DIFFERENT, D)) < np.linspace(0.9, 0.1, DIFFERENT)[:, None]
    return (ink * rng.integers(100, 256, ink.shape) if grey else ink).astype(np.uint8)


def members_of(case: str, **changes) -> Ensemble:
    """Four members with weights of some size."""
    id, more = CASES[case]
    small = {"temperatures": (0.3, 0.8), "seeds": (1, 2), "batch_size": DIFFERENT}
    cell = replace(SPECS[f"table1/{id}"], **small | more | changes)
    made = Ensemble(
        cell,
        different_images(cell.dataset == "fmnist"),
        torch.device("cpu"),
        torch.float64,
        num_variables=N,
        num_categories=K,
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in made.vae.parameters():
            p.normal_(std=0.5, generator=generator)
        for i, weight in enumerate(made.vae.weights, 1):
            gain = {made.vae.depth: 1.0, len(made.vae.weights): 6.0}.get(i, 8**0.5)  # log p(x|z) must depend on z
            weight *= gain / weight.shape[1] ** 0.5
    return made


def affine(made: Ensemble, rows, h, first: int, end: int) -> np.ndarray:
    """Layers with ReLU between them, for h of shape (E, *, in)."""
    for i in range(first, end):
        weight, bias = (p[list(rows)].detach().numpy() for p in (made.vae.weights[i], made.vae.biases[i]))
        h = np.einsum("ebi,eij->ebj", h, weight) + bias
        h = np.maximum(h, 0) if i + 1 < end else h
    return h


class Exact:
    """What the metrics are estimates of, by sums over the 27 states, in numpy; (T, E, B) for T simulations.

    A frequency table is a multinomial number of each category, and m samples are a multinomial number of each state.
    """

    def __init__(self, made: Ensemble, rows, num_draws: int, num_simulations: int = 200) -> None:
        self.made, self.rows, cell, self.rng = made, list(rows), made.cell, np.random.default_rng(1)
        pixels = made.images.numpy() / (255 if cell.dataset == "fmnist" else 1)
        self.x = np.broadcast_to(pixels, (len(self.rows), *pixels.shape))
        depth = len(made.vae.weights) // 2
        self.h = affine(made, self.rows, self.x, 0, depth)
        z = np.eye(K)[STATES].reshape(1, len(STATES), N * K)
        out = affine(made, self.rows, np.repeat(z, len(self.rows), 0), depth, 2 * depth)[:, None]  # (E, 1, Z, D)
        self.log_px = self.log_likelihood(out).sum(-1)  # (E, B, Z)
        self.probs = self.probabilities()  # (E, B, N, K)
        self.tables = np.broadcast_to(self.probs, (num_simulations, *self.probs.shape))
        if cell.method in ("igr-sb", "igr-planar"):
            self.tables = (1 - MIX) * self.rng.multinomial(num_draws, self.tables) / num_draws + MIX / K
        self.log_q = sum(np.log(self.tables[..., n, STATES[:, n]]) for n in range(N))  # (T, E, B, Z)
        self.log_joint = self.log_px - N * np.log(K)
        self.log_evidence = scipy.special.logsumexp(self.log_joint, -1)  # (E, B)

    def log_likelihood(self, out: np.ndarray) -> np.ndarray:
        x = self.x[:, :, None]
        if self.made.cell.dataset == "fmnist":
            scale = 0.1 + np.log1p(np.exp(out[..., D:]))
            return scipy.stats.norm(scipy.special.expit(out[..., :D]), scale).logpdf(x)
        return x * scipy.special.log_expit(out) + (1 - x) * scipy.special.log_expit(-out)

    def probabilities(self) -> np.ndarray:
        """How often each category is the largest, by points that fill the plane evenly, or the softmax of GS."""
        if self.made.cell.method == "gs":
            return scipy.special.softmax(self.h.reshape(*self.h.shape[:2], N, K), -1)
        mu, xi = np.moveaxis(self.h.reshape(*self.h.shape[:2], 2, N, K - 1), 2, 0)  # (E, B, N, K - 1)
        u = scipy.stats.qmc.Sobol(K - 1, scramble=False).random_base2(14) + 2.0**-15
        eps = scipy.stats.norm.ppf(u)[:, None, None]
        each = [self.scores(m + s * eps, row) for m, s, row in zip(mu, np.exp(xi), self.rows, strict=True)]
        return np.stack([np.eye(K)[y.argmax(-1)].mean(0) for y in each])

    def scores(self, y: np.ndarray, row: int) -> np.ndarray:
        """What the K categories compete with, for y of shape (*, B, N, K - 1)."""
        cell = self.made.cell
        if cell.method == "igr-sb":
            stick, rest = scipy.special.expit(y), scipy.special.expit(-y)
            w = [stick[..., 0], rest[..., 0] * stick[..., 1], rest[..., 0] * rest[..., 1]]
            return np.stack(w if cell.protocol == "honest" else [*w[:-1], np.full_like(w[0], -1.0)], -1)
        if cell.method == "igr-planar":
            for u, w, b in zip(*(p.detach().numpy()[:, row] for p in planar(self.made)), strict=True):
                along = (w * u).sum(-1, keepdims=True)
                c = 1 - 1e-6
                allowed = np.where(along < 0, c * np.expm1(along / c), along)
                u = u + (allowed - along) * w / (w * w).sum(-1, keepdims=True)
                y = y + u * np.tanh((w * y).sum(-1) + b)[..., None]
        return np.concatenate([y, np.zeros_like(y[..., :1])], -1)

    def mean(self, values: np.ndarray) -> np.ndarray:
        """The mean under q of what is known of each state."""
        return (np.exp(self.log_q) * values).sum(-1)

    def log_mean(self, log_values: np.ndarray, m: int) -> np.ndarray:
        """The logarithm of the mean over m samples of q."""
        counts = self.rng.multinomial(m, np.exp(self.log_q))
        return scipy.special.logsumexp(np.broadcast_to(log_values, counts.shape), -1, b=counts / m)

    def divergence(self) -> np.ndarray:
        return self.mean(self.log_q + N * np.log(K))

    def elbo(self, m: int) -> tuple[np.ndarray, np.ndarray]:
        """Of the discrete model, and its variance with m samples; the published formula with one sample is the same."""
        fit = self.mean(self.log_px)
        return fit - self.divergence(), (self.mean(self.log_px**2) - fit**2) / m

    def one_weight(self) -> tuple[np.ndarray, np.ndarray]:
        """The bound of one sample: its mean is the evidence lower bound."""
        log_w = self.log_joint - self.log_q
        return self.mean(log_w), self.mean(log_w**2) - self.mean(log_w) ** 2

    def bound(self, m: int) -> tuple[np.ndarray, np.ndarray]:
        """Of m samples, simulated; no less than the evidence lower bound, and at most the likelihood."""
        return self.log_mean(self.log_joint - self.log_q, m), NOTHING

    def published(self, m: int) -> tuple[np.ndarray, np.ndarray]:
        """The published formula with m samples, simulated."""
        return self.log_mean(self.log_px, m) - self.divergence(), NOTHING

    def published_limit(self) -> tuple[np.ndarray, np.ndarray]:
        r""":math:`\log E_q p(x | z) - KL`."""
        return np.log(self.mean(np.exp(self.log_px))) - self.divergence(), NOTHING

    def deviation(self) -> tuple[np.ndarray, np.ndarray]:
        """The largest error of a frequency table."""
        return np.abs(self.tables - self.probs).max((-2, -1)), NOTHING

    def elbo_continuous(self, num_samples: int = 1_000) -> tuple[np.ndarray, np.ndarray]:
        """Of the relaxed model with one sample, by the library's densities."""
        made, rows, cell = self.made, self.rows, self.made.cell
        x, h, tau = torch.from_numpy(self.x.copy()), torch.from_numpy(self.h), made.tau[self.rows]
        vae = made.vae.subset(rows)
        if cell.method == "gs":
            q = GumbelSoftmax(tau, h.unflatten(-1, (N, K)))
            p = GumbelSoftmax(made.prior.temperature[rows], torch.zeros(N, K, dtype=torch.float64))
        else:
            mu, xi = h.unflatten(-1, (2, N, K - 1)).unbind(2)
            q = InvertibleGaussian(mu, xi.exp(), tau, flow=flow_of(made, rows))
            if cell.onto == "vertex":
                q = InvertibleReparameterization(Normal(mu, xi.exp()), VertexInterpolation(tau))
            p = InvertibleGaussian(made.prior.loc.expand(N, K - 1), made.prior.scale, tau)
        log_z, log_q = q.log_rsample_and_log_prob((num_samples,))
        with torch.no_grad():
            fit = vae.log_px(x, log_z.exp())
            if cell.method in ("igr-i", "igr-sb"):  # their flow is the prior's too
                ratio = kl_divergence(Normal(mu, xi.exp()), Normal(made.prior.loc, made.prior.scale)).sum((-2, -1))
            else:
                ratio = (log_q - p.log_prob_from_log(log_z)).sum(-1)
        return (fit - ratio).numpy(), NOTHING


def planar(made: Ensemble):
    """u, w and b, (layers, E, N, K - 1) and (layers, E, N)."""
    return [p.squeeze(2) for p in (made.vae.u, made.vae.w, made.vae.b)]


def flow_of(made: Ensemble, rows):
    if made.cell.method == "igr-sb":
        return StickBreaking(leftover=made.cell.protocol == "honest")
    if made.cell.method == "igr-planar":
        return [Planar(u[rows, None], w[rows, None], b[rows, None]) for u, w, b in zip(*planar(made), strict=True)]
    return None


def over_images(values: np.ndarray, variances: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean over images of what is expected of each, (E,), and its standard error.

    Arguments:
        values: of T simulations, ``(T, E, B)``; each image of the split is like any of them.
        variances: of what is not simulated, beside that.
        index: which of the B images a split has.
    """
    share = np.bincount(index, minlength=values.shape[-1]) / len(index)
    variance = values.var(0) + np.broadcast_to(variances, values.shape).mean(0)
    simulated = values.var(0) / len(values)
    return values.mean(0) @ share, np.sqrt(variance @ share / len(index) + simulated @ share**2)


def check(found, name: str, exact: tuple[np.ndarray, np.ndarray], index: np.ndarray = INDEX):
    """That a metric is what it should be, to five standard errors; returns what it should be, and the error."""
    expected, error = over_images(*exact, index)
    z = (np.array([each[name] for each in found]) - expected) / error
    assert np.abs(z).max() < 5, f"{name} should be {expected}, is {[each[name] for each in found]}, z = {z}"
    return expected, error


def told_apart(a, b) -> bool:
    """Whether two expected values are so far apart that, for some member, one cannot pass for the other."""
    return bool((np.abs(a[0] - b[0]) > 7 * np.maximum(a[1], b[1])).any())


@cache
def exact_of(case: str, num_draws: int) -> Exact:
    return Exact(members_of(case), ROWS_TAKEN, num_draws)


@pytest.fixture
def _batches(monkeypatch):
    """Three batches of images, the last one shorter."""
    monkeypatch.setitem(ROWS, "cpu", 150 * len(ROWS_TAKEN))


@pytest.mark.usefixtures("_batches")
@pytest.mark.parametrize("case", CASES)
def test_every_metric_of_the_test_split_is_a_sum_over_states(case):
    """One chain of one temperature is one importance weight: its mean is known, and is not the likelihood."""
    made, exact = members_of(case), exact_of(case, DRAWS)
    budget = Budget(500, 1, DRAWS, 1, 1, None, SUBSET, 1, 1)
    found = assess(made, made.images.numpy()[INDEX], "test", ROWS_TAKEN, budget, full=True)
    wanted = BASIC | {"log_likelihood", "log_likelihood_published_1", "log_likelihood_published_500"}
    wanted |= {"log_likelihood_ais", "log_likelihood_subset"}
    wanted |= {"table_deviation"} if made.cell.method == "igr-sb" else set()
    assert [each.keys() for each in found] == [wanted] * 2
    elbo = check(found, "elbo_discrete", exact.elbo(500))
    bound = check(found, "log_likelihood", exact.bound(500))
    one = check(found, "log_likelihood_published_1", exact.elbo(1))
    many = check(found, "log_likelihood_published_500", exact.published(500))
    continuous = check(found, "elbo_continuous", exact.elbo_continuous())
    subset = check(found, "log_likelihood_subset", exact.bound(500), INDEX[:SUBSET])
    single = check(found, "log_likelihood_ais", exact.one_weight(), INDEX[:SUBSET])
    pairs = [(elbo, bound), (elbo, many), (bound, many), (one, many), (one, bound), (continuous, elbo)]
    assert all(told_apart(*pair) for pair in [*pairs, (subset, bound), (subset, single)])
    if made.cell.method == "igr-sb":
        check(found, "table_deviation", exact.deviation(), INDEX[:2])


@pytest.mark.parametrize("case", ["igr-i", "gs"])
def test_many_samples_find_the_likelihood_and_the_limit_of_the_published_formula(case):
    made, exact = members_of(case), exact_of(case, DRAWS)
    budget = Budget(m=50_000, ais_images=1, ais_chains=1, ais_temperatures=1)
    found = assess(made, made.images.numpy(), "test", ROWS_TAKEN, budget, full=True)
    truth, limit = exact.log_evidence.mean(-1), exact.published_limit()[0][0].mean(-1)
    for name, target, simulated in (
        ("log_likelihood", truth, exact.bound(50_000)),
        ("log_likelihood_published_50000", limit, exact.published(50_000)),
    ):
        _, error = check(found, name, simulated, np.arange(DIFFERENT))
        assert error.max() < 0.01
        assert (np.abs(np.array([each[name] for each in found]) - target) < 5 * error).all()
    assert np.abs(truth - limit).min() > 0.2


@pytest.mark.usefixtures("_batches")
@pytest.mark.parametrize("case", ["igr-i", "igr-sb", "igr-planar", "gs"])
def test_annealing_finds_the_likelihood_of_which_one_sample_is_far(case):
    """Every member is measured six times: the same row, with noise of its own."""
    made, exact, times = members_of(case), exact_of(case, DRAWS), 6
    index = INDEX[:SUBSET]
    budget = Budget(1, 100, DRAWS, 1, 1, None, SUBSET, 8, 40)
    rows = [row for row in ROWS_TAKEN for _ in range(times)]
    found = assess(made, made.images.numpy()[index], "test", rows, budget, full=True)
    assert "log_likelihood_published_100" not in found[0]  # of a hundred samples, where there is one
    for i in range(times):
        check(found[i::times], "log_likelihood_published_1", exact.elbo(1), index)
        check(found[i::times], "log_likelihood", exact.one_weight(), index)
        single = check(found[i::times], "log_likelihood_subset", exact.one_weight(), index)
    annealed = np.array([each["log_likelihood_ais"] for each in found]).reshape(-1, times)
    truth, variance = exact.log_evidence[:, index].mean(-1), annealed.var(-1, ddof=1)
    below = SUBSET * variance / 2  # half the variance of an image's, by the delta method
    assert (below < 0.05).all()
    assert (np.abs(annealed.mean(-1) - truth + below) < 5 * np.sqrt(variance / times)).all()
    assert told_apart((truth, NOTHING), single)


@pytest.mark.usefixtures("_batches")
@pytest.mark.parametrize("case", ["igr-i", "igr-sb", "igr-planar", "gs"])
def test_every_metric_of_the_other_splits_is_a_sum_over_states(case):
    """On the training images there are fewer samples and a smaller table, which costs the bound a known part."""
    made, small, large = members_of(case), exact_of(case, 2), exact_of(case, DRAWS)
    budget = Budget(500, 1, DRAWS, train_samples=100, train_table=2)
    images = made.images.numpy()[INDEX]
    found = {split: assess(made, images, split, ROWS_TAKEN, budget) for split in ("train", "validation")}
    assert [each.keys() for each in found["train"]] == [BASIC] * 2
    assert [each.keys() for each in found["validation"]] == [BASIC | {"log_likelihood"}] * 2
    train = check(found["train"], "elbo_discrete", small.elbo(100))
    elbo = check(found["validation"], "elbo_discrete", large.elbo(500))
    bound = check(found["validation"], "log_likelihood", large.bound(500))
    assert told_apart(elbo, bound)
    assert told_apart(train, elbo) == (case in ("igr-sb", "igr-planar"))
    for split in found:
        check(found[split], "elbo_continuous", large.elbo_continuous())


def test_without_a_linear_decoder_there_is_no_annealing():
    made = members_of("igr-i", architecture="nonlinear")
    budget = Budget(m=200, published=10, ais_images=1)
    found = assess(made, made.images.numpy(), "test", ROWS_TAKEN, budget, full=True)
    wanted = BASIC | {"log_likelihood", "log_likelihood_published_10", "log_likelihood_published_200"}
    assert [each.keys() for each in found] == [wanted] * 2
    exact, index = Exact(made, ROWS_TAKEN, DRAWS), np.arange(DIFFERENT)
    elbo = check(found, "elbo_discrete", exact.elbo(200), index)
    bound = check(found, "log_likelihood", exact.bound(200), index)
    check(found, "log_likelihood_published_10", exact.published(10), index)
    published = check(found, "log_likelihood_published_200", exact.published(200), index)
    check(found, "elbo_continuous", exact.elbo_continuous(), index)
    assert told_apart(elbo, bound)
    assert told_apart(elbo, published)


def test_trained_members_are_measured_like_any_other():
    made = members_of("gs", learning_rate=0.05)
    before = exact_of("gs", DRAWS).elbo(1)[0].mean()
    for _ in range(100):
        made.run_epoch()
    found = assess(made, made.images.numpy()[INDEX], "validation", ROWS_TAKEN, Budget(m=500))
    exact = Exact(made, ROWS_TAKEN, DRAWS)
    elbo, _ = check(found, "elbo_discrete", exact.elbo(500))
    check(found, "log_likelihood", exact.bound(500))
    check(found, "elbo_continuous", exact.elbo_continuous())
    assert elbo.mean() > before + 1


def test_no_relaxed_prior_no_continuous_bound():
    made = members_of("gs", objective="discrete", prior_temperatures=())
    (found,) = assess(made, made.images.numpy(), "validation", [1], Budget(m=2))
    assert found.keys() == {"elbo_discrete", "log_likelihood"}


@pytest.mark.parametrize(("split", "per_image"), [("train", 7), ("validation", 50)])
def test_spends_what_the_budget_says_on_the_first_images(split, per_image, monkeypatch):
    made, decoded = members_of("igr-i"), []
    original = EnsembleVae.log_px

    def log_px(self, x, z):
        decoded.append((x[0], len(z)))
        return original(self, x, z)

    monkeypatch.setattr(EnsembleVae, "log_px", log_px)
    budget = Budget(m=50, train_samples=7, images=12)
    found = assess(made, made.images.numpy(), split, ROWS_TAKEN, budget)
    assert all(torch.equal(x, made.images[:12].double()) for x, _ in decoded)
    assert sum(samples for _, samples in decoded) == per_image + 1  # and one of the relaxed model
    assert found == assess(made, made.images.numpy()[:12], split, ROWS_TAKEN, replace(budget, images=None))
