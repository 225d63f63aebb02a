"""Points of P-256: products against another library, in either order, and on all cores."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from dpzv.data import psi
from dpzv.data.alignment import keyed
from dpzv.data.psi import P256_ORDER, POINT_BYTES, SecretNumber
from dpzv.errors import PeerError

IDS = keyed([f"{i}" for i in range(600)], b"k" * 32)
numbers = st.integers(1, P256_ORDER - 1)


def first_coordinate(number: int) -> bytes:
    """Of the generator of the curve times `number`, by the library of our certificates."""
    public = ec.derive_private_key(number, ec.SECP256R1()).public_key().public_numbers()
    return public.x.to_bytes(POINT_BYTES, "big")


@settings(max_examples=20, deadline=None)
@given(a=numbers, b=numbers)
def test_a_product_is_that_of_another_library(a: int, b: int) -> None:
    points = np.frombuffer(first_coordinate(1) + first_coordinate(a), np.uint8).reshape(-1, POINT_BYTES)
    products = SecretNumber(b).times(points)
    assert products.tobytes() == first_coordinate(b) + first_coordinate(a * b % P256_ORDER)
    assert (SecretNumber(b).inverse().times(products) == points).all()


def test_two_numbers_hide_an_id_in_either_order_on_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = SecretNumber(), SecretNumber()
    hidden = b.times(a.hidden(IDS))
    monkeypatch.setattr(psi, "FEWEST", 1)
    monkeypatch.setattr(psi, "_cores", lambda: 7)
    assert (a.times(b.hidden(IDS)) == hidden).all()
    assert (a.inverse().times(hidden) == b.hidden(IDS)).all()
    assert len(np.unique(hidden, axis=0)) == len(IDS)
    assert a.hidden(IDS[:0]).shape == a.times(hidden[:0]).shape == (0, POINT_BYTES)


def test_bytes_that_are_no_point_are_refused() -> None:
    with pytest.raises(PeerError, match="must be a point of the curve"):
        SecretNumber().times(np.full((3, POINT_BYTES), 255, np.uint8))


def test_numbers_are_drawn_anew() -> None:
    assert len({SecretNumber().hidden(IDS[:1]).tobytes() for _ in range(4)}) == 4
