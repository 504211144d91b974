"""DisARM: antithetic pairs of bits."""

from __future__ import annotations

import torch
from torch.distributions import Distribution

from igr._draws import gumbel_noise
from igr.estimators._core import Estimate, Function, Latent, check_num_samples, estimate

__all__ = ["disarm"]


def disarm(q: Distribution, f: Function, *, num_samples: int = 1, generator: torch.Generator | None = None) -> Estimate:
    r"""The difference of f between two antithetic samples, for variables of two categories.

    With log-odds :math:`\alpha` and logistic noise :math:`\epsilon`, all bits of a pair are :math:`b = 1[\alpha +
    \epsilon > 0]` and :math:`\tilde b = 1[\alpha - \epsilon > 0]`, and the estimate for bit n is

    .. math:: \tfrac{1}{2} (f(b) - f(\tilde b)) (b_n - \tilde b_n)\, \mathrm{sigmoid}(|\alpha_n|)\, \nabla \alpha_n

    to which half of :math:`\nabla f(b) + \nabla f(\tilde b)` is added. Unbiased; averaged over S pairs.

    References:
        Dong, Mnih & Tucker (2020), "DisARM: an antithetic gradient estimator for binary latent variables".

    Arguments:
        q: a Bernoulli of torch or a BinaryConcrete, or anything of two categories whose recovered probabilities are
            known: a Categorical, a Gumbel-Softmax, IGR-I or IGR-SB with K = 2; the last axis of its batch shape
            ``(*, N)`` is that of the variables of an example.
        f: maps bits ``(2S, *, N)``, or one-hot samples ``(2S, *, N, 2)`` for a q of categories, to ``(2S, *)``.
        num_samples: the number S of pairs; f is called once, with both samples of all pairs.
        generator: source of the noise; eager mode only.

    Returns:
        Value and surrogate, both ``(*)``.

    Raises:
        ValueError: an f of the wrong shape.
        NotImplementedError: more than two categories, or probabilities of q that are known through samples only.

    Example:
        >>> logits = torch.zeros(5, 3, requires_grad=True)  # five examples of three bits
        >>> q = torch.distributions.Bernoulli(logits=logits)
        >>> value, surrogate = disarm(q, lambda b: (b.sum(-1) - 0.45).square())
        >>> surrogate.sum().backward()
        >>> value.shape, logits.grad.shape
        (torch.Size([5]), torch.Size([5, 3]))
    """
    check_num_samples(num_samples)
    latent = Latent(q, f)
    if latent.num_categories != 2:
        raise NotImplementedError(
            f"disarm is for variables of two categories, got {q} with {latent.num_categories}; "
            "use rloo with num_samples=2, which also evaluates f twice, or uspg"
        )
    log_probs = latent.log_probs
    alpha = log_probs[..., 0] - log_probs[..., 1]  # (*, N)
    with torch.no_grad():
        eps = gumbel_noise(log_probs.expand(num_samples, *log_probs.shape), generator)
        eps = eps[..., 0] - eps[..., 1]  # (S, *, N)
        b = torch.cat([alpha + eps > 0, alpha - eps > 0]).to(latent.relaxation.dtype)
    values = latent.call(torch.stack([b, 1 - b], -1))
    f_b, f_tilde = values.detach().chunk(2)
    first, second = b.to(alpha.dtype).chunk(2)
    slope = 0.5 * (f_b - f_tilde).unsqueeze(-1) * (first - second) * alpha.detach().abs().sigmoid()
    return estimate(values, values.mean(0) + (slope * alpha).sum(-1).mean(0))
