"""What all estimators share: the variables of an example in one form, the function, and the pair that is returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical

from igr._checks import broadcast, check_count, check_row_scalar, describe, widen
from igr._others import logits_of
from igr.distributions import BinaryConcrete, GumbelSoftmax, Relaxation
from igr.estimators._graph import can_be_walked, depends

Function = Callable[[Tensor], Tensor]


class Estimate(NamedTuple):
    """An estimate of an expectation, and a surrogate whose gradient is an estimate of the expectation's gradient."""

    value: Tensor
    """The estimate of E[f], one for each example, shape ``(*)``, without gradient."""
    surrogate: Tensor
    """The same numbers. ``surrogate.sum().backward()`` adds each example's estimate to the gradients of everything
    involved."""


class Latent:
    """N independent categorical variables of each example, and the function of them, whatever they were given as.

    Zeros and ones are read as two categories, of which f is shown the first.

    Attributes:
        relaxation: a relaxation on the simplex with batch shape ``(*, N)`` and K categories.
        shape: ``(*)``, that of examples.
    """

    def __init__(self, q: Distribution, f: Function, temperature: float | Tensor | None = None) -> None:
        self.relaxation, self._f, self._binary = as_relaxation(q, temperature), f, _is_binary(q)
        if not self.relaxation.batch_shape:
            raise ValueError(
                f"q must have a batch axis, the last, for the N variables of an example, got {q} with batch shape (); "
                "use q.expand((1,)) for a single variable"
            )
        self.shape = self.relaxation.batch_shape[:-1]
        self._log_probs: Tensor | None = None

    @property
    def num_variables(self) -> int:
        """N."""
        return self.relaxation.batch_shape[-1]

    @property
    def num_categories(self) -> int:
        """K."""
        return self.relaxation.event_shape[-1]

    @property
    def log_dtype(self) -> torch.dtype:
        """That of logarithms, and of the values of functions that count."""
        return torch.promote_types(self.relaxation.dtype, torch.float32)

    @property
    def log_probs(self) -> Tensor:
        """log P(D = k), differentiable, ``(*, N, K)``: softmax of logits, Proposition 2 or the recursion of sticks.

        Computed once, without a lock, which a compiler could not see through.

        Raises:
            NotImplementedError: only samples know the probabilities.
        """
        if self._log_probs is not None:
            return self._log_probs
        log_p = self.relaxation._recovered_log_probs()
        if log_p is None:
            raise NotImplementedError(
                f"the probabilities behind {self.relaxation} are known through samples only, and this estimator needs "
                "their gradient; use reparameterized, sticking_the_landing or st_relaxed"
            )
        self._log_probs = _finite(log_p)
        return self._log_probs

    def scores(self, num_samples: int, generator: torch.Generator | None) -> Tensor:
        """S draws of what decides the sample, differentiable: log α + ε, ``(S, *, N, K)``, or y with K - 1."""
        return self.relaxation._scores((num_samples,), generator)

    def harden(self, scores: Tensor) -> Tensor:
        """The one-hot sample D, ``(S, *, N, K)``, without gradient, in the dtype of q's own samples."""
        return self.relaxation._harden(scores.detach()).to(self.relaxation.dtype)

    def relax(self, scores: Tensor) -> Tensor:
        """The relaxed sample, ``(S, *, N, K)``, in the dtype of q's own samples."""
        return self.relaxation._relax(scores).to(self.relaxation.dtype)

    def draw(self, num_samples: int, generator: torch.Generator | None) -> Tensor:
        """S one-hot samples D, ``(S, *, N, K)``, without gradient."""
        with torch.no_grad():
            return self.harden(self.scores(num_samples, generator))

    def log_prob(self, one_hot: Tensor) -> Tensor:
        """log q(D) of all N variables, differentiable, ``(S, *)``."""
        index = one_hot.argmax(-1, keepdim=True)  # (S, *, N, 1)
        return self.log_probs.expand(one_hot.shape).gather(-1, index).squeeze(-1).sum(-1)

    def call(self, z: Tensor, function: Function | None = None, name: str = "f") -> Tensor:
        """f, or another function of samples ``(S, *, N, K)``, whose shape is checked: ``(S, *)``."""
        shown = z[..., 0] if self._binary else z
        values = (self._f if function is None else function)(shown)
        expected = z.shape[:-2]
        if not isinstance(values, Tensor) or values.shape != expected:
            raise ValueError(
                f"{name} must map samples of shape {tuple(shown.shape)} to one value for each sample and example, "
                f"shape {tuple(expected)}, got {describe(values)}; sum over the variables, not over the examples"
            )
        return widen(values) if values.is_floating_point() else values.to(self.log_dtype)

    def call_through(self, z: Tensor) -> Tensor:
        """f at samples that carry a gradient, which f has to pass on.

        Raises:
            ValueError: f has no gradient with respect to the sample, so that the estimate would be zero.
        """
        values = self.call(z)
        if z.requires_grad and can_be_walked() and not depends(values, z):
            raise ValueError(
                "f has no gradient with respect to the sample, which this estimator needs: f may look at its argmax or "
                "at its values only, as log_prob of torch's OneHotCategorical does; write log q as "
                "(z * log_probs).sum((-1, -2)), or use score_function, rloo or uspg"
            )
        return values


