"""The page `docs/reference.md`: ``python -m tests.docs.reference`` writes it from the source of the configuration.

Every key has its type, its default and its reason, which is the comment beside or above it in the source.
"""

from __future__ import annotations

import ast
import inspect
import io
import tokenize
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from dpzv import config as configuration
from dpzv.config import Config, Section
from dpzv.data.columns import Column
from dpzv.runtime.party_file import PartyFile

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"
BEGINNING = """# Reference

All keys of the two kinds of TOML files. The page is made from the source by `python -m tests.docs.reference`, and a
test compares the two. A key of the agreed run is also written `section.key`, as in `--set train.rounds=100`. Where a
type in `[devices]` or `[train]` says "or a list", the list has one value for each device. `dpzv recipes NAME` shows a
whole file with reasons.
"""
PARTY = """
## A party's own file

Every party of a networked run has one, and nobody else sees it ([deploy](howto/deploy.md)). Relative paths begin at the
folder of the file. Columns and labels, which stand below `data`, are explained in [data](howto/data.md).
"""
RUN = """
## The agreed run

A recipe, `run.toml` of a networked run, and `config.toml` in a run folder are such files.
"""


def reasons(source: str) -> dict[str, str]:
    """The comment of every field ``Class.field`` of a source: inside the field's lines, or in the lines above it."""
    comments: dict[int, tuple[str, bool]] = {}  # by line: the comment, and whether it has the line for itself
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string.lstrip("# "), not token.line[: token.start[1]].strip()
    found = {}
    for kind in [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]:
        for field in [node for node in kind.body if isinstance(node, ast.AnnAssign)]:
            lines, above = list(range(field.lineno, (field.end_lineno or 0) + 1)), field.lineno - 1
            while above in comments and comments[above][1]:
                lines.insert(0, above)
                above -= 1
            words = " ".join(comments[line][0] for line in lines if line in comments)
            found[f"{kind.name}.{ast.unparse(field.target)}"] = words
    return found


def type_words(hint: Any, words: tuple[str, ...] = ()) -> str:
    """A type as people say it; a text that is one of `words` lists them."""
    plain = {int: "whole number", float: "number", bool: "true or false", NoneType: "unset", Column: "table"}
    if hint in plain:
        return plain[hint]
    if hint is str:
        return " or ".join(f'`"{word}"`' for word in words) or "text"
    if get_origin(hint) is Literal:
        return " or ".join(f'`"{word}"`' for word in get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        parts = [part for part in get_args(hint) if part is not NoneType]
        single = [part for part in parts if get_origin(part) is not tuple]
        said = [type_words(part, words) for part in single]
        return " or ".join(said) + (", or a list" if len(parts) > len(single) else "")
    if get_origin(hint) is tuple:
        return f"list, each {type_words(get_args(hint)[0], words)}"
    return "table"


def default_words(field: msgspec.structs.FieldInfo) -> str:
    """The default of a key as TOML; a key without one must be given."""
    if field.required:
        return "none: it must be given"
    if field.default is msgspec.NODEFAULT:  # a table, made anew for each file
        return "empty"
    if field.default is None:
        return "unset"
    return f"`{msgspec.toml.encode({'x': field.default}).decode().partition('= ')[2].strip()}`"


def table(kind: type[msgspec.Struct], section: str = "") -> list[str]:
    """The lines of the keys of a class."""
    hints, why = get_type_hints(kind), reasons(inspect.getsource(inspect.getmodule(kind)))  # type: ignore[arg-type]
    lines = ["| key | type | default | reason |", "| --- | --- | --- | --- |"]
    for field in msgspec.structs.fields(kind):
        words = tuple(configuration.DECLARED.get(f"{section}.{field.name}", ()))
        reason = why[f"{kind.__name__}.{field.name}"]
        if not reason:
            raise ValueError(f"{kind.__name__}.{field.name} has no reason; write a comment beside it")
        cells = (f"`{field.name}`", type_words(hints[field.name], words), default_words(field), reason)
        lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return lines


def page() -> str:
    """The whole page."""
    lines = [BEGINNING, RUN]
    for name, kind in get_type_hints(Config).items():
        if isinstance(kind, type) and issubclass(kind, Section):
            lines += [f"### [{name}]\n", f"{inspect.getdoc(kind)}\n", *table(kind, name), ""]
    return "\n".join([*lines, PARTY, *table(PartyFile), ""])


if __name__ == "__main__":
    PAGE.write_text(page())
