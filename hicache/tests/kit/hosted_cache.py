"""HostedCache: a dictionary of pages with a host tier, or none, for the kit's own tests; FlatCache: the least of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from hicache.config import CacheConfig
from hicache.errors import ReceiptError, StaleHandleError
from hicache.testing.adapter import CacheAdapter, Capability, PageBytes, Pending
from hicache.testing.snapshot import HostNodeView, HostView, NodeView, PoolView, Snapshot, TransferView
from hicache.types import (
    NO_SLOTS,
    Component,
    EvictResult,
    Handle,
    InsertResult,
    Key,
    LoadBack,
    MatchResult,
    Namespace,
    Pool,
    Sizes,
    Slots,
    TransferKind,
    TransferPhase,
)

FULL = Component.FULL.value
LAYERS = 2
SLOT_BYTES = 8
NONE = 0
"""The page number of an entry on a tier where it is absent."""

Memory = npt.NDArray[np.uint8]
"""The bytes of every page: uint8, [layers, pages, bytes]."""


class Prefix(NamedTuple):
    """What a page is stored by, and a handle: a namespace, and the bytes of all tokens up to the page's end."""

    namespace: Namespace
    tokens: bytes


@dataclass(slots=True, eq=False)
class Part:
    """One page to copy: its prefix, and its page number on each tier."""

    prefix: Prefix
    device: int
    host: int


@dataclass(slots=True, eq=False)
class Job:
    """Parts that are copied together. `parts_done`: how many succeeded, once the job has ended."""

    kind: TransferKind
    parts: Sequence[Part]
    layers_done: int = 0
    parts_done: int | None = None


@dataclass(slots=True, eq=False)
class Jobs:
    """The queued and the started copies, and the memories that they copy between."""

    device: Memory
    host: Memory
    queued: list[Job] = field(default_factory=list)
    started: list[Job] = field(default_factory=list)

    def start(self) -> None:
        """Start the queued copies, one job per direction."""
        for kind in TransferKind:
            parts = [part for job in self.queued if job.kind is kind for part in job.parts]
            if parts:
                self.started.append(Job(kind, parts))
        self.queued.clear()

    def take_ended(self) -> list[Job]:
        """The jobs that have ended, in order; a later job waits for earlier ones of its kind."""
        ended: list[Job] = []
        for kind in TransferKind:
            of_kind = [job for job in self.started if job.kind is kind]
            while of_kind and of_kind[0].parts_done is not None:
                ended.append(of_kind.pop(0))
        self.started = [job for job in self.started if job not in ended]
        return ended

    def in_flight(self, kind: TransferKind) -> list[Part]:
        """The parts of queued and started copies that are not applied yet."""
        return [part for job in (*self.started, *self.queued) if job.kind is kind for part in job.parts]

    def pending(self) -> list[Pending]:
        """The jobs that a test can advance."""
        return [
            Pending(job, job.kind, len(job.parts), LAYERS, job.layers_done)
            for job in self.started
            if job.parts_done is None
        ]

    def advance(self, job: Job) -> None:
        """Copy one more layer. After the last layer the job has ended."""
        self._copy(job, job.parts, range(job.layers_done, job.layers_done + 1))
        job.layers_done += 1
        if job.layers_done == LAYERS:
            job.parts_done = len(job.parts)

    def fail(self, job: Job, parts_done: int) -> None:
        """End a job after its first parts; the other parts fail."""
        self._copy(job, job.parts[:parts_done], range(LAYERS))
        job.parts_done = parts_done

    def _copy(self, job: Job, parts: Sequence[Part], layers: range) -> None:
        for part in parts:
            for layer in layers:
                if job.kind is TransferKind.BACKUP:
                    self.host[layer, part.host] = self.device[layer, part.device]
                else:
                    self.device[layer, part.device] = self.host[layer, part.host]


@dataclass(slots=True)
class Entry:
    """A cached page: its page number and locks on each tier, and how many of the locks the cache itself holds."""

    page: int = NONE
    host: int = NONE
    locks: int = 0
    pins: int = 0
    host_locks: int = 0
    host_pins: int = 0


@dataclass(slots=True, eq=False)
class Ticket:
    """A load: the prefix that it completes, its parts, and the parts that the tree did not take."""

    prefix: Prefix
    parts: Sequence[Part]
    phase: TransferPhase = TransferPhase.QUEUED
    kept: list[int] = field(default_factory=list)


