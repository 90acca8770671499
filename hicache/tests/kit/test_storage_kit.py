"""The suite of storage backends: places, page bytes, a failing disk, the model of a backend, scripted storage."""

from __future__ import annotations

import json
import os
import random
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache.errors import ConfigurationError, InvariantError
from hicache.storage.base import usable_pages
from hicache.testing.storage.crash_states import SystemCall, unsynced
from hicache.testing.storage.driver import StorageDriver
from hicache.testing.storage.faults import DAMAGES, DiskFaults, Found, find_page
from hicache.testing.storage.model import StorageModel, usable
from hicache.testing.storage.page_bytes import BLANK, Sheet, cut_evenly, page_bytes
from hicache.testing.storage.scripted import ScriptedStorage, Store, store_named
from hicache.testing.storage.subject import (
    BACKEND_CLAUSES,
    DIRECTORY,
    SHIPPED,
    UNIQUE,
    BackendSubject,
    Place,
    read_subject,
)
from hicache.testing.stored import restorable_pages
from hicache.tests.kit.named_clauses import clauses_named_in
from hicache.types import HitPolicy, Pool


def test_every_clause_of_a_backend_has_a_test_in_its_suite() -> None:
    named = set(clauses_named_in("conformance.storage"))
    assert named == BACKEND_CLAUSES.keys(), f"clauses and tests differ in {sorted(named ^ BACKEND_CLAUSES.keys())}"


def test_placeholders_are_replaced_in_nested_options() -> None:
    subject = BackendSubject("x", {"a": "{directory}/b", "c": ["{page_bytes}", 1], "d": {"e": "{capacity_bytes}"}})
    filled = subject.options_for({"{directory}": "a", "{page_bytes}": 512, "{capacity_bytes}": 1024})
    expected = {"a": "a/b", "c": [512, 1], "d": {"e": 1024}}
    assert filled == expected, f"expected {expected}, got {filled}"
    assert (subject.is_on_disk, subject.is_bounded) == (True, True), "expected both placeholders to be found"


def test_double_braces_are_braces() -> None:
    subject = BackendSubject("x", {"prefix": "{{name}}:{unique}", "root": "{{directory}}"})
    read_subject("memory", '{"store": "{{name}}:{unique}"}')
    found = subject.options_for({UNIQUE: "u", DIRECTORY: "d"})
    assert found == {"prefix": "{name}:u", "root": "{directory}"}, f"expected single braces, got {found}"
    assert not subject.is_on_disk, "expected the text {directory}, and no placeholder"


def test_places_have_nothing_in_common(tmp_path: Path) -> None:
    places = [Place(SHIPPED[0], tmp_path) for _ in range(2)]
    assert places[0].options != places[1].options, f"each has a store of its own, got {places[0].options}"
    assert places[0].scope("a") != places[1].scope("a"), "each has scopes of its own"


def test_a_place_leaves_no_files(tmp_path: Path) -> None:
    for subject in SHIPPED:
        with closing(Place(subject, tmp_path, page_bytes=64, capacity_bytes=1 << 16)) as place:
            stored = place.open(place.scope("model")).set(["a"], [[memoryview(bytes(64))]], [])
            assert stored == [True], f"{subject.name}: expected the page to be stored, got {stored}"
    left = list(tmp_path.rglob("*"))
    assert not left, f"expected an empty folder when the places are closed, got {left}"


def test_a_shipped_backend_has_default_options_unless_others_are_given() -> None:
    assert read_subject("memory", None) is SHIPPED[0], "memory comes with its options"
    assert read_subject("memory", '{"store": "x"}').options == {"store": "x"}, "expected the given options"
    with pytest.raises(ConfigurationError, match="no_such"):
        read_subject("no_such", None)


SECRET = "a-token-that-guards-nothing"  # noqa: S105 - as it says


def test_a_secret_option_comes_from_a_file(tmp_path: Path) -> None:
    options = json.dumps({"token": SECRET})
    wrapped = json.dumps({"inner": "hf3fs", "inner_options": {"token": SECRET}})
    for name, config in (("hf3fs", options), ("metered", wrapped)):
        with pytest.raises(ConfigurationError, match="option 'token' is secret: give the options in a file") as told:
            read_subject(name, config)
        assert SECRET not in str(told.value), f"SEC-7: no message shows it, got {told.value}"
    file = tmp_path / "options.json"
    file.write_text(options)
    subject = read_subject("hf3fs", f"@{file}")
    assert subject.options == {"token": SECRET}, "the options of the file are used"
    assert SECRET not in repr(subject), "SEC-7: no failure shows it"


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


