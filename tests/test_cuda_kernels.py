"""The fused kernels as compiled for a CUDA device: shapes that are too large for the interpreter, and graphs."""

import math

import philox
import pytest
import torch
from scipy import stats

from igr import functional, kernels
from igr._draws import NoiseSource
from igr.distributions import GumbelSoftmax, InvertibleGaussian

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

# Compilation takes most of the time: each shape has one dtype and one of soft and hard with each kind of noise, all
# pairs of these two are among them, and tests below use the same kernels again.
SHAPES = ((1000, 2), (4097, 10), (300, 129), (16, 8192), (48, 20_000), (2, 100_000))
WAYS = [(hard, dtype) for dtype in (torch.bfloat16, torch.float32, torch.float16) for hard in (False, True)]
GAUSSIAN_WAYS, GUMBEL_WAYS = [WAYS[i] for i in (0, 3, 4, 1, 2, 5)], [WAYS[i] for i in (3, 4, 1, 2, 5, 0)]


def cases(ways):
    return [(*shape, *way) for shape, way in zip(SHAPES, ways, strict=True)]


class Known(NoiseSource):
    """Noise drawn beforehand."""

    def __init__(self, eps):
        self.eps = eps

    def gaussian(self, shape, like):
        return self.eps.reshape(shape).to(like)

    def gumbel(self, like):
        return self.eps.reshape(like.shape).to(like)


def noise_of_next_call(rows, columns, gumbel):
    from igr.kernels import sampling

    state = torch.cuda.get_rng_state()
    eps = sampling.noise(torch.randint(2**63 - 1, (1,), device="cuda"), rows, columns, gumbel=gumbel)
    torch.cuda.set_rng_state(state)
    return Known(eps.double().cpu())


def parameters(rows, n, dtype=torch.float32):
    loc, scale = torch.randn(rows, n, device="cuda"), torch.rand(rows, n, device="cuda") + 0.5
    return loc.to(dtype).requires_grad_(), scale.to(dtype).requires_grad_()


def check(call, inputs, source, weights, tolerance):
    """Values and gradients by kernels, beside float64 on the CPU with the same noise."""
    terms = call(*inputs, None)
    wide = [x.detach().double().cpu().requires_grad_() for x in inputs]
    expected = call(*wide, source)
    for term, reference, w in zip(terms, expected, weights, strict=True):
        size = max(1.0, reference.abs().max().item())
        torch.testing.assert_close(term.double().cpu(), reference, rtol=20 * tolerance, atol=20 * tolerance * size)
        # one term at a time, relative to its own size: none can be lost beside another
        options = {"retain_graph": True, "materialize_grads": True}
        gradients = torch.autograd.grad(term, inputs, w.to(term), **options)
        exact = torch.autograd.grad(reference, wide, w.to(reference), **options)
        for a, b in zip(gradients, exact, strict=True):
            assert (a.double().cpu() - b).norm() <= 8 * tolerance * b.norm()
            atol = 20 * tolerance * b.abs().max().item()
            torch.testing.assert_close(a.double().cpu(), b, rtol=20 * tolerance, atol=atol)


@pytest.mark.parametrize(("rows", "K", "hard", "dtype"), cases(GAUSSIAN_WAYS))
def test_gaussian(rows, K, hard, dtype):
    inputs = parameters(rows, K - 1, dtype)
    weights = torch.randn(rows, K), torch.randn(rows) / K, torch.randn(rows)
    source = noise_of_next_call(rows, K - 1, False)
    check(
        lambda m, s, g: functional.gaussian_softmax_terms(m, s, 0.7, hard, delta=0.4, prior=(0.2, 1.3), generator=g),
        inputs, source, weights, torch.finfo(dtype).eps if dtype != torch.float32 else 2e-6,
    )  # fmt: skip


@pytest.mark.parametrize(("rows", "K", "hard", "dtype"), cases(GUMBEL_WAYS))
def test_gumbel(rows, K, hard, dtype):
    logits, _ = parameters(rows, K, dtype)
    weights = torch.randn(rows, K), torch.randn(rows) / K, torch.randn(rows)
    source = noise_of_next_call(rows, K, True)
    check(
        lambda a, g: functional.gumbel_softmax_terms(a, 0.7, hard, generator=g),
        (logits,), source, weights, torch.finfo(dtype).eps if dtype != torch.float32 else 2e-6,
    )  # fmt: skip


