"""Rounds captured once and replayed: a CUDA graph starts hundreds of operations by one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Replay"]

WARM = 3
"""Calls that run as they are before the first capture: libraries make what they need in their first calls."""

SIZES = (32, 8, 4, 1)
"""How many calls one graph holds; a block is put together from these."""


class Replay:
    """Calls `body(i)` for the rows of a tape; on CUDA from graphs of several calls, elsewhere as it is.

    `body` must work on the same tensors in every call with the same i. The first calls are real ones, so capturing
    changes nothing.
    """

    def __init__(self, body: Callable[[int], None], accelerator: torch.device, pool: Any = None) -> None:
        self._body, self._cuda = body, accelerator.type == "cuda"
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self._warm, self._pool = 0, pool

    def play(self, first: int, n: int) -> None:
        """Call `body` with first, first + 1, ..., n times."""
        while n:
            size = 1
            if not self._cuda:
                self._body(first)
            elif self._warm < WARM:
                self._call(first)
            else:
                size = next(size for size in SIZES if size <= n and first % size == 0)
                self._graph(first, size).replay()
            first, n = first + size, n - size

    def _call(self, i: int) -> None:
        """Call `body` on a stream of its own, as its capture will."""
        side: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        here = torch.cuda.current_stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            self._body(i)
        here.wait_stream(side)
        self._warm += 1

    def _graph(self, first: int, size: int) -> torch.cuda.CUDAGraph:
        if (first, size) not in self._graphs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                for i in range(first, first + size):
                    self._body(i)
            self._graphs[first, size] = graph
        return self._graphs[first, size]
