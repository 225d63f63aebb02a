"""The run records behind docs/reproduction.md, kept in one file so that figures can be drawn again and runs go on.

python -m benchmarks.reproduction_records unpack runs/reproduce-full     what is kept, as run folders
python -m benchmarks.reproduction_records pack runs/reproduce-full       what is finished there, into the kept file

A record is a run's configuration, its summary and its metrics. `dpzv reproduce` takes unpacked runs for finished ones,
and runs what is missing.
"""

from __future__ import annotations

import lzma
import sys
from pathlib import Path

import msgspec

__all__ = ["KEPT", "main", "pack", "unpack"]

KEPT = Path(__file__).with_name("reproduction.jsonl.xz")
FILES = ("config.toml", "metrics.jsonl", "summary.json")
"""What a record holds, where a run has it; the last one says that the run is finished, and is written last."""


class Record(msgspec.Struct, frozen=True):
    """A finished run: the name of its folder, and its files as text."""

    key: str
    files: dict[str, str]


def pack(out: Path, kept: Path = KEPT) -> int:
    """Keep the finished runs of a reproduction, in place of what was kept before; returns how many there are."""
    lines = []
    for summary in sorted((out / "runs").glob("*/summary.json")):
        files = {name: (summary.parent / name).read_text() for name in FILES if (summary.parent / name).exists()}
        lines.append(msgspec.json.encode(Record(summary.parent.name, files)))
    kept.write_bytes(lzma.compress(b"\n".join(lines)))
    return len(lines)


def unpack(out: Path, kept: Path = KEPT) -> int:
    """Make run folders of what is kept, where there are none; returns how many were made."""
    made = 0
    for line in lzma.decompress(kept.read_bytes()).splitlines():
        record = msgspec.json.decode(line, type=Record)
        folder = out / "runs" / record.key
        if not (folder / FILES[-1]).exists():
            folder.mkdir(parents=True, exist_ok=True)
            for name in FILES:
                if name in record.files:
                    (folder / name).write_text(record.files[name])
            made += 1
    return made


def main(what: str, out: str) -> int:
    """Pack or unpack, and say how many runs."""
    count = {"pack": pack, "unpack": unpack}[what](Path(out))
    print(f"{what}ed {count} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
