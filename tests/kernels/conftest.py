"""The sampling kernels, chosen on the CPU as well, and with rows in parts, where tests ask for it."""

import pytest

from igr import kernels


@pytest.fixture
def chosen(monkeypatch):
    """Kernels are chosen on the CPU as they are on CUDA devices."""

    def usable(*tensors):
        return kernels.enabled() and all(t.dtype in kernels.DTYPES for t in tensors) and not kernels.transformed()

    monkeypatch.setattr(kernels, "usable", usable)


@pytest.fixture
def split(monkeypatch):
    """Rows of more than 100 categories are cut into parts of 128."""
    from igr.kernels import sampling

    monkeypatch.setattr(sampling, "LONGEST", 100)
    table = sampling.tiling
    monkeypatch.setattr(sampling, "tiling", lambda K: sampling.Tiling(1, 128, 4) if K > 100 else table(K))
