"""Writers: other processes that write to a backend, each of which can be killed at any moment."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from hicache.testing.storage.driver import StorageDriver
from hicache.testing.violation import violation

_SILENCE_S = 60.0
_MODULE = "hicache.testing.storage.writer_process"


@dataclass(frozen=True, slots=True)
class Task:
    """What a writer does: it keeps `count` pages under `stem/0`, `stem/1`, … a batch at a time, all in one version.

    `cuts`: sizes of the pieces of each page. `file_limit_bytes`: no file may grow beyond it, as on a full disk;
    a writer that `dies_at_limit` is killed by the system where it tries, and has no chance to clean up.
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
        """The keys that it writes, in order."""
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
    told = (place.subject.name, store.scope, place.options, stem, version, count, batch, cuts)
    return Task(*told, file_limit_bytes, dies_at_limit)


@dataclass(slots=True)
class Writer:
    """One writer. `answers`: for the keys of its task from the first on, as far as it has got."""

    pid: int
    task: Task
    answers: list[bool]
    has_opened: bool
    has_ended: bool


class Writers:
    """Begins with a process that starts the writers. Raises InvariantError when a writer raises, or says nothing."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(  # noqa: S603 - a Python of our own
            [sys.executable, "-m", _MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        self._writers: dict[int, Writer] = {}
        self._unread = b""

    def start(self, task: Task) -> Writer:
        """Start one more writer."""
        # What a writer says may come before the word that it was started.
        answer, others = self._ask("started", {"task": asdict(task)})
        pid = answer["started"]
        writer = self._writers[pid] = Writer(pid, task, [], has_opened=False, has_ended=False)
        for message in others:
            self._take(message)
        return writer

    def wait(self, until: Callable[[], bool]) -> None:
        """Hear what writers say until something is so."""
        while not until():
            self.hear()

    def hear(self) -> None:
        """Hear what writers say next."""
        for message in self._read():
            self._take(message)

    def wait_for_end(self, writer: Writer) -> None:
        """Wait until a writer has done its task, and is gone."""
        self.wait(lambda: writer.has_ended)
        self._reap(writer)

    def wait_for_death(self, writer: Writer) -> bool:
        """Wait until a writer is gone; whether the system killed it."""
        return self._reap(writer) == signal.SIGXFSZ

    def kill(self, writer: Writer) -> bool:
        """Kill a writer, and hear what it had said by then; whether it was killed before its end."""
        os.kill(writer.pid, signal.SIGKILL)
        return self._reap(writer) == signal.SIGKILL

    def close(self) -> None:
        """Kill whoever is left, and the process itself."""
        for pid in self._writers:
            os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.communicate()

    def _reap(self, writer: Writer) -> int:
        """Wait until a writer is gone; the signal that ended it, or 0."""
        answer, others = self._ask("reaped", {"reap": writer.pid})
        for message in others:
            self._take(message)
        del self._writers[writer.pid]
        return int(answer["signal"])

    def _ask(self, name: str, order: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Give an order, and wait for the message that answers it; what else was said meanwhile."""
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
        ready, _, _ = select.select([pipe], [], [], _SILENCE_S)
        received = os.read(pipe, 1 << 16) if ready else b""
        if not received:
            raise violation("STORE-3", "a process that writes", "answers", "its end" if ready else "none for a minute")
        *lines, self._unread = (self._unread + received).split(b"\n")
        return [json.loads(line) for line in lines]

    def _take(self, message: dict[str, Any]) -> None:
        writer = self._writers[message["pid"]]
        if "raised" in message:
            raise violation("STORE-3", "set in another process", "an answer, whatever fails", message["raised"])
        writer.answers += message.get("answers", [])
        writer.has_opened |= "opened" in message
        writer.has_ended |= "ended" in message


def reaches_others(store: StorageDriver, writers: Writers) -> bool:
    """Whether what one process keeps can be seen by another. What is on disk has to be."""
    if store.place.subject.is_on_disk:
        return True
    task = task_of(store, "elsewhere", version=0, count=1, batch=1)
    writers.wait_for_end(writers.start(task))
    return store.instances[0].has(task.keys) == [True]
