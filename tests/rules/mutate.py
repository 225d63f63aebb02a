"""Mutants of a module: small changes that a test should notice, found in its syntax tree.

A mutant replaces one piece of text. Its kinds:

- `comparison`: turned into its opposite, or moved by its boundary (``<`` to ``<=``);
- `guard`: the condition of an `if` that only raises is never true;
- `arithmetic`: another operator;
- `factor`: a factor such as ``(1 + SLACK)`` is dropped;
- `number`: another one;
- `stream`: another name of a random stream;
- `call`: a call that stands alone, such as ``os.fsync(...)``, is dropped.

Messages of errors, annotations, assertions and logs are left alone.
"""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from tests.rules.tree import Module

OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
BOUNDARY: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OTHER: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult,
    ast.Mod: ast.Add,
}
STREAMS = {"seed_of", "numpy_generator", "torch_generator", "generator", "Directions"}
"""Functions whose string arguments name random streams."""

LOGGING = {"debug", "info", "warning", "error", "exception"}


@dataclass(frozen=True)
class Mutant:
    """`old` in the file `path` becomes `new`; `start` and `end` count bytes, `line` lines from 1."""

    path: str
    line: int
    kind: str
    old: str
    new: str
    start: int
    end: int

    @property
    def key(self) -> str:
        """What it does on one line, whatever its place in the file: so a list of mutants survives other changes."""
        return f"{self.path}: {' '.join(self.old.split())} => {' '.join(self.new.split())}"

    def applied(self, text: str) -> str:
        """The text of the file with this change."""
        data = text.encode()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()


def mutants(module: Module) -> list[Mutant]:
    """All mutants of a module that are still Python, in the order of their places."""
    starts = [0]
    for line in module.text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for kind, node, new in _changes(module.tree):
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        old = module.text.encode()[start:end].decode()
        found.append(Mutant(module.path, node.lineno, kind, old, new, start, end))
    return sorted(found, key=lambda mutant: (mutant.start, mutant.end, mutant.kind, mutant.new))


def choose(found: list[Mutant], number: int, seed: int) -> list[Mutant]:
    """`number` of the mutants, as many of each kind as there are; the same for the same seed."""
    draw, kinds = random.Random(seed), defaultdict(list)
    for mutant in found:
        kinds[mutant.kind].append(mutant)
    for kind in sorted(kinds):
        draw.shuffle(kinds[kind])
    chosen: list[Mutant] = []
    while len(chosen) < min(number, len(found)):
        chosen += [kinds[kind].pop() for kind in sorted(kinds) if kinds[kind]]
    return chosen[:number]


Place = ast.expr | ast.stmt


def _changes(tree: ast.Module) -> Iterator[tuple[str, Place, str]]:
    for node in _mutable(tree):
        match node:
            case ast.Compare(ops=[op]):
                for other in (OPPOSITE, BOUNDARY):
                    if type(op) in other:
                        new = ast.Compare(node.left, [other[type(op)]()], node.comparators)
                        yield "comparison", node, f"({ast.unparse(new)})"
            case ast.If(body=[*_, ast.Raise()], orelse=[]):
                yield "guard", node.test, "False"
            case ast.BinOp() if not _text(node.left) and not _text(node.right):
                yield from _of_binary(node)
            case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
                yield "number", node, repr(node.value + 1 if isinstance(node.value, int) else node.value * 2 or 1.0)
            case ast.Call() if _name(node.func) in STREAMS:
                for argument in node.args:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        yield "stream", argument, repr(argument.value + "-other")
            case ast.Expr(value=ast.Call()) if _name(node.value.func) not in LOGGING:
                yield "call", node, "pass"


def _of_binary(node: ast.BinOp) -> Iterator[tuple[str, Place, str]]:
    if type(node.op) in OTHER:
        new = ast.BinOp(node.left, OTHER[type(node.op)](), node.right)
        yield "arithmetic", node, f"({ast.unparse(new)})"
    if isinstance(node.op, ast.Mult | ast.Div):
        for factor, rest in ((node.right, node.left), (node.left, node.right)):
            match factor:
                case ast.BinOp(left=ast.Constant(value=1), op=ast.Add() | ast.Sub()):
                    yield "factor", node, f"({ast.unparse(rest)})"


def _mutable(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below `node` that may be changed, each before those below it."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            match child:
                case ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
                    continue
                case ast.Expr(value=ast.Call(func=called)) if _name(called) in LOGGING:
                    continue
                case ast.If(test=test) if "TYPE_CHECKING" in ast.dump(test):
                    continue
                case ast.AST():
                    yield child
                    yield from _mutable(child)


def _text(node: ast.expr) -> bool:
    """Whether this is text or a list, for which other arithmetic means nothing."""
    match node:
        case ast.JoinedStr() | ast.List() | ast.ListComp() | ast.Tuple() | ast.Constant(value=str() | bytes()):
            return True
        case ast.BinOp():
            return _text(node.left) or _text(node.right)
    return False


def _name(function: ast.expr) -> str:
    """The last part of a function's name."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
