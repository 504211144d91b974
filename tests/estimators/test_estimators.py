"""Every estimator, through the same tests: what it promises in common, and, where it claims so, that it is unbiased.

Unbiasedness is asked of the mean of 1e5 draws against the exact gradient by enumeration, |z| < 5 in every coordinate of
q's parameters, of f's own and of the value. Parameters are expanded to one copy for every row of the batch, so that the
gradient of the sum of all rows holds one estimate per row. Rows times samples count as draws. `pytest -s` prints the
largest z-scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from exact import FAMILIES, TAU, Setting, Tensors, bound, expectation, gaussian_winner_probs, igr_i, setting, z_scores
from scipy import integrate, stats
from torch import Tensor
from torch.distributions import Bernoulli, Distribution, Independent, Normal, RelaxedOneHotCategorical

import igr
from igr import estimators
from igr.functional import NoiseSource

pytestmark = pytest.mark.usefixtures("one_thread")


# -- the estimators ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """An estimator with its keywords, and what is known of it."""

    name: str
    keywords: Callable[[Setting], dict[str, Any]] = field(default=lambda s: {})
    unbiased: bool = False
    hard: bool = True  # the value is an estimate of E[f(D)]
    relaxed: bool = False  # f is shown relaxed samples
    needs: tuple[str, ...] = ("known",)  # kinds of q, one of which is enough
    least: int = 1  # samples

    def __call__(self, s: Setting, keywords: dict[str, Any] | None = None, **options: Any) -> Any:
        keywords = self.keywords(s) if keywords is None else keywords
        return getattr(estimators, self.name)(s.q, s.f, **keywords, **options)

    def takes(self, family: str, K: int = 2) -> bool:
        return not {*self.needs}.isdisjoint(FAMILIES[family].kinds) and (self.name != "disarm" or K == 2)

    def target(self, s: Setting, num_samples: int) -> Tensor:
        """The exact expectation of the value, (*); its gradient is the expectation of the gradient."""
        probs = s.family.probs(s.q_parameters)
        return bound(probs, s.f_one_hot, num_samples) if self.name == "vimco" else expectation(probs, s.f_one_hot)


def _running_mean(s: Setting) -> dict[str, Any]:
    return {"baseline": estimators.RunningMean()}


def _prior(s: Setting) -> dict[str, Any]:
    make = {"logits": torch.zeros_like, "loc": torch.zeros_like, "scale": torch.ones_like}
    return {"prior": s.family.build({name: make[name](p).detach() for name, p in s.q_parameters.items()})}


class ControlVariate(torch.nn.Module):
    """A small network of relaxed samples with two parameters of its own."""

    def __init__(self, s: Setting) -> None:
        super().__init__()
        like, self.binary = next(iter(s.q_parameters.values())), s.family.binary
        self.weight, self.shift = (torch.nn.Parameter(torch.tensor(x, dtype=like.dtype)) for x in (1.3, -0.6))

    def forward(self, z: Tensor) -> Tensor:
        z = torch.stack([z, 1 - z], -1) if self.binary else z
        steps = torch.arange(z.shape[-1], dtype=z.dtype) - 0.5
        wave = torch.tanh((self.weight * z.square() * steps).sum((-2, -1)) + self.shift)
        return wave + 0.3 * (self.shift * z[..., 0]).sum(-1)


def _network_variate(s: Setting) -> dict[str, Any]:
    return {"control_variate": ControlVariate(s)}


CONDITIONAL = ("gumbel", "gaussian")
CASES: dict[str, Case] = {
    "score_function": Case("score_function", unbiased=True),
    "score_function, given": Case("score_function", lambda s: {"baseline": torch.tensor(0.7)}, unbiased=True),
    "score_function, running": Case("score_function", _running_mean, unbiased=True),
    "rloo": Case("rloo", unbiased=True, least=2),
    "vimco": Case("vimco", unbiased=True, least=2),
    "uspg": Case("uspg", unbiased=True, least=2),
    "disarm": Case("disarm", unbiased=True),
    "rebar": Case("rebar", unbiased=True, relaxed=True, needs=CONDITIONAL),
    "rebar, independent": Case(
        "rebar", lambda s: {"scale": 0.8, "coupled": False}, unbiased=True, relaxed=True, needs=CONDITIONAL
    ),
    "relax": Case("relax", unbiased=True, relaxed=True, needs=CONDITIONAL),
    "relax, network": Case("relax", _network_variate, unbiased=True, needs=CONDITIONAL),
    "relax, independent": Case(
        "relax", lambda s: {**_network_variate(s), "coupled": False}, unbiased=True, needs=CONDITIONAL
    ),
    "reparameterized": Case("reparameterized", hard=False, relaxed=True, needs=("gumbel", "path")),
    "sticking_the_landing": Case("sticking_the_landing", _prior, hard=False, relaxed=True, needs=("path",)),
    "straight_through": Case("straight_through"),
    "straight_through, temperature": Case("straight_through", lambda s: {"temperature": 0.5}),
    "st_relaxed": Case("st_relaxed", needs=("gumbel", "path")),
    "gumbel_rao": Case("gumbel_rao", lambda s: {"num_redraws": 3}, needs=("gumbel",)),
    "igr_rao": Case("igr_rao", lambda s: {"num_redraws": 3}, needs=("gaussian",)),
    "gapped_straight_through": Case("gapped_straight_through", lambda s: {"gap": 0.8, "temperature": 0.7}),
    "reinmax": Case("reinmax", lambda s: {"temperature": 1.2}),
}
UNBIASED = [name for name, case in CASES.items() if case.unbiased]
PAIRS = [(name, family) for name, case in CASES.items() for family in FAMILIES if case.takes(family)]
MAIN = [(name, family) for name, family in PAIRS if family in ("gs", "igr")]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# -- unbiased ----------------------------------------------------------------------------------------------------------


def measure(
    estimator: Callable[..., Any], s: Setting, keywords: dict[str, Any], rows: int, num_samples: int, calls: int = 20
) -> Tensors:
    """Values and gradients of many estimates, one for each row, made in a few calls."""
    noise, found = generator(11), []
    for _ in range(calls):
        wide = s.expand(-(-rows // calls))
        estimate = estimator(wide.q, wide.f, num_samples=num_samples, generator=noise, **keywords)
        gradients = torch.autograd.grad(estimate.surrogate.sum(), [*wide.leaves.values()])
        found.append([estimate.value, *gradients])
    return {name: torch.cat(parts) for name, parts in zip(["value", *s.leaves], zip(*found, strict=True), strict=True)}


def examine(label: str, estimates: Tensors, s: Setting, target: Tensor) -> float:
    """The largest |z| of all coordinates, printed."""
    truth = [target, *torch.autograd.grad(target.sum(), [*s.leaves.values()])]
    largest = {
        name: z_scores(estimates[name], exact.detach()).abs().max().item()
        for name, exact in zip(estimates, truth, strict=True)
    }
    print(f"\nmax |z| {label}: " + ", ".join(f"{name} {z:.2f}" for name, z in largest.items()), end="")
    return max(largest.values())


def largest_z(name: str, s: Setting, label: str, rows: int, num_samples: int) -> float:
    case = CASES[name]
    estimates = measure(getattr(estimators, case.name), s, case.keywords(s), rows, num_samples)
    return examine(f"{name}, {label}, {rows} x {num_samples}", estimates, s, case.target(s, num_samples))


SIZES = {"quadratic": 1, "network": 2, "product": 3}  # N
DRAWS = 100_000


@pytest.mark.parametrize("problem", SIZES)
@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased_for_logits(name, problem):
    s, least = setting("gs", problem, N=SIZES[problem], K=2 if name == "disarm" else 3), CASES[name].least
    assert largest_z(name, s, f"gs, {problem}", DRAWS // least, least) < 5


# Here probabilities cost by the row and conditional samples by the sample. For vimco all tuples are enumerated; uspg is
# exact with as many samples as there are states.
IGR_SAMPLES = {"vimco": {1: 4, 2: 4}, "uspg": {1: 2, 2: 4, 3: 5}}


def _igr_plan():
    """All problems, the costliest with fewer variables; those that repeat what others have shown are slow."""
    shown = {
        "score_function, given": ("network",),
        "score_function, running": ("network",),
        "rebar, independent": ("quadratic",),
        "relax": ("quadratic", "product"),
        "relax, network": ("network",),
        "relax, independent": (),
    }
    for name in UNBIASED:
        small = CASES[name].name in ("rebar", "relax", "vimco")
        for problem, N in ({"quadratic": 1, "network": 1, "product": 2} if small else SIZES).items():
            slow = problem not in shown.get(name, SIZES)
            yield pytest.param(name, problem, N, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize(("name", "problem", "N"), [*_igr_plan()])
def test_unbiased_for_igr(name, problem, N):
    num_samples = IGR_SAMPLES.get(name, {}).get(N, 10)
    s = setting("igr", problem, N=N, K=2 if name == "disarm" else 3)
    assert largest_z(name, s, f"igr, {problem}", -(-DRAWS // num_samples), num_samples) < 5


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in UNBIASED if CASES[name].name in ("rebar", "relax")])
def test_unbiased_for_igr_of_three_variables_and_four_categories(name):
    s = setting("igr", "product", N=3, K=4)
    s.family = replace(s.family, build=lambda p: igr_i(p, delta=0.4))
    assert largest_z(name, s, "igr, delta", DRAWS // 10, 10) < 5


@pytest.mark.parametrize("family", ["bernoulli", "independent"])
@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased_for_distributions_of_torch(name, family):
    s, least = setting(family, "product", N=3, K=2), CASES[name].least
    assert largest_z(name, s, family, DRAWS // least, least) < 5


@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased_where_f_depends_on_q(name):
    """As in an ELBO, where log q(D) is a part of f: its direct gradient belongs to the estimate."""
    s = setting("gs", "network", N=2, K=2 if name == "disarm" else 3, with_log_q=True)
    assert largest_z(name, s, "gs, with log q", 50_000, CASES[name].least) < 5


@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased_row_by_row(name):
    """Five examples, each with its own q and its own f, of four samples each."""
    s = setting("gs", "network", batch=(5,), N=3, K=2)
    assert largest_z(name, s, "gs, five examples", 5_000, 4) < 5


@pytest.mark.parametrize(
    ("name", "family"), [(n, family) for n, family in MAIN if CASES[n].hard and not CASES[n].unbiased]
)
def test_values_of_hard_samples_are_unbiased(name, family):
    case, s = CASES[name], setting(family, "network")
    value = case(s.expand(5_000), num_samples=4, generator=generator()).value
    assert z_scores(value, case.target(s, 4).detach()).abs() < 5


# -- that the instrument sees what is wrong ----------------------------------------------------------------------------


def _one_hot(x: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(x.detach().argmax(-1), x.shape[-1]).to(x.dtype)


def _gumbel(q: Distribution, num_samples: int, noise: torch.Generator) -> Tensor:
    x = torch.empty(num_samples, *q.logits.shape, dtype=q.logits.dtype).exponential_(generator=noise)
    return q.logits - x.log()


def _log_prob(q: Distribution, D: Tensor) -> Tensor:
    return (D * q.logits.log_softmax(-1)).sum((-2, -1))


def _estimate(values: Tensor, surrogate: Tensor) -> Any:
    return estimators.Estimate(values.detach().mean(0), surrogate.mean(0))


def own_sample_in_baseline(q, f, *, num_samples, generator):
    D = _one_hot(_gumbel(q, num_samples, generator))
    values = f(D)
    return _estimate(values, (values - values.mean(0)).detach() * _log_prob(q, D) + values)


def no_direct_gradient(q, f, *, num_samples, generator):
    D = _one_hot(_gumbel(q, num_samples, generator))
    values = f(D).detach()
    return _estimate(values, values * _log_prob(q, D) + 0 * f(D))


def independent_sample_as_conditional(q, f, *, num_samples, generator):
    x, other = _gumbel(q, num_samples, generator), _gumbel(q, num_samples, generator)
    D, z = _one_hot(x), ((x, other)[0] / TAU).softmax(-1)
    values, c, c_other = f(D), f(z), f((other / TAU).softmax(-1))
    return _estimate(values, (values - c_other).detach() * _log_prob(q, D) + values + c - c_other.detach())


def same_sample_as_conditional(q, f, *, num_samples, generator):
    x = _gumbel(q, num_samples, generator)
    D, c = _one_hot(x), f((x / TAU).softmax(-1))
    values = f(D)
    return _estimate(values, (values - c).detach() * _log_prob(q, D) + values)


def standardized_before_the_race(q, f, *, num_samples, generator):
    """Takes the probabilities of h(y / σ) for those of h(y)."""
    noise = torch.randn(num_samples, *q.loc.shape, dtype=q.loc.dtype, generator=generator)
    D = _one_hot(torch.nn.functional.pad(q.loc + q.scale * noise, (0, 1)))
    log_p = igr.recovered_log_probs(q.loc / q.scale, torch.ones_like(q.scale))
    values = f(D)
    return _estimate(values, values.detach() * (D * log_p).sum((-2, -1)) + values)


@pytest.mark.parametrize(
    ("broken", "family", "num_samples"),
    [
        (own_sample_in_baseline, "gs", 4),
        (no_direct_gradient, "gs", 1),
        (independent_sample_as_conditional, "gs", 1),
        (same_sample_as_conditional, "gs", 1),
        (standardized_before_the_race, "igr", 10),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_broken_estimators_are_seen(broken, family, num_samples):
    s, rows = setting(family, "network"), -(-100_000 // num_samples)
    estimates = measure(broken, s, {}, rows, num_samples)
    target = expectation(s.family.probs(s.q_parameters), s.f_one_hot)
    assert examine(f"{broken.__name__}, {family}", estimates, s, target) > 10


def test_reference_probabilities_match_scipy():
    """Simpson's rule and its gradient, against adaptive quadrature and central differences of it."""

    def reference(loc, scale):
        density, mass = stats.norm(loc, scale).pdf, stats.norm(loc, scale).cdf

        def integrand(t, k):
            return density(t)[k] * np.delete(mass(t), k).prod()

        first = [integrate.quad(integrand, 0, 12, (k,), epsabs=1e-12, limit=200)[0] for k in range(len(loc))]
        return np.array([*first, mass(0.0).prod()])

    s = setting("igr", "network", N=1, K=4)
    loc, scale = s.q_parameters.values()
    probs = gaussian_winner_probs(loc, scale)[0]
    at = [x.detach()[0].numpy() for x in (loc, scale)]
    np.testing.assert_allclose(probs.detach(), reference(*at), atol=1e-9)
    weights = np.array([0.3, -1.2, 2.0, 0.7])
    gradients = torch.autograd.grad(probs @ torch.tensor(weights), [loc, scale])
    for i, gradient in enumerate(gradients):
        for j in range(3):
            step = np.zeros((2, 3))
            step[i, j] = 1e-4
            slope = (reference(*at + step) - reference(*at - step)) @ weights / 2e-4
            np.testing.assert_allclose(gradient[0, j], slope, atol=1e-7)


