import math
import time

import numpy as np
import pytest

from igr.explorer import fitting
from igr.explorer.fitting import Fits, Problem, fit, own_target, reach, start, target_of
from igr.paper.demo import NAMES
from igr.paper.targets import TARGETS

P0 = np.array([0.5, 0.3, 0.15, 0.05])
SMALL = {"tau": 0.05, "learning_rate": 0.05, "steps": 120, "samples": 300}


def never() -> bool:
    return False


def wait(until, seconds=20.0):
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def status(fits, page):
    progress = fits.progress(page)
    return None if progress is None else progress.status


@pytest.mark.parametrize("method", NAMES)
def test_fits_come_close(method, one_thread):
    seen = []
    problem = Problem(np.log(P0), method, 4, **SMALL)
    found = fit(problem, seen.append, never)
    assert (found.status, len(found.losses)) == ("finished", 120)
    assert found.tv < 0.06 < seen[0].tv
    assert found.kl < seen[0].kl
    assert found.probs.sum() == pytest.approx(1.0, abs=1e-5)
    assert found.tv == pytest.approx(0.5 * np.abs(found.probs - P0).sum())
    assert found.kl == pytest.approx((P0 * np.log(P0 / found.probs)).sum(), abs=1e-6)  # float32
    assert found.kl_reverse == pytest.approx((found.probs * np.log(found.probs / P0)).sum(), abs=1e-6)
    assert (found.error > 0) == (method == "igr-planar")
    assert [each.status for each in seen] == ["running"] * len(seen)


@pytest.mark.parametrize("method", NAMES)
def test_fits_are_repeatable(method, one_thread):
    problem = Problem(np.log(P0), method, 4, **SMALL | {"steps": 5})
    first, second = (fit(problem, lambda _: None, never) for _ in range(2))
    assert first.losses == second.losses
    assert np.array_equal(first.probs, second.probs)


def test_floor_is_the_noise_of_perfect_samples():
    one_hot = np.eye(4)[np.random.default_rng(0).choice(4, size=(4_000, 300), p=P0)]
    losses = ((one_hot.mean(1) - P0) ** 2).sum(-1)
    floor = Problem(np.log(P0), "gs", 4, **SMALL).floor
    assert abs(losses.mean() - floor) < 5 * losses.std() / math.sqrt(len(losses))


def test_sticks_start_with_equal_lengths():
    build, (mu, _) = start(Problem(np.log(P0), "igr-sb", 4, **SMALL))
    u, left, lengths = 1 / (1 + np.exp(-mu.detach().double().numpy())), 1.0, []
    for each in u:
        lengths.append(left * each)
        left -= lengths[-1]
    assert [*lengths, left] == pytest.approx([0.25] * 4)
    assert build().event_shape == (4,)


def test_too_few_categories_have_an_infinite_divergence(one_thread):
    found = fit(Problem(np.log(P0), "gs", 3, **SMALL), lambda _: None, never)
    assert (found.kl, math.isfinite(found.kl_reverse)) == (math.inf, True)
    assert found.tv >= 0.05 - 1e-6  # what the fourth has


def test_a_fit_is_stopped(one_thread):
    asked = []
    found = fit(Problem(np.log(P0), "gs", 4, **SMALL), lambda _: None, lambda: asked.append(1) or len(asked) > 7)
    assert (found.status, len(found.losses)) == ("stopped", 8)


def test_a_fit_that_breaks_down_says_what_to_do(one_thread):
    found = fit(Problem(np.log(P0), "igr-i", 4, **SMALL | {"learning_rate": 1e30}), lambda _: None, never)
    assert found.status == "failed"
    assert found.message


@pytest.mark.parametrize("status", ["running", "finished"])
def test_a_fit_whose_parameters_cannot_be_looked_at_fails(status, monkeypatch, one_thread):
    original = fitting._look

    def look(problem, q, now, *rest):
        if now == status:
            raise ValueError("loc must be finite")
        return original(problem, q, now, *rest)

    monkeypatch.setattr(fitting, "_look", look)
    found = fit(Problem(np.log(P0), "gs", 4, **SMALL), lambda _: None, never)
    assert (found.status, found.message) == ("failed", "loc must be finite")


