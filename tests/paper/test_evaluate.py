import itertools
import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
import torch.nn.functional as F
from torch import Tensor

from igr import GumbelSoftmax, InvertibleGaussian, Planar, StickBreaking, _relaxation, fit_prior
from igr.distributions import monte_carlo_recovered
from igr.paper import evaluate
from igr.paper.evaluate import Scores
from igr.recovery import recovered_log_probs, recovered_log_probs_stick_breaking

DOUBLE = torch.float64
CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))


class TinyVae:
    """A VAE with few enough states to sum over all of them, in numpy; its images are samples of the model itself."""

    def __init__(self, seed: int, *, N: int = 3, K: int = 4, E: int = 2, B: int = 3, weight: float, error: float,
                 prior: float = 0.5):  # fmt: skip
        rng = np.random.default_rng(seed)
        self.N, self.K, D = N, K, 12
        self.states = np.array(list(itertools.product(range(K), repeat=N)))  # (Z, N)
        self.W, self.b = weight * rng.normal(size=(E, N, K, D)), rng.normal(size=(E, D))
        self.log_p = scipy.special.log_softmax(prior * rng.normal(size=(N, K)), -1)
        logits = self.b[:, None] + sum(self.W[:, n, self.states[:, n]] for n in range(N))  # (E, Z, D)
        log_pz = self.of_states(self.log_p)  # (Z,)
        drawn = rng.choice(len(self.states), size=B, p=np.exp(log_pz))
        self.x = (rng.random((B, D)) < scipy.special.expit(logits[0, drawn])).astype(float)
        on, off = (scipy.special.log_expit(sign * logits)[:, None] for sign in (1, -1))
        self.log_px = (self.x[:, None] * on + (1 - self.x[:, None]) * off).sum(-1)  # (E, B, Z)
        self.log_joint = self.log_px + log_pz
        self.log_evidence = scipy.special.logsumexp(self.log_joint, -1)  # (E, B)
        self.posterior = np.exp(self.log_joint - self.log_evidence[..., None])
        marginals = np.stack(
            [[self.posterior[..., self.states[:, n] == k].sum(-1) for k in range(K)] for n in range(N)]
        )
        wrong = error * rng.normal(size=(E, B, N, K))
        self.log_q = scipy.special.log_softmax(np.log(np.moveaxis(marginals, (0, 1), (-2, -1))) + wrong, -1)

    def of_states(self, table: np.ndarray) -> np.ndarray:
        """Log-probabilities (*, Z) of all states by a table (*, N, K)."""
        return sum(table[..., n, self.states[:, n]] for n in range(self.N))

    def elbo(self, table: np.ndarray) -> np.ndarray:
        log_q = self.of_states(table)
        return (np.exp(log_q) * (self.log_joint - log_q)).sum(-1)

    def tensors(self, dtype: torch.dtype = DOUBLE, device: str = "cpu"):
        """log_q, log_p and the decoder, as the functions under test take them."""
        log_q, log_p, W, b, x = (torch.tensor(a, dtype=dtype, device=device) for a in
                                 (self.log_q, self.log_p, self.W, self.b, self.x))  # fmt: skip

        def log_px(z: Tensor) -> Tensor:
            logits = torch.einsum("sebnk,enkd->sebd", z, W) + b[:, None]
            return -F.binary_cross_entropy_with_logits(logits, x.expand_as(logits), reduction="none").sum(-1)

        return log_q, log_p, log_px


@pytest.fixture
def vae() -> TinyVae:
    return TinyVae(2, weight=1.5, error=1.5)


