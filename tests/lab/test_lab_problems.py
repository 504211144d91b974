"""Problems and their exact gradients, computed a second time in another way."""

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

import igr
from igr import estimators
from igr.lab import exact as module
from igr.lab import problems
from igr.lab.exact import differentiable, exact
from igr.lab.find import find
from igr.lab.parameters import parameters
from igr.lab.problems import Problem, ProblemError
from igr.lab.registry import ESTIMATORS, METHODS, PROBLEMS

CPU = torch.device("cpu")
SMALL = {
    "rebar": "rebar,num_categories=3,num_variables=2",
    "polynomial": "polynomial,num_categories=3,num_variables=2",
    "tanh": "tanh,num_categories=3,num_variables=2",
    "vae": "vae,num_categories=3,num_variables=2,pixels=5",
}


def states(problem):
    """All one-hot states, by another way through them."""
    N, K = problem.num_variables, problem.num_categories
    return np.array([np.eye(K)[list(index)] for index in itertools.product(range(K), repeat=N)])


def expectation(problem, probs):
    """E[f] of independent variables with these probabilities."""
    one_hot = states(problem)
    values = problem.function(torch.tensor(one_hot)).numpy()
    return (values * (one_hot * probs).sum(-1).prod(-1)).sum()


def differences(function, x, step=1e-5):
    """The gradient by central differences."""
    result = np.zeros_like(x)
    for i in np.ndindex(*x.shape):
        shift = np.zeros_like(x)
        shift[i] = step
        result[i] = (function(x + shift) - function(x - shift)) / (2 * step)
    return result


def recovered(mu, sigma):
    """Proposition 2, one integral at a time."""
    last = stats.norm.cdf(-mu / sigma).prod()

    def density(t, k):
        others = np.delete(np.arange(len(mu)), k)
        others = stats.norm.cdf((t - mu[others]) / sigma[others]).prod()
        return stats.norm.pdf(t, mu[k], sigma[k]) * others

    return np.array([integrate.quad(density, 0, 12, (k,), epsabs=1e-12)[0] for k in range(len(mu))] + [last])


# ------------------------------------------------------------------------------------------------------ exact gradients


@pytest.mark.parametrize("name", PROBLEMS)
def test_exact_gradient_of_logits(name):
    problem = find(SMALL[name])
    at = parameters(problem, "gs")
    found = exact(problem, at.log_probs)
    logits = problem.logits.numpy()
    assert found.value == pytest.approx(expectation(problem, special.softmax(logits, -1)), rel=1e-12)
    positive = replace(problem, function=lambda z: problem.function(z).abs())
    assert found.magnitude == pytest.approx(expectation(positive, special.softmax(logits, -1)), rel=1e-12)
    expected = differences(lambda x: expectation(problem, special.softmax(x, -1)), logits)
    np.testing.assert_allclose(at.chain(found.moments).numpy(), expected.ravel(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["polynomial", "tanh"])
def test_exact_gradient_of_locations_and_scales(name):
    problem = find(SMALL[name])
    at = parameters(problem, "igr-i")
    gradient = at.chain(exact(problem, at.log_probs).moments).numpy()
    values = np.stack([at.leaves["loc"].numpy(), at.leaves["scale"].numpy()])  # (2, N, K - 1)

    def value(x):
        return expectation(problem, np.stack([recovered(mu, sigma) for mu, sigma in zip(*x, strict=True)]))

    np.testing.assert_allclose(gradient, differences(value, values, 1e-4).ravel(), rtol=1e-5, atol=1e-8)


def test_exact_gradient_of_sticks():
    """By automatic differentiation of the whole sum."""
    problem = find(SMALL["tanh"])
    at = start("igr-sb")
    leaves = [each.clone().requires_grad_() for each in at.leaves.values()]
    log_p = igr.recovered_log_probs_stick_breaking(*leaves)
    one_hot = torch.tensor(states(problem))
    whole = (problem.function(one_hot) * (one_hot * log_p).sum((-1, -2)).exp()).sum()
    expected = torch.cat([each.flatten() for each in torch.autograd.grad(whole, leaves)])
    torch.testing.assert_close(at.chain(exact(problem, at.log_probs).moments), expected)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["rebar", "tanh,num_variables=1"])
