"""A thousand openings, full and read-only disks, files deleted while open, and hostile names and links in a folder."""

from __future__ import annotations

import gc
import os
import random
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hicache.errors import ConfigurationError, KeyFormError
from hicache.testing.storage.driver import StorageDriver
from hicache.testing.storage.subject import SHIPPED, BackendSubject, Place
from hicache.tests.proof.attack.campaign import Campaign
from hicache.tests.proof.attack.test_writers import ON_DISK, PAGE, damage_a_file

OPENINGS = 5
"""How many instances a round of openings opens."""

each_on_disk = pytest.mark.parametrize("subject", ON_DISK, ids=lambda subject: subject.name)

TARGETS = ("precious", ".", "nothing", "/dev/zero", "itself")
"""What a link in the place of a file of the store leads to: in the folder elsewhere, to a device, or to itself."""

REPLACEMENTS = (*TARGETS, "folder", "pipe")
"""What is put in the place of a file of the store."""

NAMES = (
    *("..", ".", "", "/", "../../etc/passwd", "a/../../b", "a\0b", "a\nb", "x" * 5000, "\udcff", "a//b", "~", "-rf"),
    *("kv/" + "é" * 200, "CON", "a" * 255, "a" * 256, "%2e%2e%2f", "a\\b", " ", "a ", ".hidden", "*", "a?b#c"),
)
"""Names of objects that a cache does not use, or that a file system or a URL changes."""


def descriptors() -> int:
    """The number of open descriptors of this process."""
    gc.collect()
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def replace(path: Path, replacement: str, elsewhere: Path) -> None:
    """Put a link, a folder or a pipe in the place of a file."""
    path.unlink()
    if replacement == "folder":
        path.mkdir()
    elif replacement == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path if replacement == "itself" else elsewhere / replacement)


