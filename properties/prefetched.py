"""Prefetched: a prefetch that somebody waits for. Shelf: what storage has of a key, and what of that must come."""

from __future__ import annotations

from dataclasses import dataclass

from hicache.testing.driving.driver import Driver
from hicache.testing.storage.store import Store
from hicache.testing.stored import restorable_pages
from hicache.types import COMPONENT_POOL, Component, Handle, Key, Pool


@dataclass(frozen=True, slots=True, eq=False)
class Prefetched:
    """A prefetch that was granted. `before`: pages that a match got when it began; `wanted`: those past them."""

    ticket: Handle
    key: Key
    before: int
    wanted: int


class Shelf:
    """The objects of one cache in its store."""

    def __init__(self, driver: Driver, store: Store) -> None:
        self._driver = driver
        self._store = store
        config = driver.config
        self._pools = [COMPONENT_POOL[component] for component in config.components]
        self._pools += [Pool.INDEXER] if Pool.INDEXER in config.sidecars else []
        self._window = -(-(config.sliding_window_size or 0) // config.page_size)

    def objects(self, key: Key) -> dict[Pool, list[str]]:
        """The key of each page in each pool."""
        return {pool: self._driver.storage_keys(pool, key) for pool in self._pools}

    def object_of(self, key: Key, page: int) -> str | None:
        """An object of a page, counted from the end, in a pool that the page decides; None for a key without pages."""
        names = self.objects(key)[self._pools[page % len(self._pools)]]
        return names[-1 - page // 2 % len(names)] if names else None

    def written(self, key: Key) -> dict[str, list[bool]]:
        """Of which pages there was ever an object, by component."""
        objects = self.objects(key)
        found = {pool: [self._store.was_written(name) for name in names] for pool, names in objects.items()}
        return {c.value: found[COMPONENT_POOL[c]] for c in Component if COMPONENT_POOL[c] in found}

    def expected_pages(self, key: Key, before: int) -> int:
        """The pages past a match that storage can give."""
        present = {pool: self._store.readable(names)[before:] for pool, names in self.objects(key).items()}
        return restorable_pages(present, self._window)

    def seeming_pages(self, key: Key, before: int) -> int:
        """The pages past a match that storage says it can give."""
        seeming = {pool: list(map(self._store.has, names))[before:] for pool, names in self.objects(key).items()}
        return restorable_pages(seeming, self._window)

    def needed_pages(self, pages: int) -> dict[str, int]:
        """Host pages that a prefix of so many pages takes, by component."""
        needed = {Component.FULL.value: pages, Component.SWA.value: min(pages, self._window), Component.MAMBA.value: 1}
        return {component: count for component, count in needed.items() if COMPONENT_POOL[component] in self._pools}

    def unreadable(self, key: Key) -> int:
        """Objects that seem to be there, and cannot be read."""
        names = [name for names in self.objects(key).values() for name in names]
        return sum(map(self._store.has, names)) - sum(self._store.readable(names))
