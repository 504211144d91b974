r"""RELAX: the score function with a control variate of the relaxed sample, unbiased."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution

from igr.estimators._control import control_variate_estimate
from igr.estimators._core import Estimate, Function, Latent

__all__ = ["relax"]


def relax(
    q: Distribution,
    f: Function,
    *,
    num_samples: int = 1,
    control_variate: Function | None = None,
    temperature: float | Tensor | None = None,
    coupled: bool = True,
    generator: torch.Generator | None = None,
) -> Estimate:
    r"""The score function with a control variate c of the relaxed sample, which is trained along with everything else.

    .. math:: g = [f(D) - c(\tilde z)] \nabla \log q(D) + \nabla c(z) - \nabla c(\tilde z) + \nabla f(D),

    where :math:`z` is the relaxed sample of the scores :math:`y`, :math:`D = h(y)`, and :math:`\tilde z` that of
    scores :math:`\tilde y \sim y \mid h(y) = D`. The gradients of c are those of the paths of z and of
    :math:`\tilde z`, and that of f(D) is f's own dependence. Unbiased, for Gumbel noise and for IGR-I.

    ``surrogate.sum().backward()`` also adds, to the gradients of what c depends on and neither f(D) nor the parameters
    of q do, such as a network's parameters or the relaxation's temperature, the gradient of :math:`|g|^2`, averaged
    over samples. Nothing else has a part in that, and those have no part in the estimate itself.

    Note:
        Given the category the noise of z and that of :math:`\tilde z` have the same law, so z may stand in for
        :math:`\tilde z`: if ``coupled`` they have the same value, and their paths differ
        (:func:`igr.conditional_path`). Then c is evaluated once, and :math:`(\partial c / \partial y) (dy - d\tilde y)`
        is left of its gradients. The code published with the paper has an independent sample in place of both, and no
        :math:`\nabla c(\tilde z)`, which is biased by :math:`\nabla E[c(z)]`; this is the exact conditional.

        c must be continuous and have a derivative almost everywhere. The g whose norm trains it is that of the logits,
        or of μ and σ together, of all variables of an example, without :math:`\nabla f(D)`, which makes no difference
        where that does not depend on D. Training takes second derivatives of c, and without anything to train there are
        none taken; behind a function that is ``once_differentiable``, the slope of c counts as a constant. A control
        variate that shares tensors with f or with q is not trained in these.

        Gradients are taken on the way, of graphs that :func:`torch.compile` and :mod:`torch.func` do not show: call
        ``backward`` on the surrogate, in eager mode.

    References:
        Grathwohl et al. (2018), "Backpropagation through the void: optimizing control variates for black-box gradient
        estimation"; Tucker et al. (2017), "REBAR"; appendix D, and for IGR-I Proposition 2.

    Arguments:
        q: the distribution of the N variables of each example, batch shape ``(*, N)``: Gumbel-Softmax, IGR-I, or a
            discrete distribution.
        f: maps samples ``(S, *, N, K)``, or ``(S, *, N)`` of zeros and ones, to ``(S, *)``, and takes relaxed ones
            unless there is a ``control_variate``.
        num_samples: S, over which the estimate is averaged.
        control_variate: c, which maps relaxed samples like f does; by default f.
        temperature: :math:`\tau` of the relaxation of a discrete q, by default 1; a tensor that requires a gradient is
            trained.
        coupled: whether :math:`\tilde z` has the value of z, or is drawn anew.
        generator: source of the noise.

    Returns:
        An estimate for each example, shape ``(*)``.

    Raises:
        NotImplementedError: a relaxation that has no samples given the category, such as IGR-SB; a call inside
            ``torch.compile`` or ``torch.func``.
        ValueError: a function that returns the wrong shape, or a control variate without a gradient.

    Example:
        >>> from igr import InvertibleGaussian
        >>> loc = torch.zeros(5, 3, 9, requires_grad=True)  # 5 examples of 3 variables
        >>> network = torch.nn.Sequential(torch.nn.Flatten(-2), torch.nn.Linear(30, 1), torch.nn.Flatten(-2))
        >>> q = InvertibleGaussian(loc, 1.0, temperature=torch.tensor(0.5, requires_grad=True))
        >>> f = lambda z: (z[..., 0].sum(-1) - 1).square()
        >>> relax(q, f, control_variate=lambda z: f(z) + network(z)).surrogate.sum().backward()
        >>> loc.grad.shape, network[1].weight.grad.shape, q.temperature.grad.shape
        (torch.Size([5, 3, 9]), torch.Size([1, 30]), torch.Size([]))
    """
    latent = Latent(q, f, temperature)
    return control_variate_estimate(latent, control_variate, num_samples, coupled, generator)
