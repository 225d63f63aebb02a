"""The package as the rules see it: every module parsed once, with the modules of the package that it imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

PACKAGE = "dpzv"
SOURCE = Path(__file__).parents[2] / "src"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One file of the package. `path` is relative to the package, such as ``protocol/codec.py``."""

    path: str
    text: str

    @property
    def name(self) -> str:
        """The name it is imported by, such as ``dpzv.protocol.codec``."""
        parts = [PACKAGE, *self.path.removesuffix(".py").split("/")]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def stem(self) -> str:
        """The name of the file without folder and suffix."""
        return self.path.split("/")[-1].removesuffix(".py")

    @property
    def room(self) -> str:
        """The sub-package or top-level module it belongs to; ``__init__`` for the package's own file."""
        return self.path.split("/")[0].removesuffix(".py")

    @property
    def lines(self) -> int:
        """How many lines the file has."""
        return len(self.text.splitlines())

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed file."""
        return ast.parse(self.text)

    def functions(self) -> Iterator[Function]:
        """All functions, wherever they stand: methods and functions inside functions too."""
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))

    def classes(self) -> Iterator[ast.ClassDef]:
        """All classes, wherever they stand."""
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))

    def imports(self) -> Iterator[tuple[str, str]]:
        """Everything imported anywhere in the file, as (module, name); the name is empty after a plain `import`."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, "") for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from ((self._absolute(node), alias.name) for alias in node.names)

    @cached_property
    def defined(self) -> set[str]:
        """The names that the file itself gives to classes, functions and values, and none that it imports."""
        found, waiting = set[str](), list[ast.AST](self.tree.body)
        while waiting:
            node = waiting.pop()
            if isinstance(node, Function | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            else:
                waiting += ast.iter_child_nodes(node)
        return found

    def attributes(self) -> Iterator[tuple[str, str]]:
        """Everything that is read off an imported name, as (what is imported, attribute)."""
        known = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                known |= {alias.asname or alias.name: alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(node)
                known |= {alias.asname or alias.name: f"{base}.{alias.name}" for alias in node.names}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute) and (of := known.get(ast.unparse(node.value))):
                yield of, node.attr

    def _absolute(self, node: ast.ImportFrom) -> str:
        """The module named after `from`, without leading dots."""
        if not node.level:
            return node.module or ""
        folders = [PACKAGE, *self.path.split("/")[:-1]]
        base = folders[: len(folders) - node.level + 1]
        return ".".join([*base, node.module] if node.module else base)


class Package:
    """All modules by name, and which of them import which.

    An import counts wherever it stands: at the top of a file, inside a function or under `if TYPE_CHECKING`.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        """`files` gives each file's text by its path inside the package."""
        found = [Module(path, text) for path, text in sorted(files.items())]
        self.modules = {module.name: module for module in found}
        self.imports = {module.name: self._imported_by(module) for module in found}

    def _imported_by(self, module: Module) -> set[str]:
        found = set()
        for base, name in module.imports():
            if base.split(".")[0] == PACKAGE:
                whole = f"{base}.{name}"
                found.add(whole if whole in self.modules else base)
        return found - {module.name}

    def __iter__(self) -> Iterator[Module]:
        """The modules in the order of their paths."""
        return iter(self.modules.values())

    def rooms(self) -> dict[str, set[str]]:
        """Which rooms each room imports, itself apart."""
        found: dict[str, set[str]] = {module.room: set() for module in self}
        for module in self:
            found[module.room] |= {self.modules[name].room for name in self.imports[module.name]} - {module.room}
        return found


def read(source: Path) -> Package:
    """The package in the folder `source`."""
    root = source / PACKAGE
    return Package({path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*.py")})


@cache
def package() -> Package:
    """The package in `src`, read once."""
    return read(SOURCE)


def cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """The nodes of one cycle in their order, or an empty list if there is none."""
    done: set[str] = set()
    path: list[str] = []

    def visit(node: str) -> list[str]:
        if node in path:
            return path[path.index(node) :]
        if node in done:
            return []
        path.append(node)
        for other in sorted(graph.get(node, ())):
            if found := visit(other):
                return found
        done.add(path.pop())
        return []

    return next((found for node in sorted(graph) if (found := visit(node))), [])
