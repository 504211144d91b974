"""The Kumaraswamy distribution: its density, distribution function and quantiles, shapes, dtypes and errors."""

import copy
import itertools
import math
import pickle

import mpmath as mp
import pytest
import torch
from kumaraswamy_cases import FAR, PAIRS, close, expectation
from torch.distributions import Beta, kl_divergence
from torch.distributions import Kumaraswamy as TorchKumaraswamy

from igr._draws import gumbel_noise
from igr.kumaraswamy import Kumaraswamy, log_from_gumbel

pytestmark = pytest.mark.usefixtures("float64")


# -------------------------------------------------------------------------------------------------------------- density


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=str)
def test_density(a, b):
    q, x = Kumaraswamy(a, b), torch.linspace(0.01, 0.99, 50)
    close(q.log_prob(x).exp(), a * b * x ** (a - 1) * (1 - x**a) ** (b - 1))
    close(q.log_prob(x), TorchKumaraswamy(torch.tensor(a), torch.tensor(b)).log_prob(x), rtol=1e-9, atol=1e-12)
    close(q.log_prob_from_log(x.log(), (-x).log1p()), q.log_prob(x))
    assert expectation(a, b, lambda log_x, log1m: 1.0) == pytest.approx(1.0, rel=1e-9)


def test_density_within_rounding_of_both_ends():
    for a, b, (log_x, log1m) in itertools.product(FAR, FAR, [(-500.0, 0.0), (0.0, -500.0), (0.0, -40.0)]):
        with mp.workdps(300):
            log_exact = mp.mpf(log_x) if log_x else mp.log1p(-mp.exp(log1m))
            rest = mp.log(-mp.expm1(mp.mpf(a) * log_exact))
            exact = mp.log(a) + mp.log(b) + (mp.mpf(a) - 1) * log_exact + (mp.mpf(b) - 1) * rest
        actual = Kumaraswamy(a, b).log_prob_from_log(torch.tensor(log_x), torch.tensor(log1m))
        close(actual, float(exact), rtol=1e-12, atol=1e-12)


def test_density_of_own_samples_is_finite_in_float32():
    a, b = torch.meshgrid(*[torch.logspace(-3, 3, 7, dtype=torch.float32)] * 2, indexing="ij")
    a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
    q = Kumaraswamy(a, b)
    log_q = q.log_prob_from_log(*q.log_rsample((2000,)))
    assert bool(log_q.isfinite().all())
    log_q.sum().backward()
    assert bool(a.grad.isfinite().all() & b.grad.isfinite().all())


@pytest.mark.parametrize(
    ("a", "b", "x", "limit"),
    [
        (0.5, 2.0, 0.0, math.inf),
        (1.0, 2.0, 0.0, math.log(2)),
        (3.0, 2.0, 0.0, -math.inf),
        (3.0, 0.5, 1.0, math.inf),
        (3.0, 1.0, 1.0, math.log(3)),
        (3.0, 2.0, 1.0, -math.inf),
    ],
    ids=str,
)
def test_limits_at_the_ends(a, b, x, limit):
    a, b = (torch.tensor(v, requires_grad=True) for v in (a, b))
    log_q = Kumaraswamy(a, b).log_prob(torch.tensor(x))
    close(log_q.detach(), limit)
    assert all(g.isfinite() for g in torch.autograd.grad(log_q, (a, b)))


def test_gradients_of_the_density():
    a, b = (torch.rand(8).mul(4).sub(2).exp().requires_grad_() for _ in range(2))
    x = torch.tensor([0.01, 0.2, 0.45, 0.55, 0.9, 0.99, 0.3, 0.7], requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b, x: Kumaraswamy(a, b).log_prob(x), (a, b, x))


