"""A layer of categorical variables in float64, with parameters that are spread out, and features for it."""

import torch

from igr.nn import CategoricalBottleneck

RELAXATIONS = ["igr-i", "igr-sb", "igr-planar", "gs"]
EXACT = ["igr-i", "igr-sb", "gs"]
MASKED = ["igr-i", "gs"]
K, N, H = 5, 3, 8


def layer(relaxation="igr-i", spread=1.0, **options):
    """A layer in float64 whose parameters are spread out, as training would do."""
    made = CategoricalBottleneck(H, N, K, relaxation, **options).double()
    with torch.no_grad():
        made.head.weight.add_(spread * torch.randn_like(made.head.weight) / H**0.5)
    return made


def features(*shape, **options):
    return torch.randn(*shape, H, dtype=torch.float64, **options)


def is_one_hot(z):
    return bool((((z == 0) | (z == 1)).all(-1) & (z.sum(-1) == 1)).all())
