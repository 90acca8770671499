"""STORE-3, STORE-4: damaged objects are misses, and a writer that is interrupted leaves complete pages or none."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from hicache.errors import ConfigurationError
from hicache.testing.contract import clause
from hicache.testing.plugin.tags import OPERATIONS
from hicache.testing.storage.driver import StorageDriver
from hicache.testing.storage.faults import DAMAGES, Found, disk_bytes, files_of, find_page
from hicache.testing.storage.room import require_room
from hicache.testing.storage.subject import BackendSubject, Place
from hicache.testing.storage.writers import KillRuns, Writers, reaches_others, task_of

from .names import page_keys

# STORE-3: a damaged object is a miss, and can be written again; the backend validates everything on the disk.


KEYS = page_keys(6)
DAMAGED = KEYS[2]


def found_page(store: StorageDriver) -> Found:
    """The place of the page to damage; skips the test if no file shows it."""
    name = store.place.subject.name
    if not store.place.subject.is_on_disk:
        pytest.skip(f"no option of {name} is a folder: there is no file to damage")
    found = find_page(store.place.directory, store.bytes_of(DAMAGED, 0))
    if found is None:
        pytest.skip(f"no file of {name} holds a page verbatim: there is nothing to aim at")
    return found


def require_writable(store: StorageDriver) -> None:
    """Every key can be written again after damage, and read."""
    store.get(KEYS)
    store.has(KEYS)
    assert store.set(KEYS, 1) == [True] * len(KEYS), "STORE-3: expected every page to be written again after damage"
    assert store.get(KEYS) == [True] * len(KEYS), (
        "STORE-3: expected every page to be readable after it was written again"
    )


@clause("STORE-3")
@pytest.mark.parametrize("is_open", [True, False], ids=["while open", "while closed"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_object_is_a_miss_and_can_be_written_again(
    store: StorageDriver, damage: Callable[[Found], None], is_open: bool
) -> None:
    store.set(KEYS, 0)
    found = found_page(store)
    if not is_open:
        store.instances[0].close()
    damage(found)
    # A file may have several objects, and their index.
    for key in KEYS:
        store.model.was_damaged(key)
    if not is_open:
        store.reopen()
    require_writable(store)


@clause("STORE-3")
def test_a_miss_by_damage_is_counted_and_the_others_are_read(store: StorageDriver) -> None:
    store.set(KEYS, 0)
    DAMAGES["a flipped bit"](found_page(store))
    store.model.was_damaged(DAMAGED)
    answers = store.get(KEYS)
    assert answers == [key != DAMAGED for key in KEYS], f"STORE-3: one object is damaged, got {answers}"
    misses = dict(store.instances[0].stats().misses)
    assert sum(misses.values()) == 1, f"STORE-3: the miss is counted with its reason: expected 1, got {misses}"
    assert "absent" not in misses, f"STORE-3: a damaged object is not an absent one, got {misses}"
    assert store.has(KEYS) == answers, "STORE-3: expected `has` to agree with `get`"


@clause("STORE-3")
@pytest.mark.parametrize(
    "damage", ["a flipped bit", "a file that ends within the page", "an empty file", "a file that is gone"]
)
def test_any_damaged_file_causes_only_misses(store: StorageDriver, damage: str) -> None:
    store.set(KEYS, 0)
    found_page(store)
    store.instances[0].close()
    for number, _ in enumerate(files_of(store.place.directory)):
        files = files_of(store.place.directory)
        if number >= len(files) or not files[number].stat().st_size:
            continue
        DAMAGES[damage](Found(files[number], 0, files[number].stat().st_size))
        for key in KEYS:
            store.model.was_damaged(key)
        try:
            store.reopen()
        except ConfigurationError:
            # With a damaged index a backend may refuse to open.
            continue
        store.get(KEYS)
        store.set(KEYS, number + 1)
        assert store.get(KEYS) == [True] * len(KEYS), (
            f"STORE-3: {damage}, {files[number].name}: expected every page to be written again"
        )
        store.instances[0].close()


@clause("STORE-3")
def test_removed_files_are_misses(store: StorageDriver) -> None:
    store.set(KEYS, 0)
    found_page(store)
    for path in files_of(store.place.directory):
        path.unlink()
    for key in KEYS:
        store.model.was_damaged(key)
    store.get(KEYS)
    store.model.forgets = True
    store.set(KEYS, 1)
    store.get(KEYS)
    store.clear()
    store.model.forgets = False
    for key in KEYS:
        store.model.was_damaged(key)
    store.reopen()
    require_writable(store)


@clause("STORE-3")
def test_a_folder_in_the_place_of_a_file_is_a_miss(store: StorageDriver) -> None:
    store.set(KEYS, 0)
    found = found_page(store)
    found.path.unlink()
    found.path.mkdir()
    store.model.forgets = True
    store.get(KEYS)
    store.has(KEYS)
    store.set(KEYS, 1)
    store.get(KEYS)


# STORE-4: a writer that is killed, or finds the disk full, leaves complete pages or none.


KILLS = 12

LARGE = 1 << 20


@clause("STORE-4")
def test_a_writer_that_is_killed_leaves_whole_pages(
    backend: BackendSubject, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with closing(KillRuns(backend, tmp_path)) as runs:
        if not runs.reach_others:
            pytest.skip(f"what one process keeps in {backend.name}, no other can see: a kill leaves nothing to look at")
        for seed in range(KILLS):
            runs.run(seed)
        assert runs.counts.kills, f"STORE-4: of {KILLS} writers at least one is killed in time, got {runs.counts}"
        record_property(OPERATIONS, runs.operations)


@clause("STORE-4")
@pytest.mark.parametrize("limit_bytes", [1000, 20_000, 300_000])
def test_files_with_a_size_limit_hold_whole_pages(store: StorageDriver, writers: Writers, limit_bytes: int) -> None:
    if not reaches_others(store, writers):
        pytest.skip(f"what one process keeps in {store.place.subject.name}, no other can see")
    require_room(store.place, 101)
    store.set(["before/0"])
    task = task_of(store, "limited", version=1, count=100, batch=9, file_limit_bytes=limit_bytes)
    writer = writers.start(task)
    writers.wait_for_end(writer)
    assert len(writer.answers) == task.count, f"STORE-4: an answer for each of 100 pages, got {len(writer.answers)}"
    store.model.forgets = True
    for key, answer in zip(task.keys, writer.answers, strict=True):
        store.model.was_set(key, 1, answer)
    store.model.forgets = False
    store.get_all(task.keys)
    assert store.get(["before/0"]) == [True], "STORE-4: what was there is as it was"
    assert store.set(task.keys, 2) == [True] * task.count, "STORE-4: with room again, all find it"
    assert store.get(task.keys) == [True] * task.count, "STORE-4: with room again, all can be read"


@clause("STORE-4", "STORE-8")
def test_remains_of_killed_writers_do_not_accumulate(backend: BackendSubject, tmp_path: Path, writers: Writers) -> None:
    if not backend.is_on_disk:
        pytest.skip(f"no option of {backend.name} is a folder: there are no files that could pile up")
    with closing(Place(backend, tmp_path, page_bytes=LARGE)) as place:
        store = StorageDriver(place)
        store.set(page_keys(1))
        before = disk_bytes(place.directory)
        # The second piece of a page begins at the limit.
        task = partial(task_of, store, version=0, count=1, batch=1, file_limit_bytes=LARGE // 4, dies_at_limit=True)
        tasks = [task(f"kill{number}") for number in range(KILLS)]
        deaths = sum(writers.wait_for_death(writers.start(killed)) for killed in tasks)
        if not deaths:
            pytest.skip(f"{backend.name} takes a file that may not grow for an answer: no writer was killed")
        keys = [killed.keys[0] for killed in tasks]
        for key in keys:
            store.model.was_interrupted(key, 0)
        store.reopen()
        store.get(keys)
        store.set(page_keys(1, prompt=1))
        left = disk_bytes(place.directory) - before
        assert left <= 2 * LARGE, f"STORE-8: {deaths} killed writers, and one page of {LARGE} bytes, left {left} bytes"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of four megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None:
        pytest.skip("there is no mount on this machine, to make a small disk with")
    made = subprocess.run([mount, "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"a small disk cannot be made here: {made.stderr.decode().strip()}")
    yield folder
    subprocess.run([umount, "-l", folder], check=True)


@clause("STORE-4")
def test_a_full_disk_holds_whole_pages(backend: BackendSubject, small_disk: Path) -> None:
    if not backend.is_on_disk:
        pytest.skip(f"no option of {backend.name} is a folder: it cannot be put on a small disk")
    with closing(Place(backend, small_disk, page_bytes=4096, capacity_bytes=1 << 30)) as place:
        try:
            store = StorageDriver(place, forgets=True)
        except (OSError, ValueError):
            # The backend reserves its whole capacity when it opens, and refuses: nothing was written.
            return
        keys = page_keys(1500)
        for begin in range(0, len(keys), 100):
            store.set(keys[begin : begin + 100])
        there = store.get_all(keys)
        assert sum(there) < len(keys), f"STORE-4: four megabytes hold some of 1500 pages, got {sum(there)}"
        assert store.clear(), "STORE-7: a full disk can be cleared"
        if not any(there):
            # The backend reserves its capacity before the first page, and found no room.
            return
        store.model.forgets = False
        assert store.set(keys[:20], 1) == [True] * 20, "STORE-4: with room again, all find it"
        assert store.get(keys[:20]) == [True] * 20, "STORE-4: with room again, all can be read"
