"""Each formula against an independent method: mpmath, scipy, or the paper's formula written out in float64."""

import math

import mpmath
import numpy as np
import pytest
import torch
from functional_cases import ROWS, close, literal_softmaxpp, points, real, show
from torch.autograd import gradcheck

from igr import functional as F


def exact(f, rows):
    """f on each row in 60 digits, rounded to float64."""
    with mpmath.workdps(60):
        results = [[float(v) for v in f([mpmath.mpf(v) for v in row])] for row in rows.tolist()]
    return torch.tensor(results, dtype=torch.float64)


# softmax++


@pytest.mark.parametrize(
    ("tau", "delta"),
    [
        (1.0, 1.0),
        (0.4, 0.3),
        (2, 5),
        (torch.tensor(0.5), torch.tensor(2.0)),
        (ROWS, 0.7),
        (0.7, ROWS),
    ],
    ids=show,
)
def test_softmaxpp_is_equation_15(tau, delta):
    y = real(5, 3)
    expected = torch.as_tensor(literal_softmaxpp(y, tau, delta))
    close(F.softmaxpp(y, tau, delta), expected)
    close(F.log_softmaxpp(y, tau, delta), expected.log(), atol=1e-12)


def test_softmaxpp_rows_from_tau_and_delta():
    rows = torch.tensor([[0.5], [2.0]], dtype=torch.float64)
    y = real(3)
    for z in (F.softmaxpp(y, rows), F.softmaxpp(y, 0.5, rows), F.softmaxpp(y, rows, rows)):
        assert z.shape == (2, 4)
    close(F.softmaxpp(y, 0.5, rows)[1], F.softmaxpp(y, 0.5, 2.0))


@pytest.mark.parametrize("delta", [1.0, 0.2])
def test_log_softmaxpp_at_low_temperature(delta):
    tau, y = 0.01, 10 * real(20, 4)

    def log_z(row):
        logits = [v / mpmath.mpf(tau) for v in row] + [mpmath.log(mpmath.mpf(delta))]
        total = mpmath.log(mpmath.fsum(mpmath.exp(v) for v in logits))
        return [v - total for v in logits]

    close(F.log_softmaxpp(y, tau, delta), exact(log_z, y))


def test_last_coordinate_is_positive_in_float32():
    y = real(1000, 4, dtype=torch.float32)
    literal = literal_softmaxpp(y.numpy(), np.float32(0.1), np.float32(1.0))[:, -1]
    assert literal.dtype == np.float32
    assert (literal <= 0).mean() > 0.1  # what the K-th coordinate must not be
    assert bool((F.softmaxpp(y, 0.1)[:, -1] > 0).all())
    assert bool(F.log_softmaxpp(y, 0.001).isfinite().all())


@pytest.mark.parametrize("tau", [1.0, 0.3, ROWS], ids=show)
@pytest.mark.parametrize("delta", [1.0, 0.2, ROWS], ids=show)
def test_softmaxpp_inverse(tau, delta):
    y, z = real(5, 3), points(5, 4)
    close(F.softmaxpp_inverse(F.softmaxpp(y, tau, delta), tau, delta), y, atol=1e-12)
    close(F.softmaxpp(F.softmaxpp_inverse(z, tau, delta), tau, delta), z)


def test_log_softmaxpp_inverse_survives_underflow():
    y = 10 * real(50, 3)
    assert bool((F.softmaxpp(y, 0.001) == 0).any())
    close(F.log_softmaxpp_inverse(F.log_softmaxpp(y, 0.001, 0.4), 0.001, 0.4), y, atol=1e-11)


@pytest.mark.parametrize("f", [F.softmaxpp, F.log_softmaxpp], ids=show)
def test_softmaxpp_gradients(f):
    tau, delta = real(2, 1).exp().requires_grad_(), real(2, 1, seed=1).exp().requires_grad_()
    assert gradcheck(f, (real(2, 3).requires_grad_(), tau, delta))
    assert gradcheck(f, (real(3).requires_grad_(), tau[0, 0], delta[0, 0]))


