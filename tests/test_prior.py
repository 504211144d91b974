import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Binomial,
    Categorical,
    Dirichlet,
    Geometric,
    NegativeBinomial,
    Normal,
    OneHotCategorical,
    Poisson,
)

from igr._locations import NEGLIGIBLE
from igr._stick_jacobian import stick_masses_and_jacobian
from igr._stick_recovery import stick_masses
from igr.countable import CountableStickBreaking
from igr.distributions import GumbelSoftmax, InvertibleGaussian, monte_carlo_recovered
from igr.functional import log_stick_breaking
from igr.nn import GrowingSticks, PlanarFlow
from igr.prior import fit_prior, match_moments
from igr.recovery import masses_and_jacobian, recovered_log_probs
from igr.transforms import Planar, StickBreaking

DOUBLE = torch.float64


def probabilities_by_quad(mu: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """Proposition 2 by scipy."""

    def integrand(t: float, k: int) -> float:
        others = [j for j in range(len(mu)) if j != k]
        density = scipy.stats.norm.pdf(t, mu[k], sigma[k])
        return density * scipy.stats.norm.cdf((t - mu[others]) / sigma[others]).prod()

    ends = [max(0.0, m + 12 * s) for m, s in zip(mu, sigma, strict=True)]
    found = [scipy.integrate.quad(integrand, 0, end, (k,), epsabs=1e-12, limit=200)[0] for k, end in enumerate(ends)]
    return np.array([*found, scipy.stats.norm.cdf(-mu / sigma).prod()])


# Gaussian locations


@pytest.mark.parametrize("K", [2, 3, 10, 100, 300])
@pytest.mark.parametrize("concentration", [0.3, 1.0, 10.0])
def test_the_recovered_distribution_is_the_one_asked_for(K: int, concentration: float):
    p0 = Dirichlet(torch.full((K,), concentration, dtype=DOUBLE)).sample().clamp(min=1e-9)
    p0 = p0 / p0.sum()
    for scale in (1.0, 0.5 + torch.rand(K - 1, dtype=DOUBLE)):
        prior = fit_prior(p0, temperature=0.3, scale=scale)
        assert isinstance(prior, InvertibleGaussian)
        assert (prior.recovered().probs - p0).abs().max() < 1e-8
        torch.testing.assert_close(prior.scale, torch.as_tensor(scale, dtype=DOUBLE).expand(K - 1))


def test_against_scipy():
    p0 = torch.tensor([0.05, 0.5, 0.15, 0.3], dtype=DOUBLE)
    sigma = torch.tensor([0.5, 1.0, 2.0], dtype=DOUBLE)
    prior = fit_prior(p0, temperature=0.3, scale=sigma)
    np.testing.assert_allclose(probabilities_by_quad(prior.loc.numpy(), sigma.numpy()), p0.numpy(), atol=1e-8)


@pytest.mark.parametrize("K", [2, 3, 10, 1000])
def test_uniform_is_a_closed_form(K: int):
    p0 = torch.full((K,), 1 / K, dtype=DOUBLE)
    prior = fit_prior(p0, temperature=0.1, scale=2.0)
    expected = -2.0 * scipy.stats.norm.ppf(K ** (-1 / (K - 1)))
    np.testing.assert_allclose(prior.loc.numpy(), np.full(K - 1, expected), rtol=1e-12, atol=1e-15)
    assert (prior.recovered().probs - p0).abs().max() < 1e-8


def test_a_certain_category_does_not_round():
    for p0 in (torch.tensor([1.0, 1e-20]), torch.tensor([1e-20, 1.0])):
        assert fit_prior(p0.double(), temperature=0.1).recovered().probs.round().tolist() == p0.round().tolist()


def test_a_batch_is_fitted_row_by_row():
    p0 = Dirichlet(torch.ones(4, dtype=DOUBLE)).sample((2, 3))
    for flow in (None, StickBreaking()):
        prior = fit_prior(p0, temperature=0.3, flow=flow)
        assert prior.batch_shape == (2, 3)
        assert (prior.recovered().probs - p0).abs().max() < 1e-6


def test_jacobians_against_autograd():
    mu, sigma = torch.randn(2, 4, dtype=DOUBLE), torch.rand(2, 4, dtype=DOUBLE) + 0.3
    masses, jacobian = masses_and_jacobian(mu, sigma)
    expected = torch.stack(
        [torch.func.jacrev(lambda m, s=s: recovered_log_probs(m, s).exp())(m) for m, s in zip(mu, sigma, strict=True)]
    )
    torch.testing.assert_close(masses, recovered_log_probs(mu, sigma).exp(), rtol=0, atol=1e-9)
    torch.testing.assert_close(jacobian, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("n", [1, 2, 6])
@pytest.mark.parametrize("leftover", [True, False])
def test_jacobians_of_sticks_against_autograd(n: int, leftover: bool):
    mu, sigma = torch.randn(n, dtype=DOUBLE), torch.rand(n, dtype=DOUBLE) + 0.3

    def masses(m: Tensor) -> Tensor:
        return stick_masses(m.unsqueeze(0), sigma.unsqueeze(0), leftover, 64)[0]

    found, jacobian = stick_masses_and_jacobian(mu, sigma, leftover, 64)
    torch.testing.assert_close(found, masses(mu))
    torch.testing.assert_close(jacobian, torch.func.jacrev(masses)(mu), rtol=1e-9, atol=1e-12)


# sticks


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("leftover", [True, False])
def test_sticks_recover_what_is_asked_for(scale: float, leftover: bool):
    p0 = Dirichlet(torch.ones(6, dtype=DOUBLE)).sample()
    asked = p0 if leftover else torch.cat([p0, p0.new_zeros(1)])
    prior = fit_prior(asked, temperature=0.1, scale=scale, flow=StickBreaking(leftover))
    assert (prior.recovered().probs - asked).abs().max() < 1e-5  # other nodes than those it was fitted with
    y = prior.loc + scale * torch.randn(1_000_000, len(asked) - 1, dtype=DOUBLE)  # and by brute force
    log_w = log_stick_breaking(y)
    frequencies = torch.bincount((log_w if leftover else log_w[:, :-1]).argmax(-1), minlength=6) / 1e6
    assert ((frequencies - p0) / (p0 * (1 - p0) / 1e6).sqrt()).abs().max() < 5


@pytest.mark.parametrize(
    "p0",
    [Poisson(3.0), Geometric(torch.tensor(0.4)), NegativeBinomial(5.0, torch.tensor(0.3)), Poisson(torch.tensor(0.01))],
    ids=str,
)
def test_on_the_integers(p0: Poisson | Geometric | NegativeBinomial):
    prior = fit_prior(p0, temperature=0.1)
    assert isinstance(prior, CountableStickBreaking)
    probs, tail = prior.recovered()
    expected = p0.log_prob(torch.arange(len(probs), dtype=torch.float32)).exp()
    assert tail < 1e-6
    assert 0.5 * (probs - expected).abs().sum() < 1e-5
    hard = prior.hard_rsample((200_000,)).z.argmax(-1)
    assert hard.double().mean() == pytest.approx(p0.mean.item(), abs=5 * math.sqrt(p0.variance.item() / 200_000))


@pytest.mark.parametrize("scale", [1.0, 10.0])
@pytest.mark.parametrize(
    "p0",
    [
        [1e-11, 1 - 1e-11],
        [1 - 1e-11, 1e-11],
        [0.3, 0.7, 1e-15],
        [0.2, 0.3, 0.5, 1e-14, 1e-14],
        [1e-300, 0.2, 0.8, 1e-40],
    ],
    ids=str,
)
def test_sticks_of_hardly_any_probability(p0: list[float], scale: float):
    p0 = torch.tensor(p0, dtype=DOUBLE)
    found = fit_prior(p0, temperature=0.5, flow=StickBreaking(), scale=scale).recovered().probs
    likely = p0 > NEGLIGIBLE
    torch.testing.assert_close(found[likely], p0[likely], rtol=1e-5, atol=1e-5)
    assert found[~likely].max() < 1e-10


def test_a_last_stick_of_hardly_any_probability_is_what_it_was_asked_for():
    p0 = torch.tensor([0.5, 0.5 - 2e-13, 2e-13], dtype=DOUBLE)
    found = fit_prior(p0, temperature=0.5, flow=StickBreaking()).recovered().probs
    torch.testing.assert_close(found, p0, rtol=1e-2, atol=0)


def test_integers_of_hardly_any_probability():
    p0 = torch.tensor([1e-11, 1 - 1e-11], dtype=DOUBLE)
    probs, _ = fit_prior(lambda k: torch.nn.functional.pad(p0, (0, len(k) - 2)), temperature=0.5).recovered()
    assert probs[0] < 1e-10
    assert probs[1] > 1 - 1e-6


def test_poisson_50():
    p0 = Poisson(torch.tensor(50.0, dtype=DOUBLE))
    probs, tail = fit_prior(p0, temperature=0.1).recovered()
    expected = p0.log_prob(torch.arange(len(probs), dtype=DOUBLE)).exp()
    assert 0.5 * (probs - expected).abs().sum() + tail < 1e-5
    assert (expected < NEGLIGIBLE).any()  # some are too unlikely to be fitted


def test_functions_of_integers():
    def pmf(k: Tensor) -> Tensor:
        return (k < 4) * torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=DOUBLE)[k.clamp(max=3)]

    probs, tail = fit_prior(pmf, temperature=0.1).recovered()
    torch.testing.assert_close(probs[:4], torch.tensor([0.1, 0.2, 0.3, 0.4]), rtol=0, atol=3e-6)
    assert probs[4:].sum() + tail < 1e-6
    certain = fit_prior(lambda k: (k == 0).double(), temperature=0.1).recovered()
    assert certain.probs[0] > 1 - 1e-6


def test_distributions_are_read_as_their_probabilities():
    probs = torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])
    for p0 in (Categorical(probs), OneHotCategorical(probs), Categorical(logits=probs.log())):
        torch.testing.assert_close(fit_prior(p0, temperature=0.1).recovered().probs, probs, rtol=0, atol=1e-6)
    coin = fit_prior(Bernoulli(torch.tensor(0.2)), temperature=0.1).recovered().probs
    torch.testing.assert_close(coin, torch.tensor([0.8, 0.2]))
    found = fit_prior(Binomial(12, torch.tensor(0.3)), temperature=0.1).recovered().probs
    np.testing.assert_allclose(found.numpy(), scipy.stats.binom.pmf(np.arange(13), 12, 0.3), atol=1e-6)