@pytest.mark.parametrize(("a", "b"), [(2.0, 1.0), (1.0, 1.0), (1.0, 2.5), (2.0, 3.0), (0.5, 0.5)])
def test_gradients_at_the_ends(a, b):
    """That of the limit where it is finite, and none where it is not."""
    x = torch.tensor([0.0, 0.5, 1.0, 1e-9, 1 - 1e-9], requires_grad=True)
    b_ = torch.tensor(b, requires_grad=True)
    log_q = Kumaraswamy(a, b_).log_prob(x)
    (gradient,) = torch.autograd.grad(log_q[log_q.isfinite()].sum(), x, create_graph=True)
    first, inside, last, left, right = gradient
    assert inside.isfinite()
    close(first, left if a == 1 else torch.zeros(()), atol=1e-6)
    close(last, right if b == 1 else torch.zeros(()), atol=1e-6)
    for end, near, finite in ((first, left, a == 1), (last, right, b == 1)):
        if finite:
            (second,) = torch.autograd.grad(end, x, retain_graph=True)
            (expected,) = torch.autograd.grad(near, x, retain_graph=True)
            close(second.sum(), expected.sum(), atol=1e-6)


def test_points_off_the_support():
    a = torch.tensor([0.5], requires_grad=True)
    with pytest.raises(ValueError, match=r"not in the support of Kumaraswamy.*\[0, 1\].*shape \(2,\)"):
        Kumaraswamy(a, 1.0).log_prob(torch.tensor([0.5, 1.5]))
    with pytest.raises(ValueError, match=r"must be log x and log\(1 - x\)"):
        Kumaraswamy(a, 1.0).log_prob_from_log(torch.tensor(-1.0), torch.tensor(-1.0))
    off = Kumaraswamy(a, 1.0, validate_args=False).log_prob(torch.tensor([-0.5, 1.5, 0.5]))
    assert off[:2].eq(-math.inf).all()
    assert torch.autograd.grad(off[2], a)[0].isfinite()
    assert Kumaraswamy(a, 1.0, validate_args=False).log_prob(torch.tensor(math.nan)).isnan()


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=str)
def test_distribution_function_and_quantiles(a, b):
    q, x = Kumaraswamy(a, b), torch.linspace(0.001, 0.999, 40)
    close(q.cdf(q.icdf(x)), x, rtol=1e-10)
    close(q.cdf(x), 1 - (1 - x**a) ** b, atol=1e-15)
    close(q.cdf(torch.tensor([0.0, 1.0])), [0.0, 1.0])
    close(q.icdf(torch.tensor([0.0, 1.0])), [0.0, 1.0])
    assert float(q.cdf(torch.tensor(1e-300))) == pytest.approx(b * 10 ** (-300 * a), rel=1e-10)


def test_distribution_function_off_the_support():
    q = Kumaraswamy(2.0, 3.0, validate_args=False)
    close(q.cdf(torch.tensor([-1.0, 2.0])), [0.0, 1.0])
    assert q.cdf(torch.tensor(math.nan)).isnan()


def test_quantiles_at_the_ends_have_gradients():
    a, b = torch.tensor(0.3, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    q = Kumaraswamy(a, b).icdf(torch.tensor([0.0, 1.0]))
    assert q.tolist() == [0.0, 1.0]
    assert [g.item() for g in torch.autograd.grad(q.sum(), (a, b))] == [0.0, 0.0]


@pytest.mark.parametrize("p", [1.5, -0.1, math.nan], ids=str)
def test_quantiles_of_no_probabilities(p):
    with pytest.raises(ValueError, match=r"must be probabilities: expected numbers in \[0, 1\], got .*shape \(2,\)"):
        Kumaraswamy(2.0, 3.0).icdf(torch.tensor([0.5, p]))
    assert Kumaraswamy(2.0, 3.0, validate_args=False).icdf(torch.tensor(p)).isnan()
    with pytest.raises(ValueError, match=r"value \(3,\), batch_shape \(2,\)"):
        Kumaraswamy(torch.ones(2), 3.0).icdf(torch.full((3,), 0.5))


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 2**-46), (torch.float32, 2**-17), (torch.float16, 2**-8), (torch.bfloat16, 2**-5)],
    ids=["64", "32", "16", "b16"],
)
def test_logarithms_within_rounding_are_taken(dtype, tolerance):
    """And those a little further off are not: x and 1 - x must add up to 1 within the tolerance."""
    q = Kumaraswamy(torch.tensor([2.0]), 3.0)
    x = torch.linspace(0.001, 0.999, 999)
    assert q.log_prob_from_log(x.log().to(dtype), (-x).log1p().to(dtype)).isfinite().all()
    exact = torch.zeros(1)  # log x of an x within rounding of 1: log(1 - x) has no part in the sum
    other = torch.tensor([-1e3], dtype=dtype)
    assert q.log_prob_from_log(exact.sub(0.9 * tolerance).to(dtype), other).isfinite().all()
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(ValueError, match=rf"got a {name} tensor of shape \(1,\) and a {name} tensor"):
        q.log_prob_from_log(exact.sub(1.1 * tolerance).to(dtype), other)


