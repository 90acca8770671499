"""The laws of caches of blocks, checked on a BlockSnapshot and the tables of the running requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from hicache.config import CacheConfig
from hicache.testing.geometry import geometry_of
from hicache.testing.snapshot import BlockPool, BlockSnapshot, CachedBlock
from hicache.testing.violation import ViolationError, violation
from hicache.types import Component, Key, Namespace, Sizes, Slots

TOKEN_BYTES = 4

Tables = Sequence[Mapping[str, Slots]]
"""The tables of the running requests, as `tables` of an adapter returns them."""

Held = Counter[tuple[str, int]]
"""How often each block stands in tables, by component and number."""


def check_blocks(
    snapshot: BlockSnapshot, config: CacheConfig, tables: Tables, departures: frozenset[str] = frozenset()
) -> None:
    """Raise InvariantError unless every law holds. `departures`: clauses whose laws are not checked."""
    held = held_blocks(tables, config)
    for check in _laws(snapshot, config, held):
        try:
            check()
        except ViolationError as error:
            if error.clause not in departures:
                raise


def held_blocks(tables: Tables, config: CacheConfig) -> Held:
    """How often each block stands in tables. A block counts once for each table, and slot 0 does not count."""
    geometry, held = geometry_of(config), Held()
    for table in tables:
        for component in config.components:
            slots = table[component][:: geometry.slots(component)]
            held.update((component, number) for number in (slots[slots != 0] // geometry.slots(component)).tolist())
    return held


def _laws(snapshot: BlockSnapshot, config: CacheConfig, held: Held) -> Iterator[Callable[[], None]]:
    yield partial(check_pools, snapshot, config)
    for pool in snapshot.pools:
        shares = geometry_of(config).shares_uncomputed
        yield partial(check_owners, pool, snapshot, held, in_flight(snapshot, config), shares=shares)
    yield partial(check_lengths, snapshot, config)
    yield partial(check_references, snapshot, held)
    yield partial(check_copies, snapshot, config)


def check_pools(snapshot: BlockSnapshot, config: CacheConfig) -> None:
    """POOL-1: each component takes from one pool, all from the same one with a shared pool, of the given capacity."""
    geometry = geometry_of(config)
    named = [pool.components for pool in snapshot.pools]
    expected = [config.components] if geometry.shared_pool else [(component,) for component in config.components]
    if sorted(map(sorted, named)) != sorted(map(sorted, expected)):
        raise violation("POOL-1", "pools of the snapshot", expected, named)
    capacity = geometry.in_blocks(config.capacity_tokens)
    for pool in snapshot.pools:
        if pool.capacity != capacity[pool.components[0]]:
            place = f"pool of {', '.join(pool.components)}"
            raise violation("POOL-1", place, f"{capacity[pool.components[0]]} blocks", pool.capacity)


def in_flight(snapshot: BlockSnapshot, config: CacheConfig) -> set[int]:
    """The device blocks of FULL that a transfer to or from the cache beside the device reads or writes."""
    transfers = () if snapshot.offload is None else snapshot.offload.transfers
    size = geometry_of(config).slots(Component.FULL)
    return {int(slot) // size for one in transfers for slot in one.device[Component.FULL]}


def check_owners(
    pool: BlockPool, snapshot: BlockSnapshot, held: Held, moving: Collection[int] = (), *, shares: bool = False
) -> None:
    """POOL-1: a block is blank and free, or cached, or in the table of one request, or in a transfer; nothing is lost.

    A cached block may stand in several tables, and one of FULL or SWA that is not computed if the cache `shares` it.
    The queue has the blocks that no table has. `moving`: the blocks in transfers, which no one else gets when their
    request has ended.
    """
    place = f"pool of {', '.join(pool.components)}"
    owners: dict[int, str] = {}
    cached = [block for block in snapshot.blocks if block.component in pool.components]
    for number in pool.blank:
        _own(owners, number, "the blank blocks", place)
    for block in cached:
        _own(owners, block.number, f"the cached blocks of {block.component}", place)
    in_use: set[int] = set()
    for (component, number), count in held.items():
        if component in pool.components:
            in_use.add(number)
            if owners.get(number) != f"the cached blocks of {component}":
                _own(owners, number, f"a request's table of {component}", place)
                if count > 1 and (not shares or component == Component.MAMBA):
                    raise violation("POOL-1", f"{place}, block {number}, not cached", "1 entry in tables", count)
    for number in moving:
        if number not in in_use:
            in_use.add(number)
            _own(owners, number, "a transfer in flight", place)
    if len(owners) != pool.capacity:
        counts = Counter(owners.values())
        raise violation("POOL-1", place, f"{pool.capacity} blocks with an owner", f"{len(owners)}: {dict(counts)}")
    in_use |= {block.number for block in cached if block.pins}
    if pool.queue is not None and sorted(pool.queue) != sorted(owners.keys() - in_use):
        raise violation("POOL-1", f"queue of the {place}", sorted(owners.keys() - in_use), sorted(pool.queue))


def _own(owners: dict[int, str], number: int, owner: str, place: str) -> None:
    if number < 1:
        raise violation("POOL-1", place, "blocks above 0, the padding block", number)
    if number in owners:
        raise violation("POOL-1", f"{place}, block {number}", f"one owner, {owners[number]}", f"{owner} as well")
    owners[number] = owner


def check_shared(prompts: Sequence[tuple[Key, Mapping[str, Slots]]], config: CacheConfig) -> None:
    """POOL-1: requests share a block only where both have all of its tokens, after equal ones.

    `prompts`: those of the running requests, with their tables.
    """
    geometry, known = geometry_of(config), dict[tuple[str, int], tuple[Namespace, bytes]]()
    for key, table in prompts:
        data = key.tokens.astype("<i4").tobytes()
        for component in table.keys() - {Component.MAMBA.value}:
            size = geometry.slots(component)
            for index, slot in enumerate(table[component][::size].tolist()):
                end = (index + 1) * size * TOKEN_BYTES
                own = key.namespace, data[:end]
                other = known.setdefault((component, slot), own)
                if slot and other is not own and (other != own or len(data) < end):
                    place = f"block {slot // size} of {component}, in the tables of two requests"
                    raise violation("POOL-1", place, "all of its tokens in both, after equal ones", "other tokens")


def check_lengths(snapshot: BlockSnapshot, config: CacheConfig) -> None:
    """KEY-1: a cached prefix is a positive number of whole blocks."""
    geometry = geometry_of(config)
    for block in snapshot.blocks:
        unit = geometry.tokens(block.component) * TOKEN_BYTES
        if not block.prefix or len(block.prefix) % unit:
            expected = f"a positive multiple of {unit // TOKEN_BYTES} tokens"
            raise violation("KEY-1", _place(block), expected, f"{len(block.prefix) / TOKEN_BYTES:g}")


def check_references(snapshot: BlockSnapshot, held: Held) -> None:
    """LOCK-2: a cached block counts the running requests whose tables have it."""
    for block in snapshot.blocks:
        if block.references != held[block.component, block.number]:
            expected = f"{held[block.component, block.number]} references, one for each table that has it"
            raise violation("LOCK-2", _place(block), expected, block.references)


def check_copies(snapshot: BlockSnapshot, config: CacheConfig) -> None:
    """INS-1: without duplicates in the geometry, a prefix is cached in one block of each component."""
    if geometry_of(config).duplicates:
        return
    copies = Counter((block.component, block.namespace, block.prefix) for block in snapshot.blocks)
    for block in snapshot.blocks:
        count = copies[block.component, block.namespace, block.prefix]
        if count > 1:
            raise violation("INS-1", _place(block), "one copy, as the geometry has no duplicates", f"{count} copies")


def check_block_sizes(snapshot: BlockSnapshot, config: CacheConfig, sizes: Mapping[str, Sizes], tables: Tables) -> None:
    """LOCK-4: the size counters of a component are those of its pool, in the component's own slots.

    Free: blank blocks. Evictable: cached ones that no table has. Protected: those in tables or transfers.
    """
    held, geometry, moving = held_blocks(tables, config), geometry_of(config), in_flight(snapshot, config)
    for pool in snapshot.pools:
        used = moving | {number for component, number in held if component in pool.components}
        used |= {block.number for block in snapshot.blocks if block.component in pool.components and block.pins}
        cached = {block.number for block in snapshot.blocks if block.component in pool.components}
        for component in pool.components:
            unit = geometry.slots(component)
            expected = Sizes(len(cached - used) * unit, len(used) * unit, len(pool.blank) * unit)
            if sizes[component] != expected:
                raise violation("LOCK-4", f"size counters of {component}", expected, sizes[component])


def check_evicted(before: BlockSnapshot, after: BlockSnapshot, clause: str, *, merges: bool = False) -> None:
    """EVICT-1, EVICT-13: no cached block is lost in a verb that leaves blank blocks in the pool.

    `clause`: EVICT-13 if the verb refused a request. `merges`: a request gives a block back when it takes over a cached
    one, in the verb that took both, so that each block with a new reader may have left one blank.
    """
    known = {(block.component, block.number): block for block in before.blocks}
    spare = _new_readers(known, after) if merges else 0
    now = {(block.component, block.number, block.namespace, block.prefix) for block in after.blocks}
    for pool in after.pools:
        lost = [
            block
            for (component, number), block in known.items()
            if component in pool.components and (component, number, block.namespace, block.prefix) not in now
        ]
        if lost and len(pool.blank) > spare:
            raise violation(clause, _place(lost[0]), f"to stay while {len(pool.blank)} blocks are blank", "evicted")


def _new_readers(known: Mapping[tuple[str, int], CachedBlock], after: BlockSnapshot) -> int:
    """How many readers the blocks have that were cached before, and had not then."""
    pairs = ((block, known.get((block.component, block.number))) for block in after.blocks)
    return sum(
        max(0, block.references - earlier.references)
        for block, earlier in pairs
        if earlier is not None and earlier.prefix == block.prefix
    )


def check_table(table: Mapping[str, Slots], config: CacheConfig, tokens: int) -> None:
    """REQ-4: a table has whole blocks for each token and the lookahead; all of FULL are there, and an own state.

    `tokens`: those of the request, or those that it has reserved blocks for.
    """
    geometry = geometry_of(config)
    if set(table) != set(config.components):
        raise violation("REQ-4", "tables of a request", f"tables of {sorted(config.components)}", sorted(table))
    for component, slots in table.items():
        place, size = f"table of {component} of a request of {tokens} tokens", geometry.slots(component)
        if component == Component.MAMBA:
            if not len(slots) or int(slots.min()) < 1:
                raise violation("REQ-4", place, "slots above 0, the last one its own", slots.tolist())
            continue
        expected = geometry.blocks_of(tokens)[component] * size
        if len(slots) != expected:
            raise violation("REQ-4", place, f"{expected} slots", f"{len(slots)} slots")
        rows = slots.reshape(-1, size)
        is_whole = (rows[:, 0] % size == 0) & (rows == rows[:, :1] + np.arange(size)).all(axis=1) & (rows[:, 0] > 0)
        is_absent = (rows == 0).all(axis=1) & (component != Component.FULL)
        if not (is_whole | is_absent).all():
            raise violation(
                "POOL-4", place, f"aligned blocks of {size}", rows[(is_whole | is_absent).argmin()].tolist()
            )


def check_growth(before: Mapping[str, Slots], after: Mapping[str, Slots]) -> None:
    """REQ-4: where duplicates stay, an entry of a table stays unchanged, or goes when it is not needed any more."""
    for component, slots in before.items():
        if component != Component.MAMBA:
            now = after[component][: len(slots)]
            kept = now != 0
            if not np.array_equal(now[kept], slots[kept]):
                raise violation("REQ-4", f"table of {component} that grew", slots.tolist(), now.tolist())


def _place(block: CachedBlock) -> str:
    end = len(block.prefix) // TOKEN_BYTES
    return f"block {block.number} of {block.component}, which ends {end} tokens of {block.namespace}"