def test_small_scales_are_read_back_as_well():
    p0 = Poisson(torch.tensor(3.0, dtype=DOUBLE))
    probs, _ = fit_prior(p0, temperature=0.1, scale=0.2).recovered()  # beside a stick that takes all that is left
    assert (probs - p0.log_prob(torch.arange(len(probs), dtype=DOUBLE)).exp()).abs().max() < 1e-5


def test_what_underflows_is_not_zero():
    found = fit_prior(Binomial(100, torch.tensor(0.01)), temperature=0.1).recovered().probs
    np.testing.assert_allclose(found.numpy(), scipy.stats.binom.pmf(np.arange(101), 100, 0.01), atol=1e-6)
    tiny = fit_prior(Binomial(30, torch.tensor(1e-12, dtype=DOUBLE)), temperature=0.1)  # 1e-360 is zero in float64 too
    np.testing.assert_allclose(tiny.recovered().probs, np.eye(31)[0], atol=1e-6)


def test_shapes_and_ways_to_say_the_same():
    p0 = torch.tensor([0.2, 0.3, 0.5])
    wide = fit_prior(p0, temperature=0.1, scale=torch.tensor([[0.5], [1.0], [2.0], [4.0]]))
    assert wide.batch_shape == (4,)
    torch.testing.assert_close(wide.recovered().probs, p0.expand(4, 3), rtol=0, atol=1e-6)
    assert fit_prior(torch.zeros(0, 3), temperature=0.1).batch_shape == (0,)
    sticks = fit_prior(p0, temperature=0.1, flow=[StickBreaking()])
    torch.testing.assert_close(sticks.recovered().probs, p0, rtol=0, atol=1e-6)
    assert not fit_prior(p0, temperature=0.1, scale=torch.ones(2, requires_grad=True)).scale.requires_grad
    for dtype in (torch.float16, torch.bfloat16):
        half = fit_prior(torch.full((3,), 1 / 3, dtype=dtype), temperature=0.1)
        assert half.loc.dtype == dtype


