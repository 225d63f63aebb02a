"""Every error a user can meet, with the exit code the command line gives it.

    DpzvError               1   internal error
    ├── ConfigError         2   usage, configuration or bad input
    ├── DataError           3   data missing or corrupt
    ├── PrivacyRefused      4   budget, uncovered rule or ledger
    ├── PeerError           5   a peer or the network
    │   └── PeerRefused     5   a refusal that stays the same however often the peer comes back
    └── DiskError           6   the disk is full or not writable

A message is one sentence: what was expected, what came, what to do.
"""

from __future__ import annotations

__all__ = ["ConfigError", "DataError", "DiskError", "DpzvError", "PeerError", "PeerRefused", "PrivacyRefused"]


class DpzvError(Exception):
    """Base of all errors that are shown to a user as one sentence."""

    exit_code = 1


class ConfigError(DpzvError):
    """A wrong option, key, type, range or array shape."""

    exit_code = 2


class DataError(DpzvError):
    """A data file is missing, truncated or has the wrong checksum."""

    exit_code = 3


class PrivacyRefused(DpzvError):
    """The privacy plan or the ledger does not allow it; privacy fails closed."""

    exit_code = 4


class PeerError(DpzvError):
    """A peer broke the protocol; the message names the peer and the reason."""

    exit_code = 5


class PeerRefused(PeerError):
    """A peer does not fit this run; its operator must change something, so it ends instead of coming back."""


class DiskError(DpzvError):
    """Something could not be written."""

    exit_code = 6
