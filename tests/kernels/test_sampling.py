"""The sampling kernels in the interpreter, beside the float64 path of PyTorch with the same noise; and that noise."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from philox import MASK, noise, philox
from scipy import stats
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")

import triton
import triton.language as tl

from igr import functional, kernels
from igr.distributions import GumbelSoftmax, InvertibleGaussian
from igr.kernels import _parts, _random, ops, sampling
from igr.testing import check_distribution

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here, see test_cuda_kernels.py"),
    # of numpy, where the interpreter meets the infinities that kernels reckon with
    pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero) encountered:RuntimeWarning"),
]

SIZES = (2, 3, 10, 33, 129, 1000)


class Known(functional.NoiseSource):
    """Noise drawn beforehand."""

    def __init__(self, eps):
        self.eps = eps

    def gaussian(self, shape, like):
        return self.eps.reshape(shape).to(like.dtype)

    def gumbel(self, like):
        return self.eps.reshape(like.shape).to(like.dtype)


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
    """Kernels are chosen on the CPU as they are on CUDA devices."""

    def usable(*tensors):
        return kernels.enabled() and all(t.dtype in kernels.DTYPES for t in tensors) and not kernels._transformed()

    monkeypatch.setattr(kernels, "usable", usable)


@pytest.fixture
def split(monkeypatch):
    """Rows of more than 100 categories are cut into parts of 128."""
    monkeypatch.setattr(sampling, "LONGEST", 100)
    table = sampling.tiling
    monkeypatch.setattr(sampling, "tiling", lambda K: sampling.Tiling(1, 128, 4) if K > 100 else table(K))


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


# values and gradients


@pytest.mark.parametrize("K", SIZES)
@pytest.mark.parametrize("hard", [False, True])
def test_gaussian(K, hard):
    loc, scale = parameters(3, K - 1)
    check_sample(
        lambda m, s, g: functional.gaussian_softmax(m, s, 0.7, hard, delta=0.4, generator=g),
        (loc, scale),
        3,
        K - 1,
        False,
    )


@pytest.mark.parametrize("K", SIZES)
@pytest.mark.parametrize("hard", [False, True])
def test_gumbel(K, hard):
    logits, _ = parameters(3, K)
    check_sample(lambda a, g: functional.gumbel_softmax(a, 0.7, hard, generator=g), (logits,), 3, K, True)


@pytest.mark.usefixtures("split")
@pytest.mark.parametrize(
    ("K", "hard", "dtype"),
    [
        (129, False, torch.float32),
        (256, True, torch.float32),
        (300, False, torch.bfloat16),
        (130, True, torch.bfloat16),
    ],
)
def test_split_rows(K, hard, dtype):
    loc, scale = parameters(2, K - 1, dtype)
    logits, _ = parameters(2, K, dtype)
    mask = torch.rand(2, K) < 0.8
    mask[:, 0] = True
    tolerance = {} if dtype == torch.float32 else {"rtol": 0.05, "atol": 0.05}
    check_sample(
        lambda m, s, g: functional.gaussian_softmax(m, s, 0.7, hard, delta=0.4, generator=g, mask=mask),
        (loc, scale), 2, K - 1, False, **tolerance,
    )  # fmt: skip
    check_sample(
        lambda a, g: functional.gumbel_softmax(a, 0.7, hard, generator=g, mask=mask), (logits,), 2, K, True, **tolerance
    )


@pytest.mark.usefixtures("split")
@pytest.mark.parametrize("hard", [False, True])
def test_a_part_without_allowed_categories(hard):
    mask = torch.zeros(2, 300, dtype=torch.bool)
    mask[0, [3, 100]] = mask[1, [130, 299]] = True
    loc, scale = parameters(2, 299)
    logits, _ = parameters(2, 300)
    check_sample(
        lambda m, s, g: functional.gaussian_softmax(m, s, 0.7, hard, generator=g, mask=mask),
        (loc, scale), 2, 299, False,
    )  # fmt: skip
    check_sample(lambda a, g: functional.gumbel_softmax(a, 0.01, hard, generator=g, mask=mask), (logits,), 2, 300, True)
    assert (functional.gumbel_softmax(logits, 0.01, hard, mask=mask)[~mask] == 0).all()


@pytest.mark.usefixtures("split")
def test_repeated_rows_in_parts():
    loc, scale = parameters(2, 200)
    check_sample(lambda m, s, g: InvertibleGaussian(m, s, 0.5).rsample((3,), generator=g), (loc, scale), 6, 200, False)


@pytest.mark.usefixtures("split")
def test_divergence_of_logits_that_forbid_a_part():
    logits, prior = torch.randn(3, 300), torch.randn(3, 300)
    logits[0, :140], logits[1, 250:] = -math.inf, -math.inf
    p, q = logits.double().log_softmax(-1), prior.double().log_softmax(-1)
    expected = torch.where(p > -math.inf, p.exp() * (p - q), 0.0).sum(-1)
    found = functional.gumbel_softmax_terms(logits, 0.6, prior_logits=prior)
    close(found.kl, expected)
    assert torch.equal(found.z > 0, logits > -math.inf)
    close(found.z.sum(-1), torch.ones(3))
    assert found.log_prob.isposinf().tolist() == [True, True, False]


def test_a_row_longer_than_any_block():
    K = sampling.LONGEST + 700
    loc, scale = parameters(1, K - 1)
    check_sample(lambda m, s, g: functional.gaussian_softmax(m, s, 0.7, generator=g), (loc, scale), 1, K - 1, False)


@pytest.mark.parametrize("hard", [False, True])
def test_rows_of_scalars_and_masks(hard):
    loc, scale = parameters(7, 4)
    logits, _ = parameters(7, 5)
    tau, delta = torch.rand(7, 1) + 0.3, torch.rand(7, 1) + 0.3
    mask = torch.rand(7, 5) < 0.6
    mask[:, 2] = True
    check_sample(
        lambda m, s, g: functional.gaussian_softmax(m, s, tau.to(m.dtype), hard, delta=delta, mask=mask, generator=g),
        (loc, scale), 7, 4, False,
    )  # fmt: skip
    check_sample(
        lambda a, g: functional.gumbel_softmax(a, tau[0, 0].to(a.dtype), hard, mask=mask, generator=g),
        (logits,),
        7,
        5,
        True,
    )
    assert (functional.gaussian_softmax(loc, scale, 0.5, mask=mask)[~mask] == 0).all()
    assert (functional.gumbel_softmax(logits, 0.5, mask=mask)[~mask] == 0).all()


class Copies(TorchDispatchMode):
    """Counts copies into another dtype."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.count += function is torch.ops.aten._to_copy.default and arguments[0].numel() > 1
        return function(*arguments, **(options or {}))


