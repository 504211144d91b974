"""Estimators inside ``torch.compile(fullgraph=True)``: all but those that look at autograd's graph."""

import pytest
import torch

from igr import GumbelSoftmax, InvertibleGaussian, estimators

LEFT_OUT = {"Estimate", "RunningMean", "rebar", "relax", "sticking_the_landing", "disarm"}
CASES = [
    (name, kind)
    for name in estimators.__all__
    if name not in LEFT_OUT
    for kind in ("gs", "igr-i")
    if (name, kind) not in (("gumbel_rao", "igr-i"), ("igr_rao", "gs"))
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_compiled(name, kind):
    def loss(a, b):
        q = GumbelSoftmax(0.5, a) if kind == "gs" else InvertibleGaussian(a[..., :-1], b, 0.5)
        return getattr(estimators, name)(q, lambda z: (z[..., 0].sum(-1) - 1).square()).surrogate.sum()

    a = torch.randn(4, 3, 5, requires_grad=True)
    b = torch.rand(4, 3, 4).add(0.5).requires_grad_()
    torch._dynamo.reset()
    torch.compile(loss, fullgraph=True, backend="aot_eager")(a, b).backward()
    assert a.grad.isfinite().all()
    assert a.grad.abs().sum() > 0


@pytest.mark.skipif(torch.__version__ < "2.8", reason="older compilers cannot trace torch.Size of what varies")
def test_a_compiler_takes_another_number_of_samples():
    def loss(logits, num_samples):
        q = GumbelSoftmax(0.5, logits)
        return estimators.rloo(q, lambda z: (z[..., 0].sum(-1) - 1).square(), num_samples=num_samples).surrogate.sum()

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for S in (2, 3, 4):
        logits = torch.zeros(4, 3, 5, requires_grad=True)
        compiled(logits, S).backward()
        assert logits.grad.isfinite().all()
