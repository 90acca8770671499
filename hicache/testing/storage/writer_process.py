"""The process behind `Writers`: forks a writer for each task that it is told, so that a writer costs little to kill.

It reads and writes lines of JSON. A line is one write, below what a pipe takes at once, so writers do not mix.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import Any

from hicache.storage.registry import backend_class, open_backend
from hicache.testing.storage.page_bytes import Sheet, page_bytes


def tell(**message: object) -> None:
    """Say something about this process."""
    os.write(sys.stdout.fileno(), (json.dumps({"pid": os.getpid(), **message}) + "\n").encode())


def write_pages(task: dict[str, Any]) -> None:
    """Open a backend, and keep a version of keys `stem/0` to `stem/count`, a batch at a time."""
    backend = open_backend(task["backend"], task["scope"], task["options"])
    tell(opened=True)
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
        tell(answers=backend.set(keys, sheet.pages, []))
    backend.close()


def run_writer(task: dict[str, Any]) -> None:
    """Write, say how it ended, and leave without the cleaning up of a process that was forked."""
    try:
        write_pages(task)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the other side has to hear of it
        tell(raised=repr(error)[:1000])
    tell(ended=True)
    os._exit(0)


def main() -> None:
    """Fork a writer for each task, or wait for one to be dead, until there is nothing more to read."""
    for line in sys.stdin:
        order = json.loads(line)
        if "task" in order:
            # Imported once: a writer is to be killed while it opens and writes, not while it imports.
            backend_class(order["task"]["backend"])
            pid = os.fork()
            if not pid:
                run_writer(order["task"])
            tell(started=pid)
        else:
            _, status = os.waitpid(order["reap"], 0)
            tell(reaped=order["reap"], signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)


if __name__ == "__main__":
    main()