@pytest.mark.parametrize(("rows", "K"), [(1000, 10), (5, 20_000)])
def test_what_gradients_have_in_common_is_not_left_over(rows, K):
    """Points of 16 bits do not sum to one."""
    inputs = parameters(rows, K - 1, torch.bfloat16)
    weights = (10 + torch.randn(rows, K)).bfloat16()
    source = noise_of_next_call(rows, K - 1, False)
    wide = [x.detach().double().cpu().requires_grad_() for x in inputs]
    found = torch.autograd.grad(functional.gaussian_softmax(*inputs, 0.1), inputs, weights.cuda())
    exact = torch.autograd.grad(functional.gaussian_softmax(*wide, 0.1, generator=source), wide, weights.double())
    for a, b in zip(found, exact, strict=True):
        assert (a.double().cpu() - b).norm() < 0.01 * b.norm()


@pytest.mark.parametrize(("rows", "K", "gumbel"), [(300, 7, True), (5, 20_000, False)])
def test_masks_and_rows_of_scalars(rows, K, gumbel):
    inputs = parameters(rows, K)[:1] if gumbel else parameters(rows, K - 1)
    tau, delta = torch.rand(rows, 1) + 0.3, torch.rand(rows, 1) + 0.3
    mask = torch.rand(rows, K) < 0.7
    mask[:, 0] = True
    mask[1, 1:9000] = False  # in long rows a part without any allowed category

    def call(*x):
        t, d, allowed = (y.to(x[0].device) for y in (tau, delta, mask))
        if gumbel:
            return (functional.gumbel_softmax(x[0], t, mask=allowed, generator=x[-1]),)
        return (functional.gaussian_softmax(*x[:2], t, delta=d, mask=allowed, generator=x[-1]),)

    check(call, inputs, noise_of_next_call(rows, inputs[0].shape[1], gumbel), (torch.randn(rows, K),), 2e-6)
    assert (call(*inputs, None)[0][~mask.cuda()] == 0).all()


def test_programs_of_a_row_meet():
    """Those that wait for each other find what two launches find, and always the same."""
    from igr.kernels import sampling

    inputs = parameters(608, 19_999)
    assert sampling._all_run(5, inputs[0]), "the device is too small for this test"

    def run():
        torch.manual_seed(2)
        terms = functional.gaussian_softmax_terms(*inputs, 0.5, delta=0.4, prior=(0.2, 1.3))
        total = terms.z.square().sum() + terms.log_prob.sum() + terms.kl.sum()
        return *terms, *torch.autograd.grad(total, inputs)

    found = [run() for _ in range(5)]
    kernels.set_waiting(False)
    try:
        assert not sampling._all_run(5, inputs[0])
        expected = run()
    finally:
        kernels.set_waiting(True)
    for values in found:
        assert all(torch.equal(a, b) for a, b in zip(values, found[0], strict=True))
    for a, b in zip(found[0], expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6 * b.abs().max().item())


def test_kernels_are_used(monkeypatch):
    from igr.kernels import fused

    called = []

    def record(loc, scale, batch, *arguments, **options):
        called.append(1)
        z = loc.new_ones(*batch, loc.shape[-1] + (scale is not None))
        return fused.Fused(z, z[..., 0], z[..., 0])

    monkeypatch.setattr(fused, "sample", record)
    loc = torch.zeros(5, 4, device="cuda")
    functional.gaussian_softmax(loc, 1.0)
    functional.gumbel_softmax(loc)
    functional.gaussian_softmax_terms(loc, 1.0)
    functional.gumbel_softmax_terms(loc)
    InvertibleGaussian(loc, 1.0, 0.5).rsample((2,))
    InvertibleGaussian(loc, 1.0, 0.5).hard_rsample()
    GumbelSoftmax(0.5, loc).rsample_and_log_prob()
    assert len(called) == 7
    with kernels.disabled():
        functional.gaussian_softmax(loc, 1.0)
    functional.gaussian_softmax(loc.double(), 1.0)
    functional.gaussian_softmax(loc, 1.0, torch.tensor(0.5, device="cuda", requires_grad=True))
    torch.func.vmap(lambda m: functional.gaussian_softmax(m, 1.0), randomness="different")(loc)
    assert len(called) == 7


