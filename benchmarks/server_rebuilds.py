"""The figure of what the trusted server can rebuild of a device's columns, by the width of embeddings and by uploads.

python -m benchmarks.server_rebuilds docs/attacks.md docs/figures/server-rebuilds.svg

It is drawn from the table of that page, whose first column is called `width`; the page says how to measure its rows.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from dpzv.report.figure_file import axes_of

__all__ = ["draw", "main", "table"]


def table(page: str) -> tuple[list[str], dict[int, list[float]]]:
    """The names of the columns, and the scores of each width, from the page's table that begins with `| width |`."""
    head, *lines = re.findall(r"^\| width \|.*\n(?:\|.*\n)+", page, re.MULTILINE)[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, *lines[1:])]
    return cells[0][1:], {int(row[0]): [float(cell) for cell in row[1:]] for row in cells[1:]}


def draw(names: list[str], scores: dict[int, list[float]], path: Path) -> None:
    """A line for each width."""
    title = "What the trusted server can rebuild of ten columns, from what a linear device sends"
    with axes_of(title, path) as axes:
        for width, values in scores.items():
            axes.plot(
                range(len(values)), values, marker="o", label=f"{width} number{'s' if width > 1 else ''} a record"
            )
        axes.set_xticks(range(len(names)), names)
        axes.set_ylim(0.5, 1.02)
        axes.set_xlabel("uploads of a record")
        axes.set_ylabel("area under the curve")


def main(page: str, figure: str) -> int:
    """Draw the page's table into a file."""
    draw(*table(Path(page).read_text()), Path(figure))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
