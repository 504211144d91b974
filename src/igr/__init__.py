"""Relaxations of discrete distributions, built around the Invertible Gaussian Reparameterization.

Names are imported on first use, so that ``import igr`` and the command line start without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from igr import (
        conditional,
        countable,
        distributions,
        estimators,
        functional,
        kl,
        kumaraswamy,
        nn,
        prior,
        quadrature,
        recovery,
        schedules,
        testing,
        transforms,
    )
    from igr.conditional import (
        conditional_path,
        conditional_path_gumbel,
        sample_conditional,
        sample_conditional_gumbel,
    )
    from igr.countable import CountableProbs, CountableStickBreaking, StickSample
    from igr.distributions import (
        BinaryConcrete,
        EstimatedOneHotCategorical,
        GumbelSoftmax,
        InvertibleGaussian,
        InvertibleReparameterization,
        MonteCarlo,
        monte_carlo_recovered,
    )
    from igr.kl import categorical_kl, monte_carlo_kl
    from igr.kumaraswamy import Kumaraswamy
    from igr.prior import fit_prior, match_moments
    from igr.recovery import QuadratureError, recovered_log_probs, recovered_log_probs_stick_breaking
    from igr.schedules import Suggestion, measure_temperature, suggest_temperature
    from igr.transforms import Planar, SoftmaxPlusPlus, StickBreaking, VertexInterpolation

_MODULES = (
    "conditional",
    "countable",
    "distributions",
    "estimators",
    "functional",
    "kl",
    "kumaraswamy",
    "nn",
    "prior",
    "quadrature",
    "recovery",
    "schedules",
    "testing",
    "transforms",
)

_HOMES = {
    # distributions on the simplex
    "InvertibleReparameterization": "distributions",
    "InvertibleGaussian": "distributions",
    "GumbelSoftmax": "distributions",
    "BinaryConcrete": "distributions",
    # on countably many categories
    "CountableStickBreaking": "countable",
    "StickSample": "countable",
    "CountableProbs": "countable",
    # on the unit interval: sticks
    "Kumaraswamy": "kumaraswamy",
    # maps onto the simplex, and what may come before them
    "SoftmaxPlusPlus": "transforms",
    "VertexInterpolation": "transforms",
    "StickBreaking": "transforms",
    "Planar": "transforms",
    # the discrete distribution behind
    "QuadratureError": "recovery",
    "recovered_log_probs": "recovery",
    "recovered_log_probs_stick_breaking": "recovery",
    "monte_carlo_recovered": "distributions",
    "EstimatedOneHotCategorical": "distributions",
    "MonteCarlo": "distributions",
    # the noise given the category
    "sample_conditional": "conditional",
    "conditional_path": "conditional",
    "sample_conditional_gumbel": "conditional",
    "conditional_path_gumbel": "conditional",
    # priors
    "fit_prior": "prior",
    "match_moments": "prior",
    # temperatures
    "suggest_temperature": "schedules",
    "measure_temperature": "schedules",
    "Suggestion": "schedules",
    # divergences
    "monte_carlo_kl": "kl",
    "categorical_kl": "kl",
}

__all__ = [
    "__version__",
    "conditional",
    "countable",
    "distributions",
    "estimators",
    "functional",
    "kl",
    "kumaraswamy",
    "nn",
    "prior",
    "quadrature",
    "recovery",
    "schedules",
    "testing",
    "transforms",
    "InvertibleReparameterization",
    "InvertibleGaussian",
    "GumbelSoftmax",
    "BinaryConcrete",
    "CountableStickBreaking",
    "StickSample",
    "CountableProbs",
    "Kumaraswamy",
    "SoftmaxPlusPlus",
    "VertexInterpolation",
    "StickBreaking",
    "Planar",
    "QuadratureError",
    "recovered_log_probs",
    "recovered_log_probs_stick_breaking",
    "monte_carlo_recovered",
    "EstimatedOneHotCategorical",
    "MonteCarlo",
    "sample_conditional",
    "conditional_path",
    "sample_conditional_gumbel",
    "conditional_path_gumbel",
    "fit_prior",
    "match_moments",
    "suggest_temperature",
    "measure_temperature",
    "Suggestion",
    "monte_carlo_kl",
    "categorical_kl",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"igr.{name}")
    if name in _HOMES:
        return getattr(import_module(f"igr.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'igr' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
