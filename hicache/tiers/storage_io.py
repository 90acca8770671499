"""StorageRequests: makes the jobs that query, read and write pages; StorageWorker: calls the backend for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from traceback import format_exception
from typing import TypeAlias

from hicache.config import CacheConfig
from hicache.metrics import Counters
from hicache.pools.host import HostPools
from hicache.storage.answers import Reading, is_cleared, is_closed, pages_done, pages_usable
from hicache.storage.base import BATCH_PAGES, Breaker, Pieces, PoolQuery, StorageBackend
from hicache.storage.keys import StorageKeys
from hicache.storage.secrets import redacted
from hicache.storage.staged import registered
from hicache.transfer.job import PageBatch, PrefixQuery, Progress, StorageJob, StoreBatch
from hicache.tree.hashes import prefix_hashes
from hicache.tree.node import Node
from hicache.types import Component, HitPolicy, Pool, Slots, StorageKind

LOG = logging.getLogger(__name__)

VERB = {StorageKind.QUERY: "exists", StorageKind.PREFETCH: "get", StorageKind.STORE: "set"}
"""What a job calls of a backend."""

VERBS = (*VERB.values(), "clear", "close")

Parts: TypeAlias = tuple[PageBatch | StoreBatch | PrefixQuery, ...]

MovePages: TypeAlias = Callable[[Sequence[str], Sequence[Pieces], Sequence[str]], list[bool]]
"""`get` or `set` of a backend."""


class StorageRequests:
    """Makes the jobs that query, read and write pages in storage.

    Sidecars follow FULL's pages. SWA and MAMBA are needed at the end of a prefix alone. `keys`: the names of objects.
    `prefix_pools`: the pools that a prefix needs without a gap. `tail_pages`: by component, how many of its last pages
    a prefix needs. `tail_pools`: the component of each of those pools. `numbers`: of all jobs of the cache.
    """

    def __init__(self, config: CacheConfig, pools: HostPools, counters: Counters, numbers: Iterator[int]) -> None:
        assert config.storage is not None, "storage requests need a storage tier"
        self.keys = StorageKeys.of(config)
        self.prefix_pools = pools.pools_of(Component.FULL)
        self.tail_pages = _tail_pages(config)
        self.tail_pools = {pool: name for name in self.tail_pages for pool in pools.pools_of(name)}
        self._pools = pools
        self._counters = counters
        self._bytes_per_page = config.key_bytes_per_page
        self._passes_prefix = config.storage.hicache_storage_pass_prefix_keys
        self._numbers = numbers

    def query(self, hashes: Sequence[str], lengths: Sequence[int], before: Node) -> StorageJob:
        """Ask how long a prefix can be used, past the node `before`: of the first pages of each of these lengths.

        `hashes`: of at least as many pages as the longest has.
        """
        parts = tuple([self._prefix_query(hashes[:length]) for length in lengths])
        return self._job(StorageKind.QUERY, parts, before)

    def _prefix_query(self, hashes: Sequence[str]) -> PrefixQuery:
        pools = [
            PoolQuery(self.keys.of_pages(pool, hashes), HitPolicy.ALL_PAGES, 0)
            for pool in self.prefix_pools
            if pool != Pool.KV
        ]
        pools += [
            PoolQuery(self.keys.of_pages(pool, hashes), HitPolicy.TRAILING_PAGES, pages)
            for name, pages in self.tail_pages.items()
            for pool in self._pools.pools_of(name)
        ]
        return PrefixQuery(tuple(self.keys.of_pages(Pool.KV, hashes)), tuple(pools))

    def read(
        self, hashes: Sequence[str], pages: Mapping[str, Slots], pages_read: Mapping[str, int], before: Node
    ) -> StorageJob:
        """Read a prefix past the node `before` into host pages: pools without gaps first, then the tails.

        `pages`: of each component the last ones of the prefix. `pages_read`: by pool, how many of the first of them
        have come already and are not read again.
        """
        full = pages[Component.FULL]
        batches: list[PageBatch] = []
        for pool in self.prefix_pools:
            first = pages_read.get(pool, 0)
            batches += self._batches(pool, hashes[len(hashes) - len(full) + first :], full[first:])
        for pool, name in self.tail_pools.items():
            batches += self._batches(pool, hashes[len(hashes) - len(pages[name]) :], pages[name])
        return self._job(StorageKind.PREFETCH, tuple(batches), before)

    def write(self, hashes: Sequence[str], pages: Mapping[str, Slots], before: Node) -> StorageJob:
        """Write the pages of a node below `before`: each batch has BATCH_PAGES pages, with the data of all pools."""
        batches = [self._store_batch(hashes, pages, begin) for begin in range(0, len(hashes), BATCH_PAGES)]
        return self._job(StorageKind.STORE, tuple([batch for batch in batches if batch.pools]), before)

    def _store_batch(self, hashes: Sequence[str], pages: Mapping[str, Slots], begin: int) -> StoreBatch:
        """The pages of one `set`, KV last. The pages of a component are the last ones of the node."""
        batches: list[PageBatch] = []
        for name in reversed(list(pages)):
            first, end = len(hashes) - len(pages[name]), begin + BATCH_PAGES
            own, names = pages[name][max(0, begin - first) : max(0, end - first)], hashes[max(begin, first) : end]
            pools = reversed(self._pools.pools_of(name)) if len(own) else ()
            batches += [PageBatch(pool, tuple(self.keys.of_pages(pool, names)), own) for pool in pools]
        return StoreBatch(tuple(batches))

    def page_bytes(self) -> dict[str, int]:
        """The bytes of a page, by the first segment of the keys of each pool."""
        return {self.keys.shard_of(pool): size for pool, size in self._pools.page_bytes().items()}

    def bytes_of(self, pages: Mapping[str, Slots]) -> int:
        """How many bytes some host pages are, by component, over all layers and pools."""
        return self._pools.bytes_of(pages)

    def wanted(self, length: int) -> dict[str, int]:
        """The host pages of each component that a prefix of so many pages needs."""
        return {Component.FULL: length} | {name: min(pages, length) for name, pages in self.tail_pages.items()}

    def _job(self, kind: StorageKind, parts: Parts, before: Node) -> StorageJob:
        return StorageJob(next(self._numbers), kind, parts, self._prefix_keys(before))

    def _prefix_keys(self, node: Node) -> tuple[str, ...]:
        """The KV objects of the pages up to the node's end, for a backend that asks for them."""
        digests = prefix_hashes(node, self._bytes_per_page, self._counters) if self._passes_prefix else []
        return tuple(self.keys.of_pages(Pool.KV, [digest.hex() for digest in digests]))

    def _batches(self, pool: str, hashes: Sequence[str], pages: Slots) -> list[PageBatch]:
        keys = self.keys.of_pages(pool, hashes)
        firsts = range(0, len(keys), BATCH_PAGES)
        return [
            PageBatch(pool, tuple(keys[first : first + BATCH_PAGES]), pages[first : first + BATCH_PAGES])
            for first in firsts
        ]


