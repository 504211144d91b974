"""The categorical surrogate of equation 8."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Normal, OneHotCategorical, kl_divergence

import igr
from igr.distributions import BinaryConcrete, GumbelSoftmax, InvertibleGaussian
from igr.kl import categorical_kl
from igr.transforms import StickBreaking

DOUBLE = torch.float64


def test_categorical_kl_against_scipy():
    logits = torch.randn(6, 4, dtype=DOUBLE)
    other = torch.randn(4, dtype=DOUBLE)
    expected = scipy.stats.entropy(logits.softmax(-1).numpy(), other.softmax(-1).numpy()[None], axis=-1)
    pairs: list[tuple[object, object]] = [
        (logits, other),
        (GumbelSoftmax(0.3, logits + 5.0), GumbelSoftmax(1.0, other)),  # blind to the temperatures
        (OneHotCategorical(logits=logits), Categorical(logits=other)),
    ]
    for p, q in pairs:
        np.testing.assert_allclose(igr.categorical_kl(p, q).numpy(), expected, rtol=1e-12)


def test_categorical_kl_with_impossible_categories():
    p = torch.tensor([0.0, 0.0, -math.inf], dtype=DOUBLE, requires_grad=True)
    value = categorical_kl(p, torch.zeros(3, dtype=DOUBLE))
    assert value.item() == pytest.approx(math.log(3 / 2))
    (gradient,) = torch.autograd.grad(value, p)
    assert gradient.isfinite().all()
    assert categorical_kl(torch.zeros(3), torch.tensor([0.0, 0.0, -math.inf])) == math.inf
    q = torch.tensor([1.0, 0.0, -math.inf], dtype=DOUBLE)  # impossible for both
    assert categorical_kl(p, q).item() == pytest.approx(scipy.stats.entropy([0.5, 0.5], q[:2].softmax(-1).numpy()))


def test_categorical_kl_of_bernoullis():
    logits = torch.randn(5, dtype=DOUBLE)
    expected = kl_divergence(Bernoulli(logits=logits), Bernoulli(logits=torch.zeros(5, dtype=DOUBLE)))
    actual = categorical_kl(BinaryConcrete(0.5, logits), Bernoulli(logits=torch.zeros(5, dtype=DOUBLE)))
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("value", [Normal(torch.zeros(3), 1.0), 0.5, torch.zeros(3, dtype=torch.int64)])
def test_categorical_kl_refuses_what_is_not_categorical(value: Tensor):
    with pytest.raises(TypeError, match="p must"):
        categorical_kl(value, torch.zeros(3))


def test_what_is_impossible_makes_a_categorical_divergence_infinite():
    p = InvertibleGaussian(torch.zeros(2), 1.0, 0.5)
    q = InvertibleGaussian(torch.zeros(2), 1.0, 0.5, flow=StickBreaking(leftover=False))
    assert categorical_kl(p, q) == math.inf
    assert categorical_kl(q, p).isfinite()
    loc = torch.zeros(2, requires_grad=True)
    own = InvertibleGaussian(loc, 1.0, 0.5, flow=StickBreaking(leftover=False))
    assert torch.autograd.grad(categorical_kl(own, p) + categorical_kl(own, q), loc)[0].isfinite().all()


def test_a_bernoulli_is_the_categories_zero_and_one():
    coin = Bernoulli(torch.tensor([0.9, 0.3], dtype=torch.float32))
    for i in range(2):
        one = Bernoulli(coin.probs[i])
        assert categorical_kl(igr.fit_prior(one, temperature=0.5), one).abs() < 1e-6
    torch.testing.assert_close(
        categorical_kl(torch.stack([1 - coin.probs, coin.probs], -1).log(), coin), torch.zeros(2)
    )
    half = Bernoulli(logits=torch.zeros(2, dtype=torch.bfloat16))
    assert categorical_kl(half, half).dtype == torch.float32
