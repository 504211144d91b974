"""Parameters in modules are trained through the transforms and distributions that the modules return."""

import copy
import gc
import pickle
import weakref
from functools import partial

import pytest
import torch
from torch import optim

from igr import InvertibleGaussian
from igr.nn import GrowingSticks, PlanarFlow
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


# ---------------------------------------------------------------------------------------------------- growing sticks

OPTIMIZERS = {
    "SGD": partial(optim.SGD, lr=0.1),
    "SGD with momentum": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": partial(optim.Adam, lr=0.01),
    "Adam, one by one": partial(optim.Adam, lr=0.01, foreach=False),
    "Adam, for each": partial(optim.Adam, lr=0.01, foreach=True, amsgrad=True),
    "Adam, fused": partial(optim.Adam, lr=0.01, fused=True),
    "Adam, lr a tensor": partial(optim.Adam, lr=torch.tensor(0.01)),
    "AdamW": partial(optim.AdamW, lr=0.01, fused=True),
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "Adamax": optim.Adamax,
    "Adadelta": optim.Adadelta,
    "Adafactor": optim.Adafactor,
    "Adagrad": partial(optim.Adagrad, lr=0.1, initial_accumulator_value=0.3),
    "Adagrad, fused": partial(optim.Adagrad, lr=0.1, fused=True),
    "ASGD": optim.ASGD,
    "RMSprop": partial(optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    "Rprop": optim.Rprop,
}
# what a step does to a block does not depend on how often the block was there before
AGELESS = ["SGD", "SGD with momentum", "Adagrad", "RMSprop"]


def train(sticks, optimizer, steps, *, first=0):
    """Steps that need about 8 sticks, from the fourth on about 50; the noise of each is its own."""
    for step in range(first, first + steps):
        optimizer.zero_grad()
        precision = 0.5 if step < 3 else 1 - 1e-6
        noise = torch.Generator().manual_seed(step)
        sample, log_q = sticks(0.5, precision).rsample_and_log_prob((20,), generator=noise)
        (sample.rest.mean() + 0.01 * log_q.mean()).backward()
        optimizer.step()


def attached(build):
    sticks = GrowingSticks(loc=-1.0, block=16).double()
    optimizer = build(sticks.parameters())
    sticks.attach(optimizer)
    return sticks, optimizer


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_growth_keeps_what_the_optimizer_knows(name):
    sticks, optimizer = attached(OPTIMIZERS[name])
    train(sticks, optimizer, 3)
    first = sticks.loc_0
    before, kept = first.clone(), dict(optimizer.state[first])
    values = copy.deepcopy(kept)
    assert sticks.num_sticks == 16
    sticks(0.5, 1 - 1e-6).rsample((20,))
    assert sticks.num_sticks > 16
    assert sticks.loc_0 is first
    assert bool((first == before).all())
    assert optimizer.state[first].keys() == kept.keys()
    for key, value in optimizer.state[first].items():
        assert value is kept[key]
        assert bool(torch.as_tensor(value == values[key]).all())
    assert len(optimizer.param_groups) == 1
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in sticks.parameters()]
    start = sticks.loc_1.clone()
    train(sticks, optimizer, 5, first=3)
    assert bool((sticks.loc_1[:8] != start[:8]).all())
    assert bool((sticks.log_scale_1[:8] != 0).all())


@pytest.mark.parametrize("name", AGELESS)
def test_growth_is_as_if_all_had_been_there(name):
    sticks, optimizer = attached(OPTIMIZERS[name])
    large = GrowingSticks(loc=-1.0, block=16).double()
    large.grow(512)
    large_optimizer = OPTIMIZERS[name](large.parameters())
    train(sticks, optimizer, 8)
    train(large, large_optimizer, 8)
    assert 16 < sticks.num_sticks <= 512
    for a, b in zip(sticks.parameters(), large.parameters(), strict=False):
        torch.testing.assert_close(a, b)


def test_sticks_that_no_sample_reached_stay_where_they_are():
    for name in ("SGD with momentum", "Adam", "Adam, fused", "Adagrad", "RMSprop"):
        sticks, optimizer = attached(OPTIMIZERS[name])
        reached = 0
        for step in range(10):
            optimizer.zero_grad()
            sample = sticks(0.5, 1 - 1e-6).rsample((10,), generator=torch.Generator().manual_seed(step))
            sample.rest.mean().backward()
            optimizer.step()
            reached = max(reached, sample.z.shape[-1])
        k = torch.arange(sticks.num_sticks)
        assert 16 < reached < sticks.num_sticks < 2 * reached
        moved = (sticks.loc(k) != -1.0) | (sticks.scale(k) != 1.0)
        assert bool(moved[:reached].all())
        assert not bool(moved[reached:].any())


