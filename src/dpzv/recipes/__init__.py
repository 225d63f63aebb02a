"""The shipped recipes: TOML files of what differs from the defaults, with a reason on every line."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from dpzv.declarations import METHODS
from dpzv.errors import ConfigError
from dpzv.validate import nearest, one_of, toml_of, utf8

__all__ = ["names", "read", "reproduction", "settings", "title", "toml_file", "tree", "trials"]

TUNED = "tuned"
"""The section of a settings file that says which recipe it was tuned for, and by how many trials."""


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
        return utf8(path.read_bytes(), f"the recipe {name}")
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
    values = _settings_file(name, accounting, file)
    values.pop(TUNED, None)
    methods = ("all", *METHODS)
    for section, inner in values.items():
        if section not in methods:
            raise ConfigError(f"the section '{section}' of the settings is not known; {nearest(section, methods)}")
        if not isinstance(inner, dict) or not all(isinstance(keys, dict) for keys in inner.values()):
            raise ConfigError(f"the settings of '{section}' must be sections such as [{section}.train]; write these.")
    return values


def reproduction(name: str) -> dict[str, Any]:
    """The shipped file ``reproduce/NAME.toml``: an item of `dpzv reproduce`, or something that all items share."""
    file = resources.files(__name__) / "reproduce" / f"{name}.toml"
    return toml_of(file.read_bytes(), file.name)


def trials(name: str, accounting: str, file: Path | None = None) -> dict[str, int]:
    """How many trials tuned each method's settings for recipe `name`; a method that is not named is not tuned.

    `dpzv tune` writes the section ``[tuned]``: the recipe it is for, and the number of trials of each method.
    """
    tuned = _settings_file(name, accounting, file).get(TUNED, {})
    if not isinstance(tuned, dict) or tuned.get("recipe") != Path(name).stem:
        return {}
    return {method: number for method, number in tuned.items() if method in METHODS and isinstance(number, int)}


def _settings_file(name: str, accounting: str, file: Path | None) -> dict[str, Any]:
    if file is not None:
        return toml_file(file)
    folder = resources.files(__name__) / "compare"
    own = folder / f"{Path(name).stem}-{accounting}.toml"
    shipped = own if own.is_file() else folder / f"{accounting}.toml"
    return toml_of(shipped.read_bytes(), shipped.name)


def toml_file(path: Path) -> dict[str, Any]:
    """A user's TOML file as nested mappings."""
    if not path.is_file():
        raise ConfigError(f"the file {path} does not exist; give the path of a TOML file.")
    return toml_of(path.read_bytes(), str(path))
