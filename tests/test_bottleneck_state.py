"""How the layer is kept: temperatures, saved states, dtypes, compilation, and devices without numbers."""

import copy
import io

import numpy as np
import pytest
import torch
from bottleneck_cases import EXACT, MASKED, RELAXATIONS, H, K, N, features, is_one_hot, layer
from torch import nn
from torch._dynamo.testing import CompileCounter

import igr
from igr import _bottleneck_parts as bottleneck_parts
from igr import schedules
from igr._bottleneck_parts import as_temperature
from igr.nn import CategoricalBottleneck
from igr.schedules import Exponential, Learnable, Linear


def test_schedules():
    model = nn.Sequential(nn.Linear(4, H), CategoricalBottleneck(H, N, K, temperature=Exponential(1.0, 0.1, 10)))
    other = CategoricalBottleneck(H, N, K, temperature=0.3)
    assert other.temperature.item() == np.float32(0.3)
    for _ in range(5):
        schedules.step(model)
    model[1].step()
    assert model[1].temperature.item() == pytest.approx(10**-0.6)
    assert model[1].distribution(torch.randn(2, H)).temperature is model[1].temperature
    other.step()
    assert other.temperature.item() == np.float32(0.3)
    for bad in (0.0, -1.0):
        with pytest.raises(ValueError, match="must be positive"):
            CategoricalBottleneck(H, N, K, temperature=bad)
    with pytest.raises(TypeError, match=r"temperature must be a positive number, a schedule .* got 'low'"):
        CategoricalBottleneck(H, N, K, temperature="low")


@pytest.mark.parametrize("categories", [2, 10, 300])
@pytest.mark.parametrize("relaxation", EXACT)
def test_default_temperature_is_as_far_from_the_vertices_for_all(relaxation, categories):
    tau = as_temperature(None, relaxation, categories)().item()
    found = igr.measure_temperature(categories, relaxation, tau, num_samples=20_000, seed=1)
    assert found.distance == pytest.approx(0.1, abs=0.01)
    if relaxation == "igr-i":
        assert as_temperature(None, "igr-planar", categories)().item() == tau


def test_temperature_may_be_assigned():
    model = CategoricalBottleneck(H, N, K, temperature=torch.tensor(0.7))
    assert model.temperature.item() == np.float32(0.7)
    model.temperature = 0.3
    assert model.temperature.item() == np.float32(0.3)
    model.temperature = Linear(1.0, 0.5, 1)
    model.step()
    assert model.temperature.item() == 0.5
    model.temperature = learned = Learnable(0.4)
    assert model.tau is learned
    assert [name for name, _ in model.named_parameters()] == ["tau.logit", "head.weight", "head.bias"]
    with pytest.raises(TypeError, match=r"Learnable\(0.5\) for one that is trained, got a "):
        model.temperature = nn.Parameter(torch.tensor(0.5))
    with pytest.raises(ValueError, match="temperature must be positive"):
        model.temperature = -1.0
    assert model.tau is learned


def test_the_state_of_another_relaxation_is_refused():
    model = CategoricalBottleneck(H, N, K, "igr-i")
    with pytest.raises(ValueError, match="with relaxation='igr-i', and this one has 'igr-sb'; make one with 'igr-i'"):
        CategoricalBottleneck(H, N, K, "igr-sb").load_state_dict(model.state_dict())


def test_temperature_is_used():
    """A lower temperature is nearer to the vertices, in every relaxation."""
    h = features(200)
    for relaxation in RELAXATIONS:
        model = layer(relaxation, temperature=Linear(2.0, 0.01, 1))
        warm = model(h).z.amax(-1).mean()
        model.step()
        assert model(h).z.amax(-1).mean() > warm + 0.1


@pytest.mark.parametrize("relaxation", RELAXATIONS)
@pytest.mark.parametrize("temperature", [0.5, Exponential(1.0, 0.1, 10), Learnable(0.5)], ids=["float", "exp", "learn"])
def test_state(relaxation, temperature):
    model = layer(relaxation, temperature=temperature, prior=torch.tensor([0.1, 0.2, 0.3, 0.25, 0.15])).float()
    model.step()
    if isinstance(temperature, Learnable):
        nn.init.constant_(model.tau.logit, 0.3)
    fresh = CategoricalBottleneck(H, N, K, relaxation, temperature=copy.deepcopy(temperature))
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    h = torch.randn(4, H)
    for other in (fresh, copy.deepcopy(model), copy.deepcopy(model).double().float()):
        for train in (True, False):
            a, b = (m.train(train)(h, generator=torch.Generator().manual_seed(0)) for m in (model, other))
            assert torch.equal(a.z, b.z)
            assert torch.equal(a.kl, b.kl)
    assert torch.equal(model.temperature, fresh.temperature)
    if not isinstance(temperature, Learnable):
        assert fresh.tau.count.item() == 1


def test_priors_are_not_shared():
    """Also where they have the dtype in which they were found, and in which they are kept for the next layer."""
    torch.set_default_dtype(torch.float64)
    try:
        one, given = CategoricalBottleneck(H, N, K), igr.InvertibleGaussian(torch.randn(K - 1), 1.0, 0.5)
        before, loc = one.prior_loc.clone(), given.loc.clone()
        for model in (one, CategoricalBottleneck(H, N, K, prior=given)):
            model.load_state_dict({k: v + v.is_floating_point() for k, v in model.state_dict().items()})
        assert torch.equal(CategoricalBottleneck(H, N, K).prior_loc, before)
        assert torch.equal(given.loc, loc)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_dtypes(relaxation, dtype):
    model = CategoricalBottleneck(H, N, K, relaxation).to(dtype)
    for train in (True, False):
        z, kl = model.train(train)(torch.randn(4, H, dtype=dtype))
        assert z.dtype == dtype
        assert kl.dtype == torch.promote_types(dtype, torch.float32)


