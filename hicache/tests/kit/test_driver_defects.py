"""Caches with one defect each: the driver finds every defect, and names the clause it violates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from hicache.config import CacheConfig, ExecutorKind, WritePolicy
from hicache.request import Request
from hicache.testing.adapter import Admission, CacheAdapter, PageBytes
from hicache.testing.caches.block_cache import BlockRequest
from hicache.testing.caches.blocks import CONFIGURATIONS as BLOCKS
from hicache.testing.caches.blocks import BlockCacheAdapter
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.configurations import quick_configurations
from hicache.testing.driving.driver import Driver
from hicache.testing.snapshot import Snapshot
from hicache.tests.kit.hosted_cache import FlatCache, HostedCache, Job, Part, Prefix, Ticket
from hicache.tests.kit.snapshots import FULL, MAMBA, SWA, tiny_config
from hicache.types import (
    EvictResult,
    Handle,
    Key,
    LoadBack,
    MatchResult,
    Sizes,
    Slots,
    Tokens,
    TransferKind,
    TransferPhase,
)

Verbs = Callable[[Driver], object]


class FreesTwice(FlatCache):
    """`allocate` returns slots that stay free."""

    def allocate(self, tokens: int) -> Slots | None:
        slots = super().allocate(tokens)
        if slots is not None:
            self.free(slots)
        return slots


class UnlocksAnything(FlatCache):
    """`unlock` accepts any receipt."""

    def unlock(self, receipt: Handle) -> None:
        return


class Short(FlatCache):
    """`allocate` returns one page less than asked for."""

    def allocate(self, tokens: int) -> Slots | None:
        return super().allocate(tokens - self.page_size)


class Shifted(FlatCache):
    """`allocate` returns slots that start inside a page."""

    def allocate(self, tokens: int) -> Slots | None:
        slots = super().allocate(tokens)
        return None if slots is None else slots + 1


class TooLong(FlatCache):
    """`match` finds more than the key has."""

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        return super().match(Key(np.append(key.tokens, [0, 0]).astype(np.int32), key.namespace), chunked=chunked)


class Forgetful(ReferenceAdapter):
    """`free` does not free the slots."""

    def free(self, slots: Slots) -> None:
        return


class WritesBeside(ReferenceAdapter):
    """`write` writes the second layer one slot further."""

    def write(self, pool: str, slots: Slots, layer: int, data: PageBytes) -> None:
        super().write(pool, slots, layer, np.roll(data, layer, axis=0))


class Miscounts(ReferenceAdapter):
    """`sizes` counts one evictable token too many."""

    def sizes(self) -> dict[str, Sizes]:
        return {name: Sizes(s.evictable + 1, s.protected, s.free) for name, s in super().sizes().items()}


class EvictsNothing(ReferenceAdapter):
    """`evict` evicts nothing."""

    def evict(self, component: str, tokens: int) -> EvictResult:
        return EvictResult(dict.fromkeys(self.cache.config.components, 0), 0, refused=0)


class IgnoresLocks(ReferenceAdapter):
    """`evict` evicts locked nodes, too."""

    def evict(self, component: str, tokens: int) -> EvictResult:
        free = self.sizes()[FULL].free
        self.cache.reset()
        return EvictResult({component: self.sizes()[FULL].free - free}, 1, refused=0)


class KeepsLocks(ReferenceAdapter):
    """`unlock` releases nothing."""

    def unlock(self, receipt: Handle) -> None:
        return


class FreesOthers(HostedCache):
    """`free` frees as many slots as it is given, with numbers that the pool did not have."""

    def free(self, slots: Slots) -> None:
        super().free(slots + self.pages * self.page_size)


class Insane(ReferenceAdapter):
    """`sanity_check` fails."""

    def sanity_check(self) -> None:
        raise AssertionError("the cache found a fault of its own")


def put_twice(driver: Driver) -> None:
    for pages in ([1, 2], [3, 4]):
        driver.put(driver.key(driver.prompt(pages)))


def free_some(driver: Driver) -> None:
    slots = driver.allocate(4)
    assert slots is not None, "an empty cache has 4 slots"
    driver.free(slots)


def evict_under_a_lock(driver: Driver) -> None:
    result = driver.put(driver.key(driver.prompt([1, 2])))
    driver.lock(result.node)
    driver.evict(FULL, 2)


def unlock_something(driver: Driver) -> None:
    receipt = driver.lock(driver.put(driver.key(driver.prompt([1]))).node)
    driver.unlock(receipt)


def unlock_twice(driver: Driver) -> None:
    unlock_something(driver)
    driver.unlock(None)


def evict_some(driver: Driver) -> None:
    put_twice(driver)
    driver.evict(FULL, 2)


def match_longer(driver: Driver) -> None:
    driver.put(driver.key([1, 2, 0, 0]))
    driver.match(driver.key([1, 2]))


CONFIG = tiny_config(FULL, page_size=2, pages=8)

DEFECTS: list[tuple[type[CacheAdapter], Verbs, str]] = [
    (FreesTwice, lambda driver: [driver.allocate(4) for _ in range(2)], "POOL-2: allocated slots"),
    (Short, lambda driver: driver.allocate(4), "POOL-3: .*expected 4 slots or None, got 2"),
    (Shifted, lambda driver: driver.allocate(4), "POOL-4: .*aligned pages of 2"),
    (TooLong, match_longer, "MATCH-1: match: expected at most 2 slots"),
    (Forgetful, free_some, "POOL-1: pool of full: expected 16 slots with an owner"),
    (WritesBeside, put_twice, "REQ-3: node of elements 0..4 .*its slot 0 of 4, pool kv, layer 1"),
    (Miscounts, put_twice, "LOCK-4: size counters of full"),
    (EvictsNothing, evict_some, "EVICT-1: .*expected more freed, as 8 are evictable"),
    (IgnoresLocks, evict_under_a_lock, "LOCK-5: full slot 2: .*got a slot that is not in the tree"),
    (KeepsLocks, unlock_something, "LOCK-2: .*expected at most 0"),
    (UnlocksAnything, unlock_twice, "LOCK-6: unlock: expected an error"),
    (FreesOthers, free_some, "POOL-1: pool of full, device: expected the same slots as before"),
    (Insane, put_twice, "a fault of its own"),
]


@pytest.mark.parametrize(("adapter", "verbs", "message"), DEFECTS, ids=[defect[0].__name__ for defect in DEFECTS])
def test_a_defect_is_found(adapter: type[CacheAdapter], verbs: Verbs, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        verbs(Driver(adapter(CONFIG), CONFIG))


class HandlesOfTokens(UnlocksAnything):
    """A handle is the text of a long prompt, and `match` reports a hit on a host that is not there."""

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        return replace(super().match(key, chunked=chunked), best_match="7 " * 2000, host_hit_length=1)


def test_a_long_handle_is_cut_in_each_message_of_the_driver() -> None:
    driver = Driver(HandlesOfTokens(CONFIG), CONFIG)
    for verb in (lambda: driver.match(driver.key([1, 2])), lambda: driver.unlock("7 " * 2000)):
        with pytest.raises(AssertionError, match=r"\(4,002 characters\)") as raised:
            verb()
        assert len(str(raised.value)) < 600, f"expected a short message, got {raised.value}"


REQUEST_CONFIG = tiny_config(FULL, SWA, MAMBA, page_size=2, pages=8, window=3)


class CountsTheRestAsCached(ReferenceAdapter):
    """`admit` reports one cached page too many."""

    def admit(self, key: Key) -> Admission | None:
        admission = super().admit(key)
        return admission and replace(admission, cached_tokens=admission.cached_tokens + 2)


class CutsTheTable(ReferenceAdapter):
    """`admit` returns a table that is shorter than the request."""

    def admit(self, key: Key) -> Admission | None:
        admission = super().admit(key)
        return admission and replace(admission, table=admission.table[:-2])


class ForgetsTheState(ReferenceAdapter):
    """`admit` returns no state."""

    def admit(self, key: Key) -> Admission | None:
        admission = super().admit(key)
        return admission and replace(admission, state=None)


class LocksNothing(ReferenceAdapter):
    """`admit` releases the lock on the request's prefix."""

    def admit(self, key: Key) -> Admission | None:
        admission = super().admit(key)
        assert admission, "the tests leave room for a request"
        self.cache.unlock(admission.request.receipt)
        return admission