# -- row by row --------------------------------------------------------------------------------------------------------


def gradients(
    case: Case,
    s: Setting,
    row: int | None = None,
    num_samples: int = 4,
    seed: int = 5,
    keywords: dict[str, Any] | None = None,
) -> Tensors:
    surrogate = case(s, keywords, num_samples=num_samples, generator=generator(seed)).surrogate
    total = surrogate.sum() if row is None else surrogate[row]
    return dict(zip(s.leaves, torch.autograd.grad(total, [*s.leaves.values()]), strict=True))


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


# -- what some promise -------------------------------------------------------------------------------------------------


def test_running_mean_is_of_the_calls_before():
    """What a call sees is the mean as it was, whatever its own samples are."""
    s, running = setting("gs", "network", (5,), 3), estimators.RunningMean(momentum=0.5)
    expected, means = torch.tensor(0.0), []
    for call in range(4):
        found = gradients(CASES["score_function"], s, seed=call, keywords={"baseline": running})
        given = gradients(CASES["score_function"], s, seed=call, keywords={"baseline": expected})
        for leaf in s.leaves:
            torch.testing.assert_close(found[leaf], given[leaf], rtol=1e-5, atol=1e-6)
        means.append(CASES["score_function"](s, num_samples=4, generator=generator(call)).value.mean())
        weights = 0.5 ** torch.arange(len(means) - 1, -1, -1.0)
        expected = (weights * torch.stack(means)).sum() / weights.sum()
    torch.testing.assert_close(running().double(), expected.double(), rtol=1e-5, atol=1e-6)


