"""Relaxed k-subsets, against enumeration of subsets, exact arithmetic and finite differences."""

from itertools import combinations, permutations
from math import exp

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from igr.functional import gaussian_softmax, gaussian_top_k, gumbel_softmax, gumbel_top_k

METHODS = ["sequential", "marginals"]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def scores_of(logits, seed=0):
    """The scores that gumbel_top_k draws from this generator, up to a shift: a sample at τ = 1 is their softmax."""
    return gumbel_softmax(logits, generator=seeded(seed)).log()


def by_exact_arithmetic(s, k, tau):
    """Xie and Ermon's recursion with 1 - p as such, in 400 digits."""
    with mpmath.workdps(400):
        s = [mpmath.mpf(x) for x in s]
        z = [mpmath.mpf(0)] * len(s)
        for _ in range(k):
            top = max(s)
            w = [mpmath.exp((x - top) / tau) for x in s]
            p = [x / sum(w) for x in w]
            z = [a + b for a, b in zip(z, p, strict=True)]
            s = [a + mpmath.log(1 - b) for a, b in zip(s, p, strict=True)]
        return [float(x) for x in z]


def by_enumeration(s, k, tau):
    weights = {S: exp(sum(s[i] for i in S) / tau) for S in combinations(range(len(s)), k)}
    return [sum(w for S, w in weights.items() if i in S) / sum(weights.values()) for i in range(len(s))]


