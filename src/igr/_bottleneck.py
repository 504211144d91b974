"""A layer of categorical variables for models of one's own; public as :mod:`igr.nn`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from igr import _terms, functional
from igr._bottleneck_parts import (
    BY_PROBABILITIES,
    BY_REDRAWS,
    FAR,
    as_temperature,
    check_options,
    default_divergence,
    masked_gaussian_kl,
    masked_log_probs,
    move_forbidden,
    prior_parts,
    shown,
)
from igr._checks import check_count, check_tensor, values_checkable, widen
from igr._draws import sample_shape
from igr._planar_flow import PlanarFlow
from igr._simplex import one_hot_argmax
from igr.distributions import GumbelSoftmax, InvertibleGaussian, Relaxation
from igr.schedules import step
from igr.transforms import StickBreaking

LEAST_SCALE = 1e-3  # of σ, whose logarithm stays finite with it
LEAST_LOGIT = -1e30  # of what is forbidden
INITIAL_WEIGHT = 0.1  # of nn.Linear's own


class Bottleneck(NamedTuple):
    """Samples and their divergence from the prior."""

    z: Tensor
    """Shape ``(*, N, K)``, in the dtype that the linear head computes in."""
    kl: Tensor
    """Shape ``(*)``, summed over the N variables, of at least float32."""


class _Parameters(NamedTuple):
    """What the head makes of features: logits, or locations and scales, of at least float32."""

    loc: Tensor
    scale: Tensor | None = None


class CategoricalBottleneck(nn.Module):
    r"""N categorical variables of K categories, from features by a linear head, with their divergence from a prior.

    .. math:: (\mu, a) = W x + b, \quad \sigma = \mathrm{softplus}(a) + 10^{-3}, \quad
        z = \mathrm{softmax}_{++}(f(\mu + \sigma \epsilon), \tau),

    or :math:`\log \alpha = W x + b` for the Gumbel-Softmax. In training, z is a sample by ``estimator``; in
    evaluation, after ``layer.eval()``, ``eval_mode`` decides what it is.

    Note:
        :math:`\sigma` grows no faster than the activation, so that no finite one makes it infinite, and cannot reach
        zero, where the divergence is infinite. The layer starts at the prior, nearly whatever the features are: weights
        are a tenth of those of ``nn.Linear``, biases the parameters of the prior. A uniform prior of IGR-SB is fitted
        when the first layer of that K is made, in a second or two for ten categories, ten for a hundred and half a
        minute for two hundred.

        ``kl="continuous"`` is the divergence of the relaxations, at the temperature of the layer on both sides: the
        closed form of the Gaussians for IGR-I and IGR-SB, which does not depend on the temperature; for IGR-Planar,
        against a prior without flow, and for the Gumbel-Softmax, :math:`\log q(z) - \log p(z)` at a relaxed sample, the
        one that is returned if that is relaxed or its vertex: an unbiased estimate that may be negative.
        ``kl="discrete"`` is that of the categoricals behind, exact, which makes a bound with hard samples, and bounds
        nothing where relaxed ones are used; IGR-Planar does not have it. The default is ``"discrete"`` for the
        Gumbel-Softmax, as in Jang et al. (2017), and for estimators by probabilities, and ``"continuous"`` for others
        of IGR. In evaluation z is discrete and the divergence still the one that the layer was made with: for a bound
        of the discrete model, make it with ``kl="discrete"``, or add up
        ``igr.categorical_kl(layer.distribution(h), layer.prior()).sum(-1)``.

        Probabilities of IGR-SB, for ``eval_mode="argmax"`` and ``"mean"``, the discrete divergence and estimators by
        probabilities, take about ten milliseconds for each variable of each row on a CPU; those of IGR-I and of the
        Gumbel-Softmax take microseconds.

        A mask drops the forbidden categories from posterior and prior. For the discrete divergence and the
        Gumbel-Softmax, that is the prior given that the category is allowed; for the continuous one of IGR-I, the
        Gaussians of the allowed categories, and their differences where the last category is forbidden. IGR-SB and
        IGR-Planar take no masks, since there every coordinate moves all categories, nor does the continuous divergence
        of the Gumbel-Softmax.

    References:
        Sections 3 and 4; Jang et al. (2017) and Maddison et al. (2017) for the Gumbel-Softmax.

    Arguments:
        in_features: size of the last axis of the features.
        num_variables: N.
        num_categories: K.
        relaxation: ``"igr-i"``, ``"igr-sb"``, ``"igr-planar"`` (two nested planar flows for each variable) or ``"gs"``.
        temperature: :math:`\tau`: a number, a schedule of :mod:`igr.schedules`, or a module that returns it, such as
            :class:`igr.schedules.Learnable`; may be assigned later. By default, the temperature at which samples of
            equally likely categories, and for IGR-SB of sticks that are equally long where there is no noise, are at a
            mean distance of 0.1 from the nearest vertex, which is another one for every relaxation and K.
        estimator: what z is in training. ``"reparameterized"``, relaxed samples; all others are one-hot, with the
            gradient of that name in :mod:`igr.estimators`: ``"st_relaxed"``, that of the relaxed sample;
            ``"straight_through"``, ``"gapped_straight_through"`` and ``"reinmax"``, by probabilities;
            ``"gumbel_rao"`` (Gumbel-Softmax) and ``"igr_rao"`` (IGR-I). The others there, such as RLOO, need the loss
            itself: give them :meth:`distribution`.
        eval_mode: ``"sample"``, one-hot samples; ``"argmax"``, the likeliest category; ``"mean"``, the probabilities.
            IGR-Planar has only the first, since samples alone know its probabilities.
        prior: None for uniform; probabilities, shape ``(K,)`` or ``(N, K)``; or a relaxation of the same kind with
            batch shape ``()`` or ``(N,)``, of which parameters are taken, and not the temperature.
        kl: ``"continuous"`` or ``"discrete"``.

    Raises:
        ValueError: a choice that does not exist, also for this relaxation, or a prior that does not fit.

    Example:
        >>> from igr import estimators
        >>> layer = CategoricalBottleneck(64, num_variables=20, num_categories=10, temperature=0.5)
        >>> h = torch.randn(32, 64)
        >>> z, kl = layer(h)
        >>> z.shape, kl.shape
        (torch.Size([32, 20, 10]), torch.Size([32]))
        >>> value, surrogate = estimators.rloo(layer.distribution(h), lambda z: z[..., 0].sum(-1), num_samples=4)
        >>> (surrogate + layer(h).kl).mean().backward()
    """

    prior_log_probs: Tensor
    prior_loc: Tensor
    prior_scale: Tensor

    def __init__(
        self,
        in_features: int,
        num_variables: int,
        num_categories: int,
        relaxation: str = "igr-i",
        *,
        temperature: float | Tensor | Callable[[int], float] | nn.Module | None = None,
        estimator: str = "reparameterized",
        eval_mode: str = "sample",
        prior: Tensor | Relaxation | None = None,
        kl: str | None = None,
    ) -> None:
        super().__init__()
        in_features = check_count("in_features", in_features)
        num_variables = check_count("num_variables", num_variables)
        num_categories = check_count("num_categories", num_categories, 2)
        kl = kl or default_divergence(relaxation, estimator)
        check_options(relaxation=relaxation, estimator=estimator, eval_mode=eval_mode, kl=kl)
        self.in_features, self.num_variables, self.num_categories = in_features, num_variables, num_categories
        self.relaxation, self.estimator, self.eval_mode, self.kl = relaxation, estimator, eval_mode, kl
        self.tau = as_temperature(temperature, relaxation, num_categories)
        size = num_categories if relaxation == "gs" else 2 * (num_categories - 1)
        self.head = nn.Linear(in_features, num_variables * size)
        self.flow = PlanarFlow(num_categories, batch_shape=(num_variables,)) if relaxation == "igr-planar" else None
        self._start_at(prior)

    @torch.no_grad()
    def _start_at(self, prior: Tensor | Relaxation | None) -> None:
        """Keeps the prior as buffers, and makes the head return it, nearly."""
        parts = prior_parts(self.relaxation, prior, self.num_variables, self.num_categories)
        start = parts.log_probs
        for name, value in parts._asdict().items():
            own = None if value is None else value.to(self.head.weight, copy=True)
            self.register_buffer(f"prior_{name}", own)
        if parts.loc is not None and parts.scale is not None:
            if not bool((parts.scale > LEAST_SCALE).all()):
                raise ValueError(f"the scale of the prior must be above {LEAST_SCALE:g}, the least that the layer has")
            start = torch.cat([parts.loc, torch.expm1(parts.scale.double() - LEAST_SCALE).log().to(parts.loc)], -1)
        self.head.weight.mul_(INITIAL_WEIGHT)
        self.head.bias.copy_(start.expand(self.num_variables, -1).flatten())

    @property
    def temperature(self) -> Tensor:
        """The present temperature."""
        tau: Tensor = self.tau()
        return tau

    @temperature.setter
    def temperature(self, value: float | Tensor | Callable[[int], float] | nn.Module | None) -> None:
        self.tau = as_temperature(value, self.relaxation, self.num_categories)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "temperature":  # or a module would be registered under this name, and not be used
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def get_extra_state(self) -> Tensor:
        """The relaxation, as bytes: parameters of another have the same shapes and mean something else."""
        return torch.tensor(list(self.relaxation.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Refuses the state of another relaxation."""
        other = bytes(state.tolist()).decode()
        if other != self.relaxation:
            raise ValueError(
                f"this is the state of a layer with relaxation={other!r}, and this one has {self.relaxation!r}; "
                f"make one with {other!r} for it"
            )

    def step(self) -> None:
        """Counts a step of the temperature's schedule; :func:`igr.schedules.step` does so for a whole model."""
        step(self)

    def forward(
        self, features: Tensor, mask: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Bottleneck:
        """Samples and divergence.

        Arguments:
            features: shape ``(*, in_features)``.
            mask: booleans that broadcast to ``(*, N, K)``; categories where it is False are exactly zero.
            generator: source of the noise; eager mode only.

        Raises:
            NotImplementedError: a mask for what takes none, or for ``"igr_rao"`` one that forbids the last category.
        """
        parameters, dtype = self._parameters_of(features)
        self._check_mask(mask, parameters.loc.shape)
        expected = not self.training and self.eval_mode != "sample"
        hard = not self.training or self.estimator != "reparameterized"
        by_probs = self.training and self.estimator in BY_PROBABILITIES
        log_probs = self._log_probs(parameters, mask) if expected or by_probs or self.kl == "discrete" else None
        z: Tensor | None = None
        if self.kl == "continuous" and self.relaxation in ("igr-planar", "gs"):
            if mask is not None:
                raise NotImplementedError(f"no continuous divergence of {self.relaxation} under a mask; use 'discrete'")
            z, kl = self._sample_and_log_ratio(parameters, hard, generator)
        else:
            kl = self._divergence(parameters, mask, log_probs)
        if expected and log_probs is not None:
            z = log_probs.exp() if self.eval_mode == "mean" else one_hot_argmax(log_probs)
        elif by_probs and log_probs is not None:
            finite = log_probs.clamp(min=LEAST_LOGIT)  # what is forbidden has a gradient, of zero
            z = shown(self.estimator, GumbelSoftmax(1.0, finite, validate_args=False), generator)
        elif self.training and self.estimator in BY_REDRAWS:
            z = shown(self.estimator, self._masked(parameters, mask), generator)
        elif z is None:
            z = self._sample(parameters, mask, hard, generator)
        return Bottleneck(z.to(dtype), kl.sum(-1))

    def distribution(self, features: Tensor, mask: Tensor | None = None) -> Relaxation:
        """The relaxation itself, batch shape ``(*, N)``, for :mod:`igr.estimators` and whatever else takes one.

        Arguments:
            features: shape ``(*, in_features)``.
            mask: booleans that broadcast to ``(*, N, K)``; the location or logit of a forbidden category is -10,000,
                so that its samples and probabilities are exactly zero at temperatures below 10.

        Raises:
            NotImplementedError: a mask for what takes none, or for IGR-I one that forbids the last category, which has
                no location.
        """
        parameters, _ = self._parameters_of(features)
        self._check_mask(mask, parameters.loc.shape)
        return self._masked(parameters, mask)

    def _masked(self, parameters: _Parameters, mask: Tensor | None) -> Relaxation:
        """The relaxation, without the categories that are forbidden."""
        if mask is not None and parameters.scale is not None:
            if values_checkable(mask) and not bool(mask[..., -1].all()):
                raise NotImplementedError(
                    "the last category of igr-i has no location to move, so no relaxation is without it; put one that "
                    "is always allowed last, or call a layer whose estimator takes any mask, such as 'st_relaxed'"
                )
            parameters = _Parameters(*move_forbidden(parameters.loc, parameters.scale, mask))
        elif mask is not None:
            parameters = _Parameters(torch.where(mask, parameters.loc, FAR))
        return self._relaxation(parameters)

    def prior(self) -> Relaxation:
        """The prior as a relaxation at the present temperature, batch shape ``(N,)``; that of IGR-Planar has no flow.

        Its samples are what a decoder is given to generate, hard ones with ``prior().hard_rsample()``.

        Example:
            >>> layer = CategoricalBottleneck(64, num_variables=20, num_categories=10, relaxation="igr-sb")
            >>> layer.prior().hard_rsample((5,)).shape
            torch.Size([5, 20, 10])
        """
        flow = StickBreaking() if self.relaxation == "igr-sb" else None
        if self.relaxation == "gs":
            logits = widen(self.prior_log_probs).expand(self.num_variables, -1)
            return GumbelSoftmax(self.temperature, logits, validate_args=False)
        loc, scale = (widen(each).expand(self.num_variables, -1) for each in (self.prior_loc, self.prior_scale))
        return InvertibleGaussian(loc, scale, self.temperature, flow=flow, validate_args=False)

    def _parameters_of(self, features: Tensor) -> tuple[_Parameters, torch.dtype]:
        """Of shape (*, N, K) or (*, N, K-1), and the dtype of samples."""
        if check_tensor("features", features).dim() == 0 or features.shape[-1] != self.in_features:
            raise ValueError(f"features must have shape (*, {self.in_features}), got {tuple(features.shape)}")
        out = self.head(features).unflatten(-1, (self.num_variables, -1))
        wide = widen(out)
        if self.relaxation == "gs":
            return _Parameters(wide), out.dtype
        mu, a = wide.chunk(2, -1)
        return _Parameters(mu, F.softplus(a) + LEAST_SCALE), out.dtype

    def _check_mask(self, mask: Tensor | None, shape: torch.Size) -> None:
        if mask is None:
            return
        if self.relaxation not in ("igr-i", "gs"):
            raise NotImplementedError(
                f"{self.relaxation} takes no mask, since each of its coordinates moves all categories; use igr-i or gs"
            )
        if sample_shape(shape, self.num_categories, mask) != shape:
            raise ValueError(
                f"mask of shape {tuple(mask.shape)} must broadcast to {(*shape[:-1], self.num_categories)}, that of "
                "samples; repeat the features for more"
            )

    def _relaxation(self, parameters: _Parameters, validate_args: bool | None = None) -> Relaxation:
        tau = self.temperature
        if parameters.scale is None:
            return GumbelSoftmax(tau, parameters.loc, validate_args=validate_args)
        flow = StickBreaking() if self.relaxation == "igr-sb" else None if self.flow is None else self.flow()
        return InvertibleGaussian(parameters.loc, parameters.scale, tau, flow=flow, validate_args=validate_args)

    def _sample(
        self, parameters: _Parameters, mask: Tensor | None, hard: bool, generator: torch.Generator | None
    ) -> Tensor:
        (loc, scale), tau = parameters, self.temperature
        if scale is None:
            return functional.gumbel_softmax(loc, tau, hard, mask=mask, generator=generator)
        if self.relaxation == "igr-i":
            return functional.gaussian_softmax(loc, scale, tau, hard, mask=mask, generator=generator)
        q = self._relaxation(parameters, validate_args=False)
        return q.hard_rsample(generator=generator) if hard else q.rsample(generator=generator)

    def _sample_and_log_ratio(
        self, parameters: _Parameters, hard: bool, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """A sample and log q - log p at the relaxed one, shapes (*, N, K) and (*, N)."""
        q = self._relaxation(parameters, validate_args=False)
        log_z, log_q = q.log_rsample_and_log_prob(generator=generator)
        z = log_z.exp()
        z = functional.straight_through(one_hot_argmax(log_z), z) if hard else z
        return z, log_q - self.prior().log_prob_from_log(log_z)

    def _log_probs(self, parameters: _Parameters, mask: Tensor | None) -> Tensor:
        """Of the discrete distribution behind, normalised, -inf where forbidden, (*, N, K)."""
        if mask is None:
            log_p = self._relaxation(parameters, validate_args=False)._recovered_log_probs()
            assert log_p is not None
            return log_p
        mu, sigma = parameters
        if sigma is None:
            return mu.masked_fill(~mask, -torch.inf).log_softmax(-1)
        return masked_log_probs(mu, sigma, mask.expand(*mu.shape[:-1], self.num_categories))

    def _divergence(self, parameters: _Parameters, mask: Tensor | None, log_probs: Tensor | None) -> Tensor:
        """In closed form, (*, N)."""
        mu, sigma = parameters
        if sigma is None or self.kl == "discrete":
            assert log_probs is not None
            prior = widen(self.prior_log_probs)
            if mask is not None:
                prior = prior.masked_fill(~mask, -math.inf)
            return _terms.categorical_kl(log_probs, prior.log_softmax(-1))
        mu0, sigma0 = widen(self.prior_loc).to(mu.dtype), widen(self.prior_scale).to(mu.dtype)
        if mask is None:
            return _terms.gaussian_kl(mu, sigma, mu0, sigma0)
        return masked_gaussian_kl(mu, sigma, mu0, sigma0, mask.expand(*mu.shape[:-1], self.num_categories))

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, num_variables={self.num_variables}, "
            f"num_categories={self.num_categories}, relaxation={self.relaxation!r}, estimator={self.estimator!r}, "
            f"eval_mode={self.eval_mode!r}, kl={self.kl!r}"
        )