def disk(folder: Path, options: str) -> Iterator[Path]:
    """A small file system of its own, or a skip where it cannot be made."""
    folder.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None:
        pytest.skip("there is no mount on this machine, to make a small disk with")
    made = subprocess.run([mount, "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"a small disk cannot be made here: {made.stderr.decode().strip()}")
    yield folder
    subprocess.run([umount, "-l", folder], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    yield from disk(tmp_path / "disk", "size=2m")


@pytest.mark.parametrize("subject", SHIPPED, ids=lambda subject: subject.name)
def test_openings_leave_no_descriptor_and_no_thread(
    campaign: Campaign, subject: BackendSubject, tmp_path: Path
) -> None:
    with closing(Place(subject, tmp_path, page_bytes=PAGE, capacity_bytes=100 * PAGE)) as place:
        store = StorageDriver(place)
        # The first instances open what stays open until the process ends.
        for _ in range(3):
            store.set(["a"])
            store.get(["a"])
            store.reopen()
        before = descriptors(), threading.active_count()
        for _ in campaign.rounds(4, 0.02):
            for _ in range(OPENINGS):
                store.get(["a"])
                store.reopen()
                campaign.counts["openings"] += 1
        after = descriptors(), threading.active_count()
    assert after == before, f"expected {before} descriptors and threads as before the openings, got {after}"


@each_on_disk
def test_openings_of_damaged_folders_leave_no_descriptor(
    campaign: Campaign, subject: BackendSubject, tmp_path: Path
) -> None:
    before = descriptors()
    for seed in campaign.rounds(10, 0.03):
        rng = random.Random(seed)
        with closing(Place(subject, tmp_path, page_bytes=PAGE, capacity_bytes=50 * PAGE)) as place:
            try:
                store = StorageDriver(place, forgets=True)
                store.set([f"a/{number}" for number in range(20)])
                for _ in range(rng.randint(1, 5)):
                    campaign.counts[damage_a_file(place.directory, rng)] += 1
                store.reopen()
                store.get([f"a/{number}" for number in range(20)])
                campaign.counts["opened"] += 1
            except ConfigurationError:
                campaign.counts["refused"] += 1
    assert descriptors() <= before, f"expected at most {before} descriptors as before the openings, got {descriptors()}"


@each_on_disk
def test_a_full_disk_and_one_that_becomes_read_only(
    campaign: Campaign, subject: BackendSubject, small_disk: Path
) -> None:
    mount = shutil.which("mount")
    assert mount is not None, "the small disk was made with it"
    for seed in campaign.rounds(1, 0.02):
        with closing(Place(subject, small_disk, page_bytes=4096, capacity_bytes=1 << 30)) as place:
            try:
                store = StorageDriver(place, forgets=True)
            except ConfigurationError:
                campaign.counts["refused"] += 1
                continue
            keys = [f"{seed}/{number}" for number in range(600)]
            for begin in range(0, len(keys), 50):
                campaign.counts["pages kept"] += sum(store.set(keys[begin : begin + 50]))
            campaign.counts["pages read"] += sum(store.get_all(keys))
            # A disk on which a file is open for writing cannot become read-only.
            store.instances.pop().close()
            subprocess.run([mount, "-o", "remount,ro", small_disk], check=True)
            try:
                store.open()
                store.set(["read-only/0"], 1)
                campaign.counts["pages read"] += sum(store.get_all(keys))
                store.instances.pop().close()
            except ConfigurationError:
                campaign.counts["refused"] += 1
            finally:
                subprocess.run([mount, "-o", "remount,rw", small_disk], check=True)
            store.open()
            store.clear()
            campaign.counts["pages kept"] += sum(store.set(keys[:20], 2))
            store.get(keys[:20])


@each_on_disk
def test_files_that_are_deleted_while_they_are_open(
    campaign: Campaign, subject: BackendSubject, tmp_path: Path
) -> None:
    for seed in campaign.rounds(3, 0.02):
        rng = random.Random(seed)
        with closing(Place(subject, tmp_path, page_bytes=PAGE, capacity_bytes=50 * PAGE)) as place:
            store = StorageDriver(place, forgets=True)
            keys = [f"a/{number}" for number in range(30)]
            store.set(keys)
            for path in sorted(place.directory.rglob("*"), reverse=True):
                if rng.random() < 0.5:
                    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
                    campaign.counts["files and folders deleted"] += 1
            for _ in range(2):
                campaign.counts["pages read"] += sum(store.get(keys))
                store.set(keys, 1)
            try:
                store.reopen()
                store.get(keys)
            except ConfigurationError:
                campaign.counts["refused"] += 1


@each_on_disk
def test_links_and_pipes_in_the_place_of_files(campaign: Campaign, subject: BackendSubject, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_bytes(b"precious")
    for seed in campaign.rounds(len(REPLACEMENTS), 0.03):
        rng = random.Random(seed)
        with closing(Place(subject, tmp_path, page_bytes=PAGE, capacity_bytes=50 * PAGE)) as place:
            store = StorageDriver(place, forgets=True)
            keys = [f"a/{number}" for number in range(10)]
            store.set(keys)
            files = sorted(path for path in place.directory.rglob("*") if path.is_file() and not path.is_symlink())
            replacement = REPLACEMENTS[seed % len(REPLACEMENTS)]
            if replacement == "pipe":
                # SQLite opens the journal of an open index for each change, and would wait for a writer of the pipe.
                store.instances[0].close()
            replace(rng.choice(files), replacement, elsewhere)
            campaign.counts["replaced"] += 1
            if replacement != "pipe":
                campaign.counts["pages read"] += sum(store.get(keys))
                store.set(keys, 1)
            try:
                store.reopen()
                store.get(keys)
                store.set(keys, 2)
                store.clear()
            except ConfigurationError:
                campaign.counts["refused"] += 1
    names = [path.name for path in elsewhere.iterdir()]
    assert names == ["precious"], f"expected no new file elsewhere, got {names}"
    assert (elsewhere / "precious").read_bytes() == b"precious", "expected the file elsewhere to be unchanged"


@pytest.mark.parametrize("subject", SHIPPED, ids=lambda subject: subject.name)
def test_hostile_names(campaign: Campaign, subject: BackendSubject, tmp_path: Path) -> None:
    for seed in campaign.rounds(3, 0.01):
        rng = random.Random(seed)
        with closing(Place(subject, tmp_path, page_bytes=PAGE, capacity_bytes=200 * PAGE)) as place:
            store = StorageDriver(place, forgets=True)
            store.set(["sound/0"])
            for name in rng.sample(NAMES, 8):
                try:
                    campaign.counts["pages kept"] += sum(
                        store.instances[0].set([name], store.source([name], 0).pages, [])
                    )
                except KeyFormError:
                    campaign.counts["refused"] += 1
            assert store.get(["sound/0"]) == [True], "STORE-3: a name beside hostile ones is kept"
    left = sorted(path.name for path in tmp_path.iterdir())
    assert not left, f"expected no file outside of the place, got {left}"
