"""RankMachine: the same verbs on all ranks, while each rank has its own transfers, storage, clock and capacities."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar, TypeVar

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from hicache.config import CacheConfig, WritePolicy
from hicache.testing.adapter import Admission, CacheAdapter, Pending
from hicache.testing.ranks.driver import RankDriver, config_on
from hicache.testing.ranks.world import Mesh, Team
from hicache.testing.storage.scripted import Faults
from hicache.types import Component, Handle, StopPolicy, StorageKind, Tier

from .configurations import class_on_streams, configuration, on_streams
from .rank_actions import advance_jobs, evict_both_tiers, evict_on, own_store, require_empty
from .stored_prompt import prompt_key

T = TypeVar("T")

TIMEOUT_S = 20.0
"""The timeout of a collective. A rank that calls a different collective is named at once."""

LATE_S = 60.0
"""Longer than the timeout of any prefetch."""

ROUNDS = 6
"""Evictions of both tiers after which the cache must be empty."""

PAGE = 2
WINDOW_TOKENS = 3

PLACE = st.integers(0, 7)
"""Selects a rank, a transfer or a waiting request, modulo their number."""

PAGES = st.lists(st.integers(1, 2), min_size=1, max_size=5)
"""The pages of a prompt by number. Two numbers make shared prefixes likely."""


class Move(str, Enum):
    """What happens to a transfer or a storage job of one rank."""

    ADVANCE = "it advances"
    COMPLETE = "it completes"
    FAIL = "it fails, if it is a transfer"


class RankFault(str, Enum):
    """A fault on one rank."""

    GONE = "an object is removed"
    LOST = "an object cannot be read, and storage still says it has it"
    READS = "the next page cannot be read"
    WRITES = "the next page is not stored"
    LATE = "its clock advances past every timeout"
    NOTHING = "all faults end"


ORDER = st.integers(0, 9999)
"""The seed of the order in which the streams of a model go on."""

MOVES = st.lists(st.tuples(PLACE, PLACE, st.sampled_from([*Move, Move.COMPLETE])), min_size=1, max_size=6)


@dataclass(frozen=True, slots=True)
class RankVariant:
    """How a rank's configuration differs: `less` pages fewer, and perhaps the opposite order of its mappings."""

    less: int
    is_turned: bool

    def tokens(self, pages: Mapping[str, int]) -> dict[str, int]:
        """The capacities of this rank. `pages`: the largest number of pages of each component."""
        tokens = {name: (count - self.less) * _unit(name) for name, count in pages.items()}
        return dict(reversed(list(tokens.items()))) if self.is_turned else tokens


RANK_VARIANT = st.builds(RankVariant, less=st.sampled_from([0, 0, 1]), is_turned=st.booleans())


@st.composite
def small_caches(draw: st.DrawFn, config: CacheConfig, ranks: int) -> list[CacheConfig]:
    """A configuration for each rank; they differ in their capacities, and in the order of their mappings."""
    assert config.host is not None, f"{config.name} has a host tier"
    assert config.storage is not None, f"{config.name} has storage"
    names = config.components
    device = {name: draw(st.integers(3, 8), label=f"{name} pages") for name in names}
    below = {name: draw(st.integers(3, 10), label=f"{name} pages on the host") for name in names}
    write_policy = draw(st.sampled_from([WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_BACK]))
    stop_policy = draw(st.sampled_from([StopPolicy.TIMEOUT, StopPolicy.BEST_EFFORT, StopPolicy.WAIT_COMPLETE]))
    storage = replace(config.storage, stop_policy=stop_policy, limit_tokens=12 * PAGE)
    owns = draw(st.lists(RANK_VARIANT, min_size=ranks, max_size=ranks), label="by rank")
    return [
        replace(
            config,
            page_size=PAGE,
            sliding_window_size=WINDOW_TOKENS if Component.SWA in names else None,
            mamba_chunk_size=PAGE if Component.MAMBA in names else None,
            capacity_tokens=own.tokens(device),
            host=replace(config.host, write_policy=write_policy, capacity_tokens=own.tokens(below)),
            storage=storage,
        )
        for own in owns
    ]


def _unit(name: str) -> int:
    return 1 if name == Component.MAMBA else PAGE


