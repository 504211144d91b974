"""Proposition 2's kernels beside the PyTorch path in float64; compiled on a CUDA device, interpreted elsewhere."""

import math
from collections.abc import Iterator

import mpmath
import numpy as np
import pytest
import torch
from test_recovery import KINDS, extreme_rows, narrow_rows, parameters, probabilities
from torch import Tensor

import igr.kernels
from igr.quadrature import constant_rule
from igr.recovery import recovered_log_probs

pytest.importorskip("triton")
from igr.kernels._random import INTERPRETED

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and not INTERPRETED, reason="needs a CUDA device, or triton's interpreter"
)
DOUBLE = torch.float64
NODES = 64


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The kernels are chosen for float32, on the CPU as well; which of them ran."""
    from igr.kernels import recovery as kernels

    calls: list[int] = []

    def counted(*arguments: Tensor):
        calls.append(len(arguments))
        return kernel(*arguments)

    kernel = kernels.recovered_log_probs
    monkeypatch.setattr(kernels, "recovered_log_probs", counted)
    monkeypatch.setattr(igr.kernels, "usable", lambda *tensors: all(t.dtype == torch.float32 for t in tensors))
    return calls


def rows(kind: str, K: int, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Parameters of one kind of those that the recovery is tested with, float32."""
    generator = np.random.default_rng(seed)
    mu, sigma = zip(*[parameters(kind, K - 1, generator) for _ in range(n)], strict=True)
    return tuple(torch.tensor(np.stack(x), dtype=torch.float32, device=DEVICE) for x in (mu, sigma))


def result(mu: Tensor, sigma: Tensor, weights: Tensor, dtype: torch.dtype, num_nodes: int) -> tuple[Tensor, ...]:
    """log p, and gradients in units of σ, of weighted log-probabilities, in float64."""
    leaves = [x.to(dtype, copy=True).requires_grad_() for x in (mu, sigma)]
    log_p = recovered_log_probs(*leaves, num_nodes=num_nodes)
    gradients = torch.autograd.grad(log_p, leaves, weights.to(dtype))
    return log_p.detach().double(), *(g.double() * sigma.double() for g in gradients)


@pytest.mark.parametrize("K", [3, 10, 15])
def test_it_is_exact(fused: list[int], K: int):
    mu, sigma = (torch.cat(x) for x in zip(*[rows(kind, K, 16) for kind in KINDS], strict=True))  # one block
    weights = torch.randn(len(mu), K, dtype=DOUBLE, device=DEVICE)
    weights = weights * recovered_log_probs(mu.double(), sigma.double(), num_nodes=192).exp()  # gradients in p
    exact = result(mu, sigma, weights, DOUBLE, 192)
    assert not fused
    found = result(mu, sigma, weights, torch.float32, 192)
    assert len(fused) == 1
    assert (found[0].exp() - exact[0].exp()).abs().max() < 1e-6
    assert (found[0] <= 0).all()
    likely = exact[0] > -40  # others have a bound, which depends on where the nodes are
    torch.testing.assert_close(found[0][likely], exact[0][likely], rtol=0, atol=1e-5)
    torch.testing.assert_close(found[0], exact[0], rtol=1e-3, atol=1e-5)
    for here, there in zip(found[1:], exact[1:], strict=True):
        torch.testing.assert_close(here, there, rtol=1e-5, atol=2e-6)
    for row, m, s in zip(found[0].exp()[::4], mu.double()[::4], sigma.double()[::4], strict=True):
        truth = probabilities(m.cpu().numpy(), s.cpu().numpy())
        assert np.abs(row.cpu().numpy() - truth).max() < 2e-6


@pytest.mark.parametrize(("kind", "K"), [("all scales", 10), ("two scales", 4), ("all positive", 65), ("benign", 300)])
def test_gradients_of_logarithms(fused: list[int], kind: str, K: int):
    mu, sigma = rows(kind, K, 2, seed=1)
    mu, sigma = mu.clamp(-20, 20), sigma.clamp(0.02, 20)  # beyond, a relative error of z alone is an error of log p
    weights = torch.randn(2, K, dtype=DOUBLE, device=DEVICE)
    exact, found = (result(mu, sigma, weights, dtype, NODES) for dtype in (DOUBLE, torch.float32))
    assert len(fused) == 1
    for here, there in zip(found, exact, strict=True):
        scale = 1 + there.abs().amax(-1, keepdim=True)
        assert ((here - there).abs() / scale).max() < 1e-5


