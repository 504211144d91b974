from dataclasses import replace

import numpy as np
import pytest
import torch

from igr.paper.ensemble import Ensemble
from igr.paper.models import EnsembleVae, members_axis
from igr.paper.noise import BLOCK, BlockNoise, SharedNoise, draw
from igr.paper.specs import SPECS, Times, Vae

CPU = torch.device("cpu")
SMALL = {"num_variables": 3, "num_categories": 4}


def images(n=60, pixels=12):
    return (np.random.default_rng(0).random((n, pixels)) < 0.3).astype(np.uint8)


def cell(id="table1/mnist/linear/igr-i", **changes) -> Vae:
    defaults = {"temperatures": (0.1, 0.5), "seeds": (1, 2), "batch_size": 10, "learning_rate": 0.01, "epochs": 3}
    return replace(SPECS[id], **defaults | changes)


def ensemble(spec, n=60) -> Ensemble:
    return Ensemble(spec, images(n), CPU, torch.float64, **SMALL)


def row(vae, i):
    return [p.detach().select(members_axis(p), i) for p in vae.parameters()]


@pytest.mark.parametrize(
    ("id", "parameters"),
    [
        ("table1/mnist/linear/igr-i", 440_184),
        ("table1/mnist/linear/igr-sb", 440_184),
        ("table1/mnist/linear/igr-planar", 440_944),
        ("table1/mnist/linear/gs", 314_584),
        ("table1/mnist/nonlinear/igr-i", 1_211_000),
        ("table1/mnist/nonlinear/gs", 1_169_880),
    ],
)
def test_sizes_are_those_of_the_published_models(id, parameters):
    vae = EnsembleVae(SPECS[id], [1])
    assert sum(p.numel() for p in vae.parameters()) == parameters


