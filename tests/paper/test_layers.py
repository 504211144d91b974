"""The kernels of layers and of Adam, interpreted on a CPU: against torch's own layers and its Adam, in float64."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="needs Triton")

import igr.kernels
from igr.paper.ensemble import Ensemble
from igr.paper.layer_kernels import adam_product, adam_sizes, affine, affine_input_gradient
from igr.paper.layers import BETAS, EPS, Adam, Factors, layers
from igr.paper.likelihood import bernoulli_log_prob
from igr.paper.likelihood_kernels import bernoulli_rows
from igr.paper.specs import SPECS
from igr.paper.trainer import Trainer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # where a device is there, kernels are compiled
SIZES = [(3, 100, 70, 90), (2, 7, 130, 33), (1, 129, 5, 200)]


def some(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float32).to(DEVICE)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("relu", [False, True])
def test_affine(sizes, relu):
    E, rows, i, o = sizes
    x, w, b = some(E, rows, i), some(E, i, o), some(E, 1, o)
    expected = torch.baddbmm(b.double(), x.double(), w.double())
    expected = expected.relu() if relu else expected
    torch.testing.assert_close(affine(x, w, b, relu, "ieee").double(), expected, rtol=1e-5, atol=1e-4)
    strided = some(E, i, rows).mT
    expected = torch.baddbmm(b.double(), strided.double(), w.double())
    torch.testing.assert_close(affine(strided, w, b, False, "ieee").double(), expected, rtol=1e-5, atol=1e-4)


def test_nan_is_not_lost():
    x, w, b = some(2, 5, 7), some(2, 7, 6), some(2, 1, 6)
    w[1, 2, 3] = torch.nan
    out = affine(x, w, b, True, "ieee")
    assert out[1, :, 3].isnan().all()
    assert out[0].isfinite().all()


@pytest.mark.parametrize("sizes", SIZES)
def test_gradient_of_the_input(sizes):
    E, rows, i, o = sizes
    dy, w, x = some(E, rows, o), some(E, i, o), some(E, rows, i)
    expected = dy.double() @ w.double().mT
    torch.testing.assert_close(affine_input_gradient(dy, w, "ieee").double(), expected, rtol=1e-5, atol=1e-4)
    masked = affine_input_gradient(dy, w, "ieee", relu=x).double()
    torch.testing.assert_close(masked, expected * (x > 0), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("sizes", SIZES)
def test_adam(sizes):
    """Three steps with rates that change, of weights and biases at once."""
    E, rows, i, o = sizes
    weight, bias = [[some(*shape), *torch.zeros(2, *shape, device=DEVICE)] for shape in ((E, i, o), (E, 1, o))]
    parameters = [torch.nn.Parameter(each[0].double()) for each in (weight, bias)]
    optimizer = torch.optim.Adam(parameters, betas=BETAS, eps=EPS)
    step = torch.zeros((), device=DEVICE)
    for rate in (1e-2, 1e-3, 3e-3):
        x, dy = some(E, rows, i), some(E, rows, o)
        optimizer.param_groups[0]["lr"] = rate
        parameters[0].grad = x.double().mT @ dy.double()
        parameters[1].grad = dy.double().sum(1, keepdim=True)
        optimizer.step()
        sizes = adam_sizes(step, torch.tensor(rate, device=DEVICE), BETAS)
        adam_product(x, dy, weight, bias, sizes, BETAS, EPS, "ieee")
        for found, p in ((weight, parameters[0]), (bias, parameters[1])):
            state = optimizer.state[p]
            torch.testing.assert_close(found[0].double(), p.detach(), rtol=0, atol=1e-5)
            torch.testing.assert_close(found[1].double(), state["exp_avg"], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(found[2].double(), state["exp_avg_sq"], rtol=1e-4, atol=1e-4)


def network(factors=None):
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(some(2, i, o)) for i, o in ((5, 6), (6, 4), (4, 3))]
    biases = [torch.nn.Parameter(some(2, 1, o)) for o in (6, 4, 3)]
    return weights, biases, lambda h: layers(h, weights, biases, factors)


class Told(list):
    """What a listener hears: products, or how many weights are complete."""

    def before_products(self):
        self.append("products")

    def complete(self, weights):
        self.append(len(weights))


def test_factors_multiply_to_gradients():
    factors = Factors("ieee")
    weights, biases, plain = network()
    others, _, factored = network(factors)
    h = some(2, 8, 5)
    a, b = h.clone().requires_grad_(), h.clone().requires_grad_()
    twice = 0.3 * h
    (plain(a).square().sum() + plain(twice).sum()).backward()
    with factors.collected(told := Told()):
        (factored(b).square().sum() + factored(twice).sum()).backward()  # two uses of every layer
    assert told == ["products", 0, "products", 3]
    torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-4)
    assert all(p.grad is None for p in others)
    found = {weight: factors.taken(weight) for weight in others}
    assert not factors.pairs
    for other, weight, bias in zip(others, weights, biases, strict=True):
        x, dy = found[other]
        assert x.shape[1] == 16
        torch.testing.assert_close(x.mT @ dy, weight.grad, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(dy.sum(1, keepdim=True), bias.grad, rtol=1e-4, atol=1e-4)


def test_gradients_taken_on_the_way_leave_nothing():
    factors = Factors("ieee")
    _, _, factored = network(factors)
    h = some(2, 8, 5).requires_grad_()
    torch.autograd.grad(factored(h).sum(), h)
    assert not factors.pairs


def test_factored_gradients_cannot_be_differentiated_again():
    _, _, factored = network(Factors("ieee"))
    h = some(2, 8, 5).requires_grad_()
    (d,) = torch.autograd.grad(factored(h).square().sum(), h, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        d.sum().backward()


class Layered(torch.nn.Module):
    """Layers and a parameter that is in none of them."""

    def __init__(self, factors=None):
        super().__init__()
        weights, biases, self.run = network(factors)
        self.weights, self.biases = torch.nn.ParameterList(weights), torch.nn.ParameterList(biases)
        self.shift = torch.nn.Parameter(torch.zeros(2, 1, 3, device=DEVICE))


def once(run, x):
    return run(x)


def twice(run, x):
    """Two uses, of which each needs the weights as they were before the step."""
    return run(x) + run(run(x).repeat(1, 1, 2)[..., :5])


def on_the_way(run, x):
    """A use whose gradient is wanted before the step, which asks for none."""
    h = x.clone().requires_grad_()
    (d,) = torch.autograd.grad(run(h).square().sum(), h)
    return run(x + d.tanh())


@pytest.mark.parametrize("use", [once, twice, on_the_way])
def test_adam_of_factors_is_adam(use):
    factors = Factors("ieee")
    models = [Layered(), Layered(factors)]
    optimizers = [Adam(models[0], 1e-2, varies=True), Adam(models[1], 1e-2, varies=True, factors=factors)]
    for rate in (1e-2, 1e-2, 1e-3):
        x = some(2, 8, 5)
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.set_rate(rate)
            optimizer.backward((use(model.run, x) + model.shift).square().sum(-1))
            optimizer.step()
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-5)
        for key, value in optimizers[0].state[a].items():
            torch.testing.assert_close(optimizers[1].state[b][key], value, rtol=1e-3, atol=1e-5)


@pytest.mark.skipif(DEVICE == "cuda", reason="tests of training on CUDA see to that")
@pytest.mark.parametrize("id", ["table1/mnist/nonlinear/igr-planar+sl", "beyond/mnist/linear/gs+reinmax"])
def test_members_are_trained_by_factors_as_they_are_without(id, monkeypatch):
    images = (np.random.default_rng(0).random((10, 12)) < 0.3).astype(np.uint8)
    cell = replace(SPECS[id], temperatures=(0.5,), seeds=(1, 2), batch_size=10, epochs=2, learning_rate=0.01)
    sizes = {"num_variables": 3, "num_categories": 4}
    losses = []
    for fused in (False, True):
        monkeypatch.setattr(Trainer, "_fuses", lambda self, fused=fused: fused)
        trainer = Ensemble(cell, images, torch.device("cpu"), torch.float32, **sizes)
        assert (trainer.model.factors is not None) == fused
        losses.append(torch.stack([trainer.run_epoch() for _ in range(2)]))
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(DEVICE == "cuda", reason="tests of training on CUDA see to that")
def test_copies_of_a_model_have_nothing_of_its_optimizer(monkeypatch):
    monkeypatch.setattr(Trainer, "_fuses", lambda self: True)
    monkeypatch.setattr(Adam, "__deepcopy__", lambda self, memo: pytest.fail("was copied"), raising=False)
    cell = replace(SPECS["table1/mnist/linear/gs"], temperatures=(0.5,), seeds=(1, 2), batch_size=20, epochs=2)
    images = (np.random.default_rng(0).random((40, 12)) < 0.3).astype(np.uint8)
    trainer = Ensemble(cell, images, torch.device("cpu"), torch.float32, num_variables=3, num_categories=4)
    trainer.run_epoch()
    assert len(trainer.vae.subset([0]).weights[0]) == 1
    optimizer = weakref.ref(trainer.optimizer)
    gc.disable()
    try:
        del trainer
        assert optimizer() is None  # nor is it kept by what it has trained
    finally:
        gc.enable()


def test_bernoulli_rows():
    x = (torch.rand(3, 4, 50, device=DEVICE) < 0.3).float()
    by_member = 5 * some(3, 2, 4, 50)
    for ink, logits in (
        (x, by_member.transpose(0, 1)),
        (x[0].expand(3, -1, -1), by_member.transpose(0, 1)),
        (x.unsqueeze(2), 30 * some(3, 4, 7, 50)),
        (x, some(3, 4, 50)),
    ):
        expected = bernoulli_log_prob(ink.double(), logits.double())
        torch.testing.assert_close(bernoulli_rows(ink, logits).double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernels", [False, True])
def test_bernoulli_shapes_broadcast_with_and_without_kernels(monkeypatch, kernels: bool, dtype: torch.dtype):
    monkeypatch.setattr(igr.kernels, "usable", lambda *tensors: kernels)
    x, logits = (torch.rand(3, 4, 6, device=DEVICE) < 0.3).to(dtype), some(4, 6).to(dtype)
    for ink, said in ((x, logits), (x[0], logits), (x[0, 0], logits.expand(3, 4, 6))):
        with torch.no_grad():
            found = bernoulli_log_prob(ink, said)
        expected = torch.distributions.Bernoulli(logits=said.double()).log_prob(ink.double()).sum(-1)
        torch.testing.assert_close(found.double(), expected, rtol=3e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-4)
