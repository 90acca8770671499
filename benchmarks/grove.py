"""Grove: a tree of as many nodes as are asked for, and prompts that begin in it."""

from __future__ import annotations

import numpy as np

from hicache.testing.adapter import CacheAdapter
from hicache.types import SHARED, Key, Slots, Tokens

from .prompts import Offer, insert, offer, random_tokens
from .scale import Scale

LEAVES_PER_TRUNK = 31


class Grove:
    """Trunks of one page, each with leaves of one page, and prompts that go on from there.

    `prompts`: cached before the leaves, so that they are evicted first.
    """

    def __init__(self, cache: CacheAdapter, scale: Scale, prompts: int) -> None:
        self.cache = cache
        self.scale = scale
        self._random = np.random.default_rng(scale.nodes)
        slots = self._slots_to_plant()
        trunks = -(-scale.nodes // (LEAVES_PER_TRUNK + 1))
        self._trunks = [self._plant_trunk(page, own) for page, own in zip(self._pages(trunks), slots, strict=False)]
        self.prompts = [self._prompt(self._trunks[number % trunks].key.tokens) for number in range(prompts)]
        for key in self.prompts:
            insert(cache, offer(cache, key))
        self._leaves = self._pages(scale.nodes - trunks)
        for number, page in enumerate(self._leaves):
            self._plant_leaf(self._trunks[number % trunks], page, slots[trunks + number])

    def fresh_prompts(self, count: int) -> list[Key]:
        """Prompts of which the tree has no more than two pages, a trunk and a leaf, anywhere in it."""
        chosen = self._random.choice(len(self._leaves), size=count, replace=False)
        trunks = [self._trunks[leaf % len(self._trunks)] for leaf in chosen]
        return [self._prompt(trunk.key.tokens, self._leaves[leaf]) for trunk, leaf in zip(trunks, chosen, strict=True)]

    def _prompt(self, *beginning: Tokens) -> Key:
        begun = sum(len(part) for part in beginning)
        (rest,) = random_tokens(self._random, 1, self.scale.key_tokens - begun)
        return Key(np.concatenate((*beginning, rest)), SHARED)

    def _slots_to_plant(self) -> Slots:
        # One call takes them all, because planting is no part of the measurement.
        slots = self.cache.allocate(self.scale.nodes * self.scale.page_size)
        assert slots is not None, f"the cache has no room for a tree of {self.scale.nodes} pages"
        return slots.reshape(self.scale.nodes, self.scale.page_size)

    def _plant_trunk(self, page: Tokens, slots: Slots) -> Offer:
        trunk = Offer(Key(page, SHARED), slots, shared=0)
        insert(self.cache, trunk)
        return trunk

    def _plant_leaf(self, trunk: Offer, page: Tokens, slots: Slots) -> None:
        key = Key(np.concatenate((trunk.key.tokens, page)), SHARED)
        insert(self.cache, Offer(key, np.concatenate((trunk.slots, slots)), shared=len(trunk.slots)))

    def _pages(self, count: int) -> Tokens:
        return random_tokens(self._random, count, self.scale.page_size)
