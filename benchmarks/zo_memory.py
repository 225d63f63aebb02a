"""Peak memory of a zeroth-order round (two evaluations and a step) over that of inference.

Each variant runs in its own process. Its figure is its peak by the kernel's high-water mark, minus its resident size
just before the model is built.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.bar import Row
from dpzv.zo.directions import Direction, layout
from dpzv.zo.perturb import step, two_point

__all__ = ["extra_bytes", "main", "rows"]

BAR = 1.1


def rows() -> list[Row]:
    """Two rows: a stack of 48 linear layers, and a model that is nearly all word table."""
    return [
        Row(f"peak memory of a ZO round over inference, {text}", ratio(model), BAR)
        for model, text in (("stack", "48 x Linear(1024, 1024), batch 64"), ("table", "Embedding(100000, 256)"))
    ]


def ratio(model: str) -> float:
    """Extra memory of a round over that of an inference, each measured in a fresh process."""
    return extra_bytes(model, "round") / extra_bytes(model, "inference")


def extra_bytes(model: str, action: str) -> int:
    """Bytes that building `model` and doing `action` added at its peak, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.zo_memory", model, action]
    root = Path(__file__).parents[1]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, cwd=root).stdout)


def main() -> None:
    """Measure one variant, named by the two arguments, and print its bytes."""
    torch.set_num_threads(1)
    build, act = MODELS[sys.argv[1]], ACTIONS[sys.argv[2]]
    small = nn.Linear(8, 8)
    act(small, torch.zeros(64, 8))  # what torch loads on first use does not count as part of the model
    before, earlier_peak = _status("VmRSS"), _status("VmHWM")
    act(*build())
    peak = _status("VmHWM")
    assert peak > earlier_peak, "the model is too small to be seen above what importing torch took"
    print(peak - before)


def _stack() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(48))), torch.zeros(64, 1024)


def _table() -> tuple[nn.Module, Tensor]:
    ids = torch.randint(100_000, (64, 16), generator=torch.Generator().manual_seed(1))
    return nn.Sequential(nn.Embedding(100_000, 256), nn.Flatten()), ids


def _round(module: nn.Module, x: Tensor) -> None:
    u = Direction(layout(module), 1)
    two_point(module, x, u, 1e-3)
    step(u, 1e-6)


@torch.no_grad()
def _inference(module: nn.Module, x: Tensor) -> None:
    module(x)


def _status(field: str) -> int:
    """A size from the kernel's account of this process, in bytes."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {"stack": _stack, "table": _table}
ACTIONS: dict[str, Callable[[nn.Module, Tensor], None]] = {"inference": _inference, "round": _round}

if __name__ == "__main__":
    main()
