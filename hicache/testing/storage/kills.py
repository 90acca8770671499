"""KillRuns: a writer is killed at a random moment, and whoever is left finds whole pages, and can go on writing."""

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
_MOST_PAGES = 400
_MOST_DELAY_S = 0.004
_SHARE_WHILE_OPENING = 0.2


@dataclass(frozen=True, slots=True)
class KillCounts:
    """`kills`: writers that were killed before their end. `acknowledged`: pages for which they were told True.

    `whole`, `absent`: what became of the pages that were under way.
    """

    kills: int
    acknowledged: int
    whole: int
    absent: int


class KillRuns:
    """Runs on one backend in one place. Each raises InvariantError, naming the clause, for what it finds wrong."""

    def __init__(self, subject: BackendSubject, folder: Path) -> None:
        self._place = Place(subject, folder, page_bytes=KILL_PAGE)
        self._store = StorageDriver(self._place)
        self._writers = Writers()
        self._runs = 0
        self.counts = KillCounts(0, 0, 0, 0)

    @property
    def operations(self) -> int:
        """Verbs that the survivor called."""
        return self._store.operations

    @property
    def reach_others(self) -> bool:
        """Whether a writer in another process leaves anything that could be looked at."""
        return reaches_others(self._store, self._writers)

    def run(self, seed: int) -> None:
        """Kill one writer, and look at what it left."""
        dice = random.Random(seed)
        task = task_of(self._store, f"kill{seed}", version=seed, count=_MOST_PAGES, batch=dice.randint(1, 8))
        writer = self._writers.start(task)
        self._wait(writer, dice)
        was_killed = self._writers.kill(writer)
        under_way = self._note(task, writer)
        if dice.random() < 0.5:  # noqa: PLR2004 - as often as not
            self._store.reopen()
        found = self._store.get(under_way)
        self._note_late(under_way, task.version)
        self._store.get_all(task.keys[: len(writer.answers)])
        self._store.has(under_way)
        self._note_late(under_way, task.version)
        self._go_on(under_way, seed)
        before = self.counts
        self.counts = KillCounts(
            before.kills + was_killed,
            before.acknowledged + sum(writer.answers),
            before.whole + sum(found),
            before.absent + found.count(False),
        )

    def close(self) -> None:
        """End the processes, and close the backend."""
        self._writers.close()
        self._place.close()

    def _wait(self, writer: Writer, dice: random.Random) -> None:
        """Let a writer come to some page, or not even to its first, and a random moment further."""
        if dice.random() >= _SHARE_WHILE_OPENING:
            wanted = dice.randint(0, 40)
            self._writers.wait(lambda: writer.has_ended or (writer.has_opened and len(writer.answers) >= wanted))
        # The moment is what is tried out here: nothing is waited for.
        sleep(dice.uniform(0, _MOST_DELAY_S))

    def _note(self, task: Task, writer: Writer) -> list[str]:
        """Tell the model what the writer was told, and which pages it was at; the keys of those."""
        told, model = len(writer.answers), self._store.model
        for key, answer in zip(task.keys, writer.answers, strict=False):
            model.was_set(key, task.version, answer)
        under_way = task.keys[told : told + task.batch]
        for key in under_way:
            model.was_interrupted(key, task.version)
        return under_way

    def _note_late(self, keys: list[str], version: int) -> None:
        """What a dead writer has asked of a service may be served after its death."""
        if self._place.metadata is not None:
            for key in keys:
                self._store.model.was_interrupted(key, version)

    def _go_on(self, keys: list[str], seed: int) -> None:
        """What was under way can be written now, and read."""
        self._store.set(keys, -1 - seed)
        self._store.get(keys)
        self._runs += 1
        if self._runs % _RUNS_UNTIL_CLEAR == 0:
            self._store.clear()
