"""Countably many sticks: where samples stop, what they are, and torch's contract."""

import copy
import pickle

import numpy as np
import pytest
import torch
from countable_cases import brute_force, make, rising, widening
from scipy import stats
from torch.distributions import Independent, kl_divergence

from igr import countable
from igr.countable import CountableStickBreaking
from igr.nn import GrowingSticks

pytestmark = pytest.mark.usefixtures("float64")


def first_stop(w, precision):
    """K by the letter of the rule: the first with enough in the sticks, and no more left than the longest has."""
    for K in range(1, len(w) + 1):
        used = sum(w[:K])
        if used > precision and 1 - used <= max(w[:K]):
            return K
    return None


def same_law(a, b):
    """The p-value of two samples of integers having one law, rare values pooled."""
    size = 1 + max(a.max(), b.max())
    table = np.stack([np.bincount(a, minlength=size), np.bincount(b, minlength=size)])
    rare = table.sum(0) < 20
    table = np.concatenate([table[:, ~rare], table[:, rare].sum(1, keepdims=True)], 1)
    return stats.chi2_contingency(table[:, table.sum(0) > 0]).pvalue


@pytest.fixture
def fixed_noise(monkeypatch):
    """Noise for 5000 sticks, dealt out to whoever asks for it."""
    eps, dealt = torch.randn(400, 5000), 0

    def deal(shape, like, generator=None):
        nonlocal dealt
        dealt += shape[-1]
        return eps[:, dealt - shape[-1] : dealt]

    monkeypatch.setattr(countable, "gaussian_noise", deal)
    return eps


# --------------------------------------------------------------------------------------------------- where samples stop


@pytest.mark.parametrize("precision", [0.05, 0.5, 0.9, 0.999])
def test_samples_stop_where_the_rule_says(precision):
    sample = make(precision=precision).sample((300,))
    K = sample.mask.sum(-1)
    assert int(K.max()) == sample.z.shape[-1]
    assert bool((sample.mask == (torch.arange(sample.z.shape[-1]) < K.unsqueeze(-1))).all())
    for w, k in zip(sample.w.tolist(), K.tolist(), strict=True):
        assert first_stop(w, precision) == k


@pytest.mark.parametrize("precision", [0.05, 0.5, 0.9])
def test_longest_stick_is_the_longest_of_all(precision, fixed_noise):
    k = torch.arange(5000)
    loc, scale = torch.full((5000,), -2.0), 1 + 0.5 * torch.sin(k.double())
    sample = CountableStickBreaking(loc, scale, 0.5, precision).sample((400,))
    u = torch.sigmoid(loc + scale * fixed_noise)
    w = u * torch.cat([torch.ones(400, 1), (1 - u).cumprod(-1)[:, :-1]], -1)
    assert sample.z.shape[-1] < 200
    assert bool((sample.w.argmax(-1) == w.argmax(-1)).all())
    n = sample.z.shape[-1]
    torch.testing.assert_close(sample.w, torch.where(sample.mask, w[:, :n], 0.0))


def test_leftover_would_win_without_the_second_condition():
    """With ρ alone, one sample in several stops while what is left could still hold the longest stick."""
    w = brute_force(2000, 60)
    alone = np.array([int(np.argmax(row.cumsum() > 0.05)) + 1 for row in w])
    left = 1 - np.array([row[:K].sum() for row, K in zip(w, alone, strict=True)])
    assert np.mean(left > [row[:K].max() for row, K in zip(w, alone, strict=True)]) > 0.1


@pytest.mark.parametrize("precision", [0.3, 0.99])
def test_law_of_the_number_of_sticks_and_of_the_longest(precision):
    sample, w = make(precision=precision).sample((40_000,)), brute_force(40_000, 60)
    used = w.cumsum(1)
    K = np.argmax((used > precision) & (1 - used <= np.maximum.accumulate(w, 1)), 1) + 1
    assert same_law(sample.mask.sum(-1).numpy(), K) > 1e-5
    assert same_law(sample.w.argmax(-1).numpy(), w.argmax(1)) > 1e-5


def test_needs_no_more_than_max_sticks():
    q = CountableStickBreaking(-9.0, 0.1, 0.5, 0.9, max_sticks=100)
    with pytest.raises(RuntimeError, match=r"20 of 20 samples need more than max_sticks=100 .* 0.98\d* of the stick"):
        q.rsample((20,))
    assert CountableStickBreaking(1.0, 0.1, 0.5, 0.5, max_sticks=1).rsample((20,)).z.shape == (20, 1)


# -------------------------------------------------------------------------------------------------------- what they are


