"""The score function estimator, also known as REINFORCE, and its baselines."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from igr._checks import broadcast, check_tensor, describe, is_number
from igr.estimators._core import Estimate, Function, Latent, check_num_samples, estimate, score_surrogate
from igr.estimators._graph import can_be_walked, leaves, only_to

__all__ = ["score_function", "RunningMean"]


class RunningMean(nn.Module):
    r"""A baseline for :func:`score_function`: the exponentially weighted mean of f over the calls before this one.

    .. math:: b_t = \frac{1 - \beta}{1 - \beta^t} \sum_{i < t} \beta^{t - 1 - i} \bar f_i, \quad t = 1, 2, \dots,
        \qquad b_0 = 0,

    with :math:`\bar f_i` the mean over samples and examples of call i. No current sample is in it, so the estimator
    stays unbiased.

    Arguments:
        momentum: :math:`\beta`, at least 0 and below 1.

    Attributes:
        total: the weighted sum.
        weight: the sum of its weights, :math:`1 - \beta^t`.

    Example:
        >>> baseline = RunningMean(momentum=0.9)
        >>> baseline.update(torch.tensor([1.0, 3.0]))
        >>> baseline()
        tensor(2.)
    """

    total: Tensor
    weight: Tensor

    def __init__(self, momentum: float = 0.9) -> None:
        super().__init__()
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, got {momentum!r}")
        self.momentum = momentum
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("weight", torch.zeros(()))

    def forward(self) -> Tensor:
        """The mean so far, zero if there is none, a new 0-d tensor."""
        return torch.where(self.weight > 0, self.total / self.weight, 0.0)

    @torch.no_grad()
    def update(self, values: Tensor) -> None:
        """Takes in the mean of ``values``, if there is a finite one, unless the module is in evaluation mode."""
        if not self.training:
            return
        if values.device != self.total.device:
            raise ValueError(
                f"values are on {values.device}, the running mean on {self.total.device}; "
                f"move it by .to({str(values.device)!r})"
            )
        if values.numel():
            mean = values.mean().to(self.total.dtype)
            share = (1 - self.momentum) * mean.isfinite().to(mean.dtype)  # without waiting for a device
            self.total.lerp_(torch.where(share > 0, mean, 0.0), share)
            self.weight.lerp_(torch.ones_like(self.weight), share)

    def extra_repr(self) -> str:
        """What is shown between the parentheses."""
        return f"momentum={self.momentum:g}"


def score_function(
    q: Distribution,
    f: Function,
    *,
    num_samples: int = 1,
    baseline: Tensor | float | RunningMean | None = None,
    generator: torch.Generator | None = None,
) -> Estimate:
    r"""The score function estimator.

    .. math:: \frac{1}{S} \sum_s \bigl[(f(D_s) - b) \nabla \log q(D_s) + \nabla f(D_s)\bigr].

    Unbiased, for any baseline b that does not depend on the samples.

    Note:
        A baseline that requires a gradient, such as the output of a network of the example, is trained by the same
        backward pass, by the squared error :math:`(f(D_s) - b)^2`: in the tensors that it depends on and neither q nor
        f does, such as those of a head on an encoder that q shares. (A compiler cannot tell these apart: there, give
        it an input that is detached.)

    References:
        Williams (1992), "Simple statistical gradient-following algorithms for connectionist reinforcement learning";
        Mnih & Gregor (2014), "Neural variational inference and learning in belief networks", for trained baselines.

    Arguments:
        q: any relaxation whose recovered probabilities are known, or a Categorical, OneHotCategorical or Bernoulli of
            torch; the last axis of its batch shape ``(*, N)`` is that of the variables of an example.
        f: maps one-hot samples ``(S, *, N, K)``, or bits ``(S, *, N)``, to ``(S, *)``.
        num_samples: S.
        baseline: b, none, a number, a tensor broadcastable to ``(*)``, or a :class:`RunningMean`, which is updated by
            the call.
        generator: source of the noise; eager mode only.

    Returns:
        Value and surrogate, both ``(*)``.

    Raises:
        ValueError: no samples, an f of the wrong shape, or a baseline that does not broadcast to ``(*)``.
        NotImplementedError: probabilities of q that are known through samples only.

    Example:
        >>> logits = torch.zeros(5, 3, 10, requires_grad=True)  # five examples of three variables
        >>> q = torch.distributions.Categorical(logits=logits)
        >>> value, surrogate = score_function(q, lambda z: z[..., 0].sum(-1), baseline=torch.tensor(0.3))
        >>> surrogate.sum().backward()
        >>> value.shape, logits.grad.shape
        (torch.Size([5]), torch.Size([5, 3, 10]))
    """
    check_num_samples(num_samples)
    latent = Latent(q, f)
    b = _check_baseline(baseline, latent)
    one_hot = latent.draw(num_samples, generator)
    log_q, values = latent.log_prob(one_hot), latent.call(one_hot)
    if b is None:
        return estimate(values, score_surrogate(values, values, log_q))
    if isinstance(baseline, RunningMean):
        baseline.update(values)  # b is the mean before
    error = values.detach() - b.to(values.dtype)
    surrogate = score_surrogate(values, error, log_q).mean(0)
    return estimate(values, surrogate + _training(error.square().mean(0), b, log_q, values))


def _training(loss: Tensor, baseline: Tensor, *others: Tensor) -> Tensor | float:
    """What trains the baseline, and nothing else."""
    if not baseline.requires_grad:
        return 0.0
    if not can_be_walked():
        return loss
    known = leaves(*others)
    return only_to([leaf for key, leaf in leaves(baseline).items() if key not in known], loss)


def _check_baseline(baseline: object, latent: Latent) -> Tensor | None:
    """Its value at the start of the call."""
    if baseline is None:
        return None
    if callable(baseline) and not isinstance(baseline, RunningMean):
        raise TypeError(f"baseline must be a tensor or a RunningMean, got {describe(baseline)}; give what it returns")
    if is_number(baseline):
        return torch.full((), baseline, dtype=latent.log_dtype, device=latent.relaxation._like.device)
    b = baseline() if isinstance(baseline, RunningMean) else check_tensor("baseline", baseline)
    if broadcast(baseline=b, examples=latent.shape) != latent.shape:
        raise ValueError(
            f"baseline must be broadcastable to the shape {tuple(latent.shape)} of examples, got {describe(b)}"
        )
    return b
