"""Every test starts from the same seed; the whole datasets are beside the repository, or where IGR_DATA_DIR says."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from igr.paper import threads

if not torch.cuda.is_available():  # kernels run in Triton's interpreter then, if this is said before they are imported
    os.environ["TRITON_INTERPRET"] = "1"

if torch.__version__ < "2.8":  # older compilers cannot trace torch.Size of what varies
    torch._dynamo.config.automatic_dynamic_shapes = False

pytest.register_assert_rewrite(  # as in tests: failures show values
    "pathwise_cases", "report_cases", "run_cases", "score_cases"
)

SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small tensors, on cores that other tests use as well."""
    with threads.one_thread():
        yield


@pytest.fixture
def float64() -> Iterator[None]:
    """Numbers become tensors of float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def data_dir() -> Path:
    """The folder of the whole datasets."""
    folder = Path(os.environ.get("IGR_DATA_DIR") or SHARED)
    if not folder.is_dir():
        pytest.skip("needs the whole datasets: set IGR_DATA_DIR to their folder")
    return folder
