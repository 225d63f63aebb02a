"""Records of several parties become the rows of one frame: they are joined by index, never by their order."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import scipy.sparse

__all__ = ["Frames", "join_parties", "joined", "one_frame"]

Frames = Mapping[str, pd.DataFrame] | Sequence[pd.DataFrame]
"""One frame a party, by its name; parties in a list are called party-1, party-2, ..."""


def join_parties(frames: Frames) -> tuple[pd.DataFrame, dict[str, list[str]]]:
    """One frame of the records that all parties hold, and the names of each party's columns in it.

    Records are joined by index and stand in the order of the first party's frame. The column ``age`` of the party
    ``bank`` is called ``bank.age``. Use both with `cross_val_score` and the like, which split one frame:
    ``X, parties = join_parties({"bank": a, "shop": b})``. Records that some party lacks are left out, with a warning.
    """
    named = _frames_of(frames)
    if named is None:
        raise ValueError(f"expected one DataFrame a party, got {type(frames).__name__}; give a mapping of frames.")
    frame, parties = _joined_frames(named)
    if any(len(one) > len(frame) for one in named.values()):
        held = ", ".join(f"{name} has {len(one)}" for name, one in named.items())
        warnings.warn(
            f"of the records of the parties only {len(frame)} are shared by all ({held}), and the others are left out; "
            "if that is too few, compare how their indices write ids.",
            stacklevel=2,
        )
    return frame, parties


def _joined_frames(named: Mapping[str, pd.DataFrame]) -> tuple[pd.DataFrame, dict[str, list[str]]]:
    for name, frame in named.items():
        _refuse_repeated(frame.index, f"the index of '{name}'")
    first, *others = named.values()
    shared = first.index
    for frame in others:
        shared = shared[shared.isin(frame.index)]
    if shared.empty:
        raise ValueError(
            f"expected records that all parties hold, got none that {', '.join(named)} share; check that their "
            "indices have the same ids, written in the same way."
        )
    parts = [
        frame.loc[shared].set_axis([f"{name}.{column}" for column in frame.columns], axis=1)
        for name, frame in named.items()
    ]
    parties = {name: list(part.columns) for name, part in zip(named, parts, strict=True)}
    return pd.concat(parts, axis=1), parties


def joined(X: Any, y: Any) -> tuple[Any, Any, dict[str, list[str]] | None]:
    """Records and labels in one order, and the columns of each party if `X` is several frames.

    They are joined by index where both have one; else their order is taken to be the same. Labels for several frames
    must have an index, and records of several frames that have no label are left out.
    """
    frames = _frames_of(X)
    parties = None
    if frames is not None:
        X, parties = join_parties(frames)
    if not isinstance(y, pd.Series | pd.DataFrame):
        if parties is not None and y is not None:
            raise ValueError(
                f"labels for several frames are joined by index, got {type(y).__name__} without one; give a pandas "
                "Series with the index of the frames."
            )
        return X, y, parties
    if not isinstance(X, pd.DataFrame) or X.index.equals(y.index):
        return X, y, parties
    _refuse_repeated(X.index, "the index of X")
    _refuse_repeated(y.index, "the index of y")
    shared = X.index[X.index.isin(y.index)]
    if shared.empty or (parties is None and len(shared) < max(len(X), len(y))):
        raise ValueError(
            f"X and y must have the same index, got {len(shared)} shared records of {len(X)} in X and {len(y)} in y; "
            "select the same records in both, or reset both indices if their rows are in the same order."
        )
    if len(shared) < len(X):
        warnings.warn(
            f"only {len(shared)} of the {len(X)} records that all parties hold have a label, and the others are left "
            "out.",
            stacklevel=2,
        )
    return X.loc[shared], y.loc[shared], parties


def one_frame(X: Any) -> Any:
    """`X` itself, or the join of several frames, which must hold the same records; in the order of the first."""
    frames = _frames_of(X)
    if frames is None:
        return X
    frame, _ = _joined_frames(frames)
    held = {name: len(one) for name, one in frames.items()}
    if set(held.values()) != {len(frame)}:
        raise ValueError(
            f"predictions need every record at every party, got {held} of which {len(frame)} are shared; select the "
            "shared records first, for example with join_parties."
        )
    return frame


def _frames_of(X: Any) -> dict[str, pd.DataFrame] | None:
    """The parties' frames by name if `X` is several frames, else None."""
    if scipy.sparse.issparse(X):
        return None  # some sparse matrices are mappings; scikit-learn refuses them in its own words
    if isinstance(X, Mapping):
        wrong = [name for name, frame in X.items() if not isinstance(frame, pd.DataFrame)]
        if wrong or not X:
            raise ValueError(
                f"a mapping must give every party its pandas DataFrame, got another kind for {wrong or 'no party'}; "
                "give frames, whose index names the records."
            )
        return {str(name): frame for name, frame in X.items()}
    if isinstance(X, list | tuple) and X and all(isinstance(frame, pd.DataFrame) for frame in X):
        return {f"party-{m}": frame for m, frame in enumerate(X, 1)}
    return None


def _refuse_repeated(index: pd.Index, what: str) -> None:
    if not index.is_unique:
        again = index[index.duplicated()]
        raise ValueError(
            f"{what} must name every record once, got {len(again)} repeated ids, such as {again[0]!r}; "
            "keep one row a record."
        )
