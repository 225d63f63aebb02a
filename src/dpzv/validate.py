"""Small checks whose failures are sentences."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

from dpzv.errors import ConfigError

__all__ = ["fraction", "nearest", "one_of", "positive", "probability", "whole"]


def nearest(name: str, known: Iterable[str]) -> str:
    """``did you mean 'a' or 'b'?`` for a misspelt name, or the whole list if nothing is near."""
    choices = sorted(known)
    close = difflib.get_close_matches(name, choices, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(f"'{choice}'" for choice in close) + "?"
    return "choose one of: " + ", ".join(choices) + "."


def one_of(name: str, value: str, known: Iterable[str]) -> str:
    """Return `value` if it is known, else refuse it with the nearest valid names."""
    choices = list(known)
    if value not in choices:
        raise ConfigError(f"{name} '{value}' is not known; {nearest(value, choices)}")
    return value


def positive(name: str, value: float) -> float:
    """Return `value` if it is above 0 (infinity is), else refuse it."""
    if not value > 0:
        raise ConfigError(f"{name} must be above 0, got {value}; set {name} to a positive number.")
    return value


def whole(name: str, value: float, least: int) -> int:
    """Return `value` as an integer if it is a whole number of at least `least`, else refuse it."""
    if not math.isfinite(value) or value != int(value) or value < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {value}; change {name}.")
    return int(value)


def probability(name: str, value: float) -> float:
    """Return `value` if it lies strictly between 0 and 1, else refuse it."""
    if not 0 < value < 1:
        raise ConfigError(f"{name} must lie strictly between 0 and 1, got {value}; 1e-5 is a usual choice.")
    return value


def fraction(name: str, value: float) -> float:
    """Return `value` if it lies in [0, 1), else refuse it."""
    if not 0 <= value < 1:
        raise ConfigError(f"{name} must lie in [0, 1), got {value}; it is a share of the budget.")
    return value
