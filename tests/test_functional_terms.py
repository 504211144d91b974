"""Samples with their log-density and divergence, beside those of the distributions."""

import math

import pytest
import torch
from functional_cases import ROWS, close, real, show

from igr import categorical_kl
from igr import functional as F
from igr.distributions import GumbelSoftmax, InvertibleGaussian


@pytest.mark.parametrize("tau", [0.4, ROWS], ids=show)
@pytest.mark.parametrize("hard", [False, True])
def test_gaussian_terms_are_those_of_the_distribution(tau, hard):
    loc, scale, delta = real(5, 3), real(5, 3, seed=1).exp(), 0.7
    mu0, sigma0 = real(3, seed=2), real(5, 1, seed=3).exp()
    q = InvertibleGaussian(loc, scale, tau, delta=delta)
    torch.manual_seed(1)
    z, log_q, kl = F.gaussian_softmax_terms(loc, scale, tau, hard, delta=delta, prior=(mu0, sigma0))
    torch.manual_seed(1)
    expected, expected_log_q = q.rsample_and_log_prob()
    close(log_q, expected_log_q)
    close(kl, q.kl(InvertibleGaussian(mu0, sigma0, tau, delta=delta)))
    torch.manual_seed(1)
    close(z, q.hard_rsample() if hard else expected)


@pytest.mark.parametrize("tau", [0.4, ROWS], ids=show)
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("prior", [None, real(4, seed=2)], ids=["uniform", "given"])
def test_gumbel_terms_are_those_of_the_distribution(tau, hard, prior):
    logits = real(5, 4)
    q = GumbelSoftmax(tau, logits)
    torch.manual_seed(1)
    z, log_q, kl = F.gumbel_softmax_terms(logits, tau, hard, prior_logits=prior)
    torch.manual_seed(1)
    expected, expected_log_q = q.rsample_and_log_prob()
    close(log_q, expected_log_q)
    close(kl, categorical_kl(logits, real(4) * 0 if prior is None else prior))
    torch.manual_seed(1)
    close(z, q.hard_rsample() if hard else expected)


def test_terms_with_rows_from_the_temperature():
    taus = torch.tensor([[[0.3]], [[0.6]]])
    z, log_q, kl = F.gaussian_softmax_terms(torch.zeros(5, 3), 1.0, taus, prior=(0.0, 1.0))
    assert (z.shape, log_q.shape, kl.shape) == ((2, 5, 4), (2, 5), (2, 5))
    z, log_q, kl = F.gumbel_softmax_terms(torch.zeros(5, 3), taus)
    assert (z.shape, log_q.shape, kl.shape) == ((2, 5, 3), (2, 5), (2, 5))
    assert F.gaussian_softmax_terms(torch.zeros(5, 3), 1.0).kl is None


def test_a_prior_does_not_decide_shapes():
    with pytest.raises(ValueError, match="prior location of shape"):
        F.gaussian_softmax_terms(torch.zeros(3), 1.0, prior=(torch.zeros(2, 3), 1.0))
    for sigma0 in (-1.0, torch.tensor([1.0, -1.0, 1.0])):
        with pytest.raises(ValueError, match="prior scale must be positive"):
            F.gaussian_softmax_terms(torch.zeros(3), 1.0, prior=(0.0, sigma0))
    for prior in ((0.0,), 1.0, torch.zeros(2)):
        with pytest.raises(TypeError, match="prior must be a pair, its location and its scale, got "):
            F.gaussian_softmax_terms(torch.zeros(3), 1.0, prior=prior)
    with pytest.raises(ValueError, match="prior_logits of shape"):
        F.gumbel_softmax_terms(torch.zeros(3), prior_logits=torch.zeros(2, 3))


def test_terms_of_impossible_categories():
    logits = torch.tensor([[0.0, 1.0, -math.inf], [0.0, 1.0, 2.0]], requires_grad=True)
    z, log_q, kl = F.gumbel_softmax_terms(logits, 0.5)
    assert (z[:, 2] > 0).tolist() == [False, True]
    torch.testing.assert_close(z.sum(-1), torch.ones(2))
    assert log_q.tolist() == [math.inf, log_q[1].item()]  # there is mass on a face of the simplex
    assert kl.isfinite().all()
    (gradient,) = torch.autograd.grad((z[:, 1] + kl).sum(), logits)
    assert gradient.isfinite().all()
    assert gradient[0, 2] == 0
    hard = F.gumbel_softmax_terms(logits.expand(500, 2, 3), 0.5, hard=True).z.mean(0)
    torch.testing.assert_close(hard, logits.softmax(-1), rtol=0, atol=0.1)
