"""Writers: other processes that write to a backend; KillRuns: one is killed, and the others find whole pages."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import sleep
from typing import Any

from hicache.testing.storage.driver import StorageDriver
from hicache.testing.storage.room import has_room
from hicache.testing.storage.subject import BackendSubject, Place
from hicache.testing.violation import violation

KILL_PAGE = 16_384

_RUNS_UNTIL_CLEAR = 10
_MAX_PAGES = 400
_MAX_DELAY_S = 0.004
_SHARE_WHILE_OPENING = 0.2

_TIMEOUT_S = 60.0
_MODULE = "hicache.testing.storage.writer_process"


@dataclass(frozen=True, slots=True)
class Task:
    """The task of a writer: store `count` pages under `stem/0`, `stem/1`, … in batches, all in one version.

    `cuts`: sizes of the pieces of each page. `file_limit_bytes`: the largest size of a file, to simulate a full disk;
    a writer that `dies_at_limit` is killed by the system when it exceeds it, and cannot clean up.
    """

    backend: str
    scope: str
    options: dict[str, Any]
    stem: str
    version: int
    count: int
    batch: int
    cuts: tuple[int, ...]
    file_limit_bytes: int | None
    dies_at_limit: bool

    @property
    def keys(self) -> list[str]:
        """The keys that the writer stores, in order."""
        return [f"{self.stem}/{number}" for number in range(self.count)]


def task_of(
    store: StorageDriver,
    stem: str,
    *,
    version: int,
    count: int,
    batch: int,
    file_limit_bytes: int | None = None,
    dies_at_limit: bool = False,
) -> Task:
    """A task in the scope of a driver."""
    place = store.place
    cuts = (store.page_size // 4, store.page_size - store.page_size // 4)
    arguments = (place.subject.name, store.scope, place.options, stem, version, count, batch, cuts)
    return Task(*arguments, file_limit_bytes, dies_at_limit)


@dataclass(slots=True)
class Writer:
    """One writer. `answers`: the answers so far, for the first keys of its task."""

    pid: int
    task: Task
    answers: list[bool]
    has_opened: bool
    has_ended: bool


class Writers:
    """Starts the process that forks writers. Raises InvariantError when a writer raises, or sends nothing in time.

    `may_be_refused`: a writer may be refused when it opens the store, and then ends without an answer.
    """

    def __init__(self, *, may_be_refused: bool = False) -> None:
        self._may_be_refused = may_be_refused
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(  # noqa: S603 - a Python of our own
            [sys.executable, "-m", _MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        self._writers: dict[int, Writer] = {}
        self._unread = b""

    def start(self, task: Task) -> Writer:
        """Start one more writer."""
        # A writer's first message may arrive before the message that it was started.
        answer, others = self._ask("started", {"task": asdict(task)})
        pid = answer["started"]
        writer = self._writers[pid] = Writer(pid, task, [], has_opened=False, has_ended=False)
        for message in others:
            self._process_message(message)
        return writer

    def wait(self, until: Callable[[], bool]) -> None:
        """Process messages of writers until a condition holds."""
        while not until():
            self.process_next()

    def process_next(self) -> None:
        """Process the next messages of writers."""
        for message in self._read():
            self._process_message(message)

    def wait_for_end(self, writer: Writer) -> None:
        """Wait until a writer has done its task and ended."""
        self.wait(lambda: writer.has_ended)
        self._reap(writer)

    def wait_for_death(self, writer: Writer) -> bool:
        """Wait until a writer has ended; whether the system killed it."""
        return self._reap(writer) == signal.SIGXFSZ

    def kill(self, writer: Writer) -> bool:
        """Kill a writer, and process its messages until then; whether it was killed before it ended."""
        os.kill(writer.pid, signal.SIGKILL)
        return self._reap(writer) == signal.SIGKILL

    def close(self) -> None:
        """Kill all writers and the process itself."""
        for pid in self._writers:
            os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.communicate()

    def _reap(self, writer: Writer) -> int:
        """Wait until a writer has ended; the signal that ended it, or 0."""
        answer, others = self._ask("reaped", {"reap": writer.pid})
        for message in others:
            self._process_message(message)
        del self._writers[writer.pid]
        return int(answer["signal"])

    def _ask(self, name: str, order: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Send an order and wait for its answer; returns the answer, and the other messages until then."""
        assert self._process.stdin is not None, "the process was opened with pipes"
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        messages: list[dict[str, Any]] = []
        while not (found := [message for message in messages if name in message]):
            messages += self._read()
        return found[0], [message for message in messages if name not in message]

    def _read(self) -> list[dict[str, Any]]:
        assert self._process.stdout is not None, "the process was opened with pipes"
        pipe = self._process.stdout.fileno()
        ready, _, _ = select.select([pipe], [], [], _TIMEOUT_S)
        received = os.read(pipe, 1 << 16) if ready else b""
        if not received:
            raise violation("STORE-3", "a process that writes", "answers", "its end" if ready else "none for a minute")
        *lines, self._unread = (self._unread + received).split(b"\n")
        return [json.loads(line) for line in lines]

    def _process_message(self, message: dict[str, Any]) -> None:
        writer = self._writers[message["pid"]]
        if "raised" in message or ("refused" in message and not self._may_be_refused):
            answer = message.get("raised", message.get("refused"))
            raise violation("STORE-3", "set in another process", "an answer also after a fault", answer)
        writer.answers += message.get("answers", [])
        writer.has_opened |= "opened" in message
        writer.has_ended |= "ended" in message


def reaches_others(store: StorageDriver, writers: Writers) -> bool:
    """Whether one process can see what another one stores. A backend on disk must allow this."""
    if store.place.subject.is_on_disk:
        return True
    task = task_of(store, "elsewhere", version=0, count=1, batch=1)
    writers.wait_for_end(writers.start(task))
    return store.instances[0].has(task.keys) == [True]


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
        pages = _RUNS_UNTIL_CLEAR * _MAX_PAGES
        is_short = not has_room(self._place, pages, pages * KILL_PAGE)
        self._store = StorageDriver(self._place, forgets=is_short)
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
