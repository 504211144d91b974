"""The correctness kit passes what is right and fails what is broken, naming the property that broke."""

import math
import subprocess
import sys

import pytest
import torch
from torch.distributions import (
    AffineTransform,
    Cauchy,
    ComposeTransform,
    Laplace,
    MultivariateNormal,
    StickBreakingTransform,
    StudentT,
    Transform,
    constraints,
)

from igr.distributions import BinaryConcrete, GumbelSoftmax, InvertibleGaussian, InvertibleReparameterization
from igr.functional import straight_through
from igr.nn import PlanarFlow
from igr.testing import check_distribution, check_transform
from igr.transforms import Planar, SoftmaxPlusPlus, StickBreaking, VertexInterpolation


def real(*values):
    return torch.tensor(values, dtype=torch.float64)


LOC = real(0.3, -0.4)
U, W = real(1.0, 0.5), real(0.3, -1.0)


class Shear(Transform):
    """A user's own map of the plane: (a, b) to (a, b / 2 + a²)."""

    domain = codomain = constraints.real_vector
    bijective = True

    def __eq__(self, other):
        return isinstance(other, Shear)

    def _call(self, x):
        a, b = x.unbind(-1)
        return torch.stack([a, b / 2 + a.square()], -1)

    def _inverse(self, y):
        a, b = y.unbind(-1)
        return torch.stack([a, 2 * (b - a.square())], -1)

    def log_abs_det_jacobian(self, x, y):
        return x.new_full(x.shape[:-1], -math.log(2))


@pytest.mark.parametrize(
    "transform",
    [
        SoftmaxPlusPlus(),
        SoftmaxPlusPlus(0.01),
        SoftmaxPlusPlus(0.3, delta=0.2),
        VertexInterpolation(0.3),
        VertexInterpolation(1.0),
        StickBreaking(),
        StickBreaking(leftover=False),
        Planar(U, W, 0.2),
        ComposeTransform([Planar(U, W), StickBreaking(), SoftmaxPlusPlus(0.5)]),
        Shear(),
        ComposeTransform([Shear(), SoftmaxPlusPlus(0.5)]),
        StickBreakingTransform(),
        AffineTransform(real(1.0, -2.0, 0.5), real(0.5, 3.0, -1.0), event_dim=1),
    ],
    ids=str,
)
def test_transforms_pass_on_default_points(transform):
    check_transform(transform)
    check_transform(transform, seed=1)


@pytest.mark.parametrize(
    "transform",
    [
        SoftmaxPlusPlus(torch.linspace(0.3, 1, 4, dtype=torch.float64).unsqueeze(-1)),
        Planar(real(1.0), real(-0.5)),
        PlanarFlow(4).double()(),
    ],
    ids=["per row", "K = 2", "parameters that are trained"],
)
def test_default_points_fit_the_transform(transform):
    check_transform(transform)


def test_points_may_be_given():
    check_transform(SoftmaxPlusPlus(0.5), torch.randn(5, 2, 9, dtype=torch.float64))
    check_transform(Planar(U, W), torch.randn(5, 2, dtype=torch.float64))


# transforms that are broken, with the property that says so


class WithoutLogK(StickBreaking):
    def _ladj(self, log_w):
        return log_w.sum(-1)


class FlippedSign(Planar):
    def log_abs_det_jacobian(self, x, y):
        return -super().log_abs_det_jacobian(x, y)


class WithoutLastCoordinate(SoftmaxPlusPlus):
    def ladj(self, y, log_z):
        return super().ladj(y, log_z) - log_z[..., -1]


class WithoutTau(SoftmaxPlusPlus):
    def ladj(self, y, log_z):
        return log_z.sum(-1)


class WrongInverse(SoftmaxPlusPlus):
    def _inverse(self, z):
        return super()._inverse(z) + self.tau * math.log(2)


class WrongLogInverse(SoftmaxPlusPlus):
    def log_inverse(self, log_z):
        return super().log_inverse(log_z) + self.tau * math.log(2)


class NoInverse(Shear):
    def _inverse(self, y):
        raise NotImplementedError


class ForwardShapeOfTheInput(SoftmaxPlusPlus):
    def forward_shape(self, shape):
        return torch.Size(shape)


class InverseShapeOfTheInput(SoftmaxPlusPlus):
    def inverse_shape(self, shape):
        return torch.Size(shape)