def test_parameterizations_are_of_one_distribution(name, method):
    problem = find(name)
    at = parameters(problem, method)
    torch.testing.assert_close(at.log_probs.exp(), problem.logits.softmax(-1), atol=1e-6, rtol=0)
    assert method == "gs" or at.leaves["scale"].unique().numel() == problem.num_categories - 1


def test_states_come_in_chunks(monkeypatch):
    problem = find("tanh,num_variables=2")
    at = parameters(problem, "gs")
    whole = exact(problem, at.log_probs)
    monkeypatch.setattr(module, "CHUNK", 7)
    parts = exact(problem, at.log_probs)
    assert parts.value == pytest.approx(whole.value)
    torch.testing.assert_close(parts.moments, whole.moments)


def test_too_many_states_are_refused():
    problem = find("tanh,num_variables=7")
    with pytest.raises(ProblemError, match=r"has 10\^7 states.* at most 2,000,000.*use fewer variables or categories"):
        exact(problem, problem.logits)


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (lambda z: z.sum(-1), r"must map samples \(S, \*, N, K\), here \(1, 9, 2, 3\), to .* here \(1, 9\), got"),
        (lambda z: 3.0, "must map samples"),
        (lambda z: z.sum((-1, -2)).log() / 0, "not finite on 9 of the states"),
        (lambda z: z @ torch.zeros(4, 4), r"failed on torch.float64 samples of shape \(1, 9, 2, 3\)"),
    ],
    ids=["shape", "number", "infinite", "error"],
)
def test_functions_that_are_none(function, advice):
    problem = Problem("mine", function, torch.zeros(2, 3))
    with pytest.raises(ProblemError, match=f"mine.*{advice}"):
        exact(problem, problem.logits.log_softmax(-1))


# ------------------------------------------------------------------------------- probabilities that are known once


@cache
def start(method):
    return parameters(find(SMALL["tanh"]), method)


def tried(method):
    names = [name for name, entry in ESTIMATORS.items() if entry.fits(method, 3)]
    return [name for name in names if ESTIMATORS[name].prepare is None]


@pytest.mark.parametrize(
    ("method", "name"),
    [(method, name) for method in ("igr-i", "igr-sb") for name in tried(method)],
)
def test_linear_probabilities_make_the_same_estimates(method, name):
    """A row of parameters for each draw, with probabilities from the Jacobian, and from the quadrature."""
    problem, size = find(SMALL["tanh"]), 4
    at, results = start(method), []
    for linear in (True, False):
        leaves = {key: value.expand(size, *value.shape).clone().requires_grad_() for key, value in at.leaves.items()}
        q = at.relaxation(leaves, 0.5, linear=linear)
        generator = torch.Generator().manual_seed(1)
        function = getattr(estimators, ESTIMATORS[name].function)
        found = function(q, problem.function, num_samples=2, generator=generator)
        results.append((found.value, *torch.autograd.grad(found.surrogate.sum(), list(leaves.values()))))
    for once, anew in zip(*results, strict=True):
        torch.testing.assert_close(once, anew, rtol=1e-6, atol=1e-9)


# ------------------------------------------------------------------------------------------------- what they compute


@pytest.mark.parametrize("name", PROBLEMS)
def test_any_number_of_axes_and_either_precision(name):
    problem = find(name)
    K, N = problem.num_categories, problem.num_variables
    z = torch.rand(4, 2, 5, N, K, dtype=torch.float64).softmax(-1)
    values = problem.function(z)
    assert values.shape == (4, 2, 5)
    torch.testing.assert_close(problem.function(z[2]), values[2])
    single = problem.function(z.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), values, rtol=1e-4, atol=1e-4)
    assert differentiable(problem, CPU, torch.float32)


