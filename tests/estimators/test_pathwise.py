"""What estimators along a path have in common: precisions, refusals, and forward mode."""

import math

import pytest
import torch
from pathwise_cases import DOUBLE, KINDS, K, N, S, gradients, name, parameters, seeded
from test_pathwise_categorical import CATEGORICAL
from torch import Tensor
from torch.distributions import Categorical, Normal, OneHotCategorical

from igr.distributions import GumbelSoftmax, InvertibleGaussian
from igr.estimators.gapped_straight_through import gapped_straight_through
from igr.estimators.gumbel_rao import gumbel_rao
from igr.estimators.igr_rao import igr_rao
from igr.estimators.reinmax import reinmax
from igr.estimators.reparameterized import reparameterized
from igr.estimators.st_relaxed import st_relaxed
from igr.estimators.sticking_the_landing import sticking_the_landing
from igr.estimators.straight_through import straight_through
from igr.transforms import Planar, StickBreaking

pytestmark = pytest.mark.usefixtures("one_thread")

ALL = {
    reparameterized: ["Bernoulli", "GS", "IGR-I", "IGR-SB"],
    straight_through: ["Bernoulli", "GS", "IGR-I", "IGR-SB"],
    st_relaxed: ["Bernoulli", "GS", "IGR-I", "IGR-SB"],
    gumbel_rao: ["Bernoulli", "GS"],
    igr_rao: ["IGR-I"],
    gapped_straight_through: ["Bernoulli", "GS", "IGR-I", "IGR-SB"],
    reinmax: ["Bernoulli", "GS", "IGR-I", "IGR-SB"],
}


@pytest.mark.parametrize(("estimator", "kind"), [(e, k) for e, kinds in ALL.items() for k in kinds], ids=name)
def test_half_precision_and_reproducibility(estimator, kind):
    parts = [p.detach().bfloat16().requires_grad_() for p in parameters(kind, (5,))]
    shown = []

    def f(z: Tensor) -> Tensor:
        shown.append(z)
        return z.square().flatten(2).sum(-1)

    estimates = [estimator(KINDS[kind][0](*parts), f, num_samples=S, generator=seeded()) for _ in range(2)]
    assert shown[0].dtype == torch.bfloat16
    assert torch.equal(shown[0], shown[1])
    assert torch.equal(estimates[0].value, estimates[1].value)
    assert estimates[0].surrogate.dtype == torch.float32
    for first, again in zip(*[gradients(e.surrogate, parts) for e in estimates], strict=True):
        assert first.isfinite().all()
        assert torch.equal(first, again)


@pytest.mark.parametrize("estimator", [e for e, kinds in ALL.items() if "GS" in kinds], ids=name)
def test_impossible_categories_have_finite_gradients(estimator):
    logits = torch.tensor([[1.0, 2.0, -math.inf], [-math.inf, 0.5, -math.inf]], requires_grad=True)
    q = OneHotCategorical(logits=logits, validate_args=False)
    surrogate = estimator(q, lambda z: z.cumsum(-1).square().sum((-2, -1)), num_samples=S).surrogate
    (g,) = gradients(surrogate, [logits])
    assert g.isfinite().all()
    assert (g[logits.isneginf()] == 0).all()


@pytest.mark.parametrize("estimator", list(ALL), ids=name)
def test_refusals(estimator):
    q = InvertibleGaussian(torch.zeros(5, N, K - 1), 1.0, 0.5)
    q = GumbelSoftmax(0.5, torch.zeros(5, N, K)) if estimator is gumbel_rao else q
    with pytest.raises(ValueError, match=r"f must map samples of shape \(1, 5, 3, 4\).*shape \(1, 5\)"):
        estimator(q, lambda z: z.sum(-1))
    with pytest.raises(ValueError, match="num_samples must be an integer of at least 1"):
        estimator(q, lambda z: z.sum((-2, -1)), num_samples=0)
    with pytest.raises(TypeError, match="q must be a relaxation"):
        estimator(Normal(torch.zeros(3), 1.0), lambda z: z.sum(-1))