def test_from_logs():
    log_a, log_b = torch.tensor([-1.0, 0.7]), torch.tensor([[0.3], [-0.4], [1.0]])
    q, same = Kumaraswamy.from_logs(log_a, log_b), Kumaraswamy(log_a.exp(), log_b.exp())
    x = torch.tensor([0.2, 0.9])
    for other in (q, copy.deepcopy(q), pickle.loads(pickle.dumps(q)), q.expand((4, 3, 2))):
        for f in (Kumaraswamy.entropy, lambda q: q.variance, lambda q: q.cdf(x), lambda q: q.kl_to_beta(2.0, 3.0)):
            close(f(other), f(same).expand(other.batch_shape), rtol=1e-10)
        assert other.log_rsample()[0].shape == other.batch_shape
    assert Kumaraswamy.from_logs(0.0, 0.5).batch_shape == ()
    with pytest.raises(ValueError, match="concentration1 must be positive and finite"):
        Kumaraswamy.from_logs(torch.tensor(-1e4), 0.0)


# ------------------------------------------------------------------------------------------------ shapes, types, errors


@pytest.mark.parametrize("sample_shape", [(), (7,), (2, 5), (0,)], ids=str)
@pytest.mark.parametrize("batch_shape", [(), (4,), (2, 3)], ids=str)
def test_shapes(batch_shape, sample_shape):
    q, rows = Kumaraswamy(torch.rand(batch_shape) + 0.5, 2.0), (*sample_shape, *batch_shape)
    assert q.batch_shape == batch_shape
    assert q.event_shape == ()
    x, (log_x, log1m) = q.rsample(sample_shape), q.log_rsample(sample_shape)
    for value in (x, log_x, log1m, q.log_prob(x), q.log_prob_from_log(log_x, log1m), q.cdf(x), q.icdf(x)):
        assert value.shape == rows
    kl = kl_divergence(q, Beta(2.0, 3.0))
    for value in (q.mean, q.variance, q.mode, q.entropy(), q.mean_log(), q.mean_log1m(), kl):
        assert value.shape == batch_shape


def test_expand():
    q = Kumaraswamy(torch.tensor([[0.5], [2.0]]), torch.tensor(3.0))
    wide = q.expand((5, 2, 3))
    assert wide.batch_shape == wide.rsample().shape == wide.log_prob(torch.tensor(0.5)).shape == (5, 2, 3)
    close(wide.entropy(), q.entropy().expand(5, 2, 3))
    assert kl_divergence(q, Beta(torch.ones(4), 2.0)).shape == (2, 4)
    with pytest.raises(ValueError, match="cannot be expanded"):
        q.expand((1, 1))


