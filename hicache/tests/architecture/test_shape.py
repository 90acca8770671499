"""Functions stay short; files have a docstring and a name that says something; the check finds those that do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from hicache.testing.plugin.tags import SUITES
from hicache.tests.architecture.shape import misshapen, python_files

ROOT = Path(__file__).parents[3]
FOLDERS = ("hicache", *SUITES)
DOCSTRING = '"""A module."""\n'

MISSHAPEN = {
    "a long function": ("f.py", DOCSTRING + "def f():\n" + "    x = 1\n" * 50, ":2: f has 51 lines, at most 50"),
    "a long method": ("c.py", DOCSTRING + "class C:\n  def m(self):\n" + "    x = 1\n" * 50, ":3: m has 51 lines"),
    "no docstring": ("bare.py", "x = 1\n", "no docstring"),
    "an empty name": ("utils.py", DOCSTRING, "the name says nothing"),
    "an empty folder name": ("common/node.py", DOCSTRING, "the name says nothing"),
}


def test_every_file_is_in_shape() -> None:
    paths = python_files(ROOT, FOLDERS)
    assert paths, f"no module was found below {ROOT}: the check looked at nothing"
    found = [line for path in paths for line in misshapen(path)]
    assert not found, "files out of shape:\n" + "\n".join(found)


@pytest.mark.parametrize(("name", "source", "expected"), MISSHAPEN.values(), ids=MISSHAPEN)
def test_a_file_out_of_shape_is_named(tmp_path: Path, name: str, source: str, expected: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(source, encoding="utf-8")
    found = list(misshapen(path))
    assert len(found) == 1, f"expected one finding, got {found}"
    assert str(path) in found[0], f"expected the path {path} in {found[0]!r}"
    assert expected in found[0], f"expected {expected!r} in {found[0]!r}"


def test_a_long_file_passes(tmp_path: Path) -> None:
    path = tmp_path / "node.py"
    path.write_text(DOCSTRING + "def f():\n" + "    x = 1\n" * 49 + "y = 1\n" * 2000, encoding="utf-8")
    assert not list(misshapen(path)), "a file may have any length, and a function 50 lines"
