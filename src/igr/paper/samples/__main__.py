"""Makes the samples anew from the whole datasets in a folder: ``python -m igr.paper.samples FOLDER``."""

import sys
from pathlib import Path

import numpy as np

from igr.paper.data import DataError, load
from igr.paper.samples import SIZES, pack

if len(sys.argv) != 2:
    sys.exit("usage: python -m igr.paper.samples FOLDER")
for name in SIZES:
    try:
        whole = load(name, sys.argv[1])
    except DataError as error:
        sys.exit(f"igr: {error}")
    path = Path(__file__).with_name(f"{name}.npz")
    np.savez_compressed(path, **pack(name, whole.train, whole.validation, whole.test))  # type: ignore[arg-type]
    print(f"{path} has {path.stat().st_size:,} bytes")
