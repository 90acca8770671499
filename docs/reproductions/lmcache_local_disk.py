"""What LMCache 0.5.6's LocalDiskBackend makes of files that are too short, of full disks and of failed writes.

It needs LMCache, what its back ends import, and torch; no GPU. Run it with
`python docs/reproductions/lmcache_local_disk.py`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_allocators.mixed_memory_allocator import MixedMemoryAllocator
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.storage_backend.local_disk_backend import LocalDiskBackend

PAGE = 8192
WRITE_S = 2.0
"""How long a write, or its memory, is waited for. One takes less than a millisecond."""

logging.disable(logging.CRITICAL)


class Disk:
    """The back end of a folder, with memory for four chunks."""

    def __init__(self, folder: Path, loop: asyncio.AbstractEventLoop, *, direct: bool) -> None:
        self.folder = folder
        config = LMCacheEngineConfig.from_defaults(
            local_cpu=False, local_disk=str(folder), max_local_disk_size=1, extra_config={"use_odirect": direct}
        )
        self.allocator = MixedMemoryAllocator(4 * PAGE)
        self.memory = LocalCPUBackend(config, memory_allocator=self.allocator)
        self.backend = LocalDiskBackend(config, loop, self.memory, "cpu")

    def put(self, name: str) -> bool:
        """Store a chunk whose bytes are all the letter that is its name; whether the back end says that it is done."""
        chunk = self.memory.allocate(torch.Size([1, 1, 1, PAGE]), torch.uint8, MemoryFormat.KV_2LTD, busy_loop=False)
        chunk.tensor.fill_(ord(name))
        done = threading.Event()
        self.backend.submit_put_task(key_of(name), chunk, lambda _: done.set())
        is_done = done.wait(WRITE_S)
        chunk.ref_count_down()
        return is_done

    def show(self, name: str) -> None:
        """Print whether a chunk is found, and the bytes that it is read with."""
        chunk = self.backend.get_blocking(key_of(name))
        is_whole = bool((chunk.tensor == ord(name)).all())
        read = f"{name} alone" if is_whole else f"{name} and other bytes"
        print(f"  contains {name}: {self.backend.contains(key_of(name))}; get: {read}")
        chunk.ref_count_down()

    def file(self, name: str) -> Path:
        """The file of a chunk."""
        return self.folder / f"{key_of(name).to_string()}.pt"


def key_of(name: str) -> CacheEngineKey:
    """A key: model, workers, worker, hash of the chunk, dtype."""
    return CacheEngineKey("model", 1, 0, int.from_bytes(name.encode(), "big"), torch.uint8)


def limit(size: int) -> None:
    """Let no file of this process grow beyond so many bytes, as on a disk that becomes full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def short_file(disk: Disk) -> None:
    """The rest of a file that is too short is what the memory had before."""
    disk.put("a")
    disk.put("b")
    os.truncate(disk.file("a"), PAGE // 2)
    print("a file that was cut to half of the chunk a; the memory had chunk b before")
    disk.show("b")
    disk.show("a")


def without_room(disk: Disk) -> None:
    """With direct I/O a chunk that was written in part counts as stored."""
    limit(PAGE // 2)
    print("direct I/O, and room for half of the chunk c")
    print("  put c is done:", disk.put("c"))
    limit(resource.RLIM_INFINITY)
    disk.put("d")
    disk.show("d")
    disk.show("c")


def failed_write(disk: Disk) -> None:
    """A chunk whose write failed is never stored again, and its memory is never free again."""
    limit(PAGE // 2)
    print("no direct I/O, and room for half of the chunk e")
    print("  put e is done:", disk.put("e"))
    limit(resource.RLIM_INFINITY)
    print("with room again")
    print("  put e is done:", disk.put("e"))
    print("  put f is done:", disk.put("f"))
    memory, end_s = disk.allocator.pin_allocator, time.monotonic() + WRITE_S
    while memory.total_allocated_size and time.monotonic() < end_s:
        time.sleep(0.01)
    print(f"  memory of chunks that nothing uses: {memory.total_allocated_size // PAGE}")


def main() -> None:
    """Show all of it."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        for direct, shows in ((False, [short_file]), (True, [without_room]), (False, [failed_write])):
            disk = Disk(Path(folder), loop, direct=direct)
            for show in shows:
                show(disk)
    sys.stdout.flush()
    os._exit(0)  # LMCache's threads wait for the write that failed


if __name__ == "__main__":
    main()
