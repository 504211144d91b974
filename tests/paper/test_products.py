"""How float32 products are computed."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from igr.paper import products
from igr.paper.products import fast_products

CPU = torch.device("cpu")
PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.bmm.default)


class Rounding(TorchDispatchMode):
    """A machine that takes bfloat16 inside of some products when that is allowed."""

    def __init__(self, products):
        super().__init__()
        self.products = products

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in self.products and torch.get_float32_matmul_precision() == "medium":
            args = [a.bfloat16().float() if a.dtype == torch.float32 else a for a in args]
        return function(*args, **(kwargs or {}))


def precision_inside(device=CPU) -> str:
    with fast_products(device):
        return torch.get_float32_matmul_precision()


@pytest.mark.parametrize("sizes", [(100, 784, 360), (400, 200, 1568), (7, 20, 10)], ids=str)
def test_products_are_as_exact_as_float32(sizes):
    """Those of a layer, forwards and backwards, of one model and of several."""
    rows, size, columns = sizes
    x, w, g = torch.randn(3, rows, size), torch.randn(3, size, columns), torch.randn(3, rows, columns)
    for a, b in ((x, w), (x.mT, g), (g, w.mT)):
        exact = a.double() @ b.double()
        with fast_products(CPU):
            found = [a @ b, torch.stack([left @ right for left, right in zip(a, b, strict=True)])]
            found.append(torch.baddbmm(torch.zeros(3, 1, b.shape[-1]), a, b))
        for each in found:
            assert (each - exact).abs().max() < 1e-5 * exact.abs().max()


@pytest.mark.parametrize("rounded", [PRODUCTS, PRODUCTS[:1], PRODUCTS[1:]], ids=["all", "single", "batched"])
def test_machines_that_round_products_are_told_apart(rounded):
    with Rounding(()):
        assert products._exact_by_onednn.__wrapped__() == products._exact_by_onednn()
    with Rounding(rounded):
        assert not products._exact_by_onednn.__wrapped__()
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.usefixtures("float64")
def test_whether_float32_is_rounded_does_not_depend_on_what_is_usual():
    with Rounding(PRODUCTS):
        assert not products._exact_by_onednn.__wrapped__()
    with torch.device("meta"):
        assert products._exact_by_onednn.__wrapped__() == products._exact_by_onednn()


def test_only_exact_products_of_cpus_are_changed(monkeypatch):
    monkeypatch.setattr(products, "_exact_by_onednn", lambda: True)
    assert precision_inside() == "medium"
    assert precision_inside(torch.device("cuda")) == "highest"
    monkeypatch.setattr(products, "_exact_by_onednn", lambda: False)
    assert precision_inside() == "highest"


def test_what_was_set_before_is_set_again():
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(KeyError), fast_products(CPU):
            raise KeyError
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