def _is_binary(q: Distribution) -> bool:
    inner = q.base_dist if isinstance(q, Independent) else q
    return isinstance(inner, (Bernoulli, BinaryConcrete))


def as_relaxation(q: Distribution, temperature: float | Tensor | None) -> Relaxation:
    """q itself, or the Gumbel-Softmax of a discrete q."""
    if isinstance(q, Independent) and q.reinterpreted_batch_ndims == 1:
        return as_relaxation(q.base_dist, temperature)
    if isinstance(q, Relaxation):
        if temperature is not None:
            raise ValueError(f"temperature is for a discrete q; {q} has its own")
        if not isinstance(q, BinaryConcrete):
            return q
        tau = q.temperature
        rows = tau.unsqueeze(-1) if isinstance(tau, Tensor) and tau.dim() else tau
        return GumbelSoftmax(rows, _two_categories(q.logits), validate_args=False)
    if isinstance(q, (Bernoulli, Categorical, OneHotCategorical)):
        logits = _finite_logits(q)
        logits = _two_categories(logits) if isinstance(q, Bernoulli) else logits
        tau = check_per_variable("temperature", 1.0 if temperature is None else temperature, logits)
        return GumbelSoftmax(tau, logits, validate_args=False)
    raise TypeError(
        f"q must be a relaxation of this library, or a Categorical, OneHotCategorical or Bernoulli of torch, "
        f"got {describe(q)}; for torch's relaxed distributions use igr.GumbelSoftmax and igr.BinaryConcrete"
    )


def _finite_logits(q: Categorical | OneHotCategorical | Bernoulli) -> Tensor:
    """In the dtype that q was made of."""
    dtype = (q._categorical if isinstance(q, OneHotCategorical) else q)._param.dtype
    return _finite(logits_of(q).to(dtype))


def _finite(logits: Tensor) -> Tensor:
    """Finite for what is impossible or certain, also after a division by a small temperature."""
    most = min(torch.finfo(logits.dtype).max / 4, 1e30)
    return logits.clamp(-most, most)


def _two_categories(log_odds: Tensor) -> Tensor:
    """Logits of one and of zero."""
    return torch.stack([log_odds, torch.zeros_like(log_odds)], -1)


def check_per_variable(name: str, value: float | Tensor, log_p: Tensor) -> float | Tensor:
    """A positive number, or one for each variable, ``(*, N, 1)``: not one for each sample."""
    scalar, rows = check_row_scalar(name, value, log_p), torch.Size((*log_p.shape[:-1], 1))
    if isinstance(scalar, Tensor) and broadcast(**{name: scalar, "variables": rows}) != rows:
        raise ValueError(
            f"{name} must be a number or broadcast to {tuple(rows)}, one value per variable, got {describe(value)}"
        )
    return scalar


def check_num_samples(num_samples: int, at_least: int = 1, why: str = "") -> int:
    return check_count("num_samples", num_samples, at_least, why)


def estimate(values: Tensor, surrogate: Tensor) -> Estimate:
    """The pair, from values ``(S, *)`` and what has the gradient: ``(S, *)`` to be averaged, or ``(*)``."""
    value = values.detach().mean(0)
    if surrogate.dim() == values.dim():
        surrogate = surrogate.mean(0)
    return Estimate(value, carry(value, surrogate))


def carry(value: Tensor, surrogate: Tensor) -> Tensor:
    """``value`` with the gradient of ``surrogate``."""
    return value.detach() + (surrogate - surrogate.detach())


def score_surrogate(values: Tensor, advantage: Tensor, log_q: Tensor) -> Tensor:
    r"""Has the gradient :math:`a \nabla \log q(D) + \nabla f(D)`: the second term is f's own dependence."""
    return advantage.detach() * log_q + values
