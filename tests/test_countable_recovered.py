"""The law of the longest of countably many sticks."""

import numpy as np
import pytest
import torch
from countable_cases import brute_force, make

from igr.countable import CountableStickBreaking

pytestmark = pytest.mark.usefixtures("float64")


def test_recovered_brackets_the_truth():
    probs, tail = make().recovered()
    assert tail <= 1e-6
    torch.testing.assert_close(probs.sum() + tail, torch.tensor(1.0))
    draws = brute_force(200_000, 40, seed=1).argmax(1)
    counts = np.bincount(draws, minlength=len(probs))[: len(probs)]
    expected = 200_000 * probs.numpy()
    common = expected > 20
    z = (counts - expected)[common] / np.sqrt(expected * (1 - probs.numpy()))[common]
    assert common.sum() > 5
    assert np.abs(z).max() < 5


def test_recovered_says_what_it_left_out():
    q = make()
    full = q.recovered(1e-9)
    for max_sticks in (1, 3, 6):
        probs, tail = q.recovered(max_sticks=max_sticks)
        assert probs.shape == (max_sticks,)
        assert tail > 1e-4
        assert bool((probs <= full.probs[:max_sticks] + 1e-6).all())
        assert bool((full.probs[:max_sticks] <= probs + tail + 1e-6).all())
    for wrong in (0, 4.5):
        with pytest.raises(ValueError, match="max_sticks must be an integer of at least 1"):
            q.recovered(max_sticks=wrong)
        with pytest.raises(ValueError, match="max_sticks must be an integer of at least 1"):
            CountableStickBreaking(0.0, 1.0, 0.5, 0.9, max_sticks=wrong)


def test_recovered_takes_the_sticks_that_the_tolerance_asks_for():
    q = CountableStickBreaking(-2.0, 1.0, 0.5, 0.9)
    sizes = []
    for tolerance in (0.1, 1e-4, 1e-6, 1e-12):
        probs, tail = q.recovered(tolerance)
        assert tail <= tolerance
        assert len(probs) == 16 or q.recovered(max_sticks=len(probs) // 2).tail > tolerance
        sizes.append(len(probs))
    assert sizes[0] == 16
    assert sizes == sorted(sizes)
    assert 32 <= sizes[-1] <= 128


def test_recovered_in_batches_and_its_gradient():
    loc = torch.tensor([[0.0, 1.0], [-2.0, 0.5]], requires_grad=True)
    q = CountableStickBreaking(loc, 1.0, torch.tensor([[[0.5]], [[0.7]], [[0.9]]]), 0.9)
    probs, tail = q.recovered()
    assert probs.shape[:-1] == tail.shape == q.batch_shape == (3, 2)
    assert bool((tail <= 1e-6).all())
    for b in range(2):
        alone = CountableStickBreaking(loc[b], 1.0, 0.5, 0.9).recovered()
        n = min(alone.probs.shape[-1], probs.shape[-1])
        torch.testing.assert_close(probs[1, b, :n], alone.probs[:n], rtol=0, atol=1e-5)
    mean = (probs[0] * torch.arange(probs.shape[-1])).sum(-1)
    mean.sum().backward()
    assert bool((loc.grad[:, 0] < 0).all())  # a longer first stick lowers the mean


def test_recovered_does_not_depend_on_temperature_or_precision():
    a, b = make(0.1, 0.5).recovered(), make(2.0, 0.99, delta=3.0).recovered()
    torch.testing.assert_close(a, b)


def test_mode():
    probs, _ = make().recovered()
    assert make().mode == probs.argmax()
    batch = CountableStickBreaking(torch.tensor([[3.0, 0.0], [-6.0, 3.0]]), 1.0, 0.5, 0.9)
    assert batch.mode.tolist() == [0, 1]
