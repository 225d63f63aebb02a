"""Everything that is installed is pinned with hashes: the files in `requirements/` against what runs here."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LISTS = ROOT / "requirements"


def pinned(name: str) -> dict[str, tuple[str, int]]:
    """Version and number of hashes of every package in a list, and in the list that it begins with."""
    found: dict[str, tuple[str, int]] = {}
    for line in (LISTS / f"{name}.txt").read_text().replace("\\\n", " ").splitlines():
        if other := re.fullmatch(r"-r (\w+)\.txt", line):
            found |= pinned(other[1])
            continue
        match = re.fullmatch(r"([a-z0-9-]+)==([\w.]+)((?: +--hash=sha256:[0-9a-f]{64})+)", line)
        assert match, line
        assert match[1] not in found, match[1]
        found[match[1]] = (match[2], len(match[3].split()))
    return found


@pytest.mark.parametrize(
    ("lists", "root"),
    [
        (["dpzv"], "dpzv"),
        (["flower"], "dpzv[flower]"),
        (["psi"], "dpzv[psi]"),
        (["dev"], "dpzv[dev]"),
        ([], "setuptools"),
    ],
)
def test_the_lists_have_all_that_is_needed_here_in_the_versions_that_are_tested_here(
    lists: list[str], root: str
) -> None:
    listed = {name: version for file in ["build", *lists] for name, (version, _) in pinned(file).items()}
    todo, seen = [Requirement(root)], set()
    while todo:
        asked = todo.pop()
        name = canonicalize_name(asked.name)
        if name.startswith(("cuda-", "nvidia-", "triton")):  # a build of torch with CUDA names their versions itself
            continue
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            assert name not in listed
            continue
        if name != "dpzv":
            assert listed[name] == installed.version.split("+")[0], asked
        for extra in {"", *asked.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                needs = map(Requirement, installed.requires or ())
                todo += [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]


def test_the_tools_of_the_site_are_pinned_by_themselves() -> None:
    """They have an environment of their own, which is not here."""
    found = pinned("docs")
    assert {"mkdocs", "mkdocs-material", "pymdown-extensions"} <= found.keys()
    assert min(count for _, count in found.values()) >= 1


def test_what_people_are_told_to_install_is_checked_by_its_hash() -> None:
    page, make = (ROOT / "docs" / "howto" / "deploy.md").read_text(), (ROOT / "Makefile").read_text()
    typed = re.findall(r"pip install (.*)", page) + re.findall(r"\$\(PIP\) (.*)", make)
    typed += re.findall(r"build/docs/bin/pip .* install (.*)", make)
    assert len(typed) >= 10
    assert re.search(r"^PIP := .* install --no-deps$", make, re.MULTILINE)
    for command in typed:
        arguments = command.replace("--no-deps ", "")
        ours = re.fullmatch(r"--no-build-isolation (--editable )?\.", arguments)
        hashed = re.match(r"--require-hashes .*requirements/\w+\.txt$", arguments)
        assert ours or hashed or command == "torch", command
