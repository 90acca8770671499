"""PrefetchManager: what is read from storage to the host before a request needs it, and how it gets into the tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, takewhile

import numpy as np

from hicache.clock import Clock
from hicache.components.base import TreeComponent
from hicache.components.component_tree import ComponentTree, LockReceipt
from hicache.config import CacheConfig
from hicache.errors import ReceiptError
from hicache.keys import RadixKey, chain_seed, hash_pages
from hicache.parallel.agree import Agreement
from hicache.storage.base import BATCH_PAGES
from hicache.tiers.backup import BackupManager
from hicache.tiers.evict import HostEvictor
from hicache.tiers.quarantine import HeldPages, Quarantine
from hicache.tiers.storage_io import StorageRequests
from hicache.tiers.store import is_complete
from hicache.transfer.job import Answers, PageBatch, StorageJob
from hicache.transfer.queue import TransferQueue
from hicache.tree.hashes import prefix_hashes
from hicache.tree.node import FULL, Node
from hicache.types import NO_SLOTS, Component, EventKind, Slots, StopPolicy, StorageKind, Tier

MAX_QUERIES = 4
"""How often a prefetch asks how much storage has, for each part that it reads."""


class PrefetchStopPolicy:
    """How long a request waits for its prefetch, by the clock and by what the other ranks say."""

    def __init__(self, config: CacheConfig, clock: Clock, agreement: Agreement) -> None:
        storage = config.storage
        assert storage is not None, "prefetches need a storage tier"
        self._policy = storage.stop_policy
        self._base_s = storage.prefetch_timeout_base
        self._page_s = storage.prefetch_timeout_per_ki_token * config.page_size / 1024
        self._cap_s = storage.timeout_cap_s
        self._clock = clock
        self._agreement = agreement

    @property
    def may_cut(self) -> bool:
        """Whether a request may go on before its prefetch has ended."""
        return self._policy is not StopPolicy.WAIT_COMPLETE

    def deadline_s(self, pages: int) -> float:
        """Until when the policy `timeout` waits for a prefetch of so many pages that begins now."""
        return self._clock.now() + min(self._cap_s, self._base_s + pages * self._page_s)

    def is_over(self, deadline_s: float) -> bool:
        """Whether a request does not wait any longer for a prefetch that has not ended."""
        if self._policy is StopPolicy.TIMEOUT:
            return self._agreement.is_over(is_over=self._clock.now() >= deadline_s)
        return self._policy is StopPolicy.BEST_EFFORT

    def completed(self, pages: Mapping[str, int]) -> dict[str, int]:
        """Of each pool the pages that have come on every rank."""
        return self._agreement.completed(pages)


@dataclass(slots=True, eq=False)
class PrefetchOperation:
    """A prefix that a request waits for, and its host pages until they are a node's or free.

    `key`: of all pages that are wanted. `begin`: the page where the best match ended at first. `anchor`: the last node
    before what is read now. `hashes`: of the pages past it. `pin`: keeps the anchor in the tree; None for the root.
    `deadline_s`: until when the policy `timeout` waits. `ends`: where the part that is read now ends, and those after
    it, in pages past `begin`; none before storage has answered. `length`: pages of the prefix that is tried. `job`:
    what storage does for it now, or None. `queries`: how often it asked storage again for the length of this part.
    `on_host`: the number of pages past the anchor with FULL on the host, which are not read; `host_pin`
    keeps them there. `pages`: by component, its host pages; those of FULL follow them. `pages_read`: by pool that a
    prefix needs without a gap, how many of the first of those have come. `came`: how many pages past `begin` the tree
    has since it inserted a part. `has_ended`: what it brought is in the tree, or it brought nothing.
    """

    key: RadixKey
    begin: int
    anchor: Node
    hashes: Sequence[str]
    pin: LockReceipt | None
    deadline_s: float
    ends: Sequence[int] = ()
    length: int = 0
    job: StorageJob | None = None
    queries: int = 0
    on_host: int = 0
    host_pin: LockReceipt | None = None
    pages: dict[str, Slots] = field(default_factory=dict)
    pages_read: dict[str, int] = field(default_factory=dict)
    came: int = 0
    has_ended: bool = False


class PrefetchManager:
    """Prefetches of one cache. The host pages of a prefetch belong to it until they are inserted into the tree.

    A prefetch asks storage how long a prefix it has, takes host pages for it, reads it, and inserts it into the tree.
    When less comes than storage said, it asks again for less. Other pools are read after KV, so that a prefetch which
    may be cut reads a long prefix in parts, each with its own window and state.
    """

    def __init__(
        self,
        tree: ComponentTree,
        evictor: HostEvictor,
        backups: BackupManager,
        requests: StorageRequests,
        queue: TransferQueue[StorageJob],
        stop_policy: PrefetchStopPolicy,
    ) -> None:
        config = tree.config.storage
        assert config is not None, "prefetches need a storage tier"
        self._tree = tree
        self._evictor = evictor
        self._backups = backups
        self._requests = requests
        self._queue = queue
        self._stop_policy = stop_policy
        self._page_size = tree.config.page_size
        self._threshold = max(1, -(-config.prefetch_threshold // self._page_size))
        self._limit = config.limit_tokens // self._page_size
        self._reads_parts = stop_policy.may_cut and len(requests.prefix_pools) + len(requests.tail_pools) > 1
        self._under_way: list[PrefetchOperation] = []
        self._awaited: set[PrefetchOperation] = set()

    @property
    def under_way(self) -> list[PrefetchOperation]:
        """Prefetches that have not ended, and those whose pages are still being written."""
        return list(self._under_way)

    # What callers ask for.

    def prefetch(self, key: RadixKey) -> PrefetchOperation | None:
        """Begin to read what the tree lacks of a key; None when it is too little or too much.

        None also when the path to the anchor has no host copy and cannot be backed up now.
        """
        anchor = self._tree.match(key).best
        wanted = self._tree.radix.page_count(key) - anchor.end
        if wanted < self._threshold:
            return None
        if wanted + sum(len(one.hashes) for one in self._under_way if not one.has_ended) > self._limit:
            self._tree.counters.prefetches_limited += 1
            return None
        pin = self._pin(anchor)
        if not self._backups.back_up_path(anchor):
            self._unpin(pin)
            return None
        operation = PrefetchOperation(
            key=key,
            begin=anchor.end,
            anchor=anchor,
            hashes=self._hashes(key, anchor),
            pin=pin,
            deadline_s=self._stop_policy.deadline_s(wanted),
        )
        self._under_way.append(operation)
        self._awaited.add(operation)
        self._tree.counters.traffic.prefetches_started += 1
        operation.job = self._queue.add(self._requests.query(operation.hashes, self._part_ends(wanted), anchor))
        return operation

    def check(self, operation: PrefetchOperation) -> int | None:
        """The tokens that a prefetch brought, which ends its ticket; None while the request should wait.

        Raises ReceiptError when the ticket has ended.
        """
        self._require_awaited(operation)
        if not operation.has_ended:
            if not self._stop_policy.is_over(operation.deadline_s):
                return None
            self._tree.counters.prefetches_cut += 1
            self._insert(operation, self._usable_so_far(operation))
            self._end(operation)
        self._awaited.remove(operation)
        return operation.came * self._page_size

    def abort(self, operation: PrefetchOperation) -> None:
        """Cancel the ticket, and free the pages that were read. Raises ReceiptError when it has ended."""
        self._require_awaited(operation)
        self._awaited.remove(operation)
        if not operation.has_ended:
            self._tree.counters.traffic.prefetches_aborted += 1
            self._end(operation)

    def note_host_copy(self, node: Node) -> None:
        """A node got its host copy. If it is an anchor, pin the copy: until now the pin was a device lock."""
        for operation in self._under_way:
            if operation.anchor is node and not operation.has_ended:
                before, operation.pin = operation.pin, self._tree.locks.pin(node, Tier.HOST)
                self._unpin(before)

    def clear(self) -> None:
        """End everything. All tickets are refused from now on, also those of prefetches that had ended."""
        self._awaited.clear()
        for operation in self.under_way:
            if operation.job is not None:
                self._queue.end(operation.job)
                operation.job = None
            if operation.has_ended:
                self._free(operation)
            else:
                self._tree.counters.traffic.prefetches_dropped += 1
                self._end(operation)

    def abandon(self, quarantine: Quarantine) -> None:
        """Storage does not answer: end everything with nothing, and hand over the pages that it may still write to."""
        for operation in self.under_way:
            if not operation.has_ended:
                self._tree.counters.traffic.prefetches_dropped += 1
                self._end(operation)
            if operation.job is not None and operation in self._under_way:
                self._under_way.remove(operation)
                quarantine.hold(HeldPages(self._queue, operation.job, operation.pages, {}, None))

    # The life of a prefetch: query, read, insert, part by part, and end.

    def take_over(self) -> None:
        """Go on with the prefetches whose job has ended."""
        for operation in self.under_way:
            if operation.job is None:
                self._try_insert(operation)
            elif (answers := self._queue.take(operation.job)) is not None:
                job, operation.job = operation.job, None
                self._go_on(operation, job, answers)

    def _go_on(self, operation: PrefetchOperation, job: StorageJob, answers: Answers) -> None:
        if operation.has_ended:
            self._free(operation)
        elif job.kind is StorageKind.QUERY:
            self._note_usable(operation, answers)
        else:
            self._count(operation, job, answers)
            left = self._length_left(operation, job, answers)
            if self._unbroken(operation) < operation.length:
                operation.ends = operation.ends[:1]
            has_tails = is_complete(job, answers) or not self._requests.tail_pools
            if has_tails and self._unbroken(operation) >= left:
                operation.length = left
                self._try_insert(operation)
            else:
                self._query(operation, left)

    def _part_ends(self, wanted: int) -> tuple[int, ...]:
        """The longest lengths at which parts may end: each part is at most as long as all before it."""
        doubled = (BATCH_PAGES << times for times in count()) if self._reads_parts else iter(())
        return (*takewhile(lambda end: end < wanted, doubled), wanted)

    def _note_usable(self, operation: PrefetchOperation, answers: Answers) -> None:
        """Storage has said where parts can end, or how much of a part it has."""
        if operation.ends:
            self._read(operation, sum(answers))
        else:
            self._begin_part(operation, [end for end in sorted(set(answers)) if end >= self._threshold])

    def _begin_part(self, operation: PrefetchOperation, ends: Sequence[int]) -> None:
        """Read the first of these parts that the tree does not have; end after the last one."""
        operation.ends = [end for end in ends if end > operation.came]
        operation.queries = 0
        if operation.ends:
            self._pin_on_host(operation)
            self._read(operation, operation.ends[0] - operation.came)
        else:
            self._complete(operation)

    def _pin_on_host(self, operation: PrefetchOperation) -> None:
        """Find FULL on the host past the anchor, without the window or the state, and keep it."""
        last = operation.anchor
        for node in self._tree.radix.walk(operation.key) if self._requests.tail_pools else ():
            if node.start >= last.end and node.host[FULL].value is None:
                break
            last = node if node.start >= last.end else last
        before, operation.host_pin = operation.host_pin, None if last is operation.anchor else self._pin(last)
        self._unpin(before)
        operation.on_host = last.end - operation.anchor.end

    def _query(self, operation: PrefetchOperation, length: int) -> None:
        """Ask how much of a part storage has. Goes on with the next one below the threshold, or after MAX_QUERIES."""
        if self._is_too_short(operation, length) or operation.queries == MAX_QUERIES:
            self._begin_part(operation, operation.ends[1:])
            return
        operation.queries += 1
        hashes = operation.hashes[:length]
        operation.job = self._queue.add(self._requests.query(hashes, (length,), operation.anchor))

    def _is_too_short(self, operation: PrefetchOperation, length: int) -> bool:
        """Whether so many more pages are none, or all together are below the threshold."""
        return length < max(1, self._threshold - operation.came)

    def _read(self, operation: PrefetchOperation, length: int) -> None:
        """Take host pages for what storage has, and read it; ask for less when there is no room."""
        wanted = self._wanted(operation, length)
        self._give_back_beyond(operation, wanted)
        missing = {name: count - len(operation.pages.get(name, NO_SLOTS)) for name, count in wanted.items()}
        if self._is_too_short(operation, length):
            self._begin_part(operation, operation.ends[1:])
        elif (taken := self._evictor.allocate(missing)) is None:
            operation.ends = operation.ends[:1]
            self._query(operation, self._length_with_room(operation, wanted, missing))
        else:
            for name, pages in taken.items():
                operation.pages[name] = np.concatenate((operation.pages.get(name, NO_SLOTS), pages))
            operation.length = length
            hashes, pages_read = operation.hashes[:length], operation.pages_read
            job = self._requests.read(hashes, operation.pages, pages_read, operation.anchor)
            operation.job = self._queue.add(job)

    def _wanted(self, operation: PrefetchOperation, length: int) -> dict[str, int]:
        """The host pages of each component that a prefix of so many pages past the anchor needs from storage."""
        return self._requests.wanted(length) | {Component.FULL: max(0, length - operation.on_host)}

    def _length_with_room(
        self, operation: PrefetchOperation, wanted: Mapping[str, int], missing: Mapping[str, int]
    ) -> int:
        """The longest prefix that there is room for. One that is shorter than its window needs all pages of it."""
        before: Mapping[str, int] = {Component.FULL: operation.on_host}

        def ends(room: Callable[[str], int]) -> list[int]:
            held = {name: wanted[name] - count + room(name) for name, count in missing.items()}
            return [pages + before.get(name, 0) for name, pages in held.items() if pages < wanted[name]]

        # If nothing is short, an eviction was in vain: what is above a page in use stays, and only free pages count.
        return min(ends(self._evictor.available) or ends(self._evictor.free_pages))

    def _give_back_beyond(self, operation: PrefetchOperation, wanted: Mapping[str, int]) -> None:
        """Free the pages that a shorter prefix does not need."""
        for name, pages in operation.pages.items():
            self._evictor.free(name, pages[wanted[name] :])
            operation.pages[name] = pages[: wanted[name]]
        operation.pages_read = {
            pool: min(pages, wanted[Component.FULL]) for pool, pages in operation.pages_read.items()
        }

    def _try_insert(self, operation: PrefetchOperation) -> None:
        """Insert all that was tried. While a node on the key is being backed up, the prefetch waits for that."""
        on_key = [operation.anchor, *self._tree.radix.walk(operation.key)]
        if any(node.host[FULL].transfer is not None for node in on_key):
            return
        best = self._insert(operation, operation.length)
        if len(operation.ends) > 1 and self._move_anchor(operation, best):
            self._begin_part(operation, operation.ends[1:])
        else:
            self._complete(operation)

    def _insert(self, operation: PrefetchOperation, length: int) -> Node:
        """Insert so many pages of what came into the tree; returns the best match by then."""
        if not length or not self._tree.can_back_up_child(operation.anchor):
            return operation.anchor
        start = operation.anchor.end
        end = (start + length) * self._tree.radix.bytes_per_page
        key = RadixKey(operation.key.data[:end], operation.key.namespace)
        wanted = self._wanted(operation, length)
        pages = {name: operation.pages[name][:count] for name, count in wanted.items()}
        operation.pages = {name: operation.pages[name][count:] for name, count in wanted.items()}
        operation.pages_read = {}
        self._tree.counters.bytes_prefetched += self._requests.bytes_of(pages)
        unused = HostInsertion(self._tree, key, start, operation.on_host, pages).insert_host(self._tree.tick())
        for name, own in unused.items():
            self._evictor.free(name, own)
        best = self._tree.match(operation.key).best
        operation.came = max(0, best.end - operation.begin)
        return best

    def _move_anchor(self, operation: PrefetchOperation, best: Node) -> bool:
        """Go on from the best match; False when nothing is left, or when it cannot be backed up now."""
        brought = best.end - operation.anchor.end
        if not 0 < brought < len(operation.hashes):
            return False
        before, operation.pin = operation.pin, self._pin(best)
        self._unpin(before)
        operation.anchor, operation.hashes = best, operation.hashes[brought:]
        return self._backups.back_up_path(best)

    def _complete(self, operation: PrefetchOperation) -> None:
        """End the prefetch, and count it as completed or missed."""
        if operation.came:
            self._tree.counters.traffic.prefetches_completed += 1
        else:
            self._tree.counters.traffic.prefetches_missed += 1
        self._end(operation)

    def _end(self, operation: PrefetchOperation) -> None:
        """End with what it has brought. Pages that storage still writes to are freed when the read job has ended."""
        operation.has_ended = True
        self._tree.counters.traffic.tokens_prefetched += operation.came * self._page_size
        self._unpin(operation.pin)
        self._unpin(operation.host_pin)
        if operation.job is None or self._queue.stop(operation.job):
            self._free(operation)

    def _free(self, operation: PrefetchOperation) -> None:
        for name, pages in operation.pages.items():
            self._evictor.free(name, pages)
        self._under_way.remove(operation)

    # How much has come.

    def _count(self, operation: PrefetchOperation, job: StorageJob, answers: Answers) -> None:
        """Add what a job brought of each pool without gaps."""
        for pool, pages in _pages_by_pool(job, answers).items():
            if pool in self._requests.prefix_pools:
                operation.pages_read[pool] = operation.pages_read.get(pool, 0) + pages

    def _length_left(self, operation: PrefetchOperation, job: StorageJob, answers: Answers) -> int:
        """The prefix that is left of the one that was read: all of it, what came without a gap, or one page less."""
        if is_complete(job, answers):
            return operation.length
        if not answers:
            return self._unbroken(operation)
        failed = job.parts[len(answers) - 1]
        assert isinstance(failed, PageBatch), f"{job} reads no pages"
        if failed.pool in self._requests.prefix_pools:
            return operation.on_host + operation.pages_read[failed.pool]
        return operation.length - 1

    def _unbroken(self, operation: PrefetchOperation) -> int:
        """The first pages that have come of every pool without gaps, or were there."""
        come = min(operation.pages_read.get(pool, 0) for pool in self._requests.prefix_pools)
        return min(operation.length, operation.on_host + come)

    def _usable_so_far(self, operation: PrefetchOperation) -> int:
        """The prefix that every rank could use if nothing more came."""
        job = operation.job
        # Without a job all has come, and waits for a backup: a node on the key has no host copy to insert below.
        if job is None or job.kind is not StorageKind.PREFETCH:
            return 0
        now = _pages_by_pool(job, self._queue.progress(job).answers)
        prefix_pools = self._requests.prefix_pools
        mine = {pool: now.get(pool, 0) + operation.pages_read.get(pool, 0) for pool in prefix_pools}
        mine |= {pool: now.get(pool, 0) for pool in self._requests.tail_pools}
        agreed = self._stop_policy.completed(mine)
        length = min(operation.length, operation.on_host + min(agreed[pool] for pool in prefix_pools))
        for pool, name in self._requests.tail_pools.items():
            needed = len(operation.pages[name])
            if agreed[pool] < needed:
                # A window that begins at the anchor holds those of all shorter prefixes.
                length = min(length, agreed[pool]) if needed == operation.length else 0
        return length

    def _hashes(self, key: RadixKey, anchor: Node) -> list[str]:
        """The hashes of the pages past the anchor, by the chain that names objects in storage."""
        page = self._tree.radix.bytes_per_page
        before = prefix_hashes(anchor, page, self._tree.counters)
        previous = before[-1] if before else chain_seed(key.namespace)
        digests = hash_pages(key.data[anchor.end * page :], page, previous)
        self._tree.counters.pages_hashed += len(digests)
        return [digest.hex() for digest in digests]

    def _require_awaited(self, operation: PrefetchOperation) -> None:
        if not isinstance(operation, PrefetchOperation):
            raise ReceiptError(f"{operation!r} is not a ticket of a prefetch")
        if operation not in self._awaited:
            raise ReceiptError(
                f"the prefetch past page {operation.begin} was checked or aborted before, ended by a reset, or is of "
                "another cache"
            )

    def _pin(self, anchor: Node) -> LockReceipt | None:
        return None if anchor.is_root else self._tree.locks.pin(anchor, Tier.HOST)

    def _unpin(self, pin: LockReceipt | None) -> None:
        if pin is not None:
            self._tree.locks.unpin(pin)


def _pages_by_pool(job: StorageJob, answers: Answers) -> dict[str, int]:
    """How many pages of each pool a job has read."""
    pages: dict[str, int] = {}
    for part, answer in zip(job.parts, answers, strict=False):
        if isinstance(part, PageBatch):
            pages[part.pool] = pages.get(part.pool, 0) + answer
    return pages


class HostInsertion:
    """Inserts host pages from storage into the present tree.

    `key`: to the end of what came. `start`: pages from the root to the anchor. `on_host`: of how many pages past it the
    host has FULL. `pages`: of FULL all that follow; of SWA the last ones; of MAMBA the state at the end.
    """

    def __init__(
        self, tree: ComponentTree, key: RadixKey, start: int, on_host: int, pages: Mapping[str, Slots]
    ) -> None:
        self._tree = tree
        self._key = key
        self._start = start
        self._full_start = start + on_host
        self._pages = pages
        self._end = tree.radix.page_count(key)
        self._window_start = self._end - len(pages.get(Component.SWA, ()))
        self._unused = dict(pages)

    def insert_host(self, now: int) -> Mapping[str, Slots]:
        """Give nodes what they lack on the host, and make those that do not exist; returns the unused pages."""
        node = self._tree.radix.root
        for node in self._tree.radix.walk(self._key):
            if node.end > self._start:
                for part in self._split_at_window(node):
                    self._install(part)
        for end in self._leaf_ends(node.end):
            if not self._tree.can_back_up_child(node):
                break
            node = self._tree.radix.attach(node, self._key, end)
            node.creation_time = now
            node.last_access_time = [now] * len(node.last_access_time)
            self._install(node)
        self._tree.prune_and_requeue(node)
        return self._unused

    def _split_at_window(self, node: Node) -> list[Node]:
        """The node, split at the window's start where it takes SWA pages: a node has them as a whole or not."""
        swa = self._tree.by_name.get(Component.SWA)
        is_inside = node.start < self._window_start < node.end
        if swa is None or not is_inside or node.host[swa.index].value is not None:
            return [node]
        return [self._tree.radix.split(node, self._window_start - node.start), node]

    def _leaf_ends(self, start: int) -> list[int]:
        return sorted({end for end in (self._window_start, self._end) if start < end})

    def _install(self, node: Node) -> None:
        for component in self._tree.components:
            part = self._part(component.name, node)
            data = component.host.data(node)
            if part is None or data.value is not None or data.transfer is not None:
                continue
            if self._tree.can_back_up(component, node):
                component.host.install(node, part)
                self._unused[component.name] = np.setdiff1d(self._unused[component.name], part, assume_unique=True)
                self._mark_stored(component, node)

    def _mark_stored(self, component: TreeComponent, node: Node) -> None:
        """Mark as stored if all before it is, which is FULL of the parent, or FULL of the node for other components.

        Otherwise the StorageWriter writes the node after its parent.
        """
        parent = node.parent
        assert parent is not None, "the root has nothing to store"
        before = node.stored[FULL] if component.index != FULL else parent.is_root or parent.stored[FULL]
        if before:
            node.stored[component.index] = True
            component.report(Tier.STORAGE, EventKind.STORED, node)

    def _part(self, name: str, node: Node) -> Slots | None:
        """What came of a component for a node, in an array of its own."""
        pages = self._pages.get(name)
        if pages is None:
            return None
        if name == Component.MAMBA:
            return pages.copy() if node.end == self._end else None
        first = self._full_start if name == Component.FULL else self._window_start
        return pages[node.start - first : node.end - first].copy() if node.start >= first else None
