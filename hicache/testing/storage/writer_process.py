"""The process behind `Writers`: forks a writer for each task, so that starting and killing a writer is cheap.

It reads and writes lines of JSON. A line is one write of less than PIPE_BUF bytes, so lines of writers do not mix.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import Any

from hicache.errors import ConfigurationError
from hicache.storage.registry import backend_class, open_backend
from hicache.testing.storage.page_bytes import Sheet, page_bytes


def send(**message: object) -> None:
    """Write a message about this process."""
    os.write(sys.stdout.fileno(), (json.dumps({"pid": os.getpid(), **message}) + "\n").encode())


def write_pages(task: dict[str, Any]) -> None:
    """Open a backend, and store a version of the keys `stem/0` to `stem/count`, in batches."""
    try:
        backend = open_backend(task["backend"], task["scope"], task["options"])
    except ConfigurationError as error:
        send(refused=repr(error)[:1000])
        return
    send(opened=True)
    if task["dies_at_limit"]:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if task["file_limit_bytes"] is not None:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (task["file_limit_bytes"], hard))
    for begin in range(0, task["count"], task["batch"]):
        keys = [f"{task['stem']}/{number}" for number in range(begin, min(begin + task["batch"], task["count"]))]
        sheet = Sheet([task["cuts"]] * len(keys))
        for page, key in enumerate(keys):
            sheet.write(page, page_bytes(task["scope"], key, task["version"], sum(task["cuts"])))
        send(answers=backend.set(keys, sheet.pages, []))
    backend.close()


def run_writer(task: dict[str, Any]) -> None:
    """Write the pages, report the end, and exit without the cleanup of the forked process."""
    try:
        write_pages(task)
    except BaseException as error:  # noqa: BLE001 - every error is reported to the other process
        send(raised=repr(error)[:1000])
    send(ended=True)
    os._exit(0)


def main() -> None:
    """Fork a writer for each task, or wait for the end of one, until the input ends."""
    for line in sys.stdin:
        order = json.loads(line)
        if "task" in order:
            # Imported once, so that a kill hits a writer that opens or writes, not one that imports.
            backend_class(order["task"]["backend"])
            pid = os.fork()
            if not pid:
                run_writer(order["task"])
            send(started=pid)
        else:
            _, status = os.waitpid(order["reap"], 0)
            send(reaped=order["reap"], signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)


if __name__ == "__main__":
    main()
