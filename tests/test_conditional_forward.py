"""Forward mode through samples given their category, against reverse mode, which differences and equations confirm."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, gradcheck

from igr.conditional import conditional_path, conditional_path_gumbel, sample_conditional, sample_conditional_gumbel

DOUBLE = torch.float64


def gaussian() -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """A path of one row for each of four categories, and its parameters."""
    loc, scale = torch.randn(3, dtype=DOUBLE), torch.rand(3, dtype=DOUBLE) + 0.5
    y = sample_conditional(loc, scale, torch.eye(4, dtype=DOUBLE))
    return lambda loc, scale: conditional_path(loc, scale, y, num_nodes=64), (loc, scale)


def gumbel() -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    logits = torch.randn(4, dtype=DOUBLE)
    x = sample_conditional_gumbel(logits, torch.eye(4, dtype=DOUBLE))
    return lambda logits: conditional_path_gumbel(logits, x), (logits,)


BOTH = pytest.mark.parametrize("kind", [gaussian, gumbel])


@BOTH
def test_directions_match_reverse_mode(kind):
    path, parameters = kind()
    directions = tuple(torch.randn_like(x) for x in parameters)
    jacobians = torch.func.jacrev(path, argnums=tuple(range(len(parameters))))(*parameters)
    expected = sum(jacobian @ direction for jacobian, direction in zip(jacobians, directions, strict=True))
    value, found = torch.func.jvp(path, parameters, directions)
    torch.testing.assert_close(value, path(*parameters))
    torch.testing.assert_close(found, expected)
    with forward_ad.dual_level():
        duals = map(forward_ad.make_dual, parameters, directions)
        torch.testing.assert_close(forward_ad.unpack_dual(path(*duals)).tangent, expected)
    rows = torch.func.vmap(lambda *x: torch.func.jvp(path, parameters, x)[1])(*(x.expand(2, -1) for x in directions))
    torch.testing.assert_close(rows, expected.expand(2, -1, -1))


@BOTH
def test_hessians_of_all_kinds_agree(kind):
    path, (first, *others) = kind()
    weights = torch.randn(4, 4, dtype=DOUBLE)

    def f(x: Tensor) -> Tensor:
        y = path(x, *others)
        return (y.sin() * weights[:, : y.shape[-1]]).sum()

    expected = torch.autograd.functional.hessian(f, first)
    assert expected.abs().max() > 0.1
    forwards, backwards = torch.func.jacfwd, torch.func.jacrev
    for outer, inner in ((forwards, backwards), (backwards, forwards)):
        torch.testing.assert_close(outer(inner(f))(first), expected, rtol=1e-9, atol=1e-11)
    with pytest.raises(NotImplementedError, match=r"use torch\.func\.hessian"):
        forwards(forwards(f))(first)


def test_samplers_match_differences():
    """The noise is fixed by its seed; what is differentiated forwards is the sampler itself."""
    loc, scale = (x.requires_grad_() for x in gaussian()[1])
    categories = torch.eye(4, dtype=DOUBLE)

    def seeded(sampler: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *x: sampler(*x, categories, generator=torch.Generator().manual_seed(2))

    assert gradcheck(seeded(sample_conditional), (loc, scale), check_forward_ad=True)
    logits = torch.randn(4, dtype=DOUBLE, requires_grad=True)
    assert gradcheck(seeded(sample_conditional_gumbel), logits, check_forward_ad=True)


@BOTH
def test_compiled_forward_mode_is_refused_where_it_would_be_zero(kind):
    path, parameters = kind()
    tangents = tuple(torch.ones_like(x) for x in parameters)
    torch.compiler.reset()
    compiled = torch.compile(lambda *x: torch.func.jvp(path, x, tangents)[1], fullgraph=True, backend="eager")
    with pytest.raises((NotImplementedError, torch._dynamo.exc.Unsupported)):
        compiled(*parameters)
    expected = torch.func.grad(lambda *x: path(*x).square().sum())(*parameters)  # backwards it goes on
    backwards = torch.compile(
        lambda *x: torch.func.grad(lambda *x: path(*x).square().sum())(*x), fullgraph=True, backend="aot_eager"
    )
    torch.testing.assert_close(backwards(*parameters), expected)
