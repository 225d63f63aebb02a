"""Seeded runs release the same numbers, byte for byte, as when `transcripts.json` was written.

A change that means to alter them writes the file anew, and says why in its commit:
``python tests/golden/test_golden_transcripts.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
HASHES = HERE / "transcripts.json"
PINNED = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "Nehalem",
}
"""Every library takes the code that all x86-64 processors have: otherwise the last bits follow the machine."""


def hashes() -> str:
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.run(
            [sys.executable, HERE / "golden_child.py", folder],
            env={**os.environ, **PINNED},
            capture_output=True,
            text=True,
        )
    assert child.returncode == 0, child.stderr
    return child.stdout


def test_seeded_runs_release_what_they_released_before() -> None:
    found, kept = json.loads(hashes()), json.loads(HASHES.read_text())
    assert found.keys() == kept.keys()
    assert {name: values for name, values in found.items() if values != kept[name]} == {}


if __name__ == "__main__":
    HASHES.write_text(hashes())
