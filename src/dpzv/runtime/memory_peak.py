"""Peak memory of a device's round under each method, of one inference, and of the model: ResNet-18 on views, a BERT.

Batches are those of the recipes, and all parameters are trained. A round is what the device computes: its embeddings,
then the update by an answer. Steps are without momentum, which would add the size of one model to every method.

On a CPU each variant runs in a process of its own. Its figure is the peak of the action by the kernel's high-water
mark, minus the resident size just before the model is built. The allocator is set to return freed blocks at once: by
default it keeps some, and then six inferences in a row on ResNet-18 peak a fifth above a single one. On CUDA the figure
is `max_memory_allocated`, weights included.

    python -m dpzv.runtime.memory_peak CONFIG.toml FOLDER          all methods on the configuration's network
    python -m dpzv.runtime.memory_peak MODEL METHOD,METHOD cpu     some of them on a CPU, in bytes
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
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpzv import recipes
from dpzv.config import parse
from dpzv.declarations import METHODS, method_facts
from dpzv.methods.rules import Uplink, make_device_rule
from dpzv.methods.steps import Steps
from dpzv.models.resnet import ResNet18
from dpzv.models.text import KINDS, TextEncoder
from dpzv.runtime.programs import config_in, leave_summary
from dpzv.runtime.run_plan import batch_of
from dpzv.terms import MethodName

__all__ = ["TITLES", "main", "measured"]

EMBEDDING = 64
_MODELNET40, _AMAZON = (parse(recipes.tree(name)) for name in ("modelnet40", "amazon"))
VIEWS = batch_of(_MODELNET40)
TEXTS, TOKENS = batch_of(_AMAZON), _AMAZON.data.tokens // 3  # tokens of one of three devices
Q = _AMAZON.train.q  # directions of vfl-czofo
TITLES = {
    "resnet18": f"ResNet-18, {VIEWS} views of 32x32",
    "bert": f"BERT of 22.7 million parameters, {TEXTS} x {TOKENS} tokens",
    "mpnet": f"MPNet of 109 million parameters, {TEXTS} x {TOKENS} tokens",
    "tiny": "one layer, to see that it can be measured",
}
"""The networks that figures are about."""


def measured(model: str, action: str, accelerator: str) -> int:
    """Bytes at the peak of `action` (a method, or ``inference``) on `model`; on a CPU in a process of its own."""
    if accelerator == "cuda":
        return _on_cuda(MODELS[model], _action(action))
    return _apart(model, (action,))[0]


def _apart(model: str, actions: Sequence[str]) -> list[int]:
    """The peaks of `actions` on a CPU, one after the other in one process that does nothing else."""
    command = [sys.executable, "-m", "dpzv.runtime.memory_peak", model, ",".join(actions), "cpu"]
    # large blocks go back to the system when they are freed, so that the building of a model leaves nothing behind
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return [int(line) for line in done.stdout.split()]


def main(file: Path, folder: Path) -> None:
    """Measure all methods on the network of the configuration in `file`, and leave a summary in `folder`."""
    config, began = config_in(file), time.monotonic()
    model, accelerator = str(config.devices.model), config.runtime.accelerator
    known = model if model in MODELS else "tiny"
    network, _ = MODELS[known](0)
    weights = sum(w.numel() * w.element_size() for w in network.state_dict().values())
    del network
    actions = ("inference", *METHODS)
    if model == known or accelerator == "cuda":
        peaks = {action: measured(known, action, accelerator) for action in actions}
    else:  # a process for each would take longer than all else of a smoke test
        peaks = dict(zip(actions, _apart(known, actions), strict=True))
    summary = {"network": TITLES[known], "weights": weights, "peaks": peaks, "accelerator": accelerator}
    leave_summary(folder, config, summary | {"seconds": round(time.monotonic() - began, 3)})


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
    gc.collect()  # else this action could reuse what an earlier one left behind, and its figure would be too small
    before = _status("VmRSS")
    network, x = build(0)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again, so building is not counted
    act(network, x)
    return _status("VmHWM") - before


def _tiny_images() -> tuple[nn.Module, Tensor]:
    layers = (nn.Conv2d(1, 32, 3), nn.GroupNorm(32, 32), nn.Flatten(), nn.Linear(32 * 36, EMBEDDING))
    return nn.Sequential(*layers), torch.zeros(2, 1, 8, 8)


def _tiny() -> tuple[nn.Module, Tensor]:
    """A network of 4 MiB: the allocator asks the system for blocks of that size, so a peak is never nothing."""
    return nn.Linear(1024, 1024), torch.zeros(64, 1024)


def _tiny_text() -> tuple[nn.Module, Tensor]:
    return _text(0, words=100, hidden=24, layers=1, records=2)


def _resnet18(seed: int) -> tuple[nn.Module, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (VIEWS, 1024), generator=generator, dtype=torch.uint8)
    return ResNet18(1, 32, EMBEDDING, generator).eval(), x


def _bert(seed: int) -> tuple[nn.Module, Tensor]:
    """A BERT as large as all-MiniLM-L6-v2; memory does not depend on what the weights are."""
    return _text(seed, words=30522, hidden=384, layers=6, records=TEXTS)


def _mpnet(seed: int) -> tuple[nn.Module, Tensor]:
    """An MPNet as large as all-mpnet-base-v2, which is BERT-base's size."""
    return _text(seed, words=30527, hidden=768, layers=12, records=TEXTS, kind="MPNet")


def _small_bert(seed: int) -> tuple[nn.Module, Tensor]:
    """A smaller BERT, for a quick test."""
    return _text(seed, words=30522, hidden=192, layers=2, records=8)


def _text(
    seed: int, *, words: int, hidden: int, layers: int, records: int, kind: str = "Bert"
) -> tuple[nn.Module, Tensor]:
    transformers: Any = importlib.import_module("transformers")  # an optional part of the installation
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=words,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=12,
        intermediate_size=4 * hidden,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation=KINDS[kind.lower()].attention,
    )
    generator = torch.Generator().manual_seed(seed)
    encoder: nn.Module = getattr(transformers, f"{kind}Model")(config, add_pooling_layer=False)
    ids = torch.randint(2, words, (records, TOKENS), generator=generator, dtype=torch.int32)
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
    "mpnet": _mpnet,
    "small-bert": _small_bert,
    "tiny": lambda seed: _tiny(),
}

if __name__ == "__main__":
    if len(sys.argv) > 3:
        for name in sys.argv[2].split(","):
            sys.stdout.write(f"{_on_cpu(MODELS[sys.argv[1]], _action(name))}\n")
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
