"""Torch's contract: attributes, copies, dtypes, devices, and arguments that are refused."""

import copy
import math

import pytest
import torch
from torch.distributions import Dirichlet, Normal, SoftmaxTransform, biject_to, kl_divergence, transform_to

import igr
from igr.distributions import BinaryConcrete, GumbelSoftmax, InvertibleGaussian, InvertibleReparameterization
from igr.transforms import SoftmaxPlusPlus, StickBreaking


def test_attributes():
    loc, scale, tau = torch.randn(4, 9, requires_grad=True), torch.rand(9) + 0.1, torch.full((3, 1, 1), 0.5)
    d = InvertibleGaussian(loc, scale, tau, flow=StickBreaking())
    assert d.batch_shape == (3, 4)
    assert d.event_shape == (10,)
    assert d.loc.shape == d.scale.shape == (3, 4, 9)
    assert torch.equal(d.loc[1], loc)
    assert d.temperature is tau
    assert d.flow == StickBreaking()
    assert d.has_rsample
    assert set(d.arg_constraints) == {"loc", "scale", "temperature", "delta"}
    assert d.rsample().requires_grad
    assert not d.sample().requires_grad
    assert d.expand((2, 3, 4)).sample((5,)).shape == (5, 2, 3, 4, 10)
    assert "StickBreaking" in repr(d)


def test_empty_batches():
    for d in (InvertibleGaussian(torch.zeros(0, 3), 1.0, 0.5), GumbelSoftmax(0.5, torch.zeros(0, 4))):
        z, log_q = d.rsample_and_log_prob((2,))
        assert z.shape == (2, 0, 4)
        assert d.log_prob(z).shape == log_q.shape == (2, 0)
    d = InvertibleGaussian(torch.zeros(0, 3), 1.0, 0.5)
    assert d.kl(d).shape == (0,)


def test_parameters_stay_leaves_and_copies_work():
    loc = torch.nn.Parameter(torch.zeros(4, 3))
    for d in (InvertibleGaussian(loc, torch.ones(4, 3), 0.5), GumbelSoftmax(0.5, loc), BinaryConcrete(0.5, loc)):
        clone = copy.deepcopy(d)
        assert clone.sample().shape == d.sample().shape
    assert InvertibleGaussian(loc, 1.0, 0.5).loc is loc


def test_the_support_can_be_reached_from_the_reals():
    d = InvertibleGaussian(torch.zeros(2), 1.0, 0.5)
    assert d.support.check(biject_to(d.support)(torch.randn(5, 2))).all()
    assert d.support.check(transform_to(d.support)(torch.randn(5, 3))).all()


def test_subclasses_are_named():
    class Mine(InvertibleGaussian):
        pass

    assert repr(Mine(torch.zeros(2), 1.0, 0.5)).startswith("Mine(")


def test_float16_parameters_are_computed_in_float32():
    loc = torch.randn(5, 3).half()
    d = InvertibleGaussian(loc, torch.ones(5, 3).half(), 0.01)
    assert d.loc.dtype == d.sample().dtype == torch.float16
    assert d.log_rsample().dtype == torch.float32
    assert d.kl(InvertibleGaussian(torch.zeros(3).half(), 1.0, 0.01)).dtype == torch.float32


