"""Temperatures as functions of the step, as modules, and as suggestions, against numpy and quadrature."""

import copy
import math
import re

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import nn

import igr
from igr.functional import gaussian_softmax
from igr.schedules import Constant, Cosine, Exponential, Learnable, Linear, Scheduled, Suggestion, step

ANNEALED = [Linear, Exponential, Cosine]


@pytest.mark.parametrize("kind", ANNEALED)
@pytest.mark.parametrize(("start", "end"), [(1.0, 0.1), (0.1, 1.0), (0.3, 0.3), (1e-6, 1e3)])
def test_ends_and_order(kind, start, end):
    schedule = kind(start, end, steps=20)
    values = [schedule(t) for t in range(41)]
    assert values[0] == start or math.isclose(values[0], start, rel_tol=1e-14)
    assert values[20:] == [end] * 21
    steps = np.sign(end - start) * np.diff(values)
    assert (steps[:20] >= 0).all()
    assert schedule == kind(start, end, steps=20)
    assert hash(schedule) == hash(kind(start, end, 20))
    assert eval(repr(schedule)) == schedule


def test_shapes():
    """The linear one has equal differences, the exponential one equal ratios, the cosine one a turned half."""
    linear, exponential, cosine = ([kind(2.0, 0.5, 10)(t) for t in range(11)] for kind in ANNEALED)
    np.testing.assert_allclose(linear, np.linspace(2.0, 0.5, 11), rtol=1e-14)
    np.testing.assert_allclose(exponential, np.geomspace(2.0, 0.5, 11), rtol=1e-14)
    np.testing.assert_allclose(np.add(cosine, cosine[::-1]), 2.5, rtol=1e-14)
    np.testing.assert_allclose(cosine, 1.25 + 0.75 * np.sin(np.linspace(np.pi / 2, -np.pi / 2, 11)), rtol=1e-14)
    assert Constant(0.3)(0) == Constant(0.3)(10**9) == 0.3


@pytest.mark.parametrize("kind", ANNEALED)
def test_refuses(kind):
    for start, end in ((0.0, 1.0), (1.0, -1.0), (math.nan, 1.0), (1.0, math.inf)):
        with pytest.raises(ValueError, match="must be positive and finite"):
            kind(start, end, 10)
    with pytest.raises(TypeError, match="start must be a number, got 'a'"):
        kind("a", 1.0, 10)
    for steps in (0, -1, math.inf):
        with pytest.raises(ValueError, match="steps must be a number of at least 1"):
            kind(1.0, 0.1, steps)
    with pytest.raises(ValueError, match="counted from zero, got step -1"):
        kind(1.0, 0.1, 10)(-1)
    with pytest.raises(TypeError, match="step must be a number"):
        kind(1.0, 0.1, 10)(None)
    with pytest.raises(AttributeError):
        kind(1.0, 0.1, 10).start = 2.0


def test_constant_refuses():
    with pytest.raises(ValueError, match="value must be positive"):
        Constant(0.0)
    with pytest.raises(ValueError, match="got step -2"):
        Constant(1.0)(-2)
    for wrong, said in ((torch.tensor([0.5]), "a float32 tensor of shape (1,)"), (None, "a NoneType")):
        with pytest.raises(TypeError, match=re.escape(f"a schedule must return a number, got {said} at step 0")):
            Scheduled(lambda step, wrong=wrong: wrong)
    assert Scheduled(lambda step: torch.tensor(0.5))() == 0.5
    with pytest.raises(TypeError, match=re.escape("use Constant(0.5)")):
        Scheduled(0.5)
    with pytest.raises(ValueError, match="at step 1 must be positive"):
        Scheduled(lambda t: 1.0 - t).step()


def test_scheduled_counts_saves_and_loads():
    schedule = Exponential(1.0, 0.01, 10)
    tau = Scheduled(schedule)
    assert tau().item() == 1.0
    for _ in range(7):
        tau.step()
    assert tau.count.item() == 7
    assert tau().dtype == torch.float32
    assert tau().item() == np.float32(schedule(7))
    assert tau.state_dict() == {"count": torch.tensor(7)}
    fresh = Scheduled(schedule)
    fresh.load_state_dict(tau.state_dict())
    assert torch.equal(fresh(), tau())
    other = copy.deepcopy(tau)
    other.step()
    assert (tau.count.item(), other.count.item()) == (7, 8)
    assert tau().item() != other().item()
    assert repr(tau) == "Scheduled(Exponential(start=1.0, end=0.01, steps=10), count=7)"


