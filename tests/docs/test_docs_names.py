"""Proofs name the functions that carry them out: every file and every function that a page names is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "dpzv"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = {"methods/my_method.py"}
"""Files that a page tells people to write."""

FILE = re.compile(r"`((?:\w+/)+\w+\.py)`")
METHOD = re.compile(r"`([A-Z]\w+)\.(_?[a-z]\w+)`")
PLACE = re.compile(r"`([\w.]+)`\s+(?:in|of)\s+`((?:\w+/)*\w+\.py)`")


def found(file: str) -> Path | None:
    """A file of the package, or of the project."""
    return next((path for path in (SOURCE / file, ROOT / file) if path.is_file()), None)


def defined(path: Path) -> set[str]:
    """The names of functions, classes, methods, constants and fields in a file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


@cache
def classes() -> dict[str, set[str]]:
    """The functions and fields of every class of the package, by the name of the class."""
    known: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                text = ast.unparse(node)
                known[node.name] = {name for pair in re.findall(r"\bdef (\w+)|self\.(\w+)", text) for name in pair}
                known[node.name] |= set(re.findall(r"^    (\w+):", text, re.MULTILINE))
    return known


def missing(page: str) -> list[str]:
    """What a page names and nobody can find."""
    gone = [file for file in FILE.findall(page) if file not in EXAMPLES and found(file) is None]
    for name, file in PLACE.findall(page):
        path = found(file)
        if path is not None and not set(name.split(".")) <= defined(path):
            gone.append(f"{name} in {file}")
    gone += [f"{name}.{own}" for name, own in METHOD.findall(page) if own not in classes().get(name, {own})]
    return gone


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    assert missing(page.read_text()) == []


def test_what_is_gone_is_noticed() -> None:
    page = "`clipped_sum` in `zo/clipping.py`, `Clip` in `zo/clipping.py`, `zo/gone.py`, `Server.gone`, `Server.ask`"
    assert missing(page) == ["zo/gone.py", "Clip in zo/clipping.py", "Server.gone"]
    assert sum(len(PLACE.findall(page.read_text())) for page in PAGES) > 20


TEST = re.compile(r"`(test_\w+)`")


def known_tests() -> set[str]:
    """The names of all tests."""
    return {
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    assert set(TEST.findall(page.read_text())) <= known_tests()
