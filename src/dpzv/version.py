"""The version, in a module of its own, so that reading it does not import the whole package."""

from __future__ import annotations

__all__ = ["VERSION"]

VERSION = "0.1.0"
