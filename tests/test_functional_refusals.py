"""Arguments that the functions refuse, by name."""

import math

import pytest
import torch
from functional_cases import points, real, show

from igr import functional as F

Y, Z = real(2, 3), points(2, 4)
ROW_SCALAR_ARGUMENTS = {
    ("softmaxpp", "tau"): lambda v: F.softmaxpp(Y, v),
    ("softmaxpp", "delta"): lambda v: F.softmaxpp(Y, 1.0, v),
    ("log_softmaxpp", "tau"): lambda v: F.log_softmaxpp(Y, v),
    ("log_softmaxpp", "delta"): lambda v: F.log_softmaxpp(Y, 1.0, v),
    ("softmaxpp_inverse", "tau"): lambda v: F.softmaxpp_inverse(Z, v),
    ("softmaxpp_inverse", "delta"): lambda v: F.softmaxpp_inverse(Z, 1.0, v),
    ("log_softmaxpp_inverse", "tau"): lambda v: F.log_softmaxpp_inverse(Z, v),
    ("log_softmaxpp_inverse", "delta"): lambda v: F.log_softmaxpp_inverse(Z, 1.0, v),
    ("vertex_interpolation", "tau"): lambda v: F.vertex_interpolation(Z, v),
    ("log_vertex_interpolation", "tau"): lambda v: F.log_vertex_interpolation(Z, v),
    ("vertex_interpolation_inverse", "tau"): lambda v: F.vertex_interpolation_inverse(Z, v),
    ("gaussian_softmax", "tau"): lambda v: F.gaussian_softmax(Y, 1.0, v),
    ("gaussian_softmax", "delta"): lambda v: F.gaussian_softmax(Y, 1.0, delta=v),
    ("gumbel_softmax", "tau"): lambda v: F.gumbel_softmax(Z, v),
    ("gaussian_top_k", "tau"): lambda v: F.gaussian_top_k(Y, 1.0, 2, v),
    ("gumbel_top_k", "tau"): lambda v: F.gumbel_top_k(Z, 2, v),
    ("gaussian_softmax_terms", "tau"): lambda v: F.gaussian_softmax_terms(Y, 1.0, v),
    ("gaussian_softmax_terms", "delta"): lambda v: F.gaussian_softmax_terms(Y, 1.0, delta=v),
    ("gumbel_softmax_terms", "tau"): lambda v: F.gumbel_softmax_terms(Z, v),
}
TENSOR_ARGUMENTS = {
    ("softmaxpp", "y"): F.softmaxpp,
    ("log_softmaxpp", "y"): F.log_softmaxpp,
    ("softmaxpp_inverse", "z"): F.softmaxpp_inverse,
    ("log_softmaxpp_inverse", "log_z"): F.log_softmaxpp_inverse,
    ("log_stick_breaking", "y"): F.log_stick_breaking,
    ("log_stick_breaking_inverse", "log_w"): F.log_stick_breaking_inverse,
    ("vertex_interpolation", "w"): lambda v: F.vertex_interpolation(v, 0.5),
    ("log_vertex_interpolation", "log_w"): lambda v: F.log_vertex_interpolation(v, 0.5),
    ("vertex_interpolation_inverse", "z"): lambda v: F.vertex_interpolation_inverse(v, 0.5),
    ("harden", "y"): F.harden,
    ("gaussian_softmax", "loc"): lambda v: F.gaussian_softmax(v, 1.0),
    ("gaussian_softmax", "scale"): lambda v: F.gaussian_softmax(Y, v),
    ("gumbel_softmax", "logits"): F.gumbel_softmax,
    ("gaussian_top_k", "loc"): lambda v: F.gaussian_top_k(v, 1.0, 2),
    ("gaussian_top_k", "scale"): lambda v: F.gaussian_top_k(Y, v, 2),
    ("gumbel_top_k", "logits"): lambda v: F.gumbel_top_k(v, 2),
    ("gaussian_softmax_terms", "loc"): lambda v: F.gaussian_softmax_terms(v, 1.0),
    ("gaussian_softmax_terms", "scale"): lambda v: F.gaussian_softmax_terms(Y, v),
    ("gumbel_softmax_terms", "logits"): F.gumbel_softmax_terms,
    ("gumbel_softmax_terms", "prior_logits"): lambda v: F.gumbel_softmax_terms(Z, prior_logits="" if v is None else v),
}


def test_every_public_function_is_asked():
    functions = {function for function, _ in (*ROW_SCALAR_ARGUMENTS, *TENSOR_ARGUMENTS)}
    assert functions | {"straight_through", "SampleTerms"} == set(F.__all__)


