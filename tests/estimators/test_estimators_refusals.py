"""What every estimator refuses: values of f, numbers of samples, kinds of q, and keywords of its own."""

from dataclasses import replace

import pytest
import torch
from estimator_cases import CASES, PAIRS, generator
from exact import FAMILIES, TAU, setting
from torch.distributions import Bernoulli, Categorical, Independent, Normal, RelaxedOneHotCategorical

from igr import GumbelSoftmax, estimators

pytestmark = pytest.mark.usefixtures("one_thread")

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


@pytest.mark.parametrize("name", ["reparameterized", "st_relaxed", "relax"])
def test_a_temperature_of_more_examples_than_there_are(name):
    q = Categorical(logits=torch.zeros(4, 3, 5))
    for shape in ((2, 1, 1, 1), (3,)):
        with pytest.raises(ValueError, match="temperature must"):
            getattr(estimators, name)(q, lambda z: z.square().sum((-2, -1)), temperature=torch.full(shape, 0.5))


@pytest.mark.parametrize("name", ["rebar", "relax"])
def test_gradients_on_the_way_need_eager_mode(name):
    call, logits = getattr(estimators, name), torch.randn(5, 3, 4)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        q = GumbelSoftmax(0.5, logits, validate_args=False)
        return call(q, lambda z: z.square().sum((-2, -1))).surrogate.sum()

    for inside in (torch.func.grad(loss), torch.vmap(loss), torch.compile(loss, backend="eager")):
        with pytest.raises(NotImplementedError, match="eager mode, from a compiled function"):
            inside(logits.expand(2, 5, 3, 4))


def test_a_compiled_function_may_call_them_eagerly():
    logits, eagerly = torch.randn(5, 3, 4, requires_grad=True), torch.compiler.disable(estimators.relax)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        q = GumbelSoftmax(0.5, 2 * logits, validate_args=False)
        return eagerly(q, lambda z: z.square().sum((-2, -1)), generator=generator()).surrogate.sum()

    losses = loss, torch.compile(loss, backend="eager")
    torch.testing.assert_close(*[torch.autograd.grad(each(logits), logits)[0] for each in losses], rtol=0, atol=0)
