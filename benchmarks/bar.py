"""One measured figure and the bar it must hold."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Row", "table"]


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured, the figure, and the largest (`most`) or smallest (not `most`) allowed value."""

    what: str
    figure: float
    bar: float
    most: bool = True

    @property
    def held(self) -> bool:
        """Whether the bar holds."""
        return self.figure <= self.bar if self.most else self.figure >= self.bar


def table(rows: list[Row]) -> str:
    """The rows as aligned text."""
    width = max(len(row.what) for row in rows)
    lines = [f"{'benchmark':<{width}}  {'figure':>8}  {'bar':>9}  held"]
    for row in rows:
        bar = f"{'<=' if row.most else '>='} {row.bar:g}"
        lines.append(f"{row.what:<{width}}  {row.figure:>8.3f}  {bar:>9}  {'yes' if row.held else 'NO'}")
    return "\n".join(lines)
