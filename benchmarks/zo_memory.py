"""Peak memory of a zeroth-order round (evaluations and a step) over that of inference, for K = 1 and K = 16.

Each variant runs in its own process. Its figure is its peak by the kernel's high-water mark, minus its resident size
just before the model is built.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.bar import Row, status_bytes
from dpzv.methods.rules import Uplink, make_device_rule
from dpzv.methods.steps import Steps

__all__ = ["extra_bytes", "main", "rows"]

BAR = 1.1


def rows() -> list[Row]:
    """A stack of 48 linear layers, and a model that is nearly all word table, each with one and with 16 directions."""
    return [
        Row(f"peak memory of a ZO round{K} over inference, {text}", ratio(model, action), BAR)
        for action, K in (("round", ""), ("round16", " of K = 16"))
        for model, text in (("stack", "48 x Linear(1024, 1024), batch 64"), ("table", "Embedding(100000, 256)"))
    ]


def ratio(model: str, action: str = "round") -> float:
    """Extra memory of a round over that of an inference, each measured in a fresh process."""
    return extra_bytes(model, action) / extra_bytes(model, "inference")


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
    before, earlier_peak = status_bytes("VmRSS"), status_bytes("VmHWM")
    act(*build())
    peak = status_bytes("VmHWM")
    assert peak > earlier_peak, "the model is too small to be seen above what importing torch took"
    print(peak - before)


def _stack() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(48))), torch.zeros(64, 1024)


def _table() -> tuple[nn.Module, Tensor]:
    ids = torch.randint(100_000, (64, 16), generator=torch.Generator().manual_seed(1))
    # a narrow embedding, as devices have: a message holds K + 1 of them, however little memory directions take
    return nn.Sequential(nn.Embedding(100_000, 256), nn.Flatten(), nn.Linear(16 * 256, 8)), ids


def _round(module: nn.Module, x: Tensor, K: int = 1) -> None:
    """A round of device 1 under dpzv, from its embeddings to its step."""
    plain = Uplink(math.inf, 0.0, lambda shape, stream: np.zeros(shape))
    steps = Steps(eta=1e-6, momentum=0.0, schedule="constant", T=1, K=K)
    rule = make_device_rule("dpzv", module, m=1, seed=0, lam=1e-3, steps=steps, uplink=plain)
    rule.embeddings(x, 0)
    rule.update(np.ones(K), position=0, t=1)


@torch.no_grad()
def _inference(module: nn.Module, x: Tensor) -> None:
    module(x)


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {"stack": _stack, "table": _table}
ACTIONS: dict[str, Callable[[nn.Module, Tensor], None]] = {
    "inference": _inference,
    "round": _round,
    "round16": partial(_round, K=16),
}

if __name__ == "__main__":
    main()