def test_normal_tails():
    """log Φ and the inverse Mills ratio: with a second coordinate far below zero, P(H = K) is Φ(-μ/σ)."""
    from igr.kernels import recovery as kernels

    ratio = torch.cat([-torch.logspace(-3, 3.5, 60), torch.linspace(-9, 9, 60)]).to(DEVICE)
    mu, sigma = torch.stack([ratio, torch.full_like(ratio, -300.0)], -1), torch.ones(120, 2, device=DEVICE)
    rule = constant_rule(NODES, mu.device)
    log_p, *state = kernels.recovered_log_probs(mu, sigma, *rule)
    gradient = torch.tensor([0.0, 0.0, 1.0], device=DEVICE).expand(120, 3)
    d_mu, _ = kernels.recovered_log_probs_backward(gradient, mu, sigma, *rule, log_p, *state)
    with mpmath.workdps(40):
        tails = [mpmath.log(mpmath.ncdf(-mpmath.mpf(r))) for r in ratio.tolist()]
        slopes = [-mpmath.npdf(r) / mpmath.ncdf(-r) for r in map(mpmath.mpf, ratio.tolist())]
    np.testing.assert_allclose(log_p[:, 2].cpu().numpy(), [float(x) for x in tails], rtol=2e-6, atol=2e-7)
    np.testing.assert_allclose(d_mu[:, 0].cpu().numpy(), [float(x) for x in slopes], rtol=1e-5, atol=1e-6)


def test_a_certain_category_keeps_the_accuracy_of_its_logarithm(fused: list[int]):
    loc = torch.tensor([[4.0, -30.0], [-5.0, -30.0], [-30.0, 5.0]], device=DEVICE).requires_grad_()
    log_p = recovered_log_probs(loc, 1.0, num_nodes=NODES)
    assert len(fused) == 1
    sure = log_p[[0, 1, 2], [0, 2, 1]]
    with mpmath.workdps(30):
        expected = [float(mpmath.log(mpmath.ncdf(x))) for x in (4, 5, 5)]
    np.testing.assert_allclose(sure.detach().cpu().numpy(), expected, rtol=1e-5)
    (gradient,) = torch.autograd.grad(sure.sum(), loc)  # one less the probability, not lost in a difference
    slopes = [sign * math.exp(-x * x / 2) / math.sqrt(2 * math.pi) for sign, x in ((1, 4), (-1, 5), (1, 5))]
    np.testing.assert_allclose(gradient[[0, 1, 2], [0, 0, 1]].cpu().numpy(), slopes, rtol=1e-4)


