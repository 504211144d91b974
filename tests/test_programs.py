"""Every class and the methods in CALLS under torch.compile, torch.func.vmap, autocast and CUDA graphs."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Laplace, MultivariateNormal, Normal

from igr.distributions import (
    BinaryConcrete,
    GumbelSoftmax,
    InvertibleGaussian,
    InvertibleReparameterization,
    Relaxation,
)
from igr.transforms import Planar, SoftmaxPlusPlus, StickBreaking, VertexInterpolation

FLOW = [torch.randn(4), torch.randn(4), torch.randn(())]
CLASSES: dict[str, Callable[[Tensor, Tensor, float | Tensor], Relaxation]] = {
    "IGR-I": InvertibleGaussian,
    "IGR-I, delta": lambda m, s, t: InvertibleGaussian(m, s, t, delta=0.5),
    "IGR-SB": lambda m, s, t: InvertibleGaussian(m, s, t, flow=StickBreaking()),
    "IGR-Planar": lambda m, s, t: InvertibleGaussian(m, s, t, flow=Planar(*FLOW)),
    "VertexInterpolation": lambda m, s, t: InvertibleReparameterization(
        Normal(m, s, validate_args=False), VertexInterpolation(t)
    ),
    "full covariance": lambda m, s, t: InvertibleReparameterization(
        MultivariateNormal(m, scale_tril=s.diag_embed(), validate_args=False), SoftmaxPlusPlus(t)
    ),
    "Laplace": lambda m, s, t: InvertibleReparameterization(Laplace(m, s, validate_args=False), SoftmaxPlusPlus(t)),
    "GS": lambda m, s, t: GumbelSoftmax(t, m),
    "BinaryConcrete": lambda m, s, t: BinaryConcrete(t, m),
}
CALLS: dict[str, Callable[[Relaxation, Relaxation], tuple[Tensor, ...]]] = {
    "rsample": lambda d, prior: (d.rsample((3,)),),
    "hard_rsample": lambda d, prior: (d.hard_rsample(),),
    "rsample_and_log_prob": lambda d, prior: d.rsample_and_log_prob((3,)),
    "log_prob_from_log": lambda d, prior: (d.log_prob_from_log(d.log_rsample()),),
    "kl": lambda d, prior: (d.kl(prior),),
}
PROGRAMS = [(c, call) for c in CLASSES for call in CALLS if call != "kl" or c not in ("GS", "BinaryConcrete")]


def program(name: str, call: str) -> Callable[..., tuple[Tensor, ...]]:
    def run(loc: Tensor, scale: Tensor, tau: float | Tensor) -> tuple[Tensor, ...]:
        return CALLS[call](CLASSES[name](loc, scale, tau), CLASSES[name](0 * loc, 0 * scale + 1, tau))

    return run


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(6, 4), torch.rand(6, 4) + 0.5


@pytest.mark.parametrize("tau", [0.5, torch.tensor(0.5), torch.full((6, 1), 0.5)], ids=["float", "0-d", "per row"])
@pytest.mark.parametrize(("name", "call"), PROGRAMS)
def test_compiles_as_one_graph(name: str, call: str, tau: float | Tensor):
    run, (loc, scale) = program(name, call), inputs()
    torch._dynamo.reset()
    torch.manual_seed(1)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")(loc, scale, tau)
    torch.manual_seed(1)
    for a, b in zip(compiled, run(loc, scale, tau), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("name", "call"), PROGRAMS)
def test_maps_over_a_batch(name: str, call: str):
    if name == "Laplace" and call != "kl":
        pytest.skip("torch's own Laplace.rsample refuses vmap")
    run, (loc, scale) = program(name, call), inputs()
    taus = torch.full((6, 1), 0.5)
    mapped = torch.func.vmap(run, randomness="different")(loc, scale, taus)
    direct = run(loc, scale, taus)
    batch_axis = 1 if call in ("rsample", "rsample_and_log_prob") else 0
    for a, b in zip(mapped, direct, strict=True):
        assert a.shape == b.movedim(batch_axis, 0).shape
        assert a.isfinite().all()
    if call == "kl":
        torch.testing.assert_close(mapped, direct)

    def loss(loc: Tensor, scale: Tensor) -> Tensor:
        return torch.stack([o.sum() for o in run(loc, scale, 0.5)]).sum()

    gradient = torch.func.vmap(torch.func.grad(loss), randomness="different")(loc, scale)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(("name", "call"), PROGRAMS)
def test_autocast_changes_nothing(name: str, call: str):
    run, (loc, scale) = program(name, call), inputs()
    torch.manual_seed(1)
    plain = run(loc, scale, 0.5)
    torch.manual_seed(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = run(loc, scale, 0.5)
    for a, b in zip(cast, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "call"), PROGRAMS)
def test_compiles_to_kernels(name: str, call: str):
    run, (loc, scale) = program(name, call), inputs()
    torch._dynamo.reset()
    for output in torch.compile(run, fullgraph=True)(loc, scale, 0.5):
        assert output.isfinite().all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("name", "call"), PROGRAMS)
def test_captures_in_a_cuda_graph(name: str, call: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(globals(), "FLOW", [p.cuda() for p in FLOW])
    loc, scale = (x.cuda() for x in inputs())
    run = program(name, call)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run(loc, scale, 0.5)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = run(loc, scale, 0.5)
    graph.replay()
    torch.cuda.synchronize()
    first = [o.clone() for o in outputs]
    graph.replay()
    torch.cuda.synchronize()
    assert all(o.isfinite().all() for o in outputs)
    if call == "rsample":
        assert not torch.equal(first[0], outputs[0])  # fresh noise at every replay
