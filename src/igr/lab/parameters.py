"""One discrete distribution, parameterized in several ways, with the derivative of its probabilities known once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Transform

from igr import GumbelSoftmax, InvertibleGaussian, StickBreaking, fit_prior
from igr.distributions import Relaxation
from igr.lab.problems import Problem

__all__ = ["Parameters", "parameters"]

Leaves = Mapping[str, Tensor]


class _Linear(InvertibleGaussian):
    r"""An IGR whose log-probabilities are those of a point and their derivative there.

    At that point they have the value and the gradient of the exact ones, at the price of a matrix product for each row
    in place of a quadrature.
    """

    def __init__(
        self, loc: Tensor, scale: Tensor, temperature: float, flow: Transform | None, known: Parameters
    ) -> None:
        super().__init__(loc, scale, temperature, flow=flow, validate_args=False)
        self._known = known

    def _recovered_log_probs(self) -> Tensor:
        result = self._known.log_probs.to(self.loc)
        for name, at in self._known.leaves.items():
            step = getattr(self, name) - at.to(self.loc)  # zero, with a gradient
            result = result + torch.einsum("nkj,...nj->...nk", self._known.jacobian[name].to(self.loc), step)
        return result


@dataclass(frozen=True)
class Parameters:
    """Where a gradient is asked for.

    Arguments:
        method: ``gs``, ``igr-i`` or ``igr-sb``.
        leaves: the parameters by name, each ``(N, k)``, in float64.
        log_probs: of the categories, ``(N, K)``.
        jacobian: their derivative with respect to each parameter, ``(N, K, k)``.
    """

    method: str
    leaves: Mapping[str, Tensor]
    log_probs: Tensor
    jacobian: Mapping[str, Tensor]

    def relaxation(self, leaves: Leaves, tau: float, *, linear: bool = True) -> Relaxation:
        """The relaxation with other tensors of the same numbers as its parameters, such as a row for each draw.

        Unless ``linear``, its log-probabilities are computed anew for each row.
        """
        if self.method == "gs":
            return GumbelSoftmax(tau, leaves["logits"], validate_args=False)
        flow = StickBreaking() if self.method == "igr-sb" else None
        if linear:
            return _Linear(leaves["loc"], leaves["scale"], tau, flow, self)
        return InvertibleGaussian(leaves["loc"], leaves["scale"], tau, flow=flow, validate_args=False)

    def chain(self, moments: Tensor) -> Tensor:
        """The derivative with respect to all parameters, one after the other, of what has this one by log-probs."""
        return torch.cat([torch.einsum("nk,nkj->nj", moments, each).flatten() for each in self.jacobian.values()])


def parameters(problem: Problem, method: str, device: torch.device | str = "cpu") -> Parameters:
    r"""The problem's probabilities in a parameterization.

    The Gumbel-Softmax has their logits. IGR has scales from about 0.7 to 1.4, and the locations that
    :func:`igr.fit_prior` finds for them; gradients are with respect to :math:`\mu` and :math:`\sigma`.
    """
    K, logits = problem.num_categories, problem.logits.double().to(device)
    if method == "gs":
        leaves = {"logits": logits}
    else:
        scale = torch.exp2(torch.linspace(-0.5, 0.5, K + 1, dtype=torch.float64)[1:-1])
        flow = StickBreaking() if method == "igr-sb" else None
        q = fit_prior(logits.softmax(-1).cpu(), temperature=1.0, scale=scale, flow=flow)
        assert isinstance(q, InvertibleGaussian)
        leaves = {"loc": q.loc.to(device), "scale": q.scale.to(device)}
    bare = Parameters(method, leaves, logits, {})
    log_probs, jacobian = _derivative(bare)
    return Parameters(method, leaves, log_probs, jacobian)


def _derivative(at: Parameters) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probabilities and their Jacobians, a category at a time: variables do not depend on each other."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in at.leaves.items()}
    log_probs = at.relaxation(leaves, 1.0, linear=False)._recovered_log_probs()
    assert log_probs is not None
    rows = [torch.autograd.grad(each.sum(), list(leaves.values()), retain_graph=True) for each in log_probs.unbind(-1)]
    columns = [torch.stack(each, -2) for each in zip(*rows, strict=True)]  # (N, K, k)
    return log_probs.detach(), dict(zip(leaves, columns, strict=True))
