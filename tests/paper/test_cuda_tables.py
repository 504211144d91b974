"""Frequency tables on a CUDA device, and what metrics ask of decoders, by compiled kernels."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from igr import kernels
from igr.distributions import InvertibleGaussian
from igr.functional import harden
from igr.paper import assess
from igr.paper.ais import log_likelihood_ais
from igr.paper.ensemble import Ensemble
from igr.paper.evaluate import frequency_table
from igr.paper.specs import SPECS
from igr.recovery import recovered_log_probs_stick_breaking
from igr.transforms import Planar, StickBreaking

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

DRAWS = 20_000  # the same everywhere, since kernels are compiled for it
SHAPE = (2, 5, 4)  # members, images, variables
K = 10


def relaxation(kind: str) -> InvertibleGaussian:
    loc, scale = 1.5 * torch.randn(*SHAPE, K - 1, device="cuda"), 0.3 + torch.rand(*SHAPE, K - 1, device="cuda")
    loc[..., 0, :] -= 4  # nothing is taken of the last stick
    flow = [StickBreaking(leftover=kind == "sticks")]
    if kind == "planar":
        one = (SHAPE[0], 1, SHAPE[2])
        sizes = (*one, K - 1), (*one, K - 1), one
        flow = [Planar(*(torch.randn(size, device="cuda") for size in sizes)) for _ in range(2)]
    return InvertibleGaussian(loc, scale, 0.5, flow=flow)


def generator(seed: int) -> torch.Generator:
    return torch.Generator("cuda").manual_seed(seed)


def counts_of(table: Tensor, mix: float) -> Tensor:
    return ((table.double().exp() - mix / K) / (1 - mix) * DRAWS).round()


def expected(q: InvertibleGaussian, seed: int) -> Tensor:
    """Counts of h(y) by the maps themselves in float64, with the noise that the kernel has."""
    from igr.kernels import sampling

    key = torch.randint(2**63 - 1, (1,), device="cuda", generator=generator(seed))
    eps = sampling.noise(key, math.prod(SHAPE), DRAWS * (K - 1), gumbel=False)
    y = q.loc.double() + q.scale.double() * eps.double().reshape(*SHAPE, DRAWS, K - 1).movedim(-2, 0)
    for part in q.maps[:-1]:
        if isinstance(part, Planar):
            part = Planar(part.u.double(), part.w.double(), part.b.double())
        y = part(y)
    return harden(y).sum(0)


@pytest.mark.parametrize("kind", ["sticks", "literal", "planar"])
def test_counts_are_those_of_the_noise(kind: str):
    q = relaxation(kind)
    found = counts_of(frequency_table(q, DRAWS, 0.1, generator=generator(7)), 0.1)
    assert (found.sum(-1) == DRAWS).all()
    moved = (found - expected(q, 7)).abs().sum() / 2  # to another category, by rounding
    assert moved < 2e-5 * DRAWS * math.prod(SHAPE)
    assert (found[..., -1].sum() == 0) == (kind == "literal")


def test_draws_are_independent_of_each_other():
    q = relaxation("sticks")
    p = recovered_log_probs_stick_breaking(q.loc.double(), q.scale.double()).exp()
    found = counts_of(frequency_table(q, DRAWS, 0.1), 0.1)
    z = (found - DRAWS * p) / (DRAWS * p * (1 - p)).sqrt()
    often = DRAWS * p > 50
    assert often.sum() > 80
    assert z[often].abs().max() < 5
    assert 0.7 < z[often].square().mean() < 1.3


def test_tables_are_those_of_the_path_of_pytorch():
    q = relaxation("planar")
    found = counts_of(frequency_table(q, DRAWS, 0.1), 0.1)
    with kernels.disabled():
        other = counts_of(frequency_table(q, DRAWS, 0.1), 0.1)
    often = found + other > 50
    square = ((found - other).square() / (found + other))[often].sum().item()
    freedom = (often.sum() - math.prod(SHAPE)).item()
    assert 1e-5 < stats.chi2.sf(square, freedom) < 1 - 1e-5


def test_noise_is_that_of_the_generator():
    q = relaxation("sticks")
    a, b, c = (frequency_table(q, DRAWS, generator=generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_a_diverged_member_has_no_frequencies():
    whole = relaxation("planar")
    loc = whole.loc.clone()
    loc[1, 2, 3, 4] = math.nan
    table = frequency_table(InvertibleGaussian(loc, whole.scale, 0.5, flow=whole.maps[:-1], validate_args=False), DRAWS)
    lost = loc.isnan().any(-1)
    assert torch.equal(table.isnan(), lost.unsqueeze(-1).expand_as(table))


def decoders(id: str, num_images: int) -> tuple[Ensemble, Tensor]:
    """Two untrained members, and images."""
    cell = replace(SPECS[id], temperatures=(0.5,), seeds=(1, 2), batch_size=5)
    images = np.random.default_rng(0).integers(256 if "fmnist" in id else 2, size=(num_images, 784)).astype(np.uint8)
    made = Ensemble(cell, images, torch.device("cuda"), torch.float32)
    return made, made.pixels(torch.from_numpy(images).cuda()).expand(2, -1, -1)


@pytest.mark.parametrize("id", ["table1/mnist/linear/igr-i", "table1/fmnist/linear/igr-i"], ids=["binary", "grey"])
def test_annealing_asks_a_linear_decoder_by_a_kernel(id: str):
    from igr.paper.ais_kernels import conditional_of

    made, x = decoders(id, 5)
    conditional = conditional_of(made.vae, x)
    index = torch.randint(K, (3, 2, 5, 20), device="cuda")
    found = conditional(index, 7)
    exact = made.vae.subset([0, 1]).double()
    for k in range(K):
        index[..., 7] = k
        value = exact.log_px(x.double(), torch.nn.functional.one_hot(index, K).double())
        torch.testing.assert_close(found[..., k], value, rtol=1e-6, atol=1e-3)
    log_q = torch.zeros(2, 5, 20, K, device="cuda").log_softmax(-1)
    arguments = log_q, log_q[0, 0, 0], lambda z: made.vae.log_px(x, z), 4, 3
    ways = (conditional, None)
    fast, plain = (log_likelihood_ais(*arguments, generator=generator(3), conditional=way) for way in ways)
    assert (fast - plain).abs().median() < 0.01  # rounding may turn a chain of some image


@pytest.mark.parametrize("architecture", ["linear", "nonlinear"])
@pytest.mark.parametrize("dataset", ["mnist", "fmnist"], ids=["binary", "grey"])
def test_samples_are_decoded_by_kernels(dataset: str, architecture: str):
    S, B = 400, 30
    made, x = decoders(f"table1/{dataset}/{architecture}/igr-i", B)
    log_q = (2 * torch.randn(2, B, 20, K, device="cuda")).log_softmax(-1)
    fast = assess._scores(made.vae, x, log_q, S, generator(1))
    with kernels.disabled():
        plain = assess._scores(made.vae, x, log_q, S, generator(2))
    assert torch.equal(fast.kl, plain.kl)
    for name in ("log_px", "log_pz", "log_qz"):
        one, other = getattr(fast, name), getattr(plain, name)
        error = ((one.var(0) + other.var(0)) / S).sqrt()
        assert ((one.mean(0) - other.mean(0)).abs() <= 5 * error + 1e-6).all(), name
