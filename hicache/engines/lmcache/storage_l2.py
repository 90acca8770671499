"""LMCache's L2 adapter for files in Python (`fs`, FSL2Adapter of release 0.5.6) under the backend suite.

LMCache's factory makes it, and it gets the calls of LMCache's controllers: `submit_store_task` for a batch;
`submit_lookup_and_lock_task`, `submit_load_task` for what was found, and `submit_unlock`. The completion is read when
the event descriptor says so. As in LMCache one thread stores and one loads: the calls of each kind do not overlap.

Scopes and keys become LMCache's as in `storage_lmcache.py`. A hash with an odd number of digits, which LMCache cannot
have, is that of another form. A task of `set` has one answer for all pages. The adapter neither lists nor clears: for
`clear` and `stats` names are read from the folder, and LMCache deletes them.
"""

from __future__ import annotations

import hashlib
import select
import time
from collections.abc import Callable, Mapping, Sequence
from mmap import mmap
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from hicache.engines.lmcache.storage import key_name, lmcache_class, only_piece, scatter, size_of
from hicache.errors import ConfigurationError
from hicache.optional_torch import torch
from hicache.storage.base import Pieces, StorageBackend, StorageStats
from hicache.storage.registry import Options

ANSWER_S = 10.0
"""How long a completion is waited for."""

MODULE = "lmcache.v1.distributed"

T = TypeVar("T")


class LmcacheL2Files(StorageBackend):
    """LMCache's `fs`. Options: `directory`, and `adapter`, further arguments such as `use_odirect`."""

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        read = Options("lmcache-l2-fs", options, ("directory", "adapter"))
        self._scope, self._folder = scope, Path(read.text("directory"))
        asked = {**read.table("adapter"), "base_path": str(self._folder)}
        try:
            config = lmcache_class(f"{MODULE}.l2_adapters.fs_l2_adapter", "FSL2AdapterConfig").from_dict(asked)
            self._adapter: Any = lmcache_class(f"{MODULE}.l2_adapters", "create_l2_adapter")(config)
        except (ImportError, ValueError) as error:
            raise ConfigurationError(f"LMCache's L2 adapter cannot be opened: {error}") from error
        # Direct I/O needs aligned memory, as LMCache's own is.
        self._given: Callable[[Pieces], memoryview | None] = (
            (lambda _: None) if asked.get("use_odirect") else only_piece
        )
        self._storing, self._loading = Lock(), Lock()
        self._is_open = True

    def has(self, keys: Sequence[str]) -> list[bool]:
        names = self._keys(keys)
        with self._loading:
            found = self._looked_up(names)
            self._unlock(names, found)
        return found

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        names = self._keys(keys)
        buffers = [self._given(target) or memoryview(mmap(-1, size_of(target))) for target in targets]
        with self._loading:
            found = self._looked_up(names)
            pages = [page for page, is_there in enumerate(found) if is_there]
            # Also a buffer for each target that no key has.
            objects = [_object(buffer) for page, buffer in enumerate(buffers) if page in pages or page >= len(keys)]
            answers = self._loaded([names[page] for page in pages], objects) if pages else []
            self._unlock(names, found)
        loaded = [page for page, is_read in zip(pages, answers, strict=False) if is_read]
        for page, target in enumerate(targets):
            if page in loaded and buffers[page] is not self._given(target):
                scatter(buffers[page], target)
        return [page in loaded for page in range(len(keys))]

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        buffers = [self._given(source) or memoryview(mmap(-1, size_of(source))) for source in sources]
        for buffer, source in zip(buffers, sources, strict=True):
            if buffer is not self._given(source):
                buffer[:] = b"".join(source)
        objects = [_object(buffer) for buffer in buffers]
        with self._storing:
            task = self._adapter.submit_store_task(self._keys(keys), objects)
            fd, pop = self._adapter.get_store_event_fd(), self._adapter.pop_completed_store_tasks
            done = self._answer(fd, lambda: pop() or None)
        return [bool(done[task].is_successful())] * len(keys)

    def clear(self) -> bool:
        try:
            names = [file.stem.replace("@0x", "@") for file in self._files()]
        except OSError:
            return False
        self._adapter.delete([self._key(name) for name in names])
        return not self._files()

    def stats(self) -> StorageStats:
        """The files of this scope, as the adapter counts neither hits nor misses."""
        sizes = [file.stat().st_size for file in self._files()]
        return StorageStats(len(sizes), sum(sizes), 0, {}, 0, 0, {}, 0, 0, 0)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._adapter.close()

    def _files(self) -> list[Path]:
        found = (file for file in self._folder.iterdir() if file.name.startswith(f"{self._scope}@"))
        return [file for file in found if file.suffix == ".data"]

    def _keys(self, keys: Sequence[str]) -> list[Any]:
        return [self._key(key_name(self._scope, key)) for key in keys]

    def _key(self, name: str) -> Any:
        """LMCache's key for a name of the form model@rank@group@hash."""
        model, rank, group, digits = name.rsplit("@", 3)
        digest = hashlib.sha256(digits.encode()).digest() if len(digits) % 2 else bytes.fromhex(digits)
        return lmcache_class(f"{MODULE}.api", "ObjectKey")(digest, model, int(rank, 16), int(group, 16))

    def _looked_up(self, names: list[Any]) -> list[bool]:
        task = self._adapter.submit_lookup_and_lock_task(names, {})
        fd = self._adapter.get_lookup_and_lock_event_fd()
        found = self._answer(fd, lambda: self._adapter.query_lookup_and_lock_result(task))
        return [bool(found.test(page)) for page in range(len(names))]

    def _loaded(self, names: list[Any], objects: list[Any]) -> list[bool]:
        task = self._adapter.submit_load_task(names, objects)
        loaded = self._answer(self._adapter.get_load_event_fd(), lambda: self._adapter.query_load_result(task))
        return [bool(loaded.test(page)) for page in range(len(names))]

    def _unlock(self, names: list[Any], found: list[bool]) -> None:
        self._adapter.submit_unlock([name for name, is_there in zip(names, found, strict=True) if is_there])

    def _answer(self, fd: int, ask: Callable[[], T | None]) -> T:
        """Wait for the completion of a task. Raises TimeoutError."""
        event, until = select.poll(), time.monotonic() + ANSWER_S
        event.register(fd, select.POLLIN)
        consume = lmcache_class("lmcache.v1.platform", "consume_fd")
        while (answer := ask()) is None:
            if not event.poll(max(0.0, until - time.monotonic()) * 1000):
                raise TimeoutError(f"LMCache's L2 adapter has not completed a task within {ANSWER_S:g} seconds")
            consume(fd)
        return answer


def _object(buffer: memoryview) -> Any:
    """LMCache's object over the memory of a page."""
    metadata = lmcache_class("lmcache.v1.memory_management", "MemoryObjMetadata")
    make = lmcache_class("lmcache.v1.memory_management", "TensorMemoryObj")
    data = torch.frombuffer(buffer, dtype=torch.uint8)
    return make(data, metadata(torch.Size([buffer.nbytes]), torch.uint8, data.data_ptr(), buffer.nbytes, 1), None)
