"""The table where many devices take part, and where it lies in a file: the same rounds as with a few in memory."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest
import torch

from dpzv.data.schedule import BatchSchedule
from dpzv.durable import make_zeros
from dpzv.errors import DiskError
from dpzv.methods import dpzv
from dpzv.methods.heads import HeadParts, make_head_rule
from dpzv.methods.rules import Question, make_server_rule
from dpzv.methods.steps import Steps
from dpzv.models.head import Head, SumHead
from dpzv.models.losses import per_record_loss
from dpzv.protocol.table import Blocks, Table
from dpzv.runtime.mapped_table import whole
from dpzv.terms import HeadRuleName

D, M, B, LAM = 50, 6, 16, 1e-2


def mapped(path: Path, widths: tuple[int, ...]) -> Blocks:
    """Rows in a new file; devices have batches as in a run."""
    make_zeros(path, 4 * D * sum(widths))
    return Blocks(str(path), widths, [BatchSchedule(0, m, B, D).order for m in range(1, len(widths) + 1)])


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("width", [1, 3])
def test_kept_sums_are_what_a_head_that_adds_would_add(width: int, in_file: bool, tmp_path: Path) -> None:
    """Many fills and rounds in two tables: the entries are equal, and so is what the head makes of a batch's rows."""
    generator, head, widths = np.random.default_rng(0), SumHead(width), (width,) * M
    plain = Table(D, widths, accelerator="cpu")
    blocks = mapped(tmp_path / "table", widths) if in_file else None
    added = Table(D, widths, accelerator="cpu", blocks=blocks, added=True)
    for m in range(1, M + 1):
        h = generator.standard_normal((D, width), np.float32)
        for table in (plain, added):
            table.put(m, slice(0, D), h, 0)
            table.put(m, slice(3, 9), h[:6], 0)  # a device that fills again
    for t in range(200):
        m, ids = 1 + t % M, generator.permutation(D)[:B]
        h, outputs = 100 * generator.standard_normal((B, width), np.float32), []
        for table in (plain, added):
            rows, columns = table.rows(m, ids)
            assert torch.equal(rows[:, columns], plain.h[ids][:, plain.columns[m - 1]])
            rows[:, columns] = torch.from_numpy(h)
            outputs.append((head(rows), rows))
        for table, (_, rows) in zip((plain, added), outputs, strict=True):
            table.keep(m, ids, rows)
        torch.testing.assert_close(outputs[1][0], outputs[0][0], rtol=1e-5, atol=1e-4)
    assert torch.equal(plain.h[0:D], added.h[0:D])
    assert added.sums is not None
    assert torch.equal(added.sums.float(), plain.h[0:D].double().view(D, M, width).sum(1).float())


def test_a_table_in_a_file_is_the_table_in_memory(tmp_path: Path) -> None:
    """Devices of different widths fill and send batches; every way to read gives the same bits."""
    widths, generator = (2, 1, 3), np.random.default_rng(3)
    near = Table(D, widths, accelerator="cpu")
    far = Table(D, widths, accelerator="cpu", blocks=mapped(tmp_path / "table", widths))
    assert isinstance(far.h, Blocks)
    for m, width in enumerate(widths, 1):
        for start in range(0, D, 20):
            h = generator.standard_normal((min(20, D - start), width), np.float32)
            for table in (near, far):
                table.put(m, slice(start, start + len(h)), h, 0)
    for t in range(60):
        m = 1 + t % 3
        ids = BatchSchedule(0, m, B, D).ids(t // 3)
        before = [part.clone() for part in far.h.parts]
        new = torch.from_numpy(generator.standard_normal((B, widths[m - 1]), np.float32))
        for table in (near, far):
            rows, columns = table.rows(m, ids)
            rows[:, columns] = new
            table.keep(m, ids, rows)
        changed = [np.flatnonzero((a != b).any(1)) for a, b in zip(before, far.h.parts, strict=True)]
        assert [len(places) for places in changed] == [B * (m == device) for device in (1, 2, 3)]
        gaps = np.diff(np.sort(changed[m - 1]))
        assert np.count_nonzero(gaps > 1) <= 1  # one piece, or two at the end of the walk
    assert torch.equal(far.h[0:D], near.h[0:D])
    assert torch.equal(far.h[7], near.h[7])
    some = torch.tensor([4, 0, 44])
    assert torch.equal(far.h[some], near.h[some])
    assert torch.equal(whole(far, str(tmp_path / "table")), near.h[0:D])
    assert [path.name for path in tmp_path.iterdir()] == ["table"]


@pytest.mark.parametrize("rule", ["frozen", "sgd", "joint-zo"])
def test_a_wide_first_layer_gives_the_same_answer(monkeypatch: pytest.MonkeyPatch, rule: HeadRuleName) -> None:
    """What is read once and then changed is, but for rounding, what Algorithm 1 reads twice; double precision shows it.

    A head that is shifted itself is always read twice, and answers with the same bits.
    """
    generator, loss = torch.Generator().manual_seed(1), per_record_loss("binary")
    head = Head(M * 4, 8, 1, generator).double()
    steps = Steps(0.1, 0.0, "constant", 100)
    made = make_server_rule(
        "dpzv", make_head_rule(rule, HeadParts(head=head, loss=loss, steps=steps, seed=0, lam=LAM)), loss, 100.0
    )
    rows, y = torch.randn(B, M * 4, generator=generator).double(), (torch.arange(B) % 2).double()
    h = np.random.default_rng(2).standard_normal((2, B, 4))
    totals, kept = [], []
    for wide in (dpzv.WIDE, 0):
        monkeypatch.setattr(dpzv, "WIDE", wide)
        asked = Question(1, 2, 0, rows.clone(), slice(4, 8), (h[0], h[1]), y, LAM)
        answer = made.answer(asked)
        totals.append(answer.totals[0] * answer.grid)
        kept.append(asked.rows)
    assert totals[0] == pytest.approx(totals[1], rel=1e-9)
    assert (totals[0] == totals[1]) or rule != "joint-zo"
    assert torch.equal(*kept)


def test_a_mapped_table_is_its_owners_and_starts_with_zeros(tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_bytes(b"what was there before")
    path.chmod(0o644)
    table = Table(D, (1,) * M, accelerator="cpu", blocks=mapped(path, (1,) * M))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not table.h[0:D].any()
    table.put(2, slice(0, D), np.ones((D, 1), np.float32), 0)
    stored = np.fromfile(path, np.float32).reshape(M, D)
    assert stored.sum(axis=1).tolist() == [0, D, 0, 0, 0, 0]


def test_a_disk_without_room_for_the_table_is_a_sentence(tmp_path: Path) -> None:
    """Nothing is left behind; a mapped file without space would end the process at the first write."""
    with pytest.raises(DiskError, match=r"table could not be written .*; choose another table\.path"):
        make_zeros(tmp_path / "table", 1 << 60, "choose another table.path")
    assert list(tmp_path.iterdir()) == []