class HostedCache(CacheAdapter):
    """Pages by their whole prefix, least recently used first. FULL, LRU, write_through.

    With a configuration that has no host tier, the pages are on the device alone.
    """

    interface = 2
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            Capability.VERBS,
            Capability.RESET,
            Capability.PAGED,
            Capability.NAMESPACES,
            Capability.BYTES,
            Capability.SNAPSHOT,
            Capability.SIZES,
            Capability.HOST,
            Capability.STEPPED,
        }
    )

    def __init__(self, config: CacheConfig) -> None:
        self.page_size = config.page_size
        self.pages = config.capacity_tokens[FULL] // config.page_size
        self.has_host = config.host is not None
        self.host_pages = config.host.capacity_tokens[FULL] // config.page_size if config.host else 0
        self.free_pages = list(range(self.pages, 0, -1))
        self.free_host = list(range(self.host_pages, 0, -1))
        self.entries: dict[Prefix, Entry] = {}
        self.receipts: dict[object, tuple[str, Prefix]] = {}
        self.tickets: list[Ticket] = []
        shape = (LAYERS, 1 + max(self.pages, self.host_pages), SLOT_BYTES * self.page_size)
        self.jobs = Jobs(np.zeros(shape, dtype=np.uint8), np.zeros(shape, dtype=np.uint8))

    # Device.

    def allocate(self, tokens: int) -> Slots | None:
        taken = self._take_pages(tokens // self.page_size)
        return None if taken is None else self._slots(taken)

    def free(self, slots: Slots) -> None:
        self.free_pages += self._pages_of(slots)

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        found = [prefix for prefix in self._prefixes(whole(key)) if prefix in self.entries]
        resident = [prefix for prefix in found if self.entries[prefix].page]
        self._touch(found)
        best, anchor = (path[-1] if path else Prefix(key.namespace, b"") for path in (found, resident))
        host_hit = (len(found) - len(resident)) * self.page_size
        return MatchResult(self._slots(self.entries[p].page for p in resident), anchor, best, host_hit, {}, None)

    def insert(
        self, key: Key, slots: Slots, *, shared: int, window_start: int, state: int | None, priority: int
    ) -> InsertResult:
        prefixes = self._prefixes(whole(key))
        present = 0
        for number, (prefix, page) in enumerate(zip(prefixes, self._pages_of(slots), strict=True)):
            entry = self.entries.setdefault(prefix, Entry())
            present += entry.page != NONE
            if entry.page and number * self.page_size >= shared:
                self.free_pages.append(page)
            entry.page = entry.page or page
        self._touch(prefixes)
        for prefix in prefixes:
            self._back_up(prefix)
        length = len(prefixes) * self.page_size
        node = prefixes[-1] if prefixes else Prefix(key.namespace, b"")
        return InsertResult(present * self.page_size, length, node, state_adopted=False)

    def lock(self, handle: Prefix) -> Handle:
        if any(p not in self.entries or not self.entries[p].page for p in self._prefixes(handle)):
            raise StaleHandleError(f"{handle!r} is not on the device")
        self._lock(handle, 1)
        return self._receipt("device", handle)

    def unlock(self, receipt: Handle) -> None:
        self._lock(self._take_receipt(receipt, "device"), -1)

    def evict(self, component: str, tokens: int) -> EvictResult:
        wanted = max(0, -(-tokens // self.page_size))
        unlocked = [prefix for prefix, entry in self.entries.items() if entry.page and not entry.locks]
        for prefix in unlocked[:wanted]:
            entry = self.entries[prefix]
            self.free_pages.append(entry.page)
            entry.page = NONE
            self._drop_if_empty(prefix)
        count = len(unlocked[:wanted])
        return EvictResult({FULL: count * self.page_size}, count, refused=0)

    def reset(self) -> None:
        kept = [page for ticket in self.tickets for page in ticket.kept]
        device = [entry.page for entry in self.entries.values()] + kept
        device += [part.device for part in self.jobs.in_flight(TransferKind.LOAD)]
        host = [entry.host for entry in self.entries.values()]
        host += [part.host for part in self.jobs.in_flight(TransferKind.BACKUP)]
        self.free_pages += [page for page in device if page]
        self.free_host += [page for page in host if page]
        for several in (self.entries, self.receipts, self.tickets, self.jobs.queued, self.jobs.started):
            several.clear()

    # Host.

    def evict_host(self, component: str, tokens: int) -> EvictResult:
        victims = 0
        while victims * self.page_size < tokens and (prefix := self._host_victim()) is not None:
            self.free_host.append(self.entries[prefix].host)
            self.entries[prefix].host = NONE
            self._drop_if_empty(prefix)
            victims += 1
        return EvictResult({FULL: victims * self.page_size}, victims, refused=0)

    def lock_host(self, handle: Prefix) -> Handle:
        if not self.entries[handle].host:
            self._lock(handle, 1)
            return self._receipt("keeper", handle)
        self.entries[handle].host_locks += 1
        return self._receipt("host", handle)

    def unlock_host(self, receipt: Handle) -> None:
        if self._kind(receipt) == "keeper":
            self._lock(self._take_receipt(receipt, "keeper"), -1)
        else:
            self.entries[self._take_receipt(receipt, "host")].host_locks -= 1

    def load_back(self, handle: Prefix, *, quota: int | None) -> LoadBack | None:
        path = self._prefixes(handle)
        missing = [prefix for prefix in path if not self.entries[prefix].page]
        arriving = {part.prefix for part in self.jobs.in_flight(TransferKind.LOAD)}
        is_over = quota is not None and len(missing) * self.page_size > quota
        if not missing or is_over or arriving.intersection(missing):
            return None
        resident = path[: len(path) - len(missing)]
        self._pin(resident, 1)
        pages = self._take_pages(len(missing))
        if pages is None:
            self._pin(resident, -1)
            return None
        parts = [Part(p, page, self.entries[p].host) for p, page in zip(missing, pages, strict=True)]
        self._pin_host(parts, 1)
        self.jobs.queued.append(Job(TransferKind.LOAD, parts))
        self.tickets.append(Ticket(handle, parts))
        return LoadBack(self._slots(pages), self.tickets[-1])

    def load_phase(self, ticket: Ticket) -> TransferPhase:
        return ticket.phase

    def claim(self, ticket: Ticket) -> Slots | None:
        if not ticket.phase.has_ended:
            raise ReceiptError(f"a load that is {ticket.phase.value} cannot be claimed")
        pages = [self.entries[part.prefix].page for part in ticket.parts if part.prefix in self.entries]
        self._end(ticket)
        return self._slots(pages) if ticket.phase is TransferPhase.DONE else None

    def abandon(self, ticket: Ticket) -> None:
        assert ticket.phase.has_ended, "the driver's tests abandon no load that is in flight"
        self._end(ticket)

    def step(self) -> None:
        for job in self.jobs.take_ended():
            self._take_over(job)
        self.jobs.start()
        for ticket in self.tickets:
            if ticket.phase is TransferPhase.QUEUED:
                ticket.phase = TransferPhase.RUNNING

    def drain(self) -> None:
        self.step()
        while self.jobs.started:
            for one in self.jobs.pending():
                self.complete(one.ticket)
            self.step()

    # Transfers that a test advances.

    def pending(self) -> Sequence[Pending]:
        return self.jobs.pending()

    def advance(self, ticket: Job) -> None:
        self.jobs.advance(ticket)

    def complete(self, ticket: Job) -> None:
        while ticket.parts_done is None:
            self.jobs.advance(ticket)

    def fail(self, ticket: Job, parts_done: int) -> None:
        self.jobs.fail(ticket, parts_done)

    def layer_ready(self, ticket: Ticket, pool: str, layer: int) -> bool:
        if pool != Pool.KV or ticket.phase.has_ended:
            return True
        jobs = [job for job in self.jobs.started if ticket.parts[0] in job.parts]
        return any(job.layers_done > layer for job in jobs)

    # Pools.

    def layers(self, pool: str) -> int:
        return LAYERS if pool == Pool.KV else 0

    def slot_bytes(self, pool: str) -> int:
        return SLOT_BYTES

    def write(self, pool: str, slots: Slots, layer: int, data: PageBytes) -> None:
        self.jobs.device[layer].reshape(-1, SLOT_BYTES)[slots] = data

    def read(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        data: PageBytes = self.jobs.device[layer].reshape(-1, SLOT_BYTES)[slots]
        return data

    def read_host(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        data: PageBytes = self.jobs.host[layer].reshape(-1, SLOT_BYTES)[slots]
        return data

    # Snapshot.

    def sizes(self) -> Mapping[str, Sizes]:
        counts = [(entry.page, entry.locks) for entry in self.entries.values()]
        return {FULL: self._sizes(counts, self.free_pages)}

    def host_sizes(self) -> Mapping[str, Sizes]:
        counts = [(entry.host, entry.host_locks) for entry in self.entries.values()]
        return {FULL: self._sizes(counts, self.free_host)}

    def snapshot(self) -> Snapshot:
        ordered = sorted(self.entries, key=lambda prefix: len(prefix.tokens))
        rows = {prefix: row for row, prefix in enumerate(ordered)}
        pools = {FULL: PoolView(self.pages * self.page_size, self._slots(self.free_pages))}
        nodes = tuple(self._view(prefix, rows) for prefix in ordered)
        return Snapshot(nodes, pools, self._host_tier_view(ordered) if self.has_host else None, storage=None)

    def _host_tier_view(self, ordered: Sequence[Prefix]) -> HostView:
        transfers = [
            TransferView(kind, {FULL: self._slots([part.device])}, {FULL: self._slots([part.host])})
            for kind in TransferKind
            for part in self.jobs.in_flight(kind)
        ]
        kept = [page for ticket in self.tickets for page in ticket.kept]
        return HostView(
            nodes=tuple(self._host_view(self.entries[prefix]) for prefix in ordered),
            pools={FULL: PoolView(self.host_pages * self.page_size, self._slots(self.free_host))},
            transfers=tuple(transfers),
            kept={FULL: self._slots(kept)},
        )

    def _view(self, prefix: Prefix, rows: Mapping[Prefix, int]) -> NodeView:
        entry, end = self.entries[prefix], len(prefix.tokens) // 4
        return NodeView(
            parent=rows.get(self._above(prefix), -1),
            namespace=prefix.namespace,
            segment=prefix.tokens[-4 * self.page_size :],
            start=end - self.page_size,
            end=end,
            slots={FULL: self._slots([entry.page]) if entry.page else None},
            locks={FULL: entry.locks},
            hits=0,
        )

    def _host_view(self, entry: Entry) -> HostNodeView:
        slots = self._slots([entry.host]) if entry.host else None
        return HostNodeView({FULL: slots}, {FULL: entry.host_locks}, {FULL: entry.pins}, {FULL: entry.host_pins})

    # Internals.

    def _take_pages(self, count: int) -> list[int] | None:
        self.evict(FULL, (count - len(self.free_pages)) * self.page_size)
        if len(self.free_pages) < count:
            return None
        return [self.free_pages.pop() for _ in range(count)]

    def _back_up(self, prefix: Prefix) -> None:
        arriving = {part.prefix for part in self.jobs.in_flight(TransferKind.BACKUP)}
        if not self.has_host or self.entries[prefix].host or prefix in arriving:
            return
        self._pin(self._prefixes(prefix), 1)
        if not self.free_host:
            self.evict_host(FULL, self.page_size)
        if self.free_host:
            self.jobs.queued.append(
                Job(TransferKind.BACKUP, [Part(prefix, self.entries[prefix].page, self.free_host.pop())])
            )
        else:
            self._pin(self._prefixes(prefix), -1)

    def _take_over(self, job: Job) -> None:
        for number, part in enumerate(job.parts):
            has_arrived = number < (job.parts_done or 0)
            if job.kind is TransferKind.BACKUP:
                self._take_backup(part, has_arrived)
            else:
                self._take_load(part, has_arrived)
        for ticket in self.tickets:
            if job.kind is TransferKind.LOAD and ticket.parts[0] in job.parts:
                self._finish(ticket)

    def _take_backup(self, part: Part, has_arrived: bool) -> None:
        above = self._above(part.prefix)
        if has_arrived and (not above.tokens or self.entries[above].host):
            self.entries[part.prefix].host = part.host
        else:
            self.free_host.append(part.host)
        self._pin(self._prefixes(part.prefix), -1)

    def _take_load(self, part: Part, has_arrived: bool) -> None:
        entry = self.entries[part.prefix]
        self._pin_host([part], -1)
        if has_arrived and not entry.page:
            entry.page = part.device
        elif has_arrived:
            next(ticket for ticket in self.tickets if part in ticket.parts).kept.append(part.device)
        else:
            self.free_pages.append(part.device)

    def _finish(self, ticket: Ticket) -> None:
        """End the load of a ticket: it protects the whole path now, or nothing."""
        loaded = [part.prefix for part in ticket.parts]
        is_whole = all(self.entries[prefix].page for prefix in loaded)
        ticket.phase = TransferPhase.DONE if is_whole else TransferPhase.FAILED
        if is_whole:
            self._pin(loaded, 1)
        else:
            self._pin(self._before(ticket), -1)

    def _end(self, ticket: Ticket) -> None:
        self.tickets.remove(ticket)
        self.free_pages += ticket.kept
        if ticket.phase is TransferPhase.DONE:
            self._pin(self._prefixes(ticket.prefix), -1)

    def _before(self, ticket: Ticket) -> list[Prefix]:
        """The part of a load's path that was on the device when the load started."""
        path = self._prefixes(ticket.prefix)
        return path[: len(path) - len(ticket.parts)]

    def _host_victim(self) -> Prefix | None:
        """The least recently used page that is a leaf on the host; pages that are only on the host come first."""
        parents = {self._above(prefix) for prefix, entry in self.entries.items() if entry.host}
        free = [p for p, entry in self.entries.items() if entry.host and not entry.host_locks and p not in parents]
        return min(free, key=lambda prefix: self.entries[prefix].page != NONE, default=None)

    def _lock(self, handle: Prefix, by: int) -> None:
        for prefix in self._prefixes(handle):
            self.entries[prefix].locks += by

    def _pin(self, prefixes: Iterable[Prefix], by: int) -> None:
        for prefix in prefixes:
            self.entries[prefix].locks += by
            self.entries[prefix].pins += by

    def _pin_host(self, parts: Iterable[Part], by: int) -> None:
        for part in parts:
            self.entries[part.prefix].host_locks += by
            self.entries[part.prefix].host_pins += by

    def _above(self, prefix: Prefix) -> Prefix:
        """The prefix that ends one page before."""
        return Prefix(prefix.namespace, prefix.tokens[: -4 * self.page_size])

    def _prefixes(self, prefix: Prefix) -> list[Prefix]:
        page_bytes = 4 * self.page_size
        ends = range(page_bytes, len(prefix.tokens) + 1, page_bytes)
        return [Prefix(prefix.namespace, prefix.tokens[:end]) for end in ends]

    def _touch(self, prefixes: Sequence[Prefix]) -> None:
        # A page is at least as recent as its descendants, so that the oldest page is always a leaf.
        for prefix in reversed(prefixes):
            self.entries[prefix] = self.entries.pop(prefix)

    def _sizes(self, counts: Iterable[tuple[int, int]], free: Sequence[int]) -> Sizes:
        held = [locks > 0 for page, locks in counts if page]
        protected = sum(held) * self.page_size
        return Sizes(len(held) * self.page_size - protected, protected, len(free) * self.page_size)

    def _pages_of(self, slots: Slots) -> list[int]:
        pages: list[int] = (slots[:: self.page_size] // self.page_size).tolist()
        return pages

    def _slots(self, pages: Iterable[int]) -> Slots:
        starts = np.array(list(pages), dtype=np.int64)[:, np.newaxis] * self.page_size
        return (starts + np.arange(self.page_size)).reshape(-1) if len(starts) else NO_SLOTS

    def _drop_if_empty(self, prefix: Prefix) -> None:
        if not self.entries[prefix].page and not self.entries[prefix].host:
            del self.entries[prefix]

    def _receipt(self, kind: str, handle: Prefix) -> object:
        receipt = object()
        self.receipts[receipt] = (kind, handle)
        return receipt

    def _kind(self, receipt: Handle) -> str | None:
        return self.receipts[receipt][0] if receipt in self.receipts else None

    def _take_receipt(self, receipt: Handle, kind: str) -> Prefix:
        if self._kind(receipt) != kind:
            raise ReceiptError(f"{receipt!r} is not outstanding")
        return self.receipts.pop(receipt)[1]


class FlatCache(HostedCache):
    """The same with the least that an adapter of verbs declares besides pages and namespaces."""

    capabilities = frozenset({Capability.VERBS, Capability.RESET, Capability.PAGED, Capability.NAMESPACES})


def whole(key: Key) -> Prefix:
    """The prefix of all tokens of a key."""
    return Prefix(key.namespace, key.tokens.tobytes())
