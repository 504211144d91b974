"""The switch, what kernels leave to PyTorch, and when the programs that share a row wait."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl
from sampling_cases import INTERPRETED, close, parameters

from igr import functional, kernels
from igr.distributions import GumbelSoftmax, InvertibleGaussian
from igr.kernels import _parts, sampling

pytestmark = INTERPRETED

# the switch, and what kernels leave to PyTorch


def test_switch():
    loc = torch.randn(5, 4)
    torch.manual_seed(1)
    with kernels.disabled():
        assert not kernels.enabled()
        plain = functional.gaussian_softmax(loc, 1.0)
    assert kernels.enabled()
    torch.manual_seed(1)
    close(plain, functional.softmaxpp(loc + torch.randn(5, 4)))
    torch.manual_seed(1)
    assert not torch.equal(functional.gaussian_softmax(loc, 1.0), plain)
    kernels.set_enabled(False)
    try:
        torch.manual_seed(1)
        assert torch.equal(functional.gaussian_softmax(loc, 1.0), plain)
    finally:
        kernels.set_enabled(True)


def test_blocks_of_several_threads_may_end_in_any_order():
    first, second = kernels.disabled(), kernels.disabled()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not kernels.enabled()
    second.__exit__(None, None, None)
    assert kernels.enabled()
    with kernels.disabled():
        kernels.set_enabled(False)
    assert not kernels.enabled()  # as was asked for
    kernels.set_enabled(True)


def test_blocks_may_be_compiled():
    def switched(loc):
        with kernels.disabled():
            return functional.gaussian_softmax(loc, 1.0), kernels.enabled()

    loc = torch.randn(5, 4)
    torch.compiler.reset()
    torch.manual_seed(1)
    z, inside = torch.compile(switched, fullgraph=True, backend="eager")(loc)
    assert (inside, kernels.enabled()) == (False, True)
    torch.manual_seed(1)
    close(z, switched(loc)[0])


def test_compiled_blocks_leave_those_of_other_threads_alone():
    """While a compiled program runs, another thread enters a block, and leaves it after the program has ended."""
    other = kernels.disabled()

    def backend(graph, _):
        def run(*tensors):
            other.__enter__()
            return graph(*tensors)

        return run

    def inside(x):
        with kernels.disabled():
            return x + 1

    torch.compiler.reset()
    torch.compile(inside, fullgraph=True, backend=backend)(torch.zeros(3))
    assert not kernels.enabled()
    other.__exit__(None, None, None)
    assert kernels.enabled()


def test_temperatures_are_trained_without_kernels():
    tau = torch.tensor(0.5, requires_grad=True)
    loc = torch.randn(5, 4)
    for z in (functional.gaussian_softmax(loc, 1.0, tau), functional.gumbel_softmax(loc, tau)):
        assert torch.autograd.grad(z[:, 0].sum(), tau)[0].item() != 0
    delta = torch.tensor(0.5, requires_grad=True)
    terms = functional.gaussian_softmax_terms(loc, 1.0, delta=delta, prior=(delta, 1.0))
    assert torch.autograd.grad(terms.kl.sum() + terms.log_prob.sum(), delta)[0].item() != 0
    with torch.no_grad():
        assert functional.gaussian_softmax(loc, 1.0, tau).isfinite().all()


def test_transforms_go_without_kernels():
    loc = torch.randn(5, 4)
    z = torch.func.vmap(lambda m: functional.gaussian_softmax(m, 1.0), randomness="different")(loc)
    assert z.shape == (5, 5)
    gradient = torch.func.grad(lambda m: functional.gaussian_softmax(m, 1.0)[0].sum())(loc[0])
    assert gradient.shape == (4,)
    _, tangent = torch.func.jvp(lambda m: functional.gaussian_softmax(m, 1.0), (loc,), (torch.ones(5, 4),))
    assert tangent.abs().max() > 0
    assert functional.gaussian_softmax(loc.double(), 1.0).dtype == torch.float64


def test_no_rows():
    assert functional.gaussian_softmax(torch.zeros(0, 4), 1.0).shape == (0, 5)
    assert functional.gumbel_softmax(torch.zeros(2, 0, 4)).shape == (2, 0, 4)


@pytest.mark.parametrize("twice", [False, True])
def test_no_samples_of_some_parameters(twice):
    loc, scale = parameters(5, 4)
    z, log_q = InvertibleGaussian(loc, scale, 0.5).rsample_and_log_prob((0,))
    assert (z.shape, log_q.shape) == ((0, 5, 5), (0, 5))
    for g in torch.autograd.grad(z.sum() + log_q.sum(), (loc, scale), create_graph=twice):
        assert torch.equal(g, torch.zeros(5, 4))
    z = GumbelSoftmax(0.5, loc).rsample((0, 2))
    assert torch.equal(torch.autograd.grad(z.sum(), loc, create_graph=twice)[0], torch.zeros(5, 4))
    none = torch.zeros(0, 4, requires_grad=True)
    for z in (functional.gaussian_softmax(none, 1.0), GumbelSoftmax(0.5, none).rsample((2,))):
        assert torch.autograd.grad(z.sum(), none, create_graph=twice)[0].shape == (0, 4)


def test_usable(monkeypatch):
    monkeypatch.undo()
    assert not kernels.usable(torch.zeros(3))


@pytest.mark.parametrize(("capability", "expected"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_devices_that_are_too_old_go_without_kernels(monkeypatch, capability, expected):
    monkeypatch.undo()
    monkeypatch.setattr(kernels, "INSTALLED", True)
    monkeypatch.setattr(kernels, "_capable", {})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    tensor = SimpleNamespace(is_cuda=True, dtype=torch.float32, device=torch.device("cuda", 0), shape=(3, 4))
    assert kernels.usable(tensor, tensor) is expected
    assert kernels.usable_on_rows(tensor) is expected
    tensor.shape = (3, kernels.MOST_COLUMNS + 1)
    assert not kernels.usable_on_rows(tensor)


# programs that share a row


def test_programs_wait_where_all_have_room(monkeypatch):
    monkeypatch.setattr(sampling, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    assert kernels.waiting()
    assert sampling._all_run(33, torch.zeros(1))
    assert not sampling._all_run(34, torch.zeros(1))
    kernels.set_waiting(False)
    try:
        assert not sampling._all_run(1, torch.zeros(1))
    finally:
        kernels.set_waiting(True)


@triton.jit
def write_places(places, arrived, rows, HALF: tl.constexpr):
    row, part, start = _parts.part_here(arrived, rows, HALF, 3, 128)
    at = places + 3 * tl.program_id(0)
    tl.store(at, row)
    tl.store(at + 1, part)
    tl.store(at + 2, start)


def test_programs_that_wait_are_numbered_as_they_start():
    """Not by the device: here two others have started already."""
    arrived = torch.tensor([0, 0, 0, 2], dtype=torch.int32)
    for half, before in ((_parts.WHOLE, 2), (_parts.FIRST, 0)):
        places = torch.empty(7, 3, dtype=torch.int64)
        write_places[(7,)](places, arrived, 3, half)
        assert places.tolist() == [[i // 3, i % 3, i % 3 * 128] for i in range(before, before + 7)]
    assert arrived.tolist() == [0, 0, 0, 9]
