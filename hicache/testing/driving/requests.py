"""RequestVerbs: a request from its admission to its end, driven through an adapter, with the model's part."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hicache.testing.adapter import Admission
from hicache.testing.driving.base import DriverBase
from hicache.testing.driving.prompts import aligned_count, cut
from hicache.testing.driving.running_request import RunningRequest
from hicache.testing.laws.conservation import require_pages
from hicache.testing.violation import violation
from hicache.types import Component, Handle, Key, Slots


class RequestVerbs(DriverBase):
    """Admits, computes, checkpoints and ends requests.

    Writes the bytes that a request computes before the cache can take them, and checks the bytes that it shares.
    """

    def admit(self, key: Key) -> Admission | None:
        """Start a request and check the bytes of its table and state; None when it does not fit."""
        self.overwrite_free_slots()
        admission = self.adapter.admit(key)
        if admission is not None:
            self._start(key, admission)
        self.verb_done()
        return admission

    def resume(self, request: Handle) -> Admission | None:
        """The admission of a request that was loading, with its bytes checked, or None while it loads.

        Fewer tokens than at the first admission may be cached only after a failed load.
        """
        running = self.running[id(request)]
        admission = self.adapter.resume(request)
        if admission is not None:
            if admission.loading:
                raise violation("FLOW-4", "resume", "a request that does not load, or None", "one that is loading")
            cached = aligned_count(running.computed(), self.config)
            if admission.cached_tokens > cached or (admission.cached_tokens < cached and not self.failures):
                raise violation("FLOW-10", "resume", f"{cached} cached tokens, as admitted", admission.cached_tokens)
            self.locks.renew(running.owner)
            self._take(running, admission)
        self.verb_done()
        return admission

    def extend(self, request: Handle, tokens: Iterable[int]) -> Slots | None:
        """Compute all tokens so far and append more; returns the longer table, or None when it does not fit."""
        running = self._ready(request)
        self._compute(running, len(running.key.tokens))
        added = np.array(list(tokens), dtype=np.int32)
        table = self.adapter.extend(request, added)
        if table is not None:
            running.key = Key(np.concatenate((running.key.tokens, added)), running.key.namespace)
            running.table = table
            self.locks.renew(running.owner)
            self._require_table(running)
        self.verb_done()
        return table

    def checkpoint(self, request: Handle, computed_tokens: int) -> Slots:
        """Compute and cache a chunk, and check the bytes of the table, which may have other slots then."""
        running = self._ready(request)
        self._compute(running, computed_tokens)
        running.table = self.adapter.checkpoint(request, computed_tokens)
        self.locks.renew(running.owner)
        self._require_table(running)
        computed = running.computed()
        self.contents.verify(computed, running.table[: aligned_count(computed, self.config)])
        self.verb_done()
        return running.table

    def finish(self, request: Handle) -> None:
        """Compute all tokens, cache the whole pages, and release the rest."""
        running = self._ready(request)
        self._compute(running, len(running.key.tokens))
        self.adapter.finish(request)
        self._end(running)

    def abort(self, request: Handle) -> None:
        """Release everything that the request holds, also while it loads."""
        running = self.running[id(request)]
        self.adapter.abort(request)
        self._end(running)

    def _start(self, key: Key, admission: Admission) -> None:
        running = RunningRequest(admission.request, key, admission.table, None, self.locks.acquire(), 0, awaited=None)
        self._take(running, admission)
        self.running[id(admission.request)] = running

    def _take(self, running: RunningRequest, admission: Admission) -> None:
        """Record an admission; check the bytes of the cached prefix unless it is still loading."""
        cached, most = admission.cached_tokens, aligned_count(running.key, self.config)
        if not 0 <= cached <= most or cached % self.config.page_size:
            raise violation("REQ-4", "admit", f"whole pages, at most {most} cached tokens", cached)
        if (admission.state is not None) != (Component.MAMBA in self.config.components):
            raise violation("MATCH-11", "admit", "a state of its own exactly when there is MAMBA", admission.state)
        computed = cut(running.key, cached, self.config)
        running.table, running.state, running.computed_tokens = admission.table, admission.state, len(computed.tokens)
        running.awaited = cached if admission.loading else None
        self._require_table(running)
        if admission.loading:
            return
        self.contents.verify(computed, admission.table[:cached])
        if admission.state is not None and cached:
            self.contents.verify_state(computed, admission.state)

    def _ready(self, request: Handle) -> RunningRequest:
        """A request that can compute. Raises ValueError for one that waits for a load."""
        running = self.running[id(request)]
        if running.is_loading:
            raise ValueError(f"a request of {len(running.key.tokens)} tokens waits for a load: resume it first")
        return running

    def _compute(self, running: RunningRequest, tokens: int) -> None:
        """Compute the first `tokens` tokens: whole pages of KV, and the state after exactly these."""
        start = aligned_count(running.computed(), self.config)
        key = running.upto(tokens)
        self.contents.write(key, running.table[start : aligned_count(key, self.config)], start)
        if running.state is not None:
            self.contents.write_state(key, running.state)
        running.computed_tokens = tokens

    def _require_table(self, running: RunningRequest) -> None:
        tokens = len(running.key.tokens)
        place = f"table of a request of {tokens} tokens"
        expected = -(-tokens // self.config.page_size) * self.config.page_size
        if len(running.table) != expected:
            raise violation("REQ-4", place, f"{expected} slots", f"{len(running.table)} slots")
        require_pages(running.table, self.config.page_size, place)

    def _end(self, running: RunningRequest) -> None:
        del self.running[id(running.request)]
        self.locks.release(running.owner)
        self.verb_done()
