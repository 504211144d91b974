"""The kernel of truncated normals beside float64; compiled on a CUDA device, interpreted elsewhere."""

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

import igr.kernels
from igr.conditional import _truncated, sample_conditional
from igr.estimators import igr_rao

pytest.importorskip("triton")
from igr.kernels._random import INTERPRETED

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and not INTERPRETED, reason="needs a CUDA device, or triton's interpreter"
)


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The kernel is chosen for float32, on the CPU as well; the shapes of its calls."""
    from igr.kernels import truncated as module

    calls: list[tuple[int, ...]] = []

    def counted(*arguments: Tensor) -> Tensor:
        calls.append(tuple(arguments[-1].shape))
        return kernel(*arguments)

    kernel = module.truncated_normal
    monkeypatch.setattr(module, "truncated_normal", counted)
    monkeypatch.setattr(igr.kernels, "usable", lambda *tensors: all(t.dtype == torch.float32 for t in tensors))
    return calls


def test_it_is_exact(fused: list[tuple[int, ...]]):
    """Thresholds from 3,000 scales below μ to 30 above it, and falls from 1e-6 to 80."""
    a = torch.cat([-torch.logspace(-2, 3.5, 40), torch.linspace(-1.5, 8, 40), torch.tensor([15.0, 30.0])]).to(DEVICE)
    fall = torch.cat([torch.logspace(-6, 1.9, 25), torch.tensor([0.5, 0.6931, 0.6932, 0.8])]).to(DEVICE)
    mu = torch.tensor([0.0, 0.3, -7.0], device=DEVICE)
    sigma = torch.tensor([1.0, 0.2, 3.0], device=DEVICE)
    m = (mu.mean() + a * sigma.amax()).view(-1, 1, 1)
    fall = fall.view(-1, 1).expand(len(a), -1, 3)
    found = _truncated(mu, sigma, m, fall)
    assert fused == [(len(a), fall.shape[1], 3)]
    exact = _truncated(*(x.double() for x in (mu, sigma, m, fall)))
    assert (found <= m).all()
    error = (found.double() - exact).abs() / sigma
    z = (exact - mu) / sigma
    spacing = 2**-23 * (mu.abs() + m.abs() + exact.abs()) / sigma  # of the numbers of float32 there
    # an error of Φ is one of z over the slope of log Φ, and at the threshold also one of the threshold
    assert (error <= 3e-6 * (1 + z.abs()) + 4 * spacing).all()


def test_it_is_the_distribution(fused: list[tuple[int, ...]]):
    torch.manual_seed(0)
    mu, sigma = torch.tensor([0.5, 2.0, -1.0], device=DEVICE), torch.tensor([0.7, 0.1, 2.0], device=DEVICE)
    exponential = torch.empty(20_000, 3, device=DEVICE).exponential_()
    found = _truncated(mu, sigma, torch.tensor([1.2], device=DEVICE), exponential).double().cpu().numpy()
    assert len(fused) == 1
    for y, loc, scale in zip(found.T, mu.tolist(), sigma.tolist(), strict=True):
        below = scipy.stats.truncnorm(-np.inf, (1.2 - loc) / scale, loc, scale)
        assert scipy.stats.kstest(y, below.cdf).pvalue > 1e-4


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")  # of the interpreter
def test_far_ends(fused: list[tuple[int, ...]]):
    """A threshold at which squares overflow, and falls that are next to nothing."""
    mu, sigma = torch.tensor([1e6, 0.0, -4.0], device=DEVICE), torch.tensor([1e-14, 1.0, 1e-3], device=DEVICE)
    fall = torch.tensor([[1e-38, 1e-38, 1e-38], [1.0, 80.0, 1e-20]], device=DEVICE)
    found = _truncated(mu, sigma, torch.tensor([0.0], device=DEVICE), fall)
    assert len(fused) == 1
    assert found.isfinite().all()
    assert (found <= 1e-6).all()
    expected = torch.tensor([0.0, -1e-34])  # σ times 1 / |a|
    torch.testing.assert_close(found[:, 0].cpu(), expected, rtol=1e-5, atol=1e-38)  # smaller numbers are zero to some


def test_shapes_that_broadcast(fused: list[tuple[int, ...]]):
    torch.manual_seed(1)
    mu, sigma = torch.randn(2, 1, 5, device=DEVICE), torch.rand(4, 5, device=DEVICE) + 0.5
    m, fall = torch.rand(3, 1, 1, 4, 1, device=DEVICE), torch.rand(3, 6, 2, 4, 5, device=DEVICE)
    found = _truncated(mu, sigma, m, fall)
    assert fused == [(3, 6, 2, 4, 5)]
    exact = _truncated(*(x.double() for x in (mu, sigma, m, fall)))
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=2e-5)
    assert _truncated(mu, sigma, m[:0], fall[:0]).shape == (0, 6, 2, 4, 5)
    one = _truncated(mu[..., :1], sigma[..., :1], m, fall)  # the same for all coordinates
    torch.testing.assert_close(one, _truncated(mu[..., :1].expand(2, 1, 5), sigma[..., :1].expand(4, 5), m, fall))


def test_not_a_number_stays_alone(fused: list[tuple[int, ...]]):
    m = torch.tensor([[0.3], [float("nan")], [-2.0]], device=DEVICE)
    found = _truncated(
        torch.zeros(3, 2, device=DEVICE), torch.ones(3, 2, device=DEVICE), m, torch.ones_like(m).expand(3, 2)
    )
    assert len(fused) == 1
    assert found.isnan().tolist() == [[False, False], [True, True], [False, False]]


def test_who_uses_it(fused: list[tuple[int, ...]]):
    loc = torch.zeros(4, 2, 3, device=DEVICE, requires_grad=True)
    q = igr.InvertibleGaussian(loc, 1.0, temperature=0.5)
    igr_rao(q, lambda z: z.square().sum((-2, -1)), num_redraws=7).surrogate.sum().backward()
    assert fused == [(7, 1, 4, 2, 3)]
    assert loc.grad is not None
    assert loc.grad.isfinite().all()
    b = torch.eye(4, device=DEVICE)[1].expand(4, 2, 4)
    y = sample_conditional(loc.detach(), 1.0, b)
    assert len(fused) == 2
    assert (y.argmax(-1) == 1).all()
    assert (y.amax(-1) > 0).all()
