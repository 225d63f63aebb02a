"""The parties as processes of different owners: who they are, and how they reach each other."""

from __future__ import annotations

__all__: list[str] = []
