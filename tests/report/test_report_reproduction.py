"""Lines over seeds, verdicts against the paper, and the scripts of items, by figures computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from dpzv.report.items import (
    fig_budget,
    fig_clipping,
    fig_convergence,
    fig_honest,
    fig_memory,
    fig_overview,
    fig_theory,
)
from dpzv.report.panels import Curve, Panel, by_row, draw, level, over_budgets, window
from dpzv.report.reproduced import ItemRuns, ItemTold, Line, Shown, lines_of, percent, standard
from dpzv.report.reproduction_page import numbers, verdict, words, write_page
from dpzv.runtime.reproduction import SMOKE, Asked, Cell, cells_of
from dpzv.runtime.reproduction_files import item_of, workloads
from tests.report.conftest import texts

TABLE = "table-communication"


def shown(cell: Cell, accuracy: float | None = None, until: float | None = None, **more: Any) -> Shown:
    """A run of `cell` with this accuracy that reached its target after so many megabytes; unfinished without one."""
    if accuracy is None:
        return Shown(cell, None, [])
    targets = {} if until is None else {"0.9": {"round": 1, "bytes": until * 1e6}}
    summary = {
        "private_head": {"test_accuracy": accuracy},
        "test_accuracy": accuracy + 0.01,
        "bytes_up": 3e6,
        "bytes_down": 1e6,
        "targets": targets,
        **more,
    }
    return Shown(cell, summary, [])


def cells(row: str, workload: str = "mnist", accounting: str = "paper", name: str = TABLE) -> list[Cell]:
    found = cells_of(item_of(name), Asked("full", Path("nowhere")))
    chosen = [c for c in found if (c.workload, c.row, c.accounting) == (workload, row, accounting)]
    return [replace(cell, trials=8, missing="") for cell in chosen]


def test_a_line_has_the_mean_and_deviation_of_its_seeds() -> None:
    a, b, c = cells("dpzv")
    line = Line((shown(a, 0.9, 10), shown(b, 0.92, 14), shown(c, 0.94, 12)))
    assert line.text(lambda run: run.in_loop, percent) == "92.00 ± 2.00"
    assert line.text(lambda run: run.until, str) == "12.0 ± 2.0"
    assert (line.status, line.label) == ("", "DPZV, first-order head")
    some = Line((shown(a, 0.9, 10), shown(b, 0.8), shown(c)))
    assert some.text(lambda run: run.until, str) == "10.0 (1 of 2)"
    assert some.status == "2 of 3 seeds"
    none = Line((shown(replace(a, trials=0)), shown(b)))
    assert (none.status, none.label) == ("not run yet", "DPZV, first-order head (untuned)")
    assert none.text(lambda run: run.until, str) == "-"
    assert Line((shown(replace(a, missing="not run: no records")),)).status == "not run: no records"


def test_a_run_that_fits_no_head_after_its_rounds_has_no_refitted_figure() -> None:
    in_loop_only, fitted = cells("dpzv")[0], cells("dpzv", accounting="exact", name="fig-honest")[0]
    assert math.isnan(shown(in_loop_only, 0.9).refitted)
    assert Line((shown(in_loop_only, 0.9),)).text(lambda run: run.refitted, percent) == "-"
    assert shown(fitted, 0.9).refitted == pytest.approx(0.91)


@pytest.mark.parametrize(
    ("until", "word"),
    [(500, "better"), (519, "matches"), (633, "matches"), (634, "worse"), (None, "worse")],
)
def test_bytes_within_a_tenth_of_the_papers_match(until: float | None, word: str) -> None:
    (number,) = [n for n in numbers() if n.what == "MNIST, MB until 90 %, DPZV"]
    (a, *_) = cells("dpzv")
    assert verdict(number, Line((shown(a, 0.9, until),)), workloads()["mnist"]) == word
    untuned = Line((shown(replace(a, trials=0), 0.9, until),))
    assert verdict(number, untuned, workloads()["mnist"]) == f"{word} (untuned)"
    assert verdict(number, Line((shown(a),)), workloads()["mnist"]) == "-"


def test_where_the_paper_never_got_there_the_same_matches() -> None:
    (number,) = [n for n in numbers() if n.what == "MNIST, MB until 90 %, ZOO-VFL"]
    assert math.isinf(number.megabytes or 0)
    (a, *_) = cells("zoo-vfl")
    assert verdict(number, Line((shown(a, 0.5),)), workloads()["mnist"]) == "matches"
    assert verdict(number, Line((shown(a, 0.95, 70),)), workloads()["mnist"]) == "better"


def test_other_data_than_the_papers_are_not_compared() -> None:
    (number,) = [n for n in numbers() if n.what == "ModelNet40, MB until 50 %, DPZV"]
    (a, *_) = cells("dpzv", "modelnet40")
    assert verdict(number, Line((shown(a, 0.9, 1),)), workloads()["modelnet40"]).startswith(
        "not comparable: ModelNet10"
    )
    odd = next(n for n in numbers() if n.never)
    assert verdict(odd, None, workloads()["cifar10"]).startswith("not comparable: the paper's own target")


def test_memory_is_compared_over_the_models_size() -> None:
    (number,) = [n for n in numbers() if n.what == "ResNet-18, peak memory over the model's size, VAFL"]
    (a,) = cells("memory", "modelnet40", name="fig-memory")
    run = shown(a, 0.0, weights=100, peaks={"vafl": 290, "dpzv": 101, "inference": 97})
    told = "matches; one inference alone takes 0.97"
    assert words(number, {"fig-memory": [Line((run,))]}, workloads())[2:] == ["2.90", "the same", "-", told]
    assert words(number, {"fig-memory": [Line((shown(a),))]}, workloads())[-1] == "-"


def test_memory_of_a_smoke_test_is_that_of_another_network(tmp_path: Path) -> None:
    item = item_of("fig-memory")
    (cell,) = {c.job.key: c for c in cells_of(item, Asked(SMOKE, Path("nowhere")))}.values()
    run = shown(cell, 0.0, weights=100, peaks={"vafl": 290, "dpzv": 101, "inference": 97})
    runs = ItemRuns("fig-memory", item, workloads(), (Line((run,)),))
    write_page({"fig-memory": (runs, ItemTold(["none"], [], [], False))}, "none", tmp_path / "page.md")
    rows = [line.split(" | ") for line in (tmp_path / "page.md").read_text().splitlines() if "peak memory over" in line]
    assert {row[2] for row in rows} == {"1.01", "2.90"}
    assert all(row[-1].startswith("not comparable: a smoke test") for row in rows)


def test_the_row_of_a_number_has_both_accounts_and_the_frozen_devices() -> None:
    number = numbers()[0]
    runs = [shown(cells("dpzv")[0], 0.95, 15), shown(cells("frozen")[0], 0.94, 16)]
    runs.append(shown(cells("dpzv", accounting="exact")[0], 0.93, 50))
    row = words(number, {number.item: lines_of(runs)}, workloads())
    figures = ["15.0, ends at 95.00 %", "50.0, ends at 93.00 %", "16.0, ends at 94.00 %"]
    assert row == [number.what, number.paper, *figures, "better"]
    runs[1] = shown(cells("frozen")[0], 0.94, 15)
    assert words(number, {number.item: lines_of(runs)}, workloads())[-1] == "better; frozen devices need no more"
    runs.append(shown(cells("dpzv")[1]))
    assert words(number, {number.item: lines_of(runs)}, workloads())[2] == "15.0, ends at 95.00 % (1 of 2 seeds)"


def test_every_figure_of_a_row_that_nobody_tuned_is_marked() -> None:
    number = numbers()[0]
    exact, still = (replace(cells(row, accounting="exact")[0], trials=0) for row in ("dpzv", "frozen"))
    lines = lines_of([shown(cells("dpzv")[0], 0.95, 15), shown(exact, 0.93, 50), shown(still, 0.91)])
    row = words(number, {number.item: lines}, workloads())
    assert row[2:4] == ["15.0, ends at 95.00 %", "50.0, ends at 93.00 % (untuned)"]
    assert row[4].endswith("true: 4.0, ends at 91.00 % (untuned)")


def test_frozen_devices_without_rounds_reach_the_target_with_the_first_fill_alone() -> None:
    """Their head is fitted when everything was sent, so no round could note that it got there."""
    number = numbers()[0]
    still = cells("frozen", accounting="exact")
    assert {cell.job.rounds for cell in still} == {0}
    assert [shown(cell, accuracy).until for cell, accuracy in zip(still, (0.91, 0.89), strict=False)] == [4.0, math.inf]
    assert math.isinf(shown(cells("dpzv")[0], 0.99).until)  # it has rounds, and none of them noted the target
    lines = lines_of([shown(cells("dpzv")[0], 0.95, 15), shown(cells("frozen")[0], 0.94, 16), shown(still[0], 0.91)])
    row = words(number, {number.item: lines}, workloads())
    assert row[4] == "16.0, ends at 94.00 %; true: 4.0, ends at 91.00 %"


def test_what_was_never_reached_says_in_how_many_bytes_and_where_it_ended() -> None:
    (number,) = [n for n in numbers() if n.what == "MNIST, MB until 90 %, VFL-CZOFO"]
    a, b, c = cells("vfl-czofo")
    lines = lines_of([shown(a, 0.87), shown(b, 0.87)])
    assert words(number, {number.item: lines}, workloads())[2] == "never in 4.0, ends at 87.00 ± 0.00 %"
    some = Line((shown(a, 0.91, 18), shown(b, 0.92, 19), shown(c, 0.89)))
    assert verdict(number, some, workloads()["mnist"]) == "worse: 1 of 3 seeds never get there"


def test_frozen_devices_say_nothing_about_a_rival_which_has_another_head() -> None:
    (number,) = [n for n in numbers() if n.what == "MNIST, MB until 90 %, VAFL"]
    lines = lines_of([shown(cells("vafl")[0], 0.95, 16), shown(cells("frozen")[0], 0.94, 15)])
    assert words(number, {number.item: lines}, workloads())[-1] == "better"


@pytest.mark.parametrize(("rounds", "told"), [((0, 1), "; its first evaluation passed"), ((0, 0.5, 1), "")])
def test_a_target_that_the_first_evaluation_passed_may_have_needed_less(rounds: tuple[float, ...], told: str) -> None:
    """The summary notes that the target was passed in round 1."""
    run = replace(shown(cells("dpzv")[0], 0.95, 16), metrics=[{"round": t} for t in rounds])
    verdict_told = words(numbers()[0], {numbers()[0].item: lines_of([run])}, workloads())[-1]
    assert verdict_told.startswith(f"better{told}")
    assert run.at_once is bool(told)


def test_what_stays_at_chance_matches_for_another_reason() -> None:
    (number,) = [n for n in numbers() if n.what == "CIFAR-10, accuracy at epsilon 0.1, ZOO-VFL"]
    (a,) = [c for c in cells("zoo-vfl", "cifar10", name="fig-tradeoff") if c.epsilon == 0.1]
    found = [verdict(number, Line((shown(a, accuracy),)), workloads()["cifar10"]) for accuracy in (0.105, 0.2, 0.4)]
    assert found == ["matches, at chance: ours never learned", "matches", "better"]


def test_what_releases_nothing_or_is_not_private_names_no_budget() -> None:
    found = {
        row: Line((shown(cells(row, accounting="exact", name="fig-widths")[0]),)).rule for row in ("untrained", "dpzv")
    }
    assert found == {"untrained": ("exact", "0"), "dpzv": ("exact", "1")}
    (cell, *_) = cells("backpropagation", accounting="exact", name="fig-widths")
    assert Line((shown(cell),)).rule == ("-", "none")


def test_outputs_that_are_no_numbers_are_no_success() -> None:
    (number,) = [n for n in numbers() if n.what == "CIFAR-10, accuracy at epsilon 0.1, ZOO-VFL"]
    (cell,) = [c for c in cells("zoo-vfl", "cifar10", name="fig-tradeoff") if c.epsilon == number.epsilon]
    lost = verdict(number, Line((shown(cell, math.nan),)), workloads()["cifar10"])
    assert lost == "worse: its outputs became no numbers"


def test_a_simple_model_has_no_account_and_no_budget_on_the_page() -> None:
    (plain,) = cells("plain")
    (frozen, *_) = cells("frozen")
    assert Line((shown(plain, 0.9),)).rule == ("-", "none")
    assert Line((shown(frozen, 0.9),)).rule == ("paper", "1")


def test_a_simple_model_has_one_row_and_no_bytes_and_is_a_level_of_its_figure(tmp_path: Path) -> None:
    for name, columns in (("fig-convergence", [5, 7]), ("fig-budget", [3, 4])):
        item, found = item_of(name), cells("plain", "cifar10", name=name)
        runs = ItemRuns(name, item, workloads(), lines_of([shown(cell, 0.5) for cell in found]))
        script = {"fig-convergence": fig_convergence, "fig-budget": fig_budget}[name]
        rows = [row for row in script.told(runs, tmp_path / name).rows if row[1] == "strong simple model"]
        assert len(found) > 1
        assert [[row[place] for place in columns] for row in rows] == [["50.00", "-"]]
    line = Line((shown(cells("plain")[0], 0.5),))
    drawn = level(line, [Curve("a", [3.0, 9.0], [1.0, 2.0]), Curve("b", [1.0], [1.0]), Curve("none", [], [])])
    assert (drawn.label, drawn.x, drawn.y) == ("strong simple model", [1.0, 9.0], [50.0, 50.0])
    assert level(line, []).x == []  # beside nothing it is no figure


def test_a_head_that_never_moved_has_no_figure_in_the_loop() -> None:
    (cell, *_) = cells("untrained", accounting="exact", name="fig-honest")
    run = shown(cell, 0.12, private_head={"test_accuracy": 0.12, "trained": False}, test_accuracy=0.97)
    assert math.isnan(run.in_loop)
    assert Line((run,)).text(lambda found: found.in_loop, percent) == "-"
    assert run.refitted == 0.97
    panel = fig_honest._accuracy("MNIST", [Line((shown(cells("dpzv", accounting="exact")[0], 0.9),)), Line((run,))])
    assert [(curve.x, curve.y) for curve in panel.curves] == [([1.0], [90.0]), ([1.0, 1.0], [97.0, 97.0])]


def test_a_zeroth_order_head_stands_beside_frozen_devices_with_such_a_head() -> None:
    (number,) = [n for n in numbers() if n.row == "dpzv-zo" and n.workload == "mnist"]
    runs = [shown(cells("dpzv-zo")[0], 0.91, 800), shown(cells("frozen-zo")[0], 0.9, 900)]
    row = words(number, {number.item: lines_of([*runs, shown(cells("frozen")[0], 0.95, 16)])}, workloads())
    assert row[2:] == ["800.0, ends at 91.00 %", "not run: cost", "900.0, ends at 90.00 %", "worse"]


def test_a_number_may_have_its_true_guarantee_in_another_item() -> None:
    (number,) = [n for n in numbers() if n.what == "CIFAR-10, accuracy at epsilon 0.1, ZOO-VFL"]
    mine = [c for c in cells("zoo-vfl", "cifar10", name="fig-tradeoff") if c.epsilon == number.epsilon]
    others = cells("zoo-vfl", "cifar10", "exact", name="fig-honest")
    lines = {
        "fig-tradeoff": lines_of([shown(cell, 0.2) for cell in mine]),
        "fig-honest": lines_of([shown(cell, 0.3 if cell.epsilon == number.epsilon else 0.4) for cell in others]),
    }
    assert words(number, lines, workloads())[2:4] == ["20.00 %", "30.00 %"]
    assert words(number, {"fig-tradeoff": lines["fig-tradeoff"]}, workloads())[3] == "not run: cost"


def test_the_standard_table_says_what_was_left_out_for_its_cost() -> None:
    item = item_of("fig-convergence")
    header, rows = standard(ItemRuns("fig-convergence", item, workloads(), ()))
    assert [row[-1] for row in rows] == ["not run: cost"] * len(item.left_out)
    assert all(len(row) == len(header) for row in rows)


def test_many_rows_that_were_not_run_are_one_line_of_the_page() -> None:
    rows = [["MNIST", f"row {n}", "-", "not run yet"] for n in range(4)] + [["MNIST", "done", "9", "-"]]
    rows += [["CIFAR-10", f"row {n}", "-", "not run yet"] for n in range(3)]
    page = ItemTold(["workload", "row", "figure", "state"], rows, [], False).page()
    lines = [line.strip("| ").split(" | ") for line in page.strip().splitlines()[2:]]
    assert lines == [rows[4], ["MNIST", "4 rows", "-", "not run yet"], *rows[5:]]


def test_the_true_epsilon_of_published_settings() -> None:
    """The figures of docs/fidelity.md: 60,000 records, delta 1e-3."""
    assert fig_honest.true_epsilon(1.0, 1e-3, 512, 60_000) == pytest.approx(21.0866, rel=1e-5)
    assert fig_honest.true_epsilon(0.1, 1e-3, 64, 60_000) == pytest.approx(6.41211, rel=1e-5)
    assert fig_honest.true_epsilon(10.0, 1e-3, 60_000, 60_000) == pytest.approx(10.0, rel=1e-9)


def test_the_accuracy_within_a_number_of_bytes_is_that_of_the_last_evaluation_before_them() -> None:
    lines = [{"bytes_up": 10 * t, "bytes_down": t, "test_accuracy": t / 10} for t in range(1, 6)]
    run = Shown(cells("dpzv")[0], {}, lines)
    assert [fig_budget._within(run, most) for most in (5, 11, 32.9, 33, 1000)] == [0.1, 0.1, 0.2, 0.3, 0.5]


def test_the_mean_over_rounds_and_its_exponent() -> None:
    looks = [{"round": t, "squared_norm": value} for t, value in ((0, 8.0), (10, 4.0), (20, 0.0))]
    assert fig_theory._means({"gradient": looks}) == ([10.0, 20.0], [6.0, 4.0])
    looks = [{"round": t, "squared_norm": value} for t, value in ((0, 8.0), (1, 4.0), (10, 4.0))]
    assert fig_theory._means({"gradient": looks}) == ([1.0, 10.0], [6.0, 4.2])  # the start counts for one round
    x = [1.0, 4.0, 16.0]
    assert fig_theory._exponent(x, [value**-0.5 for value in x]) == pytest.approx(-0.5)


def test_a_figure_without_a_point_is_not_drawn_and_others_are_the_same_each_time(tmp_path: Path) -> None:
    empty = Panel("nothing", "x", "y", [Curve("none", [], [])])
    assert not draw([empty], tmp_path / "empty")
    assert not list(tmp_path.iterdir())
    full = Panel("something", "x", "y", [Curve("line", [1.0, 2.0], [90.0, 95.0], band=[1.0, 0.5])])
    assert draw([full, empty, full, full, full], tmp_path / "a")
    assert draw([full, empty, full, full, full], tmp_path / "again" / "a")
    first, second = (place / "a.svg" for place in (tmp_path, tmp_path / "again"))
    assert first.read_bytes() == second.read_bytes()
    assert "something" in first.read_text()
    assert "nothing" not in first.read_text()
    assert (tmp_path / "a.png").exists()


@pytest.mark.parametrize(("count", "rows", "columns"), [(1, 1, 1), (3, 1, 3), (4, 2, 2), (5, 2, 3), (7, 3, 3)])
def test_panels_fill_their_rows(count: int, rows: int, columns: int, tmp_path: Path) -> None:
    panels = [Panel("", "x", "y", [Curve("line", [1.0, 2.0], [90.0, 95.0])])] * count
    assert draw(panels, tmp_path / "a")
    svg = ElementTree.parse(tmp_path / "a.svg").getroot()
    size = [float(svg.get(side, "0pt")[:-2]) / 72 for side in ("width", "height")]
    assert size == pytest.approx([5.2 * columns, 4.2 * rows])


@pytest.mark.parametrize("panels", [1, 2, 3])
def test_the_words_below_a_figure_are_not_cut_off(panels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["DPZV, first-order head (untuned)", "VAFL", "ZOO-VFL", "VFL-CZOFO", "devices frozen, first-order head"]
    kept: list[Any] = []
    monkeypatch.setattr("dpzv.report.panels.save", lambda figure, *paths: kept.append(figure))
    curves = [Curve(name, [1.0, 2.0], [90.0, 95.0]) for name in names]
    assert draw([Panel("", "x", "y", curves)] * panels, tmp_path / "a")
    (figure,) = kept
    figure.draw_without_rendering()
    (words,) = figure.legends
    box = words.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width
    assert [text.get_text() for text in words.get_texts()] == names


@pytest.mark.parametrize(("without_a_clip", "scale"), [(0.3, "linear"), (2e16, "log")])
def test_a_loss_that_ran_away_has_a_logarithmic_axis(
    without_a_clip: float, scale: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a plain one the other curve would have no shape."""
    kept: list[Any] = []
    monkeypatch.setattr("dpzv.report.panels.save", lambda figure, *paths: kept.append(figure))
    lines = []
    for cell, loss in zip(cells("dpzv", name="fig-clipping"), (0.2, without_a_clip), strict=True):
        metrics = [{"round": t, "test_loss": loss} for t in (0, 200)]
        lines.append(Line((replace(shown(cell, 0.5), metrics=metrics),)))
    runs = ItemRuns("fig-clipping", item_of("fig-clipping"), workloads(), tuple(lines))
    fig_clipping.told(runs, tmp_path / "fig-clipping")
    assert [axes.get_yscale() for axes in kept[0].axes] == [scale]