@pytest.mark.parametrize("schedule", [partial(optim.lr_scheduler.StepLR, step_size=2), optim.lr_scheduler.OneCycleLR])
def test_schedules_reach_new_blocks(schedule):
    sticks, optimizer = attached(partial(optim.Adam, lr=0.1))
    options = {"max_lr": 0.1, "total_steps": 20} if schedule is optim.lr_scheduler.OneCycleLR else {}
    scheduler = schedule(optimizer, **options)
    for step in range(8):
        train(sticks, optimizer, 1, first=step)
        scheduler.step()
    (group,) = optimizer.param_groups
    assert any(p is sticks.loc_1 for p in group["params"])
    assert [group["lr"]] == scheduler.get_last_lr()


def test_groups_of_their_own_and_other_modules():
    """New blocks join the group of the first, next to the block before them; what is in no group stays out."""
    model = torch.nn.ModuleDict(
        {"first": torch.nn.Linear(2, 2), "sticks": GrowingSticks(), "last": torch.nn.Linear(2, 2)}
    )
    whole = optim.Adam(model.named_parameters())
    parts = optim.SGD([{"params": [model["sticks"].loc_0], "lr": 0.1}, {"params": [model["sticks"].log_scale_0]}])
    locations = optim.SGD([model["sticks"].loc_0], lr=0.1)
    for optimizer in (whole, parts, locations):
        model["sticks"].attach(optimizer)
    model["sticks"].grow(100)
    assert model["sticks"].num_sticks == 128
    assert whole.param_groups[0]["param_names"] == [name for name, _ in model.named_parameters()]
    assert [id(p) for p in whole.param_groups[0]["params"]] == [id(p) for p in model.parameters()]
    sizes = [[p.shape[-1] for p in group["params"]] for group in (*parts.param_groups, *locations.param_groups)]
    assert sizes == [[32, 32, 64]] * 3
    assert [group["lr"] for group in parts.param_groups] == [0.1, 0.001]
    whole.load_state_dict(whole.state_dict())


@pytest.mark.parametrize("grown_first", [True, False])
@pytest.mark.parametrize("name", ["SGD with momentum", "Adam", "Adagrad", "RMSprop"])
def test_training_goes_on_from_saved_states(name, grown_first):
    sticks, optimizer = attached(OPTIMIZERS[name])
    train(sticks, optimizer, 6)
    saved, saved_optimizer = copy.deepcopy(sticks.state_dict()), copy.deepcopy(optimizer.state_dict())
    resumed = GrowingSticks(loc=-1.0, block=16).double()
    if grown_first:
        resumed.load_state_dict(saved)
    resumed_optimizer = OPTIMIZERS[name](resumed.parameters())
    resumed.attach(resumed_optimizer)
    resumed.load_state_dict(saved)
    resumed_optimizer.load_state_dict(saved_optimizer)
    assert resumed.num_sticks == sticks.num_sticks > 16
    train(sticks, optimizer, 4, first=6)
    train(resumed, resumed_optimizer, 4, first=6)
    for a, b in zip(sticks.parameters(), resumed.parameters(), strict=True):
        assert bool((a == b).all())


def test_an_earlier_state_is_that_of_a_smaller_module():
    sticks, optimizer = attached(OPTIMIZERS["Adam"])
    train(sticks, optimizer, 3)
    saved = copy.deepcopy(sticks.state_dict())
    k = torch.arange(400)
    with torch.no_grad():
        expected = sticks.loc(k), sticks.scale(k)
    train(sticks, optimizer, 5, first=3)
    assert sticks.num_sticks > 16
    sticks.load_state_dict(saved)
    with torch.no_grad():
        torch.testing.assert_close((sticks.loc(k), sticks.scale(k)), expected, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="log_scale_0"):
        sticks.load_state_dict({"loc_0": saved["loc_0"]})
    with pytest.raises(RuntimeError, match="size mismatch"):
        GrowingSticks(block=8).load_state_dict(saved)


def test_state_inside_a_larger_model():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), GrowingSticks((3,)))
    model[1].grow(200)
    torch.nn.init.normal_(model[1].loc_2)
    other = torch.nn.Sequential(torch.nn.Linear(2, 2), GrowingSticks((3,)))
    other.load_state_dict(model.state_dict())
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert bool((a == b).all())


def test_evaluation_does_not_grow():
    sticks = GrowingSticks((2,), loc=lambda k: -3.0 - 0.001 * k, scale=lambda k: 1.0 + 0.01 * k)
    k = torch.arange(50)
    with torch.no_grad():
        torch.testing.assert_close(sticks.loc(k), (-3.0 - 0.001 * k).expand(2, 50))
        torch.testing.assert_close(sticks.scale(k), (1.0 + 0.01 * k).expand(2, 50))
        assert sticks(0.5, 0.99).rsample((10,)).z.shape[-1] > 32
    assert sticks(0.5, 0.99).sample((10,)).z.shape[-1] > 32
    sticks.requires_grad_(False)
    assert sticks(0.5, 0.99).rsample((10,)).z.shape[-1] > 32
    assert sticks.num_sticks == 32


def test_adagrad_starts_new_blocks_where_it_started_the_first():
    sticks, optimizer = attached(OPTIMIZERS["Adagrad"])
    sticks.grow(100)
    for parameter in sticks.parameters():
        assert bool((optimizer.state[parameter]["sum"] == 0.3).all())
        assert optimizer.state[parameter]["step"] == 0


