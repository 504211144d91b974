"""Maps and samplers compiled, under vmap, differentiated row by row, and under autocast."""

import pytest
import torch
from functional_cases import MASK, both, close, real, seeded

from igr import functional as F


@both
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "mask"])
@pytest.mark.parametrize("tau", [0.5, torch.full((5, 1), 0.5)], ids=["number", "tensor"])
def test_compiles_whole(sample, hard, mask, tau):
    torch.compiler.reset()
    logits = real(5, 4, dtype=torch.float32).requires_grad_()
    compiled = torch.compile(sample, fullgraph=True, backend="aot_eager")
    results = []
    for f in (sample, compiled):
        torch.manual_seed(0)
        z = f(logits, tau, hard, mask=mask)
        results.append((z, *torch.autograd.grad(z[:, 1].sum(), logits)))
    for eager, again in zip(*results, strict=True):
        close(again, eager, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "f",
    [
        lambda y: F.softmaxpp_inverse(F.softmaxpp(y, 0.5), 0.5),
        lambda y: F.log_stick_breaking_inverse(F.log_stick_breaking(y)),
        lambda y: F.vertex_interpolation_inverse(F.vertex_interpolation(y.softmax(-1), 0.5), 0.5),
        lambda y: F.straight_through(F.harden(y), F.softmaxpp(y)),
    ],
    ids=["softmaxpp", "stick-breaking", "vertex interpolation", "straight-through"],
)
def test_maps_compile_and_vmap(f):
    torch.compiler.reset()
    y = real(5, 3, dtype=torch.float32)
    close(torch.compile(f, fullgraph=True, backend="aot_eager")(y), f(y), rtol=1e-5, atol=1e-6)
    close(torch.func.vmap(f)(y), f(y), rtol=1e-6, atol=1e-6)


@both
@pytest.mark.parametrize("hard", [False, True])
def test_vmap(sample, hard):
    draw = torch.func.vmap(lambda x, m: sample(x, 0.5, hard, mask=m), randomness="different")
    z = draw(torch.zeros(1000, 4), MASK.repeat(200, 1))
    close(z.sum(-1), torch.ones(1000), rtol=1e-6)
    assert bool((z[~MASK.repeat(200, 1)] == 0).all())
    assert len(torch.unique(z[4::5], dim=0)) == (4 if hard else 200)


@both
@pytest.mark.parametrize("over", ["nothing", "tau", "mask"])
def test_vmap_over_something_else_draws_anew(sample, over):
    logits = torch.zeros(4)
    f, x = {
        "nothing": (lambda _: sample(logits), torch.arange(50)),
        "tau": (lambda tau: sample(logits, tau), torch.full((50,), 0.5)),
        "mask": (lambda mask: sample(logits, mask=mask), torch.ones(50, 4, dtype=torch.bool)),
    }[over]
    assert len(torch.unique(torch.func.vmap(f, randomness="different")(x), dim=0)) == 50


@both
def test_only_types_and_shapes_are_checked_under_vmap_and_compile(sample):
    def vmap(f, *xs):
        return torch.func.vmap(f, randomness="different")(*xs)

    x, tau, nowhere = torch.zeros(3, 4), torch.zeros(3), torch.zeros(3, 4, dtype=torch.bool)
    assert vmap(sample, x, tau).shape == vmap(lambda x, m: sample(x, mask=m), x, nowhere).shape == (3, 4)
    with pytest.raises(ValueError, match="tau"):
        vmap(sample, x, torch.ones(3, 4))
    with pytest.raises(TypeError, match="mask"):
        vmap(lambda x, m: sample(x, mask=m), x, torch.ones(3, 4))
    torch.compiler.reset()
    compiled = torch.compile(sample, fullgraph=True, backend="aot_eager")
    assert compiled(x, torch.tensor(-1.0)).shape == (3, 4)


@both
def test_grad_of_a_row_matches_autograd(sample):
    logits = real(4)

    def first(x):
        return sample(x, 0.5, generator=seeded(0))[0]

    x = logits.clone().requires_grad_()
    close(torch.func.grad(first)(logits), *torch.autograd.grad(first(x), x))


@both
@pytest.mark.parametrize("hard", [False, True])
def test_autocast(sample, hard):
    logits = real(50, 6, dtype=torch.float32)
    torch.manual_seed(0)
    expected = sample(logits, 0.1, hard)
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = sample(logits, 0.1, hard)
        low = sample(torch.nn.functional.linear(logits, torch.eye(6)), 0.1, hard)
    assert z.dtype == torch.float32
    close(z, expected, rtol=1e-6, atol=1e-7)
    assert low.dtype == torch.bfloat16
    close(low.float().sum(-1), torch.ones(50), rtol=0, atol=0.02)
