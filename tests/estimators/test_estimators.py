"""Every estimator, through the same tests: what all promise in common, row by row and for any q that they take."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from estimator_cases import CASES, MAIN, PAIRS, UNBIASED, Supply, generator, gradients
from exact import FAMILIES, TAU, Setting, Tensors, igr_i, setting
from torch import Tensor

import igr

pytestmark = pytest.mark.usefixtures("one_thread")


# -- row by row --------------------------------------------------------------------------------------------------------


def five_rows(name: str, family: str) -> Setting:
    """The last layer of the network is common to all rows."""
    s = setting(family, "network", batch=(5,), N=3, K=2 if name == "disarm" else 3)
    s.f_parameters["out"] = s.f_parameters["out"][0].detach().clone().requires_grad_()
    return s


@pytest.mark.parametrize(("name", "family"), MAIN)
def test_the_gradient_of_the_sum_is_that_of_every_row(name, family):
    case, s = CASES[name], five_rows(name, family)
    whole, alone = gradients(case, s), [gradients(case, s, row) for row in range(5)]
    for leaf, gradient in whole.items():
        torch.testing.assert_close(sum(one[leaf] for one in alone), gradient, rtol=1e-10, atol=1e-12)
        if leaf != "out":
            for row, one in enumerate(alone):
                others = [i for i in range(5) if i != row]
                torch.testing.assert_close(one[leaf][row], gradient[row], rtol=1e-10, atol=1e-12)
                assert (one[leaf][others] == 0).all()


@pytest.mark.parametrize(("name", "family"), MAIN)
def test_rows_do_not_leak(name, family):
    case, s = CASES[name], five_rows(name, family)
    before = gradients(case, s)
    with torch.no_grad():
        s.f_parameters["hidden"][2] += 1.0
    after = gradients(case, s)
    others = [0, 1, 3, 4]
    for leaf in (*s.q_parameters, "hidden"):
        torch.testing.assert_close(after[leaf][others], before[leaf][others], rtol=0, atol=1e-12)
    assert any((after[leaf][2] != before[leaf][2]).any() for leaf in s.q_parameters)


@pytest.mark.parametrize(("name", "family"), MAIN)
def test_gradients_reach_what_parameters_are_made_of(name, family):
    """An encoder in front of q, a chain rule behind it."""
    case, s = CASES[name], setting(family, "network", batch=(5,), N=3, K=2 if name == "disarm" else 3)
    direct = gradients(case, s)
    source = {leaf: (p.detach() / 2).requires_grad_() for leaf, p in s.q_parameters.items()}
    made = replace(s, q_parameters={leaf: 2 * p for leaf, p in source.items()})
    surrogate = case(made, num_samples=4, generator=generator(5)).surrogate
    for leaf, gradient in zip(source, torch.autograd.grad(surrogate.sum(), [*source.values()]), strict=True):
        torch.testing.assert_close(gradient, 2 * direct[leaf])


# -- what all have in common -------------------------------------------------------------------------------------------


BATCHES = [(), (5,), (2, 3)]


def recorded(s: Setting) -> tuple[list[Tensor], Setting]:
    """The setting, and what its f will have been shown."""
    seen: list[Tensor] = []

    def f(D: Tensor, w: Tensors) -> Tensor:
        seen.append(D.detach())
        return s.problem.f(D, w)

    return seen, replace(s, problem=replace(s.problem, f=f))


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize(("name", "family"), PAIRS)
def test_contract(name, family, batch):
    """Shapes, the value, its surrogate and finite gradients of all, for any N, K and S."""
    case = CASES[name]
    categories = (2,) if FAMILIES[family].binary else (2, 4)
    sizes = [(N, K, S) for N in (1, 3) for K in categories for S in (case.least, 4) if case.takes(family, K)]
    if family == "igr-sb":  # its probabilities take their time
        sizes = [(1, 4, 4), (3, 2, case.least)] if case.takes(family, 4) else [(3, 2, case.least)]
    for N, K, num_samples in sizes:
        seen, s = recorded(setting(family, "network", batch, N, K))
        value, surrogate = case(s, num_samples=num_samples, generator=generator())
        assert value.shape == surrogate.shape == batch
        assert value.dtype == surrogate.dtype == torch.float64
        assert torch.equal(value, surrogate.detach())
        assert not value.requires_grad
        assert value.isfinite().all()
        for gradient, p in zip(
            torch.autograd.grad(surrogate.sum(), [*s.leaves.values()]), s.leaves.values(), strict=True
        ):
            assert gradient.shape == p.shape
            assert gradient.isfinite().all()
        assert all(D.shape[1:] == (*batch, N, K) for D in seen)
        hard = [bool(((D == 0) | (D == 1)).all()) for D in seen]
        assert any(hard) == case.hard
        assert all(hard) == (not case.relaxed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("name", "family"), [pair for pair in PAIRS if pair[1] in ("gs", "igr", "bernoulli")])
def test_half_and_single_precision(name, family, dtype):
    case, s = CASES[name], setting(family, "network", (5,), 3, 2 if name == "disarm" else 4).to(dtype)
    value, surrogate = case(s, num_samples=4, generator=generator())
    assert value.dtype == surrogate.dtype == torch.float32
    assert value.isfinite().all()
    for gradient in torch.autograd.grad(surrogate.sum(), [*s.leaves.values()]):
        assert gradient.dtype == dtype
        assert gradient.isfinite().all()


@pytest.mark.parametrize(("name", "family"), PAIRS)
def test_generator(name, family):
    """The same seed the same estimate, another seed another; torch's own state is not touched."""
    case, s = CASES[name], setting(family, "network", (5,), 3, 2)
    state = torch.get_rng_state()
    first, again, other = (gradients(case, s, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[leaf], again[leaf]) for leaf in s.leaves)
    assert any((first[leaf] != other[leaf]).any() for leaf in s.q_parameters)