@pytest.mark.parametrize("tau", [0.03, 0.1, 0.5, 2.0])
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_sequential_is_the_recursion(k, tau):
    logits = torch.randn(3, 6, dtype=torch.float64)
    z = gumbel_top_k(logits, k, tau, method="sequential", generator=seeded())
    expected = [by_exact_arithmetic(row, k, tau) for row in scores_of(logits).tolist()]
    torch.testing.assert_close(z, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("tau", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("k", [1, 2, 3, 5, 6])
def test_marginals_are_those_of_subsets(k, tau):
    logits = torch.randn(3, 6, dtype=torch.float64)
    z = gumbel_top_k(logits, k, tau, method="marginals", generator=seeded())
    expected = [by_enumeration(row, k, tau) for row in scores_of(logits).tolist()]
    torch.testing.assert_close(z, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("hard", [False, True])
def test_one_category_is_the_softmax(method, hard):
    logits, loc, scale = torch.randn(50, 7), torch.randn(50, 6), torch.rand(50, 6) + 0.1
    mask = torch.rand(50, 7) < 0.6
    mask[:, 2] = True
    for tau in (0.01, 1.0):
        options = {"mask": mask, "method": method}
        ours = gumbel_top_k(logits, 1, tau, hard, generator=seeded(), **options)
        assert torch.equal(ours, gumbel_softmax(logits, tau, hard, mask=mask, generator=seeded()))
        ours = gaussian_top_k(loc, scale, 1, tau, hard, generator=seeded(), **options)
        assert torch.equal(ours, gaussian_softmax(loc, scale, tau, hard, mask=mask, generator=seeded()))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tau", [0.01, 0.3, 3.0])
@pytest.mark.parametrize("k", [1, 2, 5, 9, 10])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_sums_to_k(method, tau, k, dtype):
    tolerance = 16 * k * torch.finfo(dtype).eps
    if method == "marginals":  # recursions over sums of scores of about 10 / τ, in float64
        tolerance += k * 1e-14 / tau
    for z in (
        gumbel_top_k(3 * torch.randn(200, 10, dtype=dtype), k, tau, method=method),
        gaussian_top_k(3 * torch.randn(200, 9, dtype=dtype), 1.0, k, tau, method=method),
    ):
        assert z.dtype == dtype
        assert z.shape == (200, 10)
        assert bool((z >= 0).all())
        assert (z.double().sum(-1) - k).abs().max() <= tolerance
        assert z.max() <= (1 if method == "marginals" or k == 1 else k)
        if k == 10 and method == "marginals":
            torch.testing.assert_close(z, torch.ones_like(z), rtol=0, atol=1e-9 if dtype == torch.float64 else 1e-6)


def test_softmaxes_may_take_more_than_one():
    """Scores 0.00405 apart at τ = 0.01: (0.6, 0.4), then nearly all for the other."""
    s = torch.tensor([0.0040547], dtype=torch.float64)
    expected = by_exact_arithmetic([*s.tolist(), 0.0], 2, 0.01)
    assert [round(x, 2) for x in expected] == [0.6, 1.4]
    z = gaussian_top_k(s, 1e-15, 2, 0.01, method="sequential")
    torch.testing.assert_close(z, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(gaussian_top_k(s, 1e-15, 2, 0.01), torch.ones(2, dtype=torch.float64))
    for tau, share in ((0.5, 0.75), (0.01, 0.14)):
        z = gumbel_top_k(torch.zeros(10_000, 10), 3, tau, method="sequential")
        assert (z > 1.001).any(-1).double().mean().item() == pytest.approx(share, abs=0.03)


def plackett_luce(logits, k):
    """P(set) by all orders in which its members can be drawn."""
    w = [exp(x) for x in logits]

    def order(S):
        p, rest = 1.0, sum(w)
        for i in S:
            p, rest = p * w[i] / rest, rest - w[i]
        return p

    return {S: sum(order(o) for o in permutations(S)) for S in combinations(range(len(w)), k)}


def count_subsets(z):
    sets, counts = z.unique(dim=0, return_counts=True)
    return {tuple(row.nonzero().flatten().tolist()): int(n) for row, n in zip(sets, counts, strict=True)}


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_hard_gumbel_is_plackett_luce(k):
    logits, n = torch.tensor([0.5, -0.3, 1.0, 0.0, -1.0]), 100_000
    z = gumbel_top_k(logits.expand(n, 5), k, 0.5, hard=True)
    expected, found = plackett_luce(logits.tolist(), k), count_subsets(z)
    assert found.keys() <= expected.keys()
    result = stats.chisquare([found.get(S, 0) for S in expected], [n * p for p in expected.values()], sum_check=False)
    assert result.pvalue > 1e-5


def test_hard_gumbel_with_a_mask_is_plackett_luce_of_the_rest():
    logits, n = torch.tensor([0.5, -0.3, 1.0, 0.0, -1.0]), 100_000
    mask = torch.tensor([True, True, False, True, True])
    z = gumbel_top_k(logits, 2, 0.5, hard=True, mask=mask.expand(n, 5))
    expected = plackett_luce([x if m else -1e3 for x, m in zip(logits.tolist(), mask.tolist(), strict=True)], 2)
    expected = {S: p for S, p in expected.items() if 2 not in S}
    found = count_subsets(z)
    result = stats.chisquare([found.get(S, 0) for S in expected], [n * p for p in expected.values()], sum_check=False)
    assert result.pvalue > 1e-5
    assert found.keys() <= expected.keys()


def test_hard_gaussian_is_the_top_of_k_scores():
    """K = 3, k = 2: category 3, whose score is zero, is left out where both others are positive."""
    loc, scale, n = torch.tensor([0.4, -0.2]), torch.tensor([1.0, 0.5]), 200_000
    z = gaussian_top_k(loc.expand(n, 2), scale, 2, 0.5, hard=True)
    p = stats.norm.cdf(0.4) * stats.norm.cdf(-0.4)
    left_out = (z[:, 2] == 0).double().mean().item()
    assert abs(left_out - p) < 5 * (p * (1 - p) / n) ** 0.5
    assert torch.equal(z.unique(), torch.tensor([0.0, 1.0]))
    assert bool((z.sum(-1) == 2).all())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("k", [2, 4])
def test_low_temperature_is_the_hard_sample(method, k):
    logits = torch.randn(500, 8, dtype=torch.float64)
    hard = gumbel_top_k(logits, k, 1e-6, hard=True, generator=seeded())
    soft = gumbel_top_k(logits, k, 1e-6, method=method, generator=seeded())
    torch.testing.assert_close(soft, hard, rtol=0, atol=1e-7)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("k", [1, 2, 5, 19, 20])
def test_gradients_are_finite_at_low_temperature(method, k):
    loc = (5 * torch.randn(400, 19)).requires_grad_()
    logits = (5 * torch.randn(400, 20)).requires_grad_()
    tau, scale = torch.tensor(0.01, requires_grad=True), torch.tensor(1.0, requires_grad=True)
    v = torch.randn(20)
    for z in (gumbel_top_k(logits, k, tau, method=method), gaussian_top_k(loc, scale, k, tau, method=method)):
        (z @ v).sum().backward()
    assert all(bool(x.grad.isfinite().all()) for x in (loc, logits, tau, scale))
    if k < 20:
        assert (logits.grad.abs().amax(-1) > 0).float().mean() > 0.1  # others are that far from a tie


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("hard", [False, True])
def test_gradient_is_that_of_the_relaxed_sample(method, hard):
    logits = torch.randn(2, 5, dtype=torch.float64)
    v = torch.randn(5, dtype=torch.float64)

    def value(x, hard=False):
        return (gumbel_top_k(x, 3, 0.7, hard, method=method, generator=seeded()) @ v).sum()

    x = logits.clone().requires_grad_()
    value(x, hard).backward()
    step = 1e-6 * torch.eye(10, dtype=torch.float64).view(10, 2, 5)
    expected = torch.stack([(value(logits + d) - value(logits - d)) / 2e-6 for d in step]).view(2, 5)
    torch.testing.assert_close(x.grad, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("method", METHODS)
def test_masks(method):
    mask = torch.tensor([[True, False, True, True], [True, True, True, False]])
    logits = torch.tensor([[0.0, float("-inf"), 1.0, 2.0], [3.0, 2.0, 1.0, float("-inf")]], requires_grad=True)
    tau = torch.tensor(0.3, requires_grad=True)
    for hard in (False, True):
        z = gumbel_top_k(logits, 2, tau, hard, method=method, mask=mask)
        assert bool((z[~mask] == 0).all())
        torch.testing.assert_close(z.sum(-1), torch.full((2,), 2.0))
        (z @ torch.randn(4)).sum().backward()
        g = gaussian_top_k(torch.randn(2, 3), 1.0, 2, tau, hard, method=method, mask=mask)
        assert bool((g[~mask] == 0).all())
        assert g[0, -1] != 0 or g[0, 0] + g[0, 2] == 2
    assert bool(logits.grad.isfinite().all() & tau.grad.isfinite())
    assert bool((logits.grad[~mask] == 0).all())
    everything = gumbel_top_k(logits.detach(), 3, 0.3, method=method, mask=mask)
    assert bool((everything[~mask] == 0).all())


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_impossible_categories_keep_the_gradient_of_tau(method, hard):
    """It is that of a category so unlikely that its share is zero too."""

    def gradients(least):
        tau = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        logits = torch.tensor([0.0, least, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
        z = gumbel_top_k(logits, 2, tau, hard, method=method, generator=torch.Generator().manual_seed(0))
        assert z[1] == 0
        return torch.autograd.grad(z[0], (logits, tau))

    torch.testing.assert_close(gradients(float("-inf")), gradients(-1e4))


@pytest.mark.parametrize(("tau", "share"), [(0.5, 0.743), (0.01, 0.137)])
def test_successive_softmaxes_exceed_one_as_often_as_is_said(tau, share):
    torch.manual_seed(0)
    z = gumbel_top_k(torch.zeros(40_000, 10), 3, tau, method="sequential")
    above = int((z > 1.001).any(-1).sum())
    assert stats.binomtest(above, 40_000, share).pvalue > 1e-5


def test_mask_without_a_category_is_the_smaller_problem():
    """The K-th forbidden: the same as K - 1 categories with those scores, checked through exact arithmetic."""
    mask = torch.tensor([True, True, True, False])
    loc = torch.tensor([1.0, 0.3, -0.5], dtype=torch.float64)
    z = gaussian_top_k(loc, 1e-12, 2, 0.5, method="sequential", mask=mask)
    expected = [*by_exact_arithmetic(loc.tolist(), 2, 0.5), 0.0]
    torch.testing.assert_close(z, torch.tensor(expected, dtype=torch.float64))
    z = gaussian_top_k(loc, 1e-12, 2, 0.5, mask=mask)
    expected = [*by_enumeration(loc.tolist(), 2, 0.5), 0.0]
    torch.testing.assert_close(z, torch.tensor(expected, dtype=torch.float64))


def test_temperature_per_row_and_leading_axes():
    tau = torch.tensor([[0.01], [1.0]])
    z = gumbel_top_k(torch.zeros(6), 2, tau)
    assert z.shape == (2, 6)
    assert gaussian_top_k(torch.zeros(5), 1.0, 2, mask=torch.ones(3, 1, 6, dtype=torch.bool)).shape == (3, 1, 6)


@pytest.mark.parametrize("method", METHODS)
def test_compiles(method):
    torch._dynamo.reset()
    compiled = torch.compile(gumbel_top_k, fullgraph=True, backend="aot_eager")
    z = compiled(torch.randn(4, 5), 2, 0.5, method=method, mask=torch.tensor([True, True, True, True, False]))
    torch.testing.assert_close(z.sum(-1), torch.full((4,), 2.0))


def test_a_compiler_takes_another_k():
    torch._dynamo.reset()
    compiled = torch.compile(gumbel_top_k, fullgraph=True, backend="aot_eager")
    for k in (1, 2, 3):
        torch.testing.assert_close(compiled(torch.zeros(4, 5), k, 0.5).sum(-1), torch.full((4,), float(k)))


@pytest.mark.parametrize("method", METHODS)
def test_integers_of_numpy(method):
    z = gumbel_top_k(torch.zeros(4, 5), np.int64(2), 0.5, hard=True, method=method)
    assert bool((z.sum(-1) == 2).all())


def test_vmap():
    z = torch.func.vmap(lambda x: gumbel_top_k(x, 2, 0.5), randomness="different")(torch.zeros(8, 5))
    assert z.shape == (8, 5)
    assert len(z.unique(dim=0)) == 8


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"k": 0}, ValueError, "k must be from 1 to the number of categories, 4, got 0"),
        ({"k": 5}, ValueError, "got 5"),
        ({"k": 2.0}, TypeError, "k must be an integer, got 2.0"),
        ({"k": True}, TypeError, "k must be an integer"),
        ({"k": 2, "tau": 0.0}, ValueError, "tau must be positive"),
        ({"k": 2, "method": "exact"}, ValueError, "'marginals' or 'sequential', got 'exact'"),
        ({"k": 2, "mask": torch.tensor([True, False, False, False])}, ValueError, "allows 1 categories .* k = 2"),
    ],
    ids=["zero", "many", "float", "bool", "tau", "method", "mask"],
)
def test_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        gumbel_top_k(torch.zeros(3, 4), **arguments)
    with pytest.raises(error, match=message):
        gaussian_top_k(torch.zeros(3, 3), 1.0, **arguments)


def test_uniform_scores_share_evenly():
    """Equal scores: every entry is k / K, whatever the temperature."""
    for method in METHODS:
        z = gaussian_top_k(torch.zeros(3, dtype=torch.float64), 1e-300, 3, 0.01, method=method)
        torch.testing.assert_close(z, torch.full((4,), 0.75, dtype=torch.float64))


@pytest.mark.parametrize("mask", [None, torch.tensor([True, False, True])])
def test_too_few_possible_categories_are_refused(mask):
    logits = torch.tensor([[0.0, 1.0, 2.0], [0.0, 1.0, float("-inf")]])
    allowed = 2 if mask is None else 1
    with pytest.raises(ValueError, match=f"{allowed} categories of some row are allowed and have a logit above -inf"):
        gumbel_top_k(logits, allowed + 1, 0.5, mask=mask)
    z = gumbel_top_k(logits, allowed, 0.5, mask=mask)
    torch.testing.assert_close(z.sum(-1), torch.full((2,), float(allowed)))


@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize("method", METHODS)
def test_second_derivatives(method, k):
    """By differences of the gradient; no entry of the sums over sets is NaN where there are no such sets."""
    logits = torch.randn(5, dtype=torch.float64)
    weights = torch.randn(5, dtype=torch.float64)

    def slope(x):
        x = x.detach().requires_grad_()
        z = gumbel_top_k(x, k, 0.7, method=method, generator=torch.Generator().manual_seed(1))
        (found,) = torch.autograd.grad((z * weights).sum().square(), x, create_graph=True)
        return x, found

    x, gradient = slope(logits)
    found = torch.stack([torch.autograd.grad(each, x, retain_graph=True)[0] for each in gradient])
    step = 1e-5 * torch.eye(5, dtype=torch.float64)
    expected = torch.stack([(slope(logits + h)[1] - slope(logits - h)[1]) / 2e-5 for h in step])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def test_no_rows():
    mask = torch.ones(0, 5, dtype=torch.bool)
    assert gumbel_top_k(torch.zeros(0, 5), 2, mask=mask).shape == (0, 5)
    assert gaussian_top_k(torch.zeros(0, 4), 1.0, 2, mask=mask).shape == (0, 5)
