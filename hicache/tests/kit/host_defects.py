"""Caches with two tiers and one defect each, for tests of the driver."""

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
    """`complete` ends a transfer after its first layer."""

    def complete(self, ticket: Job) -> None:
        self.jobs.advance(ticket)
        ticket.parts_done = len(ticket.parts)


class ShowsTooSoon(HostedCache):
    """A load is resident before it is applied."""

    def advance(self, ticket: Job) -> None:
        super().advance(ticket)
        for part in ticket.parts if ticket.kind is TransferKind.LOAD else ():
            self.entries[part.prefix].page = part.device


class GoesOnPending(HostedCache):
    """A completed transfer stays pending."""

    def complete(self, ticket: Job) -> None:
        return


class SkipsALayer(HostedCache):
    """`advance` copies two layers and reports none."""

    def advance(self, ticket: Job) -> None:
        return


class AllIsReady(HostedCache):
    """Every layer is reported as readable from the start."""

    def layer_ready(self, ticket: Ticket, pool: Pool, layer: int) -> bool:
        return True


class NothingIsReady(HostedCache):
    """No layer is ever reported as readable."""

    def layer_ready(self, ticket: Ticket, pool: Pool, layer: int) -> bool:
        return False


class ReadyForAWhile(HostedCache):
    """A readable layer becomes unreadable when the load has ended."""

    def layer_ready(self, ticket: Ticket, pool: Pool, layer: int) -> bool:
        return super().layer_ready(ticket, pool, layer) and not ticket.phase.has_ended


class LeaksItsTarget(HostedCache):
    """The host pages of a failed backup leak."""

    def _take_backup(self, part: Part, has_arrived: bool) -> None:
        super()._take_backup(part, has_arrived)
        self.free_host = [page for page in self.free_host if page != part.host]


class KeepsPins(HostedCache):
    """The pins of a backup are never released."""

    def _pin(self, prefixes: Iterable[bytes], by: int) -> None:
        super()._pin(prefixes, max(by, 0))


class EvictsSources(HostedCache):
    """`evict_host` evicts pinned data, too."""

    def evict_host(self, component: str, tokens: int) -> EvictResult:
        for entry in self.entries.values():
            entry.host_locks = entry.host_pins = 0
        return super().evict_host(component, tokens)


class EvictsNothing(HostedCache):
    """`evict_host` evicts nothing."""

    def evict_host(self, component: str, tokens: int) -> EvictResult:
        return EvictResult({FULL: 0}, 0, refused=0)


class EvictsInSecret(HostedCache):
    """`evict_host` does not report what it freed."""

    def evict_host(self, component: str, tokens: int) -> EvictResult:
        super().evict_host(component, tokens)
        return EvictResult({FULL: 0}, 0, refused=0)


class MiscountsTheHost(HostedCache):
    """`host_sizes` counts one evictable token too many."""

    def host_sizes(self) -> Mapping[str, Sizes]:
        return {name: replace(sizes, evictable=sizes.evictable + 1) for name, sizes in super().host_sizes().items()}


class UnlocksNothing(HostedCache):
    """`unlock_host` does nothing, and accepts any receipt."""

    def unlock_host(self, receipt: Handle) -> None:
        return


class UnlocksOthers(HostedCache):
    """`unlock_host` releases another owner's host lock."""

    def unlock_host(self, receipt: Handle) -> None:
        super().unlock_host(receipt)
        for entry in self.entries.values():
            entry.host_locks = 0


class PromisesMore(HostedCache):
    """`match` reports one page too many on the host."""

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        found = super().match(key, chunked=chunked)
        return replace(found, host_hit_length=found.host_hit_length + self.page_size)


class CountsNothing(HostedCache):
    """`match` reports a host hit without any data on the host."""

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        found = super().match(key, chunked=chunked)
        return replace(found, best_match=found.device_anchor, host_hit_length=self.page_size)


class LoadsLess(HostedCache):
    """`load_back` loads one page less than is on the host."""

    def load_back(self, handle: bytes, *, quota: int | None) -> LoadBack | None:
        load = super().load_back(handle, quota=quota)
        return load and LoadBack(load.indices[: -self.page_size], load.ticket)


class LoadsTheSameTwice(HostedCache):
    """`load_back` uses the same slots for each page."""

    def load_back(self, handle: bytes, *, quota: int | None) -> LoadBack | None:
        load = super().load_back(handle, quota=quota)
        return load and LoadBack(self._slots([load.ticket.parts[0].device] * len(load.ticket.parts)), load.ticket)


class RefusesAndLoads(HostedCache):
    """`load_back` reports a refusal, but starts the load."""

    def load_back(self, handle: bytes, *, quota: int | None) -> LoadBack | None:
        super().load_back(handle, quota=quota)
        return None


class ClaimsLess(HostedCache):
    """`claim` returns one page less than was loaded."""

    def claim(self, ticket: Ticket) -> Slots | None:
        slots = super().claim(ticket)
        return slots if slots is None else slots[: -self.page_size]


class ClaimsNothing(HostedCache):
    """`claim` returns None for a load that succeeded."""

    def claim(self, ticket: Ticket) -> Slots | None:
        super().claim(ticket)
        return None


class LosesLoads(HostedCache):
    """A load fails without any fault."""

    def _finish(self, ticket: Ticket) -> None:
        super()._finish(ticket)
        self._pin(self._prefixes(ticket.prefix), -1)
        ticket.phase = TransferPhase.FAILED


class RunsAgain(HostedCache):
    """`load_phase` reports a load as running after it has ended."""

    def load_phase(self, ticket: Ticket) -> TransferPhase:
        return TransferPhase.QUEUED if ticket.phase is TransferPhase.DONE else ticket.phase


class WaitsForNothing(HostedCache):
    """`drain` returns while transfers are in flight."""

    def drain(self) -> None:
        self.step()


class ResetsTheTreeAlone(HostedCache):
    """`reset` does not stop the transfers."""

    def reset(self) -> None:
        queued = self.jobs.queued.copy()
        super().reset()
        self.jobs.queued += queued
