"""The block cache under a random walk with an oracle of its own, which finds its mutants, and rule by rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest

from hicache.testing.caches.block_cache import (
    NULL_BLOCK,
    BlockCache,
    BlockCacheConfig,
    BlockCacheSnapshot,
    BlockRequest,
    Digest,
    Group,
    sha256,
)
from hicache.testing.geometry import Publish
from hicache.tests.proof.changed_source import changed_module
from hicache.tests.proof.mutant_table import BY_SLUG
from hicache.types import SHARED, Component, EventKind, Namespace

FULL, SWA, MAMBA = Component.FULL, Component.SWA, Component.MAMBA
NAMESPACES = (SHARED, Namespace(lora="a"))
Prefix = tuple[int, Namespace, tuple[int, ...]]
"""A group and a prefix that it caches."""


def config_of(
    *groups: tuple[Component, int] | tuple[Component, int, int], blocks: int = 24, **rules: object
) -> BlockCacheConfig:
    return BlockCacheConfig(blocks, tuple(Group(*group) for group in groups), **rules)  # type: ignore[arg-type] # by name


CONFIGS = {
    "full-1": config_of((FULL, 1), blocks=40),
    "full-4": config_of((FULL, 4)),
    "full-4-whole-prompt": config_of((FULL, 4), hit_whole_prompt=True),
    "full-4-short-pool": config_of((FULL, 4), blocks=11),
    "full-4-lookahead": config_of((FULL, 4), lookahead=5),
    "full-4-scheduled": config_of((FULL, 4), publish=Publish.SCHEDULED),
    "full-4-at-the-end": config_of((FULL, 4), publish=Publish.REQUEST, publish_on_abort=True),
    "full-4-two-ranks": config_of((FULL, 4), context_parallel=2),
    "swa-4": config_of((SWA, 4, 6)),
    "full-4-swa-4": config_of((FULL, 4), (SWA, 4, 7), blocks=32),
    "full-4-swa-8": config_of((FULL, 4), (SWA, 8, 9), blocks=32),
    "full-8-swa-4-at-the-end": config_of((FULL, 8), (SWA, 4, 4), publish=Publish.REQUEST),
    "full-4-mamba-4": config_of((FULL, 4), (MAMBA, 4)),
    "full-4-mamba-8": config_of((FULL, 4), (MAMBA, 8)),
    "full-4-mamba-8-scheduled": config_of((FULL, 4), (MAMBA, 8), publish=Publish.SCHEDULED),
    "full-4-mamba-4-two-ranks": config_of((FULL, 4), (MAMBA, 4), context_parallel=2),
    "full-4-swa-4-mamba-4": config_of((FULL, 4), (SWA, 4, 7), (MAMBA, 4), blocks=40),
    "full-4-swa-4-mamba-4-short-pool": config_of((FULL, 4), (SWA, 4, 7), (MAMBA, 4), blocks=20),
    "full-4-swa-8-mamba-16": config_of((FULL, 4), (SWA, 8, 12), (MAMBA, 16), blocks=40, lookahead=2),
    "full-4-swa-8-mamba-8-whole-prompt": config_of(
        (FULL, 4), (SWA, 8, 12), (MAMBA, 8), blocks=40, hit_whole_prompt=True
    ),
}


def values(namespace: Namespace, tokens: Sequence[int]) -> list[int]:
    """Return what the model computes at each position: it depends on every token before. [0] is the initial state."""
    chain = [0]
    for token in tokens:
        chain.append(hash((chain[-1], token + 1000 * NAMESPACES.index(namespace))))
    return chain


def cached_prefixes(snapshot: BlockCacheSnapshot) -> dict[int, Prefix]:
    """Return what each block caches, by block id."""
    return {
        block.id: (block.group, block.namespace, tuple(np.frombuffer(block.prefix, "<i4").tolist()))
        for block in snapshot.blocks
        if block.group is not None and block.namespace is not None and block.prefix is not None
    }


@dataclass(eq=False)
class Running:
    """A running request and how many of its tokens have KV; the state lags behind when KV is computed at scheduling."""

    request: BlockRequest
    with_kv: int


class Engine:
    """Runs requests on a cache, computes values into its blocks, and checks all that can be seen after a call."""

    def __init__(self, cache: type[BlockCache], config: BlockCacheConfig, digest: Digest = sha256) -> None:
        self.config = config
        self.memory: dict[int, list[int]] = {
            number: [-2] * max(config.block_tokens) for number in range(config.num_blocks)
        }
        self.memory[NULL_BLOCK] = [0] * max(config.block_tokens)
        self.cache = cache(config, digest, self._copy)
        self.running: list[Running] = []
        self.reported: set[tuple[int, bytes, Namespace]] = set()

    def _copy(self, source: int, target: int) -> None:
        self.memory[target] = list(self.memory[source])

    # Verbs.

    def admit(self, tokens: Sequence[int], namespace: Namespace = SHARED) -> Running | None:
        before = self.cache.snapshot()
        expected = self._expected_hit(cached_prefixes(before), tokens, namespace)
        assert self.cache.match(np.array(tokens, np.int32), namespace) == expected, f"match: expected {expected}"
        assert self.cache.snapshot() == before, "match changed the cache"
        if not self.running and not self._fits_beside(tokens, namespace, expected):
            expected = 0  # nothing that runs will free a block: the request does without its hit
        request = self.cache.admit(np.array(tokens, np.int32), namespace)
        missing = sum(self._blocks_beyond(group, len(tokens), expected) for group in range(len(self.config.groups)))
        if request is None:
            assert self.cache.snapshot() == before, "an admission that did not fit changed the cache"
            needed = self._read_prefixes(tokens, namespace, expected)
            idle = {cached_prefixes(before)[number] for number in before.free if number in cached_prefixes(before)}
            assert missing > len(before.free) - len(needed & idle), (
                f"refused {missing} blocks, {len(before.free)} are free"
            )
            return None
        assert missing <= len(before.free), f"expected no admission: {missing} blocks, {len(before.free)} are free"
        assert request.cached_tokens == expected, f"expected a hit of {expected} tokens, found {request.cached_tokens}"
        running = Running(request, request.cached_tokens)
        self.running.append(running)
        self._check_reads(running)
        self._scheduled(running)
        self.check(before, self._published_at_scheduling(running))
        return running

    def extend(self, running: Running, tokens: Sequence[int]) -> bool:
        before = self.cache.snapshot()
        done = self.cache.extend(running.request, np.array(tokens, np.int32))
        if not done:
            assert self.cache.snapshot() == before, "an extension that did not fit changed the cache"
        self._scheduled(running)
        self.check(before, self._published_at_scheduling(running))
        return done

    def checkpoint(self, running: Running, computed: int) -> None:
        self.compute(running, computed)
        before = self.cache.snapshot()
        self.cache.checkpoint(running.request, computed)
        now = self.config.publish is not Publish.REQUEST
        self.check(before, self._published(running, computed, states=True) if now else set())
        for group in self.attention() if now else []:
            self._check_published(running, group, running.request.tables[group], computed)
        self._check_reads(running)

    def finish(self, running: Running, computed: int | None = None) -> None:
        length = len(running.request.tokens) if computed is None else computed
        self.compute(running, length)
        before, tables = self.cache.snapshot(), [list(table) for table in running.request.tables]
        self.running.remove(running)
        self.cache.finish(running.request, computed)
        self.check(before, self._published(running, length, states=True))
        for group in self.attention():
            self._check_published(running, group, tables[group], length)
        for group, size in enumerate(self.config.block_tokens):
            if self.config.groups[group].kind is MAMBA and length and length % size == 0:
                prefix = (group, running.request.namespace, tuple(running.request.tokens[:length].tolist()))
                assert prefix in cached_prefixes(self.cache.snapshot()).values(), f"expected the state after {length}"

    def abort(self, running: Running) -> None:
        before = self.cache.snapshot()
        self.running.remove(running)
        self.cache.abort(running.request)
        computed = running.request.computed if self.config.publish_on_abort else 0
        self.check(before, self._published(running, computed, states=True))

    def evict(self, count: int) -> None:
        before = self.cache.snapshot()
        victims = [number for number in before.free if number in cached_prefixes(before)][:count]
        assert self.cache.evict(count) == len(victims), f"expected {len(victims)} blocks evicted"
        self.check(before, set(), victims)

    def reset(self) -> None:
        before = self.cache.snapshot()
        assert self.cache.reset() == (not self.running), f"reset with {len(self.running)} running requests"
        self.check(before, set(), [] if self.running else list(cached_prefixes(before)))

    # The model.

    def attention(self) -> list[int]:
        return [index for index, group in enumerate(self.config.groups) if group.kind is not MAMBA]

    def _scheduled(self, running: Running) -> None:
        if self.config.publish is Publish.SCHEDULED:
            self._compute_kv(running, len(running.request.tokens))

    def compute(self, running: Running, upto: int) -> None:
        """Compute tokens into the blocks of the tables, after a check of everything that the computation reads."""
        self._check_reads(running)
        self._compute_kv(running, upto)
        request = running.request
        for group, size in enumerate(self.config.block_tokens):
            if self.config.groups[group].kind is MAMBA and upto > request.computed:
                own = request.tables[group][-1]
                assert request.computed // size == len(request.tables[group]) - 1, "the own state is not the last entry"
                state = self.memory[own][0]
                for token in request.tokens[request.computed : upto].tolist():
                    state = hash((state, token + 1000 * NAMESPACES.index(request.namespace)))
                self.memory[own] = [state]

    def _compute_kv(self, running: Running, upto: int) -> None:
        request = running.request
        chain = values(request.namespace, request.tokens.tolist())
        drafts = self.config.lookahead if upto == len(request.tokens) else 0
        for group in self.attention():
            size, table = self.config.block_tokens[group], request.tables[group]
            for position in range(running.with_kv, upto + drafts):
                slots = self.memory[table[position // size]]
                slots.extend([-2] * (size - len(slots)))
                slots[position % size] = chain[position + 1] if position < upto else -1
        running.with_kv = max(upto, running.with_kv)

    def _check_reads(self, running: Running) -> None:
        request = running.request
        chain = values(request.namespace, request.tokens.tolist())
        for group, (kind, size) in enumerate(
            zip((g.kind for g in self.config.groups), self.config.block_tokens, strict=True)
        ):
            if kind is MAMBA:
                state = self.memory[request.tables[group][-1]][0]
                assert state == chain[request.computed], f"group {group}: wrong state after {request.computed} tokens"
                continue
            window = self.config.groups[group].window
            first = max(0, request.computed - window + 1) if window else 0
            for position in range(first, running.with_kv):
                number = request.tables[group][position // size]
                assert number != NULL_BLOCK, f"group {group}: position {position} is read, and its block is null"
                found = self.memory[number][position % size]
                assert found == chain[position + 1], f"group {group}: block {number} does not hold position {position}"

    # The oracle.

    def _read_prefixes(self, tokens: Sequence[int], namespace: Namespace, length: int) -> set[Prefix]:
        """Return the prefixes that a hit of this length needs."""
        needed = set()
        for group, (kind, size) in enumerate(
            zip((g.kind for g in self.config.groups), self.config.block_tokens, strict=True)
        ):
            for end in range(size, length + 1, size):
                window = self.config.groups[group].window
                if kind is FULL or (kind is SWA and end > length - window + 1) or (kind is MAMBA and end == length):
                    needed.add((group, namespace, tuple(tokens[:end])))
        return needed

    def _expected_hit(self, cached: dict[int, Prefix], tokens: Sequence[int], namespace: Namespace) -> int:
        known = set(cached.values())
        limit = len(tokens) - (0 if self.config.hit_whole_prompt else 1)
        for length in range(limit, 0, -1):
            whole = all(length % size == 0 for size in self.config.block_tokens)
            if whole and self._read_prefixes(tokens, namespace, length) <= known:
                return length
        return 0

    def _blocks_beyond(self, group: int, tokens: int, hit: int) -> int:
        size = self.config.block_tokens[group]
        if self.config.groups[group].kind is MAMBA:
            return 1
        return -(-(tokens + self.config.lookahead) // size) - hit // size

    def _fits_beside(self, tokens: Sequence[int], namespace: Namespace, hit: int) -> bool:
        """Return whether a request that runs alone fits beside the blocks of a hit of this length."""
        missing = sum(self._blocks_beyond(group, len(tokens), hit) for group in range(len(self.config.groups)))
        return missing + len(self._read_prefixes(tokens, namespace, hit)) < self.config.num_blocks

    def _published(self, running: Running, computed: int, *, states: bool) -> set[Prefix]:
        """Return what a call that publishes these computed tokens may add."""
        request, result = running.request, set()
        for group, size in enumerate(self.config.block_tokens):
            mamba = self.config.groups[group].kind is MAMBA
            for end in range(size, computed + 1, size):
                if not mamba or (states and end == computed):
                    result.add((group, request.namespace, tuple(request.tokens[:end].tolist())))
        return result

    def _published_at_scheduling(self, running: Running) -> set[Prefix]:
        if self.config.publish is not Publish.SCHEDULED:
            return set()
        return self._published(running, len(running.request.tokens), states=False)

    def _check_published(self, running: Running, group: int, table: list[int], computed: int) -> None:
        cached, request = cached_prefixes(self.cache.snapshot()), running.request
        for index, number in enumerate(table[: computed // self.config.block_tokens[group]]):
            end = (index + 1) * self.config.block_tokens[group]
            expected = (group, request.namespace, tuple(request.tokens[:end].tolist()))
            assert number == NULL_BLOCK or cached.get(number) == expected, f"block {number} does not cache {end} tokens"

    # Checks after every call.

    def check(self, before: BlockCacheSnapshot, may_add: set[Prefix], dropped: Sequence[int] = ()) -> None:
        after = self.cache.snapshot()
        self._check_conservation(after)
        self._check_contents(after)
        added = set(cached_prefixes(after).values()) - set(cached_prefixes(before).values())
        assert added <= may_add, f"published what is not computed: {added - may_add}"
        self._check_order(before, after, dropped)
        self._check_events(after)

    def _check_conservation(self, after: BlockCacheSnapshot) -> None:
        entries = Counter(number for request in after.requests for table in request.tables for number in table)
        del entries[NULL_BLOCK]
        cached = cached_prefixes(after)
        assert NULL_BLOCK not in after.free, "the null block is in the free queue"
        assert NULL_BLOCK not in cached, "the null block is cached"
        assert set(after.free) == set(range(1, self.config.num_blocks)) - set(entries), (
            f"expected every block to be free or in a table: free {sorted(after.free)}, in tables {sorted(entries)}"
        )
        for block in after.blocks[1:]:
            assert block.references == entries[block.id], f"{block}: expected {entries[block.id]} references"
            assert block.id in cached or block.references <= 1, f"{block}: not published, and shared"

    def _check_contents(self, after: BlockCacheSnapshot) -> None:
        for number, (group, namespace, tokens) in cached_prefixes(after).items():
            size = self.config.block_tokens[group]
            assert len(tokens) % size == 0, f"block {number} caches {len(tokens)} tokens, its size is {size}"
            chain = values(namespace, tokens)
            expected = chain[-1:] if self.config.groups[group].kind is MAMBA else chain[-size:]
            found = self.memory[number][: len(expected)]
            assert found == expected, f"block {number} of group {group} does not hold what it caches: {tokens}"

    def _check_order(self, before: BlockCacheSnapshot, after: BlockCacheSnapshot, dropped: Sequence[int]) -> None:
        """Blank blocks go first; cached ones in the order of their last use, the end of a prompt before its start."""
        old, new = cached_prefixes(before), cached_prefixes(after)
        in_use = {number for request in after.requests for table in request.tables for number in table}
        lost = {number for number in old if old[number] != new.get(number)}
        queue = [number for number in before.free if number in old]
        taken = [number for number in queue if number in in_use and number not in lost]
        evictable = [number for number in queue if number not in taken]
        if dropped:
            assert lost == set(dropped), f"expected {list(dropped)} to be dropped, found {sorted(lost)}"
        else:
            victims = set(evictable[: len(lost)])
            released = {number for request in before.requests for table in request.tables for number in table}
            assert victims <= lost <= victims | released, f"expected {victims} to be evicted, found {sorted(lost)}"
            assert lost == victims or len(victims) == len(evictable), f"evicted {sorted(lost)} before {evictable}"
            blank = [number for number in after.free if number not in new]
            assert not lost or not blank, f"evicted {sorted(lost)} while {blank} are blank"
        cached = [number for number in after.free if number in new]
        assert list(after.free[len(after.free) - len(cached) :]) == cached, f"cached before blank blocks: {after.free}"
        stayed = [number for number in evictable if number not in lost]
        freed = cached[len(stayed) :]
        assert cached[: len(stayed)] == stayed, f"expected {stayed} at the head, found {cached}"
        ends = [len(new[number][2]) for number in freed]
        assert ends == sorted(ends, reverse=True), (
            f"expected the end of the prompt first, found blocks that end at {ends}"
        )

    def _check_events(self, after: BlockCacheSnapshot) -> None:
        if self.cache._digest is not sha256:  # events do not distinguish prefixes whose digests collide
            return
        for event in self.cache.take_events():
            name = (event.group, event.digest, event.namespace)
            assert (name in self.reported) == (event.kind is EventKind.REMOVED), f"{event.kind.value} twice: {event}"
            self.reported ^= {name}
        held = {
            (block.group, block.digest, block.namespace)
            for block in after.blocks
            if block.group is not None and block.digest is not None and block.namespace is not None
        }
        assert self.reported == held, f"events tell {len(self.reported)} prefixes, {len(held)} are cached"


class Walk:
    """A random walk. Prompts share prefixes, are repeated while they run, and end at any token."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.random = Random(seed)
        trunk = [self.random.randrange(3) for _ in range(48)]
        self.admitted: list[tuple[list[int], Namespace]] = []
        self.prompts = [trunk, trunk[:20] + trunk[:28], trunk[:9] + trunk[20:]]

    def step(self) -> None:
        running = self.engine.running
        verbs: list[Callable[[], None]] = [self._admit] * 4
        if running:
            verbs += [self._chunk] * 6 + [self._finish] * 2 + [self._evict] * 2 + [self._extend, self._abort]
        if self.random.random() < 0.01:
            self.engine.reset()
        else:
            self.random.choice(verbs)()

    def _admit(self) -> None:
        if len(self.engine.running) == 5:
            self._finish()
        elif self.admitted and self.random.random() < 0.5:
            self.engine.admit(*self.random.choice(self.admitted[-3:]))
        else:
            length = self.random.choice([5, 8, 9, 12, 16, 17, 25, self.random.randint(1, 40)])
            namespace = self.random.choice([SHARED, SHARED, SHARED, NAMESPACES[1]])
            self.admitted.append((self.random.choice(self.prompts)[:length], namespace))
            self.engine.admit(*self.admitted[-1])

    def _chunk(self) -> None:
        running = self.random.choice(self.engine.running)
        unit = self.random.choice([1, self.engine.config.alignment])
        end = (running.request.computed + self.random.randint(1, 12) + unit - 1) // unit * unit
        self.engine.checkpoint(running, min(end, len(running.request.tokens)))

    def _extend(self) -> None:
        self.engine.extend(
            self.random.choice(self.engine.running), [self.random.randrange(3)] * self.random.randint(1, 5)
        )

    def _finish(self) -> None:
        running = self.random.choice(self.engine.running)
        self.engine.finish(running, running.request.computed if self.random.random() < 0.2 else None)

    def _abort(self) -> None:
        self.engine.abort(self.random.choice(self.engine.running))

    def _evict(self) -> None:
        self.engine.evict(self.random.randint(1, 4))