def test_bars_of_memory_are_named_in_full(tmp_path: Path) -> None:
    item = item_of("fig-memory")
    cell = cells("memory", "amazon", name="fig-memory")[0]
    network = "BERT of 22.7 million parameters, 64 x 64 tokens"
    peaks = {"inference": 180, "dpzv": 181, "vafl": 811, "zoo-vfl": 182, "vfl-czofo": 811}
    run = shown(cell, 0.0, weights=100, peaks=peaks, network=network, accelerator="cpu")
    told = fig_memory.told(ItemRuns("fig-memory", item, workloads(), (Line((run,)),)), tmp_path / "fig-memory")
    methods = ["one inference", "DPZV", "VAFL", "ZOO-VFL", "VFL-CZOFO"]
    assert [row[2] for row in told.rows] == methods
    words = texts(tmp_path / "fig-memory.svg")
    assert words.count("BERT of 22.7 million parameters") == words.count("64 x 64 tokens") == 2
    assert {*methods, "the model", "itself", "8.11", "4.51"} <= {*words}


def test_the_overview_says_who_sees_what_in_the_letters_of_the_paper(tmp_path: Path) -> None:
    told = fig_overview.told(ItemRuns("fig-overview", item_of("fig-overview"), {}, ()), tmp_path / "fig-overview")
    words = "\n".join(texts(tmp_path / "fig-overview.svg"))
    for part in ("all devices together may collude", "every Δ", "trusted: the server", "step of the head", "λ", "η₀"):
        assert part in words
    assert "lam" not in words
    assert "Delta" not in words
    assert ["Δ", "all devices together see every one; the guarantee is about this"] in told.rows


