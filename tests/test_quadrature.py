import numpy as np
import pytest
import torch
from torch import Tensor

from igr import quadrature, recovered_log_probs, recovered_log_probs_stick_breaking
from igr.quadrature import constant_rule, gauss_legendre


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
    for wrong in (0, 10.5):
        with pytest.raises(ValueError, match=f"num_nodes must be an integer of at least 1, got {wrong}"):
            gauss_legendre(wrong, torch.zeros(()))


def test_what_is_handed_out_may_be_written_to():
    loc = torch.randn(4, dtype=torch.float64)
    before = recovered_log_probs(loc, 1.0, num_nodes=48)
    for part in gauss_legendre(48, loc):
        part.mul_(0.5).requires_grad_()
    found = recovered_log_probs(loc, 1.0, num_nodes=48)
    assert torch.equal(found, before)
    assert not found.requires_grad


def test_a_rule_that_a_transform_was_first_to_ask_for_outlives_it():
    """Tensors that are made inside of nested transforms of torch.func belong to these, and are kept here."""

    def entropy(loc: Tensor) -> Tensor:
        return torch.special.entr(recovered_log_probs(loc, 1.0).exp()).sum()

    hessian, loc = torch.func.jacrev(torch.func.jacrev(entropy)), torch.randn(3, dtype=torch.float64)
    quadrature._kept_tensors.cache_clear()
    first = hessian(loc)
    assert torch.equal(hessian(loc), first)
    torch.testing.assert_close(torch.autograd.functional.hessian(entropy, loc), first)


def test_a_rule_that_inference_was_first_to_ask_for_serves_gradients():
    loc = torch.randn(4, 3, requires_grad=True)
    quadrature._kept_tensors.cache_clear()
    with torch.inference_mode():
        recovered_log_probs(loc, 1.0)
    recovered_log_probs(loc, 1.0)[:, 0].sum().backward()
    assert loc.grad.isfinite().all()


@pytest.mark.parametrize("function", [recovered_log_probs, recovered_log_probs_stick_breaking])
def test_a_compiled_program_takes_numbers_of_nodes(function):
    """One after the other, so that a compiler would rather have them variable."""
    loc = torch.randn(4, 3, dtype=torch.float64)
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    for num_nodes in (64, 96, 33):
        expected = function(loc, 1.0, num_nodes=num_nodes)
        torch.testing.assert_close(compiled(loc, 1.0, num_nodes=num_nodes), expected)


def test_a_compiled_program_takes_numbers_of_nodes_for_kernels():
    compiled = torch.compile(lambda n: constant_rule(n, torch.device("cpu"))[0], fullgraph=True, backend="eager")
    for num_nodes in (8, 9, 10):
        assert torch.equal(compiled(num_nodes), constant_rule(num_nodes, torch.device("cpu"))[0])
