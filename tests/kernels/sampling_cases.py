"""Samples by the kernels, in the interpreter, beside the float64 path of PyTorch with the same noise."""

import pytest
import torch

from igr._draws import NoiseSource

pytest.importorskip("triton")

from igr.kernels import sampling

INTERPRETED = [  # the marks of tests of these kernels
    pytest.mark.usefixtures("chosen"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here, see test_cuda_kernels.py"),
    # of numpy, where the interpreter meets the infinities that kernels reckon with
    pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero) encountered:RuntimeWarning"),
]


class Known(NoiseSource):
    """Noise drawn beforehand."""

    def __init__(self, eps):
        self.eps = eps

    def gaussian(self, shape, like):
        return self.eps.reshape(shape).to(like.dtype)

    def gumbel(self, like):
        return self.eps.reshape(like.shape).to(like.dtype)


def noise_of_next_call(rows, columns, gumbel):
    """What a call right now would draw, without drawing it."""
    state = torch.get_rng_state()
    eps = sampling.noise(torch.randint(2**63 - 1, (1,)), rows, columns, gumbel=gumbel)
    torch.set_rng_state(state)
    return Known(eps.double())


def parameters(rows, n, dtype=torch.float32):
    loc, scale = torch.randn(rows, n).to(dtype), (torch.rand(rows, n) + 0.5).to(dtype)
    return loc.requires_grad_(), scale.requires_grad_()


def double(*tensors):
    return [t.detach().double().requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t for t in tensors]


def close(actual, expected, rtol=2e-5, atol=2e-6):
    torch.testing.assert_close(actual.double(), expected.double(), rtol=rtol, atol=atol)


def check_sample(call, inputs, rows, columns, gumbel, **tolerance):
    """Value and gradients of ``call(*inputs, generator)`` by kernels, beside float64."""
    source = noise_of_next_call(rows, columns, gumbel)
    z = call(*inputs, None)
    wide = double(*inputs)
    expected = call(*wide, source)
    close(z, expected, **tolerance)
    weights = torch.randn(z.shape).to(z.dtype)
    needed = [(a, b) for a, b in zip(inputs, wide, strict=True) if a.requires_grad]
    gradients = torch.autograd.grad(z, [a for a, _ in needed], weights)
    references = torch.autograd.grad(expected, [b for _, b in needed], weights.double())
    for gradient, reference in zip(gradients, references, strict=True):
        size = reference.abs().max().item()
        close(gradient, reference, **{"atol": 2e-5 * max(size, 1), **tolerance})
