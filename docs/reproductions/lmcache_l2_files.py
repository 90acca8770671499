"""What LMCache 0.5.6's L2 adapter for files in Python (`fs`) makes of short, long, incomplete and shared files.

It needs LMCache, what this adapter imports, and torch. Run it with `python docs/reproductions/lmcache_l2_files.py`.
"""

from __future__ import annotations

import logging
import mmap
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import FSL2AdapterConfig
from lmcache.v1.memory_management import MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.platform import consume_fd

PAGE = 8192
LARGE = 1 << 28
WAIT_MS = 30_000

logging.disable(logging.CRITICAL)


class Files:
    """The adapter of a folder: each call waits for its answer."""

    def __init__(self, folder: Path, **options: bool) -> None:
        self.folder = folder
        self.adapter = create_l2_adapter(FSL2AdapterConfig.from_dict({"base_path": str(folder), **options}))

    def store(self, names: Sequence[str], size: int = PAGE) -> bool:
        """Store pages under these names; whether the adapter reports success."""
        task = self.adapter.submit_store_task([key_of(name) for name in names], [page(size) for _ in names])
        done = answer(self.adapter.get_store_event_fd(), lambda: self.adapter.pop_completed_store_tasks() or None)
        return bool(done[task].is_successful())

    def lookup(self, names: Sequence[str]) -> list[bool]:
        """Which of the pages are found."""
        task = self.adapter.submit_lookup_and_lock_task([key_of(name) for name in names], {})
        fd = self.adapter.get_lookup_and_lock_event_fd()
        found = answer(fd, lambda: self.adapter.query_lookup_and_lock_result(task))
        return [found.test(number) for number, _ in enumerate(names)]

    def load(self, names: Sequence[str], size: int = PAGE) -> list[bool]:
        """Which of the pages are read, into so many bytes each."""
        task = self.adapter.submit_load_task([key_of(name) for name in names], [page(size) for _ in names])
        loaded = answer(self.adapter.get_load_event_fd(), lambda: self.adapter.query_load_result(task))
        return [loaded.test(number) for number, _ in enumerate(names)]

    def file(self, name: str, ending: str = ".data") -> Path:
        """The file of a page (`.data`), or the one that a writer renames to it (`.tmp`)."""
        return self.folder / f"model@0x01000100@0@{name.encode().hex()}{ending}"


def answer(fd: int, ask: Callable[[], Any]) -> Any:
    """What a task is answered, when the descriptor says that it is done."""
    event = select.poll()
    event.register(fd, select.POLLIN)
    while (found := ask()) is None:
        if not event.poll(WAIT_MS):
            raise TimeoutError("a task is not completed")
        consume_fd(fd)
    return found


def key_of(name: str) -> ObjectKey:
    """A key: hash of the chunk, model, rank."""
    return ObjectKey(name.encode(), "model", 0x01000100)


def page(size: int) -> TensorMemoryObj:
    """A page in aligned memory."""
    data = torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)
    data[:] = 7
    return TensorMemoryObj(data, MemoryObjMetadata(torch.Size([size]), torch.uint8, data.data_ptr(), size, 1), None)


def show_again(files: Files, name: str, size: int = PAGE) -> None:
    """Print whether a page is found, read, and stored again."""
    print("  lookup", files.lookup([name]))
    print("  load  ", files.load([name], size))
    print("  store ", files.store([name], size))
    print("  load  ", files.load([name], size))


def short_file(files: Files) -> None:
    """A file that ends within the page is never written again."""
    files.store(["short"])
    os.truncate(files.file("short"), PAGE // 2)
    print("a file that was cut to half of the page")
    show_again(files, "short")


def long_file(files: Files) -> None:
    """The beginning of a longer file is read as the page."""
    files.store(["long"])
    print(f"a file of {PAGE} bytes, read into {PAGE // 4}")
    print("  load  ", files.load(["long"], PAGE // 4))


def failed_batch(files: Files) -> None:
    """A page of a batch that failed is there."""
    files.file("blocked", ".tmp").mkdir()
    print("a batch of two pages, of which the second cannot be written")
    print("  store ", files.store(["good", "blocked"]))
    print("  lookup", files.lookup(["good", "blocked"]))


def without_room(folder: Path) -> None:
    """With direct I/O a page that was written in part counts as stored. A limit stands for a disk that becomes full."""
    for direct in (False, True):
        files = Files(folder, use_odirect=direct)
        name = f"direct-{direct}"
        resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE // 2, resource.RLIM_INFINITY))
        print(f"room for half of the page, use_odirect={direct}")
        print("  store ", files.store([name]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print("with room again")
        show_again(files, name)
        files.adapter.close()


def start_writer(files: Files, name: str) -> subprocess.Popen[str]:
    """Start a process that stores a large page. Returns when it is writing."""
    file = files.file(name, ".tmp")
    before = file.stat().st_size if file.exists() else 0
    command = [sys.executable, __file__, str(files.folder), name]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603
    while not (file.exists() and file.stat().st_size not in (0, before)):
        assert writer.poll() is None, "the writer ended before it was seen"
    return writer


def killed_writer(files: Files) -> None:
    """The file of a killed writer stays."""
    writer = start_writer(files, "killed")
    writer.kill()
    writer.communicate()
    files.store(["next"])
    print("after a writer was killed, and another page was stored")
    print("  a file .tmp that is not empty:", files.file("killed", ".tmp").stat().st_size > 0)


def two_writers(files: Files) -> None:
    """Two writers of one page share the file in which they write."""
    first = start_writer(files, "both")
    first.send_signal(signal.SIGSTOP)
    os.waitpid(first.pid, os.WUNTRACED)
    second = start_writer(files, "both")
    second.kill()
    second.communicate()
    print("the first writer stopped before it renamed its file, the second was killed while it wrote")
    print("  the file is complete:", files.file("both", ".tmp").stat().st_size == LARGE)
    first.send_signal(signal.SIGCONT)
    print("  store of the first:", first.communicate()[0].strip())
    show_again(files, "both", LARGE)


def main() -> None:
    """Show all of it, or be a writer of one large page."""
    if len(sys.argv) > 1:
        folder, name = sys.argv[1:]
        files = Files(Path(folder))
        print(files.store([name], LARGE))
        files.adapter.close()
        return
    with tempfile.TemporaryDirectory() as folder:
        files = Files(Path(folder))
        for show in (short_file, long_file, failed_batch, killed_writer, two_writers):
            show(files)
        files.adapter.close()
        without_room(Path(folder))


if __name__ == "__main__":
    main()
