"""DeviceMachine: a scheduler that does anything in any order, on one tier, against the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, consumes, multiple, precondition, rule

from hicache.config import EvictionPolicy
from hicache.testing.model import ExpectedInsert
from hicache.types import SHARED, Component, Handle, Key, MatchResult, Namespace, Slots

from .eviction_order import UseLog
from .machine import CacheMachine
from .tiny import NAMESPACE, PAGES, TAIL, USED

Prompt = tuple[list[int], Namespace, int, int, bool]

KEPT = st.integers(0, 6)

PROMPT = st.tuples(PAGES, NAMESPACE, st.integers(0, 3), KEPT, st.booleans())
"""Pages and a namespace; which earlier prompt comes again, 0 for none; how many of its pages; whether these follow."""

PASSED = st.sampled_from([0, 0, 0, 1, 2, 3, 6])
"""Pages that the window has passed: seldom all, of which nothing would be cached."""

PROMPTS_OF_A_LIFE = 3
"""Before them there is little that a reset could drop."""

READERS, HOLDERS = 3, 1
"""Who locks prefixes, and who holds slots, at a time: with more of them nothing in a tiny pool can be evicted."""


class DeviceMachine(CacheMachine):
    """Drives the verbs; every rule compares what the cache answers with what the oracle says."""

    locks = Bundle("locks")
    slots = Bundle("slots")
    states = Bundle("states")

    def __init__(self) -> None:
        super().__init__()
        self.uses = UseLog()
        self.serial = 0
        self.holders = 0
        self.prompts: list[tuple[list[int], Namespace]] = []
        self.receipts: dict[int, Handle] = {}
        self.outstanding: set[int] = set()
        self.outdated: set[int] = set()

    def opened(self, data: st.DataObject) -> None:
        for pages, namespace in data.draw(USED, label="prompts that came before"):
            self._put(pages, namespace, tail=0, passed=0, with_state=True)

    # Looking.

    @rule(prompt=PROMPT, tail=TAIL)
    def match(self, prompt: Prompt, tail: int) -> None:
        """A match finds what the oracle says, and its state is that of the prefix."""
        pages, namespace = self._prompt(*prompt)
        self._match(self.key(pages, tail, namespace))

    # Inserting.

    @rule(prompt=PROMPT, tail=TAIL, passed=PASSED, with_state=st.booleans())
    def put(self, prompt: Prompt, tail: int, passed: int, with_state: bool) -> None:
        """A prompt is computed and inserted, the window having passed its first pages, if there is room for it."""
        self._put(*self._prompt(*prompt), tail, passed, with_state)

    # Locking.

    @precondition(lambda self: len(self.outstanding) < READERS)
    @rule(target=locks, place=st.integers(1, 3), kept=KEPT)
    def lock(self, place: int, kept: int) -> int:
        """A request starts to read what it matched of a prompt that came before."""
        pages, namespace = self._prompt([], SHARED, place, kept, goes_on=False)
        return self._lock(self._match(self.key(pages, 0, namespace)))

    @rule(receipt=consumes(locks))
    def unlock(self, receipt: int) -> None:
        """It stops reading."""
        self._unlock(receipt)

    # Evicting.

    @precondition(lambda self: self.prompts)
    @rule(data=st.data(), pages=st.sampled_from([1, 1, 2, 3, 8]))
    def evict(self, data: st.DataObject, pages: int) -> None:
        """Room is made in one component."""
        component = data.draw(st.sampled_from(self.components), label="component")
        tokens = self.slots_of(component, pages)
        before = self.driver.snapshot()
        self.driver.evict(component, tokens)
        after = self.driver.snapshot()
        self.model.sync(after)
        keeps_rule = "EVICT-6" not in self.adapter.departures
        if component == Component.FULL and self.config.policy is EvictionPolicy.LRU and keeps_rule:
            self.uses.require_victims(before, after, tokens)

    @precondition(lambda self: self.holders < HOLDERS)
    @rule(target=slots, pages=st.integers(1, 4))
    def allocate(self, pages: int) -> Any:
        """Somebody takes slots and inserts nothing."""
        taken = self.take_slots(pages * self.config.page_size)
        self.holders += taken is not None
        return multiple() if taken is None else taken

    @rule(taken=consumes(slots))
    def free(self, taken: Slots) -> None:
        """They are given back."""
        self.holders -= 1
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

    @precondition(lambda self: len(self.prompts) > PROMPTS_OF_A_LIFE)
    @rule()
    def reset(self) -> None:
        """Everything that the tree holds is dropped. Receipts of the old life are refused from now on."""
        self.prompts.clear()
        self.driver.reset()
        self.sync()
        self.uses = UseLog()
        self.outdated |= self.outstanding
        self.outstanding = set()
        assert not self.driver.snapshot().nodes, "EVICT-9: nothing is left after a reset"

    # Inside.

    def _prompt(
        self, pages: list[int], namespace: Namespace, place: int, kept: int, goes_on: bool
    ) -> tuple[list[int], Namespace]:
        """A new prompt; or, counted back from the last that was put, how one began, and these pages after it or not."""
        if not place or not self.prompts:
            return pages, namespace
        earlier, namespace = self.prompts[-1 - place % len(self.prompts)]
        return [*earlier[:kept], *(pages if goes_on else [])][:6], namespace

    def _put(self, pages: list[int], namespace: Namespace, tail: int, passed: int, with_state: bool) -> None:
        self.prompts.append((pages, namespace))
        key = self.key(pages, tail, namespace)
        found = self._match(key)
        shared = len(found.device_indices)
        receipt = self._lock(found)
        fresh = self.take_slots(self.driver.aligned(key) - shared)
        if fresh is not None:
            self._insert(key, found.device_indices, fresh, self.pass_window(passed, shared, fresh), with_state)
        self._unlock(receipt)

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
