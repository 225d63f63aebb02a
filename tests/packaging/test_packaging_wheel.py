"""The built wheel, installed into an empty environment, runs a recipe; nothing of the checkout is needed.

No network: third-party packages are lent by the running environment, through a .pth file behind the new
environment's own packages. Python reads no .pth files of folders that come from one, so an editable install in
the running environment stays out of reach.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ["pyproject.toml", "README.md", "LICENSE"]


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command, without settings that could bring the checkout back; it must succeed."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("DPZV_", "PIP_", "PYTHON"))}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy so that the checkout stays as it is."""
    copy = tmp_path_factory.mktemp("copy")
    for name in SOURCES:
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    run(*pip, "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", "dist", ".", cwd=copy)
    (made,) = (copy / "dist").glob("*.whl")
    return made


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a new environment with the wheel, and third-party packages on loan."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet"]
    run(*pip, "--disable-pip-version-check", "--no-deps", "--no-index", wheel, cwd=folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    lent = [path for path in sys.path if Path(path).name in ("dist-packages", "site-packages")]
    (packages / "lent.pth").write_text("\n".join(lent))
    return folder


def test_a_recipe_runs_from_the_installed_wheel(environment: Path, tmp_path: Path) -> None:
    where = "import dpzv, dpzv.recipes; print(dpzv.__file__, dpzv.recipes.__file__, sep='\\n')"
    for file in run(environment / "bin" / "python", "-c", where, cwd=tmp_path).split():
        assert Path(file).is_relative_to(environment), file
    command = ["train", "breast-cancer", "--set", "train.rounds=5", "--quiet", "--json"]
    summary = json.loads(run(environment / "bin" / "dpzv", *command, cwd=tmp_path))
    assert summary["rounds"] == 5
    assert summary["recipe"] == "breast-cancer"
    assert 0 < summary["epsilon"] <= 5
    assert 0.5 < summary["test_auc"] <= 1
    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "summary.json").read_text()) == summary


def test_the_wheel_holds_all_of_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = ROOT / "src" / "dpzv"
    files = {*package.rglob("*.py"), *package.rglob("recipes/**/*.toml"), package / "py.typed"}
    files |= set((package / "report" / "assets").iterdir())
    assert inside == {path.relative_to(package.parent).as_posix() for path in files}


def test_the_wheel_names_all_it_imports(wheel: Path) -> None:
    """The lent packages would hide a missing dependency, so imports are compared with what the wheel asks for."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
        sources = [archive.read(file).decode() for file in archive.namelist() if file.endswith(".py")]
    asked = metadata.get_all("Requires-Dist") or []
    # what an extra brings is imported where it is used; the tools of developers are never
    needed = {re.split(r"[^\w.-]", line)[0].lower() for line in asked if not re.search(r'extra == "dev"', line)}
    imported = {module for source in sources for module in imports(ast.parse(source))}
    providers = packages_distributions()
    third_party = imported - sys.stdlib_module_names - {"dpzv"}
    assert len(third_party) > 5
    undeclared = {m for m in third_party if needed.isdisjoint(d.lower() for d in providers.get(m, [m]))}
    assert undeclared == set()


def imports(tree: ast.AST) -> Iterator[str]:
    """The top-level packages that a module imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]
