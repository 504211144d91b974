"""What estimators are tried on: functions of a few categorical variables, small enough to go through all states."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from igr._checks import describe

__all__ = ["Problem", "ProblemError", "in_words", "random_logits", "rebar", "polynomial", "tanh", "vae"]

Function = Callable[[Tensor], Tensor]


class ProblemError(ValueError):
    """A problem that is not there or cannot be worked with, and what to do about it."""


def in_words(error: Exception) -> str:
    """What somebody's own code has raised, in one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ProblemError) else f"{type(error).__name__}: {text}"


@dataclass(frozen=True)
class Problem:
    r"""A function of N variables with K categories each, and where its gradient is asked for.

    Arguments:
        name: what records, tables and figures call it.
        function: f, from samples ``(S, *, N, K)``, on the simplex, to ``(S, *)``.
        logits: of the variables' probabilities, ``(N, K)``.
        settings: numbers that say which of its kind it is.

    Raises:
        ProblemError: there is no variable, or less than two categories, or a logit that is not finite.
    """

    name: str
    function: Function
    logits: Tensor
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.logits, Tensor) or self.logits.dim() != 2:
            raise ProblemError(
                f"{self.name}: logits must be a tensor of shape (N, K) with K >= 2, got {describe(self.logits)}"
            )
        _check_sizes(self.num_variables, self.num_categories)
        if not bool(self.logits.isfinite().all()):
            raise ProblemError(
                f"{self.name}: logits must be finite, got {describe(self.logits)} with NaN or infinite entries; what "
                "is all but impossible has a logit such as -20"
            )

    @property
    def num_variables(self) -> int:
        """N."""
        return self.logits.shape[0]

    @property
    def num_categories(self) -> int:
        """K."""
        return self.logits.shape[1]


def _check_sizes(num_variables: int, num_categories: int) -> None:
    for name, value, least in (("num_variables", num_variables, 1), ("num_categories", num_categories, 2)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ProblemError(f"{name} must be an integer of at least {least}, got {value!r}")


def _noise(seed: int) -> Callable[..., Tensor]:
    """Standard normal numbers that depend on the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)


def random_logits(*, num_variables: int, num_categories: int, seed: int = 0) -> Tensor:
    """Those of a problem that has none of its own, ``(N, K)``."""
    _check_sizes(num_variables, num_categories)
    return _noise(seed)(num_variables, num_categories)


def rebar(*, target: float = 0.49, num_categories: int = 2, num_variables: int = 3) -> Problem:
    r"""The toy problem of REBAR: :math:`\sum_n (b_n - t)^2` of coins, with a t that makes both sides near equal.

    Log-odds go from -1 to 1; a single coin, as in the paper of REBAR, is fair. Variables of K categories are read as
    the numbers :math:`b = 1, \dots, 1 / (K - 1), 0`.

    References:
        Tucker et al. (2017), "REBAR: low-variance, unbiased gradient estimates for discrete latent variable models".
    """
    _check_sizes(num_variables, num_categories)
    numbers = torch.linspace(1.0, 0.0, num_categories, dtype=torch.float64)

    def f(z: Tensor) -> Tensor:
        return ((z * numbers.to(z)).sum(-1) - target).square().sum(-1)

    odds = torch.linspace(-1.0, 1.0, num_variables, dtype=torch.float64) * (num_variables > 1)
    return Problem("rebar", f, odds.unsqueeze(-1) * numbers, {"target": target})


def polynomial(*, degree: int = 3, num_categories: int = 10, num_variables: int = 3, seed: int = 0) -> Problem:
    r"""A polynomial of all variables, :math:`\sum_{d=1}^{D} (w_d \cdot z)^d`, with random :math:`w_d`."""
    _check_sizes(num_variables, num_categories)
    noise = _noise(seed)
    logits = noise(num_variables, num_categories)
    weights = noise(num_variables, num_categories, degree) / math.sqrt(num_variables)
    powers = torch.arange(1, degree + 1)

    def f(z: Tensor) -> Tensor:
        values = z.flatten(-2) @ weights.flatten(0, 1).to(z)  # (S, *, D)
        return values.pow(powers.to(z.device)).sum(-1)

    return Problem("polynomial", f, logits, {"degree": degree, "seed": seed})


def tanh(
    *, hidden: int = 32, gain: float = 2.0, num_categories: int = 10, num_variables: int = 3, seed: int = 0
) -> Problem:
    r"""A random network of all variables, :math:`v \cdot \tanh(W z + b)`."""
    _check_sizes(num_variables, num_categories)
    noise = _noise(seed)
    logits = noise(num_variables, num_categories)
    weight = noise(num_variables * num_categories, hidden) * gain / math.sqrt(num_variables)
    bias, last = noise(hidden), noise(hidden) / math.sqrt(hidden)

    def f(z: Tensor) -> Tensor:
        return torch.tanh(torch.addmm(bias.to(z), *_rows(z, weight))).mv(last.to(z)).reshape(z.shape[:-2])

    return Problem("tanh", f, logits, {"hidden": hidden, "gain": gain, "seed": seed})


def vae(
    *, pixels: int = 64, hidden: int = 32, num_categories: int = 10, num_variables: int = 3, seed: int = 0
) -> Problem:
    r"""The reconstruction term of a small VAE: :math:`-\log p(x \mid z)` of one image with Bernoulli pixels.

    The decoder is a random network with one hidden layer, and the image a sample of it.
    """
    _check_sizes(num_variables, num_categories)
    noise = _noise(seed)
    logits = noise(num_variables, num_categories)
    first = noise(num_variables * num_categories, hidden) / math.sqrt(num_variables)
    second = 2 * noise(hidden, pixels) / math.sqrt(hidden)
    truth = F.one_hot(noise(num_variables, num_categories).argmax(-1), num_categories).double()
    odds = torch.tanh(truth.flatten() @ first) @ second
    image = (torch.special.ndtr(noise(pixels)) < odds.sigmoid()).double()

    def f(z: Tensor) -> Tensor:
        x, weight = _rows(z, first)
        odds = torch.tanh(x @ weight) @ second.to(z)
        values: Tensor = F.softplus(odds).sum(-1) - odds @ image.to(z)
        return values.reshape(z.shape[:-2])

    return Problem("vae", f, logits, {"pixels": pixels, "hidden": hidden, "seed": seed})


def _rows(z: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """All samples as the rows of one matrix, and a weight of their kind."""
    return z.reshape(-1, weight.shape[0]), weight.to(z)
