"""The sampling kernels as operators of PyTorch, inside of what is compiled."""

import pytest
import torch

pytest.importorskip("triton")

from sampling_cases import INTERPRETED, parameters

from igr import functional
from igr.distributions import GumbelSoftmax, InvertibleGaussian
from igr.kernels import ops

pytestmark = INTERPRETED


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
