"""Counts of categories by the kernel, in the interpreter, beside those of h(y) in float64 with the same noise."""

import math

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import ExpTransform, MultivariateNormal, Normal

import igr.kernels
from igr._draws import NoiseSource
from igr.distributions import GumbelSoftmax, InvertibleGaussian, InvertibleReparameterization
from igr.functional import harden
from igr.paper import evaluate
from igr.recovery import recovered_log_probs, recovered_log_probs_stick_breaking
from igr.transforms import Planar, SoftmaxPlusPlus, StickBreaking, VertexInterpolation

pytest.importorskip("triton")

from igr.kernels import sampling
from igr.paper import table_kernels
from igr.paper.table_kernels import count_of_key

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here, see test_cuda_tables.py"),
    # of numpy, where the interpreter meets the infinities that kernels reckon with
    pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero) encountered:RuntimeWarning"),
]
KINDS = ("plain", "sticks", "literal", "planar")
KEY = 1234567890123456789


def maps_of(kind: str, n: int, *shapes: tuple[int, ...]) -> list:
    """The maps; planar ones with parameters of these shapes, two of a single set by default."""
    if kind == "planar":
        return [
            Planar(torch.randn(*shape, n), torch.randn(*shape, n), torch.randn(shape)) for shape in shapes or ((), ())
        ]
    return [] if kind == "plain" else [StickBreaking(leftover=kind == "sticks")]


def counted(mu: Tensor, sigma: Tensor, maps: list, num_draws: int, key: int = KEY) -> Tensor:
    return count_of_key(mu, sigma, maps, num_draws, torch.tensor([key]))


def expected(mu: Tensor, sigma: Tensor, maps: list, num_draws: int, key: int = KEY) -> Tensor:
    """Counts of h(y) by the maps themselves in float64, with the noise that the kernel has."""
    batch, n = mu.shape[:-1], mu.shape[-1]
    eps = sampling.noise(torch.tensor([key]), batch.numel(), num_draws * n, gumbel=False)
    y = mu.double() + sigma.double() * eps.double().reshape(*batch, num_draws, n).movedim(-2, 0)
    for part in maps:
        if isinstance(part, Planar):
            part = Planar(part.u.double(), part.w.double(), torch.as_tensor(part.b).double())
        y = part(y)
    return harden(y).sum(0).int()


@pytest.mark.parametrize("K", [2, 3, 10])
@pytest.mark.parametrize("kind", KINDS)
def test_counts_are_those_of_the_noise(kind: str, K: int):
    rows, draws = 200, 10
    favourite = torch.nn.functional.one_hot(torch.arange(rows) % K, K)[:, :-1]
    mu, sigma = 1.5 * torch.randn(rows, K - 1) - 3 + 6 * favourite, torch.randn(rows, K - 1).exp()
    maps = maps_of(kind, K - 1)
    found = counted(mu, sigma, maps, draws)
    assert (found.shape, found.dtype) == ((rows, K), torch.int32)
    assert (found.sum(-1) == draws).all()
    assert torch.equal(found, expected(mu, sigma, maps, draws))
    seen = found.sum(0) > 0
    assert seen[:-1].all()
    assert seen[-1] == (kind != "literal")


@pytest.mark.parametrize(("draws", "K"), [(1, 4), (3, 4), (28, 4), (5, 21)])
def test_any_number_of_draws_is_counted(draws: int, K: int):
    mu, sigma = torch.randn(30, K - 1), torch.ones(30, K - 1)
    assert torch.equal(counted(mu, sigma, [], draws), expected(mu, sigma, [], draws))


@pytest.mark.parametrize("num_draws", [1, 4, 252, 256, 1000, 2000, 20_000, 4 * 251])
@pytest.mark.parametrize("K", [2, 8, 9, 10, 16, 21])
def test_fields_hold_all_draws_until_they_are_emptied(num_draws: int, K: int):
    steps, times, bits = table_kernels._plan(num_draws, K)
    assert 4 * steps < 2**bits
    assert K * bits <= 64
    assert steps * times == math.ceil(num_draws / 4)


@pytest.mark.parametrize(
    "shapes",
    [((),), ((5,), ()), ((2, 1, 5), (2, 1, 5)), ((2, 1, 1), (5,)), ((2, 3, 1), ()), ((1, 3, 1), ()), ((2, 3, 5),)],
    ids=str,
)
def test_planar_maps_belong_to_their_rows(shapes):
    mu, sigma = torch.randn(2, 3, 5, 3), torch.ones(2, 3, 5, 3)
    maps = maps_of("planar", 3, *shapes)
    assert torch.equal(counted(mu, sigma, maps, 16), expected(mu, sigma, maps, 16))


