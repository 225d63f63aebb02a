"""The picture of the rooms in `docs/architecture.md`: ``python -m tests.rules.picture`` prints it as Mermaid text.

An arrow is drawn for an import between two rooms unless a longer way of arrows leads there as well. So the picture
stays readable, and every import goes along its arrows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.rules.tree import Package, cycle, package

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
ROOF = {"__init__", "__main__"}
"""Left out of the picture: they only say what the package offers to its users."""


def arrows(rooms: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """The imports between rooms that no longer way replaces (the transitive reduction), in the order of names."""
    kept = {room: imported - ROOF for room, imported in rooms.items() if room not in ROOF}
    if found := cycle(kept):
        raise ValueError(f"rooms that import each other in a circle cannot be drawn, got {' -> '.join(found)}")

    def below(room: str) -> set[str]:
        return kept[room].union(*map(below, kept[room]))

    return [
        (room, other)
        for room in sorted(kept)
        for other in sorted(kept[room])
        if not any(other in below(between) for between in kept[room])
    ]


def mermaid(tree: Package) -> str:
    """The picture as Mermaid text: a box for every room, a folder or a single file, and the arrows between them."""
    folders = {module.room for module in tree if "/" in module.path}
    boxes = [
        f'    {room}["{room}/"]' if room in folders else f'    {room}(["{room}.py"])'
        for room in sorted(tree.rooms().keys() - ROOF)
    ]
    lines = [f"    {room} --> {other}" for room, other in arrows(tree.rooms())]
    return "\n".join(["flowchart TD", *boxes, *lines]) + "\n"


def drawn(page: str) -> str:
    """The Mermaid text of the section "Rooms" of a page."""
    section = f"\n{page}".partition("\n## Rooms\n")[2].partition("\n## ")[0]
    text, end = section.partition("```mermaid\n")[2], "```\n"
    if end not in text:
        raise ValueError("the page needs a section '## Rooms' with a block of Mermaid text")
    return text.partition(end)[0]


if __name__ == "__main__":
    print(mermaid(package()), end="")
