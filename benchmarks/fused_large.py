"""Large device networks on an accelerator: captured rounds against eager ones, and a difference in bfloat16.

`python -m benchmarks.fused_large` needs CUDA. A round's answer is the difference of two nearly equal losses, so what
counts is not whether a network learns in bfloat16 but whether that difference survives its 8 bits.
"""

from __future__ import annotations

import time
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dpzv.models import MODELS, NetworkRequest
from dpzv.rng import torch_generator
from dpzv.runtime.fused_flat import Flat
from dpzv.runtime.fused_graph import Replay
from dpzv.runtime.fused_tape import normalise

__all__ = ["main"]

B, LAM = 256, 1e-3


def _network() -> nn.Module:
    wanted = NetworkRequest(3 * 32 * 32, 16, 32, "random", lambda: None, torch_generator(0, "large"))  # type: ignore[arg-type,return-value]
    return MODELS["resnet18"].make(wanted).cuda().eval()


def _rate(advance: object, n: int) -> float:
    advance(3)  # type: ignore[operator]
    torch.cuda.synchronize()
    begin = time.perf_counter()
    advance(n)  # type: ignore[operator]
    torch.cuda.synchronize()
    return n / (time.perf_counter() - begin)


def main() -> None:
    """Print rates of two forwards with their difference, and errors of the difference in bfloat16."""
    torch.backends.cudnn.allow_tf32 = False
    network = _network()
    flat = Flat(network)
    x = torch.rand(B, 3 * 32 * 32, device="cuda")
    y = torch.randint(10, (B,), device="cuda")
    head = torch.randn(16, 10, device="cuda") / 4
    w = flat.joined([p for p in network.parameters() if p.requires_grad]).detach()
    u = torch.empty_like(w)
    flat.draw(u, 1, torch.Generator("cuda"))
    normalise(u, flat)
    found = torch.zeros(B, device="cuda", dtype=torch.float64)

    def losses(row: Tensor, dtype: torch.dtype) -> Tensor:
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            h = functional_call(network, flat.views(row), (x,))
        return nn.functional.cross_entropy(h.float() @ head, y, reduction="none").double()

    def body(i: int, dtype: torch.dtype = torch.float32) -> None:
        with torch.no_grad():
            f = losses(w + LAM * u, dtype) - losses(w - LAM * u, dtype)
            found.copy_(f / (2 * LAM))

    print(torch.cuda.get_device_name(), f"ResNet-18, d = {flat.d:,}, B = {B}, two forwards and their difference")
    answers = {}
    for dtype in (torch.float32, torch.bfloat16):
        graph = Replay(partial(body, dtype=dtype), torch.device("cuda"))

        def eager(n: int, dtype: torch.dtype = dtype) -> None:
            for _ in range(n):
                body(0, dtype)

        def captured(n: int, graph: Replay = graph) -> None:
            for _ in range(n):
                graph.play(0, 1)

        slow, fast = _rate(eager, 30), _rate(captured, 30)
        answers[dtype] = found.clone()
        print(f"{dtype}: eager {slow:.1f} a second, captured {fast:.1f} a second, ratio {fast / slow:.2f}")
    exact, rough = answers[torch.float32], answers[torch.bfloat16]
    error = (rough - exact).square().mean().sqrt()
    print(
        f"root mean square of a record's difference {exact.square().mean().sqrt():.4g}, of its error in bfloat16 "
        f"{error:.4g}; mean over the batch {exact.mean():.4g} in float32, {rough.mean():.4g} in bfloat16"
    )


if __name__ == "__main__":
    main()
