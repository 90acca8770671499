"""Fetches: what comes from storage to the host before a request needs it, and what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hicache.components.ensemble import Ensemble
from hicache.components.holding import FULL
from hicache.components.locks import HOST, LockReceipt, Locks
from hicache.components.matching import find
from hicache.config import StorageConfig
from hicache.errors import ReceiptError
from hicache.keys import RadixKey, chain_seed, hash_pages
from hicache.metrics import Counters
from hicache.tiers.arrivals import Arrivals, is_complete
from hicache.tiers.backups import Backups
from hicache.tiers.fetch import Fetch
from hicache.tiers.landing import Landing
from hicache.tiers.patience import Patience
from hicache.tiers.storage_queue import StorageQueue
from hicache.transfer.storage_job import StorageJob, StorageProgress
from hicache.tree.hashes import prefix_hashes
from hicache.tree.node import Node
from hicache.types import NO_SLOTS, Component, StorageKind

MOST_QUERIES = 4
"""How often one prefetch asks how far storage can give, when what it said did not come."""


class Fetches:
    """Prefetches of one cache. Nodes hold what came when it is whole; until then its host pages are the fetch's own."""

    def __init__(
        self,
        config: StorageConfig,
        ensemble: Ensemble,
        locks: Locks,
        backups: Backups,
        arrivals: Arrivals,
        queue: StorageQueue,
        patience: Patience,
        counters: Counters,
    ) -> None:
        self._ensemble = ensemble
        self._locks = locks
        self._backups = backups
        self._bank = arrivals.requests.bank
        self._requests = arrivals.requests
        self._arrivals = arrivals
        self._queue = queue
        self._patience = patience
        self._counters = counters
        self._page = self._bank.page_size
        self._threshold = -(-config.extra.prefetch_threshold // self._page)
        self._limit = config.limit_tokens // self._page
        self._under_way: list[Fetch] = []
        self._life = object()

    @property
    def under_way(self) -> list[Fetch]:
        """Prefetches that have not ended, and those whose pages are still being written."""
        return list(self._under_way)

    def prefetch(self, key: RadixKey) -> Fetch | None:
        """Begin to bring what the tree lacks of a key; None, with nothing taken, when it is too little or too much."""
        anchor = find(self._ensemble, key).best
        wanted = self._ensemble.tree.pages_of(key) - anchor.end
        if wanted < max(1, self._threshold):
            return None
        if wanted + sum(len(fetch.hashes) for fetch in self._under_way if not fetch.has_ended) > self._limit:
            self._counters.prefetches_limited += 1
            return None
        pin = None if anchor.parent is None else self._locks.pin(anchor, HOST)
        if not self._backups.cover(anchor):
            self._unpin(pin)
            return None
        fetch = Fetch(
            key=key,
            anchor=anchor,
            start=anchor.end,
            hashes=self._hashes(key, anchor),
            pin=pin,
            deadline_s=self._patience.deadline_s(wanted),
            job=None,
            queries=0,
            length=wanted,
            pages={},
            whole={},
            came_tokens=None,
            is_awaited=True,
            life=self._life,
        )
        self._under_way.append(fetch)
        self._ask(fetch, wanted)
        return fetch

    def check(self, fetch: Fetch) -> int | None:
        """The tokens that a prefetch brought, which ends its ticket; None while it is waited for.

        Raises ReceiptError when the ticket has ended.
        """
        self._require_awaited(fetch)
        if not fetch.has_ended:
            if not self._patience.is_over(fetch.deadline_s):
                return None
            self._counters.prefetches_cut += 1
            self._land(fetch, self._arrivals.so_far(fetch))
        fetch.is_awaited = False
        return fetch.came_tokens

    def abort(self, fetch: Fetch) -> None:
        """Nobody waits any more: what has come is freed. Raises ReceiptError when the ticket has ended."""
        self._require_awaited(fetch)
        fetch.is_awaited = False
        if not fetch.has_ended:
            self._end(fetch, 0)

    def take_over(self) -> None:
        """Go on with the prefetches whose job has ended."""
        for fetch in self.under_way:
            if fetch.job is None:
                self._finish(fetch)
            elif (progress := self._queue.take_over(fetch.job)) is not None:
                job, fetch.job = fetch.job, None
                self._go_on(fetch, job, progress)

    def clear(self) -> None:
        """End everything; all tickets are refused from now on, also of prefetches that had ended by themselves."""
        self._life = object()
        for fetch in self.under_way:
            if fetch.job is not None:
                self._queue.end(fetch.job)
                fetch.job = None
            fetch.is_awaited = False
            if fetch.has_ended:
                self._release(fetch)
            else:
                self._end(fetch, 0)

    def _go_on(self, fetch: Fetch, job: StorageJob, progress: StorageProgress) -> None:
        if fetch.has_ended:
            self._release(fetch)
        elif job.kind is StorageKind.QUERY:
            self._provide(fetch, sum(progress.answers))
        else:
            self._arrivals.count(fetch, job, progress)
            left = self._arrivals.left(fetch, job, progress)
            has_tails = is_complete(job, progress) or not self._requests.tail_pages
            if has_tails and self._arrivals.unbroken(fetch) >= left:
                fetch.length = left
                self._finish(fetch)
            else:
                self._ask(fetch, left)

    def _ask(self, fetch: Fetch, length: int) -> None:
        """Ask how far a prefix of so many pages is there."""
        if length < max(1, self._threshold) or fetch.queries == MOST_QUERIES:
            self._end(fetch, 0)
            return
        fetch.queries += 1
        query = self._requests.query(fetch.hashes[:length])
        fetch.job = self._queue.ask(StorageKind.QUERY, (query,), self._requests.prefix_keys(fetch.anchor))

    def _provide(self, fetch: Fetch, length: int) -> None:
        """Take host pages for what can be used, and ask for it; for less, when there is no room."""
        wanted = self._requests.wanted(length)
        self._shrink(fetch, wanted)
        missing = {name: count - len(fetch.pages.get(name, NO_SLOTS)) for name, count in wanted.items()}
        if length < max(1, self._threshold):
            self._end(fetch, 0)
        elif (taken := self._backups.room.take(missing)) is None:
            self._ask(fetch, self._fewer(length, missing[Component.FULL]))
        else:
            for name, pages in taken.items():
                fetch.pages[name] = np.concatenate((fetch.pages.get(name, NO_SLOTS), pages))
            fetch.length = length
            batches = self._requests.to_fetch(fetch.hashes[:length], fetch.pages, fetch.whole)
            fetch.job = self._queue.ask(StorageKind.FETCH, batches, self._requests.prefix_keys(fetch.anchor))

    def _fewer(self, length: int, missing: int) -> int:
        """The longest prefix that there is room for; 0 where it is not FULL pages that lack."""
        available = self._backups.room.available(Component.FULL)
        return length - missing + available if available < missing else 0

    def _shrink(self, fetch: Fetch, wanted: Mapping[str, int]) -> None:
        """Give back what a shorter prefix does not need."""
        for name, pages in fetch.pages.items():
            self._bank.free(name, pages[wanted[name] :])
            fetch.pages[name] = pages[: wanted[name]]
        fetch.whole = {pool: min(pages, wanted[Component.FULL]) for pool, pages in fetch.whole.items()}

    def _finish(self, fetch: Fetch) -> None:
        """Land all that is tried. Where the copy of what it goes on from is under way, it waits for that."""
        place = self._ensemble.components[FULL].host.place
        joined = [fetch.anchor, *self._ensemble.tree.walk(fetch.key)]
        if all(node.arriving[place] is None for node in joined):
            self._land(fetch, fetch.length)

    def _land(self, fetch: Fetch, length: int) -> None:
        """Give the tree so many pages of what came, and end."""
        if not length or not self._ensemble.bears_on_host(fetch.anchor):
            self._end(fetch, 0)
            return
        end = (fetch.start + length) * self._ensemble.tree.bytes_per_page
        key = RadixKey(fetch.key.data[:end], fetch.key.namespace)
        full = fetch.pages.pop(Component.FULL)
        pages = {Component.FULL.value: full[:length], **fetch.pages}
        fetch.pages = {Component.FULL: full[length:]}
        self._counters.bytes_fetched += self._requests.bytes_of(pages)
        left = Landing(self._ensemble, key, fetch.start, pages).lay(self._ensemble.tick())
        for name, unused in left.items():
            self._bank.free(name, unused)
        came = find(self._ensemble, fetch.key).best.end - fetch.start
        self._end(fetch, max(0, came) * self._page)

    def _end(self, fetch: Fetch, came_tokens: int) -> None:
        """It brings so much. Pages that are being written stay its own until that is over."""
        fetch.came_tokens = came_tokens
        self._unpin(fetch.pin)
        if fetch.job is None or self._queue.stop(fetch.job):
            self._release(fetch)

    def _release(self, fetch: Fetch) -> None:
        for name, pages in fetch.pages.items():
            self._bank.free(name, pages)
        self._under_way.remove(fetch)

    def _hashes(self, key: RadixKey, anchor: Node) -> list[str]:
        """Of the pages past the anchor, by the chain that names what is persisted."""
        page = self._ensemble.tree.bytes_per_page
        before = prefix_hashes(anchor, page, self._counters)
        previous = before[-1] if before else chain_seed(key.namespace)
        digests = hash_pages(key.data[anchor.end * page :], page, previous)
        self._counters.pages_hashed += len(digests)
        return [digest.hex() for digest in digests]

    def _require_awaited(self, fetch: Fetch) -> None:
        if not fetch.is_awaited or fetch.life is not self._life:
            raise ReceiptError(f"the prefetch past page {fetch.start} was checked or aborted, or is of another life")

    def _unpin(self, pin: LockReceipt | None) -> None:
        if pin is not None:
            self._locks.unpin(pin)
