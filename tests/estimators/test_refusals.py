"""What estimators refuse, what they put up with, and what a baseline does beside lowering the variance."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, OneHotCategorical

import igr
from igr import GumbelSoftmax, InvertibleGaussian, estimators, recovered_log_probs
from igr.estimators import Estimate, RunningMean, relax, score_function

DOUBLE = torch.float64
B, N, K = 5, 3, 4
WEIGHTS = torch.linspace(-1.0, 2.0, N * K, dtype=DOUBLE).view(N, K)
EITHER = ("gs", "igr-i")
THROUGH = {
    "reparameterized": EITHER,
    "straight_through": EITHER,
    "st_relaxed": EITHER,
    "gumbel_rao": ("gs",),
    "igr_rao": ("igr-i",),
    "gapped_straight_through": EITHER,
    "reinmax": EITHER,
}
PAIRS = [(name, family) for name, families in THROUGH.items() for family in families]
through_the_sample = pytest.mark.parametrize(("name", "family"), PAIRS)


def latent(family: str, requires_grad: bool = True) -> tuple[Distribution, Tensor]:
    """A relaxation and the logits of its categories."""
    x = torch.randn(B, N, K if family == "gs" else K - 1, dtype=DOUBLE, requires_grad=requires_grad)
    if family == "gs":
        return GumbelSoftmax(0.5, x), x
    return InvertibleGaussian(x, 0.8, 0.5), recovered_log_probs(x, 0.8)


def of_values(z: Tensor) -> Tensor:
    """Has a gradient."""
    return (z * WEIGHTS).sum((-2, -1)).square()


def of_argmax(z: Tensor) -> Tensor:
    """Has none."""
    return WEIGHTS[torch.arange(N), z.argmax(-1)].sum(-1)


def run(name: str, q: Distribution, f: Callable[[Tensor], Tensor], **options) -> Estimate:
    return getattr(estimators, name)(q, f, generator=torch.Generator().manual_seed(1), **options)


# -- an f without a gradient -------------------------------------------------------------------------------------------


@through_the_sample
def test_functions_of_the_argmax_are_refused(name, family):
    q, _ = latent(family)
    with pytest.raises(ValueError, match="f has no gradient with respect to the sample"):
        run(name, q, of_argmax, num_samples=2)
    own = torch.ones((), dtype=DOUBLE, requires_grad=True)  # f has a gradient, but not in the sample
    with pytest.raises(ValueError, match="f has no gradient with respect to the sample"):
        run(name, q, lambda z: own * of_argmax(z), num_samples=2)


@through_the_sample
def test_log_prob_of_one_hot_categoricals_is_refused(name, family):
    """It depends on the parameters of q, and looks at the argmax of the sample."""
    q, logits = latent(family)
    discrete = OneHotCategorical(logits=logits, validate_args=False)
    with pytest.raises(ValueError, match=r"log q as \(z \* log_probs\)\.sum"):
        run(name, q, lambda z: discrete.log_prob(z).sum(-1))
    assert run(name, q, lambda z: (z * discrete.logits).sum((-1, -2))).surrogate.requires_grad
    assert run(name, q, lambda z: of_values(z) + discrete.log_prob(z).sum(-1)).surrogate.requires_grad


@pytest.mark.parametrize("name", sorted(set(THROUGH) - {"igr_rao"}))
def test_log_prob_of_a_discrete_q_is_refused(name):
    q = OneHotCategorical(logits=torch.randn(B, N, K, dtype=DOUBLE, requires_grad=True), validate_args=False)
    with pytest.raises(ValueError, match="f has no gradient"):
        run(name, q, lambda z: q.log_prob(z).sum(-1))


@through_the_sample
def test_functions_of_the_argmax_are_evaluated_where_no_gradient_is_asked_for(name, family):
    q, _ = latent(family)
    with torch.no_grad():
        value, surrogate = run(name, q, of_argmax)
    assert torch.equal(value, surrogate)
    assert not surrogate.requires_grad
    own = torch.ones((), dtype=DOUBLE, requires_grad=True)
    q, _ = latent(family, requires_grad=False)
    value, surrogate = run(name, q, lambda z: own * of_argmax(z))
    (slope,) = torch.autograd.grad(surrogate.sum(), own)
    torch.testing.assert_close(slope, value.sum())


# -- an f that writes into its sample ----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", EITHER)
@pytest.mark.parametrize("coupled", [True, False])
def test_relax_of_a_function_that_writes_into_its_sample(family, coupled):
    q, _ = latent(family)
    x = q.logits if family == "gs" else q.loc
    scale = torch.tensor(1.3, dtype=DOUBLE, requires_grad=True)

    def pure(z: Tensor) -> Tensor:
        return (scale * z * WEIGHTS).sum((-2, -1)).square()

    def writing(z: Tensor) -> Tensor:
        z.mul_(WEIGHTS)
        return (scale * z).sum((-2, -1)).square()

    found, expected = (
        run("relax", q, f, control_variate=lambda z: of_values(z).sin(), num_samples=3, coupled=coupled)
        for f in (writing, pure)
    )
    torch.testing.assert_close(found.value, expected.value, rtol=1e-12, atol=0)
    slopes = [torch.autograd.grad(each.surrogate.sum(), [x, scale]) for each in (found, expected)]
    for a, b in zip(*slopes, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)
        assert b.abs().max() > 0.01


# -- baselines ---------------------------------------------------------------------------------------------------------


def test_a_head_on_a_shared_encoder_is_trained_and_the_encoder_is_not():
    encoder, to_logits = nn.Linear(6, 8).double(), nn.Linear(8, N * K).double()
    head, decoder = nn.Linear(8, 1).double(), nn.Linear(N * K, 1).double()
    images = torch.randn(B, 6, dtype=DOUBLE)
    networks = {"encoder": encoder, "to_logits": to_logits, "decoder": decoder}
    shared = {f"{name}.{key}": p for name, net in networks.items() for key, p in net.named_parameters()}
    shown = []

    def f(z: Tensor) -> Tensor:
        shown.append(decoder(z.flatten(-2)).squeeze(-1).square())
        return shown[-1]

    def slopes(detached: bool) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        h = encoder(images).tanh()
        q = Categorical(logits=to_logits(h).view(B, N, K))
        baseline = head(h.detach() if detached else h).squeeze(-1)
        surrogate = run("score_function", q, f, num_samples=3, baseline=baseline).surrogate
        found = torch.autograd.grad(surrogate.sum(), [*shared.values(), *head.parameters()])
        return found[: len(shared)], found[len(shared) :]

    (found, of_head), (expected, of_detached_head) = slopes(False), slopes(True)
    for name, a, b in zip(shared, found, expected, strict=True):
        assert torch.equal(a, b), name
        assert b.abs().max() > 1e-6, name
    with torch.no_grad():
        h = encoder(images).tanh()
    error = (shown[0].detach() - head(h).squeeze(-1)).square().mean(0).sum()
    truth = torch.autograd.grad(error, list(head.parameters()))
    for a, b, c in zip(of_head, of_detached_head, truth, strict=True):
        torch.testing.assert_close(a, c, rtol=1e-12, atol=0)
        torch.testing.assert_close(b, c, rtol=1e-12, atol=0)


def test_a_running_mean_stands_still_in_evaluation_mode():
    baseline, q = RunningMean(), latent("gs")[0]
    run("score_function", q, of_values, baseline=baseline)
    before = [x.clone() for x in baseline.buffers()]
    assert all(x != 0 for x in before)
    baseline.eval()
    baseline.update(torch.full((3,), 100.0))
    held = run("score_function", q, of_values, baseline=baseline)
    assert all(torch.equal(a, b) for a, b in zip(baseline.buffers(), before, strict=True))
    number = run("score_function", q, of_values, baseline=baseline().double())  # which it is all the same
    slopes = [torch.autograd.grad(each.surrogate.sum(), q.logits)[0] for each in (held, number)]
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=0)
    baseline.train()
    run("score_function", q, of_values, baseline=baseline)
    assert not any(torch.equal(a, b) for a, b in zip(baseline.buffers(), before, strict=True))


def test_a_number_is_a_baseline():
    q = latent("gs")[0]

    def of(baseline: float | Tensor | None) -> tuple[Tensor, Tensor]:
        value, surrogate = run("score_function", q, of_values, num_samples=2, baseline=baseline)
        return value, torch.autograd.grad(surrogate.sum(), q.logits)[0]

    for number in (0.5, 2, np.float64(0.5)):
        for a, b in zip(of(number), of(torch.tensor(float(number), dtype=DOUBLE)), strict=True):
            assert torch.equal(a, b)
    assert not torch.allclose(of(0.5)[1], of(None)[1])


@pytest.mark.parametrize(
    "baseline", [of_values, nn.Linear(2, 1), torch.zeros_like], ids=["function", "module", "torch"]
)
def test_a_function_is_no_baseline(baseline):
    with pytest.raises(TypeError, match=r"a tensor or a RunningMean, got .*; give what it returns"):
        score_function(latent("gs")[0], of_values, baseline=baseline)


# -- integers ----------------------------------------------------------------------------------------------------------

ALL = [name for name in estimators.__all__ if name[0].islower()]


@pytest.mark.parametrize("name", ALL)
def test_integers_of_numpy_are_numbers_of_samples(name):
    q, _ = latent("igr-i" if name == "igr_rao" else "gs")
    options = {"prior": GumbelSoftmax(0.5, torch.zeros(K, dtype=DOUBLE))} if name == "sticking_the_landing" else {}
    if name == "disarm":
        q = Categorical(logits=torch.randn(B, N, 2, dtype=DOUBLE))

    def f(z: Tensor) -> Tensor:
        return (z * WEIGHTS[..., : z.shape[-1]]).sum((-2, -1)).square()

    numpy, plain = (run(name, q, f, num_samples=S, **options).value for S in (np.int64(4), 4))
    assert torch.equal(numpy, plain)


@pytest.mark.parametrize("name", ["straight_through", "reinmax", "gapped_straight_through"])
def test_temperatures_are_of_variables_and_not_of_samples(name):
    q, _ = latent("gs")
    for rows in ((B, N), (N,), (1,)):
        assert run(name, q, of_values, num_samples=4, temperature=torch.ones(*rows, 1)).value.shape == (B,)
    for rows in ((4, B, N), (5, B, N)):
        with pytest.raises(ValueError, match=rf"temperature must be a number or broadcast to \({B}, {N}, 1\)"):
            run(name, q, of_values, num_samples=4, temperature=torch.ones(*rows, 1))


def test_relax_takes_integers_of_numpy_and_no_others():
    q, _ = latent("gs")
    for wrong in (4.0, np.float64(4.0), True, np.int64(0), torch.tensor(4)):
        with pytest.raises(ValueError, match="num_samples must be an integer of at least 1"):
            relax(q, of_values, num_samples=wrong)


# ------------------------------------------------------------------------------------------------- log q inside f, kept

LOG_Q = ["score_function", "rloo", "uspg", "rebar", "relax", "reinmax"]


@pytest.mark.parametrize("method", ["gs", "igr-i"])
@pytest.mark.parametrize("name", LOG_Q)
def test_log_q_of_the_recovered_distribution_has_its_part(name, method):
    """f is log q(D) and a quadratic, for which ReinMax is exact as well; the truth is a sum over states."""
    rows = 20_000 if method == "gs" else 2_000
    generator = torch.Generator().manual_seed(5)
    point = torch.tensor([[0.7, -0.4, 0.1]], dtype=torch.float64)
    leaf = point[..., : 3 if method == "gs" else 2].expand(rows, 1, -1).clone().requires_grad_()
    q = igr.GumbelSoftmax(0.8, leaf) if method == "gs" else igr.InvertibleGaussian(leaf, 0.9, 0.8)
    weights = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)

    def f(z, q=q):
        return (z * weights).sum((-1, -2)).square() + q.recovered().log_prob(z).sum(-1)

    estimate = getattr(igr.estimators, name)(q, f, num_samples=4 if name != "uspg" else 2, generator=generator)
    (found,) = torch.autograd.grad(estimate.surrogate.sum(), leaf)
    one = leaf[0].detach().requires_grad_()
    at = igr.GumbelSoftmax(0.8, one) if method == "gs" else igr.InvertibleGaussian(one, 0.9, 0.8)
    log_p = at.recovered().logits[0]
    (truth,) = torch.autograd.grad((log_p.exp() * (weights.square() + log_p)).sum(), one)
    error = found.std(0) / rows**0.5
    assert ((found.mean(0) - truth).abs() <= 5 * error + 1e-12).all()


def test_log_prob_of_the_recovered_distribution_is_torchs_on_vertices():
    q = igr.InvertibleGaussian(torch.randn(4, 3, 5, dtype=torch.float64), 1.0, 0.5)
    d = q.recovered()
    z = d.sample((7,))
    plain = torch.distributions.OneHotCategorical(logits=d.logits)
    torch.testing.assert_close(d.log_prob(z), plain.log_prob(z), rtol=1e-14, atol=0)
    torch.testing.assert_close(d.expand((2, 4, 3)).log_prob(z[:2]), plain.log_prob(z[:2]), rtol=1e-14, atol=0)
    torch.testing.assert_close(
        torch.distributions.kl_divergence(d, plain), torch.zeros(4, 3).double(), rtol=0, atol=1e-14
    )
    literal = igr.InvertibleGaussian(torch.zeros(1, 2), 1.0, 0.5, flow=igr.StickBreaking(leftover=False)).recovered()
    assert literal.log_prob(torch.tensor([[1.0, 0.0, 0.0]])).isfinite().all()  # though the last is impossible
