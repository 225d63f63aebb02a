"""What a device that comes back must show, and what that shows of the server: whether its ledger is an old copy."""

from __future__ import annotations

from contextlib import suppress

from dpzv.declarations import start_facts
from dpzv.errors import DiskError, PeerRefused, PrivacyRefused
from dpzv.network.wire import Hello
from dpzv.privacy.ledger import Ledger

__all__ = ["ROLLED_BACK", "check_return"]

ROLLED_BACK = "the server's ledger is an old copy, so its run has ended; ask the server's operator what follows"
"""What a device hears of it: it has done nothing wrong."""


def check_return(ledger: Ledger, m: int, hello: Hello) -> PrivacyRefused | None:
    """Refuse device m if its folder does not belong to this run; the end of the run if the ledger is an old copy."""
    if hello.run_id and hello.run_id != ledger.run_id:
        raise PeerRefused(
            f"device {m} has weights of another run; give it an empty folder, or connect it to that run's server."
        )
    if m in ledger.heard and not hello.run_id and start_facts(ledger.plan.starts[m - 1]).private:
        raise PeerRefused(
            f"device {m} has lost its folder, and with it its private start, which cannot be drawn again; restore the "
            "folder, or start a new run."
        )
    return _rollback(ledger, m, hello) if hello.run_id and hello.position else None


def _rollback(ledger: Ledger, m: int, hello: Hello) -> PrivacyRefused | None:
    """The end of the run, if device m was sent a release that the ledger lacks; the ledger then never opens again.

    A receipt that this server did not give proves nothing, so only the device that shows it is refused.
    """
    release = m, hello.position - 1, hello.t
    if not ledger.receipts.is_valid(hello.receipt, *release):
        raise PeerRefused(
            f"device {m} is at batch {hello.position} and must show the receipt of its last release, got one that this "
            "server did not give; restore its folder, or give it an empty one."
        )
    if ledger.knows(*release):
        return None
    if not ledger.durable:
        raise PeerRefused(
            f"device {m} was sent the release of round {hello.t}, which the server has forgotten: with simulated noise "
            "a server that is killed loses the rounds since its last checkpoint; start a new run."
        )
    with suppress(DiskError):  # the run ends all the same, and the same receipt will end it again
        ledger.disown()
    return PrivacyRefused(
        f"device {m} has the receipt of round {hello.t}, which the ledger does not hold: the ledger is an old copy, "
        "and going on would draw fresh noise for what was released before. This folder never opens again, and what its "
        "run has spent is no longer known: start a new run on other records."
    )