class KeepsTheOldTable(ReferenceAdapter):
    """`checkpoint` returns the old table, without the slots that the tree kept instead of the request's own."""

    def checkpoint(self, request: Request, computed_tokens: int) -> Slots:
        before = request.table.copy()
        super().checkpoint(request, computed_tokens)
        return before


class ExtendsByNothing(ReferenceAdapter):
    """`extend` succeeds without adding slots."""

    def extend(self, request: Request, tokens: Tokens) -> Slots | None:
        return request.table.copy()


class ExtendsNothing(ReferenceAdapter):
    """`extend` refuses what fits."""

    def extend(self, request: Request, tokens: Tokens) -> Slots | None:
        return None


class LeaksTheTail(ReferenceAdapter):
    """`finish` leaks the slots of the last, incomplete page."""

    def finish(self, request: Request) -> None:
        tail = request.table[-REQUEST_CONFIG.page_size :]
        request.table = request.table[: -REQUEST_CONFIG.page_size]
        request.tokens = request.tokens[: len(request.table)]
        super().finish(request)
        assert len(tail), "the tests end requests inside a page"


class KeepsTheLock(ReferenceAdapter):
    """`abort` does not release the lock on the shared prefix."""

    def abort(self, request: Request) -> None:
        self.cache.lock(request.receipt.node)
        super().abort(request)