@pytest.mark.parametrize("sample_shape", [(), (7,), (2, 5), (0,)])
@pytest.mark.parametrize("batch_shape", [(), (4,), (2, 3)])
def test_shapes_and_sums(batch_shape, sample_shape):
    q = CountableStickBreaking(torch.randn(*batch_shape, 3), 1.0, 0.5, 0.9)
    assert q.batch_shape == batch_shape
    assert q.event_shape == ()
    rows = (*sample_shape, *batch_shape)
    for sample in (q.rsample(sample_shape), q.sample(sample_shape), q.hard_rsample(sample_shape)):
        n = sample.z.shape[-1]
        assert sample.z.shape == sample.w.shape == sample.mask.shape == (*rows, n)
        assert sample.rest.shape == sample.leftover.shape == q.log_prob(sample).shape == rows
        torch.testing.assert_close(sample.z.sum(-1) + sample.rest, torch.ones(rows))
        torch.testing.assert_close(sample.w.sum(-1) + sample.leftover, torch.ones(rows))
        assert bool((sample.z[~sample.mask] == 0).all())
        assert bool((sample.w[~sample.mask] == 0).all())


def test_is_the_softmaxpp_of_its_own_sticks():
    tau, delta = torch.tensor([[0.3], [2.0]]), torch.tensor([[1.0], [0.2]])
    q = CountableStickBreaking(torch.randn(2, 5), 1.0, tau, 0.9, delta=delta)
    sample = q.rsample((50,))
    for s in range(50):
        for b in range(2):
            K = int(sample.mask[s, b].sum())
            e = torch.exp(sample.w[s, b, :K] / tau[b])
            torch.testing.assert_close(sample.z[s, b, :K], e / (e.sum() + delta[b]))
            torch.testing.assert_close(sample.rest[s, b], (delta[b] / (e.sum() + delta[b])).squeeze())


def test_parameters_as_functions_tensors_and_numbers():
    k = torch.arange(40)
    expected = make().sample((20,), generator=torch.Generator().manual_seed(1))
    for loc, scale in ((rising(k), widening(k)), (rising, widening(k)), (rising(k).expand(3, 40), widening)):
        q = CountableStickBreaking(loc, scale, 0.5, 0.9)
        torch.testing.assert_close(q.loc(k), q.loc(k.clone()))
        noise = torch.Generator().manual_seed(1)
        if not q.batch_shape:
            torch.testing.assert_close(q.sample((20,), generator=noise), expected)
    assert CountableStickBreaking(torch.tensor([[0.0, -1.0]]), 2.0, 0.5, 0.9).loc(torch.arange(5)).tolist() == [
        [0.0, -1.0, -1.0, -1.0, -1.0]
    ]
    assert CountableStickBreaking(0.0, torch.tensor(2.0), 0.5, 0.9).scale(torch.arange(3)).tolist() == [2.0, 2.0, 2.0]


def test_hard_samples():
    loc = torch.full((200, 60), -0.5, requires_grad=True)
    q = CountableStickBreaking(loc, 1.0, 0.5, 0.9)
    hard, soft = (f(generator=torch.Generator().manual_seed(3)) for f in (q.hard_rsample, q.rsample))
    assert bool((hard.rest == 0).all())
    assert bool((hard.z == torch.nn.functional.one_hot(soft.w.argmax(-1), hard.z.shape[-1])).all())
    weights = torch.randn_like(soft.z), torch.randn_like(soft.rest)
    losses = [(s.z * weights[0]).sum() + (s.rest * weights[1]).sum() for s in (hard, soft)]
    torch.testing.assert_close(*(torch.autograd.grad(loss, loc)[0] for loss in losses))


# ------------------------------------------------------------------------------------------------------------- protocol


def test_expand():
    q = make(torch.tensor([[0.5], [1.5]]))
    wide = q.expand((3, 2))
    assert wide.batch_shape == (3, 2)
    sample = wide.sample((40,))
    assert sample.z.shape[:-1] == (40, 3, 2)
    torch.testing.assert_close(wide.log_prob(sample), q.log_prob(sample))
    one = make(0.5).sample()
    expected = torch.stack([make(tau).log_prob(one) for tau in (0.5, 1.5)])
    for point in (one, one.z):
        torch.testing.assert_close(wide.log_prob(point), expected.expand(3, 2))
    assert wide.recovered().tail.shape == (3, 2)
    with pytest.raises(ValueError, match="broadcast"):
        q.expand((3,))
    with pytest.raises(ValueError, match="expand"):
        wide.expand((2,))


