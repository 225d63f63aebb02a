"""What the pages tell people to type works: the Python of the README, its commands, those of the results, links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dpzv import config as configuration
from dpzv import recipes
from dpzv.cli.main import app
from dpzv.data import catalogue
from tests.docs.pages import PAGES, ROOT, commands
from tests.first_run import write_files

README, RESULTS = ROOT / "README.md", ROOT / "docs" / "results.md"
SHORT = ["--set", "train.rounds=2", "--set", "head.refit_steps=4", "--set", "head.steps=4", "--quiet"]


def python(page: Path) -> str:
    """The page's only Python block."""
    (block,) = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return str(block)


def invoke(arguments: list[str]) -> Result:
    """Run the command line inside this process."""
    return CliRunner().invoke(app, arguments)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test works in an empty folder, without the user's data."""
    monkeypatch.setenv("DPZV_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


def test_the_python_of_the_readme_is_short_and_runs(capsys: pytest.CaptureFixture[str]) -> None:
    snippet = python(README)
    assert sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in snippet.splitlines()) < 15
    exec(compile(snippet, "README.md", "exec"), {"__name__": "readme"})
    probabilities, told = capsys.readouterr().out.strip().split("\n", 1)
    values = [float(word) for word in probabilities.strip("[]").split()]
    assert len(values) == 5
    assert all(0 < value < 1 for value in values)
    epsilon, why = told.split(" ", 1)
    assert 0 < float(epsilon) <= 1
    assert "secret noise" in why


def test_the_python_of_the_page_about_scikit_learn_runs_in_its_order(capsys: pytest.CaptureFixture[str]) -> None:
    page, names = ROOT / "docs" / "howto" / "scikit-learn.md", {"__name__": "page"}
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, page.name, "exec"), names)
    told = capsys.readouterr().out
    assert "Guarantee:   yes: nothing is released" in told
    both, alone = (float(re.findall(rf"{who}: ([\d.]+)", told)[0]) for who in ("both", "alone"))
    assert both > alone + 0.05  # 600 records: an accuracy has a deviation below 0.02


def test_the_commands_of_the_readme_work_in_their_order() -> None:
    """Trainings with two rounds; what needs the network is asked for its help."""
    typed = commands(README)
    assert {arguments[0] for arguments in typed} == {"recipes", "train", "data", "resume", "privacy"}
    for arguments in typed:
        if arguments[:2] == ["data", "fetch"]:
            assert arguments[2] in catalogue.names()
            arguments = ["data", "fetch", "--help"]
        done = invoke(arguments + (SHORT if arguments[0] == "train" else []))
        assert done.exit_code == 0, (arguments, done.output, done.exception)


def resolve(arguments: list[str]) -> configuration.Config:
    """The configuration that ``dpzv train ...`` would run."""
    tree = recipes.tree(arguments[1])
    for option, value in pairwise(arguments):
        if option == "--set":
            tree = configuration.merge(tree, configuration.set_key(value))
    return configuration.parse(tree)


def trainings(page: Path) -> list[list[str]]:
    """The page's trainings, each once: where only the seed and the folder differ, the last."""
    typed = [arguments for arguments in commands(page) if arguments[0] == "train"]
    kinds = [re.sub(r" --(set train\.seed=|out[ =])\S+", "", " ".join(arguments)) for arguments in typed]
    return list(dict(zip(kinds, typed, strict=True)).values())


def test_the_commands_of_the_page_about_attacks_work_in_their_order() -> None:
    """With fewer rounds and runs: from a training that keeps its views to the audit of whole runs."""
    fewer = {"--trials": "20", "--whole": "1", "--networked": "1"}
    typed = commands(ROOT / "docs" / "howto" / "attack-your-own-run.md")
    assert [arguments[0] for arguments in typed] == ["train", "train", "attack", "attack", "audit", "audit"]
    write_files(Path())
    for arguments in typed:
        shortened = [fewer.get(before, word) for before, word in zip(["", *arguments], arguments, strict=False)]
        done = invoke(shortened + (SHORT if arguments[0] == "train" else []))
        assert done.exit_code == 0, f"{arguments}: {done.output}"


def test_the_results_page_has_commands() -> None:
    assert len(trainings(RESULTS)) >= 2


@pytest.mark.parametrize("arguments", commands(RESULTS), ids=" ".join)
def test_every_training_of_the_results_is_a_valid_configuration(arguments: list[str]) -> None:
    if arguments[0] == "train":
        assert resolve(arguments).data.name in catalogue.names()
    else:
        assert invoke([*arguments[:1], "--help"]).exit_code == 0


@pytest.mark.parametrize("arguments", trainings(RESULTS), ids=" ".join)
def test_trainings_of_the_results_start_where_the_data_is_embedded(arguments: list[str]) -> None:
    config = resolve(arguments)
    if not catalogue.describe(config.data.name).present or config.runtime.accelerator != "cpu":
        pytest.skip("needs data or an accelerator that may not be here; its configuration is checked above")
    done = invoke(arguments + SHORT)
    assert done.exit_code == 0, (done.output, done.exception)


def test_a_command_that_does_not_exist_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "dpzv train prose\n\n    dpzv train nothing  # a comment\n\n```\n.venv/bin/dpzv trane x \\\n -h\n```\n"
    )
    typed = commands(page)
    assert typed == [["train", "nothing"], ["trane", "x", "-h"]]
    assert [invoke(arguments).exit_code != 0 for arguments in typed] == [True, True]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def dead_links(page: Path) -> list[str]:
    """The page's relative links that lead nowhere, to no file or to no heading."""
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        file, _, anchor = target.partition("#")
        other = page.parent / file if file else page
        if not re.match(r"\w+:", target) and (not other.exists() or (anchor and anchor not in anchors(other))):
            dead.append(target)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    assert dead_links(page) == []


def test_a_dead_link_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# The `top`: here\n[a](page.md#the-top-here) [b](https://example.org/x) [c](gone.md) [d](#here)")
    assert dead_links(page) == ["gone.md", "#here"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_that_are_named_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^    )make ([a-z-]+)", page.read_text(), re.MULTILINE))
    assert named <= targets
    assert page != README or named >= {"demo", "test"}


MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:home|root|work|tmp/[a-z])\b")  # somebody's machine, not everybody's


def files() -> Iterator[Path]:
    """The files of the tree that people read: not what installing, running or testing leaves behind."""
    left_behind = re.compile(r"\.(?!ci$|gitignore$).*|build|dist|runs|__pycache__|.*\.egg-info")
    folders = [ROOT]
    while folders:
        for path in folders.pop().iterdir():
            if not left_behind.fullmatch(path.name):
                if path.is_dir():
                    folders.append(path)
                else:
                    yield path


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    looked = list(files())
    assert {README, Path(__file__), ROOT / ".ci" / "run"} <= set(looked)
    assert [path for path in looked if MACHINE_PATH.search(path.read_text(errors="replace"))] == []
    slash = "/"  # written apart, so that this file passes
    for text in (f"in {slash}work/main", f'"{slash}tmp/w/v/bin"', f"{slash}home{slash}me"):
        assert MACHINE_PATH.search(text)
    for text in ("net/work/", f"~{slash}work", f"$HOME{slash}work"):
        assert not MACHINE_PATH.search(text)
