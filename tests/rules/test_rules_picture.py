"""The picture in `docs/architecture.md` shows the imports between the rooms of `src`."""

from __future__ import annotations

import pytest

from tests.rules.picture import PAGE, arrows, drawn, mermaid
from tests.rules.tree import Package, package


def test_the_picture_shows_the_imports() -> None:
    """If this fails, put what `python -m tests.rules.picture` prints into the page's section "Rooms"."""
    assert drawn(PAGE.read_text()) == mermaid(package())


def test_every_import_goes_along_arrows_and_every_arrow_is_an_import() -> None:
    rooms, found = package().rooms(), arrows(package().rooms())
    assert len(found) > 10
    for room, other in found:
        assert other in rooms[room]
    for room in {room for room, _ in found}:
        reached, left = set(), [room]
        while left:
            here = left.pop()
            new = {other for start, other in found if start == here} - reached
            reached |= new
            left += new
        assert rooms[room] - {"__init__"} <= reached


def test_one_more_import_changes_the_picture() -> None:
    files = {"a/x.py": "import dpzv.b\n", "b.py": "import dpzv.c\n", "c.py": "", "d.py": ""}
    assert mermaid(Package(files)) == (
        'flowchart TD\n    a["a/"]\n    b(["b.py"])\n    c(["c.py"])\n    d(["d.py"])\n    a --> b\n    b --> c\n'
    )
    assert mermaid(Package({**files, "d.py": "import dpzv.c\n"})).endswith("    d --> c\n")
    # the way by b leads to c already
    assert mermaid(Package({**files, "a/x.py": "import dpzv.b\nimport dpzv.c\n"})) == mermaid(Package(files))


def test_a_circle_is_not_drawn() -> None:
    with pytest.raises(ValueError, match="circle"):
        mermaid(Package({"a.py": "import dpzv.b\n", "b.py": "import dpzv.a\n"}))


def test_a_page_without_a_picture_is_noticed() -> None:
    with pytest.raises(ValueError, match="Rooms"):
        drawn("# Page\n\n## Rooms\n\n## Other\n\n```mermaid\nflowchart TD\n```\n")
