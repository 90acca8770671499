"""What memory a backend gets: views of the host pools if it has accepted them, and else some of each call's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hicache.errors import ConfigurationError
from hicache.pools.host import HostPools
from hicache.stacks import pool_specs
from hicache.storage.base import Pieces, StorageBackend
from hicache.storage.memory import MemoryStorage
from hicache.storage.registry import open_backend
from hicache.storage.staged import StagedStorage
from hicache.storage.wrappers import StorageWrapper
from hicache.tests.cache.pools.two_tiers import contents, fill, pages_of, stored_config
from hicache.tiers.storage_worker import StorageWorker
from hicache.transfer.job import NOT_STARTED, PageBatch, StorageJob, StoreBatch
from hicache.types import Pool, StorageKind

CONFIG = stored_config()

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "memory": {},
    "file": {"root": "{root}", "capacity_bytes": 1 << 20},
    "slotfile": {"root": "{root}", "capacity_slots": 16},
    "hf3fs": {"root": "{root}", "capacity_pages": 16, "metadata_file": "{root}/metadata.json"},
}


class Watched(StorageWrapper):
    """Notes the addresses of the memory that it gets: of each buffer the first byte, and the one after the last."""

    def __init__(self, inner: StorageBackend) -> None:
        self.inner = inner
        self.given: list[tuple[int, int]] = []

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        self._note(targets)
        return super().get(keys, targets, prefix_keys)

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        self._note(sources)
        return super().set(keys, sources, prefix_keys)

    def _note(self, pages: Sequence[Pieces]) -> None:
        for piece in (piece for page in pages for piece in page):
            first = int(np.frombuffer(piece, dtype=np.uint8).ctypes.data)
            self.given.append((first, first + piece.nbytes))


class Unaccepting(Watched):
    """Does not say anything of its own about memory, like most backends."""

    register = StorageBackend.register


class Speechless(MemoryStorage):
    """Was written before `register` had an answer. `is_closed`: whether it was closed."""

    is_closed = False

    def register(self, regions: Sequence[memoryview]) -> Any:
        """Note the regions, and say nothing."""

    def close(self) -> None:
        self.is_closed = True
        super().close()


@pytest.fixture
def pools() -> HostPools:
    """Each byte of each pool has a content of its own."""
    made = HostPools(CONFIG, pool_specs(CONFIG))
    fill(made, seed=3)
    return made


def moved_by(pools: HostPools, backend: StorageBackend) -> StorageWorker:
    """Store two pages of each pool, and read them into two others; returns the worker that did."""
    worker = StorageWorker(pools, frozenset(Pool))
    sizes = {f"{pool}.0of1": size for pool, size in pools.page_bytes().items()}
    worker.attach(worker.prepared(backend, sizes))
    batches = [
        PageBatch(pool, (f"{pool}.0of1/a", f"{pool}.0of1/b"), pages_of(1, 2), slice(None)) for pool in pools.buffers
    ]
    reads = tuple([PageBatch(batch.pool, batch.keys, pages_of(4, 3), slice(None)) for batch in batches])
    stored = worker.rest(StorageJob(1, StorageKind.STORE, (StoreBatch(tuple(batches)),), ()), NOT_STARTED)
    came = worker.rest(StorageJob(2, StorageKind.PREFETCH, reads, ()), NOT_STARTED)
    assert stored.answers == (2 * len(batches),), f"all pages are stored by one call, got {stored}"
    assert came.answers == (2,) * len(batches), f"STORE-3: all pages come back, got {came}"
    for pool in pools.buffers:
        now = contents(pools, pool)
        assert np.array_equal(now[[4, 3]], now[[1, 2]]), f"HOST-7: pages of {pool} came back with other bytes"
    worker.detach()
    return worker


def strays(pools: HostPools, given: Sequence[tuple[int, int]]) -> int:
    """How many buffers lie outside the tensors of the host pools."""
    tensors = [raw for buffers in pools.buffers.values() for raw in buffers.raw]
    held = [(raw.data_ptr(), raw.data_ptr() + raw.untyped_storage().nbytes()) for raw in tensors]
    return sum(not any(first <= begin and end <= last for first, last in held) for begin, end in given)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_backend_that_accepts_host_memory_gets_views_of_it(pools: HostPools, tmp_path: Path, name: str) -> None:
    options = {
        key: str(value).format(root=tmp_path) if key in {"root", "metadata_file"} else value
        for key, value in OPTIONS[name].items()
    }
    backend = Watched(open_backend(name, "scope", options))
    worker = moved_by(pools, backend)
    assert len(backend.given) >= 2 * 2 * len(pools.buffers), f"each page was moved twice, got {backend.given}"
    assert strays(pools, backend.given) == 0, "STORE-9: expected all memory to be that of the host pools"
    assert worker.bytes_staged == 0, f"STORE-16: {worker.bytes_staged} bytes were copied on the way"


def test_a_backend_that_does_not_gets_memory_of_each_call(pools: HostPools) -> None:
    backend = Unaccepting(MemoryStorage("scope", {}))
    worker = moved_by(pools, backend)
    inside = len(backend.given) - strays(pools, backend.given)
    assert inside == 0, f"STORE-16: {inside} buffers of {len(backend.given)} lie in the host pools"
    moved = 2 * 2 * sum(pools.page_bytes().values())
    assert worker.bytes_staged == moved, f"two pages of each pool, twice: {moved} bytes, {worker.bytes_staged} counted"


def test_a_backend_that_does_not_say_whether_it_accepts_memory_is_refused(pools: HostPools) -> None:
    backend = Speechless("scope", {})
    with pytest.raises(ConfigurationError, match="register of Speechless must return True or False, got None"):
        StorageWorker(pools, frozenset(Pool)).prepared(backend, {})
    assert backend.is_closed, "it is not used: expected it to be closed"


# StagedStorage.


def staged(inner: StorageBackend) -> tuple[StagedStorage, list[tuple[str, int]]]:
    """A backend behind memory of each call's own, and what was copied."""
    copied: list[tuple[str, int]] = []
    return StagedStorage(inner, lambda verb, size: copied.append((verb, size))), copied