def start(driver: Driver, *, own_pages: int = 1) -> Handle:
    """Start a request that shares two pages and has some pages and one token of its own."""
    driver.put(driver.key(driver.prompt([1, 2])))
    admission = driver.admit(driver.key([*driver.prompt([1, 2, *range(7, 7 + own_pages)]), 5]))
    assert admission, "a small request fits"
    return admission.request


def overtaken(driver: Driver) -> None:
    """Another request inserts the page that this request computes, before this one inserts it."""
    request = start(driver)
    driver.put(driver.key(driver.prompt([1, 2, 7])))
    driver.checkpoint(request, 6)


REQUEST_DEFECTS: list[tuple[type[CacheAdapter], Verbs, str]] = [
    (CountsTheRestAsCached, start, "REQ-3: position 4 of a hit, pool kv, layer 0"),
    (CutsTheTable, start, "REQ-4: table of a request of 7 tokens: expected 8 slots, got 6"),
    (ForgetsTheState, start, "MATCH-11: admit: expected a state of its own"),
    (LocksNothing, start, "REQ-1: shared slots of a request of 7 tokens"),
    (KeepsTheOldTable, overtaken, "REQ-3: a running request of 6 tokens: expected SWA data in the last window"),
    (ExtendsByNothing, lambda driver: driver.extend(start(driver), [1, 2]), "REQ-4: .*9 tokens: expected 10 slots"),
    (ExtendsNothing, lambda driver: driver.extend(start(driver), [1, 2]), "REQ-9: extension to 9 tokens"),
    (LeaksTheTail, lambda driver: driver.finish(start(driver)), "POOL-1: pool of full: expected 16 slots"),
    (KeepsTheLock, lambda driver: driver.abort(start(driver)), "LOCK-2: FULL locks below the root"),
]


