"""Masks, impossible categories, and categories along another axis."""

import math

import pytest
import torch
from functional_cases import MASK, both, close, gaussian, real, seeded, z_scores
from scipy import stats

from igr import functional as F

# masks


@both
@pytest.mark.parametrize("size", [1.0, 100.0])
@pytest.mark.parametrize("value", [1.0, 0.001])
@pytest.mark.parametrize("hard", [False, True])
def test_mask(sample, size, value, hard):
    logits = (size * real(300, 5, 4, dtype=torch.float32)).requires_grad_()
    tau = torch.full((5, 1), value, requires_grad=True)
    z = sample(logits, tau, hard, mask=MASK)
    assert bool((z[:, ~MASK] == 0).all())
    close(z.sum(-1), torch.ones(300, 5), rtol=1e-6)
    assert bool((z[:, MASK] > 0).any(0).all())
    for gradient in torch.autograd.grad((real(4, dtype=torch.float32) * z).sum(), (logits, tau)):
        assert bool(gradient.isfinite().all())


@both
def test_mask_restricts_the_discrete_distribution(sample):
    mask = torch.tensor([False, True, False, True])
    logits = torch.tensor([3.0, 0.5, 2.0, 0.0])
    p = {gaussian: stats.norm.cdf(0.5), F.gumbel_softmax: 1 / (1 + math.exp(-0.5))}[sample]
    hard = sample(logits.expand(100_000, 4), 0.5, hard=True, mask=mask)
    assert bool((hard[:, ~mask] == 0).all())
    assert z_scores(hard[:, mask], [p, 1 - p]).abs().max() < 5


@both
def test_mask_equals_fewer_categories(sample):
    logits = real(7, 4)
    masked = sample(logits, 0.5, mask=MASK[4], generator=seeded(0))
    close(masked, sample(logits, 0.5, generator=seeded(0)))
    some = torch.tensor([True, True, False, True])
    z = sample(logits, 0.5, generator=seeded(0))[:, some]
    close(sample(logits, 0.5, mask=some, generator=seeded(0))[:, some], z / z.sum(-1, keepdim=True))


@both
@pytest.mark.parametrize(
    ("mask", "error"),
    [
        (torch.tensor([[True] * 4, [False] * 4]), ValueError),
        (torch.ones(4), TypeError),
        ([True] * 4, TypeError),
        (torch.ones(3, dtype=torch.bool), ValueError),
        (torch.ones(5, dtype=torch.bool), ValueError),
        (torch.tensor(True), ValueError),
        (torch.ones(3, 4, dtype=torch.bool), ValueError),
    ],
    ids=["forbids all", "float", "list", "K - 1", "K + 1", "0-d", "rows"],
)
def test_bad_mask(sample, mask, error):
    with pytest.raises(error, match="mask"):
        sample(torch.zeros(2, 4), mask=mask)


# impossible categories


def test_a_mask_over_impossible_logits_keeps_the_gradient_of_tau():
    tau = torch.tensor(0.5, requires_grad=True)
    logits = torch.tensor([0.0, -math.inf, 1.0], requires_grad=True)
    z = F.gumbel_softmax(logits, tau, mask=torch.tensor([True, False, True]))
    gradients = torch.autograd.grad(z[0], (logits, tau))
    assert all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize(
    "sample",
    [
        F.gumbel_softmax,
        lambda logits, *arguments, **options: F.gumbel_softmax_terms(logits, *arguments, **options).z,
        lambda loc, *arguments, **options: F.gaussian_softmax(loc, 1.0, *arguments, **options),
        lambda loc, *arguments, **options: F.gaussian_softmax_terms(loc, 1.0, *arguments, **options).z,
    ],
)
def test_impossible_categories_keep_the_gradient_of_tau(sample, hard):
    """It is that of a category so unlikely that its share is zero too."""

    def gradients(least):
        tau = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        scores = torch.tensor([0.0, least, 1.0], dtype=torch.float64, requires_grad=True)
        z = sample(scores, tau, hard, generator=torch.Generator().manual_seed(0))
        assert z[1] == 0
        return torch.autograd.grad(z[0], (scores, tau))

    torch.testing.assert_close(gradients(-math.inf), gradients(-1e4))

    def of_tau(tau):
        scores = torch.tensor([0.0, -math.inf, 1.0], dtype=torch.float64)
        return sample(scores, tau, hard, generator=torch.Generator().manual_seed(0))[0]

    tau = torch.tensor(0.5, dtype=torch.float64)
    _, forward = torch.func.jvp(of_tau, (tau,), (torch.ones_like(tau),))
    torch.testing.assert_close(forward, gradients(-math.inf)[1])