class Lying(MemoryStorage):
    """Fills all targets, and gives the answer of the test."""

    answer: Any = None

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> Any:
        for piece in (piece for page in targets for piece in page):
            piece[:] = b"!" * len(piece)
        return self.answer


@pytest.mark.parametrize(
    ("answer", "came"), [([True, True], 2), ([True, False], 1), ([False, True], 0), ([1, 1], 0), (None, 0), ([True], 0)]
)
def test_only_what_a_cache_believes_is_copied(answer: object, came: int) -> None:
    inner = Lying("scope", {})
    inner.answer = answer
    backend, copied = staged(inner)
    targets = [bytearray(b"abcd") for _ in range(2)]
    given = backend.get(["kv/a", "kv/b"], [[memoryview(one)[:1], memoryview(one)[1:]] for one in targets], ())
    assert given is answer, f"the answer is given unchanged, got {given}"
    found = [bytes(one) for one in targets]
    assert found == [b"!!!!"] * came + [b"abcd"] * (2 - came), f"STORE-16: of {answer}, got {found}"
    assert copied == [("get", 4 * came)], f"got {copied}"


class Deferred(MemoryStorage):
    """Reads its sources after the call."""

    later: Sequence[Pieces] = ()

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        self.later = sources
        return [True] * len(keys)


def test_what_is_read_late_is_what_was_given() -> None:
    inner = Deferred("scope", {})
    backend, copied = staged(inner)
    source = bytearray(b"abcd")
    assert backend.set(["kv/a"], [[memoryview(source)]], ()) == [True], "it says that it is stored"
    source[:] = b"!!!!"
    found = [bytes(piece) for page in inner.later for piece in page]
    assert found == [b"abcd"], f"STORE-16: the memory now has another owner, got {found}"
    assert copied == [("set", 4)], f"got {copied}"
