"""Caches of two tiers with one defect each, for the driver to find."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hicache.tests.kit.hosted_cache import HostedCache
from hicache.tests.kit.hosted_pages import FULL, Ticket
from hicache.tests.kit.jobs import Job, Part
from hicache.types import (
    EvictResult,
    Handle,
    Key,
    LoadBack,
    MatchResult,
    Pool,
    Sizes,
    Slots,
    TransferKind,
    TransferPhase,
)


class CopiesOneLayer(HostedCache):
    """Calls a transfer complete after its first layer."""

    def complete(self, ticket: Job) -> None:
        self.jobs.advance(ticket)
        ticket.parts_done = len(ticket.parts)


class ShowsTooSoon(HostedCache):
    """Makes a load resident while it is on its way."""

    def advance(self, ticket: Job) -> None:
        super().advance(ticket)
        for part in ticket.parts if ticket.kind is TransferKind.LOAD else ():
            self.entries[part.prefix].page = part.device


class GoesOnPending(HostedCache):
    """Does not notice that a transfer is complete."""

    def complete(self, ticket: Job) -> None:
        return


class SkipsALayer(HostedCache):
    """Moves two layers where one was asked for, and tells of none."""

    def advance(self, ticket: Job) -> None:
        return


class AllIsReady(HostedCache):
    """Lets readers read before anything has come."""

    def layer_ready(self, ticket: Ticket, pool: Pool, layer: int) -> bool:
        return True


class NothingIsReady(HostedCache):
    """Never lets a reader read."""

    def layer_ready(self, ticket: Ticket, pool: Pool, layer: int) -> bool:
        return False


class ReadyForAWhile(HostedCache):
    """Takes a layer back when the load has ended."""

    def layer_ready(self, ticket: Ticket, pool: Pool, layer: int) -> bool:
        return super().layer_ready(ticket, pool, layer) and not ticket.phase.has_ended


class LeaksItsTarget(HostedCache):
    """Loses the host pages of a backup that failed."""

    def _take_backup(self, part: Part, has_arrived: bool) -> None:
        super()._take_backup(part, has_arrived)
        self.free_host = [page for page in self.free_host if page != part.host]


class KeepsPins(HostedCache):
    """Goes on holding what it backed up."""

    def _pin(self, prefixes: Iterable[bytes], by: int) -> None:
        super()._pin(prefixes, max(by, 0))


class EvictsSources(HostedCache):
    """Takes from the host whatever is there."""

    def evict_host(self, component: str, tokens: int) -> EvictResult:
        for entry in self.entries.values():
            entry.host_locks = entry.host_pins = 0
        return super().evict_host(component, tokens)


class EvictsNothing(HostedCache):
    """Leaves the host as it is."""

    def evict_host(self, component: str, tokens: int) -> EvictResult:
        return EvictResult({FULL: 0}, 0, refused=0)


class EvictsInSecret(HostedCache):
    """Does not tell what it freed on the host."""

    def evict_host(self, component: str, tokens: int) -> EvictResult:
        super().evict_host(component, tokens)
        return EvictResult({FULL: 0}, 0, refused=0)


class MiscountsTheHost(HostedCache):
    """Counts one evictable token too many on the host."""

    def host_sizes(self) -> Mapping[str, Sizes]:
        return {name: replace(sizes, evictable=sizes.evictable + 1) for name, sizes in super().host_sizes().items()}


class UnlocksNothing(HostedCache):
    """Goes on protecting what was locked on the host, and takes any receipt."""

    def unlock_host(self, receipt: Handle) -> None:
        return


class UnlocksOthers(HostedCache):
    """Releases a host lock that somebody else holds."""

    def unlock_host(self, receipt: Handle) -> None:
        super().unlock_host(receipt)
        for entry in self.entries.values():
            entry.host_locks = 0


class PromisesMore(HostedCache):
    """Counts a page more on the host than is there."""

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        found = super().match(key, chunked=chunked)
        return replace(found, host_hit_length=found.host_hit_length + self.page_size)


class CountsNothing(HostedCache):
    """Finds a hit on the host of which nothing is there."""

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        found = super().match(key, chunked=chunked)
        return replace(found, best_match=found.device_anchor, host_hit_length=self.page_size)


class LoadsLess(HostedCache):
    """Brings in a page less than is on the host."""

    def load_back(self, handle: bytes, *, quota: int | None) -> LoadBack | None:
        load = super().load_back(handle, quota=quota)
        return load and LoadBack(load.indices[: -self.page_size], load.ticket)


class LoadsTheSameTwice(HostedCache):
    """Gives the same slots for each page of a load."""

    def load_back(self, handle: bytes, *, quota: int | None) -> LoadBack | None:
        load = super().load_back(handle, quota=quota)
        return load and LoadBack(self._slots([load.ticket.parts[0].device] * len(load.ticket.parts)), load.ticket)


class RefusesAndLoads(HostedCache):
    """Says no to a load, and begins it."""

    def load_back(self, handle: bytes, *, quota: int | None) -> LoadBack | None:
        super().load_back(handle, quota=quota)
        return None


class ClaimsLess(HostedCache):
    """Gives a page less than was promised."""

    def claim(self, ticket: Ticket) -> Slots | None:
        slots = super().claim(ticket)
        return slots if slots is None else slots[: -self.page_size]


class ClaimsNothing(HostedCache):
    """Gives nothing for a load that has ended well."""

    def claim(self, ticket: Ticket) -> Slots | None:
        super().claim(ticket)
        return None


class LosesLoads(HostedCache):
    """Lets a load fail that nothing went wrong with."""

    def _finish(self, ticket: Ticket) -> None:
        super()._finish(ticket)
        self._pin(self._prefixes(ticket.prefix), -1)
        ticket.phase = TransferPhase.FAILED


class RunsAgain(HostedCache):
    """Says that a load is running after it has ended."""

    def load_phase(self, ticket: Ticket) -> TransferPhase:
        return TransferPhase.QUEUED if ticket.phase is TransferPhase.DONE else ticket.phase


class WaitsForNothing(HostedCache):
    """Calls itself drained while bytes are moving."""

    def drain(self) -> None:
        self.step()


class ResetsTheTreeAlone(HostedCache):
    """Goes on with its transfers after a reset."""

    def reset(self) -> None:
        queued = self.jobs.queued.copy()
        super().reset()
        self.jobs.queued += queued