def test_scheduled_is_rounded_from_the_schedule():
    tau = Scheduled(Constant(0.1))
    assert tau.double()().item() == 0.1
    assert tau.bfloat16()().item() == np.float32(0.1)
    assert tau.half().double()().item() == 0.1
    assert Scheduled(Constant(0.1)).to("meta")().is_meta


def test_step_leaves_what_was_computed():
    tau, loc = Scheduled(Linear(1.0, 0.5, 2)), torch.zeros(4, requires_grad=True)
    z = gaussian_softmax(loc, 1.0, tau())
    tau.step()
    z[0].backward()  # the temperature of z has not been changed in place
    assert tau().item() == 0.75


def test_what_is_counted_or_loaded_in_inference_mode_is_trained_afterwards():
    tau, loc = Scheduled(Linear(1.0, 0.5, 2)), torch.zeros(4, requires_grad=True)
    with torch.inference_mode():
        tau.step()
    gaussian_softmax(loc, 1.0, tau())[0].backward()
    with torch.inference_mode():
        tau.load_state_dict(tau.state_dict())
    gaussian_softmax(loc, 1.0, tau())[0].backward()
    tau.step()
    assert (tau().item(), int(tau.count)) == (0.5, 2)


def test_step_of_a_model():
    shared = Scheduled(Linear(1.0, 0.5, 4))
    model = nn.ModuleDict({"a": shared, "b": nn.ModuleList([shared, Scheduled(Constant(1.0))]), "c": nn.Linear(1, 1)})
    step(model)
    step(model)
    assert shared.count.item() == 2
    assert model["b"][1].count.item() == 2


@pytest.mark.parametrize("initial", [0.11, 0.5, 1.99])
def test_learnable(initial):
    tau = Learnable(initial, 0.1, 2.0)
    assert tau().item() == pytest.approx(initial, rel=1e-5)
    tau().backward()
    # dτ/dθ = τ log(h/l) s (1 - s), s being how far log τ is
    s = math.log(initial / 0.1) / math.log(20)
    assert tau.logit.grad.item() == pytest.approx(initial * math.log(20) * s * (1 - s), rel=1e-4)
    fresh = Learnable(1.0, 0.1, 2.0)
    fresh.load_state_dict(tau.state_dict())
    assert torch.equal(fresh(), tau())
    assert f"low=0.1, high=2, value={tau().item():g}" in repr(tau)


def test_learnable_stays_between_its_bounds():
    tau = Learnable(0.5, 0.1, 2.0)
    for value, expected in ((1e6, 2.0), (-1e6, 0.1)):
        with torch.no_grad():
            tau.logit.fill_(value)
        assert tau().item() == pytest.approx(expected)
        assert np.float32(0.1) <= tau().item() <= 2.0
    assert tau.bfloat16()().dtype == torch.float32
    for bounds in ((0.5, 0.6, 2.0), (0.5, 0.1, 0.5), (0.5, 2.0, 0.1)):
        with pytest.raises(ValueError, match="need low < initial < high"):
            Learnable(*bounds)
    with pytest.raises(ValueError, match="low must be positive"):
        Learnable(0.5, 0.0, 1.0)


def test_a_layer_without_memory_has_a_representation():
    tau = Learnable(0.5)
    assert repr(tau) == "Learnable(low=0.05, high=5, value=0.5)"
    assert repr(tau.to("meta")) == "Learnable(low=0.05, high=5, value=?)"


def test_learnable_is_trained():
    tau = Learnable(1.0, 0.1, 5.0)
    optimizer = torch.optim.Adam(tau.parameters(), lr=0.1)
    loc, generator = torch.randn(100, 4), torch.Generator()
    for _ in range(100):
        optimizer.zero_grad()
        z = gaussian_softmax(loc, 1.0, tau(), generator=generator.manual_seed(0))
        (1 - z.amax(-1)).mean().sub(0.1).square().backward()
        optimizer.step()
    z = gaussian_softmax(loc, 1.0, tau(), generator=generator.manual_seed(0))
    assert (1 - z.amax(-1)).mean().item() == pytest.approx(0.1, abs=0.005)


