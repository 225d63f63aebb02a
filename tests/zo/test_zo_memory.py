"""A zeroth-order round needs hardly more memory than inference (with more models: `make bench`)."""

from __future__ import annotations

from benchmarks.zo_memory import BAR, extra_bytes

MODEL = 48 * (1024 * 1024 + 1024) * 4  # bytes of weights


def test_peak_memory_of_a_round_against_inference() -> None:
    inference = extra_bytes("stack", "inference")
    assert MODEL <= inference <= 1.05 * MODEL  # the measure sees the model and little else
    assert extra_bytes("stack", "round") <= BAR * inference
