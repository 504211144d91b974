"""Proposition 2's kernels on a CUDA device: chosen without being asked for, captured, compiled, at full size."""

import numpy as np
import pytest
import torch
from test_recovery import KINDS, parameters
from torch import Tensor

import igr.kernels
from igr.distributions import InvertibleGaussian
from igr.estimators import relax
from igr.recovery import recovered_log_probs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def leaves(*shape: int) -> list[Tensor]:
    loc, scale = torch.randn(shape, device="cuda"), torch.rand(shape, device="cuda") + 0.3
    return [loc.requires_grad_(), scale.requires_grad_()]


def result(mu: Tensor, sigma: Tensor, gradient: Tensor, num_nodes: int = 64) -> tuple[Tensor, ...]:
    log_p = recovered_log_probs(mu, sigma, num_nodes=num_nodes)
    return log_p.detach(), *torch.autograd.grad(log_p, (mu, sigma), gradient)


def names(log_p: Tensor) -> set[str]:
    """What made it, up to two steps back."""
    nodes = {log_p.grad_fn} | {parent for parent, _ in log_p.grad_fn.next_functions}
    return {node.name() for node in nodes if node is not None}


def test_the_kernel_is_chosen():
    mu, sigma = leaves(40, 9)
    assert "_FusedBackward" in names(recovered_log_probs(mu, sigma))
    with igr.kernels.disabled():
        assert "_FusedBackward" not in names(recovered_log_probs(mu, sigma))
    for x, y in ((mu.double(), sigma.double()), (mu.repeat(1, 70), sigma.repeat(1, 70))):
        assert "_FusedBackward" not in names(recovered_log_probs(x, y, num_nodes=8))


@pytest.mark.parametrize("K", [3, 10, 33, 513])
def test_it_is_as_exact_as_the_pytorch_path(K: int):
    """Within twice the float32 path's own error, on the same parameters."""
    generator = np.random.default_rng(K)
    drawn = [parameters(kind, K - 1, generator) for kind in KINDS for _ in range(20 if K < 100 else 3)]
    mu, sigma = (torch.tensor(np.stack(x), dtype=torch.float32, device="cuda") for x in zip(*drawn, strict=True))
    exact = recovered_log_probs(mu.double(), sigma.double()).exp()
    gradient = torch.randn_like(exact) * exact

    def found(dtype: torch.dtype) -> list[Tensor]:
        values = result(*(x.to(dtype, copy=True).requires_grad_() for x in (mu, sigma)), gradient.to(dtype), 192)
        return [values[0].double().exp(), *(g.double() * sigma.double() for g in values[1:])]

    truth, kernel = found(torch.float64), found(torch.float32)
    with igr.kernels.disabled():
        pytorch = found(torch.float32)
    for here, other, there in zip(kernel, pytorch, truth, strict=True):
        assert (here - there).abs().max() < 2 * (other - there).abs().max() + 1e-6


def test_more_gradients_than_the_second_axis_of_a_grid_has():
    mu, sigma = leaves(3, 4)
    log_p = recovered_log_probs(mu, sigma, num_nodes=16)
    gradients = torch.randn(70_000, 3, 5, device="cuda")
    options = {"is_grads_batched": True, "retain_graph": True}
    found = torch.autograd.grad(log_p, (mu, sigma), gradients, **options)
    last = torch.autograd.grad(log_p, (mu, sigma), gradients[-9:], **options)
    for here, there in zip(found, last, strict=True):
        torch.testing.assert_close(here[-9:], there)


@pytest.mark.parametrize("rows", [1, 127, 100_000])
def test_many_rows(rows: int):
    """Beside float64; gradients in units of the largest of their row, since they are sums of what nearly cancels."""
    mu, sigma = leaves(rows, 9)
    gradient = torch.randn(rows, 10, device="cuda")
    found = result(mu, sigma, gradient)
    exact = result(*(x.detach().double().requires_grad_() for x in (mu, sigma)), gradient.double())
    for here, there in zip(found, exact, strict=True):
        assert ((here - there).abs() <= 5e-6 * there.abs().amax(-1, keepdim=True)).all()


def test_a_graph_is_captured_and_replayed():
    mu, sigma = leaves(500, 9)
    gradient = torch.randn(500, 10, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result(mu, sigma, gradient)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = result(mu, sigma, gradient)
    with torch.no_grad():
        mu.normal_()
    graph.replay()
    for there, here in zip(captured, result(mu, sigma, gradient), strict=True):
        assert torch.equal(there, here)


@pytest.mark.filterwarnings("ignore")  # torch's own, while compiling
def test_programs_are_compiled_whole():
    mu, sigma = leaves(300, 9)

    def value(mu: Tensor, sigma: Tensor) -> Tensor:
        return (recovered_log_probs(2 * mu, sigma, num_nodes=64).exp() * torch.arange(10.0, device="cuda")).sum()

    compiled = torch.compile(value, fullgraph=True, mode="reduce-overhead")
    expected = torch.autograd.grad(value(mu, sigma), (mu, sigma))
    for _ in range(3):
        found = torch.autograd.grad(compiled(mu, sigma), (mu, sigma))
        for here, there in zip(found, expected, strict=True):
            torch.testing.assert_close(here.clone(), there, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_waits_for_the_device():
    mu, sigma = leaves(300, 9)
    gradient = torch.randn(300, 10, device="cuda")
    result(mu, sigma, gradient)  # compiles, and copies the rule
    torch.cuda.set_sync_debug_mode("error")
    try:
        result(mu, sigma, gradient)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_relax_takes_batches_of_gradients():
    mu, sigma = leaves(50, 3, 9)

    def f(z: Tensor) -> Tensor:
        return (z * torch.arange(10.0, device="cuda")).sum((-2, -1)).square()

    q = InvertibleGaussian(mu, sigma, 0.5)
    found = torch.autograd.grad(relax(q, f, num_samples=2).surrogate.sum(), (mu, sigma))
    assert all(g.isfinite().all() and g.abs().max() > 0 for g in found)