def test_frozen_scales_stay_frozen():
    sticks = GrowingSticks()
    sticks.log_scale_0.requires_grad_(False)
    sticks.grow(100)
    assert [p.requires_grad for p in sticks.parameters()] == [True, False] * 3


def test_a_number_is_no_batch_shape():
    with pytest.raises(TypeError, match=r"batch_shape must be a tuple, such as \(4,\), got 4"):
        GrowingSticks(4)


def test_growth_without_an_optimizer_is_told():
    sticks = GrowingSticks(loc=-3.0)
    with pytest.warns(UserWarning, match="attach"):
        sticks(0.5, 0.99).rsample((10,))
    sticks, optimizer = attached(OPTIMIZERS["SGD"])
    alive = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert alive() is None
    with pytest.warns(UserWarning, match="sticks from 16 on are new"):
        sticks(0.5, 1 - 1e-6).rsample((10,))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_are_not_attached(duplicate):
    sticks, optimizer = attached(OPTIMIZERS["Adam"])
    other = duplicate(sticks)
    other.grow(100)
    assert sticks.num_sticks == 16
    assert len(optimizer.param_groups[0]["params"]) == 2
    assert other.loc_0 is not sticks.loc_0
    own = optim.Adam(other.parameters())
    other.attach(own)
    other.grow(200)
    assert len(own.param_groups[0]["params"]) == len(list(other.parameters())) == 10


def test_attaching_late_brings_in_what_is_missing():
    sticks = GrowingSticks()
    optimizer = optim.Adam(sticks.parameters())
    sticks.grow(100)
    assert len(optimizer.param_groups[0]["params"]) == 2
    for _ in range(2):
        sticks.attach(optimizer)
        assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in sticks.parameters()]


def test_new_blocks_are_like_the_first():
    sticks = GrowingSticks((2,), loc=lambda k: 0.1 * k).double()
    sticks.grow(100)
    assert {(p.dtype, p.device, p.shape[:-1]) for p in sticks.parameters()} == {
        (torch.float64, torch.device("cpu"), (2,))
    }
    meta = GrowingSticks().to("meta")
    meta.grow(100)
    assert all(p.is_meta for p in meta.parameters())


def test_fits_a_geometric_distribution():
    """Moment matching of E z to Geometric(0.4), from sticks that are far too short."""
    p0 = 0.4 * 0.6 ** torch.arange(1000)
    sticks = GrowingSticks(loc=-3.0, block=16)
    optimizer = optim.Adam(sticks.parameters(), lr=0.1)
    sticks.attach(optimizer)

    def total_variation():
        w = sticks(0.1, 0.99).sample((20_000,), generator=torch.Generator().manual_seed(0)).w
        found = torch.bincount(w.argmax(-1), minlength=1000) / 20_000
        return 0.5 * (found - p0).abs().sum().item()

    start = total_variation()
    for step in range(100):
        z = sticks(0.1, 0.99).rsample((200,), generator=torch.Generator().manual_seed(step)).z
        loss = (z.mean(0) - p0[: z.shape[-1]]).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert sticks.num_sticks > 16
    assert start > 0.4
    assert total_variation() < 0.06


def test_sticks_repr():
    assert repr(GrowingSticks((2, 4), block=8)) == "GrowingSticks(num_sticks=8, batch_shape=(2, 4), block=8)"


def test_sticks_refuse():
    for block in (0, 2.5):
        with pytest.raises(ValueError, match="block must be an integer of at least 1"):
            GrowingSticks(block=block)
    for loc in ("low", torch.zeros(3)):
        with pytest.raises(TypeError, match="loc must be a number or a function of indices, got"):
            GrowingSticks(loc=loc)
    with pytest.raises(ValueError, match=r"num_categories must be an integer of at least 2, got 3\.0"):
        PlanarFlow(3.0)
    with pytest.raises(ValueError, match="scale must be positive"):
        GrowingSticks(scale=-1.0)
    with pytest.raises(ValueError, match="loc must be finite"):
        GrowingSticks(loc=float("nan"))
    with pytest.raises(ValueError, match=r"loc must return shape \(\*, 32\)"):
        GrowingSticks(loc=lambda k: torch.zeros(3))
    sticks = GrowingSticks(scale=lambda k: 40.0 - k)
    with pytest.raises(ValueError, match="scale must be positive"):
        sticks.grow(64)
    assert sticks.num_sticks == 32
    with pytest.raises(IndexError, match="-1"):
        sticks.loc(torch.tensor([-1]))
    with pytest.raises(TypeError, match="LBFGS cannot take new parameters; grow"):
        sticks.attach(optim.LBFGS(sticks.parameters()))
    with pytest.raises(TypeError, match="str"):
        sticks.attach("Adam")
    with pytest.raises(ValueError, match="does not hold"):
        sticks.attach(optim.Adam(GrowingSticks().parameters()))