class PerCoordinate(Shear):
    def log_abs_det_jacobian(self, x, y):
        return super().log_abs_det_jacobian(x, y).unsqueeze(-1) * x.new_tensor([0.0, 1.0])


class OffTheSimplex(SoftmaxPlusPlus):
    def _call(self, y):
        return super()._call(y) * (1 + 1e-9)


class ByIdentity(SoftmaxPlusPlus):
    __eq__ = object.__eq__
    __hash__ = object.__hash__


class EqualToAll(Shear):
    def __eq__(self, other):
        return True


class TwoStories(Planar):
    def call_and_ladj(self, y):
        x, ladj = super().call_and_ladj(y)
        return x, 2 * ladj

    def log_abs_det_jacobian(self, x, y):
        return super().call_and_ladj(x)[1]


class Overflows(SoftmaxPlusPlus):
    def _call(self, y):
        e = torch.nn.functional.pad((y / self.tau).exp(), (0, 1), value=1.0)
        return e / e.sum(-1, keepdim=True)


class Detached(SoftmaxPlusPlus):
    def _call(self, y):
        return super()._call(y.detach())


class DetachedLogDeterminant(SoftmaxPlusPlus):
    def ladj(self, y, log_z):
        return super().ladj(y, log_z.detach())


class HalfDetachedLogDeterminant(SoftmaxPlusPlus):
    def ladj(self, y, log_z):
        return super().ladj(y, torch.cat([log_z[..., :-1], log_z[..., -1:].detach()], -1))


class InverseOfShear(Shear):
    _call, _inverse = Shear._inverse, Shear._call


class WrongInverseLogDeterminant(Shear):
    inv = InverseOfShear()  # whose log-determinant should have the other sign


class Nameless(Shear):
    def __repr__(self):
        return "a map"


BROKEN_TRANSFORMS = [
    (ForwardShapeOfTheInput(), "shapes"),
    (InverseShapeOfTheInput(), "shapes"),
    (PerCoordinate(), "shapes"),
    (OffTheSimplex(), "codomain"),
    (WrongInverse(0.5), "round trip"),
    (WrongLogInverse(0.5), "round trip"),
    (NoInverse(), "round trip"),
    (WithoutLogK(), "log-determinant"),
    (FlippedSign(U, W), "log-determinant"),
    (WithoutLastCoordinate(0.5), "log-determinant"),
    (WithoutTau(0.5), "log-determinant"),
    (WithoutTau(0.01), "log-determinant"),
    (Detached(0.5), "log-determinant"),
    (WrongInverseLogDeterminant(), "inverse log-determinant"),
    (TwoStories(U, W), "one pass"),
    (Overflows(0.3), "finite"),
    (DetachedLogDeterminant(0.5), "gradients"),
    (HalfDetachedLogDeterminant(0.5), "gradients"),
    (ByIdentity(0.5), "equality"),
    (EqualToAll(), "equality"),
    (Nameless(), "repr"),
]


def kind(value):
    return value if isinstance(value, str) else type(value).__name__


def failure(check, *args, **options):
    """The message of the failure."""
    with pytest.raises(AssertionError) as caught:
        check(*args, **options)
    return str(caught.value)


@pytest.mark.parametrize(("transform", "name"), BROKEN_TRANSFORMS, ids=kind)
def test_broken_transforms_fail(transform, name):
    assert f"property '{name}' fails for {transform!r}: " in failure(check_transform, transform)


def test_every_property_of_transforms_can_fail():
    assert [*dict.fromkeys(name for _, name in BROKEN_TRANSFORMS)] == [
        "shapes",
        "codomain",
        "round trip",
        "log-determinant",
        "inverse log-determinant",
        "one pass",
        "finite",
        "gradients",
        "equality",
        "repr",
    ]


def test_properties_can_be_skipped():
    check_transform(WithoutTau(0.5), skip=["log-determinant", "equality"])  # a subclass is equal only to itself
    assert "property 'gradients'" in failure(check_transform, DetachedLogDeterminant(0.5), skip=["equality", "repr"])
    check_distribution(Unnormalised(LOC, 1.0, 0.5), skip=("integral",))


@pytest.mark.parametrize("check", [check_transform, check_distribution])
def test_skipping_what_does_not_exist(check):
    subject = {check_transform: Shear(), check_distribution: InvertibleGaussian(LOC, 1.0, 0.5)}[check]
    with pytest.raises(ValueError, match=r"'log determinant'.* shapes, "):
        check(subject, skip=["log determinant"])


# distributions


