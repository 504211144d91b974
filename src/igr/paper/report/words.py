"""What kinds of cells, places and configurations are called."""

from __future__ import annotations

from collections.abc import Sequence

from igr.paper.select import Configuration

__all__ = ["CHOSEN_BY", "KINDS", "called", "depth", "listed", "place"]

DATASETS = {"mnist": "MNIST", "fmnist": "Fashion-MNIST", "omniglot": "Omniglot"}
ARCHITECTURES = {"linear": "linear", "nonlinear": "non-linear"}
CHOSEN_BY = {"elbo_discrete": "discrete ELBO", "log_likelihood": "bound"}
KINDS = {  # of trained cells, by how their ids begin: what it adds to the place of a figure
    "table1": "",
    "relax": ", RELAX",
    "s4": ", four samples",
    "beyond": ", beyond the paper",
    "sop": ", completions",
    "nonparametric": ", mixtures",
}
ONE_ARCHITECTURE = ("sop", "nonparametric")  # kinds whose ids do not name it


def depth(kind: str) -> int:
    """How many parts an id of a kind has."""
    return 3 if kind in ONE_ARCHITECTURE else 4


def place(dataset: str, *architecture: str) -> str:
    """What a table is called.

    Example:
        >>> place("mnist", "nonlinear"), place("omniglot")
        ('MNIST, non-linear', 'Omniglot')
    """
    return ", ".join([DATASETS.get(dataset, dataset), *(ARCHITECTURES.get(each, each) for each in architecture)])


def called(configuration: Configuration) -> str:
    """What a configuration is called; nothing if there is only the one.

    Example:
        >>> called(Configuration(0.5, None)), called(Configuration(0.5, 0.375)), called(Configuration(None, None, 9))
        ('τ = 0.5', 'τ = 0.5, prior τ = 0.375', 'K = 9')
    """
    named = zip(("τ", "prior τ", "K"), configuration, strict=True)
    return ", ".join(f"{name} = {value:g}" for name, value in named if value is not None)


def listed(names: Sequence[str]) -> str:
    """Names in a row, some of which may have commas.

    Example:
        >>> listed(["IGR-I", "GS"]), listed(["IGR-I, S = 5", "GS"])
        ('IGR-I, GS', 'IGR-I, S = 5; GS')
    """
    return ("; " if any("," in name for name in names) else ", ").join(names)
