"""The gapped straight-through estimator."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution

from igr import functional
from igr.estimators._core import Estimate, Function, Latent, check_num_samples, check_per_variable, estimate

__all__ = ["gapped_straight_through"]


def gapped_straight_through(
    q: Distribution,
    f: Function,
    *,
    num_samples: int = 1,
    generator: torch.Generator | None = None,
    gap: float | Tensor = 1.0,
    temperature: float | Tensor = 1.0,
) -> Estimate:
    r"""f at one-hot samples D, with the gradient of logits that are moved until they favour D by a gap.

    With :math:`\theta = \log \pi` and :math:`D = e_i`,

    .. math:: \frac{1}{\tau} J(\mathrm{softmax}(\theta' / \tau)) \nabla f(D), \qquad
        \theta'_i = \max_k \theta_k, \quad \theta'_j = \min(\theta_j, \max_k \theta_k - \text{gap}), \quad j \ne i,

    the moves being constants, and :math:`J(p) = \mathrm{diag}(p) - p p^\top`.

    Note:
        What noise does in the straight-through Gumbel-Softmax, to make the relaxed sample agree with D, is done here by
        the least deterministic move, so the variance is that of D alone. Biased.

    References:
        Fan et al. (2022), "Training discrete deep generative models via gapped straight-through estimator".

    Arguments:
        q: a discrete distribution, or a relaxation whose discrete probabilities are known; batch shape ``(*, N)``.
        f: maps one-hot samples ``(S, *, N, K)``, or zeros and ones ``(S, *, N)``, to ``(S, *)``.
        num_samples: the number of samples S.
        generator: source of the noise; eager mode only.
        gap: by how much the logit of the sampled category exceeds the others at least, a positive number or one value
            per variable, ``(*, N, 1)``.
        temperature: :math:`\tau > 0`, likewise; not that of a relaxation.

    Returns:
        Value and surrogate, shape ``(*)``.

    Raises:
        NotImplementedError: a relaxation whose discrete probabilities only samples know.
        ValueError: a temperature or a gap that is not positive, or an f whose values have another shape.

    Example:
        >>> from igr import InvertibleGaussian
        >>> loc = torch.zeros(5, 3, 9, requires_grad=True)
        >>> q = InvertibleGaussian(loc, 1.0, temperature=0.5)
        >>> value, surrogate = gapped_straight_through(q, lambda z: z.cumsum(-1).square().sum((-2, -1)))
        >>> surrogate.sum().backward()
        >>> value.shape, loc.grad.shape
        (torch.Size([5]), torch.Size([5, 3, 9]))
    """
    latent = Latent(q, f)
    log_p = latent.log_probs
    tau, gap = (check_per_variable(name, x, log_p) for name, x in (("temperature", temperature), ("gap", gap)))
    hard = latent.draw(check_num_samples(num_samples), generator)  # (S, *, N, K)
    fixed = log_p.detach()  # also in forward mode, to which no_grad is nothing
    below = fixed - fixed.amax(-1, keepdim=True)
    move = torch.where(hard > 0, -below, -F.relu(below + (gap.detach() if isinstance(gap, Tensor) else gap)))
    soft = ((log_p + move) / tau).softmax(-1).to(hard.dtype)
    values = latent.call_through(functional.straight_through(hard, soft))
    return estimate(values, values)
