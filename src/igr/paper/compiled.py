"""Functions of tensors, compiled where that pays: in training on CUDA, where a step is many small kernels otherwise."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from igr import kernels

__all__ = ["fast"]

P = ParamSpec("P")
R = TypeVar("R")

VARIANTS = 256  # of a function, by shapes and options, in one process


def fast(function: Callable[P, R], like: Tensor) -> Callable[P, R]:
    """The function itself, or compiled if gradients are wanted on a CUDA device.

    What it is not given as tensors, such as the options of a cell, is part of what is compiled.
    """
    return _compiled(function) if torch.is_grad_enabled() and kernels.usable(like) else function


@cache
def _compiled(function: Callable[P, R]) -> Callable[P, R]:
    body = torch.compile(function, fullgraph=True, dynamic=False)

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch._dynamo.config.patch(recompile_limit=VARIANTS), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")  # the compiler's
            return body(*args, **kwargs)

    return call
