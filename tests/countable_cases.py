"""Sticks whose locations and scales grow, and their lengths by numpy."""

import numpy as np

from igr.countable import CountableStickBreaking


def rising(k):
    return 0.3 * k - 1.0


def widening(k):
    return 0.5 + 0.1 * k


def make(temperature=0.5, precision=0.9, **options):
    return CountableStickBreaking(rising, widening, temperature, precision, **options)


def brute_force(num_samples, num_sticks, seed=0):
    """Lengths of many sticks by numpy's own noise and plain products, shape (S, n)."""
    rng, k = np.random.default_rng(seed), np.arange(num_sticks)
    u = 1 / (1 + np.exp(-rising(k) - widening(k) * rng.standard_normal((num_samples, num_sticks))))
    return u * np.cumprod(np.concatenate([np.ones((num_samples, 1)), 1 - u[:, :-1]], 1), 1)
