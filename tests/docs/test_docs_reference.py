"""`docs/reference.md` is what the source says, and every key has a reason."""

from __future__ import annotations

import re

import pytest

from dpzv import config as configuration
from dpzv.config import Section
from tests.docs import reference

SOURCE = """
class Small(Section):
    \"\"\"A section.\"\"\"

    a: int = 1  # beside
    # above,
    # in two lines
    b: tuple[
        str, ...
    ] = ()  # and beside
    c: int = 2

def f() -> None:
    d: int = 3  # no field
"""


def test_the_page_is_what_the_source_says() -> None:
    assert reference.PAGE.read_text() == reference.page(), "write it anew: python -m tests.docs.reference"


def test_the_page_has_every_key_of_the_configuration_once() -> None:
    found, section = [], ""
    for line in reference.page().partition("## A party's own file")[0].splitlines():
        if match := re.fullmatch(r"### \[(\w+)\]", line):
            section = match[1]
        elif match := re.match(r"\| `(\w+)` \|", line):
            found.append(f"{section}.{match[1]}")
    assert sorted(found) == list(configuration.keys())


def test_a_reason_is_the_comment_of_its_own_key() -> None:
    assert reference.reasons(SOURCE) == {
        "Small.a": "beside",
        "Small.b": "above, in two lines and beside",
        "Small.c": "",
    }


class Unreasoned(Section, frozen=True):
    """A section with a key that says nothing."""

    told: int = 1  # why
    silent: int = 2


def test_a_key_without_a_reason_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Unreasoned\.silent has no reason"):
        reference.table(Unreasoned)


def test_types_are_said_in_words() -> None:
    assert reference.type_words(int | tuple[int, ...]) == "whole number, or a list"
    assert reference.type_words(str, ("a", "b")) == '`"a"` or `"b"`'
    assert reference.type_words(float | None) == "number"
