"""The parts of the backend suite: places, page bytes, memory with guards, a failing disk."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from hicache.errors import ConfigurationError
from hicache.testing.plugin.gate import clauses_named_in
from hicache.testing.storage.faults import DAMAGES, DiskFaults, Found, find_page
from hicache.testing.storage.page_bytes import BLANK, Sheet, cut_evenly, page_bytes
from hicache.testing.storage.subject import BACKEND_CLAUSES, SHIPPED, BackendSubject, Place, read_subject


def test_every_clause_of_a_backend_has_a_test_in_its_suite() -> None:
    named = set(clauses_named_in("conformance.storage"))
    assert named == BACKEND_CLAUSES.keys(), f"clauses and tests differ in {sorted(named ^ BACKEND_CLAUSES.keys())}"


def test_placeholders_are_replaced_in_nested_options() -> None:
    subject = BackendSubject("x", {"a": "{directory}/b", "c": ["{page_bytes}", 1], "d": {"e": "{capacity_bytes}"}})
    filled = subject.options_for({"{directory}": "a", "{page_bytes}": 512, "{capacity_bytes}": 1024})
    expected = {"a": "a/b", "c": [512, 1], "d": {"e": 1024}}
    assert filled == expected, f"expected {expected}, got {filled}"
    assert (subject.is_on_disk, subject.is_bounded) == (True, True), "expected both placeholders to be found"


def test_places_have_nothing_in_common(tmp_path: Path) -> None:
    places = [Place(SHIPPED[0], tmp_path) for _ in range(2)]
    assert places[0].options != places[1].options, f"each has a store of its own, got {places[0].options}"
    assert places[0].scope("a") != places[1].scope("a"), "each has scopes of its own"


def test_a_shipped_backend_has_default_options_unless_others_are_given() -> None:
    assert read_subject("memory", None) is SHIPPED[0], "memory comes with its options"
    assert read_subject("memory", '{"store": "x"}').options == {"store": "x"}, "expected the given options"
    with pytest.raises(ConfigurationError, match="no_such"):
        read_subject("no_such", None)


def test_pages_share_no_bytes() -> None:
    pages = {page_bytes(scope, key, version, 64) for scope in "ab" for key in "cd" for version in (0, 1)}
    assert len(pages) == 8, f"eight pages differ in scope, key or version, got {len(pages)}"
    assert page_bytes("a", "c", 0, 64) != page_bytes("a", "c", 0, 128)[:64], "a longer page begins otherwise"


def test_even_pieces_make_up_the_page() -> None:
    cuts = [cut_evenly(size, pieces) for size, pieces in ((10, 3), (1, 1), (4096, 64), (3, 5))]
    assert [sum(cut) for cut in cuts] == [10, 1, 4096, 3], f"got {cuts}"
    assert [len(cut) for cut in cuts] == [3, 1, 64, 5], f"got {cuts}"


def test_a_sheet_shows_what_was_written_beside_its_pieces() -> None:
    sheet = Sheet([(3, 0, 5), (8,)])
    assert (sheet.is_blank, sheet.has_its_guards) == (True, True), "nothing was written yet"
    sheet.write(0, b"abcdefgh")
    assert sheet.read(0) == b"abcdefgh", f"got {sheet.read(0)!r}"
    assert sheet.read(1) == bytes([BLANK]) * 8, f"got {sheet.read(1)!r}"
    assert (sheet.is_blank, sheet.has_its_guards) == (False, True), "a page was written, and nothing beside it"
    sheet._memory[sheet._gaps[1]] = 0
    assert (sheet.is_blank, sheet.has_its_guards) == (False, False), "a byte behind the first piece was written"


def test_a_page_is_found_and_corrupted(tmp_path: Path) -> None:
    page = page_bytes("a", "b", 0, 256)
    for name, damage in DAMAGES.items():
        path = tmp_path / "file"
        path.write_bytes(b"head" + page + b"tail")
        assert find_page(tmp_path, page) == Found(path, 4, 256), "the page lies behind the head"
        damage(Found(path, 4, 256))
        after = path.read_bytes() if path.exists() else None
        assert after != b"head" + page + b"tail", f"{name} changes the file"


def test_a_disk_fails_at_random_and_works_afterwards(tmp_path: Path) -> None:
    disk, sound = DiskFaults(random.Random(1)), os.pwritev
    path, moved = tmp_path / "file", []
    for _ in range(100):
        with disk.on(), suppress(OSError):
            file = os.open(path, os.O_RDWR | os.O_CREAT)
            try:
                moved += [os.pwritev(file, [b"abc", b"defg"], 0), os.preadv(file, [bytearray(9)], 0)]
            finally:
                os.close(file)
    assert os.pwritev is sound, "expected the original function after the block"
    assert disk.injected > 10, f"expected more than 10 injected faults, got {disk.injected}"
    short = [written for written, _ in pairwise(moved) if 0 < written < 7]
    assert short, f"expected some calls to transfer less than asked for, got {sorted(set(moved))}"