def _tail_pages(config: CacheConfig) -> dict[str, int]:
    tail_pages: dict[str, int] = {}
    if Component.SWA in config.components:
        assert config.sliding_window_size is not None, "CacheConfig requires a window with SWA"
        tail_pages[Component.SWA] = -(-config.sliding_window_size // config.page_size)
    if Component.MAMBA in config.components:
        tail_pages[Component.MAMBA] = 1
    return tail_pages


class StorageWorker:
    """Calls the backend on the threads of executors, straight into and out of the host pools if it accepts them.

    Exceptions and invalid values of a backend are misses or refusals. The first of these is logged, and all are
    counted. `written`: the pools whose pages this rank writes. Those of other pools are left to the rank that does.
    """

    def __init__(self, pools: HostPools, written: frozenset[str]) -> None:
        self._pools = pools
        self._written = written
        self._backend: StorageBackend | None = None
        self._abandoned: StorageBackend | None = None
        self._errors = dict.fromkeys(VERBS, 0)
        self._copied = dict.fromkeys(VERBS, 0)
        self._last_breaker: Breaker | None = None
        self._noted = count()

    @property
    def is_attached(self) -> bool:
        """Whether there is a backend."""
        return self._backend is not None

    @property
    def errors(self) -> int:
        """How many backend calls raised or returned an invalid value."""
        return sum(self._errors.values())

    @property
    def errors_by_verb(self) -> dict[str, int]:
        """The same by the verb of the backend."""
        return dict(self._errors)

    @property
    def bytes_staged(self) -> int:
        """How many bytes were copied between the host pools and memory of single calls."""
        return sum(self._copied.values())

    @property
    def breaker(self) -> Breaker | None:
        """The breaker of the backend, with the pauses of those before it; None if none of them had one."""
        found = self._backend.breaker() if self._backend is not None else None
        if found is None or self._last_breaker is None:
            return found or self._last_breaker
        return Breaker(found.is_open, self._last_breaker.pauses + found.pauses)

    def prepared(self, backend: StorageBackend, page_bytes: Mapping[str, int]) -> StorageBackend:
        """Register the host pools with a backend: the size of their pages, and their memory. Returns what to call.

        Raises what the backend raises when it cannot register them, and ConfigurationError when it does not say whether
        it accepts their memory. The backend is then closed.
        """
        try:
            backend.register_pools(page_bytes)
            return registered(backend, self._pools.regions(), self._note_copied)
        except Exception:
            self._call("close", backend.close, is_closed)
            raise

    def attach(self, backend: StorageBackend) -> None:
        """Call this backend from now on."""
        self._backend = backend

    def detach(self) -> None:
        """Close the backend. It is gone also if that raises."""
        backend = self._released()
        if backend is not None:
            self._call("close", backend.close, is_closed)

    def abandon(self) -> None:
        """Call the backend no more. It is not closed: it may be in a call."""
        if self._backend is not None:
            self._abandoned = self._released()

    def _released(self) -> StorageBackend | None:
        if (breaker := self.breaker) is not None:
            self._last_breaker = Breaker(is_open=False, pauses=breaker.pauses)
        backend, self._backend = self._backend, None
        return backend

    def forget_abandoned(self) -> Callable[[], object] | None:
        """What closes the backend that was abandoned, once its calls have ended; None if there is none any more."""
        backend, self._abandoned = self._abandoned, None
        return None if backend is None else lambda: self._call("close", backend.close, is_closed)

    def clear(self) -> bool:
        """Remove all that the cache has in storage; False without a backend, or when it cannot."""
        if self._backend is None:
            return False
        return bool(self._call("clear", self._backend.clear, is_cleared))

    def step(self, job: StorageJob, done: Progress) -> Progress:
        """Do the next part of a job. A query is one question, however many lengths it is about."""
        if job.kind is StorageKind.QUERY:
            return Progress(1, tuple([self._answer(job, part) for part in job.parts]), has_ended=True)
        part = len(done.answers)
        answer = self._answer(job, job.parts[part])
        has_ended = part + 1 == len(job.parts) or not job.is_whole(part, answer)
        return Progress(part + 1, (*done.answers, answer), has_ended)

    def rest(self, job: StorageJob, done: Progress) -> Progress:
        """Do the parts that are left, to the first that is not whole."""
        while not done.has_ended:
            done = self.step(job, done)
        return done

    def _answer(self, job: StorageJob, part: PageBatch | StoreBatch | PrefixQuery) -> int:
        """How many of the first pages of a part are whole, or can be used."""
        backend = self._backend
        if backend is None:
            return 0
        if isinstance(part, PageBatch):
            return self._read(backend, job, part)
        if isinstance(part, StoreBatch):
            return self._store(backend, job, part)
        keys, pools = part.keys, part.pools
        return self._call(
            "exists",
            lambda: backend.exists(keys, pools, job.prefix_keys),
            lambda answer: pages_usable(answer, len(keys)),
        )

    def _read(self, backend: StorageBackend, job: StorageJob, batch: PageBatch) -> int:
        return self._move("get", backend.get, (batch,), job.prefix_keys)

    def _store(self, backend: StorageBackend, job: StorageJob, batch: StoreBatch) -> int:
        """Write what this rank writes of a batch. The rest counts as done where that is done."""
        own = [one for one in batch.pools if one.pool in self._written]
        done = self._move("set", backend.set, own, job.prefix_keys) if own else 0
        return len(batch.keys) if done == sum(len(one.keys) for one in own) else done

    def _move(self, verb: str, ask: MovePages, batches: Sequence[PageBatch], prefix_keys: Sequence[str]) -> int:
        """Read or write the pages of all these batches by one call."""
        keys = tuple([key for batch in batches for key in batch.keys])
        pages = [self._pools.buffers[batch.pool].pieces(page) for batch in batches for page in batch.pages.tolist()]
        return self._call(verb, lambda: ask(keys, pages, prefix_keys), lambda answer: pages_done(answer, len(keys)))

    def _call(self, verb: str, ask: Callable[[], object], read: Callable[[object], Reading]) -> int:
        """The pages of an answer. Exceptions and invalid values are counted; the first is logged."""
        error = None
        try:
            reading = read(ask())
        except Exception as raised:  # noqa: BLE001 - what a backend raises is an answer
            reading, error = Reading(0, "it raised"), raised
        if reading.flaw:
            self.note_error(verb, reading.flaw, error)
        return reading.pages

    def _note_copied(self, verb: str, size_bytes: int) -> None:
        self._copied[verb] += size_bytes

    def note_error(self, verb: str, flaw: str, error: Exception | None) -> None:
        """Count a call that raised, or gave no answer, and log the first one."""
        # Without a lock: each verb is called by one thread, and a count gives each number to one.
        self._errors[verb] += 1
        if next(self._noted) == 0:
            told = "" if error is None else f"\n{redacted(''.join(format_exception(error))).rstrip()}"
            LOG.error("storage backend, %s: %s; later errors are not logged%s", verb, flaw, told)
