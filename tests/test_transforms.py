import copy
import math

import mpmath
import pytest
import torch
import zuko
from registry import TRANSFORMS, Setting, cases, label
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import AffineTransform, ComposeTransform, TransformedDistribution

from igr._planar import solve
from igr.distributions import InvertibleGaussian, InvertibleReparameterization
from igr.testing import check_transform
from igr.transforms import Planar, SoftmaxPlusPlus, StickBreaking, VertexInterpolation, call_and_ladj, simplex

DOUBLE = torch.float64


@pytest.mark.parametrize(("name", "setting"), cases(TRANSFORMS), ids=label)
def test_properties(name: str, setting: Setting):
    transform = TRANSFORMS[name](setting)
    x = torch.randn(8, *setting.batch, setting.K - 1, dtype=DOUBLE).clamp(-3, 3)
    check_transform(transform, x)


def mpmath_ladj(f, y: list[float], n: int) -> float:
    """log |det| of the first n coordinates by central differences with hundreds of digits."""
    with mpmath.workdps(900):
        h = mpmath.mpf(10) ** -250
        point = [mpmath.mpf(v) for v in y]
        jacobian = mpmath.matrix(n, n)
        for j in range(n):
            up, down = list(point), list(point)
            up[j], down[j] = up[j] + h, down[j] - h
            for i, (a, b) in enumerate(zip(f(up)[:n], f(down)[:n], strict=True)):
                jacobian[i, j] = (a - b) / (2 * h)
        return float(mpmath.log(abs(mpmath.det(jacobian))))


def mpmath_softmaxpp(y, tau, delta):
    weights = [mpmath.exp(v / tau) for v in y]
    total = sum(weights) + delta
    return [w / total for w in weights]


def mpmath_sticks(y):
    u = [1 / (1 + mpmath.exp(-v)) for v in y]
    w, rest = [], mpmath.mpf(1)
    for x in u:
        w.append(x * rest)
        rest *= 1 - x
    return [*w, rest]


@pytest.mark.parametrize("delta", [1.0, 0.25])
@pytest.mark.parametrize("tau", [0.1, 0.01])
def test_softmaxpp_log_determinant_where_autograd_underflows(tau: float, delta: float):
    y = [2.3, -1.7, 0.4]
    expected = mpmath_ladj(lambda v: mpmath_softmaxpp(v, mpmath.mpf(tau), mpmath.mpf(delta)), y, 3)
    x = torch.tensor(y, dtype=DOUBLE)
    g = SoftmaxPlusPlus(tau, delta)
    assert g.log_abs_det_jacobian(x, g(x)).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("leftover", [True, False])
def test_stick_breaking_log_determinant_in_the_far_tail(leftover: bool):
    y = [-40.0, 35.0, 3.0]

    def f(v):
        w = mpmath_sticks(v)
        return [x - w[-1] if leftover else x for x in w[:-1]]

    x = torch.tensor(y, dtype=DOUBLE)
    t = StickBreaking(leftover)
    assert t.log_abs_det_jacobian(x, t(x)).item() == pytest.approx(mpmath_ladj(f, y, 3), rel=1e-12)


def test_leftover_makes_every_stick_compete():
    y = torch.randn(2000, 3, dtype=DOUBLE)
    w = torch.tensor([[float(x) for x in mpmath_sticks(row)] for row in y.tolist()], dtype=DOUBLE)
    winners = w.argmax(-1)
    assert (winners == 3).any()  # the leftover does win
    assert torch.equal(SoftmaxPlusPlus(0.01).harden(StickBreaking()(y)).argmax(-1), winners)
    literal = SoftmaxPlusPlus(0.01).harden(StickBreaking(leftover=False)(y)).argmax(-1)
    assert torch.equal(literal, w[:, :-1].argmax(-1))  # and in the literal form it never does


@pytest.mark.parametrize(
    "transform",
    [
        SoftmaxPlusPlus(0.01),
        SoftmaxPlusPlus(0.3, delta=1e-3),
        StickBreaking(),
        StickBreaking(leftover=False),
        VertexInterpolation(0.1),
    ],
    ids=str,
)
def test_round_trips_where_representable(transform):
    y = 2 * torch.randn(4000, 9, dtype=DOUBLE)
    z = transform(y)
    kept = z.amin(-1) > 1e-300 if isinstance(transform, SoftmaxPlusPlus) else min_stick(y) > 1e-6
    assert kept.sum() > 50
    torch.testing.assert_close(transform.inv(z)[kept], y[kept], rtol=1e-9, atol=1e-9)


