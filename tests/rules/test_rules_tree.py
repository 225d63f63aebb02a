"""The parsed package, on which the rules of the house stand: what is seen of imports, and that all of it is seen."""

from __future__ import annotations

from tests.rules.tree import Module, Package, package


def test_the_parser_sees_every_form_of_import() -> None:
    tree = Package(
        {
            "__init__.py": "",
            "a/b.py": "from dpzv import c\nfrom dpzv.a import d\nfrom . import e\nfrom ..c import x\nimport dpzv.f.g\n",
            "a/__init__.py": "from dpzv import __version__\n",
            "a/d.py": "from dpzv.c import x\n",
            "a/e.py": "import os\nfrom torch import nn\n",
            "c.py": "",
            "f/g.py": "",
        }
    )
    assert tree.imports["dpzv.a.b"] == {"dpzv.c", "dpzv.a.d", "dpzv.a.e", "dpzv.f.g"}
    assert tree.imports["dpzv.a"] == {"dpzv"}
    assert tree.imports["dpzv.a.e"] == set()
    assert tree.rooms() == {"__init__": set(), "a": {"__init__", "c", "f"}, "c": set(), "f": set()}


def test_names_are_told_from_those_that_are_imported() -> None:
    text = """
import os
from dpzv import b as other, c
from dpzv.d import x
if x:
    def f(inside): nothing = inside
else:
    y, z = 1, 2
class A:
    within: int = 1
w: int = other.g(c.h, os.path, x.e)
"""
    module = Module("a.py", text)
    assert module.defined == {"f", "y", "z", "A", "w"}
    seen = {("dpzv.b", "g"), ("dpzv.c", "h"), ("os", "path"), ("dpzv.d.x", "e")}
    assert set(module.attributes()) == seen


def test_the_whole_source_is_looked_at() -> None:
    assert {"dpzv", "dpzv.cli.main", "dpzv.privacy.ledger"} <= package().modules.keys()