def test_a_baseline_of_every_example_is_trained():
    """By the squared error, which leaves the estimate as it is."""
    s, case = setting("gs", "network", (5,), 3), CASES["score_function"]
    plain = torch.linspace(-1, 1, 5, dtype=torch.float64)
    fixed = gradients(case, s, keywords={"baseline": plain})
    baseline = plain.clone().requires_grad_()
    value, surrogate = case(s, {"baseline": baseline}, num_samples=4, generator=generator(5))
    found = torch.autograd.grad(surrogate.sum(), [*s.leaves.values(), baseline])
    torch.testing.assert_close(found[-1], 2 * (plain - value))
    for leaf, gradient in zip(s.leaves, found, strict=False):
        torch.testing.assert_close(gradient, fixed[leaf])


@pytest.mark.parametrize("family", ["gs", "igr"])
@pytest.mark.parametrize("name", ["rloo", "vimco", "uspg", "disarm"])
def test_a_constant_has_no_gradient(name, family):
    """Samples that are each other's baseline, or antithetic: nothing is left of the noise."""
    s = setting(family, "network", (5,), 3, 2)
    s.problem = replace(s.problem, f=lambda D, w: D.new_full(D.shape[:-2], 1.7))
    surrogate = CASES[name](s, num_samples=4, generator=generator()).surrogate
    for gradient in torch.autograd.grad(surrogate.sum(), [*s.q_parameters.values()]):
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_samples", [9, 12], ids=["all", "more than there are"])
@pytest.mark.parametrize("family", ["gs", "igr"])
def test_uspg_of_all_states_is_exact(family, num_samples):
    case, s = CASES["uspg"], setting(family, "network", (5,), 2, 3)
    truth = torch.autograd.grad(case.target(s, num_samples).sum(), [*s.leaves.values()])
    for exact, gradient in zip(truth, gradients(case, s, num_samples=num_samples).values(), strict=True):
        torch.testing.assert_close(gradient, exact, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("coupled", [True, False], ids=["coupled", "independent"])
@pytest.mark.parametrize("family", ["gs", "igr"])
@pytest.mark.parametrize("name", ["rebar", "relax"])
def test_control_variates_are_trained_by_the_squared_norm(name, family, coupled):
    """The gradient of |g|², summed over examples, against differences; the estimate itself is not touched."""
    s = setting(family, "network", (5,), 3)

    def run(phi: Tensor) -> tuple[Tensor, list[Tensor]]:
        weight, shift, tau = phi
        options = {"scale": weight}
        if name == "relax":
            options = {"control_variate": lambda z: torch.tanh(weight * z.square()[..., 0] + shift).sum(-1) + s.f(z)}
        build = {"gs": lambda p: igr.GumbelSoftmax(tau, p["logits"]), "igr": lambda p: igr_i(p, tau)}[family]
        made = replace(s, family=replace(s.family, build=build))
        case = replace(CASES[name], keywords=lambda _: {**options, "coupled": coupled})
        surrogate = case(made, num_samples=1, generator=generator(2)).surrogate.sum()
        return surrogate, [*torch.autograd.grad(surrogate, [*s.leaves.values()], retain_graph=True)]

    def norm(phi: Tensor) -> float:
        return sum(g.square().sum().item() for g in run(phi)[1][: len(s.q_parameters)])

    at = torch.tensor([0.8, -0.3, 0.6], dtype=torch.float64)
    phi = at.clone().requires_grad_()
    surrogate, found = run(phi)
    for trained, fixed in zip(found, run(at)[1], strict=True):
        torch.testing.assert_close(trained, fixed)
    (gradient,) = torch.autograd.grad(surrogate, phi)
    slopes = [(norm(at + 1e-4 * step) - norm(at - 1e-4 * step)) / 2e-4 for step in torch.eye(3, dtype=torch.float64)]
    torch.testing.assert_close(gradient, torch.tensor(slopes, dtype=torch.float64), rtol=1e-5, atol=1e-6)
    assert gradient[0] != 0


class Supply(NoiseSource):
    """Noise drawn beforehand, and the shapes that were asked for; slices of the first axis, if so told."""

    def __init__(self, seed: int = 1, part: slice = slice(None), of: int = 0) -> None:
        self.source, self.part, self.of, self.shapes = generator(seed), part, of, []

    def _shape(self, shape: Any) -> tuple[int, ...]:
        self.shapes.append(tuple(shape))
        return (self.of or shape[0], *shape[1:])

    def gaussian(self, shape: Any, like: Tensor) -> Tensor:
        return torch.randn(self._shape(shape), dtype=like.dtype, generator=self.source)[self.part]

    def gumbel(self, like: Tensor) -> Tensor:
        x = torch.empty(self._shape(like.shape), dtype=like.dtype).exponential_(generator=self.source)
        return -x.log()[self.part]


OTHERWISE = ("rloo", "vimco", "uspg", "gumbel_rao", "igr_rao", "score_function, running")


@pytest.mark.parametrize(
    ("name", "family"), [(n, family) for n, family in MAIN if n not in OTHERWISE and not n.endswith("independent")]
)
def test_samples_are_averaged(name, family):
    """Four samples are the mean of four estimates from one of them each, for all parameters."""
    case, s = CASES[name], setting(family, "network", (5,), 3, 2 if name == "disarm" else 3)
    keywords = case.keywords(s)
    leaves = [*s.leaves.values(), *getattr(keywords.get("control_variate"), "parameters", list)()]

    def run(num_samples: int, part: slice) -> list[Tensor]:
        value, surrogate = case(s, keywords, num_samples=num_samples, generator=Supply(part=part, of=4))
        return [value, *torch.autograd.grad(surrogate.sum(), leaves)]

    whole, parts = run(4, slice(None)), [run(1, slice(i, i + 1)) for i in range(4)]
    for together, *each in zip(whole, *parts, strict=True):
        torch.testing.assert_close(together, torch.stack(each).mean(0))


# -- refusals ----------------------------------------------------------------------------------------------------------

HOME = {name: next(family for family in FAMILIES if case.takes(family)) for name, case in CASES.items()}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("axis", [-1, 0], ids=["examples", "samples"])
def test_f_must_return_one_value_for_each_example(name, axis):
    case, s = CASES[name], setting(HOME[name], "network", (5,), 3, 2)
    wrong = replace(s, problem=replace(s.problem, f=lambda D, w: s.problem.f(D, w).sum(axis)))
    with pytest.raises(ValueError, match=r"f must map .* got .*shape"):
        case(wrong, num_samples=4)


@pytest.mark.parametrize("num_samples", [0, -1, True, 1.5, "2", None], ids=repr)
@pytest.mark.parametrize("name", CASES)
def test_num_samples_must_be_a_positive_integer(name, num_samples):
    with pytest.raises(ValueError, match=f"num_samples must be an integer .* got {num_samples!r}"):
        CASES[name](setting(HOME[name], "network", (5,), 3, 2), num_samples=num_samples)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.least > 1])