def min_stick(y: torch.Tensor) -> torch.Tensor:
    u = y.sigmoid()
    rest = torch.cat([torch.ones_like(u[..., :1]), (1 - u).cumprod(-1)], -1)
    return torch.cat([u * rest[..., :-1], rest[..., -1:]], -1).amin(-1)


def random_planar(wu: torch.Tensor, size: int = 4) -> Planar:
    """Planar flows with these values of wᵀu."""
    w, u = torch.randn(len(wu), size, dtype=DOUBLE), torch.randn(len(wu), size, dtype=DOUBLE)
    u = u + ((wu - (w * u).sum(-1)) / (w * w).sum(-1)).unsqueeze(-1) * w
    return Planar(u, w, torch.randn(len(wu), dtype=DOUBLE))


def test_planar_round_trip():
    flow = random_planar(torch.linspace(-0.9, 20.0, 500, dtype=DOUBLE))
    y = 3 * torch.randn(500, 4, dtype=DOUBLE)
    torch.testing.assert_close(flow.inv(flow(y)), y, rtol=1e-9, atol=1e-9)


def test_planar_is_the_printed_formula_where_that_is_invertible():
    flow = random_planar(torch.linspace(0.0, 5.0, 50, dtype=DOUBLE))
    y = torch.randn(50, 4, dtype=DOUBLE)
    t = torch.einsum("nk,nk->n", flow.w, y) + flow.b
    torch.testing.assert_close(flow(y), y + flow.u * t.tanh().unsqueeze(-1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_planar_is_invertible_for_every_parameter(dtype: torch.dtype):
    wu = -torch.logspace(-3, 4, 200, dtype=DOUBLE)
    flow = random_planar(wu)
    flow = Planar(flow.u.to(dtype), flow.w.to(dtype), flow.b.to(dtype))
    u_hat, constrained = flow.constrained()
    assert (1 + constrained >= 0.9e-6).all()
    direct = torch.einsum("nk,nk->n", flow.w.double(), u_hat.double())
    rounding = 4 * torch.finfo(dtype).eps * flow.w.norm(dim=-1) * u_hat.norm(dim=-1)
    assert ((direct - constrained).abs() <= rounding).all()
    ladj = flow.log_abs_det_jacobian(*[torch.randn(200, 4, dtype=dtype)] * 2)
    assert ladj.isfinite().all()


def test_planar_inverse_converges_at_the_edge_of_the_admissible():
    wu = torch.logspace(-3, 8, 300, dtype=DOUBLE)
    flow = random_planar(torch.cat([-wu, wu]))  # constrained, from almost -1 to huge
    x = torch.randn(50, 600, 4, dtype=DOUBLE) * torch.logspace(-6, 4, 50, dtype=DOUBLE).reshape(-1, 1, 1)
    y = flow.inv(x)
    assert y.isfinite().all()
    u_hat, slope = flow.constrained()
    size = (1 + x.norm(dim=-1) + u_hat.norm(dim=-1)) * (
        1 + slope.clamp(min=0)
    )  # a rounding of y is multiplied by the slope
    assert ((flow(y) - x).norm(dim=-1) / size).max() < 1e-14


def test_planar_equation_is_solved_on_both_sides_of_zero():
    size, c = torch.logspace(-8, 4, 100, dtype=DOUBLE).unsqueeze(-1), torch.logspace(-6, 4, 100, dtype=DOUBLE) - 1
    for r in (size, -size):
        t = solve(r, c)
        assert ((t + c * t.tanh() - r).abs() <= 1e-14 * (r.abs() + c.abs() * t.tanh().abs())).all()


def test_the_constraint_of_planar_flows_has_the_gradient_of_its_value():
    flow = random_planar(torch.tensor([-3.0, -0.95, -0.3, 0.4, 0.9, 2.0], dtype=DOUBLE))
    assert gradcheck(lambda u, w: Planar(u, w).constrained(), (flow.u.requires_grad_(), flow.w.requires_grad_()))


def test_planar_is_safe_at_zero():
    u = torch.tensor([0.7, -0.3], dtype=DOUBLE, requires_grad=True)
    w = torch.zeros(2, dtype=DOUBLE, requires_grad=True)
    b = torch.tensor(0.4, dtype=DOUBLE, requires_grad=True)
    y = torch.randn(5, 2, dtype=DOUBLE)
    flow = Planar(u, w, b)
    torch.testing.assert_close(flow(y), y + u * math.tanh(0.4))
    x, ladj = call_and_ladj(flow, y)
    gradients = torch.autograd.grad(x.sum() + ladj.sum() + flow.inv(x).sum(), (u, w, b))
    assert all(g.isfinite().all() for g in gradients)
    near = Planar(u, w + 1e-9, b)  # and continuous there
    torch.testing.assert_close(near(y), flow(y), rtol=0, atol=1e-8)


@pytest.mark.parametrize("size", [1e-2, 1e-5, 1e-8, 1e-15, 1e-25])
def test_planar_gradients_do_not_cancel_near_zero(size: float):
    # with exact arithmetic: û = u + (m(x) - x) w / |w|², x = w'u < 0
    u, w, y = [0.8, -1.3], [-1.1 * size, 0.4 * size], [0.3, 0.9]

    def first(w0):
        weights = [w0, mpmath.mpf(w[1])]
        x = weights[0] * u[0] + weights[1] * u[1]
        bound = 1 - mpmath.mpf("1e-6")
        factor = (bound * mpmath.expm1(x / bound) - x) / (weights[0] ** 2 + weights[1] ** 2)
        u_hat = [a + factor * b for a, b in zip(u, weights, strict=True)]
        t = mpmath.tanh(weights[0] * y[0] + weights[1] * y[1] + mpmath.mpf("0.5"))
        return (y[0] + u_hat[0] * t) + 2 * (y[1] + u_hat[1] * t)

    with mpmath.workdps(120):
        h = mpmath.mpf(size) * mpmath.mpf(10) ** -30
        expected = float((first(mpmath.mpf(w[0]) + h) - first(mpmath.mpf(w[0]) - h)) / (2 * h))
    for dtype, tolerance in ((torch.float32, 1e-5), (DOUBLE, 1e-12)) if size > 1e-18 else ((DOUBLE, 1e-12),):
        weights = torch.tensor(w, dtype=dtype, requires_grad=True)
        x = Planar(torch.tensor(u, dtype=dtype), weights, 0.5)(torch.tensor(y, dtype=dtype))
        (gradient,) = torch.autograd.grad(x[0] + 2 * x[1], weights)
        assert gradient[0].item() == pytest.approx(expected, rel=tolerance)


def test_planar_inverse_has_implicit_gradients():
    flow = random_planar(torch.tensor([-3.0, -0.5, 2.0], dtype=DOUBLE))
    parameters = [p.clone().requires_grad_() for p in (flow.u, flow.w, flow.b)]
    x = torch.randn(3, 4, dtype=DOUBLE, requires_grad=True)

    def inverse(x, u, w, b):
        return Planar(u, w, b).inv(x)

    assert gradcheck(inverse, (x, *parameters))
    assert gradgradcheck(inverse, (x, *parameters))


def test_planar_flows_nest():
    layers = [random_planar(torch.tensor([v], dtype=DOUBLE)) for v in (-2.0, 0.5, 3.0)]
    check_transform(ComposeTransform([*layers, SoftmaxPlusPlus(0.5)]), torch.randn(6, 1, 4, dtype=DOUBLE))


def test_half_precision_log_determinants_are_float32():
    tau, y = torch.tensor([[0.1]], dtype=torch.bfloat16), torch.randn(5, 4).bfloat16()
    for half, wide in (
        (VertexInterpolation(tau), VertexInterpolation(tau.float())),
        (SoftmaxPlusPlus(tau), SoftmaxPlusPlus(tau.float())),
    ):
        ladj = half.log_abs_det_jacobian(y, half(y))
        torch.testing.assert_close(ladj, wide.log_abs_det_jacobian(y.float(), wide(y.float())), rtol=1e-6, atol=1e-6)


def test_vertex_interpolation_reaches_disjoint_pieces():
    y = 2 * torch.randn(1000, 2, dtype=DOUBLE)
    g = VertexInterpolation(0.25)
    assert g.codomain.check(g(y)).all()
    assert (g(y).amax(-1) > 0.75).all()  # τ w + 1 - τ at the nearest vertex
    centre = torch.full((3,), 1 / 3, dtype=DOUBLE)
    assert not g.codomain.check(centre)
    assert VertexInterpolation(1.0).codomain.check(centre.add(torch.tensor([1e-3, -1e-3, 0.0], dtype=DOUBLE)))


@pytest.mark.parametrize("shape", [(5, 1), (5, 3), ()])
def test_planar_refuses_vectors_of_another_length(shape):
    flow = Planar(u=torch.ones(2), w=torch.ones(2))
    for way in (flow, flow.inv, flow.call_and_ladj):
        with pytest.raises(ValueError, match="Planar maps vectors of length 2, got shape"):
            way(torch.zeros(shape))


def test_images_print():
    assert repr(VertexInterpolation(0.25).codomain) == "NearVertices(tau=0.25)"
    assert repr(StickBreaking(leftover=False).codomain) == "Sticks(leftover=False)"
    assert repr(SoftmaxPlusPlus(0.5).codomain) == "Simplex()"


EQUAL = [
    (SoftmaxPlusPlus(0.5, 2.0), SoftmaxPlusPlus(0.5, 2.0), SoftmaxPlusPlus(0.5, 1.0)),
    (
        SoftmaxPlusPlus(torch.tensor([[0.5], [1.0]])),
        SoftmaxPlusPlus(torch.tensor([[0.5], [1.0]])),
        SoftmaxPlusPlus(0.5),
    ),
    (SoftmaxPlusPlus(0.1), SoftmaxPlusPlus(torch.tensor(0.1)), SoftmaxPlusPlus(torch.tensor(0.2))),
    (StickBreaking(), StickBreaking(), StickBreaking(leftover=False)),
    (VertexInterpolation(0.5), VertexInterpolation(0.5), SoftmaxPlusPlus(0.5)),
    (
        Planar(torch.ones(2), torch.ones(2), 0.5),
        Planar(torch.ones(2), torch.ones(2), 0.5),
        Planar(torch.ones(2), torch.ones(2), 0.4),
    ),
]


@pytest.mark.parametrize(("one", "same", "other"), EQUAL, ids=str)
def test_equality_is_by_value(one, same, other):
    assert one == same
    assert one == copy.deepcopy(one)
    assert one != other
    assert ComposeTransform([StickBreaking(), one]) == ComposeTransform([StickBreaking(), same])


@pytest.mark.parametrize("t", [case[0] for case in EQUAL], ids=str)
def test_caching_follows_torch(t):
    cached = t.with_cache(1)
    assert cached == t
    y = torch.randn(2, 2)
    assert cached.inv(cached(y)) is y


def test_shapes_are_inferred_and_refused():
    tau = torch.full((4, 1), 0.5)
    assert SoftmaxPlusPlus(tau).forward_shape((9,)) == (4, 10)
    assert SoftmaxPlusPlus(tau).inverse_shape((3, 4, 10)) == (3, 4, 9)
    assert StickBreaking().forward_shape((2, 9)) == (2, 9)
    assert Planar(torch.ones(5, 1, 3), torch.ones(3), torch.zeros(2)).forward_shape((3,)) == (5, 2, 3)
    with pytest.raises(ValueError, match="do not broadcast"):
        SoftmaxPlusPlus(tau).forward_shape((3, 9))
    with pytest.raises(ValueError, match="length 3"):
        Planar(torch.ones(3), torch.ones(3)).forward_shape((4,))
    with pytest.raises(ValueError, match="last axis"):
        SoftmaxPlusPlus().inverse_shape((1,))


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda: SoftmaxPlusPlus(0.0), ValueError, "tau must be positive"),
        (lambda: SoftmaxPlusPlus(1.0, delta=-1.0), ValueError, "delta must be positive"),
        (lambda: SoftmaxPlusPlus(torch.ones(4)), ValueError, r"tau\.unsqueeze"),
        (lambda: SoftmaxPlusPlus("1"), TypeError, "tau must be a number"),
        (lambda: SoftmaxPlusPlus(torch.ones(4, 1, dtype=torch.int64)), TypeError, r"tau\.float"),
        (lambda: VertexInterpolation(1.5), ValueError, r"tau must be in \(0, 1\]"),
        (lambda: Planar(torch.ones(3), torch.ones(2)), ValueError, "same last axis"),
        (lambda: Planar(torch.ones(3), [1.0, 2.0, 3.0]), TypeError, "w must be a floating-point tensor"),
        (lambda: Planar(torch.ones(5, 3), torch.ones(4, 3)), ValueError, "do not broadcast"),
        (lambda: Planar(torch.tensor([math.nan]), torch.ones(1)), ValueError, "u must be finite"),
        (lambda: Planar(torch.ones(1), torch.ones(1), math.nan), ValueError, "b must be finite"),
        (lambda: Planar(torch.ones(1), torch.ones(1), None), TypeError, "b must be a floating-point tensor"),
    ],
)
def test_bad_parameters_are_refused(build, error, words):
    with pytest.raises(error, match=words):
        build()


