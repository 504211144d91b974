"""Discrete distributions that were made of probabilities: zero and one stay what they are, in every dtype."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, OneHotCategorical, kl_divergence

import igr
from igr import estimators

NAMES = ("score_function", "rloo", "vimco", "straight_through", "st_relaxed", "reinmax", "gapped_straight_through")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def drawn(name: str, q: Distribution, num_samples: int) -> tuple[Tensor, Tensor]:
    """What f is shown, and the surrogate."""
    shown = []

    def f(D: Tensor) -> Tensor:
        shown.append(D.detach().clone())
        return D.cumsum(-1).square().flatten(2).sum(-1)

    generator = torch.Generator().manual_seed(0)
    surrogate = getattr(estimators, name)(q, f, num_samples=num_samples, generator=generator).surrogate
    return shown[0], surrogate


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_impossible_is_not_drawn(name: str, dtype: torch.dtype):
    probs = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]], dtype=dtype).requires_grad_()
    whole = probs.expand(2000, 2, 3)
    for q in (Categorical(probs=whole), OneHotCategorical(probs=whole), Categorical(probs=probs).expand((2000, 2))):
        D, surrogate = drawn(name, q, 20)
        assert D.dtype == dtype
        assert not D[..., 2].any()
        assert D[..., 1, 1].all()
        assert 0.45 < D[..., 0, 0].double().mean() < 0.55
        (gradient,) = torch.autograd.grad(surrogate.sum(), probs)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [*NAMES, "disarm"])
def test_bits_that_are_certain_are(name: str, dtype: torch.dtype):
    probs = torch.tensor([0.0, 1.0, 0.5], dtype=dtype, requires_grad=True)
    b, surrogate = drawn(name, Bernoulli(probs=probs.expand(2000, 3)), 20)
    assert not b[..., 0].any()
    assert b[..., 1].all()
    assert 0.45 < b[..., 2].double().mean() < 0.55
    assert torch.autograd.grad(surrogate.sum(), probs)[0].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_without_replacement_all_that_is_possible_is_all(dtype: torch.dtype):
    q = Categorical(probs=torch.tensor([[0.5, 0.5, 0.0]], dtype=dtype))
    value, _ = estimators.uspg(
        q, lambda D: 1e6 * D[..., 2].double().sum(-1) + D[..., 0].double().sum(-1), num_samples=3
    )
    assert value == 0.5


def test_gradients_are_those_of_the_probabilities():
    """Also below what torch's logits are clamped to."""
    raw = torch.tensor([[0.7, 0.3 - 1e-9, 1e-9]], requires_grad=True)
    w = torch.tensor([1.0, 2.0, 5.0])
    expected = torch.autograd.grad(((raw / raw.sum(-1, keepdim=True)) * w).sum(), raw)[0]
    for q in (Categorical(probs=raw), Categorical(logits=raw.log())):
        surrogate = estimators.uspg(q, lambda D: (D * w).sum((-2, -1)), num_samples=3).surrogate
        torch.testing.assert_close(torch.autograd.grad(surrogate.sum(), raw)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_divergences_are_infinite_where_the_other_has_probability_zero(dtype: torch.dtype):
    p, q = torch.tensor([0.5, 0.5, 0.0], dtype=dtype), torch.tensor([1.0, 0.0, 0.0], dtype=dtype)
    for kind in (Categorical, OneHotCategorical):
        assert igr.categorical_kl(kind(probs=p), kind(probs=q)) == math.inf
        torch.testing.assert_close(
            igr.categorical_kl(kind(probs=q), kind(probs=p)).double().exp(),
            torch.tensor(2.0).double(),
            rtol=1e-3,
            atol=0,
        )
    bits, others = torch.tensor([0.0, 1.0, 0.5, 0.0], dtype=dtype), torch.tensor([0.0, 1.0, 1.0, 0.5], dtype=dtype)
    found = igr.categorical_kl(Bernoulli(probs=bits), Bernoulli(probs=others)).double()
    expected = kl_divergence(Bernoulli(probs=bits.double()), Bernoulli(probs=others.double()))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_what_is_not_known_stays_so():
    for kind in (Categorical, Bernoulli):  # torch checks what is inside a one-hot one by its own default
        unknown = kind(probs=torch.full((1, 3), math.nan), validate_args=False)
        assert igr.categorical_kl(unknown, kind(logits=torch.zeros(1, 3))).isnan().all()
