"""Rows of words as text: in aligned columns, as a table for a page, and a figure with its deviation."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["columned", "figure_text", "metric_name", "paged"]


def paged(header: Sequence[str], rows: Sequence[Sequence[str]], above: Sequence[str], below: Sequence[str]) -> str:
    """A table for a page, with the sentences above and below it."""
    lines = ["| " + " | ".join(words) + " |" for words in (header, ["---"] * len(header), *rows)]
    return "\n\n".join([*above, "\n".join(lines), *below]) + "\n"


def columned(lines: Sequence[Sequence[str]]) -> str:
    """Lines of words as text in aligned columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(words, widths, strict=True)).rstrip() for words in lines
    )


def metric_name(metric: str) -> str:
    """A metric as the head of a column."""
    return {"auc": "AUC", "r2": "R^2"}.get(metric, metric)


def figure_text(metric: str, mean: float, deviation: float | None) -> str:
    """A mean with its deviation, if it has one; an accuracy is told in per cent."""
    scale, digits, unit = (100, 2, " %") if metric == "accuracy" else (1, 4, "")
    told = "" if deviation is None else f" ± {scale * deviation:.{digits}f}"
    return f"{scale * mean:.{digits}f}{told}{unit}"
