"""DeviceMachine: calls the verbs of a scheduler in any order on one tier, and compares the answers with the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, consumes, multiple, precondition, rule

from hicache.testing.adapter import Capability
from hicache.testing.models.tree import ExpectedInsert
from hicache.testing.snapshot import Snapshot
from hicache.types import NO_SLOTS, SHARED, Component, Handle, Key, MatchResult, Namespace, Slots

from .eviction_oracle import require_victims
from .machine import CacheMachine
from .small_caches import NAMESPACE, PAGES, PRIORITY, TAIL, USED
from .uses import UseLog

Prompt = tuple[list[int], Namespace, int, int, bool]

KEPT = st.integers(0, 6)

PROMPT = st.tuples(PAGES, NAMESPACE, st.integers(0, 3), KEPT, st.booleans())
"""Pages, a namespace, an earlier prompt to repeat (0: none), how many of its pages, and whether pages follow them."""

PASSED = st.sampled_from([0, 0, 0, 1, 2, 3, 6])
"""Pages that the window has passed: seldom all of them, since nothing would be cached then."""

OTHER_PAGE = 4
"""The number of a page with which no drawn prompt goes on."""

PROMPTS_BEFORE_A_RESET = 3
"""A reset is drawn only when more prompts than these were inserted, so that it drops something."""

READERS, HOLDERS = 3, 1
"""The most locks, and the most allocations, at a time. With more, nothing in a small pool could be evicted."""


class DeviceMachine(CacheMachine):
    """Calls the verbs. Every rule compares the answer of the cache with that of the oracle."""

    locks = Bundle("locks")
    slots = Bundle("slots")
    states = Bundle("states")

    def __init__(self) -> None:
        super().__init__()
        self.serial = 0
        self.holders = 0
        self.prompts: list[tuple[list[int], Namespace]] = []
        self.receipts: dict[int, Handle] = {}
        self.outstanding: set[int] = set()
        self.stale: set[int] = set()

    def opened(self, data: st.DataObject) -> None:
        self.uses = UseLog(self.config, self.driver.adapter.recency_of(self.config))
        for pages, namespace in data.draw(USED, label="prompts that came before"):
            self._put(pages, namespace, tail=0, passed=0, with_state=True, priority=0)

    # Match.

    @rule(prompt=PROMPT, tail=TAIL)
    def match(self, prompt: Prompt, tail: int) -> None:
        """A match finds what the oracle expects, and its state is that of the prefix."""
        pages, namespace = self._prompt(*prompt)
        self._match(self.key(pages, tail, namespace))

    # Insert.

    @rule(prompt=PROMPT, tail=TAIL, passed=PASSED, with_state=st.booleans(), priority=PRIORITY)
    def put(self, prompt: Prompt, tail: int, passed: int, with_state: bool, priority: int) -> None:
        """A prompt is computed and inserted, if there is room for it. `passed`: pages before the request's window."""
        self._put(*self._prompt(*prompt), tail, passed, with_state, priority)

    @rule(prompt=PROMPT, tail=TAIL, passed=PASSED, with_state=st.booleans(), priority=PRIORITY)
    def put_unmatched(self, prompt: Prompt, tail: int, passed: int, with_state: bool, priority: int) -> None:
        """A prompt is computed in full, as if nothing of it were cached, and inserted without a match before."""
        self._put_unmatched(*self._prompt(*prompt), tail, passed, with_state, priority)

    @precondition(lambda self: self.divisible())
    @rule(data=st.data(), is_used=st.booleans(), goes_on=st.booleans())
    def split_and_evict(self, data: st.DataObject, is_used: bool, goes_on: bool) -> None:
        """An insert without a match splits a node, and one page or state is evicted before anything else is used.

        The lower part must keep its place in the order of SWA and MAMBA. `is_used`: a match comes first, so that the
        prompt is the most recent one.
        """
        earlier, namespace = data.draw(st.sampled_from(self.divisible()), label="earlier prompt")
        kept = earlier[: data.draw(st.integers(1, len(earlier) - 1), label="pages of it")]
        if is_used:
            self._match(self.key(earlier, 0, namespace))
        prompt = [*kept, OTHER_PAGE] if goes_on else kept
        self._put_unmatched(prompt, namespace, tail=0, passed=0, with_state=True, priority=0)
        component = data.draw(st.sampled_from(self.components[1:] or self.components), label="component")
        self._evict(component, 1)

    # Lock.

    @precondition(lambda self: len(self.outstanding) < READERS)
    @rule(target=locks, place=st.integers(1, 3), kept=KEPT, with_state=st.booleans())
    def lock(self, place: int, kept: int, with_state: bool) -> int:
        """A request locks what it matched of an earlier prompt, perhaps without the state, where the cache can."""
        pages, namespace = self._prompt([], SHARED, place, kept, goes_on=False)
        return self._lock(self._match(self.key(pages, 0, namespace)), with_state=with_state)

    @precondition(lambda self: self.can(Component.SWA, Capability.EARLY_UNLOCK))
    @rule(receipt=locks)
    def unlock_window(self, receipt: int) -> None:
        """A request has left its window, perhaps not for the first time."""
        if receipt in self.stale:
            self.refuses(lambda: self.adapter.unlock_window(self.receipts[receipt]))
            return
        self.receipts[receipt] = self.driver.unlock_window(self.receipts[receipt])
        self.sync()

    @rule(receipt=consumes(locks))
    def unlock(self, receipt: int) -> None:
        """A request releases its lock."""
        self._unlock(receipt)

    # Evict, allocate, reset.

    @precondition(lambda self: self.prompts)
    @rule(data=st.data(), pages=st.sampled_from([1, 1, 2, 3, 8]))
    def evict(self, data: st.DataObject, pages: int) -> None:
        """Evict pages of one component."""
        self._evict(data.draw(st.sampled_from(self.components), label="component"), pages)

    @precondition(lambda self: self.holders < HOLDERS)
    @rule(target=slots, pages=st.integers(1, 4))
    def allocate(self, pages: int) -> Any:
        """A caller allocates slots and inserts nothing."""
        taken = self.take_slots(pages * self.config.page_size)
        self.holders += taken is not None
        return multiple() if taken is None else taken

    @rule(taken=consumes(slots))
    def free(self, taken: Slots) -> None:
        """The caller frees its slots."""
        self.holders -= 1
        self.driver.free(taken)

    @precondition(lambda self: Component.MAMBA in self.components)
    @rule(target=states)
    def allocate_state(self) -> Any:
        """A caller allocates a slot for a state."""
        state = self.take_state()
        return multiple() if state is None else state

    @rule(state=consumes(states))
    def free_state(self, state: int) -> None:
        """The caller frees its state."""
        self.driver.free_state(state)

    @precondition(lambda self: len(self.prompts) > PROMPTS_BEFORE_A_RESET)
    @rule()
    def reset(self) -> None:
        """The tree is emptied. Receipts from before the reset are refused from now on. Nothing without RESET."""
        if Capability.RESET not in self.adapter_type.capabilities:
            return
        self.prompts.clear()
        self.driver.reset()
        self.sync()
        self.uses = UseLog(self.config, self.driver.adapter.recency_of(self.config))
        self.stale |= self.outstanding
        self.outstanding = set()
        assert not self.driver.snapshot().nodes, "EVICT-9: expected an empty tree after a reset"

    # Overridden hooks.

    def observe(self, snapshot: Snapshot) -> None:
        super().observe(snapshot)
        self.uses.observe(snapshot)

    # Internal.

    def divisible(self) -> list[tuple[list[int], Namespace]]:
        """Earlier prompts of two pages and more."""
        return [(pages, namespace) for pages, namespace in self.prompts if len(pages) > 1]

    def _prompt(
        self, pages: list[int], namespace: Namespace, place: int, kept: int, goes_on: bool
    ) -> tuple[list[int], Namespace]:
        """A new prompt; or the first pages of an earlier one, counted back from the last, and perhaps the new pages."""
        if not place or not self.prompts:
            return pages, namespace
        earlier, namespace = self.prompts[-1 - place % len(self.prompts)]
        return [*earlier[:kept], *(pages if goes_on else [])][:6], namespace

    def _put(
        self, pages: list[int], namespace: Namespace, tail: int, passed: int, with_state: bool, priority: int
    ) -> None:
        self.prompts.append((pages, namespace))
        key = self.key(pages, tail, namespace)
        found = self._match(key)
        shared = len(found.device_indices)
        receipt = self._lock(found)
        fresh = self.take_slots(self.driver.aligned(key) - shared)
        if fresh is not None:
            window_start = self.pass_window(passed, shared, fresh)
            self._insert(key, found.device_indices, fresh, window_start, with_state, priority)
        self._unlock(receipt)

    def _put_unmatched(
        self, pages: list[int], namespace: Namespace, tail: int, passed: int, with_state: bool, priority: int
    ) -> None:
        self.prompts.append((pages, namespace))
        key = self.key(pages, tail, namespace)
        fresh = self.take_slots(self.driver.aligned(key))
        if fresh is not None:
            self._insert(key, NO_SLOTS, fresh, self.pass_window(passed, 0, fresh), with_state, priority)

    def _evict(self, component: str, pages: int) -> None:
        tokens = self.slots_of(component, pages)
        before = self.driver.snapshot()
        self.driver.evict(component, tokens)
        after = self.driver.snapshot()
        self.model.sync(after)
        if self.has_known_order(component):
            require_victims(self.uses, before, after, component, tokens)
        self.uses.observe(after)

    def _match(self, key: Key) -> MatchResult:
        expected = self.model.expected_match(key).anchor
        found = self.driver.match(key)
        matched = len(found.device_indices)
        assert matched == expected, f"MATCH-1: expected {expected} elements of {key}, got {matched}"
        self.require_branching(key, found)
        self.require_refused(key, found)
        self.uses.matched(key.namespace, self.prefix(key, matched), self.driver.snapshot(), is_hit=True)
        return found

    def _lock(self, found: MatchResult, *, with_state: bool = True) -> int:
        is_whole = with_state or not self.can(Component.MAMBA, Capability.STATELESS_LOCKS)
        receipt = (self.driver.lock if is_whole else self.driver.lock_without_state)(found.device_anchor)
        self.serial += 1
        self.receipts[self.serial] = receipt
        self.outstanding.add(self.serial)
        return self.serial

    def _unlock(self, number: int) -> None:
        receipt = self.receipts.pop(number)
        if number in self.stale:
            self.refuses(lambda: self.adapter.unlock(receipt))
            return
        self.outstanding.remove(number)
        self.driver.unlock(receipt)
        self.sync()

    def _insert(
        self, key: Key, shared: Slots, fresh: Slots, window_start: int, with_state: bool, priority: int
    ) -> None:
        self.driver.write(key, fresh, len(shared))
        state = self.state_of(key) if with_state else None
        expected = self.model.insert(key, shared=len(shared), window_start=window_start, state=state is not None)
        slots = np.concatenate((shared, fresh))
        result = self.driver.insert(
            key, slots, shared=len(shared), window_start=window_start, state=state, priority=priority
        )
        actual = ExpectedInsert(result.prefix_length, result.accepted_length, result.state_adopted)
        assert actual == expected, f"INS-1: expected the answer {expected}, got {actual}"
        snapshot = self.driver.snapshot()
        if result.state_adopted:
            self.cap_states(key, snapshot)
        differences = self.model.differences(snapshot)
        assert not differences, f"INS-1: expected no differences from the oracle after the insert, got {differences}"
        if state is not None and not result.state_adopted:
            self.driver.free_state(state)
        self.uses.inserted(key.namespace, self.prefix(key, self.driver.aligned(key)), snapshot, priority)
