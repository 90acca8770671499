"""Prefetch: a prefix on its way from storage into the tree. PrefetchManager: the prefetches of a cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, takewhile

import numpy as np

from hicache.clock import Clock
from hicache.components.component_tree import ComponentTree, LockReceipt
from hicache.config import CacheConfig
from hicache.errors import ReceiptError
from hicache.keys import RadixKey, chain_seed, hash_pages
from hicache.parallel.agree import Agreement
from hicache.storage.base import BATCH_PAGES
from hicache.tiers.backup import BackupManager
from hicache.tiers.evict import HostEvictor
from hicache.tiers.host_insertion import HostInsertion
from hicache.tiers.quarantine import HeldPages, Quarantine
from hicache.tiers.storage_jobs import StorageJobs
from hicache.tiers.store import is_complete
from hicache.transfer.job import Answers, PageBatch, StorageJob
from hicache.transfer.queue import TransferQueue
from hicache.tree.hashes import prefix_hashes
from hicache.tree.node import FULL, Node
from hicache.types import NO_SLOTS, Component, Slots, StopPolicy, StorageKind, Tier

NAMED, NAME_DIGITS = 4, 8
"""How many of the prefetches that wait an error names, and the digits of the hash of its last page by which."""


class PrefetchStopPolicy:
    """Decides when a request stops waiting for its prefetch; the ranks decide together."""

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

    @property
    def has_deadlines(self) -> bool:
        """Whether the clock decides."""
        return self._policy is StopPolicy.TIMEOUT

    @property
    def is_alone(self) -> bool:
        """Whether this rank decides alone."""
        return self._agreement.ranks == 1

    def votes(self, deadlines_s: Sequence[float]) -> list[int]:
        """Of each deadline what this rank passes to an agreement: 0 where it has passed."""
        now_s = self._clock.now()
        return self._agreement.votes([now_s >= deadline_s for deadline_s in deadlines_s])

    def agreed(self, deadlines_s: Sequence[float], waiting: str) -> list[int]:
        """Of each deadline 0 where the wait is over on all ranks. `waiting`: see `Agreement.acknowledged`."""
        return self._agreement.ended_waits(self.votes(deadlines_s), waiting)

    def completed(self, pages: Mapping[str, int]) -> dict[str, int]:
        """Of each pool the pages that have come on every rank."""
        return self._agreement.completed(pages)


@dataclass(slots=True, eq=False, repr=False)
class Prefetch:
    """A prefix that a request waits for, and the ticket of the request.

    It asks storage once which prefixes it has, takes host pages for the longest that every rank has, reads it, and
    inserts it into the tree. When less comes, it goes on with the next shorter one. Other pools are read after KV, so
    that a prefetch which may be cut reads a long prefix in parts, each with its own window and state.

    `key`: of all pages that are wanted. `begin`: the page where the best match ended at first. `anchor`: the last node
    before what is read now, which `pins` keeps in the tree. `hashes`: of the pages past it. `deadline_s`: until when
    the policy `timeout` waits. `usable`: the lengths past `begin` that every rank found in storage; bit n - 1 is that
    of n pages. `ends`: where the part that is read now ends, and those after it, in pages past `begin`. `length`: pages
    of the prefix that is tried. `job`: what storage does for it now, or None. `on_host`: the number of pages past the
    anchor with FULL on the host, which are not read; `host_pins` keeps them there. `pages`: by component, host pages
    that belong to it until they are a node's or free; those of FULL follow them.
    `pages_read`: by pool that a prefix needs without a gap, how many of the first of those have come. `came`: how many
    pages past `begin` the tree has since a part was inserted. `lacked_room`: the host had no room for what storage has.
    `has_ended`: what it brought is in the tree, if anything.
    """

    _tree: ComponentTree
    _evictor: HostEvictor
    _backups: BackupManager
    _jobs: StorageJobs
    _queue: TransferQueue[StorageJob]
    _stop_policy: PrefetchStopPolicy
    _threshold: int
    key: RadixKey
    begin: int
    anchor: Node
    pins: list[LockReceipt]
    hashes: Sequence[str] = ()
    deadline_s: float = 0.0
    usable: int = 0
    ends: Sequence[int] = ()
    length: int = 0
    job: StorageJob | None = None
    on_host: int = 0
    host_pins: list[LockReceipt] = field(default_factory=list)
    pages: dict[str, Slots] = field(default_factory=dict)
    pages_read: dict[str, int] = field(default_factory=dict)
    came: int = 0
    lacked_room: bool = False
    has_ended: bool = False

    @property
    def pages_left(self) -> int:
        """How many pages it may still bring."""
        return 0 if self.has_ended else len(self.hashes)

    @property
    def is_done(self) -> bool:
        """Whether it has ended, and storage writes to none of its pages."""
        return self.has_ended and self.job is None

    # From the query to the end, part by part.

    def start(self, wanted: int) -> bool:
        """Ask storage for so many pages past the anchor; False where its path can get no host copy now."""
        self.pins = self._pinned(self.anchor)
        if not self._backups.back_up_path(self.anchor):
            self._tree.locks.unpin(*self.pins)
            return False
        self.hashes = self._hashes_past_anchor()
        self.deadline_s = self._stop_policy.deadline_s(wanted)
        self._tree.counters.traffic.prefetches_started += 1
        self.job = self._queue.add(self._jobs.query(self.hashes, self.anchor))
        return True

    def go_on(self) -> None:
        """Take over what a job has brought, if it has ended, and do what comes next."""
        if self.job is None:
            self._try_insert()
        elif (answers := self._queue.take(self.job)) is not None:
            job, self.job = self.job, None
            if self.has_ended:
                self._free()
            elif job.kind is StorageKind.PREFETCH:
                self._note_read(job, answers)
            else:
                self.usable = self._jobs.usable(answers)
                self._begin_part(self._part_ends())

    def _part_ends(self) -> list[int]:
        """Where the parts end: each is at most as long as all before it together, unless nothing usable ends there."""
        wanted = len(self.hashes)
        reads_parts = self._stop_policy.may_cut and len(self._jobs.prefix_pools) + len(self._jobs.tail_pools) > 1
        doubled = (BATCH_PAGES << times for times in count()) if reads_parts else iter(())
        limits = (*takewhile(lambda end: end < wanted, doubled), wanted)
        return [end for end in sorted({self._longest(limit) for limit in limits}) if end >= self._threshold]

    def _longest(self, limit: int) -> int:
        """The longest usable prefix of up to so many pages past the anchor, or 0."""
        return max(0, (self.usable & ((1 << (self.came + limit)) - 1)).bit_length() - self.came)

    def _begin_part(self, ends: Sequence[int]) -> None:
        """Read the first of these parts that the tree does not have; end after the last one."""
        self.ends = [end for end in ends if end > self.came]
        if self.ends:
            self._pin_on_host()
            self._read(self.ends[0] - self.came)
        else:
            self._complete()

    def _pin_on_host(self) -> None:
        """Find FULL on the host past the anchor, without the window or the state, and keep it."""
        last = self.anchor
        for node in self._tree.radix.walk(self.key) if self._jobs.tail_pools else ():
            if node.start >= last.end and node.host[FULL].value is None:
                break
            last = node if node.start >= last.end else last
        before, self.host_pins = self.host_pins, [] if last is self.anchor else self._pinned(last)
        self._tree.locks.unpin(*before)
        more, self.on_host = last.end - self.anchor.end - self.on_host, last.end - self.anchor.end
        if self.pages_read and more > 0:
            self._free_first(more)

    def _free_first(self, count: int) -> None:
        """Free the first pages of what was read: the host has got them meanwhile, and the others keep their places."""
        pages = self.pages[Component.FULL]
        self._evictor.free(Component.FULL, pages[:count])
        self.pages[Component.FULL] = pages[count:]
        self.pages_read = {pool: max(0, read - count) for pool, read in self.pages_read.items()}

    def _is_too_short(self, length: int) -> bool:
        """Whether so many more pages are none, or all together are below the threshold."""
        return length < max(1, self._threshold - self.came)

    def _read(self, length: int) -> None:
        """Take host pages for a usable prefix, and read it: a shorter one without room, none below the threshold."""
        if self._is_too_short(length):
            # The next part is longer, and needs what this one has read.
            self._begin_part(self.ends[1:])
            return
        wanted = self._wanted(length)
        self._free_beyond(wanted)
        missing = {name: count - len(self.pages.get(name, NO_SLOTS)) for name, count in wanted.items()}
        if (taken := self._evictor.allocate(missing)) is None:
            self.lacked_room, self.ends = True, self.ends[:1]
            self._read(self._longest(self._length_with_room(wanted, missing)))
        else:
            for name, pages in taken.items():
                self.pages[name] = np.concatenate((self.pages.get(name, NO_SLOTS), pages))
            self.length = length
            job = self._jobs.read(self.hashes[:length], self.pages, self.pages_read, self.anchor)
            self.job = self._queue.add(job)

    def _wanted(self, length: int) -> dict[str, int]:
        """The host pages of each component that a prefix of so many pages past the anchor needs from storage."""
        return self._jobs.wanted(length) | {Component.FULL: max(0, length - self.on_host)}

    def _length_with_room(self, wanted: Mapping[str, int], missing: Mapping[str, int]) -> int:
        """The longest prefix that there is room for. One that is shorter than its window needs all pages of it."""
        before: Mapping[str, int] = {Component.FULL: self.on_host}

        def ends(room: Callable[[str], int]) -> list[int]:
            held = {name: wanted[name] - count + room(name) for name, count in missing.items()}
            return [pages + before.get(name, 0) for name, pages in held.items() if pages < wanted[name]]

        # If nothing is short, pages above a locked node were counted, which stay: count the free ones alone.
        return min(ends(self._evictor.available) or ends(self._evictor.free_pages))

    def _free_beyond(self, wanted: Mapping[str, int]) -> None:
        """Free the pages that a shorter prefix does not need."""
        for name, pages in self.pages.items():
            self._evictor.free(name, pages[wanted[name] :])
            self.pages[name] = pages[: wanted[name]]
        self.pages_read = {pool: min(pages, wanted[Component.FULL]) for pool, pages in self.pages_read.items()}

    def _note_read(self, job: StorageJob, answers: Answers) -> None:
        """Insert what a job has read. If it is less than was tried, and its tails are other pages, read on for that."""
        self._count(job, answers)
        left = self._length_left(job, answers)
        if self._unbroken() < self.length:
            self.ends = self.ends[:1]
        has_tails = is_complete(job, answers) or not self._jobs.tail_pools
        if has_tails and self._unbroken() >= left:
            self.length = left
            self._try_insert()
        else:
            self._read(self._longest(left))

    def _try_insert(self) -> None:
        """Insert all that was tried. While a node on the key is being backed up, the prefetch waits for that."""
        on_key = [self.anchor, *self._tree.radix.walk(self.key)]
        if any(node.host[FULL].transfer is not None for node in on_key):
            return
        best = self._insert(self.length)
        if len(self.ends) > 1 and self._move_anchor(best):
            self._begin_part(self.ends[1:])
        else:
            self._complete()

    def _insert(self, length: int) -> Node:
        """Insert so many pages of what came into the tree; returns the best match by then."""
        if not length or not self._tree.can_back_up_child(self.anchor):
            return self.anchor
        start = self.anchor.end
        key = RadixKey(self.key.data[: (start + length) * self._tree.radix.bytes_per_page], self.key.namespace)
        wanted = self._wanted(length)
        pages = {name: self.pages[name][:count] for name, count in wanted.items()}
        self.pages = {name: self.pages[name][count:] for name, count in wanted.items()}
        self.pages_read = {}
        self._tree.counters.bytes_prefetched += self._jobs.bytes_of(pages, start + length)
        unused = HostInsertion(self._tree, key, start, self.on_host, pages).insert_host(self._tree.tick())
        for name, own in unused.items():
            self._evictor.free(name, own)
        best = self._tree.match(self.key).best
        self.came = max(0, best.end - self.begin)
        return best

    def _move_anchor(self, best: Node) -> bool:
        """Go on from the best match; False when nothing is left, or when it cannot be backed up now."""
        brought = best.end - self.anchor.end
        if not 0 < brought < len(self.hashes):
            return False
        before, self.pins = self.pins, self._pinned(best)
        self._tree.locks.unpin(*before)
        self.anchor, self.hashes = best, self.hashes[brought:]
        return self._backups.back_up_path(best)

    def _complete(self) -> None:
        """End, and count it as shortened for room, completed or missed."""
        if self.lacked_room:
            self._tree.counters.traffic.prefetches_shortened += 1
        elif self.came:
            self._tree.counters.traffic.prefetches_completed += 1
        else:
            self._tree.counters.traffic.prefetches_missed += 1
        self._end()

    def _end(self) -> None:
        """End with what it has brought. Pages that storage still writes to are freed when the read job has ended."""
        self.has_ended = True
        self._tree.counters.traffic.tokens_prefetched += self.came * self._tree.config.page_size
        self._tree.locks.unpin(*self.pins, *self.host_pins)
        if self.job is None or self._queue.stop(self.job):
            self.job = None
            self._free()

    def _free(self) -> None:
        for name, pages in self.pages.items():
            self._evictor.free(name, pages)
        self.pages = {}

    # What ends it before that, and what it has to know.

    def cut(self) -> None:
        """The request does not wait any longer: insert what every rank can use, and end."""
        self._tree.counters.prefetches_cut += 1
        self._insert(self._usable_so_far())
        self._end()

    def cancel(self) -> None:
        """The request does not want it any more: end, and free what is not in the tree."""
        if not self.has_ended:
            self._tree.counters.traffic.prefetches_aborted += 1
            self._end()

    def close(self) -> None:
        """End without what is under way, and wait until storage writes to none of its pages."""
        if self.job is not None:
            self._queue.cancel(self.job)
            self.job = None
        if self.has_ended:
            self._free()
        else:
            self._drop()

    def disown(self, quarantine: Quarantine) -> None:
        """Storage does not answer: end, and hand over the pages that it may still write to."""
        if not self.has_ended:
            self._drop()
        if self.job is not None:
            quarantine.hold(HeldPages(self._queue, self.job, self.pages, {}, None))
            self.job, self.pages = None, {}

    def _drop(self) -> None:
        self._tree.counters.traffic.prefetches_dropped += 1
        self._end()

    def note_host_copy(self, node: Node) -> None:
        """A node got its host copy. If it is the anchor, pin the copy: until now the pin was a device lock."""
        if node is self.anchor and not self.has_ended:
            before, self.pins = self.pins, self._pinned(node)
            self._tree.locks.unpin(*before)

    # How much has come.

    def _count(self, job: StorageJob, answers: Answers) -> None:
        """Add what a job brought of each pool without gaps."""
        for pool, pages in _pages_by_pool(job, answers).items():
            if pool in self._jobs.prefix_pools:
                self.pages_read[pool] = self.pages_read.get(pool, 0) + pages

    def _length_left(self, job: StorageJob, answers: Answers) -> int:
        """What is left of the prefix that was read: what came without a gap, and ends before a lost page of a tail."""
        if is_complete(job, answers):
            return self.length
        if not answers:
            return min(self._unbroken(), self.length - 1)
        failed = job.parts[len(answers) - 1]
        assert isinstance(failed, PageBatch), f"{job} reads no pages"
        if failed.pool in self._jobs.prefix_pools:
            return self.on_host + self.pages_read[failed.pool]
        came = _pages_by_pool(job, answers)[failed.pool]
        return self.length - len(self.pages[self._jobs.tail_pools[failed.pool]]) + came

    def _unbroken(self) -> int:
        """The first pages that have come of every pool without gaps, or were there."""
        return self._usable({pool: self.pages_read.get(pool, 0) for pool in self._jobs.prefix_pools})

    def _usable(self, come: Mapping[str, int]) -> int:
        """The prefix that ends where the first object is missing, when so many pages have come of each pool."""
        start = self.anchor.end + self.on_host
        ends = [read + self._jobs.pages_before_object(pool, start + read) for pool, read in come.items()]
        return min(self.length, self.on_host + min(ends))

    def _usable_so_far(self) -> int:
        """The prefix that every rank could use if nothing more came."""
        job = self.job
        # Without a job all has come, and waits for a backup: a node on the key has no host copy to insert below.
        if job is None or job.kind is not StorageKind.PREFETCH:
            return 0
        now = _pages_by_pool(job, self._queue.progress(job).answers)
        prefix_pools = self._jobs.prefix_pools
        mine = {pool: now.get(pool, 0) + self.pages_read.get(pool, 0) for pool in prefix_pools}
        mine |= {pool: now.get(pool, 0) for pool in self._jobs.tail_pools}
        agreed = self._stop_policy.completed(mine)
        length = self._usable({pool: agreed[pool] for pool in prefix_pools})
        for pool, name in self._jobs.tail_pools.items():
            needed = len(self.pages[name])
            if agreed[pool] < needed:
                # A window that begins at the anchor holds those of all shorter prefixes.
                length = min(length, agreed[pool]) if needed == self.length else 0
        return length

    def _hashes_past_anchor(self) -> list[str]:
        """The hashes of the pages past the anchor, by the chain that names objects in storage."""
        page = self._tree.radix.bytes_per_page
        before = prefix_hashes(self.anchor, page, self._tree.counters)
        previous = before[-1] if before else chain_seed(self.key.namespace)
        digests = hash_pages(self.key.data[self.anchor.end * page :], page, previous)
        self._tree.counters.pages_hashed += len(digests)
        return [digest.hex() for digest in digests]

    def _pinned(self, node: Node) -> list[LockReceipt]:
        return [] if node.is_root else [self._tree.locks.pin(node, Tier.HOST)]


def _pages_by_pool(job: StorageJob, answers: Answers) -> dict[str, int]:
    """How many pages of each pool a job has read."""
    pages: dict[str, int] = {}
    for part, answer in zip(job.parts, answers, strict=False):
        if isinstance(part, PageBatch):
            pages[part.pool] = pages.get(part.pool, 0) + answer
    return pages


def described(prefetches: Sequence[Prefetch]) -> str:
    """What waits, in words: the same on ranks that wait for the same prefetches, and different on others."""
    names = [f"{prefetch.hashes[-1][:NAME_DIGITS]} ({prefetch.pages_left} pages)" for prefetch in prefetches]
    if len(names) > NAMED:
        digest = hashlib.sha256(" ".join(names).encode()).hexdigest()[:NAME_DIGITS]
        names[NAMED:] = [f"… {len(names)} in all, digest {digest}"]
    return ", ".join(names)


class PrefetchManager:
    """The prefetches of one cache: those that are under way, and those that a caller has a ticket of."""

    def __init__(
        self,
        tree: ComponentTree,
        evictor: HostEvictor,
        backups: BackupManager,
        jobs: StorageJobs,
        queue: TransferQueue[StorageJob],
        stop_policy: PrefetchStopPolicy,
    ) -> None:
        config = tree.config.storage
        assert config is not None, "prefetches need a storage tier"
        self._tree = tree
        self._stop_policy = stop_policy
        self._page_size = tree.config.page_size
        self._threshold = max(1, -(-config.prefetch_threshold // self._page_size))
        self._limit = config.limit_tokens // self._page_size
        self._open = partial(Prefetch, tree, evictor, backups, jobs, queue, stop_policy, self._threshold)
        self._prefetches: list[Prefetch] = []
        self._awaited: set[Prefetch] = set()
        self._agreed: dict[Prefetch, int] = {}

    @property
    def waiting(self) -> list[Prefetch]:
        """Prefetches that have not ended, in the same order on all ranks."""
        return [prefetch for prefetch in self._prefetches if not prefetch.has_ended]

    @property
    def under_way(self) -> list[Prefetch]:
        """Prefetches that have not ended, and those whose pages are still being written."""
        return [prefetch for prefetch in self._prefetches if not prefetch.is_done]

    def prefetch(self, key: RadixKey) -> Prefetch | None:
        """Begin to read what the tree lacks of a key; None when it is too little or too much.

        None also when the path to the best match has no host copy and cannot be backed up now.
        """
        anchor = self._tree.match(key).best
        wanted = self._tree.radix.page_count(key) - anchor.end
        if wanted < self._threshold:
            return None
        if wanted + sum(prefetch.pages_left for prefetch in self._prefetches) > self._limit:
            self._tree.counters.prefetches_limited += 1
            return None
        prefetch = self._open(key, anchor.end, anchor, [])
        if not prefetch.start(wanted):
            return None
        self._prefetches.append(prefetch)
        self._awaited.add(prefetch)
        return prefetch

    def check(self, prefetch: Prefetch) -> int | None:
        """The tokens that a prefetch brought, which ends its ticket; None while the request should wait.

        Raises ReceiptError when the ticket has ended.
        """
        self._require_awaited(prefetch)
        if not prefetch.has_ended:
            if self._still_waits(prefetch):
                return None
            prefetch.cut()
        self._awaited.remove(prefetch)
        return prefetch.came * self._page_size

    def report(self) -> tuple[list[int], str]:
        """What a step passes to the other ranks: votes about the deadlines of all that wait, and their names.

        Nothing on one rank, where each check asks the clock.
        """
        if self._stop_policy.is_alone:
            return [], ""
        has_deadlines, waiting = self._stop_policy.has_deadlines, self.waiting
        votes = self._stop_policy.votes([one.deadline_s for one in waiting]) if has_deadlines else []
        return votes, described(waiting)

    def note_votes(self, agreed: Sequence[int]) -> None:
        """Keep what the ranks agreed on about all that wait, for one check of each before the next step."""
        self._agreed = dict(zip(self.waiting, agreed, strict=False))

    def _still_waits(self, prefetch: Prefetch) -> bool:
        """Whether a request still waits: one agreement about all that wait, where the step's was used already."""
        if not self._stop_policy.has_deadlines:
            return not self._stop_policy.may_cut
        if prefetch not in self._agreed:
            waiting = self.waiting
            self.note_votes(self._stop_policy.agreed([one.deadline_s for one in waiting], described(waiting)))
        return bool(self._agreed.pop(prefetch))

    def cancel(self, prefetch: Prefetch) -> None:
        """Cancel the ticket, and free what is not in the tree. Raises ReceiptError when it has ended."""
        self._require_awaited(prefetch)
        self._awaited.remove(prefetch)
        prefetch.cancel()

    def take_over(self) -> None:
        """Go on with the prefetches whose job has ended."""
        for prefetch in self.under_way:
            prefetch.go_on()
        self._prefetches = self.under_way

    def note_host_copy(self, node: Node) -> None:
        """A node got its host copy, which may be the anchor of some."""
        for prefetch in self.under_way:
            prefetch.note_host_copy(node)

    def reset(self) -> None:
        """End everything. All tickets are refused from now on, also those of prefetches that had ended."""
        self._awaited.clear()
        self._agreed.clear()
        for prefetch in self.under_way:
            prefetch.close()

    def disown(self, quarantine: Quarantine) -> None:
        """Storage does not answer: end everything, and hand over the pages that it may still write to."""
        for prefetch in self.under_way:
            prefetch.disown(quarantine)

    def _require_awaited(self, prefetch: Prefetch) -> None:
        if not isinstance(prefetch, Prefetch):
            raise ReceiptError(f"{prefetch!r} is not a ticket of a prefetch")
        if prefetch not in self._awaited:
            raise ReceiptError(
                f"the prefetch past page {prefetch.begin} was checked or aborted before, ended by a reset, or is of "
                "another cache"
            )
