"""A draft of a party's settings fits its file, says what it costs, and is no run's settings until a person is done."""

from __future__ import annotations

import csv
import io
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dpzv.cli.main import app
from dpzv.data.drafts import MOST_VALUES, draft
from dpzv.data.party_records import parse, read_features, read_labels
from dpzv.errors import ConfigError, DataError


def written(path: Path, columns: dict[str, list[str]], separator: str = ",") -> str:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator)
    writer.writerows([list(columns), *zip(*columns.values(), strict=True)])
    (path / "own.csv").write_text(text.getvalue(), encoding="utf-8")
    return str(path / "own.csv")


def kinds(text: str) -> dict[str, Any]:
    return {column["name"]: column for column in tomllib.loads(text)["data"]["features"]["columns"]}


def rows(n: int = 200) -> dict[str, list[str]]:
    draw = np.random.default_rng(0)
    return {
        "key": [f"k{i}" for i in range(n)],
        "sex": [("Male", "Female", "")[i % 3] for i in range(n)],
        "age": [str(18 + i % 58) for i in range(n)],
        "income": [f"{x:.2f}" for x in draw.lognormal(7, 2, n)],
        "owner": [("true", "false")[i % 2] for i in range(n)],
        "grade": [str(1 + i % 5) for i in range(n)],
        "account": [str(1000 + i) for i in range(n)],
        "town": ["here"] * n,
        "gone": [("", "NA")[i % 2] for i in range(n)],
        "note": [f"text {i}" for i in range(n)],
        "late": [("no", "yes")[i % 2] for i in range(n)],
        "hours": [f"{i / 7:.3f}" for i in range(n)],
    }


def test_kinds_and_candidates(tmp_path: Path) -> None:
    text = draft(written(tmp_path, rows()), id_column="key")
    found = kinds(text)
    assert "key" not in found
    assert {name: column["kind"] for name, column in found.items()} == {
        "sex": "category",
        "age": "range",
        "income": "knots",
        "owner": "flag",
        "grade": "range",
        "account": "range",
        "late": "category",
        "hours": "range",
    }
    assert found["sex"]["values"] == ["Female", "Male"]
    assert (found["sex"]["missing"], "missing" in found["age"]) == (True, False)
    assert (found["age"]["low"], found["age"]["high"]) == (10, 80)
    assert (found["hours"]["low"], found["hours"]["high"]) == (0, 30)
    assert '# "town" is left out: it is the same in every row.' in text
    assert '# "gone" is left out: it has no value.' in text
    assert f'# "note" is left out: it has more than {MOST_VALUES} different values, so it is no category' in text
    assert 'If these are codes and not amounts: kind = "category", values = [1, 2, 3, 4, 5]' in text
    assert text.count("if these are ids, remove this column") == 1


def test_the_command_prints_the_draft(tmp_path: Path) -> None:
    file = written(tmp_path, rows())
    done = CliRunner().invoke(app, ["data", "describe", file, "--id", "key", "--label", "late"])
    assert (done.exit_code, done.output) == (0, draft(file, "key", "late"))


def test_a_draft_says_what_it_costs_and_no_run_takes_it(tmp_path: Path) -> None:
    text = draft(written(tmp_path, rows()), id_column="key", label="late")
    assert "are not public, and no epsilon covers them" in text
    assert all(column["source"] == "" for column in kinds(text).values())
    with pytest.raises(ConfigError, match="needs a source sentence, got none; say where its constants are published"):
        parse(tomllib.loads(text)["data"], tmp_path)


def filled(text: str, folder: Path) -> Any:
    return parse(tomllib.loads(text.replace('source = ""', 'source = "A standard."'))["data"], folder)


