"""The estimators on a CUDA device: the CPU's numbers from the CPU's noise, and steps that can be captured."""

import pytest
import torch

from igr import BinaryConcrete, GumbelSoftmax, InvertibleGaussian, estimators
from igr._draws import NoiseSource

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

NAMES = [name for name in estimators.__all__ if name not in ("Estimate", "RunningMean")]
CASES = [
    (name, kind)
    for name in NAMES
    for kind in (["binary"] if name == "disarm" else ["gs", "igr-i"])
    if (name, kind) not in (("gumbel_rao", "igr-i"), ("igr_rao", "gs"))
]


class GivenNoise(NoiseSource):
    """Drawn on the CPU, wherever it is needed."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def gaussian(self, shape, like):
        return torch.randn(tuple(shape), generator=self.generator, dtype=like.dtype).to(like.device)

    def gumbel(self, like):
        exponential = torch.empty(like.shape, dtype=like.dtype).exponential_(generator=self.generator)
        return -exponential.log().to(like.device)


def problem(kind, device):
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(5, 3, 4, generator=generator, dtype=torch.float64).to(device).requires_grad_()
    b = (torch.rand(5, 3, 3, generator=generator, dtype=torch.float64) + 0.5).to(device).requires_grad_()
    w = torch.randn(5, 12, generator=generator, dtype=torch.float64).to(device).requires_grad_()

    def q():
        if kind == "binary":
            return BinaryConcrete(0.5, a.flatten(-2))
        return GumbelSoftmax(0.5, a) if kind == "gs" else InvertibleGaussian(a[..., :-1], b, 0.5)

    def f(z):
        z = z if kind == "binary" else z.flatten(-2)
        return (z * w).sum(-1).tanh() + (z * w).sum(-1).square()

    return q, f, [a, w, *([b] if kind == "igr-i" else [])]


def estimate(name, q, f, generator):
    prior = (q(),) if name == "sticking_the_landing" else ()
    return getattr(estimators, name)(q(), f, *prior, num_samples=3, generator=generator)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_cpus_numbers_from_the_cpus_noise(name, kind):
    found = []
    for device in ("cpu", "cuda"):
        q, f, parameters = problem(kind, device)
        value, surrogate = estimate(name, q, f, GivenNoise(3))
        gradients = torch.autograd.grad(surrogate.sum(), parameters, allow_unused=True)
        found.append([value.cpu(), *(g.cpu() for g in gradients if g is not None)])
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(there, here, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_step_can_be_captured(name, kind):
    q, f, parameters = problem(kind, "cuda")

    def step():
        for p in parameters:
            p.grad = None
        estimate(name, q, f, None).surrogate.sum().backward()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    first = parameters[0].grad.clone()
    graph.replay()
    assert first.isfinite().all()
    assert not torch.equal(first, parameters[0].grad)  # other noise
