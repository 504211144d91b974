"""What REBAR and RELAX share: the estimate with a control variate, whose own parameters the variance trains."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import grad
from torch.distributions import Independent, Normal

from igr._checks import widen
from igr.conditional import sample_conditional, sample_conditional_gumbel
from igr.distributions import GumbelSoftmax, Relaxation, gaussian_of
from igr.estimators._core import Estimate, Function, Latent, check_num_samples, estimate
from igr.estimators._graph import can_be_walked, leaves, only_to


def control_variate_estimate(
    latent: Latent, control: Function | None, num_samples: int, coupled: bool, generator: torch.Generator | None
) -> Estimate:
    r"""The estimate of :func:`~igr.estimators.relax`.

    Every sample has its own copy of q's parameters θ, so that its gradient g is known here, and the surrogate is
    :math:`f(D) + \langle g, \theta \rangle`. The squared norm of g depends on c through two terms, which are linear in
    c, so that its gradient is that of

    .. math:: 2 \langle J g, \partial c \rangle - 2 \langle g, \nabla \log q(D) \rangle\, c(\tilde z),

    where :math:`J g` is how far the scores move along g, and everything but c is held fixed.
    """
    if not can_be_walked():
        raise NotImplementedError(
            "rebar and relax take gradients on the way, of graphs that torch.compile and torch.func do not show: call "
            "them in eager mode, from a compiled function as torch.compiler.disable(igr.estimators.relax)(...)"
        )
    theta, S = _parameters(latent.relaxation), check_num_samples(num_samples)
    rows = [t.detach().expand(S, *t.shape).requires_grad_() for t in theta]
    own = _at(latent.relaxation, rows)
    y = own._scores((), generator)
    D = latent.harden(y)
    values = latent.call(D.clone())  # which f may write into
    if not torch.is_grad_enabled():
        return estimate(values, values)

    held = own._conditional_path(y if coupled else _redrawn(rows, D, generator))
    assert held is not None  # known wherever the parameters are
    points = [x.detach().requires_grad_() for x in ([y] if coupled else [y, held])]
    c = [latent.call(latent.relax(x), control, "control_variate") for x in points]  # the last at z̃
    others = leaves(values, *theta, *points)
    trained = [leaf for key, leaf in leaves(*c).items() if key not in others]
    v = _slopes(c, points, create_graph=bool(trained))

    score = _score(latent, theta, D)
    weights = [x.detach().requires_grad_() for x in v]
    path = grad([y - held] if coupled else [y, -held], rows, weights, create_graph=bool(trained))
    advantage = (values - c[-1]).detach()[..., None, None]
    g = [(advantage * s + p).detach().to(p.dtype) for s, p in zip(score, path, strict=True)]  # (S, *, N, ...)
    surrogate = values + _inner(g, [t - t.detach() for t in theta])
    if not trained:
        return estimate(values, surrogate)
    moves = grad(path, weights, g)  # the path is linear in the weights
    change = 2 * (_inner(moves, v) - _inner(g, score) * c[-1])
    return estimate(values, surrogate.mean(0) + only_to(trained, change.mean(0)))


def _parameters(q: Relaxation) -> tuple[Tensor, ...]:
    """The logits, or μ and σ."""
    if isinstance(q, GumbelSoftmax):
        return (widen(q.logits),)
    normal = gaussian_of(q)
    if normal is not None:
        return normal.loc, normal.scale
    raise NotImplementedError(
        f"rebar and relax need samples given their category, which are known for Gumbel noise and for IGR-I without a "
        f"flow, got {q}; use rloo, score_function or uspg, which need its probabilities, or st_relaxed, which needs "
        "neither"
    )


def _at(q: Relaxation, theta: Sequence[Tensor]) -> Relaxation:
    """The same relaxation at other parameters."""
    shape = theta[0].shape[:-1]
    if len(theta) == 1:
        return q._expanded(type(q), None, shape, logits=theta[0])
    mu, sigma = theta
    base = Independent(Normal(mu, sigma, validate_args=False), 1, validate_args=False)
    return q._expanded(type(q), None, shape, base=base)


@torch.no_grad()
def _redrawn(theta: Sequence[Tensor], D: Tensor, generator: torch.Generator | None) -> Tensor:
    """Other scores of the same category."""
    if len(theta) == 1:
        return sample_conditional_gumbel(theta[0], D, generator=generator)
    return sample_conditional(theta[0], theta[1], D, generator=generator)


def _score(latent: Latent, theta: Sequence[Tensor], D: Tensor) -> Sequence[Tensor]:
    """The gradient of log q(D) for each sample, from probabilities that are computed once for all of them."""
    at = [t.detach().requires_grad_() for t in theta]  # σ may depend on μ
    log_p = Latent(_at(latent.relaxation, at), latent.call).log_probs
    return grad(log_p, at, D.to(log_p.dtype), is_grads_batched=True)


def _slopes(c: list[Tensor], points: list[Tensor], *, create_graph: bool) -> Sequence[Tensor]:
    """The gradient of c in the scores."""
    if all(x.requires_grad for x in c):
        v = grad([x.sum() for x in c], points, create_graph=create_graph, allow_unused=True)
        if all(x is not None for x in v):
            return v
    raise ValueError(
        "the control variate, by default f, has no gradient with respect to the relaxed sample, and the estimate would "
        "be biased; give a control_variate that is differentiable, or use rloo or score_function"
    )


def _inner(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Inner products over parameters, variables and categories: ``(S, *)``."""
    return torch.stack([(x * y).sum((-2, -1)) for x, y in zip(a, b, strict=True)]).sum(0)
