"""Counts bytes: the lengths of encoded frames, first fill included, evaluation apart."""

from __future__ import annotations

import msgspec

__all__ = ["Meter"]


class Meter(msgspec.Struct):
    """Bytes of a run so far."""

    bytes_up: int = 0
    """All frames from devices for training, the first fill included."""
    bytes_down: int = 0
    """All frames to devices."""
    bytes_initial: int = 0
    """The part of `bytes_up` that filled the table first."""
    bytes_eval: int = 0
    """Frames uploaded only to evaluate; in no other figure."""
    payload_bytes: int = 0
    """The part of up and down that is numbers, without framing: what the paper counts."""