@pytest.mark.parametrize("argument", ROW_SCALAR_ARGUMENTS, ids=".".join)
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (0, ValueError),
        (0.0, ValueError),
        (-1.0, ValueError),
        (math.nan, ValueError),
        (math.inf, ValueError),
        (torch.tensor(0.0), ValueError),
        (torch.tensor([[0.5], [math.nan]]), ValueError),
        (torch.ones(4), ValueError),
        (torch.full((2, 3), 0.5), ValueError),
        (torch.full((3, 1), 0.5), ValueError),
        (True, TypeError),
        ("0.5", TypeError),
        (None, TypeError),
        (torch.tensor(1), TypeError),
        (torch.tensor([[True], [True]]), TypeError),
    ],
    ids=show,
)
def test_bad_temperature_and_delta(argument, value, error):
    with pytest.raises(error, match=rf"\b{argument[1]}\b"):
        ROW_SCALAR_ARGUMENTS[argument](value)


@pytest.mark.parametrize("argument", ROW_SCALAR_ARGUMENTS, ids=".".join)
def test_rows_that_do_not_broadcast_are_all_named(argument):
    with pytest.raises(ValueError, match=r"\(2, .*\(3, 1\)|\(3, 1\).*\(2, "):
        ROW_SCALAR_ARGUMENTS[argument](torch.full((3, 1), 0.5))


@pytest.mark.parametrize(
    "f", [F.vertex_interpolation, F.log_vertex_interpolation, F.vertex_interpolation_inverse], ids=show
)
@pytest.mark.parametrize("tau", [1.1, torch.tensor([[0.5], [1.1]])], ids=["number", "tensor"])
def test_vertex_interpolation_needs_tau_of_at_most_one(f, tau):
    with pytest.raises(ValueError, match=r"tau must be in \(0, 1\]"):
        f(Z, tau)


@pytest.mark.parametrize("argument", TENSOR_ARGUMENTS, ids=".".join)
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (torch.ones(2, 3, dtype=torch.long), TypeError),
        (torch.ones(2, 3, dtype=torch.bool), TypeError),
        ([0.5, 0.5], TypeError),
        ("0.5", TypeError),
        (None, TypeError),
        (torch.ones(2, 0), ValueError),
    ],
    ids=["integers", "booleans", "list", "string", "None", "empty"],
)
def test_bad_tensor(argument, value, error):
    with pytest.raises(error, match=rf"\b{argument[1]}\b"):
        TENSOR_ARGUMENTS[argument](value)


@pytest.mark.parametrize("argument", [a for a in TENSOR_ARGUMENTS if a[1] != "scale"], ids=".".join)
def test_no_category_axis(argument):
    with pytest.raises(ValueError, match=rf"\b{argument[1]}\b"):
        TENSOR_ARGUMENTS[argument](torch.tensor(0.5))


@pytest.mark.parametrize("argument", [a for a in TENSOR_ARGUMENTS if a[1] not in ("y", "loc", "scale")], ids=".".join)
def test_one_category(argument):
    with pytest.raises(ValueError, match=rf"\b{argument[1]}\b.* K >= 2"):
        TENSOR_ARGUMENTS[argument](torch.ones(2, 1))


@pytest.mark.parametrize(
    "scale",
    [torch.ones(4), torch.ones(3, 3), 0.0, -1.0, math.nan, math.inf],
    ids=show,
)
def test_bad_scale(scale):
    with pytest.raises(ValueError, match="scale"):
        F.gaussian_softmax(Y, scale)


def test_scale_does_not_decide_the_number_of_categories():
    with pytest.raises(ValueError, match="scale"):
        F.gaussian_softmax(torch.zeros(2, 1), torch.ones(2, 3))


def test_straight_through_needs_one_shape():
    with pytest.raises(ValueError, match=r"hard .*soft"):
        F.straight_through(torch.ones(2, 3), torch.ones(3, 2))


@pytest.mark.parametrize(
    "sampler", [F.gaussian_softmax, F.gaussian_softmax_terms, lambda loc, scale: F.gaussian_top_k(loc, scale, 2)]
)
def test_negative_scales_are_refused(sampler):
    with pytest.raises(
        ValueError, match=r"scale must be positive, and its least entry is -0.5; a logarithm\? Give its exp"
    ):
        sampler(torch.zeros(2, 3), torch.tensor([1.0, -0.5, 2.0]))
