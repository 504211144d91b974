import numpy as np
import pytest
import torch

from igr.quadrature import gauss_legendre


@pytest.mark.parametrize("num_nodes", [1, 2, 5, 64, 192])
def test_exact_for_polynomials(num_nodes: int):
    x, w = gauss_legendre(num_nodes, torch.zeros((), dtype=torch.float64))
    assert (x.diff() > 0).all()
    assert x[0] > 0
    assert x[-1] < 1
    for degree in {0, num_nodes, 2 * num_nodes - 1}:
        assert (w * x**degree).sum().item() == pytest.approx(1 / (degree + 1), rel=1e-12)


def test_converges_for_what_is_smooth():
    x, w = gauss_legendre(20, torch.zeros((), dtype=torch.float64))
    assert (w * torch.exp(3 * x)).sum().item() == pytest.approx(np.expm1(3) / 3, rel=1e-14)


def test_follows_dtype_and_refuses_nothing_to_sum():
    assert gauss_legendre(3, torch.zeros((), dtype=torch.float32))[0].dtype == torch.float32
    with pytest.raises(ValueError, match="num_nodes must be at least 1, got 0"):
        gauss_legendre(0, torch.zeros(()))
