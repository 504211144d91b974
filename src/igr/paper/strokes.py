"""Characters of an invented script, drawn by a program: what stands in for Omniglot where nothing was downloaded."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["draw"]

SIDE = 28
PEN = 0.8  # radius, in pixels
POINTS = 5  # that a stroke bends at, its ends included
STEPS = 12  # dots of the pen between two of these

Floats = NDArray[np.float64]


def draw(characters: int, drawers: int, seed: int = 0) -> NDArray[np.uint8]:
    """Draws each character by each drawer; ink is 1, paper 0.

    A character is one to three strokes, each a smooth curve through a few points; drawers stretch, slant and move it,
    and no two of them bend its strokes at quite the same points.

    Arguments:
        characters: how many different ones.
        drawers: how often each is drawn.
        seed: of the script; the same seed draws the same images.

    Returns:
        The images, ``(characters, drawers, 784)``.

    Example:
        >>> images = draw(characters=3, drawers=2)
        >>> images.shape, images.dtype, images.max()
        ((3, 2, 784), dtype('uint8'), np.uint8(1))
    """
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
    images = [_drawings(_character(rng), drawers, rng) for _ in range(characters)]
    return np.stack(images) if images else np.zeros((0, drawers, SIDE**2), np.uint8)


def _character(rng: np.random.Generator) -> Floats:
    """The points of its strokes, (strokes, POINTS, 2), about the origin and within a square of side 2."""
    strokes = int(rng.choice([1, 2, 3], p=[0.15, 0.4, 0.45]))
    start = rng.uniform(-0.5, 0.5, (strokes, 1, 2))
    heading = rng.uniform(0, 2 * np.pi, (strokes, 1))
    bend = rng.uniform(-1.3, 1.3, (strokes, 1)) * rng.integers(0, 2, (strokes, 1))  # half of all strokes are straight
    angles = heading + bend * np.arange(POINTS - 1) + 0.25 * rng.standard_normal((strokes, POINTS - 1))
    length = rng.uniform(0.3, 0.7, (strokes, 1, 1))
    steps = length * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    points = start + np.concatenate([np.zeros((strokes, 1, 2)), np.cumsum(steps, axis=1)], axis=1)
    low, high = points.min((0, 1)), points.max((0, 1))
    middle: Floats = (points - (low + high) / 2) / max(float((high - low).max()) / 2, 1e-9)
    return middle


def _drawings(points: Floats, drawers: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """One image a drawer, (drawers, 784)."""
    size = rng.uniform(7.5, 11.5, (drawers, 1, 1, 1))
    stretch = np.eye(2) + 0.12 * rng.standard_normal((drawers, 1, 2, 2))
    moved = size * ((points + 0.05 * rng.standard_normal((drawers, *points.shape))) @ stretch)
    moved += (SIDE - 1) / 2 + 0.8 * rng.standard_normal((drawers, 1, 1, 2))
    dots = _curve(moved).reshape(drawers, -1, 2)  # (drawers, dots, 2)
    axis = np.arange(SIDE)
    across = (dots[:, :, None, 0] - axis) ** 2  # (drawers, dots, SIDE)
    down = (dots[:, :, None, 1] - axis) ** 2
    nearest = (down[:, :, :, None] + across[:, :, None, :]).min(axis=1)  # squared distance of each pixel to the curve
    return np.asarray(nearest < PEN**2, np.uint8).reshape(drawers, -1)


def _curve(points: Floats) -> Floats:
    """Catmull-Rom splines through points (*, POINTS, 2): (*, (POINTS - 1) STEPS, 2)."""
    ends = [2 * points[..., :1, :] - points[..., 1:2, :], 2 * points[..., -1:, :] - points[..., -2:-1, :]]
    p = np.concatenate([ends[0], points, ends[1]], axis=-2)[..., None, :]  # (*, POINTS + 2, 1, 2)
    a, b, c, d = (p[..., i : i + POINTS - 1, :, :] for i in range(4))
    t = np.linspace(0, 1, STEPS)[:, None]
    dots = b + t / 2 * (c - a + t * (2 * a - 5 * b + 4 * c - d + t * (3 * (b - c) + d - a)))
    return np.asarray(dots.reshape(*points.shape[:-2], -1, 2))
