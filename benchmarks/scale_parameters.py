"""From ten thousand parameters of a device to a hundred million: the time of its round, and its memory.

A round is what the device computes: embeddings along a direction, then the step. Rounds of the sizes alternate, and
what counts is processor time, so that others on the machine do not. Memory is what the process holds for itself
(`RssAnon`) at its peak during rounds of the largest network, less what it held before the network was built, over the
size of the weights: 1 would be the weights alone, 2 a copy of them.

    python -m benchmarks.scale_parameters            the curve
"""

from __future__ import annotations

import math
import statistics
import sys
import time

import numpy as np
import torch
from torch import nn

from benchmarks.bar import Row, table
from benchmarks.scale_records import anonymous, sampled
from dpzv.methods.rules import DeviceRule, Uplink, make_device_rule
from dpzv.methods.steps import Steps

__all__ = ["rows"]

MIDDLE, LARGE = 10**6, 10**8
WIDTH, RECORDS, EMBEDDING = 1000, 32, 16
TURNS = 3


def main() -> None:
    """Print the curve."""
    print(table(_measured([10**4, 10**5, 10**7, LARGE])))


def rows() -> list[Row]:
    """Two rows: time and memory of a hundred million parameters."""
    return _measured([LARGE])


def _measured(sizes: list[int]) -> list[Row]:
    torch.set_num_threads(1)
    _round(_rule(10**4), 10**4, 0)  # what torch loads on first use does not count
    taken: dict[int, list[float]] = {d: [] for d in (MIDDLE, *sizes)}
    others = {d: _rule(d) for d in taken if d != LARGE}
    before = anonymous()
    with sampled(0.005) as peak:
        rules = others | {LARGE: _rule(LARGE)}
        for turn in range(TURNS):
            for d, seconds in taken.items():
                for k in range(max(1, MIDDLE // d)):
                    start = time.thread_time()
                    _round(rules[d], d, 100 * turn + k)
                    seconds.append(time.thread_time() - start)
    each = {d: statistics.median(seconds) / d for d, seconds in taken.items()}
    found = []
    for d in sizes:
        print(f"parameters, d={d:,}: a round takes {1e3 * d * each[d]:.2f} ms", file=sys.stderr)
        bar = 1.2 if d > MIDDLE else math.inf  # what a round costs whatever it computes counts for small networks
        name = f"parameters: time of a round for each of d={d:,}, over d={MIDDLE:,}"
        found.append(Row(name, each[d] / each[MIDDLE], bar))
    memory = (max(peak) - before) / (4 * LARGE)
    return [*found, Row(f"parameters: peak memory of d={LARGE:,} over its weights", memory, 1.1)]


def _rule(d: int) -> DeviceRule:
    """A device whose network has about `d` parameters, nearly all of them in square layers."""
    width = min(WIDTH, round(math.sqrt(d)))
    layers = [nn.Linear(width, width) for _ in range(max(1, d // width**2))]
    plain = Uplink(math.inf, 0.0, lambda shape, stream: np.zeros(shape))
    network = nn.Sequential(*layers, nn.Linear(width, EMBEDDING)).requires_grad_(True)
    steps = Steps(eta=1e-6, momentum=0.0, schedule="constant", T=1)
    return make_device_rule("dpzv", network, m=1, seed=0, lam=1e-3, steps=steps, uplink=plain)


def _round(rule: DeviceRule, d: int, position: int) -> None:
    rule.embeddings(torch.zeros(RECORDS, min(WIDTH, round(math.sqrt(d)))), position)
    rule.update(np.ones(1), position=position, t=1)


if __name__ == "__main__":
    main()