@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_autocast(relaxation):
    model, h = CategoricalBottleneck(H, N, K, relaxation, estimator="st_relaxed"), torch.randn(64, H)
    with torch.autocast("cpu", torch.bfloat16):
        z, kl = model(h)
        model.eval_mode = "sample" if relaxation == "igr-planar" else "mean"
        probs = model.eval()(h).z
    assert z.dtype == probs.dtype == torch.bfloat16
    assert kl.dtype == torch.float32
    assert is_one_hot(z)
    (z.float().square().sum() + kl.sum()).backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())
    if relaxation != "igr-planar":
        torch.testing.assert_close(probs.float(), model(h).z, rtol=0, atol=0.02)


@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_compiles(relaxation):
    torch._dynamo.reset()
    model = CategoricalBottleneck(H, N, K, relaxation, temperature=Linear(1.0, 0.5, 10))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=False)
    h, sizes = torch.randn(4, H), []
    for _ in range(3):
        torch.manual_seed(0)
        z, kl = compiled(h)
        (z.square().sum() + kl.sum()).backward()
        torch.manual_seed(0)
        expected = model(h)
        torch.testing.assert_close(z, expected.z, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(kl, expected.kl, rtol=1e-4, atol=1e-5)
        model.step()
        sizes.append(z.amax(-1).mean().item())
    assert sizes == sorted(sizes)
    if relaxation in MASKED:
        z, _ = compiled(h, torch.tensor([True, True, True, False, True]))
        assert bool((z[..., 3] == 0).all())


def test_compiled_once_as_the_temperature_changes():
    torch._dynamo.reset()
    count = CompileCounter()
    model = CategoricalBottleneck(H, N, K, temperature=Linear(1.0, 0.5, 10))
    compiled = torch.compile(model, fullgraph=True, backend=count)
    for _ in range(4):
        compiled(torch.zeros(4, H))
        model.step()
    assert count.frame_count == 1


@pytest.mark.skipif(torch.__version__ < "2.8", reason="older compilers cannot trace torch.Size of what varies")
@pytest.mark.parametrize(
    ("relaxation", "estimator"), [("igr-i", "reparameterized"), ("igr-sb", "st_relaxed"), ("gs", "reinmax")]
)
def test_compiled_for_batches_of_any_size(relaxation, estimator):
    """As of the last batch of an epoch."""
    torch._dynamo.reset()
    count = CompileCounter()
    compiled = torch.compile(CategoricalBottleneck(H, N, K, relaxation, estimator=estimator), backend=count)
    for size in (16, 7, 9, 12):
        assert compiled(torch.zeros(size, H)).z.shape == (size, N, K)
    assert count.frame_count == 2  # the size of the first, and then any


@pytest.mark.parametrize("relaxation", ["igr-i", "igr-sb", "igr-planar", "gs"])
def test_made_where_nothing_is_trained(relaxation):
    """What is kept for layers to come may be part of their gradients."""
    bottleneck_parts._uniform_locations.cache_clear()
    bottleneck_parts.default_temperature.cache_clear()
    with torch.inference_mode():
        served = CategoricalBottleneck(H, N, K, relaxation).eval()
        assert is_one_hot(served(torch.randn(4, H)).z)
    trained = CategoricalBottleneck(H, N, K, relaxation)
    trained.load_state_dict(served.state_dict())
    assert trained.temperature == served.temperature
    z, kl = trained(torch.randn(4, H))
    (z.square().sum() + kl.sum()).backward()
    assert trained.head.weight.grad.isfinite().all()


@pytest.mark.parametrize("relaxation", ["igr-i", "igr-planar", "igr-sb", "gs"])
def test_made_on_the_meta_device_and_loaded(relaxation):
    """As large models are: shapes first, numbers from a file."""
    with torch.device("meta"):
        layer = CategoricalBottleneck(8, 3, 5, relaxation)
    assert all(each.is_meta for each in (*layer.parameters(), *layer.buffers()))
    assert "count=?" in repr(layer)
    loaded = CategoricalBottleneck(8, 3, 5, relaxation)
    layer.load_state_dict(loaded.state_dict(), assign=True)
    h, outputs = torch.randn(4, 8), []
    for each in (layer, loaded):
        torch.manual_seed(0)
        outputs.append(each(h))
    assert torch.equal(outputs[0].z, outputs[1].z)
    assert torch.equal(outputs[0].kl, outputs[1].kl)


def test_shapes_on_the_meta_device():
    with torch.device("meta"):
        layer = CategoricalBottleneck(8, 3, 5, kl="discrete", temperature=0.5)
        mask = torch.ones(3, 5, dtype=torch.bool)
        z, kl = layer(torch.zeros(4, 8), mask=mask)
        assert (z.shape, kl.shape) == ((4, 3, 5), (4,))
        with pytest.raises(ValueError, match="on the meta device, and has no probabilities to fit"):
            CategoricalBottleneck(8, 3, 5, prior=torch.full((5,), 0.2))
