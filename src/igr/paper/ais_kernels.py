"""log p(x | z) of a linear decoder for all K values of one variable, as a Triton kernel for annealing.

The product of one-hot z and weights is a sum of their rows, of which all but one are the same for the K values: a
program has the sum of these, and nothing of what it makes of it for each value is written but the log-likelihood.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from igr import kernels
from igr.paper.ais import Conditional
from igr.paper.likelihood_kernels import bernoulli_pixels, gaussian_pixels
from igr.paper.models import EnsembleVae

__all__ = ["conditional_of"]

NUM_WARPS = 4


@triton.jit
def _others(w, b, index, n, d, inside, N: tl.constexpr, K: tl.constexpr, P: tl.constexpr):
    """What the decoder says without the n-th variable."""
    total = tl.load(b + d, mask=inside, other=0.0)
    for m in range(N):
        row = m * K + tl.load(index + m)
        total += tl.load(w + row * P + d, mask=inside & (m != n), other=0.0)
    return total


@triton.jit(do_not_specialize=["n", "E", "B"])
def _conditional_kernel(
    out, x, w, b, index, n, E, B, x_member, x_image,
    N: tl.constexpr, K: tl.constexpr, D: tl.constexpr, P: tl.constexpr,
    GREY: tl.constexpr, ELU: tl.constexpr, FLOOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One state of one image and member; P numbers are said about D pixels."""
    state = tl.program_id(0).to(tl.int64)
    member, image = state // B % E, state % B
    d = tl.arange(0, BLOCK)
    inside = d < D
    pixel = tl.load(x + member * x_member + image * x_image + d, mask=inside, other=0.0)
    w, b, index = w + member * (N * K * P), b + member * P, index + state * N
    first = _others(w, b, index, n, d, inside, N, K, P)
    if GREY:
        second = _others(w, b, index, n, d + D, inside, N, K, P)
    for k in range(K):
        row = w + (n * K + k) * P + d
        said = first + tl.load(row, mask=inside, other=0.0)
        if GREY:
            scale = second + tl.load(row + D, mask=inside, other=0.0)
            fit = gaussian_pixels(pixel, said, scale, ELU, FLOOR)
        else:
            fit = bernoulli_pixels(pixel, said)
        tl.store(out + state * K + k, tl.sum(tl.where(inside, fit, 0.0), 0))


def conditional_of(vae: EnsembleVae, x: Tensor) -> Conditional | None:
    """The kernel for the images x, ``(E, B, D)``, or None where the decoder is not linear or no kernel can be used."""
    parameters = [*vae.weights[vae.depth :], *vae.biases[vae.depth :]]
    if len(parameters) > 2 or any(t.dtype != torch.float32 for t in (x, *parameters)):
        return None
    return _Linear(vae, x) if kernels.usable(x, *parameters) else None


class _Linear:
    """The decoder of all members, and their images."""

    def __init__(self, vae: EnsembleVae, x: Tensor) -> None:
        self.x = x if x.stride(-1) == 1 else x.contiguous()
        self.weight, self.bias = (t.detach().contiguous() for t in (vae.weights[-1], vae.biases[-1]))
        self.pixels, self.K = vae.pixels, vae.shape[1]

    def __call__(self, index: Tensor, n: int) -> Tensor:
        (S, E, B, N), D, P = index.shape, self.x.shape[-1], self.weight.shape[-1]
        out = torch.empty(S, E, B, self.K, dtype=torch.float32, device=self.x.device)
        with torch.cuda.device_of(self.x):  # launches go to the current one
            _conditional_kernel[(S * E * B,)](
                out, self.x, self.weight, self.bias, index.contiguous(), n, E, B, *self.x.stride()[:2],
                N, self.K, D, P, *self.pixels, triton.next_power_of_2(D), num_warps=NUM_WARPS,
            )  # fmt: skip
        return out.double()
