"""What sweeps of annealing ask of a linear decoder, by the kernel in the interpreter, beside the decoder itself."""

from dataclasses import replace

import pytest
import torch

import igr.kernels
from igr.paper.ais import log_likelihood_ais
from igr.paper.ensemble import Ensemble
from igr.paper.specs import SPECS

pytest.importorskip("triton")

from igr.paper.ais_kernels import conditional_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here, see test_cuda_tables.py")

N, K, D = 3, 4, 9
CELLS = {
    "binary": ("table1/mnist/linear/igr-i", {}),
    "grey": ("table1/fmnist/linear/igr-i", {}),
    "published": ("table1/fmnist/linear/igr-sb", {"protocol": "published"}),
}


def by_kernel(vae, x, usable: bool = True):
    """What is chosen on a CUDA device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(igr.kernels, "usable", lambda *tensors: usable)
        return conditional_of(vae, x)


def members(id: str, dtype: torch.dtype = torch.float32, **changes):
    """The model of two members with weights of some size, and five images."""
    cell = replace(SPECS[id], temperatures=(0.5,), seeds=(1, 2), batch_size=5, **changes)
    images = torch.randint(256, (5, D), dtype=torch.uint8) if "fmnist" in id else torch.randint(2, (5, D)).byte()
    made = Ensemble(cell, images.numpy(), torch.device("cpu"), dtype, num_variables=N, num_categories=K)
    with torch.no_grad():
        for p in made.vae.parameters():
            p.normal_(std=0.7)
    return made.vae, made.pixels(images).to(dtype).expand(2, 5, D)


def by_decoding(vae, x):
    def fits(index, n):
        rivals = torch.nn.functional.one_hot(index, K).repeat(K, 1, 1, 1, 1, 1)
        rivals[..., n, :] = torch.eye(K, dtype=torch.int64).reshape(K, 1, 1, 1, K)
        return torch.stack([vae.log_px(x, z.to(x.dtype)) for z in rivals], -1)

    return fits


@pytest.mark.parametrize("case", CELLS)
def test_every_value_of_a_variable_is_decoded(case: str):
    id, changes = CELLS[case]
    vae, x = members(id, **changes)
    index = torch.randint(K, (2, 2, 5, N))
    conditional = by_kernel(vae, x)
    assert conditional is not None
    exact = by_decoding(vae.double(), x.double())
    for n in range(N):
        found = conditional(index, n)
        assert (found.dtype, found.shape) == (torch.float64, (2, 2, 5, K))
        torch.testing.assert_close(found, exact(index, n), rtol=1e-5, atol=1e-4)


def test_annealing_is_the_same_with_it():
    vae, x = members(CELLS["binary"][0])
    log_q = torch.randn(2, 5, N, K).log_softmax(-1)
    arguments = log_q, torch.zeros(K).log_softmax(-1), lambda z: vae.log_px(x, z), 2, 4
    found, plain = (
        log_likelihood_ais(*arguments, generator=torch.Generator().manual_seed(1), conditional=conditional)
        for conditional in (by_kernel(vae, x), None)
    )
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-4)


def test_other_decoders_are_left_to_pytorch():
    assert by_kernel(*members("table1/mnist/nonlinear/igr-i")) is None
    assert by_kernel(*members("table1/mnist/linear/igr-i", torch.float64)) is None
    assert by_kernel(*members("table1/mnist/linear/igr-i"), usable=False) is None
