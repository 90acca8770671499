"""Every law of caches beside the device fails on a view that violates it, with its clause; a valid one passes all."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from hicache.config import HostConfig
from hicache.errors import ConfigurationError, InvariantError
from hicache.testing.driving.prompts import make_key
from hicache.testing.geometry import GeometricConfig, Geometry
from hicache.testing.laws.blocks import check_block_sizes, check_blocks
from hicache.testing.laws.chunks import check_chunks, check_evicted_chunks, check_host_sizes
from hicache.testing.models.blocks import BlockModel
from hicache.testing.snapshot import BlockPool, BlockSnapshot, ChunkView, OffloadView, PoolView, TransferView
from hicache.types import SHARED, Component, Sizes, Slots, TransferKind

FULL = Component.FULL.value

CONFIG = GeometricConfig(
    capacity_tokens={FULL: 16},
    page_size=4,
    host=HostConfig({FULL: 12}),
    geometry=Geometry({FULL: 2}, duplicates=True, chunk_tokens=4),
)


def slots(first: int, count: int = 4) -> Slots:
    return np.arange(first, first + count, dtype=np.int64)


def chunk(tokens: int, first: int | None, *, pins: int = 0, is_stored: bool = False, count: int = 4) -> ChunkView:
    prefix = np.arange(tokens, dtype="<i4").tobytes()
    return ChunkView(SHARED, prefix, None if first is None else slots(first, count), is_stored, pins)


def transfer(kind: TransferKind, device: int, host: int) -> TransferView:
    return TransferView(kind, {FULL: slots(device)}, {FULL: slots(host)})


LOAD = transfer(TransferKind.LOAD, device=4, host=1)
STORE = transfer(TransferKind.BACKUP, device=8, host=5)
CHUNKS = (chunk(4, 1, pins=1), chunk(8, None, is_stored=True))


def view(
    *chunks: ChunkView, free: Slots | None = None, transfers: tuple[TransferView, ...] = (LOAD, STORE)
) -> OffloadView:
    return OffloadView(chunks or CHUNKS, PoolView(12, slots(9) if free is None else free), transfers)


def test_a_sound_view_breaks_no_law() -> None:
    check_chunks(view(), CONFIG, frozenset())
    check_host_sizes(view(), {FULL: Sizes(0, 8, 4)})


WRONG = {
    "a slot in no hands": ("POOL-1", "12 slots with an owner", view(free=slots(9, 3))),
    "a free slot of a chunk": ("POOL-1", "'free', 'a chunk'", view(free=np.array([1, 9, 10, 11]))),
    "the padding slot": ("POOL-1", "no padding slot", view(free=np.array([0, 9, 10, 11]))),
    "a slot that is stored to": ("POOL-1", "'a chunk', 'a store in flight'", view(chunk(4, 5))),
    "half a chunk": ("KEY-1", "multiple of 4 tokens, got 6", view(chunk(6, 1, pins=1))),
    "a chunk with too few slots": (
        "KEY-1",
        "4 host slots, got 3",
        view(chunk(4, 1, pins=1, count=3), free=np.array([4, 9, 10, 11, 12])),
    ),
    "a chunk nowhere": ("MATCH-7", "on the host or in storage", view(CHUNKS[0], chunk(8, None))),
    "a second copy": ("INS-1", "one copy, got 2", view(*CHUNKS, chunk(8, None, is_stored=True))),
    "a pin that nobody holds": ("LOCK-2", "1 pins", view(chunk(4, 1, pins=2))),
    "a retrieval without a pin": ("LOCK-2", "1 pins", view(chunk(4, 1))),
}


@pytest.mark.parametrize(("clause", "words", "wrong"), WRONG.values(), ids=WRONG)
def test_a_law_names_its_clause(clause: str, words: str, wrong: OffloadView) -> None:
    with pytest.raises(InvariantError, match=rf"^{clause}: .*{re.escape(words)}"):
        check_chunks(wrong, CONFIG, frozenset())
    check_chunks(wrong, CONFIG, frozenset({clause}))


@pytest.mark.parametrize("sizes", [Sizes(4, 4, 4), Sizes(0, 4, 8), Sizes(0, 8, 8)], ids=str)
def test_sizes_of_the_host_are_recomputed(sizes: Sizes) -> None:
    with pytest.raises(InvariantError, match=r"^LOCK-4: size counters of the host"):
        check_host_sizes(view(), {FULL: sizes})


def test_a_chunk_stays_while_there_is_room_for_it() -> None:
    before = view(chunk(4, 1), chunk(8, 5), transfers=())
    with pytest.raises(InvariantError, match=r"^EVICT-1: .*8 slots are free"):
        check_evicted_chunks(before, view(chunk(4, 1), free=slots(5, 8), transfers=()), CONFIG)
    check_evicted_chunks(before, view(chunk(4, 1), free=slots(5, 8), transfers=()), CONFIG, frozenset({"EVICT-1"}))
    check_evicted_chunks(before, view(chunk(4, 1), free=slots(5, 3), transfers=()), CONFIG)


def test_a_chunk_that_is_stored_is_found_after_it_left_the_host() -> None:
    before = view(chunk(4, 1, is_stored=True), transfers=())
    after = OffloadView((), PoolView(12, slots(1, 0)), ())
    with pytest.raises(InvariantError, match=r"^FLOW-8: .*to stay in storage"):
        check_evicted_chunks(before, after, CONFIG, frozenset({"EVICT-1"}))
    check_evicted_chunks(before, after, CONFIG, frozenset({"EVICT-1", "FLOW-8"}))


def on_device(blank: tuple[int, ...], beside: OffloadView) -> BlockSnapshot:
    return BlockSnapshot((), (BlockPool((FULL,), 8, blank),), beside)


def test_a_block_in_a_transfer_belongs_to_nobody_else() -> None:
    # The load writes to blocks 2 and 3, the store reads 4 and 5; a request has 1 and 2.
    table = {FULL: slots(2)}
    check_blocks(on_device((6, 7, 8), view()), CONFIG, [table])
    check_block_sizes(on_device((6, 7, 8), view()), CONFIG, {FULL: Sizes(0, 10, 6)}, [table])
    with pytest.raises(InvariantError, match=r"^POOL-1: .*the blank blocks, got a transfer in flight as well"):
        check_blocks(on_device((4, 6, 7, 8), view()), CONFIG, [table])


def test_the_oracle_finds_chunks_without_a_gap() -> None:
    model = BlockModel(CONFIG)
    model.adopt(on_device((), view(chunk(4, 1), chunk(12, 5))))
    key = make_key(range(13), SHARED)
    assert model.expected_hit(key, 13) == 4, f"expected the first chunk alone, got {model.expected_hit(key, 13)}"
    model.adopt(on_device((), view(chunk(4, 1), chunk(8, None, is_stored=True), chunk(12, 5))))
    assert model.expected_hit(key, 13) == 12, f"expected three chunks, got {model.expected_hit(key, 13)}"


@pytest.mark.parametrize("tokens", [0, 3, -4])
def test_chunks_are_whole_blocks(tokens: int) -> None:
    with pytest.raises(ConfigurationError, match=r"geometry\.chunk_tokens must be positive whole blocks"):
        Geometry({FULL: 2}, chunk_tokens=tokens)


def test_a_configuration_with_chunks_has_a_host_and_no_other_has() -> None:
    with pytest.raises(ConfigurationError, match="a host tier exactly when it has chunks"):
        replace(CONFIG, host=None)
    with pytest.raises(ConfigurationError, match="a host tier exactly when it has chunks"):
        replace(CONFIG, page_size=2, geometry=Geometry({FULL: 2}))