# ---- suggestions


def distance_of_two(relaxation, tau):
    """E[1 - max z] and E[(1 - max z)²] for K = 2, by quadrature over the log-odds before the temperature."""
    density = stats.logistic.pdf if relaxation == "gs" else stats.norm.pdf
    odds = {"gs": lambda x: x, "igr-i": lambda x: x, "igr-sb": lambda x: math.tanh(x / 2)}[relaxation]

    def moment(n):
        return 2 * integrate.quad(lambda x: density(x) / (1 + math.exp(min(odds(x) / tau, 300.0))) ** n, 0, 40)[0]

    return moment(1), moment(2)


@pytest.mark.parametrize("distance", [0.08, 0.2, 0.4])
@pytest.mark.parametrize("relaxation", ["igr-i", "igr-sb", "gs"])
def test_two_categories_match_quadrature(relaxation, distance):
    found = igr.suggest_temperature(2, relaxation, distance=distance, num_samples=40_000)
    mean, square = distance_of_two(relaxation, found.temperature)
    assert abs(mean - distance) < 5 * math.sqrt((square - mean**2) / 40_000) + 1e-4 * distance
    assert found.distance <= distance
    assert found.distance == pytest.approx(distance, rel=3e-4)


@pytest.mark.parametrize("tau", [0.05, 0.5, 3.0])
@pytest.mark.parametrize("relaxation", ["igr-i", "igr-sb", "gs"])
def test_measured_distance_matches_quadrature(relaxation, tau):
    found = igr.measure_temperature(2, relaxation, tau, num_samples=40_000)
    mean, square = distance_of_two(relaxation, tau)
    assert found.temperature == tau
    assert abs(found.distance - mean) < 5 * math.sqrt((square - mean**2) / 40_000)


def test_measured_is_what_is_suggested():
    given = {"dtype": torch.float16, "logits": torch.randn(3, 10), "num_samples": 500, "seed": 2}
    found = igr.suggest_temperature(10, "gs", distance=0.1, vanishing=0.9, **given)
    assert found == igr.measure_temperature(10, "gs", found.temperature, **given)
    assert 0 < found.vanishing < igr.measure_temperature(10, "gs", found.temperature / 4, **given).vanishing


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, "gs", 0.5), "num_categories must be an integer of at least 2, got 1"),
        ((4.0, "gs", 0.5), "num_categories must be an integer of at least 2, got 4.0"),
        ((4, "gs", 0.0), "temperature must be positive and finite, got a value of 0.0"),
        ((4, "gs", math.inf), "temperature must be positive and finite"),
        ((4, "igr-planar", 0.5), "a planar flow is yours to choose"),
    ],
)
def test_measurement_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        igr.measure_temperature(*arguments)


def test_what_a_dtype_does_not_hold_is_not_measured():
    with pytest.raises(ValueError, match="float16 up to 65504"):
        igr.measure_temperature(3, "igr-i", 0.5, loc=torch.tensor([7e4, 0.0]), dtype=torch.float16)