def weak_digest(data: bytes) -> bytes:
    """Return one of three digests."""
    return bytes([sum(data) % 3])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", CONFIGS)
def test_a_random_walk_finds_nothing(name: str, seed: int) -> None:
    walk = Walk(Engine(BlockCache, CONFIGS[name]), seed)
    for _ in range(150):
        walk.step()


@pytest.mark.parametrize("name", ["full-4", "full-4-swa-4-mamba-4"])
def test_a_digest_that_collides_serves_no_foreign_block(name: str) -> None:
    walk = Walk(Engine(BlockCache, CONFIGS[name], weak_digest), 1)
    for _ in range(150):
        walk.step()


SHORT = "full-4-swa-4-mamba-4-short-pool"

FOUND: dict[str, tuple[str, int, Digest]] = {
    "truncated-state": (SHORT, 50, sha256),
    "state-index-in-smallest-blocks": ("full-4-mamba-8", 60, sha256),
    "state-after-the-hit": ("full-4-mamba-4", 60, sha256),
    "attention-hit-alone": ("full-4-mamba-8-scheduled", 20, sha256),
    "blocks-of-one-rank": ("full-4-two-ranks", 50, sha256),
    "duplicate-freed-in-use": ("full-4", 40, sha256),
    "use-keeps-the-age": ("full-4", 70, sha256),
    "blank-behind-cached": (SHORT, 40, sha256),
    "last-copy-takes-the-entry": (SHORT, 300, sha256),
    "removed-while-a-copy-remains": (SHORT, 60, sha256),
    "allocates-before-it-takes": (SHORT, 300, sha256),
    "trusts-the-digest": ("full-4", 40, weak_digest),
}
"""A configuration of each mutant, and the steps within which the walk finds it. Rules below find the other two."""


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("mutant", FOUND)
def test_the_walk_finds_the_mutant(mutant: str, seed: int) -> None:
    name, steps, digest = FOUND[mutant]
    walk = Walk(Engine(changed_module(BY_SLUG[mutant].changes).BlockCache, CONFIGS[name], digest), seed)
    with pytest.raises((AssertionError, LookupError, ValueError)):  # noqa: PT012 - any step may be the one
        for _ in range(steps):
            walk.step()