@pytest.mark.parametrize("f", [F.softmaxpp_inverse, F.log_softmaxpp_inverse], ids=show)
def test_softmaxpp_inverse_gradients(f):
    tau, delta = real(2, 1).exp().requires_grad_(), real(2, 1, seed=1).exp().requires_grad_()
    assert gradcheck(f, (points(2, 4).requires_grad_(), tau, delta))


# stick-breaking


def test_log_stick_breaking_is_equation_16():
    y = real(6, 4)
    u = 1 / (1 + np.exp(-y.numpy()))
    rest = np.concatenate([np.ones((6, 1)), np.cumprod(1 - u, -1)], -1)  # Π_{i<k} (1 - u_i)
    w = np.concatenate([u, np.ones((6, 1))], -1) * rest
    close(F.log_stick_breaking(y), torch.as_tensor(np.log(w)), atol=1e-12)


@pytest.mark.parametrize("size", [1.0, 50.0, 800.0])
def test_log_stick_breaking_far_out(size):
    y = size * (2 * torch.rand(20, 4, dtype=torch.float64) - 1)

    def log_w(row):
        u = [1 / (1 + mpmath.exp(-v)) for v in row]
        rest = [mpmath.fprod(1 / (1 + mpmath.exp(v)) for v in row[:k]) for k in range(len(row) + 1)]
        return [mpmath.log(a * b) for a, b in zip([*u, mpmath.mpf(1)], rest, strict=True)]

    close(F.log_stick_breaking(y), exact(log_w, y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sticks_sum_to_one(dtype):
    w = F.log_stick_breaking(30 * real(100, 9, dtype=dtype)).exp()
    assert w.shape == (100, 10)
    close(w.sum(-1), torch.ones(100, dtype=dtype), rtol=0, atol=4 * torch.finfo(dtype).eps)


def test_log_stick_breaking_inverse():
    y, w = 10 * real(20, 4), points(20, 5)
    close(F.log_stick_breaking_inverse(F.log_stick_breaking(y)), y, atol=1e-12)
    expected = [[math.log(row[k] / math.fsum(row[k + 1 :])) for k in range(4)] for row in w.tolist()]
    close(F.log_stick_breaking_inverse(w.log()), torch.tensor(expected, dtype=torch.float64), atol=1e-12)


def test_stick_breaking_gradients():
    assert gradcheck(F.log_stick_breaking, (real(2, 3).requires_grad_(),))
    assert gradcheck(F.log_stick_breaking_inverse, (points(2, 4).log().requires_grad_(),))
    y = torch.full((3,), -800.0, requires_grad=True)
    (gradient,) = torch.autograd.grad(F.log_stick_breaking(y)[0], y)
    close(gradient, torch.tensor([1.0, 0.0, 0.0]))  # d log sigmoid(y) / dy, not clipped


# vertex interpolation


@pytest.mark.parametrize(
    "tau", [1.0, 0.3, 0.01, torch.linspace(0.05, 1, 40, dtype=torch.float64).unsqueeze(-1)], ids=show
)
def test_vertex_interpolation(tau):
    w = points(40, 4)
    distances = torch.cdist(w, torch.eye(4, dtype=torch.float64))  # to every vertex, the leftover's among them
    vertex = torch.eye(4, dtype=torch.float64)[distances.argmin(-1)]
    assert bool((vertex.sum(0) > 0).all())
    expected = tau * w + (1 - tau) * vertex
    z = F.vertex_interpolation(w, tau)
    close(z, expected)
    close(z.sum(-1), torch.ones(40))
    close(F.log_vertex_interpolation(w.log(), tau), expected.log(), atol=1e-14)
    close(F.vertex_interpolation_inverse(z, tau), w, atol=1e-13)


def test_vertex_interpolation_at_one_is_the_identity():
    w = points(10, 4)
    close(F.vertex_interpolation(w, 1.0), w)
    close(F.log_vertex_interpolation(w.log(), 1.0), w.log(), atol=1e-14)


def test_log_vertex_interpolation_survives_underflow():
    log_w = F.log_stick_breaking(torch.tensor([[-400.0, 900.0], [900.0, -3.0]], dtype=torch.float64))
    expected = [[math.log(0.1) - 400, 0.0, math.log(0.1) - 900], [0.0, math.log(0.1) - 903, math.log(0.1) - 900]]
    close(F.log_vertex_interpolation(log_w, 0.1), torch.tensor(expected), rtol=1e-3)


@pytest.mark.parametrize("tau", [0.2, 0.7])
def test_vertex_interpolation_inverse_shows_points_off_the_image(tau):
    z = points(500, 3)
    largest, second = z.topk(2).values.unbind(-1)
    inside = largest - second >= 1 - tau  # w_k >= w_j for the nearest vertex k and all others j
    assert 0 < inside.sum() < 500
    w = F.vertex_interpolation_inverse(z, tau)
    assert torch.equal((w >= 0).all(-1) & (w.argmax(-1) == z.argmax(-1)), inside)


@pytest.mark.parametrize("f", [F.vertex_interpolation, F.vertex_interpolation_inverse], ids=show)
def test_vertex_interpolation_gradients(f):
    tau = torch.tensor([[0.3], [0.6]], dtype=torch.float64, requires_grad=True)
    w = points(2, 4).requires_grad_()
    assert gradcheck(f, (w, tau))
    assert gradcheck(F.log_vertex_interpolation, (w.detach().log().requires_grad_(), tau))


@pytest.mark.parametrize("tau", [0.01, torch.tensor(0.01), torch.tensor([[0.01]])], ids=show)
@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_vertex_interpolation_with_half_precision_tau(tau, low):
    tau = tau.to(low) if isinstance(tau, torch.Tensor) else tau
    w = torch.tensor([[0.5, 0.3, 0.2]])
    close(F.vertex_interpolation(w, tau).sum(-1), torch.ones(1), rtol=1e-6)
    close(F.vertex_interpolation_inverse(F.vertex_interpolation(w, tau), tau), w, rtol=1e-4)


# h(y)


@pytest.mark.parametrize("delta", [0.001, 1.0, 50.0])
def test_proposition_1_limit(delta):
    y = real(200, 4)
    padded = np.pad(y.numpy(), ((0, 0), (0, 1)))
    first, second = np.sort(padded)[:, [-1, -2]].T
    y, padded = y[first - second > 0.05], padded[first - second > 0.05]  # the limit is slow at ties
    limit = torch.as_tensor(np.eye(5)[padded.argmax(-1)])
    assert bool((limit.sum(0) > 0).all())
    assert torch.equal(F.harden(y), limit)
    errors = [(F.softmaxpp(y, tau, delta) - limit).abs().max().item() for tau in (1.0, 0.1, 0.01, 0.001)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-12


def test_harden():
    y = torch.tensor([[0.2, 1.5], [-0.3, -2.0], [1e-30, -1.0], [-1e-30, -1.0]])
    assert F.harden(y).tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 0, 1]]
    assert F.harden(y.half().requires_grad_()).dtype == torch.float16
    assert not F.harden(y.requires_grad_()).requires_grad


def test_straight_through():
    logits = real(1000, 10, dtype=torch.float32).requires_grad_()
    soft = logits.softmax(-1)
    for hard in (torch.eye(10)[logits.argmax(-1)], 1e-3 * torch.rand(1000, 10)):
        z = F.straight_through(hard, soft)
        assert torch.equal(z, hard)
        weights = real(1000, 10, seed=1, dtype=torch.float32)
        given, wanted = (torch.autograd.grad((weights * x).sum(), logits, retain_graph=True)[0] for x in (z, soft))
        assert torch.equal(given, wanted)
        assert bool((wanted != 0).any())
    assert not torch.equal(hard - soft.detach() + soft, hard)  # the usual way of writing it rounds what is not 0 or 1
