"""What float32 products are computed in: TF32 where that is asked for, oneDNN on CPUs where that is as exact as MKL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

__all__ = ["fast_products", "products_in"]

SIZES = (100, 784, 360)  # of the product that is tried: the first layer of a linear VAE
ERROR = 1e-5  # of its largest entry: rounding of float32 leaves 1e-6, that of bfloat16 1e-3


@contextmanager
def products_in(precision: str | None) -> Iterator[None]:
    """Products of torch itself have this precision, in torch's words, if one is given; what is captured stays so."""
    if precision is None:
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def fast_products(device: torch.device) -> Iterator[None]:
    """Float32 products on CPUs by oneDNN in place of MKL, where that is exact.

    MKL leaves the wider half of AVX-512 idle on CPUs that are not Intel's; oneDNN does not, and takes half the time
    there. PyTorch asks it if bfloat16 is allowed inside of products, which it uses on some CPUs only: those keep MKL.
    """
    with products_in("medium" if device.type == "cpu" and _exact_by_onednn() else None):
        yield


@cache
def _exact_by_onednn() -> bool:
    """Whether products that may be in bfloat16 are in float32 on this machine."""
    rows, size, columns = SIZES
    generator = torch.Generator().manual_seed(0)
    x, w = (  # whatever the defaults are
        torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
        for shape in ((2, rows, size), (2, size, columns))
    )
    with products_in("medium"):
        found = torch.stack([x @ w, torch.stack([a @ b for a, b in zip(x, w, strict=True)])])
    exact = x.double() @ w.double()
    return bool((found - exact).abs().max() < ERROR * exact.abs().max())