# moment matching


def test_flows_are_fitted_by_their_moments():
    p0 = torch.tensor([0.5, 0.3, 0.2])
    flow = Planar(torch.tensor([1.0, 0.5]), torch.tensor([2.0, -1.0]))
    options = {"temperature": 0.1, "flow": flow, "num_steps": 300, "num_samples": 2_000}
    prior = fit_prior(p0, generator=torch.Generator().manual_seed(0), **options)
    assert not prior.loc.requires_grad
    assert (prior.sample((100_000,)).mean(0) - p0).abs().max() < 0.02
    assert (monte_carlo_recovered(prior, 100_000).estimate - p0).abs().max() < 0.05
    start = InvertibleGaussian(torch.zeros(2), 1.0, 0.1, flow=flow).sample((100_000,)).mean(0)
    assert (start - p0).abs().max() > 0.07


def test_fits_leave_what_is_given_alone():
    """Flows and temperatures that are trained elsewhere have no gradients from it, and keep their graphs."""
    p0, module, a = torch.tensor([0.5, 0.3, 0.2]), PlanarFlow(3), torch.tensor([0.4, -0.3], requires_grad=True)
    tau = a.exp().sum()
    for flow in (module(), Planar(a.exp(), a.sin())):
        prior = fit_prior(p0, temperature=tau, flow=flow, num_steps=3, num_samples=10)
        assert not prior.loc.requires_grad
        assert prior.loc.abs().min() > 0.01  # it has moved
    assert all(p.grad is None for p in (a, *module.parameters()))
    tau.backward()
    torch.testing.assert_close(a.grad, a.exp())


