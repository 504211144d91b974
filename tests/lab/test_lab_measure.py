"""The instrument, held to estimators whose bias and spread are known."""

import math
import time

import numpy as np
import pytest
import torch
from scipy import stats

from igr.lab import cost
from igr.lab.measure import MeasureError, measure

GRADIENT = torch.tensor([3.0, 0.0, -4.0, 0.0], dtype=torch.float64)  # of norm 5
SCALES = torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)


def gaussian(bias):
    """Estimates that are normal around the gradient and a bias."""

    def draw(n, generator):
        noise = torch.randn((n, 4), generator=generator, dtype=torch.float64)
        return GRADIENT + torch.as_tensor(bias, dtype=torch.float64) + SCALES * noise

    return draw


def test_known_bias_and_spread():
    bias = np.array([1.0, -2.0, 0.0, 2.0])  # of norm 3
    found = measure(gaussian(bias), GRADIENT, 20_000, repetitions=50)
    spread = SCALES.norm().item() / 5
    mean = GRADIENT.numpy() + bias
    truth = {
        "bias": 3 / 5,
        "std": spread,
        "rmse": math.hypot(3 / 5, spread),
        "cosine": mean @ GRADIENT.numpy() / np.linalg.norm(mean) / 5,
        "zero": 0.0,
    }
    for name, value in truth.items():
        assert abs(found[name] - value) <= 5 * found[f"{name}_se"], name
    assert found["floor"] == pytest.approx(spread / math.sqrt(20_000), rel=0.05)
    assert found["raw"] == pytest.approx(math.hypot(found["bias"], found["floor"]))
    assert found["z"] == pytest.approx(2 / 2 * math.sqrt(20_000), rel=0.05)  # the largest, of the second entry
    assert 0.5 < found["bias_se"] / (3 / 5 * found["floor"]) < 1.5  # what the noise along the bias makes of it
    assert found["bias"] + 3 * found["bias_se"] == pytest.approx(found["bias_limit"], rel=0.01)


def test_an_unbiased_estimator_has_no_bias_beyond_the_limit():
    found = measure(gaussian(np.zeros(4)), GRADIENT, 5_000)
    assert 2 * found["bias"] ** 2 < found["bias_limit"] ** 2
    assert found["bias_limit"] < 3 * found["floor"]
    assert found["z"] < 5


def test_the_noise_is_taken_off_the_bias_and_errors_are_right():
    """Many short measurements: squared biases are right in the mean, and vary as the standard errors say."""
    many = [measure(gaussian([0.3, 0.0, 0.0, 0.0]), GRADIENT, 200, repetitions=20, seed=100 * i) for i in range(300)]
    squared = np.array([each["raw"] ** 2 - each["floor"] ** 2 for each in many])
    assert abs(squared.mean() - 0.06**2) < 5 * squared.std() / math.sqrt(300)
    assert np.mean([each["raw"] ** 2 for each in many]) > 1.5 * 0.06**2  # which noise has made of it
    for name, truth in (("std", SCALES.norm().item() / 5), ("rmse", math.hypot(0.06, SCALES.norm().item() / 5))):
        z = np.array([(each[name] - truth) / each[f"{name}_se"] for each in many])
        assert abs(z.mean()) < 0.5
        assert 0.85 < z.std() < 1.35  # Student's, with 19 degrees of freedom


def test_mean_cosine_of_one_estimate():
    """Of two directions, one at right angles to the gradient, and zeros."""
    choices = torch.stack([GRADIENT, torch.tensor([0.0, 1.0, 0.0, 0.0]).double(), torch.zeros(4).double()])

    def draw(n, generator):
        return choices[torch.multinomial(torch.tensor([0.5, 0.2, 0.3]), n, True, generator=generator)]

    found = measure(draw, GRADIENT, 10_000, repetitions=20)
    assert abs(found["cosine_single"] - 0.5) < 5 * found["cosine_single_se"]
    assert abs(found["zero"] - 0.3) < 5 * found["zero_se"]
    assert found["zero_se"] == pytest.approx(math.sqrt(0.3 * 0.7 / 10_000), rel=0.6)


def test_an_exact_estimator():
    found = measure(lambda n, generator: GRADIENT.float().expand(n, 4), GRADIENT, 100)
    assert (found["bias"], found["std"], found["rmse"], found["z"]) == (0, 0, 0, 0)
    assert (found["cosine"], found["cosine_single"]) == pytest.approx((1, 1))


def test_workers_and_uneven_parts_make_no_difference():
    alone = measure(gaussian([1, 0, 0, 0]), GRADIENT, 1_003, repetitions=7, chunk=50)
    assert measure(gaussian([1, 0, 0, 0]), GRADIENT, 1_003, repetitions=7, chunk=50, workers=3) == alone
    assert measure(gaussian([1, 0, 0, 0]), GRADIENT, 1_003, repetitions=7, chunk=50, seed=7) != alone


def test_limits_of_unbiased_estimators_hold():
    """A bias is reported where there is none in few of many measurements."""
    many = [measure(gaussian(np.zeros(4)), GRADIENT, 100, seed=20 * i) for i in range(300)]
    wrong = sum(2 * each["bias"] ** 2 > each["bias_limit"] ** 2 for each in many)
    assert stats.binomtest(wrong, 300, 0.03, alternative="greater").pvalue > 1e-5


@pytest.mark.parametrize(
    ("draw", "gradient", "options", "advice"),
    [
        (gaussian(np.zeros(4)), torch.zeros(4), {}, "the exact gradient is zero"),
        (lambda n, g: GRADIENT.expand(n, 4) * math.nan, GRADIENT, {}, "10 of 10 estimates are not finite"),
        (gaussian(np.zeros(4)), GRADIENT, {"repetitions": 1}, "at least 2 repetitions"),
        (gaussian(np.zeros(4)), GRADIENT, {"repetitions": 60}, "60 repetitions of 100 draws"),
    ],
    ids=["gradient", "nan", "one", "many"],
)
def test_what_cannot_be_measured_is_refused(draw, gradient, options, advice):
    with pytest.raises(MeasureError, match=advice):
        measure(draw, gradient, 100, **options)


def test_memory_is_the_most_that_is_alive_at_once(capfd):
    def work():
        a = torch.zeros(1000, dtype=torch.float64)
        b = a + 1  # two
        del a
        c = b.exp()  # two again
        return [c, c + b, c - b]  # four

    measured = cost.peak_memory(work, torch.device("cpu"))
    assert 4 * 8_000 <= measured < 4 * 8_000 + 100
    assert capfd.readouterr().err == ""


def test_time_is_a_median():
    waits = iter([0.0, 0.002, 0.05, 0.004, 0.003, 0.001])

    def work():
        time.sleep(next(waits))

    assert 0.003 <= cost.seconds(work, torch.device("cpu"), repetitions=5) < 0.05