def test_planar_maps_without_shift():
    mu, sigma = torch.randn(50, 2), torch.ones(50, 2)
    maps = [Planar(torch.randn(2), torch.randn(2)), Planar(-3 * torch.ones(2), torch.randn(2), 0.5)]
    assert torch.equal(counted(mu, sigma, maps, 8), expected(mu, sigma, maps, 8))


@pytest.mark.parametrize("kind", ["sticks", "literal"])
def test_sticks_of_any_length(kind: str):
    """Breaks at nearly nothing or nearly all of what is left, one after the other: products run out of float32."""
    scale = torch.tensor([3.0, 10.0, 30.0, 60.0])[:, None, None]
    mu = (scale * torch.randn(4, 200, 20)).reshape(-1, 20)
    mu = torch.cat([mu, scale.expand(4, 10, 20).reshape(-1, 20), -scale.expand(4, 10, 20).reshape(-1, 20)])
    sigma, maps = torch.ones_like(mu), maps_of(kind, 20)
    assert torch.equal(counted(mu, sigma, maps, 4), expected(mu, sigma, maps, 4))


def test_the_first_of_equals_wins():
    nothing = torch.zeros(1, 3)
    for kind, at, category in (("plain", 0.0, 0), ("plain", -1.0, 3), ("sticks", -200.0, 3), ("literal", -200.0, 0)):
        assert counted(nothing + at, nothing, maps_of(kind, 3), 4)[0].argmax() == category
    nearly = torch.tensor([[-1e-5, 30.0, 0.0]])  # the first stick is shorter than the second by 5e-6
    assert counted(nearly, nothing, [StickBreaking()], 4).tolist() == [[0, 4, 0, 0]]
    halves = torch.tensor([[0.0, 200.0, 0.0]])  # w = (1/2, 1/2, 0, 0)
    assert counted(halves, nothing, [StickBreaking()], 4).tolist() == [[4, 0, 0, 0]]


@pytest.mark.parametrize("kind", ["plain", "sticks", "literal"])
def test_frequencies_are_those_of_the_recovered_distribution(kind: str):
    mu, sigma = torch.randn(4, 1, 3), 0.5 + torch.rand(4, 1, 3)
    exact = recovered_log_probs(mu.double(), sigma.double())
    if kind != "plain":
        exact = recovered_log_probs_stick_breaking(mu.double(), sigma.double(), kind == "sticks")
    shape = (4, 1000, 3)
    found = counted(mu.expand(shape), sigma.expand(shape), maps_of(kind, 3), 40).sum(1)
    for counts, p in zip(found.cpu().numpy(), exact[:, 0].exp().cpu().numpy(), strict=True):
        possible = p > 1e-4
        assert counts[~possible].sum() == 0 or kind != "literal"
        assert stats.chisquare(counts[possible], counts[possible].sum() * p[possible] / p[possible].sum()).pvalue > 1e-5


def test_rows_and_keys_have_noise_of_their_own():
    mu, sigma = torch.zeros(300, 3), torch.ones(300, 3)
    found = counted(mu, sigma, [], 8)
    assert len(found.unique(dim=0)) > 20
    assert not torch.equal(found, counted(mu, sigma, [], 8, KEY + 1))


def test_launches_of_a_part_of_the_rows_each(monkeypatch):
    mu, sigma, maps = torch.randn(150, 3), torch.ones(150, 3), maps_of("planar", 3, (3, 1), (3, 1))
    mu, sigma = mu.reshape(3, 50, 3), sigma.reshape(3, 50, 3)
    whole = counted(mu, sigma, maps, 4)
    monkeypatch.setattr(table_kernels, "BLOCK", 16)
    monkeypatch.setattr(table_kernels, "AT_ONCE", 4 * 64)
    assert torch.equal(counted(mu, sigma, maps, 4), whole)


