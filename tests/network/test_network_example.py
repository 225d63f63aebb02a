"""`examples/three_companies` runs as people run it, and what `docs/howto/deploy.md` and `operate.md` show exists."""

from __future__ import annotations

import csv
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpzv import config as configuration
from dpzv import recipes
from dpzv.cli.main import app
from dpzv.data import party_records as party
from dpzv.network.party import load_party

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "three_companies"
PAGE, LATER = (ROOT / "docs" / "howto" / name for name in ("deploy.md", "operate.md"))
DEVICES = ("schedule", "weather", "registry")


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLE / "run.py"), "--small", "--folder", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)


def test_the_small_form_trains_predicts_and_ends_well(tmp_path: Path) -> None:
    done = run(tmp_path / "made")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Guarantee:   yes" in done.stdout
    assert "Epsilon:     1 (replace-one)" in done.stdout
    server = tmp_path / "made" / "server"
    asked = (server / "new.txt").read_text().split()
    with (server / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == asked
    assert len(asked) == 400
    values = [float(row["prediction"]) for row in rows]
    assert all(0 < value < 1 for value in values)
    assert [row["class"] for row in rows] == ["late" if value > 0.5 else "in time" for value in values]
    assert not (server / "predictions.unknown.csv").exists()
    assert len(set(values)) > 300  # a head that ignores the devices would give one value
    labelled = (server / "arrivals.csv").read_text()
    assert not any(name in labelled for name in asked)


def test_a_folder_of_somebody_else_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    done = run(tmp_path)
    assert done.returncode == 1
    assert "is not empty" in done.stderr
    assert (tmp_path / "letter.txt").read_text() == "mine"


@pytest.mark.parametrize("section", ["devices", "train", "head", "privacy"])
def test_the_agreed_run_is_that_of_the_recipe(section: str) -> None:
    agreed = tomllib.loads((EXAMPLE / "run.toml").read_text())
    assert agreed[section] == recipes.tree("flights")[section]
    assert agreed["network"]["devices"] == list(DEVICES)
    assert agreed["noise"]["source"] == "exact"


@pytest.mark.parametrize(("m", "name"), list(enumerate(DEVICES, 1)))
def test_a_company_has_the_columns_of_the_recipe(m: int, name: str) -> None:
    own = tomllib.loads((EXAMPLE / f"{name}.toml").read_text())
    wanted = [column for column in recipes.tree("flights")["data"]["columns"] if column["device"] == m]
    assert [{"device": m, **column} for column in own["data"]["features"]["columns"]] == wanted


def test_the_example_holds_no_keys_and_no_records() -> None:
    found = {path.name for path in EXAMPLE.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    parties = {f"{name}.toml" for name in ("run", "server", *DEVICES)}
    assert found == {"README.md", "make_data.py", "run.py"} | parties


def typed(page: str) -> list[list[str]]:
    """The arguments of every `dpzv ...` in the page's indented blocks."""
    return [shlex.split(line) for line in re.findall(r"^    dpzv (.*)$", page, re.MULTILINE)]


def test_the_page_and_the_example_are_valid_files_of_parties(tmp_path: Path) -> None:
    """Keys by the page's own commands, then every TOML of the page and of the example is read as a party's."""
    blocks = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert configuration.parse(tomllib.loads(blocks[0])).network.devices == DEVICES
    for arguments in typed(PAGE.read_text() + LATER.read_text()):
        if arguments[0] == "keys" and arguments[1] != "show":
            inside = [
                str(tmp_path / word) if before in ("--ca", "--out", "--keep-alignment") else word
                for before, word in zip(["", *arguments], arguments, strict=False)
            ]
            done = CliRunner().invoke(app, inside)
            assert done.exit_code == 0, done.output
    assert len(blocks) == 3
    for name, block in (("server", blocks[1]), ("weather", blocks[2])):
        (tmp_path / name / "page.toml").write_text(block)
        (tmp_path / name / "run.toml").write_text(blocks[0])
        own = load_party(tmp_path / name / "page.toml")
        assert own.file.name == name
        assert bool(own.file.listen) == (name == "server")
    for name in ("server", *DEVICES):
        (tmp_path / name / "run.toml").write_text((EXAMPLE / "run.toml").read_text())
        (tmp_path / name / f"{name}.toml").write_text((EXAMPLE / f"{name}.toml").read_text())
        own = load_party(tmp_path / name / f"{name}.toml")
        assert isinstance(own.data.features, party.FeatureSettings) == (name != "server")