class RankMachine(RuleBasedStateMachine):
    """One thread for each rank. Each driver checks its rank against the laws; `step` compares the trees of all ranks.

    `met`: the kinds of collectives in the examples of a run.
    """

    adapter_type: ClassVar[type[CacheAdapter]]
    mesh: ClassVar[Mesh]
    met: ClassVar[set[str]]

    @initialize(data=st.data())
    def open(self, data: st.DataObject) -> None:
        """Open an empty cache on each rank."""
        configs, classes = data.draw(small_caches(self.config(), self.mesh.ranks)), self.classes(data)
        note(f"configuration: {configs}")
        self.loading: list[Sequence[Handle]] = []
        self.fetching: list[tuple[Sequence[Handle], Sequence[int]]] = []
        self.team = Team(self.mesh, TIMEOUT_S)
        for config, world in zip(configs, self.team.worlds, strict=True):
            own_store(config_on(config, world)).empty()
        self.drivers = self.team.each(lambda rank: RankDriver(classes[rank], configs[rank], self.team.worlds[rank]))

    def config(self) -> CacheConfig:
        """A hook: the configuration whose capacities and policies are drawn."""
        return configuration(self.adapter_type)

    def classes(self, data: st.DataObject) -> Sequence[type[CacheAdapter]]:
        """A hook: the class of the cache of each rank."""
        return [self.adapter_type] * self.mesh.ranks

    @rule(pages=PAGES)
    def ask(self, pages: list[int]) -> None:
        """Admit a request; it finishes at once, or waits for its load."""
        admissions = self._each(lambda driver: driver.admit(prompt_key(driver, pages)))
        self._same("admit", [one and (one.cached_tokens, one.loading) for one in admissions])
        granted = [one for one in admissions if one is not None]
        if granted and granted[0].loading:
            self.loading.append([one.request for one in granted])
        elif granted:
            self._finish(granted)

    @rule(pages=PAGES, moves=MOVES)
    def prefetch(self, pages: list[int], moves: list[tuple[int, int, Move]]) -> None:
        """Start a prefetch, and let storage move, on each rank by a different amount."""
        self._fetch(pages)
        self.step()
        self.move(moves)
        self.step()
        self.move(moves)

    @rule(pages=PAGES, behind=PLACE, batches=st.integers(0, 4), late=PLACE)
    def fetch_unevenly(self, pages: list[int], behind: int, batches: int, late: int) -> None:
        """One rank has done only so many batches, another one's clock passes the timeout, and a prefetch is checked."""
        self._drop_both_tiers(pages)
        if not self._fetch(pages):
            return
        self.step()
        self._each(lambda driver: driver.let_end(StorageKind.QUERY))
        self.step()
        slow = behind % self.mesh.ranks
        self._each(lambda driver: advance_jobs(driver, batches if driver.rank == slow else sys.maxsize))
        # This check uses what the step agreed on. The next one agrees anew.
        self.look(-1)
        self.drivers[late % self.mesh.ranks].advance_clock(LATE_S)
        self.look(-1)
        self.step()

    @rule(moves=MOVES)
    def move(self, moves: list[tuple[int, int, Move]]) -> None:
        """Transfers and storage jobs move, on each rank separately."""
        for rank, place, how in moves:
            driver = self.drivers[rank % self.mesh.ranks]
            pending = driver.pending()
            if pending:
                self._move(driver, pending[place % len(pending)], how)

    @rule()
    def step(self) -> None:
        """A step on all ranks: it takes over what has ended on all of them, and starts what is queued."""
        self._each(lambda driver: driver.step())

    @rule()
    def drain(self) -> None:
        """A drain on all ranks."""
        self._each(lambda driver: driver.drain())

    @rule(place=PLACE)
    def look(self, place: int) -> None:
        """A prefetch is checked, and a waiting request is resumed."""
        if self.fetching:
            fetch = self.fetching[place % len(self.fetching)]
            came = self._each(lambda driver: driver.check_prefetch(fetch[0][driver.rank]))
            self._same("check_prefetch", came)
            self._each(lambda driver: driver.compare("check"))
            if came[0] is not None:
                self.fetching.remove(fetch)
        if self.loading:
            waiting = self.loading[place % len(self.loading)]
            admissions = self._each(lambda driver: driver.resume(waiting[driver.rank]))
            self._same("resume", [one and one.cached_tokens for one in admissions])
            if ready := [one for one in admissions if one is not None]:
                self.loading.remove(waiting)
                self._finish(ready)

    @rule(place=PLACE)
    def abort(self, place: int) -> None:
        """A prefetch or a waiting request is aborted."""
        if self.fetching:
            tickets, _ = self.fetching.pop(place % len(self.fetching))
            self._each(lambda driver: driver.abort_prefetch(tickets[driver.rank]))
        elif self.loading:
            waiting = self.loading.pop(place % len(self.loading))
            self._each(lambda driver: driver.abort(waiting[driver.rank]))

    @rule(
        tier=st.sampled_from([Tier.DEVICE, Tier.HOST]), component=PLACE, pages=st.sampled_from([1, 3, 8]), failing=PLACE
    )
    def evict(self, tier: Tier, component: int, pages: int, failing: int) -> None:
        """Evict on a tier. On one rank the first backup that the eviction waits for may fail."""
        names = self.drivers[0].config.components
        name = names[component % len(names)]
        if failing < self.mesh.ranks:
            self.arm_failure(failing)
        tokens = pages * (1 if name == Component.MAMBA else self.drivers[0].config.page_size)
        self._same("evict", self._each(lambda driver: evict_on(driver, tier, name, tokens)))

    @rule(trouble=st.sampled_from(RankFault), rank=PLACE, pages=PAGES, page=PLACE)
    def trouble(self, trouble: RankFault, rank: int, pages: list[int], page: int) -> None:
        """A fault happens on one rank."""
        driver = self.drivers[rank % self.mesh.ranks]
        if trouble is RankFault.LATE:
            driver.advance_clock(LATE_S)
            return
        store, faults = own_store(driver.config), Faults()
        faults.failing_gets, faults.failing_sets = int(trouble is RankFault.READS), int(trouble is RankFault.WRITES)
        store.faults = faults
        names = sorted(store.objects)
        if names and trouble is RankFault.GONE:
            store.objects.pop(names[page % len(names)])
        elif names and trouble is RankFault.LOST:
            store.corrupt([names[page % len(names)]])

    def arm_failure(self, rank: int) -> None:
        """A hook: the next transfer fails that an eviction waits for on this rank."""
        self._fails(rank)
        # A failure that is armed may meet any later transfer of this rank, also one that its own driver waits for.
        self.drivers[rank].failures += 1
        self.drivers[rank].adapter.fail_waits(1)

    def teardown(self) -> None:
        """Release what is held, and close the caches."""
        if not hasattr(self, "drivers"):
            return
        try:
            # After an error nothing is released, so that the first error is the one reported.
            if sys.exc_info()[0] is None:
                self._give_back()
        finally:
            for driver in self.drivers:
                driver.adapter.close()
            self.team.close()

    # Internal.

    def _give_back(self) -> None:
        # Each example ends with a prefetch that a rank is behind with and another one late for: few draw one.
        self.fetch_unevenly([1, 2, 1, 2], behind=1, batches=0, late=0)
        while self.fetching or self.loading:
            self.abort(0)
        self.drain()
        for _ in range(ROUNDS):
            self._each(evict_both_tiers)
        self._each(require_empty)
        counts = [{axis: len(calls) for axis, calls in world.calls.items()} for world in self.team.worlds]
        self._same("collectives", counts)
        made = [call for calls in self.team.worlds[0].calls.values() for call in calls]
        self.met.update(str(call).partition(":")[0] for call in made)

    def _each(self, act: Callable[[RankDriver], T]) -> list[T]:
        """Call a verb on all ranks. A collective at its end names at once a rank that took another path."""

        def done(rank: int) -> T:
            result = act(self.drivers[rank])
            self.team.worlds[rank].gather("end of a verb", "")
            return result

        return self.team.each(done)

    def _same(self, verb: str, answers: Sequence[object]) -> None:
        assert all(answer == answers[0] for answer in answers), (
            f"RANK-1: expected the same answer of {verb} on every rank, got by rank {answers}"
        )

    def _finish(self, admissions: Sequence[Admission]) -> None:
        self._each(lambda driver: driver.finish(admissions[driver.rank].request))

    def _fetch(self, pages: list[int]) -> bool:
        tickets = self._each(lambda driver: driver.prefetch(prompt_key(driver, pages)))
        self._same("prefetch", [ticket is None for ticket in tickets])
        if tickets[0] is not None:
            self.fetching.append((tickets, pages))
        return tickets[0] is not None

    def _drop_both_tiers(self, pages: list[int]) -> None:
        """Store a prompt, as far as it fits, and evict it from both tiers."""
        self.ask(pages)
        self.drain()
        self._each(evict_both_tiers)

    def _fails(self, rank: int) -> None:
        """Tell the drivers of the other ranks to expect a failure."""
        for driver in self.drivers:
            driver.failures += driver.rank != rank

    def _move(self, driver: RankDriver, one: Pending, how: Move) -> None:
        """Move a transfer or a storage job. A test cannot make a storage job fail: it is completed instead."""
        if how is Move.ADVANCE:
            driver.advance(one.ticket)
        elif how is Move.COMPLETE or isinstance(one.kind, StorageKind):
            driver.complete(one.ticket)
        else:
            self._fails(driver.rank)
            driver.fail(one.ticket, one.parts - 1)


class RankStreamsMachine(RankMachine):
    """The same with copies on CUDA streams, on a model in another drawn order on each rank. Storage is stepped."""

    def config(self) -> CacheConfig:
        return on_streams(super().config())

    def classes(self, data: st.DataObject) -> Sequence[type[CacheAdapter]]:
        ranks = self.mesh.ranks
        orders = data.draw(st.lists(ORDER, min_size=ranks, max_size=ranks), label="order of streams by rank")
        return [class_on_streams(self.adapter_type, order) for order in orders]

    def arm_failure(self, rank: int) -> None:
        """What a stream was given runs to its end."""
