"""The house rules: imports only go down, no I/O in the protocol, `__all__` sorted, no room too large."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from dpzv.declarations import HEAD_RULES, METHODS, STARTS

SOURCE = Path(__file__).parents[2] / "src" / "dpzv"
MODULES = sorted(SOURCE.rglob("*.py"))

LEVELS = [
    {"cli", "__main__"},
    {"report"},
    {"attacks", "federation", "network"},
    {"runtime"},
    {"config"},
    {"recipes"},
    {"protocol"},
    {"methods"},
    {"models", "data"},
    {"zo", "privacy"},
    {"errors", "validate", "terms", "rng", "declarations", "sensitivity"},
]
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
# inside a level, rooms are siblings that do not import each other, except in these
SIBLINGS_MAY = {"cli", "errors"}


def room_of(path: Path) -> str:
    """The room a module belongs to; the package's own __init__ is the roof."""
    parts = path.relative_to(SOURCE).parts
    return parts[0].removesuffix(".py")


def dpzv_imports(tree: ast.AST) -> set[str]:
    """The rooms a module imports, at its top or inside functions."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "dpzv":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("dpzv.")}
    return found


def breaks(room: str, imported: set[str]) -> set[str]:
    """Which imports of a room go up, or sideways between siblings."""
    bad = set()
    for other in imported - {room, "__version__"}:
        up = LEVEL[other] < LEVEL[room]
        sideways = LEVEL[other] == LEVEL[room] and LEVEL[room] not in {LEVEL[r] for r in SIBLINGS_MAY}
        if up or sideways:
            bad.add(other)
    return bad


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_only_go_down(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        return
    assert breaks(room, dpzv_imports(ast.parse(path.read_text()))) == set()


def test_the_import_rule_can_fail() -> None:
    assert breaks("zo", dpzv_imports(ast.parse("from dpzv.privacy.plan import PrivacyPlan"))) == {"privacy"}
    assert breaks("protocol", dpzv_imports(ast.parse("import dpzv.runtime.gate"))) == {"runtime"}
    assert breaks("runtime", dpzv_imports(ast.parse("from dpzv import config"))) == set()


@pytest.mark.parametrize("path", sorted((SOURCE / "protocol").glob("*.py")), ids=lambda p: p.name)
def test_protocol_does_no_io(path: Path) -> None:
    forbidden = {"asyncio", "io", "os", "pathlib", "socket", "sqlite3", "subprocess", "sys", "time"}
    tree = ast.parse(path.read_text())
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module.split(".")[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"open", "print", "input"}
    assert modules & forbidden == set()


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_every_module_says_what_is_public(path: Path) -> None:
    """ruff (RUF022) keeps the list sorted; here it must exist."""
    named = [
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
    ]
    assert len(named) == 1 or path.name in {"__main__.py", "__init__.py"}


def functions(body: list[ast.stmt]) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions of a module and methods of its classes, without those nested in functions."""
    found: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
    for node in body:
        if isinstance(node, ast.ClassDef):
            found += functions(node.body)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(node)
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_rooms_are_small_and_public_things_say_what_they_are(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 350
    for function in functions(ast.parse(text).body):
        assert (function.end_lineno or 0) - function.lineno < 70, function.name
        assert function.name.startswith("_") or ast.get_docstring(function), function.name


def test_privacy_asks_the_table_and_never_a_name() -> None:
    """No word of privacy code is the name of a method, a head rule or a start; docstrings may speak of them."""
    names = {*METHODS, *HEAD_RULES, *STARTS}
    assert {"dpzv", "dp-sgd", "pca"} <= names
    for path in sorted((SOURCE / "privacy").glob("*.py")):
        words = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        assert words & names == set(), path.name


def test_the_factors_of_a_replaced_record_stand_in_one_file() -> None:
    """2C and the root of 2 are written in `sensitivity.py` alone; other roots are those of the normal distribution."""
    twice = re.compile(r"\b2(\.0)? \* [\w.]*\bC(_h|_0)?\b|math\.sqrt\(2(\.0)?\)")
    networks = {path for path in (SOURCE / "models").glob("*.py") if path.name != "starts.py"}
    found = set()
    for path in set(MODULES) - networks:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.BinOp | ast.Call) and twice.search(ast.unparse(node)):
                found.add(path.name)
    assert found == {"gdp.py", "sensitivity.py"}


def test_privacy_never_imports_torch() -> None:
    for path in (SOURCE / "privacy").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "torch" for name in names), path.name
