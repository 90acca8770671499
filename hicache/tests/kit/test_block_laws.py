"""Every law of caches of blocks fails on a snapshot that violates it, with its clause; a valid snapshot passes all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from hicache.errors import InvariantError
from hicache.testing.adapter import Capability
from hicache.testing.caches.blocks import BlockCacheAdapter
from hicache.testing.driving.driver import Driver
from hicache.testing.driving.prompts import make_key
from hicache.testing.geometry import GeometricConfig, Geometry
from hicache.testing.laws.blocks import check_block_sizes, check_blocks, check_evicted, check_growth, check_table
from hicache.testing.load import load_adapter
from hicache.testing.models.blocks import BlockModel
from hicache.testing.snapshot import BlockPool, BlockSnapshot, CachedBlock
from hicache.types import SHARED, Component, Key, Namespace, Pool, Sizes, Slots

FULL, SWA, MAMBA = (component.value for component in Component)

CONFIG = GeometricConfig(
    capacity_tokens={FULL: 16, SWA: 16, MAMBA: 8},
    page_size=4,
    components=(FULL, SWA, MAMBA),
    sliding_window_size=3,
    mamba_chunk_size=4,
    geometry=Geometry({FULL: 2, SWA: 2, MAMBA: 4}, shared_pool=True, duplicates=True),
)
SEPARATE = replace(CONFIG, geometry=replace(CONFIG.geometry, duplicates=False))


def data(count: int, first: int = 0) -> bytes:
    return np.arange(first, first + count, dtype="<i4").tobytes()


def cached(component: str, number: int, tokens: int, references: int = 0, first: int = 0) -> CachedBlock:
    return CachedBlock(component, number, SHARED, data(tokens, first), references)


def slots(*blocks: int, size: int = 2) -> Slots:
    first = np.array(blocks, dtype=np.int64)
    return (first[:, None] * size + np.arange(size) * (first[:, None] > 0)).reshape(-1)


BLOCKS = (cached(FULL, 1, 2, references=1), cached(FULL, 2, 4), cached(SWA, 3, 4), cached(MAMBA, 4, 4))
TABLE = {FULL: slots(1, 5), SWA: slots(0, 6), MAMBA: slots(7, size=1)}
"""A request that found one block of FULL, and computes in blocks 5 to 7."""


def shown(*blocks: CachedBlock, blank: Sequence[int] = (8,), queue: Sequence[int] | None = None) -> BlockSnapshot:
    return BlockSnapshot(
        blocks or BLOCKS,
        (BlockPool((FULL, SWA, MAMBA), 8, tuple(blank), None if queue is None else tuple(queue)),),
    )


def test_a_sound_snapshot_breaks_no_law() -> None:
    check_blocks(shown(queue=(8, 2, 3, 4)), CONFIG, [TABLE])


WRONG: Mapping[str, tuple[str, str, BlockSnapshot, Sequence[Mapping[str, Slots]]]] = {
    "a block in no hands": ("POOL-1", "8 blocks with an owner", shown(blank=()), [TABLE]),
    "a blank block in a table": ("POOL-1", "one owner, the blank", shown(blank=(8, 5)), [TABLE]),
    "a blank block that is cached": ("POOL-1", "the cached blocks of full as well", shown(blank=(8, 2)), [TABLE]),
    "a block that is blank twice": ("POOL-1", "the blank blocks as well", shown(blank=(8, 8)), [TABLE]),
    "the padding block": ("POOL-1", "above 0", shown(blank=(8, 0)), [TABLE]),
    "a block of two components": ("POOL-1", "one owner", shown(*BLOCKS, cached(SWA, 2, 4)), [TABLE]),
    "a block that two requests compute": ("POOL-1", "1 entry in tables, got 2", shown(*BLOCKS), [TABLE, TABLE]),
    "a block that a table of another component has": (
        "POOL-1",
        "one owner",
        shown(),
        [TABLE | {SWA: slots(0, 1)}],
    ),
    "a queue with a block in use": ("POOL-1", "queue", shown(queue=(8, 1, 2, 3, 4)), [TABLE]),
    "pools that are not shared": (
        "POOL-1",
        "pools",
        BlockSnapshot(BLOCKS, tuple(BlockPool((name,), 8, (8,)) for name in (FULL, SWA, MAMBA))),
        [TABLE],
    ),
    "a pool of another capacity": (
        "POOL-1",
        "8 blocks",
        BlockSnapshot(BLOCKS, (BlockPool((FULL, SWA, MAMBA), 9, (8, 9)),)),
        [TABLE],
    ),
    "half a block": ("KEY-1", "multiple of 4 tokens", shown(*BLOCKS[:3], cached(MAMBA, 4, 6)), [TABLE]),
    "a reference too many": ("LOCK-2", "1 references", shown(cached(FULL, 1, 2, 2), *BLOCKS[1:]), [TABLE]),
    "a reference too few": ("LOCK-2", "1 references", shown(cached(FULL, 1, 2), *BLOCKS[1:]), [TABLE]),
}


@pytest.mark.parametrize(("clause", "words", "snapshot", "tables"), WRONG.values(), ids=WRONG)
def test_a_law_names_its_clause(
    clause: str, words: str, snapshot: BlockSnapshot, tables: Sequence[Mapping[str, Slots]]
) -> None:
    with pytest.raises(InvariantError, match=rf"^{clause}: .*{re.escape(words)}"):
        check_blocks(snapshot, CONFIG, tables)


def test_a_clause_that_a_cache_departs_from_is_not_checked() -> None:
    check_blocks(shown(cached(FULL, 1, 2), *BLOCKS[1:]), CONFIG, [TABLE], frozenset({"LOCK-2"}))


def test_a_second_copy_is_refused_unless_the_geometry_has_duplicates() -> None:
    snapshot = shown(*BLOCKS, cached(FULL, 8, 4), blank=())
    check_blocks(snapshot, CONFIG, [TABLE])
    with pytest.raises(InvariantError, match=r"^INS-1: .*2 copies"):
        check_blocks(snapshot, SEPARATE, [TABLE])


def test_sizes_are_those_of_the_pool_in_slots_of_the_component() -> None:
    sizes = {FULL: Sizes(6, 8, 2), SWA: Sizes(6, 8, 2), MAMBA: Sizes(3, 4, 1)}
    check_block_sizes(shown(), CONFIG, sizes, [TABLE])
    with pytest.raises(InvariantError, match=r"^LOCK-4: size counters of mamba"):
        check_block_sizes(shown(), CONFIG, sizes | {MAMBA: Sizes(3, 3, 2)}, [TABLE])


def test_nothing_cached_goes_while_blocks_are_blank() -> None:
    check_evicted(shown(), shown(*BLOCKS[:3], blank=()), "EVICT-1")
    with pytest.raises(InvariantError, match=r"^EVICT-1: block 4 of mamba.*1 blocks are blank"):
        check_evicted(shown(), shown(*BLOCKS[:3]), "EVICT-1")
    with pytest.raises(InvariantError, match=r"^EVICT-1: block 4 of mamba"):
        check_evicted(shown(), shown(*BLOCKS[:3], cached(MAMBA, 4, 4, first=9)), "EVICT-1")


def test_a_block_that_is_merged_early_leaves_one_blank() -> None:
    merged = cached(FULL, 2, 4, references=1)
    after = shown(BLOCKS[0], merged, BLOCKS[2])
    check_evicted(shown(), after, "EVICT-1", merges=True)
    with pytest.raises(InvariantError, match=r"^EVICT-1: block 4 of mamba.*1 blocks are blank"):
        check_evicted(shown(), after, "EVICT-1")
    with pytest.raises(InvariantError, match=r"^EVICT-1: block 4 of mamba.*2 blocks are blank"):
        check_evicted(shown(), shown(BLOCKS[0], merged, BLOCKS[2], blank=(5, 8)), "EVICT-1", merges=True)


@pytest.mark.parametrize(
    ("changed", "clause"),
    [
        ({FULL: slots(1)}, "REQ-4"),
        ({FULL: slots(0, 5)}, "POOL-4"),
        ({FULL: np.array([2, 3, 5, 6])}, "POOL-4"),
        ({SWA: np.array([0, 12, 0, 13])}, "POOL-4"),
        ({MAMBA: slots(size=1)}, "REQ-4"),
        ({MAMBA: slots(0, size=1)}, "REQ-4"),
    ],
    ids=str,
)
def test_a_table_has_whole_blocks_for_every_token(changed: dict[str, Slots], clause: str) -> None:
    check_table(TABLE, CONFIG, 3)
    with pytest.raises(InvariantError, match=f"^{clause}: table of"):
        check_table(TABLE | changed, CONFIG, 3)


def test_a_table_lacks_no_component() -> None:
    with pytest.raises(InvariantError, match=r"^REQ-4: tables of a request"):
        check_table({FULL: TABLE[FULL]}, CONFIG, 3)


def test_a_table_grows_and_loses_entries_and_changes_none() -> None:
    check_growth(TABLE, {FULL: slots(1, 5, 8), SWA: slots(0, 0, 9), MAMBA: slots(10, size=1)})
    with pytest.raises(InvariantError, match=r"^REQ-4: table of full"):
        check_growth(TABLE, TABLE | {FULL: slots(2, 5)})


# The oracle.


def hit(*blocks: tuple[str, int], tokens: int = 9, namespace: Namespace = SHARED) -> int:
    model = BlockModel(CONFIG)
    model.adopt(BlockSnapshot(tuple(cached(name, 1, end) for name, end in blocks), ()))
    return model.expected_hit(make_key(range(tokens), namespace), tokens)


SERVED = ((FULL, 2), (FULL, 4), (FULL, 6), (FULL, 8), (SWA, 6), (SWA, 8), (MAMBA, 8))


def test_a_hit_needs_all_of_full_the_window_and_the_state() -> None:
    assert hit(*SERVED) == 8, f"everything is cached up to 8 tokens: got {hit(*SERVED)}"
    for missing in SERVED:
        left = hit(*(one for one in SERVED if one != missing))
        assert left == 0, f"without the block of {missing}: expected no hit, got {left}"
    assert hit(*SERVED, tokens=7) == 0, "a prompt of 7 tokens ends before the state: expected no hit"
    assert hit(*SERVED, namespace=Namespace(lora="a")) == 0, "expected no hit in another namespace"


def test_an_admission_leaves_a_token_to_compute() -> None:
    model = BlockModel(CONFIG)
    model.adopt(BlockSnapshot(tuple(cached(name, 1, end) for name, end in SERVED), ()))
    found = [model.expected_admission(make_key(range(count), SHARED)) for count in (8, 9)]
    assert found == [0, 8], f"prompts of 8 and 9 tokens: expected hits of 0 and 8, got {found}"


def test_a_prefix_that_nobody_computed_is_refused() -> None:
    model = BlockModel(CONFIG)
    model.compute(make_key(range(4), SHARED))
    for known in ((cached(FULL, 1, 2), cached(MAMBA, 2, 4)), (cached(FULL, 1, 2),), (cached(MAMBA, 2, 4),)):
        model.adopt(shown(*known))
        model.require_computed("finish")
    model.adopt(shown(cached(FULL, 1, 2), cached(FULL, 2, 6)))
    with pytest.raises(InvariantError, match=r"^REQ-11: finish: a prefix of 6 tokens of full"):
        model.require_computed("finish")


# The bytes.


def broken(driver: Driver, pool: str, slot: int) -> None:
    """Overwrite one slot in the last layer."""
    layer = driver.adapter.layers(pool) - 1
    driver.adapter.write(pool, np.array([slot]), layer, np.full((1, driver.adapter.slot_bytes(pool)), 7, np.uint8))


def opened() -> Driver:
    return Driver(BlockCacheAdapter(CONFIG.with_blocks(32)), CONFIG.with_blocks(32))


def key(tokens: int) -> Key:
    return make_key(range(1, tokens + 1), SHARED)


@pytest.mark.parametrize(("pool", "component"), [(Pool.KV, FULL), (Pool.SWA, SWA), (Pool.MAMBA, MAMBA)])
@pytest.mark.parametrize("is_running", [True, False])
def test_a_wrong_byte_is_found_in_tables_and_in_cached_blocks(pool: str, component: str, is_running: bool) -> None:
    driver = opened()
    admission = driver.admit(key(9))
    assert admission is not None, "an empty cache has room for a prompt"
    driver.checkpoint(admission.request, 8)
    table = driver.adapter.tables(admission.request)[component]
    slot = int(table[-1]) if component == MAMBA else int(table[7])
    if not is_running:
        driver.finish(admission.request)
        slot = next(
            block.number * driver.geometry.slots(component)
            for block in driver.block_snapshot().blocks
            if block.component == component
        )
    driver.check()
    broken(driver, pool, slot)
    with pytest.raises(InvariantError, match=r"^REQ-3: "):
        driver.check()


def test_a_window_that_is_gone_is_found() -> None:
    driver = opened()
    admission = driver.admit(key(9))
    assert admission is not None, "an empty cache has room for a prompt"
    driver.checkpoint(admission.request, 8)
    running = driver.running[id(admission.request)]
    running.tables = {**running.tables, SWA: np.where(np.arange(len(running.tables[SWA])) == 6, 0, running.tables[SWA])}
    with pytest.raises(InvariantError, match=r"^MATCH-3: .*none at 6"):
        driver.view.verify(running)


class WithoutTables(BlockCacheAdapter):
    """Shows its blocks, and not who has them."""

    capabilities: ClassVar[frozenset[Capability]] = BlockCacheAdapter.capabilities - {Capability.TABLES}


def test_an_adapter_that_shows_blocks_without_tables_is_refused() -> None:
    with pytest.raises(ValueError, match="its laws need TABLES as well"):
        load_adapter(f"{WithoutTables.__module__}:WithoutTables")


def test_two_prompts_differ_in_bytes_while_their_hashes_collide() -> None:
    driver = opened()
    with driver.adapter.colliding():
        admission = driver.admit(key(9))
        assert admission is not None, "an empty cache has room for a prompt"
        driver.checkpoint(admission.request, 8)
    driver.check()