def test_rebar_is_the_squared_distance_from_its_target():
    problem = problems.rebar(num_variables=1)
    assert problem.function(torch.eye(2).unsqueeze(-2)).tolist() == pytest.approx([0.51**2, 0.49**2])
    assert problem.logits.tolist() == [[0, 0]]
    three = problems.rebar(target=0.3, num_categories=3, num_variables=2)
    values = three.function(torch.tensor([[[1.0, 0, 0], [0, 1, 0]], [[0, 0, 1], [0.5, 0.5, 0]]]))
    assert values.tolist() == pytest.approx([0.7**2 + 0.2**2, 0.3**2 + 0.45**2])


def test_polynomial_has_its_degree():
    """Along a line, differences of one order higher vanish."""
    problem = find("polynomial,degree=2")
    z = torch.rand(3, 10, dtype=torch.float64)
    steps = torch.arange(4, dtype=torch.float64).reshape(-1, 1, 1)
    line = problem.function(z + steps * torch.rand(3, 10, dtype=torch.float64))
    assert np.diff(line.numpy(), n=3) == pytest.approx(0, abs=1e-9)
    assert abs(np.diff(line.numpy(), n=2)).min() > 1e-3


def test_vae_is_a_negative_log_likelihood():
    """At one-hot states it is that of some Bernoulli pixels, and least near the state that the image was made of."""
    problem = find("vae,num_variables=2,num_categories=4,pixels=400")
    values = problem.function(torch.tensor(states(problem)))
    assert (values > 0).all()
    noise = problems._noise(0)
    _, first, second = noise(2, 4), noise(8, 32) / np.sqrt(2), 2 * noise(32, 400) / np.sqrt(32)
    truth = noise(2, 4).argmax(-1)
    z = torch.eye(4, dtype=torch.float64)[truth]
    probs = special.expit((torch.tanh(z.flatten() @ first) @ second).numpy())
    image = (special.ndtr(noise(400).numpy()) < probs).astype(float)
    expected = -stats.bernoulli.logpmf(image, probs).sum()
    assert problem.function(z).item() == pytest.approx(expected)
    assert values.min().item() == pytest.approx(expected)


def test_seeds_make_other_problems():
    one, other = find("tanh"), find("tanh,seed=1")
    assert not torch.equal(one.logits, other.logits)
    assert torch.equal(find("tanh,seed=1").logits, other.logits)
    assert other.name == "tanh,seed=1"


# ------------------------------------------------------------------------------------------------------------ by name