def replicates(scores: Scores, m: int) -> Scores:
    """Samples in sets of m: every metric is then of shape (R, E, B)."""
    terms = [t[: len(t) // m * m].reshape(-1, m, *t.shape[1:]).transpose(0, 1) for t in scores[:3]]
    return Scores(*terms, scores.kl)


def elbo(scores: Scores) -> Tensor:
    return evaluate.elbo_discrete(scores.log_px, scores.kl)


def mean_and_error(values: Tensor) -> tuple[np.ndarray, np.ndarray]:
    return values.mean(0).numpy(), (values.std(0) / math.sqrt(len(values))).numpy()


def test_importance_weighted_bound_rises_to_the_exact_likelihood(vae):
    scores = evaluate.score(*vae.tensors(), 600_000)
    chi_square = np.exp(2 * vae.log_joint - vae.of_states(vae.log_q)).sum(-1) / np.exp(2 * vae.log_evidence) - 1
    gaps, errors = [], []
    for m in (1, 10, 100, 1000):
        mean, error = mean_and_error(evaluate.log_likelihood(replicates(scores, m)))
        gaps.append(vae.log_evidence - mean)
        errors.append(error)
        assert (gaps[-1] > -5 * error).all(), f"above log p(x) at m = {m}"
    averages = [(gap.mean(), np.sqrt((error**2).mean() / error.size)) for gap, error in zip(gaps, errors, strict=True)]
    for (gap, error), (next_gap, next_error) in itertools.pairwise(averages):
        assert gap - next_gap > 5 * math.hypot(error, next_error)
    limit = chi_square / 2000  # the delta method, at m = 1000
    assert (np.abs(gaps[-1] - limit) < 5 * errors[-1] + 0.1 * limit).all()
    assert np.abs(gaps[-1]).max() < 0.05


def test_single_samples_have_the_elbo_as_their_mean(vae):
    scores = evaluate.score(*vae.tensors(), 100_000)
    exact = vae.elbo(vae.log_q)
    assert (vae.log_evidence - exact > 0.1).all()
    for metric in (evaluate.log_likelihood, elbo, evaluate.log_likelihood_published):
        mean, error = mean_and_error(metric(replicates(scores, 1)))
        assert (np.abs(mean - exact) < 5 * error).all()
    np.testing.assert_allclose(elbo(scores), exact, atol=0.05)


def test_divergence_is_that_of_the_joint_distributions(vae):
    log_q = vae.of_states(vae.log_q)
    exact = (np.exp(log_q) * (log_q - vae.of_states(vae.log_p))).sum(-1)
    np.testing.assert_allclose(evaluate.score(*vae.tensors(), 1).kl, exact, rtol=1e-12)


def test_scores_belong_to_the_states_that_were_decoded(vae):
    log_q, log_p, log_px = vae.tensors()
    decoded = []
    scores = evaluate.score(log_q, log_p, lambda z: decoded.append(z) or log_px(z), 50, chunk=20)
    assert [len(z) for z in decoded] == [20, 20, 10]
    z = torch.cat(decoded).numpy()
    assert set(np.unique(z)) == {0.0, 1.0}
    assert (z.sum(-1) == 1).all()
    state = (z.argmax(-1) * vae.K ** np.arange(vae.N)[::-1]).sum(-1)  # (S, E, B), in the order of the enumeration
    e, b = np.ogrid[: z.shape[1], : z.shape[2]]
    for found, exact in ((scores.log_px, vae.log_px[e, b, state]), (scores.log_pz, vae.of_states(vae.log_p)[state]),
                         (scores.log_qz, vae.of_states(vae.log_q)[e, b, state])):  # fmt: skip
        np.testing.assert_allclose(found, exact, rtol=1e-12, atol=1e-12)


def test_the_posterior_gives_the_likelihood_with_any_number_of_samples():
    vae = TinyVae(1, N=1, weight=1.0, error=0.0)  # one variable: q is the posterior itself
    np.testing.assert_allclose(np.exp(vae.of_states(vae.log_q)), vae.posterior, rtol=1e-10)
    scores = evaluate.score(*vae.tensors(), 10_000)
    for m in (1, 10, 1000):
        bound = evaluate.log_likelihood(replicates(scores, m))
        np.testing.assert_allclose(bound, np.broadcast_to(vae.log_evidence, bound.shape), rtol=0, atol=1e-12)
    assert (evaluate.log_likelihood_published(scores).numpy() > vae.log_evidence).all()


def published_limit(vae: TinyVae, S: int) -> tuple[np.ndarray, np.ndarray]:
    """What the published formula tends to, log E p(x|z) - KL, by enumeration, and its standard error with S samples."""
    log_q = vae.of_states(vae.log_q)
    log_mean = scipy.special.logsumexp(log_q + vae.log_px, -1)
    log_square = scipy.special.logsumexp(log_q + 2 * vae.log_px, -1)
    kl = (np.exp(log_q) * (log_q - vae.of_states(vae.log_p))).sum(-1)
    return log_mean - kl, np.sqrt(np.expm1(log_square - 2 * log_mean) / S)


@pytest.mark.parametrize("N", [1, 3])
def test_published_formula_tends_to_what_enumeration_says(N: int):
    vae = TinyVae(1, N=N, weight=1.0, error=0.0)
    limit, error = published_limit(vae, 200_000)
    published = evaluate.log_likelihood_published(evaluate.score(*vae.tensors(), 200_000)).numpy()
    assert (np.abs(published - limit) < 5 * error).all()


def test_published_formula_exceeds_the_likelihood():
    """A pixel that is on, two categories: p(z) = (0.01, 0.99), p(x|z) = (0.9, 0.009), q the posterior."""
    p, likelihood = np.array([0.01, 0.99]), np.array([0.9, 0.009])
    evidence = (p * likelihood).sum()
    q = p * likelihood / evidence  # nearly (1/2, 1/2)
    excess = math.log((q * likelihood).sum()) - (q * np.log(q / p)).sum() - math.log(evidence)
    assert excess > 1.6
    decoder = torch.from_numpy(np.log(likelihood))
    log_q, log_p = (torch.from_numpy(np.log(table)).reshape(1, 1, 1, 2) for table in (q, p))
    scores = evaluate.score(log_q, log_p, lambda z: (z[..., 0, :] * decoder).sum(-1), 100_000)
    error = math.sqrt((q * likelihood**2).sum() / (q * likelihood).sum() ** 2 - 1) / math.sqrt(100_000)
    assert abs(evaluate.log_likelihood_published(scores).item() - math.log(evidence) - excess) < 5 * error
    assert evaluate.log_likelihood(scores).item() == pytest.approx(math.log(evidence), abs=1e-12)


def test_published_formula_by_hand():
    log_px = torch.tensor([1.0, 3.0, 100.0], dtype=DOUBLE).log().reshape(3, 1, 1)
    scores = Scores(log_px, torch.zeros(3, 1, 1), torch.zeros(3, 1, 1), torch.full((1, 1), 0.25, dtype=DOUBLE))
    assert evaluate.log_likelihood_published(scores, 2).item() == pytest.approx(math.log(2) - 0.25)
    assert evaluate.log_likelihood_published(scores).item() == pytest.approx(math.log(104 / 3) - 0.25)
    assert evaluate.log_likelihood(scores, 2).item() == pytest.approx(math.log(2))
    for wrong in (0, 4):
        with pytest.raises(ValueError, match="between 1 and the 3 samples"):
            evaluate.log_likelihood_published(scores, wrong)


def relaxation(name: str, shape: tuple[int, ...]):
    """A relaxation and its exact log-probabilities, K = 4."""
    loc, scale = torch.randn(*shape, 3, dtype=DOUBLE), torch.rand(*shape, 3, dtype=DOUBLE) + 0.5
    match name:
        case "igr-i":
            return InvertibleGaussian(loc, scale, 0.5), recovered_log_probs(loc, scale)
        case "igr-sb":
            q = InvertibleGaussian(loc, scale, 0.5, flow=StickBreaking())
            return q, recovered_log_probs_stick_breaking(loc, scale)
        case "gs":
            logits = torch.randn(*shape, 4, dtype=DOUBLE)
            return GumbelSoftmax(0.5, logits), logits.log_softmax(-1)
    raise ValueError(name)


@pytest.mark.parametrize("name", ["igr-i", "igr-sb", "gs"])
def test_frequency_table_counts_categories(name: str):
    S, mix = 60_000, 0.01
    q, exact = relaxation(name, (2, 3, 5))
    table = evaluate.frequency_table(q, S, mix)
    assert table.dtype == DOUBLE
    torch.testing.assert_close(table.logsumexp(-1), torch.zeros(2, 3, 5, dtype=DOUBLE), rtol=0, atol=1e-12)
    counts = (table.exp() - mix / 4) / (1 - mix) * S
    torch.testing.assert_close(counts, counts.round(), rtol=0, atol=1e-6)
    p = exact.exp()
    z = (counts.round() - S * p) / (S * p * (1 - p)).sqrt()
    enough = S * p > 20  # for a normal approximation
    assert enough.double().mean() > 0.8
    assert z[enough].abs().max() < 5
    assert 0.6 < z[enough].square().mean() < 1.4


def test_frequency_table_in_other_precisions():
    loc = 3 * torch.randn(2, 50, 9)
    flow = Planar(u=torch.randn(9), w=torch.randn(9))
    for dtype in (torch.float32, torch.bfloat16):
        q = InvertibleGaussian(loc.to(dtype), 1.0, 0.1, flow=flow)
        table = evaluate.frequency_table(q, 3000, 1e-3)
        assert table.dtype == torch.float32
        assert table.shape == (2, 50, 10)
        counts = (table.double().exp() - 1e-4) / 0.999 * 3000
        assert (counts - counts.round()).abs().max() < 2e-3
        assert (counts.round().sum(-1) == 3000).all()


def test_frequency_table_of_level_scores_is_that_of_one_hot_vectors():
    loc = torch.tensor([[1.0, 1.0, -2.0], [-1.0, 3.0, 3.0], [-1.0, -1.0, -1.0], [0.5, 0.5, 0.5]])
    q = InvertibleGaussian(loc, 1e-12, 0.5)  # whose noise is less than half a digit of these locations
    draws = q.hard_rsample((7,))
    assert torch.equal(draws.argmax(-1), torch.tensor([0, 1, 3, 0]).expand(7, 4))
    table = evaluate.frequency_table(q, 7, 0.2)
    torch.testing.assert_close(table.exp(), 0.8 * draws.mean(0) + 0.05, rtol=0, atol=1e-6)


def test_frequency_table_is_unknown_where_scores_are():
    loc = torch.tensor([[1.0, math.nan], [math.nan, -1.0], [1.0, -1.0]])
    q = InvertibleGaussian(loc, 1.0, 0.5, validate_args=False)
    for table in (evaluate.frequency_table(q, 50), *monte_carlo_recovered(q, 50)):
        assert table.isnan().all(-1).tolist() == [True, True, False]
        assert table[2].isfinite().all()


@pytest.mark.parametrize("mix", [1e-3, 0.3])
def test_bounds_hold_for_a_bad_table(vae, mix: float):
    q = InvertibleGaussian(torch.randn(2, 3, 3, 3, dtype=DOUBLE), 1.0, 0.5, flow=StickBreaking())
    table = evaluate.frequency_table(q, 5, mix)
    assert (table.exp() < mix / 3).any()  # there are categories that were not seen
    _, log_p, log_px = vae.tensors()
    scores = evaluate.score(table, log_p, log_px, 400_000)
    for m in (1, 10, 100):
        mean, error = mean_and_error(evaluate.log_likelihood(replicates(scores, m)))
        assert (mean - vae.log_evidence < 5 * error).all()
    mean, error = mean_and_error(elbo(replicates(scores, 1)))
    assert (np.abs(mean - vae.elbo(table.numpy())) < 5 * error).all()


def test_weights_of_a_bad_table_average_to_the_likelihood(vae):
    q = InvertibleGaussian(torch.randn(2, 3, 3, 3, dtype=DOUBLE), 1.0, 0.5, flow=StickBreaking())
    scores = evaluate.score(evaluate.frequency_table(q, 5, 0.3), *vae.tensors()[1:], 400_000)
    weights = (scores.log_px + scores.log_pz - scores.log_qz - torch.from_numpy(vae.log_evidence)).exp()
    mean, error = mean_and_error(weights)
    assert (np.abs(mean - 1) < 5 * error).all()
    assert error.max() < 0.05


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_categories_are_drawn_as_often_as_the_table_says(dtype: torch.dtype):
    p = torch.tensor([[1e-4, 0.0, 0.3, 0.6999], [0.25, 0.25, 0.5, 0.0], [0.0, 0.0, 1.0, 0.0]], dtype=dtype)
    S = 300_000
    index = evaluate.sample_categories(p.log(), (S,))
    assert index.shape == (S, 3)
    counts = np.stack([np.bincount(column, minlength=4) for column in index.T])
    possible = p.numpy() > 0
    assert (counts[~possible] == 0).all()
    assert counts[2, 2] == S
    for row in range(2):
        expected = p[row].double().numpy()[possible[row]]
        assert scipy.stats.chisquare(counts[row, possible[row]], S * expected / expected.sum()).pvalue > 1e-5


GAPS = (0.0, 0.5, 0.0, 0.5, 0.0, 1e-300)
TENTHS = (*10 * [0.1], 0.0)  # the first ten sum to 1 - 2^-53 in float64
JUST_BELOW_ONE = 1 - 2**-53


@pytest.mark.parametrize(
    ("p", "u", "expected"),
    [(GAPS, 0.0, 1), (GAPS, 0.25, 1), (GAPS, 0.75, 3), (GAPS, JUST_BELOW_ONE, 3), (TENTHS, JUST_BELOW_ONE, 9)],
    ids=["gaps-least", "gaps-first", "gaps-second", "gaps-most", "tenths-most"],
)
def test_extreme_noise_draws_nothing_impossible(monkeypatch, p: tuple[float, ...], u: float, expected: int):
    asked = []

    def rand(shape, *, dtype, device, generator):
        asked.append(dtype)
        return torch.full(shape, u, dtype=dtype, device=device)

    monkeypatch.setattr(torch, "rand", rand)
    assert evaluate.sample_categories(torch.tensor(p, dtype=DOUBLE).log()).item() == expected
    assert asked == [DOUBLE]


def test_rare_categories_are_weighed_as_rarely_as_they_are_drawn():
    log_q = torch.tensor([3e-5, 1 - 3e-5]).log().expand(1, 1, 1, 2)
    scores = evaluate.score(log_q, torch.zeros(2).log_softmax(-1), lambda z: torch.zeros(z.shape[:-2]), 2_000_000)
    mean, error = mean_and_error((scores.log_pz - scores.log_qz).exp())  # E 1/q p = 1
    assert abs(mean.item() - 1) < 5 * error.item()
    assert error.item() < 0.1


def test_continuous_elbo_is_the_divergence_of_a_decoder_that_ignores_its_input():
    q = InvertibleGaussian(torch.randn(2, 3, 4, 5, dtype=DOUBLE), 0.7, 0.3)
    prior = fit_prior(torch.full((6,), 1 / 6, dtype=DOUBLE), temperature=0.3)
    log_z, log_q = q.log_rsample_and_log_prob((20_000,))
    log_ratio = (log_q - prior.log_prob_from_log(log_z)).sum(-1)  # (S, E, B)
    value = evaluate.elbo_continuous(torch.full((20_000, 2, 3), -7.0, dtype=DOUBLE), log_ratio)
    error = log_ratio.std(0) / math.sqrt(20_000)
    assert ((value + 7.0 + q.kl(prior).sum(-1)).abs() < 5 * error).all()
    closed = evaluate.elbo_continuous(torch.full((2, 2, 3), -7.0), q.kl(prior).sum(-1))
    torch.testing.assert_close(closed, -7.0 - q.kl(prior).sum(-1))
    with pytest.raises(ValueError, match="sum it over the variables"):
        evaluate.elbo_continuous(torch.zeros(5, 2, 3), torch.zeros(4, 5, 2, 3))


def test_noise_is_reproducible_and_does_not_depend_on_the_chunks(vae):
    def scores(chunk: int | None) -> Scores:
        return evaluate.score(*vae.tensors(), 64, generator=torch.Generator().manual_seed(3), chunk=chunk)

    for other in (scores(None), scores(7), scores(1000)):
        for a, b in zip(scores(64), other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-14)
    q = GumbelSoftmax(0.5, torch.randn(4, 3))
    a, b = (evaluate.frequency_table(q, 100, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(a, b)


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_float32_agrees_with_enumeration(vae, device: str):
    scores = evaluate.score(*vae.tensors(torch.float32, device), 200_000)
    for found, exact in (
        (elbo(scores), vae.elbo(vae.log_q)),
        (evaluate.log_likelihood(scores), vae.log_evidence),
    ):
        assert found.dtype == DOUBLE
        assert not found.requires_grad
        np.testing.assert_allclose(found.cpu(), exact, atol=0.05)


@pytest.mark.parametrize("device", [CUDA])
def test_frequency_table_on_a_device(device: str):
    loc = torch.randn(5, 9, device=device)
    table = evaluate.frequency_table(InvertibleGaussian(loc, 1.0, 0.1), 100_000, 1e-6)
    assert table.is_cuda
    assert (table.exp() - recovered_log_probs(loc, 1.0).exp()).abs().max() < 0.01


@pytest.mark.parametrize(
    "flow", [None, StickBreaking(), Planar(u=torch.ones(3), w=torch.ones(3))], ids=["igr-i", "igr-sb", "planar"]
)
def test_a_diverged_member_has_no_frequencies(flow):
    loc = torch.zeros(2, 5, 3)
    loc[1] = math.nan
    table = evaluate.frequency_table(InvertibleGaussian(loc, 1.0, 0.5, flow=flow, validate_args=False), 100)
    assert table[0].isfinite().all()
    assert table[1].isnan().all()


def test_a_flow_that_fails_for_some_draws_has_no_frequencies(monkeypatch):
    """Wherever among them these are."""

    class Broken(Planar):
        def _call(self, x: Tensor) -> Tensor:
            broken.append((x.abs() > 3).any(-1, keepdim=True))
            return torch.where(broken[-1], math.nan, super()._call(x))

    broken = []
    monkeypatch.setattr(_relaxation, "IN_CACHE", 50 * 40 * 4)
    flow = Broken(u=torch.ones(3), w=torch.ones(3))
    scale = torch.tensor([[1e-3], [1.0]]).repeat(20, 1)
    q = InvertibleGaussian(torch.zeros(40, 3), scale, 0.5, flow=flow, validate_args=False)
    table = evaluate.frequency_table(q, 500)
    parts = torch.stack([each.any(0).squeeze(-1) for each in broken])  # whether any draw of a part failed, (10, 40)
    failed = parts.any(0)
    assert not failed[::2].any()
    assert (failed & ~parts[-1]).any()
    assert torch.equal(table.isnan().all(-1), failed)
    assert torch.equal(table.isfinite().all(-1), ~failed)


def test_a_diverged_member_disturbs_no_other(vae):
    log_q, log_p, log_px = vae.tensors()
    log_q[1] = math.nan
    scores = evaluate.score(log_q, log_p, log_px, 100_000)
    for metric, exact in ((elbo, vae.elbo(vae.log_q)), (evaluate.log_likelihood, vae.log_evidence)):
        value = metric(scores)
        assert value[1].isnan().all()
        np.testing.assert_allclose(value[0], exact[0], atol=0.05)


def test_what_cannot_be_is_refused(vae):
    log_q, log_p, log_px = vae.tensors()
    with pytest.raises(ValueError, match=r"log_q must be normalised.*sum to 2 instead.*log_softmax"):
        evaluate.score(log_q + math.log(2), log_p, log_px, 1)
    with pytest.raises(ValueError, match="log_p must be normalised"):
        evaluate.score(log_q, log_p.exp(), log_px, 1)
    with pytest.raises(ValueError, match=r"log_p must be normalised.*sum to 0\.5 instead"):
        evaluate.score(log_q, log_p - math.log(2), log_px, 1)
    with pytest.raises(ValueError, match=r"log_p one that broadcasts to it, got \(2, 3, 3, 4\) and \(5, 2, 3, 3, 4\)"):
        evaluate.score(log_q, log_p.expand(5, 2, 3, 3, 4), log_px, 1)
    with pytest.raises(ValueError, match="sum over the pixels"):
        evaluate.score(log_q, log_p, lambda z: log_px(z).unsqueeze(-1), 1)
    with pytest.raises(ValueError, match="num_samples must be at least 1, got 0"):
        evaluate.score(log_q, log_p, log_px, 0)
    with pytest.raises(ValueError, match="chunk must be at least 1, got 0"):
        evaluate.score(log_q, log_p, log_px, 1, chunk=0)
    q = GumbelSoftmax(0.5, torch.zeros(3))
    with pytest.raises(ValueError, match="num_samples must be at least 1"):
        evaluate.frequency_table(q, 0)
    with pytest.raises(ValueError, match=r"mix must be in \(0, 1\]"):
        evaluate.frequency_table(q, 10, mix=0.0)
    with pytest.raises(TypeError, match="q must be a relaxation"):
        evaluate.frequency_table(torch.zeros(3), 10)
