"""What LMCache 0.5.6's client for files makes of short, long, shared and incomplete files.

It needs LMCache and torch alone. Run it with `python docs/reproductions/lmcache_files.py`.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lmcache.lmcache_fs import LMCacheFSClient

PAGE = 4096
LARGE = 1 << 28
WAIT_MS = 30_000


def ask(client: LMCacheFSClient, verb: str, *arguments: list[Any]) -> tuple[bool, list[bool] | None]:
    """Submit a batch and wait: whether all of it was done, and the answer to each key."""
    submitted = getattr(client, f"submit_batch_{verb}")(*arguments)
    event = select.poll()
    event.register(client.event_fd(), select.POLLIN)
    if not event.poll(WAIT_MS):
        raise TimeoutError(f"{verb} is not completed")
    [(completed, is_done, _, answers)] = client.drain_completions()
    assert completed == submitted, "one batch at a time"
    return is_done, answers


def key_of(name: str) -> str:
    """A key: model, rank, object group, hash of the chunk."""
    return f"model@01000100@0@{name.encode().hex()}"


def file_of(folder: Path, name: str, ending: str) -> Path:
    """The file of a key (`.data`), or the one that a writer renames to it (`.tmp`)."""
    return folder / f"{key_of(name).replace('@', '@0x', 1)}{ending}"


def page(size: int = PAGE) -> memoryview:
    """The bytes of a page."""
    return memoryview(bytearray(b"\x07" * size))


def short_file(folder: Path, client: LMCacheFSClient) -> None:
    """A file that ends within the page is never written again."""
    name = "short"
    ask(client, "set", [key_of(name)], [page()])
    os.truncate(file_of(folder, name, ".data"), PAGE // 2)
    print("a file that was cut to half of the page")
    print("  exists", ask(client, "exists", [key_of(name)])[1])
    print("  get   ", ask(client, "get", [key_of(name)], [page()])[1])
    print("  set   ", ask(client, "set", [key_of(name)], [page()])[0])
    print("  get   ", ask(client, "get", [key_of(name)], [page()])[1])


def long_file(_: Path, client: LMCacheFSClient) -> None:
    """The beginning of a longer file is read as the page."""
    ask(client, "set", [key_of("long")], [page()])
    print(f"a file of {PAGE} bytes, read into {PAGE // 4}")
    print("  get   ", ask(client, "get", [key_of("long")], [page(PAGE // 4)])[1])


def failed_batch(folder: Path, client: LMCacheFSClient) -> None:
    """A page of a batch that failed is there."""
    file_of(folder, "blocked", ".tmp").mkdir()
    print("a batch of two pages, of which the second cannot be written")
    print("  set   ", ask(client, "set", [key_of("good"), key_of("blocked")], [page(), page()])[0])
    print("  exists", ask(client, "exists", [key_of("good"), key_of("blocked")])[1])


def start_writer(folder: Path, name: str) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that stores a large page, and the file in which it writes. Returns when it is writing."""
    file = file_of(folder, name, ".tmp")
    before = file.stat().st_size if file.exists() else 0
    command = [sys.executable, __file__, str(folder), name]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603
    while not (file.exists() and file.stat().st_size > 0 and file.stat().st_size != before):
        assert writer.poll() is None, "the writer ended before it was seen"
    return writer, file


def killed_writer(folder: Path, client: LMCacheFSClient) -> None:
    """The file of a killed writer stays."""
    writer, file = start_writer(folder, "killed")
    writer.kill()
    writer.communicate()
    ask(client, "set", [key_of("next")], [page()])
    print("after a writer was killed, and another page was stored")
    print("  a file .tmp that is not empty:", file.stat().st_size > 0)


def two_writers(folder: Path, client: LMCacheFSClient) -> None:
    """Two writers of one page share the file in which they write."""
    name = "both"
    first, _ = start_writer(folder, name)
    first.send_signal(signal.SIGSTOP)
    os.waitpid(first.pid, os.WUNTRACED)
    second, file = start_writer(folder, name)
    second.kill()
    second.communicate()
    print("the first writer stopped before it renamed its file, the second was killed while it wrote")
    print("  the file is complete:", file.stat().st_size == LARGE)
    first.send_signal(signal.SIGCONT)
    print("  set of the first:", first.communicate()[0].strip())
    print("  exists", ask(client, "exists", [key_of(name)])[1])
    print("  get   ", ask(client, "get", [key_of(name)], [page(LARGE)])[1])
    print("  set   ", ask(client, "set", [key_of(name)], [page(LARGE)])[0])
    print("  get   ", ask(client, "get", [key_of(name)], [page(LARGE)])[1])


def main() -> None:
    """Show all of it, or be a writer of one large page."""
    if len(sys.argv) > 1:
        folder, name = sys.argv[1:]
        print(ask(LMCacheFSClient(folder, 1), "set", [key_of(name)], [page(LARGE)])[0])
        return
    with tempfile.TemporaryDirectory() as folder:
        client = LMCacheFSClient(folder, 1)
        for show in (short_file, long_file, failed_batch, killed_writer, two_writers):
            show(Path(folder), client)
        client.close()


if __name__ == "__main__":
    main()
