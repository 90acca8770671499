"""The list of known failures is read strictly, and an entry covers the tests that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from hicache.errors import ConfigurationError
from hicache.testing.plugin.known_failures import KnownFailure, read_known_failures

GOOD = """
[[failure]]
id = "LOCK-3"
kind = "bug"
reason = "a tombstone is released"
link = "https://example.org/7"

[[failure]]
id = "properties/test_machines.py::*"
kind = "future"
reason = "not tried yet"
link = ""
"""

WRONG = {
    "unknown clause": (("LOCK-3", "LOCK-99"), "id is 'LOCK-99'; expected a clause"),
    "a file is no test": (("properties/test_machines.py::*", "properties/test_machines.py"), r"failure\[1\].id is"),
    "a test of no suite": (("properties/", "tests/"), r"failure\[1\].id is 'tests/test_machines.py::\*'; expected"),
    "unknown kind": (('"bug"', '"oops"'), "kind is 'oops', known: unsupported, bug, future"),
    "no reason": (('"a tombstone is released"', '" "'), "reason is empty"),
    "missing field": (('kind = "bug"', ""), "kind is missing"),
    "unknown field": (('kind = "bug"', 'kind = "bug"\nwhy = 1'), "why is unknown"),
    "unknown table": (('[[failure]]\nid = "LOCK-3"', '[other]\n[[failure]]\nid = "LOCK-3"'), "other is unknown"),
    "no list": ((GOOD, "failure = 3"), "failure is 3"),
    "not TOML": (("[[failure]]", "[[failure"), "line 2"),
}


def _write(path: Path, text: str) -> Path:
    file = path / "known.toml"
    file.write_text(text, encoding="utf-8")
    return file


def _entry(entry_id: str) -> KnownFailure:
    return KnownFailure("known.toml: entry 1", entry_id, "bug", "it is broken", "")


def test_entries_come_in_order_with_their_place(tmp_path: Path) -> None:
    first, second = read_known_failures(_write(tmp_path, GOOD))
    assert str(first) == "bug: a tombstone is released (https://example.org/7)", f"got {first!s}"
    assert str(second) == "future: not tried yet", f"without a link, got {second!s}"
    assert first.place.endswith("known.toml: entry 1 (LOCK-3)"), f"expected file, number and id, got {first.place}"
    assert (first.suite, second.suite) == ("conformance", "properties"), f"got {first.suite}, {second.suite}"


@pytest.mark.parametrize(
    ("entry_id", "suite"),
    [
        ("LOCK-3", "conformance"),
        ("RANK-1", "distributed_tests"),
        ("FETCH-7", "distributed_tests"),
        ("properties/test_a.py::test_*", "properties"),
    ],
)
def test_an_entry_must_cover_a_test_of_the_suite_that_its_clause_is_tested_in(entry_id: str, suite: str) -> None:
    assert _entry(entry_id).suite == suite, f"{entry_id}: expected {suite}, got {_entry(entry_id).suite}"


@pytest.mark.parametrize(("change", "named"), WRONG.values(), ids=WRONG)
def test_a_wrong_entry_is_refused_with_its_place(tmp_path: Path, change: tuple[str, str], named: str) -> None:
    path = _write(tmp_path, GOOD.replace(*change))
    with pytest.raises(ConfigurationError, match=f"known.toml.*{named}"):
        read_known_failures(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml"):
        read_known_failures(tmp_path / "nowhere.toml")


TEST = "conformance/test_lock.py::test_split[full+swa/page16/lru]"

COVERED = {
    "a clause": ("LOCK-3", True),
    "another clause": ("LOCK-2", False),
    "the test itself": (TEST, True),
    "another parameter": (TEST.replace("16", "64"), False),
    "all of a file": ("conformance/test_lock.py::*", True),
    "a beginning alone": ("conformance/test_lock.py::test_spl", False),
    "one page size": ("conformance/*::*[*/page16/*]", True),
    "another page size": ("conformance/*::*[*/page1/*]", False),
    "brackets are no choice of letters": ("conformance/test_lock.py::test_[sp]lit*", False),
}


@pytest.mark.parametrize(("entry_id", "expected"), COVERED.values(), ids=COVERED)
def test_an_entry_covers(entry_id: str, expected: bool) -> None:
    covers = _entry(entry_id).covers(TEST, ("LOCK-3", "INS-8"))
    assert covers is expected, f"{entry_id!r} covers {TEST!r}: expected {expected}, got {covers}"
