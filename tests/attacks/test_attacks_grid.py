"""The grid of attacks: it trains and attacks once, goes on where it ended, and draws what it found."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from benchmarks import attack_grid, server_rebuilds

from dpzv.errors import DpzvError

SHORT = ("train.rounds=6", "head.refit_steps=10", "noise.source=seeded")


def test_two_cells_are_trained_and_attacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attack_grid, "CELLS", (("exact", float("inf")), ("paper", 10.0)))
    monkeypatch.setattr(attack_grid, "METHODS", ("vafl",))
    assert attack_grid.main("breast-cancer", "1", str(tmp_path), *SHORT) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert {(row["method"], row["run"]["asked_epsilon"], row["run"]["noise"]) for row in rows} == {
        ("vafl", None, "downlink"),
        ("vafl", 10.0, "uplink"),
    }
    bare = [row["score"] for row in rows if row["target"] == "labels" and row["run"]["asked_epsilon"] is None]
    assert max(bare) > 0.95
    header, _, *lines = (tmp_path / "table.md").read_text().splitlines()
    assert header.split(" | ")[3:5] == ["no noise", "published, 10"]
    told = {words[1]: words for words in (line.split(" | ") for line in lines)}
    best = next(row["score"] for row in rows if row["attack"] == "direction" and row["run"]["asked_epsilon"] is None)
    assert f"{best:.3f}" in told["direction"][3]
    assert told["direction"][5] == told["direction"][7] == "-"
    assert all(word in (tmp_path / "figure.svg").read_text() for word in ("vafl", "published, 10", "direction"))

    def again(*_: object, **__: object) -> None:
        raise AssertionError("A finished run was trained or attacked again.")

    monkeypatch.setattr(attack_grid, "start", again)
    monkeypatch.setattr(attack_grid, "attack_run", again)
    assert attack_grid.main("breast-cancer", "1", str(tmp_path), *SHORT) == 0
    assert json.loads((tmp_path / "rows.json").read_text()) == rows


def test_noise_on_the_uplink_is_there_at_one_and_at_ten() -> None:
    names = [name for name, _ in attack_grid.configs("breast-cancer", 1, [])]
    assert {"vafl-paper-1-0", "vafl-paper-10-0", "vafl-exact-inf-0", "vafl-exact-1-0", "vafl-exact-10-0"} <= set(names)
    assert len(names) == len(set(names)) == 5 * 4


def test_a_setting_may_be_that_of_one_method_alone() -> None:
    made = dict(attack_grid.configs("breast-cancer", 1, ["train.B=64", "vafl:train.B=80", "vafl:train.eta_m=0.5"]))
    assert (made["vafl-exact-1-0"].train.B, made["vafl-exact-1-0"].train.eta_m) == (80, 0.5)
    assert made["dpzv-exact-1-0"].train.B == 64
    assert made["dpzv-exact-1-0"].train.eta_m != 0.5


def test_what_a_killed_call_has_left_is_trained_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, config = next(iter(attack_grid.configs("breast-cancer", 1, list(SHORT))))
    monkeypatch.setattr(attack_grid, "attack_run", lambda place: [])
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.toml").write_text("")
    assert attack_grid.attacked(tmp_path / name, config) == []
    assert (tmp_path / name / "summary.json").exists()
    with pytest.raises(DpzvError):
        attack_grid.start(config, tmp_path / name, lambda _: True, float("inf"), record_view=True)


def test_the_figure_of_the_server_shows_the_table_of_the_page(tmp_path: Path) -> None:
    """It is drawn anew from the page, so that the two cannot differ."""
    docs = Path(server_rebuilds.__file__).parents[1] / "docs"
    names, scores = server_rebuilds.table((docs / "attacks.md").read_text())
    assert names[0] == "first fill"
    assert all(len(values) == len(names) for values in scores.values())
    assert set(scores) == {1, 2, 4}
    server_rebuilds.main(str(docs / "attacks.md"), str(tmp_path / "figure.svg"))
    drawn, kept = tmp_path / "figure.svg", docs / "figures" / "server-rebuilds.svg"
    shapes = [re.findall(r'<path d="[^"]*"', one.read_text()) for one in (drawn, kept)]
    assert shapes[0] == shapes[1]