FULL_4, MAMBA_4, ALL_THREE = (CONFIGS[name] for name in ("full-4", "full-4-mamba-4", "full-4-swa-4-mamba-4"))

# The rules, one by one.


def tokens_of(count: int, first: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.arange(first, first + count, dtype=np.int32)


def admitted(cache: BlockCache, count: int) -> BlockRequest:
    request = cache.admit(tokens_of(count))
    assert request, f"a prompt of {count} tokens did not fit"
    return request


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, (Group(FULL, 4),)), "expected 2 blocks and 1 group"),
        ((8, ()), "expected 2 blocks and 1 group"),
        ((8, (Group(FULL, 0),)), "sizes must be positive"),
        ((8, (Group(FULL, 4),), 0), "sizes must be positive"),
        ((8, (Group(FULL, 4),), 1, -1), "sizes must be positive"),
        ((8, (Group(SWA, 4),)), "expected a window of 2"),
        ((8, (Group(FULL, 4, 4),)), "expected a window of 2"),
        ((8, (Group(FULL, 4), Group(MAMBA, 6))), "multiples of the smallest"),
    ],
)
def test_a_geometry_that_contradicts_itself_is_refused(arguments: tuple[int, tuple[Group, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BlockCacheConfig(*arguments)


def test_ranks_multiply_the_blocks_of_attention_and_not_those_of_states() -> None:
    config = config_of((FULL, 4), (SWA, 4, 8), (MAMBA, 4), context_parallel=2)
    found = (config.block_tokens, config.hash_block, config.alignment)
    assert found == ((8, 8, 4), 4, 8), f"expected blocks of 8, 8 and 4 tokens, hashes of 4, hits of 8, got {found}"


def test_a_request_that_ended_is_refused() -> None:
    cache = BlockCache(ALL_THREE)
    request = admitted(cache, 9)
    cache.finish(request)
    before = cache.snapshot()
    for verb in (cache.finish, cache.abort, cache.state, lambda ended: cache.checkpoint(ended, 9)):
        with pytest.raises(ValueError, match="expected a running request"):
            verb(request)
    with pytest.raises(ValueError, match="expected a running request"):
        cache.extend(request, tokens_of(1))
    assert cache.snapshot() == before, "a call that was refused changed the cache"


@pytest.mark.parametrize("computed", [3, 10])
def test_computed_tokens_never_shrink_and_never_pass_the_prompt(computed: int) -> None:
    cache = BlockCache(ALL_THREE)
    request = admitted(cache, 9)
    cache.checkpoint(request, 4)
    before = cache.snapshot()
    with pytest.raises(ValueError, match=f"expected 4 to 9 computed tokens, found {computed}"):
        cache.checkpoint(request, computed)
    assert cache.snapshot() == before, "a checkpoint that was refused changed the cache"


def test_an_empty_prompt_and_a_block_that_is_free_are_refused() -> None:
    cache = BlockCache(FULL_4)
    with pytest.raises(ValueError, match="expected a prompt of 1 token"):
        cache.admit(tokens_of(0))
    with pytest.raises(ValueError, match="block 1: expected a reader to remove, found 0"):
        cache._free(cache._blocks[1])
    with pytest.raises(ValueError, match="block 1: expected cached content to drop"):
        cache._drop(cache._blocks[1])


@pytest.mark.parametrize(("whole", "hit"), [(False, 4), (True, 8)])
def test_a_hit_leaves_a_token_to_compute_unless_it_may_be_the_whole_prompt(whole: bool, hit: int) -> None:
    cache = BlockCache(config_of((FULL, 4), hit_whole_prompt=whole))
    cache.finish(admitted(cache, 8))
    found = cache.match(tokens_of(8))
    assert found == hit, f"expected a hit of {hit} tokens, found {found}"
    found = cache.match(tokens_of(8), limit=100)
    assert found == 8, f"with a limit of 100 tokens: expected a hit of 8 tokens, found {found}"
    found = admitted(cache, 8).cached_tokens
    assert found == hit, f"at admission: expected a hit of {hit} tokens, found {found}"


def test_namespaces_share_nothing() -> None:
    cache = BlockCache(FULL_4)
    cache.finish(admitted(cache, 9))
    hits = [cache.match(tokens_of(9), namespace) for namespace in (SHARED, *NAMESPACES[1:])]
    assert hits == [8, 0], f"expected a hit of 8 tokens in the shared namespace alone, found {hits}"


@pytest.mark.parametrize(
    ("publish", "found"), [(Publish.SCHEDULED, [8, 8, 8]), (Publish.CHUNK, [0, 4, 8]), (Publish.REQUEST, [0, 0, 8])]
)
def test_blocks_are_found_from_when_they_are_published(publish: Publish, found: list[int]) -> None:
    cache = BlockCache(config_of((FULL, 4), publish=publish))
    request = admitted(cache, 9)
    hits = [cache.match(tokens_of(9))]
    cache.checkpoint(request, 5)
    hits.append(cache.match(tokens_of(9)))
    cache.finish(request)
    hits.append(cache.match(tokens_of(9)))
    assert hits == found, f"at admission, after a chunk and at the end: expected hits of {found}, found {hits}"


@pytest.mark.parametrize(("publish_on_abort", "hit"), [(False, 0), (True, 4)])
def test_an_aborted_request_publishes_what_it_computed_only_where_that_is_chosen(
    publish_on_abort: bool, hit: int
) -> None:
    cache = BlockCache(config_of((FULL, 4), publish=Publish.REQUEST, publish_on_abort=publish_on_abort))
    request = admitted(cache, 9)
    cache.checkpoint(request, 5)
    cache.abort(request)
    found = cache.match(tokens_of(9))
    assert found == hit, f"expected a hit of {hit} tokens, found {found}"


def test_lookahead_is_allocated_and_never_published() -> None:
    cache = BlockCache(config_of((FULL, 4), lookahead=6))
    request = admitted(cache, 7)
    assert len(request.tables[0]) == 4, "13 slots are 4 blocks"
    cache.finish(request)
    lengths = [len(prefix) for _, _, prefix in cached_prefixes(cache.snapshot()).values()]
    assert lengths == [4], f"expected one cached prefix, of 4 tokens, got lengths {lengths}"


def test_a_request_that_does_not_fit_changes_nothing() -> None:
    cache = BlockCache(config_of((FULL, 4), blocks=5))
    request = admitted(cache, 12)
    before = cache.snapshot()
    other = cache.admit(tokens_of(5, 50))
    assert other is None, f"2 blocks are needed and 1 is free: expected no admission, got {other}"
    extended = cache.extend(request, tokens_of(5))
    assert not extended, "2 blocks are needed and 1 is free, and the request was extended"
    assert cache.snapshot() == before, "a call that did not fit changed the cache"
    extended = cache.extend(request, tokens_of(4))
    assert extended, "1 block is needed and free, and the request was not extended"


def test_a_request_that_runs_alone_does_without_a_hit_that_it_does_not_fit_beside() -> None:
    cache = BlockCache(config_of((FULL, 4), (MAMBA, 4), blocks=7))  # 5 blocks of FULL and 1 state fill it
    cache.finish(admitted(cache, 16))
    assert cache.match(tokens_of(20)) == 16, "a request of 16 tokens has ended: expected them to be found"
    again = admitted(cache, 20)
    assert again.cached_tokens == 0, (
        f"the state of a hit takes a seventh block: expected no hit, got {again.cached_tokens}"
    )


def test_a_hit_that_a_state_shortens_needs_the_window_before_its_own_end() -> None:
    cache = BlockCache(ALL_THREE)
    request = admitted(cache, 17)
    for computed in (8, 15):
        cache.checkpoint(request, computed)
    cache.evict(1)
    cache.finish(request, 17)
    hit = cache.match(tokens_of(17))
    assert hit == 0, f"the window before 16 tokens is cached, that before the state after 8 is not: found {hit}"


def test_a_hit_takes_the_copy_that_was_stored_first() -> None:
    cache = BlockCache(FULL_4)
    first, second = admitted(cache, 9), admitted(cache, 9)
    for request in (first, second):
        cache.checkpoint(request, 8)
    found = admitted(cache, 9).tables[0][:2]
    assert found == first.tables[0][:2], f"expected the blocks {first.tables[0][:2]}, found {found}"


def test_slots_are_block_ids_times_tokens_plus_offset() -> None:
    cache = BlockCache(config_of((FULL, 2), context_parallel=2))
    request = admitted(cache, 6)
    first, second = request.tables[0]
    slots = cache.slots(request, 0).tolist()
    expected = [first * 4 + n for n in range(4)] + [second * 4 + n for n in range(4)]
    assert slots == expected, f"expected the slots {expected}, got {slots}"


def test_blocks_that_leave_the_window_are_freed_and_stay_cached() -> None:
    cache = BlockCache(config_of((SWA, 4, 6)))
    request = admitted(cache, 17)
    cache.checkpoint(request, 9)
    freed = [number == NULL_BLOCK for number in request.tables[0]]
    assert freed == [True, False, False, False, False], f"expected the first block alone to be freed, got {freed}"
    hit = cache.match(tokens_of(5))
    assert hit == 4, f"expected the freed block to stay cached: a hit of 4 tokens, found {hit}"


def test_a_request_writes_its_own_copy_of_a_state() -> None:
    copies: list[tuple[int, int]] = []
    cache = BlockCache(MAMBA_4, copy_state=lambda source, target: copies.append((source, target)))
    first = admitted(cache, 9)
    own = cache.state(first)
    assert copies == [(NULL_BLOCK, own)], "the first state of a prompt is the initial one"
    cache.checkpoint(first, 8)
    assert copies[1:] == [(own, cache.state(first))], (
        "the state after 8 tokens is cached, the request goes on in a copy"
    )
    second = admitted(cache, 9)
    assert second.cached_tokens == 8, f"expected a hit of 8 tokens, found {second.cached_tokens}"
    target = cache.state(second)
    assert copies[2:] == [(own, target)], f"expected one copy, of the state {own} to {target}, got {copies[2:]}"


def test_a_cache_without_states_has_none() -> None:
    cache = BlockCache(FULL_4)
    state = cache.state(admitted(cache, 4))
    assert state is None, f"expected no state, got block {state}"


def test_a_state_is_not_cached_when_no_block_is_free_to_go_on_in() -> None:
    cache = BlockCache(config_of((FULL, 4), (MAMBA, 4), blocks=5))
    request = admitted(cache, 9)
    cache.checkpoint(request, 8)
    hit = cache.match(tokens_of(9))
    assert hit == 0, f"expected no cached state and so no hit, found {hit} tokens"
    cache.finish(request, 8)
    assert cache.match(tokens_of(9)) == 8, "a request that ends there has no use for its state"


def test_the_end_of_a_prompt_is_evicted_before_its_beginning() -> None:
    cache = BlockCache(FULL_4)
    cache.finish(admitted(cache, 13))
    evicted = cache.evict(1)
    assert evicted == 1, f"expected 1 evicted block of 3, got {evicted}"
    hit = cache.match(tokens_of(13))
    assert hit == 8, f"expected the first 2 blocks to stay cached: a hit of 8 tokens, found {hit}"
    evicted = cache.evict(5)
    assert evicted == 2, f"2 blocks are left: expected 2 evicted, got {evicted}"


def test_reset_is_refused_while_a_request_runs() -> None:
    cache = BlockCache(FULL_4)
    request = admitted(cache, 9)
    cache.checkpoint(request, 8)
    done = cache.reset()
    assert not done, "expected no reset while a request runs, and it was done"
    hit = cache.match(tokens_of(9))
    assert hit == 8, f"a reset that was refused: expected a hit of 8 tokens, found {hit}"
    cache.finish(request)
    done = cache.reset()
    assert done, "expected a reset when no request runs, and it was refused"
    hit = cache.match(tokens_of(9))
    assert hit == 0, f"after a reset: expected no hit, found {hit} tokens"


def test_events_tell_the_parent_and_the_tokens_of_each_block() -> None:
    cache = BlockCache(FULL_4)
    cache.finish(admitted(cache, 9))
    first, second = cache.take_events()
    told = [(event.kind, event.parent, event.tokens) for event in (first, second)]
    assert told[0] == (EventKind.STORED, None, (0, 1, 2, 3)), f"expected a block without a parent, got {told[0]}"
    assert told[1] == (EventKind.STORED, first.digest, (4, 5, 6, 7)), f"expected the first as the parent, got {told[1]}"
    cache.evict(1)
    removed = [(event.kind, event.digest) for event in cache.take_events()]
    assert removed == [(EventKind.REMOVED, second.digest)], f"expected the second block to be removed, got {removed}"
    events = cache.take_events()
    assert not events, f"expected each event once, got again {events}"
