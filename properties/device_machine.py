"""DeviceMachine: a scheduler that does anything in any order, on one tier, against the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, consumes, multiple, precondition, rule

from hicache.config import EvictionPolicy
from hicache.testing.model import ExpectedInsert
from hicache.types import Component, Handle, Key, MatchResult, Namespace, Slots

from .eviction_order import UseLog
from .machine import CacheMachine
from .tiny import NAMESPACE, PAGES, TAIL


class DeviceMachine(CacheMachine):
    """Drives the verbs; every rule compares what the cache answers with what the oracle says."""

    locks = Bundle("locks")
    slots = Bundle("slots")
    states = Bundle("states")

    def __init__(self) -> None:
        super().__init__()
        self.uses = UseLog()
        self.serial = 0
        self.receipts: dict[int, Handle] = {}
        self.outstanding: set[int] = set()
        self.outdated: set[int] = set()

    # Looking.

    @rule(pages=PAGES, tail=TAIL, namespace=NAMESPACE)
    def match(self, pages: list[int], tail: int, namespace: Namespace) -> None:
        """A match finds what the oracle says, and its state is that of the prefix."""
        self._match(self.key(pages, tail, namespace))

    # Inserting.

    @rule(pages=PAGES, tail=TAIL, namespace=NAMESPACE, passed=st.integers(0, 6), with_state=st.booleans())
    def put(self, pages: list[int], tail: int, namespace: Namespace, passed: int, with_state: bool) -> None:
        """A prompt is computed and inserted, the window having passed its first pages, if there is room for it."""
        key = self.key(pages, tail, namespace)
        found = self._match(key)
        shared = len(found.device_indices)
        receipt = self._lock(found)
        fresh = self.take_slots(self.driver.aligned(key) - shared)
        if fresh is not None:
            self._insert(key, found.device_indices, fresh, self.pass_window(passed, shared, fresh), with_state)
        self._unlock(receipt)

    # Locking.

    @rule(target=locks, pages=PAGES, namespace=NAMESPACE)
    def lock(self, pages: list[int], namespace: Namespace) -> int:
        """A request starts to read what it matched."""
        return self._lock(self._match(self.key(pages, 0, namespace)))

    @rule(receipt=consumes(locks))
    def unlock(self, receipt: int) -> None:
        """It stops reading."""
        self._unlock(receipt)

    # Evicting.

    @rule(data=st.data(), pages=st.integers(1, 8))
    def evict(self, data: st.DataObject, pages: int) -> None:
        """Room is made in one component."""
        component = data.draw(st.sampled_from(self.components), label="component")
        tokens = self.slots_of(component, pages)
        before = self.driver.snapshot()
        self.driver.evict(component, tokens)
        after = self.driver.snapshot()
        self.model.sync(after)
        if component == Component.FULL and self.config.policy is EvictionPolicy.LRU:
            self.uses.require_victims(before, after, tokens)

    @rule(target=slots, pages=st.integers(1, 4))
    def allocate(self, pages: int) -> Any:
        """Somebody takes slots and inserts nothing."""
        taken = self.take_slots(pages * self.config.page_size)
        return multiple() if taken is None else taken

    @rule(taken=consumes(slots))
    def free(self, taken: Slots) -> None:
        """They are given back."""
        self.driver.free(taken)

    @precondition(lambda self: Component.MAMBA in self.components)
    @rule(target=states)
    def allocate_state(self) -> Any:
        """Somebody takes a slot for a state."""
        state = self.take_state()
        return multiple() if state is None else state

    @rule(state=consumes(states))
    def free_state(self, state: int) -> None:
        """It is given back."""
        self.driver.free_state(state)

    @rule()
    def reset(self) -> None:
        """Everything that the tree holds is dropped. Receipts of the old life are refused from now on."""
        self.driver.reset()
        self.sync()
        self.uses = UseLog()
        self.outdated |= self.outstanding
        self.outstanding = set()
        assert not self.driver.snapshot().nodes, "EVICT-9: nothing is left after a reset"

    # Inside.

    def _match(self, key: Key) -> MatchResult:
        expected = self.model.expected_match(key).anchor
        found = self.driver.match(key)
        matched = len(found.device_indices)
        assert matched == expected, f"MATCH-1: {expected} elements of {key} are valid, {matched} were found"
        self.uses.used(key.namespace, self.prefix(key, matched))
        return found

    def _lock(self, found: MatchResult) -> int:
        receipt = self.driver.lock(found.device_anchor)
        self.serial += 1
        self.receipts[self.serial] = receipt
        self.outstanding.add(self.serial)
        return self.serial

    def _unlock(self, number: int) -> None:
        receipt = self.receipts.pop(number)
        if number in self.outdated:
            self.refuses(lambda: self.adapter.unlock(receipt))
            return
        self.outstanding.remove(number)
        self.driver.unlock(receipt)
        self.sync()

    def _insert(self, key: Key, shared: Slots, fresh: Slots, window_start: int, with_state: bool) -> None:
        self.driver.write(key, fresh, len(shared))
        state = self.state_of(key) if with_state else None
        expected = self.model.insert(key, shared=len(shared), window_start=window_start, state=state is not None)
        slots = np.concatenate((shared, fresh))
        result = self.driver.insert(key, slots, shared=len(shared), window_start=window_start, state=state)
        actual = ExpectedInsert(result.prefix_length, result.accepted_length, result.state_adopted)
        assert actual == expected, f"INS-1: the answer must be {expected}, it was {actual}"
        differences = self.model.differences(self.driver.snapshot())
        assert not differences, f"INS-1: after the insert {differences}"
        if state is not None and not result.state_adopted:
            self.driver.free_state(state)
        self.uses.inserted(key.namespace, self.prefix(key, self.driver.aligned(key)), self.driver.snapshot())
