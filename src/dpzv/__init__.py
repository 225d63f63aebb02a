"""Differentially private vertical federated learning by zeroth-order optimisation (DPZV)."""

from __future__ import annotations

from dpzv.version import VERSION as __version__

__all__ = ["Federation", "__version__"]


def __getattr__(name: str) -> object:
    """`Federation` brings torch along; it is imported when asked for, so that light commands start fast."""
    if name == "Federation":
        from dpzv.federation import Federation

        return Federation
    raise AttributeError(f"module 'dpzv' has no attribute '{name}'")


def __dir__() -> list[str]:
    """What is public, also before it is imported."""
    return sorted({*globals(), *__all__})
