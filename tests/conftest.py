"""Every test starts from the same seed; statistical tests set their own again where the number matters."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
