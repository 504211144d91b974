"""Random rows, both samplers under one signature, masks, and how results are compared."""

import numpy as np
import pytest
import torch

from igr import functional as F

ROWS = torch.linspace(0.3, 2, 5, dtype=torch.float64).unsqueeze(-1)  # one value per row


def real(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def points(*shape, seed=0, dtype=torch.float64):
    """Random points of the simplex."""
    return real(*shape, seed=seed, dtype=dtype).softmax(-1)


def show(value):
    """A readable test id."""
    if isinstance(value, torch.Tensor):
        return f"{value.tolist()}" if value.numel() < 4 else f"rows{tuple(value.shape)}"
    return getattr(value, "__name__", repr(value))


def close(actual, expected, rtol=1e-12, atol=1e-15):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, check_dtype=False)


def literal_softmaxpp(y, tau, delta):
    e = np.exp(np.asarray(y) / np.asarray(tau))
    g = e / (e.sum(-1, keepdims=True) + np.asarray(delta))
    return np.concatenate([g, 1 - g.sum(-1, keepdims=True)], -1)


def gaussian(logits, *args, **options):
    """K - 1 locations in place of K logits, so that both samplers take the same arguments."""
    return F.gaussian_softmax(logits[..., :-1], 1.0, *args, **options)


both = pytest.mark.parametrize("sample", [gaussian, F.gumbel_softmax], ids=["gaussian", "gumbel"])
seeded = torch.Generator().manual_seed


def z_scores(hard, probability):
    """Of the frequencies of one-hot samples (S, K) against probabilities (K,)."""
    p = torch.as_tensor(probability, dtype=torch.float64)
    return (hard.double().mean(0) - p) / (p * (1 - p) / len(hard)).sqrt()


MASK = torch.tensor([[1, 1, 1, 0], [0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 1], [1, 1, 1, 1]], dtype=torch.bool)