def test_every_case_of_a_row_is_a_curve_against_the_budget() -> None:
    """A rival's longer run at a larger budget, and the one that is as long as its trials."""
    lines = [Line((shown(cell, 0.5 + 0.1 * bool(cell.case.name)),)) for cell in cells("vafl", name="fig-tradeoff")]
    panel = over_budgets("MNIST", lines, lambda run: run.in_loop)
    assert [(curve.label, curve.x) for curve in panel.curves] == [
        ("VAFL", [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
        ("VAFL, as long as its trials", [3.0, 4.0, 5.0]),
    ]
    assert [curve.y[0] for curve in panel.curves] == pytest.approx([50.0, 60.0])


def test_a_case_that_is_a_place_on_the_axis_is_a_point_of_its_row() -> None:
    lines = [
        Line((shown(cell, 0.5),)) for cell in cells("dpzv", accounting="exact", name="fig-widths") if not cell.seed
    ]
    (curve,) = by_row(lines, lambda line: line.cell.case.x or 0.0, lambda run: run.in_loop)
    assert (curve.label, curve.x) == ("DPZV, first-order head", [1.0, 2.0, 4.0, 8.0, 16.0])


def test_axes_use_their_space_whatever_the_first_rounds_were() -> None:
    """A curve that begins at 10 % and stays above 90 % is shown from 90 % on; a short one is shown whole."""
    steep = Curve("steep", list(range(20)), [10.0, 60.0, 80.0, *[90.0 + t / 2 for t in range(17)]])
    assert window([steep]) == pytest.approx((90.0 - 0.4, 98.0 + 0.4))
    assert window([Curve("short", [0.0, 1.0], [10.0, 90.0])]) == pytest.approx((6.0, 94.0))
    assert window([Curve("one", [0.0], [5.0])]) == (4.5, 5.5)
    low, high = window([Curve("huge", [0.0], [1e30])])  # a loss that diverged
    assert low < 1e30 < high
    assert window([Curve("lost", [0.0, 1.0, 2.0], [math.nan, 10.0, 90.0])]) == pytest.approx((6.0, 94.0))


def test_numbers_are_read_strictly() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(
            {"what": "x", "paper": "1", "item": "a", "workload": "b", "row": "c", "mb": 1}, type(numbers()[0])
        )
