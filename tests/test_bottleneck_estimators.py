"""Hard samples of the layer, with the gradients of every estimator that it takes."""

import math

import pytest
import torch
from bottleneck_cases import MASKED, RELAXATIONS, H, K, N, features, is_one_hot, layer
from torch import nn

from igr import estimators
from igr.nn import CategoricalBottleneck


def exact_gradient(model, h, values):
    """The derivative of E f(D) by the biases, for one variable and f(e_k) given, from the categories' probabilities."""
    log_p = model.distribution(h).recovered().logits.log_softmax(-1)
    return torch.autograd.grad((log_p.exp() * values).sum(), model.head.bias)[0]


@pytest.mark.parametrize(("estimator", "power"), [("straight_through", 1), ("reinmax", 1), ("reinmax", 2)])
@pytest.mark.parametrize("relaxation", MASKED)
def test_gradients_by_probabilities_are_exact_for(relaxation, estimator, power):
    """Linear functions of the sample, and by ReinMax quadratic ones."""
    model = CategoricalBottleneck(H, 1, 4, relaxation, estimator=estimator).double()
    nn.init.normal_(model.head.bias)
    h, v, n = features(1), torch.randn(4, dtype=torch.float64), 2_000
    expected = exact_gradient(model, h, v**power)
    means = []
    for _ in range(20):
        z = model(h.expand(n, H)).z
        assert is_one_hot(z)
        means.append(torch.autograd.grad(((z @ v) ** power).sum() / n, model.head.bias)[0])
    found = torch.stack(means)
    error = found.std(0) / math.sqrt(20)
    assert bool(((found.mean(0) - expected).abs() < 5 * error + 1e-12).all())
    assert bool((error < 0.05 * expected.abs().max()).all())  # so that a wrong one is seen


@pytest.mark.parametrize(
    ("relaxation", "estimator"),
    [
        ("gs", "gumbel_rao"),
        ("igr-i", "igr_rao"),
        ("gs", "gapped_straight_through"),
        ("igr-i", "gapped_straight_through"),
    ],
)
def test_gradients_are_those_of_the_estimator(relaxation, estimator):
    model, h = layer(relaxation, estimator=estimator), features(6, requires_grad=True)
    noise = torch.Generator()
    (found,) = torch.autograd.grad(model(h, generator=noise.manual_seed(0)).z.cumsum(-1).square().sum(), h)
    q = model.distribution(h)
    if estimator.startswith("gapped"):
        q = torch.distributions.OneHotCategorical(logits=q.recovered().logits)
    surrogate = getattr(estimators, estimator)(
        q, lambda z: z.cumsum(-1).square().sum((-2, -1)), generator=noise.manual_seed(0)
    ).surrogate
    torch.testing.assert_close(found, torch.autograd.grad(surrogate.sum(), h)[0])


def test_sticks_have_estimators_by_probabilities():
    model, h = CategoricalBottleneck(H, 1, 3, "igr-sb", estimator="reinmax"), torch.randn(2, H)
    z, kl = model(h)
    (z.cumsum(-1).square().sum() + kl.sum()).backward()
    assert is_one_hot(z)
    assert model.kl == "discrete"
    assert bool(model.head.weight.grad.isfinite().all() & model.head.weight.grad.any())


@pytest.mark.parametrize(
    ("relaxation", "estimator", "kl"),
    [
        ("igr-i", "reparameterized", "continuous"),
        ("igr-i", "st_relaxed", "continuous"),
        ("igr-i", "reinmax", "discrete"),
        ("igr-sb", "straight_through", "discrete"),
        ("igr-planar", "st_relaxed", "continuous"),
        ("gs", "reparameterized", "discrete"),
    ],
)
def test_default_divergence(relaxation, estimator, kl):
    assert CategoricalBottleneck(H, 1, 3, relaxation, estimator=estimator).kl == kl


@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_every_estimator_takes_the_distribution(relaxation):
    model, h = layer(relaxation), features(4)
    v = torch.randn(N, K, dtype=torch.float64)

    def f(z):
        return (z * v).sum((-1, -2)).square()

    any_flow = ["reparameterized", "sticking_the_landing", "st_relaxed"]
    known = ["straight_through", "gapped_straight_through", "reinmax", "score_function"]
    several = ["rloo", "vimco", "uspg"]
    special = {"igr-i": ["igr_rao", "relax", "rebar"], "gs": ["gumbel_rao", "relax", "rebar"]}.get(relaxation, [])
    for name in any_flow + ([] if relaxation == "igr-planar" else known + several + special):
        model.zero_grad()
        q = model.distribution(h)
        options = {"num_samples": 2} if name in several else {}
        if name == "sticking_the_landing":
            options["prior"] = q.expand(q.batch_shape)
        value, surrogate = getattr(estimators, name)(q, f, **options)
        assert value.shape == (4,)
        surrogate.sum().backward()
        assert bool((model.head.weight.grad != 0).any()), name
