"""The conditional path's kernel on a CUDA device: chosen without being asked for, captured, at full size."""

import pytest
import torch
from test_conditional import stress
from torch import Tensor
from torch.autograd import grad

import igr.kernels
from igr._winner import Race, slopes
from igr.conditional import conditional_path, sample_conditional

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
NODES = 48


def path_gradients(loc: Tensor, scale: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return grad(conditional_path(loc, scale, y, num_nodes=NODES).sin().sum(), (loc, scale))


def leaves(rows: int) -> tuple[Tensor, ...]:
    loc, scale = torch.randn(rows, 9, device="cuda"), torch.rand(rows, 9, device="cuda") + 0.3
    y = loc + scale * torch.randn_like(loc)
    return loc.requires_grad_(), scale.requires_grad_(), y


@pytest.mark.parametrize("K", [3, 10, 33])
def test_it_is_as_exact_as_the_pytorch_path(K: int):
    mu, sigma = (x.detach().cuda() for x in stress(K, 400, torch.float32))
    category = torch.nn.functional.one_hot(torch.randint(K - 1, (400,), device="cuda"), K)
    wins, m = category[:, :-1].bool(), sample_conditional(mu, sigma, category).amax(-1, keepdim=True)
    found = slopes(Race(mu, sigma, wins), m, NODES)
    with igr.kernels.disabled():
        pytorch = slopes(Race(mu, sigma, wins), m, NODES)
        truth = slopes(Race(mu.double(), sigma.double(), wins), m.double())  # with as many nodes as it takes
    assert not torch.equal(found[0], pytorch[0])
    for here, other, there in zip(found, pytorch, truth, strict=True):
        error, own = ((x.double() - there).abs() / (1 + there.abs()) for x in (here, other))
        assert error.max() < 4 * own.max() + 1e-3
        assert error.quantile(0.99) < 3 * own.quantile(0.99) + 1e-6


@pytest.mark.parametrize("rows", [1, 30_000])
def test_many_rows(rows: int):
    parameters = leaves(rows)
    found = path_gradients(*parameters)
    with igr.kernels.disabled():
        expected = path_gradients(*parameters)
    for here, there in zip(found, expected, strict=True):
        torch.testing.assert_close(here, there, rtol=1e-3, atol=1e-4)


def test_a_graph_is_captured_and_replayed():
    loc, scale, y = leaves(500)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        path_gradients(loc, scale, y)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = path_gradients(loc, scale, y)
    y.normal_()
    graph.replay()
    for there, here in zip(captured, path_gradients(loc, scale, y), strict=True):
        assert torch.equal(there, here)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_waits_for_the_device():
    parameters = leaves(300)
    path_gradients(*parameters)  # compiles, and copies the rule
    torch.cuda.set_sync_debug_mode("error")
    try:
        path_gradients(*parameters)
    finally:
        torch.cuda.set_sync_debug_mode("default")
