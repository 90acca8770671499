"""Files and functions stay small and are named for what they hold, and the check can tell when they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from hicache.testing.plugin.tags import SUITES
from hicache.tests.architecture.shape import MEDIAN_FILE_LINES, median_lines, misshapen, python_files

ROOT = Path(__file__).parents[3]
FOLDERS = ("hicache", *SUITES)
DOCSTRING = '"""A module."""\n'

MISSHAPEN = {
    "a long file": ("long.py", DOCSTRING + "x = 1\n" * 300, "301 lines, at most 300"),
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


def test_the_median_file_is_short() -> None:
    lines = median_lines(python_files(ROOT, FOLDERS))
    assert lines < MEDIAN_FILE_LINES, f"the median file has {lines} lines, expected under {MEDIAN_FILE_LINES}"


@pytest.mark.parametrize(("name", "source", "expected"), MISSHAPEN.values(), ids=MISSHAPEN)
def test_a_file_out_of_shape_is_named(tmp_path: Path, name: str, source: str, expected: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(source, encoding="utf-8")
    found = list(misshapen(path))
    assert len(found) == 1, f"expected one finding, got {found}"
    assert str(path) in found[0], f"expected the path {path} in {found[0]!r}"
    assert expected in found[0], f"expected {expected!r} in {found[0]!r}"


def test_a_file_at_the_limits_passes(tmp_path: Path) -> None:
    path = tmp_path / "node.py"
    path.write_text(DOCSTRING + "def f():\n" + "    x = 1\n" * 49 + "y = 1\n" * 249, encoding="utf-8")
    assert not list(misshapen(path)), "300 lines with a function of 50 are permitted"


def test_the_median_is_that_of_the_lines(tmp_path: Path) -> None:
    for lines in (1, 2, 300):
        (tmp_path / f"module{lines}.py").write_text("\n" * lines, encoding="utf-8")
    assert median_lines(python_files(tmp_path, (".",))) == 2, "expected the middle one of 1, 2 and 300 lines"