@pytest.mark.parametrize(("name", "family"), MAIN)
def test_noise_comes_from_one_place(name, family):
    """All noise can be supplied, and is asked for with the axes of examples and variables where they belong."""
    case, s = CASES[name], setting(family, "network", (2, 5), 3, 2 if name == "disarm" else 4)
    supply = Supply()
    assert case(s, num_samples=4, generator=supply).surrogate.isfinite().all()
    assert supply.shapes
    assert all(shape[-4:-1] == (2, 5, 3) for shape in supply.shapes)


@pytest.mark.parametrize(("name", "family"), MAIN)
def test_parameters_of_f_alone(name, family):
    """q may be fixed."""
    case, s = CASES[name], setting(family, "network", (5,), 3, 2 if name == "disarm" else 3)
    moving = gradients(case, s)
    s.q_parameters = {leaf: p.detach() for leaf, p in s.q_parameters.items()}
    surrogate = case(s, num_samples=4, generator=generator(5)).surrogate
    names, leaves = zip(*s.f_parameters.items(), strict=True)
    for leaf, gradient in zip(names, torch.autograd.grad(surrogate.sum(), leaves), strict=True):
        torch.testing.assert_close(gradient, moving[leaf])


@pytest.mark.parametrize(("name", "family"), MAIN)
def test_without_gradients(name, family):
    case, s = CASES[name], setting(family, "network", (5,), 3, 2 if name == "disarm" else 3)
    value = case(s, num_samples=4, generator=generator()).value
    with torch.no_grad():
        assert torch.equal(case(s, num_samples=4, generator=generator()).value, value)


@pytest.mark.parametrize("name", [name for name in UNBIASED if not CASES[name].relaxed])
def test_f_may_be_a_table(name):
    """Where f is not differentiable in D, the estimators that do not need it still are the same."""
    case = CASES[name]
    s = setting("gs", "product", (5,), 3, 2)
    seen, table = {}, replace(s, problem=replace(s.problem, f=lambda D, w: s.problem.f(D.detach().round(), w)))
    for key, one in (("formula", s), ("table", table)):
        seen[key] = gradients(case, one)
    for leaf in s.leaves:
        torch.testing.assert_close(seen["table"][leaf], seen["formula"][leaf])


