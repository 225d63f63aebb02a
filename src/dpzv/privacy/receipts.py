"""Receipts, by which a device proves to the server that it was sent a release. Nobody else can make one.

A receipt is a keyed hash of which release it was, under a key that only the ledger has; the server keeps no list. An
old copy of the ledger has the same key, so it recognises a receipt of a release that it does not know of.
"""

from __future__ import annotations

import hashlib
import hmac

__all__ = ["KEY_BYTES", "RECEIPT_BYTES", "Receipts"]

KEY_BYTES, RECEIPT_BYTES = 32, 16


class Receipts:
    """The receipts of one run."""

    def __init__(self, run_id: str, key: bytes) -> None:
        self._begun = hashlib.blake2s(run_id.encode(), key=key, digest_size=RECEIPT_BYTES)

    def make(self, m: int, position: int, t: int) -> bytes:
        """The receipt of the release of round `t` for the batch at `position` of device m."""
        keyed = self._begun.copy()
        keyed.update(b" %d %d %d" % (m, position, t))  # a format: devices keep receipts while a run lasts
        return keyed.digest()

    def is_valid(self, receipt: bytes, m: int, position: int, t: int) -> bool:
        """Whether `receipt` is the one of this release."""
        return hmac.compare_digest(receipt, self.make(m, position, t))
