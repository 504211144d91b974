import math

import numpy as np
import pytest
import scipy.special
import torch
from test_evaluate import CUDA, DOUBLE, TinyVae

from igr.paper import evaluate
from igr.paper.ais import inverse_temperatures, log_likelihood_ais


@pytest.fixture
def vae() -> TinyVae:
    return TinyVae(2, weight=1.5, error=1.5)


@pytest.fixture
def peaked() -> TinyVae:
    """Nearly all of each posterior lies in a few of 4096 states, of which q thinks little."""
    return TinyVae(0, N=6, B=8, weight=2.5, error=3.0)


def test_schedule_rises_from_q_to_the_joint_distribution():
    assert inverse_temperatures(1) == [0.0, 1.0]
    betas = inverse_temperatures(200)
    assert len(betas) == 201
    assert (betas[0], betas[-1]) == (0.0, 1.0)
    steps = np.diff(betas)
    assert (steps > 0).all()
    assert (np.diff(steps) > 0).all()  # shortest near q


@pytest.mark.parametrize("num_temperatures", [2, 5])
def test_weights_average_to_the_likelihood(vae, num_temperatures: int):
    batches = [log_likelihood_ais(*vae.tensors(), 400, num_temperatures).numpy() for _ in range(60)]
    relative = np.exp(np.stack(batches) - vae.log_evidence)
    error = relative.std(0, ddof=1) / math.sqrt(len(batches))
    assert error.max() < 0.04
    assert (np.abs(relative.mean(0) - 1) < 5 * error).all()


def test_single_chains_lie_below_the_likelihood_and_rise_with_the_temperatures(vae):
    elbo = vae.elbo(vae.log_q) - vae.log_evidence
    means = []
    for T in (3, 30):
        values = np.stack([log_likelihood_ais(*vae.tensors(), 1, T).numpy() - vae.log_evidence for _ in range(100)])
        means.append(values.mean())
        assert (values.mean(0) < 5 * values.std(0) / 10).all()
    assert elbo.mean() + 0.3 < means[0] < means[1] - 0.1
    assert means[1] < 0


def test_many_temperatures_find_the_likelihood(vae):
    few, many = (np.abs(log_likelihood_ais(*vae.tensors(), 8, T).numpy() - vae.log_evidence) for T in (5, 1000))
    assert many.max() < 0.08
    assert many.mean() < few.mean() / 4


def test_finds_what_importance_sampling_misses(peaked):
    bound = evaluate.log_likelihood(evaluate.score(*peaked.tensors(), 1000)).numpy()
    found = log_likelihood_ais(*peaked.tensors(), 8, 200).numpy()
    missed, left = (np.abs(value - peaked.log_evidence).mean() for value in (bound, found))
    assert missed > 0.8
    assert left < 0.25
    assert left < 0.25 * missed


def test_one_temperature_is_the_importance_weighted_bound(vae):
    found = log_likelihood_ais(*vae.tensors(), 50, 1, generator=torch.Generator().manual_seed(5))
    scores = evaluate.score(*vae.tensors(), 50, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(found, evaluate.log_likelihood(scores), rtol=1e-13, atol=1e-13)


def test_impossible_categories_count_for_nothing(vae):
    log_q, log_p, log_px = vae.tensors()
    log_p[1, 2] = -math.inf
    log_p = log_p.log_softmax(-1)
    exact = scipy.special.logsumexp(vae.log_px + vae.of_states(log_p.numpy()), -1)
    found = log_likelihood_ais(log_q, log_p, log_px, 2000, 20)
    np.testing.assert_allclose(found, exact, atol=0.15)


def test_chains_run_in_chunks_and_are_reproducible(vae):
    log_q, log_p, log_px = vae.tensors()
    shapes = set()

    def decoder(z):
        shapes.add(tuple(z.shape))
        return log_px(z)

    def run():
        return log_likelihood_ais(log_q, log_p, decoder, 8, 50, generator=torch.Generator().manual_seed(1), chunk=3)

    first = run()
    assert {shape[0] for shape in shapes} == {3, 2, 4 * 3, 4 * 2}  # the first states, and K of each in sweeps
    assert {shape[1:] for shape in shapes} == {(2, 3, 3, 4)}
    assert torch.equal(first, run())
    np.testing.assert_allclose(first, vae.log_evidence, atol=0.5)


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_float32_agrees_with_enumeration(vae, device: str):
    log_q, log_p, log_px = vae.tensors(torch.float32, device)
    found = log_likelihood_ais(log_q.requires_grad_(), log_p, log_px, 16, 300)
    assert found.dtype == DOUBLE
    assert not found.requires_grad
    np.testing.assert_allclose(found.cpu(), vae.log_evidence, atol=0.15)


def test_a_diverged_member_disturbs_no_other(vae):
    log_q, log_p, log_px = vae.tensors()
    log_q[1] = math.nan
    found = log_likelihood_ais(log_q, log_p, log_px, 16, 300)
    assert found[1].isnan().all()
    np.testing.assert_allclose(found[0], vae.log_evidence[0], atol=0.15)


def test_what_cannot_be_is_refused(vae):
    log_q, log_p, log_px = vae.tensors()
    with pytest.raises(ValueError, match="log_q must be normalised"):
        log_likelihood_ais(log_q + 1, log_p, log_px)
    with pytest.raises(ValueError, match="num_temperatures must be at least 1, got 0"):
        log_likelihood_ais(log_q, log_p, log_px, 8, 0)
    with pytest.raises(ValueError, match="num_chains must be at least 1, got 0"):
        log_likelihood_ais(log_q, log_p, log_px, 0)
    with pytest.raises(ValueError, match="chunk must be at least 1, got 0"):
        log_likelihood_ais(log_q, log_p, log_px, chunk=0)
