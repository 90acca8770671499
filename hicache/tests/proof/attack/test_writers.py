"""STORE-3, STORE-4: four processes write, are stopped and killed, while any file of the store is damaged."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import TypeVar

import pytest

from hicache.errors import ConfigurationError
from hicache.testing.storage.driver import StorageDriver
from hicache.testing.storage.subject import SHIPPED, BackendSubject, Place
from hicache.testing.storage.writers import Task, Writer, Writers, task_of
from hicache.tests.proof.attack.campaign import Campaign

Answer = TypeVar("Answer")

ON_DISK = [subject for subject in SHIPPED if subject.is_on_disk]

PAGE = 2048
PAGES = 60
WRITERS = 4
VERBS = 25
STOPPED_VERBS = 3
"""How many verbs another process calls while a writer is stopped."""


def flip_bits(content: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice([1, 1, 1, 8])):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def blank_a_part(content: bytearray, rng: random.Random) -> None:
    begin = rng.randrange(len(content))
    end = min(len(content), begin + rng.choice([1, 64, 512, 4096]))
    content[begin:end] = bytes(end - begin)


def copy_a_part(content: bytearray, rng: random.Random) -> None:
    """Put one block in the place of another, as a disk does that writes to a wrong address."""
    size = rng.choice([64, 512, 4096])
    source, target = (rng.randrange(max(1, len(content) - size + 1)) // size * size for _ in range(2))
    content[target : target + size] = content[source : source + size]


CHANGES: tuple[Callable[[bytearray, random.Random], None], ...] = (flip_bits, blank_a_part, copy_a_part)


def damage_a_file(directory: Path, rng: random.Random) -> str:
    """Damage one file of the store in place, cut it, lengthen it, or remove it; returns what was done."""
    # Unlike files_of, a walk goes on when another process removes a folder in the meantime.
    files = sorted(Path(folder) / name for folder, _, names in os.walk(directory) for name in names)
    if not files:
        return "found no file"
    path = rng.choice(files)
    act = rng.choice(["change", "change", "change", "change", "cut", "lengthen", "remove"])
    try:
        size = path.stat().st_size
        if act == "remove":
            path.unlink()
        elif act == "cut":
            os.truncate(path, rng.randrange(size + 1))
        elif act == "lengthen":
            with path.open("ab") as file:
                file.write(rng.randbytes(rng.choice([1, 100, 5000])))
        elif size:
            _change(path, size, rng)
    except FileNotFoundError:
        # Another process has removed it since it was listed.
        return "found no file"
    return f"files {act}{'d' if act.endswith('e') else '' if act == 'cut' else 'ed'}"


def _change(path: Path, size: int, rng: random.Random) -> None:
    """Change at most 64 KiB of a file, in place."""
    begin = rng.randrange(max(1, size - (1 << 16) + 1)) // 4096 * 4096
    with path.open("r+b") as file:
        file.seek(begin)
        content = bytearray(file.read(1 << 16))
        if content:
            rng.choice(CHANGES)(content, rng)
            file.seek(begin)
            file.write(content)


class Attack:
    """One round: writers, and a reader in this process whose every page is compared with what was written."""

    def __init__(self, campaign: Campaign, place: Place, writers: Writers, seed: int) -> None:
        self._campaign = campaign
        self._place = place
        self._rng = random.Random(seed)
        self._writers = writers
        self._store = StorageDriver(place, forgets=True)
        self._running: list[Writer] = []
        self._tasks: list[Task] = []
        self._is_refused = False

    def run(self) -> None:
        """Run one round, and store and read pages when all writers have ended."""
        sound = [f"sound/{number}" for number in range(8)]
        self._store.set(sound, 8)
        assert self._store.get(sound) == [True] * 8, "STORE-4: nothing is damaged yet: expected all pages"
        tasks = self._tasks = [self._task(number) for number in range(WRITERS)]
        self._running = [self._writers.start(task) for task in tasks]
        for _ in range(VERBS):
            self._attack()
            self._verb()
        for writer in self._running:
            self._campaign.counts["writers killed"] += self._writers.kill(writer)
        self._timed(self._store.reopen)
        self._timed(self._store.get_all, [key for task in tasks for key in task.keys])
        fresh = [f"fresh/{number}" for number in range(8)]
        self._timed(self._store.set, fresh, 7)
        self._campaign.counts["pages read"] += sum(self._timed(self._store.get, fresh))

    def _task(self, number: int) -> Task:
        stem = "shared" if number % 2 else f"own{number}"
        return task_of(self._store, stem, version=number, count=PAGES, batch=self._rng.randint(1, 8))

    def _allow_versions(self) -> None:
        """Allow the versions of all writers: a page that was lost after it was read may come back in another one."""
        for task in self._tasks:
            for key in task.keys:
                self._store.model.was_interrupted(key, task.version)

    def _attack(self) -> None:
        """Damage a file, or stop or kill a writer."""
        draw = self._rng.random()
        if draw < 0.6:
            self._campaign.counts[damage_a_file(self._place.directory, self._rng)] += 1
        elif draw < 0.7 and self._running:
            writer = self._running.pop(self._rng.randrange(len(self._running)))
            self._campaign.counts["writers killed"] += self._writers.kill(writer)
        elif draw < 0.8 and self._running:
            self._stop_one(self._rng.choice(self._running))

    def _stop_one(self, writer: Writer) -> None:
        os.kill(writer.pid, signal.SIGSTOP)
        self._campaign.counts["writers stopped"] += 1
        try:
            for _ in range(STOPPED_VERBS):
                self._verb()
        finally:
            os.kill(writer.pid, signal.SIGCONT)
        if self._is_refused:
            self._timed(self._store.reopen)
            self._is_refused = False

    def _verb(self) -> None:
        keys = [f"{self._rng.choice(['shared', 'own0', 'own2'])}/{self._rng.randrange(PAGES)}" for _ in range(4)]
        keys = list(dict.fromkeys(keys))
        act = self._rng.random()
        if act < 0.6:
            self._campaign.counts["pages read"] += sum(self._timed(self._store.get, keys))
        elif act < 0.8:
            self._timed(self._store.set, keys, 9)
        elif act < 0.9:
            self._timed(self._store.has, keys)
        else:
            self._reopen()

    def _reopen(self) -> None:
        """Open the store anew. It may refuse for a writer that is stopped with a lock, until this writer goes on."""
        try:
            self._timed(self._store.reopen)
        except ConfigurationError as error:
            if "holds the lock" not in str(error):
                raise
            self._is_refused = True
            self._campaign.counts["openings refused"] += 1

    def _timed(self, verb: Callable[..., Answer], *arguments: object) -> Answer:
        self._allow_versions()
        began = monotonic()
        try:
            return verb(*arguments)
        finally:
            self._campaign.timed(began)
            self._campaign.counts["verbs"] += 1


@pytest.mark.parametrize("subject", ON_DISK, ids=lambda subject: subject.name)
def test_no_wrong_page_is_read_beside_killed_and_stopped_writers_and_damaged_files(
    campaign: Campaign, subject: BackendSubject, tmp_path: Path
) -> None:
    for seed in campaign.rounds(2, 0.15):
        with (
            closing(Writers(may_be_refused=True)) as writers,
            closing(Place(subject, tmp_path, page_bytes=PAGE, capacity_bytes=150 * PAGE)) as place,
        ):
            Attack(campaign, place, writers, seed).run()
