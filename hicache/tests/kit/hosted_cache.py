"""HostedCache: a prefix cache with two tiers and one dictionary entry per page, for tests of the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hicache.errors import ReceiptError, StaleHandleError
from hicache.testing.adapter import Capability, PendingTransfer
from hicache.tests.kit.hosted_pages import FULL, NONE, Entry, HostedPages, Ticket
from hicache.tests.kit.jobs import Job, Part
from hicache.types import (
    EvictResult,
    Handle,
    InsertResult,
    Key,
    LoadBack,
    MatchResult,
    Pool,
    Slots,
    TransferKind,
    TransferPhase,
)


class HostedCache(HostedPages):
    """Pages by the bytes of their whole prefix, least recently used first. FULL, one namespace, LRU, write_through."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            Capability.PAGED,
            Capability.BYTES,
            Capability.SNAPSHOT,
            Capability.SIZES,
            Capability.HOST,
            Capability.STEPPED,
        }
    )

    # Device.

    def allocate(self, tokens: int) -> Slots | None:
        taken = self._take_pages(tokens // self.page_size)
        return None if taken is None else self._slots(taken)

    def free(self, slots: Slots) -> None:
        self.free_pages += self._pages_of(slots)

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        found = [prefix for prefix in self._prefixes(key.tokens.tobytes()) if prefix in self.entries]
        resident = [prefix for prefix in found if self.entries[prefix].page]
        self._touch(found)
        best, anchor = (path[-1] if path else b"" for path in (found, resident))
        host_hit = (len(found) - len(resident)) * self.page_size
        return MatchResult(self._slots(self.entries[p].page for p in resident), anchor, best, host_hit, {}, None)

    def insert(
        self, key: Key, slots: Slots, *, shared: int, window_start: int, state: int | None, priority: int
    ) -> InsertResult:
        prefixes = self._prefixes(key.tokens.tobytes())
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
        return InsertResult(present * self.page_size, length, prefixes[-1] if prefixes else b"", state_adopted=False)

    def lock(self, handle: bytes) -> Handle:
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

    def lock_host(self, handle: bytes) -> Handle:
        if not self.entries[handle].host:
            self._lock(handle, 1)
            return self._receipt("keeper", handle)
        self.entries[handle].host_locks += 1
        return self._receipt("host", handle)

    def unlock_host(self, receipt: Handle) -> None:
        if self.receipts.get(receipt, ("", b""))[0] == "keeper":
            self._lock(self._take_receipt(receipt, "keeper"), -1)
        else:
            self.entries[self._take_receipt(receipt, "host")].host_locks -= 1

    def load_back(self, handle: bytes, *, quota: int | None) -> LoadBack | None:
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

    def pending(self) -> Sequence[PendingTransfer]:
        return self.jobs.pending()

    def advance(self, ticket: Job) -> None:
        self.jobs.advance(ticket)

    def complete(self, ticket: Job) -> None:
        while ticket.parts_done is None:
            self.jobs.advance(ticket)

    def fail(self, ticket: Job, parts_done: int) -> None:
        self.jobs.fail(ticket, parts_done)

    def layer_ready(self, ticket: Ticket, pool: Pool, layer: int) -> bool:
        if pool is not Pool.KV or ticket.phase.has_ended:
            return True
        jobs = [job for job in self.jobs.started if ticket.parts[0] in job.parts]
        return any(job.layers_done > layer for job in jobs)

    # Internals.

    def _take_pages(self, count: int) -> list[int] | None:
        self.evict(FULL, (count - len(self.free_pages)) * self.page_size)
        if len(self.free_pages) < count:
            return None
        return [self.free_pages.pop() for _ in range(count)]

    def _back_up(self, prefix: bytes) -> None:
        arriving = {part.prefix for part in self.jobs.in_flight(TransferKind.BACKUP)}
        if self.entries[prefix].host or prefix in arriving:
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
        above = part.prefix[: -4 * self.page_size]
        if has_arrived and (not above or self.entries[above].host):
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

    def _before(self, ticket: Ticket) -> list[bytes]:
        """The part of a load's path that was on the device when the load started."""
        path = self._prefixes(ticket.prefix)
        return path[: len(path) - len(ticket.parts)]

    def _host_victim(self) -> bytes | None:
        """The least recently used page that is a leaf on the host; pages that are only on the host come first."""
        page_bytes = 4 * self.page_size
        parents = {prefix[:-page_bytes] for prefix, entry in self.entries.items() if entry.host}
        free = [p for p, entry in self.entries.items() if entry.host and not entry.host_locks and p not in parents]
        return min(free, key=lambda prefix: self.entries[prefix].page != NONE, default=None)
