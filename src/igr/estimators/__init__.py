r"""Estimators of the gradient of :math:`E_{q(D)}[f(D)]`, one a file, all with one signature.

``name(q, f, *, num_samples=1, generator=None, ...)`` returns an :class:`Estimate`. q is a relaxation of this library,
or a ``Categorical``, ``OneHotCategorical`` or ``Bernoulli`` of torch; the last axis of its batch holds the N
independent variables of one example. f maps samples ``(S, *, N, K)``, one-hot or relaxed, to one loss for each sample
and example, ``(S, *)``. Bits come as ``(S, *, N)``; :func:`disarm` calls f with twice as many samples, and :func:`uspg`
with no more than there are states. :func:`rloo`, :func:`vimco` and :func:`uspg` need at least two samples, and have two
by default. f may depend on parameters of its own, and on those of q. ``surrogate.sum().backward()`` adds each example's
estimate to the gradients of all of them.

Estimators that differentiate f at the sample, or relax it, need an f that passes a gradient on. ``log_prob`` of torch's
``OneHotCategorical`` does not, since it looks at the argmax. If f has a log q(D) in it, as an evidence bound does,
write that as ``q.recovered().log_prob(z).sum(-1)`` of a relaxation, or as ``(z * log_probs).sum((-1, -2))``, or leave
it out and add the divergence in closed form.
"""

from igr.estimators._core import Estimate
from igr.estimators.disarm import disarm
from igr.estimators.gapped_straight_through import gapped_straight_through
from igr.estimators.gumbel_rao import gumbel_rao
from igr.estimators.igr_rao import igr_rao
from igr.estimators.rebar import rebar
from igr.estimators.reinmax import reinmax
from igr.estimators.relax import relax
from igr.estimators.reparameterized import reparameterized
from igr.estimators.rloo import rloo
from igr.estimators.score_function import RunningMean, score_function
from igr.estimators.st_relaxed import st_relaxed
from igr.estimators.sticking_the_landing import sticking_the_landing
from igr.estimators.straight_through import straight_through
from igr.estimators.uspg import uspg
from igr.estimators.vimco import vimco

__all__ = [
    "Estimate",
    # pathwise
    "reparameterized",
    "sticking_the_landing",
    "straight_through",
    "st_relaxed",
    "gumbel_rao",
    "igr_rao",
    "gapped_straight_through",
    "reinmax",
    # score
    "score_function",
    "RunningMean",
    "rloo",
    "vimco",
    "uspg",
    "disarm",
    # control variates
    "rebar",
    "relax",
]