def test_matching_moments_is_unbiased_for_its_objective():
    # two categories: E z is known, and the expected loss is ||E z - p0||^2 + the variance of the mean
    logits = torch.zeros(2, dtype=DOUBLE, requires_grad=True)
    p0 = torch.tensor([0.5, 0.5], dtype=DOUBLE)
    samples = GumbelSoftmax(0.5, logits).sample((1_000_000,))
    expected = 2 * samples[:, 0].var().item() / 10
    losses = match_moments(
        lambda: GumbelSoftmax(0.5, logits), [logits], p0, num_samples=10, num_steps=4_000, learning_rate=0.0
    )
    error = np.std(losses) / math.sqrt(len(losses))
    assert abs(np.mean(losses) - expected) < 5 * error
    assert logits.detach().tolist() == [0.0, 0.0]


@pytest.mark.parametrize("p0", [[0.5, 0.2], [0.5, 0.2, 0.1, 0.2]])
def test_moments_of_categories_that_one_lacks_are_zero(p0: list[float]):
    certain = GumbelSoftmax(0.1, torch.tensor([90.0, 0.0, 0.0], requires_grad=True))
    losses = match_moments(lambda: certain, [certain.logits], torch.tensor(p0), num_samples=2, num_steps=1)
    assert losses[0] == pytest.approx(0.25 + sum(p**2 for p in p0[1:]))


