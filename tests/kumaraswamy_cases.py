"""The Kumaraswamy distribution by scipy and mpmath."""

import math

import mpmath as mp
import numpy as np
import torch
from scipy import integrate

PAIRS = [(0.3, 0.4), (0.5, 3.0), (1.0, 1.0), (2.0, 0.7), (5.0, 8.0)]
FAR = [1e-3, 0.03, 1.0, 20.0, 1e3]
LOGS = [-80.0, -60.0, -44.0, -43.0, -20.0, -3.0, 0.0, 3.0, 20.0, 43.0, 80.0]


def close(actual, expected, rtol=1e-12, atol=0.0):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), rtol=rtol, atol=atol)


def log_density(a, b, log_x):
    return math.log(a * b) + (a - 1) * log_x + (b - 1) * np.log(-np.expm1(a * log_x))


def expectation(a, b, f):
    """Of f(log x, log(1 - x)), by scipy over the logit of x, which resolves both ends."""

    def integrand(y):
        log_x, log1m = -np.logaddexp(0.0, -y), -np.logaddexp(0.0, y)
        return math.exp(log_density(a, b, log_x) + log_x + log1m) * f(log_x, log1m)

    ends = -45 / min(a, 1), 45 / min(b, 1)
    return integrate.quad(integrand, *ends, points=[0.0], limit=500, epsabs=1e-13, epsrel=1e-12)[0]


def exact_log1mexp(w):
    """log(1 - e^-w) by mpmath."""
    return mp.log1p(-mp.exp(-w)) if w > 1 else mp.log(-mp.expm1(-w))


def grid(values):
    return torch.meshgrid(values, values, indexing="ij")
