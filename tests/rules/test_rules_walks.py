"""The walks of `CONTRIBUTING.md` as a stranger takes them: what they add keeps the rules of the house, and ruff's."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.fifth_method import ENTRY, FILE
from tests.rules.test_rules_house import MOST_LINES, RULES
from tests.rules.tree import SOURCE, Package, package

ROOT = SOURCE.parent
BEHIND_METHODS = ")\n\n_HEAD_RULES"
"""Where the table of methods ends in `declarations.py`."""


def example() -> str:
    """The data set on the page."""
    blocks = (ROOT / "CONTRIBUTING.md").read_text().split("```python\n")
    return next(block for block in blocks if "CARD = Card(" in block).split("```")[0]


@cache
def added() -> dict[str, str]:
    """The files that a stranger writes or changes: a data set, a fifth method and the table of declarations."""
    table = package().modules["dpzv.declarations"].text
    assert table.count(BEHIND_METHODS) == 1
    return {
        "data/sets/iris.py": example(),
        "methods/three_ways.py": FILE,
        "declarations.py": table.replace(BEHIND_METHODS, ENTRY + BEHIND_METHODS),
    }


@cache
def grown() -> Package:
    """The source with these files."""
    return Package({module.path: module.text for module in package()} | added())


def test_the_copy_has_what_the_stranger_added() -> None:
    assert {"dpzv.data.sets.iris", "dpzv.methods.three_ways"} <= grown().modules.keys()
    assert grown().modules["dpzv.methods.three_ways"].stem in grown().modules["dpzv.declarations"].text


@pytest.mark.parametrize("name", RULES)
def test_the_source_with_a_strangers_files_keeps_the_rule(name: str) -> None:
    assert list(RULES[name](grown())) == []


def test_only_what_the_walks_add_is_not_counted() -> None:
    """As many lines in any other file, or in a method that the table does not name, are too many."""
    long = "x = 1\n" * (MOST_LINES + 1)
    for path, free in (("data/sets/iris.py", True), ("methods/three_ways.py", True), ("methods/other.py", False)):
        files = {module.path: module.text for module in grown()} | {path: long}
        rule = RULES["the source stays within MOST_MODULES and MOST_LINES"]
        assert (list(rule(Package(files))) == []) is free


def test_ruff_finds_nothing_in_a_strangers_files(tmp_path: Path) -> None:
    files = [tmp_path / "src" / "dpzv" / path for path in added()]
    for file, text in zip(files, added().values(), strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for command in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        asked = [sys.executable, "-m", "ruff", *command, "--config", str(ROOT / "pyproject.toml"), *map(str, files)]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
