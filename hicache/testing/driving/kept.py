"""Kept: the prefixes that a cache must still find, by its answers alone, until a verb may have evicted."""

from __future__ import annotations

from collections.abc import Mapping

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clauses_not_checked
from hicache.testing.driving.patterns import prefix_digests
from hicache.testing.driving.prompts import cut
from hicache.testing.geometry import geometry_of
from hicache.testing.violation import violation
from hicache.types import Component, Key

FULL, SWA, MAMBA = (component.value for component in Component)


class Kept:
    """The prefixes that the device had at some answer, since the last verb that may have evicted (REUSE-7).

    A verb may have evicted if the slots that it took could have been too many for the free ones. How many are in use
    is an upper bound: what a cache of another design keeps longer than needed counts. Nothing is demanded of a cache
    that departs from EVICT-1, or that keeps nothing on the device.
    """

    def __init__(self, adapter: CacheAdapter, config: CacheConfig) -> None:
        self._adapter = adapter
        self._config = config
        self._geometry = geometry_of(config)
        self._capacity = self._geometry.in_blocks(config.capacity_tokens)
        self._is_tree = adapter.profile == "tree"
        self._not_checked = clauses_not_checked(adapter.profile, adapter.departures)
        self._is_demanded = adapter.profile != "offload" and self._not_checked.isdisjoint(("EVICT-1", "REUSE-7"))
        self._has_limit = config.mamba_max_states_per_path is not None
        self._used: dict[str, int] = {}
        self._ends: set[int] = set()
        self.emptied({})

    # Room.

    def emptied(self, held: Mapping[str, int]) -> None:
        """The cache has nothing but the slots that callers hold."""
        self._ends.clear()
        self._used = {name: self._blocks(name, held.get(name, 0)) for name in self._capacity}

    def look(self) -> None:
        """Take over how many slots are free, if the cache says so: before a verb that takes some."""
        # Caches of blocks reuse the block that was freed first, although others are free.
        if self._is_tree and Capability.SIZES in self._adapter.capabilities:
            for name, sizes in self._adapter.sizes().items():
                used = self._capacity[name] - self._blocks(name, sizes.free)
                self._used[name] = min(self._used[name], used)

    def takes(self, slots: Mapping[str, int]) -> bool:
        """A verb takes so many slots of each component. Whether all of them were free."""
        for name in self._used.keys() & slots.keys():
            self._used[name] += self._blocks(name, slots[name])
        fits = self._geometry.fits(self._used, self._capacity)
        if not fits:
            self._ends.clear()
            self._used = {name: min(count, self._capacity[name]) for name, count in self._used.items()}
        return fits

    def grows(self, tokens: int) -> bool:
        """A request takes slots for so many tokens, and a state. Whether all of them were free."""
        states = 1 if self._is_tree or MAMBA not in self._capacity else 2 + tokens // self._geometry.tokens(MAMBA)
        return self.takes({FULL: tokens, SWA: tokens, MAMBA: states})

    def require_no_room(self, place: str, tokens: int) -> None:
        """Raise InvariantError if the only request, of so many tokens, fits into an empty cache (REQ-9).

        Its window may not have been released, and a cache of blocks may keep each of its states.
        """
        needed = {name: self._blocks(name, tokens + self._geometry.lookahead) for name in self._capacity}
        if MAMBA in needed:
            kept = 0 if self._is_tree else tokens // self._geometry.tokens(MAMBA)
            needed[MAMBA] = 2 + self._geometry.lookahead + kept
        if "REQ-9" not in self._not_checked and self._geometry.fits(needed, self._capacity):
            raise violation("REQ-9", place, f"to be granted, as {needed} blocks of {self._capacity} suffice", "refused")

    def gives(self, slots: Mapping[str, int]) -> None:
        """A caller frees so many slots of each component."""
        if self._is_tree:
            for name in self._used.keys() & slots.keys():
                self._used[name] = max(0, self._used[name] - slots[name] // self._geometry.slots(name))

    def evicted(self, freed: Mapping[str, int]) -> None:
        """A caller had so many slots of each component evicted."""
        if any(freed.values()):
            self._ends.clear()
            self.gives(freed)

    def refused(self) -> None:
        """A request was not admitted or extended. A cache that departs from EVICT-13 may have evicted for it."""
        if "EVICT-13" in self._not_checked:
            self.lost()

    def lost(self) -> None:
        """Anything may have left the cache."""
        self._ends.clear()

    # What is found.

    def inserted(self, key: Key, elements: int) -> None:
        """The device was given so many elements of a key."""
        if self._has_limit:
            self._ends.clear()
        self.found(key, elements)

    def found(self, key: Key, elements: int) -> None:
        """The device has so many elements of a key."""
        if self._is_demanded and elements:
            self._ends.add(self._digests(key, elements)[-1])

    def require(self, place: str, key: Key, elements: int, limit: int) -> None:
        """Raise InvariantError unless as much of a key was found as the device has. `limit`: the most that may be."""
        if not self._is_demanded:
            return
        digests, page = self._digests(key, max(elements, limit)), self._config.page_size
        for pages in range(limit // page, elements // page, -1):
            if digests[pages - 1] in self._ends:
                raise violation("REUSE-7", place, f"{pages * page} elements, which nothing had to leave for", elements)
        if elements:
            self._ends.add(digests[elements // page - 1])

    def _digests(self, key: Key, elements: int) -> list[int]:
        """A number for each whole page of so many elements of a key, of all that precedes its end."""
        page = self._config.page_size
        return [int(one) for one in prefix_digests(cut(key, elements, self._config), page, self._config.bigram)]

    def _blocks(self, name: str, slots: int) -> int:
        return -(-slots // self._geometry.slots(name))