@pytest.mark.parametrize("name", ["open", "fsync", "rename", "unlink"])
def test_calls_beside_reads_and_writes_fail_too(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(os, name, lambda: None)
    with DiskFaults(random.Random(1)).on(), pytest.raises(OSError, match=f"a fault of {name}"):
        [getattr(os, name)() for _ in range(12)]


def test_a_sync_is_of_one_file_which_a_rename_does_not_change() -> None:
    calls = [SystemCall("write", (path,), b"bytes") for path in ("a", "b")]
    calls += [SystemCall("fsync", ("b",)), SystemCall("rename", ("a", "c")), SystemCall("fsync", ("c",))]
    found = [unsynced(calls[:done]) for done in range(1, 6)]
    assert found == [[0], [0, 1], [0], [0], []], f"expected the write to a until c was synchronised, got {found}"


def test_a_wrong_answer_is_found_where_there_is_too_little_room(tmp_path: Path) -> None:
    small = BackendSubject("memory", {"store": UNIQUE, "capacity_bytes": 8 * 4096})
    with closing(Place(small, tmp_path)) as place:
        driver, keys = StorageDriver(place), [f"page/{number}" for number in range(9)]
        # The place has room for eight pages. The driver has not stored the one that is there.
        driver.instances[0].set(keys[:1], driver.source(keys, 0).pages[:1], [])
        # A skip would end this test too, without a failure.
        with pytest.raises((InvariantError, pytest.skip.Exception), match="STORE-7"):
            driver.get(keys[:1])


ALL, TRAILING = HitPolicy.ALL_PAGES, HitPolicy.TRAILING_PAGES


@pytest.fixture
def model() -> StorageModel:
    """A scope that loses nothing, with version 1 of `a` in it."""
    made = StorageModel(forgets=False)
    made.was_set("a", 1, True)
    return made


def test_what_was_kept_first_stays(model: StorageModel) -> None:
    model.was_set("a", 2, True)
    model.was_got("a", [1])
    with pytest.raises(InvariantError, match="STORE-5"):
        model.was_got("a", [2])


def test_what_was_kept_is_there(model: StorageModel) -> None:
    model.was_looked_for("a", True)
    with pytest.raises(InvariantError, match="STORE-4"):
        model.was_got("a", None)
    with pytest.raises(InvariantError, match="STORE-4"):
        model.was_looked_for("a", False)


def test_what_was_never_kept_is_not_there(model: StorageModel) -> None:
    model.was_got("b", None)
    model.was_looked_for("b", False)
    with pytest.raises(InvariantError, match="STORE-7"):
        model.was_got("b", [1])
    with pytest.raises(InvariantError, match="STORE-7"):
        model.was_looked_for("b", True)


def test_what_was_cleared_is_gone(model: StorageModel) -> None:
    model.was_cleared(True)
    assert model.keys == [], f"nothing is left, got {model.keys}"
    with pytest.raises(InvariantError, match="STORE-7"):
        model.was_looked_for("a", True)


@pytest.mark.parametrize("refused", ["set", "clear"])
def test_where_nothing_is_in_its_way_nothing_is_refused(model: StorageModel, refused: str) -> None:
    with pytest.raises(InvariantError, match="True"):
        model.was_set("b", 1, False) if refused == "set" else model.was_cleared(False)


def test_an_interrupted_write_is_whole_or_absent_until_it_was_seen(model: StorageModel) -> None:
    model.was_interrupted("b", 3)
    assert model.may_hold("b") == {3, None}, f"expected version 3 or absent, got {model.may_hold('b')}"
    model.was_got("b", [3])
    with pytest.raises(InvariantError, match="STORE-4"):
        model.was_got("b", None)


def test_an_interrupted_write_over_what_is_there_changes_nothing(model: StorageModel) -> None:
    model.was_interrupted("a", 3)
    assert model.may_hold("a") == {1}, f"what is there stays, got {model.may_hold('a')}"


def test_where_objects_may_go_they_may_go_and_nothing_else() -> None:
    model = StorageModel(forgets=True)
    model.was_set("a", 1, True)
    model.was_got("a", None)
    model.was_got("a", [1])
    model.was_set("b", 1, False)
    model.was_got("b", [1])
    with pytest.raises(InvariantError, match="STORE-5"):
        model.was_got("b", [2])
    with pytest.raises(InvariantError, match="STORE-7"):
        model.was_got("c", [1])


@pytest.mark.parametrize(
    ("there", "policy", "trailing", "expected"),
    [
        ("k0 k1 k2", ALL, 0, 0),
        ("k0 k1 k2 m0 m1", ALL, 0, 2),
        ("k0 k1 k2 m1", TRAILING, 1, 2),
        ("k0 k1 k2 m0 m2", TRAILING, 2, 1),
        ("k0 k1 k2 m1 m2", TRAILING, 2, 3),
        ("k1 k2 m0 m1 m2", ALL, 0, 0),
    ],
)
def test_the_longest_prefix_is_searched_for(there: str, policy: HitPolicy, trailing: int, expected: int) -> None:
    found = usable(["k0", "k1", "k2"], [(["m0", "m1", "m2"], policy, trailing)], set(there.split()))
    assert found == expected, f"{there}, {policy}, {trailing}: expected {expected}, got {found}"


def test_exists_is_held_to_what_is_there_for_certain_and_what_may_be(model: StorageModel) -> None:
    model.was_interrupted("b", 1)
    model.was_asked(["a", "b"], [], 1)
    model.was_asked(["a", "b"], [], 2)
    with pytest.raises(InvariantError, match="STORE-2"):
        model.was_asked(["a", "b"], [], 0)
    with pytest.raises(InvariantError, match="STORE-2"):
        model.was_asked(["a", "c"], [], 2)


PAGE = b"page"


@pytest.fixture
def store() -> Store:
    found = store_named("kit")
    found.empty()
    return found


@pytest.fixture
def backend(store: Store) -> ScriptedStorage:
    assert not store.objects, "each test begins with an empty store"
    return ScriptedStorage("scope", {"store": "kit"})


def put(backend: ScriptedStorage, *keys: str) -> list[bool]:
    return backend.set(keys, [[memoryview(PAGE)] for _ in keys], ())


def get(backend: ScriptedStorage, *keys: str, size: int = 4) -> tuple[list[bool], list[bytes]]:
    targets = [bytearray(size) for _ in keys]
    answer = backend.get(keys, [[memoryview(target)] for target in targets], ())
    return answer, list(map(bytes, targets))


def test_objects_outlive_the_instance(backend: ScriptedStorage) -> None:
    assert put(backend, "a", "b") == [True, True], "both are kept"
    backend.close()
    other = ScriptedStorage("scope", {"store": "kit"})
    assert get(other, "a") == ([True], [PAGE]), "another instance reads it"
    assert ScriptedStorage("other", {"store": "kit"}).has(["a"]) == [False], "another scope does not see it"


@pytest.mark.parametrize("reason", ["absent", "corrupt"])
def test_a_corrupt_object_is_a_miss_once_it_is_read(backend: ScriptedStorage, store: Store, reason: str) -> None:
    put(backend, "a")
    store.corrupt(["scope/a", "scope/none"], reason)
    assert (backend.has(["a"]), store.readable(["scope/a"])) == ([True], [False]), "expected `has` not to detect it"
    answer, (bytes_there,) = get(backend, "a")
    assert answer == [False], "it cannot be read"
    assert bytes_there != PAGE, "expected no data in the target"
    assert backend.has(["a"]) == [False], "expected it to be absent after the read"
    assert put(backend, "a") == [True], "expected it to be written again"
    assert get(backend, "a") == ([True], [PAGE]), "and read"
    assert dict(backend.stats().misses) == {reason: 1}, f"the reason is counted, got {backend.stats().misses}"


@pytest.mark.parametrize(("size", "reason"), [(3, "long"), (5, "short")])
def test_an_object_of_another_size_is_missed(backend: ScriptedStorage, size: int, reason: str) -> None:
    put(backend, "a")
    assert get(backend, "a", size=size)[0] == [False], f"it has 4 bytes, not {size}"
    assert dict(backend.stats().misses) == {reason: 1}, f"got {backend.stats().misses}"


def test_faults_are_injected_as_set(backend: ScriptedStorage, store: Store) -> None:
    store.faults.refused = {"scope/b"}
    store.faults.failing_sets = 1
    assert put(backend, "a", "b", "c") == [False, False, True], "the first fails, b is refused, c is kept"
    assert store.has_refused, "which is remembered"
    assert store.offered == {"scope/a", "scope/b", "scope/c"}, f"got {store.offered}"
    store.faults.failing_gets = 1
    assert get(backend, "c")[0] == [False], "the next page cannot be read"
    store.faults.raising = {"has"}
    with pytest.raises(RuntimeError, match="has of 1 keys"):
        backend.has(["a"])


def test_memory_that_was_not_registered_is_seen(backend: ScriptedStorage, store: Store) -> None:
    region = memoryview(bytearray(PAGE * 2))
    backend.register([region])
    backend.set(["a"], [[region[:2], region[2:4]]], ())
    assert (store.moved_pieces, store.stray_pieces) == (2, 0), "both pieces lie in the region"
    put(backend, "b")
    assert (store.moved_pieces, store.stray_pieces) == (3, 1), "this one does not"


@pytest.mark.parametrize("options", [{}, {"store": 1}, {"store": "kit", "x": 1}])
def test_options_are_checked(options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="ScriptedStorage"):
        ScriptedStorage("scope", options)


FLAGS = st.lists(st.booleans(), min_size=6, max_size=6)


@given(kv=FLAGS, indexer=FLAGS, swa=FLAGS, mamba=FLAGS, window=st.integers(1, 7))
def test_two_ways_to_find_the_longest_prefix_agree(
    kv: list[bool], indexer: list[bool], swa: list[bool], mamba: list[bool], window: int
) -> None:
    whole = kv.index(False) if False in kv else len(kv)
    wants = [
        (indexer[:whole], HitPolicy.ALL_PAGES, 0),
        (swa[:whole], HitPolicy.TRAILING_PAGES, window),
        (mamba[:whole], HitPolicy.TRAILING_PAGES, 1),
    ]
    expected = usable_pages(whole, wants)
    present: dict[str, list[bool]] = {Pool.KV: kv, Pool.INDEXER: indexer, Pool.SWA: swa, Pool.MAMBA: mamba}
    found = restorable_pages(present, window)
    assert found == expected, f"STORE-2: {expected} by intersection, {found} length by length"