@pytest.mark.parametrize("gumbel", [False, True])
def test_noise(gumbel):
    from igr.kernels import sampling

    law = stats.gumbel_r if gumbel else stats.norm
    draws = [
        sampling.noise(torch.tensor([seed], device="cuda"), 2000, 1000, gumbel=gumbel, stream=stream).double().cpu()
        for seed, stream in ((1, 0), (2, 0), (1, 1))
    ]
    eps, call, device = draws
    assert all(x.isfinite().all() for x in draws)
    assert stats.kstest(eps.flatten()[:500_000].numpy(), law.cdf).pvalue > 1e-5
    n = eps.numel()
    assert abs(eps.mean().item() - law.mean()) < 5 * math.sqrt(law.var() / n)
    for a, b in (
        (eps, call), (eps, device), (eps[1:], eps[:-1]), (eps[:, 1:], eps[:, :-1]), (eps[:, 4:], eps[:, :-4]),
        (eps[:, ::2], eps[:, 1::2]),
    ):  # fmt: skip
        for f in (lambda x: x, lambda x: x.square()):
            x, y = (f(t).flatten() - f(t).mean() for t in (a, b))
            assert abs((x @ y / (x.norm() * y.norm())).item()) * math.sqrt(x.numel()) < 5


@pytest.mark.parametrize("gumbel", [False, True])
def test_noise_by_its_definition(gumbel):
    from igr.kernels import sampling

    seed, stream = 0x0123456789ABCDEF, 5
    eps = sampling.noise(torch.tensor([seed], device="cuda"), 3, 11, gumbel=gumbel, stream=stream)
    expected = [[philox.noise(seed, row, column, stream, gumbel) for column in range(11)] for row in range(3)]
    torch.testing.assert_close(eps.double().cpu(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-5)


def test_tails_of_noise():
    """What words near both ends of their range become is finite, and of the right size."""
    from igr.kernels import sampling

    gumbel = sampling.noise(torch.tensor([3], device="cuda"), 20_000, 5000, gumbel=True)
    assert gumbel.max().item() == pytest.approx(math.log(gumbel.numel()), abs=6)
    assert gumbel.min().item() == pytest.approx(-math.log(math.log(gumbel.numel())), abs=0.3)
    normal = sampling.noise(torch.tensor([3], device="cuda"), 20_000, 5000, gumbel=False)
    expected = stats.norm.isf(1 / normal.numel())
    assert normal.max().item() == pytest.approx(expected, abs=0.6)
    assert normal.min().item() == pytest.approx(-expected, abs=0.6)


@pytest.mark.parametrize("sample", [lambda x, **k: functional.gaussian_softmax(x, 1.0, **k), functional.gumbel_softmax])
def test_seeds_and_generators_reproduce(sample):
    x, draws = torch.randn(50, 9, device="cuda"), []
    for _ in range(2):
        torch.manual_seed(3)
        draws.append((sample(x), sample(x)))
    assert torch.equal(draws[0][0], draws[1][0])
    assert torch.equal(draws[0][1], draws[1][1])
    assert not torch.equal(draws[0][0], draws[0][1])
    a, b = (sample(x, generator=torch.Generator("cuda").manual_seed(5)) for _ in range(2))
    assert torch.equal(a, b)


@pytest.mark.parametrize("gumbel", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_ways_to_sample_agree_on_one_noise(dtype, gumbel):
    loc = torch.randn(50, 9, device="cuda", dtype=dtype)
    trained = torch.tensor(0.7, device="cuda", requires_grad=True)  # of which the kernel of the whole has no gradient
    q = GumbelSoftmax(0.7, loc) if gumbel else InvertibleGaussian(loc, 1.0, 0.7)

    def function(tau):
        return functional.gumbel_softmax(loc, tau) if gumbel else functional.gaussian_softmax(loc, 1.0, tau)

    draws = []
    for way in (
        q.rsample, q.sample, lambda: q.log_rsample().exp(), lambda: q.rsample_and_log_prob()[0],
        lambda: q.log_rsample_and_log_prob()[0].exp(), lambda: function(0.7), lambda: function(trained),
    ):  # fmt: skip
        torch.manual_seed(3)
        draws.append(way().detach().float())
    tolerance = 1e-4 if dtype == torch.float32 else torch.finfo(dtype).eps
    for z in draws[1:]:
        torch.testing.assert_close(z, draws[0], rtol=tolerance, atol=tolerance / 10)


@pytest.mark.parametrize("gumbel", [False, True])
def test_graphs_draw_anew_at_every_replay(gumbel):
    """In long rows, whose programs count each other, and in short ones."""
    inputs = parameters(50, 9)[:1] if gumbel else parameters(48, 19_999)

    def step():
        if gumbel:
            z = functional.gumbel_softmax(*inputs, 0.5)
            return z, torch.autograd.grad(z[:, 0].sum(), inputs)
        z, log_q, kl = functional.gaussian_softmax_terms(*inputs, 0.5, prior=(0.0, 1.0))
        return z, torch.autograd.grad(z[:, 0].sum() + log_q.sum() + kl.sum(), inputs)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z, gradients = step()
    draws = []
    for _ in range(2):
        graph.replay()
        draws.append(z.clone())
    torch.cuda.synchronize()
    assert not torch.equal(*draws)
    assert all((z.sum(-1) - 1).abs().max() < 1e-5 for z in draws)
    assert all(g.isfinite().all() for g in gradients)


@pytest.mark.filterwarnings("ignore")
def test_compiles_whole():
    hard = True

    def run(loc, scale):
        z, log_q, kl = functional.gaussian_softmax_terms(loc, scale, 0.5, hard, prior=(0.0, 1.0))
        return z.square().sum() + log_q.sum() + kl.sum() + functional.gumbel_softmax(loc, 0.5, hard)[:, 0].sum()

    loc, scale = parameters(8, 9)
    torch._dynamo.reset()
    value = torch.compile(run, fullgraph=True)(loc, scale)
    for g in torch.autograd.grad(value, (loc, scale)):
        assert g.isfinite().all()
        assert g.abs().max() > 0


@pytest.mark.filterwarnings("ignore")
def test_operators_keep_their_word():
    from igr.kernels import ops

    loc, scale = parameters(3, 4)
    seed = torch.tensor([5], device="cuda")
    prior = torch.zeros(3, 4, device="cuda"), torch.ones(3, 4, device="cuda")
    torch.library.opcheck(ops.sample, (loc, scale, seed, 0.5, 1.0, *(None,) * 3, *prior, 3, True, True, True, True))
    torch.library.opcheck(ops.sample, (loc, None, seed, 0.5, 1.0, *(None,) * 5, 3, False, True, True, True))


def test_second_derivatives():
    loc, scale = parameters(20, 6)
    source = noise_of_next_call(20, 6, False)
    results = []
    for inputs, generator in (
        ((loc, scale), None),
        ([x.detach().double().cpu().requires_grad_() for x in (loc, scale)], source),
    ):
        z, log_q, kl = functional.gaussian_softmax_terms(*inputs, 0.6, prior=(0.3, 1.2), generator=generator)
        first = torch.autograd.grad(z[:, :3].square().sum() + log_q.sum() + kl.sum(), inputs, create_graph=True)
        results.append(torch.autograd.grad(sum(g.square().sum() for g in first), inputs))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a.double().cpu(), b, rtol=1e-3, atol=1e-4 * b.abs().max().item())


@pytest.mark.parametrize(("rows", "K", "dtype"), [(1000, 2, torch.bfloat16), (48, 20_000, torch.float32)])
def test_low_temperatures(rows, K, dtype):
    loc = (30 * torch.randn(rows, K - 1, device="cuda").sign()).to(dtype).requires_grad_()
    scale = torch.full_like(loc, 0.3).requires_grad_()
    z, log_q, kl = functional.gaussian_softmax_terms(loc, scale, 0.01, prior=(0.0, 1.0))
    if dtype == torch.float32:
        assert (z.double().sum(-1) - 1).abs().max() < 1e-5
    for x in (z, log_q, kl, *torch.autograd.grad(z[:, 0].sum() + log_q.sum() + kl.sum(), (loc, scale))):
        assert x.isfinite().all()


def test_many_rows():
    z = functional.gaussian_softmax(torch.zeros(1, 3, device="cuda"), 1.0, torch.ones(3_000_001, 1, device="cuda"))
    assert z.shape == (3_000_001, 4)
    assert (z.sum(-1) - 1).abs().max() < 1e-5
    spread = 5 * z.std(0) / math.sqrt(len(z))
    assert ((z[:1_500_000].mean(0) - z[1_500_000:].mean(0)).abs() < 2 * spread).all()
