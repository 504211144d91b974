"""Log-densities and divergences by the kernels, distributions that use them, and derivatives of derivatives."""

import pytest
import torch

pytest.importorskip("triton")

from sampling_cases import INTERPRETED, check_sample, close, double, noise_of_next_call, parameters

from igr import functional
from igr.distributions import GumbelSoftmax, InvertibleGaussian
from igr.kernels import ops
from igr.testing import check_distribution

pytestmark = INTERPRETED

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


# distributions


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
