"""The pages of the project, and what stands in their blocks of code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]


def commands(page: Path) -> list[list[str]]:
    """The arguments of every ``dpzv ...`` in the page's code blocks, indented or fenced; comments are dropped."""
    if not page.exists():
        return []
    found, fenced = [], False
    for line in page.read_text().replace("\\\n", " ").splitlines():
        fenced ^= line.lstrip().startswith("```")
        match = re.match(r"(?:\.venv/bin/)?dpzv (?![a-z ]+: )(.*)", line.strip())  # with a colon it is what was printed
        if match and (fenced or line.startswith("    ")):
            found.append(shlex.split(match[1], comments=True))
    return found


def blocks(page: Path, language: str) -> list[str]:
    """The page's fenced blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def mentioned(page: Path) -> list[list[str]]:
    """The arguments of every `dpzv ...` in the page's sentences, without those that stand for several or for any."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    words = [found.split() for found in re.findall(r"`dpzv ([^`]*)`", text)]
    return [arguments for arguments in words if not any("|" in word or word == "..." for word in arguments)]
