"""What the pages print is accepted: every TOML file by its loader, every command by the command line's parser."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import tomli_w
import typer

from dpzv import config as configuration
from dpzv.cli.main import app
from dpzv.data import party_records
from dpzv.errors import ConfigError
from dpzv.network.keyfiles import create_authority, issue_party
from dpzv.network.party import load_party
from tests.docs.pages import PAGES, ROOT, blocks, commands, mentioned

DEPLOY = ROOT / "docs" / "howto" / "deploy.md"
WITH_TOML = [page for page in PAGES if blocks(page, "toml")]
WITH_COMMANDS = [page for page in PAGES if commands(page) or mentioned(page)]


def is_run(tree: dict[str, Any]) -> bool:
    """Whether these are sections of an agreed run; a party's own file has plain keys, or features or labels."""
    plain = {key for key, value in tree.items() if not isinstance(value, dict)} - {"recipe"}
    return not plain and not tree.get("data", {}).keys() & {"features", "labels"}


def read(text: str, page: str, folder: Path) -> None:
    """Read a block as whoever follows the page would; lines of a party's file are put into a whole one."""
    tree = tomllib.loads(text)
    if is_run(tree):
        configuration.parse(tree)
    elif tree.keys() == {"data"}:
        party_records.parse(tree["data"], folder)
    else:
        agreed, whole = (tomllib.loads(block) for block in blocks(DEPLOY, "toml")[:2])
        runs = [found for found in map(tomllib.loads, blocks(ROOT / page, "toml")) if is_run(found)]
        party = tree if "run" in tree else whole | tree
        create_authority(folder / "ca", 20)
        issue_party(folder / "ca", party["name"], folder / party["keys"], None, 10)
        (folder / party["run"]).write_text(tomli_w.dumps(runs[0] if runs else agreed))
        (folder / "party.toml").write_text(tomli_w.dumps(party))
        load_party(folder / "party.toml")


@pytest.mark.parametrize("page", WITH_TOML, ids=lambda page: page.name)
def test_every_toml_block_is_accepted_by_its_loader(page: Path, tmp_path: Path) -> None:
    for number, block in enumerate(blocks(page, "toml")):
        folder = tmp_path / str(number)
        folder.mkdir()
        read(block, str(page.relative_to(ROOT)), folder)


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ("[train]\nrounds = 3\npasses = 3\n", "train.rounds and train.passes are both set"),
        ("[train]\nround = 3\n", "train.round"),
        ("out = 'second'\nparent = ['run']\n", "parent"),
        ("[data.labels]\nfile = 'a.txt'\nid = 'x'\nlabel = 'y'\ntask = 'binary'\nclasses = ['a', 'b']\n", "a.txt"),
    ],
)
def test_a_block_that_would_be_refused_is_noticed(block: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        read(block, "docs/howto/deploy.md", tmp_path)


def found(arguments: list[str]) -> tuple[click.Command, list[str]]:
    """The command that these arguments name, and the arguments that are left for it."""
    command: click.Command = typer.main.get_command(app)
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        inner = command.get_command(click.Context(command), arguments[0])
        assert inner is not None, f"there is no command {arguments[0]}"
        command, arguments = inner, arguments[1:]
    return command, arguments


def parsed(arguments: list[str]) -> None:
    """Let the command line read its arguments; nothing is run."""
    command, rest = found(arguments)
    assert not isinstance(command, click.Group), arguments
    command.make_context("dpzv", list(rest))


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_every_command_of_a_page_is_one(page: Path) -> None:
    for arguments in commands(page):
        parsed(arguments)
    for arguments in mentioned(page):
        command, rest = found(arguments)
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= known, arguments


@pytest.mark.parametrize("typed", ["trane x", "train flights --besides frozen", "predict server.toml", "keys"])
def test_a_command_that_is_none_is_noticed(typed: str) -> None:
    with pytest.raises((AssertionError, click.UsageError)):
        parsed(typed.split())


def test_the_pages_are_looked_at() -> None:
    assert {"deploy.md", "data.md", "operate.md"} <= {page.name for page in WITH_TOML}
    assert sum(len(commands(page)) for page in PAGES) > 50
    assert sum(len(mentioned(page)) for page in PAGES) > 30
