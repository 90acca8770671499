"""StoredObjects: which objects of a key storage has, and how many pages a prefetch of it must bring."""

from __future__ import annotations

from dataclasses import dataclass

from hicache.testing.driving.driver import Driver
from hicache.testing.storage.scripted import Store
from hicache.testing.stored import restorable_pages
from hicache.types import COMPONENT_POOL, Component, Handle, Key, Pool


@dataclass(frozen=True, slots=True, eq=False)
class GrantedPrefetch:
    """A prefetch that was granted. `before`: pages that a match found at its start; `wanted`: the pages past them."""

    ticket: Handle
    key: Key
    before: int
    wanted: int


class StoredObjects:
    """The objects of one cache in its scripted store."""

    def __init__(self, driver: Driver, store: Store) -> None:
        self._driver = driver
        self._store = store
        config = driver.config
        self._pools = [COMPONENT_POOL[component] for component in config.components]
        self._pools += [Pool.INDEXER] if Pool.INDEXER in config.sidecars else []
        self._window = -(-(config.sliding_window_size or 0) // config.page_size)

    def objects(self, key: Key) -> dict[Pool, list[str]]:
        """The object key of each page in each pool."""
        return {pool: self._driver.storage_keys(pool, key) for pool in self._pools}

    def object_of(self, key: Key, page: int) -> str | None:
        """The key of one object. `page`: selects the pool, and the page counted from the end. None without pages."""
        names = self.objects(key)[self._pools[page % len(self._pools)]]
        return names[-1 - page // 2 % len(names)] if names else None

    def written(self, key: Key) -> dict[str, list[bool]]:
        """By component, which pages ever had an object."""
        objects = self.objects(key)
        found = {pool: [self._store.was_written(name) for name in names] for pool, names in objects.items()}
        return {c.value: found[COMPONENT_POOL[c]] for c in Component if COMPONENT_POOL[c] in found}

    def expected_pages(self, key: Key, before: int) -> int:
        """The number of pages past a match that can be read."""
        present = {pool: self._store.readable(names)[before:] for pool, names in self.objects(key).items()}
        return restorable_pages(present, self._window)

    def pages_said_to_exist(self, key: Key, before: int) -> int:
        """The number of pages past a match that storage says it has."""
        seeming = {pool: list(map(self._store.has, names))[before:] for pool, names in self.objects(key).items()}
        return restorable_pages(seeming, self._window)

    def needed_pages(self, pages: int) -> dict[str, int]:
        """By component, the host pages that a prefix of so many pages needs."""
        needed = {Component.FULL.value: pages, Component.SWA.value: min(pages, self._window), Component.MAMBA.value: 1}
        return {component: count for component, count in needed.items() if COMPONENT_POOL[component] in self._pools}

    def unreadable(self, key: Key) -> int:
        """The number of objects that storage says it has, and that cannot be read."""
        names = [name for names in self.objects(key).values() for name in names]
        return sum(map(self._store.has, names)) - sum(self._store.readable(names))
