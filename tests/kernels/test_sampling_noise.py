"""The noise of the kernels: by its definition, in law, and by seeds."""

import math

import numpy as np
import pytest
import torch
from philox import MASK, noise, philox
from scipy import stats

pytest.importorskip("triton")

import triton
import triton.language as tl
from sampling_cases import INTERPRETED, close

from igr import functional
from igr.kernels import _random, sampling

pytestmark = INTERPRETED


def test_philox_by_published_vectors():
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox([MASK] * 4, [MASK] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@pytest.mark.parametrize("gumbel", [False, True])
def test_noise_by_its_definition(gumbel):
    seed, stream = 0x0123456789ABCDEF, 5
    eps = sampling.noise(torch.tensor([seed]), 3, 11, gumbel=gumbel, stream=stream)
    expected = [[noise(seed, row, column, stream, gumbel) for column in range(11)] for row in range(3)]
    close(eps, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=2e-6)


@triton.jit
def noise_from(eps, seed, first, KIND: tl.constexpr):
    """Eight columns of four rows, the first of which is in a tensor."""
    row = tl.arange(0, 4)[:, None]
    value = _random.noise(tl.load(seed), tl.load(first), row, 0, 5, KIND, 8)
    tl.store(eps + row * 8 + tl.arange(0, 8)[None, :], value)


@pytest.mark.parametrize("gumbel", [False, True])
@pytest.mark.parametrize("first", [2**32 - 4, 2**32, 5 * 2**32 + 8])
def test_rows_beyond_32_bits_have_noise_of_their_own(first, gumbel):
    eps, seed = torch.empty(4, 8), 0x0123456789ABCDEF
    noise_from[(1,)](eps, torch.tensor([seed]), torch.tensor([first]), int(gumbel))
    expected = [[noise(seed, first + row, column, 5, gumbel) for column in range(8)] for row in range(4)]
    close(eps, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=2e-6)


def test_noise_does_not_depend_on_the_shape():
    seed = torch.tensor([2**62 + 12345])
    whole = sampling.noise(seed, 5, 3000, gumbel=False)
    for rows, columns in ((5, 9), (2, 33), (3, 1025), (1, 1)):
        assert torch.equal(sampling.noise(seed, rows, columns, gumbel=False), whole[:rows, :columns])


@pytest.mark.parametrize("gumbel", [False, True])
def test_noise_has_its_distribution(gumbel):
    eps = sampling.noise(torch.tensor([99]), 100, 1000, gumbel=gumbel).double().numpy()
    law = stats.gumbel_r if gumbel else stats.norm
    for part in (eps, *(eps[:, lane::4] for lane in range(4))):
        assert stats.kstest(part.ravel(), law.cdf).pvalue > 1e-5
    mean, variance = law.mean(), law.var()
    u = stats.norm.ppf(np.clip(law.cdf(eps), 1e-12, 1 - 1e-12)).ravel()  # as normals, whose moments have known errors
    n = u.size
    for power, expected, deviation in ((1, 0, 1), (2, 1, math.sqrt(2)), (3, 0, math.sqrt(15)), (4, 3, math.sqrt(96))):
        assert abs((u**power).mean() - expected) < 5 * deviation / math.sqrt(n)
    assert abs(eps.mean() - mean) < 5 * math.sqrt(variance / n)


@pytest.mark.parametrize("gumbel", [False, True])
def test_noise_is_not_correlated(gumbel):
    def draw(seed, stream=0):
        return sampling.noise(torch.tensor([seed]), 64, 500, gumbel=gumbel, stream=stream).double()

    first = draw(1)
    pairs = {
        "columns": (first[:, :-1], first[:, 1:]),
        "pairs of lanes": (first[:, ::2], first[:, 1::2]),
        "groups": (first[:, :-4], first[:, 4:]),
        "rows": (first[:-1], first[1:]),
        "calls": (first, draw(2)),
        "halves of the key": (first, draw(1 << 32)),
        "devices": (first, draw(1, stream=1)),
    }
    for name, (a, b) in pairs.items():
        for f in (lambda x: x, lambda x: x.square()):  # Box and Muller's pairs share a radius
            x, y = (f(t).flatten() - f(t).mean() for t in (a, b))
            z = (x @ y / (x.norm() * y.norm())).item() * math.sqrt(x.numel())
            assert abs(z) < 5, name


@pytest.mark.parametrize("sample", [functional.gaussian_softmax, functional.gumbel_softmax])
def test_seeds_and_generators_reproduce(sample):
    arguments = (torch.randn(5, 4), *((1.0,) if sample is functional.gaussian_softmax else ()))
    draws = []
    for _ in range(2):
        torch.manual_seed(3)
        draws.append((sample(*arguments), sample(*arguments)))
    assert torch.equal(draws[0][0], draws[1][0])
    assert torch.equal(draws[0][1], draws[1][1])
    assert not torch.equal(draws[0][0], draws[0][1])
    a, b = (sample(*arguments, generator=torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(a, b)