def test_some_need_two_samples(name):
    s = setting(HOME[name], "network", (5,), 3, 2)
    with pytest.raises(ValueError, match=r"num_samples must be an integer of at least 2.* got 1"):
        CASES[name](s, num_samples=1)


@pytest.mark.parametrize("name", CASES)
def test_q_needs_an_axis_of_variables(name):
    case, family = CASES[name], FAMILIES[HOME[name]]
    s = setting(HOME[name], "network", (), 1, 2)
    bare = replace(s, q_parameters={leaf: p[0] for leaf, p in s.q_parameters.items()})
    with pytest.raises(ValueError, match="batch axis"):
        case(bare, num_samples=4)
    assert family.build(bare.q_parameters).batch_shape == ()


@pytest.mark.parametrize(
    "q",
    [
        Normal(torch.zeros(5, 3), 1.0),
        RelaxedOneHotCategorical(torch.tensor(0.5), logits=torch.zeros(5, 3, 2)),
        Independent(Bernoulli(logits=torch.zeros(4, 5, 3)), 2),
        torch.zeros(5, 3, 2),
    ],
    ids=["normal", "relaxed of torch", "two axes of events", "tensor"],
)
@pytest.mark.parametrize("name", CASES)
def test_unsupported_q(name, q):
    case, s = CASES[name], setting(HOME[name], "network", (5,), 3, 2)
    with pytest.raises(TypeError, match="q must be"):
        getattr(estimators, case.name)(q, s.f, **case.keywords(s), num_samples=4)


