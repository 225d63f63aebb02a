"""What leaves, what it costs, and the only gate through which it leaves; no tensors here."""

from __future__ import annotations

__all__: list[str] = []
