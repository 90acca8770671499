"""SyntheticTree: a tree of a given scale, and prompts that begin with its pages and are inserted without any checks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hicache.config import SINGLE_RANK, CacheConfig, EvictionPolicy, Layout, ModelShape
from hicache.testing.adapter import CacheAdapter
from hicache.types import SHARED, Component, InsertResult, Key, Slots, Tokens

FULL, SWA, MAMBA = (component.value for component in Component)

WINDOW_TOKENS = 1024

SLIM_MODEL = ModelShape.hybrid(
    full_layers=1,
    swa_layers=1,
    mamba_layers=1,
    kv_heads=1,
    head_dim=1,
    conv_elements=1,
    state_elements=1,
    dtype="float32",
    is_mla=False,
)
"""The least data per slot: the tree and the allocators are measured, not the tensors."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the cache and the keys of one measurement are.

    `nodes`: of the tree, without the measured prompts. `key_tokens`: of each prompt.
    """

    components: tuple[str, ...]
    page_size: int
    nodes: int
    key_tokens: int

    def __str__(self) -> str:
        return f"{'+'.join(self.components)}/page{self.page_size}/{self.nodes}nodes/{self.key_tokens}tokens"

    def config(self, prompts: int) -> CacheConfig:
        """A cache with room for the tree and `prompts` prompts."""
        return spacious(self.components, self.page_size, self.nodes * self.page_size + prompts * self.key_tokens)


def spacious(components: tuple[str, ...], page_size: int, tokens: int) -> CacheConfig:
    """A cache without events, with room for `tokens` tokens, a multiple of the page size, or as many states."""
    return CacheConfig(
        components=components,
        page_size=page_size,
        capacity_tokens=dict.fromkeys(components, tokens),
        sliding_window_size=WINDOW_TOKENS if SWA in components else None,
        mamba_chunk_size=page_size if MAMBA in components else None,
        policy=EvictionPolicy.LRU,
        bigram=False,
        events=False,
        layout=Layout.LAYER_FIRST,
        device="cpu",
        model=SLIM_MODEL,
        topology=SINGLE_RANK,
    )


VOCABULARY = 32_000


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """The arguments of an insert: a prompt of whole pages and its slots, of which the tree owns the first `shared`."""

    key: Key
    slots: Slots
    shared: int


def random_tokens(random: np.random.Generator, prompts: int, length: int) -> Tokens:
    """Token ids, [prompts, length]. No two pages of several tokens are equal."""
    return random.integers(VOCABULARY, size=(prompts, length), dtype=np.int32)


def offer(cache: CacheAdapter, key: Key) -> Offer:
    """Match a prompt, and allocate slots for the rest of it."""
    cached = cache.match(key, chunked=False).device_indices
    fresh = cache.allocate(len(key.tokens) - len(cached))
    assert fresh is not None, f"expected room for {len(key.tokens) - len(cached)} more tokens"
    return Offer(key, np.concatenate((cached, fresh)), len(cached))


def insert(cache: CacheAdapter, offered: Offer) -> InsertResult:
    """Insert a prompt without a state, and without any checks, so that the verb costs what it costs a server."""
    return cache.insert(offered.key, offered.slots, shared=offered.shared, window_start=0, state=None, priority=0)


LEAVES_PER_PARENT = 31


class SyntheticTree:
    """Parent nodes of one page, each with leaves of one page, and prompts that continue them.

    `prompts`: how many prompts are cached before the leaves, so that they are evicted first.
    """

    def __init__(self, cache: CacheAdapter, scale: Scale, prompts: int) -> None:
        self.cache = cache
        self.scale = scale
        self._random = np.random.default_rng(scale.nodes)
        slots = self._allocate_slots()
        parents = -(-scale.nodes // (LEAVES_PER_PARENT + 1))
        self._parents = [self._insert_parent(page, own) for page, own in zip(self._pages(parents), slots, strict=False)]
        self.prompts = [self._prompt(self._parents[number % parents].key.tokens) for number in range(prompts)]
        for key in self.prompts:
            insert(cache, offer(cache, key))
        self._leaves = self._pages(scale.nodes - parents)
        for number, page in enumerate(self._leaves):
            self._insert_leaf(self._parents[number % parents], page, slots[parents + number])

    def new_prompts(self, count: int) -> list[Key]:
        """Prompts of which two pages are cached, those of a parent and of one of its leaves."""
        chosen = self._random.choice(len(self._leaves), size=count, replace=False)
        parents = [self._parents[leaf % len(self._parents)] for leaf in chosen]
        return [
            self._prompt(parent.key.tokens, self._leaves[leaf]) for parent, leaf in zip(parents, chosen, strict=True)
        ]

    def _prompt(self, *beginning: Tokens) -> Key:
        begun = sum(len(part) for part in beginning)
        (rest,) = random_tokens(self._random, 1, self.scale.key_tokens - begun)
        return Key(np.concatenate((*beginning, rest)), SHARED)

    def _allocate_slots(self) -> Slots:
        # One call allocates all slots, because building the tree is not measured.
        slots = self.cache.allocate(self.scale.nodes * self.scale.page_size)
        assert slots is not None, f"expected room for a tree of {self.scale.nodes} pages"
        return slots.reshape(self.scale.nodes, self.scale.page_size)

    def _insert_parent(self, page: Tokens, slots: Slots) -> Offer:
        parent = Offer(Key(page, SHARED), slots, shared=0)
        insert(self.cache, parent)
        return parent

    def _insert_leaf(self, parent: Offer, page: Tokens, slots: Slots) -> None:
        key = Key(np.concatenate((parent.key.tokens, page)), SHARED)
        insert(self.cache, Offer(key, np.concatenate((parent.slots, slots)), shared=len(parent.slots)))

    def _pages(self, count: int) -> Tokens:
        return random_tokens(self._random, count, self.scale.page_size)
