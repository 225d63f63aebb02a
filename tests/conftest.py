"""What holds for every test."""

from __future__ import annotations

import os
import shutil
import tempfile

import hypothesis
import pytest
import torch

# `make test` says the same of the same tree wherever it runs; `make soak` looks for new examples
hypothesis.settings.register_profile("test", derandomize=True, deadline=None)
hypothesis.settings.register_profile("soak", deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    # runs with secret noise leave notes in the user's state directory; here, and in child processes, it is another one
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="dpzv-state-")
    hypothesis.settings.load_profile("soak" if config.option.markexpr == "soak" else "test")


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """No test (and no fixture it makes) sees which tests drew from torch's global generator before it."""
    torch.manual_seed(0)
