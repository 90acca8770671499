"""The laws of caches beside the device, checked on the OffloadView of a BlockSnapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from hicache.config import CacheConfig
from hicache.testing.geometry import geometry_of
from hicache.testing.snapshot import ChunkView, OffloadView, TransferView
from hicache.testing.violation import ViolationError, violation
from hicache.types import Component, Sizes, TransferKind

FULL = Component.FULL.value
TOKEN_BYTES = 4


def check_chunks(view: OffloadView, config: CacheConfig, departures: frozenset[str]) -> None:
    """Raise InvariantError unless every law holds. `departures`: clauses whose laws are not checked."""
    for check in _laws(view, config):
        try:
            check()
        except ViolationError as error:
            if error.clause not in departures:
                raise


def _laws(view: OffloadView, config: CacheConfig) -> Iterator[Callable[[], None]]:
    yield partial(check_host_slots, view, config)
    yield partial(check_chunk_lengths, view, config)
    yield partial(check_one_copy, view)
    yield partial(check_pins, view)


def check_host_slots(view: OffloadView, config: CacheConfig) -> None:
    """POOL-1: each slot of the host is free, or of one chunk, or the target of one store; nothing is lost."""
    capacity = 0 if config.host is None else config.host.capacity_tokens[FULL]
    owners: dict[int, str] = {}
    for slot, owner in _owned(view):
        if slot < 1 or slot in owners:
            known = [owners.get(slot, "the padding slot"), owner]
            raise violation("POOL-1", f"host slot {slot}", "one owner, and no padding slot", known)
        owners[slot] = owner
    if view.pool.capacity != capacity or len(owners) != capacity:
        counts = dict(Counter(owners.values()))
        raise violation("POOL-1", "host pool", f"{capacity} slots with an owner", f"{len(owners)}: {counts}")


def check_chunk_lengths(view: OffloadView, config: CacheConfig) -> None:
    """KEY-1: a chunk ends whole chunks, and has a host slot for each of its tokens. MATCH-7: it is on some tier."""
    size = geometry_of(config).cached_tokens(FULL)
    for chunk in view.chunks:
        tokens = len(chunk.prefix) / TOKEN_BYTES
        if not tokens or tokens % size:
            raise violation("KEY-1", _place(chunk), f"a positive multiple of {size} tokens", f"{tokens:g}")
        if chunk.slots is not None and len(chunk.slots) != size:
            raise violation("KEY-1", _place(chunk), f"{size} host slots", f"{len(chunk.slots)}")
        if chunk.slots is None and not chunk.is_stored:
            raise violation("MATCH-7", _place(chunk), "on the host or in storage", "on no tier")


def check_one_copy(view: OffloadView) -> None:
    """INS-1: a prefix is kept once."""
    copies = Counter((chunk.namespace, chunk.prefix) for chunk in view.chunks)
    for chunk in view.chunks:
        if copies[chunk.namespace, chunk.prefix] > 1:
            raise violation("INS-1", _place(chunk), "one copy", f"{copies[chunk.namespace, chunk.prefix]} copies")


def check_pins(view: OffloadView) -> None:
    """LOCK-2: a chunk on the host counts the retrievals in flight that read it, and nothing else holds it."""
    readers = Counter[int]()
    for transfer in view.transfers:
        if transfer.kind is TransferKind.LOAD:
            readers.update(set(transfer.host[FULL].tolist()))
    for chunk in view.chunks:
        if chunk.slots is not None and len(chunk.slots):
            expected = readers[int(chunk.slots[0])]
            if chunk.pins != expected:
                raise violation("LOCK-2", _place(chunk), f"{expected} pins, one for each retrieval", chunk.pins)


def check_host_sizes(view: OffloadView, sizes: Mapping[str, Sizes]) -> None:
    """LOCK-4: of the host, chunks without pins are evictable, pinned ones and the targets of stores are protected."""
    held = [chunk for chunk in view.chunks if chunk.slots is not None]
    evictable = sum(len(chunk.slots) for chunk in held if chunk.slots is not None and not chunk.pins)
    pinned = sum(len(chunk.slots) for chunk in held if chunk.slots is not None and chunk.pins)
    stored = sum(len(one.host[FULL]) for one in _stores(view))
    expected = Sizes(evictable, pinned + stored, len(view.pool.free))
    if sizes[FULL] != expected:
        raise violation("LOCK-4", "size counters of the host", expected, sizes[FULL])


def check_evicted_chunks(
    before: OffloadView, after: OffloadView, config: CacheConfig, departures: frozenset[str] = frozenset()
) -> None:
    """EVICT-1, FLOW-8: no chunk leaves the host in a verb that leaves room for it, and none is lost that storage has.

    `departures`: clauses whose laws are not checked. The room that a store gave back when a part of it failed may hide
    the first.
    """
    failed = len(before.transfers) > len(after.transfers)
    now = {(chunk.namespace, chunk.prefix): chunk for chunk in after.chunks}
    room = len(after.pool.free) >= geometry_of(config).cached_tokens(FULL) and "EVICT-1" not in departures
    for chunk in before.chunks:
        left = now.get((chunk.namespace, chunk.prefix))
        if chunk.slots is not None and (left is None or left.slots is None) and room and not failed:
            raise violation("EVICT-1", _place(chunk), f"to stay while {len(after.pool.free)} slots are free", "evicted")
        if left is None and chunk.is_stored and not failed and "FLOW-8" not in departures:
            raise violation("FLOW-8", _place(chunk), "to stay in storage", "lost")


def _owned(view: OffloadView) -> Iterator[tuple[int, str]]:
    yield from ((slot, "free") for slot in view.pool.free.tolist())
    for chunk in view.chunks:
        yield from ((slot, "a chunk") for slot in ([] if chunk.slots is None else chunk.slots.tolist()))
    for transfer in _stores(view):
        yield from ((slot, "a store in flight") for slot in transfer.host[FULL].tolist())


def _stores(view: OffloadView) -> list[TransferView]:
    return [one for one in view.transfers if one.kind is TransferKind.BACKUP]


def _place(chunk: ChunkView) -> str:
    return f"chunk that ends {len(chunk.prefix) // TOKEN_BYTES} tokens of {chunk.namespace}"