def test_rows_that_are_not_finite_stay_alone():
    from igr.kernels import recovery as kernels

    mu, sigma = rows("benign", 6, 7)
    rule = constant_rule(16, mu.device)
    alone, *_ = kernels.recovered_log_probs(mu[::2], sigma[::2], *rule)
    mu[1, 2], mu[3, 0], sigma[5, 4] = math.nan, math.nan, math.nan
    log_p, *state = kernels.recovered_log_probs(mu, sigma, *rule)
    assert torch.equal(log_p[::2], alone)
    assert log_p[1::2].isnan().all()
    gradients = kernels.recovered_log_probs_backward(torch.randn_like(log_p), mu, sigma, *rule, log_p, *state)
    assert all(g[::2].isfinite().all() and g[1::2].isnan().any() for g in gradients)


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize("bad", [-1.0, 0.0, math.inf, math.nan])
def test_scales_that_are_none_give_rows_that_are_none(bad: float):
    from igr.kernels import recovery as kernels

    mu, sigma = rows("benign", 4, 3)
    sigma[1, 2] = bad
    rule = constant_rule(16, mu.device)
    log_p, *saved = kernels.recovered_log_probs(mu, sigma, *rule)
    gradients = kernels.recovered_log_probs_backward(torch.ones_like(log_p), mu, sigma, *rule, log_p, *saved)
    for x in (log_p, *gradients):
        assert x[1].isnan().all()
        assert x[[0, 2]].isfinite().all()


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # of the interpreter
def test_squares_may_overflow(fused: list[int]):
    """A coordinate as narrow as this never has the difference of its squares taken, and cannot spoil the others."""
    loc = torch.tensor([[0.4, -50.0, 1.0], [3.0, 0.2, -0.7]], device=DEVICE)
    scale = torch.tensor([[0.8, 1e-20, 1.3], [0.5, 1.1, 1e-20]], device=DEVICE)
    weights = torch.randn(2, 4, dtype=DOUBLE, device=DEVICE)
    weights[0, 1] = weights[1, 2] = 0.0
    found = result(loc, scale, weights, torch.float32, NODES)
    assert len(fused) == 1
    exact = result(loc, scale.clamp(min=1e-9), weights, DOUBLE, 192)
    torch.testing.assert_close(found[0].exp(), exact[0].exp(), rtol=0, atol=1e-6)
    for here, there in zip(found[1:], exact[1:], strict=True):
        torch.testing.assert_close(here, there, rtol=1e-5, atol=1e-5)


