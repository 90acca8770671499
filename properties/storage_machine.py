"""StorageMachine: three tiers: what storage gives and takes, whatever it loses, and whoever comes or goes meanwhile."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hypothesis import strategies as st
from hypothesis.stateful import rule

from hicache.config import CacheConfig, ExecutorKind, WritePolicy
from hicache.testing.snapshot import Snapshot
from hicache.testing.storage.scripted import store_of
from hicache.testing.storage.store import Faults
from hicache.types import Key, StopPolicy, Tier

from .event_replay import EventReplay
from .host_machine import HostMachine
from .prefetched import Prefetched, Shelf
from .prompt_machine import FULL
from .situation import Situation
from .storage_choices import ANSWER, ENDING, MOVES, PRESSED, Answer, Operation, Trouble
from .ticket_book import TicketBook
from .tier_machine import PLACE, pick
from .tiny import with_storage


class StorageMachine(HostMachine):
    """Prefetches, faults, operators and restarts beside all that a scheduler does over two tiers."""

    def __init__(self) -> None:
        super().__init__()
        self.prefetches: list[Prefetched] = []
        self.ending: list[Prefetched] = []
        self.is_attached = True

    def caches(self) -> st.SearchStrategy[CacheConfig]:
        return with_storage(super().caches().map(_without_selection), self.executor)

    def opened(self, data: st.DataObject) -> None:
        store = store_of(self.config)
        assert store is not None, "this machine sees what storage has"
        assert self.config.storage is not None, "this machine opens caches of three tiers"
        self.store, self.storage = store, self.config.storage
        self.shelf = Shelf(self.driver, self.store)
        super().opened(data)
        self.drain()
        self._evict_host(FULL, self.slots_of(FULL, data.draw(st.sampled_from([12, 12, 1, 0]), label="and the host")))

    @rule(answer=ANSWER, place=PLACE)
    def answer(self, answer: Answer, place: int) -> None:
        """Storage answers, or somebody does not wait for that."""
        if answer is Answer.TIME:
            self.driver.advance_clock(0.75)
        elif answer is Answer.CHECK:
            self._look(place)
        elif answer is Answer.ABORT:
            self._abort(place)
        elif answer is Answer.COMPUTE and (one := pick(self.prefetches, place)):
            self._put(one.key, 0, with_state=True)
        elif self.executor is ExecutorKind.STEPPED and (asked := pick(self.driver.pending_storage(), place)):
            move = self.driver.advance_storage if answer is Answer.ADVANCE else self.driver.complete_storage
            move(asked.ticket)

    @rule(place=PLACE, pages=st.integers(1, 6), pressed=PRESSED, moves=MOVES, then=ENDING)
    def prefetch(self, place: int, pages: int, pressed: bool, moves: int, then: Answer) -> None:
        """Somebody comes for whom something may be fetched that the host lost just now. It goes on for a while."""
        if pressed:
            self._press(place)
        if self._begin(self._fetchable(place, pages)) is not None:
            for move in range(moves):
                self.step() if move % 2 == 0 else self.answer(Answer.COMPLETE, -1)
            self.answer(then, -1)

    @rule(place=PLACE, pages=st.integers(1, 6), pressed=PRESSED, lost=st.lists(st.integers(0, 5), max_size=2))
    def fetch(self, place: int, pages: int, pressed: bool, lost: list[int]) -> None:
        """With nothing else under way, all that storage has of a prompt comes, and no more. Some was lost unseen."""
        self.store.faults = Faults()
        self.drain()
        for one in list(self.prefetches):
            self._end(one)
        if pressed:
            self._press(place)
        key = self._fetchable(place, pages)
        for page in lost:
            self._lose(key, page)
        fetch = self._begin(key)
        if fetch is None:
            return
        expected, is_sure = self.shelf.expected_pages(key, fetch.before), self._is_sure(fetch)
        seeming = self.shelf.seeming_pages(key, fetch.before)
        # What came before the rest was found to be lost may be kept, also where it is less than would be asked for.
        is_sure &= expected * self.config.page_size >= self.storage.extra.prefetch_threshold
        self.drain()
        tokens = self._end(fetch)
        gained = tokens // self.config.page_size
        reason = f"{expected} pages of {fetch} are in storage, {gained} came"
        assert gained == expected or (not is_sure and gained < expected), f"FETCH-4: {reason}"
        if 0 < gained < seeming:
            self.reached(Situation.FETCH_RETRIED)

    @rule(trouble=st.sampled_from(Trouble), place=PLACE, page=st.integers(0, 5))
    def trouble(self, trouble: Trouble, place: int, page: int) -> None:
        """Something goes wrong in storage, from now on or at once."""
        key = self.shelf.object_of(self._fetchable(place, 6), page)
        if trouble is Trouble.NOTHING:
            self.store.faults = Faults()
        elif trouble is Trouble.READS:
            self.store.faults.failing_gets = 1 + page % 2
        elif trouble is Trouble.WRITES:
            self.store.faults.failing_sets = 1 + page % 2
        elif trouble is Trouble.RAISING:
            self.store.faults.raising = {["exists", "get", "set"][page % 3]}
        elif key is not None and trouble is Trouble.GONE:
            self.store.objects.pop(key, None)
        elif key is not None:
            self.store.corrupt([key], "absent" if trouble is Trouble.LOST else "corrupt")

    @rule(operation=st.sampled_from(Operation), calm=st.booleans())
    def operate(self, operation: Operation, calm: bool) -> None:
        """An operator is refused while anything is under way; a restart asks nobody."""
        if operation is Operation.RESTART:
            self._restart()
            return
        if calm:
            self.drain()
        is_busy = bool(self._view(self.driver.snapshot()))
        wanted = self.is_attached is not (operation is Operation.ATTACH)
        verbs = {Operation.DETACH: self.driver.detach_storage, Operation.ATTACH: self.driver.attach_storage}
        is_done = verbs.get(operation, self.driver.clear_storage)()
        assert not is_done or (wanted and not is_busy), f"FLOW-12: {operation.value}: attached {self.is_attached}"
        assert is_done or not (calm and wanted), f"FLOW-12: nothing is under way, and refused was: {operation.value}"
        self.is_attached = (self.is_attached or is_done) and not (is_done and operation is Operation.DETACH)
        self.reached(Situation.OPERATOR if is_done else Situation.OPERATOR_REFUSED)
        self.sync()

    # For those who inherit, and those who are inherited from.

    def begin_life(self) -> None:
        super().begin_life()
        if self.prefetches:
            self.reached(Situation.FETCH_RESET)
        for one in list(self.prefetches):
            self._forget(one)

    def sync(self) -> None:
        for one in [*self.prefetches, *self.ending]:
            self.model.announce(one.key, self.shelf.written(one.key))
        self.ending = []
        super().sync()
        if self._view(self.driver.snapshot()) > len(self.prefetches):
            self.reached(Situation.FETCH_LINGERS)
        if self.store.has_refused:
            self.reached(Situation.PERSIST_FAILED)

    def evicted(self, component: str, tokens: int, before: Snapshot, after: Snapshot) -> None:
        """What came from storage was used when it came, which nothing outside tells."""

    def evicted_from_host(self, component: str, tokens: int, before: Snapshot, after: Snapshot) -> None:
        """The same."""

    def give_back(self) -> None:
        for one in self.prefetches[::2]:
            self.driver.abort_prefetch(one.ticket)
            self._forget(one)
        self.sync()
        self.drain()
        for one in list(self.prefetches):
            self._end(one)
        super().give_back()

    # Inside.

    def _evict_all(self) -> None:
        """What leaves the device goes to storage, and stays on the host until it is there."""
        self.driver.evict(FULL, self.config.capacity_tokens[FULL])
        self.drain()
        self.driver.evict_host(FULL, self.host.capacity_tokens[FULL])
        self.sync()

    def _begin(self, key: Key) -> Prefetched | None:
        """FETCH-1: whether a prefetch is granted, where that can be told."""
        page = self.config.page_size
        before = self.model.expected_match(key).best // page
        wanted = self.driver.aligned(key) // page - before
        is_enough = wanted > 0 and wanted * page >= self.storage.extra.prefetch_threshold
        ticket = self.driver.prefetch(key)
        self.sync()
        may_begin = is_enough and self.is_attached and wanted * page <= self.storage.limit_tokens
        assert ticket is None or may_begin, f"FETCH-1: {wanted} pages are lacking, {self.storage}: granted"
        self.reached(Situation.FETCH_REFUSED if ticket is None else Situation.FETCH)
        is_free = not self.prefetches and (before == 0 or self.host.write_policy is WritePolicy.WRITE_BACK)
        assert ticket is not None or not (may_begin and is_free), f"FETCH-1: {wanted} pages are lacking: refused"
        if ticket is None:
            return None
        self.prefetches.append(Prefetched(ticket, key, before, wanted))
        return self.prefetches[-1]

    def _fetchable(self, place: int, pages: int) -> Key:
        """A prompt that came before of which storage has more than the tree, if there is one."""
        page = self.config.page_size
        keys = [self.earlier(other, pages) for other in range(len(self.prompts))]
        keys = [key for key in keys if self.shelf.expected_pages(key, self.model.expected_match(key).best // page)]
        return pick(keys, place) or self.earlier(place, pages)

    def _lose(self, key: Key, page: int) -> None:
        name = self.shelf.object_of(key, page)
        if name is not None:
            self.store.corrupt([name])

    def _look(self, place: int) -> None:
        one = pick(self.prefetches, place)
        if one is None:
            return
        before = self.driver.snapshot()
        if self.driver.check_prefetch(one.ticket) is None:
            assert self.storage.stop_policy is not StopPolicy.BEST_EFFORT, "FETCH-3: best_effort does not wait"
        else:
            if self._view(before) or self._view(self.driver.snapshot()):
                self.reached(Situation.FETCH_CUT)
            self._forget(one)
        self.sync()

    def _abort(self, place: int) -> None:
        one = pick(self.prefetches, place)
        if one is not None:
            before = self.driver.snapshot()
            self.driver.abort_prefetch(one.ticket)
            if self._view(before):
                self.reached(Situation.FETCH_ABORTED)
            self._forget(one)
            self.ending.remove(one)
            self.sync()

    def _end(self, one: Prefetched) -> int:
        """Nothing is under way any more: a prefetch has ended, and says what it brought."""
        tokens = self.driver.check_prefetch(one.ticket)
        assert tokens is not None, f"FETCH-3: everything was drained, and {one} is waited for"
        self._forget(one)
        self.sync()
        if tokens:
            self.reached(Situation.FETCH_BROUGHT)
        if self.model.expected_match(one.key).anchor // self.config.page_size > one.before:
            self.reached(Situation.FETCH_BESIDE)
        return tokens

    def _forget(self, one: Prefetched) -> None:
        """Its ticket is worth nothing any more."""
        self.prefetches.remove(one)
        self.ending.append(one)
        self.outdated += [
            partial(verb, one.ticket) for verb in (self.adapter.check_prefetch, self.adapter.abort_prefetch)
        ]

    def _press(self, place: int) -> None:
        """A prompt is used once more, and then both tiers lose all that they can."""
        self._put(self.earlier(place, 6), 0, with_state=True)
        self.drain()
        self.evict(Tier.DEVICE, FULL, 8, 0)
        self.drain()
        self.evict(Tier.HOST, FULL, 12, 0)

    def _is_sure(self, fetch: Prefetched) -> bool:
        """Whether all that storage has must come: there is room, and it is not asked more often than it may be."""
        host = self.driver.snapshot().host
        assert host is not None, "a machine of three tiers sees the host"
        needed = self.shelf.needed_pages(fetch.wanted)
        has_room = all(len(host.pools[c].free) >= self.slots_of(c, pages) for c, pages in needed.items())
        return has_room and self.shelf.unreadable(fetch.key) <= 3

    def _restart(self) -> None:
        if self.prefetches:
            self.reached(Situation.FETCH_RESET)
        self.driver.restart()
        self.adapter = self.driver.adapter
        self.readers, self.host_receipts, self.tickets, self.held = [], [], TicketBook(), []
        self.outdated, self.prefetches, self.ending = [], [], []
        self.events, self.is_attached = EventReplay(self.config.page_size), True
        self.begin_life()
        self.sync()

    def _view(self, snapshot: Snapshot) -> int:
        """How many prefetches hold host slots."""
        assert snapshot.storage is not None, "a machine of three tiers sees storage"
        return len(snapshot.storage.fetches)


def _without_selection(config: CacheConfig) -> CacheConfig:
    """What came from storage was never hit, so that what selection promises says nothing of it."""
    assert config.host is not None, "a cache of three tiers has a host"
    if config.host.write_policy is not WritePolicy.WRITE_THROUGH_SELECTIVE:
        return config
    return replace(config, host=replace(config.host, write_policy=WritePolicy.WRITE_THROUGH))
