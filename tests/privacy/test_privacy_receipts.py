"""Receipts of releases: their format, and that none is good for another release."""

from __future__ import annotations

import hashlib

from dpzv.privacy.ledger_checks import Receipts

KEY = bytes(range(32))


def test_a_receipt_is_a_keyed_hash_of_sixteen_bytes() -> None:
    """Devices keep receipts while a run lasts, so another hash would refuse honest devices of a run that goes on."""
    expected = hashlib.blake2s(b"run-1 2 3 4", key=KEY, digest_size=16).digest()
    assert Receipts("run-1", KEY).make(m=2, position=3, t=4) == expected


def test_a_receipt_is_good_for_its_own_release_alone() -> None:
    receipts = Receipts("run-1", KEY)
    receipt = receipts.make(2, 3, 4)
    assert receipts.is_valid(receipt, 2, 3, 4)
    assert not any(receipts.is_valid(receipt, *other) for other in [(1, 3, 4), (2, 4, 4), (2, 3, 5), (23, 4, 4)])
    assert not Receipts("run-2", KEY).is_valid(receipt, 2, 3, 4)
    assert not Receipts("run-1", KEY[::-1]).is_valid(receipt, 2, 3, 4)
    assert not receipts.is_valid(receipt[:-1], 2, 3, 4)
