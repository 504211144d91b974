import numpy as np
import pytest

from igr.paper import demo
from igr.paper.methods import METHODS

FULL_SUPPORT = ("igr-i", "igr-planar", "gs")


@pytest.fixture(scope="module")
def panels():
    return {(name, tau): demo.panel(name, tau) for name in demo.NAMES for tau in demo.TEMPERATURES}


@pytest.fixture(scope="module")
def limits():
    return {name: demo.limit(name) for name in demo.NAMES}


def expectation(name, tau, *, resolution=512):
    """The integral of (1, z) times the density, by the midpoint rule on the pixels inside the triangle, of area 1/2."""
    z, inside = demo.simplex_grid(resolution)
    density = np.exp(demo.panel(name, tau, resolution=resolution, num_samples=1).log_density)
    weights = np.where(inside, density, 0.0) / inside.sum() / 2
    return weights.sum(), (weights[..., None] * z).sum((0, 1))


def test_grid():
    z, inside = demo.simplex_grid(200)
    assert z.shape == (173, 200, 3)
    np.testing.assert_allclose(z.sum(-1), 1.0)
    assert (z > 0).all()
    assert abs(inside.mean() - 0.5) < 0.01
    x, y = np.moveaxis(z @ demo.CORNERS, -1, 0)  # where the coordinates say that the pixels are
    centres = (np.arange(200) + 0.5) / 200
    np.testing.assert_allclose(np.where(inside, x, centres), np.broadcast_to(centres, x.shape), atol=1e-12)
    assert (np.diff(y[:, 100]) > 0).all()


# The Gumbel-Softmax below temperature one is unbounded at the edges, where a sum over pixels sees too little of it.
@pytest.mark.parametrize(
    ("name", "tau"),
    [(name, 1.0) for name in demo.NAMES] + [(name, 0.5) for name in demo.NAMES if name != "gs"],
    ids=str,
)
def test_density_integrates_to_one(name, tau):
    total, _ = expectation(name, tau)
    assert total == pytest.approx(1.0, abs=0.005)


@pytest.mark.parametrize("name", demo.NAMES)
def test_samples_follow_the_density(name):
    total, mean = expectation(name, 1.0)
    samples = demo.panel(name, 1.0, seed=3, resolution=8, num_samples=100_000).samples
    np.testing.assert_allclose(samples.mean(0), mean / total, atol=0.01)


def test_panels_are_what_they_say(panels):
    assert len(panels) + len(demo.NAMES) + 1 == demo.STEPS
    for (name, tau), panel in panels.items():
        assert (panel.name, panel.tau) == (name, tau)
        assert not np.isnan(panel.log_density).any()
        assert np.isfinite(panel.log_density).all() == (name in FULL_SUPPORT)
        np.testing.assert_allclose(panel.samples.sum(-1), 1.0)


def test_support_of_stick_breaking_grows(panels):
    shares = [np.isfinite(panels["igr-sb", tau].log_density).mean() for tau in demo.TEMPERATURES]
    assert shares[0] > 0
    assert (np.diff(shares) > 0).all()


@pytest.mark.parametrize("name", demo.NAMES)
def test_mass_moves_to_the_vertices(name, panels):
    shares = [panels[name, tau].near_vertex for tau in demo.TEMPERATURES]
    assert (np.diff(shares) >= 0).all()
    assert shares[0] < 0.1
    assert shares[-1] > 0.5


@pytest.mark.parametrize("name", demo.NAMES)
def test_all_relax_the_same_distribution(name, limits):
    assert limits[name].probs.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(limits[name].probs, demo.P0, atol=0.003)  # 5 standard errors, and rounded parameters


def test_seed_decides_the_samples():
    first, again, other = (demo.panel("gs", 0.5, seed, resolution=8).samples for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_unknown_method():
    with pytest.raises(ValueError, match=r"'dldpmm'.*igr-i"):
        demo.relaxation("dldpmm", 0.5)


def test_drawing(panels, limits):
    figure = demo.draw(list(panels.values()), list(limits.values()))
    axes = figure.axes
    assert len(axes) == len(demo.NAMES) * (len(demo.TEMPERATURES) + 1) + 1  # and the key to the colours
    assert [a.get_title() for a in axes[:5]] == [*(rf"$\tau = {tau:g}$" for tau in demo.TEMPERATURES), r"$\tau \to 0$"]
    for row, name in enumerate(demo.NAMES):
        texts = {text.get_text(): text.get_color() for text in axes[5 * row].texts}
        assert texts[METHODS[name].label] == METHODS[name].colour
        assert {"$e_1$", "$e_2$", "$e_3$"} <= texts.keys()
        assert all(a.get_aspect() == 1.0 for a in axes[5 * row : 5 * row + 5])
        drawn = axes[5 * row].images[0].get_array()
        assert np.isfinite(drawn).all()
        assert "0.50" in {text.get_text() for text in axes[5 * row + 4].texts}
    assert any("Lebesgue measure on the first $K - 1$ coordinates" in text.get_text() for text in figure.texts)


def test_no_text_overlaps(panels, limits):
    figure = demo.draw(list(panels.values()), list(limits.values()))
    figure.draw_without_rendering()
    texts = [text for a in figure.axes for text in [*a.texts, a.title, a.xaxis.label]] + figure.texts
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]
    inside = figure.bbox
    for i, (words, box) in enumerate(boxes):
        assert inside.x0 <= box.x0 <= box.x1 <= inside.x1, words
        assert inside.y0 <= box.y0 <= box.y1 <= inside.y1, words
        assert [other for other, its in boxes[:i] if box.overlaps(its)] == [], words
