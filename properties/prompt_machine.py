"""PromptMachine: matches and inserts on two tiers, compared with the oracle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import rule

from hicache.config import EvictionPolicy, WritePolicy
from hicache.testing.model import ExpectedInsert, ExpectedMatch
from hicache.testing.snapshot import Snapshot
from hicache.types import SHARED, Component, Key, MatchResult, Namespace, Slots, Tier

from .eviction_order import UseLog
from .hit_count import hits_by_page, require_hits
from .small_caches import NAMESPACE, PAGES, TAIL, USED
from .tier_machine import PLACE, SOON, DrawnAction, TierMachine, pick

FULL = Component.FULL.value

Prompt = tuple[list[int], Namespace]
"""The whole pages of a prompt by number, and its namespace."""


class PromptMachine(TierMachine):
    """Starts with a used cache. `prompts`: the prompts so far."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts: list[Prompt] = []

    def opened(self, data: st.DataObject) -> None:
        super().opened(data)
        self.use(data.draw(USED, label="prompts that came before"))
        self.evict(Tier.DEVICE, FULL, data.draw(st.sampled_from([8, 1, 2, 0]), label="pages evicted since"), 0)

    @rule(place=PLACE, pages=st.integers(1, 6), chunked=st.booleans(), stepping=st.booleans())
    def match(self, place: int, pages: int, chunked: bool, stepping: bool) -> None:
        """A match finds what the oracle expects on each tier. The next step may queue backups of what it used."""
        key = self.earlier(place, pages)
        found, _ = self.find(key, chunked=chunked)
        if stepping:
            self.step()
        if stepping and not chunked:
            anchor = self.prefix(key, len(found.device_indices))
            self.write_policy.used(key.namespace, anchor, self.driver.snapshot())

    @rule(
        pages=PAGES,
        tail=TAIL,
        namespace=NAMESPACE,
        passed=st.integers(0, 6),
        with_state=st.booleans(),
        soon=SOON,
    )
    def put(
        self,
        pages: list[int],
        tail: int,
        namespace: Namespace,
        passed: int,
        with_state: bool,
        soon: list[DrawnAction],
    ) -> None:
        """A prompt is computed and inserted, if there is room for it. `passed`: pages before the request's window."""
        self.prompts.append((pages, namespace))
        self._put(self.key(pages, tail, namespace), passed, with_state)
        self.pass_time(soon)

    @rule(place=PLACE, pages=st.integers(1, 6), passed=st.integers(0, 6), with_state=st.booleans())
    def put_again(self, place: int, pages: int, passed: int, with_state: bool) -> None:
        """An earlier prompt is computed and inserted again."""
        self._put(self.earlier(place, pages), passed, with_state)

    # Hooks for subclasses.

    def begin_epoch(self) -> None:
        super().begin_epoch()
        self.uses = UseLog()

    def evicted(self, component: str, tokens: int, before: Snapshot, after: Snapshot) -> None:
        goes_by_use = self.config.policy is EvictionPolicy.LRU and not self.departs("EVICT-2")
        is_copied_first = self.host.write_policy is WritePolicy.WRITE_BACK
        if component == Component.FULL and goes_by_use and not is_copied_first:
            self.uses.require_victims(before, after, tokens)

    def evicted_from_host(self, component: str, tokens: int, before: Snapshot, after: Snapshot) -> None:
        if component == Component.FULL and not self.departs("EVICT-8"):
            self.uses.require_host_victims(before, after, tokens)

    def use(self, prompts: Sequence[Prompt]) -> None:
        """Insert prompts, match them as often as the write policy needs for a backup, and drain."""
        is_selective = self.host.write_policy is WritePolicy.WRITE_THROUGH_SELECTIVE
        for pages, namespace in prompts:
            self.prompts.append((pages, namespace))
            key = self.key(pages, 0, namespace)
            self._put(key, 0, with_state=True)
            for _ in range(self.host.selective_hits if is_selective else 0):
                self.find(key)
        self.drain()

    def earlier(self, place: int, pages: int) -> Key:
        """The key of an earlier prompt, cut to so many pages."""
        earlier, namespace = pick(self.prompts, place) or ([], SHARED)
        return self.key(earlier[:pages], 0, namespace)

    def find(self, key: Key, *, chunked: bool = False) -> tuple[MatchResult, ExpectedMatch]:
        """Match a key. The match finds what the oracle expects, and changes only recency and hits."""
        expected = self.model.expected_match(key)
        before = hits_by_page(self.driver.snapshot(), self.config.page_size)
        found = self.driver.match(key, chunked=chunked)
        after = self.driver.snapshot()
        anchor = len(found.device_indices)
        hits = {FULL: found.host_hit_length, **found.component_host_hit_lengths}
        assert anchor == expected.anchor, f"MATCH-5: expected the anchor at {expected.anchor} elements, got {anchor}"
        assert hits == expected.host_hits or self.departs("MATCH-12"), (
            f"MATCH-12: expected host hits {expected.host_hits}, got {hits}"
        )
        assert found.branching_seqlen is None, f"MATCH-13: expected None with a host tier, got {found.branching_seqlen}"
        assert self.model.agrees(after), (
            f"MATCH-9: expected no data to move in a match, got {self.model.differences(after)}"
        )
        best = (key.namespace, self.prefix(key, expected.best))
        require_hits(before, hits_by_page(after, self.config.page_size), None if chunked else best)
        self.uses.used(*best)
        return found, expected

    # Internal.

    def _put(self, key: Key, passed: int, with_state: bool) -> None:
        found, _ = self.find(key)
        shared = len(found.device_indices)
        receipt = self.driver.lock(found.device_anchor)
        fresh = self.take_slots(self.driver.aligned(key) - shared)
        if fresh is not None:
            self._insert(key, found.device_indices, fresh, self.pass_window(passed, shared, fresh), with_state)
        self.driver.unlock(receipt)
        self.sync()

    def _insert(self, key: Key, shared: Slots, fresh: Slots, window_start: int, with_state: bool) -> None:
        self.driver.write(key, fresh, len(shared))
        state = self.state_of(key) if with_state else None
        expected = self.model.insert(key, shared=len(shared), window_start=window_start, state=state is not None)
        slots = np.concatenate((shared, fresh))
        result = self.driver.insert(key, slots, shared=len(shared), window_start=window_start, state=state)
        if state is None and Component.MAMBA in self.components and self.departs("INS-3"):
            self.sync()
            return
        actual = ExpectedInsert(result.prefix_length, result.accepted_length, result.state_adopted)
        assert actual == expected, f"INS-1: expected the answer {expected}, got {actual}"
        snapshot = self.driver.snapshot()
        lacking = self.model.lacking(snapshot, key)
        assert not lacking, f"INS-3: expected all data of the insert to be cached, lacking: {lacking}"
        self.sync()
        prefix = self.prefix(key, self.driver.aligned(key))
        self.uses.inserted(key.namespace, prefix, snapshot)
        self.write_policy.used(key.namespace, prefix, snapshot)
        if state is not None and not result.state_adopted:
            self.driver.free_state(state)
