"""Names of a run's training records, by which two runs can be compared without their records."""

from __future__ import annotations

from typing import Self

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dpzv.errors import PrivacyRefused

__all__ = ["UNNAMED", "RecordNames"]


class RecordNames(Struct, frozen=True, kw_only=True, eq=False):
    """One name for each of `count` different records, all equally long and one after the other in `names`.

    `key` says how the names were made. Under one key a record always has the same name, so two runs share as many
    records as they share names. Names under different keys cannot be compared, and an empty key means that there are
    none. A hash of a record's content would be no such name: the same person's record with one value corrected would
    pass for another record.
    """

    key: str = ""
    names: bytes = b""
    count: int = 0

    @classmethod
    def of_rows(cls, fingerprint: str, rows: NDArray[np.int64]) -> Self:
        """Records of a simulation, named by their row in the records with this `fingerprint`, which fixes their order.

        The key and the width of a name are a format, since ledgers keep names.
        """
        return cls(key=f"rows of {fingerprint}", names=rows.astype(">u4").tobytes(), count=len(rows))

    @classmethod
    def of_hashes(cls, key: str, hashes: NDArray[np.uint8]) -> Self:
        """Records of a network, named by the hashes of their ids; `key` stands for the secret key of the hashes."""
        return cls(key=f"ids under {key}", names=hashes.tobytes(), count=len(hashes)) if key else cls()

    def shared_with(self, other: RecordNames) -> int | None:
        """How many records both have; `None` if it cannot be told."""
        if not self.key or self.key != other.key:
            return None
        return len(np.intersect1d(self._words(), other._words()))

    def _words(self) -> NDArray[np.bytes_]:
        width, rest = divmod(len(self.names), self.count) if self.count else (0, 1)
        if rest or not width:
            raise PrivacyRefused(
                f"expected equally long names of {self.count} records, got {len(self.names)} bytes; the ledger they "
                "come from is damaged, so what its run shares with others is unknown."
            )
        return np.frombuffer(self.names, f"S{width}")


UNNAMED = RecordNames()
"""For records without names, of which nobody can tell who else trained on them."""
