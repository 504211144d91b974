"""Mixtures in training: ensembles, metrics, pictures, and a toy whose clusters are known."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from igr.paper.measure import assess
from igr.paper.models import members_axis
from igr.paper.noise import draw
from igr.paper.nonparametric.assess import Budget
from igr.paper.nonparametric.bounds import Noise, _draw_and_terms, draw_noise, joint_bound, published_objective, weigh
from igr.paper.nonparametric.ensemble import MixtureEnsemble
from igr.paper.nonparametric.model import EnsembleMixture
from igr.paper.nonparametric.spec import Mixture, num_used
from igr.paper.streams import generator_of

pytestmark = pytest.mark.usefixtures("one_thread")

CPU, F64 = torch.device("cpu"), torch.float64
PIXELS = 16
METHODS = ("igr-sb-mm", "dldpmm")
TAKEN = {
    "igr-sb-mm": [1, 0],
    "dldpmm": [2, 0],
}  # two members, in an order of their own; of DLDPMM with 5 and 3 components
IMAGES = (np.random.default_rng(0).random((60, PIXELS)) < 0.3).astype(np.uint8)


def cell_of(method, **changes) -> Mixture:
    fixed = {"num_components": (3, 5)} if method == "dldpmm" else {}
    small = {"max_components": 6, "latent_dim": 3, "seeds": (1, 2), "batch_size": 20, "learning_rate": 0.01}
    return Mixture(f"nonparametric/mnist/{method}", "mnist", method, **fixed | small | {"epochs": 3} | changes)


def ensemble(cell, images=IMAGES) -> MixtureEnsemble:
    return MixtureEnsemble(cell, images, CPU, F64, hidden=8)


def test_size_is_that_of_the_published_model():
    cell = Mixture("nonparametric/mnist/igr-sb-mm", "mnist", "igr-sb-mm", seeds=(1,))
    model = EnsembleMixture(cell, cell.members())
    encoder = [785 * 200, 201 * 200, 201 * 200, 201 * 2038]
    assert sum(p.numel() for p in model.parameters()) == sum(encoder) + 51 * 200 + 201 * 200 + 201 * 784
    assert model.weights[3].abs().max() <= math.sqrt(6 / (200 + 2038))
    assert model.weights[3].abs().max() > 0.99 * math.sqrt(6 / (200 + 2038))


@pytest.mark.skipif(torch.__version__ < "2.8", reason="older compilers cannot trace properties of named tuples")
@pytest.mark.parametrize("landing", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_what_is_between_the_layers_compiles_in_one_graph(method, landing):
    cell = cell_of(method, landing=landing)
    model = EnsembleMixture(cell, cell.members(), num_pixels=PIXELS, hidden=8, dtype=F64)
    x = torch.from_numpy(IMAGES[:5]).to(F64).expand(len(model.weights[0]), -1, -1)
    noise = draw_noise(model, x.shape[:2], torch.Generator().manual_seed(0))
    body = torch.compile(_draw_and_terms, fullgraph=True, backend="aot_eager")
    results = []
    for function in (_draw_and_terms, body):
        said = (5 * model.say(x)).detach().requires_grad_()  # far enough for sticks that are not broken
        q, z, of_z, rest = function(cell, said, model.means, model.limit, noise, landing)
        (q * of_z * z.square().sum(-1)).sum(-1).add(rest).sum().backward()
        results.append((q.detach(), z.detach(), of_z.detach(), rest.detach(), said.grad))
    for expected, found in zip(*results, strict=True):
        assert expected.isfinite().all()
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_weights_of_a_member_with_fewer_components_are_within_their_own_limit():
    cell = Mixture("nonparametric/mnist/dldpmm", "mnist", "dldpmm", num_components=(7, 17), seeds=(1,))
    few, many = EnsembleMixture(cell, cell.members()).weights[3]
    for weight, K in ((few, 7), (many, 17)):
        limit = math.sqrt(6 / (200 + 2 * (K - 1) + 100 * K))
        assert 0.99 * limit < weight.abs().max() <= limit
    used = (few != 0).any(0)
    sticks, means, scales = used.split([32, 17 * 50, 17 * 50])
    assert torch.equal(sticks.view(2, 16), (torch.arange(16) < 6).expand(2, 16))
    for part in (means, scales):
        assert torch.equal(part.view(17, 50), (torch.arange(17) < 7).unsqueeze(1).expand(17, 50))


@pytest.mark.parametrize("landing", [False, True], ids=["exact", "sl"])
@pytest.mark.parametrize("method", METHODS)
def test_members_are_trained_as_if_alone(method, landing):
    cell = cell_of(method, landing=landing)
    together = ensemble(cell)
    losses = [together.run_epoch() for _ in range(2)][-1]
    for i, member in enumerate(together.members):
        fixed = () if member.num_components is None else (member.num_components,)
        alone = ensemble(replace(cell, seeds=(member.seed,), num_components=fixed))
        loss = [alone.run_epoch() for _ in range(2)][-1]
        torch.testing.assert_close(loss[0], losses[i], rtol=1e-10, atol=0)
        for p, own in zip(together.mixture.parameters(), alone.mixture.parameters(), strict=True):
            assert members_axis(p) == 0
            if p.shape[1:] == own.shape[1:]:
                torch.testing.assert_close(p[i], own[0], rtol=1e-8, atol=1e-10)


def test_room_that_a_member_does_not_need_stays_empty():
    made = ensemble(cell_of("dldpmm"))
    made.run_epoch()
    few = made.mixture.weights[3][0].detach()  # K = 3 of 5: sticks have 2 x 4 numbers, components 2 x 5 x 3
    assert few[:, [2, 3, 6, 7]].abs().max() == 0
    assert few[:, 8:].view(-1, 2, 5, 3)[:, :, 3:].abs().max() == 0
    assert few[:, 8:].view(-1, 2, 5, 3)[:, :, :3].abs().min() > 0


def test_training_goes_on_where_it_was_stopped():
    whole, first, second = (ensemble(cell_of("igr-sb-mm")) for _ in range(3))
    expected = [whole.run_epoch() for _ in range(2)][-1]
    assert first.run_epoch(lambda: True) is None
    second.load(*first.state())
    second.run_epoch()
    torch.testing.assert_close(second.run_epoch(), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("landing", [False, True], ids=["exact", "sl"])
@pytest.mark.parametrize("method", METHODS)
def test_loss_is_minus_the_bound(method, landing):
    """Of the images in the order of a seed, with noise of its streams."""
    made = ensemble(cell_of(method, landing=landing, batch_size=60))
    start = made.mixture.subset(range(len(made.members)))
    found = made.run_epoch()
    C = start.shape[0]
    for i, member in enumerate(made.members):
        order = torch.randperm(60, generator=generator_of(member.seed, "order", 0))
        x = torch.from_numpy(IMAGES)[order].to(F64).unsqueeze(0)
        like, generators = (
            torch.zeros((), dtype=F64),
            [generator_of(member.seed, "noise", 0, 0, *n) for n in ((), (1,))],
        )
        sticks = draw(start.stick_noise, (1, 60, 1, 5), like, generators[0])[0].transpose(0, 1)
        z = draw("gaussian", (1, 60, 6, 3), like, generators[1])[0].unsqueeze(0)
        noise = Noise(sticks[..., : C - 1], z[:, :, :C])
        expected = -joint_bound(start.subset([i]), x, noise, landing=landing).mean()
        torch.testing.assert_close(found[i], expected.detach(), rtol=1e-10, atol=0)


@pytest.mark.parametrize("landing", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_curve_is_the_bound_with_noise_of_the_seed_and_exact_divergences(method, landing):
    made = ensemble(replace(cell_of(method), landing=landing))
    found = made.held_out(torch.from_numpy(IMAGES))["elbo"]
    x = torch.from_numpy(IMAGES).to(F64).unsqueeze(0)
    for i, member in enumerate(made.members):
        noise = draw_noise(made.mixture, (1, 60), generator_of(member.seed, "held-out", 0))
        expected = joint_bound(made.mixture.subset([i]), x, noise).mean()
        torch.testing.assert_close(found[i], expected.detach(), rtol=1e-10, atol=0)


@cache
def measured(method: str) -> tuple[MixtureEnsemble, list[dict], Budget]:
    made = ensemble(cell_of(method))
    with torch.no_grad():
        for p in made.model.parameters():
            p.mul_(1.5)
    budget = Budget(m=400, published=20, train_samples=30)
    return made, assess(made, IMAGES, "validation", TAKEN[method], budget, full=True), budget


@pytest.mark.parametrize("method", METHODS)
def test_metrics_are_those_of_the_functions(method):
    """Means over the images and over draws of their own, within what draws differ by."""
    made, found, budget = measured(method)
    model = made.mixture.subset(TAKEN[method])
    x = torch.from_numpy(IMAGES).to(F64).expand(2, -1, -1)
    other = weigh(model, x, 4000, generator_of(0, "other"))
    published = torch.stack(
        [published_objective(model, x, draw_noise(model, (2, 60), generator_of(1, i))) for i in range(100)]
    )
    for i in range(2):
        error = other.log_w[i].std(-1).mean() / math.sqrt(60 * budget.m)
        assert abs(found[i]["elbo"] - other.log_w[i].mean().item()) < 8 * error
        bounds = other.log_w[i].unflatten(-1, (10, budget.m)).logsumexp(-1) - math.log(budget.m)  # ten times the same
        spread = bounds.mean(0).std().item()
        assert abs(found[i]["log_likelihood"] - bounds.mean().item()) < 8 * spread
        assert found[i]["elbo"] < found[i]["log_likelihood"]
        spread = published[:, i].mean(-1).std().item() / math.sqrt(budget.published)
        assert abs(found[i]["objective_published"] - published[:, i].mean().item()) < 8 * spread
        assert found[i]["components_kept"] == pytest.approx(other.kept[i].mean().item(), abs=0.02)
        C = other.mass.shape[-1]
        mass = other.mass[i].mean(0).tolist()
        assert found[i]["component_mass"] == pytest.approx([*mass, *[0.0] * (6 - C)], abs=0.01)
        assert sum(found[i]["component_mass"]) == pytest.approx(1)
        assert len(found[i]["components_histogram"]) == 6
        assert sum(found[i]["components_histogram"]) == pytest.approx(1)
        q = other.mass[i].numpy()
        effective = np.exp(-(q * np.log(np.where(q > 0, q, 1))).sum(-1))
        assert found[i]["components_effective"] == pytest.approx(effective.mean(), abs=0.02)
        mean = (np.array(found[i]["components_histogram"]) * np.arange(1, 7)).sum()
        assert abs(mean - found[i]["components_effective"]) < 0.5


@pytest.mark.parametrize("method", METHODS)
def test_train_split_has_the_evidence_bound_alone(method):
    made, _, budget = measured(method)
    rows = range(len(made.members))
    train = assess(made, IMAGES, "train", rows, budget)
    assert "log_likelihood" not in train[0]
    x = torch.from_numpy(IMAGES).to(F64).expand(len(rows), -1, -1)
    log_w = weigh(made.mixture, x, 500, generator_of(0, "other")).log_w
    for i in rows:
        spread = log_w[i].std(-1).mean().item()
        assert abs(train[i]["elbo"] - log_w[i].mean().item()) < 8 * spread / math.sqrt(60 * 30)


@pytest.mark.parametrize("method", METHODS)
def test_a_member_that_is_not_finite_disturbs_no_other(method):
    made = ensemble(cell_of(method))
    before = assess(made, IMAGES, "validation", [0, 1], Budget().shortened())
    with torch.no_grad():
        made.mixture.weights[0][1] = math.nan
    after = assess(made, IMAGES, "validation", [0, 1], Budget().shortened())
    assert after[0] == before[0]
    assert math.isnan(after[1]["log_likelihood"])
    losses = made.run_epoch()
    assert losses[1].isnan()
    assert losses[0].isfinite()
    assert 1 in made.failed
    assert 0 not in made.failed


def test_budget_is_part_of_the_settings():
    assert Budget().settings("dldpmm") == {"m": 1000, "published": 5, "train_samples": 10, "images": None}
    assert Budget().shortened().m < 100
    assert num_used([0.5, 0.49, 0.01, 0.0]) == 3


def test_learned_is_a_fingerprint_of_the_prior():
    one, other = ensemble(cell_of("igr-sb-mm")), ensemble(cell_of("dldpmm", seeds=(9,)))
    assert one.learned(0) == other.learned(0)
    assert one.learned(0) != ensemble(replace(one.cell, dataset="omniglot")).learned(0)


# A toy in which the model is the truth: component c has a block of pixels of its own, which its z turns on.

BLOCKS, BLOCK_SIZE, APART = 8, 8, 20.0
GAIN, OFFSET = 7 / APART, -3.0  # of the logits: 4 in the block of a component, -3 outside


def toy_images(num_clusters: int, n: int = 600) -> np.ndarray:
    rng = np.random.default_rng(0)
    z = APART * np.eye(BLOCKS)[rng.integers(0, num_clusters, n)] + rng.normal(size=(n, BLOCKS))
    logits = GAIN * np.repeat(np.maximum(z, 0), BLOCK_SIZE, 1) + OFFSET
    return (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(np.uint8)


def tell_the_truth(model: EnsembleMixture) -> None:
    """Means far apart and the decoder that made the images; it is not trained, the encoder is."""
    with torch.no_grad():
        model.means.copy_(APART * torch.eye(BLOCKS))
        for w, b in zip(model.weights[model.depth :], model.biases[model.depth :], strict=True):
            b.zero_()
            w.zero_()
            w[:, range(BLOCKS), range(BLOCKS)] = 1.0
        w[:, :BLOCKS] = GAIN * torch.eye(BLOCKS).repeat_interleave(BLOCK_SIZE, 1)
        b.fill_(OFFSET)
    for p in (*model.weights[model.depth :], *model.biases[model.depth :]):
        p.requires_grad_(False)


@pytest.mark.parametrize("landing", [False, True], ids=["exact", "sl"])
@pytest.mark.parametrize("num_clusters", [1, 3, 5])
def test_as_many_components_are_used_as_there_are_clusters(num_clusters, landing):
    """No one tells the model how many there are, of eight that it may use; three seeds.

    Where the decoder is trained as well, z alone can tell the clusters apart, at a lower price than that of sticks.
    """
    cell = cell_of(
        "igr-sb-mm",
        landing=landing,
        max_components=BLOCKS,
        latent_dim=BLOCKS,
        seeds=(1, 2, 3),
        epochs=30,
        batch_size=50,
        learning_rate=3e-3,
    )
    images = toy_images(num_clusters)
    made = MixtureEnsemble(cell, images, CPU, hidden=32)
    tell_the_truth(made.mixture)
    for _ in range(cell.epochs):
        made.run_epoch()
    for record in assess(made, images[:200], "train", range(3), Budget()):
        mass = np.array(record["component_mass"])
        effective = math.exp(-(mass * np.log(np.maximum(mass, 1e-300))).sum())
        assert num_clusters - 0.5 < effective < num_clusters + 0.6
        assert (mass >= 0.05).tolist() == [c < num_clusters for c in range(BLOCKS)]
        assert record["components_effective"] < 2  # an image is of one cluster
    pictures = made.pictures(images, 0, Budget())
    assert pictures["reconstructions"].shape == (16, 80)
    grid = pictures["components"]
    assert grid.shape == (64, 80)
    assert grid.min() >= 0
    assert grid.max() <= 1
    ink = 1 - grid.reshape(BLOCKS, 8, 10, 8).swapaxes(1, 2).reshape(BLOCKS, 10, 64).mean(1)  # one row for a component
    shown = ink.reshape(BLOCKS, BLOCKS, BLOCK_SIZE).mean(-1).argmax(-1)
    assert set(shown[:num_clusters]) == set(range(num_clusters))
    assert sorted(shown) == list(range(BLOCKS))


@pytest.mark.parametrize("method", METHODS)
def test_the_bound_of_one_draw_is_the_lower_bound(method):
    for found in assess(ensemble(cell_of(method)), IMAGES, "validation", [0, 1], Budget(m=1, published=1)):
        assert found["log_likelihood"] == pytest.approx(found["elbo"], abs=1e-12)
