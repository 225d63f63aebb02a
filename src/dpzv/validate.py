"""Small checks of values and of decoded files; each failure is one sentence."""

from __future__ import annotations

import codecs
import difflib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from dpzv.errors import ConfigError

__all__ = [
    "UTF16",
    "converted",
    "fraction",
    "host_and_port",
    "nearest",
    "one_of",
    "positive",
    "probability",
    "toml_of",
    "utf8",
    "whole",
]

T = TypeVar("T")

UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""How a text in UTF-16 begins."""


def nearest(name: str, known: Iterable[str]) -> str:
    """``did you mean 'a' or 'b'?`` for a misspelt name, or the whole list if nothing is near."""
    choices = sorted(known)
    close = difflib.get_close_matches(name, choices, n=3, cutoff=0.65)
    if close:
        return "did you mean " + " or ".join(f"'{choice}'" for choice in close) + "?"
    return "choose one of: " + ", ".join(choices) + "."


def one_of(name: str, value: str, known: Iterable[str]) -> str:
    """Return `value` if it is known, else refuse it with the nearest valid names."""
    choices = list(known)
    if value not in choices:
        raise ConfigError(f"{name} '{value}' is not known; {nearest(value, choices)}")
    return value


def positive(name: str, value: float) -> float:
    """Return `value` if it is above 0 (infinity is), else refuse it."""
    if not value > 0:
        raise ConfigError(f"{name} must be above 0, got {value}; set {name} to a positive number.")
    return value


def whole(name: str, value: float, least: int) -> int:
    """Return `value` as an integer if it is a whole number of at least `least`, else refuse it."""
    if not math.isfinite(value) or value != int(value) or value < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {value}; change {name}.")
    return int(value)


def probability(name: str, value: float) -> float:
    """Return `value` if it lies strictly between 0 and 1, else refuse it."""
    if not 0 < value < 1:
        raise ConfigError(f"{name} must lie strictly between 0 and 1, got {value}; 1e-5 is a usual choice.")
    return value


def fraction(name: str, value: float) -> float:
    """Return `value` if it lies in [0, 1), else refuse it."""
    if not 0 <= value < 1:
        raise ConfigError(f"{name} must lie in [0, 1), got {value}; change {name}.")
    return value


def host_and_port(name: str, address: str, least: int) -> tuple[str, int]:
    """The host and the port of ``host:port``; refuses a missing port and one that is not `least` to 65535."""
    host, _, port = address.rpartition(":")
    inner = host[1:-1] if host.startswith("[") and host.endswith("]") else host.replace(":", " ")
    if not inner or " " in inner or not re.fullmatch(r"[0-9]{1,5}", port) or not least <= int(port) <= 65535:
        raise ConfigError(
            f"{name} must be host:port, with a port from {least} to 65535 and an IPv6 address in brackets, got "
            f"'{address}'; write e.g. 127.0.0.1:7443."
        )
    return host, int(port)


def utf8(content: bytes, name: str) -> str:
    """The text of a file in UTF-8, without the mark that some editors put before it; other bytes are refused."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = "UTF-16" if content.startswith(UTF16) else f"other bytes at place {error.start}"
    raise ConfigError(f"{name} must be text in UTF-8, got {found}; save it as UTF-8.")


def toml_of(content: bytes, name: str) -> dict[str, Any]:
    """TOML as nested mappings; invalid TOML is refused in a sentence about `name`."""
    text = utf8(content, name)
    try:
        tree: dict[str, Any] = msgspec.toml.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{name} is not valid TOML ({error}); correct that line.") from None
    return tree


def converted(tree: Mapping[str, Any], kind: type[T], *, below: str = "", file: str = "") -> T:
    """`tree` as a `kind`; a value that does not fit is refused in a sentence that names its key.

    `below` is the section that contains the tree; `file` is the file that the sentence names.
    """
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        sentence = _explained(str(error), kind, below)
    raise ConfigError(f"{file}: {sentence}" if file else sentence)


def _explained(problem: str, kind: Any, below: str) -> str:
    """msgspec's ``Expected `int`, got `str` - at `$.train.B` `` as our sentence."""
    what, _, where = problem.partition(" - at `$")
    path = where.rstrip("`")
    key = (below + path).lstrip(".")
    inside = _inside(kind, path)
    named = re.fullmatch(r"Object (contains unknown|missing required) field `(.*)`", what)
    if named:
        inner = f"{key}.{named[2]}".lstrip(".")
        if named[1] == "missing required":
            return f"the key '{inner}' is missing; add it."
        known = [name for part in inside if _is_struct(part) for name in part.__struct_fields__]
        return f"the key '{inner}' is not known; {nearest(named[2], known)}"
    words = dict.fromkeys(part for part in inside if isinstance(part, str))
    hint = "write text in quotes" if what.startswith("Expected `str`") else "change its value"
    if words:
        numbers = ", or give a number" if float in inside or int in inside else ""
        hint = f"choose one of: {', '.join(words)}{numbers}"
    if unknown := re.fullmatch(r"Invalid enum value (.*)", what):
        return f"{key}: the value {unknown[1]} is not known; {hint}."
    return f"{key or 'the configuration'}: {what[:1].lower()}{what[1:]}; {hint}."


def _inside(kind: Any, path: str) -> list[Any]:
    """The types, and the words of literals, that the value at a path such as ``.devices.model[0]`` may have."""
    found = _flat(kind)
    for name in re.findall(r"\.(\w+)", path):
        structs = [part for part in found if _is_struct(part) and name in part.__struct_fields__]
        found = [part for struct in structs for part in _flat(get_type_hints(struct)[name])]
    return found


def _flat(kind: Any) -> list[Any]:
    inner = get_args(kind)
    return [part for arg in inner for part in _flat(arg)] if inner else [kind]


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
