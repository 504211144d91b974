import math
import random

import pytest

from igr.paper.select import CRITERIA, Candidate, Configuration, SelectionError, candidates, choose, choose_all


def row(tau, seed, value, prior=None, **changes):
    """A member whose discrete ELBO is the value, and whose bound is the negative of that."""
    both = {"elbo_discrete": value, "log_likelihood": -value}
    return {
        "spec": "table1/mnist/linear/gs",
        "protocol": "honest",
        "seed": seed,
        "tau": tau,
        "prior_temperature": prior,
        "smoke": False,
        "settings": {"epochs": 300},
        "status": "finished",
        "metrics": {"train": {"elbo_discrete": 0.0}, "validation": both},
    } | changes


def failed(tau, seed, prior=None, **changes):
    return row(tau, seed, 0.0, prior, **({"status": "failed", "failed_epoch": 3, "metrics": {}} | changes))


def cell(values):
    """Rows of {(τ, prior temperature) or τ: values of seeds 0, 1, ...}; None is a failed member."""
    rows = []
    for config, numbers in values.items():
        tau, prior = config if isinstance(config, tuple) else (config, None)
        for seed, value in enumerate(numbers):
            rows.append(failed(tau, seed, prior) if value is None else row(tau, seed, value, prior))
    return rows


def test_mean_over_seeds_decides():
    rows = cell({0.1: [-120.0, -130.0], 0.25: [-119.0, -132.0], 0.5: [-124.9, -124.9]})
    assert choose(rows, "elbo_discrete") == Configuration(0.5, None)
    assert choose(rows, "log_likelihood") == Configuration(0.25, None)
    assert choose_all(rows) == {
        "elbo_discrete": Configuration(0.5, None),
        "log_likelihood": Configuration(0.25, None),
    }


def test_prior_temperature_is_part_of_the_choice():
    rows = cell({(0.5, 0.5): [-3.0, -3.0], (0.5, 0.375): [-2.0, -1.0], (1.0, 0.5): [-2.0, -2.0]})
    assert choose(rows, "elbo_discrete") == Configuration(0.5, 0.375)


def test_candidates_are_in_order():
    rows = cell({1.0: [-2.0, -4.0], (0.5, 0.5): [-1.0, None], (0.5, 0.25): [None, None]})
    found = candidates(rows, "elbo_discrete")
    assert [each.configuration for each in found] == [
        Configuration(*each) for each in ((0.5, 0.25), (0.5, 0.5), (1.0, None))
    ]
    assert found[1:] == [Candidate(Configuration(0.5, 0.5), -1.0, 1), Candidate(Configuration(1.0, None), -3.0, 0)]
    assert math.isnan(found[0].mean)
    assert found[0].missing == 2


@pytest.mark.parametrize("seed", range(5))
def test_ties_go_to_the_lower_temperatures_whatever_the_order(seed):
    rows = cell(
        {(0.5, 0.5): [-1.0, -3.0], (0.5, 0.375): [-2.0, -2.0], (0.67, 0.1): [-3.0, -1.0], (0.1, 0.9): [-2.5] * 2}
    )
    random.Random(seed).shuffle(rows)
    assert choose(rows, "elbo_discrete") == Configuration(0.5, 0.375)


def test_published_looks_at_the_test_split():
    rows = [
        row(tau, 0, -tau, protocol="published") | {"metrics": {"test": {"elbo_discrete": tau, "log_likelihood": -tau}}}
        for tau in (0.1, 0.5)
    ]
    assert choose(rows, "elbo_discrete") == Configuration(0.5, None)
    assert choose(rows, "log_likelihood") == Configuration(0.1, None)


def test_honest_does_not_look_at_the_test_split():
    rows = [row(tau, 0, -tau) for tau in (0.1, 0.5)]
    rows[1]["metrics"]["test"] = {"elbo_discrete": 1e9, "log_likelihood": 1e9}
    assert choose(rows, "elbo_discrete") == Configuration(0.1, None)


