"""The output of a process, line by line, with a limit on how long the process may be silent."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO


@contextmanager
def started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process with stdout and stderr in one stream, without `PYTEST_ADDOPTS`. It has ended when the block ends."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    with subprocess.Popen(  # noqa: S603 - the command is made by this package
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=environment,
    ) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def lines(stream: IO[str], silence_s: float) -> Iterator[str]:
    """Yield each line until the stream ends. Raises TimeoutError if no line comes for `silence_s` seconds."""
    queue: SimpleQueue[str | None] = SimpleQueue()

    def read() -> None:
        for line in stream:
            queue.put(line)
        queue.put(None)

    Thread(target=read, daemon=True).start()
    while True:
        try:
            line = queue.get(timeout=silence_s)
        except Empty:
            raise TimeoutError(f"no output for {silence_s:g} s") from None
        if line is None:
            return
        yield line