def test_refusals_of_options():
    def f(z: Tensor) -> Tensor:
        return z.sum((-2, -1))

    gs, igr = GumbelSoftmax(0.5, torch.zeros(N, K)), InvertibleGaussian(torch.zeros(N, K - 1), 1.0, 0.5)
    flow = InvertibleGaussian(torch.zeros(N, 2), 1.0, 0.5, flow=Planar(torch.ones(2), torch.ones(2)))
    for estimator in (reparameterized, st_relaxed, gumbel_rao):
        with pytest.raises(ValueError, match="temperature is for a discrete q"):
            estimator(gs, f, temperature=0.5)
    for estimator in CATEGORICAL:
        with pytest.raises(ValueError, match="temperature must be positive"):
            estimator(gs, f, temperature=0.0)
        with pytest.raises(ValueError, match="one value per category"):
            estimator(gs, f, temperature=torch.ones(K))
        with pytest.raises(NotImplementedError, match="known through samples only"):
            estimator(flow, f)
    with pytest.raises(ValueError, match="gap must be positive"):
        gapped_straight_through(gs, f, gap=-1.0)
    for q in (igr, flow):
        with pytest.raises(NotImplementedError, match="use igr_rao for IGR-I"):
            gumbel_rao(q, f)
    sticks = InvertibleGaussian(torch.zeros(N, 2), 1.0, 0.5, flow=StickBreaking())
    for q in (gs, flow, sticks, Categorical(torch.ones(N, K))):
        with pytest.raises(NotImplementedError, match="use gumbel_rao for a Gumbel-Softmax"):
            igr_rao(q, f)
    for rao, q in ((gumbel_rao, gs), (igr_rao, igr)):
        for wrong in (0, 1.5, True):
            with pytest.raises(ValueError, match="num_redraws must be an integer of at least 1"):
                rao(q, f, num_redraws=wrong)


FORWARD = {
    "reparameterized": lambda q, f: reparameterized(q, f, num_samples=2),
    "st_relaxed": lambda q, f: st_relaxed(q, f, num_samples=2),
    "straight_through": lambda q, f: straight_through(q, f, num_samples=2),
    "reinmax": lambda q, f: reinmax(q, f, num_samples=2),
    "gumbel_rao": lambda q, f: gumbel_rao(q, f, num_redraws=3),
    "gapped_straight_through": lambda q, f: gapped_straight_through(q, f, gap=0.8),
    "sticking_the_landing": lambda q, f: sticking_the_landing(q, f, GumbelSoftmax(0.7, torch.zeros(K, dtype=DOUBLE))),
}


@pytest.mark.parametrize("name", FORWARD)
def test_forward_mode_has_the_derivatives_of_reverse_mode(name):
    """What counts as constant does so in both."""
    logits, direction = (torch.randn(5, N, K, dtype=DOUBLE) for _ in range(2))

    def surrogate(logits: Tensor) -> Tensor:
        torch.manual_seed(3)
        q = GumbelSoftmax(0.5, logits, validate_args=False)
        return FORWARD[name](q, lambda z: z.cumsum(-1).square().sum((-2, -1)).sin()).surrogate.sum()

    expected = (torch.func.grad(surrogate)(logits) * direction).sum()
    _, found = torch.func.jvp(surrogate, (logits,), (direction,))
    torch.testing.assert_close(found, expected)
    assert found.abs() > 1e-3


def test_redrawn_noise_is_a_constant_in_forward_mode():
    loc, direction = (torch.randn(5, N, K - 1, dtype=DOUBLE) for _ in range(2))

    def surrogate(loc: Tensor) -> Tensor:
        q = InvertibleGaussian(loc, 0.8, 0.5, validate_args=False)
        f = lambda z: z.cumsum(-1).square().sum((-2, -1)).sin()  # noqa: E731
        return igr_rao(q, f, num_redraws=3, generator=seeded()).surrogate.sum()

    expected = (torch.func.grad(surrogate)(loc) * direction).sum()
    torch.testing.assert_close(torch.func.jvp(surrogate, (loc,), (direction,))[1], expected)
    assert expected.abs() > 1e-3


def test_the_gap_is_a_constant_in_forward_mode():
    q, f = Categorical(logits=torch.randn(5, N, K, dtype=DOUBLE)), lambda z: z.cumsum(-1).square().sum((-2, -1)).sin()
    gap = torch.tensor(0.8, dtype=DOUBLE)
    surrogate = lambda gap: gapped_straight_through(q, f, gap=gap, generator=seeded()).surrogate.sum()  # noqa: E731
    assert torch.func.jvp(surrogate, (gap,), (torch.ones_like(gap),))[1] == 0
