"""Writers: other processes that write to a backend, and can be killed at any moment."""

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
    """Starts the process that forks writers. Raises InvariantError when a writer raises, or sends nothing in time."""

    def __init__(self) -> None:
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
            self.hear()

    def hear(self) -> None:
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
        if "raised" in message:
            raise violation("STORE-3", "set in another process", "an answer also after a fault", message["raised"])
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
