"""StorageWorker: calls the storage backend for jobs, on the threads of executors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from traceback import format_exception
from typing import TypeAlias

from hicache.pools.host import HostPools
from hicache.storage.answers import Reading, ends_usable, is_cleared, is_closed, pages_done, pages_usable
from hicache.storage.base import Breaker, Pieces, PoolQuery, StorageBackend
from hicache.storage.secrets import redacted
from hicache.storage.staged import registered
from hicache.transfer.job import PageBatch, PrefixQuery, Progress, StorageJob, StoreBatch
from hicache.types import StorageKind

LOG = logging.getLogger(__name__)

VERB = {StorageKind.QUERY: "exists", StorageKind.PREFETCH: "get", StorageKind.STORE: "set"}
"""What a job calls of a backend."""

VERBS = (*VERB.values(), "clear", "close")

MovePages: TypeAlias = Callable[[Sequence[str], Sequence[Pieces], Sequence[str]], list[bool]]
"""`get` or `set` of a backend."""


class StorageWorker:
    """Calls the backend on the threads of executors, straight into and out of the host pools if it accepts them.

    Exceptions and invalid values of a backend are misses or refusals. The first of these is logged, and all are
    counted. `written`: the pools whose pages this rank writes. Those of other pools are left to the rank that does.
    """

    def __init__(self, pools: HostPools, written: frozenset[str]) -> None:
        self._pools = pools
        self._written = written
        self._backend: StorageBackend | None = None
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
        self.disown()()

    def disown(self) -> Callable[[], object]:
        """Call the backend no more, if there is one. Returns what closes it, for when its calls have ended."""
        if (breaker := self.breaker) is not None:
            self._last_breaker = Breaker(is_open=False, pauses=breaker.pauses)
        backend, self._backend = self._backend, None
        return lambda: None if backend is None else self._call("close", backend.close, is_closed)

    def clear(self) -> bool:
        """Remove all that the cache has in storage; False without a backend, or when it cannot."""
        if self._backend is None:
            return False
        return bool(self._call("clear", self._backend.clear, is_cleared))

    def step(self, job: StorageJob, done: Progress) -> Progress:
        """Do the next part of a job."""
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
        """How many of the first pages of a part are whole, or which prefixes can be used."""
        backend = self._backend
        if backend is None:
            return 0
        if isinstance(part, PageBatch):
            return part.pages_before(self._read(backend, job, part) if part.keys else 0)
        if isinstance(part, StoreBatch):
            return self._store(backend, job, part)
        return self._query(backend, job, part)

    def _query(self, backend: StorageBackend, job: StorageJob, query: PrefixQuery) -> int:
        """What a prefix needs without a gap by one `exists`, and what it needs at its end by one `has` of each pool."""
        keys, pools = query.keys, query.pools
        pages = self._call(
            "exists",
            lambda: backend.exists(keys, pools, job.prefix_keys),
            lambda answer: pages_usable(answer, len(keys)),
        )
        return self._ends(backend, query.tails, pages) if query.tails else pages

    def _ends(self, backend: StorageBackend, tails: Sequence[PoolQuery], pages: int) -> int:
        """The lengths, up to so many pages, at which every pool has what a prefix needs at its end."""
        lengths = (1 << pages) - 1
        for tail in tails:
            keys, needed = tail.keys[:pages], tail.trailing_pages
            if lengths:
                lengths &= self._call("exists", partial(backend.has, keys), partial(ends_usable, len(keys), needed))
        return lengths

    def _read(self, backend: StorageBackend, job: StorageJob, batch: PageBatch) -> int:
        return self._move("get", backend.get, (batch,), job.prefix_keys)

    def _store(self, backend: StorageBackend, job: StorageJob, batch: StoreBatch) -> int:
        """Write what this rank writes of a batch. The rest counts as done where that is done."""
        own = [one for one in batch.pools if one.pool in self._written and one.keys]
        done = self._move("set", backend.set, own, job.prefix_keys) if own else 0
        return len(batch.keys) if done == sum(len(one.keys) for one in own) else done

    def _move(self, verb: str, ask: MovePages, batches: Sequence[PageBatch], prefix_keys: Sequence[str]) -> int:
        """Read or write the pages of all these batches by one call."""
        keys = tuple([key for batch in batches for key in batch.keys])
        pages = [
            self._pools.buffers[batch.pool].pieces(page)
            for batch in batches
            for page in batch.pages[batch.objects].tolist()
        ]
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