def test_protocol():
    q = make()
    assert repr(q) == "CountableStickBreaking(batch_shape: (), temperature=0.5, precision=0.9, delta=1)"
    assert q.has_rsample
    rows = Independent(q.expand((4,)), 1)
    sample = rows.rsample((6,))
    torch.testing.assert_close(rows.log_prob(sample), q.log_prob(sample).sum(-1))
    for copied in (copy.deepcopy(q), pickle.loads(pickle.dumps(q))):
        torch.testing.assert_close(copied.log_prob(sample), q.log_prob(sample))
    with pytest.raises(NotImplementedError, match=r"q\.log_prob\(sample\)"):
        kl_divergence(q, make(0.3))


def test_generator():
    a, b = (make().sample((5,), generator=torch.Generator().manual_seed(9)) for _ in range(2))
    torch.testing.assert_close(a, b)


@pytest.mark.parametrize("precision", [0.0, 1.0, -0.1, 2, float("nan"), "0.9", torch.tensor(0.5), True, None], ids=str)
def test_bad_precision(precision):
    with pytest.raises(ValueError, match="precision"):
        CountableStickBreaking(0.0, 1.0, 0.5, precision)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"loc": "a"}, TypeError, "loc"),
        ({"loc": torch.zeros(3, dtype=torch.long)}, TypeError, "loc"),
        ({"loc": torch.zeros(2, 0)}, ValueError, "at least one stick"),
        ({"loc": GrowingSticks()}, TypeError, r"loc must be .* got a GrowingSticks; call it, as in sticks\("),
        ({"scale": GrowingSticks()}, TypeError, r"scale must be .* got a GrowingSticks; call it, as in sticks\("),
        ({"loc": lambda k: -k}, TypeError, "loc must return a floating-point"),
        ({"loc": lambda k: 0.5}, TypeError, "loc must return a floating-point"),
        ({"scale": lambda k: torch.ones(len(k) + 1)}, ValueError, "scale must return shape"),
        ({"loc": float("nan")}, ValueError, "loc must be finite"),
        ({"loc": torch.tensor([torch.inf])}, ValueError, "loc must be finite"),
        ({"scale": 0.0}, ValueError, "scale"),
        ({"scale": torch.tensor([-1.0])}, ValueError, "scale"),
        ({"temperature": 0.0}, ValueError, "temperature"),
        ({"temperature": torch.ones(3)}, ValueError, "temperature"),
        ({"delta": -1.0}, ValueError, "delta"),
        ({"max_sticks": 0}, ValueError, "max_sticks"),
        ({"loc": torch.zeros(2, 1), "scale": torch.ones(3, 1)}, ValueError, "broadcast"),
        ({"loc": torch.zeros(2, 1), "temperature": torch.ones(3, 1)}, ValueError, "broadcast"),
    ],
)
def test_bad_arguments(arguments, error, match):
    with pytest.raises(error, match=match):
        CountableStickBreaking(**{"loc": 0.0, "scale": 1.0, "temperature": 0.5, "precision": 0.9, **arguments})


@pytest.mark.parametrize("name", ["mean", "variance", "stddev", "entropy"])
def test_moments_without_a_closed_form_say_what_there_is(name):
    with pytest.raises(NotImplementedError, match=r"of CountableStickBreaking.* has no closed form: use "):
        getattr(make(), name)() if name == "entropy" else getattr(make(), name)


def test_later_sticks_are_looked_at():
    with pytest.raises(ValueError, match="scale must be positive"):
        CountableStickBreaking(-2.0, lambda k: 1.0 - 0.5 * k, 0.5, 0.9).rsample((5,))
    with pytest.raises(ValueError, match="batch shape"):
        CountableStickBreaking(lambda k: torch.zeros(len(k), len(k)), 1.0, 0.5, 0.9).rsample((5,))
    loose = CountableStickBreaking(torch.tensor([torch.nan]), 1.0, 0.5, 0.9, max_sticks=20, validate_args=False)
    with pytest.raises(RuntimeError, match="max_sticks=20"):
        loose.rsample()


def test_bad_points():
    q = make().expand((3,))
    with pytest.raises(TypeError, match="value"):
        q.log_prob([0.5, 0.3])
    with pytest.raises(ValueError, match="at least one stick"):
        q.log_prob(torch.tensor(0.5))
    with pytest.raises(ValueError, match="broadcast"):
        q.log_prob(torch.full((2, 4), 0.1))
    for z in (torch.tensor([0.9, 0.2]), torch.tensor([-0.1, 0.3]), torch.tensor([torch.nan, 0.1])):
        with pytest.raises(ValueError, match="sum to at most one"):
            q.log_prob(z)
        assert bool((make(validate_args=False).log_prob(z) == -torch.inf).all())
    sample = q.sample()
    with pytest.raises(ValueError, match=r"one shape \(\*, n\).*w \(3, 1\)"):
        q.log_prob(sample._replace(w=sample.w[..., :1]))
