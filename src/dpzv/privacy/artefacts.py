"""Everything a run leaves behind: who holds it, whether it may leave, and why."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dpzv.privacy.plan import PrivacyPlan

__all__ = ["Artefact", "artefact_lines", "artefacts_of"]


class Artefact(Struct, frozen=True, kw_only=True):
    """One thing a run makes. `may_leave` is whether the claim covers handing it to anybody."""

    name: str
    holder: str
    may_leave: bool
    why: str


def artefacts_of(plans: Sequence[PrivacyPlan], *, guarantee: bool) -> tuple[Artefact, ...]:
    """The table of artefacts of runs under `plans`; without a guarantee nothing may leave."""
    private_head = all(plan.head_rule in ("dp-sgd", "joint-zo", "frozen") for plan in plans)
    # without releases a start is not charged, since it stays at its device
    looked = any(
        start in ("pca", "weights") or (start == "dp-pca" and not plan.spends)
        for plan in plans
        for start in plan.starts
    )
    backpropagated = any(plan.spends and plan.method in ("vafl", "vfl-czofo") for plan in plans)
    rows = (
        ("Deltas", "server, devices", True, "released through the ledger; the claim is about them"),
        (
            "w_m",
            "device m",
            not looked and not backpropagated,
            "backpropagation put its raw features into it"
            if backpropagated
            else "its start saw features without noise that is accounted for (or was given)"
            if looked
            else "follows from its start and the Deltas, which the claim covers",
        ),
        (
            "w_0",
            "server",
            private_head,
            "moves by private quantities only; the claim counts them as released"
            if private_head
            else "moves by un-noised labels",
        ),
        ("final head (refit)", "server", False, "fitted to all labels without noise after the last Delta"),
        ("predictions", "server", False, "what they reveal of records and labels is not covered"),
        ("logs and metrics", "server", False, "computed from labels without noise"),
        ("ledger", "server", False, "holds hashes of the devices' uploads beside the Deltas"),
        ("checkpoint", "server", False, "holds the table of embeddings"),
    )
    return tuple(
        Artefact(
            name=name,
            holder=holder,
            may_leave=may and guarantee,
            why=why if guarantee or not may else "this run makes no guarantee",
        )
        for name, holder, may, why in rows
    )


def artefact_lines(artefacts: Sequence[Artefact]) -> list[str]:
    """The table as aligned text, a heading first."""
    rows = [("artefact", "holder", "may leave", "why")]
    rows += [(a.name, a.holder, "yes" if a.may_leave else "no", a.why) for a in artefacts]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        "  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows
    ]