def igr(cls=InvertibleGaussian, loc=LOC, scale=1.0, temperature=0.5, **options):
    return cls(loc, scale, temperature, **options)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.1])
def test_distributions_pass(temperature):
    loc, scale = LOC.clone().requires_grad_(), real(0.8, 1.3).requires_grad_()
    other = igr(loc=real(0.0, 0.0), temperature=0.3)
    q = InvertibleGaussian(loc, scale, temperature)
    check_distribution(q, other=other, parameters=[loc, scale])
    check_distribution(InvertibleGaussian(loc, scale, temperature, flow=StickBreaking()), parameters=[loc, scale])
    check_distribution(GumbelSoftmax(temperature, loc), parameters=[loc])
    check_distribution(BinaryConcrete(temperature, loc), parameters=[loc])


@pytest.mark.parametrize(
    "d",
    [
        InvertibleReparameterization(
            Laplace(real(0.3, -0.4), real(0.8, 0.6)), [StickBreaking(), SoftmaxPlusPlus(0.5, 0.7)]
        ),
        InvertibleReparameterization(
            MultivariateNormal(real(0.3, -0.4), real([1.0, 0.5], [0.5, 2.0])), VertexInterpolation(0.4)
        ),
        InvertibleReparameterization(StudentT(4.0, real(0.3, -0.4), real(0.8, 0.6)), VertexInterpolation(0.4)),
        InvertibleReparameterization(Cauchy(real(0.3, -0.4), real(0.8, 0.6)), SoftmaxPlusPlus(0.5)),
    ],
    ids=["laplace", "multivariate normal", "student", "cauchy"],
)
def test_densities_with_edges_or_heavy_tails_pass(d):
    check_distribution(d)


class Unnormalised(InvertibleGaussian):
    """log K too much, in both ways of asking for the density."""

    def _log_density(self, log_z):
        return super()._log_density(log_z) + math.log(3)

    def log_rsample_and_log_prob(self, sample_shape=(), *, generator=None):
        log_z, log_q = super().log_rsample_and_log_prob(sample_shape, generator=generator)
        return log_z, log_q + math.log(3)


class UnnormalisedSamples(Unnormalised):
    _log_density = InvertibleGaussian._log_density


class UnnormalisedDensity(Unnormalised):
    log_rsample_and_log_prob = InvertibleGaussian.log_rsample_and_log_prob


class UnnormalisedLogProb(InvertibleGaussian):
    def log_prob(self, value):
        return super().log_prob(value) + math.log(3)


class Wider(InvertibleGaussian):
    """Samples with another scale than the density, scored by the density."""

    def _scores(self, sample_shape, generator):
        return self.loc + 1.5 * (super()._scores(sample_shape, generator) - self.loc)

    def log_rsample_and_log_prob(self, sample_shape=(), *, generator=None):
        log_z = self.log_rsample(sample_shape, generator=generator)
        return log_z, self._log_density(log_z)


class Shifted(Wider):
    def _scores(self, sample_shape, generator):
        return InvertibleGaussian._scores(self, sample_shape, generator) + 0.1


class AnotherRsample(InvertibleGaussian):
    def _relax(self, scores):
        return super()._relax(scores + 0.1)


class OffSimplex(InvertibleGaussian):
    def _relax(self, scores):
        return super()._relax(scores) * (1 + 1e-9)


class NoExpand(InvertibleGaussian):
    def expand(self, batch_shape, _instance=None):
        return self


class ForgetsOnExpand(InvertibleGaussian):
    def expand(self, batch_shape, _instance=None):
        return igr(loc=torch.zeros(*batch_shape, 2, dtype=torch.float64))


class NanAtVertex(InvertibleGaussian):
    def log_prob(self, value):
        return super().log_prob(value) + 0.0 / value.amin(-1)


class SoftHardSample(InvertibleGaussian):
    def _harden(self, scores):
        return super()._harden(scores) * 0.99


class TwoHot(InvertibleGaussian):
    def _harden(self, scores):
        return torch.ones_like(super()._harden(scores))


class NoStraightThrough(InvertibleGaussian):
    def hard_rsample(self, sample_shape=(), *, generator=None):
        return super().hard_rsample(sample_shape, generator=generator).detach()


class AnotherStraightThrough(InvertibleGaussian):
    def hard_rsample(self, sample_shape=(), *, generator=None):
        scores = self._scores(sample_shape, generator)
        return straight_through(self._harden(scores), 2 * self._relax(scores))


