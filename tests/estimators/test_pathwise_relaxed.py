"""Relaxed samples, and hard ones with the gradient of relaxed ones, against derivatives at fixed noise."""

import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from pathwise_cases import (
    BATCHES,
    DOUBLE,
    RELAXED,
    K,
    Loss,
    N,
    S,
    apply,
    at_the_samples,
    gradients,
    jacobian,
    leaf,
    relaxed,
    seeded,
)
from torch import Tensor
from torch.autograd import grad, gradcheck
from torch.distributions import Bernoulli, Independent

from igr.distributions import GumbelSoftmax, InvertibleGaussian
from igr.estimators.reparameterized import reparameterized
from igr.estimators.st_relaxed import st_relaxed

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("kind", RELAXED)
def test_reparameterized_is_the_derivative_at_fixed_noise(kind):
    batch = (2,)
    build, parts = relaxed(kind, batch)
    loss = Loss(parts[0], kind == "BinaryConcrete", batch)

    def surrogate(*parts: Tensor) -> Tensor:
        loss.q_parameter = parts[0]
        return reparameterized(build(*parts), loss, num_samples=S, generator=seeded()).surrogate

    assert gradcheck(surrogate, parts)
    value, s = reparameterized(build(*parts), loss, num_samples=S, generator=seeded())
    z = loss.calls[-1]
    torch.testing.assert_close(value, loss(z).mean(0))
    torch.testing.assert_close(grad(s.sum(), loss.weight), grad(loss(z).mean(0).sum(), loss.weight))


@pytest.mark.parametrize("kind", ["GS", "IGR-I", "IGR-SB", "IGR-Planar"])
def test_reparameterized_samples_are_those_of_q(kind):
    build, parts = relaxed(kind, (5,))
    loss = Loss(parts[0], False, (5,))
    reparameterized(build(*parts), loss, num_samples=S, generator=seeded())
    torch.testing.assert_close(loss.calls[0], build(*parts).rsample((S,), generator=seeded()).detach())


def test_a_discrete_q_is_relaxed_at_the_temperature_given():
    logits = leaf(5, N)
    tau = torch.tensor([[0.3], [1.0], [2.0]]).double()
    for q, tau_of in ((Bernoulli(logits=logits), tau), (Independent(Bernoulli(logits=logits), 1), 0.4)):
        shown = []
        reparameterized(q, lambda z: shown.append(z) or z.sum(-1), temperature=tau_of, num_samples=20_000)  # noqa: B023
        log_odds = shown[0].logit() * (tau_of.squeeze(-1) if isinstance(tau_of, Tensor) else tau_of) - logits
        assert scipy.stats.kstest(log_odds.detach().flatten().numpy(), "logistic").pvalue > 1e-5


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_st_relaxed_gumbel_softmax_equals_its_dense_formula(batch):
    logits, tau = leaf(*batch, N, K), 0.3
    loss = Loss(logits, False, batch)
    value, surrogate = st_relaxed(GumbelSoftmax(tau, logits), loss, num_samples=S, generator=seeded())
    actual = gradients(surrogate, [logits, loss.weight])
    exponential = torch.empty(S, *batch, N, K, dtype=DOUBLE).exponential_(generator=seeded())
    x = logits.detach() - exponential.log()
    D, expected_value, v, direct = at_the_samples(loss, [logits])
    assert torch.equal(D, F.one_hot(x.argmax(-1), K).double())
    torch.testing.assert_close(value, expected_value)
    torch.testing.assert_close(actual[0], direct[0] + apply(jacobian((x / tau).softmax(-1)), v).sum(0) / tau)
    torch.testing.assert_close(actual[1], direct[1])


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_st_relaxed_igr_equals_its_dense_formula(batch):
    parts, tau, delta = [leaf(*batch, N, K - 1), leaf(*batch, N, K - 1, positive=True)], 0.3, 2.5
    loss = Loss(parts[0], False, batch)
    value, surrogate = st_relaxed(InvertibleGaussian(*parts, tau, delta=delta), loss, num_samples=S, generator=seeded())
    actual = gradients(surrogate, [*parts, loss.weight])
    eps = torch.randn(S, *batch, N, K - 1, dtype=DOUBLE, generator=seeded())
    y = (parts[0] + parts[1] * eps).detach()
    top = y.argmax(-1).where(y.amax(-1) > 0, K - 1)
    D, expected_value, v, direct = at_the_samples(loss, parts)
    assert torch.equal(D, F.one_hot(top, K).double())
    torch.testing.assert_close(value, expected_value)
    e = (y / tau).exp()
    z = torch.cat([e, torch.full_like(e[..., :1], delta)], -1) / (e.sum(-1, keepdim=True) + delta)
    through_y = apply(jacobian(z), v)[..., :-1] / tau
    torch.testing.assert_close(actual[0], direct[0] + through_y.sum(0))
    torch.testing.assert_close(actual[1], direct[1] + (through_y * eps).sum(0))
    torch.testing.assert_close(actual[2], direct[2])


@pytest.mark.parametrize("kind", ["BinaryConcrete", "IGR-SB", "vertices", "IGR-Planar"])
def test_st_relaxed_backward_is_that_of_the_relaxed_sample(kind):
    build, parts = relaxed(kind, (2,))
    binary = kind == "BinaryConcrete"
    weight = leaf(*(2, N) if binary else (2, N, K))
    events = (-1,) if binary else (-2, -1)
    shown = []

    def f(z: Tensor) -> Tensor:
        shown.append(z.detach())
        return (z * weight).sum(events)  # linear: one slope at the hard and at the relaxed sample

    hard = st_relaxed(build(*parts), f, num_samples=S, generator=seeded())
    soft = reparameterized(build(*parts), f, num_samples=S, generator=seeded())
    assert torch.equal(shown[0].square(), shown[0])
    *actual, own = gradients(hard.surrogate, [*parts, weight])
    torch.testing.assert_close(actual, gradients(soft.surrogate, parts))
    assert torch.equal(own, shown[0].mean(0))
