"""Forward mode through recovered probabilities, against differences and against reverse mode."""

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, gradcheck

from igr import InvertibleGaussian, recovered_log_probs, recovered_log_probs_stick_breaking
from igr._normal import inverse_mills, log_ndtr, tail
from igr.transforms import StickBreaking

DOUBLE = torch.float64
BOTH = pytest.mark.parametrize("function", [recovered_log_probs, recovered_log_probs_stick_breaking])


def parameters(*shape: int) -> tuple[Tensor, Tensor]:
    return torch.randn(*shape, dtype=DOUBLE), torch.rand(*shape, dtype=DOUBLE) + 0.4


@pytest.mark.parametrize("function", [log_ndtr, inverse_mills, lambda z: tail(z)[0], lambda z: tail(z)[1]])
def test_functions_of_the_normal(function):
    z = torch.tensor([-200.0, -20.0, -3.0, -0.5, 0.4, 2.0, 6.0], dtype=DOUBLE, requires_grad=True)
    assert gradcheck(function, z, check_forward_ad=True, check_batched_forward_grad=True)
    (second,) = torch.func.jvp(torch.func.grad(lambda z: function(z).sum()), (z,), (torch.ones_like(z),))[1:]
    (first,) = torch.autograd.grad(function(z).sum(), z, create_graph=True)
    torch.testing.assert_close(second, torch.autograd.grad(first.sum(), z)[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("which", [0, 1])
@BOTH
def test_directions_match_reverse_mode(function, which: int):
    """Of either parameter alone, where rows are several chunks of memory and of two sizes of tables."""
    given = parameters(3000 if function is recovered_log_probs else 30, 9)
    given[1][0] = 0.06

    def at(x: Tensor) -> Tensor:
        return function(*(x if i == which else each for i, each in enumerate(given))).exp()

    direction, weights = torch.randn_like(given[which]), torch.randn(10, dtype=DOUBLE)
    x = given[which].clone().requires_grad_()
    value = at(x)
    (gradient,) = torch.autograd.grad((value * weights).sum(), x)
    found = torch.func.jvp(at, (given[which],), (direction,))
    with forward_ad.dual_level():
        again = forward_ad.unpack_dual(at(forward_ad.make_dual(given[which], direction)))
    for primal, tangent in (found, again):
        torch.testing.assert_close(primal, value.detach())
        torch.testing.assert_close((tangent * weights).sum(-1), (gradient * direction).sum(-1), rtol=1e-9, atol=1e-9)


def test_directions_match_differences():
    loc, scale = (x.requires_grad_() for x in parameters(2, 3))
    assert gradcheck(recovered_log_probs, (loc, scale), check_forward_ad=True)


@BOTH
def test_hessians_of_all_kinds_agree(function):
    loc, scale = parameters(3)

    def entropy(loc: Tensor) -> Tensor:
        return torch.special.entr(function(loc, scale, num_nodes=64).exp()).sum()

    expected = torch.autograd.functional.hessian(entropy, loc)
    forwards, backwards = torch.func.jacfwd, torch.func.jacrev
    for outer, inner in ((forwards, backwards), (backwards, forwards), (backwards, backwards)):
        torch.testing.assert_close(outer(inner(entropy))(loc), expected, rtol=1e-8, atol=1e-10)


def test_forwards_twice_is_refused_where_torch_would_say_zero():
    twice = torch.func.jacfwd(torch.func.jacfwd(lambda loc: recovered_log_probs(loc, 1.0)[0]))
    with pytest.raises(NotImplementedError, match=r"use torch\.func\.hessian"):
        twice(torch.zeros(3))
    with pytest.raises(NotImplementedError, match="jacrev"):
        torch.func.jacfwd(torch.func.jacfwd(log_ndtr))(torch.tensor(0.3))


def test_gradients_of_transforms_over_several_chunks_of_sticks():
    loc, scale = parameters(30, 9)

    def first(loc: Tensor) -> Tensor:
        return InvertibleGaussian(loc, scale, 0.5, flow=StickBreaking()).recovered().probs[:, 0].sum()

    x = loc.clone().requires_grad_()
    (expected,) = torch.autograd.grad(first(x), x)
    torch.testing.assert_close(torch.func.grad(first)(loc), expected, rtol=1e-12, atol=1e-14)
    tangent = torch.func.jvp(first, (loc,), (torch.ones_like(loc),))[1]
    torch.testing.assert_close(tangent, expected.sum(), rtol=1e-9, atol=1e-12)


@pytest.mark.skipif(torch.__version__ < "2.7", reason="that compiler looks for what to keep along every path: hours")
@BOTH
def test_a_compiler_still_takes_their_gradients(function):
    loc, scale = parameters(4, 3)
    loc.requires_grad_()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    found, expected = (
        torch.autograd.grad(f(loc, scale, num_nodes=64)[:, 0].sum(), loc)[0] for f in (compiled, function)
    )
    torch.testing.assert_close(found, expected)


@BOTH
def test_shapes_are_known_without_numbers(function):
    loc = torch.empty(4000, 9, device="meta", requires_grad=True)
    log_p = function(loc, 1.0)
    assert (log_p.shape, log_p.device.type) == ((4000, 10), "meta")
    log_p.sum().backward()
    assert loc.grad.shape == loc.shape
