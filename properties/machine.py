"""CacheMachine: the base of the state machines: a small cache of a drawn configuration, its driver, and the oracle."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, event, reject, settings
from hypothesis import strategies as st
from hypothesis.errors import FailedHealthCheck, Unsatisfiable
from hypothesis.stateful import RuleBasedStateMachine, initialize, run_state_machine_as_test

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clauses_not_checked
from hicache.testing.driving.driver import Driver
from hicache.testing.driving.oracle import new_oracle
from hicache.testing.driving.prompts import cut
from hicache.testing.geometry import GeometricConfig
from hicache.testing.models.blocks import BlockModel
from hicache.testing.snapshot import Snapshot
from hicache.testing.storage.scripted import store_of
from hicache.types import SHARED, Component, Key, MatchResult, Namespace, Slots

from .small_caches import configurations, drawn, geometric, small_geometries, steps_transfers


class CacheMachine(RuleBasedStateMachine):
    """Opens one adapter. The driver checks the laws after every verb. `operations`: verbs called, per example.

    `refusals`: why the adapter refused configurations.
    `before`: the number before those of the pages that the prompts of an example have: which pages are similar, and in
    what they differ, depends on it.
    """

    adapter_type: ClassVar[type[CacheAdapter]]
    components: ClassVar[tuple[str, ...]]
    sidecars: ClassVar[tuple[str, ...]]
    operations: ClassVar[list[int]]
    refusals: ClassVar[list[str]]

    @initialize(data=st.data())
    def open(self, data: st.DataObject) -> None:
        """Open an empty cache of a drawn configuration. A configuration that the adapter refuses is rejected."""
        try:
            self.config: CacheConfig = data.draw(drawn(self.caches()), label="configuration").config
            self.before: int = data.draw(st.integers(0, 24), label="number before the pages")
            store = store_of(self.config)
            if store is not None:
                store.empty()
            self.adapter = self.class_opened(data)(self.config)
        except ConfigurationError as error:
            event(f"refused: {error}")
            self.refusals.append(str(error))
            reject()
        self.driver = Driver(self.adapter, self.config)
        self.model = new_oracle(self.config)
        self.blocks = BlockModel(self.config) if self.driver.shows_blocks else None
        self.opened(data)

    def class_opened(self, data: st.DataObject) -> type[CacheAdapter]:
        """A hook: the class of the cache."""
        return self.adapter_type

    def opened(self, data: st.DataObject) -> None:
        """A hook: the cache was opened."""

    def caches(self) -> st.SearchStrategy[CacheConfig]:
        """The configurations that a run may draw: small ones of the adapter's own geometries, if it lists any."""
        own = self.adapter_type.configurations() or ()
        listed = geometric(own, self.components, self.sidecars)
        if listed or (own and all(isinstance(config, GeometricConfig) for config in own)):
            return small_geometries([config for config in listed if not steps_transfers(config)])
        return configurations(self.components, self.sidecars, self.adapter_type.capabilities)

    def teardown(self) -> None:
        """Release what is held, and close the cache."""
        if not hasattr(self, "driver"):
            return
        try:
            # After an error nothing is released, so that the first error is the one reported.
            if sys.exc_info()[0] is None:
                self.give_back()
        finally:
            self.operations.append(self.driver.operations)
            self.adapter.close()

    def give_back(self) -> None:
        """A hook: release everything that is held, and check that nothing is left."""

    def key(self, pages: Sequence[int], tail: int, namespace: Namespace) -> Key:
        """The key of a prompt of whole pages and so many more tokens."""
        allowed = namespace if Capability.NAMESPACES in self.adapter_type.capabilities else SHARED
        numbers = [self.before + page for page in pages]
        return self.driver.key([*self.driver.prompt(numbers), *range(tail)], allowed)

    def slots_of(self, component: str, pages: int) -> int:
        """The slots of so many pages of a component; a state counts as a page of one slot."""
        return pages * (1 if component == Component.MAMBA else self.config.page_size)

    def sync(self) -> None:
        """Update the oracle from one snapshot: remove what was evicted."""
        if self.blocks is not None:
            self.blocks.adopt(self.driver.block_snapshot())
        else:
            self.observe(self.driver.snapshot())

    def observe(self, snapshot: Snapshot) -> None:
        """Update the oracle from the snapshot of a cache with a tree."""
        self.model.sync(snapshot)

    def departs(self, *clauses: str) -> bool:
        """Whether one of these clauses does not apply: the adapter departs from it, or its profile excepts it."""
        return not clauses_not_checked(self.adapter.profile, self.adapter.departures).isdisjoint(clauses)

    def require_branching(self, key: Key, found: MatchResult) -> None:
        """MATCH-13: a match says where a state would let the next such prompt match further."""
        chunk = self.config.mamba_chunk_size
        if chunk is None or Capability.BRANCHING not in self.adapter.capabilities or self.departs("MATCH-13"):
            return
        expected = self.model.expected_branching(key, chunk)
        allowed = {expected} if self.config.host is None else {expected, None}
        assert found.branching_seqlen in allowed, (
            f"MATCH-13: expected a state to be kept at {expected}, got {found.branching_seqlen}"
        )

    def require_refused(self, key: Key, found: MatchResult) -> None:
        """MATCH-20: a match says which component cut it."""
        if Capability.MISSES in self.adapter.capabilities and not self.departs("MATCH-20"):
            self.model.require_refused(key, found)

    def cap_states(self, key: Key, snapshot: Snapshot) -> None:
        """STATE-1: forget the states that a path lost because an insert kept a deeper one."""
        if "mamba_max_states_per_path" in self.adapter_type.state_options:
            self.model.cap_states(key, self.config.mamba_max_states_per_path, snapshot)

    def reported(self) -> Mapping[str, int] | None:
        """What the cache reports to its operators; None if it has no metrics, or counts in a way of its own."""
        has_metrics = Capability.METRICS in self.adapter.capabilities and not self.departs("EVENT-3")
        return self.adapter.reported_metrics() if has_metrics else None

    def require_counted(self, before: Mapping[str, int] | None, expected: Mapping[str, int]) -> None:
        """EVENT-3: what was reported of matches before, and what a match adds to it."""
        if before is None:
            return
        after = self.adapter.reported_metrics()
        counted = {name: after[name] - before[name] for name in expected if name in after}
        wanted = {name: tokens for name, tokens in expected.items() if name in after}
        assert counted == wanted, f"EVENT-3: expected that a match adds {wanted}, got {counted}"

    def has_known_order(self, component: str) -> bool:
        """Whether the oracle knows the order in which a component is evicted from the device."""
        # A cache that departs from EVICT-2 counts uses in another way, and so for each component.
        of_all = ("EVICT-2", "EVICT-3", "EVICT-4", "EVICT-6", "MATCH-10", "MATCH-16", "INS-8")
        return not self.departs(*of_all, *(["EVICT-10"] if component != Component.FULL else []))

    def can(self, component: str, capability: Capability) -> bool:
        """Whether the cache has a component, and declares a capability."""
        return component in self.components and capability in self.adapter_type.capabilities

    def refuses(self, call: Callable[[], object]) -> None:
        """The call raises and changes nothing. Skipped for an adapter that does not declare REFUSALS."""
        if Capability.REFUSALS not in self.adapter_type.capabilities:
            return
        with pytest.raises(Exception):  # noqa: B017, PT011 - each cache has its own error
            call()
        self.driver.check()
        assert self.model.agrees(self.driver.snapshot()), f"{call} was refused: expected no change of what is cached"

    def prefix(self, key: Key, elements: int) -> bytes:
        """The first elements of a key as a snapshot shows them."""
        tokens = key.tokens
        pairs = np.stack((tokens[:-1], tokens[1:]), axis=1) if self.config.bigram and len(tokens) else tokens
        return bytes(pairs[:elements].astype("<i4").tobytes())

    def pass_window(self, passed: int, shared: int, fresh: Slots) -> int:
        """Free the SWA slots of the pages before a request's window; returns where the window starts."""
        released = max(0, min(passed * self.config.page_size - shared, len(fresh)))
        if Component.SWA not in self.components or not released:
            return 0
        self.driver.release_window(fresh[:released])
        return shared + released

    def state_of(self, key: Key) -> int | None:
        """A new state for the end of a key's whole pages; None without MAMBA, or without a free slot."""
        if Component.MAMBA not in self.components or not self.driver.aligned(key):
            return None
        state = self.take_state()
        if state is not None:
            self.driver.write_state(cut(key, self.driver.aligned(key), self.config), state)
        return state

    def take_slots(self, tokens: int) -> Slots | None:
        """Allocate slots of whole pages; None if there are too few."""
        paged = [component for component in self.components if component != Component.MAMBA]
        sizes = self.adapter.sizes()
        room = min(sizes[component].free + sizes[component].evictable for component in paged)
        taken = self.driver.allocate(tokens)
        self.require_room(f"{tokens} of {room} that are free or evictable", taken is not None, tokens <= room)
        self.sync()
        return taken

    def take_state(self) -> int | None:
        """Allocate a slot for a state; None if there is none."""
        sizes = self.adapter.sizes()[Component.MAMBA]
        state = self.driver.allocate_state()
        self.require_room(f"a state of {sizes}, got {state}", state is not None, sizes.free + sizes.evictable > 0)
        self.sync()
        return state

    def require_room(self, request: str, is_granted: bool, has_room: bool) -> None:
        """POOL-3: an allocation succeeds if and only if enough slots are free or evictable."""
        assert is_granted == has_room, f"POOL-3: {request}: expected granted={has_room}, got {is_granted}"


def search_configurations(machine: type[CacheMachine], chosen: settings) -> None:
    """Run a machine on the configurations that its adapter opens. Skips the test if it refuses all of them."""
    machine.refusals, before = [], len(machine.operations)
    try:
        run_state_machine_as_test(machine, settings=chosen)
    except (FailedHealthCheck, Unsatisfiable):
        if not machine.refusals:
            raise
        if len(machine.operations) == before:
            names = "+".join((*machine.components, *machine.sidecars))
            pytest.skip(f"{machine.adapter_type.__name__} refuses {names}: {machine.refusals[0]}")
        # However many are refused, the others are searched.
        suppressed = [*chosen.suppress_health_check, HealthCheck.filter_too_much]
        run_state_machine_as_test(machine, settings=settings(chosen, suppress_health_check=suppressed))
