r"""The correctness kit: properties that every transform and every relaxation must have, for yours and for ours.

Each check runs one property after the other in float64 and fails with an :class:`AssertionError` that names the
property.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.distributions import Distribution, Transform

from igr import _distribution_properties, _transform_properties
from igr.distributions import Relaxation

__all__ = ["check_distribution", "check_transform"]


def check_transform(
    transform: Transform,
    x: Tensor | None = None,
    *,
    skip: Collection[str] = (),
    seed: int = 0,
    tolerance: float = 1e-9,
) -> None:
    r"""Checks a transform of vectors, from :math:`\mathbb{R}^{K-1}` to itself or onto the simplex.

    Properties, in this order: ``shapes``, ``codomain``, ``round trip``, ``log-determinant`` (against the determinant
    of the autograd Jacobian of the first K-1 coordinates), ``inverse log-determinant``, ``one pass``
    (:func:`igr.transforms.call_and_ladj` says what the two calls say), ``finite`` (float32, inputs up to 50),
    ``gradients`` (against finite differences), ``equality`` (by value) and ``repr``.

    Arguments:
        transform: the transform.
        x: float64 points of its domain, shape ``(N, *, K-1)``; by default eight standard normal vectors within 3,
            of the smallest length that the transform takes, from two upwards if it can be.
        skip: names of properties that are not asked for.
        seed: seed of the default points.
        tolerance: largest error, relative to the larger of one and the value. Round trips are asked only of points
            whose image has not underflowed.

    Raises:
        AssertionError: a property fails; the message names it.

    Example:
        >>> from igr.transforms import SoftmaxPlusPlus
        >>> check_transform(SoftmaxPlusPlus(tau=0.3))
    """
    x = _transform_properties.default_points(transform, seed) if x is None else x
    checks = _transform_properties.PROPERTIES
    for name in _selected(checks, skip):
        _run(transform, name, partial(checks[name], transform, x, tolerance))


def check_distribution(
    d: Relaxation,
    *,
    other: Distribution | None = None,
    parameters: Sequence[Tensor] = (),
    skip: Collection[str] = (),
    num_samples: int = 20_000,
    seed: int = 0,
) -> None:
    r"""Checks a relaxation: its samples, its density, and that they belong together.

    Properties, in this order: ``shapes`` (and ``expand``), ``support``, ``own density`` (all ways to sample
    agree on one noise, and ``rsample_and_log_prob`` says what ``log_prob`` and ``log_prob_from_log`` say, in nine rows
    of ten; the rest may be beyond floating point), ``integral`` (the density integrates to one within 1e-3, and its
    first two moments are those of the samples within 5 standard errors; up to three categories), ``never NaN`` (at the
    vertices), ``hard samples`` (one-hot, at the nearest vertex where δ = 1, with the gradient of the relaxed sample),
    ``recovered`` (the probabilities of hard samples, within 5 standard errors of their frequencies),
    ``gradients`` (every tensor in ``parameters`` gets a finite one that is not all zero) and ``KL`` (zero to itself;
    within 5 standard errors of Monte Carlo to ``other``).

    Note:
        Only up to three categories can the density be integrated: give your class as well with two or three.

    Arguments:
        d: the relaxation, best with float64 parameters.
        other: another distribution of the same kind, to which the KL divergence has a closed form.
        parameters: leaf tensors that require gradients and should receive them.
        skip: names of properties that are not asked for.
        num_samples: number of samples behind the statistical checks.
        seed: seed of all randomness; torch's global generator is left as it was.

    Raises:
        AssertionError: a property fails; the message names it.

    Example:
        >>> from igr import InvertibleGaussian
        >>> check_distribution(InvertibleGaussian(torch.zeros(2, dtype=torch.float64), 1.0, temperature=0.5))
    """
    checks = _distribution_properties.properties(d, other, parameters, num_samples)
    with torch.random.fork_rng():
        for name in _selected(checks, skip):
            torch.manual_seed(seed)
            _run(d, name, checks[name])


def _selected(properties: Collection[str], skip: Collection[str]) -> list[str]:
    if not __debug__:
        raise RuntimeError("python -O leaves out what igr.testing asserts; run the checks without it")
    unknown = set(skip) - set(properties)
    if unknown:
        raise ValueError(f"no properties called {sorted(unknown)}; there are {', '.join(properties)}")
    return [name for name in properties if name not in skip]


def _run(subject: object, name: str, check: Callable[[], None]) -> None:
    try:
        check()
    except AssertionError as error:
        raise AssertionError(f"property '{name}' fails for {subject}: {error}") from error
    except Exception as error:
        raise AssertionError(f"property '{name}' fails for {subject}: {type(error).__name__}: {error}") from error