def test_ids_and_labels_are_only_what_the_person_says(tmp_path: Path) -> None:
    file = written(tmp_path, rows())
    text = draft(file)
    assert "key" not in kinds(text)  # as a text that differs in every row it is no category
    assert '# "key" is left out' in text
    assert "[data.labels]" not in text
    with pytest.raises(ConfigError, match=r"data\.features\.id must name the column of ids, got ''"):
        filled(text, tmp_path)
    for label, task, more in (("late", "binary", ["no", "yes"]), ("grade", "classes", list("12345"))):
        data = filled(draft(file, "key", label), tmp_path)
        assert (data.labels.task, data.labels.classes) == (task, tuple(more))
        assert len(read_labels(data.labels).ids) == 200
        assert label not in [column.name for column in data.features.columns]
    data = filled(draft(file, "key", "hours"), tmp_path)
    assert (data.labels.task, data.labels.low, data.labels.high) == ("regression", 0, 30)
    assert read_labels(data.labels).clipped == 0
    with pytest.raises(ConfigError, match=r"the column of .* 'kex' is not known; did you mean .*'key'"):
        draft(file, "kex")
    with pytest.raises(DataError, match="does not exist"):
        draft(str(tmp_path / "none.csv"))


def test_what_a_run_would_refuse_is_noted(tmp_path: Path) -> None:
    table = rows() | {
        "since": [f"2021-{1 + i % 9:02d}-15" for i in range(200)],
        "born": [f"{1 + i % 28}.{1 + i % 12}.{1950 + i % 50}" for i in range(200)],
        "price": [f"{i % 60},5" for i in range(200)],
    }
    table["key"][9] = table["key"][3]
    table["key"][12] = ""
    table["late"][5] = ""
    text = draft(written(tmp_path, table), "key", "late")
    assert "# 1 rows repeat an id of an earlier row (the first in line 11) and 1 rows have no id (" in text
    assert '"price" is left out: its numbers have a decimal comma; write decimals with a point.' in text
    assert '"born" is left out: it looks like dates; write what matters of them as numbers' in text
    assert 'name = "since"\n# This looks like dates; write what matters' in text
    assert "# 1 labels are missing, which a run refuses." in text
    assert "# What is predicted is the probability of the second class" in text
    assert "dates" not in draft(written(tmp_path, rows()), "key")


@pytest.mark.parametrize(
    ("content", "column", "sentence"),
    [
        ("", "key", "must name its columns, but the file is empty"),
        ("key,income\n", "nope", "must have rows below the names of its columns, got none"),
        ("key,income\na,1\n", "nope", "'nope' is not known; choose one of: income, key."),
    ],
)
def test_a_file_that_cannot_be_described_is_refused(tmp_path: Path, content: str, column: str, sentence: str) -> None:
    (tmp_path / "own.csv").write_text(content)
    with pytest.raises((ConfigError, DataError), match=re.escape(sentence)):
        draft(str(tmp_path / "own.csv"), column)
    with pytest.raises(DataError, match="but it is a folder; name the file in it"):
        draft(str(tmp_path), column)


WORD = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=5)
NUMBER = st.floats(-1e9, 1e9).map(repr) | st.integers(-50, 50).map(str) | st.sampled_from(["0", "1", "true", "NA", ""])


@settings(max_examples=25)
@given(data=st.data(), n=st.integers(2, 30), separator=st.sampled_from([",", ";", "\t"]))
def test_a_draft_fits_the_file_it_was_made_from(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, n: int, separator: str
) -> None:
    """With its sources filled in, it reads every value: nothing is clipped, unlisted or refused."""
    columns = {"id": [f"r{i}" for i in range(n)]}
    for name in ("a", "b"):
        values = data.draw(st.sampled_from([WORD, NUMBER, WORD | NUMBER]))
        columns[name] = data.draw(st.lists(values, min_size=n, max_size=n))
    path = tmp_path_factory.mktemp("draft")
    text = draft(written(path, columns, separator), "id")
    if "[[data.features.columns]]" not in text:
        assert re.search(r'"[ab]" is left out', text)
        return
    for tally in read_features(filled(text, path).features).tallies:
        assert (tally.clipped.count, tally.unlisted.count, tally.unreadable.count) == (0, 0, 0)
        assert tally.column.missing == (tally.missing.count > 0)
    assert ("is read as values separated by" in text) == (separator != ",")