@pytest.fixture
def calls(monkeypatch) -> list[int]:
    """The kernel is chosen on the CPU as it is on CUDA devices; how many draws it made."""
    found: list[int] = []
    kernel = table_kernels.count

    def noted(mu, sigma, maps, num_draws, *, generator=None):
        found.append(num_draws)
        return kernel(mu, sigma, maps, num_draws, generator=generator)

    monkeypatch.setattr(table_kernels, "count", noted)
    monkeypatch.setattr(igr.kernels, "usable", lambda *tensors: all(t.dtype != torch.float64 for t in tensors))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_tables_are_made_of_the_counts(kind: str, calls):
    loc, maps = torch.randn(2, 3, 4, 3), maps_of(kind, 3, (2, 1, 4), (2, 1, 4))
    loc[0, 1, 2, 1], loc[0, 2, 2, 0] = math.nan, math.inf
    scale = torch.ones_like(loc)
    scale[1, 0, 0, 2] = math.inf
    q = InvertibleGaussian(loc, scale, 0.5, flow=maps or None, validate_args=False)
    generator = torch.Generator()
    table = evaluate.frequency_table(q, 12, 0.25, generator=generator.manual_seed(3))
    assert calls == [12]
    assert (table.dtype, table.shape) == (torch.float32, (2, 3, 4, 4))
    lost = ~(loc.isfinite() & scale.isfinite()).all(-1)
    assert torch.equal(table.isnan(), lost.unsqueeze(-1).expand_as(table))
    seed = torch.randint(2**63 - 1, (1,), generator=generator.manual_seed(3)).item()
    counts = expected(loc, scale, maps, 12, seed)
    torch.testing.assert_close(table[~lost].exp(), 0.75 * counts[~lost] / 12 + 0.0625, rtol=1e-6, atol=0)
    assert torch.equal(table[~lost], evaluate.frequency_table(q, 12, 0.25, generator=generator.manual_seed(3))[~lost])
    assert not torch.equal(table[~lost], evaluate.frequency_table(q, 12, 0.25, generator=generator)[~lost])


def test_the_nearest_vertex_of_sticks_is_the_longest_one(calls):
    loc, tau = torch.randn(2, 3, 4, 3), torch.rand(2, 1, 1, 1)
    sticks = InvertibleGaussian(loc, 0.7, tau, flow=StickBreaking())
    vertex = InvertibleReparameterization(Normal(loc, 0.7), VertexInterpolation(tau))
    one, other = (evaluate.frequency_table(q, 12, generator=torch.Generator().manual_seed(3)) for q in (sticks, vertex))
    assert calls == [12, 12]
    assert torch.equal(one, other)


def test_a_member_whose_flow_diverged_has_no_frequencies(calls):
    u, w, b = torch.randn(2, 1, 4, 3), torch.randn(2, 1, 4, 3), torch.randn(2, 1, 4)
    w[0, 0, 1, 0], b[1, 0, 2] = math.nan, math.inf
    flow = [Planar(torch.randn(3), torch.randn(3)), Planar(u, w, b, validate_args=False)]
    table = evaluate.frequency_table(InvertibleGaussian(torch.randn(2, 5, 4, 3), 1.0, 0.5, flow=flow), 8)
    assert calls
    lost = torch.zeros(2, 5, 4, 4, dtype=torch.bool)
    lost[0, :, 1] = lost[1, :, 2] = True
    assert torch.equal(table.isnan(), lost)


class Zeros(NoiseSource):
    def gaussian(self, shape, like):
        return torch.zeros(shape, dtype=like.dtype, device=like.device)


class Other(Planar):
    """May be anything."""


def test_all_else_goes_the_way_of_pytorch(calls):
    loc, flow = torch.randn(4, 3), Planar(torch.randn(3), torch.randn(3))
    others = [
        (InvertibleGaussian(loc.double(), 1.0, 0.5), None),
        (InvertibleGaussian(loc, 1.0, 0.5), Zeros()),
        (InvertibleGaussian(loc, 1.0, 0.5, flow=Other(flow.u, flow.w)), None),
        (InvertibleGaussian(loc, 1.0, 0.5, flow=[flow, StickBreaking()]), None),
        (InvertibleGaussian(loc, 1.0, 0.5, flow=Planar(flow.u.double(), flow.w.double())), None),
        (InvertibleGaussian(torch.randn(4, 21), 1.0, 0.5), None),
        (GumbelSoftmax(0.5, loc), None),
        (InvertibleReparameterization(MultivariateNormal(loc, torch.eye(3)), SoftmaxPlusPlus(0.5)), None),
        (InvertibleReparameterization(Normal(loc, 1.0), [ExpTransform(), SoftmaxPlusPlus(0.5)]), None),
    ]
    for q, generator in others:
        assert evaluate.frequency_table(q, 10, generator=generator).isfinite().all()
    assert not calls
    evaluate.frequency_table(InvertibleGaussian(loc, 1.0, 0.5, flow=flow), 10)
    evaluate.frequency_table(InvertibleGaussian(loc.bfloat16(), 1.0, 0.5), 10)  # whose base is in float32
    assert len(calls) == 2
