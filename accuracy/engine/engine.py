"""Engine: a model with a prefix cache: match, load back, lock, prefill in chunks, insert, decode, unlock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.violation import violation
from hicache.types import SHARED, Component, Handle, Key, Namespace, Slots, Tokens

from .model_layout import ModelPools
from .model_runner import RecordedCache
from .prefix_finder import CachedPrefix, Hits, PrefixFinder
from .served_model import ServedModel


@dataclass(slots=True, eq=False)
class Generation:
    """A request between its arrival and its end.

    `tokens`: the prompt and the appended tokens. `table`: its FULL slots in whole pages; the first `cached_tokens`
    belong to the tree, the others to the request. `computed_tokens`: how many tokens are in the pools. `receipt`: of
    the lock on its cached prefix. `state`: its own MAMBA slot, with the state after `computed_tokens`, or None without
    states. `running`: the cache that the model goes on from, or None to read it from the pools.
    """

    tokens: Tokens
    namespace: Namespace
    table: Slots
    cached_tokens: int
    computed_tokens: int
    receipt: Handle
    state: int | None
    hits: Hits
    branching_tokens: int
    running: RecordedCache | None

    @property
    def is_computed(self) -> bool:
        """Whether no token is left to compute."""
        return self.computed_tokens == len(self.tokens)


class Engine:
    """Runs requests of one model over one cache. Requests that run together are computed one chunk of each in turn.

    `chunk_tokens`: the most tokens that one forward computes, in whole pages. `rereads`: each forward reads its whole
    prefix from the pools, as kernels with a page table do; otherwise the model goes on from its own cache.
    Raises ValueError for chunks that are not whole pages.
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
            raise ValueError(f"chunk_tokens must be a multiple of the page size {config.page_size}, got {chunk_tokens}")
        self._runner = model.runner
        self._adapter = adapter
        self._page_size = config.page_size
        self._chunk_tokens = chunk_tokens
        self._rereads = rereads
        self._has_states = Component.MAMBA in config.components
        self._pools = ModelPools(model.runner, model.layout, adapter)
        self._prefixes = PrefixFinder(adapter, config)

    def begin(
        self, tokens: Tokens, *, reusable_tokens: int | None = None, namespace: Namespace = SHARED
    ) -> Generation | None:
        """Admit a request; None, with nothing allocated, when there are too few free slots beside running requests.

        `reusable_tokens`: how many tokens of the prompt may be hits; by default all but the last, whose logits the
        request needs. Raises ValueError when no token is left to compute.
        """
        reusable = len(tokens) - 1 if reusable_tokens is None else reusable_tokens
        if not 0 <= reusable < len(tokens):
            raise ValueError(f"reusable_tokens must be 0 or more and below the {len(tokens)} tokens, got {reusable}")
        key = Key(tokens[:reusable], namespace)
        begun = self._admit(tokens, namespace, self._prefixes.find(key))
        # The copy of the hit's state may be what there is no slot for: without the hit it is not needed.
        return begun or self._admit(tokens, namespace, self._prefixes.empty(key))

    def compute_chunk(self, generation: Generation) -> torch.Tensor:
        """Compute the next chunk of a request in one forward: its logits, float32 [tokens, vocabulary]."""
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
        """Compute all remaining chunks: the logits of all tokens after the hits, float32 [tokens, vocabulary]."""
        chunks = []
        while not generation.is_computed:
            chunks.append(self.compute_chunk(generation))
        return torch.cat(chunks)

    def append(self, generation: Generation, token: int) -> bool:
        """Append a token to compute; False, with nothing changed, when there is no free slot for it."""
        table = self._grown(generation.table, len(generation.tokens) + 1)
        if table is None:
            return False
        generation.table = table
        generation.tokens = np.append(generation.tokens, np.int32(token))
        return True

    def finish(self, generation: Generation) -> None:
        """End a request at any point: unlock its prefix, and free all slots that are not in the tree."""
        self._adapter.unlock(generation.receipt)
        if len(generation.table) > generation.cached_tokens:
            self._adapter.free(generation.table[generation.cached_tokens :])
        if generation.state is not None:
            self._adapter.free_state(generation.state)
        generation.running = None

    def _admit(self, tokens: Tokens, namespace: Namespace, prefix: CachedPrefix) -> Generation | None:
        state = self._own_state(prefix) if self._has_states else None
        table = self._grown(prefix.slots, len(tokens)) if state is not None or not self._has_states else None
        if table is None:
            if state is not None:
                self._adapter.free_state(state)
            self._adapter.unlock(prefix.receipt)
            return None
        cached, branching = len(prefix.slots), prefix.branching_tokens
        return Generation(
            tokens, namespace, table, cached, cached, prefix.receipt, state, prefix.hits, branching, running=None
        )

    def _own_state(self, prefix: CachedPrefix) -> int | None:
        if not len(prefix.slots):
            return self._prefixes.retry_after_drain(self._adapter.allocate_state)
        return self._prefixes.retry_after_drain(lambda: self._adapter.fork_state(prefix.node))

    def _grown(self, table: Slots, tokens: int) -> Slots | None:
        missing = -(-tokens // self._page_size) * self._page_size - len(table)
        if missing <= 0:
            return table
        slots = self._prefixes.retry_after_drain(lambda: self._adapter.allocate(missing))
        return None if slots is None else np.concatenate((table, slots))

    def _next_end(self, generation: Generation) -> int:
        """Where the next forward ends: at the end of a chunk, where a state is wanted, or at the end of the last page.

        With the last page's end, every cached prefix ends where a forward ended, and can be compared bit by bit.
        """
        start, total = generation.computed_tokens, len(generation.tokens)
        chunk_end = (start // self._chunk_tokens + 1) * self._chunk_tokens
        pages_end = total // self._page_size * self._page_size
        stops = (chunk_end, generation.branching_tokens, pages_end, total)
        return min(stop for stop in stops if stop > start)

    def _cache_pages(self, generation: Generation, recorded: RecordedCache) -> None:
        """Insert the computed pages, take over the tree's slots for them, and move the lock to their end.

        A model with states inserts only where a forward has just ended, with a copy of the state there.
        """
        computed = generation.computed_tokens
        end = computed // self._page_size * self._page_size
        if end <= generation.cached_tokens or (self._has_states and end != computed):
            return
        state = self._prefixes.retry_after_drain(self._adapter.allocate_state) if self._has_states else None
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
        found = self._adapter.match(key, chunked=True)
        if not len(found.device_indices) == result.accepted_length == end:
            raise violation(
                "REQ-4", f"match after the insert of {end} tokens", end, (len(found.device_indices), result)
            )
        receipt = self._adapter.lock(result.node)
        self._adapter.unlock(generation.receipt)
        generation.receipt = receipt
        generation.table = np.concatenate((found.device_indices, generation.table[end:]))
        generation.cached_tokens = end