# ------------------------------------------------------------------------------------------------------ what is missing


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({0.1: [-1.0, None], 0.5: [-9.0, -9.0]}, 0.5),  # one that failed is not eligible
        ({0.1: [None, None], 0.5: [-9.0, -9.0]}, 0.5),
        ({0.1: [-1.0, None], 0.5: [-9.0, None]}, 0.1),  # unless all are alike: then by those that are left
        ({0.1: [-9.0, -9.0, None], 0.5: [-1.0, None, None]}, 0.1),  # or not: then where the fewest failed
        ({0.1: [None, None], 0.5: [None, -9.0]}, 0.5),
        ({0.1: [-1.0, math.nan], 0.5: [-9.0, -9.0]}, 0.5),  # what is not a number did not go well either
        ({0.1: [-1.0, math.inf], 0.5: [-9.0, -9.0]}, 0.5),
        ({0.1: [-1.0, -math.inf], 0.5: [-9.0, -9.0]}, 0.5),
        ({0.1: [math.nan, math.nan], 0.5: [-9.0, math.nan]}, 0.5),
        ({0.1: [-1.0], 0.5: [-9.0, -9.0]}, 0.5),  # nor is one that is not there
    ],
    ids=str,
)
def test_failed_members(values, expected):
    assert choose(cell(values), "elbo_discrete") == Configuration(expected, None)


@pytest.mark.parametrize("value", [None, math.nan])
def test_nothing_is_chosen_where_all_failed(value):
    with pytest.raises(SelectionError, match=r"all members failed \(4\)"):
        choose(cell({0.1: [value] * 2, 0.5: [value] * 2}), "elbo_discrete")


def test_metrics_of_failed_members_do_not_count():
    rows = [row(0.1, 0, -1.0, status="failed"), row(0.5, 0, -9.0)]
    assert choose(rows, "elbo_discrete") == Configuration(0.5, None)


@pytest.mark.parametrize("metrics", [{}, {"validation": {}}, {"validation": {"elbo_discrete": None}}], ids=str)
def test_finished_members_have_the_criterion(metrics):
    rows = [row(0.1, 0, -1.0), row(0.5, 49, -1.0, 0.5, metrics=metrics)]
    advice = "tau 0.5, prior_temperature 0.5, seed 49 has no elbo_discrete on the validation split; evaluate it first"
    with pytest.raises(SelectionError, match=advice):
        choose(rows, "elbo_discrete")


@pytest.mark.parametrize(
    ("rows", "criterion", "advice"),
    [
        ([], "elbo_discrete", "no members"),
        ([row(0.1, 0, -1.0)], "elbo", "no criterion is called 'elbo'; expected one of elbo_discrete, log_likelihood"),
        ([row(0.1, 0, -1.0), row(0.1, 0, -2.0)], "elbo_discrete", "two rows are of .* seed 0; expected one"),
        ([row(0.1, 0, -1.0), row(0.1, 1, -1.0, spec="beyond")], "elbo_discrete", "different spec"),
        ([row(0.1, 0, -1.0), row(0.1, 1, -1.0, protocol="published")], "elbo_discrete", "different protocol"),
        ([row(0.1, 0, -1.0), row(0.1, 1, -1.0, smoke=True)], "elbo_discrete", "different smoke"),
        ([row(0.1, 0, -1.0), row(0.1, 1, -1.0, settings={"epochs": 2})], "elbo_discrete", "different settings"),
        (
            [row(0.1, 0, -1.0, protocol="paper")],
            "elbo_discrete",
            "protocol is 'paper'; expected one of honest, published",
        ),
    ],
    ids=["none", "criterion", "twice", "spec", "protocol", "smoke", "settings", "unknown protocol"],
)
def test_rows_that_do_not_belong_together_are_refused(rows, criterion, advice):
    with pytest.raises(SelectionError, match=advice):
        choose(rows, criterion)


def test_criteria_are_metrics():
    assert CRITERIA == ("elbo_discrete", "log_likelihood")


def test_the_number_of_components_is_part_of_the_choice():
    rows = [
        {"tau": None, "prior_temperature": None, "num_components": K, "seed": seed, "protocol": "honest"}
        | {"status": "finished", "metrics": {"validation": {"log_likelihood": value}}}
        for K, value in ((9, -3.0), (11, -2.0), (7, -2.0))
        for seed in (0, 1)
    ]
    assert [each.configuration.num_components for each in candidates(rows, "log_likelihood")] == [7, 9, 11]
    assert choose_all(rows, ("log_likelihood",)) == {"log_likelihood": Configuration(None, None, 7)}  # of a tie, fewer
    with pytest.raises(SelectionError, match="num_components 9, seed 0 has no elbo_discrete"):
        choose(rows, "elbo_discrete")
