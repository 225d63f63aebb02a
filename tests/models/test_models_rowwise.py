"""Networks that mix the records of a batch are refused with the reason; those that do not, pass."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dpzv.config import parse
from dpzv.errors import ConfigError
from dpzv.methods.rules import Uplink
from dpzv.models.rowwise import require_rowwise
from dpzv.runtime.assemble_device import make_device
from dpzv.runtime.run_plan import Sizes

X = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))


class Centred(nn.Module):
    """Subtracts the batch's mean."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class OnlyWhenLarge(nn.Module):
    """Mixes records only through the largest value of the batch, as a shared codec scale would."""

    def forward(self, x: Tensor) -> Tensor:
        return x / x.abs().max().clamp_min(100.0)


class Attending(nn.Module):
    """Takes the batch for a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(5, 1, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[:, None])[:, 0]


class Noisy(nn.Module):
    """Dropout that no eval() turns off."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5, training=True)


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)), r"1 is batch normalisation"),
        (nn.BatchNorm1d(5, track_running_stats=False).eval(), r"it is batch normalisation"),
        (nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.1)), r"1 is dropout in training mode"),
        (Centred(), "changes the embeddings of other records"),
        (OnlyWhenLarge(), "changes the embeddings of other records"),
        (Attending().eval(), "changes the embeddings of other records"),
        (Noisy(), "two evaluations of the same records differ"),
    ],
)
def test_mixing_networks_are_refused(network: nn.Module, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"device 2 must treat every record by itself, but .*{reason}"):
        require_rowwise(network, X, name="device 2")


@pytest.mark.parametrize(
    "network",
    [
        nn.Linear(5, 3),
        nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.LayerNorm(4)).eval(),
        nn.Sequential(nn.Unflatten(1, (1, 5)), nn.InstanceNorm1d(1), nn.Flatten()),
    ],
)
def test_rowwise_networks_pass(network: nn.Module) -> None:
    assert require_rowwise(network, X, name="device 1") == network(X).shape[1]


def test_token_ids_and_not_a_number_pass() -> None:
    words = nn.Sequential(nn.Embedding(50, 4), nn.Flatten())
    assert require_rowwise(words, torch.arange(24).view(6, 4), name="device 1") == 16
    broken = X.clone()
    broken[3, 2] = float("nan")
    assert require_rowwise(nn.Linear(5, 3), broken, name="device 1") == 3


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"must turn 8 records into embeddings \[8, k\], got \(8,\)"):
        require_rowwise(nn.Flatten(0), X[:, :1].reshape(8, 1), name="device 1")
    with pytest.raises(ConfigError, match="got tuple"):
        require_rowwise(nn.LSTM(5, 2), X, name="device 1")
    with pytest.raises(ConfigError, match="at least 2 records, got 1"):
        require_rowwise(nn.Linear(5, 3), X[:1], name="device 1")


class LargeOnly(nn.Linear):
    """Treats records one by one in small batches, and mixes them in batches of 9 or more."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if len(x) < 9 else x - x.mean(0))


@pytest.mark.parametrize("accelerator", ["cpu", "cuda"])
def test_a_device_is_probed_with_a_batch_of_the_real_size(accelerator: str) -> None:
    if accelerator == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    config = parse({"runtime": {"accelerator": accelerator}, "train": {"B": 64, "rounds": 1}})
    x = torch.randn(100, 5, generator=torch.Generator().manual_seed(0))
    uplink = Uplink(float("inf"), 0.0, lambda shape, stream: torch.zeros(shape).numpy())
    _, width = make_device(config, 1, nn.Linear(5, 3), x, x, Sizes(100, 1, 64, 1), uplink)
    assert width == 3
    with pytest.raises(ConfigError, match="changes the embeddings of other records"):
        make_device(config, 1, LargeOnly(5, 3), x, x, Sizes(100, 1, 64, 1), uplink)
