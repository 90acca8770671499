"""TableContents: writes and checks the bytes of caches whose components have tables of their own, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.driving.contents import NOISE
from hicache.testing.driving.patterns import (
    TOKEN_BYTES,
    Digests,
    as_numbers,
    check_fill,
    elements_of,
    fill,
    seed,
    token_digests,
)
from hicache.testing.driving.pools import pools_of
from hicache.testing.driving.running import RunningRequest
from hicache.testing.geometry import geometry_of
from hicache.testing.snapshot import BlockSnapshot, OffloadView
from hicache.testing.violation import violation
from hicache.types import Component, Key, Namespace, Pool, Slots


class TableContents:
    """Writes what requests compute, and checks what they read. Without BYTES it checks that the windows are there."""

    def __init__(self, adapter: CacheAdapter, config: CacheConfig) -> None:
        self._adapter = adapter
        self._config = config
        self._geometry = geometry_of(config)
        self._window = config.sliding_window_size or 0
        self._attention = [component for component in config.components if component != Component.MAMBA]
        self._readable = Capability.BYTES in adapter.capabilities

    def compute(self, running: RunningRequest, tokens: int) -> None:
        """Write the first `tokens` tokens of a request as far as it lacks them, and the state after exactly these.

        With the last token, the lookahead slots are overwritten, as the model does with drafts that are not accepted.
        """
        self.compute_kv(running, tokens)
        if Component.MAMBA in running.tables:
            own = running.tables[Component.MAMBA][-1:]
            self._write(Component.MAMBA, own, _state_digest(running.upto(tokens)))
        running.computed_tokens = tokens

    def compute_kv(self, running: RunningRequest, tokens: int) -> None:
        """Write the first `tokens` tokens of FULL and SWA as far as the request lacks them."""
        digests = _digests(running.key)
        ahead = self._geometry.lookahead if tokens == len(running.key.tokens) else 0
        for component in self._attention:
            table = running.tables[component]
            new = table[running.kv_tokens : tokens]
            self._write(component, new[new != 0], digests[running.kv_tokens : tokens][new != 0])
            self._overwrite(component, table[tokens : tokens + ahead])
        running.kv_tokens = max(tokens, running.kv_tokens)

    def verify(self, running: RunningRequest) -> None:
        """Check every computed token in the tables, and the own state (REQ-3). The window must be there (MATCH-3)."""
        self._require_window(running)
        digests = _digests(running.key)[: running.kv_tokens]
        place = f"a request of {len(running.key.tokens)} tokens"
        for component in self._attention:
            table = running.tables[component][: running.kv_tokens]
            self._check(component, table[table != 0], digests[table != 0], place, np.flatnonzero(table))
        if Component.MAMBA in running.tables and running.computed_tokens:
            state = _state_digest(running.computed())
            self._check(Component.MAMBA, running.tables[Component.MAMBA][-1:], state, f"the own state of {place}")

    def verify_blocks(self, snapshot: BlockSnapshot) -> None:
        """Check that every cached block holds the bytes of its prefix (REQ-3)."""
        for component in (*self._attention, Component.MAMBA.value):
            size = self._geometry.slots(component) if component in self._geometry.block_tokens else 0
            blocks = [block for block in snapshot.blocks if block.component == component]
            if not blocks:
                continue
            first = np.array([block.number for block in blocks], dtype=np.int64) * size
            slots = (first[:, None] + np.arange(size, dtype=np.int64)).reshape(-1)
            digests = np.concatenate([_last_digests(block.namespace, block.prefix, size) for block in blocks])
            ends = np.repeat([len(block.prefix) // TOKEN_BYTES for block in blocks], size)
            self._check(component, slots, digests, "a cached block, by the tokens up to its end", ends)

    def verify_chunks(self, view: OffloadView) -> None:
        """Check that every chunk on the host holds the bytes of its prefix (REQ-3)."""
        held = [(chunk, chunk.slots) for chunk in view.chunks if chunk.slots is not None]
        if not self._readable or not held:
            return
        slots = np.concatenate([own for _, own in held])
        digests = np.concatenate([_last_digests(chunk.namespace, chunk.prefix, len(own)) for chunk, own in held])
        for layer in range(self._adapter.layers(Pool.KV)):
            data = self._adapter.read_host(Pool.KV, slots, layer)
            check_fill(data, digests, 1, layer, Pool.KV, lambda row: f"host slot {slots[row]} of a chunk")

    def overwrite(self, slots: Slots) -> None:
        """Overwrite slots of FULL without a reader."""
        self._overwrite(Component.FULL, slots)

    def _require_window(self, running: RunningRequest) -> None:
        if Component.SWA in running.tables:
            start = max(0, running.computed_tokens - self._window)
            window = running.tables[Component.SWA][start : running.computed_tokens]
            if not window.all():
                place = f"window of a request after {running.computed_tokens} tokens"
                raise violation("MATCH-3", place, "SWA slots for all of it", f"none at {start + int(window.argmin())}")

    def _write(self, component: str, slots: Slots, digests: Digests) -> None:
        if not self._readable or not len(slots):
            return
        for pool in pools_of(self._config, component):
            for layer in range(self._adapter.layers(pool)):
                self._adapter.write(pool, slots, layer, fill(digests, 1, layer, pool, self._adapter.slot_bytes(pool)))

    def _overwrite(self, component: str, slots: Slots) -> None:
        if not self._readable or not len(slots):
            return
        for pool in pools_of(self._config, component):
            for layer in range(self._adapter.layers(pool)):
                noise = np.full((len(slots), self._adapter.slot_bytes(pool)), NOISE, dtype=np.uint8)
                self._adapter.write(pool, slots, layer, noise)

    def _check(
        self, component: str, slots: Slots, digests: Digests, place: str, positions: Sequence[int] | Slots = (0,)
    ) -> None:
        if not self._readable or not len(slots):
            return
        for pool in pools_of(self._config, component):
            for layer in range(self._adapter.layers(pool)):
                data = self._adapter.read(pool, slots, layer)
                check_fill(data, digests, 1, layer, pool, lambda row: f"slot {slots[row]} of {place}: {positions[row]}")


def _digests(key: Key) -> Digests:
    return token_digests(key.namespace, elements_of(key, bigram=False))


def _state_digest(key: Key) -> Digests:
    digests = _digests(key)
    return digests[-1:] if len(digests) else as_numbers([seed(key.namespace)])


@lru_cache(maxsize=1 << 14)
def _last_digests(namespace: Namespace, prefix: bytes, tokens: int) -> Digests:
    """Those of the last tokens of a prefix: a copy, since the digests of all prefixes would not fit in memory."""
    return token_digests(namespace, prefix)[-tokens:].copy()