class AnotherLimit(InvertibleGaussian):
    def _recovered_log_probs(self):
        return super()._recovered_log_probs().roll(1, -1)


class ShapelessLimit(InvertibleGaussian):
    def _recovered_log_probs(self):
        return super()._recovered_log_probs().expand(2, 3)


class TwiceTheKL(InvertibleGaussian):
    def kl(self, other):
        return 2 * super().kl(other)


class MoreKL(InvertibleGaussian):
    def kl(self, other):
        return super().kl(other) + 1e-3


BROKEN_DISTRIBUTIONS = [
    (igr(NoExpand), "shapes"),
    (igr(ForgetsOnExpand), "shapes"),
    (igr(OffSimplex), "support"),
    (igr(UnnormalisedSamples), "own density"),
    (igr(UnnormalisedDensity), "own density"),
    (igr(UnnormalisedLogProb), "own density"),
    (igr(AnotherRsample), "own density"),
    (igr(Unnormalised), "integral"),
    (igr(Unnormalised, temperature=0.1), "integral"),
    (igr(flow=WithoutLogK()), "integral"),
    (igr(flow=FlippedSign(U, W)), "own density"),
    (igr(Shifted), "integral"),
    (igr(Wider), "integral"),
    (igr(Wider, temperature=0.1), "integral"),
    (igr(Wider, loc=real(0.0)), "integral"),  # the mean is the same, the law is not
    (igr(NanAtVertex), "never NaN"),
    (igr(SoftHardSample), "hard samples"),
    (igr(TwoHot), "hard samples"),
    (igr(NoStraightThrough, loc=LOC.clone().requires_grad_()), "hard samples"),
    (igr(AnotherStraightThrough, loc=LOC.clone().requires_grad_()), "hard samples"),
    (igr(AnotherLimit), "recovered"),
    (igr(ShapelessLimit), "recovered"),
    (igr(TwiceTheKL), "KL"),
    (igr(MoreKL), "KL"),
]


@pytest.mark.parametrize(("d", "name"), BROKEN_DISTRIBUTIONS, ids=kind)
def test_broken_distributions_fail(d, name):
    other = igr(loc=torch.zeros_like(d.loc), scale=0.5)
    assert f"property '{name}' fails for {d!r}: " in failure(check_distribution, d, other=other)


def test_kl_to_itself_needs_no_other():
    assert "property 'KL'" in failure(check_distribution, igr(MoreKL))


def leaves():
    return LOC.clone().requires_grad_(), real(0.8, 1.3).requires_grad_()


def test_detached_parameters_fail():
    loc, scale = leaves()
    for d, parameters in (
        (igr(loc=loc.detach(), scale=scale), [loc, scale]),
        (igr(loc=loc, scale=scale.detach()), [loc, scale]),
        (igr(loc=loc.detach(), scale=scale.detach()), [loc]),
    ):
        message = failure(check_distribution, d, parameters=parameters)
        assert f"property 'gradients' fails for {d!r}: " in message


@pytest.mark.parametrize("factor", [0.0, math.inf])
def test_useless_gradients_fail(factor):
    loc, scale = leaves()
    scale.register_hook(lambda gradient: factor * gradient)
    d = igr(loc=loc, scale=scale)
    message = failure(check_distribution, d, parameters=[loc, scale], skip=["hard samples"])
    assert f"property 'gradients' fails for {d!r}: parameter 1 " in message


def test_python_that_leaves_out_assertions_is_refused():
    code = "import igr; igr.testing.check_transform(igr.SoftmaxPlusPlus(0.5))"
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith(
        "RuntimeError: python -O leaves out what igr.testing asserts; run the checks without it\n"
    )


# randomness


@pytest.mark.parametrize(
    ("check", "subject"),
    [(check_transform, SoftmaxPlusPlus(0.5)), (check_distribution, igr())],
    ids=["transform", "distribution"],
)
def test_global_generator_is_left_as_it_was(check, subject):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    check(subject)
    assert torch.equal(torch.get_rng_state(), state)


def test_global_generator_is_left_as_it_was_by_a_failure():
    state = torch.get_rng_state()
    failure(check_distribution, igr(Unnormalised))
    assert torch.equal(torch.get_rng_state(), state)


def test_outcome_depends_on_the_seed_alone():
    messages = set()
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        messages.add(failure(check_distribution, igr(Shifted), seed=3))
    assert len(messages) == 1
    assert failure(check_distribution, igr(Shifted), seed=4) not in messages
