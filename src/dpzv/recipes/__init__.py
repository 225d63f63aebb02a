"""The shipped recipes: TOML files of what differs from the defaults, with a reason on every line."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from dpzv.declarations import METHODS
from dpzv.errors import ConfigError
from dpzv.validate import nearest, one_of, toml_of

__all__ = ["names", "read", "settings", "title", "toml_file", "tree"]


def names() -> list[str]:
    """The shipped recipes, sorted."""
    files = resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def read(name: str) -> str:
    """The text of a shipped recipe, or of the user's file if `name` ends in .toml."""
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            listed = ", ".join(names())
            raise ConfigError(f"the recipe file {name} does not exist; give a path, or a name: {listed}.")
        return path.read_text(encoding="utf-8")
    one_of("the recipe", name, names())
    return (resources.files(__name__) / f"{name}.toml").read_text(encoding="utf-8")


def title(name: str) -> str:
    """The first comment line of a recipe: what it is, in one sentence."""
    return read(name).split("\n", 1)[0].removeprefix("#").strip()


def tree(name: str) -> dict[str, Any]:
    """The recipe as nested mappings, with its own name in `recipe`.

    One that begins with ``like = "NAME"`` changes only some keys of that recipe.
    """
    own = toml_of(read(name).encode(), f"the recipe {name}")
    found: dict[str, Any] = tree(like) if isinstance(like := own.pop("like", ""), str) and like else {}
    for section, values in own.items():
        both = isinstance(values, dict) and isinstance(found.get(section), dict)
        found[section] = {**found[section], **values} if both else values
    return {**found, "recipe": name}


def settings(name: str, accounting: str, file: Path | None = None) -> dict[str, Any]:
    """What each method's runs change in recipe `name`: sections ``[all.train]``, ``[vafl.privacy]`` and so on.

    Read from `file` if given, else from the shipped ``compare/NAME-ACCOUNTING.toml``, else ``compare/ACCOUNTING.toml``.
    """
    if file is None:
        folder = resources.files(__name__) / "compare"
        own = folder / f"{Path(name).stem}-{accounting}.toml"
        shipped = own if own.is_file() else folder / f"{accounting}.toml"
        values = toml_of(shipped.read_bytes(), shipped.name)
    else:
        values = toml_file(file)
    methods = ("all", *METHODS)
    for section, inner in values.items():
        if section not in methods:
            raise ConfigError(f"the settings have a section '{section}'; {nearest(section, methods)}")
        if not isinstance(inner, dict) or not all(isinstance(keys, dict) for keys in inner.values()):
            raise ConfigError(f"the settings of '{section}' must be sections such as [{section}.train].")
    return values


def toml_file(path: Path) -> dict[str, Any]:
    """A user's TOML file as nested mappings."""
    if not path.is_file():
        raise ConfigError(f"the file {path} does not exist; give the path of a TOML file.")
    return toml_of(path.read_bytes(), str(path))