def test_scales_below_the_spacing_of_numbers(fused: list[int]):
    mu, sigma = (x.to(DEVICE) for x in narrow_rows())
    weights = recovered_log_probs(mu.double(), sigma.double()).exp() * torch.randn(len(mu), 5, device=DEVICE)
    exact, found = (result(mu, sigma, weights, dtype, 192) for dtype in (DOUBLE, torch.float32))
    assert len(fused) == 1
    torch.testing.assert_close(found[0].exp(), exact[0].exp(), rtol=0, atol=1e-5)
    for here, there in zip(found[1:], exact[1:], strict=True):
        torch.testing.assert_close(here, there, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize("scale", [1e-37, 1e-30, 1e37, 2.8e38])
def test_limits_of_all_scales(fused: list[int], scale: float):
    """Narrow, the largest of the locations and zero is certain; wide, only the signs of the noise matter."""
    mu = torch.tensor([[-1.0, -2.0, -3.0], [1.0, 2.0, 3.0], [-1.0, 2.0, 0.0]], device=DEVICE, requires_grad=True)
    sigma = torch.full_like(mu, scale).requires_grad_()
    p = recovered_log_probs(mu, sigma, num_nodes=NODES).exp()
    assert len(fused) == 1
    wide = torch.tensor([7 / 24, 7 / 24, 7 / 24, 1 / 8], device=DEVICE).expand(3, -1)
    narrow = torch.eye(4, device=DEVICE)[[3, 2, 1]]
    torch.testing.assert_close(p, wide if scale > 1 else narrow, rtol=0, atol=1e-6)
    for gradient in torch.autograd.grad((p * torch.arange(4.0, device=DEVICE)).sum(), (mu, sigma)):
        assert gradient.isfinite().all()


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")  # of the interpreter
def test_log_probabilities_of_extreme_scales_are_finite(fused: list[int]):
    mu, sigma = (x.to(DEVICE).requires_grad_() for x in extreme_rows())
    log_p = recovered_log_probs(mu, sigma, num_nodes=NODES)
    assert len(fused) == 1
    assert log_p.isfinite().all()
    gradients = torch.autograd.grad((log_p.exp() * log_p).sum(), (mu, sigma))
    assert all(each.isfinite().all() for each in gradients)
    with igr.kernels.disabled():
        expected = recovered_log_probs(mu.detach(), sigma.detach(), num_nodes=NODES)
    torch.testing.assert_close(log_p.detach().exp(), expected.exp(), rtol=0, atol=1e-5)


def test_products_entry_by_entry(monkeypatch: pytest.MonkeyPatch):
    """The interpreter has its own way to the product of the cdfs, unless it is told not to."""
    from igr.kernels import recovery as kernels

    mu, sigma = rows("all scales", 4, 3)
    rule = constant_rule(8, mu.device)
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "blocks", lambda columns: {"COLUMNS": 4, "ROWS": 4, "num_warps": 1})
        found = []
        for logs in (False, True):
            patch.setattr(kernels, "INTERPRETED", logs)
            log_p, *state = kernels.recovered_log_probs(mu, sigma, *rule)
            found.append((log_p, *kernels.recovered_log_probs_backward(log_p, mu, sigma, *rule, log_p, *state)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_shapes_and_who_takes_the_pytorch_path(fused: list[int]):
    loc = torch.randn(2, 5, 3, device=DEVICE)
    scale = torch.rand(5, 3, device=DEVICE) + 0.5
    whole = recovered_log_probs(loc, scale, num_nodes=16)
    assert whole.shape == (2, 5, 4)
    torch.testing.assert_close(whole[1, 2], recovered_log_probs(loc[1, 2], scale[2], num_nodes=16))
    assert recovered_log_probs(loc.bfloat16(), 1.0, num_nodes=8).dtype == torch.float32
    assert recovered_log_probs(torch.zeros(0, 3, device=DEVICE), 1.0).shape == (0, 4)
    assert len(fused) == 4
    log_p, _ = recovered_log_probs(loc, scale, num_nodes=16, return_error=True)
    recovered_log_probs(loc.double(), scale.double())
    recovered_log_probs(loc[..., :1], 1.0)
    recovered_log_probs(torch.zeros(600, device=DEVICE), 1.0, num_nodes=8)
    assert len(fused) == 4
    torch.testing.assert_close(log_p, whole, rtol=1e-5, atol=1e-6)


def test_batches_of_gradients(fused: list[int]):
    loc = torch.randn(6, 4, device=DEVICE).requires_grad_()
    scale = (torch.rand(6, 4, device=DEVICE) + 0.5).requires_grad_()
    log_p = recovered_log_probs(loc, scale, num_nodes=16)
    gradients = torch.randn(3, 6, 5, device=DEVICE)

    def pull(gradient: Tensor, **options: bool) -> tuple[Tensor, ...]:
        return torch.autograd.grad(log_p, (loc, scale), gradient, retain_graph=True, **options)

    expected = [torch.stack(parts) for parts in zip(*map(pull, gradients), strict=True)]
    for together in (pull(gradients, is_grads_batched=True), torch.vmap(pull, in_dims=1)(gradients.movedim(0, 1))):
        for one, other in zip(together, expected, strict=True):
            torch.testing.assert_close(one, other)
    assert len(fused) == 1


def test_second_derivatives(fused: list[int]):
    mu, sigma = rows("benign", 5, 3)
    weights = torch.randn(3, 5, dtype=DOUBLE, device=DEVICE)
    found = []
    for dtype in (torch.float32, DOUBLE):
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in (mu, sigma)]
        value = (weights.to(dtype) * recovered_log_probs(*leaves, num_nodes=NODES).exp()).sum()
        first = torch.autograd.grad(value, leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.sin().sum() for g in first), leaves)
        found.append([g.detach().double() for g in (*first, *second)])
    assert len(fused) == 1
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("chosen")
def test_compiled_programs():
    loc = torch.randn(6, 4, device=DEVICE).requires_grad_()

    def log_probs(x: Tensor) -> Tensor:
        return recovered_log_probs(x, 0.7, num_nodes=16)

    compiled = torch.compile(log_probs, fullgraph=True, backend="aot_eager")
    results = [(y := function(loc), *torch.autograd.grad(y[..., 0].sum(), loc)) for function in (log_probs, compiled)]
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
    sigma, rule = torch.full((6, 4), 0.7, device=DEVICE), constant_rule(16, loc.device)
    inputs = loc.detach(), sigma, *rule
    torch.library.opcheck(torch.ops.igr.recovered_log_probs, inputs)
    state = torch.ops.igr.recovered_log_probs(*inputs)
    torch.library.opcheck(torch.ops.igr.recovered_log_probs_backward, (torch.randn_like(state[0]), *inputs, *state))
