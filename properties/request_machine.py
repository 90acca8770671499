"""RequestMachine: requests that start, grow, are cached in chunks, finish and abort, in any order, while slots run out."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, multiple, rule

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.driver import Driver
from hicache.testing.model import Model
from hicache.types import SHARED, Component, Handle, Key, Namespace
from properties.tiny import NAMESPACES, PAGES, TAIL, configurations


class RequestMachine(RuleBasedStateMachine):
    """Drives the life of requests. What is cached is left to the cache, as long as it is of prompts that were computed."""

    adapter_type: ClassVar[type[CacheAdapter]]
    components: ClassVar[tuple[str, ...]]
    sidecars: ClassVar[tuple[str, ...]]

    requests = Bundle("requests")

    @initialize(data=st.data())
    def open(self, data: st.DataObject) -> None:
        """A fresh cache of a drawn configuration."""
        capabilities = self.adapter_type.capabilities
        self.config: CacheConfig = data.draw(configurations(self.components, self.sidecars, capabilities))
        note(f"configuration: {self.config}")
        self.adapter = self.adapter_type(self.config)
        self.driver = Driver(self.adapter, self.config)
        self.model = Model(
            components=self.components,
            page_size=self.config.page_size,
            sliding_window_size=self.config.sliding_window_size,
            bigram=self.config.bigram,
        )
        self.keys: dict[int, Key] = {}
        self.computed: dict[int, int] = {}
        self.handles: dict[int, Handle] = {}

    def teardown(self) -> None:
        """End every request: then all is given back (FLOW-7, in the part that one tier has)."""
        if not hasattr(self, "adapter"):
            return
        for number in list(self.handles):
            self._end(number, is_finished=False)
        locked = [node for node in self.driver.snapshot().nodes if any(node.locks.values())]
        held = {component: len(slots) for component, slots in self.driver.ledger.held().items() if len(slots)}
        self.adapter.close()
        assert not locked, f"REQ-2: every request has ended, {len(locked)} nodes are locked"
        assert not held, f"REQ-2: every request has ended, {held} slots are held"

    @rule(target=requests, pages=PAGES, tail=st.integers(1, 2), namespace=st.sampled_from(NAMESPACES))
    def admit(self, pages: list[int], tail: int, namespace: Namespace) -> object:
        """A prompt arrives; it starts if there is room, and must start when nothing else runs and it fits."""
        allowed = namespace if Capability.NAMESPACES in self.adapter_type.capabilities else SHARED
        key = self.driver.key([*self.driver.prompt(pages), *range(tail)], allowed)
        known = self.model.expected_match(Key(key.tokens[:-1], key.namespace))
        admission = self.driver.admit(key)
        self.model.sync(self.driver.snapshot())
        if admission is None:
            assert self.handles or not self._fits_empty(key), f"REQ-5: {len(key.tokens)} tokens fit an empty cache"
            return multiple()
        assert admission.cached_tokens == known, f"MATCH-1: {known} tokens are cached, {admission.cached_tokens} given"
        number = len(self.keys)
        self.keys[number], self.computed[number] = key, admission.cached_tokens
        self.handles[number] = admission.request
        return number

    @rule(number=requests, tokens=st.integers(1, 6))
    def checkpoint(self, number: int, tokens: int) -> None:
        """The next chunk of a prompt is computed and cached."""
        if number not in self.handles:
            return
        self.computed[number] = min(len(self.keys[number].tokens), self.computed[number] + tokens)
        self.driver.checkpoint(self.handles[number], self.computed[number])
        self._cached(number)

    @rule(number=requests, tokens=st.lists(st.integers(0, 9), min_size=1, max_size=4))
    def extend(self, number: int, tokens: list[int]) -> None:
        """The request decodes; when there is no room it goes on as it was."""
        if number not in self.handles:
            return
        key = self.keys[number]
        self.computed[number] = len(key.tokens)
        if self.driver.extend(self.handles[number], tokens) is not None:
            self.keys[number] = self.driver.key([*key.tokens.tolist(), *tokens], key.namespace)
        self.model.sync(self.driver.snapshot())

    @rule(number=consumes(requests))
    def finish(self, number: int) -> None:
        """All is computed, and the request ends."""
        if number in self.handles:
            self._end(number, is_finished=True)

    @rule(number=consumes(requests))
    def abort(self, number: int) -> None:
        """The client is gone."""
        if number in self.handles:
            self._end(number, is_finished=False)

    @rule(data=st.data(), pages=st.integers(1, 8))
    def evict(self, data: st.DataObject, pages: int) -> None:
        """Room is made in one component."""
        component = data.draw(st.sampled_from(self.components), label="component")
        self.driver.evict(component, pages * (1 if component == Component.MAMBA else self.config.page_size))
        self.model.sync(self.driver.snapshot())

    def _end(self, number: int, is_finished: bool) -> None:
        handle = self.handles.pop(number)
        if is_finished:
            self.driver.finish(handle)
        else:
            self.driver.abort(handle)
        self._cached(number)

    def _cached(self, number: int) -> None:
        self.model.permit(self.keys[number])
        self.model.sync(self.driver.snapshot())

    def _fits_empty(self, key: Key) -> bool:
        page = self.config.page_size
        needed = -(-len(key.tokens) // page) * page
        return all(size >= needed for c, size in self.config.capacity_tokens.items() if c != Component.MAMBA)
