"""The kernel of the conditional path's slopes beside float64; compiled on a CUDA device, interpreted elsewhere."""

import math

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_conditional import TAILS, far_from_zero, implicit_gradients, stress
from torch import Tensor
from torch.autograd import grad

import igr.kernels
from igr._winner import Race, slopes
from igr.conditional import conditional_path, sample_conditional
from igr.quadrature import constant_rule

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from igr.kernels._normal import tail  # noqa: E402
from igr.kernels._random import INTERPRETED  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and not INTERPRETED, reason="needs a CUDA device, or triton's interpreter"
)
DOUBLE = torch.float64


@triton.jit
def write_tail(z_ptr, q_ptr, e_ptr):
    at = tl.arange(0, 128)
    q, e = tail(tl.load(z_ptr + at))
    tl.store(q_ptr + at, q)
    tl.store(e_ptr + at, e)


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The kernel is chosen for float32, on the CPU as well, where it has one block; the nodes of its calls."""
    from igr.kernels import winner

    calls: list[int] = []

    def counted(*arguments: Tensor):
        calls.append(len(arguments[-1]))
        return kernel(*arguments)

    kernel = winner.winner_slopes
    monkeypatch.setattr(winner, "winner_slopes", counted)
    monkeypatch.setattr(igr.kernels, "usable", lambda *tensors: all(t.dtype == torch.float32 for t in tensors))
    if DEVICE == "cpu":  # the interpreter takes as long for a small block
        blocks = winner.blocks
        monkeypatch.setattr(winner, "blocks", lambda columns: blocks(columns) | {"ROWS": 128})
    return calls


def race(K: int, rows: int) -> tuple[Tensor, ...]:
    """Scales from 1e-3 to 1e3, near-ties and far tails: μ, σ, who wins, and a sample of the largest."""
    loc, scale = (x.detach() for x in stress(K, rows, torch.float32))
    category = F.one_hot(torch.randint(K - 1, (rows,)), K)
    with pytest.MonkeyPatch.context() as patch:  # the same rows, whatever kernels draw
        patch.setattr(igr.kernels, "usable", lambda *tensors: False)
        m = sample_conditional(loc, scale, category).amax(-1, keepdim=True)
    return tuple(x.to(DEVICE) for x in (loc, scale, category[:, :-1].bool(), m))


@pytest.mark.parametrize("K", [2, 3, 10])
def test_it_is_as_exact_as_the_pytorch_path(fused: list[int], K: int):
    mu, sigma, wins, m = race(K, 120)
    found = slopes(Race(mu, sigma, wins), m, 96)
    assert fused == [96]
    exact = slopes(Race(mu.double(), sigma.double(), wins), m.double())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(igr.kernels, "usable", lambda *tensors: False)
        pytorch = slopes(Race(mu, sigma, wins), m, 96)
    assert fused == [96]
    for here, other, there in zip(found, pytorch, exact, strict=True):
        error, own = ((x.double() - there).abs() / (1 + there.abs()) for x in (here, other))
        assert error.max() < 3e-2  # by either path the worst of 4,000 such rows, with 50 beside 1e-3, has 2.5e-2
        for share in (0.5, 0.9, 0.99):
            assert error.quantile(share) < 3 * own.quantile(share) + 1e-6


def test_gradients_match_the_equations(fused: list[int]):
    for k, mu, sigma in list(TAILS.values())[:3]:
        y = sample_conditional(*(torch.tensor(x) for x in (mu, sigma)), F.one_hot(torch.tensor(k), len(mu) + 1))
        loc, scale = (torch.tensor(x, device=DEVICE, requires_grad=True) for x in (mu, sigma))
        path = conditional_path(loc, scale, y.to(DEVICE), num_nodes=64)
        (found,) = grad(path[k], loc)
        values = [x.detach().double().tolist() for x in (y, loc, scale)]
        expected = implicit_gradients(values[0], k, *values[1:])[k, : len(mu)]
        np.testing.assert_allclose(found.cpu().numpy(), expected, rtol=1e-4, atol=1e-5)
    assert len(fused) == 3


def test_locations_that_are_large_beside_the_scales(fused: list[int]):
    loc, scale, category = (x.float() for x in far_from_zero())
    y = sample_conditional(loc, scale, category)
    mu, sigma, m, wins = (x.to(DEVICE) for x in (loc, scale, y.amax(-1, keepdim=True), category[:, :-1].bool()))
    found = slopes(Race(mu, sigma, wins), m, 48)
    assert fused == [48]
    exact = slopes(Race(mu.double(), sigma.double(), wins), m.double(), 48)
    for here, there in zip(found, exact, strict=True):
        torch.testing.assert_close(here.double(), there, rtol=1e-4, atol=1e-5)


def test_any_value_is_finite(fused: list[int]):
    """Also for the last category, where the slopes are asked for in vain."""
    y = torch.tensor(
        [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [40.0, 39.0, -60.0], [1e-30, 0.0, 0.0], [-9.0, -50.0, -1e-9]], device=DEVICE
    )
    loc, scale = torch.zeros(5, 3, device=DEVICE).requires_grad_(), torch.ones(3, device=DEVICE).requires_grad_()
    gradients = grad(conditional_path(loc, scale, y, num_nodes=32).sum(), (loc, scale))
    assert fused == [32]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(igr.kernels, "usable", lambda *tensors: False)
        expected = grad(conditional_path(loc, scale, y, num_nodes=32).sum(), (loc, scale))
    for here, there in zip(gradients, expected, strict=True):
        torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-5)


def test_a_row_that_is_not_finite_stays_alone():
    from igr.kernels.winner import winner_slopes

    mu, sigma, wins, m = race(4, 7)
    rule = constant_rule(8, mu.device)
    alone = winner_slopes(mu[::2], sigma[::2], wins[::2], m[::2], *rule)
    mu[1, 2], sigma[3, 0], m[5] = math.nan, math.nan, math.nan
    found = winner_slopes(mu, sigma, wins, m, *rule)
    for here, there in zip(found, alone, strict=True):
        torch.testing.assert_close(here[::2], there)
        assert here[1::2].isnan().any(-1).all()


def test_tails():
    """q and q', which a single loser's share in the slopes is made of, from -300 to 9 standard deviations."""
    z = torch.cat([-torch.logspace(-2, 2.5, 64), torch.linspace(-3, 9, 64)]).to(DEVICE)
    q, e = torch.empty_like(z), torch.empty_like(z)
    write_tail[(1,)](z, q, e)
    with mpmath.workdps(60):
        points = [mpmath.mpf(x) for x in z.tolist()]
        log_cdf = [float(mpmath.log(mpmath.ncdf(x)) + min(x, 0) ** 2 / 2) for x in points]
        slope = [float(mpmath.npdf(x) / mpmath.ncdf(x) + min(x, 0)) for x in points]
    np.testing.assert_allclose(q.cpu().numpy(), log_cdf, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(e.cpu().numpy(), slope, rtol=2e-6, atol=1e-12)


def test_shapes_and_who_takes_the_pytorch_path(fused: list[int]):
    loc = torch.randn(2, 5, 3, device=DEVICE, requires_grad=True)
    y = loc.detach() + torch.randn(2, 5, 3, device=DEVICE)
    (whole,) = grad(conditional_path(loc, 1.0, y, num_nodes=16).sin().sum(), loc)
    one = loc.detach()[1, 2].requires_grad_()
    (row,) = grad(conditional_path(one, 1.0, y[1, 2], num_nodes=16).sin().sum(), one)
    torch.testing.assert_close(whole[1, 2], row)
    none = torch.zeros(0, 3, device=DEVICE, requires_grad=True)
    grad(conditional_path(none, 1.0, none).sum(), none)
    assert fused == [16, 16, 192]
    grad(conditional_path(loc.double(), 1.0, y.double(), num_nodes=16).sum(), loc)
    wide = torch.zeros(1, 600, device=DEVICE, requires_grad=True)
    grad(conditional_path(wide, 1.0, wide.detach() + 1, num_nodes=4).sum(), wide)
    assert fused == [16, 16, 192]


def test_second_derivatives(fused: list[int]):
    torch.manual_seed(3)
    values = torch.randn(4, 3), torch.rand(4, 3) + 0.5, torch.randn(4, 3)
    found = []
    for dtype in (torch.float32, DOUBLE):
        loc, scale, y = (x.to(DEVICE, dtype, copy=True) for x in values)
        loc.requires_grad_()
        first = grad(conditional_path(loc, scale, y, num_nodes=48).sin().sum(), loc, create_graph=True)[0]
        found.append((first.detach().double(), grad(first.cos().sum(), loc)[0].double()))
    assert set(fused) == {48}
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(here, there, rtol=1e-3, atol=1e-4)


def test_the_operator_is_one():
    mu, sigma, wins, m = race(4, 5)
    inputs = mu, sigma, wins, m, *constant_rule(4, mu.device)
    torch.library.opcheck(torch.ops.igr.winner_slopes, inputs)
