"""Two organisations' files, joined by id."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from dpzv import config, recipes
from dpzv.data import catalogue
from dpzv.data.columns import Column
from dpzv.data.frames import train_and_test
from dpzv.data.sets import credit
from dpzv.errors import DataError

GUEST, HOST = "default_credit_hetero_guest.csv", "default_credit_hetero_host.csv"
SOURCE = "Made up for this test."
COLUMNS = tuple(Column(device=m, name="x0", kind="range", low=0, high=100, source=SOURCE) for m in (1, 2))
IDS = [str(i) for i in np.random.default_rng(1).permutation(50)]


def write(folder: Path, guest: list[str], host: list[str], packed: bool = False) -> Path:
    """Files in which x0 of the guest is the id, x0 of the host twice the id, and y its parity."""
    texts = {
        GUEST: "id,y,x0\n" + "".join(f"{i},{int(i) % 2},{i}\n" for i in guest),
        HOST: "id,x0,x1\n" + "".join(f"{i},{2 * int(i)},0.5\n" for i in host),
    }
    for name, text in texts.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("packed", [False, True])
def test_records_are_joined_by_id_whatever_their_order(tmp_path: Path, packed: bool) -> None:
    data = catalogue.load("credit", write(tmp_path, IDS, IDS[::-1], packed), COLUMNS)
    assert data.devices == ("guest", "host")
    ids = np.array(sorted(IDS), dtype=int)  # sorted as text
    train, test = train_and_test("credit", 50)
    for (guest, host), y, part in ((data.x_train, data.y_train, train), (data.x_test, data.y_test, test)):
        assert np.allclose(guest[:, 0], ids[part] / 50 - 1)
        assert np.allclose(host[:, 0], 2 * ids[part] / 50 - 1)
        assert np.array_equal(y, ids[part] % 2)
    assert (len(train), len(test)) == (40, 10)
    shuffled = tmp_path / "again"
    shuffled.mkdir()
    assert catalogue.load("credit", write(shuffled, IDS[::-1], IDS), COLUMNS).fingerprint == data.fingerprint


def test_ids_that_only_one_side_has_are_dropped_and_counted(tmp_path: Path) -> None:
    raw = credit.raw(write(tmp_path, IDS[:45], IDS[3:]))
    assert len(raw.y) == len(raw.frames[0]) == len(raw.frames[1]) == 42
    assert (2 * raw.frames[0]["x0"] == raw.frames[1]["x0"]).all()
    assert raw.card.source.endswith("8 clients that only one of them knows are left out.")


def test_the_fingerprint_names_ids_and_values(tmp_path: Path) -> None:
    first = catalogue.load("credit", write(tmp_path, IDS, IDS), COLUMNS).fingerprint
    path = tmp_path / HOST
    path.write_text(path.read_text().replace("0.5", "0.25", 1))
    assert catalogue.load("credit", tmp_path, COLUMNS).fingerprint != first  # though x1 is not encoded


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    def refused(words: str) -> None:
        with pytest.raises(DataError, match=words):
            catalogue.load("credit", tmp_path, COLUMNS)

    refused(f"lacks {GUEST}, gzipped or not; set data.path")
    write(tmp_path, [*IDS, *IDS[:2]], IDS)
    refused(f"{GUEST} should name every client once, but 2 rows repeat")
    write(tmp_path, IDS[:20], IDS[20:])
    refused("should share ids, but have none in common")
    write(tmp_path, IDS, IDS)
    (tmp_path / GUEST).write_text("id,y,x0\n" + "".join(f"{i},2,1\n" for i in IDS))
    refused(f"{GUEST} in .* should have a column y of 0 and 1")
    (tmp_path / GUEST).write_text("id,y,x0\n" + "".join(f"{i},1,high\n" for i in IDS))
    refused(f"{GUEST} should hold numbers, but x0 holds text")
    (tmp_path / GUEST).write_text("key,y,x0\n1,1,1\n")
    refused(f"{GUEST} should be a csv file with a column id")
    (tmp_path / GUEST).unlink()
    (tmp_path / f"{GUEST}.gz").write_bytes(b"\x1f\x8b no gzip")
    refused(f"{GUEST}.gz should be a csv file")


def test_the_recipe_names_every_column_of_both_organisations() -> None:
    columns = config.parse(recipes.tree("credit")).data.columns
    assert [c.name for c in columns if c.device == 1] == [f"x{i}" for i in range(13)]
    assert [c.name for c in columns if c.device == 2] == [f"x{i}" for i in range(10)]
