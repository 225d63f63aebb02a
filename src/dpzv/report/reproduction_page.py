"""The page of a reproduction: every number that the paper prints beside ours, then every item's figure and table."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

import msgspec

from dpzv import recipes
from dpzv.durable import write_atomically
from dpzv.report.page import page
from dpzv.report.reproduced import NOT_YET, ItemRuns, ItemTold, Line, Shown, percent
from dpzv.report.run_records import read_runs
from dpzv.report.table_text import paged
from dpzv.runtime.reproduction import SMOKE
from dpzv.runtime.reproduction_files import TUNING, Workload
from dpzv.validate import converted
from dpzv.version import VERSION

__all__ = ["HEADER", "Number", "numbers", "tell_item", "verdict", "words", "write_page", "write_reports"]

HEADER = [
    "what",
    "the paper",
    "ours at the paper's accounting",
    "ours at a true guarantee",
    "untrained, same head",
    "verdict",
]

NEAR = 0.1
"""A byte count within a tenth of the paper's matches it."""

A_POINT = 0.01
"""An accuracy within a point of chance has learned nothing."""


class Number(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One number of the paper, and the runs beside it; exactly one of the three measures is set.

    `accuracy` and `memory` (over the model's size) are ranges in which a figure matches. `never` says why no figure can
    be compared. `exact_item` names the item with the run at a true guarantee, if it is not `item`.
    """

    what: str
    paper: str
    item: str
    workload: str
    row: str
    epsilon: float = 1.0
    megabytes: float | None = None
    accuracy: tuple[float, float] | None = None
    memory: tuple[float, float] | None = None
    never: str = ""
    exact_item: str = ""

    def value(self, run: Shown) -> float:
        """The figure of a run that stands beside it."""
        if self.memory is not None:
            return float(run.known["peaks"][self.row] / run.known["weights"])
        return run.in_loop if self.accuracy is not None else run.until

    def form(self, value: float) -> str:
        """A figure of `value` as words: a share in per cent, megabytes, or a factor."""
        if self.memory is not None:
            return f"{value:.2f}"
        return f"{percent(value)} %" if self.accuracy is not None else f"{value:.1f}"


def numbers() -> list[Number]:
    """All of them, in the order of the paper."""
    return converted(recipes.reproduction("paper"), dict[str, list[Number]])["numbers"]


def words(number: Number, lines: Mapping[str, Sequence[Line]], workloads: Mapping[str, Workload]) -> list[str]:
    """The row of a number; `lines` are those of every item."""
    own, others = lines[number.item], lines.get(number.exact_item or number.item, ())
    paper, exact = _line(number, own, number.row, "paper"), _line(number, others, number.row, "exact")
    frozen = _line(number, own, paper.cell.kind.frozen if paper else "frozen", "paper")
    still = _line(number, others, "frozen", "exact")  # the whole budget is its head's, whatever the row
    cells = [_text(number, line) for line in (paper, exact, frozen)]
    if number.memory is not None:  # memory does not depend on an account, nor on what devices have learned
        cells[1:] = ["the same", "-"]
    elif still is not None and still.finished:
        cells[2] += f"; true: {_text(number, still)}"
    told = verdict(number, paper, workloads[number.workload])
    told += _by_the_head(number, paper, frozen) + _at_once(number, paper) + _by_inference(number, paper)
    return [number.what, number.paper, *cells, told]


def _by_the_head(number: Number, line: Line | None, frozen: Line | None) -> str:
    """What is added to a verdict where devices that never move get there with the same bytes or fewer.

    They have the settings of one row; beside other rows it would say nothing.
    """
    if line is None or frozen is None or number.megabytes is None or not (line.finished and frozen.finished):
        return ""
    own, still = line.mean(number.value), frozen.mean(number.value)
    assert own is not None
    assert still is not None
    alike = frozen.cell.kind.like == line.cell.row
    return "; frozen devices need no more" if alike and still < math.inf and still <= own else ""


def _at_once(number: Number, line: Line | None) -> str:
    """What is added where the first evaluation after round 0 passed the target, in any run: bytes may be fewer."""
    once = line is not None and number.megabytes is not None and any(run.at_once for run in line.finished)
    return "; its first evaluation passed, so this is the most it can be" if once else ""


def _by_inference(number: Number, line: Line | None) -> str:
    """What is added to a verdict about memory: what the network takes at this batch without any training."""
    if number.memory is None or line is None or not line.finished:
        return ""
    found = line.finished[0].known
    return f"; one inference alone takes {number.form(found['peaks']['inference'] / found['weights'])}"


def verdict(number: Number, line: Line | None, workload: Workload) -> str:
    """Matches, better or worse; or why the two cannot be compared."""
    if number.never:
        return f"not comparable: {number.never}"
    if line is None or not line.finished:
        return "-"
    # what a round takes does not depend on the records, so memory is compared; a smoke test has one small layer
    if workload.substitute and (number.memory is None or number.workload == SMOKE):
        return f"not comparable: {workload.substitute}"
    value = line.mean(number.value)
    assert value is not None
    if math.isnan(value):
        word = "worse: its outputs became no numbers"
    elif number.megabytes is not None:
        word = _of_bytes(value, number.megabytes) + _some_never(line)
    else:
        low, high = number.accuracy or number.memory or (0.0, math.inf)
        less, more = ("worse", "better") if number.accuracy else ("better", "worse")
        word = "matches" if low <= value <= high else less if value < low else more
        if word == "matches" and number.accuracy and value <= workload.chance + A_POINT:
            word = "matches, at chance: ours never learned"
    return f"{word} (untuned)" if line.cell.trials == 0 else word


def _some_never(line: Line) -> str:
    """What is added where some seeds reach the target and others do not."""
    never = sum(math.isinf(run.until) for run in line.finished)
    return f": {never} of {len(line.finished)} seeds never get there" if 0 < never < len(line.finished) else ""


def _of_bytes(value: float, paper: float) -> str:
    if math.isinf(value) or math.isinf(paper):
        return "matches" if value == paper else "worse" if math.isinf(value) else "better"
    return "matches" if abs(value - paper) <= NEAR * paper else "better" if value < paper else "worse"


def _line(number: Number, lines: Sequence[Line], row: str, accounting: str) -> Line | None:
    """The line that stands beside a number, if the item has one."""
    row = "memory" if number.memory is not None else row
    for line in lines:
        cell = line.cell
        same = (cell.workload, cell.row, cell.accounting) == (number.workload, row, accounting)
        if same and (cell.epsilon == number.epsilon or row == "memory"):
            return line
    return None


def _text(number: Number, line: Line | None) -> str:
    if line is None:
        return "not run: cost"
    if not line.finished:
        return line.cell.missing or NOT_YET
    text = line.text(number.value, number.form)
    if number.megabytes is not None:
        ends = f"{line.text(lambda run: run.in_loop, percent)} %"
        sent = line.text(lambda run: run.megabytes, number.form).split(" ")[0]
        text = f"never in {sent}, ends at {ends}" if text == "never" else f"{text}, ends at {ends}"
    marks = [*(["untuned"] if line.cell.trials == 0 else []), *([line.status] if line.status else [])]
    return text + (f" ({', '.join(marks)})" if marks else "")


INTRODUCTION = """# Reproduction

This page is written by `dpzv reproduce` from run records, and by nothing else: a figure that was not run says so.

- **Networks.** MNIST and CIFAR-10 have the paper's CNNs from a random start, all weights trained. ModelNet has a
  ResNet-18 from a random start, and reviews a pretrained MiniLM; of both only the map behind them is trained, so that
  what comes before it is computed once for each record. Of a review every device has 64 tokens. Embeddings have 16
  numbers (MNIST), 64 (CIFAR-10, ModelNet) or the width of the encoder, in 16 bits for all methods; the paper prints
  none of these. Fewer and shorter numbers are much of why our bytes are fewer. VAFL's gradients come back in 32 bits,
  so a round of it costs half as much again as one of DPZV's, where in the paper both cost the same.
- **Frozen devices** have the same head in the loop over devices that never move, so what stands between them and the
  row that trains devices is what training adds. The column "untrained, same head" has those whose head moves by the
  rule of the row; after "true:" stands what a private head reaches when the whole exact budget is its own. Beside a
  rival they still have DPZV's head, batch and length, and no noise on embeddings: there it is not what training adds.
- **Privacy.** At the paper's accounting no figure is a guarantee ([fidelity](fidelity.md)). The exact account
  protects labels (`fig-widths`: records) against all devices together. All runs have simulated noise, which can be
  repeated; with secret noise the exact figures would be under a guarantee.
- **Tuning.** Every method has the same number of trials on held-out training records, and rows that nobody tuned say
  so. What all methods share (widths, codec, the momentum of the head) was chosen with DPZV beforehand, which favours
  it.

A run counts wherever it was computed: on a CPU round by round, or on an accelerator in fused rounds (`--set
runtime.accelerator=cuda --jobs 4`). Results differ by rounding, which grows over a run; two computations of one run may
end as far apart as two seeds. The records behind the published page are in the repository, and each says where it was
computed: `python -m benchmarks.reproduction_records unpack runs/reproduce-full` brings them back, and the command goes
on from there.

    {command}
"""


HOW_JUDGED = (
    "`-` as a verdict: there is no run to judge. Megabytes include the first fill of the table. Bytes match within a "
    "tenth of the paper's; other figures match within what the paper says of them. The paper seems not to count the "
    "first fill, which is most of ours where a target is reached soon (`table-communication` has it alone). A target "
    "counts when one evaluation passes it, and a run may end below.",
    "Accuracies are those of the last round; the paper selects the best validation model. DPZV makes 5 or 10 passes "
    "here, its zeroth-order head 100 on MNIST and CIFAR-10, with steps that were chosen on 10 and 5, so it may end "
    "below its peak (`fig-convergence`).",
    "Table 1 of the paper prints no epsilon: ours is 1, and 10 for ModelNet, at either accounting. After ± stands our "
    "standard deviation over seeds; the paper calls its own a sample variance.",
    "A rival's run is as long as its trials chose for the highest accuracy, since the published noise on its "
    "embeddings grows with the length: `never in` says after how many megabytes it ended. Its trials had lengths of up "
    "to one pass over the records (ModelNet, reviews: five); the paper says 100.",
    "Peak memory depends on the batch, which the paper does not print, so one inference at the same batch stands "
    "beside it. The BERT that is measured has 22.7 million parameters.",
)
"""What to know about the verdicts."""


def tell_item(runs: ItemRuns, out: Path) -> ItemTold:
    """What the script of an item tells; its figure and its table are written to `out`."""
    script = import_module(f"dpzv.report.items.{runs.name.replace('-', '_')}")
    told: ItemTold = script.told(runs, out / "figures" / runs.name)
    write_atomically(out / "tables" / f"{runs.name}.md", told.page().encode())
    return told


def write_page(items: Mapping[str, tuple[ItemRuns, ItemTold]], command: str, file: Path) -> None:
    """Write the whole page: what `command` found about `items`."""
    parts = [INTRODUCTION.format(command=command), "## Every number the paper prints\n"]
    rows = []
    for number in numbers():
        if number.item in items:
            runs = items[number.item][0]
            if any(line.cell.workload == SMOKE for line in runs.lines):
                number = msgspec.structs.replace(number, workload=SMOKE, epsilon=1.0)
            rows.append(words(number, {name: one.lines for name, (one, _) in items.items()}, runs.workloads))
    used = {line.cell.workload for runs, _ in items.values() for line in runs.lines}
    workloads = {name: one for runs, _ in items.values() for name, one in runs.workloads.items() if name in used}
    notes = [f"{one.title}: {one.substitute}." for one in workloads.values() if one.substitute]
    parts.append(paged(HEADER, rows, [], [*notes, *HOW_JUDGED]))
    for name, (runs, told) in items.items():
        figure = f"![{runs.item.title}](figures/{name}.svg)\n" if told.drawn else ""
        where = f" ({runs.item.paper} of the paper)" if runs.item.paper else ""
        parts.append(f"## {name}: {runs.item.title}{where}\n\n{figure}\n{told.page()}")
    write_atomically(file, "\n".join(parts).encode())


def write_reports(items: Sequence[ItemRuns], out: Path) -> Path | None:
    """Write a report page of the finished runs of each item; the file, or the folder of several, if any has one.

    Trials have none: they are hundreds, and the page of the reproduction has their table.
    """
    written = [file for runs in items if runs.name != TUNING and (file := _report(runs, out))]
    return written[0] if len(written) == 1 else out / "pages" if written else None


def _report(runs: ItemRuns, out: Path) -> Path | None:
    """The page of an item's finished runs; one that was made from just these records is left as it is."""
    keys = sorted({run.cell.job.key for line in runs.lines for run in line.finished})
    if not keys:
        return None
    folders = [out / "runs" / key for key in keys]
    known = [VERSION, *(f"{folder.name} {(folder / 'summary.json').stat().st_mtime_ns}" for folder in folders)]
    made_from = f"\n<!-- {hashlib.sha256(' '.join(known).encode()).hexdigest()} -->\n".encode()
    file = out / "pages" / f"{runs.name}.html"
    if not file.exists() or not file.read_bytes().endswith(made_from):
        write_atomically(file, page(read_runs(folders)).encode() + made_from)
    return file