def test_the_learning_rate_falls_by_half_a_cosine():
    logits, seen = torch.zeros(2, requires_grad=True), []
    match_moments(
        lambda: seen.append(logits[0].item()) or GumbelSoftmax(0.5, logits),
        [logits],
        torch.tensor([0.9, 0.1]),
        num_steps=10,
        learning_rate=1e-3,
    )
    seen.append(logits[0].item())  # Adam moves by its learning rate while gradients are all alike
    expected = 1e-3 * (1 + np.cos(np.pi * np.arange(10) / 10)) / 2
    np.testing.assert_allclose(np.diff(seen), expected, rtol=0.1)


def test_matching_moments_with_growing_sticks():
    sticks = GrowingSticks(loc=-4.0)
    p0 = Geometric(torch.tensor(0.4)).log_prob(torch.arange(30.0)).exp()
    optimizer = torch.optim.Adam(sticks.parameters(), 0.1)
    sticks.attach(optimizer)
    steps = []
    options = {"num_samples": 200, "num_steps": 60, "optimizer": optimizer}
    losses = match_moments(
        lambda: sticks(0.1, 0.9),
        list(sticks.parameters()),
        p0,
        callback=lambda step, loss: steps.append(step),
        **options,
    )
    assert steps == list(range(1, 61))
    assert np.mean(losses[-10:]) < 0.1 * losses[0]


# refusals


@pytest.mark.parametrize(
    ("p0", "error", "message"),
    [
        (torch.tensor([0.5, 0.6]), ValueError, "sums to 1.1"),
        (torch.tensor([1.5, -0.5]), ValueError, "not negative"),
        (torch.tensor([math.nan, 0.5]), ValueError, "finite"),
        (torch.tensor([0.5, 0.0, 0.5]), ValueError, "zero for categories 1, but"),
        (torch.tensor(1.0), ValueError, "p0 must have shape"),
        (torch.tensor([1, 0]), TypeError, "floating-point"),
        ([0.5, 0.5], TypeError, "p0 must be a tensor, a distribution or a function"),
        (Normal(0.0, 1.0), TypeError, "no discrete distribution is known"),
        (Poisson(torch.tensor([1.0, 2.0])), ValueError, "one distribution"),
        (Binomial(torch.tensor([3, 4]), torch.tensor(0.5)), ValueError, "one total_count"),
        (lambda k: 0.5 * (k == 0), ValueError, "too many of them: the first 2048 sum to 0.5"),
        (lambda k: torch.ones_like(k).double(), ValueError, "sum to more than one"),
        (lambda k: (k == 2) * 0.5 + (k == 0) * 0.5, ValueError, "zero for categories 1, but"),
        (lambda k: torch.ones(3), ValueError, "one probability for each"),
    ],
)
def test_what_is_no_distribution_is_refused(p0: object, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        fit_prior(p0, temperature=0.1)


def test_what_is_impossible_is_refused():
    with pytest.raises(ValueError, match=r"leftover=False\) never reaches it"):
        fit_prior(torch.tensor([0.5, 0.3, 0.2]), temperature=0.1, flow=StickBreaking(leftover=False))
    with pytest.raises(ValueError, match="on the integers the flow is StickBreaking"):
        fit_prior(Poisson(3.0), temperature=0.1, flow=Planar(torch.ones(2), torch.ones(2)))
    with pytest.raises(ValueError, match="on the integers scale must be one number"):
        fit_prior(Poisson(3.0), temperature=0.1, scale=torch.ones(3))
    with pytest.raises(ValueError, match="temperature must be positive"):
        fit_prior(torch.tensor([0.5, 0.5]), temperature=0.0)
    with pytest.raises(ValueError, match="tolerance must be in"):
        fit_prior(Poisson(3.0), temperature=0.1, tolerance=0.0)
    for scale in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="scale must be positive and finite"):
            fit_prior(Poisson(3.0), temperature=0.1, scale=scale)
    with pytest.raises(ValueError, match="precision"):
        fit_prior(Poisson(3.0), temperature=0.1, precision=2.0)
    with pytest.raises(ValueError, match="zero for categories 0, but"):
        fit_prior(torch.tensor([0.0, 0.5, 0.5]), temperature=0.1, flow=Planar(torch.ones(2), torch.ones(2)))
    with pytest.raises(ValueError, match="at least two categories"):
        fit_prior(Binomial(0, torch.tensor(0.5)), temperature=0.1)