def test_numbers_and_dtypes():
    assert Kumaraswamy(1, 2.0).dtype == torch.float64
    half = Kumaraswamy(torch.tensor([0.5, 2.0], dtype=torch.bfloat16), 3.0)
    same = Kumaraswamy(torch.tensor([0.5, 2.0], dtype=torch.float32), 3.0)
    assert half.rsample((5,)).dtype == torch.bfloat16
    assert half.icdf(torch.tensor([0.2, 0.3], dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert half.icdf(torch.tensor([0.2, 0.3])).dtype == torch.float64
    assert half.log_rsample()[0].dtype == half.variance.dtype == half.mode.dtype == torch.float32
    assert half.cdf(half.sample()).dtype == torch.float32
    x = torch.tensor([0.25, 0.5])
    assert half.log_prob(x.bfloat16()).dtype == half.entropy().dtype == half.mean.dtype == torch.float32
    for f in (lambda q: q.log_prob(x.float()), lambda q: q.kl_to_beta(1.0, 2.0), lambda q: q.variance):
        assert torch.equal(f(half), f(same))
    assert Kumaraswamy(torch.ones(2, dtype=torch.float32), torch.ones(())).dtype == torch.float64


@pytest.mark.parametrize(
    ("a", "b", "error", "message"),
    [
        (0.0, 1.0, ValueError, "concentration1 must be positive and finite, got a value of 0.0"),
        (torch.ones(2), torch.tensor([1.0, -1.0]), ValueError, r"concentration0 must be positive .* \[-1, 1\]"),
        (torch.tensor([math.nan]), 1.0, ValueError, "concentration1 must be positive and finite"),
        (torch.ones(2, dtype=torch.long), 1.0, TypeError, "concentration1 must be a floating-point tensor"),
        ("2", 1.0, TypeError, "concentration1 must be a floating-point tensor, got '2'"),
        (1.0, True, TypeError, "concentration0 must be"),
        (torch.ones(2), torch.ones(3), ValueError, r"concentration1 \(2,\), concentration0 \(3,\)"),
    ],
    ids=["zero", "negative", "nan", "integers", "string", "boolean", "shapes"],
)
def test_errors(a, b, error, message):
    with pytest.raises(error, match=message):
        Kumaraswamy(a, b)


def test_errors_of_methods():
    q = Kumaraswamy(torch.ones(2), 1.0)
    with pytest.raises(ValueError, match=r"value \(3,\), batch_shape \(2,\)"):
        q.log_prob(torch.full((3,), 0.5))
    with pytest.raises(ValueError, match=r"batch_shape \(2,\), concentration1 \(3,\)"):
        q.kl_to_beta(torch.ones(3), 1.0)
    with pytest.raises(ValueError, match="concentration0 must be positive and finite, got a value of -1"):
        q.kl_to_beta(1.0, -1.0)
    with pytest.raises(TypeError, match=r"value must be a floating-point tensor, got 0\.5"):
        q.log_prob(0.5)
    assert Kumaraswamy(-1.0, 1.0, validate_args=False).batch_shape == ()


def test_copies_and_repr():
    q = Kumaraswamy(torch.tensor([0.5, 2.0]), 3.0)
    assert repr(q) == "Kumaraswamy(concentration1: tensor(2,), concentration0: tensor(2,))"
    assert repr(Kumaraswamy(0.5, 3.0)) == "Kumaraswamy(concentration1: 0.5, concentration0: 3)"
    for other in (copy.deepcopy(q), pickle.loads(pickle.dumps(q))):
        assert torch.equal(other.entropy(), q.entropy())


# --------------------------------------------------------------------------------------------------- programs around it


def everything(a, b, gumbel):
    q = Kumaraswamy(a, b)
    logs = log_from_gumbel(a.log(), b.log(), gumbel)
    return *logs, q.log_prob_from_log(*logs), q.log_prob(logs[0].exp()), kl_divergence(q, Beta(1.0, 3.0)), q.variance


def test_compiles():
    a, b = torch.tensor([0.1, 1.0, 4.0]), torch.tensor([3.0, 0.2, 1.0])
    gumbel = gumbel_noise(a)
    compiled = torch.compile(everything, fullgraph=True, backend="aot_eager")
    for x, exact in zip(compiled(a, b, gumbel), everything(a, b, gumbel), strict=True):
        close(x, exact, rtol=1e-10)
    draw = torch.compile(lambda a, b: Kumaraswamy(a, b).log_rsample((4,)), fullgraph=True, backend="aot_eager")
    assert [x.shape for x in draw(a, b)] == [(4, 3), (4, 3)]


def test_maps():
    a, b = torch.tensor([0.1, 1.0, 4.0]), torch.tensor([3.0, 0.2, 1.0])
    gumbel = gumbel_noise(a)
    for x, exact in zip(torch.func.vmap(everything)(a, b, gumbel), everything(a, b, gumbel), strict=True):
        close(x, exact, rtol=1e-10)
    draw = torch.func.vmap(lambda a, b: Kumaraswamy(a, b).log_rsample((4,))[0], randomness="different")
    assert len(draw(a, b).unique()) == 12
    slopes = torch.func.vmap(torch.func.grad(lambda a, b: Kumaraswamy(a, b).kl_to_beta(1.0, 3.0)))(a, b)
    leaf = a.clone().requires_grad_()
    close(slopes, torch.autograd.grad(Kumaraswamy(leaf, b).kl_to_beta(1.0, 3.0).sum(), leaf)[0], rtol=1e-10)
