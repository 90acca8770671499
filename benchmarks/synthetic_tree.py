"""SyntheticTree: a tree of a given number of nodes, and prompts that begin with its pages."""

from __future__ import annotations

import numpy as np

from hicache.testing.adapter import CacheAdapter
from hicache.types import SHARED, Key, Slots, Tokens

from .prompts import Offer, insert, offer, random_tokens
from .scale import Scale

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
