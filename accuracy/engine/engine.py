"""Engine: a model with a prefix cache: match, load back, lock, prefill in chunks, insert, decode, unlock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.driving.scheduler import ScheduledRequest, Scheduler
from hicache.types import SHARED, Component, Handle, Key, Namespace, Slots, Tokens

from .batch import BatchRow, can_batch, forward_rows
from .model_layout import ModelPools
from .model_runner import RecordedCache
from .served_model import ServedModel


@dataclass(frozen=True, slots=True)
class Hits:
    """Tokens of a prompt that were not computed, by the tier that their FULL KV came from. Each is counted once.

    KV that is on the device is not copied: such a token is a device hit, even if its window or state was loaded back.
    Of the tokens whose KV was loaded back, the last ones are those that a prefetch brought from storage.
    """

    device: int
    host: int
    storage: int

    @property
    def total(self) -> int:
        """Tokens from all tiers."""
        return self.device + self.host + self.storage


NO_HITS = Hits(0, 0, 0)


@dataclass(slots=True, eq=False)
class Generation:
    """A request between its arrival and its end.

    `request`: the prompt and the appended tokens, and what the request holds of the cache. `computed_tokens`: how many
    tokens are in the pools. `branching_tokens`: the position at which a state should be cached, 0 for none. `running`:
    the cache that the model goes on from, or None to read it from the pools.
    """

    request: ScheduledRequest
    computed_tokens: int
    hits: Hits
    branching_tokens: int
    running: RecordedCache | None

    @property
    def tokens(self) -> Tokens:
        """The prompt and the appended tokens."""
        return self.request.key.tokens

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
        self, model: ServedModel, adapter: CacheAdapter, config: CacheConfig, *, chunk_tokens: int, rereads: bool
    ) -> None:
        if chunk_tokens <= 0 or chunk_tokens % config.page_size:
            raise ValueError(f"chunk_tokens must be a multiple of the page size {config.page_size}, got {chunk_tokens}")
        self._runner = model.runner
        self._layout = model.layout
        self._page_size = config.page_size
        self._chunk_tokens = chunk_tokens
        self._rereads = rereads
        self._has_states = Component.MAMBA in config.components
        self._pools = ModelPools(model.runner, model.layout, adapter)
        self._scheduler = Scheduler(adapter, config, loads_may_fail=True)
        self._reads_early = Capability.LAYER_WAITS in adapter.capabilities
        self._adapter = adapter
        self._prefetches = config.storage is not None and Capability.STORAGE in adapter.capabilities

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
        whole, reused = Key(tokens, namespace), Key(tokens[:reusable], namespace)
        prefetched = self._prefetch(reused) if self._prefetches else 0
        found = self._scheduler.match(reused)
        read: list[tuple[int, RecordedCache]] = []
        request = self._scheduler.begin(whole, found, partial(self._read_early, read) if self._reads_early else None)
        cached = request.cached_tokens
        hits = _hits(cached, min(found.host_hit_length, cached - len(found.device_indices)), prefetched)
        begun = self._admit(request, hits, found.branching_seqlen or 0)
        if begun is not None:
            # Nothing of a load that failed is used.
            begun.running = next((recorded for tokens, recorded in read if tokens == cached), None)
        else:
            # The copy of the hit's state may be what there is no slot for: without the hit it is not needed.
            nothing = self._scheduler.match(Key(tokens[:0], namespace), chunked=True)
            begun = self._admit(self._scheduler.begin(whole, nothing), NO_HITS, 0)
        return begun

    @property
    def can_batch(self) -> bool:
        """Whether `compute_chunks` takes several requests. States, indexers and compressors allow one."""
        return can_batch(self._layout)

    @property
    def page_size(self) -> int:
        """Tokens of a page."""
        return self._page_size

    def compute_chunk(self, generation: Generation) -> torch.Tensor:
        """Compute the next chunk of a request in one forward: its logits, float32 [tokens, vocabulary]."""
        return self.compute_chunks([generation])[0]

    def compute_chunks(self, generations: Sequence[Generation]) -> list[torch.Tensor]:
        """Compute the next chunk of each request in one forward: the logits of each, float32 [tokens, vocabulary].

        The rows are padded to the longest chunk. Raises ValueError for several requests of a model that `can_batch` is
        false for.
        """
        if len(generations) > 1 and not self.can_batch:
            raise ValueError(f"a {self._runner.model_type} computes one request at a time, got {len(generations)}")
        rows = [self._next_row(one) for one in generations]
        logits = forward_rows(self._runner, rows)
        for generation, row in zip(generations, rows, strict=True):
            self._take_over(generation, row)
        self._scheduler.step()
        return logits

    def compute(self, generation: Generation) -> torch.Tensor:
        """Compute all remaining chunks: the logits of all tokens after the hits, float32 [tokens, vocabulary]."""
        chunks = []
        while not generation.is_computed:
            chunks.append(self.compute_chunk(generation))
        return torch.cat(chunks)

    def append(self, generation: Generation, token: int) -> bool:
        """Append a token to compute; False, with nothing changed, when there is no free slot for it."""
        request, tokens = generation.request, len(generation.tokens) + 1
        if tokens > len(request.table) and not self._scheduler.grow(request, tokens):
            return False
        request.key = Key(np.append(generation.tokens, np.int32(token)), request.key.namespace)
        return True

    def finish(self, generation: Generation) -> None:
        """End a request at any point: unlock its prefix, and free all slots that are not in the tree."""
        self._scheduler.release(generation.request)
        generation.running = None

    def _read_early(self, read: list[tuple[int, RecordedCache]], slots: Slots, ticket: Handle) -> None:
        """Read a prefix layer by layer while its load runs, each layer when it has come."""
        if self._pools.can_read_early(slots):
            read.append((len(slots), self._pools.restore(slots, None, partial(self._adapter.wait_layer, ticket))))

    def _prefetch(self, key: Key) -> int:
        """Prefetch a prompt to the end, as there is no other work to do: the number of tokens that were loaded."""
        ticket = self._scheduler.start_prefetch(key)
        return 0 if ticket is None else self._scheduler.end_prefetch(ticket)

    def _admit(self, request: ScheduledRequest, hits: Hits, branching: int) -> Generation | None:
        has_state = not self._has_states or self._scheduler.take_state(request)
        if not has_state or not self._scheduler.grow(request, len(request.key.tokens)):
            self._scheduler.release(request)
            return None
        return Generation(request, request.cached_tokens, hits, branching, running=None)

    def _next_row(self, generation: Generation) -> BatchRow:
        request, start = generation.request, generation.computed_tokens
        recorded = generation.running or self._pools.restore(request.table[:start], request.state)
        return BatchRow(generation.tokens[start : self._next_end(generation)], start, recorded)

    def _take_over(self, generation: Generation, row: BatchRow) -> None:
        """Write what a forward has computed of a request into its slots, and cache the whole pages of it."""
        request, end = generation.request, row.start + len(row.tokens)
        self._pools.write(row.recorded, request.table[row.start : end])
        if request.state is not None:
            self._pools.write_state(row.recorded, request.state)
        generation.computed_tokens = end
        self._cache_pages(generation, row.recorded)
        generation.running = None if self._rereads else row.recorded

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
        if end > generation.request.cached_tokens and (end == computed or not self._has_states):
            self._scheduler.insert(generation.request, end, lambda _, slot: self._pools.write_state(recorded, slot))


def _hits(total: int, loaded: int, prefetched: int) -> Hits:
    from_storage = min(prefetched, loaded)
    return Hits(total - loaded, loaded - from_storage, from_storage)
