"""What samplers share: parameters in one shape, where noise comes from, and the choice of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from igr import kernels
from igr._checks import (
    broadcast,
    check_generator,
    check_parameter,
    check_range,
    check_tensor,
    describe,
    expand,
    is_number,
    under_vmap,
    values_checkable,
)

if TYPE_CHECKING:
    from igr.kernels.fused import Fused


class NoiseSource(torch.Generator):
    """A generator that supplies the noise itself, such as numbers drawn beforehand, in place of torch's kernels.

    All samplers of this library ask for noise by the two functions below, which ask such a generator in turn.
    """

    def __new__(cls, *arguments: object, **keywords: object) -> Self:
        return super().__new__(cls)  # what a subclass is made of is not torch's

    def gaussian(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Standard normal noise of this shape with the dtype and device of ``like``."""
        raise NotImplementedError

    def gumbel(self, like: Tensor) -> Tensor:
        """Standard Gumbel noise with the shape, dtype and device of ``like``."""
        raise NotImplementedError


def gaussian_noise(shape: Sequence[int], like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard normal noise of this shape with the dtype and device of ``like``."""
    if isinstance(generator, NoiseSource):
        return generator.gaussian(shape, like)
    check_generator(generator, like.device)
    if kernels.usable(like):
        return _kernel_noise(shape, like, generator, gumbel=False)
    if generator is None:  # a compiler takes symbolic sizes only where that is not even named
        return torch.randn(shape, dtype=like.dtype, device=like.device)
    return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)


def gumbel_noise(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard Gumbel noise with the shape, dtype and device of ``like``."""
    if isinstance(generator, NoiseSource):
        return generator.gumbel(like)
    check_generator(generator, like.device)
    if kernels.usable(like):
        return _kernel_noise(like.shape, like, generator, gumbel=True)
    fresh = torch.rand_like if under_vmap() else torch.empty_like  # a random tensor, so that every map has its own
    exponential = fresh(like, memory_format=torch.contiguous_format).exponential_(generator=generator)
    # one that rounds to zero would be infinite noise
    return exponential.clamp(min=torch.finfo(like.dtype).tiny).log_().neg_()


def _kernel_noise(shape: Sequence[int], like: Tensor, generator: torch.Generator | None, *, gumbel: bool) -> Tensor:
    """The numbers that a kernel would draw here, so that a seed means the same noise on every way to a sample."""
    from igr.kernels.fused import noise

    return noise(shape, like, generator, gumbel=gumbel)


def location_scale(loc: Tensor, scale: Tensor | float) -> tuple[Tensor, Tensor]:
    """Both in one shape and one dtype, that of samples; types and shapes are checked."""
    check_parameter("loc", loc)
    if is_number(scale):
        check_range("scale", float(scale))
        scale = loc.new_full((1,), float(scale))
    scale = check_tensor("scale", scale)
    scale = check_parameter("scale", scale if scale.dim() else scale.unsqueeze(-1))
    shape, dtype = broadcast(loc=loc, scale=scale), torch.promote_types(loc.dtype, scale.dtype)
    if shape[-1] != loc.shape[-1]:
        raise ValueError(
            f"scale of shape {tuple(scale.shape)} has more coordinates than loc of shape {tuple(loc.shape)}; "
            "give loc its full shape (*, K - 1)"
        )
    return expand(loc.to(dtype), shape), expand(scale.to(dtype), shape)


def check_scale(scale: Tensor) -> None:
    """Looks for negative ones, on the CPU, where that takes no time."""
    if scale.device.type == "cpu" and values_checkable(scale) and bool((scale < 0).any()):
        raise ValueError(
            f"scale must be positive, and its least entry is {scale.min().item():g}; a logarithm? Give its exp()"
        )


def sample_shape(parameters: torch.Size, K: int, mask: Tensor | None, **row_scalars: float | Tensor) -> torch.Size:
    """``parameters`` with the leading axes that masks and temperatures add: every row has noise of its own."""
    rows = dict(row_scalars)
    if mask is not None:
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            raise TypeError(f"mask must be a boolean tensor, True where a category is allowed, got {describe(mask)}")
        if mask.dim() == 0 or mask.shape[-1] != K:
            raise ValueError(f"mask must have shape (*, K) with K = {K}, got shape {tuple(mask.shape)}")
        if values_checkable(mask) and not bool(mask.any(-1).all()):
            raise ValueError("mask forbids every category of some row; allow at least one per row")
        rows["mask"] = mask[..., :1]
    return broadcast(parameters=torch.Size((*parameters[:-1], 1)), **rows)[:-1] + parameters[-1:]


def fusible(
    generator: torch.Generator | None,
    parameters: Sequence[Tensor],
    constants: Sequence[float | Tensor | None] = (),
    mask: Tensor | None = None,
) -> bool:
    """Whether a kernel can take this call: it draws noise by itself, and has no gradients of constants."""
    tensors = [x for x in constants if isinstance(x, Tensor)]
    if isinstance(generator, NoiseSource) or (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
        return False
    return kernels.usable(*parameters, *tensors) and (mask is None or mask.device == parameters[0].device)


def fused_sample(loc: Tensor, scale: Tensor | None, batch: torch.Size, *arguments: Any, **options: Any) -> Fused:
    """The sample by a kernel, whose modules are imported when the first one is needed."""
    from igr.kernels.fused import sample

    return sample(loc, scale, batch, *arguments, **options)
