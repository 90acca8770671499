"""StorageMachine: three tiers, with prefetches, storing, faults in storage, calls of an operator, and restarts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from os.path import commonprefix
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import rule

from hicache.config import CacheConfig, ExecutorKind, WritePolicy
from hicache.testing.driving.driver import Driver
from hicache.testing.driving.patterns import element_bytes, elements_of
from hicache.testing.driving.pools import component_of
from hicache.testing.snapshot import Snapshot
from hicache.testing.storage.scripted import Faults, Store, store_of
from hicache.testing.stored import restorable_pages
from hicache.types import COMPONENT_POOL, Component, Handle, Key, StopPolicy, StorageKind, Tier

from .host_machine import FIRST_PAGES, HostMachine
from .loads import LoadTickets
from .situation import Situation
from .small_caches import with_storage
from .tier_machine import PLACE, EventReplay, pick

FULL = Component.FULL.value


class Answer(str, Enum):
    """What happens to a storage job, or to a prefetch that a request waits for."""

    ADVANCE = "a job does one batch"
    COMPLETE = "a job completes"
    CHECK = "a waiting request checks its prefetch"
    ABORT = "a waiting request aborts its prefetch"
    TIME = "the clock advances"
    COMPUTE = "another request computes the pages of a prefetch"


ANSWER = st.sampled_from(Answer)

ENDING = st.sampled_from([Answer.CHECK, Answer.CHECK, Answer.ABORT, Answer.COMPUTE, Answer.TIME])

MOVES = st.sampled_from([0, 1, 3, 3, 3, 5])
"""Alternating steps of the cache and answers of storage. After three of them storage is asked for pages."""

PRESSURE = st.sampled_from([True, True, False])
"""Whether both tiers are evicted first. Without that there is little to prefetch."""


class StorageFault(str, Enum):
    """A fault in storage."""

    LOST = "an object cannot be read, and storage still says it has it"
    DAMAGED = "an object is corrupt, and storage still says it has it"
    GONE = "an object is removed"
    READS = "the next pages cannot be read"
    WRITES = "the next pages are not stored"
    RAISING = "a verb raises"
    NOTHING = "all faults end"


class OperatorAction(str, Enum):
    """A call of an operator."""

    DETACH = "detach"
    ATTACH = "attach"
    CLEAR = "clear"
    RESTART = "restart"


class StorageMachine(HostMachine):
    """The verbs over two tiers, prefetches, answers and faults of storage, calls of an operator, and restarts.

    `storage_executor`: how requests to storage run. With threads storage answers when it likes.
    """

    storage_executor: ClassVar[ExecutorKind]

    def __init__(self) -> None:
        super().__init__()
        self.prefetches: list[GrantedPrefetch] = []
        self.ended: list[GrantedPrefetch] = []
        self.is_attached = True

    def caches(self) -> st.SearchStrategy[CacheConfig]:
        return with_storage(super().caches().map(_without_selection), self.storage_executor)

    def opened(self, data: st.DataObject) -> None:
        store = store_of(self.config)
        assert store is not None, "this machine needs a scripted store"
        assert self.config.storage is not None, "this machine opens caches of three tiers"
        self.store, self.storage = store, self.config.storage
        self.stored = StoredObjects(self.driver, self.store)
        super().opened(data)
        self.drain()
        self._evict_host(
            FULL, self.slots_of(FULL, data.draw(st.sampled_from([12, 12, 1, 0]), label="host pages evicted since"))
        )

    # Rules, beside those of HostMachine.

    # Not a rule of this machine.
    put_unmatched = None  # type: ignore[assignment]

    @rule(answer=ANSWER, place=PLACE)
    def answer(self, answer: Answer, place: int) -> None:
        """A storage job moves, or something happens to a prefetch that a request waits for."""
        if answer is Answer.TIME:
            self.driver.advance_clock(0.75)
        elif answer is Answer.CHECK:
            self._check(place)
        elif answer is Answer.ABORT:
            self._abort(place)
        elif answer is Answer.COMPUTE and (one := pick(self.prefetches, place)):
            self._put(one.key, 0, with_state=True, priority=0)
        elif self._answers_when_asked and (asked := pick(self.driver.pending(*StorageKind), place)):
            move = self.driver.advance if answer is Answer.ADVANCE else self.driver.complete
            move(asked.ticket)

    @rule(place=PLACE, pages=FIRST_PAGES, pressure=PRESSURE, moves=MOVES, then=ENDING)
    def prefetch(self, place: int, pages: int, pressure: bool, moves: int, then: Answer) -> None:
        """Start a prefetch, and move it by some steps and answers. `pressure`: both tiers evict first."""
        if pressure:
            self._use_and_evict(place)
        if self._begin(self._fetchable(place, pages)) is not None:
            for move in range(moves):
                self.step() if move % 2 == 0 else self.answer(Answer.COMPLETE, -1)
            self.answer(then, -1)

    @rule(place=PLACE, pages=FIRST_PAGES, pressure=PRESSURE, lost=st.lists(st.integers(0, 5), max_size=2))
    def fetch(self, place: int, pages: int, pressure: bool, lost: list[int]) -> None:
        """With nothing else under way a prefetch brings the stored prefix of a prompt. `lost`: objects lost before."""
        self.store.faults = Faults()
        self.drain()
        for one in list(self.prefetches):
            self._end(one)
        if pressure:
            self._use_and_evict(place)
        key = self._fetchable(place, pages)
        for page in lost:
            self._damage(key, page)
        fetch = self._begin(key)
        if fetch is None:
            return
        expected, is_sure = self.stored.expected_pages(key, fetch.before), self._is_sure(fetch)
        # Whether KV that the host has without its window or state is read again is not asked here: FETCH-11 is.
        most = self.stored.expected_pages(key, fetch.before, self._pages_on_host(key))
        seeming = self.stored.pages_said_to_exist(key, fetch.before)
        # A prefetch keeps the pages that came before an unreadable one, even if they are below the threshold.
        is_sure &= expected * self.config.page_size >= self.storage.extra.prefetch_threshold
        self.drain()
        tokens = self._end(fetch)
        gained = tokens // self.config.page_size
        reason = f"expected {expected} to {most} pages of {fetch}, which are in storage, got {gained}"
        assert (expected if is_sure else 0) <= gained <= most, f"FETCH-4: {reason}"
        if 0 < gained < seeming:
            self.record(Situation.PREFETCH_RETRIED)

    def _pages_on_host(self, key: Key) -> int:
        """The pages from the key's start whose KV the host has."""
        snapshot, size = self.driver.snapshot(), element_bytes(self.config.bigram)
        assert snapshot.host is not None, "a cache of three tiers has a host"
        elements, end = elements_of(key, self.config.bigram), 0
        for row, node in enumerate(snapshot.nodes):
            if node.namespace == key.namespace and snapshot.host.nodes[row].slots[Component.FULL] is not None:
                shared = len(commonprefix([elements, snapshot.prefix(row)])) // size  # noqa: RUF071 - of bytes
                end = shared if node.start <= end < shared else end
        return end // self.config.page_size

    @rule(trouble=st.sampled_from(StorageFault), place=PLACE, page=st.integers(0, 5))
    def trouble(self, trouble: StorageFault, place: int, page: int) -> None:
        """A fault happens in storage, or all faults end."""
        key = self.stored.object_of(self._fetchable(place, 6), page)
        if trouble is StorageFault.NOTHING:
            self.store.faults = Faults()
        elif trouble is StorageFault.READS:
            self.store.faults.failing_gets = 1 + page % 2
        elif trouble is StorageFault.WRITES:
            self.store.faults.failing_sets = 1 + page % 2
        elif trouble is StorageFault.RAISING:
            self.store.faults.raising = {["exists", "get", "set"][page % 3]}
        elif key is not None and trouble is StorageFault.GONE:
            self.store.objects.pop(key, None)
        elif key is not None:
            self.store.corrupt([key], "absent" if trouble is StorageFault.LOST else "corrupt")

    @rule(operation=st.sampled_from(OperatorAction), calm=st.booleans())
    def operate(self, operation: OperatorAction, calm: bool) -> None:
        """FLOW-12: an operator's call is refused while a transfer is under way. A restart always succeeds."""
        if operation is OperatorAction.RESTART:
            self._restart()
            return
        if calm:
            self.drain()
        is_busy = bool(self._open_prefetches(self.driver.snapshot()))
        wanted = self.is_attached is not (operation is OperatorAction.ATTACH)
        verbs = {OperatorAction.DETACH: self.driver.detach_storage, OperatorAction.ATTACH: self.driver.attach_storage}
        is_done = verbs.get(operation, self.driver.clear_storage)()
        assert not is_done or (wanted and not is_busy), (
            f"FLOW-12: expected {operation.value} to be refused, attached: {self.is_attached}, busy: {is_busy}"
        )
        assert is_done or not (calm and wanted), f"FLOW-12: nothing is under way: expected success of {operation.value}"
        self.is_attached = (self.is_attached or is_done) and not (is_done and operation is OperatorAction.DETACH)
        self.record(Situation.OPERATOR if is_done else Situation.OPERATOR_REFUSED)
        self.sync()

    # Overridden hooks.

    def begin_epoch(self) -> None:
        super().begin_epoch()
        if self.prefetches:
            self.record(Situation.PREFETCH_RESET)
        for one in list(self.prefetches):
            self._forget(one)

    def sync(self) -> None:
        for one in [*self.prefetches, *self.ended]:
            self.model.announce(one.key, self.stored.written(one.key))
        self.ended = []
        super().sync()

    def observe(self, snapshot: Snapshot) -> None:
        super().observe(snapshot)
        if self._open_prefetches(snapshot) > len(self.prefetches):
            self.record(Situation.PREFETCH_STILL_WRITING)
        if self.store.has_refused:
            self.record(Situation.STORE_FAILED)

    def evicted(self, component: str, tokens: int, before: Snapshot, after: Snapshot) -> None:
        """Not compared: the time at which prefetched nodes count as used cannot be seen from outside."""

    def evicted_from_host(self, component: str, tokens: int, before: Snapshot, after: Snapshot) -> None:
        """Not compared, for the same reason."""

    def give_back(self) -> None:
        for one in self.prefetches[::2]:
            self.driver.abort_prefetch(one.ticket)
            self._forget(one)
        self.sync()
        self.drain()
        for one in list(self.prefetches):
            self._end(one)
        super().give_back()

    # Internal.

    @property
    def _answers_when_asked(self) -> bool:
        """Whether the machine decides when storage answers."""
        return self.storage_executor is ExecutorKind.STEPPED

    def _evict_all(self) -> None:
        """Evict both tiers. What leaves the device is stored, and stays on the host until then."""
        self.driver.evict(FULL, self.config.capacity_tokens[FULL])
        self.drain()
        self.driver.evict_host(FULL, self.host.capacity_tokens[FULL])
        self.sync()

    def _begin(self, key: Key) -> GrantedPrefetch | None:
        """Start a prefetch. FETCH-1: whether it is granted, where the oracle knows."""
        page = self.config.page_size
        before = self.model.expected_match(key).best // page
        wanted = self.driver.aligned(key) // page - before
        is_enough = wanted > 0 and wanted * page >= self.storage.extra.prefetch_threshold
        ticket = self.driver.prefetch(key)
        self.sync()
        may_begin = is_enough and self.is_attached and wanted * page <= self.storage.limit_tokens
        assert ticket is None or may_begin, (
            f"FETCH-1: {wanted} pages are lacking, {self.storage}: expected a refusal, but it was granted"
        )
        self.record(Situation.PREFETCH_REFUSED if ticket is None else Situation.PREFETCH)
        is_free = not self.prefetches and (before == 0 or self.host.write_policy is WritePolicy.WRITE_BACK)
        assert ticket is not None or not (may_begin and is_free), f"FETCH-1: {wanted} pages lacking: expected a ticket"
        if ticket is None:
            return None
        self.prefetches.append(GrantedPrefetch(ticket, key, before, wanted))
        return self.prefetches[-1]

    def _fetchable(self, place: int, pages: int) -> Key:
        """An earlier prompt of which storage has more than the tree, if there is one."""
        page = self.config.page_size
        keys = [self.earlier(other, pages) for other in range(len(self.prompts))]
        keys = [key for key in keys if self.stored.expected_pages(key, self.model.expected_match(key).best // page)]
        return pick(keys, place) or self.earlier(place, pages)

    def _damage(self, key: Key, page: int) -> None:
        name = self.stored.object_of(key, page)
        if name is not None:
            self.store.corrupt([name])

    def _check(self, place: int) -> None:
        one = pick(self.prefetches, place)
        if one is None:
            return
        before = self.driver.snapshot()
        if self.driver.check_prefetch(one.ticket) is None:
            assert self.storage.stop_policy is not StopPolicy.BEST_EFFORT, "FETCH-3: best_effort: got None"
        else:
            if self._open_prefetches(before) or self._open_prefetches(self.driver.snapshot()):
                self.record(Situation.PREFETCH_CUT)
            self._forget(one)
        self.sync()

    def _abort(self, place: int) -> None:
        one = pick(self.prefetches, place)
        if one is not None:
            before = self.driver.snapshot()
            self.driver.abort_prefetch(one.ticket)
            if self._open_prefetches(before):
                self.record(Situation.PREFETCH_ABORTED)
            self._forget(one)
            self.ended.remove(one)
            self.sync()

    def _end(self, one: GrantedPrefetch) -> int:
        """Check a prefetch after a drain: it has ended, and returns the tokens that it brought."""
        tokens = self.driver.check_prefetch(one.ticket)
        assert tokens is not None, f"FETCH-3: everything was drained: expected {one} to have ended, got None"
        self._forget(one)
        self.sync()
        if tokens:
            self.record(Situation.PREFETCH_BROUGHT)
        if self.model.expected_match(one.key).anchor // self.config.page_size > one.before:
            self.record(Situation.PREFETCH_OVERTAKEN)
        return tokens

    def _forget(self, one: GrantedPrefetch) -> None:
        """The prefetch has ended: its ticket is refused from now on."""
        self.prefetches.remove(one)
        self.ended.append(one)
        self.stale += [partial(verb, one.ticket) for verb in (self.adapter.check_prefetch, self.adapter.abort_prefetch)]

    def _use_and_evict(self, place: int) -> None:
        """Insert an earlier prompt again, drain, and evict both tiers."""
        self._put(self.earlier(place, 6), 0, with_state=True, priority=0)
        self.drain()
        self.evict(Tier.DEVICE, FULL, 8, 0)
        self.drain()
        self.evict(Tier.HOST, FULL, 12, 0)

    def _is_sure(self, fetch: GrantedPrefetch) -> bool:
        """Whether a prefetch must bring all that storage can give: the host has room, and the retries suffice."""
        host = self.driver.snapshot().host
        assert host is not None, "a machine of three tiers sees the host"
        needed = self.stored.needed_pages(fetch.wanted)
        has_room = all(len(host.pools[c].free) >= self.slots_of(c, pages) for c, pages in needed.items())
        return has_room and self.stored.unreadable(fetch.key) <= 3

    def _restart(self) -> None:
        if self.prefetches:
            self.record(Situation.PREFETCH_RESET)
        self.driver.restart()
        self.adapter = self.driver.adapter
        self.readers, self.host_receipts, self.tickets, self.held = [], [], LoadTickets(), []
        self.stale, self.prefetches, self.ended = [], [], []
        self.events, self.is_attached = EventReplay(self.config.page_size), True
        self.begin_epoch()
        self.sync()

    def _open_prefetches(self, snapshot: Snapshot) -> int:
        """The number of prefetches that hold host slots."""
        assert snapshot.storage is not None, "a machine of three tiers sees storage"
        return len(snapshot.storage.fetches)


@dataclass(frozen=True, slots=True, eq=False)
class GrantedPrefetch:
    """A prefetch that was granted. `before`: pages that a match found at its start; `wanted`: the pages past them."""

    ticket: Handle
    key: Key
    before: int
    wanted: int


class StoredObjects:
    """The objects of one cache in its scripted store."""

    def __init__(self, driver: Driver, store: Store) -> None:
        self._driver = driver
        self._store = store
        config = driver.config
        self._pools = [*component_of(config)]
        self._window = -(-(config.sliding_window_size or 0) // config.page_size)

    def objects(self, key: Key) -> dict[str, list[str]]:
        """The object key of each page in each pool."""
        return {pool: self._driver.storage_keys(pool, key) for pool in self._pools}

    def object_of(self, key: Key, page: int) -> str | None:
        """The key of one object. `page`: selects the pool, and the page counted from the end. None without pages."""
        names = self.objects(key)[self._pools[page % len(self._pools)]]
        return names[-1 - page // 2 % len(names)] if names else None

    def written(self, key: Key) -> dict[str, list[bool]]:
        """By component, which pages ever had an object."""
        objects = self.objects(key)
        found = {pool: [self._store.was_written(name) for name in names] for pool, names in objects.items()}
        return {c.value: found[COMPONENT_POOL[c]] for c in Component if COMPONENT_POOL[c] in found}

    def expected_pages(self, key: Key, before: int, on_host: int = 0) -> int:
        """The number of pages past a match that can be read. `on_host`: the first pages whose KV need not."""
        present = {pool: self._store.readable(names) for pool, names in self.objects(key).items()}
        for pool, component in component_of(self._driver.config).items():
            if component == Component.FULL:
                present[pool] = [number < on_host or there for number, there in enumerate(present[pool])]
        return restorable_pages({pool: there[before:] for pool, there in present.items()}, self._window)

    def pages_said_to_exist(self, key: Key, before: int) -> int:
        """The number of pages past a match that storage says it has."""
        seeming = {pool: list(map(self._store.has, names))[before:] for pool, names in self.objects(key).items()}
        return restorable_pages(seeming, self._window)

    def needed_pages(self, pages: int) -> dict[str, int]:
        """By component, the host pages that a prefix of so many pages needs."""
        needed = {Component.FULL.value: pages, Component.SWA.value: min(pages, self._window), Component.MAMBA.value: 1}
        return {component: count for component, count in needed.items() if COMPONENT_POOL[component] in self._pools}

    def unreadable(self, key: Key) -> int:
        """The number of objects that storage says it has, and that cannot be read."""
        names = [name for names in self.objects(key).values() for name in names]
        return sum(map(self._store.has, names)) - sum(self._store.readable(names))


def _without_selection(config: CacheConfig) -> CacheConfig:
    """The same with write_through for write_through_selective, whose rule excludes prefetched nodes without hits."""
    assert config.host is not None, "a cache of three tiers has a host"
    if config.host.write_policy is not WritePolicy.WRITE_THROUGH_SELECTIVE:
        return config
    return replace(config, host=replace(config.host, write_policy=WritePolicy.WRITE_THROUGH))
