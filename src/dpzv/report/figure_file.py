"""What all figures share: their size, their frame, their legend, and that they are SVG files with text as text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dpzv.durable import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["STYLES", "axes_of"]

STYLES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
"""Line styles, one for each epsilon."""


@contextmanager
def axes_of(title: str, path: Path) -> Iterator[Axes]:
    """Axes to draw on; when the block ends, the figure is written to `path`. The same lines give the same file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "dpzv"}):
        figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
        try:
            yield axes
            axes.set_title(title, loc="left", fontsize=11)
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9, handlelength=3)
            with replacing(path) as new:
                figure.savefig(new, format="svg", metadata={"Date": None, "Title": title})
        finally:
            pyplot.close(figure)
