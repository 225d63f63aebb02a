"""What holds for every test."""

from __future__ import annotations

import pytest
import torch


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """No test (and no fixture it makes) sees which tests drew from torch's global generator before it."""
    torch.manual_seed(0)
