"""Engine: a model behind a cache: match, lock, load back, prefill in chunks, insert, decode, release."""

from __future__ import annotations

import numpy as np
import torch

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.violation import violation
from hicache.types import SHARED, Component, Key, Namespace, Slots, Tokens

from .arrivals import Arrival, Arrivals
from .generation import Generation
from .model_pools import ModelPools
from .recorded_cache import RecordedCache
from .served_model import ServedModel


class Engine:
    """Requests of one model over one cache; those that run together take turns, chunk by chunk.

    `chunk_tokens`: the most that one forward computes, in whole pages. `rereads`: each forward reads its whole prefix
    from the pools, as kernels with a page table do; otherwise the model keeps what it computed itself.
    Raises ValueError for chunks that are no whole pages.
    """

    def __init__(
        self,
        model: ServedModel,
        adapter: CacheAdapter,
        config: CacheConfig,
        *,
        chunk_tokens: int,
        rereads: bool,
    ) -> None:
        if chunk_tokens <= 0 or chunk_tokens % config.page_size:
            raise ValueError(f"chunks of {chunk_tokens} tokens are no whole pages of {config.page_size}")
        self._runner = model.runner
        self._adapter = adapter
        self._page_size = config.page_size
        self._chunk_tokens = chunk_tokens
        self._rereads = rereads
        self._has_states = Component.MAMBA in config.components
        self._pools = ModelPools(model.runner, model.layout, adapter)
        self._arrivals = Arrivals(adapter, config)

    def begin(
        self, tokens: Tokens, *, reusable_tokens: int | None = None, namespace: Namespace = SHARED
    ) -> Generation | None:
        """A request arrives; None, with nothing taken, when it does not fit beside those that run.

        `reusable_tokens`: of the prompt, how many may be answered from the cache; all but the last unless said, for the
        last one's logits are what is asked for. Raises ValueError when it leaves nothing to compute.
        """
        reusable = len(tokens) - 1 if reusable_tokens is None else reusable_tokens
        if not 0 <= reusable < len(tokens):
            raise ValueError(f"of {len(tokens)} tokens {reusable} cannot be answered from the cache")
        key = Key(tokens[:reusable], namespace)
        begun = self._admit(tokens, namespace, self._arrivals.take(key))
        # A copy of the hit's state may be what does not fit.
        return begun or self._admit(tokens, namespace, self._arrivals.nothing(key))

    def compute_chunk(self, generation: Generation) -> torch.Tensor:
        """One forward of a request that is not computed: logits of its next tokens, float32 [tokens, vocabulary]."""
        start, end = generation.computed_tokens, self._next_end(generation)
        recorded = generation.running or self._pools.restore(generation.table[:start], generation.state)
        logits = self._runner.forward(generation.tokens[start:end], start, recorded.cache)
        self._pools.write(recorded, generation.table[start:end])
        if generation.state is not None:
            self._pools.write_state(recorded, generation.state)
        generation.computed_tokens = end
        self._cache_pages(generation, recorded)
        generation.running = None if self._rereads else recorded
        self._adapter.step()
        return logits

    def compute(self, generation: Generation) -> torch.Tensor:
        """All that is left: the logits of the tokens that no cache answered, float32 [tokens, vocabulary]."""
        chunks = []
        while not generation.is_computed:
            chunks.append(self.compute_chunk(generation))
        return torch.cat(chunks)

    def append(self, generation: Generation, token: int) -> bool:
        """One more token to compute; False, with nothing changed, when there is no slot for it."""
        table = self._grown(generation.table, len(generation.tokens) + 1)
        if table is None:
            return False
        generation.table = table
        generation.tokens = np.append(generation.tokens, np.int32(token))
        return True

    def finish(self, generation: Generation) -> None:
        """Give everything back but what the tree keeps, at whatever point."""
        self._adapter.unlock(generation.receipt)
        if len(generation.table) > generation.cached_tokens:
            self._adapter.free(generation.table[generation.cached_tokens :])
        if generation.state is not None:
            self._adapter.free_state(generation.state)
        generation.running = None

    def _admit(self, tokens: Tokens, namespace: Namespace, arrival: Arrival) -> Generation | None:
        state = self._own_state(arrival) if self._has_states else None
        table = self._grown(arrival.slots, len(tokens)) if state is not None or not self._has_states else None
        if table is None:
            if state is not None:
                self._adapter.free_state(state)
            self._adapter.unlock(arrival.receipt)
            return None
        cached, branching = len(arrival.slots), arrival.branching_tokens
        return Generation(
            tokens, namespace, table, cached, cached, arrival.receipt, state, arrival.hits, branching, running=None
        )

    def _own_state(self, arrival: Arrival) -> int | None:
        if not len(arrival.slots):
            return self._arrivals.fit(self._adapter.allocate_state)
        return self._arrivals.fit(lambda: self._adapter.fork_state(arrival.node))

    def _grown(self, table: Slots, tokens: int) -> Slots | None:
        missing = -(-tokens // self._page_size) * self._page_size - len(table)
        if missing <= 0:
            return table
        slots = self._arrivals.fit(lambda: self._adapter.allocate(missing))
        return None if slots is None else np.concatenate((table, slots))

    def _next_end(self, generation: Generation) -> int:
        """Where the next forward stops: at a chunk's end, where a state is wanted, and at the last page's end.

        The last, so that whatever is cached is what a forward ended with, and another can be compared bit by bit.
        """
        start, total = generation.computed_tokens, len(generation.tokens)
        chunk_end = (start // self._chunk_tokens + 1) * self._chunk_tokens
        pages_end = total // self._page_size * self._page_size
        stops = (chunk_end, generation.branching_tokens, pages_end, total)
        return min(stop for stop in stops if stop > start)

    def _cache_pages(self, generation: Generation, recorded: RecordedCache) -> None:
        """Hand what was computed to the tree, share what the tree keeps, and move the lock there.

        With states only where one was just computed, and where the tree gets a copy of it.
        """
        computed = generation.computed_tokens
        end = computed // self._page_size * self._page_size
        if end <= generation.cached_tokens or (self._has_states and end != computed):
            return
        state = self._arrivals.fit(self._adapter.allocate_state) if self._has_states else None
        if self._has_states and state is None:
            return
        if state is not None:
            self._pools.write_state(recorded, state)
        self._insert(generation, end, state)

    def _insert(self, generation: Generation, end: int, state: int | None) -> None:
        key = Key(generation.tokens[:end], generation.namespace)
        result = self._adapter.insert(
            key,
            generation.table[:end],
            shared=generation.cached_tokens,
            window_start=0,
            state=state,
            priority=0,
        )
        if state is not None and not result.state_adopted:
            self._adapter.free_state(state)
        kept = self._adapter.match(key, chunked=True)
        if not len(kept.device_indices) == result.accepted_length == end:
            raise violation("REQ-4", f"match after the insert of {end} tokens", end, (len(kept.device_indices), result))
        receipt = self._adapter.lock(result.node)
        self._adapter.unlock(generation.receipt)
        generation.receipt = receipt
        generation.table = np.concatenate((kept.device_indices, generation.table[end:]))
        generation.cached_tokens = end