def test_simplex_tolerance_scales_with_dtype_and_size():
    for dtype in (torch.bfloat16, torch.float16, torch.float32, DOUBLE):
        for K in (2, 10, 1000, 50_000):
            z = torch.randn(20, K, dtype=DOUBLE if dtype == DOUBLE else torch.float32).softmax(-1).to(dtype)
            assert simplex.check(z).all()
    z = torch.tensor([0.3, 0.3, 0.4], dtype=DOUBLE)
    assert simplex.check(z)
    assert not simplex.check(z + 1e-6)
    assert not simplex.check(torch.tensor([-0.1, 0.6, 0.5]))
    assert simplex.check(torch.tensor([0.0, 0.0, 1.0]))


def test_composes_with_zuko():
    spline = zuko.transforms.MonotonicRQSTransform(*[torch.randn(3, n, dtype=DOUBLE) for n in (8, 8, 7)])
    theirs = zuko.transforms.DependentTransform(spline, 1)
    y = torch.randn(6, 3, dtype=DOUBLE)
    ours = ComposeTransform([theirs, SoftmaxPlusPlus(0.5)])
    zukos = zuko.transforms.ComposedTransform(theirs, SoftmaxPlusPlus(0.5))
    z, ladj = call_and_ladj(ours, y)
    other_z, other_ladj = zukos.call_and_ladj(y)
    torch.testing.assert_close(z, other_z)
    torch.testing.assert_close(ladj, other_ladj)
    check_transform(ours, y, skip=["equality"])  # theirs is by identity
    d = InvertibleReparameterization(torch.distributions.Normal(torch.zeros(3, dtype=DOUBLE), 1.0), zukos)
    torch.testing.assert_close(d.log_prob(z), d.base.log_prob(y) - ladj)