@pytest.mark.parametrize(
    "spec",
    [
        cell(),
        cell("table1/mnist/nonlinear/igr-sb+sl"),
        cell("table1/mnist/linear/igr-planar"),
        cell("table1/mnist/linear/gs", prior_temperatures=(0.5, Times(1.0))),
        cell("beyond/mnist/linear/igr-i+iwae"),
        cell("beyond/mnist/linear/gs+discrete+hard"),
        cell("table1/fmnist/linear/igr-i"),
        cell("s4/mnist/nonlinear/gs+uspg"),
        cell("beyond/mnist/linear/gs+reinmax"),
        cell("beyond/mnist/linear/igr-i+gapst"),
        cell("beyond/mnist/linear/gs+rao"),
        cell("beyond/mnist/linear/igr-i+rao"),
        cell("beyond/mnist/linear/igr-i+rloo"),
        cell("relax/mnist/nonlinear/gs+relax", num_samples=2),
        cell("relax/mnist/nonlinear/igr-i+relax"),
    ],
    ids=lambda spec: spec.id.partition("/")[2],
)
def test_members_are_trained_as_if_alone(spec):
    together = ensemble(spec)
    for _ in range(2):
        losses = together.run_epoch()
    for i, member in enumerate(together.members):
        priors = () if member.prior_temperature is None else (member.prior_temperature,)
        one = replace(spec, temperatures=(member.tau,), seeds=(member.seed,), prior_temperatures=priors)
        alone = ensemble(one)
        for _ in range(2):
            loss = alone.run_epoch()
        torch.testing.assert_close(loss[0], losses[i], rtol=1e-12, atol=0)
        for expected, found in zip(row(alone.vae, 0), row(together.vae, i), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_seeds_share_nothing_and_temperatures_all_but_the_temperature():
    spec = cell()
    trained = ensemble(spec)
    start = EnsembleVae(spec, [m.seed for m in trained.members], num_pixels=12, dtype=torch.float64, **SMALL)
    first = start.weights[0]
    assert torch.equal(first[0], first[2])
    assert not torch.equal(first[0], first[1])
    trained.run_epoch()
    assert not torch.equal(trained.vae.weights[0][0], trained.vae.weights[0][2])


def test_every_image_is_seen_once_in_an_epoch_in_an_order_of_its_own():
    trained = ensemble(cell())
    trained.run_epoch()
    first = trained._order.clone()
    assert all(sorted(order.flatten().tolist()) == list(range(60)) for order in first)
    assert not torch.equal(first[0], first[1])
    trained.run_epoch()
    assert not torch.equal(first, trained._order)


def test_noise_is_fresh_in_every_block_step_seed_and_request():
    at, owner = torch.zeros(1, dtype=torch.int64), torch.tensor([0, 1, 0])
    noise = BlockNoise((1, 2), owner, at)
    like = torch.zeros(4, 3, 10, 5, 6, dtype=torch.float64)  # (S, E, B, N, K)
    seen = []
    for epoch in range(2):
        for block in range(2):
            noise.seek(epoch, block)
            for step in (0, BLOCK - 1):
                at.fill_(step)
                noise.begin_step()
                seen += [noise.gaussian(like.shape, like), noise.gaussian((7, *like.shape), like), noise.gumbel(like)]
    for drawn in seen:
        assert torch.equal(drawn.select(-4, 0), drawn.select(-4, 2))  # members with one seed
    own = [drawn.select(-4, r).flatten() for drawn in seen for r in (0, 1)]
    assert len(torch.cat(own).unique()) == sum(len(each) for each in own)
    normal = torch.cat([seen[i].select(-4, 0).flatten() for i in range(len(seen)) if i % 3 < 2])
    gumbel = torch.cat([seen[i].select(-4, 0).flatten() for i in range(2, len(seen), 3)])
    assert abs(normal.mean()) < 5 / len(normal) ** 0.5
    assert abs(normal.var() - 1) < 5 * (2 / len(normal)) ** 0.5
    assert abs(gumbel.mean() - 0.5772) < 5 * 1.2826 / len(gumbel) ** 0.5


@pytest.mark.parametrize(("kind", "mean"), [("gaussian", 0.0), ("gumbel", 0.5772)])
def test_shared_noise_is_that_of_each_owner(kind, mean):
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
    like = torch.zeros(3, 50, 20, 6)  # (E, B, N, K)
    noise = SharedNoise(generators, torch.tensor([1, 0, 1]))
    found = noise.gumbel(like) if kind == "gumbel" else noise.gaussian(like.shape, like)
    for member, seed in enumerate((2, 1, 2)):
        expected = draw(kind, like.shape[1:], like, torch.Generator().manual_seed(seed))
        assert torch.equal(found[member], expected)
        assert abs(expected.mean() - mean) < 0.1


def test_steps_that_ask_for_other_noise_are_refused():
    noise = BlockNoise((1,), torch.tensor([0]), torch.zeros(1, dtype=torch.int64))
    like = torch.zeros(1, 1, 2, 3, 4)
    noise.seek(0, 0)
    noise.begin_step()
    noise.gumbel(like)
    noise.begin_step()
    with pytest.raises(RuntimeError, match="a step asks for"):
        noise.gaussian(like.shape, like)


@pytest.mark.parametrize(
    "id",
    [
        "table1/mnist/linear/igr-planar",
        "table1/mnist/linear/gs",
        "beyond/mnist/linear/gs+relax",
        "s4/mnist/nonlinear/gs+uspg",
    ],
)
def test_goes_on_from_any_step_bit_for_bit(id):
    spec = cell(id, prior_temperatures=(0.5,) if id.endswith("gs") else ())
    whole = ensemble(spec)
    losses = torch.stack([whole.run_epoch() for _ in range(3)])
    first = ensemble(spec)
    first.run_epoch()
    assert first.run_epoch(stop=lambda: first.step == 3) is None
    tensors, numbers = first.state()
    assert (numbers["epoch"], numbers["step"]) == (1, 3)
    second = ensemble(spec)
    second.load({name: tensor.clone() for name, tensor in tensors.items()}, numbers)
    rest = torch.stack([second.run_epoch(), second.run_epoch()])
    assert torch.equal(rest, losses[1:])
    for a, b in zip(whole.vae.parameters(), second.vae.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "id",
    [
        "table1/mnist/linear/igr-i",
        "table1/mnist/linear/gs",
        "beyond/mnist/linear/gs+reinmax",
        "beyond/mnist/linear/igr-i+rloo",
    ],
)
def test_every_block_of_an_epoch_has_noise_of_its_own(id, monkeypatch):
    """Two epochs of three blocks; those that begin in the second and in the third block go on as the whole does."""
    priors = (0.5,) if id.endswith("gs") else ()
    spec = cell(id, prior_temperatures=priors, temperatures=(0.5,), batch_size=1)
    n, seek, sought = 2 * BLOCK + 5, BlockNoise.seek, []

    def spy(self, epoch, block):
        sought.append((epoch, block))
        seek(self, epoch, block)

    monkeypatch.setattr(BlockNoise, "seek", spy)
    whole = ensemble(spec, n)
    losses = torch.stack([whole.run_epoch(), whole.run_epoch()])
    assert sought == [(epoch, block) for epoch in (0, 1) for block in (0, 1, 2)]
    first = ensemble(spec, n)
    first.run_epoch()
    for step in (BLOCK + 3, 2 * BLOCK):
        assert first.run_epoch(stop=lambda at=step: first.step == at) is None
        tensors, numbers = first.state()
        second = ensemble(spec, n)
        second.load({name: tensor.clone() for name, tensor in tensors.items()}, numbers)
        assert torch.equal(second.run_epoch(), losses[1])
        for a, b in zip(whole.vae.parameters(), second.vae.parameters(), strict=True):
            assert torch.equal(a, b)


def test_going_on_in_the_middle_of_an_epoch_keeps_the_last_finite_state():
    """A member breaks in the second epoch; whether that was interrupted before or after, it ends where that began."""

    def broken(stops):
        trained = ensemble(cell())
        trained.run_epoch()
        before = [p.clone() for p in row(trained.vae, 1)]
        for stop in stops:
            assert trained.run_epoch(stop=lambda at=stop, now=trained: now.step == at) is None
            if stop == 2:
                with torch.no_grad():
                    trained.vae.weights[0][1] = torch.nan
            tensors, numbers = trained.state()
            other = ensemble(cell())
            other.load({name: tensor.clone() for name, tensor in tensors.items()}, numbers)
            trained = other
        trained.run_epoch()
        return trained, before

    for stops in ((2,), (1, 2), (2, 4)):
        trained, before = broken(stops)
        assert trained.failed == {1: 2}
        for a, b in zip(before, row(trained.vae, 1), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("mean", ["exp_avg", "exp_avg_sq"])
def test_means_of_adam_that_overflow_are_a_failure(mean):
    """An infinite mean of squares makes steps of zero: the member would stand still and count as trained."""
    trained = ensemble(cell())
    trained.run_epoch()
    trained.optimizer.state[trained.vae.weights[0]][mean][2, 0, 0] = torch.inf
    trained.run_epoch()
    assert trained.failed == {2: 2}


def test_parameters_that_are_not_finite_are_a_failure_though_the_loss_is():
    trained = ensemble(cell())
    trained.run_epoch()
    before = [p.clone() for p in row(trained.vae, 3)]
    original = trained.optimizer.step

    def last_step():
        original()
        if trained.step == trained.steps - 1:
            with torch.no_grad():
                trained.vae.biases[1][3] = torch.nan

    trained.optimizer.step = last_step
    assert trained.run_epoch().isfinite().all()
    assert trained.failed == {3: 2}
    for a, b in zip(before, row(trained.vae, 3), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "id",
    [
        "table1/mnist/linear/igr-planar",
        "beyond/mnist/linear/igr-i+discrete",
        "beyond/mnist/linear/igr-i+relax",
        "beyond/mnist/linear/gs+reinmax",
        "s4/mnist/nonlinear/gs+uspg",
    ],
)
def test_a_member_that_diverges_is_frozen_and_disturbs_nobody(id):
    spec = cell(id)
    calm, struck = ensemble(spec), ensemble(spec)
    calm.run_epoch()
    struck.run_epoch()
    before = [p.clone() for p in row(struck.vae, 1)]
    with torch.no_grad():
        struck.vae.weights[0][1, 0, 0] = torch.inf
    for _ in range(2):
        expected, found = calm.run_epoch(), struck.run_epoch()
        assert not found[1].isfinite()
        others = [0, 2, 3]
        assert torch.equal(found[others], expected[others])
    assert struck.failed == {1: 2}
    assert struck.alive == others
    for i in others:
        for a, b in zip(row(calm.vae, i), row(struck.vae, i), strict=True):
            assert torch.equal(a, b)
    for a, b in zip(before, row(struck.vae, 1), strict=True):  # back to the last epoch that went well
        assert torch.equal(a, b)
    tensors, numbers = struck.state()
    again = ensemble(replace(spec, epochs=4))
    again.load(tensors, numbers)
    assert again.failed == {1: 2}
    again.run_epoch()
    for a, b in zip(before, row(again.vae, 1), strict=True):
        assert torch.equal(a, b)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("xi", [60.0, -60.0, 100.0, -110.0])
@pytest.mark.parametrize("rows", ["all", "one"])
def test_scales_out_of_all_proportion_neither_stop_nor_disturb_others(xi, rows):
    """The squares of the first two are not numbers of float32, nor are the last two themselves."""
    spec = cell("beyond/mnist/linear/igr-i+relax", epochs=2, parameters="free")
    calm, struck = (Ensemble(spec, images(), CPU, torch.float32, **SMALL) for _ in range(2))
    calm.run_epoch()
    struck.run_epoch()
    with torch.no_grad():
        bias = struck.vae.biases[struck.vae.depth - 1][1, 0].unflatten(-1, (2, *struck.vae.noise_shape))
        bias[1, :, : None if rows == "all" else 1] = xi
        assert struck.vae.encode(torch.zeros(4, 1, 12))[1][1].abs().max() == abs(xi)
    expected, found = calm.run_epoch(), struck.run_epoch()
    others = [0, 2, 3]
    assert expected.isfinite().all()
    assert torch.equal(found[others], expected[others])
    for i in others:
        for a, b in zip(row(calm.vae, i), row(struck.vae, i), strict=True):
            assert torch.equal(a, b)
    assert set(struck.failed) <= {1}
    assert all(p.isfinite().all() for p in struck.vae.parameters())


def test_too_few_images_are_refused():
    with pytest.raises(ValueError, match="60 images are less than one batch of 100"):
        Ensemble(cell(batch_size=100), images(60), CPU, **SMALL)


@pytest.mark.parametrize(
    ("id", "changes", "name"),
    [
        ("table1/mnist/linear/gs", {"prior_temperatures": (0.5,)}, "elbo_continuous"),
        ("beyond/mnist/linear/igr-i+discrete+hard", {}, "elbo_discrete"),
        ("beyond/mnist/linear/gs+rloo", {}, "elbo_discrete"),
    ],
)
def test_held_out_is_the_training_objective_on_other_images(id, changes, name):
    spec = cell(id, temperatures=(0.5,), seeds=(1,), **changes)
    trained = ensemble(spec)
    for _ in range(3):
        trained.run_epoch()
    held = torch.from_numpy(images())
    values = torch.stack([_at_epoch(trained, held, epoch, name) for epoch in range(200)])
    # an epoch of tiny steps measures the same on the same images
    frozen = ensemble(replace(spec, learning_rate=1e-300))
    frozen.vae.load_state_dict(trained.vae.state_dict())
    losses = torch.stack([_loss_at(frozen, epoch) for epoch in range(200)])
    z = (values.mean(0) + losses.mean(0)) / (values.var(0) / 200 + losses.var(0) / 200).sqrt()
    assert z.abs().max() < 5


def _at_epoch(trained, held, epoch, name):
    trained.epoch = epoch
    return trained.held_out(held)[name]


def _loss_at(frozen, epoch):
    frozen.epoch = epoch
    return frozen.run_epoch().double()


@pytest.mark.parametrize(
    ("id", "relaxed"),
    [
        ("table1/mnist/linear/gs", True),
        ("table1/mnist/linear/igr-sb+sl", True),
        ("beyond/mnist/linear/igr-i+iwae", True),
        ("beyond/mnist/linear/igr-i+discrete", False),
        ("beyond/mnist/linear/igr-i+discrete+hard", False),
        ("beyond/mnist/linear/gs+discrete", False),
        ("beyond/mnist/linear/igr-i+reinmax", False),
    ],
)
def test_only_models_that_train_a_continuous_bound_are_measured_by_it(id, relaxed):
    images = np.zeros((100, 784), dtype=np.uint8)
    trained = Ensemble(SPECS[id].shortened(), images, torch.device("cpu"))
    assert set(trained.held_out(torch.from_numpy(images[:3]))) == {"elbo_continuous" if relaxed else "elbo_discrete"}