@pytest.mark.parametrize(
    ("adapter", "verbs", "message"), REQUEST_DEFECTS, ids=[defect[0].__name__ for defect in REQUEST_DEFECTS]
)
def test_a_defect_of_requests_is_found(adapter: type[CacheAdapter], verbs: Verbs, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        verbs(Driver(adapter(REQUEST_CONFIG), REQUEST_CONFIG))


class EvictsFirst(BlockCacheAdapter):
    """`admit` and `extend` evict a block before they find that a request does not fit."""

    def admit(self, key: Key) -> Admission | None:
        admission = super().admit(key)
        if admission is None:
            self.cache.evict(1)
        return admission

    def extend(self, request: BlockRequest, tokens: Tokens) -> Slots | None:
        table = super().extend(request, tokens)
        if table is None:
            self.cache.evict(1)
        return table


class EvictsFirstByDesign(EvictsFirst):
    """The same, declared."""

    departures = frozenset({"EVICT-13"})


def ask_for_too_much(driver: Driver) -> None:
    """Cache a prompt, run another, and ask for one as long as the cache; then ask for the first again."""
    first, last = driver.key(driver.prompt([1, 2])), driver.key(driver.prompt([9]))
    longest = driver.key([5] * driver.config.capacity_tokens[FULL])
    for key in (first, last):
        admission = driver.admit(key)
        assert admission, "a small request fits"
        if key is first:
            driver.finish(admission.request)
    assert driver.admit(longest) is None, "it does not fit beside the other"
    driver.lookup(first)


def extend_by_too_much(driver: Driver) -> None:
    """Cache a prompt, run another, and extend it by as much as the cache has; then ask for the first again."""
    first, last = driver.key(driver.prompt([1, 2])), driver.key(driver.prompt([9]))
    admissions = [driver.admit(key) for key in (first, last)]
    assert all(admissions), "both fit"
    requests = [admission.request for admission in admissions if admission]
    driver.finish(requests[0])
    assert driver.extend(requests[1], [5] * driver.config.capacity_tokens[FULL]) is None, "it does not fit"
    driver.lookup(first)


@pytest.mark.parametrize("config", BLOCKS, ids=lambda config: config.name)
@pytest.mark.parametrize("ask", [ask_for_too_much, extend_by_too_much])
def test_a_request_that_is_not_admitted_evicts_only_where_that_is_declared(
    ask: Callable[[Driver], None], config: CacheConfig
) -> None:
    ask(Driver(EvictsFirstByDesign(config), config))
    with pytest.raises(AssertionError, match=r"EVICT-13: block .* to stay"):
        ask(Driver(EvictsFirst(config), config))


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

    def layer_ready(self, ticket: Ticket, pool: str, layer: int) -> bool:
        return True


class NothingIsReady(HostedCache):
    """No layer is ever reported as readable."""

    def layer_ready(self, ticket: Ticket, pool: str, layer: int) -> bool:
        return False


class OneLayerIsReady(HostedCache):
    """Only the first layer is ever reported as readable."""

    def layer_ready(self, ticket: Ticket, pool: str, layer: int) -> bool:
        return not layer and super().layer_ready(ticket, pool, layer)


class ReadyForAWhile(HostedCache):
    """A readable layer becomes unreadable when the load has ended."""

    def layer_ready(self, ticket: Ticket, pool: str, layer: int) -> bool:
        return super().layer_ready(ticket, pool, layer) and not ticket.phase.has_ended


class LeaksItsTarget(HostedCache):
    """The host pages of a failed backup leak."""

    def _take_backup(self, part: Part, has_arrived: bool) -> None:
        super()._take_backup(part, has_arrived)
        self.free_host = [page for page in self.free_host if page != part.host]


class KeepsPins(HostedCache):
    """The pins of a backup are never released."""

    def _pin(self, prefixes: Iterable[Prefix], by: int) -> None:
        super()._pin(prefixes, max(by, 0))


class EvictsSources(HostedCache):
    """`evict_host` evicts pinned data, too."""

    def evict_host(self, component: str, tokens: int) -> EvictResult:
        for entry in self.entries.values():
            entry.host_locks = entry.host_pins = 0
        return super().evict_host(component, tokens)


class EvictsNothingFromHost(HostedCache):
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

    def load_back(self, handle: Prefix, *, quota: int | None) -> LoadBack | None:
        load = super().load_back(handle, quota=quota)
        return load and LoadBack(load.indices[: -self.page_size], load.ticket)


class LoadsTheSameTwice(HostedCache):
    """`load_back` uses the same slots for each page."""

    def load_back(self, handle: Prefix, *, quota: int | None) -> LoadBack | None:
        load = super().load_back(handle, quota=quota)
        return load and LoadBack(self._slots([load.ticket.parts[0].device] * len(load.ticket.parts)), load.ticket)


class RefusesAndLoads(HostedCache):
    """`load_back` reports a refusal, but starts the load."""

    def load_back(self, handle: Prefix, *, quota: int | None) -> LoadBack | None:
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


class EndsTwice(HostedCache):
    """`load_phase` reports a load that was done as failed when it is asked again."""

    def load_phase(self, ticket: Ticket) -> TransferPhase:
        phase = ticket.phase
        if phase is TransferPhase.DONE:
            ticket.phase = TransferPhase.FAILED
        return phase


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


HOST_CONFIG = tiny_config(FULL, page_size=2, pages=6, write_policy=WritePolicy.WRITE_THROUGH)


def back_up(driver: Driver) -> Key:
    key = driver.key(driver.prompt([1, 2]))
    driver.put(key)
    driver.step()
    driver.complete(driver.pending()[0].ticket)
    driver.step()
    return key


def begin_load(driver: Driver) -> Handle:
    key = back_up(driver)
    driver.evict(FULL, 4)
    load = driver.load_back(key, driver.match(key))
    assert load, "HOST-5: there is room for a load"
    driver.step()
    return load.ticket


def load_step_by_step(driver: Driver) -> None:
    ticket = begin_load(driver)
    driver.read_ready_layers(ticket)
    for _ in range(2):
        driver.advance(driver.pending()[0].ticket)
        driver.read_ready_layers(ticket)
    driver.step()
    driver.read_ready_layers(ticket)
    driver.claim(ticket)


def load_once(driver: Driver) -> None:
    key = back_up(driver)
    driver.evict(FULL, 4)
    driver.load(key)


def fail_a_backup(driver: Driver) -> None:
    driver.put(driver.key(driver.prompt([1, 2])))
    driver.step()
    driver.fail(driver.pending()[0].ticket, parts_done=1)
    driver.step()


def evict_under_a_load(driver: Driver) -> None:
    begin_load(driver)
    driver.evict_host(FULL, 4)


def evict_all(driver: Driver) -> None:
    back_up(driver)
    driver.evict_host(FULL, 4)


def lock_twice(driver: Driver) -> None:
    node = driver.match(back_up(driver)).best_match
    first, _ = driver.lock_host(node), driver.lock_host(node)
    driver.unlock_host(first)


def unlock_host_twice(driver: Driver) -> None:
    back_up(driver)
    driver.unlock_host(None)


def refuse(driver: Driver) -> None:
    key = back_up(driver)
    driver.evict(FULL, 4)
    driver.load_back(key, driver.match(key))


def drain(driver: Driver) -> None:
    driver.put(driver.key(driver.prompt([1, 2])))
    driver.drain()


def reset_in_flight(driver: Driver) -> None:
    driver.put(driver.key(driver.prompt([1, 2])))
    driver.reset()


HOST_DEFECTS: list[tuple[type[CacheAdapter], Verbs, str]] = [
    (CopiesOneLayer, back_up, "REQ-3: node of elements 0..2 .* on the host, .* pool kv, layer 1"),
    (ShowsTooSoon, load_step_by_step, "FLOW-2: advance: expected residency unchanged"),
    (GoesOnPending, back_up, "FLOW-4: complete: expected a backup that has ended"),
    (SkipsALayer, load_step_by_step, "FLOW-2: advance of a load: expected 1 of 2 units done, got 0 of 2"),
    (
        AllIsReady,
        load_step_by_step,
        "HOST-6: a layer that is ready while the load is .*position 0 of a hit, pool kv, layer 0",
    ),
    (NothingIsReady, load_step_by_step, r"HOST-9: layers of kv after a load: expected \[0, 1\], got \[\]"),
    (OneLayerIsReady, load_step_by_step, r"HOST-9: layers of kv after a load: expected \[0, 1\], got \[0\]"),
    (ReadyForAWhile, load_step_by_step, r"HOST-6: readable layers of kv: .*at least \[0, 1\] as before, got \[\]"),
    (LeaksItsTarget, fail_a_backup, "POOL-1: host pool of full: expected 12 slots with an owner"),
    (KeepsPins, back_up, "FLOW-7: .*no pins of full while nothing is in flight"),
    (EvictsSources, evict_under_a_load, "FLOW-1: source of transfer 0, load, full slot"),
    (EvictsNothingFromHost, evict_all, r"EVICT-8: .*more freed, as nodes \[1\] can still be evicted"),
    (EvictsInSecret, evict_all, "EVICT-1: .*freed counts equal to the growth of the host pools, {'full': 4}"),
    (MiscountsTheHost, drain, "LOCK-4: host size counters of full"),
    (UnlocksNothing, lock_twice, "LOCK-2: full slot 4 on the host: expected a lock count of 1, .*got 2$"),
    (UnlocksOthers, lock_twice, "LOCK-2: full slot 4 on the host: expected a lock count of 1, .*got 0$"),
    (UnlocksNothing, unlock_host_twice, "LOCK-6: unlock_host: expected an error"),
    (PromisesMore, load_once, "MATCH-12: match: expected whole pages past the anchor"),
    (CountsNothing, load_once, "MATCH-12: match: expected whole pages past the anchor, at most 0"),
    (LoadsLess, load_once, "FLOW-10: load_back of 4 elements: .*4 on the host alone, got 2"),
    (LoadsTheSameTwice, load_once, "HOST-4: load_back of 4 elements: expected distinct slots"),
    (RefusesAndLoads, refuse, "HOST-5: a refused load: expected 0 loads in flight, got 2"),
    (ClaimsLess, load_once, "FLOW-10: claim: expected 4 slots, got 2"),
    (ClaimsNothing, load_once, "FLOW-4: claim of a load that is done: expected slots"),
    (LosesLoads, load_once, "FLOW-10: claim without an injected failure: expected 4 slots"),
    (RunsAgain, load_step_by_step, "FLOW-4: a load that was running: expected a later phase"),
    (EndsTwice, load_step_by_step, "FLOW-4: a load that was done: expected a later phase, and one end, got failed"),
    (WaitsForNothing, drain, "FLOW-4: drain: expected nothing in flight"),
    (ResetsTheTreeAlone, reset_in_flight, "EVICT-9: reset: expected nothing cached and nothing in flight"),
]


HOST_NAMES = [f"{adapter.__name__}-{verbs.__name__}" for adapter, verbs, _ in HOST_DEFECTS]


@pytest.mark.parametrize(("adapter", "verbs", "message"), HOST_DEFECTS, ids=HOST_NAMES)
def test_a_defect_of_the_host_tier_is_found(adapter: type[CacheAdapter], verbs: Verbs, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        verbs(Driver(adapter(HOST_CONFIG), HOST_CONFIG))


HOST_VERBS = dict.fromkeys(verbs for _, verbs, _ in HOST_DEFECTS if verbs is not unlock_host_twice)


@pytest.mark.parametrize("verbs", HOST_VERBS)
def test_a_cache_without_a_defect_passes(verbs: Verbs) -> None:
    verbs(Driver(HostedCache(HOST_CONFIG), HOST_CONFIG))


class MarksAll(ReferenceAdapter):
    """`snapshot` reports each node as stored, though nothing was written."""

    def snapshot(self) -> Snapshot:
        taken = super().snapshot()
        assert taken.storage is not None, "the configuration has storage"
        every = tuple(frozenset(node.slots) for node in taken.nodes)
        return replace(taken, storage=replace(taken.storage, persisted=every))


@pytest.mark.parametrize("runs", [False, True], ids=["idle", "beside-a-request"])
def test_a_page_that_is_marked_and_not_stored_is_found(runs: bool) -> None:
    names = quick_configurations(ReferenceAdapter.capabilities)
    config = next(one for one in names if one.storage is not None and one.storage.executor is ExecutorKind.STEPPED)
    driver = Driver(MarksAll(config), config)
    driver.check_every = 0
    driver.put(driver.key(driver.prompt([1, 2])))
    if runs:
        driver.admit(driver.key(driver.prompt([3])))
    with pytest.raises(AssertionError, match=r"FETCH-9: node 0 .*objects of kv in storage"):
        driver.check()
