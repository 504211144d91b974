"""Small parts of MNIST and Fashion-MNIST that come with the package; see ATTRIBUTION.md beside this file.

``python -m igr.paper.samples FOLDER`` makes them anew from the whole datasets in a folder.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["SIZES", "pack"]

SIZES = {"mnist": (2_000, 500, 500), "fmnist": (300, 100, 100)}  # train, validation, test


def pack(
    name: str, train: NDArray[np.uint8], validation: NDArray[np.uint8], test: NDArray[np.uint8]
) -> dict[str, NDArray[np.uint8]]:
    """The first images of each split, eight binary pixels a byte."""
    parts = {"train": train, "validation": validation, "test": test}
    cut = {key: part[:size] for (key, part), size in zip(parts.items(), SIZES[name], strict=True)}
    return {key: np.packbits(part, axis=1) for key, part in cut.items()} if name == "mnist" else cut
