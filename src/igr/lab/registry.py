"""What the laboratory compares, and what tables and figures call it. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ESTIMATORS", "METHODS", "PROBLEMS", "TEMPERATURES", "Entry"]

PROBLEMS = {
    "rebar": "(b - t)², t = 0.49, of three coins",
    "polynomial": "a cubic polynomial of three variables with ten categories",
    "tanh": "a random tanh network of three variables with ten categories",
    "vae": "the reconstruction of an image by a small decoder of three variables with ten categories",
}

METHODS = {"gs": "logits", "igr-i": "(μ, σ)", "igr-sb": "(μ, σ) of sticks"}
"""Parameterizations, by the names that methods have in the experiments, and what gradients are with respect to."""

TEMPERATURES = (0.1, 0.5, 1.0)


@dataclass(frozen=True)
class Entry:
    """One estimator as it is compared.

    Arguments:
        function: its name in :mod:`igr.estimators`.
        label: what it is called.
        marker: how it is drawn.
        unbiased: whether its mean is the exact gradient.
        tempered: whether it depends on the temperature of the relaxation.
        methods: the parameterizations that it has a meaning for.
        binary: whether it is for two categories alone.
        smooth: whether it needs the gradient of f.
        least: how many samples it needs.
        each: how many samples ``num_samples=1`` stands for, such as a pair.
        costly: whether a draw takes so long, on (μ, σ), that a quarter of them has to do unless asked for.
        prepare: what has to be made before: ``mean``, a baseline, or ``control``, a trained control variate.
        keywords: further arguments.
    """

    function: str
    label: str
    marker: str
    unbiased: bool = False
    tempered: bool = False
    methods: tuple[str, ...] = ("gs", "igr-i", "igr-sb")
    binary: bool = False
    smooth: bool = False
    least: int = 1
    each: int = 1
    costly: bool = False
    prepare: str | None = None
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def fits(self, method: str, num_categories: int, smooth: bool = True) -> bool:
        """Whether it can be tried on a parameterization of so many categories, and on an f with or without gradient."""
        return method in self.methods and (num_categories == 2 or not self.binary) and (smooth or not self.smooth)


_REDRAWS = {"num_redraws": 10}
_CONDITIONAL = ("gs", "igr-i")  # where samples given their category are known

ESTIMATORS = {
    "reparameterized": Entry("reparameterized", "relaxed", "o", tempered=True, smooth=True),
    "st_relaxed": Entry("st_relaxed", "ST relaxed", "s", tempered=True, smooth=True),
    "gumbel_rao": Entry(
        "gumbel_rao", "Gumbel-Rao", "D", tempered=True, smooth=True, methods=("gs",), keywords=_REDRAWS
    ),
    "igr_rao": Entry(
        "igr_rao", "IGR-Rao", "D", tempered=True, smooth=True, methods=("igr-i",), costly=True, keywords=_REDRAWS
    ),
    "straight_through": Entry("straight_through", "ST", "P", smooth=True),
    "gapped_straight_through": Entry("gapped_straight_through", "GapST", "X", smooth=True),
    "reinmax": Entry("reinmax", "ReinMax", "*", smooth=True),
    "score_function": Entry("score_function", "score", "v", unbiased=True),
    "score_function_mean": Entry("score_function", "score - mean", "<", unbiased=True, prepare="mean"),
    "rloo": Entry("rloo", "RLOO", ">", unbiased=True, least=2),
    "uspg": Entry("uspg", "USPG", "^", unbiased=True, least=2),
    "disarm": Entry("disarm", "DisARM", "d", unbiased=True, binary=True, least=2, each=2),
    "rebar": Entry("rebar", "REBAR", "p", unbiased=True, tempered=True, smooth=True, methods=_CONDITIONAL, costly=True),
    "relax": Entry(
        "relax", "RELAX", "h", unbiased=True, tempered=True, methods=_CONDITIONAL, costly=True, prepare="control"
    ),
}
"""By the name that they are asked for and recorded by."""
