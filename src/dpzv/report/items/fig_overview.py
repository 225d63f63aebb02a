"""`fig-overview`: the system, drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpzv.report.figure_file import save, subplots
from dpzv.report.reproduced import ItemRuns, ItemTold

__all__ = ["told"]

DEVICE, SERVER, NOISE = "#0072b2", "#d55e00", "#009e73"

DEVICES = (("device 1", 3.45), ("device m", 2.05), ("device M", 0.65))
"""The name of each and its height."""

STEPS = (
    ("differences of losses\nδ = (f⁺ − f⁻) / 2λ for each record, clipped to ±C", SERVER, 3.25),
    ("ledger: may this be released?\nΔ = mean of the clipped differences + noise", NOISE, 1.93),
    ("step of the head: w₀ moves by η₀; where a guarantee\nis claimed, only by values that have noise", NOISE, 0.6),
)
"""What the server does, its colour and its height."""

SEEN = [
    ["columns, wₘ, u", "their device, and all devices that it colludes with"],
    ["h(wₘ ± λu) of a batch", "the server, which is trusted"],
    ["labels, losses, δ, w₀", "the server alone"],
    ["Δ", "all devices together see every one; the guarantee is about this"],
]


def told(runs: ItemRuns, figure: Path) -> ItemTold:
    """Devices on the left, the server on the right, what goes between them, and who trusts whom."""
    drawn, axes = subplots(size=(11, 5.2))
    axes.set_axis_off()
    axes.set_xlim(0, 11)
    axes.set_ylim(0, 5.2)
    _boundary(
        axes, 0.1, 3.4, "all devices together may collude:\nthey see every Δ and all their columns, wₘ and u", DEVICE
    )
    _boundary(axes, 6.7, 4.2, "trusted: the server\nholds labels, the table of embeddings and the head w₀", SERVER)
    for name, y in DEVICES:
        _box(axes, (0.35, y), (2.9, 0.9), f"{name}\nits columns, weights wₘ, direction u", DEVICE)
    for place in (1.8, 3.2):
        axes.text(1.8, place, "···", ha="center", va="center")
    for text, colour, y in STEPS:
        _box(axes, (6.95, y), (3.7, 0.92), text, colour)
    _arrow(axes, (3.6, 3.6), (6.6, 3.6), "h(wₘ + λu), h(wₘ − λu) of a batch", DEVICE)
    _arrow(axes, (6.6, 2.4), (3.6, 2.4), "Δ: one number, with noise", NOISE)
    axes.text(5.1, 2.05, "wₘ moves by −ηₘ Δ u", ha="center", fontsize=9)
    for top, bottom in ((3.2, 2.93), (1.88, 1.6)):
        _arrow(axes, (8.8, top), (8.8, bottom), "", SERVER)
    axes.text(5.1, 0.95, "the guarantee is about\nwhat crosses to the left", ha="center", fontsize=9, color=NOISE)
    save(drawn, figure.with_suffix(".svg"), figure.with_suffix(".png"))
    return ItemTold(["what", "who sees it"], SEEN, [], True)


def _boundary(axes: Any, x: float, width: float, text: str, colour: str) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, 0.35), width, 4.7, fill=False, linestyle=(0, (4, 3)), edgecolor=colour))
    axes.text(x + width / 2, 4.75, text, ha="center", va="center", fontsize=9, color=colour)


def _box(axes: Any, place: tuple[float, float], size: tuple[float, float], text: str, colour: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    look: dict[str, Any] = {"boxstyle": "round,pad=0.02,rounding_size=0.12", "facecolor": colour, "alpha": 0.12}
    axes.add_patch(FancyBboxPatch(place, *size, **look))
    axes.text(place[0] + size[0] / 2, place[1] + size[1] / 2, text, ha="center", va="center", fontsize=9)


def _arrow(axes: Any, start: tuple[float, float], end: tuple[float, float], text: str, colour: str) -> None:
    axes.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.6})
    axes.text((start[0] + end[0]) / 2, start[1] + 0.1, text, ha="center", fontsize=9)
