"""Training by estimators: the loss and its gradient against sums over all states."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from igr import GumbelSoftmax, InvertibleGaussian, estimators, recovered_log_probs
from igr._draws import NoiseSource
from igr.paper.estimated import PATH_NODES, estimated_loss
from igr.paper.models import EnsembleVae
from igr.paper.noise import BlockNoise
from igr.paper.specs import SPECS

pytestmark = pytest.mark.usefixtures("one_thread")

N, K, D = 2, 3, 5
COPIES, IMAGES = 500, 50  # of the member, and of the image for each


def vae_of(id: str) -> EnsembleVae:
    """The same member many times, with weights large enough for a posterior that is not uniform."""
    cell = replace(SPECS[id], architecture="linear")
    vae = EnsembleVae(cell, [1], num_variables=N, num_categories=K, num_pixels=D, dtype=torch.float64)
    vae = vae.subset([0] * COPIES)
    with torch.no_grad():
        for weight in vae.weights:
            weight.mul_(1.5)
    return vae


def exact_loss(vae: EnsembleVae, x: Tensor) -> Tensor:
    """Minus the discrete bound of the first member, by a sum over all states."""
    vae = vae.subset([0])
    parameters = vae.encode(x[:1, :1])
    if vae.cell.method == "gs":
        log_q = parameters[0].log_softmax(-1)
    else:
        log_q = recovered_log_probs(parameters[0], parameters[1].exp())
    states = torch.eye(K, dtype=torch.float64)[torch.tensor(list(itertools.product(range(K), repeat=N)))]
    z = states.view(-1, 1, 1, N, K)
    log_joint = (z * log_q).sum((-2, -1))  # (states, 1, 1)
    bound = (log_joint.exp() * (vae.log_px(x[:1, :1], z) - log_joint - N * math.log(K))).sum()
    return -bound, torch.autograd.grad(-bound, list(vae.weights))


@pytest.mark.parametrize(
    "id",
    [
        "beyond/mnist/linear/gs+rloo",
        "beyond/mnist/linear/igr-i+rloo",
        "s4/mnist/nonlinear/gs+uspg",
        "beyond/mnist/linear/gs+relax",
        "beyond/mnist/linear/igr-i+relax",
        "s4/mnist/nonlinear/gs+relax",
    ],
)
def test_loss_and_gradient_are_unbiased(id):
    vae = vae_of(id)
    x = (torch.rand(D, generator=torch.Generator().manual_seed(3)) < 0.5).double().expand(COPIES, IMAGES, D)
    noise = BlockNoise(range(COPIES), torch.arange(COPIES), torch.zeros(1, dtype=torch.int64))
    noise.seek(0, 0)
    tau = torch.full((COPIES, 1, 1, 1), 0.5, dtype=torch.float64)
    loss = estimated_loss(vae, x, tau, noise).mean(-1)
    gradients = torch.autograd.grad(loss.sum(), list(vae.weights))
    value, expected = exact_loss(vae, x)
    for found, truth in zip((loss, *gradients), (value, *expected), strict=True):
        spread = found.std(0, keepdim=True) / math.sqrt(COPIES)
        off = (found.mean(0, keepdim=True) - truth).abs()
        assert (off <= 5 * spread + 1e-9).all(), f"{(off / spread).max():.1f} standard errors"


@pytest.mark.parametrize("id", ["beyond/mnist/linear/gs+reinmax", "beyond/mnist/linear/igr-i+rao"])
def test_loss_of_biased_estimators_is_unbiased(id):
    vae = vae_of(id)
    x = (torch.rand(D, generator=torch.Generator().manual_seed(3)) < 0.5).double().expand(COPIES, IMAGES, D)
    noise = BlockNoise(range(COPIES), torch.arange(COPIES), torch.zeros(1, dtype=torch.int64))
    noise.seek(0, 0)
    loss = estimated_loss(vae, x, torch.ones(COPIES, 1, 1, 1, dtype=torch.float64), noise).mean(-1)
    value, _ = exact_loss(vae, x)
    assert abs(loss.mean() - value) < 5 * loss.std() / math.sqrt(COPIES)


def test_only_the_variance_trains_the_control_variate():
    """What it is trained by does not reach encoder and decoder, and the estimate does not reach it."""
    vae = vae_of("beyond/mnist/linear/igr-i+relax").subset([0, 0])
    x = torch.ones(2, 3, D, dtype=torch.float64)
    tau = torch.full((2, 1, 1, 1), 0.5, dtype=torch.float64)

    def gradients():
        noise = BlockNoise((1, 2), torch.arange(2), torch.zeros(1, dtype=torch.int64))
        noise.seek(0, 0)
        vae.zero_grad()
        estimated_loss(vae, x, tau, noise).sum().backward()
        return {name: p.grad.clone() for name, p in vae.named_parameters() if p.grad is not None}

    trained = gradients()
    control = {name for name in trained if name.startswith(("control", "log_temperature"))}
    assert len(control) == 5
    assert all(trained[name].abs().max() > 0 for name in control)
    for name, p in vae.named_parameters():
        p.requires_grad_(name not in control)
    for name, gradient in gradients().items():
        torch.testing.assert_close(gradient, trained[name], rtol=1e-12, atol=1e-14)


def three_members(id: str) -> tuple[EnsembleVae, Tensor]:
    """Members that differ, with a control variate and temperatures that are not where they start, and images."""
    cell = replace(SPECS[id], architecture="linear", num_samples=2)
    vae = EnsembleVae(cell, [1, 2, 3], num_variables=N, num_categories=K, num_pixels=D, dtype=torch.float64)
    with torch.no_grad():
        for p in vae.parameters():
            p.add_(0.3 * torch.randn(p.shape, dtype=p.dtype))
    return vae, (torch.rand(3, 4, D) < 0.5).double()


def three_streams() -> BlockNoise:
    noise = BlockNoise((1, 2, 3), torch.arange(3), torch.zeros(1, dtype=torch.int64))
    noise.seek(0, 0)
    return noise


def library_loss(vae: EnsembleVae, x: Tensor, tau: Tensor, noise: NoiseSource) -> Tensor:
    """The same loss from the library's estimators and all their nodes."""

    def f(z: Tensor) -> Tensor:
        return -vae.log_px(x, z)

    temperature = vae.temperature(tau) if vae.cell.estimator == "relax" else tau
    if vae.cell.method == "gs":
        (logits,) = vae.encode(x)
        q, log_q = GumbelSoftmax(temperature, logits), logits.log_softmax(-1)
    else:
        mu, xi = vae.encode(x)
        q, log_q = InvertibleGaussian(mu, xi.exp(), temperature), recovered_log_probs(mu, xi.exp())
    options = {"num_samples": vae.cell.num_samples, "generator": noise}
    if vae.cell.estimator == "reinmax":
        found = estimators.reinmax(q, f, temperature=tau, **options)
    elif vae.cell.estimator == "gapst":
        found = estimators.gapped_straight_through(q, f, temperature=tau, **options)
    else:
        found = estimators.relax(q, f, control_variate=lambda z: f(z) + vae.control(z), **options)
    return found.surrogate + (log_q.exp() * (log_q + math.log(K))).sum((-2, -1))


