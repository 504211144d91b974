"""The sampling kernels in the interpreter, beside the float64 path of PyTorch with the same noise."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")

from sampling_cases import INTERPRETED, check_sample, close, double, noise_of_next_call, parameters

from igr import functional, kernels
from igr.distributions import GumbelSoftmax, InvertibleGaussian
from igr.kernels import ops, sampling

pytestmark = INTERPRETED

SIZES = (2, 3, 10, 33, 129, 1000)


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
