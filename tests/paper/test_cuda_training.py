"""The trainer on a CUDA device, where a step is a graph."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from igr import kernels
from igr.paper.models import members_axis
from igr.paper.noise import BLOCK, BlockNoise
from igr.paper.plan import TRAINERS, Options
from igr.paper.run import run_cell
from igr.paper.specs import SPECS
from igr.paper.trainer import Trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

IMAGES = (np.random.default_rng(0).random((300, 784)) < 0.13).astype(np.uint8)
IDS = [
    "table1/mnist/linear/igr-i",
    "table1/mnist/linear/igr-sb+sl",
    "beyond/mnist/linear/igr-sb+vertex",
    "table1/mnist/nonlinear/igr-planar",
    "table1/fmnist/linear/gs",
    "beyond/mnist/linear/igr-i+discrete+hard",
    "beyond/mnist/linear/gs+iwae",
    "beyond/mnist/linear/igr-planar+flow-prior",
    "relax/mnist/nonlinear/igr-i+relax",
    "relax/mnist/nonlinear/gs+relax",
    "s4/mnist/nonlinear/gs+uspg",
    "beyond/mnist/linear/gs+reinmax",
    "beyond/mnist/linear/igr-i+gapst",
    "beyond/mnist/linear/igr-i+rao",
    "beyond/mnist/linear/gs+rao",
    "beyond/mnist/linear/igr-i+rloo",
]
COMPLETIONS = [id for id in SPECS if id.startswith("sop/") and not id.endswith("+s50")]
MIXTURES = [id for id in SPECS if id.startswith("nonparametric/mnist/")]


def ensemble(id: str, device: str = "cuda", dtype: torch.dtype = torch.float64, **changes) -> Trainer:
    cell = replace(SPECS[id].shortened(), epochs=4, **changes)
    return TRAINERS[type(cell)](cell, IMAGES, torch.device(device), dtype)


def take_eager_step(self: Trainer) -> None:
    self.optimizer.set_rate(self.cell.learning_rate_at(self.epoch * self.steps + self.step))
    self._step()


@pytest.mark.parametrize("id", [*IDS, *COMPLETIONS, *MIXTURES])
def test_a_replayed_step_is_the_step(id, monkeypatch):
    replayed = ensemble(id)
    found = torch.stack([replayed.run_epoch() for _ in range(2)])
    monkeypatch.setattr(Trainer, "_take_step", take_eager_step)
    eager = ensemble(id)
    expected = torch.stack([eager.run_epoch() for _ in range(2)])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)
    for a, b in zip(eager.model.parameters(), replayed.model.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("id", [*IDS, *COMPLETIONS[:6], "sop/mnist/gs+rebar", *MIXTURES])
def test_kernels_have_the_gradients_of_a_step(id, monkeypatch):
    """Kernels and compiled functions are for float32; here with products in full precision."""
    monkeypatch.setattr(Trainer, "precision", "ieee")
    with kernels.disabled():
        plain = ensemble(id, dtype=torch.float32)
        plain.run_epoch(stop=lambda: True)
    fused = ensemble(id, dtype=torch.float32)
    fused.run_epoch(stop=lambda: True)
    assert plain.model.factors is None
    assert (fused.model.factors is None) == id.endswith(("+relax", "+rebar"))  # which differentiate gradients
    torch.testing.assert_close(fused.total, plain.total, rtol=1e-4, atol=0)
    for a, b in zip(plain.model.parameters(), fused.model.parameters(), strict=True):
        expected, found = (each.movedim(members_axis(a), 0).flatten(1) for each in (first(plain, a), first(fused, b)))
        assert (found - expected).abs().amax(1).le(1e-3 * expected.abs().amax(1)).all()


def test_products_of_torch_are_rounded_like_those_of_kernels(monkeypatch):
    rounded = ensemble("relax/mnist/nonlinear/gs+relax", dtype=torch.float32)
    found = rounded.run_epoch()
    assert rounded.products == "tf32"
    assert torch.get_float32_matmul_precision() == "highest"
    monkeypatch.setattr(Trainer, "precision", "ieee")
    exact = ensemble("relax/mnist/nonlinear/gs+relax", dtype=torch.float32)
    expected = exact.run_epoch()
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    "id",
    [
        "table1/mnist/linear/igr-i",
        "table1/mnist/nonlinear/igr-planar",
        "beyond/mnist/linear/gs+rloo",
        "sop/mnist/igr-i+s5",
        "nonparametric/mnist/igr-sb-mm+sl",
    ],
)
def test_steps_of_layers_beside_gradients_are_those_after_them(id):
    beside, after = ensemble(id, dtype=torch.float32), ensemble(id, dtype=torch.float32)
    found = torch.stack([beside.run_epoch() for _ in range(3)])
    assert beside.optimizer._beside is not None
    after.optimizer._beside = None  # one stream for all
    expected = torch.stack([after.run_epoch() for _ in range(3)])
    assert torch.equal(found, expected)
    for a, b in zip(after.model.parameters(), beside.model.parameters(), strict=True):
        assert torch.equal(a, b)
    beside.model.subset([0])  # a copy, for metrics


def first(trainer: Trainer, p: torch.Tensor) -> torch.Tensor:
    """The running mean of a gradient, a tenth of it after the first step."""
    return trainer.optimizer.state[p]["exp_avg"]


@pytest.mark.parametrize(
    "id",
    [
        "table1/mnist/linear/igr-i",
        "table1/fmnist/linear/gs",
        "beyond/mnist/linear/gs+reinmax",
        "sop/mnist/gs+s5",
        "nonparametric/mnist/dldpmm+sl",
    ],
)
def test_a_replayed_epoch_of_more_than_a_block_is_the_epoch(id, monkeypatch):
    """A graph reads the noise of every block, also one that was captured in the middle of an epoch."""
    replayed = ensemble(id, batch_size=5)
    assert replayed.steps > BLOCK
    found = torch.stack([replayed.run_epoch() for _ in range(2)])
    stopped = ensemble(id, batch_size=5)
    stopped.run_epoch()
    assert stopped.run_epoch(stop=lambda: stopped.step == BLOCK + 2) is None
    resumed = ensemble(id, batch_size=5)
    resumed.load(*stopped.state())
    monkeypatch.setattr(Trainer, "_take_step", take_eager_step)
    eager = ensemble(id, batch_size=5)
    expected = torch.stack([eager.run_epoch() for _ in range(2)])
    monkeypatch.undo()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(resumed.run_epoch(), expected[1], rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    "id", [*IDS[:3], "relax/mnist/nonlinear/gs+relax", "s4/mnist/nonlinear/gs+uspg", *MIXTURES[:1]]
)
def test_a_state_is_loaded_into_a_graph_that_is_captured(id):
    whole = ensemble(id)
    expected = torch.stack([whole.run_epoch() for _ in range(3)])
    first = ensemble(id)
    first.run_epoch()
    assert first.run_epoch(stop=lambda: first.step == 2) is None
    tensors, numbers = first.state()
    tensors = {name: tensor.cpu().clone() for name, tensor in tensors.items()}
    first.run_epoch()  # goes on, so that everything is somewhere else
    first.load(tensors, numbers)
    found = torch.stack([first.run_epoch(), first.run_epoch()])
    torch.testing.assert_close(found, expected[1:], rtol=1e-10, atol=0)


@pytest.mark.parametrize(
    ("id", "dtype"),
    [
        (IDS[0], torch.float64),
        (COMPLETIONS[0], torch.float64),
        ("nonparametric/mnist/dldpmm", torch.float64),
        ("table1/mnist/nonlinear/igr-i", torch.float32),  # by kernels
    ],
)
def test_a_member_that_diverges_disturbs_nobody(id, dtype):
    calm, struck = ensemble(id, dtype=dtype), ensemble(id, dtype=dtype)
    calm.run_epoch()
    struck.run_epoch()
    with torch.no_grad():
        struck.model.weights[0][1] = math.nan
    expected, found = calm.run_epoch(), struck.run_epoch()
    assert struck.failed == {1: 2}
    assert found[1].isnan()
    torch.testing.assert_close(found[[0, 2, 3]], expected[[0, 2, 3]])
    assert all(p.isfinite().all() for p in struck.model.parameters())


@pytest.mark.parametrize("id", [IDS[0], *COMPLETIONS[:4], *MIXTURES])
def test_agrees_with_the_cpu_on_the_same_noise(id, monkeypatch):
    def fill(self, n):
        buffer = self._buffers[n]
        generator = torch.Generator().manual_seed(1000 * n + self._place[1])
        buffer.copy_(torch.randn(buffer.shape, generator=generator, dtype=buffer.dtype))

    monkeypatch.setattr(BlockNoise, "_fill", fill)
    there, here = ensemble(id), ensemble(id, "cpu")
    rtol = 1e-7 if id in COMPLETIONS else 1e-9  # a learning rate that changes is in float32 there
    for _ in range(2):
        torch.testing.assert_close(there.run_epoch(), here.run_epoch(), rtol=rtol, atol=0)


@pytest.mark.parametrize("id", [*IDS, "table1/omniglot/linear/igr-sb", *COMPLETIONS[:4], *MIXTURES])
def test_cells_run(id, tmp_path: Path):
    cell = SPECS[id].shortened()
    options = Options(tmp_path / "out", tmp_path / "checkpoints", torch.device("cuda"))
    found = run_cell(cell, options, lambda: False, lambda at: None)
    assert all(record["status"] == "finished" for record in found)
    assert found[0]["device"] == torch.cuda.get_device_name()
    for record in found:
        if record["selected"] and id.startswith("table1") and cell.method == "igr-sb":
            assert record["metrics"]["test"]["table_deviation"] < 0.3  # of 200 draws