@pytest.mark.parametrize("name", [name for name in UNBIASED if not CASES[name].relaxed])
def test_f_may_count(name):
    """Integers are values like others."""
    case, s, found = CASES[name], setting("gs", "product", (5,), 3, 2), []
    for dtype in (torch.long, torch.float64):
        count = replace(s.problem, f=lambda D, w, dtype=dtype: (3 * D[..., 0].sum(-1) - D[..., 0, 1]).to(dtype))
        value, surrogate = case(replace(s, problem=count), num_samples=4, generator=generator())
        found.append([value, *torch.autograd.grad(surrogate.sum(), [*s.q_parameters.values()])])
    for integer, real in zip(*found, strict=True):
        torch.testing.assert_close(integer.double(), real, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "family"),
    [(name, family) for name, family in PAIRS if not CASES[name].relaxed and family in ("gs", "igr", "bernoulli")],
)
def test_f_may_write_into_its_samples(name, family):
    case, s = CASES[name], setting(family, "network", (5,), 3, 2 if name == "disarm" else 3)
    writing = replace(s, problem=replace(s.problem, f=lambda D, w: s.problem.f(-D.neg_(), w)))
    reading, writing = gradients(case, s), gradients(case, writing)
    for leaf in s.leaves:
        torch.testing.assert_close(writing[leaf], reading[leaf])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("name", "family"), [pair for pair in PAIRS if pair[1] in ("gs", "igr", "bernoulli")])
def test_finite_for_extreme_parameters(name, family, dtype):
    """Near-certain categories and tiny scales; and, of relaxed samples, a temperature of 0.01."""
    case, s = CASES[name], setting(family, "network", (50,), 3, 2 if name == "disarm" else 4)
    with torch.no_grad():
        for leaf, p in s.q_parameters.items():
            p.mul_(0.05 if leaf == "scale" else 40.0)
    cold = {"gs": lambda p: igr.GumbelSoftmax(0.01, p["logits"]), "igr": lambda p: igr_i(p, 0.01)}
    s.family = replace(s.family, build=cold.get(family, s.family.build))
    s = s.to(dtype)
    value, surrogate = case(s, num_samples=4, generator=generator())
    assert value.isfinite().all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(surrogate.sum(), [*s.leaves.values()]))


@pytest.mark.parametrize("family", ["categorical", "one-hot"])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.takes("categorical")])
def test_impossible_categories(name, family):
    """Never drawn, without gradient, and no trouble."""
    case = CASES[name]
    seen, s = recorded(setting(family, "network", (5,), 3, 2 if name == "disarm" else 3))
    with torch.no_grad():
        s.q_parameters["logits"][1, :, 0] = -torch.inf
    value, surrogate = case(s, num_samples=4, generator=generator())
    found = torch.autograd.grad(surrogate.sum(), [*s.leaves.values()])
    assert value.isfinite().all()
    assert all(g.isfinite().all() for g in found)
    assert (found[0][1, :, 0] == 0).all()
    assert all((D[:, 1, :, 0] == 0).all() for D in seen)


@pytest.mark.parametrize(("name", "family"), [p for p in PAIRS if p[1] in ("gs", "igr", "binary-concrete")])
def test_a_temperature_for_every_variable(name, family):
    """Only that of relaxed samples matters: a common one, written out, changes nothing."""
    case, s = CASES[name], setting(family, "network", (5,), 3, 2 if name == "disarm" else 3)
    rows = torch.full((5, 3), TAU, dtype=torch.float64)
    build = {
        "gs": lambda p: igr.GumbelSoftmax(rows.unsqueeze(-1), p["logits"]),
        "igr": lambda p: igr_i(p, rows.unsqueeze(-1)),
        "binary-concrete": lambda p: igr.BinaryConcrete(rows, p["logits"]),
    }[family]
    common, own = gradients(case, s), gradients(case, replace(s, family=replace(s.family, build=build)))
    for leaf in s.leaves:
        torch.testing.assert_close(own[leaf], common[leaf])