OWN = """
import torch
from igr.lab.problems import Problem

def f(z):
    return z[..., 0].sum(-1).square()

def sized(z):
    return z.square().sum((-1, -2))

sized.num_categories, sized.num_variables = 4, 2

def placed(z):
    return sized(z)

placed.logits = torch.tensor([[0.0, 1.0, 2.0]])

def contradictory(z):
    return sized(z)

contradictory.logits, contradictory.num_variables = placed.logits, 3

def made(*, power=2):
    return Problem("made", lambda z: z.pow(power).sum((-1, -2)), torch.zeros(2, 2), {"power": power})

def returned():
    return sized

def integers(z):
    return z.argmax(-1).sum(-1).to(z.dtype)

def rounded(z):
    return z.round().sum((-1, -2))

number = 3

class Net(torch.nn.Module):
    num_variables = 2

    def __init__(self, *, bias=True):
        super().__init__()
        self.inner = torch.nn.Linear(20, 1, bias=bias)

    def forward(self, z):
        return self.inner(z.flatten(-2)).squeeze(-1)

net = Net().double()

def double_net():
    return net

class Needy:
    def __init__(self, size):
        self.size = size

def wrapped(*args, **kwargs):
    return sized(*args, **kwargs)

def none():
    return None
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_problems.py").write_text(OWN)
    return "own_problems"


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("f", (3, 10)),
        ("f,num_categories=5,num_variables=2", (2, 5)),
        ("sized", (2, 4)),
        ("sized,num_variables=1", (1, 4)),
        ("placed", (1, 3)),
        ("made", (2, 2)),
        ("made,power=3", (2, 2)),
        ("returned", (2, 4)),
        ("net", (2, 10)),
        ("double_net", (2, 10)),
        ("wrapped", (3, 10)),
        ("sized.__call__", (3, 10)),
    ],
)
def test_own_problems(path, shape, own):
    problem = find(f"{own}:{path}")
    assert problem.name == f"{own}:{path}"
    assert problem.logits.shape == shape
    assert problem.logits.dtype == torch.float64 or path.startswith("made")
    assert problem.function(torch.rand(2, *shape, dtype=torch.float64)).shape == (2,)
    assert exact(problem, problem.logits.log_softmax(-1)).moments.shape == shape


def test_a_class_makes_a_function(own):
    for settings, bias in (("", True), (",bias=False", False)):
        problem = find(f"{own}:Net{settings}")
        assert (problem.function.inner.bias is not None) is bias
        assert exact(problem, problem.logits.log_softmax(-1), torch.float32).moments.shape == (2, 10)


@pytest.mark.parametrize("shape", [(0, 3), (2, 1), (3,)], ids=str)
def test_sizes_are_checked(shape):
    with pytest.raises(ProblemError, match=r"num_variables must be|num_categories must be|logits must be"):
        Problem("mine", lambda z: z.sum((-1, -2)), torch.zeros(shape))


def test_what_has_no_gradient(own):
    for name, has_one in (("f", True), ("integers", False), ("rounded", False)):
        assert differentiable(find(f"{own}:{name}"), CPU, torch.float32) is has_one
    assert differentiable(find("rebar,target=0.5"), CPU, torch.float32)  # flat in the middle alone


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("frobnicate", "no problem is called 'frobnicate'; expected one of rebar, polynomial, tanh, vae, or module:"),
        ("tanh,width=3", r"tanh cannot be made with \{'width': 3\}: .*width"),
        ("tanh,num_variables", r"must read NAME,SETTING=VALUE,\.\.\., but 'num_variables' has no value"),
        ("tanh,num_variables=two", "cannot be made with"),
        ("no_such_module:f", "the module cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        ("own_problems:g", "own_problems:g: there is no 'g' in own_problems"),
        ("own_problems:number", "must be, or return, a function of samples or a Problem, got"),
        ("own_problems:none", "must be, or return, a function of samples or a Problem, got"),
        ("own_problems:contradictory", "num_variables is 3, but logits have 1"),
        ("own_problems:f,power=2", "has no setting power"),
        ("own_problems:f,num_variables=two", "num_variables must be an integer of at least 1, got 'two'"),
        ("own_problems:f,num_categories=1", "num_categories must be an integer of at least 2, got 1"),
        ("own_problems:f,seed=one", "cannot be made with .*'seed': 'one'"),
        ("own_problems:Needy", "own_problems:Needy cannot be made with its defaults: TypeError: .*size"),
        ("own_problems:made,degree=2", r"cannot be made with \{'degree': 2\}"),
    ],
)
def test_what_is_no_problem_is_refused(text, advice, own):
    with pytest.raises(ProblemError, match=advice):
        find(text)


@pytest.mark.parametrize("entry", [-torch.inf, torch.nan])
def test_logits_are_finite(entry):
    with pytest.raises(ProblemError, match=r"mine: logits must be finite, got a float32 tensor of shape \(1, 2\)"):
        Problem("mine", lambda z: z[..., 0].sum(-1), torch.tensor([[0.0, entry]]))


def test_every_name_is_a_problem():
    for name in PROBLEMS:
        assert find(name).name == name
    assert find("polynomial").logits.shape == (3, 10)
