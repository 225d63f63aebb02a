"""What all figures share: colours, a frame, and how they become files; words in an SVG file stay words."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpzv.durable import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "BLUE",
    "COLOURS",
    "GREEN",
    "GREY",
    "ORANGE",
    "PINK",
    "STYLES",
    "axes_of",
    "legend",
    "over_runs",
    "plain_ticks",
    "save",
    "subplots",
]

BLUE, GREEN, ORANGE, PINK, GREY = "#0072b2", "#009e73", "#d55e00", "#cc79a7", "#777777"
"""Okabe and Ito's palette, which colour-blind readers can tell apart too."""

COLOURS = {
    "dpzv": BLUE,
    "dpzv-zo": "#56b4e9",
    "vafl": ORANGE,
    "vfl-czofo": GREEN,
    "zoo-vfl": PINK,
    "frozen": GREY,
    "frozen-zo": "#b0b0b0",
    "untrained": "#8c564b",
    "backpropagation": "#222222",
    "public": "#e69f00",
    "whole": "#f0c000",
    "plain": "#222222",
}
"""The same colour for the same method in all figures."""

STYLES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
"""Line styles, one for each epsilon."""

SVG: Any = {"svg.fonttype": "none", "svg.hashsalt": "dpzv"}


def subplots(rows: int = 1, columns: int = 1, *, size: tuple[float, float], **shared: Any) -> tuple[Any, Any]:
    """A new figure of `size` inches, and its axes; no window is opened."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=size, layout="constrained", **shared)


def legend(figure: Any, named: dict[str, Any]) -> None:
    """Say below a figure what its lines and colours are, in as few rows as are not cut off at its sides."""
    handles, labels = list(named.values()), list(named)
    for rows in range(1, len(named) + 1):
        columns = math.ceil(len(named) / rows)
        words = figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
        # an SVG file is drawn with the fonts of whoever looks at it, which may be wider
        if columns == 1 or words.get_window_extent().width <= 0.92 * figure.bbox.width:
            return
        words.remove()


def save(figure: Any, *paths: Path) -> None:
    """Write a figure to files, whose endings say what they are, and close it."""
    import matplotlib
    from matplotlib import pyplot

    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context(SVG):
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else {})
    pyplot.close(figure)


def over_runs(runs: Sequence[Iterable[tuple[int, float, float]]]) -> tuple[list[float], list[float], list[float]]:
    """The means of x and of y, and the deviations of y, over runs of (round, x, y) at the rounds that all of them have.

    A single run has no deviations.
    """
    by_round: dict[int, list[tuple[float, float]]] = {}
    for t, x, y in itertools.chain.from_iterable(runs):
        by_round.setdefault(t, []).append((x, y))
    points = [pairs for pairs in by_round.values() if len(pairs) == len(runs)]
    means = [[statistics.fmean(pair[i] for pair in pairs) for pairs in points] for i in (0, 1)]
    deviations = [statistics.stdev(y for _, y in pairs) for pairs in points] if len(runs) > 1 else []
    return means[0], means[1], deviations


def plain_ticks(axes: Any, places: Any) -> None:
    """Mark the x axis at the `places` of a locator, with numbers as people write them."""
    from matplotlib.ticker import NullLocator

    axes.xaxis.set_major_locator(places)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_locator(NullLocator())


@contextmanager
def axes_of(title: str, path: Path) -> Iterator[Axes]:
    """Axes to draw on; when the block ends, the figure is written to `path`. The same lines give the same file."""
    figure, axes = subplots(size=(8, 4.5))
    import matplotlib
    from matplotlib import pyplot

    try:
        yield axes
        axes.set_title(title, loc="left", fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9, handlelength=3)
        with replacing(path) as new, matplotlib.rc_context(SVG):
            figure.savefig(new, format="svg", metadata={"Date": None, "Title": title})
    finally:
        pyplot.close(figure)