def test_elementwise_maps_count_every_coordinate():
    loc, scale = torch.randn(4, 2, dtype=DOUBLE), torch.tensor([0.7, 1.3], dtype=DOUBLE)
    factor = torch.tensor([2.0, 0.5], dtype=DOUBLE)
    moved = InvertibleGaussian(loc, scale, 0.5, flow=AffineTransform(0.3, factor))
    z, log_q = moved.rsample_and_log_prob((5,))
    torch.testing.assert_close(log_q, InvertibleGaussian(0.3 + factor * loc, factor * scale, 0.5).log_prob(z))
    torch.testing.assert_close(call_and_ladj(ComposeTransform([]), loc), (loc, torch.zeros(4, dtype=DOUBLE)))


def test_works_in_torchs_transformed_distribution():
    base = torch.distributions.Normal(torch.zeros(2, dtype=DOUBLE), 1.0)
    d = TransformedDistribution(base, [SoftmaxPlusPlus(0.7)])
    z = d.sample((5,))
    assert z.shape == (5, 3)
    y = 0.7 * (z[:, :2].log() - z[:, 2:].log())
    expected = base.log_prob(y).sum(-1) - z.log().sum(-1) + 2 * math.log(0.7)
    torch.testing.assert_close(d.log_prob(z), expected)