ALL = [(name, family) for name in CASES for family in FAMILIES]


@pytest.mark.parametrize(("name", "family"), [pair for pair in ALL if pair not in PAIRS])
def test_kinds_of_q_that_an_estimator_cannot_take(name, family):
    """The message says what to use instead: another estimator, or another q."""
    s = setting(family, "network", (5,), 3, 2)
    given = type(getattr(s.q, "base_dist", s.q)).__name__
    with pytest.raises((NotImplementedError, TypeError), match=given) as refusal:
        CASES[name](s, num_samples=4)
    instead = {case.name for case in CASES.values() if case.name != CASES[name].name and case.takes(family)}
    assert any(other in str(refusal.value) for other in (*instead, "igr.GumbelSoftmax"))


@pytest.mark.parametrize("family", ["gs", "igr", "categorical"])
def test_disarm_is_for_two_categories(family):
    with pytest.raises(NotImplementedError, match=r"two categories, got .* with 3; use rloo"):
        CASES["disarm"](setting(family, "network", (5,), 3, 3))


@pytest.mark.parametrize("name", ["rebar", "relax", "reparameterized", "st_relaxed", "gumbel_rao"])
def test_temperature_is_for_a_discrete_q(name):
    s = setting("categorical", "network", (5,), 3)
    relaxed = setting("gs", "network", (5,), 3)
    given = getattr(estimators, name)(s.q, s.f, temperature=TAU, generator=generator())
    torch.testing.assert_close(given.value, getattr(estimators, name)(relaxed.q, s.f, generator=generator()).value)
    with pytest.raises(ValueError, match="temperature is for a discrete q"):
        getattr(estimators, name)(relaxed.q, s.f, temperature=TAU)
    for wrong in (0.0, -1.0):
        with pytest.raises(ValueError, match="temperature"):
            getattr(estimators, name)(s.q, s.f, temperature=wrong)


def test_control_variates_that_cannot_be():
    s = setting("gs", "network", (5,), 3)
    with pytest.raises(ValueError, match="control_variate must map"):
        estimators.relax(s.q, s.f, control_variate=lambda z: z.sum(-1))
    with pytest.raises(ValueError, match=r"control variate.* no gradient"):
        estimators.relax(s.q, s.f, control_variate=lambda z: z.detach().sum((-2, -1)))
    with pytest.raises(ValueError, match="scale"):
        estimators.rebar(s.q, s.f, scale=torch.ones(3))


@pytest.mark.parametrize("baseline", [torch.ones(4), torch.ones(5, 3), torch.ones(2, 5)], ids=lambda x: str(x.shape))
def test_baseline_must_fit_the_examples(baseline):
    s = setting("gs", "network", (5,), 3)
    with pytest.raises(ValueError, match="baseline"):
        estimators.score_function(s.q, s.f, baseline=baseline)
