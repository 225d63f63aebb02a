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


LONGEST = (
    *("test_golden_transcripts", "test_cli_compare", "test_docs_commands", "test_network_schedules"),
    *("test_network_example", "test_network_flower", "test_network_far", "test_cli_resume", "test_cli_exact_crash"),
    *("test_cli_reproduce", "test_network_hostile", "test_cli_privacy", "test_network_evaluations", "test_models_text"),
)
"""Files that take longest come first, so that at the end no process is left with one of them while others wait."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


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
