"""Averages over redrawn noise: the mean of what they replace, less variance, and their limit by quadrature."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from pathwise_cases import BINARY, DOUBLE, Loss, gradients, parameters, z_scores
from torch import Tensor
from torch.distributions import OneHotCategorical

from igr._draws import NoiseSource
from igr.distributions import BinaryConcrete, GumbelSoftmax, InvertibleGaussian
from igr.estimators.gumbel_rao import gumbel_rao
from igr.estimators.igr_rao import igr_rao
from igr.estimators.st_relaxed import st_relaxed

pytestmark = pytest.mark.usefixtures("one_thread")

RAO = {
    "GS": (gumbel_rao, lambda logits: GumbelSoftmax(0.2, logits)),
    "GS of rows": (gumbel_rao, lambda logits: GumbelSoftmax(torch.tensor([[0.2], [0.4]]).double(), logits)),
    "BinaryConcrete": (gumbel_rao, lambda logits: BinaryConcrete(0.2, logits)),
    "OneHotCategorical": (gumbel_rao, lambda logits: OneHotCategorical(logits=logits)),
    "IGR-I": (igr_rao, lambda loc, scale: InvertibleGaussian(loc, scale, 0.2)),
    "IGR-I with delta": (igr_rao, lambda loc, scale: InvertibleGaussian(loc, scale, 0.2, delta=3.0)),
}


@pytest.mark.parametrize("kind", RAO)
def test_rao_keeps_the_mean_and_lowers_the_variance(kind):
    """Two examples of two variables, different all, and two samples of each; many repetitions, as further examples."""
    rao, build = RAO[kind]
    repetitions, n, k = 3000, 2, 3
    parts = parameters(kind.split(" ")[0], (2,), n, k)
    loss = Loss(parts[0], kind in BINARY, (2,), n, k)
    loss.q_parameter = torch.zeros_like(parts[0])

    def draws(estimator, **options) -> Tensor:
        copies = [p.detach().expand(repetitions, *p.shape).clone().requires_grad_() for p in parts]
        surrogate = estimator(build(*copies), loss, num_samples=2, **options).surrogate
        assert len(loss.calls) == 1
        assert torch.equal(loss.calls.pop().unique(), torch.tensor([0.0, 1.0]).double())
        return torch.cat([g.flatten(2) for g in gradients(surrogate, copies)], -1)

    plain, averaged = draws(st_relaxed), draws(rao, num_redraws=16)
    assert z_scores(averaged, plain).abs().max() < 5
    assert averaged.var(0).sum() < 0.8 * plain.var(0).sum()
    once = draws(rao, num_redraws=1)  # a single redraw replaces the noise, and has its variance
    assert z_scores(once, plain).abs().max() < 5
    assert 0.8 < once.var(0).sum() / plain.var(0).sum() < 1.25
    assert averaged.var(0).sum() < 0.8 * once.var(0).sum()


@pytest.mark.parametrize("kind", ["GS", "IGR-I"])
def test_rao_keeps_the_mean_given_the_sample(kind):
    rao, build = RAO[kind]
    k, repetitions = 3, 20_000
    parts = [
        torch.tensor([x], dtype=DOUBLE) for x in {"GS": [[0.3, -0.5, 0.1]], "IGR-I": [[0.2, -0.4], [0.7, 1.3]]}[kind]
    ]
    weight = torch.randn(k, dtype=DOUBLE)

    def draws(estimator, **options) -> tuple[Tensor, Tensor]:
        copies = [p.detach().expand(repetitions, *p.shape).clone().requires_grad_() for p in parts]
        shown = []

        def f(z: Tensor) -> Tensor:
            shown.append(z.detach())
            return (weight * z).sum((-2, -1))

        surrogate = estimator(build(*copies), f, **options).surrogate
        g = torch.cat([g.flatten(1) for g in gradients(surrogate, copies)], -1)
        return shown[0].argmax(-1).flatten(), g

    (D, plain), (D_rao, averaged) = draws(st_relaxed), draws(rao, num_redraws=4)
    for category in range(k):
        assert (category == D).sum() > 500
        assert z_scores(averaged[D_rao == category], plain[category == D]).abs().max() < 5


class OnlyFirst(NoiseSource):
    """Decides about the sample, not about the redraws, which have one axis more."""

    def __init__(self, one_hot: Tensor) -> None:
        self.one_hot = one_hot

    def gumbel(self, like: Tensor) -> Tensor:
        noise = -torch.empty_like(like).exponential_().log()
        return 100 * self.one_hot if like.shape == self.one_hot.shape else noise


@pytest.mark.parametrize("category", [0, 1])
def test_many_gumbel_redraws_tend_to_the_conditional_expectation(category):
    """Two categories: the difference of the two scores is logistic, and positive or negative given the sample."""
    logits, tau, R = torch.tensor([[0.7, -0.4]], dtype=DOUBLE, requires_grad=True), 0.5, 40_000
    source = OnlyFirst(torch.eye(2, dtype=DOUBLE)[category].reshape(1, 1, 2))
    q = GumbelSoftmax(tau, logits)
    surrogate = gumbel_rao(q, lambda z: 2 * z[..., 0].sum(-1), num_redraws=R, generator=source).surrogate
    (g,) = gradients(surrogate, [logits])

    law, (low, high) = scipy.stats.logistic(loc=1.1), [(0, 60), (-60, 0)][category]

    def moment(power: int) -> float:
        def integrand(x: float) -> float:
            return (2 / tau * 0.25 / np.cosh(x / tau / 2) ** 2) ** power * law.pdf(x)

        return scipy.integrate.quad(integrand, low, high, limit=200)[0] / (law.cdf(high) - law.cdf(low))

    assert abs(g[0, 0].item() - moment(1)) < 5 * math.sqrt((moment(2) - moment(1) ** 2) / R)
    assert g[0, 1].item() == pytest.approx(-g[0, 0].item())


def test_many_gaussian_redraws_tend_to_the_conditional_expectation():
    """Two categories: the only coordinate is kept if it wins, and a normal truncated to negative values if it loses."""
    mu, sigma, tau, R = 0.3, 0.8, 0.5, 40_000
    parts = [torch.full((1, 1, 1), x, dtype=DOUBLE, requires_grad=True) for x in (mu, sigma)]

    class Given(NoiseSource):
        def gaussian(self, shape, like: Tensor) -> Tensor:
            return torch.full(tuple(shape), self.eps, dtype=DOUBLE)

        def gumbel(self, like: Tensor) -> Tensor:
            return -torch.empty_like(like).exponential_().log()

    def g(eps: float) -> Tensor:
        source = Given()
        source.eps = eps
        q = InvertibleGaussian(*parts, tau)
        surrogate = igr_rao(q, lambda z: 2 * z[..., 0].sum(-1), num_redraws=R, generator=source).surrogate
        return torch.cat(gradients(surrogate, parts)).flatten()

    def slope(eps: float) -> np.ndarray:
        return 2 / tau * 0.25 / np.cosh((mu + sigma * eps) / tau / 2) ** 2 * np.array([1, eps])

    torch.testing.assert_close(g(0.5), torch.from_numpy(slope(0.5)))
    end = -mu / sigma

    def moment(power: int) -> np.ndarray:
        integral = scipy.integrate.quad_vec(lambda e: slope(e) ** power * scipy.stats.norm.pdf(e), -12, end)[0]
        return integral / scipy.stats.norm.cdf(end)

    assert (np.abs(g(-2.0).numpy() - moment(1)) < 5 * np.sqrt((moment(2) - moment(1) ** 2) / R)).all()