@pytest.mark.parametrize(
    ("p0", "options", "error", "message"),
    [
        ([0.5, 0.3, 0.2], {}, TypeError, "p0 must be a floating-point tensor"),
        (torch.tensor([2.0, 3.0, 1.0]), {}, ValueError, "p0 is not a distribution"),
        (torch.full((4, 3), 1 / 3), {}, ValueError, "more rows than samples"),
        (torch.full((3,), 1 / 3), {"num_samples": 0}, ValueError, "num_samples must be an integer of at least 1"),
        (torch.full((3,), 1 / 3), {"num_steps": -1}, ValueError, "num_steps must be an integer of at least 0"),
        (torch.full((3,), 1 / 3), {"num_steps": 1.5}, ValueError, "num_steps must be an integer of at least 0"),
    ],
)
def test_moments_that_cannot_be_matched_are_refused(p0: object, options: dict, error: type[Exception], message: str):
    logits = torch.zeros(3, requires_grad=True)
    with pytest.raises(TypeError, match="relaxation must be a function"):
        match_moments(GumbelSoftmax(0.1, logits), [logits], torch.full((3,), 1 / 3))
    with pytest.raises(error, match=message):
        match_moments(lambda: GumbelSoftmax(0.1, logits), [logits], p0, **options)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_fits_where_no_gradients_are_recorded(mode):
    p0 = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    planar = Planar(u=torch.tensor([1.0, 0.5]), w=torch.tensor([0.3, -1.0]))
    with mode():
        for flow in (None, StickBreaking()):
            found = fit_prior(p0, temperature=0.1, scale=torch.tensor([0.8, 1.2], dtype=torch.float64), flow=flow)
            torch.testing.assert_close(found.recovered().probs, p0, rtol=0, atol=1e-5)
        probs = fit_prior(Poisson(1.0), temperature=0.1).recovered().probs[:3]
        torch.testing.assert_close(probs, torch.tensor([1.0, 1.0, 0.5]) / math.e, rtol=0, atol=1e-5)
        found = fit_prior(p0, temperature=0.1, flow=planar, num_steps=200, num_samples=1_000)
    assert (found.sample((10_000,)).mean(0) - p0).abs().max() < 0.05


def test_fits_in_several_threads():
    """And forward mode of another goes on meanwhile, whose levels are the same for all threads of a process."""

    def fitted(K: int) -> Tensor:
        return fit_prior(torch.full((K,), 1 / K), temperature=0.1, flow=StickBreaking()).recovered().probs

    def hessian(K: int) -> Tensor:
        return torch.func.hessian(lambda loc: recovered_log_probs(loc, 1.0)[0])(torch.zeros(K - 1))

    sizes = (3, 4, 5, 6)
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(fitted, K) for K in sizes]
        derivatives = [hessian(K) for K in sizes]
        for K, probs, own in zip(sizes, found, derivatives, strict=True):
            torch.testing.assert_close(probs.result(), torch.full((K,), 1 / K), rtol=0, atol=1e-5)
            torch.testing.assert_close(own, hessian(K))


def test_moments_are_matched_where_no_gradients_are_recorded():
    logits, p0 = torch.zeros(3, requires_grad=True), torch.tensor([0.5, 0.3, 0.2])
    with torch.no_grad():
        losses = match_moments(lambda: GumbelSoftmax(0.1, logits), [logits], p0, num_steps=50)
    assert losses[-1] < losses[0]
