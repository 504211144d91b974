"""Problems by name: those of the laboratory, and anybody's own."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from igr._checks import describe
from igr.lab import problems
from igr.lab.problems import Problem, ProblemError, in_words
from igr.lab.registry import PROBLEMS

__all__ = ["find"]

DEFAULTS = {"num_categories": 10, "num_variables": 3}


def find(text: str) -> Problem:
    r"""The problem that a line of text names, with settings of its own behind commas, ``tanh,num_variables=2``.

    One's own problem is ``module:function``, in the current folder or wherever Python finds modules. The function is f
    itself, which maps samples ``(S, *, N, K)``, one-hot or relaxed, to one number each, ``(S, *)``. An ``nn.Module`` is
    such a function too. It may have the attributes ``num_categories``, ``num_variables`` and ``logits``, of shape
    ``(N, K)``; by default K is 10, N is 3, and logits are random. A class, or a function without arguments or with
    nothing but keywords, which settings are given to, has to return such a function, or a :class:`Problem`.

    Raises:
        ProblemError: nothing has that name, or it is not a problem.

    Example:
        >>> find("polynomial,degree=2,num_categories=4").logits.shape
        torch.Size([3, 4])
    """
    name, *pairs = text.split(",")
    settings = dict(_setting(text, pair) for pair in pairs)
    if ":" in name:
        return replace(_own(name, settings), name=text)
    if name not in PROBLEMS:
        raise ProblemError(f"no problem is called {name!r}; expected one of {', '.join(PROBLEMS)}, or module:function")
    problem: Problem = _call(name, getattr(problems, name), settings)
    return replace(problem, name=text)


def _setting(text: str, pair: str) -> tuple[str, Any]:
    key, equals, value = pair.partition("=")
    if not equals:
        raise ProblemError(f"{text!r} must read NAME,SETTING=VALUE,..., but {pair!r} has no value")
    try:
        return key.strip(), ast.literal_eval(value.strip())
    except (SyntaxError, ValueError):
        return key.strip(), value.strip()


def _own(name: str, settings: dict[str, Any]) -> Problem:
    """The problem of ``module:function``."""
    module, _, path = name.partition(":")
    with _current_folder():
        try:
            found: Any = importlib.import_module(module)
        except Exception as error:  # whatever the module does when it is run
            raise ProblemError(f"{name}: the module cannot be imported: {in_words(error)}") from error
        for part in path.split("."):
            if not hasattr(found, part):
                raise ProblemError(f"{name}: there is no {part!r} in {module}")
            found = getattr(found, part)
        if callable(found) and not isinstance(found, Problem) and _is_factory(found):
            found, settings = _call(name, found, settings), {}
    if isinstance(found, Problem):
        return found
    if not callable(found):
        raise ProblemError(f"{name} must be, or return, a function of samples or a Problem, got {describe(found)}")
    return _from_function(name, found, settings)


def _is_factory(function: Callable[..., Any]) -> bool:
    """Whether it makes a function: a class, or what has no place for samples that must or may be filled."""
    if inspect.isclass(function) or isinstance(function, torch.nn.Module):
        return inspect.isclass(function)
    try:
        arguments = inspect.signature(function).parameters.values()
    except ValueError:  # some that are written in C have none
        return False
    return all(
        p.kind in (p.VAR_KEYWORD, p.KEYWORD_ONLY) or (p.default is not p.empty and p.kind != p.VAR_POSITIONAL)
        for p in arguments
    )


def _call(name: str, function: Callable[..., Any], settings: dict[str, Any]) -> Any:
    try:
        return function(**settings)
    except Exception as error:  # whatever somebody's own function raises
        raise ProblemError(f"{name} cannot be made with {settings or 'its defaults'}: {in_words(error)}") from error


def _from_function(name: str, function: Callable[[Tensor], Tensor], settings: dict[str, Any]) -> Problem:
    """A problem of a function and its attributes."""
    if unknown := settings.keys() - {*DEFAULTS, "seed"}:
        raise ProblemError(f"{name} has no setting {', '.join(sorted(unknown))}; a function of samples has {DEFAULTS}")
    logits = getattr(function, "logits", None)
    if logits is None:
        size = DEFAULTS | {key: getattr(function, key) for key in DEFAULTS if hasattr(function, key)} | settings
        logits = _call(name, problems.random_logits, size)
    if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[1] < 2:
        raise ProblemError(f"{name}: logits must be a tensor of shape (N, K) with K >= 2, got {describe(logits)}")
    wrong = [
        f"{key} is {getattr(function, key)}, but logits have {size}"
        for key, size in zip(("num_variables", "num_categories"), logits.shape, strict=True)
        if getattr(function, key, size) != size and key not in settings
    ]
    if wrong:
        raise ProblemError(f"{name}: {wrong[0]}")
    return Problem(name, function, logits.detach().double(), settings)


@contextmanager
def _current_folder() -> Iterator[None]:
    """Modules are also looked for where one is."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