BAD = [
    (lambda: InvertibleGaussian(torch.tensor([math.nan, 0.0]), 1.0, 0.5), ValueError, r"loc must be finite.*\(2,\)"),
    (lambda: InvertibleGaussian(torch.tensor([math.inf, 0.0]), 1.0, 0.5), ValueError, "loc must be finite"),
    (lambda: InvertibleGaussian(torch.zeros(2), torch.tensor([1.0, 0.0]), 0.5), ValueError, "scale must be positive"),
    (
        lambda: InvertibleGaussian(torch.zeros(2), torch.tensor([1.0, math.nan]), 0.5),
        ValueError,
        "scale must be positive",
    ),
    (lambda: InvertibleGaussian(torch.zeros(2), -1.0, 0.5), ValueError, "scale must be positive"),
    (lambda: InvertibleGaussian(torch.zeros(2), 1.0, 0.0), ValueError, "temperature must be positive"),
    (lambda: InvertibleGaussian(torch.zeros(2), 1.0, torch.tensor(-1.0)), ValueError, "temperature must be positive"),
    (lambda: InvertibleGaussian(torch.zeros(2), 1.0, math.nan), ValueError, "temperature must be positive"),
    (lambda: InvertibleGaussian(torch.zeros(4, 2), 1.0, torch.ones(4)), ValueError, r"temperature\.unsqueeze\(-1\)"),
    (lambda: InvertibleGaussian(torch.zeros(2), 1.0, 0.5, delta=0.0), ValueError, "delta must be positive"),
    (lambda: InvertibleGaussian(torch.zeros(2), torch.ones(3), 0.5), ValueError, r"loc \(2,\), scale \(3,\)"),
    (lambda: InvertibleGaussian(torch.zeros(3, 1), torch.ones(3, 4), 0.5), ValueError, "more coordinates than loc"),
    (lambda: InvertibleGaussian(torch.zeros(3, 2), 1.0, torch.ones(4, 1)), ValueError, "do not broadcast"),
    (lambda: InvertibleGaussian(torch.zeros(2, dtype=torch.int64), 1.0, 0.5), TypeError, r"loc\.float\(\)"),
    (lambda: InvertibleGaussian(torch.zeros(2), torch.ones(2, dtype=torch.int64), 0.5), TypeError, r"scale\.float\(\)"),
    (lambda: InvertibleGaussian([0.0, 1.0], 1.0, 0.5), TypeError, "loc must be a floating-point tensor, got a list"),
    (lambda: InvertibleGaussian(torch.zeros(()), 1.0, 0.5), ValueError, "K >= 2"),
    (lambda: InvertibleGaussian(torch.zeros(4, 0), 1.0, 0.5), ValueError, "K >= 2"),
    (lambda: InvertibleGaussian(torch.zeros(2), 1.0, 0.5, flow="planar"), TypeError, "Transform"),
    (lambda: InvertibleGaussian(torch.zeros(2), 1.0, "cold"), TypeError, "temperature must be a number"),
    (lambda: GumbelSoftmax(0.5, torch.zeros(4, 1)), ValueError, "K >= 2"),
    (lambda: GumbelSoftmax(0.5, torch.tensor([0.0, -math.inf])), ValueError, "logits must be finite"),
    (lambda: GumbelSoftmax(0.5, torch.tensor([0.0, -math.inf])), ValueError, "a mask to igr.functional.gumbel_softmax"),
    (lambda: GumbelSoftmax(-0.5, torch.zeros(3)), ValueError, "temperature must be positive"),
    (lambda: GumbelSoftmax(torch.zeros(3), 0.5), TypeError, "logits must be a floating-point tensor"),
    (lambda: GumbelSoftmax(0.5, torch.zeros(3, dtype=torch.int32)), TypeError, r"logits\.float\(\)"),
    (lambda: BinaryConcrete(0.0, torch.zeros(3)), ValueError, "temperature must be positive"),
    (lambda: BinaryConcrete(0.5, torch.tensor(math.nan)), ValueError, "logits must be finite"),
    (lambda: BinaryConcrete(torch.ones(2), torch.zeros(3)), ValueError, "do not broadcast"),
    (lambda: InvertibleReparameterization(Normal(0.0, 1.0), SoftmaxPlusPlus()), ValueError, r"event shape \(K - 1,\)"),
    (lambda: InvertibleReparameterization(Dirichlet(torch.ones(2)), SoftmaxPlusPlus()), ValueError, "on a simplex"),
    (
        lambda: InvertibleReparameterization(GumbelSoftmax(1.0, torch.ones(2)), SoftmaxPlusPlus()),
        ValueError,
        "a simplex",
    ),
    (lambda: InvertibleReparameterization(torch.zeros(3), SoftmaxPlusPlus()), TypeError, "Distribution"),
    (
        lambda: InvertibleReparameterization(torch.distributions.Poisson(torch.ones(3)), SoftmaxPlusPlus()),
        ValueError,
        "reparameterizable",
    ),
    (
        lambda: InvertibleReparameterization(Normal(torch.zeros(3), 1.0), StickBreaking()),
        ValueError,
        "append SoftmaxPlusPlus",
    ),
    (lambda: InvertibleReparameterization(Normal(torch.zeros(3), 1.0), SoftmaxTransform()), ValueError, "bijection"),
    (lambda: InvertibleReparameterization(Normal(torch.zeros(3), 1.0), []), ValueError, "bijection"),
    (lambda: InvertibleGaussian(torch.zeros(3), 1.0, 1.0, flow=SoftmaxPlusPlus()), ValueError, "only the last map"),
    (lambda: InvertibleGaussian(torch.zeros(4, 3), 1.0, torch.ones(5, 1)), ValueError, r"temperature \(5, 1\)"),
    (lambda: BinaryConcrete(True, torch.zeros(3)), TypeError, "temperature must be a floating-point tensor, got True"),
    (lambda: BinaryConcrete("a", torch.zeros(3)), TypeError, "temperature must be"),
]


@pytest.mark.parametrize(("build", "error", "words"), BAD)
def test_bad_input_is_refused_at_construction(build, error, words):
    with pytest.raises(error, match=words):
        build()


def test_values_are_unchecked_on_request_but_types_are_not():
    d = InvertibleGaussian(torch.tensor([math.nan]), 1.0, 0.5, validate_args=False)
    assert d.sample().isnan().any()
    with pytest.raises(TypeError, match="loc"):
        InvertibleGaussian(torch.zeros(2, dtype=torch.int64), 1.0, 0.5, validate_args=False)


@pytest.mark.parametrize("name", ["mean", "variance", "entropy"])
@pytest.mark.parametrize(
    "q", [igr.GumbelSoftmax(0.5, torch.zeros(3)), igr.InvertibleGaussian(torch.zeros(2), 1.0, 0.5)], ids=["gs", "igr-i"]
)
def test_moments_without_a_closed_form_say_what_there_is(q, name):
    with pytest.raises(NotImplementedError, match=rf"the {name} of {type(q).__name__}.* has no closed form: use "):
        getattr(q, name)() if name == "entropy" else getattr(q, name)


def test_on_the_meta_device():
    """Shapes without numbers, as of models that are yet to be loaded."""
    loc = torch.zeros(4, 3, device="meta")
    for d in (InvertibleGaussian(loc, 1.0, 0.5), GumbelSoftmax(0.5, loc)):
        K = d.event_shape[0]
        for z in (d.rsample((2,)), d.hard_rsample((2,)), d.log_rsample((2,))):
            assert (z.shape, z.device.type) == ((2, 4, K), "meta")
        assert d.rsample_and_log_prob()[1].shape == (4,)
        assert d.recovered().probs.shape == (4, K)
    assert kl_divergence(InvertibleGaussian(loc, 1.0, 0.5), InvertibleGaussian(loc, 2.0, 0.5)).shape == (4,)
