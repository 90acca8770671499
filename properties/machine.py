"""CacheMachine: what every state machine starts from: a tiny cache of a drawn configuration, its driver, the oracle."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import event, note, reject
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.driving.driver import Driver
from hicache.testing.driving.prompts import cut
from hicache.testing.model import Model
from hicache.testing.storage.scripted import store_of
from hicache.types import SHARED, Component, Key, Namespace, Slots

from .tiny import configurations


class CacheMachine(RuleBasedStateMachine):
    """Opens one adapter. The driver holds it to the laws after every verb. `operations`: verbs driven, per example."""

    adapter_type: ClassVar[type[CacheAdapter]]
    components: ClassVar[tuple[str, ...]]
    sidecars: ClassVar[tuple[str, ...]]
    operations: ClassVar[list[int]]

    @initialize(data=st.data())
    def open(self, data: st.DataObject) -> None:
        """A fresh cache of a drawn configuration. One that is refused is not searched."""
        self.config: CacheConfig = data.draw(self.caches())
        note(f"configuration: {self.config}")
        store = store_of(self.config)
        if store is not None:
            store.empty()
        try:
            self.adapter = self.adapter_type(self.config)
        except ConfigurationError as error:
            event(f"refused: {error}")
            reject()
        self.driver = Driver(self.adapter, self.config)
        self.model = Model(
            components=self.components,
            page_size=self.config.page_size,
            sliding_window_size=self.config.sliding_window_size,
            bigram=self.config.bigram,
        )
        self.opened(data)

    def opened(self, data: st.DataObject) -> None:
        """The cache is there."""

    def caches(self) -> st.SearchStrategy[CacheConfig]:
        """The caches that a run may open."""
        return configurations(self.components, self.sidecars, self.adapter_type.capabilities)

    def teardown(self) -> None:
        """Give back what is held, and close what was opened."""
        if not hasattr(self, "driver"):
            return
        try:
            # What is broken is not tidied up: the first error is the one to see.
            if sys.exc_info()[0] is None:
                self.give_back()
        finally:
            self.operations.append(self.driver.operations)
            self.adapter.close()

    def give_back(self) -> None:
        """Give back all that is held, and see that nothing is."""

    def key(self, pages: Sequence[int], tail: int, namespace: Namespace) -> Key:
        """A prompt of whole pages and a few tokens more."""
        allowed = namespace if Capability.NAMESPACES in self.adapter_type.capabilities else SHARED
        return self.driver.key([*self.driver.prompt(pages), *range(tail)], allowed)

    def slots_of(self, component: str, pages: int) -> int:
        """So many pages of a component in slots; a state is a page of one."""
        return pages * (1 if component == Component.MAMBA else self.config.page_size)

    def sync(self) -> None:
        """Let the oracle forget what was evicted."""
        self.model.sync(self.driver.snapshot())

    def departs(self, clause: str) -> bool:
        """Whether the cache has a rule of its own in place of a clause."""
        return clause in self.adapter.departures

    def refuses(self, call: Callable[[], object]) -> None:
        """The cache raises, and is as it was; one that trusts its caller is not asked."""
        if Capability.REFUSALS not in self.adapter_type.capabilities:
            return
        with pytest.raises(Exception):  # noqa: B017, PT011 - each cache has its own error
            call()
        self.driver.check()
        assert self.model.agrees(self.driver.snapshot()), f"{call} was refused, and changed what is held"

    def prefix(self, key: Key, elements: int) -> bytes:
        """The beginning of a key as a snapshot shows it."""
        tokens = key.tokens
        pairs = np.stack((tokens[:-1], tokens[1:]), axis=1) if self.config.bigram and len(tokens) else tokens
        return bytes(pairs[:elements].astype("<i4").tobytes())

    def pass_window(self, passed: int, shared: int, fresh: Slots) -> int:
        """The request's window has left its first pages: they give their SWA slots back. Where it begins now."""
        released = max(0, min(passed * self.config.page_size - shared, len(fresh)))
        if Component.SWA not in self.components or not released:
            return 0
        self.driver.release_window(fresh[:released])
        return shared + released

    def state_of(self, key: Key) -> int | None:
        """A state that the model computed after the whole pages of a key, if there are states and there is room."""
        if Component.MAMBA not in self.components or not self.driver.aligned(key):
            return None
        state = self.take_state()
        if state is not None:
            self.driver.write_state(cut(key, self.driver.aligned(key), self.config), state)
        return state

    def take_slots(self, tokens: int) -> Slots | None:
        """Slots of whole pages, or None."""
        paged = [component for component in self.components if component != Component.MAMBA]
        sizes = self.adapter.sizes()
        room = min(sizes[component].free + sizes[component].evictable for component in paged)
        taken = self.driver.allocate(tokens)
        self.require_room(f"{tokens} of {room} that are free or evictable", taken is not None, tokens <= room)
        self.sync()
        return taken

    def take_state(self) -> int | None:
        """A slot for a state, or None."""
        sizes = self.adapter.sizes()[Component.MAMBA]
        state = self.driver.allocate_state()
        self.require_room(f"a state of {sizes}, got {state}", state is not None, sizes.free + sizes.evictable > 0)
        self.sync()
        return state

    def require_room(self, request: str, is_granted: bool, has_room: bool) -> None:
        """POOL-3: what is free or evictable can be had, and nothing else."""
        assert is_granted == has_room, f"POOL-3: {request}"