def test_divergences_of_unlikely_categories_are_finite(one_thread):
    K = 200
    found = fit(Problem(np.full(K, -math.log(K)), "igr-i", K, **SMALL | {"steps": 1}), lambda _: None, never)
    assert 0 < found.kl < math.inf


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({"method": "igr"}, "no relaxation is called 'igr'"),
        ({"num_categories": 1}, "K must be between 2 and 200, got 1"),
        ({"tau": 0.0}, "τ must be a positive number, got 0.0"),
        ({"learning_rate": math.nan}, "the learning rate must be a positive number, got nan"),
        ({"steps": 0}, "steps must be from 1 to 100,000, got 0"),
        ({"steps": 100_001}, "steps must be from 1 to 100,000, got 100001"),
        ({"samples": 10_001}, "samples must be from 1 to 10,000, got 10001"),
    ],
    ids=["method", "K", "tau", "rate", "steps", "many steps", "many samples"],
)
def test_bad_problems_are_refused(given, advice):
    with pytest.raises(ValueError, match=advice):
        Problem(**{"log_p0": np.log(P0), "method": "gs", "num_categories": 4} | given)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("", "expected 2 to 200 weights, got 0"),
        ("1", "expected 2 to 200 weights, got 1"),
        ("1, two", "expected numbers with spaces or commas"),
        ("1, -1", "must be positive and finite"),
        ("1, 0", "must be positive and finite"),
        ("1 inf", "must be positive and finite"),
        ("1 " * 201, "got 201"),
    ],
    ids=["empty", "one", "word", "negative", "zero", "infinite", "many"],
)
def test_bad_weights_are_refused(text, advice):
    with pytest.raises(ValueError, match=advice):
        own_target(text)


def test_weights_are_normalised():
    target = target_of("own", "10; 1,5 1e0\n3")
    assert np.exp(target.log_probs()) == pytest.approx(np.array([10, 1, 5, 1, 3]) / 20)
    assert reach(target) == 5
    assert np.exp(target_of("own", "1e308 1e308").log_probs()) == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("name", list(TARGETS))
def test_reach_leaves_out_little(name):
    K, probs = reach(TARGETS[name]), np.exp(TARGETS[name].log_probs())
    assert probs[:K].sum() >= 1 - 1e-3
    assert (TARGETS[name].num_categories or K) == K
    assert TARGETS[name].num_categories or probs[: K - 1].sum() < 1 - 1e-3  # and no fewer would do


def test_pages_do_not_disturb_each_other():
    fits, endless = Fits(), SMALL | {"steps": 10**5}
    fits.start("a", Problem(np.log(P0), "gs", 4, **endless))
    fits.start("b", Problem(np.log(P0), "igr-i", 4, **SMALL | {"steps": 3}))
    wait(lambda: status(fits, "b") == "finished" and status(fits, "a") is not None)
    assert fits.progress("a").status == "running"
    assert fits.progress("a").problem.method == "gs"
    assert fits.progress("c") is None
    fits.stop("a")
    fits.stop("c")
    wait(lambda: status(fits, "a") == "stopped")


def test_a_new_fit_takes_the_place_of_the_last():
    fits, endless = Fits(), SMALL | {"steps": 10**5}
    fits.start("a", Problem(np.log(P0), "gs", 4, **endless))
    first = fits._running["a"].thread
    fits.start("a", Problem(np.log(P0), "igr-i", 4, **endless))
    wait(lambda: not first.is_alive() and fits.progress("a") is not None)
    assert fits.progress("a").problem.method == "igr-i"
    second = fits._running["a"].thread
    fits.close()
    assert not second.is_alive()


def test_too_many_fits_and_pages_that_were_closed(monkeypatch):
    fits, endless = Fits(), Problem(np.log(P0), "gs", 4, **SMALL | {"steps": 10**5})
    for i in range(fitting.MOST):
        fits.start(str(i), endless)
    with pytest.raises(RuntimeError, match="4 fits are running in other windows"):
        fits.start("one more", endless)
    threads = [run.thread for run in fits._running.values()]
    monkeypatch.setattr(fitting, "ABANDONED", 0.0)
    wait(lambda: not any(thread.is_alive() for thread in threads))
    monkeypatch.undo()
    fits.start("one more", endless)
    fits.close()
