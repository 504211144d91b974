"""The kernels of planar flows, interpreted on a CPU: against the library's planar maps and autograd, in float64."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="needs Triton")

from igr.paper import objectives
from igr.paper.models import EnsembleVae
from igr.paper.planar_kernels import BACKWARD, FORWARD, planar, planar_flow
from igr.paper.priors import prior_of
from igr.paper.sop import objectives as completions
from igr.paper.sop.model import EnsembleCompletion
from igr.paper.specs import SPECS
from igr.transforms import Planar, call_and_ladj

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # where a device is there, kernels are compiled
NAMES = ("y", "u_hat", "w", "b", "m")

# S, E, B, N, n, L: one member or several, rows in one block or several, full or not
SIZES = [(1, 3, 10, 2, 9, 2), (2, 1, BACKWARD[0], 1, 1, 3), (3, 3, 47, 1, 12, 1), (1, 1, FORWARD[0] + 5, 2, 4, 3)]


def some(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float32).to(DEVICE)


def setting(S: int, E: int, B: int, N: int, n: int, L: int) -> tuple[Tensor, ...]:
    """y, u, w and b; the products w u have both signs."""
    u, w = 0.7 * some(L, E, 1, N, n), 0.7 * some(L, E, 1, N, n)
    return some(S, E, B, N, n), u, w, some(L, E, 1, N)


def constrained(sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """What the operator is given."""
    y, u, w, b = setting(*sizes)
    u_hat, m = Planar(u, w, b).constrained()
    return y, u_hat, w, b, m


def expected_flow(y: Tensor, u: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    ladj = torch.zeros_like(y[..., 0])
    for layer in zip(u, w, b, strict=True):
        y, change = call_and_ladj(Planar(*layer, validate_args=False), y)
        ladj = ladj + change
    return y, ladj


def expected_planar(y: Tensor, u_hat: Tensor, w: Tensor, b: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """The same with û and m as they are given, each with a gradient of its own."""
    ladj = torch.zeros_like(y[..., 0])
    for u_l, w_l, b_l, m_l in zip(u_hat, w, b, m, strict=True):
        t = (w_l * y).sum(-1) + b_l
        slope = 4 * (2 * t).sigmoid() * (-2 * t).sigmoid()  # which never cancels
        y, ladj = y + u_l * t.tanh().unsqueeze(-1), ladj + torch.log1p(m_l * slope)
    return y, ladj


def leaves(tensors: tuple[Tensor, ...], dtype: torch.dtype) -> list[Tensor]:
    return [each.to(dtype).detach().requires_grad_() for each in tensors]


def gradients(function, tensors: tuple[Tensor, ...], g: tuple[Tensor, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    inputs = leaves(tensors, dtype)
    found = torch.autograd.grad(function(*inputs), inputs, [each.to(dtype) for each in g])
    return dict(zip(NAMES if len(inputs) == 5 else "yuwb", found, strict=True))


def assert_near(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    """Relative to the largest of each member: sums of many terms may cancel in some entries."""
    assert found.shape == expected.shape
    scale = expected.abs().max().item() if expected.numel() else 0.0
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance * max(scale, 1e-30))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_maps_and_log_determinants(sizes):
    inputs = setting(*sizes)
    for found, expected in zip(planar_flow(*inputs), expected_flow(*(t.double() for t in inputs)), strict=True):
        assert found.dtype == torch.float32
        assert_near(found, expected, 3e-6)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("part", ["both", "maps", "log-determinants"])
def test_gradients_of_the_operator(sizes, part):
    inputs = constrained(sizes)
    g, g_ladj = some(*inputs[0].shape), some(*inputs[0].shape[:-1])
    upstream = (g * (part != "log-determinants"), g_ladj * (part != "maps"))
    found = gradients(planar, inputs, upstream, torch.float32)
    expected = gradients(expected_planar, inputs, upstream, torch.float64)
    for name in NAMES:
        assert_near(found[name], expected[name])


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_gradients_of_the_parameters(sizes):
    """Through the constraint, down to u, w and b."""
    inputs = setting(*sizes)
    upstream = some(*inputs[0].shape), some(*inputs[0].shape[:-1])
    found = gradients(planar_flow, inputs, upstream, torch.float32)
    expected = gradients(expected_flow, inputs, upstream, torch.float64)
    for name in "yuwb":
        assert_near(found[name], expected[name], 1e-4)


@pytest.mark.parametrize("name", "yuwb")
def test_a_gradient_that_is_wanted_alone(name):
    inputs = setting(*SIZES[0])
    i = "yuwb".index(name)
    totals = []
    for function, dtype in ((planar_flow, torch.float32), (expected_flow, torch.float64)):
        each = [t.to(dtype) for t in inputs]
        each[i].requires_grad_()
        x, ladj = function(*each)
        totals.append(torch.autograd.grad(x.square().sum() + ladj.sum(), each[i])[0])
    assert_near(*totals, 1e-4)


def test_gradients_are_the_difference_quotients_of_the_kernels_own_values():
    inputs = constrained((2, 1, 20, 1, 3, 2))
    g, g_ladj = some(*inputs[0].shape), some(*inputs[0].shape[:-1])
    found = gradients(planar, inputs, (g, g_ladj), torch.float32)
    for i, name in enumerate(NAMES):
        direction, step = some(*inputs[i].shape), 2e-3
        ends = []
        for sign in (1, -1):
            moved = [t + sign * step * direction if j == i else t for j, t in enumerate(inputs)]
            x, ladj = planar(*moved)
            ends.append((x.double() * g).sum() + (ladj.double() * g_ladj).sum())
        quotient = (ends[0] - ends[1]) / (2 * step)
        torch.testing.assert_close((found[name].double() * direction).sum(), quotient, rtol=3e-3, atol=3e-3)


@pytest.mark.parametrize("t", [1e-6, 0.3, 5.0, 30.0, 1e4, 1e20])
@pytest.mark.parametrize("m", [-0.999999, -0.999, -0.3, 1e-4, 3.0, 1e4])
def test_relative_errors_from_linear_to_saturated(t, m):
    """One map of y = t with w = û = 1, and of -t: no sums in which errors could hide, or others cancel."""
    y = torch.tensor([t, -t], device=DEVICE).view(1, 1, 1, 2, 1)
    inputs = (y, torch.ones_like(y), torch.ones_like(y), torch.zeros_like(y[..., 0]), torch.full_like(y[..., 0], m))
    exact = tuple(each.double() for each in inputs)
    errors = {"rtol": 3e-6, "atol": 0 if t < 10 else 1e-15}  # in float64, 1 - tanh² has none of its digits far out
    for found, expected in zip(planar(*inputs), expected_planar(*exact), strict=True):
        torch.testing.assert_close(found.double(), expected, **errors)
    for g, g_ladj in ((1.0, 0.0), (0.0, 1.0)):
        upstream = torch.full_like(y, g), torch.full_like(y[..., 0], g_ladj)
        found = gradients(planar, inputs, upstream, torch.float32)
        expected = gradients(expected_planar, inputs, upstream, torch.float64)
        for name in NAMES:
            torch.testing.assert_close(found[name].double(), expected[name], **errors)


def test_far_arguments():
    """w so large that every tanh is saturated: the flow is a translation."""
    y, u, w, b = setting(2, 2, 40, 1, 9, 2)
    inputs = (y, u, 1e6 * w, b)
    for found, expected in zip(planar_flow(*inputs), expected_flow(*(t.double() for t in inputs)), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    found = gradients(planar_flow, inputs, (torch.ones_like(y), torch.ones_like(y[..., 0])), torch.float32)
    assert found["y"].eq(1).all()
    assert all(found[name].isfinite().all() for name in "uwb")


@pytest.mark.parametrize("name", ["y", "u", "w", "b"])
def test_nan_stays_in_its_member_and_is_not_lost(name):
    sizes = (2, 3, 40, 2, 4, 2)
    inputs = dict(zip("yuwb", setting(*sizes), strict=True))
    upstream = some(*inputs["y"].shape), some(*inputs["y"].shape[:-1])
    calm = gradients(planar_flow, tuple(inputs.values()), upstream, torch.float32)
    if name == "y":
        inputs["y"][1, 1, 7, 0, 2] = torch.nan
    else:
        inputs[name][1, 1, 0, 0] = torch.nan
    x, ladj = planar_flow(**inputs)
    assert x[1, 1, 7, 0].isnan().any()
    assert ladj[1, 1, 7, 0].isnan()
    assert x[:, [0, 2]].isfinite().all()
    assert ladj[:, [0, 2]].isfinite().all()
    struck = gradients(planar_flow, tuple(inputs.values()), upstream, torch.float32)
    for key, found in struck.items():
        assert found[:, 1].isnan().any()
        assert torch.equal(found[:, [0, 2]], calm[key][:, [0, 2]])


def test_no_samples():
    y, *parameters = leaves(setting(0, 2, 5, 1, 3, 2), torch.float32)
    x, ladj = planar_flow(y, *parameters)
    assert x.shape == (0, 2, 5, 1, 3)
    assert ladj.shape == (0, 2, 5, 1)
    d_y, *others = torch.autograd.grad(x.sum() + ladj.sum(), (y, *parameters))
    assert d_y.shape == y.shape
    assert all(d.eq(0).all() for d in others)


def test_any_strides():
    y, u, w, b = setting(2, 3, 5, 2, 4, 2)
    strided = tuple(t.transpose(0, 1).contiguous().transpose(0, 1) for t in (y, u, w, b))
    assert not strided[0].is_contiguous()
    upstream = some(5, 2, 3, 2, 4).movedim(0, 2), some(1, 1, 5, 1).expand(2, 3, 5, 2)
    for a, c in zip(planar_flow(*strided), planar_flow(y, u, w, b), strict=True):
        assert torch.equal(a, c)
    found = gradients(planar_flow, strided, upstream, torch.float32)
    dense = gradients(planar_flow, (y, u, w, b), tuple(g.contiguous() for g in upstream), torch.float32)
    assert all(torch.equal(found[name], dense[name]) for name in "yuwb")


def test_gradients_cannot_be_differentiated_again():
    y, u, w, b = leaves(setting(*SIZES[0]), torch.float32)
    x, ladj = planar_flow(y, u, w, b)
    (d,) = torch.autograd.grad(x.square().sum() + ladj.sum(), y, create_graph=True)
    with pytest.raises(RuntimeError, match=r"planar_backward.* no autograd formula was registered"):
        d.sum().backward()


def test_parameters_that_do_not_fit_are_refused():
    y, u, w, b = setting(*SIZES[0])
    with pytest.raises(ValueError, match="that fit y"):
        planar_flow(y, u[:, :1], w[:, :1], b[:, :1])
    with pytest.raises(ValueError, match=r"float32.*float64"):
        planar_flow(y, u.double(), w, b)


def test_compiles_in_one_graph(monkeypatch):
    """As the objective calls it."""
    monkeypatch.setattr(objectives, "kernels", SimpleNamespace(usable=lambda *tensors: True))
    cell = SPECS["table1/mnist/linear/igr-planar"]

    def loss(y, u, w, b):
        x, ladj = objectives._mapped(cell, y + 1, list(zip(u, w, b, strict=True)))
        return x.square().sum() + ladj.sum()

    inputs = leaves(setting(*SIZES[0]), torch.float32)
    found = torch.compile(loss, fullgraph=True, backend="aot_eager")(*inputs)
    y, *parameters = (each.double() for each in inputs)
    x, ladj = expected_flow(y + 1, *parameters)
    expected = x.square().sum() + ladj.sum()
    assert_near(found, expected)
    for a, b in zip(torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs), strict=True):
        assert_near(a, b.double(), 1e-4)


def test_units_of_completions_are_those_of_the_maps(monkeypatch):
    cell = SPECS["sop/mnist/igr-planar"]
    model = EnsembleCompletion(cell, [1, 2], num_units=4, num_pixels=12).to(DEVICE)
    with torch.no_grad():
        for each in (*model.u, *model.w, *model.b):
            each.copy_(0.7 * some(*each.shape))
    upper, tau = some(2, 3, 6), torch.full((2, 1, 1, 1), 0.5, device=DEVICE)
    noise = [some(5, 2, 3, 4, 1) for _ in range(2)]
    parameters = list(model.parameters())
    totals = []
    for usable in (False, True):
        monkeypatch.setattr(completions, "kernels", SimpleNamespace(usable=lambda *tensors, it=usable: it))
        total = completions.sample_units(model, model.say(0, upper), tau, noise).square().sum((0, 2, 3))
        totals.append((total, *torch.autograd.grad(total.sum(), parameters, allow_unused=True)))
    for expected, found in zip(*totals, strict=True):
        if expected is not None:
            assert_near(found, expected.double(), 1e-4)


def test_registrations():
    inputs = tuple(leaves(constrained((1, 2, 5, 1, 3, 2)), torch.float32))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(planar, inputs, test_utils=checks)


@pytest.mark.skipif(DEVICE == "cuda", reason="tests of training on CUDA see to that")
@pytest.mark.parametrize("landing", [False, True])
def test_the_objective_is_what_it_is_without_kernels(landing, monkeypatch):
    cell = replace(SPECS["table1/mnist/linear/igr-planar"], landing=landing)
    E, B, N, K, D = 3, 5, 2, 4, 8
    x, noise = (torch.rand(E, B, D) < 0.5).double(), torch.randn(2, E, B, N, K - 1, dtype=torch.float64)
    tau = torch.tensor([0.3, 0.5, 1.0], dtype=torch.float64).view(-1, 1, 1, 1)
    results = []
    for dtype, usable in ((torch.float64, False), (torch.float32, True)):
        monkeypatch.setattr(objectives, "kernels", SimpleNamespace(usable=lambda *tensors, usable=usable: usable))
        vae = EnsembleVae(cell, range(E), num_variables=N, num_categories=K, num_pixels=D, dtype=torch.float64)
        torch.manual_seed(1)
        for p in vae.parameters():
            p.data.normal_(std=0.5)
        vae.to(dtype)
        prior = prior_of(cell, [None] * E, K, dtype, "cpu")
        value = objectives.objective(vae, x.to(dtype), tau.to(dtype), prior, noise.to(dtype))
        results.append([value, *torch.autograd.grad(value.sum(), tuple(vae.parameters()))])
        assert ("igr_planar" in graph_of(value)) == usable
    for found, expected in zip(*results[::-1], strict=True):
        assert_near(found, expected, 1e-4)


def graph_of(value: Tensor) -> str:
    """The names of all that the value is made of."""
    seen, left = {}, [value.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen[node] = node.name()
            left += [after for after, _ in node.next_functions]
    return " ".join(seen.values())
