"""RequestVerbs: the life of a request, driven through an adapter, with what the request holds kept in the ledger."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hicache.config import CacheConfig
from hicache.testing.adapter import Admission, CacheAdapter, Capability
from hicache.testing.laws.conservation import tree_slots
from hicache.testing.prompts import aligned_count, cut
from hicache.testing.violation import violation
from hicache.testing.watch import Watch
from hicache.types import NO_SLOTS, Component, Handle, Key, Slots


@dataclass(slots=True, eq=False)
class Running:
    """A request as its driver knows it.

    `own`: the slots of its table that are not the tree's. `computed_tokens`: how many the model has computed.
    """

    request: Handle
    key: Key
    table: Slots
    own: Slots
    state: int | None
    computed_tokens: int


class RequestVerbs(Watch):
    """Admits, computes, checkpoints and ends requests. The model's part, writing the bytes, is done on the way."""

    def __init__(self, adapter: CacheAdapter, config: CacheConfig) -> None:
        super().__init__(adapter, config)
        self._running: dict[int, Running] = {}

    def admit(self, key: Key) -> Admission | None:
        """A request starts: its shared slots and its state hold the right bytes, the rest of its table is fresh."""
        admission = self.adapter.admit(key)
        if admission is not None:
            self._start(key, admission)
        self.verb_done()
        return admission

    def extend(self, request: Handle, tokens: Iterable[int]) -> Slots | None:
        """All tokens so far are computed, and more are appended; the longer table, or None when it does not fit."""
        running = self._running[id(request)]
        self._compute(running, len(running.key.tokens))
        added = np.array(list(tokens), dtype=np.int32)
        table = self.adapter.extend(request, added)
        if table is not None:
            fresh = table[len(running.table) :]
            self.ledger.take(fresh, None)
            running.key = Key(np.concatenate((running.key.tokens, added)), running.key.namespace)
            running.table, running.own = table, np.concatenate((running.own, fresh))
            self._require_table(running)
        self._renew_partners(running)
        self.verb_done()
        return table

    def checkpoint(self, request: Handle, computed_tokens: int) -> Slots:
        """A chunk is computed and cached. The table then holds the right bytes, whosever slots they are."""
        running = self._running[id(request)]
        self._compute(running, computed_tokens)
        self.inspector.expect_unlock()
        running.table = self.adapter.checkpoint(request, computed_tokens)
        self._require_table(running)
        own = self._own_slots(running)
        self.ledger.give(np.setdiff1d(running.own, own))
        running.own = own
        self._renew_partners(running)
        computed = Key(running.key.tokens[:computed_tokens], running.key.namespace)
        self.contents.verify(computed, running.table[: aligned_count(computed, self.config)])
        self.verb_done()
        return running.table

    def finish(self, request: Handle) -> None:
        """All tokens are computed, what is whole is cached, and the rest is given back."""
        running = self._running[id(request)]
        self._compute(running, len(running.key.tokens))
        self.inspector.expect_unlock()
        self.adapter.finish(request)
        self._end(running)

    def abort(self, request: Handle) -> None:
        """Everything is given back."""
        running = self._running[id(request)]
        self.inspector.expect_unlock()
        self.adapter.abort(request)
        self._end(running)

    def _start(self, key: Key, admission: Admission) -> None:
        cached = admission.cached_tokens
        if not 0 <= cached <= aligned_count(key, self.config) or cached % self.config.page_size:
            raise violation("REQ-4", "admit", f"whole pages, at most {aligned_count(key, self.config)} cached", cached)
        own = admission.table[cached:].copy()
        running = Running(admission.request, key, admission.table, own, admission.state, cached)
        self._require_table(running)
        self.ledger.take(own, None)
        self._renew_partners(running)
        if Capability.SNAPSHOT in self.adapter.capabilities and len(self._own_slots(running)) != len(own):
            raise violation("REQ-4", "admit", f"the first {cached} slots, and no more, of the tree", admission)
        self.contents.verify(key, admission.table[:cached])
        if (admission.state is not None) != (Component.MAMBA in self.config.components):
            raise violation("MATCH-11", "admit", "a state of its own with MAMBA, and only then", admission.state)
        if admission.state is not None:
            self.ledger.take_state(admission.state)
            if cached:
                self.contents.verify_state(cut(key, cached, self.config), admission.state)
        self._running[id(admission.request)] = running

    def _compute(self, running: Running, tokens: int) -> None:
        """The model computes up to so many tokens: whole pages of KV, and the state after exactly these."""
        before = Key(running.key.tokens[: running.computed_tokens], running.key.namespace)
        key = Key(running.key.tokens[:tokens], running.key.namespace)
        start = aligned_count(before, self.config)
        if len(running.own):
            start = max(start, len(running.table) - len(running.own))
        self.contents.write(key, running.table[start : aligned_count(key, self.config)], start)
        if running.state is not None:
            self.contents.write_state(key, running.state)
        running.computed_tokens = tokens

    def _require_table(self, running: Running) -> None:
        tokens = len(running.key.tokens)
        expected = -(-tokens // self.config.page_size) * self.config.page_size
        if len(running.table) != expected:
            raise violation("REQ-4", f"request of {tokens} tokens", f"a table of {expected}", len(running.table))

    def _own_slots(self, running: Running) -> Slots:
        """Which slots of a table are not the tree's; those are its last ones."""
        if Capability.SNAPSHOT not in self.adapter.capabilities:
            computed = Key(running.key.tokens[: running.computed_tokens], running.key.namespace)
            return running.table[aligned_count(computed, self.config) :]
        in_tree = np.isin(running.table, tree_slots(self.adapter.snapshot(), Component.FULL))
        shared = int(in_tree.sum())
        if not in_tree[:shared].all():
            raise violation("REQ-4", "table of a request", "the tree's slots before its own", in_tree.tolist())
        own: Slots = running.table[shared:].copy()
        return own

    def _renew_partners(self, running: Running) -> None:
        """A request gives up SWA partners as its window moves on: what it holds is what is mapped."""
        if Component.SWA in self.config.components:
            self.ledger.set_partners(running.own, self.adapter.partners(running.own))

    def _end(self, running: Running) -> None:
        self.ledger.give(running.own)
        if running.state is not None:
            self.ledger.give_state(running.state)
        running.own = NO_SLOTS
        del self._running[id(running.request)]
        self.verb_done()
