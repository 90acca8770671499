"""HostedPages: the pages of a small cache with two tiers: their positions, their locks, and their snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hicache.config import CacheConfig
from hicache.errors import ReceiptError
from hicache.testing.adapter import CacheAdapter, PageBytes
from hicache.testing.snapshot import HostNodeView, HostView, NodeView, PoolView, Snapshot, TransferView
from hicache.tests.kit.jobs import LAYERS, Jobs, Part
from hicache.types import NO_SLOTS, SHARED, Component, Handle, Pool, Sizes, Slots, TransferKind, TransferPhase

FULL = Component.FULL.value
SLOT_BYTES = 8
NONE = 0
"""The page number of an entry on a tier where it is absent."""


@dataclass(slots=True)
class Entry:
    """A cached page: its page number and locks on each tier, and how many of the locks the cache itself holds."""

    page: int = NONE
    host: int = NONE
    locks: int = 0
    pins: int = 0
    host_locks: int = 0
    host_pins: int = 0


@dataclass(slots=True, eq=False)
class Ticket:
    """A load: the prefix that it completes, its parts, and the parts that the tree did not take."""

    prefix: bytes
    parts: Sequence[Part]
    phase: TransferPhase = TransferPhase.QUEUED
    kept: list[int] = field(default_factory=list)


class HostedPages(CacheAdapter):
    """Pages by the bytes of their whole prefix, least recently used first."""

    def __init__(self, config: CacheConfig) -> None:
        assert config.host is not None, "this cache has a host tier"
        self.page_size = config.page_size
        self.pages = config.capacity_tokens[FULL] // config.page_size
        self.host_pages = config.host.capacity_tokens[FULL] // config.page_size
        self.free_pages = list(range(self.pages, 0, -1))
        self.free_host = list(range(self.host_pages, 0, -1))
        self.entries: dict[bytes, Entry] = {}
        self.receipts: dict[object, tuple[str, bytes]] = {}
        self.tickets: list[Ticket] = []
        shape = (LAYERS, 1 + max(self.pages, self.host_pages), SLOT_BYTES * self.page_size)
        self.jobs = Jobs(np.zeros(shape, dtype=np.uint8), np.zeros(shape, dtype=np.uint8))

    # Pools.

    def layers(self, pool: Pool) -> int:
        return LAYERS if pool is Pool.KV else 0

    def slot_bytes(self, pool: Pool) -> int:
        return SLOT_BYTES

    def write(self, pool: Pool, slots: Slots, layer: int, data: PageBytes) -> None:
        self.jobs.device[layer].reshape(-1, SLOT_BYTES)[slots] = data

    def read(self, pool: Pool, slots: Slots, layer: int) -> PageBytes:
        data: PageBytes = self.jobs.device[layer].reshape(-1, SLOT_BYTES)[slots]
        return data

    def read_host(self, pool: Pool, slots: Slots, layer: int) -> PageBytes:
        data: PageBytes = self.jobs.host[layer].reshape(-1, SLOT_BYTES)[slots]
        return data

    # Snapshot.

    def sizes(self) -> Mapping[str, Sizes]:
        counts = [(entry.page, entry.locks) for entry in self.entries.values()]
        return {FULL: self._sizes(counts, self.free_pages)}

    def host_sizes(self) -> Mapping[str, Sizes]:
        counts = [(entry.host, entry.host_locks) for entry in self.entries.values()]
        return {FULL: self._sizes(counts, self.free_host)}

    def snapshot(self) -> Snapshot:
        ordered = sorted(self.entries, key=len)
        rows = {prefix: row for row, prefix in enumerate(ordered)}
        transfers = [
            TransferView(kind, {FULL: self._slots([part.device])}, {FULL: self._slots([part.host])})
            for kind in TransferKind
            for part in self.jobs.in_flight(kind)
        ]
        kept = [page for ticket in self.tickets for page in ticket.kept]
        host = HostView(
            nodes=tuple(self._host_view(self.entries[prefix]) for prefix in ordered),
            pools={FULL: PoolView(self.host_pages * self.page_size, self._slots(self.free_host))},
            transfers=tuple(transfers),
            kept={FULL: self._slots(kept)},
        )
        pools = {FULL: PoolView(self.pages * self.page_size, self._slots(self.free_pages))}
        return Snapshot(tuple(self._view(prefix, rows) for prefix in ordered), pools, host, None)

    def _view(self, prefix: bytes, rows: Mapping[bytes, int]) -> NodeView:
        entry, page_bytes = self.entries[prefix], 4 * self.page_size
        return NodeView(
            parent=rows.get(prefix[:-page_bytes], -1),
            namespace=SHARED,
            segment=prefix[-page_bytes:],
            start=(len(prefix) - page_bytes) // 4,
            end=len(prefix) // 4,
            slots={FULL: self._slots([entry.page]) if entry.page else None},
            locks={FULL: entry.locks},
            hits=0,
        )

    def _host_view(self, entry: Entry) -> HostNodeView:
        slots = self._slots([entry.host]) if entry.host else None
        return HostNodeView({FULL: slots}, {FULL: entry.host_locks}, {FULL: entry.pins}, {FULL: entry.host_pins})

    # Internals.

    def _lock(self, handle: bytes, by: int) -> None:
        for prefix in self._prefixes(handle):
            self.entries[prefix].locks += by

    def _pin(self, prefixes: Iterable[bytes], by: int) -> None:
        for prefix in prefixes:
            self.entries[prefix].locks += by
            self.entries[prefix].pins += by

    def _pin_host(self, parts: Iterable[Part], by: int) -> None:
        for part in parts:
            self.entries[part.prefix].host_locks += by
            self.entries[part.prefix].host_pins += by

    def _prefixes(self, elements: bytes) -> list[bytes]:
        page_bytes = 4 * self.page_size
        return [elements[:end] for end in range(page_bytes, len(elements) + 1, page_bytes)]

    def _touch(self, prefixes: Sequence[bytes]) -> None:
        # A page is at least as recent as its descendants, so that the oldest page is always a leaf.
        for prefix in reversed(prefixes):
            self.entries[prefix] = self.entries.pop(prefix)

    def _sizes(self, counts: Iterable[tuple[int, int]], free: Sequence[int]) -> Sizes:
        held = [locks > 0 for page, locks in counts if page]
        protected = sum(held) * self.page_size
        return Sizes(len(held) * self.page_size - protected, protected, len(free) * self.page_size)

    def _pages_of(self, slots: Slots) -> list[int]:
        pages: list[int] = (slots[:: self.page_size] // self.page_size).tolist()
        return pages

    def _slots(self, pages: Iterable[int]) -> Slots:
        starts = np.array(list(pages), dtype=np.int64)[:, np.newaxis] * self.page_size
        return (starts + np.arange(self.page_size)).reshape(-1) if len(starts) else NO_SLOTS

    def _drop_if_empty(self, prefix: bytes) -> None:
        if not self.entries[prefix].page and not self.entries[prefix].host:
            del self.entries[prefix]

    def _receipt(self, kind: str, handle: bytes) -> object:
        receipt = object()
        self.receipts[receipt] = (kind, handle)
        return receipt

    def _take_receipt(self, receipt: Handle, kind: str) -> bytes:
        if self.receipts.get(receipt, ("", b""))[0] != kind:
            raise ReceiptError(f"{receipt!r} is not outstanding")
        return self.receipts.pop(receipt)[1]
