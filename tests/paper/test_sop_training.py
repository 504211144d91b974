"""Networks that complete images in training: estimators against enumeration, members, schedules and checkpoints."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import truncnorm
from torch import Tensor

from igr import conditional_path
from igr.paper.models import members_axis
from igr.paper.sop.ensemble import CompletionEnsemble
from igr.paper.sop.estimated import _GaussianBit, estimated_loss
from igr.paper.sop.model import EnsembleCompletion
from igr.paper.sop.objectives import draw_noise, log_likelihoods, log_px
from igr.paper.sop.spec import Completion

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
N, D = 2, 6
COPIES, IMAGES = 300, 100  # of the member, and of the image for each
UNBIASED = [
    (method, estimator, num_samples)
    for method in ("gs", "igr-i")
    for estimator, num_samples in (("rloo", 2), ("disarm", 1), ("rebar", 1), ("vimco", 3))
]
BIASED = [
    *((method, "st_relaxed") for method in ("gs", "igr-i", "igr-sb", "igr-planar")),
    *((method, name) for method in ("gs", "igr-i") for name in ("straight_through", "reinmax", "gapst", "rao")),
]
EVERY = [*UNBIASED, *((method, estimator, 1) for method, estimator in BIASED)]
RELAXED = [(method, "reparameterized", 5) for method in ("igr-i", "igr-planar", "igr-sb", "gs")]


def name(case: tuple[object, ...]) -> str:
    return "-".join(map(str, case))


def cell(method: str, estimator: str = "reparameterized", num_samples: int = 1, **changes) -> Completion:
    defaults = {"temperatures": (0.3, 0.8), "seeds": (1, 2), "batch_size": 10, "epochs": 3}
    options = defaults | changes
    return Completion(f"sop/mnist/{method}", method, estimator=estimator, num_samples=num_samples, **options)


def copies(spec: Completion) -> tuple[EnsembleCompletion, Tensor]:
    """The same member many times, whose units depend on what comes before, and the same image for all."""
    model = EnsembleCompletion(spec, [1], num_units=N, num_pixels=D, dtype=torch.float64)
    with torch.no_grad():
        for k, p in enumerate(model.parameters()):
            p.add_(0.7 * torch.randn(p.shape, dtype=p.dtype, generator=torch.Generator().manual_seed(k)))
    x = torch.tensor([1.0, 0, 1, 1, 0, 0], dtype=torch.float64).expand(COPIES, IMAGES, D)
    return model.subset([0] * COPIES), x


def exact_loss(model: EnsembleCompletion, x: Tensor) -> tuple[Tensor, ...]:
    """The expected loss of the first member and its gradient, by sums over all states of both layers."""
    model = model.subset([0])
    upper, lower = x[0, 0, : D // 2], x[0, 0, D // 2 :]
    w, b = list(model.weights), list(model.biases)
    states = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=N)), dtype=torch.float64)

    def log_probability(layer: int, h: Tensor) -> Tensor:
        """Of all states given h, ``(*, states)``."""
        said = (h @ w[2 * layer][0] + b[2 * layer][0, 0]).tanh() @ w[2 * layer + 1][0] + b[2 * layer + 1][0, 0]
        if model.cell.method == "gs":
            p = said.sigmoid()
        else:
            p = 0.5 * (1 + torch.erf(said[..., :N] / said[..., N:].exp() / math.sqrt(2)))
        return torch.where(states > 0, p.unsqueeze(-2), 1 - p.unsqueeze(-2)).log().sum(-1)

    joint = (log_probability(0, upper).unsqueeze(-1) + log_probability(1, states)).exp()  # (first, second)
    logits = states @ w[4][0] + b[4][0, 0]
    log_w = (lower * logits - torch.nn.functional.softplus(logits)).sum(-1)
    p = joint.sum(0)  # of states of the second layer
    if model.cell.estimator != "vimco":
        loss = -(p * log_w).sum()
    else:
        S = model.cell.num_samples
        choices = torch.tensor(list(itertools.product(range(len(states)), repeat=S)))
        loss = -(p[choices].prod(-1) * (log_w[choices].logsumexp(-1) - math.log(S))).sum()
    return loss, *torch.autograd.grad(loss, [*w, *b])


@pytest.mark.parametrize("case", UNBIASED, ids=name)
def test_loss_and_gradient_are_unbiased(case):
    model, x = copies(cell(*case))
    tau = torch.full((COPIES, 1, 1, 1), 0.5, dtype=torch.float64)
    loss = estimated_loss(model, x, tau, torch.Generator().manual_seed(0)).mean(-1)
    gradients = torch.autograd.grad(loss.sum(), [*model.weights, *model.biases])
    for found, truth in zip((loss, *gradients), exact_loss(model, x), strict=True):
        spread = found.std(0, keepdim=True) / math.sqrt(COPIES)
        off = (found.mean(0, keepdim=True) - truth).abs()
        assert (off <= 5 * spread + 1e-12).all(), f"{(off / spread).max():.1f} standard errors"


@pytest.mark.parametrize("case", [case for case in BIASED if case[0] in ("gs", "igr-i")], ids=name)
def test_loss_of_biased_estimators_is_unbiased_and_so_is_the_decoder(case):
    model, x = copies(cell(*case))
    tau = torch.full((COPIES, 1, 1, 1), 0.5, dtype=torch.float64)
    loss = estimated_loss(model, x, tau, torch.Generator().manual_seed(0)).mean(-1)
    gradients = torch.autograd.grad(loss.sum(), [model.weights[4], model.biases[4]])
    expected = exact_loss(model, x)
    for found, truth in zip((loss, *gradients), (expected[0], expected[5], expected[-1]), strict=True):
        spread = found.std(0, keepdim=True) / math.sqrt(COPIES)
        assert ((found.mean(0, keepdim=True) - truth).abs() <= 5 * spread).all()


def test_a_bit_held_to_its_category_moves_as_by_its_distribution_function():
    mu = torch.tensor([0.5, -1.0, 2.0, 0.1, 3.0], dtype=torch.float64).unsqueeze(-1).requires_grad_()
    sigma = torch.tensor([1.0, 0.5, 2.0, 0.3, 0.4], dtype=torch.float64).unsqueeze(-1).requires_grad_()
    y = torch.tensor([0.8, -1.5, -0.7, 0.05, 3.3], dtype=torch.float64).unsqueeze(-1)
    q = _GaussianBit(mu, sigma, 0.5)
    path = q._conditional_path(y)
    assert torch.equal(path, y)
    found = torch.autograd.grad(path.sum(), (mu, sigma))
    general = torch.autograd.grad(conditional_path(mu, sigma, y).sum(), (mu, sigma))
    torch.testing.assert_close(found, general, rtol=1e-6, atol=1e-8)

    def quantile(m: float, s: float, level: float, sign: bool) -> float:
        ends = (-m / s, np.inf) if sign else (-np.inf, -m / s)
        return truncnorm.ppf(level, *ends, loc=m, scale=s)

    for i, (m, s, at) in enumerate(zip(mu.flatten().tolist(), sigma.flatten().tolist(), y.flatten(), strict=True)):
        sign = bool(at > 0)
        ends = (-m / s, np.inf) if sign else (-np.inf, -m / s)
        level, h = truncnorm.cdf(at.item(), *ends, loc=m, scale=s), 1e-5
        by_mu = (quantile(m + h, s, level, sign) - quantile(m - h, s, level, sign)) / (2 * h)
        by_sigma = (quantile(m, s + h, level, sign) - quantile(m, s - h, level, sign)) / (2 * h)
        assert [x[i].item() for x in found] == pytest.approx([by_mu, by_sigma], rel=1e-5, abs=1e-7)


def copied_halves(n: int) -> np.ndarray:
    """Images whose lower half is their upper half, with two bits of information."""
    bits = np.random.default_rng(0).integers(0, 2, (n, 2)).astype(np.uint8)
    return np.repeat(bits[:, [0, 1, 0, 1]], 2, 1)


@pytest.mark.parametrize("case", [*BIASED, *RELAXED], ids=name)
def test_training_brings_information_through_both_layers(case):
    """Without any, no network has a log-likelihood above that of two fair bits, -1.39; one in four stays there."""
    options = {
        "temperatures": (0.5 if case in RELAXED else 1.0,),
        "seeds": (1, 2, 3, 4, 5),
        "batch_size": 20,
        "learning_rate": 0.1,
    }
    images = copied_halves(200)
    trained = CompletionEnsemble(cell(*case, **options), images, CPU, torch.float64, num_units=8)
    first = trained.run_epoch()
    for _ in range(11):
        last = trained.run_epoch()
    assert (last < first).all()
    x = trained.pixels(torch.from_numpy(images[:20])).expand(5, -1, -1)
    (found,) = log_likelihoods(trained.model, x, 200, torch.Generator().manual_seed(0))
    assert found.mean(-1).max() > -1.2


def images(n: int = 40) -> np.ndarray:
    return (np.random.default_rng(1).random((n, 8)) < 0.4).astype(np.uint8)


def ensemble(spec: Completion) -> CompletionEnsemble:
    return CompletionEnsemble(spec, images(), CPU, torch.float64, num_units=3)


def row(trained: CompletionEnsemble, i: int) -> list[Tensor]:
    return [p.detach().select(members_axis(p), i) for p in trained.model.parameters()]


@pytest.mark.parametrize("case", [*EVERY, *RELAXED], ids=name)
def test_members_are_trained_as_if_alone(case):
    spec = cell(*case)
    together = ensemble(spec)
    losses = [together.run_epoch() for _ in range(2)][-1]
    for i, member in enumerate(together.members):
        alone = ensemble(replace(spec, temperatures=(member.tau,), seeds=(member.seed,)))
        loss = [alone.run_epoch() for _ in range(2)][-1]
        torch.testing.assert_close(loss[0], losses[i], rtol=1e-12, atol=0)
        for expected, found in zip(row(alone, 0), row(together, i), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("case", [*EVERY, *RELAXED], ids=name)
@pytest.mark.parametrize("weights", ["weights.0", "weights.3"])
def test_a_member_that_diverges_disturbs_nobody(case, weights):
    fine, broken = ensemble(cell(*case)), ensemble(cell(*case))
    with torch.no_grad():
        broken.model.get_parameter(weights)[1, 0, 0] = torch.nan
    expected, losses = fine.run_epoch(), broken.run_epoch()
    assert losses.isnan().tolist() == [False, True, False, False]
    assert broken.failed == {1: 1}
    for i in (0, 2, 3):
        assert losses[i] == expected[i]
        for one, other in zip(row(fine, i), row(broken, i), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize(
    "case", [("gs", "reparameterized", 5), ("igr-planar", "reparameterized", 1), ("igr-i", "rloo", 2)], ids=name
)
def test_a_run_that_was_interrupted_ends_where_it_would_have(case):
    whole = ensemble(cell(*case))
    for _ in range(3):
        expected = whole.run_epoch()
    first = ensemble(cell(*case))
    first.run_epoch()
    assert first.run_epoch(stop=lambda: first.step == 2) is None
    tensors, numbers = first.state()
    second = ensemble(cell(*case))
    second.load({key: tensor.clone() for key, tensor in tensors.items()}, numbers)
    for _ in range(2):
        losses = second.run_epoch()
    assert torch.equal(losses, expected)
    for one, other in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("num_samples", [1, 5])
def test_the_loss_of_a_step_is_minus_the_bound_of_several_samples(num_samples):
    trained = ensemble(cell("gs", num_samples=num_samples))
    x = torch.from_numpy(images(10)).double().expand(4, -1, -1)
    trained._noise.begin_step()
    found = trained._losses(x)
    trained._noise.begin_step()
    terms = log_px(trained.model, x, trained.tau, draw_noise(trained.model, (num_samples, 4, 10), x, trained._noise))
    torch.testing.assert_close(-found, terms.exp().mean(0).log())


def test_layers_have_noise_of_their_own():
    trained = ensemble(cell("igr-i"))
    trained._noise.begin_step()
    first, second = draw_noise(trained.model, (5, 4, 10), trained.total, trained._noise)
    assert torch.equal(first[:, :2], first[:, 2:])  # of members with the same seed
    assert abs(np.corrcoef(first[:, :2].flatten(), second[:, :2].flatten())[0, 1]) < 5 / math.sqrt(300)


@pytest.mark.parametrize("epoch", [0, 900, 3000])
def test_adam_takes_steps_of_the_published_rate(epoch):
    """The rate is read off what the parameters did, given the moments that Adam has."""
    trained = ensemble(cell("igr-i", epochs=10_000))
    trained.epoch = epoch
    for k in range(3):
        before = [p.detach().clone() for p in trained.model.parameters()]
        trained.run_epoch(stop=lambda: True)
        t = trained.steps * epoch + k
        expected = max(1e-4, 1e-3 / (1 + 1e-3 * t))
        for p, old in zip(trained.model.parameters(), before, strict=True):
            state = trained.optimizer.state[p]
            m = state["exp_avg"] / (1 - 0.9 ** (k + 1))
            v = state["exp_avg_sq"] / (1 - 0.999 ** (k + 1))
            torch.testing.assert_close(old - p.detach(), expected * m / (v.sqrt() + 1e-7), rtol=1e-6, atol=1e-12)