@pytest.mark.parametrize("estimator", ["reinmax", "gapst", "relax"])
@pytest.mark.parametrize("method", ["gs", "igr-i"])
def test_the_loss_is_that_of_the_estimator_at_the_temperature(method, estimator):
    vae, x = three_members(f"beyond/mnist/linear/{method}+{estimator}")
    names, parameters = zip(*vae.named_parameters(), strict=True)
    encoders = []
    for temperatures in ((0.5, 0.7, 0.9), (1.5, 2.0, 1.2)):
        tau = torch.tensor(temperatures, dtype=torch.float64).view(3, 1, 1, 1)
        found, expected = (of(vae, x, tau, three_streams()) for of in (estimated_loss, library_loss))
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=0)
        found, expected = (torch.autograd.grad(loss.sum(), parameters) for loss in (found, expected))
        rtol = 1e-12 if method == "gs" else 1e-4  # with the nodes of training, and with all
        for name, a, b in zip(names, found, expected, strict=True):
            assert (a - b).norm() <= rtol * b.norm(), name
            assert b.norm() > 0, name
        encoders.append(found[0])
    assert (encoders[0] - encoders[1]).norm() > 0.01 * encoders[0].norm()


def test_the_nodes_of_training_are_enough():
    """Slopes of the conditional path with few nodes, at the parameters of a trained encoder's range."""
    from igr import conditional_path

    generator = torch.Generator().manual_seed(0)
    mu = 3 * torch.randn(2000, 9, generator=generator, dtype=torch.float64)
    sigma = torch.randn(2000, 9, generator=generator, dtype=torch.float64).exp()
    eps, direction = torch.randn(2, 2000, 9, generator=generator, dtype=torch.float64)
    mu.requires_grad_()
    sigma.requires_grad_()
    y = (mu + sigma * eps).detach()
    fine, coarse = (
        torch.cat(torch.autograd.grad((conditional_path(mu, sigma, y, num_nodes=n) * direction).sum(), [mu, sigma]), -1)
        for n in (192, PATH_NODES)
    )
    error = (coarse - fine).norm(dim=-1) / fine.norm(dim=-1)
    assert error.quantile(0.99) < 1e-4
    assert error.max() < 1e-2
