"""Long work goes to a thread, so that the event loop can still answer pings, write the status, say goodbye and stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

__all__ = ["aside"]

T = TypeVar("T")


async def aside(work: Callable[[], T]) -> T:
    """What `work` returns, done in a thread. A thread cannot be ended, so whoever is cancelled here waits for it."""
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait({working})
        raise