@pytest.mark.parametrize("relaxation", ["igr-i", "igr-sb", "gs"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_are_measured_wherever_it_is_asked(mode, relaxation):
    expected = igr.measure_temperature(4, relaxation, 0.01, dtype=torch.float16)
    with mode():
        assert igr.measure_temperature(4, relaxation, 0.01, dtype=torch.float16) == expected
    assert expected.vanishing > 0


def test_measurement_refuses_other_types():
    with pytest.raises(TypeError, match="distance must be a number, got 'a'"):
        igr.suggest_temperature(3, distance="a")
    with pytest.raises(TypeError, match="temperature must be a number, got 'low'"):
        igr.measure_temperature(4, "gs", "low")
    with pytest.raises(TypeError, match=r"dtype must be a floating-point one of torch's, .* got torch.int32"):
        igr.measure_temperature(4, "gs", 0.5, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"num_samples must be an integer of at least 1, got 2\.5"):
        igr.suggest_temperature(4, "gs", num_samples=2.5)


def numpy_samples(relaxation, K, tau, n, rng):
    if relaxation == "gs":
        s = rng.gumbel(size=(n, K))
    elif relaxation == "igr-i":
        mu = -stats.norm.ppf(K ** (-1 / (K - 1)))
        s = np.concatenate([rng.normal(mu, 1.0, (n, K - 1)), np.zeros((n, 1))], 1)
    else:
        u = stats.logistic.cdf(rng.normal(size=(n, K - 1)) + [math.log((1 / k) / (1 - 1 / k)) for k in range(K, 1, -1)])
        left = np.cumprod(1 - u, 1)
        s = np.concatenate([u, np.ones((n, 1))], 1) * np.concatenate([np.ones((n, 1)), left], 1)
    e = np.exp((s - s.max(1, keepdims=True)) / tau)
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("K", [3, 10])
@pytest.mark.parametrize("relaxation", ["igr-i", "igr-sb", "gs"])
def test_distance_matches_numpy(relaxation, K):
    found = igr.suggest_temperature(K, relaxation, distance=0.15, num_samples=20_000, seed=3)
    d = 1 - numpy_samples(relaxation, K, found.temperature, 50_000, np.random.default_rng(0)).max(1)
    assert abs(d.mean() - found.distance) < 5 * d.std() * math.sqrt(1 / 50_000 + 1 / 20_000)


def test_default_locations_are_uniform():
    """What the defaults say of IGR-I: equally likely categories, whatever the scale."""
    rng = np.random.default_rng(0)
    for K in (2, 5):
        winners = numpy_samples("igr-i", K, 1.0, 50_000, rng).argmax(1)
        assert stats.chisquare(np.bincount(winners, minlength=K)).pvalue > 1e-5
    one, three = (igr.suggest_temperature(5, scale=s).temperature for s in (1.0, 3.0))
    assert three == pytest.approx(3 * one, rel=3e-4)  # all is proportional to the scale


def test_vanishing_matches_a_threshold():
    """IGR-I, K = 2: where y wins by x = y / τ, its gradient z (v₁ - v·z) is zero in float32 once e^-x < 2^-24."""
    n, tau = 40_000, 0.06
    low, high = stats.norm.sf(17.5 * tau), stats.norm.sf(16 * tau)
    distance = distance_of_two("igr-i", tau)[0]
    found = igr.suggest_temperature(2, "igr-i", distance=distance, vanishing=0.9, num_samples=n)
    assert found.temperature == pytest.approx(tau, rel=0.02)
    error = 5 * math.sqrt(high * (1 - high) / n) + 0.01 * high
    assert low - error < found.vanishing < high + error
    double = igr.suggest_temperature(2, "igr-i", distance=distance, vanishing=0.9, num_samples=n, dtype=torch.float64)
    assert double.vanishing < found.vanishing


def test_vanishing_is_zero_where_the_logits_are_close():
    found = igr.suggest_temperature(10, "gs", distance=0.3)
    assert found.vanishing == 0


def test_largest():
    found = igr.suggest_temperature(6, "gs", distance=0.2, seed=5)
    more = igr.suggest_temperature(6, "gs", distance=0.2001, seed=5)
    assert found.temperature < more.temperature < found.temperature * 1.01
    assert isinstance(found, Suggestion)
    assert found == igr.suggest_temperature(6, "gs", distance=0.2, seed=5)


@pytest.mark.parametrize("relaxation", ["igr-i", "igr-sb", "gs"])
def test_parameters_of_a_model(relaxation):
    """Peaked parameters are near the vertices already, and allow a higher temperature."""
    peaked, loc = 5 * torch.randn(64, 10), 5 * torch.randn(64, 9)
    given = {"logits": peaked} if relaxation == "gs" else {"loc": loc.requires_grad_(), "scale": 0.5}
    plain = igr.suggest_temperature(10, relaxation, num_samples=512)
    found = igr.suggest_temperature(10, relaxation, num_samples=64, vanishing=0.5, **given)
    assert found.temperature > plain.temperature
    assert loc.grad is None


def test_compromise_can_be_asked_for():
    with pytest.raises(ValueError, match=r"no temperature has both a distance of at most 0\.05") as error:
        igr.suggest_temperature(10, "gs", distance=0.05, dtype=torch.float16)
    distance = float(re.search(r"ask for distance=([\d.]+)", str(error.value))[1])
    found = igr.suggest_temperature(10, "gs", distance=distance, dtype=torch.float16)
    assert found.vanishing <= 0.01
    with pytest.raises(ValueError, match="none has so few: allow more"):
        igr.suggest_temperature(
            2, "igr-i", distance=0.1, dtype=torch.float16, loc=torch.tensor([1000.0]), scale=1e-3, vanishing=0.0
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype):
    for relaxation in ("igr-i", "igr-sb", "gs"):
        found = igr.suggest_temperature(4, relaxation, distance=0.3, vanishing=0.05, dtype=dtype, num_samples=1024)
        assert found.distance == pytest.approx(0.3, abs=0.005)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_categories": 1}, "num_categories must be an integer of at least 2"),
        ({"num_categories": 4, "num_samples": 0}, "num_samples must be an integer of at least 1"),
        ({"num_categories": 4, "distance": 0.75}, "between 0 and 0.75, that of the centre of 4"),
        ({"num_categories": 4, "distance": 0.0}, "between 0 and 0.75"),
        ({"num_categories": 4, "vanishing": 1.0}, "at least 0 and below 1"),
        ({"num_categories": 4, "relaxation": "igr-planar"}, "a planar flow is yours to choose"),
        ({"num_categories": 4, "relaxation": "softmax"}, "'igr-i', 'igr-sb' or 'gs', got 'softmax'"),
        ({"num_categories": 4, "logits": torch.zeros(4)}, "igr-i has loc and scale, not logits"),
        ({"num_categories": 4, "relaxation": "gs", "scale": 1.0}, "has logits, not loc and scale"),
        ({"num_categories": 4, "loc": torch.zeros(4)}, r"loc must have shape \(\*, 3\)"),
        ({"num_categories": 4, "loc": torch.tensor([math.nan, 0.0, 0.0])}, "loc must be finite"),
        ({"num_categories": 3, "relaxation": "gs", "logits": torch.tensor([math.inf, 0.0, 0.0])}, "logits must be fin"),
        ({"num_categories": 3, "relaxation": "gs", "logits": torch.tensor([math.nan, 0.0, 0.0])}, "logits must be fin"),
        ({"num_categories": 3, "relaxation": "igr-sb", "scale": torch.tensor([-1.0, 1.0])}, "scale must be positive"),
        ({"num_categories": 3, "scale": torch.tensor([math.nan, 1.0])}, "scale must be positive"),
        ({"num_categories": 4, "scale": torch.ones(2)}, r"do not broadcast together: loc \(3,\), scale \(2,\)"),
        (
            {"num_categories": 3, "relaxation": "gs", "logits": torch.tensor([[0.0, 0.0, 0.0], 3 * [-math.inf]])},
            "leave a category possible in every row",
        ),
        (
            {"num_categories": 3, "loc": torch.tensor([7e4, 0.0]), "dtype": torch.float16},
            "float16 up to 65504, got 70000; give smaller ones or a wider dtype",
        ),
    ],
    ids=[
        "K",
        "samples",
        "centre",
        "zero",
        "share",
        "planar",
        "name",
        "logits",
        "scale",
        "shape",
        "nan",
        "inf",
        "nan-logits",
        "sign",
        "nan-scale",
        "scales",
        "impossible",
        "range",
    ],
)
def test_suggestion_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        igr.suggest_temperature(**arguments)


def test_forbidden_categories_are_suggested_for():
    found = igr.suggest_temperature(3, "gs", logits=torch.tensor([-math.inf, 0.0, 0.0]))
    assert found.temperature == pytest.approx(igr.suggest_temperature(2, "gs").temperature, rel=0.05)


def test_devices_of_others_are_not_asked():
    with torch.device("meta"):
        found = [igr.suggest_temperature(4, relaxation) for relaxation in ("igr-i", "igr-sb", "gs")]
    assert found == [igr.suggest_temperature(4, relaxation) for relaxation in ("igr-i", "igr-sb", "gs")]


def test_step_is_for_models():
    with pytest.raises(TypeError, match=r"step counts the schedules of a model, an nn.Module, got an? Adam"):
        igr.schedules.step(torch.optim.Adam([torch.zeros(1, requires_grad=True)]))


@pytest.mark.parametrize(
    "ask", [igr.suggest_temperature, lambda K, **given: igr.measure_temperature(K, "gs", 0.5, **given)]
)
def test_a_dtype_is_one_of_torch(ask):
    with pytest.raises(TypeError, match=r"dtype must be a floating-point one of torch's, .* got 'float16'"):
        ask(10, dtype="float16")