def test_nothing_is_widened_outside_of_kernels():
    """A copy of half-precision parameters in float32 takes longer than the kernel itself."""
    loc, scale = parameters(20, 9, torch.bfloat16)
    ways = [
        lambda: functional.gaussian_softmax(loc, scale, 0.5),
        lambda: functional.gumbel_softmax(loc, 0.5),
        lambda: functional.gaussian_softmax_terms(loc, scale, 0.5, prior=(0.0, 1.0)),
        lambda: functional.gumbel_softmax_terms(loc, 0.5),
        GumbelSoftmax(0.5, loc, validate_args=False).rsample,
    ]
    for way in ways:
        with Copies() as copies:
            way()
        assert copies.count == 0
    with kernels.disabled(), Copies() as copies:  # it can tell
        ways[0]()
    assert copies.count > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precisions(dtype):
    loc, scale = parameters(5, 9, dtype)
    check_sample(
        lambda m, s, g: functional.gaussian_softmax(m, s, 0.7, generator=g),
        (loc, scale),
        5,
        9,
        False,
        rtol=0.02,
        atol=0.01,
    )
    z = functional.gaussian_softmax(loc, scale, 0.7)
    assert z.dtype == dtype
    terms = functional.gaussian_softmax_terms(loc, scale, 0.7, prior=(0.0, 1.0))
    assert (terms.z.dtype, terms.log_prob.dtype, terms.kl.dtype) == (dtype, torch.float32, torch.float32)


