"""KillRuns: a writer is killed at a random moment; the others find whole pages and can go on writing."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from time import sleep

from hicache.testing.storage.driver import StorageDriver
from hicache.testing.storage.place import Place
from hicache.testing.storage.subject import BackendSubject
from hicache.testing.storage.writers import Task, Writer, Writers, reaches_others, task_of

KILL_PAGE = 16_384

_RUNS_UNTIL_CLEAR = 10
_MAX_PAGES = 400
_MAX_DELAY_S = 0.004
_SHARE_WHILE_OPENING = 0.2


@dataclass(frozen=True, slots=True)
class KillCounts:
    """`kills`: writers that were killed before they ended. `acknowledged`: pages for which they had received True.

    `whole`, `absent`: the state of the pages that were being written.
    """

    kills: int
    acknowledged: int
    whole: int
    absent: int


class KillRuns:
    """Runs on one backend in one place. Each raises InvariantError, naming the clause, for a violation."""

    def __init__(self, subject: BackendSubject, folder: Path) -> None:
        self._place = Place(subject, folder, page_bytes=KILL_PAGE)
        self._store = StorageDriver(self._place)
        self._writers = Writers()
        self._runs = 0
        self.counts = KillCounts(0, 0, 0, 0)

    @property
    def operations(self) -> int:
        """The number of verbs that the surviving process called."""
        return self._store.operations

    @property
    def reach_others(self) -> bool:
        """Whether this process can see what a writer in another process has written."""
        return reaches_others(self._store, self._writers)

    def run(self, seed: int) -> None:
        """Kill one writer, and check what it left."""
        rng = random.Random(seed)
        task = task_of(self._store, f"kill{seed}", version=seed, count=_MAX_PAGES, batch=rng.randint(1, 8))
        writer = self._writers.start(task)
        self._wait(writer, rng)
        was_killed = self._writers.kill(writer)
        in_progress = self._note(task, writer)
        if rng.random() < 0.5:  # noqa: PLR2004 - as often as not
            self._store.reopen()
        found = self._store.get(in_progress)
        self._note_late(in_progress, task.version)
        self._store.get_all(task.keys[: len(writer.answers)])
        self._store.has(in_progress)
        self._note_late(in_progress, task.version)
        self._go_on(in_progress, seed)
        before = self.counts
        self.counts = KillCounts(
            before.kills + was_killed,
            before.acknowledged + sum(writer.answers),
            before.whole + sum(found),
            before.absent + found.count(False),
        )

    def close(self) -> None:
        """End the processes and close the backend."""
        self._writers.close()
        self._place.close()

    def _wait(self, writer: Writer, rng: random.Random) -> None:
        """Wait until a writer has reached a random page, or has just started, and a random time longer."""
        if rng.random() >= _SHARE_WHILE_OPENING:
            wanted = rng.randint(0, 40)
            self._writers.wait(lambda: writer.has_ended or (writer.has_opened and len(writer.answers) >= wanted))
        # The random moment of the kill is the purpose: nothing is awaited here.
        sleep(rng.uniform(0, _MAX_DELAY_S))

    def _note(self, task: Task, writer: Writer) -> list[str]:
        """Record in the model the writer's answers and the pages it was writing; returns the keys of those pages."""
        answered, model = len(writer.answers), self._store.model
        for key, answer in zip(task.keys, writer.answers, strict=False):
            model.was_set(key, task.version, answer)
        in_progress = task.keys[answered : answered + task.batch]
        for key in in_progress:
            model.was_interrupted(key, task.version)
        return in_progress

    def _note_late(self, keys: list[str], version: int) -> None:
        """Record that a service may still execute the requests of a killed writer."""
        if self._place.metadata is not None:
            for key in keys:
                self._store.model.was_interrupted(key, version)

    def _go_on(self, keys: list[str], seed: int) -> None:
        """Check that the pages that were being written can be written and read now."""
        self._store.set(keys, -1 - seed)
        self._store.get(keys)
        self._runs += 1
        if self._runs % _RUNS_UNTIL_CLEAR == 0:
            self._store.clear()
