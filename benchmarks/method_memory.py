"""Peak memory of a device's round under each method over that of inference: ResNet-18 on views, a BERT on texts.

Batches are those of the recipes, and all parameters are trained. A round is what the device computes: its embeddings,
then the update by an answer. Steps are without momentum, which would add the size of one model to every method.

On a CPU each variant runs in a process of its own. Its figure is the peak of the action by the kernel's high-water
mark, minus the resident size just before the model is built. The allocator is set to return freed blocks at once: by
default it keeps some, and then even inference repeated six times on ResNet-18 peaks a fifth above a single one. On CUDA
the figure is `max_memory_allocated`, weights included.

    python -m benchmarks.method_memory            the table for a CPU
    python -m benchmarks.method_memory cuda       the table for an accelerator
"""

from __future__ import annotations

import functools
import gc
import importlib
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.bar import Row, table
from dpzv import recipes
from dpzv.config import parse
from dpzv.declarations import METHODS, method_facts
from dpzv.methods.rules import Uplink, make_device_rule
from dpzv.methods.steps import Steps
from dpzv.models.resnet import ResNet18
from dpzv.models.text import ATTENTION, TextEncoder
from dpzv.terms import MethodName

__all__ = ["main", "measured", "rows"]

BAR = 1.1  # for dpzv; the ratios of the other methods are only reported
EMBEDDING = 64
_MODELNET40, _AMAZON = (parse(recipes.tree(name)) for name in ("modelnet40", "amazon"))
VIEWS = _MODELNET40.train.B
TEXTS, TOKENS = _AMAZON.train.B, _AMAZON.data.tokens // 3  # tokens of one of three devices
Q = _AMAZON.train.q  # directions of vfl-czofo


def rows(accelerator: str = "cpu") -> list[Row]:
    """One row for each model and method: its peak over that of inference."""
    texts = {
        "resnet18": f"ResNet-18, {VIEWS} views of 32x32",
        "bert": f"BERT of 22.7 million parameters, {TEXTS} x {TOKENS} tokens",
    }
    found = []
    for model, text in texts.items():
        inference = measured(model, "inference", accelerator)
        for method in METHODS:
            ratio = measured(model, method, accelerator) / inference
            bar = BAR if method == "dpzv" else math.inf
            found.append(
                Row(f"peak memory of {method} over inference ({inference / 2**20:.0f} MiB), {text}", ratio, bar)
            )
    return found


def measured(model: str, action: str, accelerator: str) -> int:
    """Bytes at the peak of `action` (a method, or ``inference``) on `model`; on a CPU in a process of its own."""
    if accelerator == "cuda":
        return _on_cuda(MODELS[model], _action(action))
    command = [sys.executable, "-m", "benchmarks.method_memory", model, action, accelerator]
    # large blocks go back to the system when they are freed, so that the building of a model leaves nothing behind
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    root = Path(__file__).parents[1]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=root, env=environment)
    return int(done.stdout)


def main() -> None:
    """Print the table for an accelerator; or, given three arguments, measure that variant and print its bytes."""
    if len(sys.argv) < 4:
        print(table(rows(*sys.argv[1:])))
        return
    model, action = sys.argv[1:3]
    print(_on_cpu(MODELS[model], _action(action)))


def _action(name: str) -> Callable[[nn.Module, Tensor], None]:
    return _inference if name == "inference" else functools.partial(_round, name)


def _on_cuda(build: Callable[[int], tuple[nn.Module, Tensor]], act: Callable[[nn.Module, Tensor], None]) -> int:
    torch.backends.cudnn.allow_tf32 = False  # as a run sets it
    network, x = _tiny_images()
    act(network.cuda(), x.cuda())  # what is loaded on first use does not count as part of the model
    network, x = build(0)
    network, x = network.cuda(), x.cuda()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    act(network, x)
    return torch.cuda.max_memory_allocated()


def _on_cpu(build: Callable[[int], tuple[nn.Module, Tensor]], act: Callable[[nn.Module, Tensor], None]) -> int:
    torch.set_num_threads(1)
    for warm in (_tiny_images, _tiny_text):
        act(*warm())  # what is loaded on first use does not count as part of the model
    before = _status("VmRSS")
    network, x = build(0)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again, so building is not counted
    act(network, x)
    return _status("VmHWM") - before


def _tiny_images() -> tuple[nn.Module, Tensor]:
    layers = (nn.Conv2d(1, 32, 3), nn.GroupNorm(32, 32), nn.Flatten(), nn.Linear(32 * 36, EMBEDDING))
    return nn.Sequential(*layers), torch.zeros(2, 1, 8, 8)


def _tiny_text() -> tuple[nn.Module, Tensor]:
    return _text(0, words=100, hidden=24, layers=1, records=2)


def _resnet18(seed: int) -> tuple[nn.Module, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (VIEWS, 1024), generator=generator, dtype=torch.uint8)
    return ResNet18(1, 32, EMBEDDING, generator).eval(), x


def _bert(seed: int) -> tuple[nn.Module, Tensor]:
    """A BERT as large as all-MiniLM-L6-v2; memory does not depend on what the weights are."""
    return _text(seed, words=30522, hidden=384, layers=6, records=TEXTS)


def _small_bert(seed: int) -> tuple[nn.Module, Tensor]:
    """A smaller BERT, for a quick test."""
    return _text(seed, words=30522, hidden=192, layers=2, records=8)


def _text(seed: int, *, words: int, hidden: int, layers: int, records: int) -> tuple[nn.Module, Tensor]:
    transformers: Any = importlib.import_module("transformers")  # an optional part of the installation
    config = transformers.BertConfig(
        vocab_size=words,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=12,
        intermediate_size=4 * hidden,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation=ATTENTION,
    )
    generator = torch.Generator().manual_seed(seed)
    encoder: nn.Module = transformers.BertModel(config, add_pooling_layer=False)
    ids = torch.randint(1, words, (records, TOKENS), generator=generator, dtype=torch.int32)
    return TextEncoder(encoder, EMBEDDING, generator), ids


@torch.no_grad()
def _inference(network: nn.Module, x: Tensor) -> None:
    network(x)


def _round(method: MethodName, network: nn.Module, x: Tensor) -> None:
    """One round of a device; a second round would have the same peak."""
    plain = Uplink(math.inf, 0.0, lambda shape, stream: np.zeros(shape))
    steps = Steps(eta=1e-6, momentum=0.0, schedule="constant", T=1)
    rule = make_device_rule(method, network, m=1, seed=0, lam=1e-3, steps=steps, uplink=plain)
    h = rule.embeddings(x, 0)
    numbers = method_facts(method).numbers(h[0].shape[0], h[0].shape[1], Q, 1, True)
    rule.update(np.full(numbers, 0.1), position=0, t=1)


def _status(field: str) -> int:
    """A size from the kernel's account of this process, in bytes."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


MODELS: dict[str, Callable[[int], tuple[nn.Module, Tensor]]] = {
    "resnet18": _resnet18,
    "bert": _bert,
    "small-bert": _small_bert,
}

if __name__ == "__main__":
    main()