@pytest.mark.usefixtures("split")
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize(("K", "gumbel"), [(10, False), (10, True), (300, False), (300, True)])
def test_what_gradients_have_in_common_is_not_left_over(K, gumbel, twice):
    """Points of 16 bits do not sum to one; the gradient has to, also where it is made to be differentiated."""
    inputs = parameters(20, K if gumbel else K - 1, torch.bfloat16)[: 1 if gumbel else 2]
    weights = (10 + torch.randn(20, K)).bfloat16()
    source = noise_of_next_call(20, inputs[0].shape[1], gumbel)

    def call(*x):
        sample = functional.gumbel_softmax if gumbel else functional.gaussian_softmax
        return sample(*x[:-1], 0.1, generator=x[-1])

    wide = double(*inputs)
    found = torch.autograd.grad(call(*inputs, None), inputs, weights, create_graph=twice)
    exact = torch.autograd.grad(call(*wide, source), wide, weights.double())
    for a, b in zip(found, exact, strict=True):
        assert (a.detach().double() - b).norm() < 0.01 * b.norm()


LAYOUTS = {
    "number": lambda: (torch.randn(6, 4).requires_grad_(), 0.8),
    "vector": lambda: (torch.randn(6, 4).requires_grad_(), torch.rand(4).add(0.5).requires_grad_()),
    "column": lambda: (torch.randn(6, 4).requires_grad_(), torch.rand(6, 1).add(0.5).requires_grad_()),
    "transposed": lambda: (torch.randn(4, 6).requires_grad_(), torch.rand(6, 4).add(0.5).requires_grad_()),
    "one row": lambda: (torch.randn(1, 4).requires_grad_(), torch.rand(4).add(0.5).requires_grad_()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout(layout):
    loc, scale = LAYOUTS[layout]()
    turn = layout == "transposed"
    tau = torch.rand(2, 6, 1) + 0.4  # a further axis, and rows for the single one
    source = noise_of_next_call(12, 4, False)
    z = functional.gaussian_softmax(loc.T if turn else loc, scale, tau)
    m, s = double(loc, scale)
    expected = functional.gaussian_softmax(m.T if turn else m, s, tau, generator=source)
    close(z, expected)
    w = torch.randn(z.shape)
    mine, theirs = ([x for x in pair if isinstance(x, torch.Tensor)] for pair in ((loc, scale), (m, s)))
    for a, b in zip(torch.autograd.grad(z, mine, w), torch.autograd.grad(expected, theirs, w.double()), strict=True):
        close(a, b, atol=1e-5)


def test_only_what_is_needed_is_written():
    p, g, seed = torch.rand(3, 5).softmax(-1), torch.randn(3, 5), torch.tensor([7])
    none = (None,) * 3
    for need in ((True, False), (False, True)):
        d = ops.sample_backward(p, g, None, None, seed, 0.5, None, *none, None, None, False, *need)
        assert [x.numel() > 0 for x in d] == list(need)
    loc, scale = parameters(3, 4)
    z = functional.gaussian_softmax(loc, scale.detach(), 0.5)
    assert torch.autograd.grad(z[:, 0].sum(), loc)[0].abs().min() > 0
    z = functional.gaussian_softmax(loc.detach(), scale, 0.5)
    assert torch.autograd.grad(z[:, 0].sum(), scale)[0].abs().min() > 0


# terms


def check_terms(call, inputs, rows, columns, gumbel):
    source = noise_of_next_call(rows, columns, gumbel)
    terms = call(*inputs, None)
    wide = double(*inputs)
    expected = call(*wide, source)
    for a, b in zip(terms, expected, strict=True):
        close(a, b, rtol=2e-5, atol=2e-5)
    weights = [torch.randn(x.shape) for x in terms]
    for kept in ((0, 1, 2), (0,), (1,), (2,)):
        outputs, references = [terms[i] for i in kept], [expected[i] for i in kept]
        w = [weights[i] for i in kept]
        gradients = torch.autograd.grad(outputs, inputs, w, retain_graph=True, materialize_grads=True)
        exact = torch.autograd.grad(
            references, wide, [x.double() for x in w], retain_graph=True, materialize_grads=True
        )
        for a, b in zip(gradients, exact, strict=True):
            close(a, b, rtol=1e-4, atol=2e-5 * max(1, b.abs().max().item()))


@pytest.mark.parametrize(("K", "hard"), [(2, False), (3, True), (10, False), (33, False), (200, True)])
@pytest.mark.usefixtures("split")
def test_gaussian_terms(K, hard):
    prior = (torch.randn(K - 1), torch.rand(3, 1) + 0.5)
    check_terms(
        lambda m, s, g: functional.gaussian_softmax_terms(m, s, 0.6, hard, delta=0.4, prior=prior, generator=g),
        parameters(3, K - 1), 3, K - 1, False,
    )  # fmt: skip


@pytest.mark.parametrize(("K", "prior"), [(2, True), (3, False), (10, True), (33, False), (200, False), (140, True)])
@pytest.mark.usefixtures("split")
def test_gumbel_terms(K, prior):
    b = torch.randn(3, K) if prior else None
    logits = (5 + torch.randn(3, K)).requires_grad_()
    check_terms(
        lambda a, g: functional.gumbel_softmax_terms(a, 0.6, prior_logits=b, generator=g), (logits,), 3, K, True
    )


def test_divergence_of_equal_distributions_is_zero():
    loc, scale = (x.detach() for x in parameters(4, 6))
    assert functional.gaussian_softmax_terms(loc, scale, prior=(loc, scale)).kl.abs().max() < 1e-12
    assert functional.gumbel_softmax_terms(loc, prior_logits=loc + 3).kl.abs().max() < 1e-6


def test_distributions():
    loc, scale = parameters(4, 5)
    logits, _ = parameters(4, 6)
    for build, inputs, n, gumbel in (
        (lambda m, s: InvertibleGaussian(m, s, 0.5, delta=0.3), (loc, scale), 5, False),
        (lambda a: GumbelSoftmax(0.5, a), (logits,), 6, True),
    ):
        check_sample(lambda *x, b=build: b(*x[:-1]).rsample((3,), generator=x[-1]), inputs, 12, n, gumbel)
        check_sample(lambda *x, b=build: b(*x[:-1]).hard_rsample((2, 1), generator=x[-1]), inputs, 8, n, gumbel)
        check_sample(
            lambda *x, b=build: b(*x[:-1]).rsample_and_log_prob((3,), generator=x[-1])[1],
            inputs,
            12,
            n,
            gumbel,
            atol=1e-4,
        )


@pytest.mark.parametrize("gumbel", [False, True])
def test_all_ways_to_sample_agree_on_one_noise(gumbel):
    loc, scale = torch.randn(2, requires_grad=True), (torch.rand(2) + 0.5).requires_grad_()
    d, given = (GumbelSoftmax(0.7, loc), [loc]) if gumbel else (InvertibleGaussian(loc, scale, 0.7), [loc, scale])
    check_distribution(d, parameters=given, num_samples=2000, skip=("integral",))


HOOKS = {
    InvertibleGaussian: ("_scores", "_relax", "_harden", "log_rsample_and_log_prob", "_draw_through"),
    GumbelSoftmax: ("_scores", "_relax", "_log_relax", "_harden", "log_rsample_and_log_prob", "_draw", "_noise"),
}


@pytest.mark.parametrize(("kind", "hook"), [(kind, hook) for kind, hooks in HOOKS.items() for hook in hooks])
def test_steps_that_a_subclass_replaces_are_taken(kind, hook):
    taken = []

    def replaced(self, *arguments, **options):
        taken.append(hook)
        return getattr(kind, hook)(self, *arguments, **options)

    mine = type("Mine", (kind,), {hook: replaced})
    q = mine(0.5, torch.randn(3, 4)) if kind is GumbelSoftmax else mine(torch.randn(3, 4), 1.0, 0.5)
    for sample in (q.rsample, q.hard_rsample, q.rsample_and_log_prob):
        sample()
    assert taken


def test_noise_that_a_subclass_replaces_is_taken():
    class Silent(GumbelSoftmax):
        def _noise(self, like, generator):
            return torch.zeros_like(like)

    logits = torch.randn(3, 4)
    torch.testing.assert_close(Silent(0.5, logits).rsample(), (logits / 0.5).softmax(-1))


# derivatives of derivatives, and differences


@pytest.mark.parametrize("gumbel", [False, True])
@pytest.mark.parametrize("hard", [False, True])
def test_second_derivatives(gumbel, hard):
    inputs = parameters(3, 6)[: 1 if gumbel else 2]

    def call(*x):
        if gumbel:
            return functional.gumbel_softmax_terms(x[0], 0.6, hard, generator=x[-1])
        return functional.gaussian_softmax_terms(*x[:2], 0.6, hard, prior=(0.3, 1.2), generator=x[-1])

    weights = [torch.randn(s) for s in ((3, 6 if gumbel else 7), (3,), (3,))]
    source = noise_of_next_call(3, 6, gumbel)
    wide = double(*inputs)
    results = []
    for parameters_, terms in ((inputs, call(*inputs, None)), (wide, call(*wide, source))):
        w = [x.to(parameters_[0].dtype) for x in weights]
        first = torch.autograd.grad(terms, parameters_, w, create_graph=True)
        results.append(torch.autograd.grad(sum(g.square().sum() for g in first), parameters_))
    for a, b in zip(*results, strict=True):
        close(a, b, rtol=1e-4, atol=1e-5 * max(1, b.abs().max().item()))


def test_finite_differences_of_the_kernel_itself():
    loc, scale = parameters(4, 9)
    seed, w = torch.tensor([123456789]), torch.randn(4, 10)
    prior = torch.zeros(4, 9), torch.ones(4, 9)

    def value(m, s):
        z, _, log_q, kl, _ = ops.sample(m, s, seed, 0.8, 0.5, None, None, None, *prior, 4, False, True, True, True)
        return (z * w).double().sum() + 0.1 * log_q.double().sum() + 0.1 * kl.double().sum()

    gradients = torch.autograd.grad(value(loc, scale), (loc, scale))
    direction = torch.randn(4, 9), torch.randn(4, 9)
    step = 2e-2  # large, for float32; the error of the quotient is of its fourth order
    ahead, behind, twice, minus = (
        value(*(x.detach() + t * d for x, d in zip((loc, scale), direction, strict=True)))
        for t in (step / 4, -step / 4, step / 2, -step / 2)
    )
    slope = (8 * (ahead - behind) - (twice - minus)) / (12 * step / 4)
    exact = sum((g * d).double().sum() for g, d in zip(gradients, direction, strict=True))
    assert slope.item() == pytest.approx(exact.item(), rel=2e-3, abs=2e-3)


# far out


@pytest.mark.parametrize("K", [2, 3, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_temperatures(K, dtype):
    loc = (30 * torch.randn(50, K - 1).sign()).to(dtype).requires_grad_()
    scale = torch.full_like(loc, 0.3).requires_grad_()
    z, log_q, kl = functional.gaussian_softmax_terms(loc, scale, 0.01, prior=(0.0, 1.0))
    rows = z.float().sum(-1)
    assert (rows - 1).abs().max() < (1e-6 if dtype == torch.float32 else 0.02)
    for x in (z, log_q, kl, *torch.autograd.grad(z[:, 0].sum() + log_q.sum() + kl.sum(), (loc, scale))):
        assert x.isfinite().all()


def test_rows_sum_to_one():
    z = functional.gaussian_softmax(5 * torch.randn(200, 99), 1.0, 0.1)
    assert (z.double().sum(-1) - 1).abs().max() < 1e-6
    hard = functional.gaussian_softmax(torch.randn(200, 9), 1.0, 0.1, hard=True, delta=3.0)
    assert torch.equal(hard.sort(-1).values, torch.eye(10)[-1].expand(200, 10))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("hard", [False, True])
def test_what_is_not_finite_spoils_its_row_alone(bad, hard):
    loc = torch.randn(4, 5)
    loc[1, 2], loc[2, 3] = bad, -math.inf
    z = functional.gaussian_softmax(loc, 1.0, 0.5, hard)
    assert z[1].isnan().all()
    assert z[[0, 2, 3]].isfinite().all()
    assert z[2, 3] == 0
    assert functional.gumbel_softmax(loc, 0.5, hard)[1].isnan().all()


@pytest.mark.usefixtures("split")
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("hard", [False, True])
def test_what_is_not_finite_spoils_all_parts_of_its_row(bad, hard):
    loc = torch.randn(3, 299)
    loc[1, 200], loc[2, 3] = bad, -math.inf
    for z in (functional.gaussian_softmax(loc, 1.0, 0.5, hard), functional.gumbel_softmax(loc, 0.5, hard)):
        assert z[1].isnan().all()
        assert z[[0, 2]].isfinite().all()
        assert z[2, 3] == 0


# noise


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


# the switch, and what kernels leave to PyTorch


def test_switch():
    loc = torch.randn(5, 4)
    torch.manual_seed(1)
    with kernels.disabled():
        assert not kernels.enabled()
        plain = functional.gaussian_softmax(loc, 1.0)
    assert kernels.enabled()
    torch.manual_seed(1)
    close(plain, functional.softmaxpp(loc + torch.randn(5, 4)))
    torch.manual_seed(1)
    assert not torch.equal(functional.gaussian_softmax(loc, 1.0), plain)
    kernels.set_enabled(False)
    try:
        torch.manual_seed(1)
        assert torch.equal(functional.gaussian_softmax(loc, 1.0), plain)
    finally:
        kernels.set_enabled(True)


def test_temperatures_are_trained_without_kernels():
    tau = torch.tensor(0.5, requires_grad=True)
    loc = torch.randn(5, 4)
    for z in (functional.gaussian_softmax(loc, 1.0, tau), functional.gumbel_softmax(loc, tau)):
        assert torch.autograd.grad(z[:, 0].sum(), tau)[0].item() != 0
    delta = torch.tensor(0.5, requires_grad=True)
    terms = functional.gaussian_softmax_terms(loc, 1.0, delta=delta, prior=(delta, 1.0))
    assert torch.autograd.grad(terms.kl.sum() + terms.log_prob.sum(), delta)[0].item() != 0
    with torch.no_grad():
        assert functional.gaussian_softmax(loc, 1.0, tau).isfinite().all()


def test_transforms_go_without_kernels():
    loc = torch.randn(5, 4)
    z = torch.func.vmap(lambda m: functional.gaussian_softmax(m, 1.0), randomness="different")(loc)
    assert z.shape == (5, 5)
    gradient = torch.func.grad(lambda m: functional.gaussian_softmax(m, 1.0)[0].sum())(loc[0])
    assert gradient.shape == (4,)
    _, tangent = torch.func.jvp(lambda m: functional.gaussian_softmax(m, 1.0), (loc,), (torch.ones(5, 4),))
    assert tangent.abs().max() > 0
    assert functional.gaussian_softmax(loc.double(), 1.0).dtype == torch.float64


def test_no_rows():
    assert functional.gaussian_softmax(torch.zeros(0, 4), 1.0).shape == (0, 5)
    assert functional.gumbel_softmax(torch.zeros(2, 0, 4)).shape == (2, 0, 4)


@pytest.mark.parametrize("twice", [False, True])
def test_no_samples_of_some_parameters(twice):
    loc, scale = parameters(5, 4)
    z, log_q = InvertibleGaussian(loc, scale, 0.5).rsample_and_log_prob((0,))
    assert (z.shape, log_q.shape) == ((0, 5, 5), (0, 5))
    for g in torch.autograd.grad(z.sum() + log_q.sum(), (loc, scale), create_graph=twice):
        assert torch.equal(g, torch.zeros(5, 4))
    z = GumbelSoftmax(0.5, loc).rsample((0, 2))
    assert torch.equal(torch.autograd.grad(z.sum(), loc, create_graph=twice)[0], torch.zeros(5, 4))
    none = torch.zeros(0, 4, requires_grad=True)
    for z in (functional.gaussian_softmax(none, 1.0), GumbelSoftmax(0.5, none).rsample((2,))):
        assert torch.autograd.grad(z.sum(), none, create_graph=twice)[0].shape == (0, 4)


def test_usable(monkeypatch):
    monkeypatch.undo()
    assert not kernels.usable(torch.zeros(3))


@pytest.mark.parametrize(("capability", "expected"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_devices_that_are_too_old_go_without_kernels(monkeypatch, capability, expected):
    monkeypatch.undo()
    monkeypatch.setattr(kernels, "INSTALLED", True)
    monkeypatch.setattr(kernels, "_capable", {})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    tensor = SimpleNamespace(is_cuda=True, dtype=torch.float32, device=torch.device("cuda", 0), shape=(3, 4))
    assert kernels.usable(tensor, tensor) is expected
    assert kernels.usable_on_rows(tensor) is expected
    tensor.shape = (3, kernels.MOST_COLUMNS + 1)
    assert not kernels.usable_on_rows(tensor)


# programs that share a row


def test_programs_wait_where_all_have_room(monkeypatch):
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    assert kernels.waiting()
    assert sampling._all_run(33, torch.zeros(1))
    assert not sampling._all_run(34, torch.zeros(1))
    kernels.set_waiting(False)
    try:
        assert not sampling._all_run(1, torch.zeros(1))
    finally:
        kernels.set_waiting(True)


@triton.jit
def write_places(places, arrived, rows, HALF: tl.constexpr):
    row, part, start = _parts.part_here(arrived, rows, HALF, 3, 128)
    at = places + 3 * tl.program_id(0)
    tl.store(at, row)
    tl.store(at + 1, part)
    tl.store(at + 2, start)


def test_programs_that_wait_are_numbered_as_they_start():
    """Not by the device: here two others have started already."""
    arrived = torch.tensor([0, 0, 0, 2], dtype=torch.int32)
    for half, before in ((_parts.WHOLE, 2), (_parts.FIRST, 0)):
        places = torch.empty(7, 3, dtype=torch.int64)
        write_places[(7,)](places, arrived, 3, half)
        assert places.tolist() == [[i // 3, i % 3, i % 3 * 128] for i in range(before, before + 7)]
    assert arrived.tolist() == [0, 0, 0, 9]


# as operators


def operator_arguments(gumbel, hard):
    loc, scale = parameters(3, 4)
    prior = torch.zeros(3, 4), None if gumbel else torch.ones(3, 4)
    scale = None if gumbel else scale
    return loc, scale, torch.tensor([5]), 0.5, 1.0, None, None, None, *prior, 3, hard, True, True, True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("gumbel", "hard"), [(False, True), (True, False)])
def test_operators_keep_their_word(gumbel, hard):
    torch.library.opcheck(ops.sample, operator_arguments(gumbel, hard))


@pytest.mark.filterwarnings("ignore")
def test_compiles_whole():
    hard = True

    def run(loc, scale):
        z, log_q, kl = functional.gaussian_softmax_terms(loc, scale, 0.5, hard, prior=(0.0, 1.0))
        return z.square().sum() + log_q.sum() + kl.sum() + functional.gumbel_softmax(loc, 0.5, hard)[:, 0].sum()

    loc, scale = parameters(3, 4)
    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    values = []
    for f in (run, compiled):
        torch.manual_seed(1)
        value = f(loc, scale)
        values.append((value, *torch.autograd.grad(value, (loc, scale))))
    for a, b in zip(*values, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.filterwarnings("ignore")
def test_noise_by_itself_compiles():
    def run(loc):
        q = InvertibleGaussian(loc, 1.0, 0.5, validate_args=False)
        p = GumbelSoftmax(0.5, loc, validate_args=False)
        return q.rsample((2,)), q.log_rsample((2,)).exp(), p.rsample((2,)), p.log_rsample((2,)).exp()

    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    values = []
    for f in (run, compiled):
        torch.manual_seed(1)
        values.append(f(torch.ones(3, 4)))
    for a, b in zip(*values, strict=True):
        torch.testing.assert_close(a, b)

    def mapped(loc, tau):
        return torch.func.vmap(lambda m: functional.gumbel_softmax(m, tau), randomness="different")(loc)

    tau = torch.tensor(0.5, requires_grad=True)  # one that is trained is not for the kernel of the whole
    z = torch.compile(mapped, fullgraph=True, backend="aot_eager")(torch.zeros(3, 2, 4), tau)
    assert not torch.equal(z[0], z[1])


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_vmap_draws_different_noise():
    def run(loc):
        return torch.func.vmap(lambda m: functional.gaussian_softmax(m, 1.0, 0.5), randomness="different")(loc)

    torch._dynamo.reset()
    loc = torch.zeros(3, 2, 4, requires_grad=True)
    z = torch.compile(run, fullgraph=True, backend="aot_eager")(loc)
    assert z.shape == (3, 2, 5)
    assert not torch.equal(z[0], z[1])
    assert torch.autograd.grad(z[..., 0].sum(), loc)[0].abs().min() > 0
