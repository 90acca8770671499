"""Stage: the tiny cache of the story with its driver, and the requests, whose prompts are texts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hicache.config import (
    SINGLE_RANK,
    CacheConfig,
    EvictionPolicy,
    ExecutorKind,
    HostConfig,
    Layout,
    StorageConfig,
    WritePolicy,
)
from hicache.testing.adapter import CacheAdapter
from hicache.testing.driving.driver import Driver
from hicache.testing.driving.patterns import elements_of
from hicache.testing.hybrid_model import TINY_MODEL
from hicache.testing.storage.scripted import BACKEND, store_of
from hicache.testing.story.picture import Painter, Picture, PictureMark, Words
from hicache.testing.story.stored_prompts import StoredPrompts
from hicache.testing.violation import violation
from hicache.types import Component, Handle, Key, LoadBack, MatchResult, Slots, StopPolicy, StorageKind, TransferKind

PAGE_SIZE = 4
"""Tokens in a page. In the story a token is a word."""

WINDOW = 16
"""Length of the sliding window in tokens."""

STORY = CacheConfig(
    components=(Component.FULL.value, Component.SWA.value, Component.MAMBA.value),
    page_size=PAGE_SIZE,
    capacity_tokens={Component.FULL.value: 32, Component.SWA.value: 32, Component.MAMBA.value: 4},
    sliding_window_size=WINDOW,
    mamba_chunk_size=PAGE_SIZE,
    policy=EvictionPolicy.LRU,
    bigram=False,
    events=False,
    layout=Layout.LAYER_FIRST,
    device="cpu",
    model=TINY_MODEL,
    topology=SINGLE_RANK,
    host=HostConfig(
        capacity_tokens={Component.FULL.value: 48, Component.SWA.value: 48, Component.MAMBA.value: 6},
        layout=Layout.PAGE_FIRST,
        write_policy=WritePolicy.WRITE_THROUGH,
        selective_hits=1,
        load_back_threshold_tokens=0,
        executor=ExecutorKind.STEPPED,
    ),
)
"""The configuration of the story: all components, a few pages on each tier, and stepped transfers."""

STORED_STORY = replace(
    STORY,
    storage=StorageConfig(
        backend=BACKEND,
        model="story",
        model_fingerprint="no model",
        options={"store": "story"},
        prefetch_threshold=0,
        stop_policy=StopPolicy.WAIT_COMPLETE,
        executor=ExecutorKind.STEPPED,
    ),
)
"""The same with storage, which answers step by step."""


@dataclass(frozen=True, slots=True, eq=False)
class ShownRequest:
    """A running request. `slots`: of its whole prompt; the first `shared` belong to the tree. `state`: its own slot."""

    key: Key
    slots: Slots
    shared: int
    state: int
    receipt: Handle


class ShownCache:
    """Runs the operations of the acts. They go through the driver, which checks every invariant after each call.

    `config`: that the adapter was opened with. Its storage, if it has one, is emptied first.
    """

    def __init__(self, adapter: CacheAdapter, config: CacheConfig) -> None:
        self.driver = Driver(adapter, config)
        self._store = store_of(config)
        if self._store is not None:
            self._store.empty()
        self._words = Words(PAGE_SIZE)
        self._prompts: dict[bytes, None] = {}
        self._prefetches: dict[str, Handle] = {}
        self._requests: dict[str, ShownRequest] = {}
        self._found: dict[str, MatchResult] = {}
        self._loads: dict[str, LoadBack] = {}
        self._marks: list[tuple[PictureMark, bytes]] = []

    def picture(self) -> Picture:
        """Take a picture of the cache, with the marks of the last match, and remove the marks."""
        marks, self._marks = self._marks, []
        return Painter(
            self.driver.snapshot(), self.driver.pending(), self._words, marks, self._stored_prompts()
        ).picture()

    def _stored_prompts(self) -> StoredPrompts | None:
        if self._store is None:
            return None
        awaited = [elements_of(one.key, bigram=False) for one in self.driver.prefetches.values()]
        return StoredPrompts(
            self.driver.adapter, self._store, self._prompts, awaited, self.driver.config.key_bytes_per_page
        )

    def compute(self, text: str) -> None:
        """Run a whole request: compute its prompt and insert it."""
        self._prompts[self._bytes(text)] = None
        self.driver.put(self._key(text))

    def look_up(self, who: str, text: str, *, anchor: str, best: str) -> None:
        """Match a prompt. The device anchor must be the end of `anchor`, and the best match the end of `best`."""
        found = self.driver.match(self._key(text))
        anchor_end, on_host = len(anchor.split()), self._on_host_alone(best)
        if len(found.device_indices) != anchor_end:
            raise violation("MATCH-5", f"device indices of {text!r}", f"{anchor_end} tokens", len(found.device_indices))
        if found.host_hit_length != on_host:
            raise violation("MATCH-12", f"host hit of {text!r}", f"{on_host} tokens", found.host_hit_length)
        self._marks = [(PictureMark.ANCHOR, self._bytes(anchor)), (PictureMark.BEST, self._bytes(best))]
        self._found[who] = found

    def load(self, who: str, text: str) -> None:
        """Start a load-back of what the request found on the host."""
        load = self.driver.load_back(self._key(text), self._found.pop(who))
        if load is None:
            raise violation("HOST-4", f"load-back for {who}", "a load, as there is room for it", None)
        self._loads[who] = load

    def claim(self, who: str) -> None:
        """Claim the load-back of a request."""
        self.driver.claim(self._loads.pop(who).ticket)

    def begin(self, who: str, text: str) -> None:
        """Start a request: lock the prefix of its prompt on the device, and allocate slots for the rest."""
        key = self._key(text)
        found = self.driver.match(key, chunked=True)
        receipt = self.driver.lock(found.device_anchor)
        shared = len(found.device_indices)
        missing = len(key.tokens) - shared
        fresh = self.driver.allocate(missing)
        state = self.driver.fork_state(found.device_anchor)
        if fresh is None or state is None:
            raise violation("EVICT-1", f"what {who} needs", f"room for {missing} tokens and a state", None)
        self._requests[who] = ShownRequest(key, np.concatenate((found.device_indices, fresh)), shared, state, receipt)

    def cache(self, who: str) -> None:
        """Compute the rest of the request's prompt, insert it, and move the lock to its end."""
        one = self._requests.pop(who)
        self._prompts[elements_of(one.key, bigram=False)] = None
        self.driver.write(one.key, one.slots[one.shared :], one.shared)
        self.driver.write_state(one.key, one.state)
        result = self.driver.insert(one.key, one.slots, shared=one.shared, state=one.state)
        if not result.state_adopted:
            raise violation("INS-7", f"insert for {who}", "its state to be taken", result)
        receipt = self.driver.lock(result.node)
        self.driver.unlock(one.receipt)
        self._requests[who] = ShownRequest(one.key, one.slots, len(one.slots), one.state, receipt)

    def finish(self, who: str) -> None:
        """Finish a request: release its lock."""
        self.driver.unlock(self._requests.pop(who).receipt)

    def start_transfers(self) -> None:
        """Start all queued transfers, and move half of the layers of each."""
        self.driver.step()
        self._go_half_way(*TransferKind)

    def finish_transfers(self) -> None:
        """Run all that is queued and under way to its end, requests to storage too, and acknowledge it."""
        self.driver.drain()

    def start_writes(self) -> None:
        """Finish all transfers, send the writes that follow them to storage, and let it do half of the batches."""
        self.driver.step()
        self.driver.complete_all()
        self.driver.step()
        self._require_pending("FETCH-9", "a write", StorageKind.STORE)
        self._go_half_way(StorageKind.STORE)

    def prefetch(self, who: str, text: str) -> None:
        """Start a prefetch for a request. Storage reports the length of its prefix, and reads half of the batches."""
        ticket = self.driver.prefetch(self._key(text))
        if ticket is None:
            raise violation("FETCH-1", f"prefetch for {who}", "a ticket: storage may have what the tree lacks", None)
        self._prefetches[who] = ticket
        self.driver.step()
        for query in self.driver.pending(StorageKind.QUERY):
            self.driver.complete(query.ticket)
        self.driver.step()
        self._require_pending("FETCH-4", f"what is read for {who}", StorageKind.PREFETCH)
        self._go_half_way(StorageKind.PREFETCH)

    def finish_prefetch(self, who: str, text: str) -> None:
        """Finish a prefetch. It must have brought exactly this text."""
        self.driver.drain()
        came, expected = self.driver.check_prefetch(self._prefetches.pop(who)), len(text.split())
        if came != expected:
            raise violation("FETCH-4", f"prefetch for {who}", f"{expected} tokens", came)

    def restart(self) -> None:
        """Close the cache, and open another one on the same storage."""
        self.driver.restart()

    def close(self) -> None:
        """Close the cache."""
        self.driver.adapter.close()

    def _require_pending(self, clause: str, place: str, kind: StorageKind) -> None:
        if not self.driver.pending(kind):
            raise violation(clause, place, f"a request of the kind {kind.value} to storage", self.driver.pending())

    def _go_half_way(self, *kinds: TransferKind | StorageKind) -> None:
        for one in self.driver.pending(*kinds):
            for _ in range(one.units // 2 - one.units_done):
                self.driver.advance(one.ticket)

    def _key(self, text: str) -> Key:
        return self.driver.key(self._words.tokens(text))

    def _bytes(self, text: str) -> bytes:
        return elements_of(self._key(text), bigram=False)

    def _on_host_alone(self, text: str) -> int:
        """Number of tokens of a prompt whose FULL data is only on the host."""
        snapshot, key = self.driver.snapshot(), self._bytes(text)
        return sum(
            node.end - node.start
            for number, node in enumerate(snapshot.nodes)
            if node.slots[Component.FULL] is None and key.startswith(snapshot.prefix(number))
        )
