"""Parameters in modules are trained through the transforms that the modules return."""

import pytest
import torch

from igr import InvertibleGaussian
from igr.nn import PlanarFlow
from igr.testing import check_transform
from igr.transforms import Planar, call_and_ladj


@pytest.mark.parametrize("batch_shape", [(), (5,), (2, 3)])
@pytest.mark.parametrize("num_layers", [1, 2, 4])
@pytest.mark.parametrize("K", [2, 10])
def test_shapes(K, num_layers, batch_shape):
    planar = PlanarFlow(K, num_layers, batch_shape)
    assert planar.u.shape == planar.w.shape == (num_layers, *batch_shape, K - 1)
    assert planar.b.shape == (num_layers, *batch_shape)
    flow = planar()
    assert len(flow.parts) == num_layers
    assert all(isinstance(part, Planar) and part.batch_shape == batch_shape for part in flow.parts)
    q = InvertibleGaussian(torch.zeros(*batch_shape, K - 1), 1.0, 0.5, flow=flow)
    z, log_q = q.rsample_and_log_prob((7,))
    assert z.shape == (7, *batch_shape, K)
    assert log_q.shape == (7, *batch_shape)


def test_batch_has_flows_of_its_own():
    planar = PlanarFlow(4, batch_shape=(5,), std=1.0).double()
    y = torch.randn(5, 3, dtype=torch.float64)
    x, ladj = call_and_ladj(planar(), y)
    for k in range(5):
        one = PlanarFlow(4).double()
        one.load_state_dict({name: value[:, k] for name, value in planar.state_dict().items()})
        torch.testing.assert_close(call_and_ladj(one(), y[k]), (x[k], ladj[k]))
    assert len({tuple(row) for row in planar()(torch.ones(5, 3, dtype=torch.float64)).tolist()}) == 5


def test_layers_are_nested_in_order():
    planar = PlanarFlow(4, num_layers=2, std=1.0)
    y = torch.randn(6, 3)
    first, second = (Planar(planar.u[k], planar.w[k], planar.b[k]) for k in (0, 1))
    torch.testing.assert_close(planar()(y), second(first(y)))
    assert not torch.allclose(planar()(y), first(second(y)))


def test_is_a_correct_transform():
    planar = PlanarFlow(4, num_layers=3, std=1.0).double().requires_grad_(False)
    check_transform(planar(), torch.randn(8, 3, dtype=torch.float64))


def test_std():
    small, large = PlanarFlow(1000, std=0.05), PlanarFlow(1000, std=2.0)
    for name in ("u", "w"):
        torch.testing.assert_close(getattr(small, name).std().item(), 0.05, rtol=0.1, atol=0)
        torch.testing.assert_close(getattr(large, name).std().item(), 2.0, rtol=0.1, atol=0)
    assert bool((small.b == 0).all())


def test_state_dict_round_trip():
    planar, other = PlanarFlow(5, batch_shape=(3,)), PlanarFlow(5, batch_shape=(3,))
    assert planar() == planar()
    assert planar() != other()
    other.load_state_dict(planar.state_dict())
    assert planar() == other()


def test_every_parameter_gets_a_gradient():
    planar = PlanarFlow(5, batch_shape=(3,))
    _, log_q = InvertibleGaussian(torch.zeros(3, 4), 1.0, 0.5, flow=planar()).rsample_and_log_prob((10,))
    log_q.sum().backward()
    assert {name for name, _ in planar.named_parameters()} == {"u", "w", "b"}
    for parameter in planar.parameters():
        assert bool((parameter.grad != 0).all())


def test_training_raises_a_coordinate():
    planar = PlanarFlow(3)
    optimizer = torch.optim.Adam(planar.parameters(), lr=0.05)
    losses = []
    for step in range(100):
        q = InvertibleGaussian(torch.zeros(2), 1.0, 0.5, flow=planar())
        loss = -q.rsample((500,), generator=torch.Generator().manual_seed(step))[:, 0].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    # 0.34 for a standard normal; three standard errors of a mean over 500 samples are below 0.06
    assert losses[-1] < losses[0] - 0.3


def test_training_by_maximum_likelihood():
    """Two modes, which no Gaussian has: the flow, through its inverse, does better than the best Gaussian."""
    torch.manual_seed(0)
    side = torch.where(torch.rand(400, 1) < 0.5, -2.0, 2.0)
    y = side * torch.tensor([1.0, 0.5]) + 0.4 * torch.randn(400, 2)
    log_z = torch.nn.functional.pad(y, (0, 1)).log_softmax(-1)
    best_gaussian = -InvertibleGaussian(y.mean(0), y.std(0), 1.0).log_prob_from_log(log_z).mean().item()
    planar, log_scale = PlanarFlow(3, num_layers=2, std=0.5), torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.Adam([*planar.parameters(), log_scale], lr=0.05)
    for _ in range(200):
        q = InvertibleGaussian(torch.zeros(2), log_scale.exp(), 1.0, flow=planar())
        loss = -q.log_prob_from_log(log_z).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < best_gaussian - 0.2


def test_repr():
    assert repr(PlanarFlow(5, 3, (2, 4))) == "PlanarFlow(num_categories=5, num_layers=3, batch_shape=(2, 4))"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"num_categories": 1}, "num_categories"),
        ({"num_categories": 0}, "num_categories"),
        ({"num_categories": -3}, "num_categories"),
        ({"num_categories": 5, "num_layers": 0}, "num_layers"),
        ({"num_categories": 5, "num_layers": -1}, "num_layers"),
    ],
    ids=str,
)
def test_bad_arguments(arguments, name):
    with pytest.raises(ValueError, match=name):
        PlanarFlow(**arguments)


def test_wrong_number_of_categories():
    with pytest.raises(ValueError, match="length 4"):
        InvertibleGaussian(torch.zeros(3), 1.0, 0.5, flow=PlanarFlow(5)())
