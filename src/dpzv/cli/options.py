"""Options that several commands share, and commands that get all their options as one value."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from dpzv.declarations import METHODS
from dpzv.errors import ConfigError
from dpzv.terms import Accounting
from dpzv.validate import one_of, positive, whole

if TYPE_CHECKING:
    from dpzv.config import Tree

__all__ = [
    "ALL",
    "Account",
    "Comparison",
    "Jobs",
    "Json",
    "JsonOutcome",
    "Methods",
    "Quiet",
    "Recipe",
    "Sets",
    "SetsOfAll",
    "Settings",
    "epsilons_of",
    "methods_of",
    "tree_of",
    "widths_of",
    "with_options",
]

T = TypeVar("T")


def _sets(what: str) -> Any:
    return typer.Option("--set", metavar="KEY=VALUE", help=what, default_factory=list, show_default=False)


Recipe = Annotated[
    list[str],
    typer.Argument(
        help="A shipped recipe's name, or a TOML file; or the file of an agreed run and then those of all its parties."
    ),
]
Sets = Annotated[list[str], _sets("Change one key; repeatable.")]
SetsOfAll = Annotated[list[str], _sets("Change one key of all runs; repeatable.")]
Methods = Annotated[str, typer.Option("--methods", help="Methods, separated by commas.")]
Account = Annotated[
    Accounting, typer.Option("--accounting", help="exact: a guarantee; paper: the published rule, no guarantee.")
]
Settings = Annotated[
    Path | None, typer.Option("--settings", help="TOML: what each method changes in the recipe; default: as shipped.")
]
Jobs = Annotated[int, typer.Option("--jobs", min=0, help="Runs at once; 0: as cores and memory allow.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no table; errors only.")]
Json = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")]
JsonOutcome = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON and nothing else.")]

ALL = ",".join(METHODS)


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """The options of `dpzv compare`."""

    recipe: Recipe
    set_: SetsOfAll
    methods: Methods = ALL
    epsilon: Annotated[str, typer.Option("--epsilon", help="Budgets, separated by commas; inf: no privacy.")] = "1"
    widths: Annotated[
        str,
        typer.Option(
            "--widths",
            help="Show what training buys where a device sends so many numbers a record (devices.embedding), such as "
            "1,2,4,8,16; beside it untrained devices, training without noise, backpropagation, each party alone.",
            show_default=False,
        ),
    ] = ""
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each, with train.seed 0, 1, ...")] = 3
    accounting: Account = "exact"
    settings: Settings = None
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder; default runs/compare-RECIPE, or runs/widths-RECIPE.")
    ] = None
    jobs: Jobs = 0
    json: JsonOutcome = False
    quiet: Quiet = False

    @property
    def name(self) -> str:
        """The name of the recipe, or of the file of an agreed run."""
        return Path(self.recipe[0]).stem


def with_options(kind: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Make a command of a function that takes one `kind`, a dataclass whose fields are the command's options.

    typer reads a command's options off its signature, so the command gets that of the dataclass.
    """
    hints = get_type_hints(kind, include_extras=True)
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
    ]

    def command_of(function: Callable[[T], None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(**given: Any) -> None:
            function(kind(**given))

        command.__annotations__ = hints
        vars(command)["__signature__"] = inspect.Signature(parameters)
        return command

    return command_of


def tree_of(recipe: list[str], sets: list[str]) -> Tree:
    """A recipe's tree, or that of an agreed run with its parties' files, with the changes of --set.

    A file that does not say what to train on is refused: the default data set is surely not what it is about.
    """
    from dpzv.config import merge, set_key

    return functools.reduce(merge, map(set_key, sets), _named(recipe))


def _named(recipe: list[str]) -> Tree:
    from dpzv import recipes

    if len(recipe) > 1:
        from dpzv.runtime.rehearsal import rehearsed_tree  # imports torch, which a recipe's tree does not need

        return rehearsed_tree(recipe)
    tree = recipes.tree(recipe[0])
    sections = {name: tree.get(name) for name in ("data", "network")}
    data, network = (value if isinstance(value, dict) else {} for value in sections.values())
    if "name" not in data and network.get("devices"):
        raise ConfigError(
            f"{recipe[0]} is a run that parties agreed on, and says nothing about their records; give the parties' "
            f"files after it, e.g. {recipe[0]} server.toml bank.toml shop.toml."
        )
    if "name" not in data:
        raise ConfigError(f"{recipe[0]} names no data set; set name in its section [data], see `dpzv data list`.")
    return tree


def methods_of(text: str) -> list[str]:
    """The methods of an option, each once."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError(f"--methods expects names separated by commas, got '{text}'; e.g. --methods dpzv,vafl.")
    return [one_of("the method", name, METHODS) for name in names]


def widths_of(text: str) -> list[int]:
    """The widths of an option, each once, narrow ones first."""
    try:
        widths = sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise ConfigError(f"--widths expects whole numbers separated by commas, got '{text}'; e.g. 1,2,4.") from None
    return [whole("--widths", width, 1) for width in widths]


def epsilons_of(text: str) -> list[float]:
    """The budgets of an option, each once."""
    try:
        numbers = list(dict.fromkeys(float(word) for word in text.split(",")))
    except ValueError:
        raise ConfigError(
            f"--epsilon expects numbers separated by commas, got '{text}'; e.g. --epsilon 0.5,1."
        ) from None
    return [positive("--epsilon", number) for number in numbers]
