"""`fig-overview`: the system, drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpzv.report.figure_file import save, subplots
from dpzv.report.reproduced import ItemRuns, ItemTold

__all__ = ["told"]

DEVICE, SERVER = "#0072b2", "#d55e00"


def told(runs: ItemRuns, figure: Path) -> ItemTold:
    """Devices on the left, the server on the right, and what goes between them."""
    drawn, axes = subplots(size=(9, 4.2))
    axes.set_axis_off()
    axes.set_xlim(0, 10)
    axes.set_ylim(0, 4.4)
    for name, y in (("device 1", 3.15), ("device m", 1.75), ("device M", 0.35)):
        _box(axes, 0.1, y, 3.1, 1.0, f"{name}\nits columns, weights w_m, directions u", DEVICE)
    axes.text(1.65, 1.42, "...", ha="center")
    axes.text(1.65, 2.85, "...", ha="center")
    _box(
        axes,
        6.6,
        0.5,
        3.3,
        3.4,
        "server\nlabels, table of embeddings, w_0\n\nclip each difference to C\nadd them up\n"
        "ledger: may this be released?\nadd noise",
        SERVER,
    )
    _arrow(axes, (3.25, 2.5), (6.55, 2.5), "h(w + lam u), h(w - lam u) of a batch", DEVICE)
    _arrow(axes, (6.55, 1.95), (3.25, 1.95), "Delta: one number, with noise", SERVER)
    axes.text(4.9, 1.35, "w_m moves by eta * Delta * u", ha="center", fontsize=9)
    save(drawn, figure.with_suffix(".svg"), figure.with_suffix(".png"))
    return ItemTold(
        ["what", "who sees it"], [["embeddings of a batch", "the server"], ["Delta", "all devices"]], [], True
    )


def _box(axes: Any, x: float, y: float, width: float, height: float, text: str, colour: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    look: dict[str, Any] = {"boxstyle": "round,pad=0.02,rounding_size=0.12", "facecolor": colour, "alpha": 0.12}
    axes.add_patch(FancyBboxPatch((x, y), width, height, **look))
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=9)


def _arrow(axes: Any, start: tuple[float, float], end: tuple[float, float], text: str, colour: str) -> None:
    axes.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.6})
    axes.text((start[0] + end[0]) / 2, start[1] + 0.1, text, ha="center", fontsize=9)
