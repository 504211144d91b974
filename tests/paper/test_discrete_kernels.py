"""The kernels that draw categories and decode them: against float64 layers and enumerated probabilities."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch.distributions import Bernoulli, Normal

pytest.importorskip("triton", reason="needs Triton")

from igr.paper.discrete_kernels import draw, log_likelihoods
from igr.paper.evaluate import distribution_function, log_prob_of
from igr.paper.likelihood import BINARY
from igr.paper.models import GREY

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator(DEVICE).manual_seed(seed)


def table(*shape: int, scale: float = 2.0) -> torch.Tensor:
    return (scale * torch.randn(*shape, dtype=torch.float64, device=DEVICE)).log_softmax(-1)


def test_log_probabilities_are_those_of_the_categories_drawn():
    log_q, log_p = table(2, 3, 4, 5), table(2, 3, 4, 5)
    found = draw(distribution_function(log_q), log_q, log_p, 11, generator())
    index = found.categories.long().transpose(0, 1)  # (S, E, B, N)
    assert index.shape == (11, 2, 3, 4)
    assert index.max() < 5
    torch.testing.assert_close(found.log_qz, log_prob_of(index, log_q), rtol=0, atol=1e-12)
    torch.testing.assert_close(found.log_pz, log_prob_of(index, log_p), rtol=0, atol=1e-12)


def test_categories_are_drawn_as_often_as_they_should():
    log_q = table(1, 2, 3, 6, scale=1.0)
    S = 800
    found = draw(distribution_function(log_q), log_q, log_q, S, generator()).categories.long()
    counts = F.one_hot(found[0], 6).sum(0).double()  # (B, N, K)
    expected = S * log_q[0].exp()
    z = (counts - expected) / (expected * (1 - log_q[0].exp())).sqrt()
    assert z.abs().max() < 5
    p = stats.chisquare(counts.reshape(-1, 6).cpu().numpy(), expected.reshape(-1, 6).cpu().numpy(), axis=-1).pvalue
    assert np.min(p) > 1e-5
    # neighbouring variables, images and samples have nothing to do with each other
    one = (found[0] == 0).double().reshape(S, -1).cpu().numpy()
    correlation = np.corrcoef(one.T)
    assert np.abs(correlation[~np.eye(len(correlation), dtype=bool)]).max() < 5 / math.sqrt(S)
    for column in one.T:
        assert abs(np.corrcoef(column[:-1], column[1:])[0, 1]) < 5 / math.sqrt(S)


def test_draws_follow_the_generator():
    log_q = table(1, 2, 3, 6)
    cdf = distribution_function(log_q)
    a, b, c = (draw(cdf, log_q, log_q, 20, generator(seed)).categories for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_impossible_categories_and_nan():
    log_q = torch.tensor([[-math.inf, 0.0, -math.inf], [0.0, -math.inf, -math.inf], [math.nan] * 3], device=DEVICE)
    log_q = log_q.log_softmax(-1).view(1, 3, 1, 3)
    found = draw(distribution_function(log_q), log_q, log_q, 9, generator())
    assert (found.categories[0, :, :, 0] == torch.tensor([1, 0, 0], device=DEVICE)).all()
    assert found.log_qz[:, 0, :2].eq(0).all()
    assert found.log_qz[:, 0, 2].isnan().all()


@pytest.mark.parametrize(("hidden", "tolerance"), [((), 2e-5), ((33,), 2e-3), ((150, 20), 2e-3)])
@pytest.mark.parametrize("kind", [BINARY, *GREY.values()], ids=["binary", "grey", "published"])
@pytest.mark.parametrize("shared", [False, True])
def test_log_likelihoods(hidden, tolerance, kind, shared):
    """Without hidden layers as in float32; with them to about 2^-16 of the products, which small scales magnify."""
    E, S, B, N, K, D = 2, 3, 50, 4, 5, 137
    index = torch.randint(K, (E, S, B, N), device=DEVICE).to(torch.uint8)
    x = torch.rand(E, B, D, device=DEVICE)
    x = x if kind.grey else (x < 0.3).float()
    x = x[:1].expand(E, -1, -1) if shared else x
    sizes = (N * K, *hidden, (1 + kind.grey) * D)
    shapes = list(pairwise(sizes))
    weights = [torch.randn(E, i, o).div(math.sqrt(i)).float().to(DEVICE) for i, o in shapes]
    biases = [torch.randn(E, 1, o).float().to(DEVICE) for _, o in shapes]
    h = F.one_hot(index.long(), K).double().flatten(-2).flatten(1, 2)
    for i, (w, b) in enumerate(zip(weights, biases, strict=True)):
        h = torch.baddbmm(b.double(), h.relu() if i else h, w.double())
    said = h.unflatten(1, (S, B)).transpose(0, 1)
    if kind.grey:
        said = torch.where(said > 0, said, said.exp() - 1) if kind.elu else said
        mean, scale = 1 / (1 + (-said[..., :D]).exp()), kind.floor + (1 + said[..., D:].exp()).log()
        expected = Normal(mean, scale).log_prob(x.double()).sum(-1)
        tolerance *= 4
    else:
        expected = Bernoulli(logits=said).log_prob(x.double()).sum(-1)
    found = log_likelihoods(x, index, weights, biases, K, kind)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance * math.sqrt(D / 100))