# another axis


@pytest.mark.parametrize("dim", [0, 1, -2, -1, 2])
def test_gumbel_softmax_over_another_axis(dim):
    """As torch's own has it; the mask and the temperatures of rows have the same axes."""
    logits, tau = torch.randn(4, 3, 5), torch.rand(4, 3, 5).amax(dim, keepdim=True) + 0.3
    mask = torch.rand(4, 3, 5) < 0.7
    mask.select(dim, 0).fill_(True)
    same = torch.Generator()
    z = F.gumbel_softmax(logits, tau, dim=dim, mask=mask, generator=same.manual_seed(0))
    assert z.shape == logits.shape
    torch.testing.assert_close(z.sum(dim), torch.ones_like(z.sum(dim)))
    assert bool((z[~mask] == 0).all())
    moved = [x.movedim(dim, -1) for x in (logits, tau, mask)]
    expected = F.gumbel_softmax(*moved[:2], mask=moved[2], generator=same.manual_seed(0))
    assert torch.equal(z.movedim(dim, -1), expected)
    hard = F.gumbel_softmax(logits, 0.5, True, dim=dim)
    assert torch.equal(hard.sum(dim), torch.ones_like(hard.sum(dim)))


@pytest.mark.parametrize(("shape", "dim"), [((3,), 1), ((3,), -2), ((3, 4), 2), ((3, 4), -3)])
def test_an_axis_that_logits_do_not_have_is_refused(shape, dim):
    with pytest.raises(IndexError, match=f"dim must be an axis of logits, .* got {dim}$"):
        F.gumbel_softmax(torch.zeros(shape), dim=dim)


@pytest.mark.parametrize("dim", [0, -2])
def test_temperatures_and_masks_may_add_axes_whatever_the_axis_of_the_categories(dim):
    tau, mask = torch.tensor([0.5, 1.0]).view(2, 1, 1), torch.ones(2, 3, 4, dtype=torch.bool)
    for more in ({"tau": tau}, {"mask": mask}):
        z = F.gumbel_softmax(torch.zeros(3, 4), dim=dim, **more)
        assert z.shape == (2, 3, 4)
        torch.testing.assert_close(z.sum(1), torch.ones(2, 4))
    z = F.gumbel_softmax(torch.zeros(3, 1), dim=dim)  # three categories, though the last axis has one entry
    torch.testing.assert_close(z.sum(0), torch.ones(1))


def test_masks_and_temperatures_broadcast_from_the_right_whatever_the_axis_of_the_categories():
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[2, 0] = False  # category 2 at the first of the last positions
    for dim in (1, -2):
        z = F.gumbel_softmax(torch.zeros(2, 5, 5), dim=dim, mask=mask)
        assert torch.equal(z == 0, ~mask.expand(2, 5, 5))
        torch.testing.assert_close(z.sum(1), torch.ones(2, 5))
    column = torch.tensor([True, False, True, True])[:, None]
    z = F.gumbel_softmax(torch.zeros(2, 4, 3), dim=1, mask=column)
    assert torch.equal(z == 0, ~column.expand(2, 4, 3))
    tau = torch.tensor([[1e-3, 1.0, 1e3]])  # of each of the last positions
    z = F.gumbel_softmax(torch.zeros(500, 3, 3), tau, dim=1)
    far = (1 - z.amax(1)).mean(0)
    assert far[0] < 0.01 < far[1] < 0.6 < far[2]
    with pytest.raises(ValueError, match="tau"):
        F.gumbel_softmax(torch.zeros(2, 3, 3), tau.mT, dim=1)  # one of each category
    with pytest.raises(ValueError, match="mask"):
        F.gumbel_softmax(torch.zeros(2, 4, 3), dim=1, mask=column[:, 0])  # is of the last axis
